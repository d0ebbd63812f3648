"""Weight fits under linear constraints on their scores, by a primal-dual interior-point method.

The scores X W + b are affine in the weights, so that the whole is one smooth convex problem in
(inputs + 1) outputs unknowns, however many samples there are: equalities are eliminated, and
limits held by slacks (Mehrotra, 1992; Boyd and Vandenberghe, Convex Optimization, 2004, section
11.7). Where limits are few it begins at once with all of them. Where they are many it begins at the
fit without constraints, and looks at the limits that weights pass: those are few, and more are
taken in as long as the weights pass more.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import ConstrainedFit, WeightFit, Weights
from liftednet.sets.polyhedron import Array, least_excess
from liftednet.solution import Solution, Status

from .base import Solver, default_tolerance
from .generalized_linear import GeneralizedLinear
from .newton_weights import jittered_cholesky
from .ridge import Ridge

_ROUNDS = 100  # of taking in limits
_STEPS = 100  # of one interior-point run; 20 suffice
_MOST = 4_000  # limits that are taken in at a time
_INDEPENDENT = 1e-11  # singular value, relative to the largest, of an equality of its own
_PASSED = 1e-10  # by which a limit is passed, relative to the scores, before it is taken in
_CONSISTENT = 1e-9  # by which equalities are missed, relative to their ends, where they can be met
_DONE = 1e-10  # relative stationarity and complementarity at which a run ends
_MET = 1e-12  # relative violation at which it ends
_NEAR = 1e5  # times these, what rounding may leave to the judge
_PATIENCE = 10  # steps that come no nearer, once so near
_FLOOR = 0.1  # of the complementarity that is asked, below which it only costs digits
_REFINED = 2  # times the solution of a system is refined by what it leaves
_NEAREST = 1e-2  # least slack that a run begins with, in units of rows of norm 1
_FARTHER = 2.0  # times as far off as before a step may lead: to ask that each comes nearer costs
# many, and some fits their end
_HALVINGS, _STUCK = 20, 3  # of a step, and steps in a row that need all of them: a failure
_LOOKED_AT = 2_000_000  # entries of rows up to which it is found out what cannot be met
_NEEDED = (
    "A wider layer below, or what a total is made of joined to the last layer's inputs, makes "
    "more of them possible; or loosen the constraint."
)
_ROUNDED = 1e-6  # relative excess that data in float32 may have by themselves
_ROOM = 1e-6  # in units of rows of norm 1, without which limits have none
_BOUNDARY = 0.995  # share of the way to the boundary that a step takes


@dataclass(frozen=True)
class InteriorPoint(Solver[ConstrainedFit, Weights, None]):
    """Solves a weight fit with a squared Frobenius penalty under linear constraints.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet.problems import ConstrainedFit, Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.constraints import Budget
        >>> from liftednet.divergences import tight
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import InteriorPoint, solve
        >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
        >>> fit = WeightFit(tight(Identity()), Design(x), 2 * x + 1, SquaredFrobenius(1e-9))
        >>> solution = solve(ConstrainedFit(fit, (Budget(2.0),)), InteriorPoint())
        >>> solution.value.bias.round(decimals=4), solution.duals[0].round(decimals=4)
        (tensor([0.], dtype=torch.float64), tensor([3.], dtype=torch.float64))
    """

    kind = ConstrainedFit
    tolerance: float | None = None
    name: str = field(default="interior-point", init=False)

    def refusal(self, problem: ConstrainedFit) -> str | None:
        """Ask for a smooth weight fit with a plain penalty, and linear constraints."""
        if not isinstance(problem.fit, WeightFit):
            return "it solves weight fits under constraints alone"
        if not problem.linear:
            return "it needs linear constraints, and CVXPY alone knows one of these"
        if not isinstance(problem.fit.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return GeneralizedLinear().obstacle(problem.fit)

    def solve(
        self, problem: ConstrainedFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the minimizer with its prices.

        Raises:
            SolverError: no weights meet the constraints; it names by how much they are missed.
        """
        started = time.perf_counter()
        smooth = _Smooth(problem)
        try:
            x, y, steps = self._from(smooth, start)
        except SolverError as error:
            raise SolverError(_unmet(smooth)) from error
        value, prices = smooth.weights(x), problem.split(y)
        objective, residual = problem.measure_with(value, prices)
        tolerance = self.tolerance or default_tolerance(problem.fit.targets.dtype)
        found = Solution(
            value, objective, residual, steps, tolerance, Status.STALLED,
            time.perf_counter() - started, self.name, prices,
        ).require_usable()  # fmt: skip
        if found.status is Status.STALLED and (why := _without_room(smooth)) is not None:
            raise SolverError(why)
        return found

    def _from(self, smooth: _Smooth, start: Weights | None) -> tuple[Tensor, Array, int]:
        """Return x, prices and steps from a start, or from nearer the end where it is too far."""
        try:
            return _solved(smooth, smooth.begun(start))
        except SolverError:
            if start is None:
                raise
            return _solved(smooth, smooth.begun(None))


class _Smooth:
    """The fit as a smooth convex function of x, [W; b] row after row about the design's shift."""

    def __init__(self, problem: ConstrainedFit) -> None:
        fit: WeightFit = problem.fit
        assert isinstance(fit.penalty, SquaredFrobenius)  # asked for by obstacle
        self.problem, self.fit, self.penalty = problem, fit, fit.penalty
        self.design = fit.design.centered
        self.shape = fit.design.features + fit.design.bias, fit.units
        parts = [part.clone() for _, part in self.design.rows()]
        self.inputs = torch.cat(parts)  # [X - shift, 1] in float64
        offset = torch.zeros(problem.shape) if fit.offset is None else fit.offset
        self.offset = offset.to(self.inputs)
        self.limits = problem.limits.moved(self.offset.cpu().numpy())  # on X W + b

    @property
    def few(self) -> bool:
        """Whether all limits fit into one run."""
        equal = self.limits.sides[0]
        return len(equal) - int(equal.sum()) <= _MOST

    def begun(self, start: Weights | None) -> Tensor:
        """Return a start, or the minimizer without constraints, which passes few of many limits."""
        if start is not None and self.few and not self.fit.quadratic:
            return self.design.joined(start).reshape(-1)
        plain: Solver[Any, Any, Any] = Ridge() if self.fit.quadratic else GeneralizedLinear()
        return self.design.joined(plain.solve(self.fit, start).value).reshape(-1)

    def weights(self, x: Tensor) -> Weights:
        """Return x as weights of the fit."""
        return self.design.split(x.view(self.shape))

    def products(self, x: Tensor) -> Tensor:
        """Return X W + b, (samples, outputs), without the offset."""
        return self.inputs @ x.view(self.shape)

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the whole objective, (unknowns,)."""
        stacked, features = x.view(self.shape), self.fit.design.features
        found = self.fit.gradient(stacked)[0].clone()
        found[:features] = self.penalty.stationarity(stacked[:features], found[:features], 1.0)
        return found.reshape(-1)

    def hessian(self, x: Tensor) -> Tensor:
        """Return the Hessian of the whole objective, (unknowns, unknowns)."""
        found = self.fit.lam * self.fit.hessian(self.products(x) + self.offset)
        found.diagonal()[: self.fit.design.features * self.shape[1]] += self.penalty.curvature
        return found

    def rows(self, chosen: Array) -> Tensor:
        """Return G where G x is A (X W + b) of the chosen limits, (chosen, unknowns)."""
        matrix, outputs = self.limits.matrix[chosen].tocsc(), self.shape[1]
        features = self.inputs.cpu().numpy()
        parts = [torch.from_numpy(matrix[:, o::outputs] @ features) for o in range(outputs)]
        return torch.stack(parts, -1).flatten(1).to(self.inputs)


class _Room:
    """The weights x that meet all equalities E x = e: x = origin + basis z, origin the nearest.

    Raises:
        SolverError: there are none.
    """

    def __init__(self, rows: Tensor, ends: Tensor, near: Tensor) -> None:
        self.any, self.origin = bool(len(rows)), near
        if not self.any:
            return
        left, singular, right = torch.linalg.svd(rows, full_matrices=False)
        rank = int((singular > _INDEPENDENT * singular[0]).sum())
        left, singular, right = left[:, :rank], singular[:rank], right[:rank]
        self.origin = near + right.T @ ((left.T @ (ends - rows @ near)) / singular)
        off = (rows @ self.origin - ends).abs().max()
        if off > _CONSISTENT * max(1.0, float(ends.abs().max())):
            raise SolverError("the equalities exclude each other.")
        self.basis = torch.linalg.qr(right.T, mode="complete").Q[:, rank:]
        self._inverse = (left / singular) @ right  # of E'

    def down(self, gradient: Tensor) -> Tensor:
        """Return a gradient, or rows of them, in z."""
        return gradient @ self.basis if self.any else gradient

    def up(self, move: Tensor) -> Tensor:
        """Return a move of z as one of x."""
        return self.basis @ move if self.any else move

    def prices(self, gradient: Tensor) -> Tensor:
        """Return the y with E'y = -gradient."""
        return -(self._inverse @ gradient) if self.any else gradient[:0]


def _solved(smooth: _Smooth, x: Tensor) -> tuple[Tensor, Array, int]:
    """Return x, the prices of all limits, and the steps taken."""
    limits, equal = smooth.limits, smooth.limits.sides[0]
    found, taken = np.zeros(len(equal)), np.zeros(len(equal), dtype=bool)
    if smooth.few:
        taken = ~equal
    room = _Room(smooth.rows(equal), torch.from_numpy(limits.upper[equal]).to(x), x)
    x, steps = room.origin, 0
    run: _Run | None = None
    for _ in range(_ROUNDS):
        u = smooth.products(x).cpu().numpy()
        excess = limits.excess(u)
        excess[equal | (taken if run else False)] = 0.0
        passed = excess > _PASSED * max(1.0, float(np.abs(u).max()))
        if run and not passed.any():
            break
        taken[np.argsort(-excess)[: min(_MOST, int(passed.sum()))]] = True
        run = _Run(smooth, room, taken)
        x, y, more = run.end(x)
        found[taken], steps = y.cpu().numpy(), steps + more
    assert run is not None  # there is one in the first round
    rest = smooth.gradient(x) + run.rows.T @ torch.from_numpy(found[taken]).to(x)
    found[equal] = room.prices(rest).cpu().numpy()
    return x, found, steps


class _Run:
    """One interior-point run: min f(x) over x of a room with G x + s = h, s >= 0, prices y >= 0."""

    def __init__(self, smooth: _Smooth, room: _Room, taken: Array) -> None:
        self.rows, limits = smooth.rows(taken), smooth.limits
        lower, upper = (
            torch.from_numpy(end[taken]).to(self.rows) for end in (limits.lower, limits.upper)
        )
        seen = self.rows.any(dim=1)  # other limits are on what no weights of this layer move
        if bool(((lower > _PASSED) | (upper < -_PASSED))[~seen].any()):
            raise SolverError("a limit is on what no weights of this layer move.")
        self.above, self.below = upper.isfinite() & seen, lower.isfinite() & seen
        sides = torch.cat([self.rows[self.above], -self.rows[self.below]])
        ends = torch.cat([upper[self.above], -lower[self.below]])
        self.norms = sides.norm(dim=1)
        self.sides, self.ends = sides / self.norms[:, None], ends / self.norms
        self.smooth, self.room, self.inner = smooth, room, room.down(self.sides)

    def end(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return x, the prices of the limits, and the steps.

        Raises:
            SolverError: it does not converge.
        """
        slack = self.ends - self.sides @ x
        s = slack.clamp(min=max(_NEAREST, -float(slack.min()))) if len(slack) else slack
        y, stuck = torch.full_like(s, self._size(x) / max(1, len(s))) / s, 0
        best, nearest, since = self._at(x, s, y), math.inf, 0
        for step in range(_STEPS):
            at, size = self._at(x, s, y), self._size(x)
            left = self._left(at, size)
            if left < nearest:
                best, nearest, since = at, left, step
            if left <= 1 or (nearest <= _NEAR and step - since == _PATIENCE):
                break
            move, ds, dy, aim = self._direction(at, size)
            length = _length(at, ds, dy)
            before, halvings = at.off(aim), 0
            while True:
                ahead = self._at(x + length * self.room.up(move), s + length * ds, y + length * dy)
                calm = self.smooth.fit.quadratic or ahead.off(aim) <= _FARTHER * before
                if calm or halvings == _HALVINGS:
                    break
                length, halvings = length / 2, halvings + 1
            x, s, y = ahead.x, ahead.s, ahead.y
            stuck = 0 if calm else stuck + 1
            if stuck == _STUCK:
                break
        if nearest > _NEAR:
            raise SolverError("it does not converge.")
        return best.x, self._prices(best.y), step

    def _at(self, x: Tensor, s: Tensor, y: Tensor) -> _At:
        gradient, pulled = self.room.down(self.smooth.gradient(x)), self.inner.T @ y
        return _At(x, s, y, gradient, pulled, self.sides @ x + s - self.ends)

    def _size(self, x: Tensor) -> float:
        """Return the size of the objective, in units of which a gap is small."""
        return 1 + abs(self.smooth.fit.measure(self.smooth.weights(x)).objective)

    def _left(self, at: _At, size: float) -> float:
        """Return how far it is from the end, at most 1 there."""
        cross = float(self.smooth.fit.lam * self.smooth.fit.cross.abs().max())
        none = at.gradient.new_zeros(1)  # where equalities leave no room
        each = (at.gradient, at.pulled), (at.gradient + at.pulled,)
        largest, off = (float(torch.cat([none, *x]).abs().max()) for x in each)
        found = off / (_DONE * max(cross, largest)) if off else 0.0
        if not len(at.s):
            return found
        missed = float(at.missed.abs().max()) / max(1.0, float(self.ends.abs().max()))
        return max(found, missed / _MET, float(at.s @ at.y) / (_DONE * size))

    def _direction(self, at: _At, size: float) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return Newton's step of x, s and y, and the product s y that it aims at.

        As Mehrotra's: a predictor says how far to center; where f is quadratic a corrector takes
        the products of its steps along. Slacks that go to 0 make the system nearly singular, so
        that its solutions are refined, and products are not made smaller than they need to be.
        """
        s, y, inner = at.s, at.y, self.inner
        curved = self.room.down(self.room.down(self.smooth.hessian(at.x)).T)
        factor = jittered_cholesky(curved + inner.T @ ((y / s)[:, None] * inner))

        def solved(right: Tensor, gone: Tensor, product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            pushed = inner.T @ ((product - y * gone) / s)
            move = torch.cholesky_solve((right - pushed)[:, None], factor)[:, 0]
            ds = gone - inner @ move
            return move, ds, (product - y * ds) / s

        def toward(product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            right, gone = -(at.gradient + at.pulled), -at.missed
            move, ds, dy = solved(right, gone, product)
            for _ in range(_REFINED):
                more = solved(
                    right - curved @ move - inner.T @ dy, gone - inner @ move - ds,
                    product - y * ds - s * dy,
                )  # fmt: skip
                move, ds, dy = move + more[0], ds + more[1], dy + more[2]
            return move, ds, dy

        if not len(s):
            return *toward(s), 0.0
        _, ds, dy = toward(-s * y)
        length, mean = _length(at, ds, dy), float(s @ y) / len(s)
        ahead = float((s + length * ds) @ (y + length * dy)) / len(s)
        aim = max((ahead / mean) ** 3 * mean, _FLOOR * _DONE * size / len(s))
        second = ds * dy if self.smooth.fit.quadratic else 0.0
        return *toward(aim - s * y - second), aim

    def _prices(self, y: Tensor) -> Tensor:
        """Return y of both ends as one price for each limit, in units of the limits."""
        y, count = y / self.norms, int(self.above.sum())
        found = torch.zeros(len(self.above), dtype=y.dtype, device=y.device)
        found[self.above] += y[:count]
        found[self.below] -= y[count:]
        return found


class _At(NamedTuple):
    """Where a run stands: x, s and y; the gradient of f and G'y, both in z; and G x + s - h."""

    x: Tensor
    s: Tensor
    y: Tensor
    gradient: Tensor
    pulled: Tensor
    missed: Tensor

    def off(self, aim: float) -> float:
        """Return the norm of all that Newton's method brings to 0 where s y shall be an aim."""
        return float(torch.cat([self.gradient + self.pulled, self.missed, self.s * self.y - aim])
                     .norm())  # fmt: skip


def _length(at: _At, ds: Tensor, dy: Tensor) -> float:
    """Return the longest step, at most 1, that keeps slacks and prices positive."""
    if not len(ds):
        return 1.0
    ratio = float(torch.cat([-ds / at.s, -dy / at.y]).max())
    return _BOUNDARY / max(ratio, _BOUNDARY)


def _unmet(smooth: _Smooth) -> str:
    """Return what to say where no weights of this layer meet the constraints."""
    begins, known = _count(smooth), _all_limits(smooth)
    if known is None:
        return f"no weights were found that meet the constraints, {begins}. {_NEEDED}"
    excess = least_excess(*known)
    if excess is None:
        missed = f"the interior-point method did not converge in {_STEPS} steps, {begins}."
        return _without_room(smooth) or missed
    ends = np.abs(np.concatenate(known[1:]))
    needed = _NEEDED
    if excess.max() < _ROUNDED * max(1.0, *ends[np.isfinite(ends)]):
        needed = (
            "So little is what float32 rounds away: give X, y and the constraint in float64. "
            f"Where they are: {_NEEDED}"
        )
    return (
        f"no weights of this layer meet all constraints, {begins}: what gives way is "
        f"{_naming(smooth, excess)}. {needed}"
    )


def _without_room(smooth: _Smooth) -> str | None:
    """Return what to say where weights meet limits at their ends alone, of endless prices."""
    if (known := _all_limits(smooth)) is None:
        return None
    norms = np.linalg.norm(known[0], axis=1)
    seen = norms > 0
    norms = np.where(seen, norms, 1.0)
    rows, lower, upper = known[0] / norms[:, None], known[1] / norms, known[2] / norms
    room = np.where(seen & (lower < upper), _ROOM, 0.0)
    excess = least_excess(rows, lower + room, upper - room)
    if excess is None:
        return None
    return (
        f"the weights of this layer that meet all constraints, {_count(smooth)}, leave no "
        f"room in {_naming(smooth, excess, how='')}: all of these weights meet some of its limits "
        f"with equality, which then have no price. {_NEEDED}"
    )


def _count(smooth: _Smooth) -> str:
    return f"{len(smooth.limits.lower):,} limits on {math.prod(smooth.shape):,} weights"


def _all_limits(smooth: _Smooth) -> tuple[Array, Array, Array] | None:
    """Return A, l and h of l <= A x <= h for the weights x; None where they are too many."""
    limits = smooth.limits
    if len(limits.lower) * math.prod(smooth.shape) > _LOOKED_AT:
        return None
    rows = smooth.rows(np.ones(len(limits.lower), dtype=bool)).cpu().numpy()
    return rows, limits.lower, limits.upper


def _naming(smooth: _Smooth, excess: Array, how: str = " by {:.3g}") -> str:
    problem = smooth.problem
    prices = zip(problem.constraints, problem.split(excess), strict=True)
    return " and ".join(
        f"{one!r}{how.format(float(x.max()))}" for one, x in prices if bool((x > 0).any())
    )
