"""Polyhedra l <= A u <= h: of all scores at once, and of each sample's, with its nearest points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear  # not A.T, which no traced loop may close over
from torch.overrides import handle_torch_function, has_torch_function

from liftednet.errors import DataError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import optimize, sparse

Array = NDArray[Any]

MET = 1e-9  # by which limits, signs of prices, or what gives way may be off, beside their scale
_AT_AN_END = 1e-6  # likewise, to count as there: answers may be in float32
_RIDGE = 1e-10  # on the products of rows of norm 1, while rows that bind may contradict each other
_PATIENCE = 3  # exchanges of all rows that are wrong, without fewer of them


@dataclass(frozen=True, eq=False)
class Limits:
    """l <= A u <= h, for scores U (samples, outputs) as one column u, row after row.

    Attributes:
        matrix: A, (limits, samples * outputs), sparse.
        lower: l, (limits,), -inf where there is none.
        upper: h, (limits,), inf where there is none; an equality where it is l.
        shape: in which prices are given, of as many entries as there are limits.
    """

    matrix: sparse.csr_matrix
    lower: Array
    upper: Array
    shape: tuple[int, ...]

    def through(self, scale: Array, center: Array) -> Limits:
        """Return the same limits on V where U = V scale + center; both are (outputs,)."""
        samples = self.matrix.shape[1] // len(scale)
        matrix = sparse.csr_matrix(self.matrix @ sparse.diags(np.tile(scale, samples)))
        return replace(self.moved(np.tile(center, samples)), matrix=matrix)

    def moved(self, constant: Array) -> Limits:
        """Return the same limits on V where U = V + constant, (samples, outputs)."""
        shift = self.matrix @ constant.reshape(-1)
        return replace(self, lower=self.lower - shift, upper=self.upper - shift)

    def excess(self, u: Array) -> Array:
        """Return by how much each limit is passed, (limits,), of scores (samples, outputs)."""
        at = self.matrix @ u.reshape(-1)
        return np.maximum(np.maximum(self.lower - at, at - self.upper), 0.0)

    @cached_property
    def norms(self) -> Array:
        """(limits,) Euclidean norm of every row of A."""
        return np.sqrt(self.matrix.multiply(self.matrix).sum(axis=1)).A1

    def normed(self) -> Limits:
        """Return the same limits with rows of norm 1."""
        matrix = sparse.csr_matrix(sparse.diags(1 / self.norms) @ self.matrix)
        lower, upper = self.lower / self.norms, self.upper / self.norms
        return replace(self, matrix=matrix, lower=lower, upper=upper)

    @property
    def sides(self) -> tuple[Array, Array, Array]:
        """(limits,) each: whether it is an equality, has an upper end, has a lower end."""
        equal: Array = self.lower == self.upper
        return equal, np.isfinite(self.upper) & ~equal, np.isfinite(self.lower) & ~equal

    def stated(self, u: cp.Expression) -> tuple[cp.Constraint, cp.Constraint, cp.Constraint]:
        """Return the limits in CVXPY of U (samples, outputs): those of each of the sides."""
        at, (equal, above, below) = self.matrix @ cp.vec(u, order="C"), self.sides
        return (
            at[equal] == self.upper[equal], at[above] <= self.upper[above],
            at[below] >= self.lower[below],
        )  # fmt: skip


def stacked(limits: Sequence[Limits], scores: int) -> Limits:
    """Return several limits on so many scores as one, of none an empty matrix."""
    if not limits:
        return Limits(sparse.csr_matrix((0, scores)), np.zeros(0), np.zeros(0), (0,))
    lower, upper = (np.concatenate([getattr(x, end) for x in limits]) for end in ("lower", "upper"))
    matrix = sparse.csr_matrix(sparse.vstack([x.matrix for x in limits]))
    return Limits(matrix, lower, upper, lower.shape)


def least_excess(matrix: Any, lower: Array, upper: Array) -> Array | None:
    """Return by how much limits must give way, (limits,) of least sum, or None if nothing must.

    Args:
        matrix: A of l <= A x <= h, (limits, unknowns), sparse or dense.
        lower: l.
        upper: h.
    """
    above, below = np.isfinite(upper), np.isfinite(lower)
    sides = sparse.vstack([sparse.csr_matrix(matrix)[above], -sparse.csr_matrix(matrix)[below]])
    count, unknowns = sides.shape
    found = optimize.linprog(
        np.concatenate([np.zeros(unknowns), np.ones(count)]),
        A_ub=sparse.hstack([sides, -sparse.eye(count)]),
        b_ub=np.concatenate([upper[above], -lower[below]]),
        bounds=[(None, None)] * unknowns + [(0, None)] * count,
        method="highs",
    )
    size = max(1.0, *np.abs(np.concatenate([upper[above], lower[below]])))
    if found.x is None or found.fun <= MET * size:
        return None
    slack, excess = found.x[unknowns:], np.zeros(len(lower))
    excess[above] = slack[: above.sum()]
    excess[below] = np.maximum(excess[below], slack[above.sum() :])
    return np.where(excess > MET * size, excess, 0.0)


def giving_way(counts: Sequence[tuple[object, int]], excess: Array) -> str:
    """Name the constraints that give way, each by how much, of how many limits each of them is."""
    *parts, _ = np.split(excess, np.cumsum([count for _, count in counts]))
    most = [(one, part.max(initial=0.0)) for (one, _), part in zip(counts, parts, strict=True)]
    return " and ".join(f"{one!r} by {by:.3g}" for one, by in most if by > 0)


class _Pivots(NamedTuple):
    side: Tensor  # at which each limit binds, (samples, limits)
    least: Tensor  # wrong limits of the best guess so far, (samples,)
    patience: Tensor
    done: Tensor


def nearest_in_polyhedron(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return argmin |v - u|^2 subject to l <= A v <= h for every sample, of the type of u.

    Which limits bind is found by block principal pivoting (Judice and Pires, Computers and
    Operations Research 21, 1994), all samples at once. Then v is affine in u and in the ends, and
    differentiated as that: with B the rows that bind, v = u - B'(B B')^-1 (B u - ends).

    Args:
        rows: A, (limits, units).
        u: (samples, units).
        lower: l, (samples, limits), -inf where there is none.
        upper: h, likewise.

    Raises:
        DataError: no v meets the limits of a sample.
        SolverError: pivoting has not ended.

    A program traced by torch.export raises RuntimeError for both; one of ONNX, which knows no
    errors, has NaN for these samples.

    Example:
        >>> import torch
        >>> from liftednet.sets.polyhedron import nearest_in_polyhedron
        >>> rows = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])  # of the simplex
        >>> low, high = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, torch.inf, torch.inf]])
        >>> nearest_in_polyhedron(rows, torch.tensor([[0.2, 0.6]]), low, high)
        tensor([[0.3000, 0.7000]])
    """
    given = (rows, u, lower, upper)
    if has_torch_function(given):  # `certify` follows it as one call
        return handle_torch_function(nearest_in_polyhedron, given, *given)
    scaled = rows.to(u.device, torch.float64)
    norms = scaled.norm(dim=1)
    scaled, point = scaled / norms.unsqueeze(-1), u.double()
    low, high = lower.double() / norms, upper.double() / norms
    if not torch.compiler.is_exporting() and _orthogonal(scaled):  # each limit by itself
        values = linear(point, scaled)
        ends = torch.where(values < low, low, high)
        binds = (values < low) | (values > high) | (low == high)
        for _ in range(2):  # of a u far away the first step leaves its rounding
            point = point - torch.where(binds, linear(point, scaled) - ends, 0.0) @ scaled
        off = (low - high).amax(-1)
    else:
        side = _binding(*(part.detach() for part in (scaled, point, low, high)))
        ends = torch.where(side < 0, low, high)
        for _ in range(2):  # the ridge is less where none contradict, and its rest then gone
            prices, values = _at(scaled, point, side, ends, 1e-3 * _RIDGE)
            point = point - prices @ scaled
        off = torch.where(side != 0, (values - ends).abs(), 0.0).amax(-1)
    empty = off > _met(u)
    if torch.compiler.is_exporting():
        torch._assert_async(~empty.any(), "no scores meet the limits of a sample")
        lost = (empty | side.isnan().any(-1)).unsqueeze(-1)
        point = torch.where(lost, torch.nan, point)  # ONNX leaves assertions out
    elif bool(empty.any()):
        raise DataError(
            f"no scores meet the limits of sample {int(empty.nonzero()[0])}, counted from 0: they "
            "contradict each other."
        )
    return point.to(u)


def trained_in_polyhedron(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the nearest points v, of whose gradients g those of u are projected: -P_T(-g).

    T are the directions from v that leave no limit. Limits that bind let no derivative through,
    though a step back inside would help; where they bind for all samples no gradient would be
    left to train by. Within the limits, and along those that bind, both are the same.

    Args:
        rows: A, (limits, units).
        u: (samples, units).
        lower: l, (samples, limits), -inf where there is none.
        upper: h, likewise.

    Raises:
        DataError: no v meets the limits of a sample.
        SolverError: pivoting has not ended.
    """
    return _Trained.apply(u, rows, lower, upper)  # type: ignore[no-untyped-call]


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, rows: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        found = nearest_in_polyhedron(rows, u, lower, upper)
        ctx.save_for_backward(found, rows, lower, upper)
        return found

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, None, None, None]:
        v, rows, lower, upper = ctx.saved_tensors
        values, near = linear(v.to(rows), rows), _AT_AN_END * rows.norm(dim=1) * _size(v)
        low = torch.where(values <= lower + near, 0.0, -torch.inf)
        high = torch.where(values >= upper - near, 0.0, torch.inf)
        (push,) = pushes
        scale = push.abs().max().clamp(min=torch.finfo(push.dtype).tiny)
        inside = nearest_in_polyhedron(rows, -push / scale, low.to(lower), high.to(upper))
        return -scale * inside, None, None, None


def _orthogonal(rows: Tensor) -> bool:
    products = rows @ rows.T
    return torch.equal(products, products.diagonal().diag())


def _met(u: Tensor) -> Tensor:
    """Return by how much limits may be off, (samples,)."""
    return MET * _size(u).squeeze(-1)


def _size(u: Tensor) -> Tensor:
    """Return the scale of a sample, (samples, 1)."""
    return 1 + u.abs().amax(-1, keepdim=True)


def _at(rows: Tensor, u: Tensor, side: Tensor, ends: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return the prices that bring limits that bind to their ends, and all values A v there."""
    binds = side != 0
    excess = linear(u, rows) - torch.where(binds, ends, 0.0)
    both = binds.unsqueeze(-1) & binds.unsqueeze(-2)
    rest = torch.diag_embed(torch.where(binds, ridge, 1.0).to(u))
    products = torch.where(both, linear(rows, rows), 0.0) + rest
    prices = _solved(products, torch.where(binds, excess, 0.0))
    return prices, linear(u - prices @ rows, rows)


def _solved(products: Tensor, right: Tensor) -> Tensor:
    """Return P^-1 r of every sample, P (samples, limits, limits) positive definite.

    ONNX has no such operator: a traced program eliminates, which needs no pivots there.
    """
    if not torch.compiler.is_exporting():
        return torch.linalg.solve(products, right.unsqueeze(-1)).squeeze(-1)

    def go_on(number: Tensor, both: Tensor) -> Tensor:
        return number < both.shape[1]

    def step(number: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        first = both[:, :1] / both[:, :1, :1]
        rows = torch.cat([both[:, 1:] - both[:, 1:, :1] * first, first], 1)  # the next comes first
        return number + 1, torch.cat([rows[..., 1:-1], rows[..., :1], rows[..., -1:]], -1)

    zero = torch.zeros((), dtype=torch.int64, device=right.device)
    both = torch.cat([products, right.unsqueeze(-1)], -1)
    _, found = torch.while_loop(go_on, step, (zero, both))
    return found[..., -1]


def _binding(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return at which end each limit binds, (samples, limits): -1, 1, or 0 where it does not."""
    count, none = len(rows), u.new_zeros(u.shape[0], dtype=torch.int64)
    sides, most = u.new_zeros(u.shape[0], count), 100 + 20 * count
    now = _Pivots(sides, none + count + 1, none + _PATIENCE, none.bool())
    if torch.compiler.is_exporting():  # samples wait for one another
        return _traced(rows, u, lower, upper, now, most)
    todo = torch.arange(len(u), device=u.device)
    for _ in range(most):
        now = _exchanged(rows, u[todo], lower[todo], upper[todo], now)
        sides[todo] = now.side
        todo, now = todo[~now.done], _Pivots(*(part[~now.done] for part in now))
        if not len(todo):
            return sides
    raise SolverError(
        f"which limits of sample {int(todo[0])}, counted from 0, bind was not found: leave out "
        "those that follow from others."
    )


def _traced(
    rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor, begun: _Pivots, most: int
) -> Tensor:
    """Return what `_binding` does, by a loop that stays one in a traced program."""

    def go_on(taken: Tensor, *now: Tensor) -> Tensor:
        return (taken < most) & ~now[-1].all()

    def step(taken: Tensor, *now: Tensor) -> tuple[Tensor, ...]:
        return taken + 1, *_exchanged(rows, u, lower, upper, _Pivots(*now))

    taken = torch.zeros((), dtype=torch.int64, device=rows.device)
    found: Sequence[Tensor] = torch.while_loop(go_on, step, (taken, *begun))
    torch._assert_async(found[-1].all(), "which limits of a sample bind was not found")
    return torch.where(found[-1].unsqueeze(-1), found[1], torch.nan)


def _exchanged(rows: Tensor, u: Tensor, lower: Tensor, upper: Tensor, now: _Pivots) -> _Pivots:
    """Return the next guess of which limits bind."""
    equal, met = lower == upper, _met(u).unsqueeze(-1)
    side = torch.where(equal & (now.side == 0), 1.0, now.side)
    prices, values = _at(rows, u, side, torch.where(side < 0, lower, upper), _RIDGE)
    passed = (values > upper + met).to(u) - (values < lower - met).to(u)
    rests = side == 0
    # ONNX's runtime chooses between numbers, not between truths.
    wrong = (rests & (passed != 0)) | (~rests & ~equal & (prices * side < -met))
    wrongs = wrong.sum(-1)
    fewer = wrongs < now.least
    left = torch.where(fewer, _PATIENCE, now.patience - 1)
    last = len(rows) - 1 - wrong.flip(-1).int().argmax(-1, keepdim=True)
    alone = torch.zeros_like(wrong).scatter(-1, last, True)
    exchange = wrong & (alone | (left > 0).unsqueeze(-1))
    side = torch.where(exchange, torch.where(rests, passed, 0.0), side)
    return _Pivots(side, torch.minimum(wrongs, now.least), left, wrongs == 0)
