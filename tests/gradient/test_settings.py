"""Settings of the gradient methods that are no numbers, and cells that are no cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from liftednet.errors import DataError
from liftednet.solvers.gradient import FrankWolfe, TemporalSimplexDescent


@pytest.mark.parametrize(
    "settings", [{"lr": "a"}, {"lr": None}, {"p": "2"}, {"radius": "2"}, {"radius": True}]
)
def test_frank_wolfe_refuses_what_is_no_number(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(DataError, match=f"{name} must be"):
        FrankWolfe([nn.Parameter(torch.ones(2))], **{"lr": 0.1, **settings})


def test_frank_wolfe_takes_other_numbers() -> None:
    for lr in (np.float32(0.5), torch.tensor(0.5), 1):
        number: Any = lr
        weight = nn.Parameter(torch.ones(2))
        assert FrankWolfe([weight], number).param_groups[0]["start_lr"] == 0.5 + 0.5 * (lr == 1)


@pytest.mark.parametrize("generator", [None, 0])
def test_temporal_simplex_descent_needs_a_generator(generator: Any) -> None:
    cell = nn.RNNCell(3, 4)
    with pytest.raises(DataError, match="generator"):
        TemporalSimplexDescent(cell.parameters(), cell, 0.1, threshold=1.0, generator=generator)


def test_a_recurrence_that_takes_a_sequence_in_one_call_is_refused() -> None:
    recurrence = nn.RNN(3, 4)
    before = [parameter.clone() for parameter in recurrence.parameters()]
    descent = TemporalSimplexDescent(
        recurrence.parameters(), recurrence, 0.1, threshold=1.0, generator=torch.Generator()
    )

    def closure() -> torch.Tensor:
        loss: torch.Tensor = recurrence(torch.ones(6, 2, 3))[0].square().sum()
        loss.backward()
        return loss

    with pytest.raises(DataError, match=r"RNN once.*RNNCell"):
        descent.step(closure)
    for old, parameter in zip(before, recurrence.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), old.detach(), rtol=0, atol=0)
