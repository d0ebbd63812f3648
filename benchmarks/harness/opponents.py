"""What several scripts train beside ours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

Array = np.ndarray[Any, Any]


def dense_network(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return dense layers with an activation between them, as torch starts them."""
    layers = list[nn.Module]()
    for below, above in pairwise(sizes):
        layers += [nn.Linear(below, above), activation()]
    return nn.Sequential(*layers[:-1])


def by_ngboost(x: Array, y: Array, new: Array) -> tuple[Array, Array]:
    """Return means and deviations of NGBoost by its defaults."""
    from ngboost import NGBRegressor  # type: ignore[import-not-found,unused-ignore]

    found = NGBRegressor(verbose=False, random_state=0).fit(x, y).pred_dist(new)
    return found.loc, found.scale
