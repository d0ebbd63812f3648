"""States of a recurrent layer: sweeps over the steps, one after another or in two colors."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.problems import Fit
from liftednet.problems.states_over_time import StatesOverTime
from liftednet.solution import Solution

from .base import Solver, default_tolerance, judged
from .forward_over_time import best_start
from .state_solvers import STATE_SOLVERS

Rows = tuple[Tensor, Tensor]  # the steps and the samples of some states, (rows,) int64 each


@dataclass(frozen=True, eq=False)
class Order:
    """The groups of steps that a sweep solves in turn, no two neighbors in one group.

    Attributes:
        kinds: (steps, samples) int64, of which the groups are made.
        groups: steps and samples of each, of one kind.
    """

    kinds: Tensor
    groups: tuple[Rows, ...]


@dataclass(frozen=True)
class Sweeps(Solver[StatesOverTime, Tensor, Order]):
    """Solves the steps in groups, each a `StateFit` with its neighbors in time fixed.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: passes over all steps.
        step_solver: "auto", a solver's name or a solver, for the steps.
    """

    tolerance: float | None = None
    max_iterations: int = 1_000
    step_solver: str | Solver[Any, Any, Any] = "auto"

    @abstractmethod
    def colors(self, steps: int) -> Iterator[Tensor]:
        """Yield the numbers of the steps that are solved together, (group,) int64."""

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for states over time."""
        return None if isinstance(problem, StatesOverTime) else "it solves states over time alone"

    def prepare(self, problem: StatesOverTime, previous: Order | None = None) -> Order:
        """Return the groups of steps, the previous ones for the same links."""
        kinds = problem.kinds()
        if previous is not None and previous.kinds.equal(kinds):
            return previous
        present = [kind for kind in kinds.unique().tolist() if kind > 0]
        groups = []
        for color in self.colors(problem.steps):
            own = color.to(kinds.device)
            for kind in present:
                place, sample = (kinds[own] == kind).nonzero(as_tuple=True)
                groups.append((own[place], sample))
        return Order(kinds, tuple(group for group in groups if len(group[0])))

    def solve(
        self, problem: StatesOverTime, start: Tensor | None = None, cache: Order | None = None
    ) -> Solution[Tensor]:
        """Return the states after as many sweeps as the tolerance or the limit asks for."""
        started = time.perf_counter()
        order = self.prepare(problem, cache)
        tolerance = self.tolerance or default_tolerance(problem.drive.dtype)
        states = best_start(problem) if start is None else start.clone()
        caches: list[Any] = [None] * len(order.groups)
        sweeps = 0
        for sweeps in range(1, self.max_iterations + 1):
            for number, group in enumerate(order.groups):
                caches[number] = self._step(problem, states, group, caches[number])
            if sweeps < self.max_iterations and problem.measure(states).residual <= tolerance:
                break
        return judged(problem, states, sweeps, started, tolerance, self.name)

    def _step(self, problem: StatesOverTime, states: Tensor, group: Rows, cache: Any) -> Any:
        """Solve one group in place, and return what its solver prepared."""
        fit = problem.state_fit(states, group)
        solver = STATE_SOLVERS.choose(fit, self.step_solver)
        cache = solver.prepare(fit, cache)
        states[group] = solver.solve(fit, states[group], cache).value
        return cache


@dataclass(frozen=True)
class Cyclic(Sweeps):
    """Solves one step after another, from first to last.

    Lifted Recurrent Neural Networks, section 5.2.

    Example:
        >>> import torch
        >>> from liftednet import StatesOverTime
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Cyclic, solve
        >>> drive, recurrent = torch.ones(2, 1, 1), torch.full((1, 1), 0.5)
        >>> fit = StatesOverTime(joint(ReLU()), drive, recurrent, (), torch.tensor([2]))
        >>> solve(fit, Cyclic()).value.flatten()
        tensor([1.0000, 1.5000])
    """

    name: str = field(default="cyclic", init=False)

    def colors(self, steps: int) -> Iterator[Tensor]:
        """Yield each step alone."""
        yield from torch.arange(steps).split(1)


@dataclass(frozen=True)
class RedBlack(Sweeps):
    """Solves all odd steps at once, then all even steps at once.

    Example:
        >>> import torch
        >>> from liftednet import StatesOverTime
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import RedBlack, solve
        >>> drive, recurrent = torch.ones(2, 1, 1), torch.full((1, 1), 0.5)
        >>> fit = StatesOverTime(joint(ReLU()), drive, recurrent, (), torch.tensor([2]))
        >>> solve(fit, RedBlack()).value.flatten()
        tensor([1.0000, 1.5000])
    """

    name: str = field(default="red-black", init=False)

    def colors(self, steps: int) -> Iterator[Tensor]:
        """Yield the odd steps, then the even ones."""
        yield torch.arange(1, steps, 2)
        yield torch.arange(0, steps, 2)
