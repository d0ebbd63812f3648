"""Gauss-Newton's model of a network with its dense curvature, from Jacobians sample by sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vmap

from .levenberg_marquardt import Quadratic
from .objective import Forward, Product, Target, Tensors

_CHUNK_BYTES = 2**24  # of Jacobians at a time, about what a cache holds
_DIRECTIONS = 16  # at a time, forward


def normal_equations(forward: Forward, point: Tensor) -> Quadratic:
    """Return <g, s> + <s, C s> / 2 with C = J' Hess R J + pull as a matrix.

    Args:
        forward: the network, its data and its targets.
        point: all weights, (parameters,), float64.
    """
    size = len(point)
    slopes, curvature = point.new_zeros(2, size), point.new_zeros(size, size)
    for part in _chunks(forward, size):
        outputs = part.at(part.split(point))
        found = zip(part.targets, outputs, jacobians(part, point, outputs), strict=True)
        for target, answer, jacobian in found:
            rows = jacobian.flatten(0, 2)
            slopes += torch.stack([slope.flatten() for slope in target.slopes(answer)]) @ rows
            curvature += rows.T @ _bent(target, answer, jacobian).flatten(0, 2)
    curvature.diagonal().add_(forward.pulls)
    left, answered, pulled = *slopes, forward.pulls * point
    terms = torch.stack([answered, answered - left, pulled])
    return Quadratic(left + pulled, curvature, float(terms.abs().max()))


def _chunks(forward: Forward, parameters: int) -> Iterator[Forward]:
    """Yield some samples after another."""
    entries = sum(target.values[0].numel() for target in forward.targets)
    size = max(1, _CHUNK_BYTES // (8 * max(1, entries) * parameters))
    for first in range(0, forward.samples, size):
        yield forward.take(slice(first, first + size))


def jacobians(forward: Forward, point: Tensor, outputs: Tensors) -> Tensors:
    """Return the derivatives of every output, (samples, rows, outputs, parameters) each.

    Backward, each sample by itself, where its outputs are fewer than the weights, else forward.
    """
    if sum(part[0].numel() for part in outputs) > len(point):
        return _by_weights(forward, point)
    return _by_outputs(forward, point)


def _by_weights(forward: Forward, point: Tensor) -> Tensors:
    def moved(direction: Tensor) -> Tensors:
        found: Tensors = jvp(lambda w: forward.at(forward.split(w)), (point,), (direction,))[1]
        return found

    directions = torch.eye(len(point), dtype=point.dtype, device=point.device)
    found: Tensors = vmap(moved, out_dims=-1, chunk_size=_DIRECTIONS)(directions)
    return found


def _by_outputs(forward: Forward, point: Tensor) -> Tensors:
    def of_sample(weights: Tensor, *sample: Tensor) -> Tensors:
        alone = tuple(part[None] for part in sample)
        return tuple(part[0] for part in forward.outputs(forward.split(weights), alone))

    axes = (None, *(0 for _ in forward.data))
    found: Tensors = vmap(jacrev(of_sample), in_dims=axes)(point, *forward.data)
    return found


def _bent(target: Target, outputs: Tensor, jacobian: Tensor) -> Tensor:
    """Return weight Hess R(u) J, (samples, rows, outputs, parameters)."""
    return hessians(target.curved(outputs), outputs) @ jacobian


def hessians(curved: Product, outputs: Tensor) -> Tensor:
    """Return the matrices of a product, (samples, rows, outputs, outputs)."""
    units = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return torch.stack([curved(unit.expand_as(outputs)) for unit in units], -1)
