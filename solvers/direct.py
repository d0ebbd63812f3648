"""Gauss-Newton's model where its damped systems are solved directly, with weights between ends."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from .levenberg_marquardt import Damped
from .local_model import LocalModel
from .objective import Product


class DirectModel(LocalModel):
    """A model whose damped minimizer is exact where weights are free.

    Between ends it is a step of projected Newton (Bertsekas, Projected Newton Methods for
    Optimization Problems with Simple Constraints, 1982): what rests on an end and is pushed against
    it is held, the system is solved in the rest, and the step ends at the ends that it meets.
    """

    corrections = 10  # by a factor that is there

    @abstractmethod
    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""

    @abstractmethod
    def solver(self, damping: float) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others."""

    @abstractmethod
    def determined(self, prior: Tensor) -> tuple[Tensor, float] | None:
        """Return what the data determine of each weight that is free, and log det H among these.

        It is 1 - prior_i (H^-1)_ii, (parameters,), with H = J' Hess R J + prior; 0 for others.
        None where rounding hides it.

        Args:
            prior: (parameters,), in place of 2 rho.
        """

    def chosen(self, weights: Tensor) -> Tensor:
        """Return the columns of weights that are free, (..., those)."""
        return weights if self._among is None else weights.index_select(-1, self._among)

    def spread(self, weights: Tensor) -> Tensor:
        """Return numbers of weights that are free beside 0 for others, (parameters,)."""
        if self._among is None:
            return weights
        return torch.zeros_like(self.point).index_copy(0, self._among, weights)

    @cached_property
    def _among(self) -> Tensor | None:
        return None if self.free is None else self.free.nonzero()[:, 0]

    def value(self, step: Tensor) -> float:
        """Return <g, s> + <s, C s> / 2."""
        return float(self.gradient @ step + step @ self.curved(step) / 2)

    def minimizer(self, damping: float) -> Damped:
        """Return -(C + damping I)^-1 g, or the step between the ends that stands for it."""
        solve = self.solver(damping)
        step = self.inside(solve(-self.gradient))
        return Damped(step, -self.value(step), solve)
