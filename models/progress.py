"""A progress bar over the sweeps of a descent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .descent import Step

Report = Callable[[Step], None]


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
