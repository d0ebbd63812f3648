"""States over time: two solvers, against CVXPY over all steps at once, and each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from benchmarks.papers.lifted_rnn import Cyclic
from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, Margin, joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, FenchelYoungLoss, SquaredError
from liftednet.problems.states_over_time import (
    Linearized,
    StatesOverTime,
    System,
    TimeLink,
    forward_states,
)
from liftednet.solution import Status
from liftednet.solvers.newton_states import NewtonOverTime

STEPS, SAMPLES, UNITS, OUTPUTS = 6, 4, 3, 2
LENGTHS = torch.tensor([6, 1, 4, 2])
PER_UNIT: list[Activation] = [
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2),
    activations.Clipped(-1, 1), activations.Sigmoid(), activations.Tanh(), activations.Softplus(),
    Activation.from_function(torch.nn.functional.softsign),
]  # fmt: skip
LOSSES: list[FenchelYoungLoss] = [SquaredError(), CrossEntropy(), BinaryCrossEntropy()]


def states_problem(
    generator: torch.Generator,
    activation: Activation,
    coupling: Callable[[Activation], Divergence] = joint,
    loss: FenchelYoungLoss = LOSSES[0],
    at_end: bool = False,
    steps: int = STEPS,
    samples: int = SAMPLES,
    lengths: torch.Tensor = LENGTHS,
    dtype: torch.dtype = torch.float64,
) -> StatesOverTime:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    valid = torch.arange(steps)[:, None] < lengths
    last = torch.arange(steps)[:, None] == lengths - 1
    target = loss.divergence.activation.forward(draw(steps, samples, OUTPUTS))
    weight, offset = draw(UNITS, OUTPUTS), draw(OUTPUTS)
    link = TimeLink(loss.divergence, weight, offset, target, last if at_end else valid)
    drive, recurrent = draw(steps, samples, UNITS), 0.5 * draw(UNITS, UNITS)
    return StatesOverTime(coupling(activation), drive, recurrent, (link,), lengths, 3.0)


def cvxpy_states(
    problem: StatesOverTime, lower: float | None, upper: float | None, loss: Any
) -> np.ndarray:
    """Solve sample by sample for Phi = |v|^2 / 2 on a box, as section 4.1 prints it."""
    found = np.zeros(tuple(problem.drive.shape))
    (link,) = problem.links
    weight, offset = link.weight.numpy(), link.offset.numpy()
    for sample, length in enumerate(problem.lengths.tolist()):
        states = cp.Variable((length, UNITS))
        above = problem.drive[:length, sample].numpy()
        cost = problem.lam / 2 * cp.sum_squares(states[0] - above[0])
        for step in range(1, length):
            u = states[step - 1] @ problem.recurrent.numpy() + above[step]
            cost += problem.lam / 2 * cp.sum_squares(states[step] - u)
        for step in range(length):
            if link.counted[step, sample]:
                u, y = states[step] @ weight + offset, link.target[step, sample].numpy()
                cost += loss(u, y)
        box = [states >= lower] * (lower is not None) + [states <= upper] * (upper is not None)
        cp.Problem(cp.Minimize(cost), box).solve(
            solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        )
        found[:length, sample] = states.value
    return found


CVXPY_LOSSES: list[tuple[FenchelYoungLoss, Any]] = [
    (SquaredError(), lambda u, y: cp.sum_squares(u - y) / 2),
    (CrossEntropy(), lambda u, y: cp.log_sum_exp(u) - u @ y),
    (BinaryCrossEntropy(), lambda u, y: cp.sum(cp.logistic(u)) - u @ y),
]


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(("loss", "expression"), CVXPY_LOSSES)
@pytest.mark.parametrize(
    ("activation", "lower", "upper"),
    [
        (activations.ReLU(), 0, None),
        (activations.Clipped(-1, 1), -1, 1),
        (activations.Identity(), None, None),
    ],
)
def test_joint_states_are_those_of_cvxpy_over_all_steps(
    generator, activation, lower, upper, loss, expression, at_end
):
    problem = states_problem(generator, activation, joint, loss, at_end)
    reference = cvxpy_states(problem, lower, upper, expression)
    exact = NewtonOverTime().solve(problem)
    assert exact.status is Status.SOLVED
    np.testing.assert_allclose(exact.value.numpy(), reference, atol=2e-5)
    inside = activation.project(torch.from_numpy(reference))
    assert exact.objective <= problem.measure(inside).objective + 1e-9


@pytest.mark.parametrize("solver", [NewtonOverTime(1e-6), Cyclic(1e-6)])
@pytest.mark.parametrize("activation", PER_UNIT[::2], ids=repr)
def test_tight_states_become_stationary_and_never_rise(generator, activation, solver):
    problem = states_problem(generator, activation, tight, CrossEntropy())
    start = forward_states(problem)
    solution = solver.solve(problem, start)
    assert solution.residual <= 1e-6
    assert solution.objective <= problem.measure(start).objective


def test_a_newton_direction_solves_the_dense_system(generator):
    problem = states_problem(generator, activations.ReLU(), joint, CrossEntropy())
    states = forward_states(problem)
    point = Linearized(problem, states)
    free = (point.slope > 0.5) & problem.valid.unsqueeze(-1)
    curvature = torch.where(free, problem.lam, 1.0)
    system = System(problem, states, point.slope, free, curvature)
    right = torch.randn(states.shape, generator=generator, dtype=torch.float64).where(free, 0.0)
    solution = system.solve(right)
    product = curvature * solution + system.coupled(solution)
    torch.testing.assert_close(product.where(free, 0.0), right)


@pytest.mark.parametrize("solver", [NewtonOverTime(), Cyclic()])
def test_what_lies_beyond_the_lengths_changes_nothing(generator, solver):
    problem = states_problem(generator, activations.ReLU(), joint, CrossEntropy())
    noise = 7 * torch.randn(problem.drive.shape, generator=generator, dtype=torch.float64)
    beyond = ~problem.valid.unsqueeze(-1)
    (link,) = problem.links
    noisy = replace(
        problem,
        drive=torch.where(beyond, noise, problem.drive),
        links=(replace(link, target=torch.where(beyond, 5.0, link.target)),),
    )
    assert solver.solve(noisy).value.equal(solver.solve(problem).value)
    assert bool((solver.solve(noisy).value[~problem.valid] == 0).all())


def test_samples_are_solved_in_parts_where_factors_would_not_fit(generator, monkeypatch):
    problem = states_problem(generator, activations.ReLU(), joint, CrossEntropy())
    whole = NewtonOverTime().solve(problem).value
    monkeypatch.setattr("liftednet.solvers.newton_states._CHUNK_BYTES", 1)
    torch.testing.assert_close(NewtonOverTime().solve(problem).value, whole)


def test_refusals_name_what_is_wrong(generator):
    problem = states_problem(generator, activations.ReLU())
    with pytest.raises(DataError, match="steps, samples, units"):
        replace(problem, drive=problem.drive[0])
    with pytest.raises(DataError, match="lengths"):
        replace(problem, lengths=torch.ones(2))
    with pytest.raises(DeclarationError, match="tight or joint"):
        replace(problem, divergence=Margin(activations.Sign()))
    with pytest.raises(DeclarationError, match="tight"):
        states_problem(generator, activations.ReLU(), tight).formulate()
    with pytest.raises(DeclarationError, match=r"Sigmoid.*excess"):
        states_problem(generator, activations.Sigmoid()).formulate()
    with pytest.raises(DataError, match="NaN"):
        replace(problem, drive=problem.drive * torch.nan).refuse_bad_values()
