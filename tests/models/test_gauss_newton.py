"""Weights and states together: the quadratic model, its damping, and training by it."""

from itertools import islice
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from liftednet import activations
from liftednet.activations import ReLU
from liftednet.losses import Huber, SquaredError
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN, choice
from liftednet.models.methods.gauss_newton import forward_of
from liftednet.penalties import Nonnegative, SpectralNorm, SquaredFrobenius
from liftednet.solvers.gauss_newton.kinks import exchanged, perturbed
from liftednet.solvers.gauss_newton.steps import steps
from tests.draws import normal
from tests.models.networks import trace_of


def small_model(**given: Any) -> LiftedRNN:
    options = {"start": "orthogonal", "method": GaussNewton(2), **given}
    return LiftedRNN(2, 3, output_size=2, standardize=False, **options)


def test_of_several_starts_the_best_goes_on():
    model = small_model(start="auto", method=GaussNewton(4))
    x = normal(30, 4, 2)
    y = (x[..., 0] > 0).long()  # which a start that learns nothing would not be left at
    trace = trace_of(model.fit(x, y))
    drawn, ends = torch.Generator().manual_seed(model.seed), []
    for start in ("orthogonal", "gaussian", "orthogonal"):
        alone = small_model(start=model._drawn(start, drawn), method=GaussNewton(4)).fit(x, y)
        ends.append(trace_of(alone).objectives[-1])
    assert trace.start == pytest.approx(min(ends), rel=1e-9)
    warm = small_model(start="auto", method=GaussNewton(1), warm_start=True).fit(x, y)
    before = warm.objective()
    assert trace_of(warm.fit(x, y)).start == pytest.approx(before, rel=1e-9)


SERVING = [
    ({"divergence": "joint"}, None),
    ({"penalty": SpectralNorm()}, "minibatch"),
    ({"penalty": Nonnegative()}, "levenberg-marquardt"),
    ({"method": "gauss-newton", "activation": activations.Tanh()}, "levenberg-marquardt"),
]


@pytest.mark.parametrize(("options", "solver"), SERVING)
def test_the_method_is_one_that_serves(generator, options, solver):
    x = torch.randn(6, 5, 2, generator=generator, dtype=torch.float64)
    model = LiftedRNN(2, 3, 2, max_iter=3, **options).fit(x, (x[..., 0] > 0).long())
    found = {step.solver for step in trace_of(model).steps}
    assert found == {solver} if solver else not found & {"minibatch", "levenberg-marquardt"}


def test_many_long_sequences_are_trained_in_batches(generator, monkeypatch):
    x = torch.randn(60, 5, 2, generator=generator)
    y = (x[..., 0] > 0).long()
    monkeypatch.setattr(choice, "_MANY", 50)
    monkeypatch.setattr(choice, "_MOST_OVER_TIME", 1.0)
    for data in ((x, y), (DataLoader(TensorDataset(x, y), batch_size=20),)):
        fitted = LiftedRNN(2, 3, 2, max_iter=3).fit(*data)
        assert {step.solver for step in trace_of(fitted).steps} == {"minibatch"}


@pytest.mark.parametrize("held", [False, True])
def test_kinks_do_not_stop_a_fit_above_what_gradients_reach(held, generator):
    penalty = SquaredFrobenius(0.03) + Nonnegative() if held else SquaredFrobenius(0.03)
    x = 2 * torch.rand(60, 2, generator=generator, dtype=torch.float64) - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:]
    y = (y - y.mean()) / y.std()
    how: dict[str, Any] = {"penalty": penalty, "method": "gauss-newton", "standardize": False}
    model = LiftedMLP((2, 20, 1), ReLU(), SquaredError(), **how)
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
    how = {"method": "L-BFGS-B", "options": {"maxiter": 5000, "maxfun": 20_000}}
    other = minimize(valued, start.numpy(), jac=True, bounds=bounds, **how)
    assert model.fit(x, y).objective() <= other.fun  # which noise on the weights gets below


def with_kinks(x: Tensor, *hidden: int, **options: Any) -> tuple[Any, Tensor]:
    """Return the forward pass of a network of ReLU, and its weights after two steps."""
    model = LiftedMLP(
        (3, *hidden, 1), ReLU(), SquaredError(), rho=0.1, method=GaussNewton(2), **options
    ).fit(x, (x[:, :1] * x[:, 1:2]).abs())
    point = torch.cat([layer.stacked().flatten() for layer in model.weights])
    return forward_of(model._blocks), point


def test_steps_across_kinks_go_on_from_any_of_them():
    forward, point = with_kinks(normal(40, 3, seed=3), 6, 6, standardize=False)
    found = [*islice(steps(forward, point, 1e-9, crossed=0), 3)]
    assert found[-1].objective < found[0].objective and found[-2].crossed is not None
    how: dict[str, Any] = {"objective": found[-2].objective, "crossed": found[-2].crossed}
    (again, *_) = steps(forward, found[-2].point, 1e-9, **how)
    assert torch.equal(again.point, found[-1].point)


@pytest.mark.parametrize("options", [{}, {"early_stopping": True}])
def test_the_objective_is_that_of_the_forward_pass_that_was_trained(options, generator):
    """Of Huber's loss, whose output states could go between answers and targets, by weights."""
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = (x[:, :1] * x[:, 1:2]).where(torch.arange(60)[:, None] % 9 > 0, 5.0)
    weights = torch.rand(60, generator=generator).double() + 0.5
    model = LiftedMLP(
        (3, 4, 1), activations.Tanh(), Huber(0.3), method=GaussNewton(5), rho=1e-3,
        standardize=False, **options,
    ).fit(x, y, sample_weight=weights)  # fmt: skip
    away = (model.forward(x) - y).abs()
    each = torch.where(away <= 0.3, away.square() / 2, 0.3 * away - 0.045)[:, 0]
    squares = sum(float(layer.matrix.square().sum()) for layer in model.weights)
    wanted = float(weights @ each) + 1e-3 * squares
    assert model.objective() == pytest.approx(wanted, rel=1e-9)
    assert not max(model.gap())
    if not options:
        assert trace_of(model).objectives[-1] == pytest.approx(wanted, rel=1e-9)


def test_exchanged_units_are_those_by_which_outputs_vary_least():
    h = normal(40, 3, seed=3)
    forward, point = with_kinks(h, 10, 10, standardize=False)
    before, after = (forward.split(p) for p in (point, exchanged(forward, point, 2)[0]))
    for below, above in ((0, 1), (1, 2)):
        h = (h @ before[below][:-1] + before[below][-1]).clamp(min=0)
        told = [float(h[:, j].var() * before[above][j].square().sum()) for j in range(10)]
        moved = (before[above][:-1] != after[above][:-1]).all(1).nonzero().flatten().tolist()
        assert moved == [told.index(min(told))]


@pytest.mark.parametrize("start", [lambda *given: exchanged(*given)[0], perturbed])
def test_starts_beside_kinks_leave_a_column_alone_that_stands_still(start):
    x = normal(40, 3, seed=4)
    x[:, 2] = 5.0
    forward, point = with_kinks(x, 10)
    before = forward.split(point)[0]
    for number in range(1, 5):
        after = forward.split(start(forward, point, number))[0]
        assert (before[:2] != after[:2]).any(1).all() and not after[2].any()
