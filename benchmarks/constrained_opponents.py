"""Opponents of constrained.py from elsewhere: cooper-optim's Lagrangian, calibrated lattices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LATTICE = "pytorch-lattice"


def weighed(weights: Sequence[Tensor], coefficient: float) -> Tensor:
    """Return mu |min(W, 0)|^2 / 2 over all W."""
    return coefficient / 2 * sum((w.clamp(max=0).square().sum() for w in weights), torch.zeros(()))


def by_lagrangian(
    weights: Sequence[Tensor],
    coefficient: float,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    after: Callable[[], None],
) -> None:
    """Train by an augmented Lagrangian with W >= 0, a multiplier for each weight.

    Args:
        weights: that are to be nonnegative.
        coefficient: mu of the squares, and the rate of the multipliers, as the method of
            multipliers has it.
        optimizer: of all weights.
        batches: rows of each step.
        loss: of rows.
        after: each step.
    """
    import cooper

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            for number, w in enumerate(weights):
                mu = torch.tensor(coefficient)
                setattr(self, f"layer {number}", cooper.Constraint(
                    cooper.ConstraintType.INEQUALITY, cooper.formulations.AugmentedLagrangian,
                    cooper.multipliers.DenseMultiplier(w.numel()),
                    cooper.penalty_coefficients.DensePenaltyCoefficient(mu),
                ))  # fmt: skip

        def compute_cmp_state(self, rows: Tensor) -> Any:
            states = {
                one: cooper.ConstraintState(violation=-w.flatten())
                for (_, one), w in zip(self.named_constraints(), weights, strict=True)
            }
            return cooper.CMPState(loss=loss(rows), observed_constraints=states)

    problem = Problem()
    prices = torch.optim.SGD(problem.dual_parameters(), coefficient, maximize=True)
    both = cooper.optim.AlternatingDualPrimalOptimizer(problem, optimizer, prices)
    for rows in batches:
        both.roll(compute_cmp_state_kwargs={"rows": rows})
        after()


def calibrated_lattice(
    x: np.ndarray, directions: Sequence[int], keypoints: int, seed: int
) -> nn.Module:
    """Return a calibrated lattice (Gupta et al., 2016), which starts as a linear map."""
    from pytorch_lattice.models import CalibratedLattice
    from pytorch_lattice.models.features import NumericalFeature

    torch.manual_seed(seed)
    kinds = {1: "increasing", -1: "decreasing", 0: None}
    features = [
        NumericalFeature(f"x{i}", column, keypoints, monotonicity=kinds[direction])
        for i, (column, direction) in enumerate(zip(x.T, directions, strict=True))
    ]
    found: nn.Module = CalibratedLattice(features)
    return found


@torch.no_grad()
def of_lattice(lattice: Any) -> float:
    """Return by how much its own differences, which are to be 0 or more, fall short of it."""
    falls = [0.0]
    for feature, calibrator in zip(lattice.features, lattice.calibrators.values(), strict=True):
        if feature.monotonicity is not None:
            sign = -1.0 if feature.monotonicity == "decreasing" else 1.0
            falls.append(-float((sign * calibrator.kernel[1:]).min()))
    corners = lattice.lattice.kernel.view(*lattice.lattice.lattice_sizes)
    for dimension, direction in enumerate(lattice.monotonicities):
        if direction is not None:
            falls.append(-float(corners.diff(dim=dimension).min()))
    return max(falls)
