"""Nearest points of polyhedra beside CVXPY, scikit-learn's isotonic regression and differences."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.isotonic import isotonic_regression

from liftednet.activations import SimplexProjection
from liftednet.errors import DataError
from liftednet.sets.polyhedron import nearest_in_polyhedron

SIMPLEX = torch.cat([torch.ones(1, 4), torch.eye(4)]).double()


def ends(total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ends of nonnegative rows with these sums."""
    lower = torch.zeros(len(total), 5, dtype=torch.float64)
    upper = torch.full_like(lower, torch.inf)
    lower[:, 0] = upper[:, 0] = total
    return lower, upper


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_nearest_point(seed) -> None:
    """By the variational inequality at CVXPY's point, and no farther than it."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    rows[5] = 2 * rows[4]  # which says the same as another
    inside = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    room = torch.rand(3, 6, generator=generator, dtype=torch.float64)
    lower, upper = inside @ rows.T - room, inside @ rows.T + room
    lower[:, 0] = upper[:, 0] = (inside @ rows.T)[:, 0]
    upper[:, 1], lower[:, 2] = torch.inf, -torch.inf
    u = inside + 3 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    found = nearest_in_polyhedron(rows, u, lower, upper)
    values = found @ rows.T
    assert float(torch.maximum(lower - values, values - upper).max()) < 1e-10
    for x, low, high, v in zip(u, lower, upper, found, strict=True):
        w, low, high = cp.Variable(4), low.numpy(), high.numpy()
        reached = rows.numpy() @ w
        limits = [
            *(reached[i] >= low[i] for i in range(6) if np.isfinite(low[i])),
            *(reached[i] <= high[i] for i in range(6) if np.isfinite(high[i])),
        ]
        problem = cp.Problem(cp.Minimize(cp.sum_squares(w - x.numpy())), limits)
        problem.solve(solver="CLARABEL")
        assert w.value is not None
        assert np.abs(w.value - v.numpy()).max() < 1e-4 * (1 + np.abs(w.value).max())
        assert float((v - x).square().sum()) < problem.value + 1e-6


def test_simplex_and_isotonic_regression() -> None:
    u = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = nearest_in_polyhedron(SIMPLEX, u, *ends(torch.ones(50)))
    assert torch.allclose(found, SimplexProjection().forward(u), atol=1e-10)
    rising = torch.diff(torch.eye(30, dtype=torch.float64), dim=0)
    u = torch.randn(20, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = nearest_in_polyhedron(rising, u, torch.zeros(20, 29), torch.full((20, 29), torch.inf))
    for x, v in zip(u, found, strict=True):
        assert np.abs(isotonic_regression(x.numpy()) - v.numpy()).max() < 1e-9


def test_its_derivatives_are_those_of_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    low, high = ends(torch.linspace(0.5, 4.0, 6))
    assert torch.autograd.gradcheck(
        lambda x: nearest_in_polyhedron(SIMPLEX, x, low, high), (u,), check_forward_ad=True
    )


def test_limits_that_contradict_each_other_are_told() -> None:
    with pytest.raises(DataError, match="sample 1"):
        nearest_in_polyhedron(SIMPLEX, torch.zeros(2, 4), *ends(torch.tensor([1.0, -1.0])))
