"""Block-coordinate descent: exact fits in turn, never a rise, a certificate for the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from liftednet import processes, solvers
from liftednet.errors import DeclarationError, SolverError
from liftednet.layers.expression import SAMPLE_WEIGHTS, Parameter
from liftednet.network import State
from liftednet.problems import StatesOverTime
from liftednet.problems.fit import Fit, Measure
from liftednet.solution import Solution, Status
from liftednet.solvers import Solver, choose, get_solver
from liftednet.solvers.base import default_tolerance
from liftednet.solvers.choice import retry_in_torch
from liftednet.validation import require_count, require_positive

from ..block import Blocks, Structure, recalled, remembered
from ..trace import Ending, Memory, Problem, Step, Steps

AnySolver = str | Solver[Any, Any, Any]

_LARGEST_FACTOR = 50.0  # of an extrapolation
_ROUNDING = 1e-6  # a rise below this, relative to the objective, is rounding
_REACHABLE = 80  # times the precision: a residual that rounding lets a fit reach
_SHARE = 0.03  # of the residual that it begins with: the next blocks move the rest
_STEPS_OVER_TIME = 2  # Newton steps between weight fits; more of them bring no better weights


@dataclass(frozen=True)
class FullBatch:
    """Training on all samples at once, every block by its convex problem.

    Lifted Neural Networks, section 6; Lifted Recurrent Neural Networks, section 5.

    The same seed, data, versions and number of threads give the same weights on one machine, bit
    for bit. Another number of threads sums in another order: what is promised then is that every
    fit meets its tolerance, not where. An iterative fit of several ends at .03 of the residual that
    it begins with, half the work for the same descent, or at a tenth of `tolerance` (float32: at
    1e-5 at least). It may end some steps sooner or later, in directions in which the objective is
    flat: objectives agree to about 1e-3, weights to less. A larger rho leaves no flat directions;
    a descent that has converged brings the weights together.

    Attributes:
        sweeps: the most over all blocks.
        tolerance: stop when every block's relative KKT residual is below this.
        extrapolation: whether to go on along the last move where that is lower.

    Raises:
        DataError: a number is out of its range.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import FullBatch, LiftedMLP
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 10), method=FullBatch(sweeps=5, tolerance=1e-6))
        >>> model.fit(digits.x_train.double(), digits.y_train).residual() < 1e-6
        True
    """

    sweeps: int = 20
    tolerance: float = 1e-4
    extrapolation: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_count("sweeps", self.sweeps, 1)
        require_positive("tolerance", self.tolerance)

    def refuse(self, structure: Structure) -> None:
        """Raise `DeclarationError` where a network cannot be trained like this."""
        for number, state in enumerate(structure.states, start=1):
            if state.activation.margin is not None:
                raise DeclarationError(
                    f"{state.activation!r} of layer {number} jumps, and exact fits feel nothing of "
                    'what lies beyond a jump: use method="minibatch", whose steps have a margin.'
                )

    def take_steps(self, problem: Problem) -> Steps:
        """Descend, and yield what every block update did.

        Raises:
            SolverError: a block failed or raised the joint objective; the blocks then hold the
                last good state, and the error the solution that was refused.
        """
        blocks, memory = problem.point, problem.memory
        solvers = Solvers(problem.solver, problem.state_solver, self.tolerance)
        sweep, done, worst, objective = memory.get("place", (0, 0, 0.0, math.nan))
        if "blocks" in memory:
            blocks.recall(memory["blocks"])
        ahead = _Ahead(blocks, memory.get("ahead")) if self.extrapolation else None

        while sweep < self.sweeps:
            worst = worst if done else 0.0
            if not math.isfinite(objective):  # else every update tells what it has lowered it by
                objective = blocks.objective()
            todo = blocks.sweep()
            for block in todo[done:]:
                step = _update(blocks, block, solvers, sweep, objective)
                step = replace(step, whole=block is todo[-1])
                if SAMPLE_WEIGHTS in blocks.values:  # which the fits of states do not know
                    step = replace(step, objective=blocks.objective())
                objective, worst = step.objective, _worse(worst, step.residual)
                done += 1
                _remember(memory, [sweep, done, worst, objective], blocks, ahead)
                yield step
            if worst <= self.tolerance:
                return Ending.CONVERGED
            sweep, done = sweep + 1, 0
            if ahead is not None:
                step = ahead.step(blocks, sweep - 1, objective)
                objective = step.objective
                _remember(memory, [sweep, done, worst, objective], blocks, ahead)
                yield step
        return Ending.BUDGET


@dataclass
class Solvers:
    """Who solves the blocks, and what they have prepared.

    Attributes:
        all: "auto", a solver's name, or a solver, for every block.
        over_time: the same for the states of recurrent layers; "auto" takes two exact steps over
            all time between the weight fits.
        tolerance: of the descent that they serve.
    """

    all: AnySolver = "auto"
    over_time: AnySolver = "auto"
    tolerance: float = 1e-4
    _caches: dict[str, Any] = field(default_factory=dict, repr=False)

    def solve(self, name: str, problem: Any, value: Any, begun: float) -> Solution[Any]:
        """Return the solution of a block by its name, from a value of so large a residual."""
        dtype = problem.like().dtype
        goal = max(self.tolerance / 10, _REACHABLE * torch.finfo(dtype).eps, _SHARE * begun)
        wanted = self._wanted(problem, goal)
        solver = choose(problem, wanted)
        if wanted == "auto" and "tolerance" in vars(solver):  # others are exact
            goal = max(goal, default_tolerance(dtype))
            solver = replace(solver, tolerance=goal)  # type: ignore[type-var]
        cache = solver.prepare(problem, self._caches.get(name))
        self._caches[name] = cache
        solution = solver.solve(problem, value, cache).require_usable()
        return retry_in_torch(problem, solution) if wanted == "auto" else solution

    def measured(self, problem: Fit[Any], value: Any) -> Measure:
        """Return what `measure` of a block does, as soon as who solves it can."""
        if processes.size() > 1:  # of which each solves for its own samples
            return problem.measure(value)
        return choose(problem, self._wanted(problem, self.tolerance)).measured(problem, value)

    def _wanted(self, problem: Any, goal: float) -> AnySolver:
        """Return who solves a problem, iterative fits to a tenth of the descent's tolerance."""
        over_time = isinstance(problem, StatesOverTime)
        wanted = self.over_time if over_time else self.all
        if over_time and isinstance(wanted, str) and wanted != "auto":
            return replace(get_solver(wanted), tolerance=goal)  # type: ignore[type-var]
        if wanted != "auto":
            return wanted
        quick: Solver[Any, Any, Any] = (
            solvers.NewtonOverTime(goal, _STEPS_OVER_TIME)
            if over_time
            else solvers.GeneralizedLinear(goal)
        )
        serves = quick.obstacle(problem) is None and not problem.quadratic
        return quick if serves else "auto"


def _remember(memory: Memory, place: list[float], blocks: Blocks, ahead: _Ahead | None) -> None:
    """Keep what a descent goes on from."""
    memory.update(place=place, blocks=blocks.memory(), ahead=ahead and ahead.memory())


def _update(
    blocks: Blocks, block: State | Parameter, solvers: Solvers, sweep: int, objective: float
) -> Step:
    """Solve a block, keep what it brings where it lowers the objective, and say so.

    Raises:
        SolverError: the solution is not finite, or a rise is more than rounding.
    """
    problem, value = blocks.fit(block), blocks.values[block]
    before = solvers.measured(problem, value)
    alone = len(blocks.sweep()) == 1
    solution = _solved(block, problem, value, solvers, 0.0 if alone else before.residual)
    rise = solution.objective - before.objective
    if rise > _ROUNDING * (1 + abs(before.objective)):
        raise SolverError(
            f"the block {block.name!r} raised the joint objective by {rise:.3e} (from "
            f"{before.objective:.6e}); {solution.solver} stopped after {solution.iterations} "
            f"iterations with residual {solution.residual:.1e}. The model keeps the state before "
            "this block.",
            solution,
        )
    if rise < 0:
        blocks.values[block] = solution.value
    decrease = max(-rise, 0.0)
    return Step(
        sweep, block.name, objective - decrease, decrease, before.residual,
        solution.iterations, solution.solver,
    )  # fmt: skip


def _solved(
    block: State | Parameter, problem: Any, value: Any, solvers: Solvers, begun: float
) -> Solution[Any]:
    """Return the solution of a block; each of several processes solves for its own samples."""
    if isinstance(block, Parameter) or processes.size() == 1:
        return solvers.solve(block.name, problem, value, begun)
    solution = Solution(value, 0.0, 0.0, 0, 0.0, Status.SOLVED, 0.0, "none")
    with processes.agreed():
        if value.numel():
            solution = solvers.solve(block.name, problem, value, begun)
    objective, residual = problem.measure(solution.value)
    return replace(solution, objective=objective, residual=residual)


class _Ahead:
    """Extrapolation with a monotone safeguard.

    From the points x_k that the sweeps reach, x_k + f (x_k - x_{k-1}); f grows as long as the
    objective falls, and shrinks where a step is taken back (as Ang and Gillis, 2019, for NMF).
    """

    def __init__(self, blocks: Blocks, memory: Memory | None) -> None:
        self._previous, self._factor = blocks.snapshot(), 0.5
        if memory is not None:
            self._factor = memory["factor"]
            self._previous = recalled(self._previous, memory["previous"])

    def memory(self) -> Memory:
        """Return the last point and the factor."""
        return {"factor": self._factor, "previous": remembered(self._previous)}

    def step(self, blocks: Blocks, sweep: int, objective: float) -> Step:
        """Extrapolate where that lowers the objective, and say what it did."""
        reached, decrease = blocks.snapshot(), 0.0
        try:
            blocks.extrapolate(self._previous, self._factor)
            decrease = max(objective - blocks.objective(), 0.0)
        finally:  # an interrupt, too, leaves the point that the sweep has reached
            if decrease == 0.0:
                blocks.values.update(reached)
        self._previous = reached
        self._factor = min(1.5 * self._factor, _LARGEST_FACTOR) if decrease else self._factor / 2
        return Step(sweep, "extrapolation", objective - decrease, decrease, 0.0, 0, "extrapolation")


def _worse(one: float, other: float) -> float:
    """Return the larger of two residuals; infinity for one that is not known."""
    return math.inf if math.isnan(other) else max(one, other)


def largest_residual(blocks: Blocks) -> float:
    """Return the largest relative KKT residual over all blocks at the current point."""
    return max(blocks.fit(x).measure(blocks.values[x]).residual for x in blocks.sweep())
