"""Bad input is refused before any work, in words that say what was given and what is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import SquaredError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solvers import get_solver, solve, solver_names
from tests.solvers.registry import state_fit, weight_fit

RELU, IDENTITY = joint(activations.ReLU()), joint(activations.Identity())
PENALTY = SquaredFrobenius(0.1)


def ones(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def a_link(**changes: Any) -> Link:
    parts = {"weight": ones(3, 2), "offset": ones(2), "target": ones(5, 2), "lam": 1.0, **changes}
    return Link(IDENTITY, **parts)


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("rows", lambda: WeightFit(RELU, Design(ones(5, 4)), ones(6, 3), PENALTY), r"\(6, 3\).*"),
    ("empty", lambda: Design(ones(0, 4)), r"empty.*\(0, 4\)"),
    ("vector", lambda: Design(ones(4)), r"two dimensions.*\(4,\)"),
    ("half", lambda: Design(ones(5, 4, dtype=torch.float16)), r"float32 or.*float16"),
    ("integers", lambda: Design(torch.ones(5, 4, dtype=torch.int64)), r"float32 or.*int64"),
    ("list", lambda: Design([[1.0]]), r"torch tensor.*list"),  # type: ignore[arg-type]
    (
        "mixed",
        lambda: WeightFit(RELU, Design(ones(5, 4)), ones(5, 3, dtype=torch.float32), PENALTY),
        "one type and device",
    ),
    ("lam", lambda: WeightFit(RELU, Design(ones(5, 4)), ones(5, 3), PENALTY, 0.0), "lam.*0.0"),
    ("lam nan", lambda: StateFit(RELU, ones(5, 3), (), float("nan")), "lam.*nan"),
    ("lam text", lambda: StateFit(RELU, ones(5, 3), (), "1"), "number"),  # type: ignore[arg-type]
    ("rho", lambda: SquaredFrobenius(-1.0), "rho.*-1.0"),
    ("weight", lambda: StateFit(RELU, ones(5, 4), (a_link(),)), r"\(4, 2\).*\(3, 2\)"),
    ("offset", lambda: StateFit(RELU, ones(5, 3), (a_link(offset=ones(3)),)), r"\(2,\).*\(3,\)"),
    (
        "full offset",
        lambda: StateFit(RELU, ones(5, 3), (a_link(offset=ones(4, 2)),)),
        r"\(5, 2\).*\(4, 2\)",
    ),
    (
        "target",
        lambda: StateFit(RELU, ones(5, 3), (a_link(target=ones(5, 4)),)),
        r"\(5, 2\).*\(5, 4\)",
    ),
    ("link lam", lambda: StateFit(RELU, ones(5, 3), (a_link(lam=-2.0),)), "link 0.*-2.0"),
    ("outputs", lambda: OutputFit(SquaredError(), ones(5, 3), RELU, ones(5, 2)), r"\(5, 2\)"),
]


@pytest.mark.parametrize(("build", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_problems_refuse(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        build()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_with_their_place(bad: float) -> None:
    x = ones(5, 4)
    x[3, 1] = bad
    problem = WeightFit(RELU, Design(x), ones(5, 3), PENALTY)
    with pytest.raises(DataError, match=r"inputs X.*\(3, 1\)"):
        solve(problem)
    with pytest.raises(DataError, match=r"link 0"):
        solve(StateFit(RELU, ones(5, 4), (a_link(weight=x[1:5, :2], target=ones(5, 2)),)))


def test_a_start_that_is_not_finite_or_of_another_shape_is_refused() -> None:
    problem = state_fit(RELU, (IDENTITY,), torch.float64)
    start = torch.zeros(problem.samples, problem.units, dtype=torch.float64)
    with pytest.raises(DataError, match="start"):
        solve(problem, start=start * float("inf"))
    with pytest.raises(DataError, match=r"start.*\(9, 3\).*\(9, 2\)"):
        solve(problem, start=start[:, :2])
    weights = weight_fit(tight(activations.ReLU()), torch.float64)
    with pytest.raises(DataError, match="start"):
        solve(weights, start=start)


def test_targets_outside_the_domain_of_a_tight_divergence_are_refused() -> None:
    targets = ones(5, 3)
    targets[2, 1] = -0.5
    problem = WeightFit(tight(activations.ReLU()), Design(ones(5, 4)), targets, PENALTY)
    with pytest.raises(DataError, match=r"domain of ReLU.*\(2, 1\).*-0.5"):
        solve(problem)


def test_every_solver_names_what_keeps_it_from_a_problem() -> None:
    problems: list[Any] = [weight_fit(tight(activations.Sign()), torch.float64)]
    for name in solver_names():
        for problem in problems:
            if name != "reference":
                assert get_solver(name).obstacle(problem) is not None
                with pytest.raises(DeclarationError, match=name):
                    solve(problem, name)


def test_an_unknown_solver_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DeclarationError, match=r"ridge.*reference"):
        solve(weight_fit(RELU, torch.float64), "simplex")
