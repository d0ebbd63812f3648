"""A ridge regression from sums over samples alone, which clients send, add and take back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.errors import DataError, SolverError
from liftednet.problems import Design, Weights
from liftednet.validation import require_matrix, require_positive, require_shape


@dataclass(frozen=True, eq=False)
class RidgeSums:
    """What a last layer to squared error needs of its samples: [X, 1]'[X, 1] and [X, 1]'V.

    Those of several clients add up to those of all samples; less those of one, they are those of
    the samples of the others. Nothing else has to leave a client, and nothing less: sums are no
    secrets (docs/distributed.md).

    Attributes:
        gram: [X, 1]'[X, 1], (inputs + 1, inputs + 1), float64.
        cross: [X, 1]'V, (inputs + 1, units), float64.

    Example:
        >>> import torch
        >>> from liftednet.solvers import RidgeSums
        >>> x, v = torch.eye(3), torch.tensor([[1.0], [2.0], [5.0]])
        >>> first, second = RidgeSums.of(x[:2], v[:2]), RidgeSums.of(x[2:], v[2:])
        >>> both = (first + second).solved(rho=0.5)
        >>> torch.allclose((first + second - second).solved(0.5).matrix, first.solved(0.5).matrix)
        True
    """

    gram: Tensor
    cross: Tensor

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor) -> RidgeSums:
        """Return the sums over samples.

        Args:
            inputs: X, (samples, inputs), float32 or float64.
            targets: V, (samples, units).

        Raises:
            DataError: they are no matrices of equally many finite rows.
        """
        design = Design(inputs)
        require_matrix("the targets V", targets)
        shape = (design.samples, targets.shape[1])
        require_shape("the targets V", targets, shape, "like X")
        return cls(design.gram, design.cross(targets))

    def __add__(self, other: RidgeSums) -> RidgeSums:
        """Return the sums over the samples of both."""
        return self._with(other, 1.0)

    def __sub__(self, other: RidgeSums) -> RidgeSums:
        """Return the sums without the samples of another, which are among these."""
        return self._with(other, -1.0)

    def _with(self, other: RidgeSums, sign: float) -> RidgeSums:
        if self.cross.shape != other.cross.shape:
            raise DataError(
                f"sums of {tuple(self.cross.shape)} and of {tuple(other.cross.shape)} inputs and "
                "units, biases included, are not those of one layer."
            )
        return RidgeSums(self.gram + sign * other.gram, self.cross + sign * other.cross)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return round(float(self.gram[-1, -1]))

    def solved(self, rho: float) -> Weights:
        """Return the weights, in float64: the minimizer of |X W + b - V|^2 / 2 + rho |W|_F^2.

        Args:
            rho: positive.

        Raises:
            DataError: rho is not positive, or there are no samples.
            SolverError: the matrix is singular in float64, or sums were taken off that were no
                part of it.
        """
        if self.samples < 1:
            raise DataError(f"a fit needs samples; these are the sums over {self.samples}.")
        system = self.gram.clone()
        system.diagonal()[:-1] += 2 * require_positive("rho", rho)
        lower, info = torch.linalg.cholesky_ex(system)
        if int(info) != 0:
            raise SolverError(
                f"the system of {len(system)} inputs, the bias one of them, is not positive "
                "definite: the sums that were taken off are no part of it, or rho = "
                f"{rho:.3g} is too small."
            )
        stacked = torch.cholesky_solve(self.cross, lower)
        return Weights(stacked[:-1], stacked[-1])
