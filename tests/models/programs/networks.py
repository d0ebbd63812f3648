"""Torch networks of drawn weights and of functions, their values, and programs over them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import nn

from liftednet import to_cvxpy


class Called(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def drawn(*parts: nn.Module, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """Return a network of drawn weights, larger than torch's own."""
    torch.manual_seed(seed)
    network = nn.Sequential(*parts).to(dtype)
    for name, one in network.named_parameters():
        if one.ndim > 1 or "bias" in name:
            nn.init.normal_(one, std=1.0 if one.ndim > 1 else 0.5)
    return network


def chain(*sizes: int, activation: nn.Module | None = None, seed: int = 0) -> Any:
    """Return dense layers of drawn weights with maps between them, ReLU where none is given."""
    parts: list[nn.Module] = []
    for below, above in pairwise(sizes):
        parts += [nn.Linear(below, above), activation or nn.ReLU()]
    return drawn(*parts[:-1], seed=seed)


def values(network: nn.Module, x: Any) -> Any:
    """Return the outputs of a network in float64 at rows of NumPy."""
    with torch.no_grad():
        return network(torch.from_numpy(np.atleast_2d(x))).numpy()


def slopes_are(claim: Any, low: Any, high: Any = None, **tolerances: Any) -> None:
    """Ask that the derivatives of a certificate are between ends, or what they are exactly."""
    ends = low, low if high is None else high
    torch.testing.assert_close((claim.lowest, claim.highest), ends, **tolerances)


def grid(low: Any, high: Any, count: int) -> Any:
    """Return evenly spaced points of a box in the plane, (count squared, 2)."""
    axes = np.linspace(np.broadcast_to(low, 2), np.broadcast_to(high, 2), count).T
    return np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)


def stated(network: Any, size: Any, low: Any = -1, high: Any = 1, **options: Any) -> Any:
    """Return variables, and a network of them in CVXPY, in a box."""
    x = cp.Variable(size)
    return x, to_cvxpy(network, x, box=(low, high), **options)


def by_highs(objective: Any, network: Any, *constraints: Any) -> float:
    """Return the best value that HIGHS finds, far closer than any test asks for."""
    problem = cp.Problem(objective, [*network.constraints, *constraints])
    gaps = {"mip_feasibility_tolerance": 1e-9, "mip_rel_gap": 1e-9}
    return float(problem.solve(solver="HIGHS", **gaps))
