"""A state fit as its links see it: Z(a), the gap Z(a) W + C - a, and the links' curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.problems import Link, StateFit

from .dual import terms


@dataclass(frozen=True)
class LinkState:
    """Where the pre-activations above stand, sample by sample.

    Attributes:
        seen: a, (samples, columns of all links).
        push: (grad R_k(a) - V_k) lam_k / lam.
        u: U - push W'.
        states: Z(a) = phi(u).
        gap: F(a) = Z(a) W + C - a.
    """

    seen: Tensor
    push: Tensor
    u: Tensor
    states: Tensor
    gap: Tensor

    def rows(self, keep: Tensor) -> LinkState:
        """Return some of the samples."""
        return LinkState(*(getattr(self, field.name)[keep] for field in fields(self)))


@dataclass(frozen=True)
class Curvature:
    """A root M of the links' curvature J = M M' lam_k / lam.

    Attributes:
        root: returns M x.
        transposed: returns M'x.
    """

    root: Callable[[Tensor], Tensor]
    transposed: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinkRows:
    """Some samples of a state fit whose links stand side by side.

    Attributes:
        activation: phi.
        links: one by one, for these samples.
        ratios: lam_k / lam.
        weight: [W_k], (units, columns).
        adjoint: its transpose, contiguous.
        u: U, (samples, units).
        scale: the largest of 1, the reach of U and V_k W_k' lam_k / lam, (samples,).
    """

    activation: Activation
    links: tuple[Link, ...]
    ratios: tuple[float, ...]
    weight: Tensor
    adjoint: Tensor
    u: Tensor
    scale: Tensor

    def rows(self, keep: Tensor) -> LinkRows:
        """Return some of the samples."""
        links = tuple(link.rows(keep) for link in self.links)
        return replace(self, links=links, u=self.u[keep], scale=self.scale[keep])

    def seen(self, states: Tensor) -> Tensor:
        """Return Z W + C."""
        return torch.cat([link.pre_activation(states) for link in self.links], 1)

    def pushed(self, seen: Tensor) -> Tensor:
        """Return (grad R_k(a) - V_k) lam_k / lam."""
        parts = zip(self.links, self.ratios, self._split(seen), strict=True)
        return torch.cat(
            [ratio * (link.divergence.link_gradient(a) - link.target) for link, ratio, a in parts],
            1,
        )

    def state(self, seen: Tensor) -> LinkState:
        """Return Z(a) and its gap."""
        push = self.pushed(seen)
        u = torch.addmm(self.u, push, self.adjoint, alpha=-1)
        states = self.activation.forward(u)
        return LinkState(seen, push, u, states, self.seen(states) - seen)

    def violation(self, at: LinkState) -> Tensor:
        """Return how far Z(a) is from stationary, (samples,), over lam."""
        change = self.pushed(at.seen + at.gap) - at.push
        return (change @ self.adjoint).abs().amax(1)

    def through(self, at: LinkState, x: Tensor) -> Tensor:
        """Return B x, with B = W' phi'(u) W."""
        return ((x @ self.adjoint) * self.activation.slope(at.u)) @ self.weight

    def curvature(self, at: LinkState) -> Curvature:
        """Return a root of the links' curvature."""
        parts = zip(self.links, self.ratios, self._split(at.seen), strict=True)
        roots = [_root(link, ratio, a) for link, ratio, a in parts]

        def each(which: str) -> Callable[[Tensor], Tensor]:
            return lambda x: torch.cat(
                [
                    getattr(root, which)(part)
                    for root, part in zip(roots, self._split(x), strict=True)
                ],
                1,
            )

        return Curvature(each("root"), each("transposed"))

    def _split(self, seen: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = seen.split([link.weight.shape[1] for link in self.links], 1)
        return parts


def link_rows(problem: StateFit, part: slice) -> LinkRows:
    """Return the samples of a slice."""
    weight = torch.cat([link.weight for link in problem.links], 1)
    ratios = tuple(link.lam / problem.lam for link in problem.links)
    links = tuple(link.rows(part) for link in problem.links)
    u, adjoint = problem.pre_activation[part], weight.T.contiguous()
    largest = [term.abs().amax(1) for term in terms(problem, part)]
    scale = torch.stack(largest).amax(0).clamp(min=1.0)
    return LinkRows(problem.divergence.activation, links, ratios, weight, adjoint, u, scale)


def _root(link: Link, ratio: float, a: Tensor) -> Curvature:
    """Return a root of one link's curvature: diagonal, or that of the softmax.

    diag(p) - p p' = M M' with M = diag(d) (I - d d') and d = sqrt(p), of length 1.
    """
    above = link.divergence
    if above.quadratic or above.activation.per_unit:
        diagonal = (ratio * above.link_curvature(a).clamp(min=0)).sqrt()
        return Curvature(lambda x: diagonal * x, lambda x: diagonal * x)
    d = above.link_gradient(a).sqrt()

    def projected(x: Tensor) -> Tensor:
        return x - d * (d * x).sum(1, keepdim=True)

    scale = ratio**0.5
    return Curvature(lambda x: scale * d * projected(x), lambda x: scale * projected(d * x))
