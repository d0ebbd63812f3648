"""State fits on the device: one launch runs all steps for every tile of samples."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.divergences import Raw
from liftednet.problems import Link, StateFit, Subproblem
from liftednet.problems.design_matrix import squared_norm_on
from liftednet.solution import Solution

from ..base import default_tolerance, judged
from .device import Kernel, on_device, processors, refusal, require_room
from .sides import Side, link_refusal, side
from .table import StateBlocks, padded_width, proximal_map, state_blocks, width_refusal

_SHARE = 0.3  # of the tolerance, at which steps end: it holds for Z where they judge Y
_SLACK = 1.001  # of s over the smoothness of the links
_LEAST = 1e-3  # of s over lam, for links that are all but zero


@dataclass(frozen=True)
class FusedStates(Kernel[StateFit]):
    """Solves a state fit by accelerated proximal gradient steps, all in one launch.

    The steps of `Proximal`, a tile of samples at a time; a tile ends by its own certificate. Its
    links may be quadratic, softmax, or any activation of the catalogue that acts unit by unit.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-5.
        max_iterations: steps of a tile.
        blocks: sizes of the kernel; None takes them from a table.
    """

    tolerance: float | None = None
    max_iterations: int = 20_000
    blocks: StateBlocks | None = None
    name: str = field(default="fused-states", init=False)

    def obstacle(self, problem: Subproblem[Any]) -> str | None:
        """Ask for a state fit in float32 on a GPU, whose maps all have Triton functions."""
        if not isinstance(problem, StateFit):
            return "it solves state fits alone"
        if isinstance(problem.divergence, Raw):
            return f"{problem.divergence.activation!r} is a raw divergence"
        if not problem.links:
            return "it needs a link"
        if refused := refusal(problem.pre_activation) or width_refusal(_columns(problem)):
            return refused
        if proximal_map(problem.divergence.activation) is None:
            return f"there is no kernel for the prox of {problem.divergence.activation!r}"
        links = (link_refusal(link.divergence, link.weight) for link in problem.links)
        return next(filter(None, links), None)

    def solve(
        self, problem: StateFit, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the minimizer to the tolerance.

        Raises:
            SolverError: the states do not fit on the device.
        """
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        value, steps = self.states(problem, start)
        return judged(problem, value, deferred.counted(steps.max()), started, tolerance, self.name)

    def states(self, problem: StateFit, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the minimizer without judging it, and the steps of each tile, (tiles,) int32."""
        launch = _Launch(problem, self.blocks or state_blocks(_columns(problem)))
        launch.require_room()
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        if start is None:
            start = problem.divergence.activation.forward(problem.pre_activation)
        value = start.clone(memory_format=torch.contiguous_format)
        goal = _SHARE * tolerance * largest_term_on(problem)
        return value, launch.run(value, goal, self.max_iterations)


def _columns(problem: StateFit) -> list[int]:
    return [link.weight.shape[1] for link in problem.links]


class _Launch:
    """What a launch takes beside the states."""

    def __init__(self, problem: StateFit, blocks: StateBlocks) -> None:
        self.problem, self.blocks = problem, blocks
        self.device = problem.pre_activation.device
        self.tiles = -(-problem.samples // blocks.rows)
        self.programs = min(self.tiles, processors(self.device) * blocks.programs)
        self.padded = blocks.padded(problem.units)

    def require_room(self) -> None:
        widths = sum(map(padded_width, _columns(self.problem)))
        fixed = 3 * self.programs * self.blocks.rows + 2 * widths
        row_bytes = 12 * self.problem.units  # the states, and two products while s is found
        require_room(self.problem.samples, row_bytes, 4 * fixed * self.padded, self.device)

    def run(self, value: Tensor, goal: Tensor, limit: int) -> Tensor:
        from .state_tiles import state_tiles

        problem, blocks = self.problem, self.blocks
        proximal = proximal_map(problem.divergence.activation)
        assert proximal is not None  # asked for by obstacle
        sides = [self._side(link) for link in problem.links]
        steps = torch.zeros(self.tiles, dtype=torch.int32, device=self.device)
        with on_device(value):
            state_tiles[(self.programs,)](
                problem.pre_activation.contiguous(),
                value,
                value.new_empty(self.programs * 3 * blocks.rows * self.padded),
                step_size(problem).float(),
                goal.float(),
                steps,
                tuple(side.link for side in sides),
                problem.samples,
                problem.units,
                limit,
                float(problem.lam),
                proximal.a,
                proximal.b,
                PROX=proximal.load(),
                LINKS=tuple(side.gradient for side in sides),
                FULL=tuple(side.full for side in sides),
                COUNTED=tuple(side.counted for side in sides),
                WIDTHS=tuple(side.width for side in sides),
                ROWS=blocks.rows,
                DEPTH=blocks.depth,
                COLUMNS=blocks.columns,
                PADDED=self.padded,
                PRECISION=blocks.precision,
                ROUGH=blocks.rough,
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )
        return steps

    def _side(self, link: Link) -> Side:
        return side(link.divergence, link.weight, link.offset, link.target, link.lam, self.padded)


def step_size(problem: StateFit) -> Tensor:
    """Return s, an upper bound of the links' smoothness, on the device, ()."""
    total = problem.pre_activation.new_zeros((), dtype=torch.float64)
    for link in problem.links:
        smoothness = link.divergence.smoothness
        assert smoothness is not None  # asked for by obstacle
        total = total + link.lam * smoothness * squared_norm_on(link.weight)
    return (_SLACK * total).clamp(min=_LEAST * problem.lam)


def largest_term_on(problem: StateFit) -> Tensor:
    """Return the largest entry of lam U and the links' lam V W', at least lam, on the device."""
    scale = (problem.lam * problem.pre_activation.abs().amax()).clamp(min=problem.lam)
    for link in problem.links:
        scale = torch.maximum(scale, link.lam * (link.target @ link.weight.T).abs().amax())
    return scale
