"""Torch networks of drawn weights."""

from __future__ import annotations

from typing import Any

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
