"""Gauss-Newton's model of a network with its curvature as a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vmap

from liftednet import processes

from .direct import DirectModel
from .layer_products import by_layers, hessians
from .objective import Forward, Product, Target, Tensors

_CHUNK_BYTES = 2**24  # of Jacobians at a time, about what a cache holds
_DIRECTIONS = 16  # at a time, forward


class NormalEquations(DirectModel):
    """A model with C as a matrix, whose damped minimizer is exact.

    Attributes:
        curvature: C, (parameters, parameters), float64 and positive semidefinite.
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, and form C."""
        super().__init__(forward, point)
        formed = by_samples if forward.layers is None else by_layers
        (self.curvature,) = processes.total(formed(forward, point))
        self.curvature.diagonal().add_(forward.pulls)

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C."""
        return float(self.curvature.diagonal().mean())

    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        return self.curvature @ direction

    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""
        solve = _solver(self._curvature, damping)
        return lambda b: self.spread(solve(self.chosen(b)))

    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return 1 - prior_i (H^-1)_ii of each weight that is free, and log det H among these."""
        among, system = self.chosen(prior), self._curvature.clone()
        system.diagonal().add_(among - self.chosen(self.operator.forward.pulls))
        factor, failed = torch.linalg.cholesky_ex(system)
        if failed:
            return None
        known = 1 - among * torch.cholesky_inverse(factor).diagonal()
        return self.spread(known), 2 * float(factor.diagonal().log().sum())

    @cached_property
    def _curvature(self) -> Tensor:
        """C among the weights that are free."""
        return self.chosen(self.chosen(self.curvature).T)


def _solver(curvature: Tensor, damping: float) -> Product:
    """Return b -> (C + damping)^-1 b."""
    damped = curvature.clone()
    damped.diagonal().add_(damping)
    factor, failed = torch.linalg.cholesky_ex(damped)
    if not failed:
        return lambda b: torch.cholesky_solve(b[:, None], factor)[:, 0]
    if bool(damped.isfinite().all()):  # rounding of a curvature far larger than the damping
        return lambda b: torch.linalg.lstsq(damped, b[:, None]).solution[:, 0]
    return lambda b: torch.full_like(b, torch.nan)


def by_samples(forward: Forward, point: Tensor) -> Tensor:
    """Return J' Hess R J from Jacobians sample by sample, (parameters, parameters)."""
    curvature = point.new_zeros(len(point), len(point))
    for part in _chunks(forward, len(point)):
        outputs = part.at(part.split(point))
        found = zip(part.targets, outputs, jacobians(part, point, outputs), strict=True)
        for target, answer, jacobian in found:
            rows = jacobian.flatten(0, 2)
            curvature += rows.T @ _bent(target, answer, jacobian).flatten(0, 2)
    return curvature


def _chunks(forward: Forward, parameters: int) -> Iterator[Forward]:
    """Yield some samples after another."""
    entries = sum(target.values.shape[1:].numel() for target in forward.targets)
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
