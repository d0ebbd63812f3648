"""Compiled loops: what they know, that torch serves elsewhere, and that no user waits for them."""

import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba.core import caching
from scipy.optimize import brentq, nnls

from liftednet import activations
from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Bounded
from liftednet.divergences import joint, tight
from liftednet.losses import SimplexCrossEntropy
from liftednet.models import GaussNewton, LiftedRNN
from liftednet.penalties import L1, GroupLasso, SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solution import Status
from liftednet.solvers import CompiledRidge, Ridge, choose, solve
from liftednet.solvers.compiled import loops, pivot_rows, recurrent_rows, solvers
from liftednet.solvers.compiled.lanes import LANES, compiled, filled
from liftednet.solvers.compiled.loops import ramp
from liftednet.solvers.compiled.solvers import CompiledDescent, CompiledNewton, CompiledSimplex
from liftednet.solvers.state_links import hessian_of, row_scales
from tests.draws import normal

CURVED: list[Activation] = [
    activations.Sigmoid(), activations.Tanh(), Bounded(activations.Sigmoid(), 0.2, 0.7),
    Bounded(activations.Tanh(), -math.inf, 0.3),
]  # fmt: skip
RAMPS: list[Activation] = [
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 0.5), Bounded(activations.ReLU(), -1.0, 0.7),
    Bounded(activations.LeakyReLU(0.3), -0.1, math.inf),
]  # fmt: skip
SAMPLES, UNITS, OUTPUTS = 2 * LANES + 5, 5, 4  # whole blocks and a part of one


def states(activation: Activation, dtype: torch.dtype, samples: int = SAMPLES) -> StateFit:
    """Return a fit below two links, one with an offset for every sample and phi(0) not 0."""
    links, source = [], torch.Generator().manual_seed(0)
    for above, columns, lam in ((activations.ReLU(), 3, 0.6), (activations.Sigmoid(), 9, 1.5)):
        offset = (columns,) if columns == 3 else (samples, columns)
        w, c, t = (normal(*s, seed=source) for s in ((UNITS, columns), offset, (samples, columns)))
        t = above.forward(t).to(dtype)
        links.append(Link(joint(above), w.to(dtype), c.to(dtype), t, lam))
    u = normal(samples, UNITS, seed=source).to(dtype)
    return StateFit(joint(activation), u, tuple(links), 0.7)


def outputs(samples: int = SAMPLES, dtype: torch.dtype = torch.float64) -> OutputFit:
    u, y = normal(samples, OUTPUTS), normal(samples, OUTPUTS, seed=2).softmax(-1)
    y[:3] = torch.eye(OUTPUTS, dtype=torch.float64)[:3]
    simplex = joint(activations.SimplexProjection())
    return OutputFit(SimplexCrossEntropy(), y.to(dtype), simplex, u.to(dtype), 0.7)


@pytest.mark.parametrize("solver", ["compiled-newton", "dual", "proximal"])
def test_bounds_that_float32_rounds_are_kept_by_states_at_them(solver: str) -> None:
    for activation in (activations.Clipped(-0.1, 0.3), Bounded(activations.LeakyReLU(), -0.1, 0.3)):
        single, double = (states(activation, dtype) for dtype in (torch.float32, torch.float64))
        found, exact = solve(single, solver), solve(double, solver)
        assert found.residual <= 1e-5
        assert found.objective == pytest.approx(exact.objective, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("lam", [1e-3, 0.7, 1e3])
def test_states_of_one_label_each_are_ramps_and_one_root(dtype: torch.dtype, lam: float) -> None:
    """Lifted Neural Networks, appendix A, with the multiplier that SciPy's search finds."""
    fit = outputs(dtype=dtype)
    y = torch.eye(OUTPUTS, dtype=dtype)[torch.arange(SAMPLES) % OUTPUTS]
    y = y * torch.linspace(0.01, 3, SAMPLES, dtype=dtype)[:, None]
    found = solve(replace(fit, target=y, lam=lam), CompiledSimplex()).value
    for z, u, a in zip(found, fit.pre_activation.double(), y.double() / lam, strict=True):

        def states(nu: float, u: torch.Tensor = u, a: torch.Tensor = a) -> torch.Tensor:
            s = u + nu
            return torch.where(a > 0, (s + (s * s + 4 * a).sqrt()) / 2, s.relu())

        ends = -float((u + a).max()) - 1e4, 1 - float(u.min())
        nu = brentq(lambda nu: float(states(nu).sum()) - 1, *ends, xtol=1e-12)
        close = 1e-10 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(z.double(), states(nu), rtol=0, atol=close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_measures_by_loops_are_those_of_the_problems(dtype: torch.dtype) -> None:
    """Of solutions, of states beside them, and of what is in no domain."""
    fits: list[Any] = [states(x, dtype, n) for x in RAMPS for n in (1, SAMPLES)]
    simplex: tuple[Any, Any] = CompiledSimplex(), outputs(dtype=dtype)
    for solver, problem in [*((CompiledDescent(), fit) for fit in fits), simplex]:
        best = solve(problem).value
        away = best + 0.1 * normal(*best.shape, seed=8).to(dtype)
        near = problem.divergence.activation.project(away)
        for value in (best, near, away, torch.full_like(best, torch.nan)):
            found, wanted = solver.measured(problem, value), problem.measure(value)
            assert found.objective == pytest.approx(wanted.objective, rel=1e-12, nan_ok=True)
            if not math.isnan(wanted.objective):
                assert found.residual == pytest.approx(wanted.residual, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("samples", "inputs"), [(4, 9), (12, 9), (300, 9), (150, 40)])
def test_small_ridges_are_judged_as_problems_judge_them(
    samples: int, inputs: int, dtype: torch.dtype
) -> None:
    """Columns in many units, some of them far from 0; what is further away is left."""
    for seed, activation in enumerate((activations.Identity(), activations.Sigmoid())):
        source = torch.Generator().manual_seed(seed)
        sizes = torch.logspace(-2, 2, inputs, dtype=torch.float64)
        x = normal(samples, inputs, seed=source) * sizes
        x[:, ::3] += 30 * x[0, ::3]
        v = normal(samples, 2, seed=source).sigmoid()
        for rho in (1e-3, 10.0):
            design = Design(x.to(dtype))
            fit = WeightFit(joint(activation), design, v.to(dtype), SquaredFrobenius(rho), 0.7)
            found, exact = CompiledRidge().solve(fit), Ridge().solve(fit)
            wanted = fit.measure(found.value)
            assert found.solver == "compiled-ridge" and found.status is Status.SOLVED
            assert found.objective == pytest.approx(wanted.objective, rel=1e-10)
            assert found.residual == pytest.approx(wanted.residual, rel=1e-2, abs=1e-13)
            assert found.objective == pytest.approx(exact.objective, rel=1e-9, abs=1e-12)
    far = WeightFit(joint(activation), design, 1e3 + v.to(dtype), SquaredFrobenius(1.0))
    away = WeightFit(joint(activation), Design(1e8 + x), v, SquaredFrobenius(1.0))
    assert {CompiledRidge().solve(one).solver for one in (far, away)} == {"ridge"}


@pytest.mark.parametrize("activation", CURVED, ids=repr)
def test_maps_are_those_of_torch(activation: Activation) -> None:
    ends = torch.tensor([-900.0, -40.0, -1e-9, 1e-9, 1e-5, 40.0, 900.0], dtype=torch.float64)
    points = torch.linspace(-8, 8, 160, dtype=torch.float64)  # none of them at a kink
    points = torch.cat([points, ends]).unsqueeze(1)
    known = loops.loop_map(activation)
    expected = torch.cat([activation.forward(points), activation.slope(points)], 1).numpy()
    found = np.array([recurrent_rows.mapped(known, float(x)) for x in points[:, 0]])
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-8)


def test_maps_that_loops_do_not_know_are_left_to_torch() -> None:
    for base in (activations.ReLU, activations.Sigmoid):  # what a subclass declares is its own
        doubled = type("Doubled", (base,), {"forward": lambda _, u: 2 * u})()
        assert loops.loop_map(doubled) is None and ramp(doubled) is None
    for activation in (activations.Sign(), activations.PReLU([0.1, 0.2])):
        assert loops.loop_map(activation) is None
    for bent in (activations.Tanh(), Bounded(activations.Tanh(), 0.0, 1.0)):
        assert ramp(bent) is None
        problem = states(bent, torch.float64)
        assert "straight pieces" in str(CompiledNewton().obstacle(problem))
    wide = Link(joint(activations.Identity()), torch.ones(2, 40), torch.ones(40), torch.ones(3, 40))
    problem = StateFit(joint(activations.ReLU()), torch.ones(3, 2), (wide,))
    assert "at most 32 columns of all links, not 40" in str(CompiledNewton().obstacle(problem))


def test_without_numba_or_a_place_for_its_code_torch_serves(monkeypatch) -> None:
    problems = states(activations.ReLU(), torch.float64), outputs()
    expected = [solve(problem) for problem in problems]
    loops.has_numba.cache_clear()
    monkeypatch.setattr(loops, "_can_write", lambda _: False)
    assert not loops.has_numba()
    found = [solve(problem) for problem in problems]
    loops.has_numba.cache_clear()
    assert [one.solver for one in expected] == ["compiled-descent", "compiled-simplex"]
    assert [one.solver for one in found] == ["proximal", "simplex-dual"]
    for one, other in zip(found, expected, strict=True):
        assert one.objective == pytest.approx(other.objective, rel=1e-10)
    monkeypatch.setattr(loops, "has_numba", lambda: False)
    assert not choose(problems[0]).name.startswith("compiled")
    assert "pip install 'liftednet[cpu]'" in str(loops.refusal(problems[0].pre_activation))


def test_files_of_an_earlier_version_are_compiled_anew(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    gone = pickle.dumps(numba.__version__) + b"cliftednet.gone\nloop\n."
    for stale in (gone, gone[:-9], b"", b"nothing"):
        assert compiled(filled.py_func)(9) == 16
        (index,) = tmp_path.rglob("*.nbi")
        (data,) = tmp_path.rglob("*.nbc")
        index.write_bytes(stale)
        assert compiled(filled.py_func)(9) == 16
        data.write_bytes(stale)
        assert compiled(filled.py_func)(9) == 16
    again = compiled(filled.py_func)
    assert again(9) == 16 and again.stats.cache_hits  # the good one is kept


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_newton_steps_and_descent_reach_what_the_dual_does_from_any_start(
    activation: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "_SLOW", math.inf)
    problem = states(activation, dtype)
    exact = states(activation, torch.float64)
    expected, newton = solve(exact, "dual").value, solve(exact, "compiled-newton")
    assert newton.residual <= 1e-8 and torch.allclose(newton.value, expected, atol=1e-6)
    dual = expected.to(dtype)
    for start in (None, dual, activation.forward(-3 * problem.pre_activation)):
        ours = CompiledDescent().solve(problem, start)
        assert ours.solver == "compiled-descent" and ours.residual <= ours.tolerance
        assert torch.allclose(ours.value, dual, atol=1e-6 if dtype is torch.float64 else 1e-4)


@pytest.mark.parametrize("activation", RAMPS, ids=repr)
def test_sweeps_over_sixteen_samples_at_once_reach_what_the_dual_does(activation: Any) -> None:
    from liftednet.solvers.compiled.descent_rows import sweep

    problem = states(activation, torch.float64, 37)
    shared = solvers.SharedHessian(hessian_of(problem).numpy(), 0)
    right, scale = solvers.right_side(problem, slice(None)), row_scales(problem, slice(None))
    line, dual = ramp(activation), solve(problem, "dual").value
    for start in (torch.zeros_like(dual), activation.forward(-3 * problem.pre_activation)):
        z = start.numpy().copy()
        parts = shared.hessian, shared.panels, right.numpy(), line, (1e-9 * scale[:, None]).numpy()
        assert 0 < sweep(*parts, 5_000, z) < 5_000
        assert torch.allclose(torch.from_numpy(z), dual, atol=1e-6)
        assert problem.measure(torch.from_numpy(z)).residual <= 1e-9
        assert math.isinf(sweep(*parts, 1, start.numpy().copy()))


@pytest.mark.parametrize("together", [16, 0])
def test_inverses_of_all_sets_lead_from_any_start_to_the_nonnegative_states(together, monkeypatch):
    """All units that contradict a set change at once, or one alone, which always ends."""
    monkeypatch.setattr(pivot_rows, "_TOGETHER", together)
    root, right = normal(7, 7).numpy(), 3 * normal(40, 7, seed=1).numpy()
    table = pivot_rows.inverses(root @ root.T)
    wanted = np.array([nnls(root.T, np.linalg.solve(root, b))[0] for b in right])
    for start in (np.zeros((40, 7)), np.ones((40, 7)), wanted):
        z = start.copy()
        assert 0 < pivot_rows.pivot.py_func(table, right, z) < 100
        assert z == pytest.approx(wanted, rel=1e-7, abs=1e-9)
    assert math.isinf(pivot_rows.pivot.py_func(table * math.nan, right, z))


def _wide(shift: float, spread: float, units: int = 60) -> StateFit:
    u = normal(40, units) + shift
    weight = normal(units, 40, seed=1) * torch.logspace(spread, 0, 40, dtype=torch.float64)
    zero = torch.zeros(40, dtype=torch.float64)
    link = Link(joint(activations.Identity()), weight, zero, normal(40, 40, seed=2).relu())
    return StateFit(joint(activations.ReLU()), u, (link,))


def test_what_descent_takes_long_for_is_left_to_the_dual(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _wide(0.5, 0.0)
    monkeypatch.setattr(solvers, "_SLOW", 0.0)
    assert choose(problem).name == "compiled-descent"
    found, dual = solve(problem), solve(problem, "dual")
    assert found.solver == "dual" and torch.equal(found.value, dual.value)
    assert choose(_wide(-1.0, -1.0, units=600)).name == "dual"


def test_threads_take_parts_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = states(activations.ReLU(), torch.float64, 1_000)
    monkeypatch.setattr(solvers, "_SLOW", math.inf)
    pairs: list[Any] = [(CompiledNewton(), problem), (CompiledDescent(), problem)]
    pairs.append((CompiledSimplex(), outputs(1_000)))
    alone = [solver.solve(one) for solver, one in pairs]
    monkeypatch.setattr(loops, "_ENTRIES", 500)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for (solver, one), before in zip(pairs, alone, strict=True):
        together = solver.solve(one)
        assert together.solver == before.solver
        assert torch.allclose(together.value, before.value, rtol=0, atol=1e-6)
        assert together.objective == pytest.approx(before.objective, rel=1e-12)


def below_one_link(columns: int, dtype: torch.dtype = torch.float64, samples: int = 50) -> StateFit:
    """Return a fit below one link, which a compiled loop would serve."""
    source = torch.Generator().manual_seed(columns)
    u, w, t = (normal(*s, seed=source, dtype=dtype)
               for s in ((samples, 14), (14, columns), (samples, columns)))  # fmt: skip
    relu = joint(activations.ReLU())
    return StateFit(relu, u, (Link(relu, w, torch.zeros(columns, dtype=dtype), t),))


def test_trainings_wait_for_the_compiler_where_a_problem_is_large(monkeypatch) -> None:
    monkeypatch.setattr(loops, "WORTH_COMPILING", 1 << 20)
    monkeypatch.setattr(solvers, "at_hand", lambda _: False)
    small = [below_one_link(columns) for columns in (3, 40)]
    assert [choose(problem).name for problem in small] == ["dual", "proximal"]
    assert choose(below_one_link(3, samples=1 << 17)).name == "compiled-newton"
    assert choose(below_one_link(40, samples=1 << 17)).name == "compiled-descent"


_BESIDE = """
import sys
import torch
from liftednet.activations import Identity, ReLU
from liftednet.divergences import joint
from liftednet.penalties import L1
from liftednet.problems import Design, Link, StateFit, WeightFit
from liftednet.solvers import solve
from liftednet.solvers.compiled import loops
loops.WORTH_COMPILING = 1 << 14  # not a second of torch's time, but a hundredth
source = torch.Generator().manual_seed(0)
drawn = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
def sparse(features, units):
    return WeightFit(joint(Identity()), Design(drawn(300, features)), drawn(300, units), L1(20.0))
print(solve(sparse(5, 2)).solver, "numba" in sys.modules)  # nothing is kept where it would look
print(solve(sparse(60, 70)).solver, len(loops._begun))
next(iter(loops._begun.values())).wait()
print(solve(sparse(5, 2)).solver, len(loops._begun))
relu = joint(ReLU())
link = Link(relu, drawn(6, 3), drawn(3), drawn(1 << 12, 3))
print(solve(StateFit(relu, drawn(1 << 12, 6), (link,))).solver)
print([compiler is None or compiler.poll() for compiler in loops._begun.values()])
"""


def test_a_large_first_problem_waits_for_no_compiler_nor_does_the_end(tmp_path: Path) -> None:
    """In a process without kept loops, which ends while some are compiled."""
    own = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", _BESIDE]
    found = subprocess.run(command, env=own, capture_output=True, text=True, timeout=900)  # niced
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split("\n")[:-1] == [
        "proximal-weights False", "proximal-weights 1", "coordinate-descent 1", "dual",
        "[True, None]",
    ]  # fmt: skip


def test_loops_compiled_beside_have_the_types_of_the_calls() -> None:
    x = normal(9, 3, seed=7)
    fit = partial(WeightFit, joint(activations.Identity()), Design(x), x[:, :2])
    y = torch.eye(3)
    simplex = OutputFit(SimplexCrossEntropy(), y, tight(activations.SimplexProjection()), y)
    problems: list[tuple[Any, Any]] = [
        *((solvers.CoordinateDescent(), fit(kind(0.5))) for kind in (L1, GroupLasso)),
        (CompiledDescent(), below_one_link(40)), (CompiledDescent(), below_one_link(40, samples=3)),
        (CompiledNewton(), below_one_link(3)), (CompiledNewton(), below_one_link(3, torch.float32)),
        (CompiledDescent(), below_one_link(40, torch.float32)),
        (CompiledSimplex(), simplex), (CompiledSimplex(), outputs()),
    ]  # fmt: skip
    for solver, problem in problems:
        seen: list[loops.Loops] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(solvers, "compiled_beside", lambda own, _, seen=seen: seen.append(own))
            solver.repeated(problem)
        (own,) = seen
        getattr(solvers, own.call)(str(own.kind)[6:])
        called = [loops.found(name) for name in own.names]
        known = [set(loop.signatures) for loop in called]
        assert own.compiled and solve(problem, solver).solver == solver.name
        assert [set(loop.signatures) for loop in called] == known


def test_what_is_at_hand_is_known_before_a_problem_is_there() -> None:
    """That of no other type; of a recurrence by its fit."""

    def held(*names: str, kind: torch.dtype = torch.float64) -> bool:
        return loops.Loops(names, "", kind).compiled

    solve(below_one_link(40))
    assert held(*(f"descent_rows.{name}" for name in ("descend", "sweep", "panelled")))
    assert not held("descent_rows.descend", kind=torch.float32)
    solve(below_one_link(3))
    assert held("newton_rows.newton_rows", "measure_rows.of_states")
    x = torch.randn(8, 4, 2, generator=torch.Generator().manual_seed(0))
    LiftedRNN(2, 3, 2, method=GaussNewton(2)).fit(x, torch.arange(8) % 2)
    assert held(*(f"recurrent_rows.{name}" for name in ("passed", "ahead", "back")))


def test_without_a_place_to_keep_them_loops_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled(filled.py_func)(9) == 16


def test_few_positive_states_are_those_of_nonnegative_least_squares() -> None:
    problem = _wide(-1.5, -1.0)
    found, (link,) = solve(problem), problem.links
    assert found.solver == "compiled-descent"
    matrix = np.vstack([np.eye(problem.units), link.weight.T])
    rights = np.hstack([problem.pre_activation, link.target])
    expected = np.array([nnls(matrix, right)[0] for right in rights])
    np.testing.assert_allclose(found.value, expected, atol=1e-9)
