"""Weight fits that compiled loops know, over few samples, and their sums by one."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from liftednet import processes
from liftednet.compiled import refusal
from liftednet.divergences import Joint
from liftednet.problems.fit import Measure
from liftednet.problems.ramps import link_map, slope_of
from liftednet.samples import squared_norm_of

if TYPE_CHECKING:
    from liftednet.compiled.weights import FitRows
    from liftednet.problems.weight_fit import WeightFit
    from liftednet.samples import Weights

_NONE = np.empty(0)
_MOST = 20_000  # products in a pass, up to which torch takes longer to be called


def operations(problem: WeightFit) -> int:
    """Return how many products a pass over the samples takes."""
    return problem.design.samples * (problem.design.features + 1) * problem.units


def unlooped(problem: WeightFit) -> str | None:
    """Return why compiled loops cannot take a weight fit, or None."""
    if operations(problem) > _MOST:
        return f"it serves at most {_MOST:,} products of samples, inputs and units"
    if link_map(problem.divergence) is None:
        return f"it does not know the map of {problem.divergence!r}"
    if not problem.design.exact or processes.size() > 1:
        return "it needs all samples in one process, and exact sums"
    return refusal(problem.targets)


def looped(problem: WeightFit) -> FitRows | None:
    """Return a fit as compiled loops take it, or None where they do not."""
    above = link_map(problem.divergence)
    if above is None or unlooped(problem) is not None:
        return None
    from liftednet.compiled.weights import FitRows

    given, units = problem.design.centered, problem.units
    design = np.ones((given.samples, given.features + given.bias))
    design[:, : given.features] = given.inputs.detach().numpy()
    if given.shift is not None:
        design[:, : given.features] -= given.shift.numpy()
    weights = np.ones(given.samples)
    if given.weights is not None:
        weights[:] = given.weights.numpy()
    offset = np.empty((0, units))
    if problem.offset is not None:
        offset = problem.offset.detach().numpy().astype(float)
    smooth = problem.divergence.smoothness if isinstance(problem.divergence, Joint) else 0.0
    slope = slope_of(problem.divergence, units)[:, 0].astype(float)
    target = pulled = problem.targets.detach().numpy().astype(float)
    if problem.pulled is not problem.targets:
        pulled = problem.pulled.detach().numpy().astype(float)
    return FitRows(design, weights, offset, target, pulled, above, float(smooth), slope)


def summed_by_loop(rows: FitRows, stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum R(u) - <u, V> and [X - shift, 1]'grad R(u) at [W; b + shift W]."""
    from liftednet.compiled.weights import summed

    at = stacked.detach().contiguous().numpy()
    slope = np.empty_like(at)
    value = summed(rows, at, slope)
    return torch.tensor(value, dtype=torch.float64), torch.from_numpy(slope)


def measured_by_loop(problem: WeightFit, value: Weights) -> Measure | None:
    """Return what `WeightFit.measure` does by a compiled loop, or None where there is none."""
    rows, curvature = problem.loops, problem.divergence.smoothness
    if rows is None or curvature is None or not problem.penalty.proximable:
        return None
    from liftednet.compiled.weights import judged, off

    matrix, design, lam = value.matrix.detach().double(), problem.design, problem.lam
    bias = _NONE if value.bias is None else value.bias.detach().double().numpy()
    shift = _NONE if design.centered.shift is None else design.centered.shift.numpy()
    gradient = np.empty((rows.design.shape[1], problem.units))
    cross = problem.cross.contiguous().numpy()
    given = rows, cross, shift, matrix.contiguous().numpy(), bias, lam, gradient
    link, hidden, pushed, pulled = judged(*given)
    violation = torch.from_numpy(gradient)
    smoothness = 1.0 if problem.penalty.smooth else problem.smoothness
    assert smoothness is not None  # as the curvature is not
    inner = violation[: len(matrix)]
    inner.copy_(problem.penalty.stationarity(matrix, inner, smoothness))
    steepest = lam * curvature * design.mass
    rounding = torch.finfo(value.matrix.dtype).eps
    lost, largest = off(rows, gradient, bias, steepest, rounding, problem.by_gram)
    objective, scale = lam * link + float(problem.penalty.value(matrix)), lam * max(pushed, pulled)
    residual = max(largest / (scale or 1.0), problem.across_mean(violation))
    size = lam * design.mass + abs(objective)
    worst = max(residual, hidden * design.rounding * lam / size, lost / size)
    return Measure(objective, torch.nan if isnan(hidden + lost + largest) else worst)


def cross_of(rows: FitRows) -> Tensor:
    """Return [X - shift, 1]'V, of a quadratic divergence less L C."""
    return torch.from_numpy(rows.design.T @ (rows.weights[:, None] * rows.pulled))


def norm_of(rows: FitRows) -> float:
    """Return the largest eigenvalue of the Gram matrix of [X - shift, 1]."""
    return squared_norm_of(torch.from_numpy(rows.design * np.sqrt(rows.weights)[:, None]))
