"""Claims that are made false, and the points that say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from liftednet import certify
from liftednet.errors import LiftedError
from liftednet.models.bounds.curves import CURVES
from liftednet.models.bounds.refutation import _Trial, refute
from liftednet.models.bounds.units import Units


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2), nn.ReLU()).double()


FALSE = {
    "lowest": lambda claim: replace(claim, lowest=0.3 * claim.lowest),
    "highest": lambda claim: replace(claim, highest=0.3 * claim.highest),
    "lipschitz": lambda claim: replace(claim, lipschitz=0.1 * claim.lipschitz),
    "convex": lambda claim: replace(claim, convex=~claim.convex),
    "concave": lambda claim: replace(claim, concave=~claim.concave),
    "least": lambda claim: replace(claim, least=claim.least + 0.1),
    "most": lambda claim: replace(claim, most=claim.least + 0.01),
}


@pytest.mark.parametrize("field", FALSE)
def test_what_is_false_is_refuted_with_a_point(field):
    made = network()
    claim = certify(made, box=(-3.0, 3.0))
    assert not claim.convex.any()
    example = (torch.zeros(2, 3).double(),)
    refute(made, claim, example, None)
    with pytest.raises(LiftedError, match=r"refuted at x = \(.*derived from the weights"):
        refute(made, FALSE[field](claim), example, None)


def test_derivatives_of_every_output_are_held_against_the_claim():
    made, points = nn.Linear(3, 4).double(), torch.ones(2, 3).double()
    claim = certify(made)
    _Trial(made, (1e-10, 1e-7), claim, (points,)).derivatives(points)
    for output in range(4):
        highest = claim.highest - 0.1 * torch.eye(4)[output][:, None]
        with pytest.raises(LiftedError, match=f"the derivative of output {output} in input 0 is"):
            _Trial(made, (1e-10, 1e-7), replace(claim, highest=highest), (points,)).derivatives(
                points
            )


def test_training_inputs_are_tried():
    """Beyond 400 the slope is 2, where no draw of a scale of at most 100 falls."""

    class Far(nn.Module):
        def forward(self, x):
            return x + (x - 1000.0).relu()

    far, example = Far(), (torch.zeros(2, 1).double(),)
    false = replace(certify(far, example), lipschitz=1.0, highest=torch.ones(1, 1).double())
    refute(far, false, example, None)
    with pytest.raises(LiftedError, match="refuted"):
        refute(far, false, example, (torch.tensor([[900.0], [1100.0], [1200.0]]),))


def test_a_jump_is_found_between_points():
    class Jump(nn.Module):
        def forward(self, x):
            return x + 1e-6 * (x > 0.123).to(x)

    example = (torch.zeros(2, 1).double(),)
    jump, line = Jump(), nn.Identity()
    with pytest.raises(LiftedError, match="refuted at x"):
        refute(jump, certify(line, example), example, None)


def test_a_call_that_does_other_things_than_its_line_says_is_refused(monkeypatch):
    monkeypatch.setitem(CURVES, "sin", CURVES["tanh"])

    class Wave(nn.Module):
        def forward(self, x):
            return (3.0 * x).sin()

    with pytest.raises(LiftedError, match="does other things than it is known for"):
        certify(Wave(), torch.zeros(2, 1).double())


def test_halved_slopes_of_a_softmax_are_refused(monkeypatch):
    whole = Units.softmax

    def halved(self, below):
        found = whole(self, below)
        self.low[found], self.high[found] = self.low[found] / 2, self.high[found] / 2
        return found

    monkeypatch.setattr(Units, "softmax", halved)
    with pytest.raises(LiftedError, match="refuted"):
        certify(nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)).double())


def test_a_backward_pass_of_its_own_is_no_proof_against_a_network():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.relu()

        @staticmethod
        def backward(ctx, push):
            return 5.0 * push

    class Own(nn.Module):
        def forward(self, x):
            return Straight.apply(x)

    claim = certify(Own(), torch.zeros(2, 2).double())
    assert claim.lipschitz == pytest.approx(1.0)


def by_gradient(x):
    return x if torch.is_grad_enabled() else -x


def by_rows(x):
    return x if len(x) <= 300 else -x


def by_more_than_a_row(x):
    return x if len(x) > 1 else -x


@pytest.mark.parametrize("answer", [by_gradient, by_rows, by_more_than_a_row])
def test_a_network_that_is_no_function_of_its_inputs_is_refused(answer):
    class Own(nn.Module):
        def forward(self, x):
            return answer(x)

    with pytest.raises(LiftedError, match="one value was derived"):
        certify(Own(), torch.zeros(2, 2).double())
