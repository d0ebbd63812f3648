"""An exported network computes what the model computes, and starts from its weights."""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from liftednet import Activation, LiftedRegressor, activations, initialize_, load, save, to_torch
from liftednet.data import echo
from liftednet.errors import DataError, LiftedError, NotFittedError
from liftednet.export import ExportedRNN
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN, Minibatch
from liftednet.problems import Weights
from tests.draws import normal
from tests.models.graphs import NETWORKS
from tests.models.graphs import fitted as fitted_graph
from tests.models.networks import each, refuses
from tests.models.registry import BY_NAME

SEQUENCES = ("gated", "both_directions")


class Swish3(Activation):
    """A subclass of no built-in activation: softplus(3 u) / 3."""

    def forward(self, u):
        return torch.logaddexp(3 * u, torch.zeros_like(u)) / 3


class Doubled(activations.ReLU):
    """A subclass of a built-in activation with a forward map of its own."""

    def forward(self, u):
        return 2 * u.clamp(min=0)


OF_OTHER_STATES = ("MaxPooling", "GELU", "SiLU", "Mish", "Hardswish")  # exported as graphs
CATALOGUE = [
    *(getattr(activations, name)() for name in activations.__all__ if name not in OF_OTHER_STATES),
    activations.LeakyReLU(0.3), activations.Clipped(-2.0, 0.5),
    Activation.from_function(torch.nn.functional.softplus), Activation.from_function(nn.Softsign()),
    Swish3(), Doubled(),
]  # fmt: skip


def layers(activation: Activation, generator: torch.Generator) -> Any:
    """Return the least that can be exported."""
    shapes = ((5, 4), (4, 3))
    drawn = partial(normal, seed=generator, dtype=torch.float32)
    weights = [Weights(drawn(n, q), drawn(q)) for n, q in shapes]
    return SimpleNamespace(weights=weights, activations=[activation, activations.Softmax()])


@pytest.mark.parametrize("activation", CATALOGUE, ids=repr)
def test_every_activation_is_exported_with_its_forward_map(activation, generator) -> None:
    model = layers(activation, generator)
    x = 10 * torch.randn(50, 5, generator=generator)
    network = to_torch(model)
    wanted = x
    for weights, one in zip(model.weights, model.activations, strict=True):
        wanted = one.forward(weights.apply(wanted))
    torch.testing.assert_close(network(x), wanted, rtol=1e-6, atol=1e-6)
    fresh = copy.deepcopy(network)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(fresh(x), network(x))


def test_torch_activations_are_used_where_torch_has_them(generator) -> None:
    for activation, module in (
        (activations.ReLU(), "ReLU()"),
        (activations.Clipped(0.0, 1.0), "Hardtanh(min_val=0.0, max_val=1.0)"),
        (activations.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)"),
        (activations.Arctan(), "ActivationModule(Arctan())"),
    ):
        assert repr(to_torch(layers(activation, generator))[1]) == module


def test_what_is_no_fitted_model_or_no_network_is_refused(generator) -> None:
    x = torch.randn(60, 5, generator=generator)
    fitted = LiftedMLP((5, 6, 3), method=FullBatch(sweeps=2)).fit(x, x[:, :3].argmax(-1))
    refuses(NotFittedError, "call fit", to_torch, LiftedMLP((5, 6, 3)))
    words = r"a fitted model such as LiftedMLP is needed.*got Linear"
    refuses(DataError, words, to_torch, nn.Linear(2, 2))
    refuses(DataError, r"torch\.nn\.Module, got None", initialize_, None, fitted)
    refuses(DataError, r"to_torch\(model\) makes a module", initialize_, nn.Linear(5, 3), fitted)


KINDS = [(name, last) for name in NETWORKS for last in (False, True)[: 1 + (name in SEQUENCES)]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "last"), KINDS)
def test_any_network_is_exported_with_its_forward_pass(name, last, dtype) -> None:
    model, x = fitted_graph(name, dtype, last)
    network, inputs = to_torch(model), each(x)
    wanted = each(model.forward(x))
    torch.testing.assert_close(each(network(*inputs)), wanted)
    logits = each(to_torch(model, logits=True)(*inputs))
    for u, term, output in zip(logits, model.network.terms, wanted, strict=True):
        torch.testing.assert_close(term.activation.forward(u), output)
    assert {p.dtype for p in network.parameters()} == {dtype}
    assert all(p.requires_grad for p in network.parameters())
    copied = copy.deepcopy(network)
    for p in network.parameters():
        nn.init.zeros_(p)
    torch.testing.assert_close(each(copied(*inputs)), wanted)
    network.load_state_dict(copied.state_dict())
    torch.testing.assert_close(each(network(*inputs)), wanted)
    torch.testing.assert_close(each(model.forward(x)), wanted)


def test_states_between_bounds_are_followed_by_torch() -> None:
    graph = BY_NAME["bounded states"]
    model = graph.model("tight", Minibatch(1)).fit(graph.x, graph.y)
    program = torch.export.export(to_torch(model), (graph.x,))
    torch.testing.assert_close(program.module()(graph.x), model.forward(graph.x))


RECURRENT: list[dict[str, Any]] = [
    {},
    {"activation": activations.Tanh(), "bidirectional": True, "hidden_size": (4, 4),
     "learn_initial_state": True},
    {"activation": activations.Sigmoid(), "hidden_size": (4, 3)},
    {"activation": activations.Softplus(), "bidirectional": True, "hidden_size": (3, 4)},
    {"hidden_size": (3, 5), "learn_initial_state": True, "start": "orthogonal"},
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("options", RECURRENT, ids=str)
def test_a_recurrent_model_is_exported_with_its_forward_pass(options, last) -> None:
    x, y = echo(12, 6, lag=1, classes=3)
    lengths, y = torch.tensor([6, 2, 4, 1] * 3), y[:, 0] if last else y
    given = {"hidden_size": 4, "method": Minibatch(1), **options}
    model = LiftedRNN(3, output_size=3, **given).fit(x, y, lengths=lengths)
    x = x.double()
    network, logits = to_torch(model), to_torch(model, logits=True)
    assert isinstance(network, ExportedRNN) == (options in RECURRENT[:2])
    real = ... if last else torch.arange(6) < lengths[:, None]
    wanted = model.forward(x, lengths=lengths)[real]
    torch.testing.assert_close(network(x, lengths=lengths)[real], wanted)
    torch.testing.assert_close(logits(x, lengths=lengths)[real].softmax(-1), wanted)
    torch.testing.assert_close(network(x), model.forward(x))
    if not isinstance(network, ExportedRNN):
        refuses(LiftedError, "1 inputs, got 2; lengths are given by name", network, x, lengths)
    assert all(parameter.requires_grad for parameter in network.parameters())
    if last or options not in RECURRENT[1:3]:  # one of each kind of module
        return
    free = ({0: torch.export.Dim("samples")},)
    program = torch.export.export(network, (x[:3],), dynamic_shapes=free)
    torch.testing.assert_close(program.module()(x), network(x))


UNITS = [
    (0.0, 1e-1, torch.float32),
    (1e5, 1e-1, torch.float64),  # inputs lose .008 of their range in float32
    (0.0, 0.0, torch.float64),  # what is left of y is less than float32 can tell
]


@pytest.mark.parametrize(("moved", "noise", "dtype"), UNITS)
def test_an_estimator_is_exported_in_float32_where_that_loses_nothing(
    moved, noise, dtype, tmp_path, draw
) -> None:
    X = draw.uniform(-1, 1, (60, 2))
    y = 3 * X[:, 0] - X[:, 1] + noise * draw.normal(size=60)
    fitted = LiftedRegressor((3,), "identity", random_state=0).fit(X + moved, y)
    for model in (fitted, load(save(fitted, tmp_path / "model.safetensors"))):
        network = to_torch(model)
        assert {x.dtype for x in network.parameters()} == {dtype}
        with torch.no_grad():
            found = network(torch.tensor(X + moved, dtype=dtype))[:, 0].double().numpy()
        assert abs(found - model.predict(X + moved)).max() <= 1e-4 * y.std()
        assert next(to_torch(model.model_).parameters()).dtype == torch.float64
