"""Gauss-Newton steps, between ends too: autograd, closed forms, scipy, scikit-learn."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from torch import Tensor
from torch.func import jacrev

from liftednet.activations import Tanh
from liftednet.errors import DeclarationError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from liftednet.models import GaussNewton, LiftedMLP
from liftednet.models.methods.gauss_newton import forward_of
from liftednet.penalties import FixedZeros, Nonnegative, Signs, SquaredFrobenius
from liftednet.solvers.gauss_newton import equations
from liftednet.solvers.gauss_newton import steps as stepping
from liftednet.solvers.gauss_newton.equations import NormalEquations, OutputEquations, Rows
from liftednet.solvers.gauss_newton.krylov import CurvatureProducts
from liftednet.solvers.gauss_newton.local_model import Linearized
from liftednet.solvers.gauss_newton.objective import Forward, Target, joined
from liftednet.solvers.gauss_newton.steps import LevenbergMarquardt, direct, form_for, steps
from tests.draws import normal
from tests.models.networks import refuses
from tests.solvers.forwards import linear, target

LOSSES = [SquaredError(), CrossEntropy(), BinaryCrossEntropy()]


def recurrent(weights, data):
    """A recurrent network with an output at every step, and one of the last state."""
    cell, readout, last = weights
    units = cell.shape[1]
    state = data[0].new_zeros(len(data[0]), units)
    drives = data[0] @ cell[units:-1] + cell[-1]
    states = []
    for drive in drives.unbind(1):
        state = Tanh().forward(state @ cell[:units] + drive)
        states.append(state)
    every = torch.stack(states, 1) @ readout[:-1] + readout[-1]
    return every, (state @ last[:-1] + last[-1])[:, None]


def recurrent_problem(generator, loss) -> tuple[Forward, Tensor]:
    """Return two losses of a recurrent network, some steps of which count, and its weights."""
    samples, length, units, classes = 5, 4, 3, 2
    shapes = [(units + 2 + 1, units), (units + 1, classes), (units + 1, 1)]
    wanted = normal(samples, length, classes, seed=generator)
    if not isinstance(loss, SquaredError):
        wanted = torch.nn.functional.one_hot((wanted[..., 0] > 0).long(), classes).double()
    counted = torch.rand(samples, length, generator=generator) > 0.3
    wanted[~counted] = torch.nan
    last = target(SquaredError().divergence, normal(samples, 1, seed=generator), 0.7)
    targets = Target(loss.divergence, wanted, counted), last
    pull = tuple(torch.full(shape, 0.3) for shape in shapes)
    for part in pull:
        part[-1] = 0.0
    weights = joined([normal(*shape, seed=generator) / 2 for shape in shapes])
    return Forward(recurrent, (normal(samples, length, 2, seed=generator),), targets, pull), weights


def loss_of(forward: Forward, outputs: tuple[Tensor, ...]) -> Tensor:
    """Return the losses at outputs by torch's own functions."""
    total = torch.zeros(()).double()
    for wanted, found in zip(forward.targets, outputs, strict=True):
        y, u = wanted.values[wanted.counted], found[wanted.counted]
        name = repr(wanted.divergence)
        if "Softmax" in name:
            total = total - wanted.weight * (u.log_softmax(-1) * y).sum()
        elif "Sigmoid" in name:
            total = total + wanted.weight * (torch.nn.functional.softplus(u) - u * y).sum()
        else:
            total = total + wanted.weight * (u - y).square().sum() / 2
    return total


def objective_of(forward: Forward, point: Tensor) -> Tensor:
    outputs = forward.outputs(forward.split(point), forward.data)
    return loss_of(forward, outputs) + (joined(forward.pull) * point.square()).sum() / 2


def curvature_of(forward: Forward, point: Tensor) -> Any:
    """Return J' Hess R J + pull from Jacobians and Hessians by autograd."""
    sizes = [target.values.numel() for target in forward.targets]
    shapes = [target.values.shape for target in forward.targets]

    def flat_outputs(weights: Tensor) -> Tensor:
        found = forward.outputs(forward.split(weights), forward.data)
        return torch.cat([part.flatten() for part in found])

    def flat_loss(outputs: Tensor) -> Tensor:
        parts = zip(outputs.split(sizes), shapes, strict=True)
        return loss_of(forward, tuple(part.view(shape) for part, shape in parts))

    jacobian: Tensor = jacrev(flat_outputs)(point)
    bend = torch.autograd.functional.hessian(flat_loss, flat_outputs(point))
    return jacobian.T @ bend @ jacobian + torch.diag(joined(forward.pull))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradient_and_curvature_are_those_of_autograd(generator, loss):
    forward, point = recurrent_problem(generator, loss)
    gradient = jacrev(lambda w: objective_of(forward, w))(point)
    curvature = curvature_of(forward, point)
    matrix, products = NormalEquations(forward, point), CurvatureProducts(forward, point)
    directions = torch.eye(len(point), dtype=torch.float64)
    by_products = torch.stack([products.operator.product(direction) for direction in directions])
    for found in (matrix.gradient, products.gradient):
        torch.testing.assert_close(found, gradient)
    for found in (matrix.curvature, by_products):
        torch.testing.assert_close(found, curvature)
    assert products.residual == pytest.approx(matrix.residual)
    assert products.mean_curvature == pytest.approx(matrix.mean_curvature, rel=1.0)


def layered(weights, data):
    """Two dense layers, the first without a bias, and a second output of both."""
    first = data[0] @ weights[0]
    ones = data[0].new_ones(len(data[0]), 1)
    rows = torch.cat([first.tanh(), ones], 1)
    second = rows @ weights[1]
    both = torch.cat([second.tanh() * second, first, ones], 1)
    last = both @ weights[2]
    return (second[:, None], last[:, None]), [(data[0], first), (rows, second), (both, last)]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_curvature_by_layers_is_that_of_autograd(generator, loss, monkeypatch):
    shapes = [(3, 4), (5, 2), (7, 3)]
    wanted, counts = torch.eye(2).double()[torch.arange(9) % 2], torch.arange(9.0).double()
    targets = (
        target(loss.divergence, wanted, counts.view(-1, 1, 1)),
        target(SquaredError().divergence, normal(9, 3, seed=generator), 0.7),
    )
    pull = tuple(torch.full(shape, 0.3) for shape in shapes)
    point = joined([normal(*shape, seed=generator) / 2 for shape in shapes])
    data = (normal(9, 3, seed=generator),)
    forward = Forward(lambda w, d: layered(w, d)[0], data, targets, pull, layered)
    whole = NormalEquations(forward, point)
    found, rows = whole.curvature, whole.operator.linear
    assert isinstance(rows, Rows)  # J as a matrix; below no matrix, and then by pairs of layers
    passes, moves = Linearized(forward, point), forward.split(normal(len(point), seed=generator))
    torch.testing.assert_close(rows.ahead(moves), passes.ahead(moves))
    torch.testing.assert_close(rows.back(rows.outputs), passes.back(rows.outputs))
    for limit in ("_MOST_PRODUCTS", "_WHOLE_BYTES"):
        monkeypatch.setattr(equations, limit, 0)
        monkeypatch.setattr(equations, "_PAIR_BYTES", 8 * 60)
        torch.testing.assert_close(NormalEquations(forward, point).curvature, found)
    dense_form = NormalEquations(replace(forward, layers=None), point).curvature
    torch.testing.assert_close(found, dense_form)
    weightless = replace(forward, targets=(replace(targets[0], weight=0.4), targets[1]))
    by_layers = NormalEquations(weightless, point).curvature
    torch.testing.assert_close(by_layers, curvature_of(weightless, point))


@pytest.mark.parametrize("loss", [SquaredError(), BinaryCrossEntropy(), CrossEntropy()], ids=repr)
def test_the_curvature_below_one_number_or_two_classes_is_that_of_autograd(
    generator, loss, monkeypatch
):
    def layers(weights, data):
        first = data[0] @ weights[0]
        rows = torch.cat([first.tanh(), data[0]], 1)
        last = rows @ weights[1]
        return (last[:, None],), [(data[0], first), (rows, last)]

    outputs = 1 + isinstance(loss, CrossEntropy)
    shapes = [(3, 4), (7, outputs)]
    wanted = torch.eye(2).double()[torch.arange(9) % 2][:, :outputs]
    targets = (target(loss.divergence, wanted, 0.7),)
    pull, data = tuple(torch.full(x, 0.3) for x in shapes), (normal(9, 3, seed=generator),)
    forward = Forward(lambda w, d: layers(w, d)[0], data, targets, pull, layers)
    point = joined([normal(*shape, seed=generator) / 2 for shape in shapes])
    monkeypatch.setattr(equations, "_MOST_PRODUCTS", 0)
    monkeypatch.setattr(equations, "_CACHE_BYTES", 0)
    monkeypatch.setattr(equations, "_LEAST_ROWS", 4)  # of nine, some after another
    monkeypatch.delattr(equations, "by_layers")
    found = NormalEquations(forward, point).curvature
    torch.testing.assert_close(found, curvature_of(forward, point))
    counts = torch.arange(9.0).double().view(-1, 1, 1)
    counted = replace(forward, targets=(replace(targets[0], weight=counts),))
    known, unknown = (NormalEquations(x, point) for x in (counted, replace(counted, layers=None)))
    torch.testing.assert_close(known.curvature, unknown.curvature)


@pytest.mark.parametrize("damping", [1e-3, 1.0, 1e3])
def test_both_forms_solve_alike_in_the_whole_space(generator, damping):
    forward, point = recurrent_problem(generator, CrossEntropy())
    right = normal(len(point), seed=generator)
    exact = NormalEquations(forward, point)
    found = CurvatureProducts(forward, point, flat=0.0).minimizer(damping).solve(exact.gradient)
    damped = exact.curvature + damping * torch.eye(len(point)).double()
    torch.testing.assert_close(damped @ found, exact.gradient, rtol=1e-6, atol=1e-8)
    wanted = exact.minimizer(damping)
    torch.testing.assert_close(damped @ wanted.solve(right), right)
    taken = CurvatureProducts(forward, point, flat=0.0).minimizer(damping)
    torch.testing.assert_close(taken.step, wanted.step, rtol=1e-8, atol=1e-10)
    assert taken.expected == pytest.approx(wanted.expected)


def test_a_step_that_overflows_is_damped_until_it_does_not():
    """exp(exp(w)) is finite near the start alone, where the undamped step is long."""

    def doubled(weights, data):
        return ((weights[0] * data[0]).exp().exp()[:, None] - 1.0,)

    one = torch.ones(1, 1).double()
    far = target(SquaredError().divergence, 1e12 * one)
    forward = Forward(doubled, (one,), (far,), (torch.zeros(1, 1),))
    for form in (CurvatureProducts, NormalEquations):
        taken = next(steps(forward, torch.zeros(1).double(), 1e-9, form, LevenbergMarquardt(1e-12)))
        assert taken.attempts > 1
        assert np.isfinite(taken.objective)


def test_few_weights_take_the_matrix_and_many_the_products(generator):
    x, y = normal(2000, 400, seed=generator), normal(2000, 1, seed=generator)
    few, many = linear(x[:, :6], y, 0.8), linear(x, y, 0.8)
    assert form_for(few) is direct
    assert isinstance(direct(few, torch.zeros(6).double()), NormalEquations)
    fewer = linear(x[:300], y[:300], 0.8)
    assert form_for(fewer) is direct  # 300 answers are fewer than weights
    assert OutputEquations.serves(fewer)
    assert form_for(many) is CurvatureProducts
    assert form_for(replace(few, layers=None)) is CurvatureProducts  # nothing tells what layers see
    assert stepping.form_named("products") is CurvatureProducts
    assert stepping.form_named("normal") is direct
    assert stepping.form_named(None) is None
    refuses(DeclarationError, "'cholesky'", stepping.form_named, "cholesky")


EVERY_FORM: list[stepping.Form] = [CurvatureProducts, NormalEquations, OutputEquations]
NAMES = ["products", "weights", "outputs"]


@pytest.mark.parametrize("form", EVERY_FORM, ids=NAMES)
def test_a_linear_network_is_the_bounded_least_squares_of_scipy(form, generator):
    x, y, rho = normal(12, 20, seed=generator), normal(12, 1, seed=generator), 0.05
    lowest = torch.where(torch.arange(20) % 3 == 0, -torch.inf, -0.05).double()
    highest = torch.where(torch.arange(20) % 3 == 1, 0.1, torch.inf).double()
    lowest[7] = highest[7] = 0.02
    forward = replace(linear(x, y, 2 * rho), ends=(lowest, highest))
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
    ridge = SquaredFrobenius(0.1)
    penalties = [Signs(signs) + ridge, FixedZeros(gone) + Nonnegative(0.1), Nonnegative() + ridge]
    sizes = (3, 6, 6, 1 if isinstance(loss, SquaredError) else 2)
    options: Any = {"penalty": penalties, "method": GaussNewton(steps=1), "dtype": torch.float64}
    model = LiftedMLP(sizes, Tanh(), loss, **options)
    start = joined([layer.stacked() for layer in model._first_weights()])
    return forward_of(model.fit(x, y)._blocks), start


ENDED = [*((form, SquaredError()) for form in EVERY_FORM), (NormalEquations, CrossEntropy())]


@pytest.mark.parametrize(("form", "loss"), ENDED, ids=[*NAMES, "classes"])
def test_a_network_ends_where_no_bounded_method_of_scipy_goes_on(form, loss, generator):
    x = normal(25, 3, seed=generator)
    score = x[:, :1] + x[:, 1:2] + x[:, 2:].sin() + 0.1 * normal(25, 1, seed=generator)
    y = score if isinstance(loss, SquaredError) else (score[:, 0] > 0).long()
    forward, start = bounded_network(loss, y, x)
    assert forward.ends is not None
    assert torch.equal(forward.within(start), start)
    points, objective = [start], forward.objective(start)
    for _, taken in zip(range(400), steps(forward, start, 1e-5, form), strict=False):
        assert torch.equal(forward.within(taken.point), taken.point)  # at every step, exactly
        assert taken.objective < objective
        points, objective = [*points, taken.point], taken.objective
    end = points[-1]

    def valued(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(point).requires_grad_()
        value = objective_of(forward, at)
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
