"""Solvers whose loops Numba compiles for the CPU; without it the torch solvers serve."""

from .descent import CompiledDescent
from .newton import CompiledNewton
from .simplex import CompiledSimplex

__all__ = ["CompiledDescent", "CompiledNewton", "CompiledSimplex"]
