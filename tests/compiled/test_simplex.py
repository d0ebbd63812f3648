"""Output states on the simplex in compiled loops: their judgment, and what serves without Numba."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import compiled
from liftednet.activations import SimplexProjection
from liftednet.compiled.lanes import LANES, logarithms
from liftednet.divergences import joint
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import Measure, OutputFit
from liftednet.solvers import CompiledSimplex, solve

SAMPLES, OUTPUTS = 2 * LANES + 5, 4  # two blocks and a part of one


def fit(dtype: torch.dtype, samples: int = SAMPLES) -> tuple[OutputFit, Tensor]:
    """Return a problem, and states that do not solve it."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, samples, OUTPUTS, generator=generator, dtype=torch.float64)
    u, y, z = drawn[0], drawn[1].softmax(-1), drawn[2].softmax(-1)
    y[:3] = torch.eye(OUTPUTS, dtype=torch.float64)[:3]
    problem = OutputFit(
        SimplexCrossEntropy(), y.to(dtype), joint(SimplexProjection()), u.to(dtype), 0.7
    )
    return problem, z.to(dtype)


def by_torch(problem: OutputFit, z: Tensor, monkeypatch: pytest.MonkeyPatch) -> Measure:
    with monkeypatch.context() as patch:
        patch.setattr(SimplexCrossEntropy, "judged", lambda *_: None)
        return problem.measure(z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("zero", [False, True])
def test_the_compiled_judge_is_that_of_torch(
    dtype: torch.dtype, zero: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, z = fit(dtype)
    if zero:
        z[0] = torch.eye(OUTPUTS)[0]  # where the target is one, too
    found, expected = problem.measure(z), by_torch(problem, z, monkeypatch)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("spoiled", ["off the simplex", "negative", "zero below a target"])
def test_the_compiled_judge_is_infinite_where_torch_is(
    spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, z = fit(torch.float64)
    last = {"off the simplex": [0.3] * 4, "negative": [-0.1, 0.4, 0.4, 0.3]}
    z[-1] = torch.tensor(last.get(spoiled, [0.0, 0.4, 0.3, 0.3]))
    assert not math.isfinite(by_torch(problem, z, monkeypatch).objective)
    assert problem.measure(z).objective == math.inf


def test_logarithms_are_those_of_numpy() -> None:
    exponents = np.linspace(-307, 307, LANES - 2)
    x = np.concatenate([10.0**exponents, [1 - 1e-9, 1 + 1e-9], np.zeros(LANES)])
    expected = np.log(x[:LANES])
    logarithms(x, x.view(np.int64))
    assert x[:LANES] == pytest.approx(expected, rel=1e-15)


def test_threads_take_parts_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = fit(torch.float64, 1_000)
    alone = CompiledSimplex().solve(problem)
    monkeypatch.setattr(compiled, "_ENTRIES", 500)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    together = CompiledSimplex().solve(problem)
    assert torch.allclose(together.value, alone.value, rtol=0, atol=1e-12)
    assert together.objective == pytest.approx(alone.objective, rel=1e-13)


def test_without_numba_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = fit(torch.float64)
    expected = solve(problem)
    monkeypatch.setattr(compiled, "has_numba", lambda: False)
    found = solve(problem)
    assert (expected.solver, found.solver) == ("compiled-simplex", "simplex-dual")
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert "pip install 'liftednet[cpu]'" in str(CompiledSimplex().obstacle(problem))
