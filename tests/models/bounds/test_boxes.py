"""Bounds over a box: against linear programs stated in CVXPY, and sampled differences."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

from liftednet import LiftedRegressor, certify
from liftednet.errors import DataError
from liftednet.models.programs.composition import composition_of
from liftednet.models.programs.lines import ranges
from tests.models.networks import refuses
from tests.models.programs.networks import slopes_are
from tests.torture.modules import contradiction


def network(activation: Any, inputs: int = 2) -> Any:
    torch.manual_seed(1)
    layers = [nn.Linear(inputs, 8), activation(), nn.Linear(8, 6), activation(), nn.Linear(6, 1)]
    return nn.Sequential(*layers).double()


def stated(layers: Any, low: float, high: float) -> tuple[float, float]:
    """Return the ends of a ReLU network's output by triangles, layer by layer, in CVXPY."""
    weights = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in layers[::2]]
    z = cp.Variable(weights[0][0].shape[1])
    rows = [z >= low, z <= high]

    def ends(u: Any, number: int) -> tuple[float, float]:
        least = cp.Problem(cp.Minimize(u[number]), rows).solve(solver=cp.CLARABEL)
        most = cp.Problem(cp.Maximize(u[number]), rows).solve(solver=cp.CLARABEL)
        return float(least), float(most)

    for matrix, bias in weights[:-1]:
        u, v = matrix @ z + bias, cp.Variable(len(bias))
        for n, (a, b) in enumerate([ends(u, n) for n in range(len(bias))]):
            rows += [v[n] >= 0, v[n] >= u[n]] if a < 0 < b else [v[n] == (u[n] if a >= 0 else 0)]
            rows += [v[n] <= b * (u[n] - a) / (b - a)] if a < 0 < b else []
        z = v
    return ends(weights[-1][0] @ z + weights[-1][1], 0)


def test_values_of_a_relu_network_are_nearly_those_of_its_triangles():
    made = network(nn.ReLU)
    claim, (least, most) = certify(made, box=(-1.0, 2.0)), stated(made, -1.0, 2.0)
    first = ranges(composition_of(made, 2), (np.full(2, -1.0), np.full(2, 2.0)))[-1]
    assert least + 1e-7 >= float(claim.least) >= least - 0.03 * (least - first[0][0]) - 1e-7
    assert most - 1e-7 <= float(claim.most) <= most + 0.03 * (first[1][0] - most) + 1e-7


BENT = [nn.ReLU, nn.GELU, nn.Hardtanh, lambda: nn.Softplus(2.0, 40.0)]


@pytest.mark.parametrize("activation", BENT)
def test_bounds_hold_on_a_box_and_are_closer_than_everywhere(activation):
    made, box = network(activation), ([-0.3, 0.1], [0.2, 0.5])
    claim, anywhere = certify(made, box=box), certify(made)
    assert contradiction(made, claim, 0) == ""
    assert claim.lipschitz <= anywhere.lipschitz * (1 + 1e-9)
    assert bool((claim.lowest >= anywhere.lowest - 1e-9).all())


def test_units_that_do_not_bend_in_the_box_are_affine():
    made: Any = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        made[0].bias.fill_(9.0)
        made[0].bias[0] = -9.0
    claim, on = certify(made, box=(-1, 1)), torch.tensor([0.0, 1, 1]).double()
    slopes_are(claim, ((made[2].weight * on) @ made[0].weight).detach())
    assert claim.convex.all() and claim.concave.all()
    assert not certify(made).convex.all() or not certify(made).concave.all()


def test_a_box_is_refused_with_what_is_needed():
    for bad in ((0.0,), (1.0, 0.0), (0.0, np.inf), ([0, 0, 0], 1.0), "box"):
        refuses(DataError, "box must", certify, network(nn.ReLU), box=bad)


def test_estimators_have_the_names_of_their_columns_and_kinds(draw):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"age": draw.random(60), "color": draw.permutation(20 * list("rgb"))})
    X["sex"], X["alike"] = draw.permutation(30 * ["f", "m"]), "same"
    found = LiftedRegressor((4,), max_iter=3, monotonic_cst={"age": 1}, random_state=0)
    found.fit(X, X["age"])
    claim, kinds = certify(found, box=(0.0, 1.0)), found._kinds
    named = ("age", "color=b", "color=g", "color=r", "sex=m", "alike=same")
    assert claim.names == named and 0 in claim.increasing  # others may, too
    for place, name in enumerate(claim.names[1:5], 1):  # each is 1 where its kind is
        column, kind = name.split("=")
        largest = 1.0 if column == "color" else 0.5
        assert kinds and (kinds.encoded(X)[X[column] == kind, place] == largest).all()
    text = str(claim)
    assert "of 6 inputs: age" in text and "within the box" in text
    assert "<= output 0 <=" in text
