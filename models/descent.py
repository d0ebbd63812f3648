"""Block-coordinate descent: the one loop that all lifted models share (design, section 4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from liftednet.problems import Subproblem
from liftednet.solvers import Solver, choose

from .block_update import Update, readable, updated

_LARGEST_FACTOR = 50.0  # of an extrapolation


@dataclass(frozen=True)
class Block:
    """One block of variables, and the subproblem that it is when the others are fixed.

    Attributes:
        name: what the history calls it, such as "weights 1".
        problem: builds the subproblem at the current point.
        value: returns the current value of the block.
        assign: puts a new value in its place.
        solver: "auto", a name, or a solver of this block's own; None takes the descent's.
    """

    name: str
    problem: Callable[[], Subproblem[Any]]
    value: Callable[[], Any]
    assign: Callable[[Any], None]
    solver: str | Solver[Any, Any, Any] | None = None


class Blocks(Protocol):
    """A training problem, as the blocks of one sweep."""

    def sweep(self) -> Sequence[Block]:
        """Return the blocks in the order in which one sweep visits them."""
        ...

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64."""
        ...


@runtime_checkable
class Extrapolating(Protocol):
    """Blocks that can go further along the last move."""

    def snapshot(self) -> Any:
        """Return the current point."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Go back to a point."""
        ...

    def extrapolate(self, previous: Any, factor: float) -> None:
        """Go from the current point x to x + factor (x - previous), inside the domains."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """Blocks that keep something fixed over a sweep, such as multipliers."""

    def renew(self) -> None:
        """Renew it; the objective may change in either direction."""
        ...

    def gap(self) -> tuple[float, ...]:
        """Return how far every layer is from what the renewals bring it to, relatively."""
        ...


@dataclass(frozen=True)
class Step:
    """What one block update did.

    Attributes:
        sweep: number of the sweep, from 0.
        block: name of the block.
        objective: the joint objective after the update.
        decrease: by how much the update lowered it.
        residual: relative KKT residual of the block before the update.
        iterations: iterations of the solver.
        solver: name of the solver.
        seconds: since the descent began.
    """

    sweep: int
    block: str
    objective: float
    decrease: float
    residual: float
    iterations: int
    solver: str
    seconds: float


class Ending(Enum):
    """Why a descent ended."""

    CONVERGED = "every block's KKT residual was within the tolerance over a whole sweep"
    BUDGET = "the number of sweeps was used up"
    STOPPED = "the held-out objective no longer improved; the best weights are kept"
    STALLED = "no step lowers the objective any further, as far as rounding tells"
    INTERRUPTED = "it was interrupted; the state after the last finished block is kept"


@dataclass
class Trace:
    """The history of a descent.

    Attributes:
        start: the joint objective before the first block.
        steps: one entry for every block update.
        ending: why the descent ended.
    """

    start: float
    steps: list[Step] = field(default_factory=list)
    ending: Ending = Ending.BUDGET

    @property
    def objectives(self) -> list[float]:
        """The joint objective at the start and after every block update."""
        return [self.start, *(step.objective for step in self.steps)]

    def residual(self, sweep: int) -> float:
        """Return the largest block residual that a sweep met, 0 where it had no blocks."""
        return max((step.residual for step in self.steps if step.sweep == sweep), default=0.0)


@dataclass
class Descent:
    """Solves the blocks in turn, and holds what their solvers prepared.

    Attributes:
        solver: "auto", a solver's name, or a solver, used for every block that it serves.
        tolerance: stop when no block of a sweep had a larger relative KKT residual.
        extrapolation: whether every sweep is followed by a step along the last two sweeps'
            difference, taken back where it raises the objective.
    """

    solver: str | Solver[Any, Any, Any] = "auto"
    tolerance: float = 1e-6
    extrapolation: bool = False
    _caches: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def run(
        self, problem: Blocks, sweeps: int, on_step: Callable[[Step], None] | None = None
    ) -> Trace:
        """Run at most `sweeps` sweeps.

        Args:
            problem: the training problem.
            sweeps: budget.
            on_step: told after every block update, for progress bars and logs.

        Returns:
            The history; an interrupt ends it early and keeps the last finished block.

        Raises:
            SolverError: a block failed or raised the joint objective; the problem then holds
                the last good state, and the error the solution that was refused.
        """
        trace = Trace(problem.objective())
        try:
            for step in self._steps(problem, sweeps, trace):
                if on_step is not None:
                    on_step(step)
        except KeyboardInterrupt:
            trace.ending = Ending.INTERRUPTED
        return trace

    def _steps(self, problem: Blocks, sweeps: int, trace: Trace) -> Iterator[Step]:
        started = time.perf_counter()
        ahead = None
        if self.extrapolation and isinstance(problem, Extrapolating):
            ahead = _Ahead(problem)
        for sweep in range(sweeps):
            for steps in self._sweep(problem, sweep, started):
                trace.steps.extend(steps)
                yield from steps
            if isinstance(problem, Renewing):
                trace.steps.append(self._renewal(problem, sweep, started))
                yield trace.steps[-1]
            if trace.residual(sweep) <= self.tolerance:
                trace.ending = Ending.CONVERGED
                return
            if ahead is not None:
                trace.steps.append(ahead.step(problem, sweep, started))
                yield trace.steps[-1]

    def _sweep(self, problem: Blocks, sweep: int, started: float) -> Iterator[list[Step]]:
        """Yield what the blocks of one sweep did, as soon as it can be read without waiting."""
        objective = problem.objective()
        for updates in readable(map(self._update, problem.sweep())):
            steps = []
            for update in updates:
                objective -= update.decrease()
                steps.append(_step(sweep, objective, update, update.clock - started))
            yield steps

    def _renewal(self, problem: Blocks, sweep: int, started: float) -> Step:
        assert isinstance(problem, Renewing)  # seen to by the caller
        before, off = problem.objective(), max(problem.gap(), default=0.0)
        problem.renew()
        objective = problem.objective()
        seconds = time.perf_counter() - started
        return Step(sweep, "renewal", objective, before - objective, off, 0, "renewal", seconds)

    def _update(self, block: Block) -> Update:
        """Solve a block, and keep what it brings where it lowers the objective."""
        problem, value = block.problem(), block.value()
        before = problem.measure(value)
        solver = choose(problem, self.solver if block.solver is None else block.solver)
        cache = solver.prepare(problem, self._caches.get(block.name))
        self._caches[block.name] = cache
        update = updated(block.name, before, solver.solve(problem, value, cache))
        kept = update.kept(value)
        if kept is not value:
            block.assign(kept)
        return update


def _step(sweep: int, objective: float, update: Update, seconds: float) -> Step:
    return Step(
        sweep,
        update.block,
        objective,
        update.decrease(),
        float(update.before.residual),
        int(update.solution.iterations),
        update.solution.solver,
        seconds,
    )


class _Ahead:
    """Extrapolation with a monotone safeguard.

    From the points x_k that the sweeps reach, x_k + f (x_k - x_{k-1}); f grows as long as the
    objective falls, and shrinks where a step is taken back (as Ang and Gillis, 2019, for NMF).
    """

    def __init__(self, problem: Extrapolating) -> None:
        self._previous = problem.snapshot()
        self._factor = 0.5

    def step(self, problem: Blocks, sweep: int, started: float) -> Step:
        """Extrapolate where that lowers the objective, and say what it did."""
        objective = problem.objective()
        decrease = self._decrease(problem, objective)
        seconds = time.perf_counter() - started
        return Step(
            sweep, "extrapolation", objective - decrease, decrease, 0.0, 0, "extrapolation", seconds
        )

    def _decrease(self, problem: Blocks, objective: float) -> float:
        assert isinstance(problem, Extrapolating)  # asked for by the descent
        reached, decrease = problem.snapshot(), 0.0
        try:
            problem.extrapolate(self._previous, self._factor)
            decrease = max(objective - problem.objective(), 0.0)
        finally:  # an interrupt, too, leaves the point that the sweep has reached
            if decrease == 0.0:
                problem.restore(reached)
        self._previous = reached
        self._factor = min(1.5 * self._factor, _LARGEST_FACTOR) if decrease else self._factor / 2
        return decrease


def largest_residual(problem: Blocks) -> float:
    """Return the largest relative KKT residual over all blocks at the current point."""
    return max(_residuals(problem.sweep()))


def _residuals(blocks: Iterable[Block]) -> Iterator[float]:
    for block in blocks:
        yield block.problem().measure(block.value()).residual
