"""H^-1 of all weights by a root of it, H^-1 = R'R: whatever comes of it is not negative."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Covariance(ABC):
    """H^-1 = R'R among the weights that are free, zero among those that are held.

    Attributes:
        free: the numbers of the weights that are free, (those,); None where all are.
    """

    free: Tensor | None

    def image(self, rows: Tensor) -> Tensor:
        """Return R j of rows j, (..., parameters), so that <R i, R j> = i' H^-1 j."""
        return self._image(rows if self.free is None else rows.index_select(-1, self.free))

    def draw(self, normal: Tensor) -> Tensor:
        """Return R'z of normal numbers z, draws of N(0, H^-1); both (draws, parameters)."""
        if self.free is None:
            return self._drawn(normal)
        drawn = self._drawn(normal.index_select(-1, self.free))
        return torch.zeros_like(normal).index_copy(-1, self.free, drawn)

    @abstractmethod
    def _image(self, rows: Tensor) -> Tensor:
        """Return R j, (..., free weights)."""

    @abstractmethod
    def _drawn(self, normal: Tensor) -> Tensor:
        """Return R'z, (..., free weights)."""

    def packed(self) -> dict[str, Tensor]:
        """Return the tensors that it is made of; a triangle without its zeros."""
        named = ((part.name, getattr(self, part.name)) for part in fields(self))
        return {name: tensor.double() for name, tensor in named if tensor is not None}


@dataclass(frozen=True, eq=False)
class Triangular(Covariance):
    """R = L^-1 with the Cholesky factor of H = L L'.

    Attributes:
        factor: L, (free weights, free weights), float64.
    """

    factor: Tensor

    def _image(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        found = torch.linalg.solve_triangular(self.factor, flat.T, upper=False).T
        return found.reshape_as(rows)

    def _drawn(self, normal: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor.T, normal.T, upper=True).T

    def packed(self) -> dict[str, Tensor]:
        """Return the triangle row by row."""
        row, column = torch.tril_indices(*self.factor.shape)
        return {**super().packed(), "factor": self.factor[row, column]}


@dataclass(frozen=True, eq=False)
class Narrow(Covariance):
    """R = (I - U diag(g) U') / sqrt(prior), of H = prior + A'A with few rows A.

    U has the left singular vectors of A' / sqrt(prior) as columns, and with its singular values t
    g = 1 - 1 / sqrt(1 + t^2).

    Attributes:
        scale: 1 / sqrt(prior), (free weights,), float64.
        basis: U, (free weights, rank).
        shrinkage: g, (rank,).
    """

    scale: Tensor
    basis: Tensor
    shrinkage: Tensor

    def _image(self, rows: Tensor) -> Tensor:
        return self._shrunk(rows * self.scale)

    def _drawn(self, normal: Tensor) -> Tensor:
        return self._shrunk(normal) * self.scale

    def _shrunk(self, rows: Tensor) -> Tensor:
        return rows - (rows @ self.basis * self.shrinkage) @ self.basis.T


def unpacked_covariance(tensors: Mapping[str, Tensor]) -> Covariance:
    """Return what `Covariance.packed` has packed.

    Raises:
        KeyError: a tensor is missing.
    """
    free = tensors["free"].long() if "free" in tensors else None
    if "factor" not in tensors:
        return Narrow(free, tensors["scale"], tensors["basis"], tensors["shrinkage"])
    packed = tensors["factor"]
    size = int(((8 * len(packed) + 1) ** 0.5 - 1) / 2)
    factor = packed.new_zeros(size, size)
    row, column = torch.tril_indices(size, size)
    factor[row, column] = packed
    return Triangular(free, factor)
