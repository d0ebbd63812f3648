"""Solvers whose loops Numba compiles for the CPU; without it the torch solvers serve."""

from .descent import CompiledDescent
from .newton import CompiledNewton
from .simplex import CompiledSimplex
from .small import CompiledSmall
from .small_weights import CompiledSmallWeights

__all__ = [
    "CompiledDescent",
    "CompiledNewton",
    "CompiledSimplex",
    "CompiledSmall",
    "CompiledSmallWeights",
]
