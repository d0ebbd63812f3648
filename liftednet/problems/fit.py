"""The one convex subproblem, of which every block of a lifted network is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations.simplex import Softmax
from liftednet.divergences import Divergence, require_divergence
from liftednet.errors import DataError
from liftednet.lazy import cvxpy as cp
from liftednet.maps import LinearMap, Times
from liftednet.samples import outlined
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5}  # rounding of a target, per entry
_EPSILON = torch.finfo(torch.float64).eps
NEAR = 2e-5  # a relative violation above it says enough: it is solved by no default


Value = TypeVar("Value")


class Measure(NamedTuple):
    """How good a value is.

    Attributes:
        objective: the objective of the problem, in float64.
        residual: the largest violation of stationarity, relative to the largest term in it; NaN
            where the problem is not smooth and only CVXPY's duals can tell.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> fit.measure(torch.tensor([[2.0, 0.0]]))
        Measure(objective=-2.0, residual=0.0)
    """

    objective: float
    residual: float


def measured(objective: Tensor | float, residual: Tensor | float) -> Measure:
    """Return the measure over the samples of all processes, of what those of this one give.

    Args:
        objective: a sum over samples, ().
        residual: the largest over samples, (); NaN where it is not known.
    """
    if processes.size() > 1:
        parts = processes.gathered([float(objective), float(residual)])
        objective, residual = parts[:, 0].sum(), parts[:, 1].max()
    return Measure(float(objective), float(residual))


@dataclass(frozen=True)
class Formulation:
    """A subproblem as a CVXPY problem.

    Attributes:
        problem: the CVXPY problem.
        variables: the unknowns, by name.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> stated = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]])).formulate()
        >>> stated.problem.is_dcp(), sorted(stated.variables)
        (True, ['states'])
    """

    problem: cp.Problem
    variables: dict[str, cp.Variable]


def require_bounded(name: str, divergence: Divergence, target: Tensor) -> None:
    """Raise `DataError` where R(u) - <u, V> is unbounded below for a target V."""
    nearest = divergence.nearest_target(target)
    if nearest is target or torch.equal(nearest, target):
        return
    distance = (nearest - target).abs()
    worst = float(distance.max())
    if worst > _SLACK[target.dtype]:
        where = tuple(int(i) for i in (distance == worst).nonzero()[0])
        raise DataError(
            f"{name} must lie in the domain of {divergence.activation!r}, or the fit is unbounded "
            f"below: the entry at index {where} is {float(target[where]):.4g}, {worst:.2g} away."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Link:
    """lam [R(A v + c) - <A v + c, t>]: what states or data above ask of a variable v.

    With a matrix W for A it is what a dense layer above asks of the states Z: A v = Z W.

    Attributes:
        divergence: gives R.
        weight: W, (units, next units), or any `LinearMap`.
        offset: c, a bias (next units,) or a full (samples, next units) offset.
        target: t, the states or data above, (samples, next states).
        lam: the weight of the divergence, positive.
        weights: (samples,) of the rows of u in a block or weight fit; None for 1. A state fit
            needs none: each of its samples is a problem of its own.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> link.value(torch.ones(1, 2))
        tensor(-1.)
    """

    divergence: Divergence
    weight: Any  # a Tensor or a LinearMap
    offset: Tensor
    target: Tensor
    lam: float = 1.0
    weights: Tensor | None = None
    __repr__ = outlined

    @cached_property
    def map(self) -> LinearMap:
        """A."""
        return Times(self.weight) if isinstance(self.weight, Tensor) else self.weight

    def __post_init__(self) -> None:
        """Keep the matrix of a map that is one."""
        if isinstance(self.weight, Times):
            object.__setattr__(self, "weight", self.weight.weight)

    def pre_activation(self, states: Tensor) -> Tensor:
        """Return A v + c, (samples, next units)."""
        if isinstance(self.weight, Tensor):
            return torch.addmm(self.offset, states, self.weight)
        return self.map.apply(states) + self.offset

    @cached_property
    def smoothness(self) -> float | None:
        """Lam L |A|_2^2, a Lipschitz constant of the gradient in v, or None."""
        if self.divergence.smoothness is None:
            return None
        return self.lam * self.divergence.smoothness * self.map.squared_norm

    def rows(self, part: slice | Tensor) -> Link:
        """Return the link of some of the samples."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[part]
        weight = self.weight if isinstance(self.weight, Tensor) else self.weight.rows(part)
        return replace(self, weight=weight, offset=offset, target=self.target[part])

    def double(self) -> Link:
        """Return the link in float64."""
        return replace(
            self,
            weight=self.weight.double(),
            offset=self.offset.double(),
            target=self.target.double(),
        )

    def weighed(self, rows: Tensor) -> Tensor:
        """Return rows (samples, units), each times the weight of its sample, and lam."""
        if self.weights is None:
            return self.lam * rows
        return self.lam * self.weights.to(rows).unsqueeze(-1) * rows

    def value(self, v: Tensor) -> Tensor:
        """Return the term at v, a scalar."""
        u = self.pre_activation(v)
        if self.weights is None:
            return self.lam * self.divergence.link_value(u, self.target)
        rows = self.divergence.link_values(u, self.target)
        return self.lam * (self.weights.to(rows) * rows).sum()

    def require(self, which: str, samples: int, units: int, like: Tensor) -> None:
        """Raise `DataError` or `DeclarationError` where it does not fit states.

        Args:
            which: how messages call it.
            samples: rows of the states.
            units: columns of the states.
            like: a tensor whose type and device all others share.
        """
        require_divergence("a Link", self.divergence)
        require_positive(f"lam {which}", self.lam)
        target = require_matrix(f"the target V {which}", self.target)
        shape = (samples, target.shape[1])
        if isinstance(self.weight, Tensor):
            self._require_matrix(which, samples, units, like)
            shape = (samples, self.weight.shape[1])
        require_shape(f"the target V {which}", target, shape, f"for {samples} samples beside W")
        require_like(f"the offset {which}", self.offset, "U", like)
        require_like(f"the target {which}", self.target, "U", like)

    def _require_matrix(self, which: str, samples: int, units: int, like: Tensor) -> None:
        weight = require_matrix(f"the weight W {which}", self.weight)
        outputs = weight.shape[1]
        require_shape(f"the weight W {which}", weight, (units, outputs), f"for {units} units")
        if not isinstance(self.offset, Tensor):
            kind = type(self.offset).__name__
            raise DataError(f"the offset C {which} must be a torch tensor, got {kind}.")
        rows = (outputs,) if self.offset.ndim == 1 else (samples, outputs)
        require_shape(f"the offset C {which}", self.offset, rows, "beside its weight")
        require_like(f"the weight {which}", weight, "U", like)

    def refuse_bad_values(self, which: str) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the term unbounded."""
        if isinstance(self.weight, Tensor):
            require_finite(f"the weight W {which}", self.weight)
        require_finite(f"the offset C {which}", self.offset)
        require_finite(f"the target V {which}", self.target)
        require_bounded(f"the target V {which}", self.divergence, self.target)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of u."""
        rows, units = self.target.shape
        return rows, units


Statement = tuple["cp.Expression", list["cp.Constraint"]]


class Fit(ABC, Generic[Value]):
    """min over v of g(v) - <p, v> + sum_k lam_k [R_k(A_k v + c_k) - <A_k v + c_k, t_k>].

    Frozen data of one convex problem, which states itself in CVXPY and judges a value in float64;
    no solver judges itself. `WeightFit`, `StateFit`, `OutputFit` and `StatesOverTime` are this
    problem with different g and A; `BlockFit` is any other block of a network, `ConstrainedFit` a
    weight fit under constraints.

    Example:
        >>> import torch
        >>> from liftednet.problems import StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]))
        >>> fit.measure(torch.tensor([[2.0, 0.0]])).residual, fit.measure(torch.ones(1, 2)).residual
        (0.0, 0.5)
    """

    __repr__ = outlined

    @property
    @abstractmethod
    def terms_above(self) -> Sequence[Link]:
        """The terms lam_k [R_k(A_k v + c_k) - <A_k v + c_k, t_k>]."""

    @property
    def quadratic(self) -> bool:
        """Whether one linear system solves it."""
        return False

    if TYPE_CHECKING:

        @property
        def block(self) -> Any:
            """What it has of its own: g, its domain, and how a value becomes a tensor."""

    def unknown(self) -> tuple[cp.Expression, dict[str, cp.Variable]]:
        """Return v as a CVXPY expression of two axes, and the variables it is made of, by name."""
        return self.block.unknown()

    @property
    def dtype(self) -> torch.dtype:
        """Of the values that are returned."""
        return self.block.dtype

    def like(self) -> Tensor:
        """Return a tensor of the shape of v."""
        return self.block.like()

    def prior(self, v: cp.Expression) -> Statement:
        """Return g(v) - <p, v> and its constraints in CVXPY."""
        return self.block.stated(v)

    def read(self, formulation: Formulation) -> Value:
        """Return the value of a solved formulation, on the problem's type and device."""
        return self.block.unpacked(self.block.read(formulation))

    @abstractmethod
    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the problem unbounded."""

    def refuse_bad_start(self, start: Value) -> None:
        """Raise `DataError` where a start is not finite or does not fit the problem."""
        like = self.like()
        try:
            packed = self.block.packed(start)
        except AttributeError as error:
            raise DataError(f"the start is of another kind: {type(start).__name__}.") from error
        require_shape("the start", packed, tuple(like.shape), "like what is solved for")
        require_like("the start", packed, "the problem", like)
        require_finite("the start", packed)

    @abstractmethod
    def measure(self, value: Value) -> Measure:
        """Return the objective and the relative KKT residual at a value, in float64."""

    def read_duals(self, formulation: Formulation) -> tuple[Tensor, ...]:
        """Return the duals of a solved formulation, of the constraints that it is held by."""
        return ()

    def measure_with(self, value: Value, duals: tuple[Tensor, ...]) -> Measure:
        """Return what `measure` does, of a value and its duals."""
        return self.measure(value)

    def duals(self, value: Value) -> tuple[Tensor, ...]:
        """Return the duals of what holds the minimizer itself, where it tells them."""
        return ()

    def formulate(self) -> Formulation:
        """Return the problem in CVXPY; every A v + c is a variable of its own."""
        v, variables = self.unknown()
        objective, constraints = self.prior(v)
        for number, link in enumerate(self.terms_above):
            u = cp.Variable(link.shape, name=f"pre_activation {number}")
            above = link.map.expression(v, self.like(), link.shape)
            # A float32 row of the simplex sums to 1 within 1e-7 only, which an interior-point
            # method takes for an unbounded problem.
            target = constant(link.divergence.nearest_target(link.target.double()))
            objective += link.lam * _summed(link, u, target)
            offset = constant(link.offset.expand(link.shape))
            constraints = [*constraints, u == above + offset]
        return Formulation(cp.Problem(cp.Minimize(objective), constraints), variables)


def _summed(link: Link, u: cp.Expression, target: cp.Expression) -> cp.Expression:
    """Return the sum of R(u) - <u, t> over the samples, each times its weight."""
    if link.weights is None:
        return link.divergence.link_term(u, target)
    return sum(
        weight * link.divergence.link_term(u[row : row + 1], target[row : row + 1])
        for row, weight in enumerate(link.weights.tolist())
    )


def constant(value: Tensor) -> cp.Constant:
    """Return a tensor in CVXPY."""
    return cp.Constant(value.detach().double().cpu().numpy())


def curvatures(divergence: Divergence, u: Tensor) -> Tensor:
    """Return the Hessian of R at every row of u, (..., units, units), by autograd if need be."""
    if divergence.per_unit:
        return torch.diag_embed(divergence.link_curvature(u))
    if isinstance(divergence.activation, Softmax):
        p = divergence.link_gradient(u)
        hessian = -p.unsqueeze(-1) * p.unsqueeze(-2)
    else:
        with torch.enable_grad():
            point = u.detach().requires_grad_()
            slope = divergence.link_gradient(point)
            columns = [
                torch.autograd.grad(one.sum(), point, retain_graph=True)[0]
                for one in slope.unbind(-1)
            ]
        hessian = torch.stack(columns, dim=-1)
    if divergence.balanced:  # p (1 - p) is all rounding where p is near 1
        diagonal = hessian.diagonal(dim1=-2, dim2=-1).zero_()
        diagonal.copy_(-hessian.sum(-1))
    return hessian


def rounding(sizes: Tensor) -> Tensor:
    """Return what rounding may add to sums of terms of these sizes, with random signs."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, sizes.shape, generator=generator) * 2 - 1
    return _EPSILON * sizes * signs.to(sizes)
