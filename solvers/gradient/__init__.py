"""Gradient methods for torch modules: optimizers, and gradients split, cut or regularized."""

from .balls import Ball
from .frank_wolfe import FrankWolfe
from .norm_preservation import norm_preservation
from .temporal_parts import TemporalParts, temporal_norms
from .temporal_simplex import TemporalSimplexDescent, simplex_weights
from .truncated import truncated_backward

__all__ = [
    "Ball",
    "FrankWolfe",
    "TemporalParts",
    "TemporalSimplexDescent",
    "norm_preservation",
    "simplex_weights",
    "temporal_norms",
    "truncated_backward",
]
