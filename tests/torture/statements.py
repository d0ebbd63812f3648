"""Fits stated in CVXPY from their formulas, with nothing of what the library states itself."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
from torch import Tensor

from liftednet import penalties
from liftednet.divergences import Divergence, Joint
from liftednet.losses import SquaredError
from liftednet.problems import BlockFit, Link, OutputFit, StateFit, StatesOverTime, WeightFit

Expression = Any
Stated = tuple[Expression, list[Any]]

_NOTHING = 1e-9  # of the terms of an objective
_TOLERANCES = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
_OPTIONS: list[dict[str, float]] = [
    dict.fromkeys(_TOLERANCES, 1e-11),
    {**dict.fromkeys(_TOLERANCES, 1e-10), "max_step_fraction": 0.9},
]


def least(problem: Any) -> tuple[float, float] | None:
    """Return the least objective by CLARABEL, and what it may be off where that is near 0.

    None where the formula is no cone's, or CLARABEL is not sure of it.
    """
    for kind, state in _KINDS.items():
        if isinstance(problem, kind):
            stated = state(problem)
            if stated is None:
                return None
            (objective, constraints), unit = stated
            found = _solved(cp.Problem(cp.Minimize(objective / unit), constraints))
            return None if found is None else (found * unit, _NOTHING * unit)
    return None


def _solved(problem: cp.Problem) -> float | None:
    for options in _OPTIONS:
        with warnings.catch_warnings(action="ignore"):
            try:
                problem.solve(solver="CLARABEL", **options)
            except cp.error.SolverError:
                continue
        if problem.status == cp.OPTIMAL:
            return float(problem.value)
    return None


# R(u), with its derivative phi(u), and its conjugate Phi(v), summed over all entries.


def _elu(u: Expression) -> Stated:
    low = cp.Variable(u.shape)  # e^low - 1 - low falls up to 0
    return cp.sum_squares(cp.pos(u)) / 2 + cp.sum(cp.exp(low) - 1 - low), [low <= u, low <= 0]


def _elu_potential(v: Expression) -> Stated:
    low = cp.Variable(v.shape)
    return cp.sum_squares(cp.pos(v)) / 2 + cp.sum(-cp.entr(1 + low) - low), [low <= v, low <= 0]


_PRIMITIVES: dict[str, Callable[[Expression], Stated]] = {
    "Identity": lambda u: (cp.sum_squares(u) / 2, []),
    "ReLU": lambda u: (cp.sum_squares(cp.pos(u)) / 2, []),
    "LeakyReLU": lambda u: (
        cp.sum_squares(cp.pos(u)) / 2 + 0.1 * cp.sum_squares(cp.neg(u)), []),
    "Clipped": lambda u: (cp.sum(cp.huber(u, 1)) / 2, []),
    "Sigmoid": lambda u: (cp.sum(cp.logistic(u)), []),
    "Tanh": lambda u: (cp.sum(cp.logistic(2 * u) - u) - u.size * math.log(2), []),
    "ELU": _elu,
    "Softmax": lambda u: (cp.sum(cp.log_sum_exp(u, axis=1)), []),
}  # fmt: skip
_POTENTIALS: dict[str, Callable[[Expression], Stated]] = {
    "Identity": lambda v: (cp.sum_squares(v) / 2, []),
    "ReLU": lambda v: (cp.sum_squares(v) / 2, [v >= 0]),
    "LeakyReLU": lambda v: (
        cp.sum_squares(cp.pos(v)) / 2 + 2.5 * cp.sum_squares(cp.neg(v)), []),
    "Clipped": lambda v: (cp.sum_squares(v) / 2, [v >= -1, v <= 1]),
    "Sigmoid": lambda v: (cp.sum(-cp.entr(v) - cp.entr(1 - v)), []),
    "Tanh": lambda v: (cp.sum(-cp.entr(1 + v) - cp.entr(1 - v)) / 2, []),
    "ELU": _elu_potential,
    "SimplexProjection": lambda v: (cp.sum_squares(v) / 2, [v >= 0, cp.sum(v, axis=1) == 1]),
}  # fmt: skip
_AT_ZERO = {"Sigmoid": 0.5, "Softplus": math.log(2)}
_SLOPES = {"Sigmoid": 0.25}  # the others' is 1


def _number(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy()


def _link(divergence: Divergence, u: Expression, target: Tensor, counts: Any) -> Stated | None:
    """Return sum_i c_i [R(u_i) - <u_i, t_i>]."""
    name, t = type(divergence.activation).__name__, _number(target)
    weights = np.ones(len(t)) if counts is None else _number(counts)
    column = weights[:, None]
    if name == "Softmax":  # a target in float32 sums to 1 but for its rounding
        t = t / t.sum(1, keepdims=True)
    pulled = cp.sum(cp.multiply(column * t, u))
    if isinstance(divergence, Joint):
        shift, slope = _AT_ZERO.get(name, 0.0), _SLOPES.get(name, 1.0)
        bent = slope / 2 * cp.sum_squares(cp.multiply(np.sqrt(column), u))
        return bent + shift * cp.sum(cp.multiply(column * np.ones_like(t), u)) - pulled, []
    if name not in _PRIMITIVES:
        return None
    if counts is None:
        whole, held = _PRIMITIVES[name](u)
        return whole - pulled, held
    value, held = cp.Constant(0.0), []
    for row, weight in enumerate(weights):
        part, more = _PRIMITIVES[name](u[row : row + 1])
        value, held = value + weight * part, held + more
    return value - pulled, held


def _potential(divergence: Divergence, v: Expression) -> Stated | None:
    activation = divergence.activation
    inner = getattr(activation, "activation", activation)  # of one within bounds
    name = type(inner).__name__
    return _POTENTIALS[name](v) if name in _POTENTIALS else None


def _together(*parts: tuple[float, Stated | None]) -> Stated | None:
    value: Expression = cp.Constant(0.0)
    held: list[Any] = []
    for scale, part in parts:
        if part is None:
            return None
        value, held = value + scale * part[0], held + part[1]
    return value, held


# Penalties.


def _penalty(penalty: Any, w: Expression) -> Stated:
    p = penalties
    if isinstance(penalty, p.Sum):
        found = _together(*((1.0, _penalty(term, w)) for term in penalty.terms))
        assert found is not None
        return found

    def wide(value: Tensor) -> np.ndarray:
        return np.broadcast_to(_number(value), w.shape)

    rules: list[tuple[type, Callable[[], Stated]]] = [
        (p.SquaredFrobenius, lambda: (penalty.rho * cp.sum_squares(w), [])),
        (p.L1, lambda: (penalty.rho * cp.norm1(w), [])),
        (p.GroupLasso, lambda: (penalty.rho * cp.sum(cp.norm(w, 2, axis=1)), [])),
        (p.Nonnegative, lambda: (penalty.rho * cp.sum_squares(w), [w >= 0])),
        (p.RowNorm, lambda: (0.0, [cp.norm(w, 2, axis=1) <= penalty.bound])),
        (p.ColumnNorm, lambda: (0.0, [cp.norm(w, 2, axis=0) <= penalty.bound])),
        (p.SpectralNorm, lambda: (0.0, [cp.sigma_max(w) <= penalty.bound])),
        (p.Signs, lambda: (0.0, [cp.multiply(wide(penalty.signs), w) >= 0])),
        (p.FixedZeros, lambda: (0.0, [cp.multiply(wide(penalty.where), w) == 0])),
    ]  # fmt: skip
    return next(rule for kind, rule in rules if isinstance(penalty, kind))()


def _reach(penalty: Any) -> float:
    terms = penalty.terms if isinstance(penalty, penalties.Sum) else (penalty,)
    return min(getattr(x, "bound", math.inf) for x in terms)


# Fits.


def _weight_fit(fit: WeightFit) -> tuple[Stated, float] | None:
    """State it in units of the bound or of X, about the mean of X where there is a bias."""
    x, reach = _number(fit.design.inputs), _reach(fit.penalty)
    rows, units = len(x), fit.units
    lengths = np.maximum(np.abs(x).max(0), 1e-300)
    scales = np.full(len(lengths), reach) if math.isfinite(reach) else 1 / lengths
    w = np.diag(scales) @ cp.Variable((x.shape[1], units))
    u = (x - x.mean(0) if fit.design.bias else x) @ w
    if fit.design.bias:
        u = u + np.ones((rows, 1)) @ cp.Variable((1, units))
    if fit.offset is not None:
        u = u + _number(fit.offset)
    link = _link(fit.divergence, u, fit.targets, fit.design.weights)
    size = min(1.0, float((scales * lengths).max()))  # of pre-activations
    found = _together((fit.lam, link), (1.0, _penalty(fit.penalty, w)))
    return None if found is None else (found, fit.lam * max(size, 1e-300))


def _above(link: Link, z: Expression) -> Expression:
    offset = _number(link.offset)
    return z @ _number(link.map.weight) + np.broadcast_to(offset, link.shape)  # type: ignore


def _state_fit(fit: Any) -> tuple[Stated, float] | None:
    block = isinstance(fit, BlockFit)
    prior, bounds = (fit.block, None) if block else (fit, fit.bounds)
    linear = _number(fit.linear) if block else fit.lam * _number(fit.pre_activation)
    z = cp.Variable(linear.shape)
    links = [(x.lam, _link(x.divergence, _above(x, z), x.target, x.weights)) for x in fit.links]
    found = _together((prior.lam, _potential(prior.divergence, z)), *links)
    if found is None:
        return None
    held = [] if bounds is None else [z >= bounds[0], z <= bounds[1]]
    return (found[0] - cp.sum(cp.multiply(linear, z)), [*found[1], *held]), prior.lam


def _output_fit(fit: OutputFit) -> tuple[Stated, float] | None:
    y, z = _number(fit.target), cp.Variable(tuple(fit.target.shape))
    found = _potential(fit.divergence, z)
    if found is None:
        return None
    squared = isinstance(fit.loss, SquaredError)
    loss = cp.sum_squares(z - y) / 2 if squared else -cp.sum(cp.multiply(y, cp.log(z)))
    pulled = cp.sum(cp.multiply(_number(fit.pre_activation), z))
    return (loss + fit.lam * (found[0] - pulled), found[1]), 1 + fit.lam


def _over_time(fit: StatesOverTime) -> tuple[Stated, float] | None:
    """State each sequence with its steps alone."""
    parts: list[tuple[float, Stated | None]] = []
    name = type(fit.divergence.activation).__name__
    slope, shift = _SLOPES.get(name, 1.0), _AT_ZERO.get(name, 0.0)
    for sample, steps in enumerate(fit.lengths.tolist()):
        drive, w = _number(fit.drive[:steps, sample]), _number(fit.recurrent)
        z, u = cp.Variable(drive.shape), cp.Variable(drive.shape)
        held = [u[:1] == drive[:1], *([u[1:] == z[:-1] @ w + drive[1:]] if steps > 1 else [])]
        # D = Phi(z) - <u, z> + L |u|^2 / 2 + c u, and Phi - |z|^2 / (2 L) is convex.
        rest = _strong_rest(name, z, slope)
        apart = cp.sum_squares(z / slope**0.5 - slope**0.5 * u) / 2
        parts += [(fit.lam, rest), (fit.lam, (apart + shift * cp.sum(u), held))]
        for link in fit.links:
            counted = link.counted[:steps, sample]
            if not bool(counted.any()):
                continue
            at = z[_number(counted) > 0] @ _number(link.weight) + _number(link.offset)[None]
            target = link.target[:steps, sample][counted]
            parts.append((link.lam, _link(link.divergence, at, target, None)))
    found = _together(*parts)
    return None if found is None else (found, fit.lam)


def _strong_rest(name: str, z: Expression, slope: float) -> Stated | None:
    """Return Phi(z) - |z|^2 / (2 L), where it is known."""
    if name in ("Identity", "ReLU", "Clipped"):
        return 0.0, _POTENTIALS[name](z)[1]
    if name == "LeakyReLU":
        return 2.0 * cp.sum_squares(cp.neg(z)), []
    return None


_KINDS: dict[type, Callable[[Any], tuple[Stated, float] | None]] = {
    WeightFit: _weight_fit,
    StateFit: _state_fit,
    BlockFit: _state_fit,
    OutputFit: _output_fit,
    StatesOverTime: _over_time,
}
