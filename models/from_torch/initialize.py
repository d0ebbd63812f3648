"""`initialize_`: a torch network that starts from lifted training."""

from __future__ import annotations

from typing import Any

from torch import nn

from liftednet.errors import DataError
from liftednet.export import initialize_ as initialize_from
from liftednet.losses import Loss

from ..methods import Minibatch
from .model import lift


def initialize_(
    network: nn.Module,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | None = None,
    passes: int = 1,
    **settings: Any,
) -> nn.Module:
    """Give a torch network weights of lifted training, in place, and return it.

    Either by training that very network on data (see `lift`), or from a fitted chain of dense
    layers such as a `LiftedMLP`, whose weights go into the Linear layers in the order in which the
    network runs them.
    """
    if hasattr(X, "weights") and hasattr(X, "activations"):
        return initialize_from(network, X)
    raise DataError("todo")
