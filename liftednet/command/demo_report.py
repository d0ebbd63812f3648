"""What the demo's curves show: a table, a picture and a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from liftednet.command.demo_starts import LIFTED, Curve

_SHOWN = (0.8, 1.0)  # of the accuracy: below it the starts that only draw begin


def table(curves: Sequence[Curve]) -> Table:
    """Return test accuracy before training, after one epoch and at the end: mean and deviation."""
    rates = list(dict.fromkeys(curve.rate for curve in curves))
    last = len(curves[0].accuracy) - 1
    seeds = len({curve.seed for curve in curves})
    epoch = statistics.median(curve.epoch_seconds for curve in curves)
    shown = Table(
        title=f"Test accuracy, mean and standard deviation of {seeds} seeds",
        title_justify="left",
        caption=f"An epoch of Adam takes {epoch:.2g} s.",
        caption_justify="left",
    )
    shown.add_column("start")
    shown.add_column("made in", justify="right")
    shown.add_column("untrained", justify="right")
    for rate in rates:
        for epoch in (1, last):
            shown.add_column(f"rate {rate:g}\n{_epochs(epoch)}", justify="right")
    for start in dict.fromkeys(curve.start for curve in curves):
        cells = [_seconds(curves, start), _cell(_at(curves, start, rates[0], 0))]
        cells += [_cell(_at(curves, start, rate, epoch)) for rate in rates for epoch in (1, last)]
        shown.add_row(start, *cells)
    return shown


def sentence(curves: Sequence[Curve]) -> str:
    """Return one sentence on the lifted start against the best of the others, whoever wins.

    Two starts are level where the mean of their paired differences is within two standard errors.
    """
    last = len(curves[0].accuracy) - 1
    parts = [
        f"at rate {rate:g} it is {_verdict(curves, rate, 1)} after {_epochs(1)} and "
        f"{_verdict(curves, rate, last)} after {_epochs(last)}"
        for rate in dict.fromkeys(curve.rate for curve in curves)
    ]
    return f"The lifted start against the best other start: {'; '.join(parts)}."


def draw_curves(curves: Sequence[Curve], path: Path, name: str) -> str:
    """Draw mean accuracy against epochs, a panel for each rate; say where, or why not."""
    try:
        from matplotlib.figure import Figure  # without pyplot: it needs no display
    except ImportError:
        return "no picture: matplotlib is not installed (pip install 'liftednet[plots]')"
    rates = list(dict.fromkeys(curve.rate for curve in curves))
    figure = Figure(figsize=(5.2 * len(rates), 4.2), layout="constrained")
    for axis, rate in zip(figure.subplots(1, len(rates), squeeze=False)[0], rates, strict=True):
        for start in dict.fromkeys(curve.start for curve in curves):
            axis.plot(_means(curves, start, rate), label=start)
        axis.set(title=f"{name}, learning rate {rate:g}", xlabel="epochs of Adam", ylim=_SHOWN)
        axis.set_ylabel(f"test accuracy above {_SHOWN[0]}, mean over seeds")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"picture: {path}"


def _verdict(curves: Sequence[Curve], rate: float, epoch: int) -> str:
    others = {curve.start for curve in curves} - {LIFTED}
    rivals = {start: _at(curves, start, rate, epoch) for start in sorted(others)}
    best = max(rivals, key=lambda start: statistics.fmean(rivals[start]))
    ours, theirs = _at(curves, LIFTED, rate, epoch), rivals[best]
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    word = "level with" if abs(mean) <= 2 * error else "ahead of" if mean > 0 else "behind"
    return f"{word} {best} ({statistics.fmean(ours):.3f} against {statistics.fmean(theirs):.3f})"


def _at(curves: Sequence[Curve], start: str, rate: float, epoch: int) -> list[float]:
    """Return the accuracy after an epoch, one number for each seed in the order of the seeds."""
    found = [curve for curve in curves if (curve.start, curve.rate) == (start, rate)]
    return [curve.accuracy[epoch] for curve in sorted(found, key=lambda curve: curve.seed)]


def _means(curves: Sequence[Curve], start: str, rate: float) -> list[float]:
    epochs = range(len(curves[0].accuracy))
    return [statistics.fmean(_at(curves, start, rate, epoch)) for epoch in epochs]


def _seconds(curves: Sequence[Curve], start: str) -> str:
    return f"{statistics.fmean(c.seconds for c in curves if c.start == start):.2f} s"


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def _epochs(epoch: int) -> str:
    return "1 epoch" if epoch == 1 else f"{epoch} epochs"
