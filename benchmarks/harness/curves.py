"""Curves as PNG pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """One line of a picture.

    Attributes:
        label: in the legend.
        x: positions.
        y: values at the positions.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above the axes.
        x_label: with units.
        y_label: with units.
        curves: lines.
        log_y: whether the vertical axis is logarithmic.
        y_limits: what is shown of the vertical axis; None shows everything.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_y: bool = False
    y_limits: tuple[float, float] | None = None


def draw(path: Path, panels: Sequence[Panel]) -> Path:
    """Draw panels side by side and write them as PNG.

    Args:
        path: of the picture; its folder is made where it is missing.
        panels: at least one.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure_of(panels).savefig(path, dpi=120)
    return path


def figure_of(panels: Sequence[Panel]) -> Figure:
    """Return the picture as a matplotlib figure.

    Args:
        panels: at least one.
    """
    # Figure without pyplot: needs no display and leaves no global state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        # Before the curves: a linear axis would reach below zero, where a log axis has no end.
        axis.set_yscale("log" if panel.log_y else "linear")
        for curve in panel.curves:
            axis.plot(curve.x, curve.y, label=curve.label)
        if panel.y_limits is not None:
            axis.set_ylim(*panel.y_limits)
        axis.grid(alpha=0.3)
        if any(curve.label for curve in panel.curves):
            axis.legend(fontsize="small")
    return figure
