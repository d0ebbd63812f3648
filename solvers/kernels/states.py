"""State fits on the device: one launch runs all steps for every tile of samples.

What the kernel takes stands here, too: links and layer in groups, the sizes of its blocks, and
whether it can serve a tensor, what it proves first, and how many programs run at once.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liftednet.activations import ReLU, Softmax
from liftednet.divergences import Divergence, Joint, joint
from liftednet.errors import FitWarning
from liftednet.problems import Link, StateFit

from ..base import Solver, default_tolerance
from ..choice import solved_by
from ..compiled.loops import ramp
from ..state_links import row_scales, states_refusal

# Entries below which torch serves: compiling takes some four seconds once, and what it saves there
# is ten milliseconds a fit, of the fifteen that it takes (trials on an H100, from 50 x 10 on).
_FEWEST = 1 << 16
_WIDEST = 256  # columns of a link whose gradient stays in registers
_SHARE = 0.3  # of the tolerance, at which steps end: it holds for Z where they judge Y
_SLACK = 1.001  # of s over the smoothness of the links
_LEAST = 1e-3  # of s over lam, for links that are all but zero
_PRECISIONS = torch.float32, torch.float64
_CLOSE = 1e-3  # of states of size 1, at a residual of 1e-5


@cache
def proven(kernel: Solver[StateFit, Tensor, None], device: torch.device) -> bool:
    """Say whether a kernel finds on a device what torch does; where it does not, warn once."""
    generator = torch.Generator().manual_seed(0)
    u, y = torch.randn(50, 12, generator=generator), torch.eye(12)[torch.arange(50) % 12]
    problem, exact = (_trial(u.to(device, kind), y.to(device, kind)) for kind in _PRECISIONS)
    try:
        found = kernel.solve(problem).value.double()
        expected = solved_by(exact, ("proximal",), None).value
        fault = f"is off by {float((found - expected).abs().max()):.1e}"
        good = torch.allclose(found, expected, rtol=0, atol=_CLOSE)
    except Exception as error:  # of a compiler, a driver, or a card
        good, fault = False, f"fails: {error}"
    if not good:
        warnings.warn(
            f"the kernel {kernel.name} {fault} on a small problem on {device}, and is left aside: "
            "torch serves. Another version of Triton may help.",
            FitWarning,
            stacklevel=2,
        )
    return good


def _trial(u: Tensor, y: Tensor) -> StateFit:
    """Return a small problem below one link."""
    relu, weight = joint(ReLU()), u[: u.shape[1], :5] / u.shape[1] ** 0.5
    return StateFit(relu, u, (Link(relu, weight, weight[0], y[:, :5]),), 0.7)


@cache
def has_triton() -> bool:
    """Say whether Triton is installed."""
    return find_spec("triton") is not None


def refusal(tensor: Tensor) -> str | None:
    """Return why no kernel can take a tensor, or None."""
    if tensor.dtype is not torch.float32:
        return f"it serves torch.float32 alone, not {tensor.dtype}"
    interprets = os.environ.get("TRITON_INTERPRET") == "1"  # kernels on the CPU
    if not tensor.is_cuda and not interprets:
        return f"it needs tensors on a GPU, not on {tensor.device}"
    if not has_triton():
        return "it needs Triton, which is not installed: pip install 'liftednet[gpu]'"
    return None


def programs(device: torch.device, most: int, scratch_bytes: int) -> int:
    """Return how many programs run at once; 2 under the interpreter.

    Args:
        device: where.
        most: how many on each multiprocessor.
        scratch_bytes: of each, three quarters of which all steps go through. They are to stay in
            the L2 cache.
    """
    if device.type != "cuda":
        return 2
    card = torch.cuda.get_device_properties(device)
    each = 4 * card.L2_cache_size // (3 * card.multi_processor_count * scratch_bytes)
    return card.multi_processor_count * min(most, max(1, each))


class Layer(NamedTuple):
    """The layer whose states are solved for.

    Attributes:
        units: how many.
        lam: the weight of Phi.
        alpha: the slope of phi below zero, as of a `LoopMap`.
        low: its least value.
        high: its largest value.
    """

    units: int
    lam: float
    alpha: float
    low: float
    high: float


class TileLink(NamedTuple):
    """One link.

    Attributes:
        weight: W, (units, columns), both rounded up and zero beyond its size.
        half: W over its largest entry, in float16.
        largest: that entry, ().
        offset: C, (samples, columns) where it is full, else (columns,).
        target: V, (samples, columns).
        columns: of W, not rounded up.
        lam: the weight of the link.
        map: (scale, shift, alpha, low, high) of grad R, max(v, alpha v) at v = scale u + shift, cut
            off at low and high; unless it is the softmax.
    """

    weight: Any
    half: Any
    largest: Any
    offset: Any
    target: Any
    columns: int
    lam: float
    map: tuple[float, ...]


class Goal(NamedTuple):
    """Where the steps of a launch lead.

    Attributes:
        scratch: (programs, 4, rows, padded), for the states of a tile.
        step_size: s, at least the links' smoothness, ().
        violation: the s |Y - Z| at which each sample ends, (samples,).
    """

    scratch: Any
    step_size: Any
    violation: Any


class Tile(NamedTuple):
    """The samples of a program, inside a kernel.

    Attributes:
        scratch: the states, those before them, U, and what pulls at them, (4, ROWS, PADDED).
        rows: which samples, (ROWS,) int64.
        there: whether there is such a sample, (ROWS,).
        goal: the s |Y - Z| at which each ends, (ROWS,).
    """

    scratch: Any
    rows: Any
    there: Any
    goal: Any


class Walk(NamedTuple):
    """Where the steps of a tile stand, inside a kernel.

    Attributes:
        here: where Z stands in the scratch.
        step: how many steps were made.
        worst: the largest s |Y - Z+| of the last one, over the goals.
        momentum: of each sample, (ROWS,).
        beta: how far Y is ahead of Z, (ROWS,).
        seen: Z W for each link, (ROWS, WIDTH).
        moved: (Z - the states before) W for each link.
    """

    here: Any
    step: Any
    worst: Any
    momentum: Any
    beta: Any
    seen: Any
    moved: Any


@dataclass(frozen=True)
class LinkPlan:
    """What a kernel is compiled for in a link.

    Attributes:
        classes: whether the gradient of R is the softmax.
        full: whether C has a row for each sample.
        width: columns of W, rounded up to a power of two.
    """

    classes: bool
    full: bool
    width: int


@dataclass(frozen=True)
class TilePlan:
    """What a kernel is compiled for.

    Attributes:
        links: one plan for each link.
        rows: samples of a tile.
        depth: units in one part of an exact product with W.
        columns: units in one part of the other products.
        padded: units, rounded up to a multiple of both.
        drop: by how much the violation falls until products are formed anew.
    """

    links: tuple[LinkPlan, ...]
    rows: int
    depth: int
    columns: int
    padded: int
    drop: float


@dataclass(frozen=True)
class StateBlocks:
    """The sizes of a state kernel.

    Attributes:
        rows: samples of a tile.
        depth: units in one part of an exact product with W.
        columns: units in one part of the other products.
        least: columns to which a narrower link is filled up. Above `rows`, the compiler deals out a
            tile by its columns to the warps; with `rows` and `columns` at least as large as all
            links, by its rows, of which each warp needs 16 of its own. A mixture repeats the work.
        warps: of a program.
        stages: of the pipeline that loads W and the states.
        programs: on each multiprocessor.
        drop: by how much a violation falls until products in float16 are formed anew in split TF32.
    """

    rows: int
    depth: int = 32
    columns: int = 64
    least: int = 16
    warps: int = 8
    stages: int = 3
    programs: int = 1
    drop: float = 256.0

    def padded(self, units: int) -> int:
        """Return the units, rounded up to whole parts."""
        part = max(self.columns, self.depth)
        return -(-units // part) * part

    def width(self, columns: int) -> int:
        """Return the columns of a link, rounded up to a power of two."""
        return max(self.least, 1 << (columns - 1).bit_length())

    def scratch(self, units: int) -> int:
        """Return how many entries the scratch of a program has."""
        return 4 * self.rows * self.padded(units)

    def plan(self, units: int, links: tuple[LinkPlan, ...]) -> TilePlan:
        """Return what a kernel is compiled for."""
        return TilePlan(links, self.rows, self.depth, self.columns, self.padded(units), self.drop)


_NARROW = StateBlocks(32, columns=32, warps=2, programs=4)  # for links of at most 32 columns
# By the columns of all links, rounded up: the fastest of 20 in trials on an H100. Wider links do
# not fit its registers and shared memory; some registers spill above 64 columns, and blocks that
# spill less are slower (6.6 ms for 6.1 at 300 below 100, 27 for 18 at 500 below 200).
_STATE_BLOCKS = {
    64: _NARROW,
    128: StateBlocks(16, depth=16, least=32, warps=4, programs=2),
    512: StateBlocks(16, least=32),
}


def state_blocks(columns: Sequence[int]) -> StateBlocks | None:
    """Return the sizes for links with so many columns each, None where they are too many."""
    if max(columns) > _WIDEST:
        return None
    for total, blocks in _STATE_BLOCKS.items():
        narrow = blocks is not _NARROW or max(columns) <= blocks.rows
        if narrow and sum(map(blocks.width, columns)) <= total:
            return blocks
    return None


def link_map(divergence: Divergence, units: int) -> tuple[float, ...] | None:
    """Return the numbers of grad R of a link with so many units, none of a softmax; or None."""
    activation = divergence.activation
    if isinstance(divergence, Joint):
        offset = activation.offset(units)
        even = bool((offset == offset[0]).all())
        straight = (1.0, -math.inf, math.inf)
        return (float(divergence.smoothness), float(offset[0]), *straight) if even else None
    if type(activation) is Softmax:
        return ()
    found = ramp(activation)
    return None if found is None else (1.0, 0.0, *found[1:])


def _tiled(link: Link, blocks: StateBlocks) -> tuple[TileLink, LinkPlan]:
    """Return a link as the kernel takes it, and what the kernel is compiled for."""
    units, columns = link.weight.shape
    numbers = link_map(link.divergence, columns)
    assert numbers is not None  # asked for by obstacle
    wide = link.weight.new_zeros(blocks.padded(units), blocks.width(columns))
    wide[:units, :columns] = link.weight
    largest = link.weight.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    data = link.offset.contiguous(), link.target.contiguous(), columns, float(link.lam)
    given = TileLink(wide, (wide / largest).half(), largest, *data, numbers or (0.0,) * 5)
    return given, LinkPlan(not numbers, link.offset.ndim == 2, wide.shape[1])


@dataclass(frozen=True)
class FusedStates(Solver[StateFit, Tensor, None]):
    """Solves a state fit by accelerated proximal gradient steps, all in one launch.

    The steps of `Proximal`, a tile of samples at a time; a tile ends by its own certificate, in
    float32. The activation has at most three straight pieces; links are quadratic, the softmax, or
    tight ones to such an activation.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-5.
        max_iterations: steps of a tile.
        blocks: sizes of the kernel; None takes them from a table.
    """

    tolerance: float | None = None
    max_iterations: int = 20_000
    blocks: StateBlocks | None = None
    kind = StateFit
    name: str = field(default="fused-states", init=False)

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for float32 on a GPU, and maps of straight pieces or the softmax."""
        refused = states_refusal(problem, lipschitz=False) or refusal(problem.pre_activation)
        if refused is None and state_blocks(columns := _columns(problem)) is None:
            refused = (
                f"it serves links of at most {_WIDEST} columns each and {max(_STATE_BLOCKS)} "
                f"together, not {', '.join(map(str, columns))}"
            )
        if refused:
            return refused
        if ramp(problem.divergence.activation) is None:
            return f"there is no kernel for the prox of {problem.divergence.activation!r}"
        for link in problem.links:
            if link_map(link.divergence, link.weight.shape[1]) is None:
                return f"there is no kernel for a link to {link.divergence.activation!r}"
        return None

    def suits(self, problem: StateFit) -> bool:
        """Say whether the data are many, on a GPU, on which the kernel has proven itself."""
        u = problem.pre_activation
        return u.is_cuda and u.numel() >= _FEWEST and proven(self, u.device)

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer to the tolerance."""
        value, steps = self.states(problem, start)
        return value, int(steps.max())

    def states(self, problem: StateFit, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the minimizer without judging it, and the steps of each tile, (tiles,) int32."""
        from .state_steps import state_tiles

        blocks, units = self.blocks or state_blocks(_columns(problem)), problem.units
        line = ramp(problem.divergence.activation)
        assert blocks is not None and line is not None  # asked for by refusal
        device, tiles = problem.pre_activation.device, -(-problem.samples // blocks.rows)
        scratch = blocks.scratch(units)
        count = min(tiles, programs(device, blocks.programs, 4 * scratch))
        tolerance = self.tolerance or default_tolerance(problem.pre_activation.dtype)
        if start is None:
            start = problem.divergence.activation.forward(problem.pre_activation)
        value = start.clone(memory_format=torch.contiguous_format)
        goal = _SHARE * tolerance * problem.lam * row_scales(problem, slice(None))
        links, plans = zip(*(_tiled(link, blocks) for link in problem.links), strict=True)
        steps = torch.zeros(tiles, dtype=torch.int32, device=device)
        with torch.cuda.device(device) if value.is_cuda else nullcontext():
            state_tiles[(count,)](
                problem.pre_activation.contiguous(),
                value,
                steps,
                Goal(value.new_empty(count * scratch), step_size(problem), goal),
                Layer(units, float(problem.lam), *line[1:]),
                links,
                problem.samples,
                self.max_iterations,
                PLAN=blocks.plan(units, plans),
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )
        return value, steps


def _columns(problem: StateFit) -> list[int]:
    return [link.weight.shape[1] for link in problem.links]


def step_size(problem: StateFit) -> Tensor:
    """Return s, an upper bound of the links' smoothness, on the device, ()."""
    assert problem.smoothness is not None  # the links have kernels
    return problem.pre_activation.new_tensor(max(_SLACK * problem.smoothness, _LEAST * problem.lam))
