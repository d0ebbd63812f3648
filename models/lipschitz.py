"""Bounds on the norms of weights under which a feedforward network is Lipschitz on raw data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from liftednet.errors import DeclarationError
from liftednet.layers.expression import Input, Parameter
from liftednet.network import Network
from liftednet.penalties import Penalty, SpectralNorm

from .standardization import Standardization

_ROUNDING = 1e-9  # that `certify` may add to a product of norms


def refuse_unbounded(network: Network) -> None:
    """Raise `DeclarationError` where an activation has no Lipschitz constant."""
    for state in network.states:
        if state.activation.lipschitz is None:
            raise DeclarationError(
                f"lipschitz needs activations with a Lipschitz constant, and {state.activation!r} "
                "has none."
            )


def in_proportion(standardization: Standardization) -> Standardization:
    """Return the standardization with one scale for all features of an input.

    Distances between raw samples then are those between standardized ones, times that scale.
    """
    moments = {
        variable: found.in_proportion if isinstance(variable, Input) else found
        for variable, found in standardization.moments.items()
    }
    return replace(standardization, moments=moments)


def bounded(
    penalties: Mapping[Parameter, Penalty],
    network: Network,
    standardization: Standardization,
    lipschitz: float,
) -> dict[Parameter, Penalty]:
    """Return penalties with bounds on singular values whose product makes a chain Lipschitz.

    |f(x) - f(x')|_2 <= scale_y (prod_l |W_l|_2 lip(phi_l)) / scale_x |x - x'|_2, and so every
    layer has the same share of the bound, in the units of training.

    Args:
        penalties: of the weights.
        network: a chain of dense layers.
        standardization: of its input and of its targets, in proportion.
        lipschitz: of the scores, in units of the targets over those of the inputs.
    """
    bound = lipschitz * (1 - _ROUNDING)
    for variable, moments in standardization.moments.items():
        scale = float(moments.scale.max())
        bound *= scale if isinstance(variable, Input) else 1 / scale
    steepest = [state.activation.lipschitz or 1.0 for state in network.states]
    each = (bound / math.prod(steepest)) ** (1 / len(penalties))
    return {weights: penalty + SpectralNorm(each) for weights, penalty in penalties.items()}
