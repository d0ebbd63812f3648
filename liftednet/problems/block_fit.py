"""Any block of a lifted network that has no shorter name: its maps are whatever its layers are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from liftednet import processes
from liftednet.divergences import Divergence, Raw
from liftednet.errors import DataError
from liftednet.lazy import cvxpy as cp
from liftednet.penalties import Penalty
from liftednet.problems.fit import (
    NEAR,
    Fit,
    Formulation,
    Link,
    Measure,
    Statement,
    parameter,
    rounding,
    states_cost,
)
from liftednet.samples import Weights
from liftednet.validation import require_finite, require_like, require_shape

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


class Prior(ABC):
    """What a block has of its own: g(v), its domain, and how a value becomes a tensor."""

    @abstractmethod
    def like(self) -> Tensor:
        """Return a tensor of the shape, type and device of v."""

    @abstractmethod
    def packed(self, value: Any) -> Tensor:
        """Return a value as v."""

    @abstractmethod
    def unpacked(self, v: Tensor) -> Any:
        """Return v as a value, in the block's type."""

    @abstractmethod
    def value(self, v: Tensor) -> Tensor:
        """Return g(v), a scalar."""

    @abstractmethod
    def prox(self, v: Tensor, t: float) -> Tensor:
        """Return argmin over w of t g(w) + |w - v|^2 / 2."""

    @property
    def modulus(self) -> float:
        """How strongly convex g is: g less modulus |v|^2 / 2 is convex."""
        return 0.0

    @abstractmethod
    def obstacle(self) -> str | None:
        """Return why there is no prox, or None."""

    def cost(self, v: Tensor, gradient: Tensor) -> float:
        """Return how far g(v) + <gradient, v> is above its least value; NaN where none knows."""
        return math.nan

    @abstractmethod
    def stated(self, v: Expression) -> Statement:
        """Return g(v) and its domain in CVXPY, for v of two axes."""

    @abstractmethod
    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return v in CVXPY, of two axes, and its variables by name."""

    @abstractmethod
    def read(self, formulation: Formulation) -> Tensor:
        """Return v of a solved formulation, inside its domain, float64."""

    @abstractmethod
    def signature(self) -> Hashable:
        """Return what two must share to share one formulation."""


@dataclass(frozen=True, eq=False)
class BoxedStates(Prior):
    """lam Phi of the states that count; the others are 0.

    Attributes:
        divergence: gives Phi and its domain, bounds included.
        lam: its weight.
        shape: of the states, (samples, units) or (steps, samples, units).
        counted: (steps, samples) booleans, or None where all count.
        type: a tensor whose type and device the states have.
    """

    divergence: Divergence
    lam: float
    shape: tuple[int, ...]
    counted: Tensor | None
    type: Tensor

    def like(self) -> Tensor:
        """Return zeros of the shape of the states."""
        return self.type.new_zeros(self.shape)

    def packed(self, value: Tensor) -> Tensor:
        """Return the states."""
        return value

    def unpacked(self, v: Tensor) -> Tensor:
        """Return the states in the block's type."""
        return v.to(self.type)

    def value(self, v: Tensor) -> Tensor:
        """Return lam Phi(v), a scalar."""
        rows = self.divergence.activation.potential_value(v)
        return self.lam * (rows if self.counted is None else rows.where(self.counted, 0.0)).sum()

    def prox(self, v: Tensor, t: float) -> Tensor:
        """Return the prox of t lam Phi, 0 where nothing counts."""
        flat = self.divergence.activation.prox(v.flatten(0, -2), t * self.lam)
        return self._counted(flat.view(v.shape))

    def _counted(self, v: Tensor) -> Tensor:
        return v if self.counted is None else v.where(self.counted.unsqueeze(-1), 0.0)

    @property
    def modulus(self) -> float:
        """That of lam Phi, lam / L with L a Lipschitz constant of phi; 0 where phi has none."""
        lipschitz = self.divergence.activation.lipschitz
        return self.lam / lipschitz if lipschitz else 0.0

    def cost(self, v: Tensor, gradient: Tensor) -> float:
        """Return the bound over the states that count, see `states_cost`."""
        rows = (v, gradient) if self.counted is None else (v[self.counted], gradient[self.counted])
        return states_cost(self.divergence, self.lam, *(x.flatten(0, -2) for x in rows))

    def obstacle(self) -> str | None:
        """Ask for a prox."""
        activation = self.divergence.activation
        if isinstance(self.divergence, Raw):
            return f"{activation!r} is a raw divergence"
        if not (activation.per_unit or activation.declares("prox")):
            return f"it needs `prox` of {activation!r}"
        return None

    def stated(self, v: Expression) -> Statement:
        """Return lam Phi(v) and its domain."""
        activation = self.divergence.activation
        if self.counted is None:
            return self.lam * activation.potential(v), activation.domain(v)
        rows = self.counted.flatten().cpu().numpy()
        held = [] if rows.all() else [v[~rows] == 0]
        return self.lam * activation.potential(v[rows]), [*activation.domain(v[rows]), *held]

    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return the states, named "states"."""
        rows = self.like().flatten(0, -2).shape
        states = cp.Variable(tuple(rows), name="states")
        return states, {"states": states}

    def read(self, formulation: Formulation) -> Tensor:
        """Return the states of a solved formulation, inside their domain."""
        found = torch.from_numpy(formulation.variables["states"].value)
        return self._counted(self.divergence.activation.project(found).view(self.shape))

    def signature(self) -> Hashable:
        """Return shape, divergence and lam; steps that count are part of the statement."""
        mask = None if self.counted is None else self.counted.cpu().numpy().tobytes()
        return BoxedStates, self.shape, self.divergence, self.lam, mask


@dataclass(frozen=True, eq=False)
class PenalizedWeights(Prior):
    """pi(W) of weights [W; b].

    Attributes:
        penalty: pi.
        weights: any of the shape and type of the block's.
    """

    penalty: Penalty
    weights: Weights

    def like(self) -> Tensor:
        """Return [W; b]."""
        return self.weights.stacked()

    def packed(self, value: Weights) -> Tensor:
        """Return [W; b]."""
        return value.stacked()

    def unpacked(self, v: Tensor) -> Weights:
        """Return W and b in the block's type."""
        return self.weights.like(v.to(self.weights.matrix))

    def _matrix(self, v: Any) -> Any:
        return v[: len(self.weights.matrix)]

    def value(self, v: Tensor) -> Tensor:
        """Return pi(W), a scalar."""
        return self.penalty.value(self._matrix(v))

    def prox(self, v: Tensor, t: float) -> Tensor:
        """Return the prox of t pi on W, with b as it is."""
        matrix = self.penalty.prox(self._matrix(v), t)
        return torch.cat([matrix, v[len(matrix) :]])

    def obstacle(self) -> str | None:
        """Ask for a prox."""
        return None if self.penalty.proximable else f"it needs `prox` of {self.penalty!r}"

    def stated(self, v: Expression) -> Statement:
        """Return pi(W) and its domain."""
        matrix = self._matrix(v)
        return self.penalty.expression(matrix), self.penalty.domain(matrix)

    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return [W; b] of "weight" and "bias"."""
        rows, columns = self.weights.matrix.shape
        weight = cp.Variable((rows, columns), name="weight")
        if self.weights.bias is None:
            return weight, {"weight": weight}
        bias = cp.Variable((1, columns), name="bias")
        return cp.vstack([weight, bias]), {"weight": weight, "bias": bias}

    def read(self, formulation: Formulation) -> Tensor:
        """Return [W; b] of a solved formulation."""
        parts = [torch.from_numpy(variable.value) for variable in formulation.variables.values()]
        return torch.cat(parts)

    def signature(self) -> Hashable:
        """Return shapes and penalty."""
        bias = self.weights.bias is not None
        return PenalizedWeights, tuple(self.weights.matrix.shape), bias, self.penalty


@dataclass(frozen=True, eq=False, repr=False)
class BlockFit(Fit[Any]):
    """min over v of g(v) - <p, v> + sum_k lam_k [R_k(A_k v + c_k) - <A_k v + c_k, t_k>].

    With `own`, v is the target of a link of its own, as states are through a delay in time:
    + lam [R(A v + c) - <A v + c, S v>], S the choice of the states that count. That is convex for
    a joint divergence; for a tight one it is not, and solvers go downhill in it.

    Attributes:
        block: g, a `BoxedStates` or `PenalizedWeights`.
        linear: p, of the shape of v, or None.
        links: the terms.
        own: A, c and R of the link whose target is v, whose `target` is not looked at; or None.
        chosen: S, for `own`.

    Example:
        >>> from liftednet import Network, data
        >>> from liftednet.layers import convolution
        >>> from liftednet.losses import CrossEntropy
        >>> from liftednet.models import FullBatch, Lifted
        >>> from liftednet.problems import BlockFit
        >>> network, digits = Network(), data.digits()
        >>> outputs = network.loss(CrossEntropy(), convolution(network.input(1, 8, 8), 10, 8))
        >>> model = Lifted(network, method=FullBatch(sweeps=1))
        >>> fit = model.fit(digits.x_test.view(-1, 1, 8, 8), digits.y_test).subproblem("weights 1")
        >>> isinstance(fit, BlockFit), fit.measure(model.weights[0]).residual < 1e-4
        (True, True)
    """

    block: Prior
    linear: Tensor | None
    links: tuple[Link, ...]
    own: Link | None = None
    chosen: Any = None

    @property
    def terms_above(self) -> Sequence[Link]:
        """The links but for that of v itself."""
        return self.links

    @property
    def convex(self) -> bool:
        """Whether it is convex, as it is without a tight link of v to itself."""
        return self.own is None or self.own.divergence.quadratic

    def like(self) -> Tensor:
        """Return a tensor of the shape of v."""
        return self.block.like()

    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return v in CVXPY and its variables by name."""
        return self.block.unknown()

    def prior(self, v: Expression, parameters: dict[str, cp.Parameter]) -> Statement:
        """Return g(v) - <p, v>, and the link of v to itself, in CVXPY.

        Raises:
            DeclarationError: that link is tight, or not known to be convex by CVXPY's rules.
        """
        value, constraints = self.block.stated(v)
        if self.own is not None:
            value = self._own_stated(v, parameters, constraints)
        if self.linear is not None:
            rows = tuple(self.linear.flatten(0, -2).shape)
            value -= cp.sum(cp.multiply(parameter("linear", rows, parameters), v))
        return value, constraints

    def _own_stated(
        self, v: Expression, parameters: dict[str, Any], constraints: list[Any]
    ) -> Expression:
        """Return lam D(S v, u), in place of g: it is convex in both only as a whole."""
        assert self.own is not None  # asked by the caller
        u = cp.Variable(self.own.shape, name="own pre_activation")
        offset = parameter("own offset", self.own.shape, parameters)
        matrix = parameter("own matrix", tuple(self._own_matrix.shape), parameters)
        choice = parameter("own choice", tuple(self._choice.shape), parameters)
        flat = cp.vec(v, order="C")
        constraints.append(u == cp.reshape(matrix @ flat, self.own.shape, order="C") + offset)
        states = cp.Variable(self.own.shape, name="own states")
        constraints.append(states == cp.reshape(choice @ flat, self.own.shape, order="C"))
        return self.own.lam * self.own.divergence.joint_term(states, u)

    @cached_property
    def _own_matrix(self) -> Tensor:
        assert self.own is not None  # asked by the caller
        return self.own.map.matrix(self.like())

    @cached_property
    def _choice(self) -> Tensor:
        matrix: Tensor = self.chosen.matrix(self.like())
        return matrix

    def prior_data(self) -> dict[str, Tensor]:
        """Return p and what the link of v to itself is made of."""
        data = {} if self.linear is None else {"linear": self.linear.flatten(0, -2)}
        if self.own is not None:
            data["own matrix"], data["own choice"] = self._own_matrix, self._choice
            data["own offset"] = self.own.offset.expand(self.own.shape)
        return data

    def read(self, formulation: Formulation) -> Any:
        """Return the value of a solved formulation."""
        return self.block.unpacked(self.block.read(formulation))

    def signature(self) -> Hashable:
        """Return what two problems must share to share one formulation."""
        own = None if self.own is None else self.own.signature()
        links = tuple(link.signature() for link in self.links)
        return BlockFit, self.block.signature(), links, own, self.linear is None

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the problem unbounded."""
        if self.linear is not None:
            require_finite("the linear term", self.linear)
        for number, link in enumerate(self.links):
            link.refuse_bad_values(f"of link {number}")

    def refuse_bad_start(self, start: Any) -> None:
        """Raise `DataError` where a start is not finite or does not fit the problem."""
        like = self.like()
        try:
            packed = self.block.packed(start)
        except AttributeError as error:
            raise DataError(f"the start is of another kind: {type(start).__name__}.") from error
        require_shape("the start", packed, tuple(like.shape), "like the block")
        require_like("the start", packed, "the block", like)
        require_finite("the start", packed)

    @property
    def _shared(self) -> bool:
        """Whether v is one for all samples, whose terms are then sums over processes."""
        return isinstance(self.block, PenalizedWeights)

    @cached_property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of all but g, or None."""
        if any(link.divergence.smoothness is None for link in self.links):
            return None
        total = 0.0
        with processes.alone():  # a sum of the bounds of all bounds the whole
            if self.like().numel() and all(link.target.numel() for link in self.links):
                total = sum(map(_curvature, self.links))
        if self._shared:
            total = processes.total_of(total)
        if self.own is None:
            return total
        norm, curvature = self.own.map.squared_norm**0.5, self.own.divergence.smoothness
        if curvature is None:
            return None
        return total + self.own.lam * norm * (2 + curvature * norm)

    def smooth_value(self, v: Tensor) -> Tensor:
        """Return all but g at v, a scalar."""
        total = v.new_zeros(()) if self.linear is None else -(self.linear.to(v) * v).sum()
        for link in self.links:
            total = total + link.value(v)
        if self._shared:
            (total,) = processes.total(total)
        if self.own is not None:
            u = self.own.pre_activation(v)
            total = total + self.own.lam * self.own.divergence.link_value(u, self.chosen.apply(v))
        return total

    def terms(self, v: Tensor) -> list[Tensor]:
        """Return the terms of the gradient of all but g, each of the shape of v."""
        terms = [] if self.linear is None else [-self.linear.to(v)]
        for link in self.links:
            slope = link.divergence.link_gradient(link.pre_activation(v))
            terms.append(link.map.adjoint(link.weighed(slope)))
            terms.append(-link.map.adjoint(link.weighed(link.target)))
        if self._shared:
            terms = list(processes.total(*terms))
        if self.own is not None:
            own, u = self.own, self.own.pre_activation(v)
            terms.append(own.lam * own.map.adjoint(own.divergence.link_gradient(u)))
            terms.append(-own.lam * own.map.adjoint(self.chosen.apply(v)))
            terms.append(-own.lam * self.chosen.adjoint(u))
        return terms or [torch.zeros_like(v)]

    def double(self) -> BlockFit:
        """Return the problem in float64; g keeps the type that its values are returned in."""
        return BlockFit(
            self.block,
            None if self.linear is None else self.linear.double(),
            tuple(link.double() for link in self.links),
            None if self.own is None else self.own.double(),
            self.chosen,
        )

    def measure(self, value: Any) -> Measure:
        """Return the objective and the relative KKT residual at a value, in float64.

        The residual is the largest entry of s (v - prox_{g / s}(v - gradient / s)), s the
        smoothness of all but g, over the largest entry of a term of the gradient. It is at least
        the share of the objective that this may cost: for g strongly convex by its modulus, and
        where v is the target of a joint link of its own through the recurrence, as in
        `StatesOverTime`.
        """
        problem, v = self.double(), self.block.packed(value).double()
        total = float if self._shared else processes.total_of  # shared terms are whole already
        objective = total(float(problem.smooth_value(v) + self.block.value(v)))
        if self.smoothness is None or self.block.obstacle() is not None:
            return Measure(objective, torch.nan)
        terms = problem.terms(v)
        s = self.smoothness or 1.0
        violation = s * (v - self.block.prox(v - sum(terms) / s, 1 / s))
        ends = torch.stack([_largest(torch.stack(terms)), _largest(violation)])
        scale, off = (ends if self._shared else processes.largest(ends)).tolist()
        residual = off / scale if scale > 0 else off
        if not self.convex or residual > NEAR:
            return Measure(objective, residual)
        if self.own is None:
            return Measure(objective, max(residual, self._cost(violation, objective)))
        sizes = sum((term.abs() for term in terms), s * v.abs())
        bound = total(problem._bound(violation + rounding(sizes)))
        return Measure(objective, max(residual, bound / (self.own.lam + abs(objective))))

    def cost(self, value: Any) -> float:
        """Return a bound of how far the objective is above the least one, in float64."""
        if self.own is not None or self.smoothness is None:  # a link to itself is not convex alone
            return math.nan
        problem, v = self.double(), self.block.packed(value).double()
        return self.block.cost(v, torch.stack(problem.terms(v)).sum(0))

    def _cost(self, violation: Tensor, objective: float) -> float:
        """Return |g|^2 / (2 modulus) of a subgradient g, relative to the objective's size."""
        modulus = self.block.modulus
        if not modulus:
            return 0.0
        bound = processes.total_of(float(violation.square().sum())) / (2 * modulus)
        return bound / (modulus + abs(objective))

    def _bound(self, violation: Tensor) -> float:
        """Return a bound of how far the objective is above the least one (`Linearized`).

        With S v - L A v for B v, where A only takes earlier steps to later ones: p = B'^-1 g is
        where p <- S (g + L A'p) comes to in as many rounds as there are steps.
        """
        assert self.own is not None  # asked by the caller
        curvature = cast(float, self.own.divergence.smoothness)
        carried = first = self.chosen.apply(violation)
        for _ in range(len(violation)):
            previous = carried
            carried = first + curvature * self.chosen.apply(self.own.map.adjoint(previous))
            if carried.equal(previous):
                break
        bound = float(carried.square().sum()) * curvature / (2 * self.own.lam)
        return bound if math.isfinite(bound) else math.inf


def _curvature(link: Link) -> float:
    """Return a Lipschitz constant of the gradient of a link, its samples weighed."""
    assert link.smoothness is not None  # looked at before
    heaviest = 1.0 if link.weights is None else float(link.weights.max())
    return heaviest * link.smoothness


def _largest(entries: Tensor) -> Tensor:
    """Return the largest absolute value, (), 0 where there is none."""
    return entries.abs().max() if entries.numel() else entries.new_zeros(())
