"""An exported network computes what the model computes, and starts from its weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from liftednet import Activation, LiftedError, activations, initialize_, losses, to_torch
from liftednet.errors import DataError, NotFittedError
from liftednet.models import FullBatch, LiftedMLP
from liftednet.problems import Weights


@dataclass(frozen=True)
class Layers:
    """The least that can be exported."""

    weights: list[Weights]
    activations: list[Activation]


class Swish3(Activation):
    """A subclass of no built-in activation: softplus(3 u) / 3."""

    def forward(self, u):
        return torch.logaddexp(3 * u, torch.zeros_like(u)) / 3


class Doubled(activations.ReLU):
    """A subclass of a built-in activation with a forward map of its own."""

    def forward(self, u):
        return 2 * u.clamp(min=0)


CATALOGUE = [
    *(getattr(activations, name)() for name in activations.__all__),
    activations.LeakyReLU(0.3),
    activations.Clipped(-2.0, 0.5),
    activations.MaxPooling(3),
    Activation.from_function(torch.nn.functional.softplus),
    Activation.from_function(nn.Softsign()),
    Swish3(),
    Doubled(),
]


def layers(activation: Activation, generator: torch.Generator) -> Layers:
    shapes = ((5, activation.pre_units(4)), (4, 3))
    weights = [
        Weights(torch.randn(n, q, generator=generator), torch.randn(q, generator=generator))
        for n, q in shapes
    ]
    return Layers(weights, [activation, activations.Softmax()])


def forward(model: Layers, x: torch.Tensor) -> torch.Tensor:
    for weights, activation in zip(model.weights, model.activations, strict=True):
        x = activation.forward(weights.apply(x))
    return x


@pytest.mark.parametrize("activation", CATALOGUE, ids=repr)
def test_every_activation_is_exported_with_its_forward_map(activation, generator) -> None:
    model = layers(activation, generator)
    x = 10 * torch.randn(50, 5, generator=generator)
    torch.testing.assert_close(to_torch(model)(x), forward(model, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", CATALOGUE, ids=repr)
def test_an_exported_network_keeps_its_weights_in_a_state_dict(activation, generator) -> None:
    model, x = layers(activation, generator), torch.randn(20, 5, generator=generator)
    network = to_torch(model)
    fresh = copy.deepcopy(network)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(fresh(x), network(x))


@pytest.mark.parametrize(
    ("activation", "module"),
    [
        (activations.ReLU(), "ReLU()"),
        (activations.Clipped(0.0, 1.0), "Hardtanh(min_val=0.0, max_val=1.0)"),
        (activations.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)"),
        (activations.Arctan(), "ActivationModule(Arctan())"),
    ],
)
def test_torch_activations_are_used_where_torch_has_them(activation, module, generator) -> None:
    assert repr(to_torch(layers(activation, generator))[1]) == module


def test_a_declared_module_is_exported_as_a_copy(generator) -> None:
    softsign = nn.Softsign()
    network = to_torch(layers(Activation.from_function(softsign), generator))
    assert type(network[1]) is nn.Softsign
    assert network[1] is not softsign


def test_the_identity_is_left_out(generator) -> None:
    network = to_torch(layers(activations.Identity(), generator))
    assert [type(part) for part in network] == [nn.Linear, nn.Linear, nn.Softmax]


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 5, generator=generator)
    return x, x[:, :3].argmax(-1)


LOSSES = [losses.CrossEntropy(), losses.SimplexCrossEntropy(), losses.SquaredError()]


@pytest.fixture(scope="module", params=LOSSES, ids=lambda loss: type(loss).__name__)
def fitted(request, data):
    x, labels = data
    y = nn.functional.one_hot(labels).float() if not request.param.probabilistic else labels
    model = LiftedMLP((5, 6, 3), activations.Tanh(), request.param, method=FullBatch(sweeps=2))
    return model.fit(x, y)


def test_a_fitted_model_is_exported_with_its_feedforward_rule(fitted, data) -> None:
    x, _ = data
    assert (to_torch(fitted)(x) - fitted.forward(x)).abs().max() < 1e-6


def test_logits_leave_out_the_last_activation_alone(fitted, data) -> None:
    x, _ = data
    logits = to_torch(fitted, logits=True)(x)
    last = fitted.activations[-1]
    assert (last.forward(logits) - fitted.forward(x)).abs().max() < 1e-6
    assert to_torch(fitted, logits=True)[-1].out_features == 3


def test_the_exported_weights_are_copies(fitted, data) -> None:
    x, _ = data
    before = fitted.forward(x)
    network = to_torch(fitted)
    network(x).square().sum().backward()
    torch.optim.SGD(network.parameters(), 1.0).step()
    assert torch.equal(fitted.forward(x), before)


def test_exporting_draws_no_random_numbers(fitted) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    to_torch(fitted)
    assert torch.equal(torch.rand(2), wanted)


def test_double_precision_is_kept(generator) -> None:
    model = layers(activations.ReLU(), generator)
    double = Layers(
        [layer.to(torch.zeros(1).double()) for layer in model.weights], model.activations
    )
    assert {parameter.dtype for parameter in to_torch(double).parameters()} == {torch.float64}


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        to_torch(LiftedMLP((5, 6, 3)))


def test_what_is_no_model_or_no_network_is_refused(fitted) -> None:
    with pytest.raises(DataError, match=r"got Linear\. Recurrent models have liftednet"):
        to_torch(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"torch\.nn\.Module, got None"):
        initialize_(None, fitted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse"}, "loss must be a loss object"),
        ({"loss": losses.CrossEntropy}, "loss must be a loss object"),
        ({"sizes": 5}, "sizes must be at least two"),
        ({"seed": None}, "seed must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
        ({"device": "gpu0"}, "device 'gpu0' cannot be used here"),
    ],
)
def test_a_model_is_refused_before_there_are_data(options, message) -> None:
    with pytest.raises(LiftedError, match=message):
        LiftedMLP(**{"sizes": (5, 6, 3), **options})


def network(*sizes: int, bias: bool = True) -> nn.Sequential:
    parts = [nn.Linear(n, q, bias=bias) for n, q in pairwise(sizes)]
    return nn.Sequential(*(part for linear in parts for part in (linear, nn.Dropout(), nn.Tanh())))


def test_initialize_writes_into_the_users_own_network(fitted, data) -> None:
    x, _ = data
    mine = network(5, 6, 3).eval()
    assert initialize_(mine, fitted) is mine
    wanted = to_torch(fitted, logits=True)(x)
    assert torch.equal(mine[:-1](x), wanted)


def test_initialize_takes_a_network_of_another_precision(fitted, data) -> None:
    mine = network(5, 6, 3).double()
    initialize_(mine, fitted)
    torch.testing.assert_close(mine[0].weight.float(), fitted.weights[0].matrix.T)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (network(5, 6, 4), r"weight of layer 2, '3', must have shape \(3, 6\).* got \(4, 6\)"),
        (network(4, 6, 3), r"weight of layer 1, '0', must have shape \(6, 5\).* got \(6, 4\)"),
        (network(5, 6, 3, bias=False), r"bias of layer 1, '0', must have shape \(6,\).* got None"),
        (network(5, 6), "1 torch.nn.Linear layers and the model 2: layer 2"),
        (network(5, 6, 3, 3), "3 torch.nn.Linear layers and the model 2: layer 3"),
        (nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)), "call the network once"),
        (nn.Tanh(), "0 torch.nn.Linear layers"),
    ],
)
def test_the_first_mismatch_is_named_and_nothing_is_written(fitted, mine, message) -> None:
    before = copy.deepcopy(mine.state_dict())
    with pytest.raises(DataError, match=message) as caught:
        initialize_(mine, fitted)
    assert isinstance(caught.value, LiftedError)
    after = mine.state_dict()
    assert all(is_lazy(old) or torch.equal(after[name], old) for name, old in before.items())
