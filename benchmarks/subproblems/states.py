"""State fits below a joint link: least squares in a box, most often z >= 0, one shared matrix.

Rows of JAX, DAQP, PIQP and ProxQP appear where these are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import cvxpy as cp
import numpy as np
import osqp
import torch
from scipy.optimize import lsq_linear, nnls
from scipy.sparse import csc_matrix, triu
from torch import Tensor

from benchmarks.subproblems.harness import Comparison, Method, drawn_seed, loosest
from benchmarks.subproblems.opponents import block_pivoting, coordinate_descent, dual_newton
from benchmarks.subproblems.trained import trained
from liftednet.activations import Clipped, Identity, ReLU
from liftednet.divergences import joint
from liftednet.problems import Link, StateFit
from liftednet.solvers import CompiledDescent, CompiledNewton, Dual, Proximal, Solver, choose

TOLERANCE = 1e-6
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Case:
    """min over 0 <= z <= upper of |z - u|^2 / 2 + ratio |z W + c - v|^2 / 2, for rows of u and v.

    Methods begin at `start`, (samples, units), where it is given.
    """

    name: str
    weight: Tensor
    bias: Tensor
    u: Tensor
    v: Tensor
    ratio: float
    upper: float = np.inf
    start: Tensor | None = None

    def problem(self, samples: int, dtype: torch.dtype = torch.float64) -> StateFit:
        """Return the fit of the first samples."""
        parts = (self.weight, self.bias, self.v[:samples], self.u[:samples])
        weight, bias, v, u = (part.to(dtype) for part in parts)
        activation = ReLU() if self.upper == np.inf else Clipped(0.0, self.upper)
        link = Link(joint(Identity()), weight, bias, v, self.ratio)
        return StateFit(joint(activation), u, (link,))

    def begin(self, samples: int, dtype: type[np.floating[Any]]) -> np.ndarray[Any, Any]:
        """Return where to begin, (samples, units), 0 where nothing is known."""
        if self.start is None:
            return np.zeros((samples, len(self.weight)), dtype)
        return self.start[:samples].numpy().astype(dtype)

    def stacked(self) -> tuple[Array, Callable[[int], Array]]:
        """Return M and r(i) of min |M z - r(i)|."""
        root = self.ratio**0.5
        matrix = np.vstack([np.eye(len(self.weight)), root * self.weight.numpy().T])
        right = torch.cat([self.u, root * (self.v - self.bias)], 1).numpy()
        return matrix, lambda i: right[i]

    def quadratic(self) -> tuple[Array, Array]:
        """Return H and the linear terms of z'Hz / 2 - <l_i, z>."""
        weight = self.weight.numpy()
        hessian = np.eye(len(weight)) + self.ratio * weight @ weight.T
        linear = self.u.numpy() + self.ratio * (self.v - self.bias).numpy() @ weight.T
        return hessian, linear


def of_fit(problem: StateFit, name: str) -> Case:
    """Return a fit of nonnegative states below one quadratic link."""
    (link,) = problem.links
    ratio = link.lam / problem.lam
    parts = (x.double() for x in (link.weight, link.offset, problem.pre_activation, link.target))
    return Case(name, *parts, ratio)


def synthetic(units: int, above: int, condition: float, samples: int, shift: float = 0.0) -> Case:
    generator = torch.Generator().manual_seed(drawn_seed())

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    left, _, right = torch.linalg.svd(normal(units, above), full_matrices=False)
    spread = torch.logspace(-2, 0, above, dtype=torch.float64) * (condition - 1)
    weight = left * spread.sqrt() @ right
    name = f"condition {condition:g}{', few positive' if shift else ''}"
    zero, u = torch.zeros(above, dtype=torch.float64), normal(samples, units) + shift
    return Case(name, weight, zero, u, normal(samples, above).relu(), 1.0)


def from_training(units: int, above: int, ratio: float) -> Case:
    net = trained(units, above)
    largest = float(torch.linalg.matrix_norm(net.weight, 2)) ** 2
    name = f"trained, condition {1 + ratio * largest:.0f}"
    return Case(name, net.weight, net.bias, net.inner, net.outer, ratio)


def nearly(case: Case) -> Case:
    """Return the case with a start: the solution for pre-activations that differ by a thousandth.

    So begins a sweep after the first.
    """
    noise = torch.randn(
        case.u.shape, generator=torch.Generator().manual_seed(1), dtype=case.u.dtype
    )
    before = replace(case, u=case.u + 1e-3 * noise).problem(len(case.u))
    return replace(
        case, name=f"{case.name}, start nearly optimal", start=Dual().solve(before).value
    )


def comparison(case: Case, samples: int, slow: int, blocks: bool) -> Comparison:
    units, above = case.weight.shape
    problem = case.problem(samples)
    single = case.problem(samples, torch.float32)
    start = None if case.start is None else case.start[:samples]

    def method(solver: Solver[Any, Any, Any], problem: StateFit, name: str = "") -> Method:
        begin = None if start is None else start.to(problem.pre_activation)
        run = lambda: solver.solve(problem, begin).value  # noqa: E731
        return Method(f"liftednet {solver.name}{name}", run, samples, True)

    def ours() -> Iterator[Method]:
        chosen = choose(problem).name
        kinds = CompiledNewton, CompiledDescent, Dual, Proximal
        solvers: list[Solver[Any, Any, Any]] = [kind(TOLERANCE) for kind in kinds]
        serving = (s for s in solvers if s.obstacle(problem) is None)
        solvers = [s for s in serving if slow or s.name in (chosen, Dual.name)]
        solvers.sort(key=lambda solver: solver.name != chosen)
        yield from (method(solver, problem) for solver in solvers)
        for solver in (CompiledNewton(), CompiledDescent(), Dual()):
            if solver.obstacle(single) is None:
                yield method(solver, single, ", float32 to 1e-5")

    def judge(value: Tensor) -> float:
        return case.problem(len(value)).measure(value).residual

    kind = "nonnegative states" if case.upper == np.inf else f"states from 0 to {case.upper:g}"
    return Comparison(
        f"{kind}, {units} below {above}, {samples:,} samples, {case.name}",
        [
            *ours(),
            *_compiled(case, samples, judge),
            *(_alternatives(case, slow, blocks, judge) if slow else ()),
        ],
        judge,
    )


def _compiled(case: Case, samples: int, judge: Callable[[Tensor], float]) -> Iterator[Method]:
    """Yield what a few dozen lines of Numba, JAX or torch do, each where it is not hopeless."""
    units, above = case.weight.shape
    hard, box = case.name.startswith("condition 10000"), case.upper < np.inf
    if units <= 100 and not box:
        yield Method("Numba block pivoting", lambda: _pivoting(case, samples), samples)
    if not hard and units <= 300:
        few = samples if units <= 100 else min(samples, 200)
        name = "Numba coordinate descent" + ("" if box else ", then pivoting")
        yield Method(name, lambda: _both(case, few), few)
    if above <= 30 and not box and case.start is None:
        goal = 1e-9 if hard else 1e-7
        parts = case.weight, case.u[:samples], (case.v - case.bias)[:samples]
        yield Method("dual Newton in torch", lambda: dual_newton(*parts, goal), samples)
    if find_spec("jax") is not None and not hard:
        for dtype in (np.float32, np.float64):
            name = f"accelerated gradient in JAX, {np.dtype(dtype)}"
            run = loosest(partial(_in_jax, case, samples, dtype), judge)
            yield Method(name, run, samples, forks=False)


def _in_jax(
    case: Case, samples: int, dtype: type[np.floating[Any]], tolerance: float
) -> Callable[[], Tensor]:
    from benchmarks.subproblems.jitted import accelerated

    def run() -> Tensor:
        hessian, linear = case.quadratic()
        weight = case.weight.numpy()
        least, largest = np.linalg.eigvalsh(weight.T @ weight)[[0, -1]]
        least = least if weight.shape[1] >= weight.shape[0] else 0.0
        ends = 1 + case.ratio * np.array([least, largest])
        right, z = linear[:samples].astype(dtype), case.begin(samples, dtype)
        goal = tolerance * max(1.0, np.abs(linear).max())
        return torch.from_numpy(
            accelerated(hessian.astype(dtype), right, z, ends, case.upper, goal)
        )

    return run


def _pivoting(case: Case, samples: int) -> Tensor:
    hessian, linear = case.quadratic()
    z = case.begin(samples, np.float64)
    block_pivoting(hessian, linear[:samples], z)
    return torch.from_numpy(z)


def _both(case: Case, samples: int) -> Tensor:
    hessian, linear = case.quadratic()
    single, right = hessian.astype(np.float32), linear[:samples].astype(np.float32)
    near, size = case.begin(samples, np.float32), max(1.0, np.abs(right).max())
    ends = np.float32(1e-4 * size), np.float32(case.upper)
    if case.upper < np.inf:
        near = near.astype(np.float64)
        coordinate_descent(hessian, linear[:samples], 1e-8 * size, case.upper, near)
        return torch.from_numpy(near)
    coordinate_descent(single, right, *ends, near)
    z = near.astype(np.float64)
    block_pivoting(hessian, linear[:samples], z)
    return torch.from_numpy(z)


def _alternatives(
    case: Case, slow: int, blocks: bool, judge: Callable[[Tensor], float]
) -> Iterator[Method]:
    matrix, right = case.stacked()
    few = min(max(2, slow // 10), len(case.u))
    if find_spec("daqp") is not None:
        yield Method("DAQP", lambda: _daqp(case, slow), slow)
    for name, module, build in (("PIQP", "piqp", _piqp), ("ProxQP", "proxsuite", _proxqp)):
        if find_spec(module) is not None:
            yield Method(name, loosest(partial(build, case, slow), judge), slow)
    if case.upper == np.inf:
        run = lambda: _rows(nnls(matrix, right(i))[0] for i in range(slow))  # noqa: E731
        yield Method("scipy nnls", run, slow)
    yield Method("scipy lsq_linear", loosest(partial(_bounded, case, few), judge), few)
    yield Method("OSQP, factored once", loosest(partial(_osqp, case, slow), judge), slow)
    if len(case.weight) < 1_000 and case.upper == np.inf:
        yield Method("CVXPY re-solved, OSQP", loosest(partial(_resolved, case, few), judge), few)
    if blocks:
        for backend in ("OSQP", "CLARABEL", "SCS"):
            run = loosest(partial(_block, case, 10, backend), judge)
            yield Method(f"CVXPY block, {backend}", run, 10)


def _daqp(case: Case, samples: int) -> Tensor:
    import daqp

    hessian, linear = case.quadratic()
    units = len(hessian)
    none, low = np.zeros((0, units)), np.zeros(units)
    high, sense = np.full(units, min(case.upper, 1e30)), np.zeros(units, np.int32)

    def one(i: int) -> Array:
        found: Array = daqp.solve(hessian, -linear[i], none, high, low, sense)[0]
        return found

    return _rows(one(i) for i in range(samples))


def _piqp(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    import piqp

    hessian, linear = case.quadratic()
    units = len(hessian)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = tolerance
    ends = np.zeros(units), np.full(units, min(case.upper, 1e30))
    solver.setup(np.asfortranarray(hessian), -linear[0], x_l=ends[0], x_u=ends[1])

    def one(i: int) -> Array:
        solver.update(c=-linear[i])
        solver.solve()
        return np.array(solver.result.x)

    return lambda: _rows(one(i) for i in range(samples))


def _proxqp(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    from proxsuite import proxqp

    hessian, linear = case.quadratic()
    units = len(hessian)
    solver = proxqp.dense.QP(units, 0, 0, True)
    solver.settings.eps_abs, solver.settings.eps_rel = tolerance, tolerance
    ends = {"l_box": np.zeros(units), "u_box": np.full(units, min(case.upper, 1e20))}
    solver.init(hessian, -linear[0], **ends)

    def one(i: int) -> Array:
        solver.update(g=-linear[i])
        solver.solve()
        return np.array(solver.results.x)

    return lambda: _rows(one(i) for i in range(samples))


def _rows(rows: Iterator[Array]) -> Tensor:
    return torch.from_numpy(np.array(list(rows))).clamp(min=0)


def _bounded(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    matrix, right = case.stacked()

    def one(i: int) -> Array:
        found: Array = lsq_linear(matrix, right(i), (0, case.upper), tol=tolerance).x
        return found

    return lambda: _rows(one(i) for i in range(samples))


def _osqp(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    hessian, linear = case.quadratic()
    units = len(hessian)
    solver = osqp.OSQP()
    solver.setup(
        csc_matrix(triu(hessian)),
        -linear[0],
        csc_matrix(np.eye(units)),
        np.zeros(units),
        np.full(units, case.upper),
        verbose=False,
        eps_abs=tolerance,
        eps_rel=tolerance,
        max_iter=100_000,
        polishing=False,
    )

    def one(i: int) -> Array:
        solver.update(q=-linear[i])
        found: Array = solver.solve().x
        return found

    return lambda: _rows(one(i) for i in range(samples))


def _resolved(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    matrix, right = case.stacked()
    z, target = cp.Variable(matrix.shape[1]), cp.Parameter(len(matrix))
    statement = cp.Problem(cp.Minimize(cp.sum_squares(matrix @ z - target)), [z >= 0])

    def one(i: int) -> Array:
        target.value = right(i)
        statement.solve(solver="OSQP", **_options("OSQP", tolerance))
        return np.asarray(z.value)

    return lambda: _rows(one(i) for i in range(samples))


def _options(backend: str, tolerance: float) -> dict[str, float | bool]:
    if backend == "CLARABEL":
        return {"tol_gap_abs": tolerance, "tol_gap_rel": tolerance}
    both = {"eps_abs": tolerance, "eps_rel": tolerance}
    if backend == "SCS":
        return {**both, "max_iters": 100_000}
    return {**both, "max_iter": 100_000, "polishing": False}


def _block(case: Case, samples: int, backend: str, tolerance: float) -> Callable[[], Tensor]:
    matrix, right = case.stacked()

    def run() -> Tensor:
        z = cp.Variable((samples, matrix.shape[1]))
        target = np.array([right(i) for i in range(samples)])
        statement = cp.Problem(cp.Minimize(cp.sum_squares(z @ matrix.T - target)), [z >= 0])
        statement.solve(solver=backend, **_options(backend, tolerance))
        return torch.from_numpy(np.asarray(z.value)).clamp(min=0)

    return run


def narrow(quick: bool) -> Iterator[Comparison]:
    """Yield fits below at most 32 units."""
    if quick:
        yield comparison(synthetic(50, 20, 3, 200), 200, 20, blocks=True)
        return
    for units, above in ((50, 20), (100, 10), (300, 10), (300, 30)):
        yield comparison(synthetic(units, above, 1e4, 1_000), 1_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 235, 20_000, shift=-1.8), 20_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 3, 4_000), 4_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 235, 4_000), 4_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 3, 1_000), 1_000, 100, blocks=True)
    yield comparison(synthetic(50, 20, 235, 1_000), 1_000, 100, blocks=False)


def small(quick: bool) -> Iterator[Comparison]:
    """Yield fits of a few units, and of one row."""
    few = 200 if quick else 2_000
    for units, above, condition in ((10, 10, 10.0), (10, 10, 100.0), (20, 10, 100.0)):
        yield comparison(synthetic(units, above, condition, few), few, 40, blocks=False)
    if not quick:
        yield comparison(synthetic(10, 10, 100.0, 20_000), 20_000, 0, blocks=False)
        for above in (10, 100):
            yield comparison(synthetic(300, above, 100.0, 1), 1, 1, blocks=False)


def wide(quick: bool) -> Iterator[Comparison]:
    """Yield fits below more."""
    if quick:
        yield comparison(synthetic(100, 40, 3, 200), 200, 0, blocks=False)
        return
    yield comparison(synthetic(300, 100, 3, 1_000), 1_000, 40, blocks=False)
    few = synthetic(300, 100, 235, 1_000, shift=-0.9)
    yield comparison(few, 1_000, 40, blocks=False)
    yield comparison(nearly(few), 1_000, 0, blocks=False)
    yield comparison(synthetic(300, 100, 235, 1_000), 1_000, 40, blocks=False)
    yield comparison(from_training(300, 100, 1.0), 1_000, 40, blocks=False)
    yield comparison(from_training(300, 100, 100.0), 1_000, 40, blocks=False)
    yield comparison(synthetic(300, 300, 235, 500), 500, 0, blocks=False)
    yield comparison(synthetic(1_000, 300, 1e4, 200), 200, 4, blocks=False)


def large(quick: bool) -> Iterator[Comparison]:
    """Yield fits that take minutes."""
    if not quick:
        yield comparison(from_training(300, 100, 1.0), 60_000, 40, blocks=False)
        yield comparison(synthetic(1_000, 300, 3, 1_000), 1_000, 4, blocks=False)


def boxes(quick: bool) -> Iterator[Comparison]:
    """Yield fits with an upper bound."""
    for units, above, condition in ((20, 5, 3.0),) if quick else ((50, 20, 235.0), (300, 100, 3.0)):
        case = replace(synthetic(units, above, condition, 1_000), upper=0.5)
        yield comparison(case, 1_000, 20, blocks=False)
