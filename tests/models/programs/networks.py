"""Torch networks of drawn weights, and their values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn


def drawn(*parts: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """Return a network of drawn weights, larger than torch's own."""
    torch.manual_seed(seed)
    network = nn.Sequential(*parts).to(dtype)
    for name, one in network.named_parameters():
        if one.ndim > 1 or "bias" in name:
            nn.init.normal_(one, std=1.0 if one.ndim > 1 else 0.5)
    return network


def chain(*sizes: int, activation: nn.Module | None = None, seed: int = 0) -> Any:
    """Return dense layers of drawn weights with maps between them, ReLU where none is given."""
    parts: list[nn.Module] = []
    for below, above in pairwise(sizes):
        parts += [nn.Linear(below, above), activation or nn.ReLU()]
    return drawn(*parts[:-1], seed=seed)


def values(network: nn.Module, x: Any) -> Any:
    """Return the outputs of a network in float64 at rows of NumPy."""
    with torch.no_grad():
        return network(torch.from_numpy(np.atleast_2d(x))).numpy()
