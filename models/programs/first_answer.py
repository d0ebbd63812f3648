"""A first answer: projected steps on the input of a network, from the best of many points.

Points are drawn in the region of the inputs, {v : low <= G v <= high}: on rays from its center, or
everywhere in a box. Steps go along the gradient, as wide as the region and shorter with every one;
what leaves the region is drawn back towards the center, and comes to lie on its border. What other
constraints are broken by counts as a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from liftednet.errors import DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import optimize, sparse

from ..bounds.curves import Array
from .cvxpy_network import Graph
from .halving import inside_of, side_by_side
from .lines import Sums

_DRAWN, _DRAWN_ONE_BY_ONE = 512, 64  # of functions of many points at once, and of others
_KEPT, _KEPT_ONE_BY_ONE = 48, 8
_STEPS = 20
_FIRST, _LAST = 0.3, 1e-3  # of the width of the region, the length of steps
_CORNERS = 3  # times that the corner along the gradient is tried
_TINY = 1e-300
_LEAST = -1e300
_ROUNDED = 1e-9  # by which ends may cross that meet in exact numbers
_FARTHEST = 10.0  # along a ray that does not end
_PRICE = 10.0  # of a broken constraint, in spreads of the objective over its own spread


INFEASIBLE = (
    "no input meets the constraints within the box, which is proven: widen the box or leave a "
    "constraint out."
)
Both = Callable[[Array], tuple[Array, Array]]
Node = Callable[[Tensor], Tensor]  # of points (points, variables), (points, entries)


@dataclass(frozen=True, eq=False)
class Region:
    """{v : low <= G v <= high}, with a point inside it.

    Attributes:
        rows: G, (rows, entries).
        low: (rows,).
        high: (rows,).
        center: as far from the border as a ball fits in.
        box: whether G is the identity.
    """

    rows: Array
    low: Array
    high: Array
    center: Array
    box: bool

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The ends of every entry of v, as far as rows of one entry tell them, (entries,) each."""
        single = (self.rows != 0).sum(1) == 1
        which = np.abs(self.rows[single]).argmax(1)
        factor = self.rows[single, which]
        both = np.stack([self.low[single], self.high[single]]) / factor
        low, high = np.full(len(self.center), -np.inf), np.full(len(self.center), np.inf)
        np.maximum.at(low, which, both.min(0))
        np.minimum.at(high, which, both.max(0))
        return low, high

    @property
    def together(self) -> tuple[Array, Array]:
        """G and h of rows of several entries, G v <= h."""
        several = (self.rows != 0).sum(1) > 1
        rows = np.concatenate([self.rows[several], -self.rows[several]])
        most = np.concatenate([self.high[several], -self.low[several]])
        return rows[np.isfinite(most)], most[np.isfinite(most)]

    @property
    def width(self) -> Array:
        """The width along every entry of v, as far as single rows tell it, else 1, (entries,)."""
        low, high = self.ends
        return np.where(np.isfinite(high - low), high - low, 1.0)

    def drawn(self, samples: int, generator: np.random.Generator) -> Array:
        """Return points of the region, (samples, entries)."""
        if self.box:
            return generator.uniform(self.low, self.high, (samples, len(self.low)))
        rays = generator.normal(size=(samples, len(self.center))) * self.width
        far = self.inside(self.center + _FARTHEST * rays) - self.center
        share = generator.uniform(size=(samples, 1)) ** (1 / far.shape[1])
        return self.center + share * far

    def descended(self, v: Array, both: Both) -> Array:
        """Return the best points on the way of projected steps, (points, entries), best first.

        Args:
            v: where they begin.
            both: returns values, (points,), and gradients, (points, entries).
        """
        value, gradient = both(v)
        kept, least, width = v.copy(), value.copy(), self.width
        for length in np.geomspace(_FIRST, _LAST, _STEPS):
            step = gradient * width**2
            size = np.abs(step / np.maximum(width, _TINY)).max(1, keepdims=True)
            v = self.inside(v - length * step / np.maximum(size, _TINY))
            value, gradient = both(v)
            better = value < least
            kept[better], least[better] = v[better], value[better]
        for _ in range(_CORNERS if self.box else 0):  # steps are short where others are steeper
            v = np.where(both(kept)[1] > 0, self.low, self.high)
            value = both(v)[0]
            better = value < least
            kept[better], least[better] = v[better], value[better]
        return kept[np.argsort(least)]

    def inside(self, v: Array) -> Array:
        """Return v where it is inside, else where the ray from the center to it leaves."""
        if self.box:
            return np.clip(v, self.low, self.high)
        ray = v - self.center
        along, start = ray @ self.rows.T, self.rows @ self.center
        equal = self.high <= self.low
        if equal.any():  # the nearest direction in which these rows stand still
            held = self.rows[equal]
            ray = ray - np.linalg.lstsq(held, (ray @ held.T).T, rcond=None)[0].T
            along = ray @ self.rows.T
        room = np.where(along > 0, self.high - start, start - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where((np.abs(along) > 0) & ~equal, room / np.abs(along), np.inf)
        return self.center + np.clip(ends.min(1, initial=1.0), 0, 1)[:, None] * ray


def sides_of(constraint: Any) -> Iterator[Any]:
    """Yield convex expressions that are to be at most 0."""
    kinds = cp.constraints
    if not isinstance(
        constraint, kinds.Inequality | kinds.Equality | kinds.Zero | kinds.NonNeg | kinds.NonPos
    ):
        raise DeclarationError(
            f"{type(constraint).__name__} is not known here: state the constraint as an "
            "inequality, such as cp.norm(x) <= 1."
        )
    inner = constraint.args[0] if len(constraint.args) == 1 else constraint.expr
    if not isinstance(constraint, kinds.NonNeg):
        yield inner
    if not isinstance(constraint, kinds.Inequality | kinds.NonPos):
        yield -inner


def region_of(graphs: Sequence[Graph], variables: Sequence[Any], sides: Sequence[Any]) -> Region:
    """Return where x of all graphs is in its box and linear sides hold.

    Raises:
        SolverError: there is no such point.
    """
    rows, low, high = [], [], []
    for graph in graphs:
        matrix, offset = affine_in(graph.x, variables)
        rows.append(matrix)
        low.append(graph.box[0] - offset)
        high.append(graph.box[1] - offset)
    for one in sides:
        matrix, offset = affine_in(one, variables)
        rows.append(matrix)
        low.append(np.full(len(offset), -np.inf))
        high.append(-offset)
    matrix, lows, highs = np.concatenate(rows), np.concatenate(low), np.concatenate(high)
    kept = matrix.any(1)
    if (lows[~kept] > 0).any() or (highs[~kept] < 0).any():
        raise SolverError(INFEASIBLE)
    first = matrix[np.arange(len(matrix)), (matrix != 0).argmax(1)]
    turned = first < 0  # a row and its negative are one
    matrix = np.where(turned[:, None], -matrix, matrix)
    lows, highs = np.where(turned, -highs, lows), np.where(turned, -lows, highs)
    distinct, which = np.unique(matrix[kept], axis=0, return_inverse=True)
    both = np.full((2, len(distinct)), -np.inf)
    np.maximum.at(both[0], which.ravel(), lows[kept])
    np.maximum.at(both[1], which.ravel(), -highs[kept])
    lows, highs = both[0], -both[1]
    crossed = (lows > highs) & (lows - highs <= _ROUNDED * (1 + np.abs(lows)))
    lows = np.where(crossed, highs, lows)
    found = Region(distinct, lows, highs, np.zeros(matrix.shape[1]), False)
    ends = found.ends
    if ((distinct != 0).sum(1) == 1).all() and np.isfinite(ends).all():
        if (ends[0] > ends[1]).any():
            raise SolverError(INFEASIBLE)
        return Region(np.eye(matrix.shape[1]), *ends, (ends[0] + ends[1]) / 2, True)
    return replace(found, center=_center(distinct, lows, highs))


def _center(rows: Array, low: Array, high: Array) -> Array:
    """Return the center of a ball that is as large as fits between rows that are not equal."""
    lengths = np.where(high > low, np.linalg.norm(rows, axis=1), 0.0)[:, None]
    both = np.concatenate([np.hstack([rows, lengths]), np.hstack([-rows, lengths])])
    most = np.concatenate([high, -low])
    known, cost = np.isfinite(most), np.append(np.zeros(rows.shape[1]), -1.0)
    ends = [*[(None, None)] * rows.shape[1], (0.0, 1e3)]
    found = optimize.linprog(cost, both[known], most[known], bounds=ends)
    if found.x is None:
        raise SolverError(INFEASIBLE)
    return found.x[:-1]


@dataclass(eq=False)
class Search:
    """Steps over v, the variables of a problem, down its objective and broken constraints.

    Attributes:
        graphs: of the samples.
        variables: of the problem that are not outputs.
        objective: to be minimized, convex.
        constraints: convex, of CVXPY.
        anchor: v of the best answer; None as long as there is none.
    """

    graphs: Sequence[Graph]
    variables: Sequence[Any]
    objective: cp.Expression
    constraints: Sequence[Any]
    anchor: Array | None = None

    def __post_init__(self) -> None:
        """Take all apart."""
        networks = [inside_of(x.composition, *affine_in(x.x, self.variables)) for x in self.graphs]
        self.network = side_by_side(networks)
        self.entries = sum(x.size for x in self.variables)
        self.seen = [*self.variables, *(graph.y for graph in self.graphs)]
        known = {x.id for x in self.variables}
        self.domains = domains_of([self.objective, *self.constraints])
        own = [x for variable in self.variables for x in variable.domain]
        sides = [x for one in (*self.constraints, *self.domains, *own) for x in sides_of(one)]
        linear = [x.is_affine() and {y.id for y in x.variables()} <= known for x in sides]
        straight = [x for x, is_linear in zip(sides, linear, strict=True) if is_linear]
        others = [x for x, is_linear in zip(sides, linear, strict=True) if not is_linear]
        self.region = region_of(self.graphs, self.variables, straight)
        self.on_outputs = [x for x in others if not {y.id for y in x.variables()} <= known]
        self.functions = Functions([self.objective, *others], self.seen)
        self.free = not others
        self.prices = 1.0

    def seen_at(self, v: Array) -> Array:
        """Return v (points, entries) and all outputs there, side by side."""
        return np.concatenate([v, self.network.forward(v)], 1)

    def assign(self, v: Array) -> None:
        """Give v, and the outputs there, to the variables."""
        assign(self.seen, self.seen_at(v[None])[0])

    def values(self, v: Array) -> Array:
        """Return the objective and the price of broken constraints, (points,)."""
        return self._merits(self.seen_at(v))[0]

    def objectives(self, v: Array) -> Array:
        """Return the objective alone, (points,)."""
        return self.functions.at(self.seen_at(v))[0][:, 0]

    def both(self, v: Array) -> tuple[Array, Array]:
        """Return values and their gradients in v, (points, entries)."""
        y, back = self.network.both(v)
        values, slopes = self._merits(np.concatenate([v, y], 1))
        return values, slopes[:, : self.entries] + back(slopes[:, self.entries :])

    def _merits(self, points: Array) -> tuple[Array, Array]:
        """Return values and derivatives in v and outputs."""
        values, slopes = self.functions.at(points)
        if not self.functions.affine:
            slopes = np.nan_to_num(slopes)  # what is broken leads back to where all have a value
        if self.free:
            value, total = values[:, 0], slopes[:, 0]
        else:
            broken = np.maximum(values[:, 1:], 0).sum(1)
            known = np.isfinite(values).all(1)
            if known.sum() > 2:  # so that neither outweighs the other
                size, spread = (float(np.ptp(x[known])) for x in (values[:, 0], broken))
                self.prices = max(self.prices, _PRICE * size / spread if spread else 0.0)
            push = self.prices * (values[:, 1:] > 0)
            total = slopes[:, 0] + (push[:, None] @ slopes[:, 1:])[:, 0]
            value = values[:, 0] + self.prices * broken
        return np.where(np.isfinite(value), value, np.inf), total

    def best(self, given: Sequence[Array], generator: np.random.Generator) -> Array:
        """Return the ends of steps from the best of points that are given or drawn, best first."""
        quick = self.functions.quick
        drawn = self.region.drawn(_DRAWN if quick else _DRAWN_ONE_BY_ONE, generator)
        v = np.concatenate([*(x[None] for x in given), self.region.center[None], drawn])
        kept = _KEPT if quick else _KEPT_ONE_BY_ONE
        return self.region.descended(v[np.argsort(self.values(v))[:kept]], self.both)

    def _known(self, points: Array) -> tuple[Array, Array, Array]:
        """Return values and derivatives, next to none where there are none, and say where."""
        values, slopes = self.functions.at(points)
        lost = ~np.isfinite(values + slopes.sum(2))
        return np.where(lost, _LEAST, values), np.where(lost[..., None], 0.0, slopes), lost

    def tangents(self, low: Array, high: Array) -> tuple[Sums, Array]:
        """Return tangents at the centers of boxes, (boxes, entries), as sums of inputs and units.

        Second is what the halves of every entry may bring beside lines, (boxes or 1, entries).
        """
        affine, entries = self.functions.affine, low.shape[1]
        centers = (low + high)[:1] / 2 if affine else (low + high) / 2
        points = self.seen_at(centers)
        values, slopes, lost = self._known(points)
        curved = np.zeros((1, entries))
        if not affine:  # half of what a tangent is off by at a corner, as far as v alone goes
            apart = (self._known(self.seen_at(high))[1] - slopes).sum(1)
            own, push = apart[:, :entries], apart[:, entries:]
            curved = np.abs(own + self.network.gradient(centers, push)) / 2
        constants = values - (slopes @ points[..., None])[..., 0]
        if self.anchor is not None and self.functions.bordered:
            # A tangent anywhere is below all of a convex function, and what is better than at the
            # anchor lies where that of the objective falls from there.
            there = self.seen_at(self.anchor[None])
            value, slope, _ = self._known(there)
            constant = value - slope @ there[0]
            constants = np.where(lost, constant, constants)
            slopes = np.where(lost[..., None], slope, slopes)
            many = len(points), 1
            constants = np.append(constants, np.tile(constant[:, :1] - value[:, :1], many), 1)
            slopes = np.append(slopes, np.tile(slope[:, :1], (*many, 1)), 1)
        output, costs = self.network.output, slopes[..., entries:]
        parts = {k: costs @ part.T for k, part in output.parts.items()}
        constants = constants + costs @ output.offset
        size = np.abs(constants) + np.abs(slopes[..., :entries]) @ np.maximum(-low, high).max(0)
        return Sums(constants, slopes[..., :entries], parts, size), curved


def domains_of(each: Sequence[Any]) -> list[Any]:
    """Return where atoms of expressions, and of constraints, are what they are said to be."""
    own = [x for one in each if isinstance(one, cp.atoms.atom.Atom) for x in one._domain()]
    return own + [x for one in each if one.args for x in domains_of(one.args)]


def values_of(variables: Sequence[Any]) -> Array:
    """Return the values of variables, one after another."""
    return np.concatenate([np.asarray(x.value, dtype=float).flatten(order="F") for x in variables])


def assign(variables: Sequence[Any], values: Array) -> None:
    """Give variables their values, one after another."""
    first = 0
    for x in variables:
        x.save_value(values[first : first + x.size].reshape(x.shape, order="F"))
        first += x.size


def linear_in(expression: Any, variables: Sequence[Any], at: Array) -> tuple[Array, Array]:
    """Return the values of an expression, and its derivatives in variables, at a point.

    Where it has none, outside the domain of an atom, they are not numbers.
    """
    assign(variables, at)
    slopes: dict[Any, Any] = dict.fromkeys(variables)
    size = max(expression.size, 1)
    with np.errstate(all="ignore"):
        value = np.asarray(expression.value, dtype=float).flatten(order="F")
        with suppress(TypeError):  # of an atom in one that has none
            slopes = expression.grad
    parts = [
        slopes[x].toarray().T
        if sparse.issparse(slopes.get(x))
        else np.broadcast_to(np.asarray(slopes.get(x, 0.0), dtype=float), (size, max(x.size, 1)))
        for x in variables
    ]
    matrix = np.concatenate(parts, axis=1) if parts else np.zeros((size, 0))
    return value, matrix


def affine_in(expression: Any, variables: Sequence[Any]) -> tuple[Array, Array]:
    """Return J and c of an affine expression J v + c."""
    if len(variables) == 1 and expression is variables[0] and expression.ndim == 1:
        return np.eye(expression.size), np.zeros(expression.size)
    offset, matrix = linear_in(expression, variables, np.zeros(sum(x.size for x in variables)))
    return matrix, offset


_ATOMS: dict[str, Callable[..., Tensor]] = {
    "abs": lambda atom, u: u.abs(),
    "exp": lambda atom, u: u.exp(),
    "log": lambda atom, u: u.log(),
    "logistic": lambda atom, u: functional.softplus(u, threshold=40.0),
    "entr": lambda atom, u: torch.special.entr(u),
    "kl_div": lambda atom, u, v: torch.special.xlogy(u, u / v) - u + v,
    "rel_entr": lambda atom, u, v: torch.special.xlogy(u, u / v),
    "maximum": lambda atom, *each: torch.stack(torch.broadcast_tensors(*each)).amax(0),
    "minimum": lambda atom, *each: torch.stack(torch.broadcast_tensors(*each)).amin(0),
    "Power": lambda atom, u: u ** float(getattr(atom.p, "value", atom.p)),
    "AddExpression": lambda atom, *each: sum(each[1:], start=each[0]),
    "NegExpression": lambda atom, u: -u,
    "multiply": lambda atom, u, v: u * v,
    "DivExpression": lambda atom, u, v: u / v,
}  # fmt: skip
_TOTALS: dict[str, Callable[..., Tensor]] = {
    "Sum": lambda atom, u: u.sum(1),
    "max": lambda atom, u: u.amax(1),
    "min": lambda atom, u: u.amin(1),
    "norm1": lambda atom, u: u.abs().sum(1),
    "norm_inf": lambda atom, u: u.abs().amax(1),
    "Pnorm": lambda atom, u: torch.linalg.vector_norm(u, float(atom.p), 1),
    "log_sum_exp": lambda atom, u: u.logsumexp(1),
    "quad_over_lin": lambda atom, u, v: u.square().sum(1) / v[:, 0],
    "QuadForm": lambda atom, u, P: ((u @ P.view(u.shape[1], -1)) * u).sum(1),
}  # of all entries


def _node_of(expression: Any, variables: Sequence[Any]) -> Node | None:
    """Return an expression as a function of torch, or None."""
    if expression.is_constant():
        dense = expression.value.toarray() if sparse.issparse(expression.value) \
            else expression.value  # fmt: skip
        value = torch.from_numpy(np.array(dense, dtype=float).flatten(order="F"))[None]
        return lambda v: value
    if expression.is_affine():
        matrix, offset = map(torch.from_numpy, affine_in(expression, variables))
        return lambda v: v @ matrix.T + offset
    name = type(expression).__name__.removesuffix("Approx")
    inside = [_node_of(x, variables) for x in expression.args]
    nodes = [x for x in inside if x is not None]
    if len(nodes) < len(inside):
        return None
    if name in _ATOMS:
        return lambda v: _ATOMS[name](expression, *(x(v) for x in nodes))
    if name in _TOTALS and getattr(expression, "axis", None) is None:
        return lambda v: _TOTALS[name](expression, *(x(v) for x in nodes))[:, None]
    return None


def _widens(one: Any, least: int) -> bool:
    """Say whether a maximum or minimum has arguments of another shape, of so many entries."""
    several = type(one).__name__ in ("maximum", "minimum")
    own = several and any(x.shape != one.shape and x.size >= least for x in one.args)
    return own or any(_widens(x, least) for x in one.args)


class Functions:
    """Convex functions of some variables, side by side, and a subgradient of each at many points.

    Affine expressions are matrices. Sums, factors and the usual atoms are the same of torch, whose
    derivatives at kinks are subgradients, so that by the rules of composition all are; what
    consists of other atoms is evaluated point by point.
    """

    def __init__(self, expressions: Sequence[Any], variables: Sequence[Any]) -> None:
        """Take apart what can be evaluated at many points."""
        self.expressions, self.variables = list(expressions), list(variables)
        self.size = sum(x.size for x in variables)
        self.affine = all(x.is_affine() for x in self.expressions)
        self.known: list[Any] = [
            affine_in(x, variables) if x.is_affine() else _node_of(x, variables)
            for x in self.expressions
        ]
        sides = [
            [x for one in domains_of([each]) for x in sides_of(one)] for each in self.expressions
        ]
        self.domains = [Functions(each, variables) if each else None for each in sides]
        self.bordered = any(sides)
        for one, known in zip(self.expressions, self.known, strict=True):
            if _widens(one, 1 if known is None else 2):  # CVXPY's derivatives are then wrong
                raise DeclarationError(
                    f"{one} takes the largest or smallest of values of several shapes within "
                    "other functions: give all the same shape, as by cp.multiply(y, np.ones(3))."
                )

    @property
    def quick(self) -> bool:
        """Whether many points cost as much as one."""
        return not any(x is None for x in self.known)

    def at(self, points: Array) -> tuple[Array, Array]:
        """Return values, (points, functions), and derivatives, (points, functions, variables).

        Of functions that have none somewhere both are not numbers.
        """
        values, slopes = list[Array](), list[Array]()
        for one, known in zip(self.expressions, self.known, strict=True):
            if known is None:
                found = [linear_in(one, self.variables, point) for point in points]
                values.append(np.stack([x[0] for x in found]))
                slopes.append(np.stack([x[1] for x in found]))
            elif one.is_affine():
                values.append(points @ known[0].T + known[1])
                slopes.append(np.broadcast_to(known[0], (len(points), *known[0].shape)))
            else:
                at = torch.from_numpy(points).requires_grad_()
                value = known(at).expand(-1, max(one.size, 1))
                each = [torch.autograd.grad(x.sum(), at, retain_graph=True)[0] for x in value.T]
                values.append(value.detach().numpy())
                slopes.append(torch.stack(each, 1).numpy())
        for value, slope, domain in zip(values, slopes, self.domains, strict=True):
            if domain is not None:
                beyond = ~(domain.at(points)[0] <= 0).all(1)  # where torch may have a number
                value[beyond], slope[beyond] = np.nan, np.nan
        if len(values) == 1:
            return values[0], slopes[0]
        return np.concatenate(values, 1), np.concatenate(slopes, 1)
