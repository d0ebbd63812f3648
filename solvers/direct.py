"""Gauss-Newton's model where its damped systems are solved directly, with weights between ends."""

from __future__ import annotations

from abc import abstractmethod

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

    @abstractmethod
    def curved(self, direction: Tensor) -> Tensor:
        """Return C v for a direction v, (parameters,)."""

    @abstractmethod
    def solver(self, damping: float, free: Tensor | None) -> Product:
        """Return b -> (C + damping)^-1 b among the weights that are free, 0 for others.

        Args:
            damping: of all weights.
            free: (parameters,) 1 for those that are free, 0 for others; None where all are.
        """

    def value(self, step: Tensor) -> float:
        """Return <g, s> + <s, C s> / 2."""
        return float(self.gradient @ step + step @ self.curved(step) / 2)

    def minimizer(self, damping: float) -> Damped:
        """Return -(C + damping I)^-1 g, or the step between the ends that stands for it."""
        solve = self.solver(damping, self.free)
        step = self.inside(solve(-self.gradient))
        return Damped(step, -self.value(step), solve)
