"""Kernels against torch on the same card, as it is, compiled, in CUDA graphs, and the ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.opponents import StateLoop, best_of, timed
from benchmarks.gpu.problems import state_fit
from benchmarks.gpu.timing import Ceilings, Scale, seconds
from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.problems import StateFit
from liftednet.solvers import Proximal
from liftednet.solvers.kernels.states import FusedStates, StateBlocks, state_blocks

_SMALL = StateBlocks(16, depth=16, columns=16)


@dataclass(frozen=True)
class StateSpeed:
    """A fused state fit beside the torch loop.

    Attributes:
        problem: its sizes.
        blocks: of the kernel.
        milliseconds: of the launch.
        solved: milliseconds with the judging, as a user has it.
        torch: milliseconds of the torch loop, with the judging.
        graph: milliseconds of as many torch steps as the tolerance takes, in a CUDA graph.
        compiled: the same with the steps fused by torch.compile.
        times_best: the least of these two over the launch.
        steps: mean steps of a tile.
        rate: useful operations a second, 4 units columns for a sample and step.
        of_float32: the rate over that of a float32 matrix product.
        of_tf32: the rate over that of a TF32 matrix product.
        of_copy: the least bytes (U, V, start and states once) over the time and copy bandwidth.
        residual: relative KKT residual.
    """

    problem: str
    blocks: str
    milliseconds: float
    solved: float
    torch: float
    graph: float
    compiled: float
    times_best: float
    steps: float
    rate: float
    of_float32: float
    of_tf32: float
    of_copy: float
    residual: float


class _Race:
    """A state fit that is made when it is needed, and the time of the torch loop on it."""

    def __init__(
        self,
        scale: Scale,
        units: int,
        columns: int,
        layer: Activation,
        above: Divergence,
        condition: float | None = None,
    ) -> None:
        self.scale, self.columns, self.condition = scale, [columns], condition
        self.sizes = scale.size(60_000, 40), units, columns
        self.layer, self.above = layer, above
        self.name = f"{self.sizes[0]:,} x {units} below {columns}, {layer!r}, "
        self.name += "tight" if layer == above.activation else repr(above.activation)
        self.name += "" if condition is None else f", condition {condition:g}"

    @cached_property
    def problem(self) -> StateFit:
        device = self.scale.device
        return state_fit(*self.sizes, self.layer, self.above, device, self.condition)

    @cached_property
    def torch_time(self) -> float:
        return seconds(partial(Proximal().solve, self.problem), self.scale.device, 0.2)

    @cached_property
    def loops(self) -> tuple[float, float]:
        """Seconds of the same steps in a CUDA graph, and fused by torch.compile in one."""
        loop = StateLoop(self.scale, self.problem)
        return (
            timed("in a CUDA graph", partial(loop.seconds, fused=False)),
            timed("compiled", partial(loop.seconds, fused=True)),
        )


def _races(scale: Scale) -> Iterator[_Race]:
    """Yield state fits of the networks that the sweeps train."""
    relu = activations.ReLU()
    linear, softmax = joint(activations.Identity()), tight(activations.Softmax())
    shapes: list[tuple[int, int, Divergence]] = [
        (300, 100, linear),
        (300, 10, softmax),
        (500, 200, tight(relu)),
        (200, 100, linear),
    ]
    for units, columns, above in [(12, 5, linear), (12, 3, softmax)] if scale.toy else shapes:
        yield _Race(scale, units, columns, relu, above)
    if scale.toy:
        return
    for units, columns in ((10, 5), (30, 10), (60, 20), (100, 30)):
        yield _Race(scale, units, columns, relu, linear, 235.0)


def state_speeds(scale: Scale, top: Ceilings) -> Iterator[Job]:
    """Yield every problem with the block sizes of the table."""
    for race in _races(scale):
        blocks = _SMALL if scale.toy else state_blocks(race.columns)
        assert blocks is not None  # columns that are served
        yield Job(f"{race.name}, {_shown(blocks)}", partial(_state_speed, top, race, blocks))


def _state_speed(top: Ceilings, race: _Race, blocks: StateBlocks) -> StateSpeed:
    solver, problem, device = FusedStates(blocks=blocks), race.problem, race.scale.device
    value, steps = solver.states(problem)
    launched = seconds(partial(solver.states, problem), device, 0.2)
    solved = seconds(partial(solver.solve, problem), device, 0.2)
    graph, fused = race.loops
    columns = sum(link.weight.shape[1] for link in problem.links)
    mean = float(steps.double().mean())
    rate = 4 * problem.samples * problem.units * columns * mean / launched
    least = 4 * problem.samples * (3 * problem.units + columns)
    return StateSpeed(
        race.name,
        _shown(blocks),
        1e3 * launched,
        1e3 * solved,
        1e3 * race.torch_time,
        1e3 * graph,
        1e3 * fused,
        best_of(graph, fused) / launched,
        mean,
        rate,
        rate / top.float32,
        rate / top.tf32,
        least / launched / top.copy,
        float(problem.measure(value).residual),
    )


def _shown(blocks: StateBlocks) -> str:
    return (
        f"{blocks.rows} rows, {blocks.columns} columns, {blocks.warps} warps, "
        f"{blocks.stages} stages, {blocks.programs} programs, drop {blocks.drop:.0f}"
    )
