"""Kernels against the torch loop on the same card, and against the measured ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.gpu.problems import simplex_fit, squared_fit, state_fit
from benchmarks.gpu.timing import Ceilings, Scale, seconds
from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.problems import OutputFit, StateFit
from liftednet.solvers import ClosedForm, Proximal, SimplexDual
from liftednet.solvers.kernels import FusedSimplex, FusedStates, StateBlocks
from liftednet.solvers.kernels.outputs import closed_form
from liftednet.solvers.kernels.table import proximal_map, state_blocks

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
    steps: float
    rate: float
    of_float32: float
    of_tf32: float
    of_copy: float
    residual: float


@dataclass(frozen=True)
class OutputSpeed:
    """An output fit beside torch and a copy of the same bytes.

    Attributes:
        problem: its sizes.
        milliseconds: of the launch.
        copy: milliseconds of a device copy of as many bytes.
        of_copy: copy over milliseconds.
        torch: milliseconds of the torch solver, with the judging.
    """

    problem: str
    milliseconds: float
    copy: float
    of_copy: float
    torch: float


def state_problems(scale: Scale) -> Iterator[tuple[str, StateFit]]:
    """Yield state fits of the networks that the sweeps train."""
    relu, device, m = activations.ReLU(), scale.device, scale.size(60_000, 40)
    linear, softmax = joint(activations.Identity()), tight(activations.Softmax())
    shapes = [(300, 100, linear), (300, 10, softmax), (500, 200, tight(relu)), (200, 100, linear)]
    for p, q, above in [(12, 5, linear), (12, 3, softmax)] if scale.toy else shapes:
        name = f"{m:,} x {p} below {q}, ReLU, {above.activation!r}"
        yield name, state_fit(m, p, q, relu, above, device)
    if not scale.toy:
        sigmoid = activations.Sigmoid()
        name = f"{m:,} x 300 below 100, Sigmoid, tight"
        yield name, state_fit(m, 300, 100, sigmoid, tight(sigmoid), device)


def _tabled(scale: Scale, columns: Sequence[int]) -> Iterator[StateBlocks]:
    """Yield the sizes of the table."""
    yield _SMALL if scale.toy else state_blocks(columns)


def _others(scale: Scale, columns: Sequence[int]) -> Iterator[StateBlocks]:
    """Yield other sizes, and other precisions."""
    if scale.toy:
        return
    first = state_blocks(columns)
    for rows, warps, programs in ((16, 4, 4), (32, 4, 2), (32, 8, 1), (64, 4, 1), (64, 8, 1)):
        if (rows, warps) != (first.rows, first.warps):
            yield replace(first, rows=rows, warps=warps, programs=programs)
    for drop in (8.0, 512.0):
        yield replace(first, drop=drop)


def state_speeds(scale: Scale, top: Ceilings) -> Iterator[StateSpeed]:
    """Yield every problem with the block sizes of the table."""
    return _speeds(scale, top, _tabled)


def block_speeds(scale: Scale, top: Ceilings) -> Iterator[StateSpeed]:
    """Yield every problem with other block sizes, to mend the table by."""
    return _speeds(scale, top, _others)


def _speeds(
    scale: Scale, top: Ceilings, candidates: Callable[[Scale, Sequence[int]], Iterator[StateBlocks]]
) -> Iterator[StateSpeed]:
    for name, problem in state_problems(scale):
        torch_time = seconds(partial(Proximal().solve, problem), scale.device, 1.0)
        columns = [link.weight.shape[1] for link in problem.links]
        for blocks in candidates(scale, columns):
            try:
                yield _state_speed(scale, top, name, problem, blocks, torch_time)
            except RuntimeError as error:  # sizes that do not fit the card's shared memory
                print(f"  {name}, {_shown(blocks)}: {str(error).splitlines()[0]}")


def _state_speed(
    scale: Scale,
    top: Ceilings,
    name: str,
    problem: StateFit,
    blocks: StateBlocks,
    torch_time: float,
) -> StateSpeed:
    solver = FusedStates(blocks=blocks)
    value, steps = solver.states(problem)
    launched = seconds(partial(solver.states, problem), scale.device, 1.0)
    solved = seconds(partial(solver.solve, problem), scale.device, 0.5)
    columns = sum(link.weight.shape[1] for link in problem.links)
    mean = float(steps.double().mean())
    rate = 4 * problem.samples * problem.units * columns * mean / launched
    least = 4 * problem.samples * (3 * problem.units + columns)
    return StateSpeed(
        name,
        _shown(blocks),
        1e3 * launched,
        1e3 * solved,
        1e3 * torch_time,
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
        f"{blocks.programs} programs, drop {blocks.drop:.0f}"
    )


def output_speeds(scale: Scale, top: Ceilings) -> Iterator[OutputSpeed]:
    """Yield the simplex cross-entropy for several classes, and two closed forms."""
    shapes = [(10, 8)] if scale.toy else [(10, 10_000_000), (100, 1_000_000), (1000, 100_000)]
    for classes, samples in shapes:
        for soft in (False, True):
            fit = simplex_fit(samples, classes, soft, scale.device)
            name = f"{samples:,} x {classes}, {'soft' if soft else 'one-hot'}"
            launched = seconds(partial(FusedSimplex().states, fit), scale.device, 0.5)
            torch_time = seconds(partial(SimplexDual().solve, fit), scale.device, 0.5)
            yield _output_speed(name, fit, launched, torch_time, top)
    for activation in (activations.ReLU(), activations.Sigmoid()):
        samples = scale.size(1_000_000, 8)
        fit = squared_fit(samples, 100, activation, scale.device)
        device_map = proximal_map(activation)
        assert device_map is not None
        work = partial(closed_form, fit.target, fit.pre_activation, fit.lam, device_map)
        launched = seconds(work, scale.device, 0.5)
        torch_time = seconds(partial(ClosedForm().solve, fit), scale.device, 0.5)
        name = f"{samples:,} x 100, prox of {activation!r}"
        yield _output_speed(name, fit, launched, torch_time, top)


def _output_speed(
    name: str, fit: OutputFit, launched: float, torch_time: float, top: Ceilings
) -> OutputSpeed:
    copied = 3 * 4 * fit.target.numel() / top.copy
    return OutputSpeed(name, 1e3 * launched, 1e3 * copied, copied / launched, 1e3 * torch_time)
