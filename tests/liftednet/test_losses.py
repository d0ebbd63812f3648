"""Losses and their names against torch, SciPy and CVXPY; what does not fit is refused."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from liftednet import activations, initialize_, losses
from liftednet.activations import LeakyReLU, Sigmoid
from liftednet.divergences import tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import LiftedMLP, LiftedRNN
from liftednet.names import activation_of, loss_of
from liftednet.problems import OutputFit
from liftednet.solvers import solve
from tests.draws import normal
from tests.models.networks import refuses

CLASSES = 4


def test_simplex_cross_entropy_at_a_corner():
    """0 log 0 is 0, and a label that has no probability costs infinitely much."""
    y = torch.eye(3, dtype=torch.float64)
    assert float(SimplexCrossEntropy().output_value(y, y)) == 0.0
    assert float(SimplexCrossEntropy().output_value(y, y.roll(1, 0))) == np.inf


def test_predictions_are_labels_where_labels_were_given(generator):
    u = 3 * normal(10, CLASSES, seed=generator)
    for loss in (CrossEntropy(), SimplexCrossEntropy()):
        assert torch.equal(loss.decode(u), u.argmax(-1))
    binary = BinaryCrossEntropy()
    far = torch.linspace(-60, 60, 241, dtype=torch.float64).unsqueeze(1)
    exact = torch.from_numpy(np.log1p(np.exp(-far.numpy())))[:, 0]  # of a label 1
    torch.testing.assert_close(
        binary.divergence.values(torch.ones_like(far), far), exact, rtol=1e-9, atol=1e-14
    )
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


def test_binary_labels_may_be_integers_or_booleans():
    y = torch.tensor([1, 0, 1])
    right = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)
    assert torch.equal(BinaryCrossEntropy().encode(y, 1), right)
    assert torch.equal(BinaryCrossEntropy().encode(y.bool(), 1), right)


@given(s=st.floats(-1e8, 1e8), a=st.just(0.0) | st.floats(1e-12, 1e6))
def test_simplex_states_solve_their_equation(s, a):
    """z - a / z = s, z >= 0, as far as float64 can tell, with no cancellation for s < 0."""
    z = float(losses.simplex_states(*(torch.tensor([x], dtype=torch.float64) for x in (a, s))))
    assert z >= 0
    assert z * z - a == pytest.approx(s * z, rel=1e-9, abs=1e-9 * (z * z + a))


def fit(loss: losses.OutputLoss, activation: Any) -> OutputFit:
    y, u = normal(2, 12, 3, seed=1)
    return OutputFit(loss, y, tight(activation), 2 * u, 0.7)


def test_values_are_those_of_the_definitions(generator: torch.Generator) -> None:
    y, z = normal(2, 20, 3, seed=generator)
    right = functional.huber_loss(z, y, reduction="none", delta=0.7).sum(-1)
    torch.testing.assert_close(losses.Huber(0.7).output_values(y, z), right)
    pinball = torch.where(y > z, 0.3 * (y - z), 0.7 * (z - y)).sum(-1)
    torch.testing.assert_close(losses.Quantile(0.3).output_values(y, z), pinball)
    for loss in (losses.Quantile(0.3), losses.Huber(0.7)):
        stated: Any = loss.expression(cp.Constant(y.numpy()), cp.Constant(z.numpy())).value
        assert float(loss.output_value(y, z)) == pytest.approx(float(stated))


def huber_in_cvxpy(y: Any, z: Any) -> Any:
    delta: Any = 0.7
    return cp.sum(cp.huber(y - z, delta)) / 2


@pytest.mark.parametrize("activation", [activations.Identity(), activations.Sigmoid()], ids=repr)
def test_a_declared_loss_is_solved_and_certified_by_cvxpy(activation: Any) -> None:
    found = solve(fit(losses.Declared(huber_in_cvxpy), activation))
    right = solve(fit(losses.Huber(0.7), activation))
    assert found.solver == "reference"
    assert found.residual < 1e-6
    assert found.objective == pytest.approx(right.objective, rel=1e-8)
    torch.testing.assert_close(found.value, right.value, rtol=1e-5, atol=1e-5)


def test_a_declared_loss_that_is_not_convex_is_refused() -> None:
    concave = fit(losses.Declared(lambda y, z: -cp.sum_squares(y - z)), activations.Identity())
    refuses(DeclarationError, "DCP", solve, concave)
    wrong, zero = losses.Declared(lambda y, z: y.nothing), torch.zeros(2, 1)  # type: ignore
    refuses(DeclarationError, r"Declared.*cannot be stated", wrong.output_values, zero, zero)


@pytest.mark.parametrize("whole", [cp.max, cp.mean, cp.norm], ids=lambda f: str(f.__name__))
def test_a_declared_loss_is_a_sum_over_samples_that_has_the_outputs(whole: Any) -> None:
    loss = losses.Declared(lambda y, z: whole(cp.abs(y - z)))
    words, rows = "a sum over the samples: of 3 rows together it is", torch.arange(3.0)[:, None]
    refuses(DeclarationError, words, loss.output_values, rows, torch.zeros(3, 1))
    without = fit(losses.Declared(lambda y, _: cp.sum_squares(y)), activations.Identity())
    refuses(DeclarationError, "without z", solve, without)


BAD: list[tuple[Any, str]] = [
    *((lambda loss=loss, y=y: loss.encode(y, CLASSES), words)
      for loss, y, words in REFUSED.values()),
    *((lambda level=level: losses.Quantile(level), "level of a quantile")
      for level in (0.0, 1.0, -0.5, 2, "a")),
    *((lambda given=given: loss_of(given), words) for given, words in (
        ("quantile:much", "takes a number behind a colon"),
        (CrossEntropy, r"got <class.*: write CrossEntropy\(\)"),
        (nn.BCELoss(), "give the scores that the Sigmoid takes"),
        (functional.l1_loss, "CrossEntropy.* for classes or SquaredError"),
        (nn.CrossEntropyLoss(torch.ones(3)), "has weight=tensor.*sample_weight"))),
    (lambda: losses.Huber(-1.0), "delta"),
    (lambda: LiftedMLP((2, 3), (activations.Softmax(),), loss=losses.Quantile()), "unit by unit"),
    (lambda: SimplexCrossEntropy().require_activation(activations.Softmax()), "SimplexProjection"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_no_loss_of_outputs_is_refused(make, words) -> None:
    refuses((DataError, DeclarationError), words, make)


OF_TORCH = [
    (nn.CrossEntropyLoss(), 1.0, "classes"),
    (nn.CrossEntropyLoss(), 1.0, "soft"),
    (nn.CrossEntropyLoss(label_smoothing=0.2), 1.0, "classes"),
    (nn.BCEWithLogitsLoss(), 1.0, "shares"),
    (nn.MSELoss(), 2.0, "numbers"),
    (nn.L1Loss(), 2.0, "numbers"),
    (nn.HuberLoss(delta=0.7), 1.0, "numbers"),
    (nn.SmoothL1Loss(beta=0.7), 1 / 0.7, "numbers"),
]


@pytest.mark.parametrize(("of_torch", "factor", "kind"), OF_TORCH, ids=lambda x: str(x)[:24])
def test_a_loss_of_torch_is_ours_but_for_a_factor_and_a_constant(of_torch, factor, kind) -> None:
    one, other, numbers = normal(3, 6, 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    kinds = {"classes": labels, "soft": numbers.softmax(-1), "shares": numbers.sigmoid()}
    y = kinds.get(kind, numbers)
    ours = loss_of(of_torch)
    target = ours.encode(y, 3)

    def total(outputs):
        if isinstance(ours, losses.OutputLoss) and not hasattr(ours, "divergence"):
            return ours.output_values(target, outputs).sum()
        assert isinstance(ours, losses.FenchelYoungLoss)
        return ours.divergence.values(target, outputs).sum()

    entries = 6 if kind in ("classes", "soft") else 18
    difference = (of_torch(one, y) - of_torch(other, y)) * entries / factor
    assert torch.isclose(total(one) - total(other), difference, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["squared-error", "SquaredError", "squared_error", "mse", "MSE"])
def test_a_loss_has_a_name(name) -> None:
    assert isinstance(loss_of(name), SquaredError)
    assert isinstance(LiftedMLP((2, 3, 1), "sigmoid", name).activations[0], Sigmoid)
    assert isinstance(LiftedRNN(2, 3, 1, "tanh", name).loss, SquaredError)
    assert vars(loss_of("quantile:0.9"))["level"] == 0.9


@pytest.mark.parametrize(
    "module",
    [nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.Softplus(), nn.Hardtanh(), nn.ReLU6(), nn.Tanh(),
     nn.Sigmoid(), nn.Identity(), nn.PReLU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish()],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_an_activation_goes_by_the_name_and_the_module_of_torch(module) -> None:
    u = torch.linspace(-8, 8, 101, dtype=torch.float64)[:, None]
    wanted = module.double()(u).detach()
    for said in (module, type(module).__name__, type(module).__name__.lower()):
        assert torch.allclose(activation_of(said).forward(u), wanted, rtol=1e-12, atol=1e-15)


def test_an_activation_of_torch_with_settings_is_no_other_one() -> None:
    refuses(DeclarationError, "from_function", LiftedMLP, (2, 3, 1), nn.LeakyReLU(0.5))
    assert type(activation_of("logistic")) is Sigmoid
    assert type(activation_of(nn.Sigmoid())) is type(activation_of("sigmoid")) is Sigmoid
    assert type(activation_of(nn.LeakyReLU(inplace=True))) is LeakyReLU


def test_a_network_starts_by_the_loss_that_the_type_of_y_asks_for(capsys) -> None:
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long()
    wanted, found = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
    found.load_state_dict(wanted.state_dict())
    initialize_(wanted, X, y, loss=CrossEntropy())
    initialize_(found, X, y)
    assert "initialize_: CrossEntropy(), by the type of y" in capsys.readouterr().out
    for one, other in zip(wanted.parameters(), found.parameters(), strict=True):
        assert torch.equal(one, other)
