"""Starting values of square recurrent weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from liftednet.errors import DataError


def spectral_radius(weight: Tensor) -> float:
    """Return the largest absolute value of the eigenvalues, computed in float64.

    Args:
        weight: (size, size).

    Raises:
        DataError: it is not square, or has entries that are not finite.
    """
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        raise DataError(f"A recurrent weight must be square; its shape is {tuple(weight.shape)}.")
    if not bool(weight.isfinite().all()):
        raise DataError("The recurrent weight has entries that are NaN or infinite.")
    return float(torch.linalg.eigvals(weight.detach().double()).abs().max())


def with_spectral_radius(weight: Tensor, radius: float) -> Tensor:
    """Scale a weight to a spectral radius (On Recurrent Neural Networks, section 3.2).

    Args:
        weight: (size, size).
        radius: wanted largest absolute eigenvalue, positive.

    Raises:
        DataError: a radius that is not positive, or a weight that no scale brings to it.
    """
    if not (math.isfinite(radius) and radius > 0):
        raise DataError(f"The spectral radius must be positive; it is {radius!r}.")
    current = spectral_radius(weight)
    if current == 0:
        raise DataError("A weight whose eigenvalues are all 0 cannot be scaled to a radius.")
    return weight * (radius / current)


def gaussian(size: int, radius: float, generator: torch.Generator) -> Tensor:
    """Draw independent normal entries and scale them to a spectral radius (section 3.2).

    The paper's variance 0.1 cancels in the scaling.

    Args:
        size: rows and columns.
        radius: wanted largest absolute eigenvalue, positive.
        generator: of the entries.

    Returns:
        (size, size).

    Raises:
        DataError: a radius that is not positive.
    """
    return with_spectral_radius(torch.randn(size, size, generator=generator), radius)


def orthogonal(size: int, generator: torch.Generator) -> Tensor:
    """Draw an orthogonal matrix uniformly: every eigenvalue has absolute value 1.

    Args:
        size: rows and columns.
        generator: of the draw.

    Returns:
        (size, size).
    """
    return nn.init.orthogonal_(torch.empty(size, size), generator=generator)


def identity(size: int) -> Tensor:
    """Return the identity: a state that nothing drives is kept (Le, Jaitly, Hinton, 2015).

    Args:
        size: rows and columns.

    Returns:
        (size, size).
    """
    return torch.eye(size)


@torch.no_grad()
def spectral_start_(module: nn.Module, radius: float, generator: torch.Generator) -> None:
    """Start every recurrent weight of a torch network by a spectral radius, in place.

    Recurrent weights are the parameters named weight_hh... (torch's RNN, LSTM, GRU and their
    cells); the gates of LSTM and GRU are drawn and scaled one by one.

    Args:
        module: the network.
        radius: wanted largest absolute eigenvalue, positive.
        generator: of the entries.

    Raises:
        DataError: a radius that is not positive, or a module without recurrent weights.
    """
    weights = [
        value
        for name, value in module.named_parameters()
        if name.rsplit(".", 1)[-1].startswith("weight_hh")
    ]
    if not weights:
        raise DataError(f"{type(module).__name__} has no parameter named weight_hh.")
    size = [weight.shape[1] for weight in weights]
    starts = [
        torch.cat([gaussian(n, radius, generator) for _ in range(len(weight) // n)])
        for weight, n in zip(weights, size, strict=True)
    ]
    for weight, start in zip(weights, starts, strict=True):
        weight.copy_(start)
