"""What was aimed at on one H200, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.gpu.race import Finish
from benchmarks.gpu.speed import OutputSpeed, StateSpeed
from benchmarks.gpu.sweeps import SweepSpeed


@dataclass(frozen=True)
class Aim:
    """One aim.

    Attributes:
        aim: in words.
        wanted: the number.
        found: what was measured.
        met: whether it is reached.
    """

    aim: str
    wanted: float
    found: float
    met: bool


def aims(
    outputs: Sequence[OutputSpeed],
    states: Sequence[StateSpeed],
    sweeps: Sequence[SweepSpeed],
    finishes: Sequence[Finish],
) -> Iterator[Aim]:
    """Yield the aims of which something was measured."""
    rows: Sequence[OutputSpeed | StateSpeed] = [*outputs, *states]
    for measured in rows:
        name, times = f"{measured.problem}: times torch compiled or in a graph", measured.times_best
        yield Aim(name, 1.3, times, times >= 1.3)
    for row in states:
        if " x 300 " in row.problem and "ReLU" in row.problem:
            times, share = row.torch / row.solved, max(row.of_float32, row.of_tf32)
            yield Aim(f"states {row.problem}: times the torch loop", 5.0, times, times >= 5)
            yield Aim(f"states {row.problem}: of the matrix rate", 0.4, share, share >= 0.4)
    for output in outputs:
        name = f"outputs {output.problem}: of copy bandwidth"
        yield Aim(name, 0.8, output.of_copy, output.of_copy >= 0.8)
    for sweep in sweeps:
        if sweep.network.startswith("784-300-10"):
            name = f"sweep {sweep.network}: milliseconds"
            yield Aim(name, 5.0, sweep.milliseconds, sweep.milliseconds < 5)
    epochs = {"lifted": math.inf, "Adam": math.inf}
    for run in finishes:
        if run.reached:
            kind = run.method.split()[0]
            epochs[kind] = min(epochs[kind], run.epoch)
    if max(epochs.values()) < math.inf:
        share = epochs["lifted"] / epochs["Adam"]
        yield Aim(
            "an epoch at equal accuracy: of Adam's in a CUDA graph", 1 / 3, share, 3 * share <= 1
        )
