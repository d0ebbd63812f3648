"""Activations of the catalogue that compiled loops know: maps of single units, by a few numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.activations import smooth
from liftednet.activations.piecewise_linear import (
    Bounded,
    Clipped,
    Identity,
    LeakyReLU,
    PReLU,
    ReLU,
)
from liftednet.activations.smooth import Arctan, Sigmoid, Sine, Softplus, Tanh
from liftednet.compiled import refusal

if TYPE_CHECKING:
    from liftednet.activation import Activation

_FEW = 4_000  # entries up to which torch takes longer to be called than to compute
RAMP, SIGMOID, TANH, ARCTAN, SINE, SOFTPLUS, ELU, SOFTMAX = range(8)  # the last of rows
_CURVED = {
    Sigmoid: SIGMOID,
    Tanh: TANH,
    Arctan: ARCTAN,
    Sine: SINE,
    Softplus: SOFTPLUS,
    smooth.ELU: ELU,
}
_CENTERS = {SIGMOID: 0.5, SOFTPLUS: math.log(2.0)}


class LoopMap(NamedTuple):
    """phi of a single unit, cut off at low and high.

    Attributes:
        kind: which; a RAMP is max(u, alpha u).
        alpha: of a RAMP.
        low: the least value of phi.
        high: its largest.
    """

    kind: int
    alpha: float = 1.0
    low: float = -math.inf
    high: float = math.inf

    @property
    def center(self) -> float:
        """phi(0)."""
        return min(max(_CENTERS.get(self.kind, 0.0), self.low), self.high)


def loop_map(activation: Activation) -> LoopMap | None:
    """Return an activation as compiled loops know it, or None where they do not."""
    if isinstance(activation, Bounded):
        whole = loop_map(activation.inner)
        if whole is None:
            return None
        low, high = max(whole.low, activation.lower), min(whole.high, activation.upper)
        return LoopMap(whole.kind, whole.alpha, low, high)
    kind = type(activation)  # what a subclass declares is its own
    if kind in _CURVED:
        return LoopMap(_CURVED[kind])
    if kind is Identity or kind is ReLU:
        return LoopMap(RAMP, 1.0, -math.inf if kind is Identity else 0.0)
    if isinstance(activation, LeakyReLU) and kind is LeakyReLU:
        return LoopMap(RAMP, activation.alpha)
    if isinstance(activation, Clipped) and kind is Clipped:
        return LoopMap(RAMP, 1.0, activation.lower, activation.upper)
    if isinstance(activation, PReLU) and kind is PReLU and len(activation.slopes) == 1:
        (alpha,) = activation.slopes
        return LoopMap(RAMP, alpha) if alpha <= 1 else None
    return None


def at_ends(one: LoopMap, kind: torch.dtype) -> LoopMap:
    """Return a map with its ends as states of a type have them."""
    if kind is torch.float64:
        return one
    return LoopMap(one.kind, one.alpha, float(np.float32(one.low)), float(np.float32(one.high)))


def few(entries: int) -> bool:
    """Say whether compiled loops are faster than torch for so many entries of curved maps."""
    return entries <= _FEW


def compiled_prox(activation: Activation, w: Tensor, t: float | Tensor) -> Tensor | None:
    """Return the prox of an activation by a compiled loop, or None where there is none.

    Args:
        activation: of the catalogue, else there is none.
        w: (..., units).
        t: positive; a number, or one for every row of w.
    """
    kind = _CURVED.get(type(activation))
    if kind is None or not few(w.numel()) or refusal(w) is not None:
        return None
    from liftednet.compiled.maps import prox_rows

    given = w.detach().double().reshape(-1, w.shape[-1]).contiguous().numpy()
    weights = t.detach().double().numpy().ravel() if isinstance(t, Tensor) else np.array([t])
    if len(weights) not in (1, len(given)):
        return None
    v = np.empty_like(given)
    prox_rows(LoopMap(kind), given, weights, torch.finfo(w.dtype).eps ** 0.5, v)
    return torch.from_numpy(v).to(w.dtype).view(w.shape)
