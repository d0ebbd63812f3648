"""Steps that kinks do not stop: L-BFGS, and noise or other units where it ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from liftednet import processes
from liftednet.maps import pulled_back

from ..compiled.recurrent import CompiledRecurrence
from ..quasi_newton import lbfgs
from .krylov import CurvatureProducts
from .local_model import Linearized
from .objective import Forward, joined

if TYPE_CHECKING:
    from .steps import Taken

_STEPS = 1000  # of L-BFGS before and after all tries
_TRIES, _AFTER_NOISE = 30, 300  # and steps after each, which ten of 1000 steps are worse than
_NOISE = 0.3  # in standard deviations of a layer's weights: of .1, .2, .3 and .5 the best
_SHARES = 0.1, 0.3  # of the units of a layer that are exchanged together, by turns
_RANK = 1e-6  # of the largest eigenvalue: units below it are sums of others
_DRAWN = 3  # units, of which the one that lowers the objective most at first comes in


def across_kinks(
    forward: Forward, point: Tensor, objective: float, tolerance: float, number: int = 0
) -> Generator[Taken, None, bool]:
    """Yield where L-BFGS ends, from the point and from others beside its ends, while it is lower.

    A minimizer of a network that is linear in pieces lies on kinks, which no model of derivatives
    at one point knows of: damped steps become short before them. Curvature that gradients on both
    sides tell goes on (Lewis and Overton, Nonsmooth Optimization via Quasi-Newton Methods, 2013).
    Where that ends it begins again thirty times, and as often for every layer beyond two, with
    noise on all weights, in dense layers by turns with other units in place of those by which
    outputs vary least; what it leads to is kept where the objective is lower (iterated local
    search: Lourenco, Martin and Stuetzle, 2003).

    Args:
        forward: the network and what it is held to.
        point: to begin with, (parameters,).
        objective: there.
        tolerance: of the relative gradient.
        number: how many times this has gone on.

    Returns:
        Whether the tolerance has been reached, which on kinks it may not be.
    """
    from .steps import Taken

    rounds = max(1, len(forward.hidden) - 1)
    last = 1 + (_TRIES * rounds if forward.perturbed else 0)
    while number <= last:
        inside = 0 < number < last
        start = point
        if inside and number % 2 == 0 and forward.hidden:
            start, _ = exchanged(forward, point, number // 2)
        elif inside:
            start = perturbed(forward, point, number)
        reached, after = quasi_newton(forward, start, _AFTER_NOISE if inside else _STEPS)
        number += 1
        if after < objective:
            decrease, point, objective = objective - after, reached, after
            residual = CurvatureProducts(forward, start).residual
            yield Taken(point, objective, decrease, residual, 1, False, number)
    return CurvatureProducts(forward, point).residual <= tolerance


def perturbed(forward: Forward, point: Tensor, number: int) -> Tensor:
    """Return a point with noise on weights, of .3 of the standard deviation of each layer's."""
    generator = torch.Generator().manual_seed(number)
    weights = forward.split(point)
    noise = [torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w) for w in weights]
    moved = [  # rows of zeros are those of inputs that stand still, and stay
        w + _NOISE * w.std() * z * (w != 0).any(-1, keepdim=True)
        for w, z in zip(weights, noise, strict=True)
    ]
    return forward.within(joined(moved))


def exchanged(forward: Forward, point: Tensor, number: int, units: int = 0) -> tuple[Tensor, float]:
    """Return a point with other units in place of those that answer least, the rest as it was.

    These are told by |a_j|^2 sum_i (h_ij - mean)^2, by which outputs vary with unit j. Others have
    random directions, zeros about where samples are, and the mean size; each is the one of some
    with the largest |sum_i v_i (h_i - mean)|, v being minus the gradient in what is above it, and
    has that sum's direction there, along which the objective falls.

    Args:
        forward: the network and what it is held to.
        point: all its weights.
        number: of the draw.
        units: how many are drawn for a layer at least, 0 for three for each that goes.

    Returns:
        The point, and the F statistic of v in these units, by which they explain as much more of it
        than of noise; 0 without a number of units.
    """
    generator = torch.Generator().manual_seed(number)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=point.dtype).to(point)

    weights = [part.clone() for part in forward.split(point)]
    assert forward.layers is not None  # there are no hidden units else
    with torch.enable_grad():
        outputs, layers = forward.layers(
            tuple(part.clone().requires_grad_() for part in weights), forward.data
        )
    slopes = [x.slopes(u.detach())[0] for x, u in zip(forward.targets, outputs, strict=True)]
    asked = pulled_back(outputs, [layers[above][1] for _, above in forward.hidden], slopes)
    explained = 0.0
    for (below, above), slope in zip(forward.hidden, asked, strict=True):
        W, A = weights[below], weights[above]
        rows, states = (layers[x][0][:, :-1].detach() for x in (below, above))
        (place, wide), (mean, varied) = _moments(rows), _moments(states)
        answers = varied * A[:-1].square().sum(1)
        share = _SHARES[number % len(_SHARES)]
        least = answers.argsort()[: max(1, round(share * len(answers)))]
        size = (W[:-1].norm(dim=0) * A[:-1].norm(dim=1)).mean().sqrt()
        A[-1] += mean[least] @ A[least]
        each = max(_DRAWN, units // len(least))
        w = normalize(drawn(each * len(least), len(place)) * (wide > 0), dim=1)
        b = -(w * (place + wide.sqrt() * drawn(*w.shape))).sum(1)
        h = (rows @ w.T + b).clamp(min=0)
        moved, total, sums, asks, count, products = processes.total(
            h.T @ slope, h.sum(0), slope.sum(0), slope.square().sum(),
            h.new_tensor([len(h)]), h.T @ h if units else h.new_zeros(0),
        )  # fmt: skip
        falls = total[:, None] * sums / count - moved
        best = falls.norm(dim=1).view(-1, each).argmax(1)
        best += each * torch.arange(len(best), device=best.device)
        if units:  # v by least squares
            products -= torch.outer(total, total) / count
            inverse = torch.linalg.pinv(products, rtol=_RANK, hermitian=True)
            met = (falls * (inverse @ falls)).sum() / asks
            explained = max(explained, float(met / (1 - met) * (count / len(w) - 1)))
        W[:-1, least], W[-1, least] = size * w[best].T, size * b[best]
        A[least] = size * normalize(falls[best], dim=1)
    return forward.within(joined(weights)), explained


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and variances of columns, over all processes."""
    sums, squares, count = processes.total(
        rows.sum(0), rows.square().sum(0), rows.new_tensor([len(rows)])
    )
    mean = sums / count
    return mean, (squares / count - mean.square()).clamp(min=0)


def quasi_newton(forward: Forward, point: Tensor, steps: int) -> tuple[Tensor, float]:
    """Return where L-BFGS between the ends leads to, and the objective there."""

    def valued(at: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        x = torch.from_numpy(at).to(point)
        linear = (Linearized if forward.rows is None else CompiledRecurrence)(forward, x)
        pairs = [*zip(forward.targets, linear.outputs, strict=True)]
        loss = processes.total_of(sum(float(target.value(part)) for target, part in pairs))
        pulled = joined(linear.back(target.slopes(part)[0] for target, part in pairs))
        slope = processes.total(pulled)[0] + forward.pulls * x
        return loss + float((forward.pulls * x * x).sum()) / 2, slope.cpu().numpy()

    ends = None
    if forward.ends is not None:
        lowest, highest = forward.ends
        ends = lowest.cpu().numpy(), highest.cpu().numpy()
    found, _ = lbfgs(valued, point.cpu().numpy(), steps, 20, 1e-9, ends=ends)
    reached = forward.within(torch.from_numpy(found).to(point))
    return reached, forward.objective(reached)
