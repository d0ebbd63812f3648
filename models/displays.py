"""Pictures of estimators by the convention of scikit-learn: from_estimator, plot, and the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from liftednet.errors import DataError
from liftednet.lazy import pyplot

from .certificate import certify
from .estimators.input import refusals

if TYPE_CHECKING:
    from .optimality import PathStep

__all__ = [
    "CoverageDisplay",
    "FitDisplay",
    "PartialDependenceDisplay",
    "PathDisplay",
    "RelevanceDisplay",
]

Array = NDArray[Any]
_GRID = 200  # points of a curve
_SIDE = 60  # points of each side of a map
_BEYOND = 0.1  # of the range of an input that a curve goes on at both ends
_CELLS = 24  # of an input's range, in each of which answers have a proven range
_BARS = 30  # inputs that are shown, at most


@dataclass(eq=False)
class _Display:
    """What pictures share: the axes they are drawn on."""

    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    def _on(self, ax: Any) -> Any:
        self.ax_ = pyplot.subplots()[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        return self.ax_


@dataclass(eq=False)
class FitDisplay(_Display):
    """A regression of one or two inputs: data, mean, and an interval, or a map of both.

    Attributes:
        inputs: of the curve, (points,), or of the map's two sides.
        mean: (points,), or (points, points).
        low: lower end of the interval, as the mean; high: the upper one.
        X: the data, (samples, inputs); y: (samples,).
        level: of the interval.
        names: of the inputs.

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor
        >>> from liftednet.models.displays import FitDisplay
        >>> X = np.linspace(-1, 1, 40)[:, None]
        >>> model = LiftedRegressor(random_state=0).fit(X, X[:, 0] + 0.1 * np.cos(40 * X[:, 0]))
        >>> found = FitDisplay.from_estimator(model, X, X[:, 0])
        >>> found.mean.shape, found.ax_.get_xlabel()
        ((200,), 'x1')
    """

    inputs: tuple[Array, ...]
    mean: Array
    low: Array
    high: Array
    X: Array
    y: Array
    level: float
    names: tuple[str, ...]

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, level: float = 0.9, ax: Any = None
    ) -> Self:
        """Draw a fitted `LiftedRegressor` over data.

        Args:
            estimator: with one output.
            X: (samples, 1) or (samples, 2), numbers.
            y: (samples,).
            level: of the interval.
            ax: axes of matplotlib; None for new ones.

        Raises:
            DataError: X has more than two inputs, there is more than one output, or no interval.
            NotFittedError: as in `posterior`.
        """
        _require_intervals(estimator)
        with refusals(X=X, y=y):
            rows, answers = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
        if rows.ndim != 2 or rows.shape[1] not in (1, 2):
            raise DataError(
                f"a fit is drawn over one or two inputs, and X has shape {rows.shape}: "
                "RelevanceDisplay shows which of many matter."
            )
        if answers.size != len(rows):
            raise DataError(
                f"a fit of one output is drawn over its data: X has shape {rows.shape}, and y "
                f"{answers.shape}."
            )
        points = _GRID if rows.shape[1] == 1 else _SIDE
        reach = _BEYOND * np.ptp(rows, axis=0)
        ends = zip(rows.min(0) - reach, rows.max(0) + reach, strict=True)
        sides = tuple(np.linspace(*both, points) for both in ends)
        grid = np.stack(np.meshgrid(*sides, indexing="ij"), -1)
        names = getattr(estimator, "feature_names_in_", [f"x{n + 1}" for n in range(len(sides))])
        flat = _like(X, grid.reshape(-1, len(sides)))
        curves = estimator.predict(flat), *estimator.predict_interval(flat, level)
        if curves[0].size != len(flat):
            raise DataError(f"a fit of one output is drawn, and this has {curves[0].shape[1]}.")
        mean, low, high = (part.reshape(grid.shape[:-1]) for part in curves)
        named = tuple(map(str, names))
        return cls(sides, mean, low, high, rows, answers.ravel(), level, named).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw it, on axes or on new ones."""
        axes = self._on(ax)
        axes.set_xlabel(self.names[0])
        if len(self.inputs) == 1:
            band = f"{self.level:.0%} of answers"
            axes.fill_between(self.inputs[0], self.low, self.high, alpha=0.25, label=band)
            axes.plot(self.inputs[0], self.mean, label="mean")
            axes.scatter(self.X[:, 0], self.y, s=8, color="black", label="data")
            axes.set_ylabel("y")
            axes.legend()
            return self
        field_ = axes.contourf(*self.inputs, self.mean.T, levels=20)
        axes.figure.colorbar(field_, ax=axes, label="mean")
        wide = axes.contour(*self.inputs, (self.high - self.low).T, colors="white", levels=5)
        axes.clabel(wide)  # widths of the interval
        axes.scatter(*self.X.T, s=8, color="black")
        axes.set_ylabel(self.names[1])
        return self


@dataclass(eq=False)
class CoverageDisplay(_Display):
    """How many answers lie in intervals of every level: on the diagonal where error bars hold.

    Attributes:
        levels: (levels,).
        shares: of answers inside, (levels,).
        samples: how many there were.

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor
        >>> from liftednet.models.displays import CoverageDisplay
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> y = X[:, 0] + np.random.default_rng(0).normal(size=60)
        >>> model = LiftedRegressor(random_state=0).fit(X[::2], y[::2])
        >>> found = CoverageDisplay.from_estimator(model, X[1::2], y[1::2])
        >>> bool(abs(found.shares - found.levels).max() < 0.3)
        True
    """

    levels: Array
    shares: Array
    samples: int

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, ax: Any = None) -> Self:
        """Draw a fitted `LiftedRegressor` on rows that it has not seen.

        Args:
            estimator: with error bars.
            X: (samples, features).
            y: (samples,).
            ax: axes of matplotlib; None for new ones.

        Raises:
            NotFittedError: as in `posterior`.
            DataError: it has no intervals.
        """
        _require_intervals(estimator)
        levels = np.linspace(0.05, 0.95, 19)
        ends = np.array([estimator.predict_interval(X, float(level)) for level in levels])
        low, high = ends[:, 0], ends[:, 1]
        with refusals(y=y):
            answers = np.asarray(y, dtype=float)
        if answers.shape not in (low[0].shape, (*low[0].shape, 1)):
            raise DataError(f"y has shape {answers.shape}, and intervals have {low[0].shape}.")
        answers = answers.reshape(low[0].shape)
        inside = (low <= answers) & (answers <= high)  # counts are ends of theirs
        return cls(levels, inside.reshape(len(levels), -1).mean(1), len(answers)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw it, on axes or on new ones."""
        axes = self._on(ax)
        spread = 1.64 * np.sqrt(self.levels * (1 - self.levels) / self.samples)
        axes.fill_between(self.levels, self.levels - spread, self.levels + spread, alpha=0.2)
        axes.plot([0, 1], [0, 1], color="gray", linewidth=1)
        axes.plot(self.levels, self.shares, marker="o", markersize=3)
        axes.set_xlabel("level of the interval")
        axes.set_ylabel("share of answers inside")
        return self


@dataclass(eq=False)
class RelevanceDisplay(_Display):
    """How far answers move with each input, in units of y, the largest first.

    Attributes:
        names: of the inputs.
        relevance: of each, (inputs,).

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor
        >>> from liftednet.models.displays import RelevanceDisplay
        >>> X = np.random.default_rng(0).normal(size=(60, 3))
        >>> model = LiftedRegressor(random_state=0).fit(X, 2 * X[:, 1] + np.cos(30 * X[:, 0]))
        >>> RelevanceDisplay.from_estimator(model).names[0]
        'x2'
    """

    names: tuple[str, ...]
    relevance: Array

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None) -> Self:
        """Draw `relevance_` of a fitted estimator.

        Args:
            estimator: `LiftedRegressor` or `LiftedClassifier`.
            ax: axes of matplotlib; None for new ones.

        Raises:
            NotFittedError: it has not been fitted, or holds no data.
        """
        found = np.asarray(estimator.relevance_)
        total = found if found.ndim == 1 else np.sqrt((found**2).mean(1))
        given = getattr(estimator, "feature_names_in_", [f"x{n + 1}" for n in range(len(total))])
        order = np.argsort(-total, kind="stable")
        return cls(tuple(str(given[n]) for n in order), total[order]).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw it, on axes or on new ones."""
        axes, shown = self._on(ax), slice(None, _BARS)
        axes.barh(range(len(self.names[shown])), self.relevance[shown])
        axes.set_yticks(range(len(self.names[shown])), self.names[shown])
        axes.invert_yaxis()
        axes.set_xlabel("how far answers move, in units of y")
        return self


@dataclass(eq=False)
class PartialDependenceDisplay(_Display):
    """The mean answer as one input varies, with the range that is proven for every answer.

    The mean is that of Friedman, Greedy function approximation: a gradient boosting machine, 2001,
    section 8.2: over all rows, with the input put in the place of theirs. Between two points of the
    curve no answer lies outside the range, whatever values the other inputs have between their
    least and largest ones (see `certify`).

    Attributes:
        inputs: values of the input, (points,).
        mean: of the answers, or of the probabilities of a class, (points,).
        low: lower ends of the proven range between two points, (points - 1,); high: upper ones.
        name: of the input; answer: what varies with it.

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor
        >>> from liftednet.models.displays import PartialDependenceDisplay
        >>> X = np.random.default_rng(0).integers(4, size=(60, 2)) / 2
        >>> y = X[:, 0] ** 2 + X[:, 1]
        >>> model = LiftedRegressor((5,), monotonic_cst=[1, 1], random_state=0).fit(X, y)
        >>> found = PartialDependenceDisplay.from_estimator(model, X, 0)
        >>> bool((np.diff(found.mean) >= 0).all()), bool((found.low <= found.mean[1:]).all())
        (True, True)
    """

    inputs: Array
    mean: Array
    low: Array
    high: Array
    name: str
    answer: str

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, feature: int | str, *, target: Any = None, ax: Any = None
    ) -> Self:
        """Draw how a fitted estimator's answers depend on one input.

        Args:
            estimator: `LiftedRegressor` or `LiftedClassifier`.
            X: (samples, inputs), numbers; the range of each input is that of its column.
            feature: the input, by number or name.
            target: the class whose probability is meant, or the number of an output; None for the
                only output, or the second of two classes.
            ax: axes of matplotlib; None for new ones.

        Raises:
            DataError: X is no table of finite numbers, there is no such input or target, or the
                estimator has not been fitted.
        """
        from sklearn.inspection import partial_dependence  # as no other picture needs

        names = [str(x) for x in getattr(estimator, "feature_names_in_", ())]
        if (kinds := getattr(estimator, "_kinds", None)) is not None:
            raise DataError(f"columns {', '.join(map(repr, kinds.seen))} name kinds: draw numbers.")
        with refusals():
            rows = np.asarray(X, dtype=float)
            found = partial_dependence(
                estimator, X, [feature], grid_resolution=_CELLS + 1, percentiles=(0.0, 1.0),
                method="brute",
            )  # fmt: skip
        mean, points = found["average"], found["grid_values"][0]
        if np.isnan(points).any():
            raise DataError(f"some rows lack the input {feature!r}: give those that have it.")
        known = list(getattr(estimator, "classes_", range(len(mean))))
        target = known[-1] if target is None and len(mean) == 1 else target
        if target not in known:
            raise DataError(f"target must be one of {', '.join(map(str, known))}, got {target!r}.")
        output, low, high = known.index(target), np.nanmin(rows, 0), np.nanmax(rows, 0)
        number, ends = names.index(feature) if feature in names else int(feature), []
        for cell in pairwise(points):
            low[number], high[number] = cell
            facts = certify(estimator, box=(low, high))
            both = facts.least.numpy(), facts.most.numpy()
            if len(mean) < len(known):  # scikit-learn has the second of two classes alone
                both = tuple(np.r_[1 - other[-1], one[-1]] for one, other in (both, both[::-1]))
            ends.append([end[output] for end in both])
        answer = "probability of" if hasattr(estimator, "classes_") else "output"
        name = names[number] if names else f"x{number + 1}"
        if len(mean) < len(known):  # scikit-learn has the second of two classes alone
            mean = np.concatenate([1 - mean, mean])
        low, high = np.array(ends).reshape(-1, 2).T
        return cls(points, mean[output], low, high, name, f"{answer} {target}").plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw it, on axes or on new ones."""
        axes, edges = self._on(ax), np.repeat(self.inputs, 2)[1:-1]
        low, high = np.repeat(self.low, 2), np.repeat(self.high, 2)
        axes.fill_between(edges, low, high, alpha=0.25, label="no answer lies outside")
        axes.plot(self.inputs, self.mean, label="mean")
        axes.set_xlabel(self.name)
        axes.set_ylabel(self.answer)
        axes.legend()
        return self


@dataclass(eq=False)
class PathDisplay(_Display):
    """The optima of one hidden layer at many rho: width, evidence and leave-one-out errors.

    Attributes:
        rho: (steps,).
        width: units, (steps,).
        evidence: log p(y), (steps,), NaN where there is none.
        error: roots of mean squares of rows left out, (steps,), NaN where there is none.

    Example:
        >>> import numpy as np
        >>> from liftednet.activations import ReLU
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP, global_path
        >>> from liftednet.models.displays import PathDisplay
        >>> X = np.linspace(-1, 1, 30)[:, None]
        >>> y = np.abs(X) + 0.1 * np.cos(40 * X)
        >>> model = LiftedMLP((1, 30, 1), ReLU(), SquaredError(), rho=0.1, method="global")
        >>> path = global_path(model.fit(X, y), smallest=0.1, number=5)
        >>> PathDisplay.from_path(path).width.shape
        (5,)
    """

    rho: Array
    width: Array
    evidence: Array
    error: Array

    @classmethod
    def from_path(cls, path: Sequence[PathStep], *, ax: Any = None) -> Self:
        """Draw what `global_path` returns.

        Args:
            path: its steps.
            ax: axes of matplotlib; None for new ones.
        """
        rows = [(s.rho, s.width, s.evidence, s.error) for s in path]
        rho, width, evidence, squares = np.array(rows, dtype=float).T
        return cls(rho, width, evidence, np.sqrt(squares)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw it, on axes or on new ones: each curve has a scale of its own."""
        axes = self._on(ax)
        axes.set_xscale("log")
        axes.set_xlabel("rho")
        axes.set_ylabel("units")
        lines = axes.step(self.rho, self.width, where="mid", color="tab:gray", label="units")
        told = {"log evidence": self.evidence, "leave-one-out error": self.error}
        for number, (label, values) in enumerate(told.items()):
            if np.isfinite(values).any():
                other, color = axes.twinx(), f"C{number}"
                other.set_yticks([])
                label = f"{label}, {np.nanmin(values):.3g} to {np.nanmax(values):.3g}"
                lines += other.plot(self.rho, values, color=color, label=label)
                best = np.nanargmax(values) if number == 0 else np.nanargmin(values)
                other.axvline(self.rho[best], color=color, linestyle=":")
        axes.legend(handles=lines)
        return self


def _require_intervals(estimator: Any) -> None:
    if not hasattr(estimator, "predict_interval"):
        kind = type(estimator).__name__
        raise DataError(f"intervals are those of a LiftedRegressor; got {kind}.")


def _like(X: Any, rows: Array) -> Any:
    """Return rows as a frame where X is one."""
    return type(X)(rows, columns=X.columns) if hasattr(X, "columns") else rows
