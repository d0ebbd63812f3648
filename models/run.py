"""One runner for every method: its history, its progress bar, and what an interrupt leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch


@dataclass(frozen=True)
class Step:
    """What one step of a method did: a block update, an epoch, a step of all weights.

    Attributes:
        sweep: number of the sweep, epoch or step, from 0.
        block: what was moved.
        objective: the joint objective after it; for an epoch the mean loss of a sample, met by
            its batches, each before its step.
        decrease: by how much it lowered that.
        residual: relative KKT residual of the block before it; NaN for an epoch.
        iterations: iterations of the solver.
        solver: name of the solver.
        seconds: since training began.
        validation: mean objective of a held-out sample after it, or None.
        whole: whether its sweep or epoch is finished with it.
    """

    sweep: int
    block: str
    objective: float
    decrease: float
    residual: float
    iterations: int
    solver: str
    seconds: float
    validation: float | None = None
    whole: bool = True


class Ending(Enum):
    """Why a training ended."""

    CONVERGED = "every block's KKT residual was within the tolerance over a whole sweep"
    BUDGET = "the number of sweeps, epochs or steps was used up"
    STOPPED = "the held-out objective no longer improved; the best weights are kept"
    STALLED = "no step lowers the objective any further, as far as rounding tells"
    INTERRUPTED = "it was interrupted; the state after the last finished step is kept"


@dataclass
class Trace:
    """The history of a training.

    Attributes:
        start: the joint objective before the first step; NaN for minibatches.
        steps: one entry for every step.
        ending: why it ended.
        most: the sweeps, epochs or steps that it was given.
    """

    start: float
    steps: list[Step] = field(default_factory=list)
    ending: Ending = Ending.BUDGET
    most: int = 0

    @property
    def objectives(self) -> list[float]:
        """The joint objective at the start and after every step."""
        return [self.start, *(step.objective for step in self.steps)]

    @property
    def losses(self) -> list[float]:
        """The objective after every step, as minibatches report it."""
        return [step.objective for step in self.steps]

    @property
    def rounds(self) -> int:
        """How many sweeps, epochs or steps have been finished."""
        return max((step.sweep + 1 for step in self.steps if step.whole), default=0)

    def residual(self, sweep: int) -> float:
        """Return the largest residual that a sweep met, 0 where it had no blocks."""
        return max((step.residual for step in self.steps if step.sweep == sweep), default=0.0)


Steps = Generator[Step, None, Ending]
Report = Callable[[Step], None]


def run(trace: Trace, steps: Steps, rounds: int, progress: bool, on_step: Report | None) -> Trace:
    """Take the steps of a method, and return their history.

    An interrupt ends it early; the method has seen to it that what is done is kept.

    Args:
        trace: the history so far, added to.
        steps: of the method.
        rounds: the most sweeps, epochs or steps.
        progress: whether to show a bar.
        on_step: told after every step.
    """
    trace.most = rounds
    with _reporting(rounds, progress, on_step) as report, torch.no_grad():
        try:
            while True:
                step = next(steps)
                trace.steps.append(step)
                report(step)
        except StopIteration as stop:
            trace.ending = stop.value
        except KeyboardInterrupt:
            steps.close()
            trace.ending = Ending.INTERRUPTED
    return trace


@contextmanager
def _reporting(rounds: int, shown: bool, on_step: Report | None) -> Iterator[Report]:
    """Yield what is told of every step: the caller's function, and a bar where it is shown."""
    tell = on_step or _say_nothing
    if not shown:
        yield tell
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("objective {task.fields[objective]:.6g}  {task.fields[block]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=rounds, objective=float("nan"), block="")

        def report(step: Step) -> None:
            done = step.sweep + step.whole
            bar.update(task, completed=done, objective=step.objective, block=step.block)
            tell(step)

        yield report


def _say_nothing(step: Step) -> None:
    return
