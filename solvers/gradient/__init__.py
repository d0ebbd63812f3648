"""Gradient methods for torch modules: optimizers, and gradients split, cut or regularized."""

from .frank_wolfe import Ball, FrankWolfe
from .temporal import TemporalParts, TemporalSimplexDescent, simplex_weights

__all__ = [
    "Ball",
    "FrankWolfe",
    "TemporalParts",
    "TemporalSimplexDescent",
    "simplex_weights",
]
