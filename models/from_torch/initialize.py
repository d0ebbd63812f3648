"""`initialize_`: weights of lifted training in a torch network, in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from liftednet.activation import Activation
from liftednet.activations import Identity
from liftednet.errors import DataError
from liftednet.export import Feedforward, is_chain, refuse_standardized, require_model
from liftednet.layers import Expression, Input, Parameter
from liftednet.layers.dense import Dense
from liftednet.layers.expression import Applied
from liftednet.losses import Loss
from liftednet.network import State
from liftednet.samples import Weights

from ..methods import Minibatch
from .model import RATE, Batch, lift, pair_of
from .reader import Reader


def initialize_(
    module: nn.Module,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | None = None,
    passes: int = 1,
    batch: Batch | None = None,
    progress: bool = False,
    **settings: Any,
) -> nn.Module:
    """Give a torch network weights of lifted training, in place; the rest of it stays as it is.

    Either the network is trained itself on data, as `lift` does it; or a fitted chain of dense
    layers, such as a `LiftedMLP`, is written into its Linear layers in the order in which it runs
    them. Where anything fails, or is interrupted, nothing has been written.

    Args:
        module: the network.
        X: what the network takes, a DataLoader, or a fitted model.
        y: as the loss takes it; None for a DataLoader or a model.
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()`.
        passes: over the data.
        batch: makes (X, y) of what a DataLoader yields.
        progress: whether to show a progress bar.
        settings: of `Lifted`, such as lam; `method` in place of `passes`.

    Returns:
        The module.

    Raises:
        DataError: the network or the data cannot be used; of a model the first layer that does not
            fit, with both shapes, activations that differ, or a tie that would be lost.
        NotFittedError: the model has no weights yet.
        SolverError: the loss or the weights are not finite.

    Example:
        initialize_(network, X, y, loss=CrossEntropy(), passes=2)
    """
    if not isinstance(module, nn.Module):
        raise DataError(f"initialize_ writes into a torch.nn.Module, got {module!r}.")
    if hasattr(X, "weights") or hasattr(X, "activations"):
        return _written(module, X)
    if loss is None:
        raise DataError("initialize_ on data needs loss=, such as CrossEntropy().")
    settings = {"method": Minibatch(epochs=passes, rate=RATE), **settings}
    lifted = lift(module, _example(X, batch), loss=loss, show=False, **settings)
    lifted.fit(X, y, batch=batch, progress=progress)
    if lifted.interrupted:
        raise KeyboardInterrupt("training was interrupted: the network is as it was.")
    return lifted.write_()


def _example(X: Any, batch: Batch | None) -> Any:
    if isinstance(X, DataLoader):
        X, _ = pair_of(next(iter(X), None), batch)
    return tuple(x[:2] for x in X) if isinstance(X, tuple | list) else X[:2]


@torch.no_grad()
def _written(module: nn.Module, model: Feedforward) -> nn.Module:
    """Write a chain's weights into the Linear layers of a network that runs as a chain."""
    require_model(model)
    refuse_standardized(model)
    if not is_chain(model):
        raise DataError(
            "initialize_ writes dense layers that follow one another, and this "
            f"{type(model).__name__} is another graph: to_torch makes a module of it. Recurrent "
            "models have liftednet.initialize_rnn_."
        )
    given = model.weights
    names = {id(x): name.rpartition(".")[0] for name, x in module.named_parameters()}
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if any(is_lazy(part.weight) for part in linears):
        raise DataError("a Linear layer has no shape yet: call the network once first.")
    try:
        found = _chain(module, linears, len(given[0].matrix))
    except (RuntimeError, TypeError) as error:  # of torch, on a shape
        _require_fits([(x.weight, x.bias) for x in linears], given, names)
        raise DataError(f"the network cannot run on the model's inputs: {error}") from error
    _require_fits([parts for parts, _ in found], given, names)
    for number, (_, activation) in enumerate(found[:-1], start=1):
        if not _same_map(activation, model.activations[number - 1], len(found[number - 1][0][0])):
            raise DataError(
                f"layer {number} has {model.activations[number - 1]!r} in the model, and "
                f"{activation!r} in the network."
            )
    taken: dict[int, Weights] = {}
    for number, ((weight, _), layer) in enumerate(zip((p for p, _ in found), given, strict=True)):
        known = taken.setdefault(id(weight), layer)
        if not known.stacked().equal(layer.stacked()):
            raise DataError(
                f"the weight of layer {number + 1}, {names[id(weight)]!r}, is tied to a layer "
                "before it, and the model has others there: the tie would be lost."
            )
    for (parts, _), layer in zip(found, given, strict=True):
        for target, value in zip(parts, (layer.matrix.T, layer.bias), strict=True):
            if target is not None and value is not None:
                target.copy_(value)
    return module


Parts = tuple[Any, Any]  # weight and bias of torch


def _chain(
    module: nn.Module, linears: Sequence[nn.Linear], inputs: int
) -> list[tuple[Parts, Activation]]:
    """Return the Linear layers in the order in which they run, each with what follows it."""
    if not linears:
        return []
    frozen = [x for x in linears if not x.weight.requires_grad]
    reader = Reader()
    like = linears[0].weight
    expression: Expression = reader.read(module, (like.new_zeros(2, inputs),)).expression
    found: list[tuple[Parts, Activation]] = []
    while not isinstance(expression, Input):
        activation: Activation = Identity()
        if isinstance(expression, State):
            activation, expression = expression.activation, expression.argument
        if not isinstance(expression, Applied) or type(expression.layer) is not Dense:
            stands = "a frozen layer" if frozen else str(expression)
            raise DataError(
                f"a model of dense layers is written into a network that is such a chain, and "
                f"{type(module).__name__} has {stands} in its way."
            )
        weights = expression.weights
        assert isinstance(weights, Parameter)  # a dense layer has them
        pair = reader.pairs[weights]
        found.append(((pair.weight, pair.bias), activation))
        expression = expression.arguments[0]
    return found[::-1]


def _require_fits(found: Sequence[Parts], given: Sequence[Weights], names: dict[int, str]) -> None:
    """Refuse the first layer that does not fit, with both shapes."""
    for number, (parts, layer) in enumerate(zip_longest(found, given), start=1):
        if parts is None or layer is None:
            raise DataError(
                f"the network has {len(found)} torch.nn.Linear layers and the model {len(given)}: "
                f"layer {number} has no counterpart."
            )
        wanted = {"weight": layer.matrix.T, "bias": layer.bias}
        for (part, value), target in zip(wanted.items(), parts, strict=True):
            shape, needed = (None if x is None else tuple(x.shape) for x in (target, value))
            if shape != needed:
                raise DataError(
                    f"the {part} of layer {number}, {names[id(parts[0])]!r}, must have shape "
                    f"{needed} to take the model's, got {shape}."
                )


def _same_map(one: Activation, other: Activation, units: int) -> bool:
    """Say whether two activations map a grid to the same values."""
    if one.pre_units(units) != other.pre_units(units):
        return False
    u = torch.linspace(-4, 4, 9 * one.pre_units(units), dtype=torch.float64).reshape(9, -1)
    return torch.allclose(one.forward(u), other.forward(u))
