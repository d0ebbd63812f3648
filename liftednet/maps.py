"""The linear part A of an affine map v -> A v + c: what a link sees of a variable.

Each knows its adjoint, a bound on its norm, and its expression in CVXPY at toy size. The kinds
are the structures that make a solver fast: a matrix that all samples share, a design matrix that
all units share, a diagonal, entries that are only moved; the rest is composed of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.lazy import cvxpy as cp
from liftednet.samples import Design, squared_norm_of

_POWER_STEPS = 100
_MARGIN = 1.05  # of an estimate by power iteration, which comes from below

Function = Callable[[Tensor], Tensor]


class LinearMap(ABC):
    """A linear map A from a variable v to pre-activations u = A v.

    Attributes:
        moves: whether u has entries of v, each at most once, and zeros: A A' and A'A are diagonal
            with entries 0 and 1.
        by_sample: whether each sample, a row of v, goes to its own row of u.
    """

    moves: bool = False
    by_sample: bool = False

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """Return A v."""

    @abstractmethod
    def adjoint(self, u: Tensor) -> Tensor:
        """Return A'u."""

    @property
    @abstractmethod
    def squared_norm(self) -> float:
        """An upper bound of the largest eigenvalue of A'A."""

    def rows(self, part: slice | Tensor) -> LinearMap:
        """Return the map for some of the samples, the first axis of v and of u."""
        return self

    def double(self) -> LinearMap:
        """Return the map in float64."""
        return self

    def matrix(self, like: Tensor) -> Tensor:
        """Return A, (entries of u, entries of v), for v like a tensor; at toy size."""
        basis = torch.eye(like.numel(), dtype=torch.float64, device=like.device)
        exact = self.double()
        return torch.stack([exact.apply(e.view(like.shape)).flatten() for e in basis], 1)

    def expression(self, v: cp.Expression, like: Tensor, shape: Any) -> cp.Expression:
        """Return A v in CVXPY.

        Args:
            v: (rows, columns), a variable of two axes.
            like: a tensor of the shape of v.
            shape: of the result, (rows, columns).
        """
        flat = self.matrix(like).cpu().numpy() @ cp.vec(v, order="C")
        return cp.reshape(flat, shape, order="C")


@dataclass(frozen=True, eq=False)
class Identity(LinearMap):
    """u = v."""

    moves = True
    by_sample = True
    squared_norm = 1.0

    def apply(self, v: Tensor) -> Tensor:
        """Return v."""
        return v

    def adjoint(self, u: Tensor) -> Tensor:
        """Return u."""
        return u


@dataclass(frozen=True, eq=False)
class Times(LinearMap):
    """u = v W: every sample, a row of v, goes through the same matrix.

    Attributes:
        weight: W, (units, next units).
    """

    weight: Tensor
    by_sample = True

    def apply(self, v: Tensor) -> Tensor:
        """Return v W, (..., next units)."""
        return v @ self.weight

    def adjoint(self, u: Tensor) -> Tensor:
        """Return u W', (..., units)."""
        return u @ self.weight.T

    @cached_property
    def squared_norm(self) -> float:
        """The largest eigenvalue of W W'."""
        return squared_norm_of(self.weight)

    def double(self) -> Times:
        """Return the map in float64."""
        return Times(self.weight.double())

    def expression(self, v: cp.Expression, like: Tensor, shape: Any) -> cp.Expression:
        """Return v W in CVXPY."""
        return v @ self.weight.detach().double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class Rows(LinearMap):
    """u = [X, 1] [W; b]: every unit, a column of the stacked weights, sees the same samples.

    Sums over samples are in float64.

    Attributes:
        design: [X, 1].
    """

    design: Design

    def apply(self, v: Tensor) -> Tensor:
        """Return X W + b, (samples, units), of [W; b], in the type of [W; b]."""
        inputs = self.design.inputs.to(v.dtype)
        return inputs @ v[:-1] + v[-1] if self.design.bias else inputs @ v

    def adjoint(self, u: Tensor) -> Tensor:
        """Return [X, 1]'u, (inputs + 1, units), in float64, over the rows of this process."""
        unweighed = replace(self.design, weights=None)
        with processes.alone():
            return unweighed.cross(u)

    @property
    def squared_norm(self) -> float:
        """The largest eigenvalue of the Gram matrix."""
        return self.design.squared_norm

    def expression(self, v: cp.Expression, like: Tensor, shape: Any) -> cp.Expression:
        """Return [X, 1] [W; b] in CVXPY."""
        rows = torch.cat([part.clone() for _, part in self.design.rows()])
        return rows.double().cpu().numpy() @ v


@dataclass(frozen=True, eq=False)
class Diagonal(LinearMap):
    """u = d * v, entry by entry.

    Attributes:
        entries: d, of the shape of v, or of its last axes.
    """

    entries: Tensor
    by_sample = True

    def apply(self, v: Tensor) -> Tensor:
        """Return d * v."""
        return self.entries * v

    def adjoint(self, u: Tensor) -> Tensor:
        """Return d * u."""
        return self.entries * u

    @cached_property
    def squared_norm(self) -> float:
        """The largest entry of d^2."""
        return float(self.entries.double().square().max())

    def rows(self, part: slice | Tensor) -> Diagonal:
        """Return the map for some of the samples."""
        return self if self.entries.ndim < 2 else Diagonal(self.entries[part])

    def double(self) -> Diagonal:
        """Return the map in float64."""
        return Diagonal(self.entries.double())


@dataclass(frozen=True, eq=False)
class Given(LinearMap):
    """A linear map by its function and its adjoint, the same for every sample.

    Attributes:
        forth: A.
        back: A'.
        squared_norm: a bound of the largest eigenvalue of A'A.
    """

    forth: Function
    back: Function
    squared_norm: float = 1.0
    by_sample = True

    def apply(self, v: Tensor) -> Tensor:
        """Return A v."""
        return self.forth(v)

    def adjoint(self, u: Tensor) -> Tensor:
        """Return A'u."""
        return self.back(u)


@dataclass(frozen=True, eq=False)
class Moved(Given):
    """Entries of v at other places, as in a delay, a reversal of time, or a choice of rows.

    Attributes:
        whole_rows: whether rows are moved, each with all of its units.
        by_sample: whether units are moved, each within its sample.
    """

    whole_rows: bool = True
    by_sample: bool = False
    moves = True


@dataclass(frozen=True, eq=False)
class Columns(LinearMap):
    """u has v in some of its columns, and zeros in the others; its adjoint cuts columns out.

    Attributes:
        place: where v stands.
        width: columns of u.
    """

    place: slice
    width: int
    moves = True
    by_sample = True
    squared_norm = 1.0

    def apply(self, v: Tensor) -> Tensor:
        """Return v between zeros, (..., width)."""
        u = v.new_zeros(*v.shape[:-1], self.width)
        u[..., self.place] = v
        return u

    def adjoint(self, u: Tensor) -> Tensor:
        """Return the columns where v stands."""
        return u[..., self.place]


@dataclass(frozen=True, eq=False)
class Traced(LinearMap):
    """The linear part of an affine torch function, its adjoint by autograd.

    Attributes:
        function: affine in v, of any torch operations, in the type of v.
        like: a tensor of the shape of v.
    """

    function: Function
    like: Tensor

    def apply(self, v: Tensor) -> Tensor:
        """Return f(v) - f(0)."""
        return self.function(v) - self.function(torch.zeros_like(v))

    def adjoint(self, u: Tensor) -> Tensor:
        """Return the gradient of <u, f(v)>."""
        return adjoint_of(self.function, self.like, u)

    @cached_property
    def squared_norm(self) -> float:
        """The largest eigenvalue of A'A by power iteration, and five percent."""
        generator = torch.Generator(self.like.device).manual_seed(0)
        v = torch.randn(
            self.like.shape, generator=generator, dtype=torch.float64, device=self.like.device
        )
        value = v.new_zeros(())
        for _ in range(_POWER_STEPS):
            v = self.adjoint(self.apply(v / v.norm().clamp(min=1e-300)))
            value = v.norm()
        return _MARGIN * float(value)


@dataclass(frozen=True, eq=False)
class Composed(LinearMap):
    """u = A B v.

    Attributes:
        outer: A.
        inner: B.
    """

    outer: LinearMap
    inner: LinearMap

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether both only move entries."""
        return self.outer.moves and self.inner.moves

    @property
    def by_sample(self) -> bool:  # type: ignore[override]
        """Whether both go sample by sample."""
        return self.outer.by_sample and self.inner.by_sample

    def apply(self, v: Tensor) -> Tensor:
        """Return A B v."""
        return self.outer.apply(self.inner.apply(v))

    def adjoint(self, u: Tensor) -> Tensor:
        """Return B'A'u."""
        return self.inner.adjoint(self.outer.adjoint(u))

    @property
    def squared_norm(self) -> float:
        """The product of the two bounds."""
        return self.outer.squared_norm * self.inner.squared_norm

    def rows(self, part: slice | Tensor) -> Composed:
        """Return the map for some of the samples."""
        return Composed(self.outer.rows(part), self.inner.rows(part))

    def double(self) -> Composed:
        """Return the map in float64."""
        return Composed(self.outer.double(), self.inner.double())


@dataclass(frozen=True, eq=False)
class Summed(LinearMap):
    """u = A v + B v.

    Attributes:
        one: A.
        other: B.
    """

    one: LinearMap
    other: LinearMap

    @property
    def by_sample(self) -> bool:  # type: ignore[override]
        """Whether both go sample by sample."""
        return self.one.by_sample and self.other.by_sample

    def apply(self, v: Tensor) -> Tensor:
        """Return A v + B v."""
        return self.one.apply(v) + self.other.apply(v)

    def adjoint(self, u: Tensor) -> Tensor:
        """Return A'u + B'u."""
        return self.one.adjoint(u) + self.other.adjoint(u)

    @property
    def squared_norm(self) -> float:
        """The square of the sum of the two norms."""
        return float((self.one.squared_norm**0.5 + self.other.squared_norm**0.5) ** 2)

    def rows(self, part: slice | Tensor) -> Summed:
        """Return the map for some of the samples."""
        return Summed(self.one.rows(part), self.other.rows(part))

    def double(self) -> Summed:
        """Return the map in float64."""
        return Summed(self.one.double(), self.other.double())


def composed(outer: LinearMap, inner: LinearMap) -> LinearMap:
    """Return A B in the plainest structure that it has."""
    if isinstance(inner, Identity):
        return outer
    if isinstance(outer, Identity):
        return inner
    if isinstance(outer, Times) and isinstance(inner, Columns):
        return Times(outer.weight[inner.place])
    if isinstance(outer, Times) and isinstance(inner, Times):
        return Times(inner.weight @ outer.weight)
    if isinstance(outer, Moved) and outer.whole_rows and isinstance(inner, Columns):
        return Composed(inner, outer)  # rows and columns move independently
    if isinstance(inner, Composed):
        return composed(composed(outer, inner.outer), inner.inner)
    if isinstance(outer, Times) and isinstance(inner, Summed):
        return summed(composed(outer, inner.one), composed(outer, inner.other))
    return Composed(outer, inner)


def summed(one: LinearMap, other: LinearMap) -> LinearMap:
    """Return A + B in the plainest structure that it has."""
    if isinstance(one, Times) and isinstance(other, Times):
        return Times(one.weight + other.weight)
    if isinstance(one, Identity) and isinstance(other, Times):
        one, other = other, one
    if isinstance(one, Times) and isinstance(other, Identity):
        return Times(one.weight + torch.eye(len(one.weight)).to(one.weight))
    return Summed(one, other)


def chain(map_: LinearMap) -> tuple[LinearMap, ...]:
    """Return the factors A, B, ... of a composed map A B ..., from the outermost on."""
    if isinstance(map_, Composed):
        return (*chain(map_.outer), *chain(map_.inner))
    return (map_,)


def adjoint_of(function: Function, like: Tensor, u: Tensor) -> Tensor:
    """Return A'u of an affine torch function, for v of the shape of a tensor in the type of u."""
    with torch.enable_grad():
        point = torch.zeros(like.shape, dtype=u.dtype, device=u.device).requires_grad_()
        value = function(point)
    return pulled_back([value], [point], [u])[0]


def pulled_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], rows: Sequence[Tensor], **options: Any
) -> tuple[Tensor, ...]:
    """Return J'u, to the bits of torch.autograd.grad(outputs, inputs, rows).

    That imports sympy, half a second in every process, to compare shapes that may be symbols. A
    number whose gradient in the outputs is u has no shape to compare.

    Args:
        outputs: that are differentiated.
        inputs: in which.
        rows: u, of the shapes of the outputs; differentiable where the graph is created.
        options: retain_graph, create_graph and so on.
    """
    with torch.enable_grad():
        number: Tensor = _Paired.apply(*outputs, *rows)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(number, inputs, **options)


class _Paired(torch.autograd.Function):
    """A number that says its gradient in some tensors is some others."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """Return 0."""
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the other tensors as the gradient in the first."""
        rows = ctx.saved_tensors
        return (*rows, *(None for _ in rows))
