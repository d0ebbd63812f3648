"""Sums over samples of a design matrix, against the dense matrix [X, 1]."""

from __future__ import annotations

import pytest
import torch

from liftednet.problems import Design


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
