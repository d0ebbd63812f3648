"""Losses and activations by name, and by torch's own modules, are those that they are taken for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from liftednet import initialize_
from liftednet.activations import LeakyReLU, Sigmoid
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import CrossEntropy, FenchelYoungLoss, OutputLoss, SquaredError
from liftednet.models import LiftedMLP, LiftedRNN
from liftednet.names import activation_of, loss_of

OF_TORCH = [
    (nn.CrossEntropyLoss(), 1.0, "classes"),
    (nn.CrossEntropyLoss(label_smoothing=0.2), 1.0, "classes"),
    (nn.BCEWithLogitsLoss(), 1.0, "shares"),
    (nn.MSELoss(), 2.0, "numbers"),
    (nn.L1Loss(), 2.0, "numbers"),
    (nn.HuberLoss(delta=0.7), 1.0, "numbers"),
    (nn.SmoothL1Loss(beta=0.7), 1 / 0.7, "numbers"),
]


@pytest.mark.parametrize(("of_torch", "factor", "kind"), OF_TORCH, ids=lambda x: str(x)[:24])
def test_a_loss_of_torch_is_ours_but_for_a_factor_and_a_constant(of_torch, factor, kind) -> None:
    draw = torch.Generator().manual_seed(0)
    u = torch.randn(6, 3, dtype=torch.float64, generator=draw)
    one, other = u, torch.randn(6, 3, dtype=torch.float64, generator=draw)
    numbers = torch.randn(6, 3, dtype=torch.float64, generator=draw)
    y = {"classes": torch.tensor([0, 1, 2, 0, 1, 2]), "shares": numbers.sigmoid()}.get(
        kind, numbers
    )
    ours = loss_of(of_torch)
    target = ours.encode(y, 3)

    def total(outputs):
        if isinstance(ours, OutputLoss) and not hasattr(ours, "divergence"):
            return ours.output_values(target, outputs).sum()
        assert isinstance(ours, FenchelYoungLoss)
        return ours.divergence.values(target, outputs).sum()

    entries = 6 if kind == "classes" else 18
    difference = (of_torch(one, y) - of_torch(other, y)) * entries / factor
    assert torch.isclose(total(one) - total(other), difference, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["squared-error", "SquaredError", "squared_error", "mse", "MSE"])
def test_a_loss_has_a_name(name) -> None:
    assert isinstance(loss_of(name), SquaredError)
    assert isinstance(LiftedMLP((2, 3, 1), "sigmoid", name).activations[0], Sigmoid)
    assert isinstance(LiftedRNN(2, 3, 1, "tanh", name).loss, SquaredError)
    assert vars(loss_of("quantile:0.9"))["level"] == 0.9


@pytest.mark.parametrize(
    ("name", "of_torch"),
    [
        ("mae", nn.L1Loss()),
        ("absolute_error", nn.L1Loss()),
        ("l2", nn.MSELoss()),
        ("log_loss", nn.CrossEntropyLoss()),
        ("BCE", nn.BCEWithLogitsLoss()),
        ("smooth_l1", nn.SmoothL1Loss()),
    ],
)
def test_the_names_of_other_libraries_are_those_of_their_losses(name, of_torch) -> None:
    assert repr(loss_of(name)) == repr(loss_of(of_torch))
    with pytest.raises(DataError, match="number behind a colon"):
        loss_of(name + ":two")


def test_a_loss_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(DataError, match=r"no loss 'hinge'; there are .*cross-entropy.*mae"):
        loss_of("hinge")


@pytest.mark.parametrize(
    "module",
    [nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.Softplus(), nn.Hardtanh(), nn.ReLU6(), nn.Tanh(),
     nn.Sigmoid(), nn.Identity(), nn.PReLU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish()],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_an_activation_goes_by_the_name_and_the_module_of_torch(module) -> None:
    u = torch.linspace(-8, 8, 101, dtype=torch.float64)[:, None]
    wanted = module.double()(u).detach()
    for given in (module, type(module).__name__, type(module).__name__.lower()):
        assert torch.allclose(activation_of(given).forward(u), wanted, rtol=1e-12, atol=1e-15)


def test_an_activation_of_torch_with_settings_is_no_other_one() -> None:
    with pytest.raises(DeclarationError, match="from_function"):
        LiftedMLP((2, 3, 1), nn.LeakyReLU(0.5))  # type: ignore[arg-type]
    assert type(activation_of("logistic")) is Sigmoid
    assert type(activation_of(nn.Sigmoid())) is type(activation_of("sigmoid")) is Sigmoid
    assert type(activation_of(nn.LeakyReLU(inplace=True))) is LeakyReLU


@pytest.mark.parametrize("loss", ["cross-entropy", nn.CrossEntropyLoss(), None])
def test_a_network_starts_alike_however_the_loss_is_said(loss, capsys) -> None:
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long()
    wanted, found = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
    found.load_state_dict(wanted.state_dict())
    initialize_(wanted, X, y, loss=CrossEntropy())
    initialize_(found, X, y, loss=loss)
    assert ("initialize_: CrossEntropy(), by the type of y" in capsys.readouterr().out) == (
        loss is None
    )
    for one, other in zip(wanted.parameters(), found.parameters(), strict=True):
        assert torch.equal(one, other)
