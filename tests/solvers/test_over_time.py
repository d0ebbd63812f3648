"""States over time: two solvers, against CVXPY over all steps at once, and each other."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.papers.lifted_rnn import Cyclic
from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Margin, joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, FenchelYoungLoss, SquaredError
from liftednet.problems import StatesOverTime, TimeLink
from liftednet.problems.states_over_time import LinearizedSteps, System, forward_states
from liftednet.solution import Status
from liftednet.solvers import solve
from liftednet.solvers.newton_states import NewtonOverTime
from tests.draws import normal
from tests.models.networks import refuses
from tests.torture import statements

STEPS, SAMPLES, UNITS, OUTPUTS = 4, 3, 3, 2
LENGTHS = torch.tensor([4, 1, 2])
PER_UNIT: list[Activation] = [
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2),
    activations.Clipped(-1, 1), activations.Sigmoid(), activations.Tanh(), activations.Softplus(),
    Activation.from_function(torch.nn.functional.softsign),
]  # fmt: skip
LOSSES: list[FenchelYoungLoss] = [SquaredError(), CrossEntropy(), BinaryCrossEntropy()]


def states_problem(generator, activation, coupling=joint, loss=LOSSES[0], at_end=False) -> Any:
    draw = partial(normal, seed=generator)
    steps = torch.arange(STEPS)[:, None]
    counted = steps == LENGTHS - 1 if at_end else steps < LENGTHS
    target = loss.divergence.activation.forward(draw(STEPS, SAMPLES, OUTPUTS))
    link = TimeLink(loss.divergence, draw(UNITS, OUTPUTS), draw(OUTPUTS), target, counted)
    drive, recurrent = draw(STEPS, SAMPLES, UNITS), 0.5 * draw(UNITS, UNITS)
    return StatesOverTime(coupling(activation), drive, recurrent, (link,), LENGTHS, 3.0)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", PER_UNIT[:4], ids=repr)
def test_joint_states_are_those_of_cvxpy_over_all_steps(generator, activation, loss, at_end):
    """Of one objective, which bounds how far they are apart: it is strongly convex."""
    problem = states_problem(generator, activation, joint, loss, at_end)
    exact, least = NewtonOverTime().solve(problem), statements.least(problem)
    assert exact.status is Status.SOLVED and least is not None
    assert exact.objective == pytest.approx(least[0], rel=1e-9, abs=1e-8)


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
    point = LinearizedSteps(problem, states)
    free = (point.slope > 0.5) & problem.valid.unsqueeze(-1)
    curvature = torch.where(free, problem.lam, 1.0)
    system = System(problem, states, point.slope, free, curvature)
    right = normal(*states.shape, seed=generator).where(free, 0.0)
    solution = system.solve(right)
    product = curvature * solution + system.coupled(solution)
    torch.testing.assert_close(product.where(free, 0.0), right)


@pytest.mark.parametrize("solver", [NewtonOverTime(), Cyclic(1e-3)])
def test_what_lies_beyond_the_lengths_changes_nothing(generator, solver):
    problem = states_problem(generator, activations.ReLU(), joint, CrossEntropy())
    noise = 7 * normal(*problem.drive.shape, seed=generator)
    beyond = ~problem.valid.unsqueeze(-1)
    (link,), drive = problem.links, torch.where(beyond, noise, problem.drive)
    links = (replace(link, target=torch.where(beyond, 5.0, link.target)),)
    found = solver.solve(replace(problem, drive=drive, links=links)).value
    assert found.equal(solver.solve(problem).value)
    assert bool((found[~problem.valid] == 0).all())


def test_samples_are_solved_in_parts_where_factors_would_not_fit(generator, monkeypatch):
    problem = states_problem(generator, activations.ReLU(), joint, CrossEntropy())
    whole = NewtonOverTime().solve(problem).value
    monkeypatch.setattr("liftednet.solvers.newton_states._CHUNK_BYTES", 1)
    torch.testing.assert_close(NewtonOverTime().solve(problem).value, whole)


def test_refusals_name_what_is_wrong(generator):
    problem = states_problem(generator, activations.ReLU())
    link: Any = problem.links[0]
    refuses(DataError, "steps, samples, units", replace, problem, drive=problem.drive[0])
    refuses(DataError, "lengths", replace, problem, lengths=torch.ones(2))
    refuses(DataError, "integers from 1 to", replace, problem, lengths=problem.lengths + 9)
    refuses(DataError, "the drive is torch", replace, problem, recurrent=problem.recurrent.float())
    for words, change in {
        "lam of link 0": {"lam": -1.0}, "must be booleans": {"counted": link.counted.long()},
        "the weight W of link 0": {"weight": torch.cat([link.weight] * 2)},
        "the offset C of link 0": {"offset": torch.zeros(99)},
    }.items():  # fmt: skip
        refuses(DataError, words, replace, problem, links=(replace(link, **change),))
    far = replace(link, divergence=tight(activations.Softmax()), target=link.target + 5)
    refuses(DataError, "domain of Softmax", solve, replace(problem, links=(far,)))
    margin = Margin(activations.Sign())
    refuses(DeclarationError, "tight or joint", replace, problem, divergence=margin)
    refuses(DataError, "NaN", replace(problem, drive=problem.drive * torch.nan).refuse_bad_values)
    no_cone = states_problem(generator, activations.ReLU(), tight)
    refuses(DeclarationError, "tight", no_cone.formulate)
    no_excess = states_problem(generator, activations.Sigmoid())
    refuses(DeclarationError, r"Sigmoid.*excess", no_excess.formulate)
