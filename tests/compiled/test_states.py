"""States below quadratic links in compiled loops: their judgment, and what serves without Numba."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from liftednet import activations, compiled
from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Bounded
from liftednet.divergences import joint, within
from liftednet.problems import Link, Measure, StateFit, ramps, state_fit
from liftednet.problems.ramps import ramp
from liftednet.solvers import CompiledDescent, CompiledNewton, choose, solve
from liftednet.solvers.compiled import descent

SAMPLES, UNITS = 37, 5  # two blocks and a part of one
RAMPS: list[Activation] = [
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 0.5),
    Bounded(activations.ReLU(), -1.0, 0.7),
    Bounded(activations.LeakyReLU(0.3), -0.1, math.inf),
]


def fit(activation: Activation, dtype: torch.dtype, samples: int = SAMPLES) -> StateFit:
    """Return a fit below two links, one with an offset for every sample and phi(0) not 0."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    squared, curved = joint(activations.ReLU()), joint(activations.Sigmoid())
    first = Link(squared, normal(UNITS, 3), normal(3), normal(samples, 3).relu(), 0.6)
    second = Link(curved, normal(UNITS, 9), normal(samples, 9), normal(samples, 9).sigmoid(), 1.5)
    return StateFit(joint(activation), normal(samples, UNITS), (first, second), 0.7)


def by_torch(problem: StateFit, z: Tensor, monkeypatch: pytest.MonkeyPatch) -> Measure:
    with monkeypatch.context() as patch:
        patch.setattr(state_fit, "measured", lambda *_: None)
        return problem.measure(z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_the_compiled_judge_is_that_of_torch(
    activation: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = fit(activation, dtype)
    z = activation.forward(problem.pre_activation + 0.3)
    found, expected = problem.measure(z), by_torch(problem, z, monkeypatch)
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert found.residual == pytest.approx(expected.residual, rel=1e-6)  # its scale is in float32


def test_bounds_that_float32_rounds_are_kept_by_states_at_them() -> None:
    problem = fit(activations.Clipped(-0.1, 0.3), torch.float32)
    found, exact = solve(problem), solve(fit(activations.Clipped(-0.1, 0.3), torch.float64))
    assert found.residual <= 1e-5
    assert found.objective == pytest.approx(exact.objective, rel=1e-5)


@pytest.mark.parametrize("activation", RAMPS[1:], ids=repr)
def test_states_outside_the_domain_are_infinitely_bad(
    activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = fit(activation, torch.float64)
    z = activation.forward(problem.pre_activation)
    z[-1, -1] = -7.0
    expected = by_torch(problem, z, monkeypatch).objective
    assert math.isinf(expected) == (type(activation) is not activations.LeakyReLU)
    assert problem.measure(z).objective == pytest.approx(expected)


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
    monkeypatch.setattr(descent, "_WORK", math.inf)
    problem = fit(activation, dtype)
    dual = solve(fit(activation, torch.float64), "dual").value.to(dtype)
    for start in (None, dual, activation.forward(-3 * problem.pre_activation)):
        ours = CompiledDescent().solve(problem, start)
        assert ours.solver == "compiled-descent" and ours.residual <= ours.tolerance
        assert torch.allclose(ours.value, dual, atol=1e-6 if dtype is torch.float64 else 1e-4)


@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_sweeps_over_sixteen_samples_at_once_reach_what_the_dual_does(activation: Any) -> None:
    from liftednet.solvers.compiled.descent_rows import lines
    from liftednet.solvers.compiled.sweep_rows import sweep

    problem = fit(activation, torch.float64, 37)
    shared, dual = CompiledDescent().prepare(problem), solve(problem, "dual").value
    right, size = descent._asked(problem, slice(None))
    line = lines(ramp(activation))[0]
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
    monkeypatch.setattr(descent, "_PATIENCE", 0.0)  # sample by sample none is solved
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
    monkeypatch.setattr(descent, "_WORK", 0.0)
    assert choose(problem).name == "compiled-descent"
    found, dual = solve(problem), solve(problem, "dual")
    assert found.solver == "dual" and torch.equal(found.value, dual.value)
    assert choose(_wide(-1.0, -1.0, units=600)).name == "dual"


def test_bounds_of_a_fit_are_kept() -> None:
    whole = fit(activations.ReLU(), torch.float64)
    problem = StateFit(whole.divergence, whole.pre_activation, whole.links, 0.7, (0.1, 0.4))
    assert within(whole.divergence, (0.1, 0.4)).activation.lipschitz == 1.0
    found, dual = solve(problem, "compiled-newton"), solve(problem, "dual")
    assert float(found.value.min()) == 0.1 and float(found.value.max()) == 0.4
    assert torch.allclose(found.value, dual.value, atol=1e-6)


def test_a_map_of_other_pieces_is_no_ramp() -> None:
    class Doubled(activations.ReLU):  # what a subclass declares is its own
        def forward(self, u: Tensor) -> Tensor:
            return 2 * super().forward(u)

    for activation in (Doubled(), activations.Tanh(), Bounded(activations.Tanh(), 0.0, 1.0)):
        assert ramps.ramp(activation) is None
        assert "straight pieces" in str(CompiledNewton().obstacle(fit(activation, torch.float64)))


def test_many_columns_are_left_to_others() -> None:
    wide = Link(joint(activations.Identity()), torch.ones(2, 40), torch.ones(40), torch.ones(3, 40))
    problem = StateFit(joint(activations.ReLU()), torch.ones(3, 2), (wide,))
    assert "at most 32 columns of all links, not 40" in str(CompiledNewton().obstacle(problem))


def test_threads_take_parts_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fit(activations.ReLU(), torch.float64, 1_000)
    monkeypatch.setattr(descent, "_WORK", math.inf)
    solvers: list[Any] = [CompiledNewton(), CompiledDescent()]
    alone = [solver.solve(problem) for solver in solvers]
    monkeypatch.setattr(compiled, "_ENTRIES", 500)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for solver, one in zip(solvers, alone, strict=True):
        together = solver.solve(problem)
        assert together.solver == one.solver
        assert torch.allclose(together.value, one.value, rtol=0, atol=1e-6)
        assert together.objective == pytest.approx(one.objective, rel=1e-12)


def test_without_numba_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fit(activations.ReLU(), torch.float64)
    expected = solve(problem)
    monkeypatch.setattr(compiled, "has_numba", lambda: False)
    found = solve(problem)
    assert expected.solver.startswith("compiled") and not found.solver.startswith("compiled")
    assert found.objective == pytest.approx(expected.objective, rel=1e-10)
    assert "pip install 'liftednet[cpu]'" in str(CompiledNewton().obstacle(problem))
