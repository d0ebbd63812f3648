"""Activations of torch: which of ours they are, where they bend, and which of them are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import (
    ELU,
    Arctan,
    Clipped,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Tanh,
)
from liftednet.activations.simplex import Grouped
from liftednet.layers.modules import Layout
from liftednet.validation import is_number

from .reader import Reader, Seen, reads
from .tracing import Call

_DECLARED = (
    "gelu", "silu", "mish", "elu", "celu", "selu", "softplus", "softsign", "log_sigmoid",
    "hardsigmoid", "softshrink", "tanhshrink", "hardswish",
)  # fmt: skip
_SMOOTH = 20.0  # beta u, from where torch's softplus may go on as u: it differs by less than 3e-9


def _is_smooth(call: Call) -> bool:
    """Say whether a softplus does not fall where it goes over to u."""
    beta, threshold = call.get(1, "beta", 1.0), call.get(2, "threshold", _SMOOTH)
    return bool(beta > 0 and threshold >= _SMOOTH)


def _declared(call: Call) -> Activation:
    """Return an activation declared by its forward map alone."""

    def declared(u: Tensor) -> Tensor:
        return cast(Tensor, call.again(u))

    declared.__name__ = call.name
    return FunctionActivation(declared)


def _clamp(call: Call) -> Activation | None:
    lowest, highest = call.get(1, "min"), call.get(2, "max")
    if lowest == 0 and highest is None:
        return ReLU()
    return Clipped(lowest, highest) if is_number(lowest) and is_number(highest) else None


def _leaky(call: Call) -> Activation | None:
    slope = call.get(1, "negative_slope", 0.01)
    return LeakyReLU(slope) if 0 < slope <= 1 else ReLU() if slope == 0 else None


def _softplus(call: Call) -> Activation | None:
    if not _is_smooth(call):
        return None
    return Softplus() if call.get(1, "beta", 1) == 1 else _declared(call)


_ACTIVATIONS: dict[str, Callable[[Call], Activation | None]] = {
    **dict.fromkeys(_DECLARED, _declared),
    "relu": lambda _: ReLU(),
    "relu6": lambda _: Clipped(0.0, 6.0),
    "hardtanh": lambda call: Clipped(call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)),
    "clamp": _clamp,
    "clip": _clamp,
    "leaky_relu": _leaky,
    "tanh": lambda _: Tanh(),
    "sigmoid": lambda _: Sigmoid(),
    "elu": lambda call: ELU() if call.get(1, "alpha", 1.0) == 1 else _declared(call),
    "softplus": _softplus,
    "atan": lambda _: Arctan(),
}


@reads(*_ACTIVATIONS)
def _activated(reader: Reader, call: Call) -> Seen | None:
    x = reader.rows(call.get(0, "input"))
    activation = None if x is None else _ACTIVATIONS[call.name](call)
    if x is None or activation is None:
        return None
    return Seen(reader.state(call, activation, x.expression), x.layout)


def _over_last(reader: Reader, call: Call) -> Seen | None:
    """Return what a softmax is taken of, where that is over a last axis of features."""
    tensor, dim = call.first("input", "dim")
    x = reader.rows(tensor)
    last = tensor.ndim - 1
    return None if x is None or dim not in (-1, last) or x.layout.axis == last else x


@reads("softmax")
def _softmax(reader: Reader, call: Call) -> Seen | None:
    x = _over_last(reader, call)
    if x is None:
        return None
    size = x.layout.shape[-1]
    over = Softmax() if size == x.layout.units else Grouped(Softmax(), size)
    return Seen(reader.state(call, over, x.expression), x.layout)


@reads("log_softmax")
def _log_softmax(reader: Reader, call: Call) -> Seen:
    found: Seen
    (found,), x = reader.curved(call), _over_last(reader, call)
    if x is not None:
        reader.log_softmax = found.expression, x.expression
    return found


# phi(u) + c u is nondecreasing from the steepest descent of phi on, so that the layer above sees
# z - c u. The steepest descents are -0.12890, -0.12899 (by tanh), -0.09984, -0.11253 and -0.5.
_DESCENTS = {"gelu": 0.13, "silu": 0.1, "mish": 0.113, "hardswish": 0.5}


@reads(*_DESCENTS)
def _split(reader: Reader, call: Call) -> Seen | None:
    x = reader.rows(call.get(0, "input"))
    if x is None:
        return None
    slope = _DESCENTS[call.name]

    def risen(u: Tensor) -> Any:
        return call.again(u) + slope * u

    risen.__name__ = f"{call.name}(u) + {slope} u"
    split = FunctionActivation(risen)
    z = reader.state(call, split, x.expression)
    return Seen(z - slope * x.expression, x.layout)


@reads("prelu")
def _prelu(reader: Reader, call: Call) -> Seen | None:
    """max(u, 0) - a max(-u, 0), with both parts as states and a as weights."""
    tensor, slope = call.first("input", "weight")
    x = reader.rows(tensor)
    if x is None or x.layout.axis != 0:
        return None
    up, down = (reader.state(call, ReLU(), u) for u in (x.expression, -x.expression))
    beside = (-1, *(1,) * (len(x.layout.shape) - 1)) if len(slope) > 1 else (1,)
    plain = Layout((1, *x.layout.shape))
    return Seen(up - reader.scaled(down, plain, beside, slope, None), x.layout)
