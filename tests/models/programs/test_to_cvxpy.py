"""Networks in CVXPY: against its own curvature rules, all activation patterns, and values."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import LiftedRegressor, Network, optimize, to_cvxpy, to_torch
from liftednet.activations import ELU, ReLU, Softplus
from liftednet.constraints import Bounds
from liftednet.errors import DataError, DeclarationError, NotFittedError
from liftednet.layers import dense
from liftednet.losses import SquaredError
from liftednet.models import Lifted, LiftedMLP, Minibatch, input_convex
from tests.models.networks import refuses
from tests.models.programs import networks
from tests.models.programs.networks import Called, by_highs, grid, stated, values

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (200, 2)) * [1, 10] + [0, 5]
Y = np.abs(X[:, 0]) + (X[:, 1] / 10) ** 2


def drawn(*parts: nn.Module) -> Any:
    return networks.drawn(*parts, dtype=torch.float32)


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_neither_rows_of_inputs_nor_weights_of_zero_warn() -> None:
    """CVXPY compiles sums of equal axes only, and inf * 0 is NaN."""
    network = drawn(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        network[0].weight.abs_()[:, 0] = 0.0
        network[2].weight.abs_()
    x: Any = cp.Variable((3, 2))
    found = to_cvxpy(network, x)
    cp.Problem(cp.Minimize(cp.sum(found.output)), [x >= -1, x <= 1]).solve(solver="CLARABEL")
    least = network(torch.tensor([[0.0, -1.0]])).item()  # it rises in the second input
    np.testing.assert_allclose(found.output.value, [[least]] * 3, atol=1e-6)


@pytest.mark.parametrize("activation", [ReLU(), Softplus()], ids=repr)
def test_cvxpy_finds_input_convex_networks_convex(activation) -> None:
    model = Lifted(input_convex((2, 6, 5, 1), activation), method=Minibatch(epochs=3), seed=0)
    model.fit(X, Y[:, None])
    x: Any = cp.Variable(2)
    network = to_cvxpy(model, x)
    assert network.output.is_convex() and not network.output.is_affine()
    assert (network.kind, network.constraints, network.exact) == ("convex", [], True)
    problem = cp.Problem(cp.Minimize(network.output[0]), [x >= [-1, -5], x <= [1, 15], x[0] >= 0.1])
    problem.solve(solver="CLARABEL")
    wanted = model.forward(grid([0.1, -5], [1, 15], 60))[:, 0].numpy()
    scale = np.abs(wanted).max()
    assert problem.value <= wanted.min() + 1e-6 * scale
    assert abs(float(model.forward(x.value[None])) - problem.value) <= 2e-6 * scale


def test_a_concave_network_is_concave_and_one_without_layers_affine() -> None:
    network = drawn(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    x: Any = cp.Variable((3, 2))
    with torch.no_grad():
        network[2].weight.copy_(-network[2].weight.abs())
    found = to_cvxpy(network, x)
    assert found.kind == "concave" and found.output.is_concave()
    x.value = RNG.normal(size=(3, 2))
    wanted = values(network.double(), x.value)
    np.testing.assert_allclose(found.output.value, wanted, rtol=1e-12, atol=1e-12)
    none = nn.Sequential(nn.Linear(2, 3), nn.Softshrink(0.0))  # it takes nothing away
    assert to_cvxpy(none, x).kind == to_cvxpy(nn.Linear(2, 3), x).kind == "affine"


SHAPES = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(), nn.Hardtanh(), nn.ReLU6(), nn.Hardsigmoid(),
    nn.Softshrink(0.3),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_networks_linear_in_pieces_are_exact(shape) -> None:
    network = drawn(nn.Linear(2, 6), shape, nn.Linear(6, 6), shape, nn.Linear(6, 2))
    with torch.no_grad():
        network[0].weight[1] = network[0].bias[1] = 0.0  # pruned, and at the kink of some
    x, found = stated(network, 2, -1, [1, 0.5])
    assert found.kind == "mixed-integer"
    network = network.double()
    for sign in (1, -1):
        value = by_highs(cp.Maximize(sign * found.output[1]), found)
        assert value >= (sign * values(network, grid(-1, [1, 0.5], 101))[:, 1]).max() - 1e-6
        np.testing.assert_allclose(found.output.value, values(network, x.value)[0], atol=1e-6)


class Residual(nn.Module):
    """Convolution, normalization, two kinds of pooling, |u| and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.last = nn.Linear(12, 1)

    def forward(self, x):
        z = torch.relu(self.norm(self.convolution(x)))
        z = z + 0.3 * x.abs()
        pooled = nn.functional.max_pool2d(z, 2) + nn.functional.avg_pool2d(z, 2)
        return self.last(pooled.flatten(1))


def test_convolution_pooling_and_residual_sums_are_exact() -> None:
    network = drawn(Residual())
    network[0].norm.running_mean.fill_(0.2)
    x, found = stated(network.eval(), 16, -0.05, 0.05, example=torch.zeros(1, 1, 4, 4))
    value = by_highs(cp.Minimize(found.output[0]), found)
    network = network.double()
    with torch.no_grad():
        there = network(torch.from_numpy(x.value).view(1, 1, 4, 4))
        drawn_at = 0.1 * torch.rand(5000, 1, 4, 4, dtype=torch.float64) - 0.05
        assert value <= float(network(drawn_at).min())
    assert float(there) == pytest.approx(value, abs=1e-6)


SMOOTH = [nn.Tanh(), nn.Softplus(), nn.GELU(), nn.Hardswish()]


@pytest.mark.parametrize("activation", SMOOTH, ids=repr)
def test_relaxations_hold_the_network_itself(activation) -> None:
    network = drawn(nn.Linear(2, 5), activation, nn.Linear(5, 3), activation, nn.Linear(3, 2))
    x, found = stated(network, 2, -2, 2, mixed_integer=True)
    assert found.kind == "relaxation" and found.whole == 0
    low, high = found.range()
    network = network.double()
    for point in RNG.uniform(-2, 2, (30, 2)):
        x.value = point
        found.pass_forward()
        wanted = values(network, point)[0]
        np.testing.assert_allclose(found.output.value, wanted, rtol=1e-8, atol=1e-8)
        assert max(np.max(c.violation()) for c in found.constraints) < 1e-10
        assert (low <= wanted).all() and (wanted <= high).all()


@pytest.mark.filterwarnings("ignore")
def test_an_estimator_takes_and_gives_units_of_the_data() -> None:
    model = LiftedRegressor((8,), max_iter=20, random_state=0).fit(X, 1000 * Y + 5000)
    x, found = stated(model, 2, X.min(0), X.max(0), mixed_integer=True)
    value = by_highs(cp.Maximize(found.output[0]), found)
    assert value == pytest.approx(model.predict(x.value[None]).item(), rel=1e-6)
    assert value >= model.predict(X).max() * (1 - 1e-6)
    _, exported = stated(to_torch(model.model_), 2, X.min(0), X.max(0), mixed_integer=True)
    assert by_highs(cp.Maximize(exported.output[0]), exported) == pytest.approx(value, rel=1e-6)


def test_inputs_that_are_parameters_compile_once() -> None:
    network = drawn(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
    given: Any = cp.Parameter(1)
    free: Any = cp.Variable(2)
    found = to_cvxpy(network, cp.hstack([given, free]), box=(-1, 1))
    problem: Any = cp.Problem(cp.Maximize(found.output[0]), found.constraints)
    assert problem.is_dcp(dpp=True)
    for number in (-0.5, 0.8):
        given.value = np.array([number])
        problem.solve(solver="HIGHS")
        with torch.no_grad():
            there = network(torch.tensor([[number, *free.value]]).float())
            others = 2 * torch.rand(4000, 3) - 1
            others[:, 0] = number
            assert problem.value >= float(network(others).max()) - 1e-5
        assert float(there) == pytest.approx(problem.value, abs=1e-5)


def test_states_within_bounds_are_cut_off() -> None:
    network = Network()
    h = network.state(ReLU(), dense(network.input(2), 5), bounds=(0.1, 0.6))
    network.loss(SquaredError(), dense(h, 1))
    model = Lifted(network, method=Minibatch(epochs=3), seed=0).fit(X, Y[:, None])
    x, found = stated(model, 2, X.min(0), X.max(0))
    value = by_highs(cp.Minimize(found.output[0]), found)
    assert value == pytest.approx(float(model.forward(x.value[None])), rel=1e-5, abs=1e-5)
    assert value <= float(model.forward(X).min()) + 1e-5


def test_what_cannot_stand_in_a_problem_is_refused() -> None:
    x: Any = cp.Variable(2)
    relu = drawn(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))

    own = nn.Sequential(nn.Linear(2, 3), Called(lambda u: u.gather(1, (u[:, :1] > 0).long())))
    gamma, named = nn.Sequential(relu, Called(torch.lgamma)), nn.Sequential(*relu, nn.Softmax(1))
    box: Any = (-1, 1)
    limited = LiftedMLP((2, 3, 1), loss="mse", within=[Bounds(upper=0.5)], method=Minibatch(1))
    limited.fit(X, Y[:, None])
    refused: list[tuple[Any, Any, Any, Any, str]] = [
        (relu, x, None, DataError, "box="),
        (relu, x, (-1, np.inf), DataError, "finite"),
        (relu, x, ([0, 1], [1, 0]), DataError, "empty"),
        (relu, cp.Variable(3), box, DataError, "2 inputs"),
        (relu, cp.square(x), box, DeclarationError, "affine"),
        (named, x, box, DeclarationError, "softmax may be left"),
        (own, x, box, DeclarationError, "indices"),
        (gamma, x, box, DeclarationError, "lgamma"),
        (nn.RNN(1, 2), x, box, DataError, r"example=X\[:2\]"),
        (3, x, None, DataError, "fitted model"),
        (limited, x, box, DeclarationError, "without, and state the limits"),
        (LiftedMLP((2, 3, 1), ELU(), SquaredError()), x, None, NotFittedError, ""),
    ]
    for network, inputs, given, error, words in refused:
        refuses(error, words, to_cvxpy, network, inputs, box=given)
    refuses(DeclarationError, "not convex", to_cvxpy, relu, x, box=(-1, 1), mixed_integer=False)
    refuses(DeclarationError, "x must be a cp.Variable.* got 'x'", to_cvxpy, relu, "x")
    assert all(p.requires_grad for p in relu.parameters())


def test_whole_numbers_are_left_to_cvxpy() -> None:
    network = drawn(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    found = to_cvxpy(network, cp.Variable(2, integer=True, bounds=[-3, 3]))
    most = cp.Maximize(found.output[0])
    refuses(DeclarationError, "HIGHS", optimize, found, most)
    best = by_highs(most, found)
    points = torch.tensor([[a, b] for a in range(-3, 4) for b in range(-3, 4)], dtype=torch.float32)
    with torch.no_grad():
        assert best == pytest.approx(float(network(points).max()), rel=1e-5)
