"""Penalties pi(W) on a weight matrix: what a weight fit adds to its divergence.

Penalties add up, `L1(0.1) + Nonnegative()`, and each of them has a proximal map, so that a method
of training can hold it at every step.
"""

from liftednet.penalties.catalogue import (
    L1,
    ColumnNorm,
    GroupLasso,
    Nonnegative,
    RowNorm,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.penalties.constraints import (
    DoublyStochastic,
    FewRows,
    FixedZeros,
    LinearEqualities,
    Orthogonal,
    Signs,
    SimplexRows,
)
from liftednet.penalties.declared import Declared
from liftednet.penalties.penalty import Penalty
from liftednet.penalties.sums import Mixing, Sum

__all__ = [
    "L1",
    "ColumnNorm",
    "Declared",
    "DoublyStochastic",
    "FewRows",
    "FixedZeros",
    "GroupLasso",
    "LinearEqualities",
    "Mixing",
    "Nonnegative",
    "Orthogonal",
    "Penalty",
    "RowNorm",
    "Signs",
    "SimplexRows",
    "SpectralNorm",
    "SquaredFrobenius",
    "Sum",
]
