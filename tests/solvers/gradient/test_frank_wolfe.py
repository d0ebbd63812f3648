"""Minima over p-balls against Hoelder, and the optimizer against its algorithm."""

import itertools
import math
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from liftednet.errors import DataError, SolverError
from liftednet.solvers.gradient import FrankWolfe, NormBall
from tests.draws import normal
from tests.models.networks import refuses

Closure = Callable[[], Tensor]
SEEDS, SCALES = st.integers(0, 10_000), st.sampled_from([1e-30, 1e-3, 1.0, 1e25])


def quadratic(weights: list[nn.Parameter], noise: float, seed: int) -> Closure:
    """Return a stochastic closure with its own batches."""
    source = torch.Generator().manual_seed(seed)

    def closure() -> Tensor:
        for weight in weights:
            weight.grad = None
        loss = sum(
            ((w - 1 - noise * normal(*w.shape, seed=source, dtype=w.dtype)) ** 2).sum()
            for w in weights
        )
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.detach()

    return closure


def gradients(seed: int, scale: float = 1.0) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [scale * normal(3, 2, seed=source), scale * normal(4, seed=source)]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(start) for start in gradients(0)]


def norm(tensors: list[Tensor], p: float) -> float:
    return float(torch.linalg.vector_norm(torch.cat([t.flatten() for t in tensors]), p))


@given(st.sampled_from([1.0, 1.7, 2.0, math.inf]), st.integers(1, 6), st.booleans(), SEEDS)
def test_outer_step_is_the_published_algorithm(p, inner_steps, joint, seed) -> None:
    weights, copies = parameters(), parameters()
    optimizer = FrankWolfe(weights, 0.3, radius=0.2, inner_steps=inner_steps, p=p, joint=joint)
    optimizer.step(quadratic(weights, 1.0, seed))

    start = [c.detach().clone() for c in copies]
    moved = [torch.zeros_like(c) for c in copies]
    closure = quadratic(copies, 1.0, seed)
    for k in range(1, inner_steps + 1):
        with torch.no_grad():
            for copy, at, move in zip(copies, start, moved, strict=True):
                copy.copy_(at + move)
        closure()
        gradients = [c.grad for c in copies if c.grad is not None]
        ball = NormBall(p, 0.2)
        s = ball.minimizer(gradients) if joint else [ball.minimizer([g])[0] for g in gradients]
        moved = [(1 - 1 / k) * move + step / k for move, step in zip(moved, s, strict=True)]
        blocks = [moved] if joint else [[move] for move in moved]
        assert all(norm(block, p) <= 0.2 * (1 + 1e-12) for block in blocks)
    for weight, at, move in zip(weights, start, moved, strict=True):
        assert torch.allclose(weight, at + 0.3 * move, atol=1e-13)


@pytest.mark.parametrize("outer", [torch.optim.SGD, torch.optim.Adam])
def test_a_stored_state_continues_the_same_path(outer: type[torch.optim.Optimizer]) -> None:
    paths = []
    for stored in ("", "state", "copy"):
        weights = parameters()
        closure = quadratic(weights, 1.0, 3)
        optimizer = FrankWolfe(weights, 0.1, inner_steps=2, outer=outer)
        for step in range(6):
            if stored == "copy" and step == 3:
                weights[:], optimizer = deepcopy((weights, optimizer))
            elif stored and step == 3:
                state = optimizer.state_dict()
                optimizer = FrankWolfe(weights, 9.0, inner_steps=3, outer=outer)
                optimizer.load_state_dict(state)
            optimizer.step(closure)
        paths.append([w.detach().clone() for w in weights])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*paths, strict=True))


def test_bad_settings_are_refused() -> None:
    refuses(DataError, "lr must be positive", FrankWolfe, parameters(), lr=0.0)
    refuses(DataError, "radius must be positive", FrankWolfe, parameters(), lr=0.1, radius=-1.0)
    refuses(DataError, "p must be at least 1", FrankWolfe, parameters(), lr=0.1, p=0.9)
    refuses(DataError, "inner_steps", FrankWolfe, parameters(), lr=0.1, inner_steps=0)


def test_groups_share_their_inner_steps_and_gradients_are_dense() -> None:
    groups = [{"params": [w], "inner_steps": k} for w, k in zip(parameters(), (1, 2), strict=True)]
    refuses(DataError, "same in all groups", FrankWolfe, groups, lr=0.1)
    assert not NormBall(1.5, 1.0).minimizer([torch.zeros(2, 2)])[0].any()
    table = nn.Embedding(5, 2, sparse=True)

    def closure() -> Tensor:
        loss: Tensor = table(torch.tensor([1])).sum()
        loss.backward()
        return loss

    refuses(DataError, "Sparse", FrankWolfe(table.parameters(), lr=0.1).step, closure)


def test_what_has_a_gradient_in_a_later_inner_step_stays_in_the_ball_too() -> None:
    """At first its gradient is 0, of which s = 0 is a minimizer; of what never has one nothing."""
    first, later, never = (nn.Parameter(torch.full((2,), 3.0)) for _ in range(3))
    optimizer, calls = FrankWolfe([first, later, never], lr=0.1, inner_steps=2), itertools.count()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = first.square().sum() + (1e4 * later.square().sum() if next(calls) else 0)
        loss.backward()
        return loss

    optimizer.step(closure)
    moved = torch.full((2,), 3 - 0.1 / 2 / math.sqrt(2))  # half of the second minimizer
    torch.testing.assert_close(later.detach(), moved)
    assert torch.equal(never, torch.full((2,), 3.0)) and never.grad is None


def test_bad_gradients_leave_the_weights_alone() -> None:
    weights = parameters()
    before = [w.detach().clone() for w in weights]
    optimizer = FrankWolfe(weights, lr=0.1, inner_steps=4)
    refuses(DataError, "closure", optimizer.step)
    plain = quadratic(weights, 1.0, 0)
    for broken_call in (1, 3):
        calls = itertools.count(1)

        def closure(broken_call: int = broken_call, calls: Iterator[int] = calls) -> Tensor:
            loss = plain()
            if next(calls) == broken_call:
                assert weights[1].grad is not None
                weights[1].grad[0] = math.nan
            return loss

        refuses(SolverError, r"\(4,\)", optimizer.step, closure)
        assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))

    def interrupted() -> Tensor:
        if not torch.equal(weights[0], before[0]):
            raise KeyboardInterrupt
        return plain()

    refuses(KeyboardInterrupt, "", optimizer.step, interrupted)
    assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


@given(st.one_of(st.sampled_from([1.0, math.inf]), st.floats(1.001, 60)), SEEDS, SCALES)
def test_minimizer_is_in_the_ball_and_tight_in_hoelders_inequality(p, seed, scale) -> None:
    ball = NormBall(p, 2.5)
    given_gradients = gradients(seed, scale)
    found = ball.minimizer(given_gradients)
    assert norm(found, p) <= 2.5 * (1 + 1e-10)
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    entries = torch.cat([g.flatten() for g in given_gradients])
    largest = float(entries.abs().max())
    least = -2.5 * float(torch.linalg.vector_norm(entries / largest, q))
    inner = sum(float((x * y).sum()) for x, y in zip(found, given_gradients, strict=True))
    assert math.isclose(inner / largest, least, rel_tol=1e-9)
