"""What compiled loops know of activations, and that torch serves where they cannot."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import activations
from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Bounded
from liftednet.divergences import joint
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import Link, OutputFit, StateFit
from liftednet.solvers import choose, solve
from liftednet.solvers.compiled import loops, recurrent_rows, simplex_rows
from liftednet.solvers.compiled.lanes import LANES, compiled, filled

KNOWN: list[Activation] = [
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.PReLU(0.3),
    activations.Clipped(-0.5, 2.0),
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Arctan(),
    activations.Sine(),
    activations.Softplus(),
    activations.ELU(),
    Bounded(activations.Sigmoid(), 0.2, 0.7),
    Bounded(activations.Softplus(), -math.inf, 3.0),
]
RAMPS: list[Activation] = [
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 0.5),
    Bounded(activations.ReLU(), -1.0, 0.7),
    Bounded(activations.LeakyReLU(0.3), -0.1, math.inf),
]
SAMPLES, UNITS, OUTPUTS = 2 * LANES + 5, 5, 4  # whole blocks and a part of one


def normal(seed: int, *shape: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def states(activation: Activation, dtype: torch.dtype, samples: int = SAMPLES) -> StateFit:
    """Return a fit below two links, one with an offset for every sample and phi(0) not 0."""
    squared, curved = joint(activations.ReLU()), joint(activations.Sigmoid())
    w, c, t = normal(0, UNITS, 3), normal(1, 3), normal(2, samples, 3).relu()
    first = Link(squared, w.to(dtype), c.to(dtype), t.to(dtype), 0.6)
    w, c, t = normal(3, UNITS, 9), normal(4, samples, 9), normal(5, samples, 9).sigmoid()
    links = first, Link(curved, w.to(dtype), c.to(dtype), t.to(dtype), 1.5)
    return StateFit(joint(activation), normal(6, samples, UNITS).to(dtype), links, 0.7)


def outputs(dtype: torch.dtype, samples: int = SAMPLES) -> tuple[OutputFit, Tensor]:
    """Return a problem, and states that do not solve it."""
    u, z = normal(0, samples, OUTPUTS), normal(1, samples, OUTPUTS).softmax(-1)
    y = normal(2, samples, OUTPUTS).softmax(-1)
    y[:3] = torch.eye(OUTPUTS, dtype=torch.float64)[:3]
    simplex = joint(activations.SimplexProjection())
    return OutputFit(SimplexCrossEntropy(), y.to(dtype), simplex, u.to(dtype), 0.7), z.to(dtype)


@pytest.mark.parametrize("solver", ["compiled-newton", "dual", "proximal"])
def test_bounds_that_float32_rounds_are_kept_by_states_at_them(solver: str) -> None:
    for activation in (activations.Clipped(-0.1, 0.3), Bounded(activations.LeakyReLU(), -0.1, 0.3)):
        found = solve(states(activation, torch.float32), solver)
        exact = solve(states(activation, torch.float64), solver)
        assert found.residual <= 1e-5
        assert found.objective == pytest.approx(exact.objective, rel=1e-5)


@pytest.mark.parametrize("activation", KNOWN, ids=repr)
def test_maps_are_those_of_torch(activation: Activation) -> None:
    ends = torch.tensor([-900.0, -40.0, -1e-9, 1e-9, 1e-5, 40.0, 900.0], dtype=torch.float64)
    points = torch.cat([torch.linspace(-8, 8, 161, dtype=torch.float64), ends]).unsqueeze(1)
    known = loops.loop_map(activation)
    expected = torch.cat([activation.forward(points), activation.slope(points)], 1).numpy()
    found = np.array([recurrent_rows.mapped(known, float(x)) for x in points[:, 0]])
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-8)


def test_maps_that_loops_do_not_know_are_left_to_torch() -> None:
    class Doubled(activations.Sigmoid):  # what a subclass declares is its own
        def forward(self, u: Tensor) -> Tensor:
            return 2 * super().forward(u)

    for activation in (Doubled(), activations.Sign(), activations.PReLU([0.1, 0.2])):
        assert loops.loop_map(activation) is None


def test_without_numba_or_a_place_for_its_code_torch_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = states(activations.ReLU(), torch.float64), outputs(torch.float64)[0]
    expected = [solve(problem) for problem in problems]
    loops.has_numba.cache_clear()
    monkeypatch.setattr(loops, "_can_write", lambda _: False)
    assert not loops.has_numba()
    found = [solve(problem) for problem in problems]
    loops.has_numba.cache_clear()
    assert [one.solver for one in expected] == ["compiled-newton", "compiled-simplex"]
    assert [one.solver for one in found] == ["proximal", "simplex-dual"]
    for one, other in zip(found, expected, strict=True):
        assert one.objective == pytest.approx(other.objective, rel=1e-10)
    monkeypatch.setattr(loops, "has_numba", lambda: False)
    assert not choose(problems[0]).name.startswith("compiled")
    assert "pip install 'liftednet[cpu]'" in str(loops.refusal(problems[0].pre_activation))


def test_files_of_an_earlier_version_are_compiled_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    gone = pickle.dumps(numba.__version__) + b"cliftednet.gone\nloop\n."
    for stale in (gone, gone[:-9], b"", b"nothing"):
        loop = compiled(filled.py_func)
        assert loop(9) == 16
        (index,) = tmp_path.rglob("*.nbi")
        (data,) = tmp_path.rglob("*.nbc")
        index.write_bytes(stale)
        assert compiled(filled.py_func)(9) == 16
        data.write_bytes(stale)
        assert compiled(filled.py_func)(9) == 16
    again = compiled(filled.py_func)
    assert again(9) == 16 and again.stats.cache_hits  # the good one is kept

    problem = outputs(torch.float64)[0]
    expected = solve(problem, "compiled-simplex").objective
    for _ in range(2):
        loop = compiled(simplex_rows.simplex_rows.py_func)
        monkeypatch.setattr(simplex_rows, "simplex_rows", loop)
        assert solve(problem, "compiled-simplex").objective == expected
        for index in tmp_path.rglob("*.nbi"):
            index.write_bytes(gone)
