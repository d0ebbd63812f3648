"""The dual of a state fit with quadratic links, for some of its samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Joint
from liftednet.problems import Link, StateFit
from liftednet.products import product

from . import deferred
from .link_weights import LinkWeights, link_weights


@dataclass(frozen=True)
class SharedMap(ABC):
    """The links' weights as one map A.

    Attributes:
        weights: the weights W_k it was made of.
        scales: lam_k L_k / lam.
        map: A = [sqrt(scale_k) W_k], (units, r).
        adjoint: A', (r, units), contiguous.
    """

    weights: LinkWeights
    scales: tuple[float, ...]
    map: Tensor
    adjoint: Tensor

    def serves(self, problem: StateFit) -> bool:
        """Say whether the problem has these weights and these scales."""
        return self.scales == scales_of(problem) and self.weights.are_those_of(problem)

    def to(self, dtype: torch.dtype) -> Self:
        """Return the map in another precision."""
        parts = ((part.name, getattr(self, part.name)) for part in fields(self))
        tensors: dict[str, Any] = {n: x.to(dtype) for n, x in parts if isinstance(x, Tensor)}
        return replace(self, **tensors)

    @abstractmethod
    def wanted(self, h: Tensor) -> Tensor:
        """Return targets of Z A, (samples, r), from those of the links side by side."""

    @abstractmethod
    def precondition(self, gradient: Tensor) -> Tensor:
        """Return gradient (I + A'A L / 2)^-1, half the Lipschitz constant as a typical slope."""

    @abstractmethod
    def length(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample."""


@dataclass(frozen=True)
class TurnedMap(SharedMap):
    """The map in coordinates where its Gram matrix is diagonal.

    Attributes:
        turn: the rotation of the stacked columns, (r, r), which A contains.
        spectrum: the diagonal of A'A, (r,).
        lipschitz: L.
    """

    turn: Tensor
    spectrum: Tensor
    lipschitz: float

    def wanted(self, h: Tensor) -> Tensor:
        """Return targets in these coordinates."""
        return h @ self.turn.to(h)

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the gradient, divided entry by entry."""
        return gradient / (1 + self.lipschitz / 2 * self.spectrum)

    def length(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample."""
        return (gradient.square() @ self.spectrum).sqrt()


@dataclass(frozen=True)
class PlainMap(SharedMap):
    """The map as it is, for a GPU, which an eigenvalue solver would have to be waited for.

    Attributes:
        inverse: (I + A'A L / 2)^-1, (r, r).
    """

    inverse: Tensor

    def wanted(self, h: Tensor) -> Tensor:
        """Return the targets."""
        return h

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the product with the inverse."""
        return gradient @ self.inverse

    def length(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample."""
        return (gradient @ self.adjoint).square().sum(1).sqrt()


def shared_map(problem: StateFit) -> SharedMap:
    """Return the links' weights, scaled and side by side, in float64."""
    weights, scales = link_weights(problem), scales_of(problem)
    lipschitz = problem.divergence.activation.lipschitz
    assert lipschitz is not None  # asked for by the solver
    stacked = torch.cat(
        [
            scale**0.5 * link.weight.double()
            for link, scale in zip(problem.links, scales, strict=True)
        ],
        1,
    )
    if deferred.stays_on_device(stacked):
        system = lipschitz / 2 * (stacked.T @ stacked)
        system.diagonal().add_(1)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(system).L)
        return PlainMap(weights, scales, stacked, stacked.T.contiguous(), inverse)
    spectrum, turn = torch.linalg.eigh(stacked.T @ stacked)
    turned, spectrum = stacked @ turn, spectrum.clamp(min=0)
    return TurnedMap(weights, scales, turned, turned.T.contiguous(), turn, spectrum, lipschitz)


def scales_of(problem: StateFit) -> tuple[float, ...]:
    """Return lam_k L_k / lam of the links."""
    return tuple(link.lam * curvature_of(link) / problem.lam for link in problem.links)


def curvature_of(link: Link) -> float:
    """Return L_k of a quadratic link."""
    smoothness = link.divergence.smoothness
    assert smoothness is not None  # a quadratic has one
    return smoothness


@dataclass(frozen=True)
class DualRows:
    """min over y of |y + h|^2 / 2 + Phi*(u - y A'), the dual of a state fit, sample by sample.

    Its minimizer y = Z A - h gives the states Z = phi(u - y A').

    Attributes:
        activation: phi.
        shared: A, in the precision of u.
        u: (samples, pre-activations).
        h: (samples, r), the targets of Z A.
    """

    activation: Activation
    shared: SharedMap
    u: Tensor
    h: Tensor

    def rows(self, keep: Tensor) -> DualRows:
        """Return the problem of some of the samples."""
        return replace(self, u=self.u[keep], h=self.h[keep])

    def to(self, dtype: torch.dtype) -> DualRows:
        """Return the problem in another precision."""
        return replace(self, shared=self.shared.to(dtype), u=self.u.to(dtype), h=self.h.to(dtype))

    def multipliers(self, states: Tensor | None) -> Tensor:
        """Return y = Z A - h at given states, or at phi(u)."""
        states = self.forward(self.u) if states is None else states.to(self.u)
        return states @ self.shared.map - self.h

    def states(self, y: Tensor) -> Tensor:
        """Return Z = phi(u - y A')."""
        return self.forward(self.pre_activation(y))

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> per sample, (samples, 1)."""
        return (a * b).sum(-1, keepdim=True)

    def paired(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return the same of every pair."""
        return tuple(self.inner(*pair) for pair in pairs)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.activation.forward(u)

    def lift(self, y: Tensor) -> Tensor:
        """Return -y A'."""
        return product(-y, self.shared.adjoint)

    def pre_activation(self, y: Tensor) -> Tensor:
        """Return u - y A'."""
        return torch.addmm(self.u, y, self.shared.adjoint, alpha=-1)

    def quadratic_gradient(self, y: Tensor) -> Tensor:
        """Return y + h."""
        return y + self.h

    def curved(self, d: Tensor) -> Tensor:
        """Return d."""
        return d

    def pull(self, v: Tensor) -> Tensor:
        """Return -v A."""
        return product(v, self.shared.map).neg_()

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return gradient (I + A'A L / 2)^-1, half the Lipschitz constant as a typical slope."""
        return self.shared.precondition(gradient)

    def gradient(self, y: Tensor, u: Tensor) -> Tensor:
        """Return the gradient at y, where u = u - y A'."""
        return self.quadratic_gradient(y) + self.pull(self.forward(u))

    def newton_direction(self, u: Tensor, gradient: Tensor) -> Tensor:
        """Return -(I + A' diag(phi'(u)) A)^-1 gradient, sample by sample, for a per-unit phi."""
        curved = self.activation.slope(u).unsqueeze(-1) * self.shared.map
        hessian = self.shared.adjoint @ curved
        hessian.diagonal(dim1=-2, dim2=-1).add_(1)
        direction: Tensor = torch.linalg.solve_ex(hessian, -gradient).result
        return direction  # without a look at its success, for which a GPU would be waited for

    def violation(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample: it bounds the violation of primal stationarity."""
        return self.shared.length(gradient)


def dual_rows(problem: StateFit, shared: SharedMap, part: slice) -> DualRows:
    """Return the dual for the samples of a slice."""
    u = problem.pre_activation[part]
    h = shared.wanted(torch.cat(list(_wanted(problem, shared, part)), 1))
    return DualRows(problem.divergence.activation, shared.to(u.dtype), u, h)


def _wanted(problem: StateFit, shared: SharedMap, part: slice) -> Iterator[Tensor]:
    """Yield what each link asks of Z W sqrt(scale): sqrt(scale) ((V - c) / L - C)."""
    for link, scale in zip(problem.links, shared.scales, strict=True):
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        target = link.target[part]
        wanted = (target - link.divergence.offset(target)) / curvature_of(link)
        offset = link.offset if link.offset.ndim == 1 else link.offset[part]
        yield scale**0.5 * (wanted - offset)
