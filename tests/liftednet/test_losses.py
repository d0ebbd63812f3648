"""Losses against torch, SciPy and CVXPY; what does not fit is refused."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from liftednet import activations
from liftednet.divergences import joint
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SimplexCrossEntropy,
    SquaredError,
    simplex_states,
)
from liftednet.problems import OutputFit
from liftednet.solvers import solve

CLASSES = 4


@pytest.fixture
def u(generator):
    return 3 * torch.randn(10, CLASSES, dtype=torch.float64, generator=generator)


def entropy(y):
    return torch.special.entr(y).sum()


def test_cross_entropy_of_labels_is_torch_s(u, generator):
    labels = torch.randint(CLASSES, (10,), generator=generator)
    loss = CrossEntropy()
    found = loss.divergence.value(loss.encode(labels, CLASSES), u)
    torch.testing.assert_close(found, functional.cross_entropy(u, labels, reduction="sum"))


def test_cross_entropy_of_soft_labels_is_torch_s_less_their_entropy(u, generator):
    y = torch.rand(10, CLASSES, dtype=torch.float64, generator=generator)
    y = y / y.sum(-1, keepdim=True)
    loss = CrossEntropy()
    found = loss.divergence.value(loss.encode(y, CLASSES), u)
    torch.testing.assert_close(found, functional.cross_entropy(u, y, reduction="sum") - entropy(y))


@pytest.mark.parametrize("soft", [False, True])
def test_binary_cross_entropy_is_torch_s(u, soft, generator):
    y = torch.rand(10, CLASSES, dtype=torch.float64, generator=generator)
    y = y if soft else y.round()
    loss = BinaryCrossEntropy()
    found = loss.divergence.value(loss.encode(y, CLASSES), u)
    right = functional.binary_cross_entropy_with_logits(u, y, reduction="sum")
    torch.testing.assert_close(found, right - entropy(y) - entropy(1 - y))


def test_squared_error_is_half_of_torch_s(u, generator):
    y = torch.randn(10, CLASSES, dtype=torch.float64, generator=generator)
    loss = SquaredError()
    right = functional.mse_loss(u, y, reduction="sum") / 2
    torch.testing.assert_close(loss.divergence.value(loss.encode(y, CLASSES), u), right)
    torch.testing.assert_close(loss.output_value(y, u), right)


def test_simplex_cross_entropy_at_a_corner():
    """0 log 0 is 0, and a label that has no probability costs infinitely much."""
    y = torch.eye(3, dtype=torch.float64)
    assert float(SimplexCrossEntropy().output_value(y, y)) == 0.0
    assert float(SimplexCrossEntropy().output_value(y, y.roll(1, 0))) == np.inf


@pytest.mark.parametrize("loss", [SquaredError(), SimplexCrossEntropy()], ids=type)
def test_output_losses_state_in_cvxpy_what_torch_computes(loss, u):
    z, y = u.softmax(-1), (u * 0.3).softmax(-1)
    stated = loss.expression(cp.Constant(y.numpy()), cp.Constant(z.numpy())).value
    assert float(loss.output_value(y, z)) == pytest.approx(float(stated))


@pytest.mark.parametrize("loss", [CrossEntropy(), BinaryCrossEntropy(), SquaredError()], ids=type)
def test_gradient_of_a_fenchel_young_loss_is_output_less_target(loss, u):
    y = (u * 0.3).softmax(-1)
    point = u.clone().requires_grad_()
    loss.divergence.value(y, point).backward()
    torch.testing.assert_close(point.grad, loss.divergence.activation.forward(u) - y)
    torch.testing.assert_close(loss.divergence.link_gradient(u) - y, point.grad)


def test_predictions_are_labels_where_labels_were_given(u):
    for loss in (CrossEntropy(), SimplexCrossEntropy()):
        assert torch.equal(loss.decode(u), u.argmax(-1))
    binary = BinaryCrossEntropy()
    assert torch.equal(binary.decode(binary.divergence.activation.forward(u)), (u > 0).long())
    assert torch.equal(SquaredError().decode(u), u)


LABELS = torch.tensor([0, 1, 2, 3])
UNIFORM = torch.full((2, CLASSES), 0.25)
REFUSED = {
    "label too large": (CrossEntropy(), LABELS + 1, "labels from 0 to 3"),
    "negative label": (CrossEntropy(), LABELS - 1, "labels from 0 to 3"),
    "one class only": (CrossEntropy(), torch.zeros(4, dtype=torch.int64), "two classes"),
    "one class only, simplex": (SimplexCrossEntropy(), torch.ones(4).long(), "two classes"),
    "integer matrix": (CrossEntropy(), torch.eye(CLASSES).long(), "probabilities"),
    "real labels": (CrossEntropy(), LABELS.double(), "integer labels"),
    "wrong width": (CrossEntropy(), torch.full((2, 3), 1 / 3), r"\(2, 3\)"),
    "sum not 1": (CrossEntropy(), 2 * UNIFORM, "sum 1"),
    "negative probability": (CrossEntropy(), UNIFORM - torch.eye(2, CLASSES), "nonnegative"),
    "not a number": (CrossEntropy(), UNIFORM * torch.nan, "NaN"),
    "not a number, binary": (BinaryCrossEntropy(), UNIFORM * torch.nan, "NaN"),
    "infinite": (SquaredError(), UNIFORM * torch.inf, "infinite"),
    "empty": (CrossEntropy(), LABELS[:0], "empty"),
    "target above 1": (BinaryCrossEntropy(), 5 * UNIFORM, r"\[0, 1\]"),
    "target below 0": (BinaryCrossEntropy(), -UNIFORM, r"\[0, 1\]"),
    "integer targets": (SquaredError(), LABELS, "floating point"),
    "targets of another width": (SquaredError(), torch.zeros(5, 3), r"\(samples, 4\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    loss, y, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        loss.encode(y, CLASSES)


def test_binary_labels_may_be_integers_or_booleans():
    y = torch.tensor([1, 0, 1])
    right = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)
    assert torch.equal(BinaryCrossEntropy().encode(y, 1), right)
    assert torch.equal(BinaryCrossEntropy().encode(y.bool(), 1), right)


def test_the_simplex_loss_asks_for_outputs_on_the_simplex():
    with pytest.raises(DeclarationError, match="SimplexProjection"):
        SimplexCrossEntropy().require_activation(activations.Softmax())


@given(s=st.floats(-1e8, 1e8), a=st.just(0.0) | st.floats(1e-12, 1e6))
def test_simplex_states_solve_their_equation(s, a):
    """z - a / z = s, z >= 0, as far as float64 can tell, with no cancellation for s < 0."""
    z = float(simplex_states(*(torch.tensor([x], dtype=torch.float64) for x in (a, s))))
    assert z >= 0
    assert z * z - a == pytest.approx(s * z, rel=1e-9, abs=1e-9 * (z * z + a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_example_of_the_invalid_bound_is_solved(dtype):
    """Eq. (15): the states at the multiplier, in both types, whatever the printed bound says."""
    y = torch.eye(10, dtype=dtype)[:1]
    x0 = torch.full((1, 10), -0.1, dtype=dtype)
    x0[0, 0] = 1.0
    fit = OutputFit(SimplexCrossEntropy(), y, joint(activations.SimplexProjection()), x0, 2.0)
    z = solve(fit).value
    half = (x0.double() - 0.5) / 2
    right = half + (half.square() + y.double() / 2).sqrt()
    torch.testing.assert_close(z.double(), right, rtol=1e-5, atol=1e-6)
