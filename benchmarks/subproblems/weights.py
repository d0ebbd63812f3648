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
from scipy.optimize import minimize
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
from liftednet.solvers import CompiledRidge, GeneralizedLinear, Ridge, Solver, solve

TOLERANCE = 1e-6


def ridge(samples: int, inputs: int, units: int, dtype: torch.dtype) -> Comparison:
    generator = torch.Generator().manual_seed(drawn_seed())
    x = torch.randn(samples, inputs, generator=generator, dtype=dtype).relu()
    return ridge_of(x, torch.randn(samples, units, generator=generator, dtype=dtype), 0.5)


def ridge_of(x: torch.Tensor, v: torch.Tensor, rho: float, name: str = "") -> Comparison:
    """Return min |X W + b - V|^2 / 2 + rho |W|^2."""
    (samples, inputs), units, dtype = x.shape, v.shape[1], x.dtype

    def fresh() -> WeightFit:  # nothing is kept from run to run
        return WeightFit(joint(Identity()), Design(x), v, SquaredFrobenius(rho))

    def ours(solver: Solver[WeightFit, Weights, Any]) -> Weights:
        return solver.solve(fresh()).value

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

    served = [x for x in (CompiledRidge(), Ridge()) if x.obstacle(fresh()) is None]
    return Comparison(
        f"ridge weights, {inputs} to {units}, {samples:,} samples, {str(dtype)[6:]}{name}",
        [
            *(Method(f"liftednet {x.name}", partial(ours, x), samples, True) for x in served),
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
    return multinomial_of(x, y, rho, solvers, f"MNIST {features}")


def multinomial_of(
    x: torch.Tensor, y: torch.Tensor, rho: float, solvers: tuple[str, ...], name: str
) -> Comparison:
    """Return the multinomial regression of labels y on X with rho |W|^2."""
    samples, v = len(x), CrossEntropy().encode(y, int(y.max()) + 1)
    problem = WeightFit(CrossEntropy().divergence, Design(x), v, SquaredFrobenius(rho))
    goal = TOLERANCE * float(problem.cross.abs().max()) / samples  # of the mean loss

    def sklearn(solver: str) -> Callable[[], Weights]:
        model = LogisticRegression(C=1 / (2 * rho), tol=goal, max_iter=5_000, solver=solver)

        def run() -> Weights:
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                fit = model.fit(x.numpy(), y.numpy())
            return Weights(
                torch.from_numpy(fit.coef_.T.copy()), torch.from_numpy(fit.intercept_.copy())
            )

        return run

    ours = GeneralizedLinear(TOLERANCE)
    judge = lambda value: problem.measure(value).residual  # noqa: E731
    glmnet = find_spec("glmnet") is not None and v.shape[1] > 2
    return Comparison(
        f"multinomial weights, {name} ({x.shape[1]}), {samples:,} samples, rho {rho:.3g}",
        [
            Method(
                "liftednet generalized-linear", lambda: ours.solve(problem).value, samples, True
            ),
            *(Method(f"scikit-learn, {name}", sklearn(name), samples) for name in solvers),
            *(
                [Method("glmnet", loosest(partial(_glmnet, x, y, rho), judge), samples)]
                if glmnet
                else []
            ),
        ],
        judge,
    )


def _glmnet(
    x: torch.Tensor, y: torch.Tensor, rho: float, tolerance: float
) -> Callable[[], Weights]:
    """Return L1 of y, (samples, 1), or multinomial regression, by a path that ends at rho."""
    from glmnet import ElasticNet, LogitNet

    kind, alpha, factor = (LogitNet, 0.0, 2.0) if y.ndim == 1 else (ElasticNet, 1.0, 1.0)
    first, steps = (1_000, 10) if y.ndim == 1 else (100, 5)  # from nearer its Newton steps diverge
    path = factor * rho / len(x) * np.geomspace(first, 1, steps)
    options = {"standardize": False, "n_splits": 0, "tol": tolerance**2, "max_iter": 100_000}

    def run() -> Weights:
        model = kind(alpha, lambda_path=path, **options).fit(x.numpy(), y.numpy().squeeze())
        found = torch.from_numpy(model.coef_path_[..., -1].reshape(-1, x.shape[1]).T.copy())
        return Weights(found, torch.from_numpy(np.atleast_1d(model.intercept_path_[..., -1])))

    return run


def tight(problem: WeightFit, name: str) -> Comparison:
    """Return a fit of a smooth tight divergence, beside L-BFGS on all weights at once."""
    shape = (problem.design.features + problem.design.bias, problem.units)

    def valued(flat: np.ndarray) -> tuple[float, np.ndarray]:
        stacked = torch.from_numpy(flat).view(shape)
        w = stacked[: problem.design.features]
        slope = problem.gradient(stacked)[0]
        slope[: len(w)] = problem.penalty.stationarity(w, slope[: len(w)], 0.0)
        return float(problem.total(stacked)), slope.flatten().numpy()

    def scipy(tolerance: float) -> Callable[[], Weights]:
        options = {"gtol": tolerance, "ftol": 0.0, "maxiter": 300, "maxfun": 600}

        def run() -> Weights:
            start = np.zeros(shape[0] * shape[1])
            found = minimize(valued, start, jac=True, method="L-BFGS-B", options=options).x
            return problem.design.centered.split(torch.from_numpy(found).view(shape))

        return run

    def judge(value: Weights) -> float:
        return problem.measure(value).residual

    ours, samples = GeneralizedLinear(TOLERANCE), problem.design.samples
    return Comparison(
        f"tight weights, {shape[0] - 1} to {shape[1]}, {samples:,} samples, {name}",
        [
            Method(
                "liftednet generalized-linear", lambda: ours.solve(problem).value, samples, True
            ),
            Method("scipy L-BFGS-B", loosest(scipy, judge), samples),
        ],
        judge,
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
                with warnings.catch_warnings(action="ignore"):
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
    if find_spec("glmnet") is not None and units == 1:
        methods += [Method("glmnet", loosest(partial(_glmnet, x, v, rho), judge), samples)]
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
