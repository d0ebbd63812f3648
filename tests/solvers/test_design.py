"""Sums over samples of a design matrix, against the dense matrix [X, 1]."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liftednet.activations import Identity
from liftednet.divergences import joint
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit
from liftednet.solvers import solve


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("samples", "inputs"), [(1, 1), (40, 300), (20_000, 257)])
def test_sums_are_those_of_the_dense_matrix(samples: int, inputs: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator)
    v = torch.randn(samples, 3, generator=generator)
    dense = torch.cat([x.double(), torch.ones(samples, int(bias), dtype=torch.float64)], dim=1)
    design = Design(x, bias)
    for found, expected in (
        (design.gram, dense.T @ dense),
        (design.total, dense.sum(0)),
        (design.cross(v), dense.T @ v.double()),
    ):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-9)


def test_rough_sums_are_those_of_float32_products() -> None:
    x = torch.randn(20_000, 70, generator=torch.Generator().manual_seed(0)).relu()
    exact, rough = Design(x).gram, Design(x).rough.gram
    lengths = exact.diagonal().sqrt()
    off = ((rough - exact) / lengths.outer(lengths)).abs().max()
    assert 0 < float(off) < 4e-7
    assert torch.equal(Design(x.double()).rough.gram, exact)


@pytest.mark.parametrize("apart", [1.0, 0.1])
def test_ridge_weights_do_not_suffer_from_float32_products(apart: float) -> None:
    """Columns that are all but equal need sums in float64, which the certificate finds out."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(3_000, 1, generator=generator)
    x = common + apart * torch.randn(3_000, 8, generator=generator)
    v = torch.randn(3_000, 2, generator=generator) + 20 * (x[:, :2] - x[:, 2:4]) / apart
    rho = 1e-3
    found = solve(WeightFit(joint(Identity()), Design(x), v, SquaredFrobenius(rho)), "ridge")
    wide = np.concatenate([x.double().numpy(), np.ones((3_000, 1))], 1)
    tail = np.sqrt(2 * rho) * np.eye(8, 9)
    right = np.concatenate([v.double().numpy(), np.zeros((8, 2))])
    expected = np.linalg.lstsq(np.concatenate([wide, tail]), right)[0]
    assert found.status.name == "SOLVED"
    np.testing.assert_allclose(found.value.stacked().numpy(), expected, rtol=2e-5, atol=1e-4)
