"""The fused state fit under the interpreter, against float64 torch and its own certificate."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DeclarationError, FitWarning
from liftednet.problems import Link, StateFit
from liftednet.solution import Status
from liftednet.solvers import choice, choose, solve
from liftednet.solvers.kernels import states
from liftednet.solvers.kernels.states import FusedStates, StateBlocks
from tests.draws import normal
from tests.models.networks import refuses

SMALL = StateBlocks(16, depth=16, columns=16)


def fit(samples: int, units: int, columns: int, generator: torch.Generator) -> StateFit:
    drawn = partial(normal, seed=generator, dtype=torch.float32)
    weight, offset, target = drawn(units, columns), drawn(columns), drawn(samples, columns)
    link = Link(joint(activations.Identity()), weight / units**0.5, offset, target)
    return StateFit(tight(activations.ReLU()), drawn(samples, units), (link,), 0.5)


def exact(problem: StateFit) -> Any:
    links = tuple(link.double() for link in problem.links)
    return solve(StateFit(problem.divergence, problem.pre_activation.double(), links, 0.5)).value


IDENTITY, RELU, LEAKY = activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2)
CLIPPED, HALF = activations.Clipped(-0.5, 0.75), activations.PReLU(0.5)
CASES: list[tuple[Any, Any, Any]] = [
    *((RELU, joint(IDENTITY), size) for size in ((1, 1, 1), (37, 1, 2), (17, 17, 17))),
    *((line, tight(line), (9, 6, 3)) for line in (IDENTITY, LEAKY, CLIPPED, HALF)),
    (LEAKY, joint(LEAKY), (9, 6, 3)), (CLIPPED, tight(activations.Softmax()), (9, 6, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "above", "size"), CASES, ids=repr)
def test_straight_pieces_of_any_size_below_every_link(layer, above, size, generator) -> None:
    """Most of the sizes are no multiples of a block."""
    samples, units, columns = size
    problem = fit(samples, units, columns, generator)
    (link,) = problem.links
    target = above.activation.forward(link.target)
    if not above.activation.per_unit:  # float64 tells that shares in float32 do not sum to 1
        target = torch.eye(3).repeat(3, 1)
    links = (replace(link, divergence=above, target=target),)
    problem = replace(problem, divergence=tight(layer), links=links)
    solution = solve(problem, FusedStates(blocks=SMALL))
    assert solution.status is Status.SOLVED
    near = 2e-5 if layer is RELU else 5e-5
    torch.testing.assert_close(solution.value.double(), exact(problem), atol=near, rtol=near)


def test_what_the_kernel_does_not_take_is_left_to_torch(generator, monkeypatch) -> None:
    problem, curved = fit(4, 3, 2, generator), tight(activations.Sigmoid())
    (link,) = problem.links
    above = (replace(link, divergence=curved),)
    u = problem.pre_activation.double()
    double = replace(problem, pre_activation=u, links=(link.double(),))
    for other, words in (
        (replace(problem, divergence=curved), "prox of Sigmoid"),
        (replace(problem, links=above), "link to Sigmoid"),
        (double, "float32 alone"),
        (fit(2, 3, 257, generator), "at most 256 columns each"),
    ):
        refuses(DeclarationError, words, solve, other, "fused-states")
    assert not choose(problem).name.startswith("fused")  # nor is the interpreter by itself
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "on a GPU" in (FusedStates().obstacle(problem) or "")


def test_data_that_are_not_contiguous(generator: torch.Generator) -> None:
    problem = fit(19, 7, 5, generator)
    (link,) = problem.links
    weight, offset = link.weight.T.contiguous().T, torch.stack([link.offset] * 2, 1)[:, 0]
    target = torch.stack([link.target, -link.target], 2)[..., 0]
    turned = replace(link, weight=weight, offset=offset, target=target)
    u = problem.pre_activation.T.contiguous().T
    strided = replace(problem, pre_activation=u, links=(turned,))
    start = torch.rand(7, 19, generator=generator).T
    few = FusedStates(max_iterations=2, blocks=SMALL)
    value, _ = few.states(strided, start)
    torch.testing.assert_close(value, few.states(problem, start.contiguous())[0], atol=0, rtol=0)


def test_without_triton_torch_serves_and_nothing_warns(generator, monkeypatch, recwarn) -> None:
    monkeypatch.setattr(states, "has_triton", lambda: False)
    problem = fit(4, 3, 2, generator)
    assert "liftednet[gpu]" in (FusedStates().obstacle(problem) or "")
    assert solve(problem).status is Status.SOLVED
    assert not recwarn


def test_what_float32_steps_leave_unsolved_goes_on_in_torch(generator, monkeypatch) -> None:
    problem = fit(20, 30, 15, generator)
    hasty = FusedStates(max_iterations=2, blocks=SMALL)
    monkeypatch.setattr(FusedStates, "suits", lambda self, problem: True)
    made = choice._made
    monkeypatch.setattr(
        choice, "_made", lambda entry: hasty if entry.name == "fused-states" else made(entry)
    )
    assert choose(problem) is hasty
    limited = hasty.solve(problem)
    assert (limited.status, limited.iterations) == (Status.ITERATION_LIMIT, 2)
    solution = solve(problem)
    assert solution.status is Status.SOLVED
    assert not solution.solver.startswith("fused")


def test_a_kernel_proves_itself_before_it_is_chosen(monkeypatch, recwarn) -> None:
    kernel, there = FusedStates(blocks=SMALL), torch.device("cpu")
    states.proven.cache_clear()
    trial, solved = states._trial, cache(type(kernel).solve)
    monkeypatch.setattr(states, "_trial", lambda u, y: trial(u[:16], y[:16]))  # one block of rows
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


@pytest.mark.parametrize("scale", [1e-4, 3.0, 1e5])
def test_steps_in_float16_end_at_the_residual_of_float32(scale, generator) -> None:
    # |W| of 1e5 is beyond float16; at 3 the smoothness is 500 times the convexity
    problem, tolerance = fit(16, 16, 12, generator), 1e-5 if scale < 1e3 else 1e-2
    (link,) = problem.links
    link = replace(link, weight=scale * 16**0.5 * link.weight, target=scale * link.target)
    problem = replace(problem, links=(link,))
    assert FusedStates(tolerance, blocks=SMALL).solve(problem).residual <= tolerance


def test_rows_of_a_state_fit_are_found_by_64_bits(generator, monkeypatch) -> None:
    """By the types of the offsets from its tensors, as kernels under the interpreter add them."""
    from triton.runtime.interpreter import interpreter_builder as builder

    problem = fit(16, 20, 12, generator)  # ten million rows of 300 units are beyond 32 bits
    (link,) = problem.links
    full = replace(link, offset=link.offset.expand(16, 12).contiguous())
    starts = {x.data_ptr() for x in (problem.pre_activation, full.offset, full.target)}
    added, types = builder.create_addptr, dict[int, set[str]]()

    def watched(pointer: Any, offset: Any) -> Any:
        start = int(pointer.data.flat[0])
        if start in starts and not np.ptp(pointer.data) and offset.data.size > 1:
            types.setdefault(start, set()).add(str(offset.data.dtype))
        return added(pointer, offset)

    monkeypatch.setattr(builder, "create_addptr", watched)
    FusedStates(max_iterations=1, blocks=SMALL).states(replace(problem, links=(full,)))
    assert len(types) == 3
    assert set.union(*types.values()) == {"int64"}
