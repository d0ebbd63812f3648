"""What the steps of a tile rest on: products in float16, and offsets in int64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.problems import Link, StateFit
from liftednet.solvers.kernels.device import programs
from liftednet.solvers.kernels.states import FusedStates, StateBlocks, state_blocks

SMALL = StateBlocks(16, depth=16, columns=16)


def fit(scale: float, generator: torch.Generator, samples: int = 16) -> StateFit:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    linear = joint(activations.Identity())
    link = Link(linear, scale * normal(20, 12), normal(12), scale * normal(samples, 12))
    return StateFit(tight(activations.ReLU()), normal(samples, 20), (link,), 0.5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3.0, 1e5])
def test_steps_in_float16_end_at_the_residual_of_float32(
    scale: float, generator: torch.Generator
) -> None:
    # |W| of 1e5 is beyond float16; at 3 the smoothness is 500 times the convexity
    problem, tolerance = fit(scale, generator), 1e-5 if scale < 1e3 else 1e-2
    solution = FusedStates(tolerance, blocks=SMALL).solve(problem)
    assert solution.residual <= tolerance


class Offsets:
    """The types of the offsets from some tensors, as kernels under the interpreter add them."""

    def __init__(self) -> None:
        from triton.runtime import interpreter

        self.builder = interpreter.interpreter_builder
        self.added = self.builder.create_addptr
        self.watched: set[int] = set()
        self.types: dict[int, set[str]] = {}

    def create_addptr(self, pointer: Any, offset: Any) -> Any:
        start = int(pointer.data.flat[0])
        if start in self.watched and not np.ptp(pointer.data) and offset.data.size > 1:
            self.types.setdefault(start, set()).add(str(offset.data.dtype))
        return self.added(pointer, offset)

    def watch(self, *tensors: Tensor) -> None:
        self.watched = {tensor.data_ptr() for tensor in tensors}


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offsets]:
    seen = Offsets()
    monkeypatch.setattr(seen.builder, "create_addptr", seen.create_addptr)
    yield seen


def test_rows_of_a_state_fit_are_found_by_64_bits(
    offsets: Offsets, generator: torch.Generator
) -> None:
    problem = fit(1.0, generator)  # ten million rows of 300 units are beyond 32 bits
    (link,) = problem.links
    full = replace(link, offset=link.offset.expand(16, 12).contiguous())
    offsets.watch(problem.pre_activation, full.offset, full.target)
    FusedStates(max_iterations=1, blocks=SMALL).states(replace(problem, links=(full,)))
    assert len(offsets.types) == 3
    assert set.union(*offsets.types.values()) == {"int64"}


@pytest.mark.parametrize("columns", [(1,), (10,), (20, 5), (33,), (64, 64), (100, 10), (256, 200)])
def test_no_width_splits_a_tile_in_two_ways(columns: tuple[int, ...]) -> None:
    blocks = state_blocks(columns)
    widths = [blocks.width(number) for number in columns]
    assert all(width >= number for width, number in zip(widths, columns, strict=True))
    by_rows = blocks.rows >= max(*widths, blocks.columns)
    assert by_rows or blocks.rows < min(*widths, blocks.columns)
    assert not by_rows or blocks.rows == 16 * blocks.warps
    assert blocks.padded(17) % blocks.columns == blocks.padded(17) % blocks.depth == 0


class Card:
    """Stands for a GPU's properties."""

    multi_processor_count = 132
    L2_cache_size = 50 * 2**20


@pytest.mark.parametrize("units", [20, 300, 5_000])
def test_scratches_stay_in_the_cache(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    blocks = state_blocks([10])
    scratch = 4 * blocks.scratch(units)
    count = programs(torch.device("cuda"), blocks.programs, scratch)
    assert count % 132 == 0 and 132 <= count <= 132 * blocks.programs
    assert count == 132 or 3 * count * scratch <= 4 * Card.L2_cache_size
