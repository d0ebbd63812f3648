"""Gauss-Newton's model of a network of fewer outputs than weights: systems as small as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet import processes

from .direct import DirectModel
from .layer_products import sensitivities
from .objective import Forward, Product

_MOST_ENTRIES = 2**26  # of a matrix of outputs and weights, 512 MB


class OutputEquations(DirectModel):
    """A model with C = A'A + P, one row of A an output, whose systems are of the outputs.

    (A'A + D)^-1 b = D^-1 (b - A' (I + A D^-1 A')^-1 A D^-1 b), D = P + damping (Woodbury).

    Attributes:
        rows: A, (outputs of all samples, parameters), float64.
    """

    def __init__(self, forward: Forward, point: Tensor) -> None:
        """Pass forward at a point, (parameters,) in float64, and form A."""
        super().__init__(forward, point)
        self.rows = weighed_jacobian(forward, point)
        self._rows = self.chosen(self.rows)

    @staticmethod
    def serves(forward: Forward) -> bool:
        """Say whether outputs are so few that this is faster, and all in this process."""
        if forward.layers is None or processes.size() > 1:
            return False
        outputs, weights = answers(forward), len(forward.pulls)
        return 4 * outputs <= 3 * weights and outputs * weights <= _MOST_ENTRIES

    @property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C."""
        squares = float(self.rows.flatten().dot(self.rows.flatten()))
        return squares / self.rows.shape[1] + float(self.operator.forward.pulls.mean())

    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""
        pulled = self.operator.forward.pulls * direction
        return torch.addmv(pulled, self.rows.T, self.rows @ direction)

    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""
        rows, diagonal = self._rows, self.chosen(self.operator.forward.pulls) + damping
        factor = self._factor(diagonal)
        if factor is None:
            return lambda b: torch.full_like(b, torch.nan)

        def once(right: Tensor) -> Tensor:
            scaled = right / diagonal
            seen = torch.cholesky_solve((rows @ scaled)[:, None], factor)[:, 0]
            return scaled - (rows.T @ seen) / diagonal

        def solve(right: Tensor) -> Tensor:
            """Return the solution, refined once: 1 / D may be far larger than it."""
            among = self.chosen(right)
            found = once(among)
            left = among - rows.T @ (rows @ found) - diagonal * found
            return self.spread(found + once(left))

        return solve

    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return 1 - prior_i (H^-1)_ii of each weight that is free, and log det H among these.

        With K = I + A prior^-1 A' they are a_i' K^-1 a_i / prior_i for the columns a_i of A, and
        log det K + sum log prior_i.
        """
        among = self.chosen(prior)
        factor = self._factor(among)
        if factor is None:
            return None
        seen = torch.linalg.solve_triangular(factor, self._rows, upper=False).square().sum(0)
        logarithm = 2 * factor.diagonal().log().sum() + among.log().sum()
        return self.spread(seen / among), float(logarithm)

    def _factor(self, diagonal: Tensor) -> Tensor | None:
        """Return the Cholesky factor of I + A D^-1 A', None where there is none."""
        system = (self._rows / diagonal) @ self._rows.T
        system.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(system)
        return None if failed else factor


def answers(forward: Forward) -> int:
    """Return how many numbers the losses are held to, those of all processes."""
    return int(processes.total_of(sum(target.values.numel() for target in forward.targets)))


def weighed_jacobian(forward: Forward, point: Tensor) -> Tensor:
    """Return A with A'A = J' Hess R J, (outputs of all samples, parameters)."""
    inputs, losses = sensitivities(forward, point)
    return torch.cat([
        torch.cat([
            (x.T[:, None, :, None] * slope.permute(2, 0, 1)[:, :, None]).flatten(2)
            for x, slope in zip(inputs, loss.times(_roots(loss.curvature)), strict=True)
        ], 2).flatten(0, 1)
        for loss in losses
    ])  # fmt: skip


def _roots(curvature: Tensor) -> Tensor:
    """Return S with S'S each matrix, positive semidefinite, (samples, outputs, outputs)."""
    if curvature.shape[-1] == 1:
        return curvature.clamp(min=0).sqrt()
    values, vectors = torch.linalg.eigh(curvature)
    roots: Tensor = values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT
    return roots
