"""Linear networks as the `Forward` of a training, which tests of its solvers share."""

from typing import Any

import torch
from torch import Tensor

from liftednet.activations import Identity
from liftednet.divergences import Divergence, tight
from liftednet.solvers.gauss_newton.objective import Forward, Target


def target(loss: Divergence, y: Tensor, weight: float | Tensor = 1.0) -> Target:
    """Return targets of one row for each sample, all of which count."""
    return Target(loss, y[:, None], torch.ones(len(y), 1, dtype=torch.bool), weight)


def linear(x: Tensor, y: Tensor, pull: float, loss: Any = None, weight: Any = 1.0) -> Forward:
    """u = X W, of which every output has weights of its own."""

    def layers(weights: Any, data: Any) -> Any:
        u = data[0] @ weights[0]
        return (u[:, None],), [(data[0], u)]

    targets = (target(loss or tight(Identity()), y, weight),)
    pulls = torch.full((x.shape[1], y.shape[1]), pull, dtype=torch.float64)
    return Forward(lambda w, d: layers(w, d)[0], (x,), targets, (pulls,), layers)
