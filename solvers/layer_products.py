"""The curvature of a network of dense layers, from products of two of a layer's numbers.

Where a sample is one row of u = [x, 1] W, the derivative of the outputs in W is the outer product
of [x, 1] and D = d outputs / d u. A block of J' Hess R J, of the layers l and m, is then

    sum over samples of ([x_l, 1] [x_m, 1]') (x) (D_l' Hess R D_m),

one matrix product of all pairs of inputs with all pairs of units. Within a layer both are
symmetric, and each pair is taken once: a quarter of the multiplications of J'J, whatever the number
of outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement

import torch
from torch import Tensor

from liftednet.gradients import pulled_back

from .objective import Forward, Product

_CHUNK_BYTES = 2**26  # of pairs at a time


def by_layers(forward: Forward, point: Tensor) -> Tensor:
    """Return J' Hess R J, (parameters, parameters), of a network whose layers are known."""
    inputs, losses = sensitivities(forward, point)
    inputs = [rows[None] for rows in inputs]
    slopes = [torch.cat(parts) for parts in zip(*(loss.slopes for loss in losses), strict=True)]
    bents = (loss.times(loss.curvature) for loss in losses)
    bent = [torch.cat(parts) for parts in zip(*bents, strict=True)]
    ends = list(accumulate(part.numel() for part in forward.pull))
    parts = [slice(end - part.numel(), end) for end, part in zip(ends, forward.pull, strict=True)]
    found = point.new_empty(len(point), len(point))
    for one, other in combinations_with_replacement(range(len(parts)), 2):
        block = _block(inputs[one], inputs[other], slopes[one], bent[other], same=one == other)
        found[parts[one], parts[other]] = block
        found[parts[other], parts[one]] = block.T
    return found


def hessians(curved: Product, outputs: Tensor) -> Tensor:
    """Return the matrices of a product, (samples, rows, outputs, outputs)."""
    units = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return torch.stack([curved(unit.expand_as(outputs)) for unit in units], -1)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """What one loss and the outputs that it sees make of the pre-activations of every layer.

    Attributes:
        curvature: Hess R, (samples, outputs, outputs).
        slopes: D = d outputs / d u of every layer, (outputs, units, samples) each.
    """

    curvature: Tensor
    slopes: Sequence[Tensor]

    def times(self, left: Tensor) -> list[Tensor]:
        """Return L D of every layer for matrices L, (samples, rows, outputs)."""
        return [torch.einsum("nij,jqn->iqn", left, slope) for slope in self.slopes]


def sensitivities(forward: Forward, point: Tensor) -> tuple[list[Tensor], list[Sensitivity]]:
    """Return [x, 1] of every layer, (inputs + 1, samples), and what every loss sees of it."""
    assert forward.layers is not None  # the caller has seen to it
    weights = tuple(part.clone().requires_grad_() for part in forward.split(point))
    with torch.enable_grad():
        outputs, layers = forward.layers(weights, forward.data)
    arguments, found = [u for _, u in layers], []
    for target, answer in zip(forward.targets, outputs, strict=True):
        units = torch.eye(answer.shape[-1], dtype=answer.dtype, device=answer.device)
        columns = [
            pulled_back(
                [answer],
                arguments,
                [unit.expand_as(answer)],
                retain_graph=True,
                materialize_grads=True,
            )
            for unit in units
        ]
        slopes = [torch.stack([x.T for x in layer]) for layer in zip(*columns, strict=True)]
        answer = answer.detach()
        found.append(Sensitivity(hessians(target.curved(answer), answer)[:, 0], slopes))
    return [rows.detach().T for rows, _ in layers], found


def _block(x: Tensor, y: Tensor, slope: Tensor, bent: Tensor, *, same: bool) -> Tensor:
    """Return the curvature between two layers, (weights of one, weights of the other)."""
    (p, q), (r, s) = (x.shape[1], slope.shape[1]), (y.shape[1], bent.shape[1])
    samples, total = x.shape[-1], x.new_zeros(_count(p, r, same), _count(q, s, same))
    size = max(1, _CHUNK_BYTES // (8 * sum(total.shape)))
    for first in range(0, samples, size):
        some = slice(first, first + size)
        inputs = _pairs(x[..., some], y[..., some], same)
        total.addmm_(inputs, _pairs(slope[..., some], bent[..., some], same).T)
    if same:
        total = total[:, _place(q, total)][_place(p, total)]
    return total.view(p, r, q, s).transpose(1, 2).reshape(p * q, r * s)


def _count(left: int, right: int, same: bool) -> int:
    return left * (left + 1) // 2 if same else left * right


def _pairs(left: Tensor, right: Tensor, same: bool) -> Tensor:
    """Return sum over k of left_ka right_kb, (pairs, samples), those with b < a left out if same.

    Args:
        left: (k, a, samples).
        right: (k, b, samples).
        same: whether the sums are symmetric in a and b.
    """
    rows, units, samples = left.shape[1], right.shape[1], left.shape[2]
    found, place = left.new_empty(_count(rows, units, same), samples), 0
    for row in range(rows):
        others = right[:, row:] if same else right
        end = place + others.shape[1]
        torch.sum(left[:, row, None] * others, 0, out=found[place:end])
        place = end
    return found


def _place(units: int, like: Tensor) -> Tensor:
    """Return where the pair (a, b) stands among those with a <= b, (units^2,)."""
    one, other = torch.triu_indices(units, units, device=like.device)
    places: Tensor = one.new_empty(units, units)
    places[one, other] = places[other, one] = torch.arange(len(one), device=like.device)
    return places.flatten()
