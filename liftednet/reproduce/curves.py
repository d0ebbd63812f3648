"""Curves as PNG pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
    # Figure without pyplot: needs no display and leaves no global state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for curve in panel.curves:
            axis.plot(curve.x, curve.y, label=curve.label)
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        axis.locator_params(axis="x", steps=(1, 2, 5, 10))
        axis.set_ylim(panel.y_limits)
        if panel.log_y:
            axis.set_yscale("log")
        if any(curve.label for curve in panel.curves):
            axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
