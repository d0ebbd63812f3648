"""A penalty pi(W) on a weight matrix, sums of them, and the prox where CVXPY alone knows one.

A set is the penalty that is 0 on it: its prox is the nearest point, in whatever units.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.evaluation import stating
from liftednet.lazy import cvxpy as cp
from liftednet.sets.splitting import Meeting, Splitting
from liftednet.validation import require_positive

_ROUNDING = 64  # units in the last place that a norm or a meeting of points may be off
_DEGENERATE = 1e-9  # to which the points of terms come that barely touch
_NEAR = 1e-4  # likewise, where terms are bounds, which a smaller W can still meet
_COMPILED_ENTRIES = 1_000  # of W at most where CVXPY compiles a prox once
_TOLERANCES = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
_ATTEMPTS: tuple[tuple[str, dict[str, float]], ...] = (
    *(("CLARABEL", dict.fromkeys(_TOLERANCES, each)) for each in (1e-13, 1e-11, 1e-9)),
    ("SCS", {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 200_000}),
)
_TOLD = 1e-11  # by which points may be apart whose pulls only prove what W is
SQUARES = -1  # the place of squares, before all others


class Judgement(NamedTuple):
    """How far 0 is from gradient + dpi(W).

    Attributes:
        violation: (inputs, units), in units of the gradient.
        gap: by how much the linearized objective <gradient, W> + pi(W) is above its least value,
            were there no violation; 0 where a violation alone tells.
    """

    violation: Tensor
    gap: float = 0.0


class Penalty(ABC):
    """A convex function of a weight matrix W (inputs, units); biases are never penalized.

    Attributes:
        smooth: whether pi has a gradient, so that `stationarity` needs no smoothness.
        proximable: whether `prox` is known; only the reference solver does without it.
        closed_form: whether `prox` is cheap; else CVXPY solves a problem every time.
        convex: whether it is; of one that is not, `prox` is one of the nearest points, a fit ends
            where its gradient and the constraint meet, and CVXPY cannot state it.
        signed: whether entries have signs, so that a start must not rely on their cancelling.
        place: where its prox stands in a chain of proxes that is the prox of their sum (see
            `Sum`), `SQUARES` first; None where no such chain is known.
        by_rows: whether `prox` and `stationarity` take a step or smoothness for each row, too,
            (inputs, 1), as those of a sum over rows can.
        reach: what no entry of a W in the domain exceeds, infinity where there is no such bound.

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1, Penalty
        >>> isinstance(L1(0.1), Penalty), L1(0.1).value(torch.ones(2, 2).double()).item()
        (True, 0.4)
    """

    smooth: bool = False
    proximable: bool = True
    closed_form: bool = True
    convex: bool = True
    signed: bool = False
    place: int | None = None
    by_rows: bool = False

    @property
    def reach(self) -> float:
        """What no entry of a W in the domain exceeds."""
        return math.inf

    def __add__(self, other: Penalty) -> Sum:
        """Return the sum of two penalties, one list of terms."""
        if not isinstance(other, Penalty):
            return NotImplemented
        return Sum((*_terms(self), *_terms(other)))

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """Penalties of which it is the sum, squares apart from what has a kink."""
        return (self,)

    @property
    def curvature(self) -> float:
        """A constant c such that pi(W) - c |W|_F^2 / 2 is convex; the second derivative off 0."""
        return 0.0

    @abstractmethod
    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return pi(W) in CVXPY."""

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return constraints on W in CVXPY."""
        return []

    @abstractmethod
    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), a scalar."""

    @abstractmethod
    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|^2 / 2, (inputs, units)."""

    def ends(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
        """Return the least and the largest W where pi is 0 between them and nothing else.

        Both are (inputs, units), float64, infinite where there is none. None for other penalties.
        """
        return None

    def project(self, weight: Tensor) -> Tensor:
        """Return the point of the domain nearest to W, (inputs, units): the prox with t = 0."""
        return self.prox(weight, 0.0)

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain, taken in float64; 0 within."""
        return statement(self, tuple(weight.shape)).violation(weight)

    def begin(self, weight: Tensor) -> Tensor:
        """Return a start in the domain, from the identity and small entries, (inputs, units)."""
        return self.project(weight)

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints; some does."""
        return None

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: Any) -> Tensor:
        """Return how far 0 is from gradient + dpi(W), (inputs, units), in units of gradient.

        The prox-gradient mapping s (W - prox_{pi / s}(W - gradient / s)) with s the smoothness of
        the rest of the objective.
        """
        steep = torch.as_tensor(smoothness, dtype=torch.float64, device=weight.device)
        step: Any = 1 / steep.clamp(min=torch.finfo(weight.dtype).tiny)
        return (weight - self.prox(weight - step * gradient, step)) / step

    def judged(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Judgement:
        """Return how far 0 is from gradient + dpi(W), for a certificate.

        Within a bound it is the prox-gradient mapping of a step no longer than the bound, beside
        which any W would seem to stand still, and a duality gap: P = prox(W - step gradient) has
        the subgradient S = (W - P) / step - gradient, so that pi(W) - pi(P) - <W - P, S> is what W
        may lose. With several penalties that share W it is the same of each at its share of
        -gradient; any shares will do, so that what finds them is not relied upon.
        """
        if self.smooth or not self.convex or not math.isfinite(self.reach):
            return Judgement(self.stationarity(weight, gradient, smoothness))
        step = self._stride(gradient, smoothness)
        return _judged([self], weight, -gradient.unsqueeze(0), step)

    def duals(self, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the duals of the constraints of `domain`, at W where gradient + dpi(W) has 0.

        Those of CVXPY, in its shapes; nothing where W and the gradient do not tell them apart.
        """
        return ()

    def _stride(self, gradient: Tensor, smoothness: float) -> float:
        """Return the step of a judgement: 1 / s, or less, which leads as far as W may reach."""
        steepest = float(gradient.abs().max())
        return 1 / (max(smoothness, steepest / self.reach) or 1.0)


@dataclass(frozen=True, eq=False)
class Weighted(Penalty):
    """A penalty with a weight.

    Attributes:
        rho: the weight of the penalty, positive.

    Raises:
        DataError: rho is not positive and finite.
    """

    rho: float

    def __post_init__(self) -> None:
        """Refuse a rho that is not positive."""
        object.__setattr__(self, "rho", require_positive("rho", self.rho))

    def violation(self, weight: Tensor) -> float:
        """Return 0: every W is in the domain."""
        return 0.0


class Constrained(Penalty):
    """A constraint on W: 0 where it holds."""

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def value(self, weight: Tensor) -> Tensor:
        """Return 0, a scalar."""
        return weight.new_zeros(())

    @abstractmethod
    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain, taken in float64; 0 within."""


@dataclass(frozen=True, eq=False)
class Bounded(Constrained):
    """A constraint on W: 0 within the bound.

    Attributes:
        bound: the largest norm, positive.

    Raises:
        DataError: the bound is not positive and finite.
    """

    bound: float
    dim: ClassVar[int | None] = None  # along which vectors have a norm; None: W has one

    def __post_init__(self) -> None:
        """Refuse a bound that is not positive."""
        object.__setattr__(self, "bound", require_positive("bound", self.bound))

    @property
    def reach(self) -> float:
        """The bound."""
        return self.bound

    def inside(self, weight: Tensor) -> float:
        """Return the bound less what rounding of a projection could add to a norm."""
        return self.bound * (1 - _ROUNDING * torch.finfo(weight.dtype).eps)

    @abstractmethod
    def largest(self, weight: Tensor) -> float:
        """Return the norm that is bounded, taken in float64."""

    def duals(self, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return -<W_i, G_i> / bound of all W_i that have a norm, G the gradient."""
        return (-(weight * gradient).sum(self.dim).clamp(max=0) / self.bound,)

    def violation(self, weight: Tensor) -> float:
        """Return by how much the norm exceeds the bound."""
        return max(self.largest(weight) - self.bound, 0.0)


@dataclass(frozen=True)
class Sum(Penalty):
    """A sum of penalties; `a + b` builds it.

    Squares come first: they and |P - W|^2 / 2 are one square, so that
    prox_{t(q + f)}(W) = prox_{t' f}(prox_{t q}(W)) with t' = t / (1 + 2 t rho).

    Then come penalties with a place, one after the other: sum |W_ij| and W >= 0; sum |W_i|_2; the
    bound on |W_i|_2. There prox_{g + f}(x) = prox_f(prox_g(x)) for g before f (Yu, On Decomposing
    the Proximal Map, 2013): with y = prox_g(x) and p = prox_f(y), x - y is in dg(y) and y - p in
    df(p). Now f shrinks, p = s y with s in [0, 1] for every entry or row, and g has degree one in
    it, so that dg(y) lies in dg(s y): x - p is in dg(p) + df(p).

    Without a place, as for a bound on singular values, they are split (see `Splitting`). Where a
    term has no closed form, CVXPY takes the sum as a whole.

    Attributes:
        terms: the penalties.

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1, Nonnegative
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> (L1(1.0) + Nonnegative()).prox(W, 1.0)
        tensor([[2., 0.],
                [0., 0.]])
    """

    terms: tuple[Penalty, ...]

    def __post_init__(self) -> None:
        """Take over what all terms have in common."""
        known = all(term.closed_form and term.proximable for term in self.terms)
        object.__setattr__(self, "closed_form", known)
        for name, of in (("smooth", all), ("convex", all), ("signed", any)):
            object.__setattr__(self, name, of(getattr(term, name) for term in self.terms))
        rows = all(term.by_rows for term in self.terms) and not self.split
        object.__setattr__(self, "by_rows", rows)
        if not self.convex and len(self._kinked) > 1:
            raise DeclarationError(
                f"{self!r} has a term that is not convex: the prox of a sum is known for squares "
                "beside it alone."
            )

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """The parts of all terms."""
        return tuple(part for term in self.terms for part in term.parts)

    @property
    def curvature(self) -> float:
        """The sum of the terms' constants."""
        return sum(term.curvature for term in self.terms)

    def expression(self, weight: cp.Expression) -> cp.Expression:
        """Return the sum of the terms."""
        return cp.sum([term.expression(weight) for term in self.terms])

    def domain(self, weight: cp.Expression) -> list[cp.Constraint]:
        """Return the constraints of all terms."""
        return [constraint for term in self.terms for constraint in term.domain(weight)]

    def value(self, weight: Tensor) -> Tensor:
        """Return the sum of the terms, a scalar."""
        return torch.stack([term.value(weight) for term in self.terms]).sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|_F^2 / 2, (inputs, units).

        Raises:
            SolverError: splitting does not converge, or CVXPY's solvers fail.
        """
        if not self.closed_form:
            return statement(self, tuple(weight.shape)).prox(weight, t)
        for square in self.squares:
            weight, t = square.prox(weight, t), t / (1 + t * square.curvature)
        if not self.split:
            parts = self._others or self._chain
            return reduce(lambda point, part: part.prox(point, t), parts, weight)
        goal = _ROUNDING * torch.finfo(torch.float64).eps
        met = self._met(weight.double(), t, goal)
        return self.nearly(met).to(weight)

    def nearly(self, met: Meeting) -> Tensor:
        """Return the point where the members have met, (inputs, units), within their bounds.

        Raises:
            SolverError: they have not met.
        """
        found, bounds = met.points[-1], [x for x in self._others if isinstance(x, Bounded)]
        shrinks = len(bounds) == len(self._others)
        if not met.apart <= (_NEAR if shrinks else _DEGENERATE):
            raise SolverError(
                f"the prox of a sum of penalties is not found in {met.rounds} rounds: the points "
                f"of its terms are {met.apart:.1e} apart. They may exclude each other.",
                found,
            )
        for member in bounds if shrinks else ():
            norm = member.largest(found)
            if norm > member.bound:  # where terms only nearly meet
                found = found * (member.inside(found) / norm)
        return found

    def _met(self, target: Tensor, t: float, goal: float) -> Meeting:
        """Return where members meet in the prox of t times them, and their pulls there."""

        def model(value: Tensor, center: Tensor, weight: float) -> Tensor:
            return (target + weight * center) / (1 + weight)

        maps = [lambda w, step, own=member: own.prox(w, t * step) for member in self.members]
        rho = max(1.0, float(target.abs().max()) / self.reach)
        begin = (target / rho).expand(len(maps), *target.shape)  # no farther than W may reach
        return Splitting(maps, model, target, begin, rho).meeting(goal)

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain of a term, at most."""
        return max(term.violation(weight) for term in self.terms)

    def begin(self, weight: Tensor) -> Tensor:
        """Return a start in the domain, from those of the terms in turn, (inputs, units)."""
        return self.project(reduce(lambda start, term: term.begin(start), self.terms, weight))

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints of all terms."""
        if not self.closed_form:
            return statement(self, shape).refuse_infeasible()
        for term in self.terms:
            term.refuse_infeasible(shape)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: Any) -> Tensor:
        """Return gradient + sum dpi(W) of smooth terms, else the prox-gradient mapping."""
        if not self.smooth:
            return super().stationarity(weight, gradient, smoothness)
        for term in self.terms:
            gradient = term.stationarity(weight, gradient, smoothness)
        return gradient

    def judged(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Judgement:
        """Return how far 0 is from gradient + sum dpi(W), for a certificate."""
        if not self.split:
            return super().judged(weight, gradient, smoothness)
        for square in self.squares:
            gradient = square.stationarity(weight, gradient, smoothness)
        step = self._stride(gradient, smoothness)
        pulls = self._met(weight - step * gradient, step, _TOLD).pulls / step
        pulls -= (gradient + pulls.sum(0)) / len(pulls)
        return _judged(self.members, weight, pulls, step)

    @property
    def reach(self) -> float:
        """The least of the terms."""
        return min(term.reach for term in self.terms)

    @property
    def split(self) -> bool:
        """Whether the prox needs those of several members in turn."""
        return self.closed_form and len(self._others) + bool(self._chain) > 1

    @cached_property
    def members(self) -> tuple[Penalty, ...]:
        """The penalties besides squares, each with a prox; the chain, with exact zeros, is last."""
        chain = [Sum(tuple(self._chain))] if len(self._chain) > 1 else self._chain
        return (*self._others, *chain)

    @cached_property
    def squares(self) -> list[Penalty]:
        """The squares among the parts."""
        return [part for part in self.parts if part.place == SQUARES]

    @cached_property
    def _chain(self) -> list[Penalty]:
        placed = (part for part in self._kinked if part.place is not None)
        return sorted(placed, key=lambda part: part.place or 0)

    @cached_property
    def _others(self) -> list[Penalty]:
        return [part for part in self._kinked if part.place is None]

    @cached_property
    def _kinked(self) -> list[Penalty]:
        """Parts besides squares, with one bound of a kind: the smallest."""
        kinked = [part for part in self.parts if part.place != SQUARES]
        bounded = [part for part in kinked if isinstance(part, Bounded)]
        smallest = {type(part): part for part in sorted(bounded, key=lambda part: -part.bound)}
        return [*(part for part in kinked if not isinstance(part, Bounded)), *smallest.values()]


def _terms(penalty: Penalty) -> tuple[Penalty, ...]:
    return penalty.terms if isinstance(penalty, Sum) else (penalty,)


def _judged(members: Sequence[Penalty], weight: Tensor, pulls: Tensor, step: float) -> Judgement:
    """Return the judgement of penalties, each at its share S_k of what is pulled."""
    off, gap = torch.zeros_like(weight), 0.0
    for member, pull in zip(members, pulls, strict=True):
        shifted = weight + step * pull
        point = member.prox(shifted, step)
        moved, subgradient = weight - point, (shifted - point) / step
        parts = [member.value(weight), -member.value(point), -(moved * subgradient).sum()]
        lost, size = float(sum(parts)), float(sum(part.abs() for part in parts))
        rounding = _ROUNDING * torch.finfo(weight.dtype).eps * size
        off, gap = off + moved.abs() / step, gap + (abs(lost) if abs(lost) > rounding else 0.0)
    return Judgement(off, gap)


class Statement:
    """min over P of t pi(P) + |P - W|_F^2 / 2 in CVXPY (DPP), compiled on its first solve.

    A large one is compiled on every solve: DPP takes a dense matrix of variables by parameters.

    Attributes:
        name: of the penalty.
        variable: P.
        center: W.
        t: the step, at least 0.
        expression: pi(P).
        problem: the whole.

    Raises:
        DeclarationError: CVXPY cannot take what the penalty states.
    """

    def __init__(self, penalty: Penalty, shape: tuple[int, int]) -> None:
        """State it for W of a shape."""
        self.name, self.t = repr(penalty), cp.Parameter(nonneg=True)
        self.variable, self.center = cp.Variable(shape, name="W"), cp.Parameter(shape)
        distance = cp.sum_squares(self.variable - self.center) / 2
        with stating(self.name):
            self.expression = penalty.expression(self.variable)
            objective = cp.Minimize(self.t * self.expression + distance)
            self.problem = cp.Problem(objective, penalty.domain(self.variable))

    def evaluate(self, weight: Tensor) -> float:
        """Return pi(W)."""
        self.variable.value = _to_numpy(weight)
        return float(np.asarray(self.expression.value).item())

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the constraints."""
        self.variable.value = _to_numpy(weight)
        found = [np.max(constraint.violation()) for constraint in self.problem.constraints]
        return float(max(found, default=0.0))

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return P, (inputs, units).

        Raises:
            SolverError: no solver finds it.
        """
        status = self._status(_to_numpy(weight), float(t))
        if status != cp.OPTIMAL:
            raise SolverError(f"CVXPY does not solve the prox of {self.name}: {status}.")
        return torch.from_numpy(self.variable.value).to(weight)

    def refuse_infeasible(self) -> None:
        """Raise `DataError` where the constraints exclude each other.

        Raises:
            SolverError: no solver can tell.
        """
        status = self._status(np.zeros(self.variable.shape), 0.0)
        if status == cp.INFEASIBLE:
            stated = ", ".join(map(str, self.problem.constraints))
            raise DataError(
                f"no W of shape {self.variable.shape} satisfies {self.name}: it asks for {stated}."
            )
        if status != cp.OPTIMAL:
            raise SolverError(f"CVXPY cannot tell whether {self.name} can be satisfied: {status}.")

    def _status(self, center: np.ndarray[Any, Any], t: float) -> str:
        """Solve by the first solver that can tell, and return what it or the last one tells."""
        self.center.value, self.t.value = center, t
        large, status = self.variable.size > _COMPILED_ENTRIES, ""
        for backend, options in _ATTEMPTS:
            with warnings.catch_warnings():
                # an inaccurate solution is not taken
                warnings.filterwarnings("ignore", message="Solution may be inaccurate")
                try:
                    self.problem.solve(solver=backend, ignore_dpp=large, **options)
                    status = str(self.problem.status)
                except cp.error.SolverError as error:
                    status = str(error)
            if status in (cp.OPTIMAL, cp.INFEASIBLE):
                break
        return status


@lru_cache(maxsize=16)
def statement(penalty: Penalty, shape: tuple[int, int]) -> Statement:
    """Return the statement of a penalty for weights of one shape, made once."""
    return Statement(penalty, shape)


def _to_numpy(weight: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return weight.detach().double().cpu().numpy()
