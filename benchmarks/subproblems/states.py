"""State fits of a ReLU layer below a joint link: nonnegative least squares, one shared matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import osqp
import torch
from scipy.optimize import lsq_linear, nnls
from scipy.sparse import csc_matrix, triu
from torch import Tensor

from benchmarks.subproblems.harness import Comparison, Method, loosest
from benchmarks.subproblems.opponents import block_pivoting, coordinate_descent, dual_newton
from benchmarks.subproblems.trained import trained
from liftednet.activations import Identity, ReLU
from liftednet.divergences import joint
from liftednet.problems import Link, StateFit
from liftednet.solvers import CompiledNewton, Dual, Proximal

TOLERANCE = 1e-6
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Case:
    """min over z >= 0 of |z - u|^2 / 2 + ratio |z W + c - v|^2 / 2, for every row of u and v."""

    name: str
    weight: Tensor
    bias: Tensor
    u: Tensor
    v: Tensor
    ratio: float

    def problem(self, samples: int, dtype: torch.dtype = torch.float64) -> StateFit:
        """Return the fit of the first samples."""
        parts = (self.weight, self.bias, self.v[:samples], self.u[:samples])
        weight, bias, v, u = (part.to(dtype) for part in parts)
        return StateFit(joint(ReLU()), u, (Link(joint(Identity()), weight, bias, v, self.ratio),))

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


def synthetic(units: int, above: int, condition: float, samples: int, shift: float = 0.0) -> Case:
    generator = torch.Generator().manual_seed(0)

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


def comparison(case: Case, samples: int, slow: int, blocks: bool) -> Comparison:
    units, above = case.weight.shape
    problem = case.problem(samples)
    single = case.problem(samples, torch.float32)
    newton, dual, proximal = CompiledNewton(TOLERANCE), Dual(TOLERANCE), Proximal(TOLERANCE)
    compiled = [
        Method("liftednet compiled-newton", lambda: newton.solve(problem).value, samples, True),
        Method(
            "liftednet compiled-newton, float32 to 1e-5",
            lambda: CompiledNewton().solve(single).value,
            samples,
            True,
        ),
    ]
    fast = [
        *(compiled if newton.obstacle(problem) is None else []),
        Method("liftednet dual", lambda: dual.solve(problem).value, samples, True),
        *(
            [Method("liftednet proximal", lambda: proximal.solve(problem).value, samples, True)]
            if slow
            else []
        ),
        Method(
            "liftednet dual, float32 to 1e-5", lambda: Dual().solve(single).value, samples, True
        ),
    ]

    def judge(value: Tensor) -> float:
        return case.problem(len(value)).measure(value).residual

    return Comparison(
        f"nonnegative states, {units} below {above}, {samples:,} samples, {case.name}",
        [
            *fast,
            *_compiled(case, samples),
            *(_alternatives(case, slow, blocks, judge) if slow else ()),
        ],
        judge,
    )


def _compiled(case: Case, samples: int) -> Iterator[Method]:
    """Yield what a few dozen lines of Numba or torch do, each where it is not hopeless."""
    units, above = case.weight.shape
    hard = case.name.startswith("condition 10000")
    if units <= 100:
        yield Method("Numba block pivoting", lambda: _pivoting(case, samples), samples)
    if not hard and units <= 300:
        few = samples if units <= 100 else min(samples, 200)
        yield Method("Numba coordinate descent, then pivoting", lambda: _both(case, few), few)
    if above <= 30:
        goal = 1e-9 if hard else 1e-7
        parts = case.weight, case.u[:samples], (case.v - case.bias)[:samples]
        yield Method("dual Newton in torch", lambda: dual_newton(*parts, goal), samples)


def _pivoting(case: Case, samples: int) -> Tensor:
    hessian, linear = case.quadratic()
    z = np.zeros((samples, len(hessian)))
    block_pivoting(hessian, linear[:samples], z)
    return torch.from_numpy(z)


def _both(case: Case, samples: int) -> Tensor:
    hessian, linear = case.quadratic()
    single, right = hessian.astype(np.float32), linear[:samples].astype(np.float32)
    near = np.zeros_like(right)
    coordinate_descent(single, right, np.float32(1e-4 * max(1.0, np.abs(right).max())), near)
    z = near.astype(np.float64)
    block_pivoting(hessian, linear[:samples], z)
    return torch.from_numpy(z)


def _alternatives(
    case: Case, slow: int, blocks: bool, judge: Callable[[Tensor], float]
) -> Iterator[Method]:
    matrix, right = case.stacked()
    few = max(2, slow // 10)
    yield Method("scipy nnls", lambda: _rows(nnls(matrix, right(i))[0] for i in range(slow)), slow)
    yield Method("scipy lsq_linear", loosest(partial(_bounded, case, few), judge), few)
    yield Method("OSQP, factored once", loosest(partial(_osqp, case, slow), judge), slow)
    if len(case.weight) < 1_000:
        yield Method("CVXPY re-solved, OSQP", loosest(partial(_resolved, case, few), judge), few)
    if blocks:
        for backend in ("OSQP", "CLARABEL", "SCS"):
            run = loosest(partial(_block, case, 10, backend), judge)
            yield Method(f"CVXPY block, {backend}", run, 10)


def _rows(rows: Iterator[Array]) -> Tensor:
    return torch.from_numpy(np.array(list(rows))).clamp(min=0)


def _bounded(case: Case, samples: int, tolerance: float) -> Callable[[], Tensor]:
    matrix, right = case.stacked()

    def one(i: int) -> Array:
        found: Array = lsq_linear(matrix, right(i), (0, np.inf), tol=tolerance).x
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
        np.full(units, np.inf),
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


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        yield comparison(synthetic(50, 20, 3, 200), 200, 20, blocks=True)
        return
    for units, above in ((50, 20), (100, 10), (300, 10), (300, 30)):
        yield comparison(synthetic(units, above, 1e4, 1_000), 1_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 235, 20_000, shift=-1.8), 20_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 3, 4_000), 4_000, 0, blocks=False)
    yield comparison(synthetic(50, 20, 235, 4_000), 4_000, 0, blocks=False)
    yield comparison(from_training(300, 100, 1.0), 1_000, 40, blocks=False)
    yield comparison(synthetic(300, 100, 3, 1_000), 1_000, 40, blocks=False)
    yield comparison(synthetic(300, 100, 235, 1_000), 1_000, 40, blocks=False)
    yield comparison(from_training(300, 100, 100.0), 1_000, 40, blocks=False)
    yield comparison(synthetic(50, 20, 3, 1_000), 1_000, 100, blocks=True)
    yield comparison(synthetic(50, 20, 235, 1_000), 1_000, 100, blocks=False)
    yield comparison(from_training(300, 100, 1.0), 60_000, 40, blocks=False)
    yield comparison(synthetic(1_000, 300, 3, 1_000), 1_000, 4, blocks=False)
