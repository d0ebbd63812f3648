"""The start that is fitted to data: where pre-activations lie, and what it leaves alone."""

import pytest
import torch
from sklearn.datasets import load_digits

from liftednet import activations, losses
from liftednet.layers import convolution, dense
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.starts import RECURRENT_STARTS, fitted_start
from liftednet.network import Network
from liftednet.penalties import Nonnegative

DIGITS, LABELS = load_digits(return_X_y=True)
X, Y = torch.tensor(DIGITS, dtype=torch.float32) / 16, torch.tensor(LABELS)
STILL = Minibatch(epochs=1, rate=1e-12)


RANGES = [
    (activations.Sigmoid(), 0.0, 1.0), (activations.Tanh(), 0.0, 0.5),
    (activations.ReLU(), 1.0, 0.5), (activations.Sign(), 0.0, 0.2),
    (activations.Identity(), 0.0, 1.0), (activations.Softmax(), 0.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("activation", "mean", "deviation"), RANGES)
def test_every_layer_of_the_default_start_lies_where_it_is_nearly_linear(
    activation, mean, deviation
):
    first = X[:1000]
    network = LiftedMLP((64, *[20] * 5, 10), activation, method=STILL).fit(first, Y[:1000])
    x = first
    for layer in network.weights[:-1]:
        u = layer.apply(x)
        assert torch.allclose(u.mean(0), torch.full((20,), mean), atol=1e-4)
        assert float(u.var(0, correction=0).mean().sqrt()) == pytest.approx(deviation, rel=1e-4)
        x = activation.forward(u)


def test_a_convolution_is_fitted_and_shared_or_constant_weights_are_not():
    network = Network()
    below = network.state(activations.Tanh(), convolution(network.input(1, 8, 8), 3, 3))
    shared = dense(network.state(activations.Tanh(), dense(below, 5)), 5)
    middle = network.state(activations.Tanh(), shared)
    again = network.state(activations.Tanh(), dense(middle, 5))
    last = network.state(activations.Tanh(), dense(again, 5, weights=shared.weights))
    network.loss(losses.CrossEntropy(), dense(last, 10))
    model = Lifted(network, method=STILL, start="auto", standardize=False).fit(X, Y)
    drawn = Lifted(network, method=STILL, start="orthogonal", standardize=False).fit(X, Y)
    assert shared.weights is not None
    position = network.parameters.index(shared.weights)
    assert torch.allclose(model.weights[position].matrix, drawn.weights[position].matrix)
    kernels = model.weights[0].matrix.T.reshape(3, 1, 3, 3)
    u = torch.nn.functional.conv2d(X[:1000].view(-1, 1, 8, 8), kernels, model.weights[0].bias)
    assert torch.allclose(u.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert float(u.var((0, 2, 3), correction=0).mean().sqrt()) == pytest.approx(0.5, rel=1e-4)
    kept = fitted_start(model.structure, drawn.weights, {network.inputs[0]: torch.zeros(5, 64)})
    assert torch.equal(kept[0].matrix, drawn.weights[0].matrix)


def test_a_layer_without_bias_and_one_with_a_constraint_start_where_they_may():
    sizes, phi = (64, *[20] * 5, 10), activations.Sigmoid()
    network = LiftedMLP(sizes, phi, bias=False, penalty=Nonnegative(), method=STILL)
    network.fit(X[:500], Y[:500])
    assert all(bool((layer.matrix >= 0).all()) for layer in network.weights)
    assert network.weights[0].bias is None


def test_gaussian_recurrent_weights_have_their_spectral_radius():
    for size in (1, 7, 30):
        weight = RECURRENT_STARTS["gaussian"](size, torch.Generator().manual_seed(size))
        largest = torch.linalg.eigvals(weight.double()).abs().max()
        assert float(largest) == pytest.approx(1.0, rel=1e-5)
