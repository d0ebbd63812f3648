"""Constraints on scores: what they say, and what they refuse."""

import re
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from liftednet import losses, penalties
from liftednet.activations import ReLU
from liftednet.constraints import Bounds, Budget, Declared, GroupMeans, Linear, Order, Values
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import BinaryCrossEntropy, SquaredError
from liftednet.models import LiftedMLP
from liftednet.sets import constraint as held
from tests.draws import normal
from tests.models.networks import refuses
from tests.models.registry import BY_NAME

U = torch.tensor([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)


def expected() -> list[tuple[Any, Any]]:
    u = U.numpy()
    all_three = u[:3].mean(0)
    parity = max(np.abs(u[:2].mean(0) - all_three).max(), np.abs(u[2] - all_three).max())
    return [
        (Bounds(-1.0, [2.0, 3.0]), 1.0),
        (Bounds(upper=u - 0.25), 0.25),
        (Bounds([0.0, -np.inf], [np.inf, 3.5]), 1.0),
        (Linear([[1, 0], [0, 1]], lower=[-np.inf, 0.0], upper=[2.5, np.inf]), 2.0),
        (Linear([1.0, 1.0], equal=[-1.0, 4.0, 3.0, 0.0]), 0.5),
        (Linear([[1.0, 0.0], [-1.0, 1.0]], lower=[[0.0, -9.0]]), 3.5),
        (GroupMeans([2, 2, 5, -1], 0.125), parity - 0.125),
        (Order([(0, 1), (3, 2)], 0.75), 1.75),
        (Values([1, 3], [[0.5, 4.5], [-1.0, 1.0]]), 0.5),
        (Budget([1.0, 0.25]), 0.5),
        (Declared(lambda v: [cp.norm(v, "fro") <= 3, v[0] >= 0]), np.linalg.norm(u) - 3),
    ]


@pytest.mark.parametrize(("constraint", "by"), expected(), ids=lambda x: type(x).__name__)
def test_the_violation_is_the_largest_in_units_of_the_scores(constraint, by) -> None:
    """Also where they are seen through a scale and a center."""
    assert held.violations([constraint], U)[0] == pytest.approx(by, abs=1e-12)
    scale, center = torch.tensor([2.0, 0.5]), torch.tensor([-1.0, 3.0])
    seen, scaled = held.Rescaled(constraint, scale, center), ((U - center) / scale).numpy()
    limits = seen.limits(4, 2)
    if limits is None:
        stated = seen.stated(cp.Variable((4, 2), value=scaled))
        assert max(float(np.max(x.violation())) for x in stated) == pytest.approx(by, abs=1e-12)
    else:
        assert limits.excess(scaled).max() == pytest.approx(by, abs=1e-12)


BAD = [
    (lambda: Bounds(), "needs lower, upper or both"),
    (lambda: Bounds(2.0, 1.0), "lower of Bounds lies above upper, by up to 1"),
    (lambda: Bounds(float("nan")), "lower of Bounds must be finite"),
    (lambda: Linear([0.0, 0.0], equal=1.0), "none of the k all zero"),
    (lambda: Linear([1.0, 1.0], lower=0.0, equal=1.0), "or equal alone"),
    (lambda: GroupMeans([0, 0, 0]), "two groups or more, got 1"),
    (lambda: GroupMeans([0.5, 1.0]), "groups of GroupMeans must be integers"),
    (lambda: GroupMeans(torch.eye(3, dtype=torch.int64)), "so that none overlap"),
    (lambda: GroupMeans([0, 1], -0.1), "within must be 0 or more"),
    (lambda: Order([]), "must be pairs"),
    (lambda: Order([(0, 1), (2, 2)]), "pairs of different rows"),
    (lambda: Order([0, 1]), "must be pairs (i, j) of rows"),
    (lambda: Order([(0, 1)], [1.0, 2.0]), "the margin of Order must be one number"),  # type: ignore[arg-type]
    (lambda: GroupMeans([0, 1], [0.1, 0.2]), "within must be one number"),  # type: ignore[arg-type]
    (lambda: Values([0, 0], [1.0, 2.0]), "rows that come twice: [0]"),
    (lambda: Values([0], [1.0, 2.0]), "as many of both"),
    (lambda: Budget("much"), "the budget must be numbers"),
    (lambda: Bounds([0.0, 0.0, 0.0]).violation(U), "or have the shape (4, 2); got (3,)"),
    (lambda: Linear([1.0], equal=1.0).violation(U), "for 1 outputs, and the network has 2"),
    (lambda: GroupMeans([0, 1]).violation(U), "is of 2 samples, and the data have 4"),
    (lambda: Order([(0, 4)]).violation(U), "rows from 0 to 3; got rows from 0 to 4"),
    (lambda: Values([0], [1.0]).violation(U), "targets of 1 outputs, and the network has 2"),
    (lambda: held.require_constraints([losses.Declared(lambda y, v: cp.sum(y - v))]),
     "of liftednet.losses"),
    (lambda: held.require_constraints([penalties.Nonnegative()]), "of liftednet.penalties"),
    (lambda: held.require_constraints([cp.Variable((4, 2)) <= 1]), "Declared(lambda U"),
    (lambda: Declared(cp.Variable((4, 2)) <= 1), "needs a function of the scores"),
    (lambda: LiftedMLP((3, 2), penalty=Bounds(lower=0.0)).checked(), "which is on scores"),
    (lambda: penalties.Declared(lambda w: [w >= 0]).expression(cp.Variable((4, 2))),  # type: ignore
     "constraints=lambda W"),
    (lambda: Declared(lambda v: cp.norm(v, "fro") >= 3).violation(U), "not convex to CVXPY"),
    (lambda: Declared(lambda v: cp.norm(v, "fro")).violation(U), "must return constraints"),
    (lambda: held.violations([lambda v: v], U), "liftednet.constraints, such as"),  # type: ignore
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_input_is_refused(make, says: str) -> None:
    refuses((DataError, DeclarationError), re.escape(says), make)


CONTRADICTORY = [
    ([Values([0], [[3.0, 0.0]]), Bounds(upper=[1.0, 1.0])], "Values(1 rows) by 2"),
    ([Order([(0, 1), (1, 2), (2, 0)], 1.0)], "Order(3 pairs, margin=1) by 3"),
    ([Budget(0.0), Bounds(lower=0.5)], "by 0.5"),
]


@pytest.mark.parametrize(("constraints", "says"), CONTRADICTORY, ids=lambda x: str(x)[:20])
def test_what_no_scores_can_meet_is_refused(constraints, says: str) -> None:
    refuse = held.refuse_contradictions
    refused = refuses(DataError, "contradict each other", refuse, constraints, 4, 2)
    assert any(part in str(refused) for part in (says, "Bounds(upper=[1.0, 1.0]) by 2"))


X = normal(20, 3)
Y = X[:, :1].sin()


LONG = Declared(lambda u: [cp.sum(u[0]) >= 3.0])
SHORT = Declared(lambda u: cp.norm(u, 2, axis=1) <= 1.0)
CONE = Declared(lambda u: [cp.SOC(cp.Constant(1.0), u[0]), cp.sum(u[0]) == 3.0])


@pytest.mark.parametrize("constraints", [[LONG, SHORT], [LONG, Bounds(upper=1.0)], [CONE]])
def test_declared_constraints_that_nothing_meets_are_refused_before_training(constraints) -> None:
    model = LiftedMLP((3, 4, 2), loss=SquaredError())
    words = ["CVXPY proves the problem infeasible", "what gives way is Declared"]
    refuses(DataError, words, model.fit, X, torch.cat([Y, Y], 1), constraints=constraints)
    assert not model.is_fitted
    held.refuse_impossible([SHORT, Bounds(upper=0.5), Declared(lambda u: u >= -1)], 20, 2)


def test_a_model_refuses_what_it_cannot_hold() -> None:
    model, budget = LiftedMLP((3, 4, 1), loss=SquaredError()), [Budget(0.0)]
    words = "GroupMeans is of 2 samples, and the data have 20"
    refuses(DataError, words, model.fit, X, Y, constraints=[GroupMeans([0, 1])])
    apart = [Values([0], [5.0]), Bounds(upper=1.0)]
    refuses(DataError, "contradict each other", model.fit, X, Y, constraints=apart)
    refuses(DataError, "say how surely, as in", model.fit, X, Y, constraints=budget, strict=True)
    assert not model.is_fitted
    words = "constraints must be a list"
    refuses(DeclarationError, words, model.fit, X, Y, constraints=Budget(0.0))
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    refuses(DataError, "all samples at once", model.fit, loader, constraints=budget)
    words = "one loss on the last pre-activation"
    graph = BY_NAME["two of each"]
    two = graph.model("tight", "full")
    refuses(DeclarationError, words, two.fit, graph.x, graph.y, constraints=budget)
    states = LiftedMLP((3, 4, 1), loss=SquaredError(), activations=[ReLU(), ReLU()])
    refuses(DeclarationError, words, states.fit, X, Y, constraints=budget)
    binary = LiftedMLP((3, 4, 1), loss=BinaryCrossEntropy()).fit(X, (Y > 0).double())
    refuses(Exception, "fitted without constraints", binary.constraint_report)
