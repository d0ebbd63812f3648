"""The fused state fit under the interpreter, against float64 torch and its own certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DeclarationError, FitWarning
from liftednet.problems import Link, StateFit
from liftednet.solution import Status
from liftednet.solvers import choice, choose, solve
from liftednet.solvers.kernels import states
from liftednet.solvers.kernels.states import FusedStates, StateBlocks, programs, state_blocks

SMALL = StateBlocks(16, depth=16, columns=16)
FEW_TOLERANCE = 2e-5


def fit(samples: int, units: int, columns: int, generator: torch.Generator) -> StateFit:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    link = Link(
        joint(activations.Identity()),
        normal(units, columns) / units**0.5,
        normal(columns),
        normal(samples, columns),
    )
    return StateFit(tight(activations.ReLU()), normal(samples, units), (link,), 0.5)


def exact(problem: StateFit) -> Tensor:
    twin = replace(
        problem,
        pre_activation=problem.pre_activation.double(),
        links=tuple(link.double() for link in problem.links),
    )
    value: Tensor = solve(twin).value
    return value


@pytest.mark.parametrize(("samples", "units", "columns"), [(1, 1, 1), (37, 1, 2), (17, 33, 17)])
def test_sizes_that_are_no_multiples_of_a_block(
    samples: int, units: int, columns: int, generator: torch.Generator
) -> None:
    problem = fit(samples, units, columns, generator)
    solution = solve(problem, FusedStates(blocks=SMALL))
    assert solution.status is Status.SOLVED
    torch.testing.assert_close(
        solution.value.double(), exact(problem), atol=FEW_TOLERANCE, rtol=FEW_TOLERANCE
    )


LINES = [
    activations.Identity(), activations.LeakyReLU(0.2), activations.Clipped(-0.5, 0.75),
    activations.PReLU(0.5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "kind"),
    [*((layer, "tight") for layer in LINES), (LINES[1], "joint"), (LINES[2], "softmax")],
    ids=repr,
)
def test_activations_of_straight_pieces_below_every_link(
    layer: activations.Identity, kind: str, generator: torch.Generator
) -> None:
    above = tight(activations.Softmax()) if kind == "softmax" else tight(layer)
    above = joint(layer) if kind == "joint" else above
    problem = fit(9, 6, 3, generator)
    (link,) = problem.links
    target = (
        torch.eye(3).repeat(3, 1) if kind == "softmax" else above.activation.forward(link.target)
    )
    links = (replace(link, divergence=above, target=target),)
    problem = replace(problem, divergence=tight(layer), links=links)
    solution = solve(problem, FusedStates(blocks=SMALL))
    assert solution.status is Status.SOLVED
    torch.testing.assert_close(solution.value.double(), exact(problem), atol=5e-5, rtol=5e-5)


def test_curved_activations_are_left_to_torch(generator: torch.Generator) -> None:
    problem = fit(4, 3, 2, generator)
    (link,) = problem.links
    curved = tight(activations.Sigmoid())
    assert "prox of Sigmoid" in (FusedStates().obstacle(replace(problem, divergence=curved)) or "")
    above = replace(problem, links=(replace(link, divergence=curved),))
    assert "link to Sigmoid" in (FusedStates().obstacle(above) or "")


def test_data_that_are_not_contiguous(generator: torch.Generator) -> None:
    problem = fit(19, 7, 5, generator)
    (link,) = problem.links
    turned = replace(
        link,
        weight=link.weight.T.contiguous().T,
        offset=torch.stack([link.offset, link.offset], 1)[:, 0],
        target=torch.stack([link.target, -link.target], 2)[..., 0],
    )
    strided = replace(
        problem, pre_activation=problem.pre_activation.T.contiguous().T, links=(turned,)
    )
    start = torch.rand(7, 19, generator=generator).T
    value = solve(strided, FusedStates(blocks=SMALL), start).value
    torch.testing.assert_close(
        value, solve(problem, FusedStates(blocks=SMALL), start.contiguous()).value, atol=0, rtol=0
    )


def test_the_data_and_the_start_stay_as_they_are(generator: torch.Generator) -> None:
    problem = fit(5, 4, 3, generator)
    start = torch.rand(5, 4, generator=generator)
    before = start.clone(), problem.pre_activation.clone(), problem.links[0].weight.clone()
    solve(problem, FusedStates(blocks=SMALL), start)
    after = start, problem.pre_activation, problem.links[0].weight
    for one, other in zip(before, after, strict=True):
        assert one.equal(other)


def test_every_tile_ends_by_itself(generator: torch.Generator) -> None:
    problem = fit(32, 8, 4, generator)
    easy = exact(problem).float()
    start = torch.where(torch.arange(32)[:, None] < 16, easy, 10.0)
    _, steps = FusedStates(blocks=SMALL).states(problem, start)
    assert steps[0] < steps[1]


def test_the_limit_of_steps_is_kept_and_said(generator: torch.Generator) -> None:
    problem = fit(20, 30, 25, generator)
    solution = solve(problem, FusedStates(max_iterations=3, blocks=SMALL))
    assert solution.iterations == 3
    assert solution.status is Status.ITERATION_LIMIT


def test_links_that_are_zero_leave_the_forward_map(generator: torch.Generator) -> None:
    problem = fit(6, 5, 3, generator)
    (link,) = problem.links
    flat = replace(problem, links=(replace(link, weight=torch.zeros_like(link.weight)),))
    value = solve(flat, FusedStates(blocks=SMALL)).value
    torch.testing.assert_close(value, problem.pre_activation.clamp(min=0), atol=1e-4, rtol=1e-4)


def test_float64_is_left_to_torch(generator: torch.Generator) -> None:
    problem = fit(4, 3, 2, generator)
    double = replace(
        problem,
        pre_activation=problem.pre_activation.double(),
        links=tuple(link.double() for link in problem.links),
    )
    assert "float32 alone" in (FusedStates().obstacle(double) or "")
    with pytest.raises(DeclarationError, match="float32 alone"):
        solve(double, "fused-states")


def test_a_link_that_is_too_wide_is_left_to_torch(generator: torch.Generator) -> None:
    problem = fit(2, 3, 257, generator)
    assert "at most 256 columns each" in (FusedStates().obstacle(problem) or "")


def test_the_interpreter_is_not_chosen_by_itself(generator: torch.Generator) -> None:
    assert not choose(fit(4, 3, 2, generator)).name.startswith("fused")


def test_without_the_interpreter_the_processor_is_refused(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "on a GPU" in (FusedStates().obstacle(fit(4, 3, 2, generator)) or "")


def test_without_triton_torch_serves_and_nothing_warns(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(states, "has_triton", lambda: False)
    problem = fit(4, 3, 2, generator)
    assert "liftednet[gpu]" in (FusedStates().obstacle(problem) or "")
    assert solve(problem).status is Status.SOLVED
    assert not recwarn


def test_what_float32_steps_leave_unsolved_goes_on_in_torch(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = fit(20, 30, 15, generator)
    hasty = FusedStates(max_iterations=2, blocks=SMALL)
    monkeypatch.setattr(FusedStates, "suits", lambda self, problem: True)
    made = choice._made
    monkeypatch.setattr(
        choice, "_made", lambda entry: hasty if entry.name == "fused-states" else made(entry)
    )
    assert choose(problem) is hasty
    assert hasty.solve(problem).status is Status.ITERATION_LIMIT
    solution = solve(problem)
    assert solution.status is Status.SOLVED
    assert not solution.solver.startswith("fused")


def test_a_kernel_proves_itself_before_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    kernel, there = FusedStates(blocks=SMALL), torch.device("cpu")
    states.proven.cache_clear()
    solved = cache(type(kernel).solve)
    monkeypatch.setattr(type(kernel), "solve", solved)
    assert states.proven(kernel, there) and not recwarn
    for wrong, said in ((1e-2, "off by"), (None, "fails")):

        def spoiled(self: Any, problem: Any, wrong: Any = wrong) -> Any:
            found = solved(self, problem)
            return replace(found, value=found.value + wrong)

        states.proven.cache_clear()
        with monkeypatch.context() as patch, pytest.warns(FitWarning, match=said) as warned:
            patch.setattr(type(kernel), "solve", spoiled)
            assert not states.proven(kernel, there)
            assert not states.proven(kernel, there)  # which is known, and not said again
        assert len(warned) == 1
    states.proven.cache_clear()


def fit_of_scale(scale: float, generator: torch.Generator, samples: int = 16) -> StateFit:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    linear = joint(activations.Identity())
    link = Link(linear, scale * normal(20, 12), normal(12), scale * normal(samples, 12))
    return StateFit(tight(activations.ReLU()), normal(samples, 20), (link,), 0.5)


@pytest.mark.parametrize("scale", [1e-4, 3.0, 1e5])
def test_steps_in_float16_end_at_the_residual_of_float32(
    scale: float, generator: torch.Generator
) -> None:
    # |W| of 1e5 is beyond float16; at 3 the smoothness is 500 times the convexity
    problem, tolerance = fit_of_scale(scale, generator), 1e-5 if scale < 1e3 else 1e-2
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
    problem = fit_of_scale(1.0, generator)  # ten million rows of 300 units are beyond 32 bits
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
