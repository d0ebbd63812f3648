"""Any block of a lifted network that has no shorter name: its maps are whatever its layers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from liftednet import processes
from liftednet.lazy import cvxpy as cp
from liftednet.problems.fit import NEAR, Fit, Link, Measure, Statement, constant, rounding
from liftednet.problems.priors import PenalizedWeights, Prior
from liftednet.validation import require_finite

_UNSEEN = 1e-6  # of the objective's size, below which terms of weights may be their rounding


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
        >>> outputs = network.loss(CrossEntropy(), convolution(network.input(1, 4, 4), 3, 3))
        >>> model = Lifted(network, method=FullBatch(sweeps=1))
        >>> x, y = digits.x_test[:50].view(-1, 1, 8, 8)[..., 4:, 4:], digits.y_test[:50]
        >>> fit = model.fit(x, y).subproblem("weights 1")
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

    def prior(self, v: cp.Expression) -> Statement:
        """Return g(v) - <p, v>, and the link of v to itself, in CVXPY.

        Raises:
            DeclarationError: that link is tight, or not known to be convex by CVXPY's rules.
        """
        value, constraints = self.block.stated(v)
        if self.own is not None:
            value = self._own_stated(v, self.own, constraints)
        if self.linear is not None:
            value -= cp.sum(cp.multiply(constant(self.linear.flatten(0, -2)), v))
        return value, constraints

    def _own_stated(self, v: cp.Expression, own: Link, constraints: list[Any]) -> cp.Expression:
        """Return lam D(S v, u), in place of g: it is convex in both only as a whole."""
        u, states = (cp.Variable(own.shape, name=name) for name in ("own pre_activation", "own"))
        above = own.map.expression(v, self.like(), own.shape)
        constraints.append(u == above + constant(own.offset.expand(own.shape)))
        constraints.append(states == self.chosen.expression(v, self.like(), own.shape))
        return own.lam * own.divergence.joint_term(states, u)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the problem unbounded."""
        if self.linear is not None:
            require_finite("the linear term", self.linear)
        for number, link in enumerate(self.links):
            link.refuse_bad_values(f"of link {number}")

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
        smoothness of all but g, over the largest entry of a term of the gradient; of weights under
        a bound, or several penalties, at least a duality gap over the size of its terms (see
        `Penalty.judged`). It is at least
        the share of the objective that this may cost: for g strongly convex by its modulus, and
        where v is the target of a joint link of its own through the recurrence, as in
        `StatesOverTime`.
        """
        problem, v = self.double(), self.block.exact(value)
        total = float if self._shared else processes.total_of  # shared terms are whole already
        objective = total(float(problem.smooth_value(v) + self.block.value(v)))
        if self.smoothness is None or self.block.obstacle() is not None:
            return Measure(objective, torch.nan)
        terms = problem.terms(v)
        s = self.smoothness or 1.0
        violation, gap = self.block.judged(v, sum(terms[1:], terms[0]), s)
        ends = torch.stack([_largest(torch.stack(terms)), _largest(violation)])
        scale, off = (ends if self._shared else processes.largest(ends)).tolist()
        residual = off / scale if scale > 0 else off
        missed = max(gap, problem._missed(violation))
        if missed > 0:
            size = (v * torch.stack(terms)).abs().sum() + self.block.value(v)
            residual = max(residual, missed / max(float(size), _UNSEEN * (1 + abs(objective))))
        if not self.convex or residual > NEAR:
            return Measure(objective, residual)
        if self.own is None:
            return Measure(objective, max(residual, self._cost(violation, objective)))
        sizes = sum((term.abs() for term in terms), s * v.abs())
        bound = total(problem._bound(violation + rounding(sizes)))
        return Measure(objective, max(residual, bound / (self.own.lam + abs(objective))))

    def _missed(self, violation: Tensor) -> float:
        """Return what a step in b alone gains at least, |g|^4 / (2 sum of lam L |A g|^2).

        Where inputs are large the terms of W, to which a residual is relative, hide those of b.
        """
        step = self.block.free(violation)
        if step is None:
            return 0.0
        moved = [(link, link.map.apply(step)) for link in self.links]
        bends = [
            float((u * link.weighed(u)).sum()) * cast(float, link.divergence.smoothness)
            for link, u in moved
        ]
        curvature = processes.total_of(sum(bends))
        return float(step.square().sum()) ** 2 / (2 * curvature) if curvature > 0 else 0.0

    def _cost(self, violation: Tensor, objective: float) -> float:
        """Return |g|^2 / (2 modulus) of a subgradient g, relative to the objective's size."""
        modulus = self.block.modulus
        if not modulus:
            return 0.0
        bound = processes.total_of(float(violation.square().sum())) / (2 * modulus)
        return bound / (modulus + abs(objective))

    def _bound(self, violation: Tensor) -> float:
        """Return a bound of how far the objective is above the least one (`LinearizedSteps`).

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
