"""Starts of recurrent weights have the eigenvalues that they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from liftednet import starts
from liftednet.errors import DataError


def eigenvalue(weight: Tensor) -> float:
    return float(np.abs(np.linalg.eigvals(weight.detach().double().numpy())).max())


@given(size=st.integers(1, 30), radius=st.floats(0.01, 10), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_starts_have_their_radius(size: int, radius: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    assert eigenvalue(starts.gaussian(size, radius, source)) == pytest.approx(radius, rel=1e-4)
    turn = starts.orthogonal(size, source)
    assert torch.allclose(turn @ turn.T, torch.eye(size), atol=1e-5)
    assert eigenvalue(starts.identity(size)) == 1


def test_spectral_start_reaches_every_gate_and_layer() -> None:
    network = nn.LSTM(3, 6, num_layers=2)
    starts.spectral_start_(network, 1.1, torch.Generator().manual_seed(0))
    for layer in range(2):
        for gate in network.get_parameter(f"weight_hh_l{layer}").chunk(4):
            assert eigenvalue(gate) == pytest.approx(1.1, rel=1e-4)


def test_bad_starts_are_refused() -> None:
    source = torch.Generator()
    with pytest.raises(DataError, match="must be positive"):
        starts.gaussian(3, 0.0, source)
    with pytest.raises(DataError, match="square"):
        starts.spectral_radius(torch.zeros(2, 3))
    with pytest.raises(DataError, match="eigenvalues are all 0"):
        starts.with_spectral_radius(torch.triu(torch.ones(3, 3), 1), 1.0)
    with pytest.raises(DataError, match="NaN"):
        starts.spectral_radius(torch.full((2, 2), torch.nan))
    with pytest.raises(DataError, match="weight_hh"):
        starts.spectral_start_(nn.Linear(2, 2), 1.0, source)
