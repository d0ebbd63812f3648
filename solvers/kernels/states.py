"""State fits on the device: one launch runs all steps for every tile of samples."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from liftednet.activations import ReLU
from liftednet.divergences import joint
from liftednet.problems import Fit, Link, StateFit
from liftednet.solution import Solution

from .. import device_loops
from ..base import default_tolerance, judged
from ..state_links import states_refusal, terms
from .device import Kernel, on_device, programs, refusal, require_room
from .elementwise import proximal_map
from .tiles import (
    Goal,
    Layer,
    Side,
    StateBlocks,
    link_refusal,
    side,
    state_blocks,
    width_refusal,
)

_SHARE = 0.3  # of the tolerance, at which steps end: it holds for Z where they judge Y
_SLACK = 1.001  # of s over the smoothness of the links
_LEAST = 1e-3  # of s over lam, for links that are all but zero


@dataclass(frozen=True)
class FusedStates(Kernel[StateFit]):
    """Solves a state fit by accelerated proximal gradient steps, all in one launch.

    The steps of `Proximal`, a tile of samples at a time; a tile ends by its own certificate, in
    float32. Its links may be quadratic, softmax, or any activation that acts unit by unit.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-5.
        max_iterations: steps of a tile.
        blocks: sizes of the kernel; None takes them from a table.
    """

    tolerance: float | None = None
    max_iterations: int = 20_000
    blocks: StateBlocks | None = None
    name: str = field(default="fused-states", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a state fit in float32 on a GPU, whose maps all have Triton functions."""
        unserved = states_refusal(problem, lipschitz=False)
        if unserved is not None or not isinstance(problem, StateFit):
            return unserved
        if refused := refusal(problem.pre_activation) or width_refusal(_columns(problem)):
            return refused
        if proximal_map(problem.divergence.activation) is None:
            return f"there is no kernel for the prox of {problem.divergence.activation!r}"
        links = (link_refusal(link.divergence, link.weight) for link in problem.links)
        return next(filter(None, links), None)

    def trial(self, u: Tensor, y: Tensor) -> StateFit:
        """Return a small problem below one link."""
        relu, weight = joint(ReLU()), u[: u.shape[1], :5] / u.shape[1] ** 0.5
        return StateFit(relu, u, (Link(relu, weight, weight[0], y[:, :5]),), 0.7)

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
        return judged(problem, value, int(steps.max()), started, tolerance, self.name)

    def states(self, problem: StateFit, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the minimizer without judging it, and the steps of each tile, (tiles,) int32."""
        launch = _Launch(problem, self.blocks or state_blocks(_columns(problem)))
        launch.require_room()
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        if start is None:
            start = problem.divergence.activation.forward(problem.pre_activation)
        value = start.clone(memory_format=torch.contiguous_format)
        scale = problem.lam * device_loops.largest_on(terms(problem, slice(None)), 1.0)
        goal = _SHARE * tolerance * scale
        return value, launch.run(value, goal, self.max_iterations)


def _columns(problem: StateFit) -> list[int]:
    return [link.weight.shape[1] for link in problem.links]


class _Launch:
    """What a launch takes beside the states."""

    def __init__(self, problem: StateFit, blocks: StateBlocks) -> None:
        self.problem, self.blocks = problem, blocks
        self.device = problem.pre_activation.device
        self.tiles = -(-problem.samples // blocks.rows)
        scratch = 4 * blocks.scratch(problem.units)
        self.programs = min(self.tiles, programs(self.device, blocks.programs, scratch))

    def require_room(self) -> None:
        units = self.problem.units
        widths = sum(map(self.blocks.width, _columns(self.problem)))
        scratch = self.programs * self.blocks.scratch(units)
        fixed = 4 * scratch + 6 * widths * self.blocks.padded(units)  # W, and in float16
        row_bytes = 12 * units  # the states, and two products while s is found
        require_room(self.problem.samples, units, row_bytes, fixed, self.device)

    def run(self, value: Tensor, goal: Tensor, limit: int) -> Tensor:
        from .state_steps import state_tiles

        problem, blocks, units = self.problem, self.blocks, self.problem.units
        proximal = proximal_map(problem.divergence.activation)
        assert proximal is not None  # asked for by obstacle
        sides = [self._side(link) for link in problem.links]
        steps = torch.zeros(self.tiles, dtype=torch.int32, device=self.device)
        scratch = value.new_empty(self.programs * blocks.scratch(units))
        with on_device(value):
            state_tiles[(self.programs,)](
                problem.pre_activation.contiguous(),
                value,
                steps,
                Goal(scratch, step_size(problem), goal.float()),
                Layer(units, float(problem.lam)),
                tuple(side.link for side in sides),
                problem.samples,
                limit,
                PLAN=blocks.plan(units, proximal, tuple(side.plan for side in sides)),
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )
        return steps

    def _side(self, link: Link) -> Side:
        values = link.weight, link.offset, link.target
        return side(link.divergence, *values, link.lam, self.blocks)


def step_size(problem: StateFit) -> Tensor:
    """Return s, an upper bound of the links' smoothness, on the device, ()."""
    assert problem.smoothness is not None  # the links have kernels
    return problem.pre_activation.new_tensor(max(_SLACK * problem.smoothness, _LEAST * problem.lam))
