"""How steep torch's own maps are, for `certify`: the least and the largest phi', proven.

The bounds of GELU, SiLU and Mish are the values of phi' where phi'' = 0, rounded outward: GELU's at
u = sqrt(2) in closed form, the others' by bisection. phi'(u) + phi'(-u) = 1 for GELU and SiLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .recording import Call

Slopes = tuple[float, float]

_GELU = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi) + 1e-15
_GELU_BY_TANH, _SILU = 1.1289930687, 1.0998393202
_SELU = 1.0507009873554805 * 1.6732632423543772  # its scale times its alpha, at 0 from below
_SMOOTH = 20.0  # beta u, from where torch's softplus may go on as u: it differs by less than 3e-9


def _of_exponential(call: Call) -> Slopes:
    alpha = _option(call, 1, "alpha", 1.0)
    return min(0.0, alpha), max(1.0, alpha)  # alpha exp(u) below 0, 1 above


def _of_random_slope(call: Call) -> Slopes:
    middle = (_option(call, 1, "lower", 1 / 8) + _option(call, 2, "upper", 1 / 3)) / 2  # in eval
    return min(middle, 1.0), max(middle, 1.0)


def _of_softplus(call: Call) -> Slopes | None:
    beta, threshold = _option(call, 1, "beta", 1.0), _option(call, 2, "threshold", _SMOOTH)
    return (0.0, 1.0) if beta > 0 and threshold >= _SMOOTH else None  # it jumps at a lower one


def _of_gelu(call: Call) -> Slopes:
    by_tanh = call.kwargs.get("approximate", "none") == "tanh"
    return _about(_GELU_BY_TANH if by_tanh else _GELU)


def _about(largest: float) -> Slopes:
    return 1 - largest, largest


_SLOPES: dict[str, Callable[[Call], Slopes | None]] = {
    "gelu": _of_gelu,
    "silu": lambda _: _about(_SILU),
    "mish": lambda _: (-0.1125261224, 1.0884981613),
    "elu": _of_exponential,
    "celu": lambda call: (0.0, 1.0) if _option(call, 1, "alpha", 1.0) > 0 else None,
    "rrelu": _of_random_slope,
    "selu": lambda _: (0.0, _SELU),
    "softplus": _of_softplus,
    "softsign": lambda _: (0.0, 1.0),
    "log_sigmoid": lambda _: (0.0, 1.0),
    "hardsigmoid": lambda _: (0.0, 1 / 6),
    "softshrink": lambda _: (0.0, 1.0),
    "tanhshrink": lambda _: (0.0, 1.0),
    "hardswish": lambda _: (-0.5, 1.5),  # (2 u + 3) / 6 at -3 and 3
}


def slopes_of(call: Call) -> Slopes | None:
    """Return the ends of the derivative of an elementwise map of torch, None where none are known.

    Where phi has a corner they are those of both sides.
    """
    known = _SLOPES.get(call.name)
    return None if known is None else known(call)


def _option(call: Call, position: int, name: str, default: float) -> float:
    given = call.args[position] if position < len(call.args) else call.kwargs.get(name, default)
    return float(given)
