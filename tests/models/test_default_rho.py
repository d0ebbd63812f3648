"""What rho is where nobody says: less before activations that are nowhere steep."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_wine

from liftednet.activations import ReLU, Sigmoid, Tanh
from liftednet.layers import dense
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.models import Lifted, LiftedMLP, LiftedRNN
from liftednet.network import Network
from liftednet.penalties import SquaredFrobenius

FLAT = 0.25**2  # phi' of a sigmoid is at most 1/4


def rhos(model: Lifted) -> list[float]:
    penalties = list(model.checked()[0].penalties.values())
    assert all(isinstance(penalty, SquaredFrobenius) for penalty in penalties)
    return [penalty.rho for penalty in penalties if isinstance(penalty, SquaredFrobenius)]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LiftedMLP((4, 5, 5, 3), Sigmoid()), [FLAT, FLAT, 1.0]),
        (LiftedMLP((4, 5, 5, 3), [Sigmoid(), Tanh()]), [FLAT, 1.0, 1.0]),
        (LiftedMLP((4, 5, 5, 3), ReLU()), [1.0, 1.0, 1.0]),
        (LiftedMLP((4, 5, 3), Sigmoid(), rho=2.0), [2.0, 2.0]),
        (LiftedMLP((4, 5, 3), Sigmoid(), rho=[2.0, 3.0]), [2.0, 3.0]),
        (LiftedRNN(4, 5, 3, activation=Sigmoid()), [3 * FLAT, 3.0]),
    ],
)
def test_rho_is_measured_by_what_a_layer_passes_on(model: Lifted, expected: list[float]) -> None:
    assert rhos(model) == pytest.approx(expected)


def test_weights_that_are_shared_have_the_rho_of_the_steepest() -> None:
    network = Network()
    shared = dense(network.input(4), 4)
    flat = network.state(Sigmoid(), shared)
    steep = network.state(Tanh(), dense(flat, 4, weights=shared.weights))
    network.loss(CrossEntropy(), dense(steep, 3))
    assert rhos(Lifted(network)) == [1.0, 1.0]


def test_layers_of_sigmoids_learn_small_data_without_options() -> None:
    x, y = load_wine(return_X_y=True)
    scores = []
    for depth in (1, 3, 6):
        sizes = (13, *[20] * depth, 3)
        model = LiftedMLP(sizes, Sigmoid()).fit(x[::2], y[::2])
        scores.append(float((model.predict(x[1::2]).numpy() == y[1::2]).mean()))
    assert min(scores) > 0.9


@pytest.mark.parametrize("samples", [1, 40])
def test_targets_that_are_all_alike_are_fitted_and_the_fit_ends(samples):
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = LiftedMLP((3, 5, 1), loss=SquaredError()).fit(x, torch.full((samples, 1), 7.0).double())
    assert model.trace is not None and model.trace.n_iter < 200
    assert torch.allclose(model.predict(x), torch.full((samples, 1), 7.0).double())
