"""Claims that are made false, and the points that say so."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from liftednet import certify
from liftednet.errors import LiftedError
from liftednet.models.bounds.curves import CURVES
from liftednet.models.bounds.refutation import _Trial, refute
from tests.models.networks import refuses
from tests.models.programs.networks import Called

FALSE = {
    "lowest": lambda claim: replace(claim, lowest=0.3 * claim.lowest),
    "highest": lambda claim: replace(claim, highest=0.3 * claim.highest),
    "lipschitz": lambda claim: replace(claim, lipschitz=0.1 * claim.lipschitz),
    "convex": lambda claim: replace(claim, convex=~claim.convex),
    "concave": lambda claim: replace(claim, concave=~claim.concave),
    "convex_in": lambda claim: replace(claim, convex_in=~claim.convex_in),
    "concave_in": lambda claim: replace(claim, concave_in=~claim.concave_in),
    "least": lambda claim: replace(claim, least=claim.least + 0.1),
    "most": lambda claim: replace(claim, most=claim.least + 0.01),
}


@pytest.mark.parametrize("field", FALSE)
def test_what_is_false_is_refuted_with_a_point(field):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2), nn.ReLU()).double()
    claim = certify(made, box=(-3.0, 3.0))
    assert not claim.convex.any()
    example = (torch.zeros(2, 3).double(),)
    refute(made, claim, example, None)
    with pytest.raises(LiftedError, match=r"refuted at x = \(.*derived from the weights"):
        refute(made, FALSE[field](claim), example, None)


def test_training_inputs_are_tried():
    """Beyond 400 the slope is 2, where no draw of a scale of at most 100 falls."""
    far, example = Called(lambda x: x + (x - 1000.0).relu()), (torch.zeros(2, 1).double(),)
    false = replace(certify(far, example), lipschitz=1.0, highest=torch.ones(1, 1).double())
    refute(far, false, example, None)
    inputs = (torch.tensor([[900.0], [1100.0], [1200.0]]),)
    refuses(LiftedError, "refuted", refute, far, false, example, inputs)


def test_answers_that_overflow_refute_nothing():
    """Of 1e38 x every point above 3.4 is infinite in float32, and the claim is right."""
    steep = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        steep.weight.copy_(torch.tensor([[1e38], [1.0]]))
    assert certify(steep).lipschitz == pytest.approx(1e38, rel=1e-6)
    trial = _Trial(steep, (1e-5, 1e-3), certify(steep), (torch.zeros(2, 1),))
    for one, other in ((0.0, 100.0), (5.0, 0.0), (0.0, 5.0), (-100.0, 100.0)):
        trial.pairs(*(torch.tensor([[x]], dtype=torch.float64) for x in (one, other)))


def test_a_jump_is_found_between_points():
    example = (torch.zeros(2, 1).double(),)
    jump, claim = Called(lambda x: x + 1e-6 * (x > 0.123).to(x)), certify(nn.Identity(), example)
    refuses(LiftedError, "refuted at x", refute, jump, claim, example, None)


def test_a_call_that_does_other_things_than_its_line_says_is_refused(monkeypatch):
    monkeypatch.setitem(CURVES, "sin", CURVES["tanh"])
    wave, words = Called(lambda x: (3.0 * x).sin()), "does other things than it is known for"
    refuses(LiftedError, words, certify, wave, torch.zeros(2, 1).double())


def test_a_backward_pass_of_its_own_is_no_proof_against_a_network():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.relu()

        @staticmethod
        def backward(ctx, push):
            return 5.0 * push

    claim = certify(Called(Straight.apply), torch.zeros(2, 2).double())
    assert claim.lipschitz == pytest.approx(1.0)


ANSWERS = {
    "gradients": lambda x: x if torch.is_grad_enabled() else -x,
    "many rows": lambda x: x if len(x) <= 300 else -x,
    "one row": lambda x: x if len(x) > 1 else -x,
}


@pytest.mark.parametrize("by", ANSWERS)
def test_a_network_that_is_no_function_of_its_inputs_is_refused(by):
    own, words = Called(ANSWERS[by]), "one value was derived"
    refuses(LiftedError, words, certify, own, torch.zeros(2, 2).double())


@pytest.mark.parametrize("box", [None, (-2.0, 3.0)])
def test_of_a_linear_network_every_number_of_the_claim_is_tried(box):
    """What is off by a millionth in one entry is refuted; what is off by rounding is not."""
    torch.manual_seed(0)
    made, example = nn.Linear(3, 2).double(), (torch.zeros(2, 3).double(),)
    claim, plain = certify(made, box=box), made.weight.detach()
    far = plain.abs().max()
    refute(made, replace(claim, lowest=plain + 1e-13, highest=plain - 1e-13), example, None)
    wrong = []
    for output, axis in ((0, 0), (0, 2), (1, 1)):
        off = torch.zeros_like(plain)
        off[output, axis] = 1e-6 * far
        wrong += [replace(claim, lowest=plain + off), replace(claim, highest=plain - off)]
    norm = float(torch.linalg.matrix_norm(plain, 2))
    refute(made, replace(claim, lipschitz=norm), example, None)
    wrong.append(replace(claim, lipschitz=0.5 * norm))
    if box is not None:  # 40 of its 8 corners are tried
        off = torch.tensor([0.0, 1e-6 * far])
        wrong += [replace(claim, least=claim.least + off), replace(claim, most=claim.most - off)]
    for false in wrong:
        refuses(LiftedError, "refuted at x", refute, made, false, example, None)


def test_of_saturated_units_nothing_is_refuted_that_values_cannot_tell():
    """Autograd has phi (1 - phi), of which eps is lost, where the derivative is nearly e^-x."""
    line = nn.Linear(1, 1)
    nn.init.constant_(line.weight, 10.0)
    nn.init.zeros_(line.bias)
    made = nn.Sequential(line, nn.Sigmoid()).double()
    for center in torch.linspace(2.0, 3.0, 12).tolist():
        found = certify(made, box=(center - 1e-4, center + 1e-4))
        slope = 10 / (2 + 2 * np.cosh(10 * center))
        assert float(found.lowest) <= slope <= float(found.highest) < 1.01 * slope
