"""Recurrences step by step are what torch computes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from liftednet.models.bounds.reading import unrolled

KINDS: list[dict[str, Any]] = [
    {"bias": False}, {"batch_first": True, "nonlinearity": "relu"},
    {"num_layers": 2, "bidirectional": True},
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_states_and_last_states_are_those_of_torch(options) -> None:
    torch.manual_seed(0)
    recurrence = nn.RNN(2, 3, **options)
    x = torch.randn(4, 5, 2)
    samples = 4 if options.get("batch_first") else 5
    ways = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    start = torch.randn(ways, samples, 3)
    (inside,) = unrolled(nn.Sequential(copy.deepcopy(recurrence))).children()
    for given in ((x,), (x, start)):
        for found, wanted in zip(inside(*given), recurrence(*given), strict=True):
            torch.testing.assert_close(found, wanted)
