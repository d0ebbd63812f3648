"""Random subproblems, as they come up in training."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, tight
from liftednet.problems import Link, StateFit


def labels(samples: int, classes: int, soft: bool, device: torch.device) -> Tensor:
    """Return one-hot rows, or probabilities, (samples, classes)."""
    if soft:
        return torch.randn(samples, classes, device=device).softmax(1)
    y = torch.zeros(samples, classes, device=device)
    return y.scatter_(1, torch.randint(0, classes, (samples, 1), device=device), 1.0)


def state_fit(
    samples: int,
    units: int,
    columns: int,
    layer: Activation,
    above: Divergence,
    device: torch.device,
    condition: float | None = None,
) -> StateFit:
    """Return a state fit below one link; targets are states that the link could have brought.

    The condition is that of W'W; without one, W is random.
    """
    u = torch.randn(samples, units, device=device)
    weight = torch.randn(units, columns, device=device) / units**0.5
    if condition is not None:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        last = -math.log10(condition) / 2
        weight = left * (values[0] * torch.logspace(0, last, len(values), device=device)) @ right
    offset = 0.1 * torch.randn(columns, device=device)
    reached = (
        layer.forward(u) @ weight + offset + 0.5 * torch.randn(samples, columns, device=device)
    )
    target = above.activation.forward(reached)
    if isinstance(above.activation, activations.Softmax):
        target = labels(samples, columns, False, device)
    return StateFit(tight(layer), u, (Link(above, weight, offset, target),), 0.5)


def exact(problem: Any) -> Any:
    """Return the problem in float64."""
    return replace(
        problem,
        pre_activation=problem.pre_activation.double(),
        links=tuple(link.double() for link in problem.links),
    )
