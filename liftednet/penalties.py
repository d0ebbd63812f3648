"""Penalties pi(W) on a weight matrix: what a weight fit adds to its divergence.

Penalties add up, `L1(0.1) + Nonnegative()`, and each of them has a proximal map, so that a method
of training can hold it at every step.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_number, require_positive

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

Map = Callable[[Tensor], Tensor]

_ROUNDING = 64  # units in the last place that a norm or a meeting of points may be off
_DEGENERATE = 1e-9  # to which Dykstra's algorithm comes where terms barely touch
_COMPILED_ENTRIES = 1_000  # of W at most where CVXPY compiles a prox once
_CONIC_SLACK = 1e-6  # by which CVXPY's solvers leave a constraint
_ROUNDS = 10_000  # of Dykstra's algorithm
_FARTHEST = 10.0  # times W, beyond which its corrections are not mixed


class Penalty(ABC):
    """A convex function of a weight matrix W (inputs, units); biases are never penalized.

    Attributes:
        smooth: whether pi has a gradient, so that `stationarity` needs no smoothness.
        proximable: whether `prox` is known; only the reference solver does without it.
        closed_form: whether `prox` is cheap; else CVXPY solves a problem every time.
        entrywise: whether pi is a sum over entries, each quadratic on either side of 0, so that
            a solver that knows which entries are 0 can take Newton's step.
        place: where its prox stands in a chain of proxes that is the prox of their sum (see
            `Sum`), or None where no such chain is known.
    """

    smooth: bool = False
    proximable: bool = True
    closed_form: bool = True
    entrywise: bool = False
    place: int | None = None

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
    def expression(self, weight: Expression) -> Expression:
        """Return pi(W) in CVXPY."""

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return constraints on W in CVXPY."""
        return []

    @abstractmethod
    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), a scalar."""

    @abstractmethod
    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|^2 / 2, (inputs, units)."""

    def project(self, weight: Tensor) -> Tensor:
        """Return the point of the domain nearest to W, (inputs, units): the prox with t = 0."""
        return self.prox(weight, 0.0)

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether W is in the domain, but for a slack and for rounding."""
        return _statement(self, tuple(weight.shape)).violation(weight) <= slack + _CONIC_SLACK

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints; some does."""
        return None

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return how far 0 is from gradient + dpi(W), (inputs, units), in units of gradient.

        The prox-gradient mapping s (W - prox_{pi / s}(W - gradient / s)) with s the smoothness of
        the rest of the objective.
        """
        step = 1 / max(smoothness, torch.finfo(weight.dtype).tiny)
        return (weight - self.prox(weight - step * gradient, step)) / step


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

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return True: every W is in the domain."""
        return True


@dataclass(frozen=True, eq=False)
class Bounded(Penalty):
    """A constraint on W: 0 within the bound.

    Attributes:
        bound: the largest norm, positive.

    Raises:
        DataError: the bound is not positive and finite.
    """

    bound: float

    def __post_init__(self) -> None:
        """Refuse a bound that is not positive."""
        object.__setattr__(self, "bound", require_positive("bound", self.bound))

    def expression(self, weight: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def value(self, weight: Tensor) -> Tensor:
        """Return 0, a scalar."""
        return weight.new_zeros(())

    @abstractmethod
    def largest(self, weight: Tensor) -> float:
        """Return the norm that is bounded, taken in float64."""

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether the norm is within the bound, a slack and rounding."""
        rounding = max(_ROUNDING * torch.finfo(weight.dtype).eps, _DEGENERATE)
        return self.largest(weight) <= self.bound * (1 + rounding) + slack


@dataclass(frozen=True, eq=False)
class SquaredFrobenius(Weighted):
    """pi(W) = rho |W - W_0|_F^2, a pull to zero or to previous weights.

    Lifted Neural Networks, eq. (5).

    Attributes:
        rho: the weight of the penalty, positive.
        center: W_0, (inputs, units), or None for zero.
    """

    center: Tensor | None = None
    smooth = True
    entrywise = True

    @property
    def curvature(self) -> float:
        """2 rho."""
        return 2 * self.rho

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W - W_0|_F^2."""
        if self.center is None:
            return self.rho * cp.sum_squares(weight)
        return self.rho * cp.sum_squares(weight - self.center.double().cpu().numpy())

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W - W_0|_F^2, a scalar."""
        return self.rho * self._shifted(weight).square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return (W + 2 t rho W_0) / (1 + 2 t rho)."""
        pulled = weight if self.center is None else weight + 2 * t * self.rho * self._at(weight)
        return pulled / (1 + 2 * t * self.rho)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return gradient + 2 rho (W - W_0), (inputs, units)."""
        return gradient + 2 * self.rho * self._shifted(weight)

    def linear_term(self, weight: Tensor) -> Tensor:
        """Return 2 rho W_0, what the penalty adds to the right-hand side of a ridge system."""
        return torch.zeros_like(weight) if self.center is None else 2 * self.rho * self._at(weight)

    def _at(self, weight: Tensor) -> Tensor:
        assert self.center is not None  # callers have asked
        return self.center.to(weight)

    def _shifted(self, weight: Tensor) -> Tensor:
        return weight if self.center is None else weight - self._at(weight)


@dataclass(frozen=True)
class L1(Weighted):
    """pi(W) = rho sum |W_ij|, which makes weights sparse.

    Attributes:
        rho: the weight of the penalty, positive.
    """

    entrywise = True
    place = 0

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W|_1."""
        return self.rho * cp.sum(cp.abs(weight))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_1, a scalar."""
        return self.rho * weight.abs().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return sign(W) max(|W| - t rho, 0): W less its own part in [-t rho, t rho]."""
        return weight - weight.clamp(-t * self.rho, t * self.rho)


@dataclass(frozen=True)
class GroupLasso(Weighted):
    """pi(W) = rho sum_i |W_i|_2 over the rows of W, which switches whole inputs off.

    Attributes:
        rho: the weight of the penalty, positive.
    """

    place = 1

    def expression(self, weight: Expression) -> Expression:
        """Return rho times the sum of the row norms."""
        return self.rho * cp.sum(cp.norm(weight, 2, axis=1))

    def value(self, weight: Tensor) -> Tensor:
        """Return rho times the sum of the row norms, a scalar."""
        return self.rho * weight.norm(dim=1).sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W_i max(1 - t rho / |W_i|, 0) for every row."""
        norms = weight.norm(dim=1, keepdim=True)
        shrunk = (norms - t * self.rho).clamp(min=0)
        return weight * (shrunk / norms.clamp(min=torch.finfo(weight.dtype).tiny))


@dataclass(frozen=True)
class Nonnegative(Weighted):
    """pi(W) = rho |W|_F^2 on W >= 0.

    Attributes:
        rho: the weight of the penalty, positive, or 0 for the constraint alone.

    Raises:
        DataError: rho is negative or not finite.
    """

    rho: float = 0.0
    entrywise = True
    place = 0

    def __post_init__(self) -> None:
        """Refuse a negative rho."""
        if not is_number(self.rho) or self.rho != 0:
            super().__post_init__()

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """A square, and the constraint alone."""
        return (SquaredFrobenius(self.rho), Nonnegative()) if self.rho else (self,)

    @property
    def curvature(self) -> float:
        """2 rho."""
        return 2 * self.rho

    def expression(self, weight: Expression) -> Expression:
        """Return rho |W|_F^2."""
        return self.rho * cp.sum_squares(weight)

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return W >= 0."""
        return [weight >= 0]

    def value(self, weight: Tensor) -> Tensor:
        """Return rho |W|_F^2, a scalar."""
        return self.rho * weight.square().sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return max(W, 0) / (1 + 2 t rho)."""
        positive = weight.clamp(min=0)
        return positive / (1 + 2 * t * self.rho) if self.rho else positive

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether no entry is below -slack."""
        return bool((weight >= -slack).all())


@dataclass(frozen=True)
class RowNorm(Bounded):
    """pi(W) = 0 where every row of W has norm at most `bound`.

    Attributes:
        bound: the largest row norm, positive.
    """

    place = 2

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W_i|_2 <= bound for every row."""
        return [cp.norm(weight, 2, axis=1) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with longer rows scaled down to the bound."""
        norms = weight.norm(dim=1, keepdim=True)
        return weight * (self.bound / norms.clamp(min=self.bound))

    def largest(self, weight: Tensor) -> float:
        """Return the largest row norm."""
        return float(weight.double().norm(dim=1).max())


@dataclass(frozen=True)
class SpectralNorm(Bounded):
    """pi(W) = 0 where no singular value of W exceeds `bound`.

    With bound 1 it is the convex hull of the matrices with orthonormal columns (or rows), the
    constraint that Lifted Neural Networks name as future work; orthogonality itself is not convex.

    Attributes:
        bound: the largest singular value, positive.
    """

    bound: float = 1.0

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return |W|_2 <= bound."""
        return [cp.sigma_max(weight) <= self.bound]

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return W with larger singular values cut down to the bound."""
        left, singular, right = torch.linalg.svd(weight, full_matrices=False)
        return (left * singular.clamp(max=self.bound)) @ right

    def largest(self, weight: Tensor) -> float:
        """Return the largest singular value."""
        return float(torch.linalg.matrix_norm(weight.double(), 2))


@dataclass(frozen=True)
class Declared(Penalty):
    """A penalty that is declared in CVXPY alone, which solves a problem for every prox.

    `Declared(lambda W: 0.1 * cp.norm1(W), constraints=lambda W: [W >= 0])`.

    Attributes:
        function: takes W (inputs, units) as a CVXPY expression and returns pi(W); None for 0.
        constraints: takes W and returns constraints on it, or one; None for none.

    Raises:
        DeclarationError: there is neither; at first use, what they return is not convex.
    """

    function: Callable[[Expression], Expression | float] | None = None
    constraints: Callable[[Expression], Sequence[Constraint] | Constraint] | None = None
    closed_form = False

    def __post_init__(self) -> None:
        """Refuse a penalty of nothing."""
        if self.function is None and self.constraints is None:
            raise DeclarationError("Declared needs a function of W, constraints on W, or both.")

    def expression(self, weight: Expression) -> Expression:
        """Return the declared pi(W).

        Raises:
            DeclarationError: it is not a convex scalar to CVXPY.
        """
        found = cp.Constant(0.0) + (0.0 if self.function is None else self.function(weight))
        if not found.is_scalar():
            raise DeclarationError(f"pi(W) must be a scalar; {found} has shape {found.shape}.")
        if not found.is_convex():
            raise DeclarationError(
                f"pi(W) must be convex; to CVXPY the curvature of {found} is {found.curvature}."
            )
        return found

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return the declared constraints.

        Raises:
            DeclarationError: one is no constraint, or not convex to CVXPY.
        """
        found = [] if self.constraints is None else self.constraints(weight)
        constraints = list(found) if isinstance(found, Sequence) else [found]
        for constraint in constraints:
            if not isinstance(constraint, cp.Constraint):
                raise DeclarationError(f"constraints must return constraints, got {constraint!r}.")
            if not constraint.is_dcp():
                raise DeclarationError(f"the constraint {constraint} is not convex to CVXPY.")
        return constraints

    def value(self, weight: Tensor) -> Tensor:
        """Return pi(W), evaluated by CVXPY in float64."""
        return weight.new_tensor(_statement(self, tuple(weight.shape)).evaluate(weight))

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|_F^2 / 2 by CVXPY, (inputs, units).

        Raises:
            SolverError: CVXPY's solvers fail, or the constraints exclude each other.
        """
        return _statement(self, tuple(weight.shape)).prox(weight, t)

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints."""
        _statement(self, shape).refuse_infeasible()


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

    Without a place, as for a bound on singular values, Dykstra's proximal algorithm takes over.
    Where a term has no closed form, CVXPY takes the sum as a whole.

    Attributes:
        terms: the penalties.
    """

    terms: tuple[Penalty, ...]
    smooth: bool = field(init=False, repr=False, compare=False)
    closed_form: bool = field(init=False, repr=False, compare=False)
    entrywise: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take over what all terms have in common."""
        known = (term.closed_form and term.proximable for term in self.terms)
        object.__setattr__(self, "closed_form", all(known))
        object.__setattr__(self, "smooth", all(term.smooth for term in self.terms))
        object.__setattr__(self, "entrywise", all(term.entrywise for term in self.terms))

    @property
    def parts(self) -> tuple[Penalty, ...]:
        """The parts of all terms."""
        return tuple(part for term in self.terms for part in term.parts)

    @property
    def curvature(self) -> float:
        """The sum of the terms' constants."""
        return sum(term.curvature for term in self.terms)

    def expression(self, weight: Expression) -> Expression:
        """Return the sum of the terms."""
        return cp.sum([term.expression(weight) for term in self.terms])

    def domain(self, weight: Expression) -> list[Constraint]:
        """Return the constraints of all terms."""
        return [constraint for term in self.terms for constraint in term.domain(weight)]

    def value(self, weight: Tensor) -> Tensor:
        """Return the sum of the terms, a scalar."""
        return torch.stack([term.value(weight) for term in self.terms]).sum()

    def prox(self, weight: Tensor, t: float) -> Tensor:
        """Return argmin over P of t pi(P) + |P - W|_F^2 / 2, (inputs, units).

        Raises:
            SolverError: Dykstra's algorithm does not converge, or CVXPY's solvers fail.
        """
        if not self.closed_form:
            return _statement(self, tuple(weight.shape)).prox(weight, t)
        for square in self._squares:
            weight, t = square.prox(weight, t), t / (1 + 2 * t * square.rho)
        maps: list[Map] = [partial(other.prox, t=t) for other in self._others]
        if self._chain:  # comes last, so that zeros and signs are exact
            maps.append(partial(self._chained, t=t))
        return _dykstra(maps, weight) if len(maps) > 1 else _composed(maps, weight)

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether W is in the domain of every term."""
        return all(term.holds(weight, slack) for term in self.terms)

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints of all terms."""
        if not self.closed_form:
            return _statement(self, shape).refuse_infeasible()
        for term in self.terms:
            term.refuse_infeasible(shape)

    def stationarity(self, weight: Tensor, gradient: Tensor, smoothness: float) -> Tensor:
        """Return gradient + sum dpi(W) of smooth terms, else the prox-gradient mapping."""
        if not self.smooth:
            return super().stationarity(weight, gradient, smoothness)
        for term in self.terms:
            gradient = term.stationarity(weight, gradient, smoothness)
        return gradient

    @cached_property
    def _squares(self) -> list[SquaredFrobenius]:
        return [part for part in self.parts if isinstance(part, SquaredFrobenius)]

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
        bounded = [part for part in self.parts if isinstance(part, Bounded)]
        smallest = {type(part): part for part in sorted(bounded, key=lambda part: -part.bound)}
        others = (part for part in self.parts if not isinstance(part, (Bounded, SquaredFrobenius)))
        return [*others, *smallest.values()]

    def _chained(self, weight: Tensor, t: float) -> Tensor:
        return _composed([partial(part.prox, t=t) for part in self._chain], weight)


def _terms(penalty: Penalty) -> tuple[Penalty, ...]:
    return penalty.terms if isinstance(penalty, Sum) else (penalty,)


def _composed(maps: Sequence[Map], weight: Tensor) -> Tensor:
    return reduce(lambda point, step: step(point), maps, weight)


def _dykstra(maps: Sequence[Map], weight: Tensor) -> Tensor:
    """Return the prox of a sum from the proxes of its terms, (inputs, units).

    Dykstra's proximal algorithm (Bauschke and Combettes, 2008) with Anderson's mixing, which
    takes a sixth of the rounds, and few where it would need millions.

    Raises:
        SolverError: the points of the terms do not meet within `_ROUNDS` rounds.
    """
    target = weight.double()
    largest, mixing = float(target.abs().max()), Mixing(_FARTHEST * float(target.norm()))
    held = target.new_zeros(len(maps) - 1, *target.shape)
    for _ in range(_ROUNDS):
        points, released = _dykstra_round(maps, target, held)
        gap = max(float((one - points[-1]).abs().max()) for one in points)
        if gap <= _ROUNDING * torch.finfo(target.dtype).eps * largest:
            break
        held = mixing.following(held, released)
    if gap <= _DEGENERATE * largest:
        return points[-1].to(weight)
    raise SolverError(
        f"Dykstra's algorithm has not found the prox of a sum of penalties in {_ROUNDS} rounds: "
        f"its terms are {gap:.1e} apart. They may exclude each other.",
        points[-1].to(weight),
    )


def _dykstra_round(
    maps: Sequence[Map], target: Tensor, held: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return the points x_k = prox_k(x_{k-1} + c_k), and x_{k-1} + c_k - x_k from the second on.

    With x_0 + c_1 = W - (c_2 + ...). What is left over in each step is in df_k(x_k), and all of
    it is W less the last point: where the points meet, they are the prox, whatever the c_k were.

    Args:
        maps: prox_k.
        target: W, (inputs, units).
        held: c_k from the second on, (terms - 1, inputs, units).
    """
    points, released = [maps[0](target - held.sum(0))], []
    for step, correction in zip(maps[1:], held, strict=True):
        shifted = points[-1] + correction
        points.append(step(shifted))
        released.append(shifted - points[-1])
    return points, torch.stack(released)


class Mixing:
    """Anderson's mixing for a nonexpansive map T: where T(z) - z would be least by past changes.

    A mixture that does not lessen it is given up, and T itself goes on from the best z. One that
    goes far is not tried: T's way back would be long.
    """

    def __init__(self, farthest: float = torch.inf) -> None:
        """Begin without a past.

        Args:
            farthest: the norm of a mixture at most.
        """
        self._farthest = farthest
        self._values, self._residuals = deque[Tensor](maxlen=6), deque[Tensor](maxlen=6)
        self._best, self._safe = torch.inf, torch.empty(0)

    def following(self, value: Tensor, mapped: Tensor) -> Tensor:
        """Return the value to go on with, z and T(z) given."""
        residual = mapped - value
        size = float(residual.norm())
        if size > self._best:
            return self._given_up(mapped)
        self._best, self._safe = size, mapped
        self._values.append(value.flatten())
        self._residuals.append(residual.flatten())
        mixed = self._mixed(residual) if len(self._values) > 1 else mapped
        return mixed if float(mixed.norm()) <= self._farthest else mapped

    def _given_up(self, mapped: Tensor) -> Tensor:
        mixed = len(self._values) > 1
        self._values.clear()
        self._residuals.clear()
        return self._safe if mixed else mapped

    def _mixed(self, residual: Tensor) -> Tensor:
        moved, changed = _changes(self._values), _changes(self._residuals)
        shares = torch.linalg.pinv(changed, rtol=1e-10) @ residual.flatten()
        return self._safe - ((moved + changed) @ shares).view_as(residual)


def _changes(past: Iterable[Tensor]) -> Tensor:
    """Return differences of successive vectors, (entries, vectors - 1)."""
    return torch.stack(tuple(past), 1).diff(dim=1)


def _precise(tolerance: float) -> dict[str, float]:
    return dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)


_ATTEMPTS: tuple[tuple[str, dict[str, float]], ...] = (
    *(("CLARABEL", _precise(tolerance)) for tolerance in (1e-13, 1e-11, 1e-9)),
    ("SCS", {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 200_000}),
)


@dataclass(frozen=True)
class _Statement:
    """min over P of t pi(P) + |P - W|_F^2 / 2 in CVXPY (DPP), compiled on its first solve.

    A large one is compiled on every solve: DPP takes a dense matrix of variables by parameters.

    Attributes:
        name: of the penalty.
        variable: P.
        center: W.
        t: the step, at least 0.
        expression: pi(P).
        problem: the whole.
    """

    name: str
    variable: cp.Variable
    center: cp.Parameter
    t: cp.Parameter
    expression: Expression
    problem: cp.Problem

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
        status = ""
        for backend, options in _ATTEMPTS:
            status = self._attempt(backend, options)
            if status in (cp.OPTIMAL, cp.INFEASIBLE):
                break
        return status

    def _attempt(self, backend: str, options: dict[str, float]) -> str:
        with warnings.catch_warnings():
            # an inaccurate solution is not taken
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            try:
                large = self.variable.size > _COMPILED_ENTRIES
                self.problem.solve(solver=backend, ignore_dpp=large, **options)
            except cp.error.SolverError as error:
                return str(error)
        return str(self.problem.status)


@lru_cache(maxsize=16)
def _statement(penalty: Penalty, shape: tuple[int, int]) -> _Statement:
    """Return the statement of a penalty for weights of one shape."""
    variable, center = cp.Variable(shape, name="W"), cp.Parameter(shape)
    t, expression = cp.Parameter(nonneg=True), penalty.expression(variable)
    objective = cp.Minimize(t * expression + cp.sum_squares(variable - center) / 2)
    problem = cp.Problem(objective, penalty.domain(variable))
    return _Statement(repr(penalty), variable, center, t, expression, problem)


def _to_numpy(weight: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    array: np.ndarray[Any, np.dtype[np.float64]] = weight.detach().double().cpu().numpy()
    return array
