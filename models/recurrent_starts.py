"""Initial weights of recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.problems import Weights
from liftednet.starts import gaussian, identity, orthogonal
from liftednet.validation import require_positive

from .layer_starts import given_weights
from .recurrent_architecture import RecurrentArchitecture

STARTS = ("identity", "orthogonal", "gaussian")
_LARGEST_STATE = 1e6  # beyond it, squares of states cancel what float64 has left


def first_weights(
    architecture: RecurrentArchitecture, start: str | Sequence[Weights], radius: float, seed: int
) -> list[Weights]:
    """Return the given weights, or a draw by a start's name.

    Raises:
        DataError: weights that do not fit, an unknown name, or a radius that is not positive.
    """
    if not isinstance(start, str):
        return given_weights(start, architecture.weight_shapes)
    if start not in STARTS:
        raise DataError(f"there is no start {start!r}; there are {', '.join(STARTS)}.")
    require_positive("spectral_radius", radius)
    return draw_recurrent(architecture, start, radius, torch.Generator().manual_seed(seed))


def draw_recurrent(
    architecture: RecurrentArchitecture, start: str, radius: float, generator: torch.Generator
) -> list[Weights]:
    """Return one draw: W of the start times the radius, other entries of variance 1 / inputs.

    Args:
        architecture: what the network is.
        start: "identity", "orthogonal" or "gaussian".
        radius: the largest absolute eigenvalue of W.
        generator: of all entries.
    """
    drawn = []
    for number, (rows, columns) in enumerate(architecture.weight_shapes):
        if number == len(architecture.cells):
            matrix = _normal(rows, columns, generator)
        else:
            recurrent = _square(start, columns, radius, generator)
            inputs = _normal(architecture.cells[number].inputs, columns, generator)
            early = torch.zeros(rows - columns - len(inputs), columns)
            matrix = torch.cat([recurrent, inputs, early])
        drawn.append(Weights(matrix, torch.zeros(columns)))
    return drawn


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def _square(start: str, size: int, radius: float, generator: torch.Generator) -> Tensor:
    if start == "gaussian":
        return gaussian(size, radius, generator)
    return radius * (identity(size) if start == "identity" else orthogonal(size, generator))


def refuse_overflow(states: list[Tensor], start: str, radius: float) -> None:
    """Refuse a start whose forward pass leaves the range in which a solve keeps digits.

    Raises:
        DataError: the largest state is not finite, or beyond a million.
    """
    largest = max(float(state.abs().max()) for state in states)
    if not largest <= _LARGEST_STATE:  # also where it is NaN
        raise DataError(
            f"the start {start!r} with spectral radius {radius:g} overflows: over "
            f"{states[0].shape[0]} steps its forward pass grows to {largest:.3g}. Use a smaller "
            "spectral_radius, a saturating activation, or smaller inputs."
        )
