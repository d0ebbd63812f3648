"""Weights and states together: the quadratic model, its damping, and training by it."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch.utils.data import DataLoader, TensorDataset

from liftednet import activations
from liftednet.activations import ReLU
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN, choice
from liftednet.models.methods.gauss_newton import forward_of
from liftednet.penalties import Nonnegative, SpectralNorm, SquaredFrobenius
from liftednet.solvers.gauss_newton.kinks import exchanged, perturbed
from liftednet.solvers.gauss_newton.steps import steps

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
def test_kinks_do_not_stop_a_fit_above_what_gradients_reach(held, generator):
    penalty = SquaredFrobenius(0.03) + Nonnegative() if held else SquaredFrobenius(0.03)
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
