"""What the data leave open about the weights of a network, and so about its outputs.

Laplace's approximation: near a minimizer of F weights have the density N(w, s H^-1). Outputs are
those of the network linearized there, u(x) + J(x) (w' - w): with the outputs of the network itself
at draws of w' errors are far larger, as the curvature H is that of the linearized network, too
(Immer, Korzepa and Bauer, Improving predictions of Bayesian neural nets via local linearization,
2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .covariance import Covariance
from .equations import NormalEquations, output_jacobians, parts_of
from .evidence import evidence, precision_of, prior_of
from .objective import Forward
from .steps import direct

_ROUNDS = 4  # of the noise of several outputs, from that of their residuals on
_POINTS = 256  # of half a normal distribution, by which outputs are averaged
_EDGE = 1e-9  # of the unit interval, beyond which a point is as good as infinite
_BYTES = 2**24  # of outputs at all of them, at a time


@dataclass(frozen=True, eq=False)
class Laplace:
    """N(point, s H^-1), and the noise of the outputs around what the network answers.

    Attributes:
        point: all weights, (parameters,), float64.
        covariance: H^-1.
        scale: s, 1 where the loss is a probability.
        noise: variance of the targets of squares around the outputs, (outputs,); none of others.
        degrees: of freedom by which the noise is known; infinite of others.
        logarithm: log p(targets); -inf where weights have no rho.
    """

    point: Tensor
    covariance: Covariance
    scale: float
    noise: Tensor
    degrees: float
    logarithm: float

    def outputs(self, forward: Forward) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and their covariances by the weights, some samples after others.

        They are (samples, rows, outputs) and (samples, rows, outputs, outputs).

        Args:
            forward: a network of one loss on new data; its targets are not looked at.
        """
        for part in parts_of(forward, len(self.point) * len(self.noise)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            images = self.covariance.image(rows)
            yield outputs, self.scale * images @ images.mT

    def draws(self, forward: Forward, count: int, generator: torch.Generator) -> Tensor:
        """Return outputs at draws of the weights, (draws, samples, rows, outputs)."""
        normal = torch.randn(count, len(self.point), generator=generator, dtype=torch.float64)
        moves = self.scale**0.5 * self.covariance.draw(normal.to(self.point.device))
        found = []
        for part in parts_of(forward, len(self.point) * len(self.noise)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            found.append(outputs + (rows @ moves.T).movedim(-1, 0))
        return torch.cat(found, 1)

    def left_out(self, forward: Forward) -> Tensor:
        """Return what is left of every target by the weights without its sample.

        (I - J H^-1 J' B)^-1 r with the rows J, B of the sample: exact for a linear network, and a
        squared loss, whose rho are held. (samples, rows, outputs).
        """
        found = []
        for part in parts_of(forward, len(self.point)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            (target,) = part.targets
            images = self.covariance.image(rows).flatten(1, 2)
            counted = target.curved(outputs)(self.scale / self.noise.expand_as(outputs))
            system = torch.eye(images.shape[1], dtype=torch.float64, device=outputs.device)
            system = system - images @ images.mT * counted.flatten(1, 2)[:, None]
            left = (target.values - outputs).flatten(1, 2)
            found.append(torch.linalg.solve(system, left).reshape_as(outputs))
        return torch.cat(found)


def laplace(forward: Forward, point: Tensor) -> Laplace | None:
    """Return the approximation at a minimizer, None where H is singular to rounding, or noise 0.

    Args:
        forward: with one loss.
        point: all weights, (parameters,), float64.
    """
    (target,) = forward.targets
    for _ in range(_ROUNDS):
        found = _laplace(forward, point)
        if found is None or (precision := found[1]) is None:
            break
        forward = replace(forward, targets=(replace(target, precision=precision),))
    return None if found is None else found[0]


def _laplace(forward: Forward, point: Tensor) -> tuple[Laplace, Tensor | None] | None:
    """Return the approximation, and the precision of outputs that the noise around it asks for."""
    prior = prior_of(forward)
    suited = NormalEquations if bool((prior == 0).any()) else direct
    model = suited(forward, point)
    covariance = model.covariance(prior)
    seen = evidence(forward, model, forward.objective(point))
    if covariance is None or seen is None:
        return None
    (target,) = forward.targets
    noise = point.new_full((target.values.shape[-1],), seen.noise if forward.squared else 0.0)
    if target.precision is not None:
        noise = noise / target.precision
    found = Laplace(point, covariance, seen.noise, noise, seen.degrees, seen.logarithm)
    return found, precision_of(forward, model)


def averaged(activate: Callable[[Tensor], Tensor], mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the mean of activate(u) over u from N(mean, covariance), (..., outputs).

    By fixed quasi-random points of the normal distribution (Sobol's, scrambled from seed 0) and
    their opposites, the same for every row. A formula that only looks at the variance of each
    logit, as the mean-field probit, flattens probabilities: what all logits have in common moves
    none of them.

    Args:
        activate: of pre-activations (..., outputs).
        mean: (..., outputs).
        covariance: (..., outputs, outputs).
    """
    outputs = mean.shape[-1]
    uniform = SobolEngine(outputs, scramble=True, seed=0).draw(_POINTS, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(_EDGE, 1 - _EDGE)).to(mean.device)
    values, vectors = torch.linalg.eigh(covariance.flatten(0, -3))
    roots = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    size, found = max(1, _BYTES // (16 * _POINTS * outputs)), []
    for center, root in zip(mean.flatten(0, -2).split(size), roots.split(size), strict=True):
        moves = normal @ root.mT  # (rows, points, outputs)
        center = center.unsqueeze(-2)
        found.append((activate(center + moves) + activate(center - moves)).mean(1) / 2)
    return torch.cat(found).reshape_as(mean)
