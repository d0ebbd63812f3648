"""Rows known up to a ball or a box: the worst of them in closed form, and training against it."""

from typing import Any

import cvxpy as cp
import pytest
import torch

from liftednet import data, load, save
from liftednet.errors import DeclarationError
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP
from liftednet.models.data import prepared
from liftednet.models.uncertainty import Ball, Box, WorstRows
from tests.draws import normal
from tests.models.networks import refuses

RADIUS = 0.3


REGIONS = [(Ball(RADIUS), 2), (Box(RADIUS), 1)]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("region", "dual"), REGIONS, ids=repr)
def test_the_worst_square_of_one_output_is_the_closed_form(region, dual, scaled) -> None:
    """max |y - (x + d) w - b|^2 / 2 = (|y - x w - b| + r |w|)^2 / 2 in the dual norm."""
    x, y = normal(12, 4), normal(12, 1, seed=1)
    model = LiftedMLP((4, 1), [], SquaredError(), method="minibatch", standardize=False)
    model.with_weights(model.fit(x, y).weights)
    (layer,) = model.weights
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64) if scaled else None
    scales = {} if scale is None else {model.network.inputs[0]: scale}
    rows = prepared(model.network, x if scale is None else x / scale, y)
    weights = [layer if scale is None else layer.like(
        torch.cat([layer.matrix * scale[:, None], layer.stacked()[-1:]])
    )]  # fmt: skip
    moved = WorstRows(model.structure, region, scales).of(rows, weights)
    found = moved.values[model.network.inputs[0]] * (1 if scale is None else scale)
    left = (y - layer.apply(x)).abs()
    wanted = (left + RADIUS * torch.linalg.vector_norm(layer.matrix, dual)) ** 2 / 2
    torch.testing.assert_close((y - layer.apply(found)).square() / 2, wanted)
    length = torch.linalg.vector_norm(found - x, torch.inf if dual == 1 else 2, dim=1)
    torch.testing.assert_close(length, torch.full_like(length, RADIUS))


@pytest.mark.parametrize(("region", "dual"), REGIONS, ids=repr)
def test_a_layer_for_two_classes_ends_at_the_optimum_of_cvxpy(region, dual) -> None:
    x, label = normal(60, 3), (torch.arange(60) % 2)
    x[:, 0] += 2 * label
    how: dict[str, Any] = {"rho": 1.0, "standardize": False, "method": "minibatch", "max_iter": 300}
    plain, held = (
        LiftedMLP((3, 2), [], uncertainty=one, batch_size=60, **how).fit(x, label)
        for one in (None, region)
    )
    sign = 2 * label.numpy() - 1
    matrix, bias = cp.Variable((3, 2)), cp.Variable(2)
    w = matrix[:, 1] - matrix[:, 0]
    margins = cp.multiply(sign, x.numpy() @ w + bias[1] - bias[0])
    loss = cp.sum(cp.logistic(-margins + RADIUS * cp.norm(w, dual))) + cp.sum_squares(matrix)
    best = cp.Problem(cp.Minimize(loss)).solve(solver=cp.CLARABEL)
    ends = []
    for model in (held, plain):
        stacked = model.weights[0].stacked().numpy()
        matrix.value, bias.value = stacked[:-1], stacked[-1]
        ends.append(float(loss.value))
    assert best <= ends[0] <= 1.02 * best  # minibatches have no tolerance
    assert ends[0] - best < (ends[1] - best) / 5


def test_a_network_holds_its_loss_on_moved_rows_and_its_file_keeps_how(tmp_path) -> None:
    digits, region = data.digits(), Box(0.1)
    x, y = digits.x_test, digits.y_test
    plain, held = (
        LiftedMLP((64, 15, 10), uncertainty=one, max_iter=8).fit(digits.x_train, digits.y_train)
        for one in (None, region)
    )
    worst = []
    for model in (plain, held):
        rows = prepared(model.network, x, y)
        rows = WorstRows(model.structure, region, {}).of(rows, model.weights)
        moved = rows.values[model.network.inputs[0]]
        worst.append(float((model.predict(moved) == y).double().mean()))
        assert float((moved - x).abs().max()) <= 0.1 * (1 + 1e-5)
    assert worst[1] > worst[0] + 0.2
    assert load(save(held, tmp_path / "model")).uncertainty == region


IMPOSSIBLE = [
    (lambda: LiftedMLP((3, 2), uncertainty=0.1), "Ball"),
    (lambda: LiftedMLP((3, 2), uncertainty=Box(0.1), method="full"), "minibatch"),
    (lambda: LiftedMLP((3, 2), uncertainty=Box(0.1), refit_output=True), "refit_output"),
    (lambda: LiftedMLP((3, 2), uncertainty=Box(0.1), missing=True), "missing"),
    (lambda: Box(-1.0), "radius"),
]


@pytest.mark.parametrize(("make", "message"), IMPOSSIBLE)
def test_what_cannot_be_trained_so_is_refused(make, message) -> None:
    refuses((DeclarationError, ValueError), message, make)
