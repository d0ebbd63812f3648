"""Weight fits: ridge regression and multinomial regression."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge

from benchmarks.subproblems.harness import Comparison, Method
from benchmarks.subproblems.trained import digits
from liftednet.activations import Identity
from liftednet.divergences import joint
from liftednet.losses import CrossEntropy
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import GeneralizedLinear, Ridge

TOLERANCE = 1e-6


def ridge(samples: int, inputs: int, units: int, dtype: torch.dtype) -> Comparison:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator, dtype=dtype).relu()
    v = torch.randn(samples, units, generator=generator, dtype=dtype)
    rho = 0.5

    def fresh() -> WeightFit:  # nothing is kept from run to run
        return WeightFit(joint(Identity()), Design(x), v, SquaredFrobenius(rho))

    def judge(value: Weights) -> float:
        exact = WeightFit(joint(Identity()), Design(x.double()), v.double(), SquaredFrobenius(rho))
        return exact.measure(value).residual

    def bound() -> Weights:
        return _normal_equations(x.numpy(), v.numpy(), rho)

    def lstsq() -> Weights:
        return _lstsq(x.numpy(), v.numpy(), rho)

    def sklearn() -> Weights:
        fit = SklearnRidge(2 * rho, solver="cholesky").fit(x.numpy(), v.numpy())
        return Weights(torch.from_numpy(fit.coef_.T.copy()), torch.from_numpy(fit.intercept_))

    return Comparison(
        f"ridge weights, {inputs} to {units}, {samples:,} samples, {str(dtype)[6:]}",
        [
            Method("liftednet ridge", lambda: Ridge().solve(fresh()).value, samples, True),
            Method("one Gram product and one factor", bound, samples),
            Method("scikit-learn Ridge, cholesky", sklearn, samples),
            Method("numpy lstsq", lstsq, samples),
        ],
        judge,
    )


def _with_ones(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], 1)


def _normal_equations(x: np.ndarray, v: np.ndarray, rho: float) -> Weights:
    design = _with_ones(x)
    gram = design.T @ design
    gram[np.arange(x.shape[1]), np.arange(x.shape[1])] += 2 * rho
    found = torch.from_numpy(cho_solve(cho_factor(gram), design.T @ v))
    return Weights(found[:-1], found[-1])


def _lstsq(x: np.ndarray, v: np.ndarray, rho: float) -> Weights:
    tail = np.zeros((x.shape[1], x.shape[1] + 1), x.dtype)
    tail[:, :-1] = np.eye(x.shape[1]) * (2 * rho) ** 0.5
    right = np.concatenate([v, np.zeros((x.shape[1], v.shape[1]), v.dtype)])
    found = torch.from_numpy(np.linalg.lstsq(np.concatenate([_with_ones(x), tail]), right)[0])
    return Weights(found[:-1], found[-1])


def multinomial(features: str, samples: int, rho: float, solvers: tuple[str, ...]) -> Comparison:
    x, y = digits()
    x, y = x[:samples].double(), y[:samples]
    if features != "pixels":
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(784, 100, generator=generator, dtype=torch.float64) / 10
        x = (x @ drawn).relu()
    v = CrossEntropy().encode(y, 10)
    problem = WeightFit(CrossEntropy().divergence, Design(x), v, SquaredFrobenius(rho))
    goal = TOLERANCE * float(problem.cross.abs().max()) / samples  # of the mean loss

    def sklearn(solver: str) -> Callable[[], Weights]:
        model = LogisticRegression(C=1 / (2 * rho), tol=goal, max_iter=5_000, solver=solver)

        def run() -> Weights:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fit = model.fit(x.numpy(), y.numpy())
            return Weights(
                torch.from_numpy(fit.coef_.T.copy()), torch.from_numpy(fit.intercept_.copy())
            )

        return run

    ours = GeneralizedLinear(TOLERANCE)
    return Comparison(
        f"multinomial weights, MNIST {features} ({x.shape[1]}), {samples:,} samples, rho {rho:g}",
        [
            Method(
                "liftednet generalized-linear", lambda: ours.solve(problem).value, samples, True
            ),
            *(Method(f"scikit-learn, {name}", sklearn(name), samples) for name in solvers),
        ],
        lambda value: problem.measure(value).residual,
    )


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        yield ridge(500, 20, 5, torch.float64)
        return
    yield ridge(60_000, 300, 100, torch.float64)
    yield ridge(60_000, 300, 100, torch.float32)
    yield ridge(1_000, 1_000, 100, torch.float64)
    most = ("lbfgs", "newton-cg", "newton-cholesky")
    yield multinomial("random ReLU features", 10_000, 0.5, most)
    yield multinomial("pixels", 10_000, 0.5, most[:2])
    yield multinomial("pixels", 10_000, 20.0, most[:2])
