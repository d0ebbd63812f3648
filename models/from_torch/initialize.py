"""`initialize_`: weights of lifted training in a torch network, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.export import is_chain, refuse_standardized, require_model
from liftednet.losses import Loss
from liftednet.samples import Weights

from ..data import pair_of
from ..methods import Minibatch
from ..output import output_obstacle
from ..starts import AUTO
from .model import RATE, lift
from .tracing import Call, Run, tensors_in, trace

_RATE, _DAMPING = 0.8, 3.0  # of the seven networks of benchmarks/torch_tasks.py, on held-out data


def initialize_(
    module: nn.Module,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | None = None,
    epochs: int = 1,
    progress: bool = False,
    **settings: Any,
) -> nn.Module:
    """Give a torch network weights of lifted training, in place; the rest of it stays as it is.

    Either its matrices and kernels are drawn anew, with a last bias by which outputs are right in
    the mean, and the network is trained on data, as `lift` does it, which goes on from the weights
    that are there; then the last layer, which may be one for every step, is fitted to all samples
    by one convex problem, see `refit_output` of `Lifted`. It stays as trained for a DataLoader, for
    a loss with states of its own, such as Huber, and where the network does not end with one
    Linear, alone with its weights: with a convolution, or two whose outputs are added. Or a fitted
    chain of dense layers, such as a `LiftedMLP`, is written into its Linear layers in the order in
    which it runs them. Where anything fails, or is interrupted, nothing has been written.

    Args:
        module: the network.
        X: what the network takes, on any scale; a DataLoader of pairs (X, y); or a fitted model.
        y: as the loss takes it; None for a DataLoader or a model.
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()`.
        epochs: passes over the data.
        progress: whether to show a progress bar.
        settings: of `lift`, such as lam; `method` in place of `epochs`, start=None for one that
            begins with the weights that are there, refit_output=False for a last layer as trained,
            refit_output=True for an error where it cannot be fitted.

    Returns:
        The module.

    Raises:
        DataError: the network or the data cannot be used; of a model the first layer that does not
            fit, with both shapes, or a network that is no chain. Another activation than the
            model's is a `FitWarning`.
        NotFittedError: the model has no weights yet.
        SolverError: the loss or the weights are not finite.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet import initialize_
        >>> from liftednet.losses import CrossEntropy
        >>> X = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 50)
        >>> y = torch.tensor([0, 1] * 50)
        >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> network = initialize_(network, X, y, loss=CrossEntropy(), epochs=100)
        >>> bool((network(X).argmax(-1) == y).all())
        True
    """
    if not isinstance(module, nn.Module):
        raise DataError(f"initialize_ writes into a torch.nn.Module, got {module!r}.")
    if any(hasattr(X, x) for x in ("weights", "activations", "__sklearn_is_fitted__")):
        return _written(module, X)
    if loss is None:
        raise DataError("initialize_ on data needs loss=, such as CrossEntropy().")
    settings = {"start": AUTO, "method": _method(epochs, settings), **settings}
    lifted = lift(module, _example(X), loss=loss, show=False, **settings)
    if "refit_output" not in settings and not isinstance(X, DataLoader):
        lifted.refit_output = output_obstacle(lifted.network) is None
    lifted.fit(X, y, progress=progress)
    if lifted.interrupted:
        raise KeyboardInterrupt("training was interrupted: the network is as it was.")
    return lifted.write_()


def _method(epochs: int, settings: Mapping[str, Any]) -> Minibatch:
    """Return what few epochs train by, unless weights have signs or are those of the network."""
    if settings.get("start", AUTO) is None:
        return Minibatch(epochs=epochs, rate=RATE)
    if "penalty" in settings:
        return Minibatch(epochs=epochs)
    return Minibatch(epochs=epochs, rate=_RATE, damping=_DAMPING)


def _example(X: Any) -> Any:
    if isinstance(X, DataLoader):
        X, _ = pair_of(next(iter(X), None))
    if not isinstance(X, Tensor | np.ndarray | tuple | list):
        return X  # refused with words of its own
    return tuple(x[:2] for x in X) if isinstance(X, tuple | list) else X[:2]


@torch.no_grad()
def _written(module: nn.Module, model: Any) -> nn.Module:
    """Write a model's weights into the layers of a network that has the same."""
    require_model(model)
    if not is_chain(model):
        raise DataError(
            "initialize_ writes dense layers that follow one another, and this "
            f"{type(model).__name__} is another graph: to_torch makes a module of it."
        )
    refuse_standardized(model)
    given = model.weights
    names = {id(x): name.rpartition(".")[0] for name, x in module.named_parameters()}
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if any(is_lazy(part.weight) for part in linears):
        raise DataError("a Linear layer has no shape yet: call the network once first.")
    x = next(module.parameters(), given[0].matrix).new_zeros(2, len(given[0].matrix))
    try:
        run = trace(module, (x,))
    except DataError:  # that names a module of the network: both shapes of weights tell more
        _require_fits([(x.weight, x.bias) for x in linears], given, names)
        raise
    found = _chain(module, run, x)
    _require_fits([parts for parts, _ in found], given, names)
    for number, (_, above) in enumerate(found[:-1], start=1):
        _warn_of_another(number, model.activations[number - 1], above, given[number - 1].matrix)
    for (parts, _), layer in zip(found, given, strict=True):
        for target, value in zip(parts, (layer.matrix.T, layer.bias), strict=True):
            if target is not None and value is not None:
                target.copy_(value)
    return module


Parts = tuple[Any, Any]  # weight and bias of torch


def _chain(module: nn.Module, run: Run, x: Tensor) -> list[tuple[Parts, list[Call]]]:
    """Return the Linear layers in the order in which they run, each with the calls above it."""
    wanted, above = id(run.output), list[Call]()
    found: list[tuple[Parts, list[Call]]] = []
    for call in reversed(run.calls):
        if all(id(tensor) != wanted for tensor in tensors_in(call.result)):
            continue
        wanted = id(call.args[0])
        if call.name == "linear":
            bias = call.args[2] if len(call.args) > 2 else None
            found.append(((call.args[1], bias), above))
            above = []
        elif len(list(tensors_in([call.args, call.kwargs]))) == 1 or call.name == "prelu":
            above = [call, *above]  # an activation, or a call that leaves values as they are
        else:
            stands = call.where
            break
    else:
        weights = [parts[0] for parts, _ in found]
        tied = len({id(weight) for weight in weights}) < len(weights)
        if wanted == id(x) and not tied and all(weight.requires_grad for weight in weights):
            return found[::-1]
        stands = "a frozen layer, one that runs twice, or a call that no input reaches"
    raise DataError(
        f"a model of dense layers is written into a network that is such a chain, and "
        f"{type(module).__name__} has {stands} in its way."
    )


def _warn_of_another(
    number: int, activation: Activation, above: Sequence[Call], like: Tensor
) -> None:
    """Warn where a layer is followed by another map than in the model: a start all the same."""
    u = torch.linspace(-4, 4, 9 * activation.pre_units(like.shape[1]), device=like.device)
    u = u.to(like.dtype).reshape(9, -1)
    v = u.clone()
    for call in above:
        v = call.again(v)
    wanted = activation.forward(u)
    if v.shape != wanted.shape or not torch.allclose(v, wanted, rtol=1e-4, atol=1e-5):
        shown = " and ".join(call.name for call in above) or "nothing"
        processes.warn(
            f"layer {number} is followed by {activation!r} in the model, and by {shown} in the "
            "network: it computes something else, and is a start at best."
        )


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
