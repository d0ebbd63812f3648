"""Every block of trainings, as it stands in the last sweep: what fits really solve."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from sklearn.datasets import load_digits

from benchmarks.data.signals import har
from benchmarks.subproblems import outputs, states, tight_states, weights
from benchmarks.subproblems.harness import Comparison
from benchmarks.subproblems.trained import digits, regressions
from liftednet.divergences import Joint
from liftednet.models import FullBatch, LiftedMLP
from liftednet.models.methods import descent
from liftednet.problems import OutputFit, StateFit, WeightFit

_SWEEPS = 10


def blocks(model: LiftedMLP, x: Any, y: Any) -> dict[str, Any]:
    """Return the last subproblem of every block of a fit, by its name."""
    found, solved = {}, descent._solved

    def kept(block: Any, problem: Any, *given: Any) -> Any:
        found[block.name] = problem
        return solved(block, problem, *given)

    with mock.patch.object(descent, "_solved", kept), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    return found


def comparison(problem: Any, name: str, y: torch.Tensor) -> Comparison:
    """Return a block beside what a user would pick for it."""
    if isinstance(problem, OutputFit):
        return outputs.of_fit(problem, 40, name)
    if isinstance(problem, StateFit):
        if isinstance(problem.links[0].divergence, Joint):
            case = states.of_fit(problem, name)
            return states.comparison(case, problem.samples, min(40, problem.samples), blocks=False)
        return tight_states.comparison(name, problem, 10, stated=False)
    assert isinstance(problem, WeightFit)
    x, rho = problem.design.inputs, problem.penalty.rho / problem.lam  # type: ignore[attr-defined]
    if isinstance(problem.divergence, Joint):
        return weights.ridge_of(x, problem.ridge_targets, rho, f", {name}")
    if problem.balanced:
        return weights.multinomial_of(x, y, rho, ("lbfgs", "newton-cg", "newton-cholesky"), name)
    return weights.tight(problem, name)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield the blocks of digits, MNIST, HAR and five regressions, in float64."""
    images, kinds = digits() if not quick else (torch.zeros(0, 1), torch.zeros(0))
    method = FullBatch(2 if quick else _SWEEPS)
    for name, (inputs, answers) in regressions().items():
        x, y = torch.tensor(inputs), torch.tensor(answers).double().reshape(len(inputs), -1)
        y = (y - y.mean(0)) / y.std(0)
        sizes = (x.shape[1], 30, y.shape[1])
        model = LiftedMLP(sizes, loss="mse", divergence="joint", method=method)
        for block, problem in blocks(model, x, y).items():
            yield comparison(problem, f"{block} of {name}", y)
        if quick:
            return
    windows, small = har(), load_digits(return_X_y=True)
    tables = {
        "digits": (torch.tensor(small[0]), torch.tensor(small[1]), 50),
        "MNIST": (images[:2_000].double(), kinds[:2_000], 100),
        "HAR": (windows.x_train[:2_000, ::8].flatten(1).double(), windows.y_train[:2_000], 50),
    }
    for name, (x, y, units) in tables.items():
        sizes = (x.shape[1], units, int(y.max()) + 1)
        for loss, coupling in (("cross-entropy", "tight"), ("simplex-cross-entropy", "joint")):
            model = LiftedMLP(sizes, loss=loss, divergence=coupling, method=method)
            for block, problem in blocks(model, x, y).items():
                yield comparison(problem, f"{block} of {name}, {coupling}", y)
