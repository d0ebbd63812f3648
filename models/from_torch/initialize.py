"""`initialize_`: weights of lifted training in a torch network, in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from liftednet.errors import DataError
from liftednet.losses import CrossEntropy, Loss, SquaredError
from liftednet.validation import as_tensor

from ..data import pair_of
from ..methods import Minibatch
from ..output import output_obstacle
from ..starts import AUTO
from .model import RATE, lift

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

    Its matrices and kernels are drawn anew, with a last bias by which outputs are right in the
    mean, and the network is trained on data, as `lift` does it, which goes on from the weights that
    are there; then the last layer, which may be one for every step, is fitted to all samples by one
    convex problem, see `refit_output` of `Lifted`. It stays as trained for a DataLoader, for a loss
    with states of its own, such as Huber, and where the network does not end with one Linear, alone
    with its weights: with a convolution, or two whose outputs are added. Where anything fails, or
    is interrupted, nothing has been written.

    Args:
        module: the network.
        X: what the network takes, on any scale; or a DataLoader of pairs (X, y).
        y: as the loss takes it; None for a DataLoader.
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()`, its name, or
            torch's module; None for cross-entropy of integers and squared errors of floats, which
            a line says.
        epochs: passes over the data.
        progress: whether to show a progress bar.
        settings: of `lift`, such as lam; `method` in place of `epochs`, start=None for one that
            begins with the weights that are there, refit_output=False for a last layer as trained,
            refit_output=True for an error where it cannot be fitted.

    Returns:
        The module.

    Raises:
        DataError: the network or the data cannot be used.
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
        kind = type(module).__name__
        raise DataError(f"initialize_(network, X, y) writes into a torch.nn.Module, got {kind}.")
    if any(hasattr(X, x) for x in ("weights", "activations", "__sklearn_is_fitted__")):
        raise DataError(
            f"initialize_ trains on data, and {type(X).__name__} is a model: to_torch(model) makes "
            "a module of its weights, whose state_dict() another network of these layers loads."
        )
    settings = {"start": AUTO, "method": _method(epochs, settings), **settings}
    if loss is None:
        loss = _plain_loss(X, y)
        sys.stdout.write(f"initialize_: {loss!r}, by the type of y; another is given by loss=\n")
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
