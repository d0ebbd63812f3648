"""The output kernels under the interpreter, against float64 torch, with poisoned outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import SolverError
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import Link, OutputFit, StateFit
from liftednet.solvers import SimplexDual, solve
from liftednet.solvers.kernels import device
from liftednet.solvers.kernels.outputs import FusedSimplex
from liftednet.solvers.kernels.states import FusedStates, StateBlocks


def simplex_fit(y: Tensor, u: Tensor, lam: float = 0.7) -> OutputFit:
    return OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), u, lam)


def labels(kind: str, samples: int, classes: int, generator: torch.Generator) -> Tensor:
    hot = torch.eye(classes)[torch.randint(0, classes, (samples,), generator=generator)]
    soft = torch.randn(samples, classes, generator=generator).softmax(1)
    rows = torch.arange(samples)[:, None] % 2 == 0
    return {"one-hot": hot, "soft": soft, "both": torch.where(rows, hot, soft)}[kind]


@pytest.mark.parametrize("kind", ["one-hot", "soft", "both"])
@pytest.mark.parametrize(
    ("samples", "classes"), [(1, 2), (37, 10), (5, 32), (5, 33), (3, 300), (3, 1024), (4, 1)]
)
def test_simplex_is_the_dual_solvers(
    samples: int, classes: int, kind: str, generator: torch.Generator
) -> None:
    y = labels(kind, samples, classes, generator)
    u = 3 * torch.randn(samples, classes, generator=generator)
    problem = simplex_fit(y, u)
    solution = solve(problem, FusedSimplex(rows=4))
    expected = SimplexDual().solve(simplex_fit(y.double(), u.double())).value
    assert solution.residual <= 1e-6
    torch.testing.assert_close(solution.value.double(), expected, atol=1e-6, rtol=1e-5)


@given(
    scale=st.floats(1e-3, 1e6),
    lam=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["one-hot", "soft", "both"]),
)
@settings(max_examples=15)
def test_simplex_at_any_scale(scale: float, lam: float, seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    y = labels(kind, 6, 5, generator)
    u = scale * torch.randn(6, 5, generator=generator)
    value = FusedSimplex(rows=4).states(simplex_fit(y, u, lam))
    assert bool((value >= 0).all())
    torch.testing.assert_close(value.sum(1), torch.ones(6), atol=1e-5, rtol=0)
    expected = SimplexDual().solve(simplex_fit(y.double(), u.double(), lam)).value
    torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-4)


def test_outputs_that_are_not_contiguous(generator: torch.Generator) -> None:
    y = labels("soft", 7, 5, generator).T.contiguous().T
    u = torch.randn(7, 10, generator=generator)[:, ::2]
    strided = FusedSimplex(rows=4).states(simplex_fit(y, u))
    plain = FusedSimplex(rows=4).states(simplex_fit(y.contiguous(), u.contiguous()))
    assert strided.equal(plain)


def test_float64_and_too_many_classes_are_left_to_torch() -> None:
    wide = simplex_fit(torch.eye(1025)[:2], torch.zeros(2, 1025))
    assert "1024 classes" in (FusedSimplex().obstacle(wide) or "")
    exact = simplex_fit(torch.eye(3).double(), torch.zeros(3, 3).double())
    assert "float32 alone" in (FusedSimplex().obstacle(exact) or "")


def test_what_does_not_fit_names_bytes_and_a_chunk(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda _: 15_000)
    y, u = labels("soft", 200, 3, generator), torch.randn(200, 3, generator=generator)
    relu = tight(activations.ReLU())

    def problems(y: Tensor, u: Tensor) -> Iterator[tuple[Any, Any]]:
        yield simplex_fit(y, u), FusedSimplex()
        link = Link(joint(activations.Identity()), torch.eye(3), torch.zeros(3), y)
        yield StateFit(relu, u, (link,)), FusedStates(blocks=StateBlocks(16, depth=16, columns=16))

    for number, (problem, solver) in enumerate(problems(y, u)):
        with pytest.raises(SolverError, match=r"need [\d,]+ bytes on cpu and 15,000 are") as error:
            solve(problem, solver)
        chunk = int(str(error.value).split("at most ")[1].split(" samples")[0])
        assert 0 < chunk < 200
        part, _ = list(problems(y[:chunk], u[:chunk]))[number]
        assert solve(part, solver).value.shape == (chunk, 3)
