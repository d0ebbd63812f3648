"""Weights and states together: the quadratic model, its damping, and training by it."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.func import jacrev
from torch.utils.data import DataLoader, TensorDataset

from liftednet import activations
from liftednet.activations import ReLU
from liftednet.data import echo, running_sum
from liftednet.divergences import Tight
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN, choice
from liftednet.models.builders import Cell
from liftednet.models.methods.gauss_newton import forward_of
from liftednet.models.results import Ending
from liftednet.penalties import Nonnegative, SpectralNorm, SquaredFrobenius
from liftednet.solvers.gauss_newton.equations import NormalEquations
from liftednet.solvers.gauss_newton.kinks import exchanged, perturbed
from liftednet.solvers.gauss_newton.local_model import Damped, LocalModel
from liftednet.solvers.gauss_newton.steps import LevenbergMarquardt, steps

KINDS: list[dict[str, Any]] = [
    {},
    {"activation": activations.Tanh(), "hidden_size": (3, 2), "bidirectional": True},
    {"activation": activations.Softplus(), "learn_initial_state": True, "hidden_size": (2, 3)},
    {"loss": SquaredError(), "bidirectional": True, "learn_initial_state": True},
    {"loss": BinaryCrossEntropy(), "at_end": True},
]


def small_model(**given: Any) -> LiftedRNN:
    options: dict[str, Any] = {
        "hidden_size": 3, "start": "orthogonal", "method": GaussNewton(2), **given,
    }  # fmt: skip
    return LiftedRNN(2, output_size=2, standardize=False, **options)


def small_task(model: LiftedRNN, at_end: bool, generator: torch.Generator) -> Any:
    x = torch.randn(5, 4, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 4, 2, generator=generator, dtype=torch.float64)
    if isinstance(model.loss, CrossEntropy):
        return x, (y[..., 0] > 0).long()
    if isinstance(model.loss, BinaryCrossEntropy):
        y = (y > 0).double()
    return x, y[:, 0] if at_end else y


def loss_by_autograd(model: LiftedRNN, x: Tensor, y: Tensor, flat: Tensor) -> Tensor:
    """Return the loss and the squared norms at weights, from a plain recursion."""
    stacked = [layer.stacked() for layer in model.weights]
    parts = flat.split([layer.numel() for layer in stacked])
    weights = [part.view_as(layer) for part, layer in zip(parts, stacked, strict=True)]
    below = list(x.unbind(1))
    for layer in range(1 + model.layer_cells[-1].layer):
        found = []
        for cell, weight in zip(model.layer_cells, weights, strict=False):
            if cell.layer == layer:
                found.append(passed(model, cell, weight, below))
        below = [torch.cat(states, -1) for states in zip(*found, strict=True)]
    outputs = torch.stack(below, 1) @ weights[-1][:-1] + weights[-1][-1]
    if y.ndim < x.ndim - isinstance(model.loss, CrossEntropy):
        outputs = outputs[:, -1]
    penalty = torch.zeros(()).double()
    rho = model.rho if isinstance(model.rho, tuple) else (model.rho, model.rho)
    for weight in weights:
        factor = rho[1] if weight is weights[-1] else rho[0]
        penalty = penalty + factor * weight[:-1].square().sum()
    if isinstance(model.loss, CrossEntropy):
        loss = nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="sum")
    elif isinstance(model.loss, BinaryCrossEntropy):
        loss = nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="sum")
    else:
        loss = (outputs - y).square().sum() / 2
    return penalty + loss


def passed(model: LiftedRNN, cell: Cell, weight: Tensor, below: list[Tensor]) -> list[Tensor]:
    states = []
    steps = below[::-1] if cell.backward else below
    early = weight[cell.units + cell.inputs : -1].sum(0) + weight[-1]
    state = torch.zeros(len(below[0]), cell.units, dtype=torch.float64)
    if model.learn_initial_state:
        state = model.activation.forward(early).expand_as(state)
    for step in steps:
        inputs = weight[cell.units : cell.units + cell.inputs]
        state = model.activation.forward(state @ weight[: cell.units] + step @ inputs + weight[-1])
        states.append(state)
    return states[::-1] if cell.backward else states


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_model_is_that_of_the_feedforward_loss(generator, kind):
    at_end = kind.get("at_end", False)
    model = small_model(**{k: v for k, v in kind.items() if k != "at_end"}, rho=(0.3, 0.2))
    x, y = small_task(model, at_end, generator)
    forward = forward_of(model.fit(x, y)._blocks)
    flat = torch.cat([layer.stacked().flatten() for layer in model.weights])
    quadratic = NormalEquations(forward, flat)
    expected = jacrev(lambda w: loss_by_autograd(model, x, y, w))(flat)
    torch.testing.assert_close(quadratic.gradient, expected, atol=1e-8, rtol=1e-6)
    objective = float(loss_by_autograd(model, x, y, flat))
    step = torch.randn(len(flat), generator=generator, dtype=torch.float64) / 10
    lowered = forward.decrease(flat, forward.objective(flat), step)
    by_hand = objective - float(loss_by_autograd(model, x, y, flat + step))
    assert lowered == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_every_step_lowers_the_joint_objective_and_padding_changes_nothing(generator, kind):
    model = small_model(**kind, method=GaussNewton(5))
    x, y = small_task(model, False, generator)
    lengths = torch.tensor([4, 1, 3, 2, 4])
    short = model.fit(x, y, lengths=lengths)
    assert short.trace is not None
    objectives = short.trace.objectives
    assert len(objectives) == 6
    assert all(after < before for before, after in pairwise(objectives))
    assert short.objective() == pytest.approx(objectives[-1], rel=1e-9)
    longer = torch.cat([x, torch.full((5, 2, 2), torch.nan).double()], 1)
    more = torch.cat([y, y[:, :2]], 1)
    long = small_model(**kind, method=GaussNewton(5)).fit(longer, more, lengths=lengths)
    for one, other in zip(short.weights, long.weights, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix, atol=1e-8, rtol=1e-8)


def test_it_reaches_a_stationary_point():
    x, y = running_sum(20, 6, seed=1)
    model = LiftedRNN(
        1,
        4,
        2,
        activations.Tanh(),
        method=GaussNewton(300, tolerance=1e-6),
        rho=0.5,
        standardize=False,
    ).fit(x, y)
    assert model.trace is not None
    assert model.trace.ending is Ending.CONVERGED
    flat = torch.cat([layer.stacked().flatten() for layer in model.weights])
    gradient = jacrev(lambda w: loss_by_autograd(model, x.double(), y, w))(flat)
    assert float(gradient.abs().max()) < 1e-3


class Quadratic(LocalModel):
    """<g, s> + <s, C s> / 2 and a cubic, of which a model knows the quadratic alone."""

    mean_curvature, corrections = 1.0, 10

    def __init__(self, gradient: Tensor, curvature: Tensor, cubic: float = 0.0) -> None:
        self.gradient, self.curvature, self.cubic = gradient, curvature, cubic

    def value(self, step: Tensor) -> float:
        model = self.gradient @ step + step @ (self.curvature @ step) / 2
        return float(model + self.cubic * step.pow(3).sum() / 3)

    def minimizer(self, damping: float) -> Damped:
        inverse = (self.curvature + damping * torch.eye(len(self.gradient)).double()).inverse()
        step = -inverse @ self.gradient
        expected = -self.gradient @ step - step @ (self.curvature @ step) / 2
        return Damped(step, float(expected), lambda b: inverse @ b)

    def inside(self, step: Tensor) -> Tensor:
        return step

    def bend(self, step: Tensor) -> Tensor:
        return self.cubic * step.square()


def test_a_damped_step_solves_the_damped_system_and_takes_no_rise(generator):
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    model = Quadratic(torch.randn(4, generator=generator, dtype=torch.float64), root @ root.T)
    exact = LevenbergMarquardt(damping=1e-12).descend(model, lambda s: -model.value(s))
    assert exact is not None
    torch.testing.assert_close(model.curvature @ exact.step, -model.gradient, atol=1e-6, rtol=1e-6)
    assert LevenbergMarquardt().descend(model, lambda s: float("nan")) is None
    short = LevenbergMarquardt().descend(model, lambda s: 1e-3 - float(s.norm()))
    assert short is not None
    assert short.attempts > 1


def test_a_second_solve_corrects_the_step_where_that_is_better(generator):
    gradient = torch.full((3,), -1.0, dtype=torch.float64)
    model = Quadratic(gradient, torch.eye(3, dtype=torch.float64), cubic=0.1)
    found = LevenbergMarquardt(damping=1e-12).descend(model, lambda s: -model.value(s))
    assert found is not None
    torch.testing.assert_close(found.step, torch.full_like(gradient, 0.9))  # 1 - 0.1 * 1^2
    assert found.decrease == pytest.approx(3 * (0.9 - 0.9**2 / 2 - 0.1 * 0.9**3 / 3))
    assert found.decrease > 3 * (0.5 - 0.1 / 3)  # of the step before


def test_without_options_an_echo_is_learned_by_tight_steps_of_all_weights():
    x, y = echo(100, 8, lag=2, classes=4, seed=0)
    model = LiftedRNN(4, 10, 4).fit(x, y)
    assert model.trace is not None
    assert {step.solver for step in model.trace.steps} == {"levenberg-marquardt"}
    assert all(isinstance(found, Tight) for found in model.structure.divergences.values())
    unseen, answers = echo(500, 8, lag=2, classes=4, seed=1)
    possible = (6 + 2 / 4) / 8  # the first two answers are random
    assert float((model.predict(unseen) == answers).double().mean()) > possible - 0.02


def test_of_several_starts_the_best_goes_on(generator):
    model = small_model(start="auto", method=GaussNewton(8))
    x = torch.randn(30, 4, 2, generator=generator, dtype=torch.float64)
    y = (x[..., 0] > 0).long()  # which a start that learns nothing would not be left at
    trace = model.fit(x, y).trace
    assert trace is not None
    drawn, ends = torch.Generator().manual_seed(model.seed), []
    for start in ("orthogonal", "gaussian", "orthogonal"):
        alone = small_model(start=model._drawn(start, drawn), method=GaussNewton(8)).fit(x, y)
        assert alone.trace is not None
        ends.append(alone.trace.objectives[-1])
    assert trace.start == pytest.approx(min(ends), rel=1e-9)
    warm = small_model(start="auto", method=GaussNewton(1), warm_start=True).fit(x, y)
    before = warm.objective()
    again = warm.fit(x, y).trace
    assert again is not None
    assert again.start == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "solver"),
    [
        ({"divergence": "joint"}, None),
        ({"penalty": SpectralNorm()}, "minibatch"),
        ({"penalty": Nonnegative()}, "levenberg-marquardt"),
        ({"method": "gauss-newton", "activation": activations.Tanh()}, "levenberg-marquardt"),
    ],
)
def test_the_method_is_one_that_serves(generator, options, solver):
    x = torch.randn(6, 5, 2, generator=generator, dtype=torch.float64)
    model = LiftedRNN(2, 3, 2, **options).fit(x, (x[..., 0] > 0).long())
    assert model.trace is not None
    found = {step.solver for step in model.trace.steps}
    assert found == {solver} if solver else not found & {"minibatch", "levenberg-marquardt"}


def test_many_long_sequences_are_trained_in_batches(generator, monkeypatch):
    x = torch.randn(60, 5, 2, generator=generator)
    y = (x[..., 0] > 0).long()
    monkeypatch.setattr(choice, "_MANY", 50)
    monkeypatch.setattr(choice, "_MOST_OVER_TIME", 1.0)
    for fitted in (
        LiftedRNN(2, 3, 2).fit(x, y),
        LiftedRNN(2, 3, 2).fit(DataLoader(TensorDataset(x, y), batch_size=20)),
    ):
        assert fitted.trace is not None
        assert {step.solver for step in fitted.trace.steps} == {"minibatch"}


@pytest.mark.parametrize("held", [False, True])
def test_kinks_do_not_stop_a_fit_above_what_gradients_reach(held):
    penalty = SquaredFrobenius(0.03) + Nonnegative() if held else SquaredFrobenius(0.03)
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(60, 2, generator=generator, dtype=torch.float64) - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:]
    y = (y - y.mean()) / y.std()
    model = LiftedMLP(
        (2, 20, 1), ReLU(), SquaredError(), penalty=penalty, method="gauss-newton",
        standardize=False,
    )  # fmt: skip
    ends = (0, None) if held else (None, None)
    both = ((layer.matrix, layer.bias) for layer in model._first_weights())
    like = [part for pair in both for part in pair if part is not None]
    start = torch.cat([part.double().flatten() for part in like])

    def valued(point):
        parts = torch.from_numpy(point).split([part.numel() for part in like])
        parts = [v.view(z.shape).clone().requires_grad_() for v, z in zip(parts, like, strict=True)]
        W, b, A, c = parts
        f = (x @ W + b).clamp(min=0) @ A + c
        total = (y - f).square().sum() / 2 + 0.03 * (W.square().sum() + A.square().sum())
        slopes = torch.autograd.grad(total, parts)
        return float(total.detach()), torch.cat([s.flatten() for s in slopes]).numpy()

    bounds = [ends] * 40 + [(None, None)] * 20 + [ends] * 20 + [(None, None)]
    options = {"maxiter": 5000, "maxfun": 20_000}
    other = minimize(
        valued, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    assert model.fit(x, y).objective() <= other.fun  # which noise on the weights gets below


@pytest.mark.parametrize("held", [False, True])
def test_no_gradients_go_on_where_a_recurrent_fit_has_ended_among_kinks(held):
    penalty = SquaredFrobenius(0.05) + Nonnegative() if held else SquaredFrobenius(0.05)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 6, 2, generator=generator, dtype=torch.float64)
    y = torch.tanh(x.cumsum(1)).prod(2, keepdim=True)
    model = LiftedRNN(
        2, 5, 1, ReLU(), SquaredError(), penalty=penalty, method="gauss-newton",
        standardize=False, dtype=torch.float64,
    ).fit(x, y)  # fmt: skip
    layers: Any = model.weights
    like = [part for layer in layers for part in (layer.matrix, layer.bias)]

    def valued(point):
        parts = torch.from_numpy(point).split([part.numel() for part in like])
        parts = [v.view(z.shape).clone().requires_grad_() for v, z in zip(parts, like, strict=True)]
        W, b, A, c = parts
        h, total = torch.zeros(30, 5).double(), 0.05 * (W.square().sum() + A.square().sum())
        for step in range(6):
            h = (torch.cat([h, x[:, step]], 1) @ W + b).clamp(min=0)
            total = total + (y[:, step] - h @ A - c).square().sum() / 2
        slopes = torch.autograd.grad(total, parts)
        return float(total.detach()), torch.cat([s.flatten() for s in slopes]).numpy()

    ends = [(0, None) if held else (None, None)] * 35, [(None, None)] * 5
    bounds = [*ends[0], *ends[1], *ends[0][:5], (None, None)]
    start = torch.cat([part.flatten() for part in like]).numpy()
    assert model.objective() == pytest.approx(valued(start)[0])
    assert not held or all(bool((part >= 0).all()) for part in like[::2])
    options = {"maxiter": 300, "maxcor": 20}
    other = minimize(valued, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    assert other.fun > 0.99 * model.objective()


def test_steps_across_kinks_go_on_from_any_of_them():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = (x[:, :1] * x[:, 1:2]).abs()
    model = LiftedMLP(
        (3, 6, 6, 1), ReLU(), SquaredError(), rho=0.1, method=GaussNewton(2), standardize=False,
        dtype=torch.float64,
    ).fit(x, y)  # fmt: skip
    forward = forward_of(model._blocks)
    point = torch.cat([layer.stacked().flatten() for layer in model.weights])
    found = [*islice(steps(forward, point, 1e-9, crossed=0), 3)]
    assert found[-1].objective < found[0].objective and found[-2].crossed is not None
    (again, *_) = steps(
        forward, found[-2].point, 1e-9, objective=found[-2].objective, crossed=found[-2].crossed
    )
    assert torch.equal(again.point, found[-1].point)


def test_exchanged_units_are_those_by_which_outputs_vary_least():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    model = LiftedMLP(
        (3, 10, 10, 1), ReLU(), SquaredError(), rho=0.1, method=GaussNewton(2), standardize=False,
        dtype=torch.float64,
    ).fit(x, (x[:, :1] * x[:, 1:2]).abs())  # fmt: skip
    forward = forward_of(model._blocks)
    point = torch.cat([layer.stacked().flatten() for layer in model.weights])
    before, after = (forward.split(p) for p in (point, exchanged(forward, point, 2)[0]))
    h = x
    for below, above in ((0, 1), (1, 2)):
        h = (h @ before[below][:-1] + before[below][-1]).clamp(min=0)
        told = [float(h[:, j].var() * before[above][j].square().sum()) for j in range(10)]
        moved = (before[above][:-1] != after[above][:-1]).all(1).nonzero().flatten().tolist()
        assert moved == [told.index(min(told))]


@pytest.mark.parametrize("start", [lambda *given: exchanged(*given)[0], perturbed])
def test_starts_beside_kinks_leave_a_column_alone_that_stands_still(start):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    x[:, 2] = 5.0
    model = LiftedMLP(
        (3, 10, 1), ReLU(), SquaredError(), rho=0.1, method=GaussNewton(2), dtype=torch.float64
    ).fit(x, (x[:, :1] * x[:, 1:2]).abs())
    forward = forward_of(model._blocks)
    point = torch.cat([layer.stacked().flatten() for layer in model.weights])
    before = forward.split(point)[0]
    for number in range(1, 5):
        after = forward.split(start(forward, point, number))[0]
        assert (before[:2] != after[:2]).any(1).all() and not after[2].any()
