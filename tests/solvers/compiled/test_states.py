"""States in compiled loops: they reach what torch does, and what they leave torch finishes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from liftednet import activations
from liftednet.activations.piecewise_linear import Bounded
from liftednet.divergences import joint
from liftednet.problems import Link, StateFit
from liftednet.solvers import choose, solve
from liftednet.solvers.compiled import loops, solvers
from liftednet.solvers.compiled.loops import ramp
from liftednet.solvers.compiled.solvers import CompiledDescent, CompiledNewton, CompiledSimplex
from tests.solvers.compiled.test_loops import RAMPS, outputs
from tests.solvers.compiled.test_loops import states as fit


@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_newton_steps_reach_what_the_dual_does(activation: Any) -> None:
    problem = fit(activation, torch.float64)
    ours, dual = solve(problem, "compiled-newton"), solve(problem, "dual")
    assert ours.residual <= 1e-8
    assert torch.allclose(ours.value, dual.value, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_descent_reaches_what_the_dual_does_from_any_start(
    activation: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "_SLOW", math.inf)
    problem = fit(activation, dtype)
    dual = solve(fit(activation, torch.float64), "dual").value.to(dtype)
    for start in (None, dual, activation.forward(-3 * problem.pre_activation)):
        ours = CompiledDescent().solve(problem, start)
        assert ours.solver == "compiled-descent" and ours.residual <= ours.tolerance
        assert torch.allclose(ours.value, dual, atol=1e-6 if dtype is torch.float64 else 1e-4)


@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_sweeps_over_sixteen_samples_at_once_reach_what_the_dual_does(activation: Any) -> None:
    from liftednet.solvers.compiled.descent_rows import sweep

    problem = fit(activation, torch.float64, 37)
    shared, dual = CompiledDescent().prepare(problem), solve(problem, "dual").value
    right, size = solvers._asked(problem, slice(None))
    line = ramp(activation)
    for start in (torch.zeros_like(dual), activation.forward(-3 * problem.pre_activation)):
        z = start.numpy().copy()
        parts = shared.hessian, shared.panels, right.numpy(), line, 1e-9 * size
        assert 0 < sweep(*parts, 5_000, z) < 5_000
        assert torch.allclose(torch.from_numpy(z), dual, atol=1e-6)
        assert problem.measure(torch.from_numpy(z)).residual <= 1e-9
        assert math.isinf(sweep(*parts, 1, start.numpy().copy()))


def test_well_conditioned_states_are_found_by_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _wide(0.5, -1.0)
    (link,) = whole.links
    near = Link(link.divergence, 0.05 * link.weight, link.offset, link.target)
    problem = StateFit(whole.divergence, whole.pre_activation, (near,))
    monkeypatch.setattr(solvers, "_PATIENCE", 0.0)  # sample by sample none is solved
    found = solve(problem, CompiledDescent(1e-6))
    assert found.solver == "compiled-descent" and found.residual <= 1e-6


def _wide(
    shift: float, spread: float, units: int = 60, dtype: torch.dtype = torch.float64
) -> StateFit:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(40, units, generator=generator, dtype=dtype) + shift
    weight = torch.randn(units, 40, generator=generator, dtype=dtype) * torch.logspace(
        spread, 0, 40, dtype=dtype
    )
    target = torch.randn(40, 40, generator=generator, dtype=dtype).relu()
    link = Link(joint(activations.Identity()), weight, torch.zeros(40, dtype=dtype), target)
    return StateFit(joint(activations.ReLU()), u, (link,))


def test_few_positive_states_are_those_of_nonnegative_least_squares() -> None:
    problem = _wide(-1.5, -1.0)
    found = solve(problem)
    assert found.solver == "compiled-descent"
    (link,) = problem.links
    matrix = torch.cat([torch.eye(problem.units, dtype=torch.float64), link.weight.T])
    for n in range(problem.samples):
        right = torch.cat([problem.pre_activation[n], link.target[n]])
        expected = torch.from_numpy(nnls(matrix.numpy(), right.numpy())[0])
        assert torch.allclose(found.value[n], expected, atol=1e-9)


def test_what_descent_takes_long_for_is_left_to_the_dual(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _wide(0.5, 0.0)
    monkeypatch.setattr(solvers, "_SLOW", 0.0)
    assert choose(problem).name == "compiled-descent"
    found, dual = solve(problem), solve(problem, "dual")
    assert found.solver == "dual" and torch.equal(found.value, dual.value)
    assert choose(_wide(-1.0, -1.0, units=600)).name == "dual"


def test_bounds_of_a_fit_are_kept() -> None:
    whole = fit(activations.ReLU(), torch.float64)
    problem = StateFit(whole.divergence, whole.pre_activation, whole.links, 0.7, (0.1, 0.4))
    found, dual = solve(problem, "compiled-newton"), solve(problem, "dual")
    assert float(found.value.min()) == 0.1 and float(found.value.max()) == 0.4
    assert torch.allclose(found.value, dual.value, atol=1e-6)


def test_a_map_of_other_pieces_is_no_ramp() -> None:
    class Doubled(activations.ReLU):  # what a subclass declares is its own
        def forward(self, u: Tensor) -> Tensor:
            return 2 * super().forward(u)

    for activation in (Doubled(), activations.Tanh(), Bounded(activations.Tanh(), 0.0, 1.0)):
        assert ramp(activation) is None
        assert "straight pieces" in str(CompiledNewton().obstacle(fit(activation, torch.float64)))


def test_many_columns_are_left_to_others() -> None:
    wide = Link(joint(activations.Identity()), torch.ones(2, 40), torch.ones(40), torch.ones(3, 40))
    problem = StateFit(joint(activations.ReLU()), torch.ones(3, 2), (wide,))
    assert "at most 32 columns of all links, not 40" in str(CompiledNewton().obstacle(problem))


def test_threads_take_parts_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, simplex = fit(activations.ReLU(), torch.float64, 1_000), outputs(torch.float64, 1_000)
    monkeypatch.setattr(solvers, "_SLOW", math.inf)
    pairs: list[Any] = [(CompiledNewton(), problem), (CompiledDescent(), problem)]
    pairs.append((CompiledSimplex(), simplex[0]))
    alone = [solver.solve(one) for solver, one in pairs]
    monkeypatch.setattr(loops, "_ENTRIES", 500)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for (solver, one), before in zip(pairs, alone, strict=True):
        together = solver.solve(one)
        assert together.solver == before.solver
        assert torch.allclose(together.value, before.value, rtol=0, atol=1e-6)
        assert together.objective == pytest.approx(before.objective, rel=1e-12)
