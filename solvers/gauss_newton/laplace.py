"""What the data leave open about the weights of a network, and so about its outputs.

Laplace's approximation: near a minimizer of F weights have the density N(w, s H^-1). Outputs are
those of the network linearized there, u(x) + J(x) (w' - w): with the outputs of the network itself
at draws of w' errors are far larger, as the curvature H is that of the linearized network, too
(Immer, Korzepa and Bauer, Improving predictions of Bayesian neural nets via local linearization,
2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .covariance import Covariance
from .equations import NormalEquations, hessians, output_jacobians, parts_of
from .evidence import NO_TAILS, count_answers, evidence, precision_of, prior_of, pulled_by
from .objective import Forward, Tensors
from .steps import direct

_CONSTANT = 1e-3  # of the answers: what a constant is pulled by at most, which no rho is for
_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
# Where all is certain, samples that are left out seem to be, too, of few samples most: with none of
# the covariance the log loss of 20 rows of iris is .26, the mean of four draws, with an eighth at
# least .17 (worst .58, .20), but of 89 of wine it is .01 worse, where a sixteenth is enough.
_LEAST, _FOR_SAMPLES = 1 / 8, 5.0
_ROWS = 1000  # by which one of them is chosen
_ROUNDS = 4  # of the noise of several outputs, from that of their residuals on
_LOOKS = 10  # at the evidence, until rho fit weights that stay
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
        noise: variance of the targets of squares around the outputs, (outputs,), of counts in
            units of their rates; none of others.
        degrees: of freedom by which the noise is known; infinite of others.
        logarithm: log p(targets); -inf where weights have no rho.
        share: of H^-1 that outputs are spread by: of probabilities see `share_of`, of numbers 1, or
            more where other fits are farther off.
        tails: delta, share and length of those of the noise, see `Noise`.
        follows: whether the weights can follow every answer, see `Evidence`; not kept in files.
    """

    point: Tensor
    covariance: Covariance
    scale: float
    noise: Tensor
    degrees: float
    logarithm: float
    share: float = 1.0
    tails: tuple[float, float, float] = NO_TAILS
    follows: bool = False

    def outputs(self, forward: Forward) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and their covariances by the weights, some samples after others.

        They are (samples, rows, outputs) and (samples, rows, outputs, outputs).

        Args:
            forward: a network of one loss on new data; its targets are not looked at.
        """
        for part in parts_of(forward, len(self.point) * len(self.noise)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            images = self.covariance.image(rows)
            yield outputs, self.share * self.scale * images @ images.mT

    def draws(self, forward: Forward, count: int, generator: torch.Generator) -> Tensor:
        """Return outputs at draws of the weights, (draws, samples, rows, outputs)."""
        normal = torch.randn(count, len(self.point), generator=generator, dtype=torch.float64)
        moves = (self.share * self.scale) ** 0.5 * self.covariance.draw(
            normal.to(self.point.device)
        )
        found = []
        for part in parts_of(forward, len(self.point) * len(self.noise)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            found.append(outputs + (rows @ moves.T).movedim(-1, 0))
        return torch.cat(found, 1)

    def left_out(
        self, forward: Forward, *, copies: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and covariances by the weights without the sample itself.

        With `copies` a sample of weight 3 is three, of which one is left out, so that weights are
        what repetitions are; else all of it is.

        Without its part of H the covariance V = J H^-1 J' of a sample's outputs is V (I - B V)^-1,
        and one Newton step without its gradient g moves the outputs u to u + V (I - B V)^-1 g:
        exact for a linear network, and a squared loss, whose rho are held. (samples, outputs),
        (samples, outputs, outputs), those of all rows of a sequence together.
        """
        for part in parts_of(forward, len(self.point)):
            (outputs,), (rows,) = output_jacobians(part, self.point)
            target = replace(part.targets[0], precision=self._precision)
            images, wide = self.covariance.image(rows).flatten(1, 2), outputs.flatten(1, 2)
            covariance = images @ images.mT
            weight = torch.as_tensor(target.weight if copies else 1.0).to(outputs)
            gone = weight.clamp(min=1).reciprocal().reshape(-1, 1, 1)
            curved = hessians(target.curved(outputs), outputs) * gone[..., None]
            if outputs.shape[1] > 1:  # rows are apart
                curved = torch.stack([torch.block_diag(*one) for one in curved])
            else:
                curved = curved[:, 0]
            units = torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
            wider = torch.linalg.solve(units - curved @ covariance, covariance, left=False)
            slopes = (target.slopes(outputs)[0] * gone).flatten(1, 2).unsqueeze(-1)
            yield wide + (wider @ slopes)[..., 0], self.scale * wider

    @property
    def _precision(self) -> Tensor | None:
        return self.scale / self.noise if bool(self.noise.any()) else None


def laplace(
    forward: Forward, point: Tensor, *, chosen: bool = False, among: Sequence[int] | None = None
) -> Laplace | None:
    """Return the approximation at a minimizer, None where H is singular to rounding, or noise 0.

    Args:
        forward: with one loss.
        point: all weights, (parameters,), float64.
        chosen: whether rho are those that the evidence asks for at these weights, as after a method
            that does not follow it.
        among: numbers of the weights that are not taken as known, with which the targets have no
            density of their own; None for all.
    """
    if among is not None:
        some, own = _of_some(forward, point, among)
        last = laplace(some, point[own], chosen=chosen)
        if last is None:
            return None
        held = last.covariance.free
        free = own if held is None else own[held]
        covariance = replace(last.covariance, free=free)
        return replace(last, point=point, covariance=covariance, logarithm=-math.inf)
    if chosen:
        model = direct(forward, point)
        for _ in range(_LOOKS):
            if (seen := evidence(forward, model, forward.objective(point))) is None:
                return None
            forward = pulled_by(forward, seen.rhos)
    (target,) = forward.targets
    for _ in range(_ROUNDS):
        found = _laplace(forward, point)
        if found is None or (precision := found[1]) is None:
            break
        forward = replace(forward, targets=(replace(target, precision=precision),))
    return None if found is None else found[0]


def _of_some(forward: Forward, point: Tensor, among: Sequence[int]) -> tuple[Forward, Tensor]:
    """Return the objective as a function of some weights, others held, and numbers of those."""
    weights, places = forward.split(point), torch.arange(len(point), device=point.device)
    own = torch.cat([forward.split(places)[number].flatten() for number in among])
    ends = None if forward.ends is None else (forward.ends[0][own], forward.ends[1][own])

    def whole(some: Tensors) -> Tensors:
        moved = dict(zip(among, some, strict=True))
        return tuple(moved.get(number, weight) for number, weight in enumerate(weights))

    def layers(some: Tensors, data: Tensors) -> tuple[Tensors, list[tuple[Tensor, Tensor]]]:
        assert forward.layers is not None  # or these are not asked for
        outputs, found = forward.layers(whole(some), data)
        return outputs, [found[number] for number in among]

    found = Forward(
        lambda some, data: forward.outputs(whole(some), data), forward.data, forward.targets,
        tuple(forward.pull[number] for number in among),
        None if forward.layers is None else layers, ends=ends,
    )  # fmt: skip
    return found, own


def _laplace(forward: Forward, point: Tensor) -> tuple[Laplace, Tensor | None] | None:
    """Return the approximation, and the precision of outputs that the noise around it asks for."""
    prior = prior_of(forward)
    suited = NormalEquations if bool((prior == 0).any()) else direct
    model = suited(forward, point)
    (target,) = forward.targets
    weak = prior.clamp(max=_CONSTANT * count_answers(target))
    covariance = model.covariance(torch.where(forward.pulls > 0, prior, weak))
    seen = evidence(forward, model, forward.objective(point))
    if covariance is None or seen is None:
        return None
    sized = forward.squared or target.dispersed
    noise = point.new_full((target.values.shape[-1],), seen.noise if sized else 0.0)
    if target.precision is not None:
        noise = noise / target.precision
    found = Laplace(
        point, covariance, seen.noise, noise, seen.degrees, seen.logarithm, tails=seen.tails,
        follows=seen.follows,
    )  # fmt: skip
    return found, precision_of(forward, model)


def share_of(found: Laplace, forward: Forward) -> float:
    """Return the share of the covariance with which samples that are left out are most likely.

    A posterior of weights that tell classes apart is skew: logits may be larger, not smaller. Its
    Gaussian is as wide to both sides, and averages over it flatten what is certain; how wide it
    should be is told by log p(y_i | others) at `left_out`, of a thousand samples at most, but an
    eighth of it at least of forty, less of more.

    Args:
        found: with all of its covariance.
        forward: with one loss that is a probability.
    """
    few = slice(None, None, max(1, -(-forward.samples // _ROWS)))
    some = replace(
        forward,
        data=tuple(part[few] for part in forward.data),
        targets=tuple(target.take(few) for target in forward.targets),
    )
    (target,) = some.targets
    rows, outputs = target.values.shape[1:]
    counted = target.counted.flatten()  # targets of others are nothing that could be likely
    weights = (target.weight * target.counted[..., None]).double().flatten()[counted]
    scores = found.point.new_zeros(len(_SHARES))
    means, covariances = (
        torch.cat(x) for x in zip(*found.left_out(some, copies=True), strict=True)
    )
    each = covariances.unflatten(1, (rows, outputs)).unflatten(3, (rows, outputs))
    blocks = each.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).flatten(0, 1)
    values = target.values.flatten(0, 1)[counted].unsqueeze(1)
    for part, center, moves in _around(means.reshape(-1, outputs)[counted], blocks[counted]):
        for number, share in enumerate(_SHARES):
            far = target.divergence.values(values[part], center + share**0.5 * moves)
            likely = torch.logsumexp(-far, 1) - math.log(moves.shape[1])
            scores[number] += weights[part] @ likely
    weight = forward.targets[0].weight
    counts = float(weight.sum()) if isinstance(weight, Tensor) else forward.samples
    least = min(_LEAST, _FOR_SAMPLES / counts)
    scores[torch.tensor(_SHARES) < least] = -math.inf
    return _SHARES[int(scores.argmax())]


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
    found = [
        activate(center + moves).mean(1)
        for _, center, moves in _around(mean.flatten(0, -2), covariance.flatten(0, -3))
    ]
    return torch.cat(found).reshape_as(mean)


def _around(mean: Tensor, covariance: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield rows, their means (rows, 1, outputs), and the moves to points around them."""
    outputs = mean.shape[-1]
    uniform = SobolEngine(outputs, scramble=True, seed=0).draw(_POINTS, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(_EDGE, 1 - _EDGE)).to(mean)
    normal = torch.cat([half, -half])
    size = max(1, _BYTES // (8 * normal.numel()))
    for first in range(0, len(mean), size):
        part = slice(first, first + size)
        values, vectors = torch.linalg.eigh(covariance[part])
        roots = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        yield part, mean[part].unsqueeze(1), normal @ roots.mT
