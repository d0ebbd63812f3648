"""Trained weights as a torch network, and into a torch network that is already there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import (
    ELU,
    Clipped,
    Identity,
    LeakyReLU,
    MaxPooling,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Tanh,
)
from liftednet.errors import DataError
from liftednet.problems import Weights


class Feedforward(Protocol):
    """What a model must have to be exported: its layers, from the inputs to the outputs."""

    @property
    def weights(self) -> Sequence[Weights]:
        """W (inputs, units) and b (units,) of every layer."""
        ...

    @property
    def activations(self) -> Sequence[Activation]:
        """The activation of every layer."""
        ...


class ActivationModule(nn.Module):
    """The forward map of an activation for which torch has no module of its own.

    Attributes:
        activation: the activation.
    """

    def __init__(self, activation: Activation) -> None:
        """Keep the activation; it has no parameters that are trained."""
        super().__init__()
        self.activation = activation

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), (samples, units)."""
        return self.activation.forward(u)

    def extra_repr(self) -> str:
        """Name the activation where the network is printed."""
        return repr(self.activation)


def to_torch(model: Feedforward, *, logits: bool = False) -> nn.Sequential:
    """Return the network as a torch.nn.Sequential of Linear and activations.

    x_l = phi_l(x_{l-1} W_l + b_l), Lifted Neural Networks, eq. (1): the output equals the model's
    `forward`. torch.nn.Linear keeps W transposed. The parameters are copies, trainable, in the
    model's precision and on its device.

    Args:
        model: a fitted model, such as `LiftedMLP`.
        logits: whether to leave out the last activation, so that the network ends with the last
            pre-activation, as torch.nn.CrossEntropyLoss and BCEWithLogitsLoss want it.

    Returns:
        A network that takes (samples, inputs) and returns (samples, outputs).

    Raises:
        DataError: the model is none that has one layer after another.
        NotFittedError: the model has no weights yet.
    """
    _require_feedforward(model)
    network = nn.Sequential()
    for weights, activation in zip(model.weights, model.activations, strict=True):
        network.append(_linear(weights))
        network.extend(_modules(activation))
    if logits:
        del network[len(network) - len(_modules(model.activations[-1])) :]
    return network


@torch.no_grad()
def initialize_(module: nn.Module, model: Feedforward) -> nn.Module:
    """Write a model's weights into the Linear layers of a torch network, in place.

    The layers are taken in the order in which the network registers them; everything else in it
    stays as it is, and nothing is written unless all of them fit.

    Args:
        module: a network with as many torch.nn.Linear as the model has layers.
        model: a fitted model, such as `LiftedMLP`.

    Returns:
        The module.

    Raises:
        DataError: the first layer that does not fit, with both shapes; or an argument is no
            network or no model.
        NotFittedError: the model has no weights yet.
    """
    if not isinstance(module, nn.Module):
        raise DataError(f"initialize_ writes into a torch.nn.Module, got {module!r}.")
    _require_feedforward(model)
    found = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    for number, (layer, weights) in enumerate(zip_longest(found, model.weights), start=1):
        _require_fit(number, layer, weights, len(found), len(model.weights))
    for (_, linear), weights in zip(found, model.weights, strict=True):
        _write(linear, weights)
    return module


def _require_feedforward(model: object) -> None:
    if not hasattr(model, "activations"):
        raise DataError(
            "a feedforward model such as LiftedMLP is needed, with weights and activations; got "
            f"{type(model).__name__}. Recurrent models have liftednet.recurrent_to_torch and "
            "liftednet.initialize_rnn_."
        )


def _require_fit(
    number: int,
    layer: tuple[str, nn.Linear] | None,
    weights: Weights | None,
    there: int,
    needed: int,
) -> None:
    if layer is None or weights is None:
        raise DataError(
            f"the network has {there} torch.nn.Linear layers and the model {needed}: layer "
            f"{number} has no counterpart."
        )
    name, linear = layer
    if is_lazy(linear.weight):
        raise DataError(f"layer {number}, {name!r}, has no shape yet: call the network once first.")
    for part, given in _named(weights):
        target = getattr(linear, part)
        shape = None if target is None else tuple(target.shape)
        wanted = None if given is None else tuple(given.shape)
        if shape != wanted:
            raise DataError(
                f"the {part} of layer {number}, {name!r}, must have shape {wanted} to take the "
                f"model's, got {shape}."
            )


def _named(weights: Weights) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the parameters of a torch.nn.Linear by name."""
    yield "weight", weights.matrix.T
    yield "bias", weights.bias


def _write(linear: nn.Linear, weights: Weights) -> None:
    for name, value in _named(weights):
        if value is not None:
            getattr(linear, name).copy_(value)


@torch.no_grad()
def _linear(weights: Weights) -> nn.Linear:
    inputs, units = weights.matrix.shape
    linear: nn.Linear = nn.utils.skip_init(  # torch's own start would move its random generator
        nn.Linear,
        inputs,
        units,
        bias=weights.bias is not None,
        dtype=weights.matrix.dtype,
        device=weights.matrix.device,
    )
    _write(linear, weights)
    return linear


def _modules(activation: Activation) -> list[nn.Module]:
    """Return the modules of an activation: one, or none for the identity."""
    make = _TORCH_MODULES.get(type(activation))
    return [ActivationModule(activation)] if make is None else make(activation)


def _declared(activation: FunctionActivation) -> list[nn.Module]:
    function = activation.function
    if isinstance(function, nn.Module):
        return [copy.deepcopy(function)]
    return [ActivationModule(activation)]


# By the exact type: a subclass may have another forward map.
_TORCH_MODULES: dict[type[Activation], Callable[[Any], list[nn.Module]]] = {
    Identity: lambda _: [],
    ReLU: lambda _: [nn.ReLU()],
    LeakyReLU: lambda leaky: [nn.LeakyReLU(leaky.alpha)],
    Clipped: lambda clipped: [nn.Hardtanh(clipped.lower, clipped.upper)],
    Sigmoid: lambda _: [nn.Sigmoid()],
    Tanh: lambda _: [nn.Tanh()],
    Softplus: lambda _: [nn.Softplus()],
    ELU: lambda _: [nn.ELU()],
    Softmax: lambda _: [nn.Softmax(dim=-1)],
    MaxPooling: lambda pooling: [nn.MaxPool1d(pooling.block)],
    FunctionActivation: _declared,
}
