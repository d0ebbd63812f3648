"""States over time on the device: red-black sweeps, one launch for each color."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.problems import Fit, StatesOverTime
from liftednet.problems.states_over_time import best_start
from liftednet.samples import squared_norm_of
from liftednet.solution import Solution

from .. import device_loops
from ..base import Solver, default_tolerance, judged
from .device import on_device, programs, refusal, require_room
from .groups import Goal, Layer, TilePlan
from .sides import Side, link_refusal, side
from .table import (
    DeviceMap,
    StateBlocks,
    proximal_map,
    time_blocks,
    width_refusal,
)

_SHARE = 0.3  # of the tolerance, at which steps end
_SLACK = 1.001  # of s over the smoothness of the links


@dataclass(frozen=True)
class FusedRedBlack(Solver[StatesOverTime, Tensor, None]):
    """Solves all odd steps in one launch, then all even steps in another.

    The sweeps of `RedBlack`, each step by the accelerated proximal gradient of `FusedStates`. All
    sweeps are handed on at once; when one has met no violation, those after it do nothing.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-5.
        max_iterations: passes over all steps.
        step_limit: proximal steps of a tile in one visit.
        blocks: sizes of the kernel; None takes them from a table.
    """

    tolerance: float | None = None
    max_iterations: int = 200
    step_limit: int = 100
    blocks: StateBlocks | None = None
    name: str = field(default="fused-red-black", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for states over time in float32 on a GPU, whose maps all have Triton functions."""
        if not isinstance(problem, StatesOverTime):
            return "it solves states over time alone"
        if refused := refusal(problem.drive) or width_refusal(_columns(problem)):
            return refused
        if proximal_map(problem.divergence.activation) is None:
            return f"there is no kernel for the prox of {problem.divergence.activation!r}"
        links = [link_refusal(problem.divergence, problem.recurrent)]
        links += [link_refusal(link.divergence, link.weight) for link in problem.links]
        return next(filter(None, links), None)

    def suits(self, problem: StatesOverTime) -> bool:
        """Say no: Newton steps over time are exact, and go first where they can."""
        return False

    def solve(
        self, problem: StatesOverTime, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the states after as many sweeps as the tolerance or the limit asks for.

        Raises:
            SolverError: the states do not fit on the device.
        """
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.drive.dtype)
        begin = best_start(problem) if start is None else start
        states = begin.clone(memory_format=torch.contiguous_format)
        largest = device_loops.largest_on(problem.terms(states), problem.lam)
        launch = _Launch(problem, self.blocks or time_blocks(_columns(problem)), self.step_limit)
        worst = launch.run(states, _SHARE * tolerance * largest, self.max_iterations)
        sweeps = int((worst[1:] > 0).sum())
        return judged(problem, states, sweeps, started, tolerance, self.name)


def _columns(problem: StatesOverTime) -> list[int]:
    return [problem.drive.shape[2], *(link.weight.shape[1] for link in problem.links)]


class _Launch:
    """What the launches of a solve share."""

    def __init__(self, problem: StatesOverTime, blocks: StateBlocks, limit: int) -> None:
        self.problem, self.blocks, self.limit = problem, blocks, limit
        steps, samples, units = problem.drive.shape
        tiles = -(-(-(-steps // 2) * samples) // blocks.rows)
        device, scratch = problem.drive.device, blocks.scratch(units)
        self.programs = min(tiles, programs(device, blocks.programs, 4 * scratch))
        self.scratch = self.programs * scratch
        require_room(samples, steps * units, 4 * steps * units, 4 * self.scratch, device)

    def run(self, states: Tensor, goal: Tensor, sweeps: int) -> Tensor:
        """Sweep in place; return the largest violation that each sweep met, infinity first."""
        worst = states.new_zeros(sweeps + 1)
        worst[0] = torch.inf
        sides = self._sides(states)
        shared, plan = self._arguments(states, goal, worst, sides), self._plan(sides)
        with on_device(states):
            for sweep in range(sweeps):
                for color in (1, 0):
                    self._color(shared, plan, color, sweep)
        return worst

    def _proximal(self) -> DeviceMap:
        proximal = proximal_map(self.problem.divergence.activation)
        assert proximal is not None  # asked for by obstacle
        return proximal

    def _plan(self, sides: list[Side]) -> TilePlan:
        plans = tuple(side.plan for side in sides)
        return self.blocks.plan(self.problem.drive.shape[2], self._proximal(), plans)

    def _arguments(
        self, states: Tensor, goal: Tensor, worst: Tensor, sides: list[Side]
    ) -> tuple[Any, ...]:
        problem, proximal = self.problem, self._proximal()
        return (
            problem.drive.contiguous(),
            states,
            problem.valid.char().contiguous(),
            worst,
            Goal(states.new_empty(self.scratch), self._step_size(), goal.float()),
            Layer(problem.drive.shape[2], float(problem.lam), proximal.a, proximal.b),
            tuple(side.link for side in sides),
            *problem.drive.shape[:2],
        )

    def _color(self, shared: tuple[Any, ...], plan: TilePlan, color: int, sweep: int) -> None:
        from .time_tiles import colored_tiles

        colored_tiles[(self.programs,)](
            *shared,
            color,
            sweep,
            self.limit,
            PLAN=plan,
            num_warps=self.blocks.warps,
            num_stages=self.blocks.stages,
        )

    def _sides(self, states: Tensor) -> list[Side]:
        """Return the link to the next step, whose target are the states themselves, and others."""
        problem, samples = self.problem, states.shape[1]
        follows = problem.valid & ~problem.last
        sides = [
            side(
                problem.divergence,
                problem.recurrent,
                problem.drive.flatten(0, 1),
                states.flatten(0, 1),
                problem.lam,
                self.blocks,
                follows.flatten(),
                samples,
            )
        ]
        for link in problem.links:
            offset = link.offset if link.offset.ndim == 1 else link.offset.flatten(0, 1)
            target, counted = link.target.flatten(0, 1), link.counted.flatten()
            args = (link.divergence, link.weight, offset, target, link.lam, self.blocks, counted)
            sides.append(side(*args))
        return sides

    def _step_size(self) -> Tensor:
        problem = self.problem
        total = _smoothness(problem.divergence.smoothness, problem.recurrent, problem.lam)
        for link in problem.links:
            total += _smoothness(link.divergence.smoothness, link.weight, link.lam)
        return problem.drive.new_tensor(max(_SLACK * total, 1e-3 * problem.lam))


def _smoothness(smoothness: float | None, weight: Tensor, lam: float) -> float:
    assert smoothness is not None  # asked for by obstacle
    return lam * smoothness * squared_norm_of(weight)
