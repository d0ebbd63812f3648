"""Gradient methods for torch modules: optimizers, and gradients split, cut or regularized."""

from .frank_wolfe import Ball, FrankWolfe
from .temporal import TemporalParts, TemporalSimplexDescent, simplex_weights, temporal_norms
from .through_time import norm_preservation, truncated_backward

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
