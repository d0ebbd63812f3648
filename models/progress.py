"""Progress bars over the sweeps of a descent, and over epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .descent import Step
from .epochs import Epoch

Report = Callable[[Step], None]
EpochReport = Callable[[Epoch], None]


@contextmanager
def sweep_progress(sweeps: int, shown: bool, on_step: Report | None) -> Iterator[Report | None]:
    """Yield what a descent reports to: the caller's function, and a bar where it is shown."""
    if not shown:
        yield on_step
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("sweep {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("objective {task.fields[objective]:.6g}  {task.fields[block]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("descent", total=sweeps, objective=float("nan"), block="")

        def report(step: Step) -> None:
            bar.update(task, completed=step.sweep, objective=step.objective, block=step.block)
            if on_step is not None:
                on_step(step)

        yield report
        bar.update(task, completed=sweeps)


@contextmanager
def epoch_progress(
    epochs: int, shown: bool, on_epoch: EpochReport | None
) -> Iterator[EpochReport | None]:
    """Yield what a training on minibatches reports to, and show a bar where it is asked for."""
    if not shown:
        yield on_epoch
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("epoch {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4g}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("epochs", total=epochs, loss=float("nan"))

        def report(epoch: Epoch) -> None:
            bar.update(task, completed=epoch.number, loss=epoch.loss)
            if on_epoch is not None:
                on_epoch(epoch)

        yield report
