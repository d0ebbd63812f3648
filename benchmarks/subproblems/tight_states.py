"""State fits below a cross-entropy or a tight layer: links that are not quadratic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import cvxpy as cp
import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from benchmarks.subproblems.harness import Comparison, Method, loosest
from benchmarks.subproblems.trained import digits, network
from liftednet.activation import Activation
from liftednet.activations import ReLU, Sigmoid
from liftednet.divergences import tight
from liftednet.losses import CrossEntropy
from liftednet.problems import Link, StateFit
from liftednet.solvers import NewtonStates, Proximal, choose

TOLERANCE = 1e-6


def under_loss(activation: Activation, module: type[nn.Module], lam: float) -> StateFit:
    """Return the fit of 100 states below the cross-entropy of ten classes."""
    x, y = digits()
    net = network(300, 100, module)
    with torch.no_grad():
        u, head = net[:3](x[:1_000]).double(), net[4]
        labels = nn.functional.one_hot(y[:1_000], 10).double()
        weight, offset = head.weight.T.double().contiguous(), head.bias.double()
    return StateFit(
        tight(activation), u, (Link(CrossEntropy().divergence, weight, offset, labels, lam),)
    )


def under_layer(activation: Activation, module: type[nn.Module], lam: float) -> StateFit:
    """Return the fit of 300 states below 100 states that have moved."""
    x, _ = digits()
    net = network(300, 100, module)
    noise = torch.randn(1_000, 100, generator=torch.Generator().manual_seed(0)) / 2
    with torch.no_grad():
        u, above = net[0](x[:1_000]).double(), net[2]
        moved = activation.forward((net[:3](x[:1_000]) + noise).double())
        weight, offset = above.weight.T.double().contiguous(), above.bias.double()
    return StateFit(tight(activation), u, (Link(tight(activation), weight, offset, moved, lam),))


def comparison(name: str, problem: StateFit, slow: int, stated: bool) -> Comparison:
    def judge(value: Tensor) -> float:
        return problem.rows(slice(len(value))).measure(value).residual

    def ours(solver: NewtonStates | Proximal) -> Method:
        title = f"liftednet {solver.name}"
        return Method(title, lambda: solver.solve(problem).value, problem.samples, True)

    methods = [ours(NewtonStates(TOLERANCE)), ours(Proximal(TOLERANCE))]
    methods.sort(key=lambda method: choose(problem).name not in method.name)
    methods.append(Method("scipy L-BFGS-B", loosest(partial(_bounded, problem, slow), judge), slow))
    if stated:
        run = loosest(partial(_resolved, problem, slow), judge)
        methods.append(Method("CVXPY re-solved, CLARABEL", run, slow))
    units, above = problem.links[0].weight.shape
    title = f"states, {units} below {above}, {problem.samples:,} samples, {name}"
    return Comparison(title, methods, judge)


def _bounded(problem: StateFit, samples: int, tolerance: float) -> Callable[[], Tensor]:
    options = {"gtol": tolerance, "ftol": 0.0, "maxiter": 10_000, "maxfun": 100_000}
    activation = problem.divergence.activation
    relu = isinstance(activation, ReLU)
    bounds = [(0, None) if relu else (1e-15, 1 - 1e-15)] * problem.units

    def one(i: int) -> np.ndarray:
        row = problem.rows(slice(i, i + 1))
        link, u = row.links[0], row.pre_activation

        def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
            z = torch.from_numpy(flat).unsqueeze(0)
            a = link.pre_activation(z)
            value = row.divergence.state_value(z, u)
            value = value + link.lam * link.divergence.link_value(a, link.target)
            push = link.lam * (link.divergence.link_gradient(a) - link.target)
            slope = z if relu else z.logit()
            return float(value), (slope - u + push @ link.weight.T).numpy()[0]

        start = activation.forward(u).numpy()[0]
        return np.asarray(
            minimize(evaluate, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x
        )

    return lambda: torch.from_numpy(np.array([one(i) for i in range(samples)]))


def _resolved(problem: StateFit, samples: int, tolerance: float) -> Callable[[], Tensor]:
    names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")

    def one(i: int) -> Tensor:
        current = problem.rows(slice(i, i + 1))
        formulation = current.formulate()
        formulation.problem.solve(cp.CLARABEL, **dict.fromkeys(names, tolerance))
        return current.read(formulation)

    return lambda: torch.cat([one(i) for i in range(samples)])


def comparisons(quick: bool) -> Iterator[Comparison]:
    if quick:
        return
    for name, activation, module in (("ReLU", ReLU(), nn.ReLU), ("sigmoid", Sigmoid(), nn.Sigmoid)):
        for lam in (1.0, 100.0):
            problem = under_loss(activation, module, lam)
            yield comparison(f"{name}, cross-entropy, lam {lam:g}", problem, 20, name == "ReLU")
            problem = under_layer(activation, module, lam)
            yield comparison(f"{name}, tight {name}, lam {lam:g}", problem, 10, False)
