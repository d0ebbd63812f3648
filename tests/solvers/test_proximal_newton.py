"""Newton steps that finish weight fits whose curvatures differ by powers of ten."""

from __future__ import annotations

import torch

from liftednet.activations import Identity
from liftednet.divergences import joint
from liftednet.penalties import L1
from liftednet.problems import Design, WeightFit
from liftednet.solution import Status
from liftednet.solvers import solve


def test_an_ill_conditioned_lasso_is_solved():
    """First-order steps alone stall on columns of sizes from 1 to 1e-4."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(0, -4, 4, dtype=torch.float64)
    targets = 20 * torch.randn(12, 1, generator=generator, dtype=torch.float64)
    fit = WeightFit(joint(Identity()), Design(x, bias=False), targets, L1(1e-4))
    found = solve(fit, "proximal-weights")
    assert found.status is Status.SOLVED
    gradient = (x.T @ (x @ found.value.matrix - targets))[:, 0]  # is -rho sign(w), or within rho
    w = found.value.matrix[:, 0]
    assert torch.allclose(gradient[w != 0], -1e-4 * w[w != 0].sign(), rtol=0, atol=1e-8)
    assert bool((gradient[w == 0].abs() <= 1e-4).all())
