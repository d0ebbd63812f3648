"""Weight fits: ridge regression and multinomial regression."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge

from benchmarks.subproblems.harness import Comparison, Method, drawn_seed, loosest
from benchmarks.subproblems.trained import digits
from liftednet.activations import Identity
from liftednet.divergences import joint
from liftednet.losses import CrossEntropy
from liftednet.penalties import L1, SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import GeneralizedLinear, Ridge, solve

TOLERANCE = 1e-6


def ridge(samples: int, inputs: int, units: int, dtype: torch.dtype) -> Comparison:
    generator = torch.Generator().manual_seed(drawn_seed())
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

    def dual() -> Weights:
        return _by_samples(x.numpy(), v.numpy(), rho)

    def lstsq() -> Weights:
        return _lstsq(x.numpy(), v.numpy(), rho)

    def sklearn() -> Weights:
        fit = SklearnRidge(2 * rho, solver="cholesky").fit(x.numpy(), v.numpy())
        matrix, bias = fit.coef_.reshape(units, inputs).T.copy(), np.ravel(fit.intercept_)
        return Weights(torch.from_numpy(matrix), torch.from_numpy(bias))

    return Comparison(
        f"ridge weights, {inputs} to {units}, {samples:,} samples, {str(dtype)[6:]}",
        [
            Method("liftednet ridge", lambda: Ridge().solve(fresh()).value, samples, True),
            Method("one Gram product and one factor", bound, samples),
            *([Method("by samples", dual, samples)] if samples < inputs else []),
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


def _by_samples(x: np.ndarray, v: np.ndarray, rho: float) -> Weights:
    middle, mean = x.mean(0), v.mean(0)
    centered = x - middle
    system = centered @ centered.T + 2 * rho * np.eye(len(x), dtype=x.dtype)
    found = torch.from_numpy(centered.T @ cho_solve(cho_factor(system), v - mean))
    return Weights(found, torch.from_numpy(mean) - torch.from_numpy(middle) @ found)


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
        generator = torch.Generator().manual_seed(drawn_seed())
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


def sparse(quick: bool) -> Iterator[Comparison]:
    """Yield fits with an L1 penalty of correlated inputs, as lasso solvers have them."""
    large = (1_000, 300, 1), (5_000, 1_000, 1), (1_000, 300, 20), (300, 3_000, 1)
    sizes = ((200, 50, 1),) if quick else large
    for samples, inputs, units in sizes:
        for share in (0.1, 0.01):
            yield lasso(samples, inputs, units, share)


def lasso(samples: int, inputs: int, units: int, share: float) -> Comparison:
    """Return min |X W + b - V|^2 / 2 + rho |W|_1, with rho a share of the least that makes W 0."""
    generator = torch.Generator().manual_seed(drawn_seed())

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(samples, inputs)
    for column in range(1, inputs):
        x[:, column] = 0.9 * x[:, column - 1] + 0.19**0.5 * x[:, column]
    w = normal(inputs, units) * (torch.rand(inputs, units, generator=generator) < 0.1)
    v = x @ w + 0.5 * normal(samples, units)
    most = ((x - x.mean(0)).T @ (v - v.mean(0))).abs().max()
    rho = float(share * most)

    def fresh() -> WeightFit:  # nothing is kept from run to run
        return WeightFit(joint(Identity()), Design(x), v, L1(rho))

    def judge(value: Weights) -> float:
        return fresh().measure(value).residual

    def fitted(kind: Any, tolerance: float) -> Callable[[], Weights]:
        def run() -> Weights:
            found = []
            for unit in range(units):
                model = kind(alpha=rho / samples, tol=tolerance, max_iter=100_000)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model.fit(x.numpy(), v[:, unit].numpy())
                found.append((model.coef_, float(model.intercept_)))
            matrix = torch.from_numpy(np.array([coef for coef, _ in found]).T.copy())
            return Weights(matrix, torch.tensor([b for _, b in found], dtype=torch.float64))

        return run

    others = {"scikit-learn Lasso": "sklearn.linear_model", "celer": "celer", "skglm": "skglm"}
    methods = [
        Method(name, loosest(partial(fitted, import_module(module).Lasso), judge), samples)
        for name, module in others.items()
        if find_spec(module.split(".")[0]) is not None
    ]
    title = f"L1 weights, {inputs} to {units}, {samples:,} samples, {share:g} of the largest rho"
    ours = Method(
        "liftednet", lambda: solve(fresh()).value, samples, True
    )  # fmt: skip
    return Comparison(title, [ours, *methods], judge)


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        yield ridge(500, 20, 5, torch.float64)
        return
    yield ridge(100, 10, 1, torch.float64)
    yield ridge(300, 3_000, 10, torch.float64)
    yield ridge(60_000, 300, 100, torch.float64)
    yield ridge(60_000, 300, 100, torch.float32)
    yield ridge(1_000, 1_000, 100, torch.float64)
    most = ("lbfgs", "newton-cg", "newton-cholesky")
    yield multinomial("random ReLU features", 10_000, 0.5, most)
    yield multinomial("pixels", 10_000, 0.5, most[:2])
    yield multinomial("pixels", 10_000, 20.0, most[:2])
