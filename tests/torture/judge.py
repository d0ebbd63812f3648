"""An independent judge of convex problems: projected Newton steps in long double, by numpy alone.

It knows a problem as min over x in a box of

    sum_i w_i Phi(x_i) + x'Q x / 2 - p'x + sum_k lam_k sum [R_k(A_k x + c_k) - <A_k x + c_k, t_k>]

with dense matrices and forms of its own for every activation, and shares no code with the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import spence

Array = NDArray[Any]  # of np.longdouble
Form = Callable[[Array], Array]
PI = np.longdouble("3.14159265358979323846264338327950288")
_STEPS, _HALVINGS = 60, 40
_NOTHING = np.longdouble(1e-16)  # of a pivot, which rounding may have left


@dataclass(frozen=True)
class Map:
    """An activation: phi with slope and integral; its inverse Phi' with slope and integral.

    Attributes:
        lower: the least state.
        upper: the largest state.
        curvature: the largest slope of phi.
    """

    phi: Form
    slope: Form
    conjugate: Form
    pull: Form
    bend: Form
    potential: Form
    lower: float = -np.inf
    upper: float = np.inf
    curvature: float = 1.0


def _xlogx(x: Array) -> Array:
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0)


def _sigmoid(u: Array) -> Array:
    return np.where(
        u > 0, 1 / (1 + np.exp(-np.abs(u))), np.exp(-np.abs(u)) / (1 + np.exp(-np.abs(u)))
    )


def _log_one_plus(u: Array) -> Array:
    return np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))


def _dilogarithm(u: Array) -> Array:
    """Return -Li2(-exp(u)); scipy's spence(z) is Li2(1 - z)."""
    small = -spence(1 + np.exp(-np.abs(u)).astype(float)).astype(np.longdouble)
    return np.asarray(np.where(u > 0, u * u / 2 + PI * PI / 6 - small, small))


def _softplus_inverse(v: Array) -> Array:
    return v + np.log(-np.expm1(-v))


def _softplus_potential(v: Array) -> Array:
    u = _softplus_inverse(v)
    return np.where(v > 0, v * u - _dilogarithm(u), 0)


def _clipped(lower: float, upper: float) -> Map:
    def conjugate(u: Array) -> Array:
        v = np.clip(u, lower, upper)
        value: Array = u * v - v * v / 2
        return value

    return Map(
        lambda u: np.clip(u, lower, upper),
        lambda u: ((u > lower) & (u < upper)).astype(np.longdouble),
        conjugate, lambda v: v, np.ones_like, lambda v: v * v / 2, lower, upper,
    )  # fmt: skip


def _leaky(alpha: float) -> Map:
    a = np.longdouble(alpha)
    return Map(
        lambda u: np.where(u > 0, u, a * u),
        lambda u: np.where(u > 0, np.longdouble(1), a),
        lambda u: np.where(u > 0, u * u, a * u * u) / 2,
        lambda v: np.where(v > 0, v, v / a),
        lambda v: np.where(v > 0, np.longdouble(1), 1 / a),
        lambda v: np.where(v > 0, v * v, v * v / a) / 2,
    )


MAPS: dict[str, Map] = {
    "Identity": _clipped(-np.inf, np.inf),
    "ReLU": _clipped(0.0, np.inf),
    "LeakyReLU": _leaky(0.2),
    "Clipped": _clipped(-1.0, 1.0),
    "Sigmoid": Map(
        _sigmoid,
        lambda u: _sigmoid(u) * _sigmoid(-u),
        _log_one_plus,
        lambda v: np.log(v) - np.log1p(-v),
        lambda v: 1 / v + 1 / (1 - v),
        lambda v: _xlogx(v) + _xlogx(1 - v),
        0.0, 1.0, 0.25,
    ),
    "Tanh": Map(
        np.tanh,
        lambda u: 1 / np.cosh(np.clip(u, -5e3, 5e3)) ** 2,
        lambda u: np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(np.longdouble(2)),
        np.arctanh,
        lambda v: 1 / (1 - v * v),
        lambda v: (_xlogx(1 - v) + _xlogx(1 + v)) / 2,
        -1.0, 1.0,
    ),
    "Softplus": Map(
        _log_one_plus,
        _sigmoid,
        _dilogarithm,
        _softplus_inverse,
        lambda v: 1 / -np.expm1(-v),
        _softplus_potential,
        0.0,
    ),
    "ELU": Map(
        lambda u: np.where(u > 0, u, np.expm1(np.minimum(u, 0))),
        lambda u: np.exp(np.minimum(u, 0)),
        lambda u: np.where(u > 0, u * u / 2, np.expm1(np.minimum(u, 0)) - u),
        lambda v: np.where(v > 0, v, np.log1p(np.minimum(v, 0))),
        lambda v: 1 / (1 + np.minimum(v, 0)),
        lambda v: np.where(v > 0, v * v / 2, _xlogx(1 + np.minimum(v, 0)) - v),
        -1.0,
    ),
    "Arctan": Map(
        np.arctan,
        lambda u: 1 / (1 + u * u),
        lambda u: u * np.arctan(u) - np.log1p(u * u) / 2,
        np.tan,
        lambda v: 1 + np.tan(v) ** 2,
        lambda v: -np.log(np.cos(v)),
        float(-np.pi / 2), float(np.pi / 2),
    ),
    "Sine": Map(
        lambda u: np.sin(np.clip(u, -PI / 2, PI / 2)),
        lambda u: np.where(np.abs(u) < PI / 2, np.cos(u), 0),
        lambda u: 1 - np.cos(np.minimum(np.abs(u), PI / 2)) + np.maximum(np.abs(u) - PI / 2, 0),
        np.arcsin,
        lambda v: 1 / np.sqrt(1 - v * v),
        lambda v: v * np.arcsin(v) + np.sqrt(1 - v * v) - 1,
        -1.0, 1.0,
    ),
}  # fmt: skip


@dataclass
class Term:
    """lam sum [R(A x + c) - <A x + c, t>] with rows of u of `units` entries.

    Attributes:
        map: the activation above, or "Softmax", whose R couples the entries of a row.
        joint: whether R is <phi(0), u> + L |u|^2 / 2, else the conjugate.
        weights: of the entries of u.
    """

    map: str
    joint: bool
    matrix: Array
    offset: Array
    target: Array
    lam: float
    units: int = 1
    weights: Array | None = None

    def parts(self, x: Array) -> tuple[Any, Array, Array]:
        """Return value, gradient and Hessian at x."""
        u = self.matrix @ x + self.offset
        value, slope, bend = self._softmax(u) if self.map == "Softmax" else self._by_unit(u)
        back = self.lam * self.matrix.T
        return self.lam * value, back @ (slope), back @ (bend @ self.matrix)

    def _by_unit(self, u: Array) -> tuple[Any, Array, Array]:
        one = MAPS[self.map]
        weight = np.ones_like(u) if self.weights is None else self.weights
        if self.joint:
            center, curve = one.phi(np.zeros(1, np.longdouble))[0], one.curvature
            rows, slope, bend = center * u + curve * u * u / 2, center + curve * u, curve + 0 * u
        else:
            rows, slope, bend = one.conjugate(u), one.phi(u), one.slope(u)
        value = (weight * (rows - u * self.target)).sum()
        return value, weight * (slope - self.target), np.diag(weight * bend)

    def _softmax(self, u: Array) -> tuple[Any, Array, Array]:
        rows, target = u.reshape(-1, self.units), self.target.reshape(-1, self.units)
        weight = np.ones_like(u) if self.weights is None else self.weights
        weight = weight.reshape(-1, self.units)
        top = rows.max(1, keepdims=True)
        p = np.exp(rows - top)
        total = p.sum(1, keepdims=True)
        p = p / total
        value = (weight[:, 0] * (top + np.log(total))[:, 0]).sum() - (weight * rows * target).sum()
        bend = np.zeros((len(u), len(u)), np.longdouble)
        for i, row in enumerate(p):
            part = slice(i * self.units, (i + 1) * self.units)
            bend[part, part] = weight[i, 0] * (np.diag(row) - np.outer(row, row))
        return value, (weight * (p - target)).reshape(-1), bend


@dataclass
class Convex:
    """A problem as the judge knows it."""

    size: int
    terms: list[Term] = field(default_factory=list)
    potential: str | None = None
    weight: Array | None = None
    quadratic: Array | None = None
    linear: Array | None = None
    lower: Array | float = -np.inf
    upper: Array | float = np.inf

    def parts(self, x: Array) -> tuple[Any, Array, Array]:
        """Return value, gradient and Hessian at x."""
        value: Any = np.longdouble(0)
        gradient: Array = np.zeros(self.size, np.longdouble)
        hessian = np.zeros((self.size, self.size), np.longdouble)
        if self.potential is not None and self.weight is not None:
            one = MAPS[self.potential]
            value += (self.weight * one.potential(x)).sum()
            gradient += self.weight * one.pull(x)
            hessian += np.diag(self.weight * one.bend(x))
        if self.quadratic is not None:
            value += x @ self.quadratic @ x / 2
            gradient += self.quadratic @ x
            hessian += self.quadratic
        if self.linear is not None:
            value -= self.linear @ x
            gradient -= self.linear
        for term in self.terms:
            one_value, slope, bend = term.parts(x)
            value, gradient, hessian = value + one_value, gradient + slope, hessian + bend
        return value, gradient, hessian

    def improved(self, x: Array) -> tuple[Any, Any]:
        """Return the objective at x, and the least that Newton steps from x come to."""
        with np.errstate(all="ignore"):
            x = np.asarray(x, np.longdouble)
            x = np.clip(x, self.lower, self.upper)
            first, gradient, hessian = self.parts(x)
            best = first
            for _ in range(_STEPS):
                step = self._step(x, gradient, hessian)
                for halving in range(_HALVINGS):
                    trial = self._inside(x, x + step / np.longdouble(2) ** halving)
                    value, *rest = self.parts(trial)
                    if value < best:
                        break
                else:
                    return first, best
                small = best - value <= np.longdouble(1e-13) * abs(value)
                x, best, gradient, hessian = trial, value, *rest
                if small:
                    break
            return first, best

    def _inside(self, x: Array, trial: Array) -> Array:
        """Return a trial in the box; where Phi' is infinite at an end, nine tenths of the way."""
        trial = np.clip(trial, self.lower, self.upper)
        if self.potential in (None, "Identity", "ReLU", "LeakyReLU", "Clipped"):
            return trial
        at_end = (trial <= self.lower) | (trial >= self.upper)
        return np.where(at_end, x + np.longdouble(0.9) * (trial - x), trial)

    def _step(self, x: Array, gradient: Array, hessian: Array) -> Array:
        """Return a Newton step in the entries that the box does not hold."""
        held = ((x <= self.lower) & (gradient > 0)) | ((x >= self.upper) & (gradient < 0))
        free = ~held & np.isfinite(gradient) & np.isfinite(hessian.diagonal())
        step = np.zeros_like(x)
        if free.any():
            block = hessian[np.ix_(free, free)]
            step[free] = -solved(block, gradient[free])
        return step


def solved(matrix: Array, right: Array) -> Array:
    """Return a solution of a positive semidefinite system in long double, by Cholesky.

    It has 0 where the matrix says nothing: what rounding says there may be of any size.
    """
    scale = 1 / np.sqrt(np.maximum(matrix.diagonal(), np.longdouble(1e-300)))
    rest = matrix * scale[:, None] * scale
    size = len(rest)
    lower = np.zeros_like(rest)
    told = np.zeros(size, bool)
    for k in range(size):
        told[k] = rest[k, k] > _NOTHING
        if told[k]:
            lower[k:, k] = rest[k:, k] / np.sqrt(rest[k, k])
            rest[k + 1 :, k + 1 :] -= np.outer(lower[k + 1 :, k], lower[k + 1 :, k])
    y = np.where(told, right * scale, 0)
    rows = np.nonzero(told)[0].tolist()
    for k in rows:
        y[k] = (y[k] - lower[k, :k] @ y[:k]) / lower[k, k]
    for k in rows[::-1]:
        y[k] = (y[k] - lower[k + 1 :, k] @ y[k + 1 :]) / lower[k, k]
    return np.asarray(y * scale)
