"""Gauss-Newton steps of weights between ends: against scipy's bounded solvers, and stationarity."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from torch import Tensor

from liftednet.activations import Tanh
from liftednet.losses import CrossEntropy, Loss, SquaredError
from liftednet.models import GaussNewton, LiftedMLP
from liftednet.models.methods.gauss_newton import forward_of
from liftednet.penalties import FixedZeros, Nonnegative, Signs, SquaredFrobenius
from liftednet.solvers.gauss_newton.equations import NormalEquations, OutputEquations
from liftednet.solvers.gauss_newton.krylov import CurvatureProducts
from liftednet.solvers.gauss_newton.objective import Forward, Target, joined
from liftednet.solvers.gauss_newton.steps import Form, steps

FORMS: list[Form] = [CurvatureProducts, NormalEquations, OutputEquations]
NAMES = ["products", "weights", "outputs"]
forms = pytest.mark.parametrize("form", FORMS, ids=NAMES)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def linear(weights, data):
    return ((data[0] @ weights[0])[:, None],)


def layers(weights, data):
    answers = data[0] @ weights[0]
    return (answers[:, None],), [(data[0], answers)]


@forms
def test_a_linear_network_is_the_bounded_least_squares_of_scipy(form, generator):
    x, y, rho = normal(generator, 12, 20), normal(generator, 12, 1), 0.05
    lowest = torch.where(torch.arange(20) % 3 == 0, -torch.inf, -0.05).double()
    highest = torch.where(torch.arange(20) % 3 == 1, 0.1, torch.inf).double()
    lowest[7] = highest[7] = 0.02
    pull = torch.full((20, 1), 2 * rho, dtype=torch.float64)
    target = Target(SquaredError().divergence, y[:, None], torch.ones(12, 1, dtype=torch.bool))
    forward = Forward(linear, (x,), (target,), (pull,), layers, ends=(lowest, highest))
    *_, last = steps(forward, forward.within(torch.zeros(20).double()), 1e-7, form)
    rows = np.vstack([x.numpy(), np.sqrt(2 * rho) * np.eye(20)])
    right, loose = np.append(y[:, 0].numpy(), np.zeros(20)), 1e-12 * (torch.arange(20) == 7)
    bounds = (lowest - loose).numpy(), (highest + loose).numpy()
    found = lsq_linear(rows, right, bounds, tol=1e-14, method="bvls")
    np.testing.assert_allclose(last.point.numpy(), found.x, atol=1e-5)
    assert torch.equal(forward.within(last.point), last.point)
    assert int((last.point == lowest).sum()) > 2  # exactly, not nearly


def bounded_network(loss: Loss, y: Tensor, x: Tensor) -> tuple[Forward, Tensor]:
    """Return a network with signs, missing connections and free weights, and its start."""
    signs = torch.tensor([[1.0], [-1.0], [0.0]])
    gone = torch.zeros(6, 6)
    gone[0, 1:4] = 1
    penalties = [
        Signs(signs) + SquaredFrobenius(0.1),
        FixedZeros(gone) + Nonnegative(0.1),
        Nonnegative() + SquaredFrobenius(0.1),
    ]
    outputs = 1 if isinstance(loss, SquaredError) else 2
    method = GaussNewton(steps=1)
    model = LiftedMLP(
        (3, 6, 6, outputs), Tanh(), loss, penalty=penalties, method=method, dtype=torch.float64
    )
    start = joined([layer.stacked() for layer in model._first_weights()])
    return forward_of(model.fit(x, y)._blocks), start


@pytest.mark.parametrize(
    ("form", "loss"),
    [*((form, SquaredError()) for form in FORMS), (NormalEquations, CrossEntropy())],
    ids=[*NAMES, "classes"],
)
def test_a_network_ends_where_no_bounded_method_of_scipy_goes_on(form, loss, generator):
    x = normal(generator, 25, 3)
    score = x[:, :1] + x[:, 1:2] + x[:, 2:].sin() + 0.1 * normal(generator, 25, 1)
    y = score if isinstance(loss, SquaredError) else (score[:, 0] > 0).long()
    forward, start = bounded_network(loss, y, x)
    assert forward.ends is not None
    assert torch.equal(forward.within(start), start)
    points, objective = [start], forward.objective(start)
    for _, taken in zip(range(400), steps(forward, start, 1e-6, form), strict=False):
        assert torch.equal(forward.within(taken.point), taken.point)  # at every step, exactly
        assert taken.objective < objective
        points, objective = [*points, taken.point], taken.objective
    end = points[-1]

    def valued(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(point).requires_grad_()
        value = (forward.pulls * at.square()).sum() / 2
        for target, u in zip(forward.targets, forward.at(forward.split(at)), strict=True):
            value = value + target.value(u)
        (gradient,) = torch.autograd.grad(value, at)
        return value.item(), gradient.numpy()

    bounds = list(zip(*(end.tolist() for end in forward.ends), strict=True))
    limits = {"maxiter": 2000, "maxfun": 3000, "ftol": 1e-12, "gtol": 1e-7}

    bounded = partial(minimize, valued, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    assert bounded(end.numpy()).fun >= objective * (1 - 1e-4)
    assert objective <= bounded(start.numpy()).fun * 1.02  # minima are several
    gradient = torch.from_numpy(valued(end.numpy())[1])
    lowest, highest = forward.ends
    assert bool((gradient[end > lowest] < 1e-3).all())
    assert bool((gradient[end < highest] > -1e-3).all())
    assert int((end == 0).sum()) > 3  # three are missing, others rest on their end


def test_the_matrix_of_outputs_is_that_of_weights(generator):
    x = normal(generator, 20, 3)
    for loss, y in ((SquaredError(), x[:, :1]), (CrossEntropy(), (x[:, 0] > 0).long())):
        forward, _ = bounded_network(loss, y, x)
        assert OutputEquations.serves(forward)
        point = forward.within(normal(generator, len(forward.pulls)) / 2)
        dense, rows = NormalEquations(forward, point), OutputEquations(forward, point)
        direction = normal(generator, len(point))
        torch.testing.assert_close(rows.curved(direction), dense.curvature @ direction)
        assert rows.mean_curvature == pytest.approx(dense.mean_curvature)
        for damping in (1e-6, 1.0):
            one, other = rows.minimizer(damping), dense.minimizer(damping)
            torch.testing.assert_close(one.step, other.step, rtol=1e-6, atol=1e-9)
            assert one.expected == pytest.approx(other.expected)
