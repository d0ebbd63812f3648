"""Output fits: cross-entropy on the simplex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from benchmarks.subproblems.harness import Comparison, Method, drawn_seed, loosest
from benchmarks.subproblems.opponents import simplex_newton
from liftednet.activations import SimplexProjection
from liftednet.divergences import joint
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import OutputFit
from liftednet.solvers import CompiledSimplex, SimplexDual


def fit(samples: int, outputs: int, soft: bool, dtype: torch.dtype = torch.float64) -> OutputFit:
    generator = torch.Generator().manual_seed(drawn_seed())
    u = 2 * torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
    scores = 3 * torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
    hard = torch.eye(outputs, dtype=torch.float64)[scores.argmax(-1)]
    y = scores.softmax(-1) if soft else hard
    simplex = joint(SimplexProjection())
    return OutputFit(SimplexCrossEntropy(), y.to(dtype), simplex, u.to(dtype), 1.0)


def comparison(samples: int, outputs: int, soft: bool, slow: int) -> Comparison:
    return of_fit(fit(samples, outputs, soft), slow, "soft" if soft else "one-hot")


def of_fit(problem: OutputFit, slow: int, name: str) -> Comparison:
    """Return the comparison of a fit in float64, and the same in float32."""
    samples, outputs = problem.target.shape
    parts = problem.target.float(), problem.divergence, problem.pre_activation.float()
    single = OutputFit(problem.loss, *parts, problem.lam)

    def judge(value: Tensor) -> float:
        n = len(value)
        part = OutputFit(
            problem.loss,
            problem.target[:n],
            problem.divergence,
            problem.pre_activation[:n],
            problem.lam,
        )
        return part.measure(value.double()).residual

    def tuned(build: Callable[..., Callable[[], Tensor]], *of: int | str) -> Callable[[], Tensor]:
        return loosest(partial(build, problem, *of), judge)

    ours, torch_only = CompiledSimplex(), SimplexDual()
    cvxpy = slow and [
        Method("CVXPY re-solved, CLARABEL", tuned(_resolved, slow), slow),
        Method("CVXPY block, CLARABEL", tuned(_block, slow, "CLARABEL"), slow),
        Method("CVXPY block, SCS", tuned(_block, 10, "SCS"), 10),
    ]
    return Comparison(
        f"simplex cross-entropy, {outputs} outputs, {samples:,} samples, {name}",
        [
            Method("liftednet compiled-simplex", lambda: ours.solve(problem).value, samples, True),
            Method("liftednet, float32", lambda: ours.solve(single).value, samples, True),
            Method(
                "liftednet simplex-dual", lambda: torch_only.solve(problem).value, samples, True
            ),
            Method("Numba Newton", lambda: _newton(problem), samples),
            Method("Numba Newton, float32", lambda: _newton(single), samples),
            *(cvxpy or ()),
        ],
        judge,
    )


def _newton(problem: OutputFit) -> Tensor:
    y, u = problem.target.numpy(), problem.pre_activation.numpy()
    z = np.empty_like(u)
    goal = max(8 * np.finfo(u.dtype).eps, 1e-12)
    simplex_newton(y, u, u.dtype.type(problem.lam), u.dtype.type(goal), z)
    return torch.from_numpy(z)


def _resolved(problem: OutputFit, samples: int, tolerance: float) -> Callable[[], Tensor]:
    y, u = problem.target.numpy(), problem.pre_activation.numpy()
    z, label = cp.Variable(y.shape[1]), cp.Parameter(y.shape[1], nonneg=True)
    pre = cp.Parameter(y.shape[1])
    objective = cp.sum_squares(z - pre) / 2 - cp.sum(cp.multiply(label, cp.log(z)))
    statement = cp.Problem(cp.Minimize(objective), [cp.sum(z) == 1, z >= 0])

    def run() -> Tensor:
        rows = []
        for i in range(samples):
            label.value, pre.value = y[i], u[i]
            statement.solve(solver="CLARABEL", tol_gap_abs=tolerance, tol_gap_rel=tolerance)
            rows.append(np.asarray(z.value))
        return _on_simplex(np.array(rows))

    return run


def _block(
    problem: OutputFit, samples: int, backend: str, tolerance: float
) -> Callable[[], Tensor]:
    names = ("tol_gap_abs", "tol_gap_rel") if backend == "CLARABEL" else ("eps_abs", "eps_rel")
    y, u = problem.target.numpy()[:samples], problem.pre_activation.numpy()[:samples]

    def run() -> Tensor:
        z = cp.Variable(y.shape)
        objective = cp.sum_squares(z - u) / 2 - cp.sum(cp.multiply(y, cp.log(z)))
        statement = cp.Problem(cp.Minimize(objective), [cp.sum(z, axis=1) == 1, z >= 0])
        statement.solve(solver=backend, **dict.fromkeys(names, tolerance))
        return _on_simplex(np.asarray(z.value))

    return run


def _on_simplex(z: np.ndarray) -> Tensor:
    inside = torch.from_numpy(z).clamp(min=0)
    return inside / inside.sum(-1, keepdim=True)


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        yield comparison(1_000, 10, True, 20)
        return
    yield comparison(1_000, 10, False, 200)
    yield comparison(60_000, 10, False, 200)
    yield comparison(60_000, 10, True, 200)
    yield comparison(60_000, 100, True, 0)
    yield comparison(5_000, 1_000, False, 0)
    yield comparison(5_000, 1_000, True, 0)
