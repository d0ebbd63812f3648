"""The dual of a state fit with quadratic links, for some of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Joint
from liftednet.problems import Link, StateFit


@dataclass(frozen=True)
class SharedMap:
    """The links' weights as one map A, in coordinates where its Gram matrix is diagonal.

    Attributes:
        weights: the weights W_k it was made of.
        scales: lam_k L_k / lam.
        turn: the rotation E of the stacked columns, (r, r).
        map: A = [sqrt(scale_k) W_k] E, (units, r).
        adjoint: A', (r, units), contiguous.
        spectrum: the diagonal of A'A, (r,).
    """

    weights: tuple[Tensor, ...]
    scales: tuple[float, ...]
    turn: Tensor
    map: Tensor
    adjoint: Tensor
    spectrum: Tensor

    def serves(self, problem: StateFit) -> bool:
        """Say whether the problem has these weights and these scales."""
        weights = [link.weight for link in problem.links]
        return self.scales == scales_of(problem) and all(
            old.dtype == new.dtype and old.shape == new.shape and torch.equal(old, new)
            for old, new in zip(self.weights, weights, strict=True)
        )

    def to(self, dtype: torch.dtype) -> SharedMap:
        """Return the map in another precision."""
        names = ("turn", "map", "adjoint", "spectrum")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})


def shared_map(problem: StateFit) -> SharedMap:
    """Return the links' weights, scaled, side by side and rotated, in float64."""
    weights, scales = tuple(link.weight.clone() for link in problem.links), scales_of(problem)
    stacked = torch.cat(
        [scale**0.5 * weight.double() for weight, scale in zip(weights, scales, strict=True)], 1
    )
    spectrum, turn = torch.linalg.eigh(stacked.T @ stacked)
    turned = stacked @ turn
    return SharedMap(weights, scales, turn, turned, turned.T.contiguous(), spectrum.clamp(min=0))


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

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.activation.forward(u)

    def lift(self, y: Tensor) -> Tensor:
        """Return -y A'."""
        return (-y) @ self.shared.adjoint

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
        return -(v @ self.shared.map)

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return gradient (I + A'A L / 2)^-1, half the Lipschitz constant as a typical slope."""
        lipschitz = self.activation.lipschitz
        assert lipschitz is not None  # asked for by the solver
        return gradient / (1 + lipschitz / 2 * self.shared.spectrum)

    def gradient(self, y: Tensor, u: Tensor) -> Tensor:
        """Return the gradient at y, where u = u - y A'."""
        return self.quadratic_gradient(y) + self.pull(self.forward(u))

    def newton_direction(self, u: Tensor, gradient: Tensor) -> Tensor:
        """Return -(I + A' diag(phi'(u)) A)^-1 gradient, sample by sample, for a per-unit phi."""
        curved = self.activation.slope(u).unsqueeze(-1) * self.shared.map
        hessian = self.shared.adjoint @ curved
        hessian.diagonal(dim1=-2, dim2=-1).add_(1)
        direction: Tensor = torch.linalg.solve(hessian, -gradient)
        return direction

    def violation(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample: it bounds the violation of primal stationarity."""
        return (gradient.square() @ self.shared.spectrum).sqrt()


def dual_rows(problem: StateFit, shared: SharedMap, part: slice) -> DualRows:
    """Return the dual for the samples of a slice."""
    u = problem.pre_activation[part]
    h = torch.cat(list(_wanted(problem, shared, part)), 1) @ shared.turn.to(u)
    return DualRows(problem.divergence.activation, shared.to(u.dtype), u, h)


def _wanted(problem: StateFit, shared: SharedMap, part: slice) -> Iterator[Tensor]:
    """Yield what each link asks of Z W sqrt(scale): sqrt(scale) ((V - c) / L - C)."""
    for link, scale in zip(problem.links, shared.scales, strict=True):
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        target = link.target[part]
        wanted = (target - link.divergence.offset(target)) / curvature_of(link)
        offset = link.offset if link.offset.ndim == 1 else link.offset[part]
        yield scale**0.5 * (wanted - offset)
