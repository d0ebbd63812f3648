"""Certificates: against differences and midpoints that are sampled, and what they do not claim."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from liftednet import LiftedRegressor, certify, to_torch
from liftednet.activations import ReLU, Softplus
from liftednet.constraints import Bounds, Constraint, Linear
from liftednet.errors import DataError, DeclarationError, NotFittedError
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP, Minibatch
from liftednet.problems import Weights
from tests.models.networks import refuses
from tests.models.registry import BY_NAME
from tests.torture.modules import contradiction

X = torch.rand(240, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 10, 100.0])
Y = (X[:, :1] * X[:, 1:2]).sqrt() - X[:, 2:] / 50
BRIEF = Minibatch(epochs=3)
pytestmark = pytest.mark.filterwarnings("ignore::liftednet.FitWarning")  # of few steps


def require_sound(certificate, function, inputs=3):
    """Require that no sampled difference, middle or bend contradicts a certificate."""
    assert contradiction(function, certificate, 0) == ""
    bend = bends_of(function, inputs)
    assert bool((bend >= -1e-7)[:, certificate.convex_in].all())
    assert bool((bend <= 1e-7)[:, certificate.concave_in].all())


def bends_of(function, inputs, size=100.0):
    """Return second differences along every axis, (samples, outputs, inputs)."""
    generator = torch.Generator().manual_seed(3)
    x = size * (2 * torch.rand(150, inputs, generator=generator).double() - 0.5)
    steps = size * torch.rand(150, 1, generator=generator).double()
    with torch.no_grad():
        sides = [[function(x + k * steps * axis) for k in (-1, 0, 1)] for axis in torch.eye(inputs)]
    return torch.stack([a - 2 * b + c for a, b, c in sides], -1)


KINDS: dict[str, list[Constraint]] = {
    "bounds": [Bounds(lower=-30.0, upper=[30.0, 60.0, 15.0])],
    "order": [Linear([[-1.0, 0], [1, -1], [0, 1]], lower=0.0), Bounds(upper=40.0)],
    "shares": [Linear([1, 1, 1], equal=50.0), Bounds(lower=0.0)],
    "any": [Linear([[1.0, -0.3], [2.0, 0.5], [0, 1]], upper=[20.0, 50.0])],
}


def test_a_certificate_has_the_limits_that_are_met():
    limits = [Linear([[1, 2], [1, -1]], lower=[0.0, -1.0], upper=[5.0, math.inf]),
              Linear([1, 1], equal=5, inputs=[-3, 0, 1])]  # fmt: skip
    expected = ("0 <= output 0 + output 1 <= 5", "-1 <= 2 output 0 - output 1",
                "output 0 + output 1 - 3 input 0 + input 2 = 5")  # fmt: skip
    zero = [Weights(torch.zeros(3, 2), torch.zeros(2))]
    facts = certify(LiftedMLP((3, 2), loss=SquaredError(), within=limits).with_weights(zero))
    assert facts.limits == expected and expected[2] in str(facts)
    model = LiftedMLP((3, 2), within=limits[:1]).with_weights(zero)
    assert certify(model).limits[1] == "-1 <= 2 score 0 - score 1"
    assert certify(to_torch(model, logits=True)).limits[1] == "-1 <= 2 output 0 - output 1"


@pytest.mark.parametrize("kind, standardize", [*((kind, False) for kind in KINDS), ("order", True)])
def test_a_network_within_limits_has_a_sound_certificate(kind, standardize):
    """Means and clipped outputs rise where what they are of rises, and none is steeper."""
    free, model = (
        LiftedMLP(
            (3, 8, 3), loss=SquaredError(), method=BRIEF, standardize=standardize,
            dtype=torch.float64, within=within,
        ).fit(X, torch.cat([Y, -Y, Y.square()], 1))
        for within in ([], KINDS[kind])
    )  # fmt: skip
    for weights in (model.weights, [Weights(w.matrix.abs(), w.bias) for w in model.weights]):
        model.with_weights(weights)
        facts = certify(model)
        require_sound(facts, to_torch(model))
        again = certify(to_torch(model))
        assert facts.lipschitz == again.lipschitz and facts.lowest.equal(again.lowest)
        if not standardize:  # by one number, and not by one for each output
            assert facts.lipschitz <= certify(free.with_weights(weights)).lipschitz * (1 + 1e-9)
    assert facts.increasing == ((0, 1, 2) if kind in ("bounds", "order") else ())


def test_limits_that_move_with_inputs_are_not_certified():
    total = Linear([1.0], upper=0.0, inputs=[1.0, 0, 0])
    model = LiftedMLP((3, 4, 1), loss=SquaredError(), method=BRIEF, within=[total]).fit(X, Y)
    facts = certify(model)
    assert math.isinf(facts.lipschitz) and not facts.increasing and not facts.convex.any()


def test_bounds_are_tight_where_they_can_be():
    torch.manual_seed(0)  # of torch's own starts
    positive: Any = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 1)).double()
    for layer in (positive[0], positive[2]):
        layer.weight.data.abs_()
    exact = torch.linalg.matrix_norm(positive[2].weight @ positive[0].weight, 2).detach()
    assert certify(positive).lipschitz == pytest.approx(float(exact))  # the norms' product is more
    assert certify(positive).increasing == (0, 1, 2)


def test_a_small_wrong_sign_is_no_proof():
    network: Any = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    network[0].weight.data = torch.tensor([[1.0, 1e-30], [1.0, 1.0]]).double()
    network[2].weight.data = torch.tensor([[1.0, -1e-30]]).double()
    facts = certify(network)
    assert facts.increasing == () and facts.decreasing == () and not facts.convex.any()


def test_nothing_is_claimed_of_what_is_not_known():
    torch.manual_seed(0)  # of torch's own starts
    for middle in (nn.Hardshrink(), nn.Softplus(threshold=1), nn.Softmin(1), nn.Softmax(1)):
        network: Any = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 1)).double()
        facts = certify(network)
        assert not facts.convex.any() and not facts.concave.any()
        require_sound(facts, network)
    assert facts.lipschitz < torch.inf
    network = nn.Sequential(nn.Linear(3, 4), nn.Hardshrink(), nn.Linear(4, 1)).double()
    network[2].weight.data.mul_(1e-200)  # times something that may have any size
    facts = certify(network)
    assert facts.lipschitz == torch.inf and bool((facts.lowest == -torch.inf).all())
    assert "not bounded" in str(facts)


def test_outputs_of_two_losses_stand_below_each_other():
    graph = BY_NAME["two of each"]
    model = graph.model("tight", BRIEF).fit(graph.x, graph.y)
    facts, exported = certify(model), to_torch(model)
    require_sound(facts, lambda rows: torch.cat(exported(*rows.split([4, 2], 1)), 1), inputs=6)
    assert facts.lipschitz < torch.inf and facts.lowest.shape == (5, 6)


@pytest.mark.parametrize(
    ("activation", "directions"), [(Softplus(), None), (ReLU(), [1, 0, 0, -1])], ids=repr
)
def test_signs_of_weights_make_outputs_bend_in_single_inputs(activation, directions, generator):
    """Any weights with these signs; of free inputs some outputs bend in both ways."""
    model = LiftedMLP((4, 21, 14, 2), activation, SquaredError(), convex=[1, -1, 0, 1],
                      monotonic_cst=directions, dtype=torch.float64)  # fmt: skip
    layers, draw = zip(model.network.parameters, model._penalties(), strict=True), []
    for parameter, penalty in layers:
        matrix, bias = (torch.randn(n, parameter.shape[1], generator=generator).double()
                        for n in (parameter.shape[0], 1))  # fmt: skip
        draw.append(Weights(penalty.project(matrix), bias[0]))
    network = to_torch(model.with_weights(draw))
    facts = certify(model)
    require_sound(facts, network, inputs=4)
    assert facts.convex_in.tolist() == [[True, False, False, True]] * 2
    assert facts.concave_in.tolist() == [[False, True, False, False]] * 2
    assert not facts.convex.any() and not facts.concave.any()
    assert "output 0 is convex in 2 of 4 inputs: 0, 3" in str(facts)
    if directions is not None:
        assert facts.increasing == (0,) and facts.decreasing == (3,)
    bend = bends_of(network, 4, 2.0)
    held = [1, 3] if directions is None else [1]  # units that see both fewer bend less
    assert all(float(bend[..., n].abs().max()) > 1e-3 for n in held)
    assert float(bend[..., 2].max()) > 1e-3 and float(bend[..., 2].min()) < -1e-3
    crossed = Weights(draw[1].matrix.where(draw[1].matrix != 0, 1e-3), draw[1].bias)
    again = certify(model.with_weights([draw[0], crossed, draw[2]]))
    assert not again.convex_in[:, [0, 3]].any() and not again.concave_in[:, 1].any()
    require_sound(again, to_torch(model), inputs=4)


def test_what_cannot_be_certified_is_refused():
    refuses(DataError, "fitted model", certify, "model")
    refuses(DataError, "example", certify, nn.Sequential(nn.Conv1d(1, 2, 3)))
    refuses(NotFittedError, "", certify, LiftedMLP((3, 2, 1)))
    refuses(DataError, "seconds", certify, nn.Linear(2, 1), seconds=0.0)


def test_a_normalization_is_certified_where_its_statistics_are_given() -> None:
    network, norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.BatchNorm1d(3, eps=0.0)
    norm.running_var, norm.weight.data = torch.tensor([[4.0, 1.0, 0.25], [-1.0, 2.0, 3.0]])
    facts = certify(norm.eval(), torch.zeros(2, 3))
    slopes = torch.tensor([-0.5, 2.0, 6.0]).diag().double()
    torch.testing.assert_close(facts.lowest, slopes, rtol=1e-6, atol=0)
    torch.testing.assert_close(facts.highest, slopes, rtol=1e-6, atol=0)
    assert certify(network.train()).lipschitz == math.inf  # those of a batch
    refuses(DeclarationError, r"call eval\(\)", certify, network, box=(-1, 1), exact=True)


def test_nothing_is_claimed_of_rows_with_holes() -> None:
    """Raising an input raises what stands in for another, by which the output falls."""
    draw = np.random.default_rng(5)
    x = draw.normal(size=(200, 1)).repeat(2, 1) + draw.normal(size=(200, 2)) * [0, 0.2]
    y = x @ [1, -3] + 0.1 * draw.normal(size=200)
    x[draw.random(200) < 0.3, 1] = np.nan
    model = LiftedRegressor((8,), missing=True, monotonic_cst=[1, 0], random_state=0).fit(x, y)
    low, high = model.predict(np.array([[-2, np.nan], [2, np.nan]]))
    assert high < low - 1
    assert "entries of X that are NaN" in str(certify(model))
