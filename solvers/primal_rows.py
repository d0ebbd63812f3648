"""A state fit for some of its samples: the gradient of its links, and its prox."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Joint
from liftednet.problems import Link, StateFit
from liftednet.problems.state_fit import reach
from liftednet.samples import largest_eigenvalue

from .deferred import largest
from .link_weights import LinkWeights, link_weights


@dataclass(frozen=True)
class SharedQuadratic:
    """H = sum lam_k L_k W_k W_k', the Hessian of quadratic links.

    Attributes:
        weights: W_k of the links it was made of.
        curvatures: lam_k L_k.
        hessian: H, (units, units).
        smoothness: its largest eigenvalue.
    """

    weights: LinkWeights
    curvatures: tuple[float, ...]
    hessian: Tensor
    smoothness: float

    def serves(self, problem: StateFit) -> bool:
        """Say whether the problem has these weights and curvatures."""
        return self.curvatures == _curvatures(problem) and self.weights.are_those_of(problem)


def shared_quadratic(problem: StateFit) -> SharedQuadratic:
    """Return H of quadratic links; formed in float64."""
    u, curvatures = problem.pre_activation, _curvatures(problem)
    hessian = u.new_zeros(problem.units, problem.units, dtype=torch.float64)
    for link, curvature in zip(problem.links, curvatures, strict=True):
        hessian += curvature * link.weight.double() @ link.weight.double().T
    smoothness = largest_eigenvalue(hessian)
    return SharedQuadratic(link_weights(problem), curvatures, hessian.to(u), smoothness)


def _curvatures(problem: StateFit) -> tuple[float, ...]:
    return tuple(link.lam * (link.divergence.smoothness or 0.0) for link in problem.links)


@dataclass(frozen=True)
class PrimalRows:
    """min over Z of lam Phi(Z) - <Z, pull> + links, sample by sample.

    Attributes:
        activation: gives Phi.
        lam: its weight.
        step: s, the smoothness of the links.
        pull: lam U plus what quadratic links pull at, (samples, units).
        hessian: H of the quadratic links, or None.
        links: the other links.
    """

    activation: Activation
    lam: float
    step: float
    pull: Tensor
    hessian: Tensor | None
    links: tuple[Link, ...]

    def rows(self, keep: Tensor) -> PrimalRows:
        """Return the problem of some of the samples."""
        links = tuple(link.rows(keep) for link in self.links)
        return replace(self, pull=self.pull[keep], links=links)

    def to(self, dtype: torch.dtype) -> PrimalRows | None:
        """Return the problem in another precision, or None where links are not quadratic."""
        if self.hessian is None:
            return None
        return replace(self, pull=self.pull.to(dtype), hessian=self.hessian.to(dtype))

    def gradient(self, states: Tensor) -> Tensor:
        """Return the gradient of all but Phi, (samples, units)."""
        if self.hessian is not None:
            return torch.addmm(self.pull, states, self.hessian, beta=-1)
        gradient = -self.pull
        for link in self.links:
            slope = link.divergence.link_gradient(link.pre_activation(states)) - link.target
            gradient = link.map.add_adjoint(gradient, slope, link.lam)
        return gradient

    def prox(self, states: Tensor) -> Tensor:
        """Return prox_{lam Phi / s}."""
        return self.activation.prox(states, self.lam / self.step)

    def scale(self, states: Tensor) -> float:
        """Return the largest entry of the terms of the gradient, at least lam."""
        terms = [self.lam * reach(self.activation, self.pull / self.lam)]
        for link in self.links:
            terms.append(link.lam * link.map.adjoint(link.target))
        return largest(terms, self.lam)


def primal_rows(
    problem: StateFit, shared: SharedQuadratic | None, step: float, part: slice
) -> PrimalRows:
    """Return the problem for the samples of a slice."""
    pull = problem.lam * problem.pre_activation[part]
    activation, links = problem.divergence.activation, [link.rows(part) for link in problem.links]
    if shared is None:
        return PrimalRows(activation, problem.lam, step, pull, None, tuple(links))
    for link in links:
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        wanted = link.target - link.divergence.link_gradient(link.offset).expand_as(link.target)
        pull = torch.addmm(pull, wanted, link.weight.T, alpha=link.lam)
    return PrimalRows(activation, problem.lam, step, pull, shared.hessian, ())
