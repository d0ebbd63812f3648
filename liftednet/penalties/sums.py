"""Sums of penalties, and their exact prox: compositions, Dykstra's algorithm, Anderson's mixing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from liftednet.errors import DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.penalties.catalogue import SquaredFrobenius
from liftednet.penalties.penalty import DEGENERATE, ROUNDING, Bounded, Penalty
from liftednet.penalties.statement import statement

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression

Map = Callable[[Tensor], Tensor]

_ROUNDS, _PATIENCE, _NEAR = 10_000, 300, 1e-4  # of Dykstra's algorithm
_FARTHEST = 10.0  # times W, beyond which its corrections are not mixed


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

    Example:
        >>> import torch
        >>> from liftednet.penalties import L1, Nonnegative
        >>> W = torch.tensor([[3.0, -4.0], [0.5, 0.0]])
        >>> (L1(1.0) + Nonnegative()).prox(W, 1.0)
        tensor([[2., 0.],
                [0., 0.]])
    """

    terms: tuple[Penalty, ...]
    smooth: bool = field(init=False, repr=False, compare=False)
    closed_form: bool = field(init=False, repr=False, compare=False)
    convex: bool = field(init=False, repr=False, compare=False)
    signed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Take over what all terms have in common."""
        known = (term.closed_form and term.proximable for term in self.terms)
        object.__setattr__(self, "closed_form", all(known))
        object.__setattr__(self, "smooth", all(term.smooth for term in self.terms))
        object.__setattr__(self, "signed", any(term.signed for term in self.terms))
        object.__setattr__(self, "convex", all(term.convex for term in self.terms))
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
            return statement(self, tuple(weight.shape)).prox(weight, t)
        for square in self._squares:
            weight, t = square.prox(weight, t), t / (1 + 2 * t * square.rho)
        maps: list[Map] = [partial(other.prox, t=t) for other in self._others]
        if self._chain:  # comes last, so that zeros and signs are exact
            maps.append(partial(self._chained, t=t))
        if len(maps) <= 1:
            return _composed(maps, weight)
        if not all(isinstance(other, Bounded) for other in self._others):
            return _dykstra(maps, weight)
        return self._shortened(_dykstra(maps, weight, _NEAR))

    def _shortened(self, weight: Tensor) -> Tensor:
        """Return W within the bounds, where terms that only nearly meet leave it beyond one."""
        for other in cast(list[Bounded], self._others):
            norm = other.largest(weight)
            if norm > other.bound * (1 + DEGENERATE):
                weight = weight * (other.inside(weight) / norm)
        return weight

    def violation(self, weight: Tensor) -> float:
        """Return by how much W misses the domain of a term, at most."""
        return max(term.violation(weight) for term in self.terms)

    def holds(self, weight: Tensor, slack: float = 0.0) -> bool:
        """Return whether W is in the domain of every term."""
        return all(term.holds(weight, slack) for term in self.terms)

    def begin(self, weight: Tensor) -> Tensor:
        """Return a start in the domain, from those of the terms in turn, (inputs, units)."""
        return self.project(reduce(lambda start, term: term.begin(start), self.terms, weight))

    def refuse_infeasible(self, shape: tuple[int, int]) -> None:
        """Raise `DataError` where no W (inputs, units) satisfies the constraints of all terms."""
        if not self.closed_form:
            return statement(self, shape).refuse_infeasible()
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


def added(one: Penalty, other: Penalty) -> Sum:
    """Return the sum of two penalties, one list of terms."""
    return Sum((*_terms(one), *_terms(other)))


def _terms(penalty: Penalty) -> tuple[Penalty, ...]:
    return penalty.terms if isinstance(penalty, Sum) else (penalty,)


def _composed(maps: Sequence[Map], weight: Tensor) -> Tensor:
    return reduce(lambda point, step: step(point), maps, weight)


def _dykstra(maps: Sequence[Map], weight: Tensor, near: float = 0.0) -> Tensor:
    """Return the prox of a sum from the proxes of its terms, (inputs, units).

    Dykstra's proximal algorithm (Bauschke and Combettes, 2008) with Anderson's mixing, which
    takes a sixth of the rounds, and few where it would need millions.

    Args:
        maps: proxes of the terms.
        weight: W, (inputs, units).
        near: how far apart, relative to W, the points of the terms may be after `_PATIENCE` rounds:
            where a bound is just met without a push, they come nearer ever more slowly.

    Raises:
        SolverError: the points of the terms do not meet within `_ROUNDS` rounds.
    """
    target = weight.double()
    largest, mixing = float(target.abs().max()), Mixing(_FARTHEST * float(target.norm()))
    held = target.new_zeros(len(maps) - 1, *target.shape)
    for number in range(_ROUNDS):
        points, released = _dykstra_round(maps, target, held)
        gap = max(float((one - points[-1]).abs().max()) for one in points)
        enough = near if number >= _PATIENCE else 0.0
        if gap <= max(ROUNDING * torch.finfo(target.dtype).eps, enough) * largest:
            break
        held = mixing.following(held, released)
    if gap <= max(DEGENERATE, near) * largest:
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

    Example:
        >>> import torch
        >>> from liftednet.penalties import Mixing
        >>> mixing, x = Mixing(), torch.tensor([1.0, 0.0])
        >>> for _ in range(5):  # of the map x -> cos(x)
        ...     x = mixing.following(x, x.cos())
        >>> x
        tensor([0.7405, 0.7468])
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
