"""`initialize_`: weights of lifted training in a torch network, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError
from liftednet.export import is_chain, refuse_standardized, require_model, to_torch
from liftednet.losses import CrossEntropy, Loss, SquaredError
from liftednet.samples import Weights
from liftednet.validation import as_tensor

from ..data import pair_of
from ..methods import Minibatch
from ..output import output_obstacle
from ..starts import AUTO
from .model import RATE, lift
from .tracing import Call, trace

_RATE, _DAMPING = 0.8, 3.0  # of the networks of starts_of_torch_networks.md, on held-out data


def initialize_(
    module: nn.Module,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | str | nn.Module | None = None,
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
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()`, its name, or
            torch's module; None for cross-entropy of integers and squared errors of floats.
        epochs: passes over the data.
        progress: whether to show a progress bar.
        settings: of `lift`, such as lam; `method` in place of `epochs`, start=None for one that
            begins with the weights that are there, refit_output=False for a last layer as trained,
            refit_output=True for an error where it cannot be fitted.

    Returns:
        The module.

    Raises:
        DataError: the network or the data cannot be used; of a model the first layer that does not
            fit, with both shapes. A network that computes something else than the model, by
            another activation, is a `FitWarning`.
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
    settings = {"start": AUTO, "method": _method(epochs, settings), **settings}
    loss = _plain_loss(X, y) if loss is None else loss
    lifted = lift(module, _example(X), loss=loss, show=False, **settings)
    if "refit_output" not in settings and not isinstance(X, DataLoader):
        lifted.refit_output = output_obstacle(lifted.network) is None
    lifted.fit(X, y, progress=progress)
    if lifted.interrupted:
        raise KeyboardInterrupt("training was interrupted: the network is as it was.")
    return lifted.write_()


def _plain_loss(X: Any, y: Any) -> Loss:
    """Return the loss of what y plainly is: integers are classes, floats are numbers."""
    if isinstance(X, DataLoader):
        _, y = pair_of(next(iter(X), None))
    found = as_tensor("y", y)
    if found.dtype == torch.bool:
        raise DataError(
            "y holds truth values: give loss=BinaryCrossEntropy() with y.float(), or "
            "CrossEntropy() with y.long()."
        )
    return SquaredError() if found.is_floating_point() else CrossEntropy()


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
    """Write a model's weights into the Linear layers of a network, in the order in which they run.

    Another network than the model is a start all the same, with a warning.
    """
    model = require_model(model)
    if not is_chain(model):
        raise DataError(
            "initialize_ writes dense layers that follow one another, and this "
            f"{type(model).__name__} is another graph: to_torch makes a module of it."
        )
    refuse_standardized(model)
    given = model.weights
    if any(map(is_lazy, module.parameters())):
        raise DataError("a Linear layer has no shape yet: call the network once first.")
    first, generator = given[0].matrix, torch.Generator().manual_seed(0)
    x = torch.randn(9, len(first), generator=generator, dtype=torch.float64).to(first)
    like = next(module.parameters(), first)
    calls, _ = trace(module, (x.to(like),))
    found = [call for call in calls if call.name == "linear"]
    _require_fits(found, given)
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        for number, (call, layer) in enumerate(zip(found, given, strict=True), start=1):
            for name, value in (("weight", layer.matrix.T), ("bias", layer.bias)):
                if value is not None and not _put(call, name, value.to(like)):
                    raise DataError(
                        f"the {name} of layer {number}, {call.place!r}, is frozen, or made of "
                        "others that cannot be found from it: it would not be that of the model."
                    )
            if any(_same(call, other) for other in found[: number - 1]):
                raise DataError(
                    f"layer {number}, {call.place!r}, runs twice: its weights would not be those "
                    "of the model."
                )
    except BaseException:
        module.load_state_dict(kept)
        raise
    logits, (_, output) = to_torch(model, logits=True)(x), trace(module, (x.to(like),))
    wanted = logits.to(like), model.activations[-1].forward(logits).to(like)
    if not any(_is_near(output, one) for one in wanted):
        maps = ", ".join(f"{activation!r}" for activation in model.activations)
        processes.warn(
            f"{type(module).__name__} computes something else than the model, whose activations "
            f"are {maps}: its weights are a start at best."
        )
    return module


def _is_near(found: Any, wanted: Tensor) -> bool:
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= 1e-4 * (1 + wanted.abs().max()))


def _same(call: Call, other: Call) -> bool:
    """Say whether two calls have one weight, or one module that makes it."""
    one, another = call.get(1, "weight"), other.get(1, "weight")
    made = not isinstance(one, nn.Parameter) and not isinstance(another, nn.Parameter)
    return one is another or (made and call.modules[-1][1] is other.modules[-1][1])


def _put(call: Call, name: str, value: Tensor) -> bool:
    """Write a weight or a bias of a call of linear, and say whether that could be done.

    Where a module makes it of other parameters, these are found: by the right inverse of a
    parametrization, under the mask of a pruned one, as norms and directions of a weight norm.
    """
    target: Any = call.get(1 if name == "weight" else 2, name)
    if isinstance(target, nn.Parameter):
        target.copy_(value)
        return target.requires_grad
    module: Any = call.modules[-1][1]
    if is_parametrized(module, name):
        try:
            setattr(module, name, value)
        except (NotImplementedError, RuntimeError, ValueError):  # orthogonal ones, and without one
            return False
        return True
    parts = {end: getattr(module, f"{name}_{end}", None) for end in ("orig", "g", "v")}
    if (whole := parts["orig"]) is not None:
        whole.copy_(value)
        return True
    if (size := parts["g"]) is None or (direction := parts["v"]) is None:
        return False
    size.copy_(value.norm(dim=[n for n, x in enumerate(size.shape) if x == 1], keepdim=True))
    direction.copy_(value)
    return True


def _require_fits(found: Sequence[Call], given: Sequence[Weights]) -> None:
    """Refuse the first layer that does not fit, with both shapes."""
    for number, (call, layer) in enumerate(zip_longest(found, given), start=1):
        if call is None or layer is None:
            raise DataError(
                f"the network has {len(found)} torch.nn.Linear layers and the model {len(given)}: "
                f"layer {number} has no counterpart."
            )
        parts = call.get(1, "weight"), call.get(2, "bias")
        wanted = {"weight": layer.matrix.T, "bias": layer.bias}
        for (part, value), target in zip(wanted.items(), parts, strict=True):
            shape, needed = (None if x is None else tuple(x.shape) for x in (target, value))
            if shape != needed:
                raise DataError(
                    f"the {part} of layer {number}, {call.place!r}, must have shape "
                    f"{needed} to take the model's, got {shape}."
                )
