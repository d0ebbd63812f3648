"""Maps of torch that act unit by unit: the ends of phi', and of phi, on an interval.

Slopes are of both sides at a corner. Those of GELU, SiLU and Mish are the values of phi' where
phi'' = 0, rounded outward: GELU's at u = sqrt(2) in closed form, the others' by bisection.
phi'(u) + phi'(-u) = 1 for GELU and SiLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .units import Curve

Ends = tuple[Tensor, Tensor]

_GELU = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi) + 1e-15
_GELU_BY_TANH, _SILU, _MISH = 1.1289930687, 1.0998393202, 1.0884981613
_MISH_FALL = -0.1125261224
_SILU_TURN, _NEAR = 2.39935728051546767, 1e-6  # where phi'' = 0, and within which it is
# Below the least values, at u = -0.75, -1.28, -1.19 and -1.5.
_LEAST = {"gelu": -0.1701, "silu": -0.2785, "mish": -0.309, "hardswish": -0.375}
_OFF = 1e-14  # that functions of torch may err by in float64, relative


def _between(least: float, most: float) -> Callable[[Tensor, Tensor], Ends]:
    return lambda low, high: (torch.full_like(low, least), torch.full_like(high, most))


def _of(phi: Callable[[Tensor], Tensor], floor: float = -math.inf) -> Callable[..., Ends]:
    """Return the ends of values of a nondecreasing map; `floor` is below all of them."""

    def values(low: Tensor, high: Tensor) -> Ends:
        ends = [phi(x).nan_to_num(0.0, torch.inf, -torch.inf) for x in (low, high)]
        off = [_OFF * x.abs().nan_to_num(0.0, 0.0, 0.0) for x in ends]
        return (ends[0] - off[0]).clamp(min=floor), ends[1] + off[1]

    return values


def _rising(slope: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Ends]:
    """Return the ends of a slope that is nondecreasing, of a convex map."""

    def slopes(low: Tensor, high: Tensor) -> Ends:
        least, most = slope(low), slope(high)
        return (least * (1 - _OFF)), most * (1 + _OFF)

    return slopes


def _peaked(slope: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Ends]:
    """Return the ends of a nonnegative slope that rises up to 0 and falls from there."""

    def slopes(low: Tensor, high: Tensor) -> Ends:
        nearest = torch.maximum(low, -high).clamp(min=0)  # to 0
        farthest = torch.maximum(low.abs(), high.abs())
        return slope(farthest) * (1 - _OFF), slope(nearest) * (1 + _OFF)

    return slopes


def _steps(*parts: tuple[float, float, float]) -> Callable[[Tensor, Tensor], Ends]:
    """Return the ends of slopes that are constant between places, (from, to, slope)."""

    def slopes(low: Tensor, high: Tensor) -> Ends:
        least, most = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
        for first, last, slope in parts:
            met = (high >= first) & (low <= last)
            one = (low == high) & ((low == first) | (low == last))
            met = met & ((high > first) & (low < last) | one)
            least = torch.where(met, least.clamp(max=slope), least)
            most = torch.where(met, most.clamp(min=slope), most)
        return least, most

    return slopes


def _logistic_slope(u: Tensor) -> Tensor:
    falls = torch.exp(-u.abs())
    return falls / (1 + falls).square()


def _waved(
    slope: Callable[[Tensor], Tensor], least: float, most: float, turn: float
) -> Callable[[Tensor, Tensor], Ends]:
    """Return the ends of a slope that falls to its least at -turn and rises to its most at turn."""

    def slopes(low: Tensor, high: Tensor) -> Ends:
        ends = [slope(x) for x in (low, high)]
        off = [_OFF * (1 + x.abs()) for x in ends]
        bottom = (low < -turn + _NEAR) & (high > -turn - _NEAR)
        top = (low < turn + _NEAR) & (high > turn - _NEAR)
        return (
            torch.where(bottom, least, torch.minimum(ends[0] - off[0], ends[1] - off[1])),
            torch.where(top, most, torch.maximum(ends[0] + off[0], ends[1] + off[1])),
        )

    return slopes


def _gelu_slope(u: Tensor) -> Tensor:
    near = u.clamp(-40, 40)
    below: Tensor = torch.special.ndtr(u)
    return below + near * torch.exp(-near.square() / 2) / math.sqrt(2 * math.pi)


def _silu_slope(u: Tensor) -> Tensor:
    near = u.clamp(-700, 700)
    found: Tensor = near.sigmoid() * (1 + near * (-near).sigmoid())
    return found


def _bell(
    name: str, slopes: Callable[[Tensor, Tensor], Ends], phi: Callable[[Tensor], Tensor]
) -> Curve:
    """Return a map that falls from 0 to its least value and rises from there."""

    def values(low: Tensor, high: Tensor) -> Ends:
        ends = [phi(x).nan_to_num(0.0, math.inf, 0.0) for x in (low, high)]
        most = torch.maximum(*ends)
        return torch.where(low >= 0, ends[0], _LEAST[name]), most.clamp(min=0)

    return Curve(slopes, values)


LINE = Curve(_between(1.0, 1.0), lambda low, high: (low, high), True, True)
RELU = Curve(_steps((-math.inf, 0, 0.0), (0, math.inf, 1.0)), _of(torch.relu), True)
TANH = Curve(_peaked(lambda u: 4 * _logistic_slope(2 * u)), _of(torch.tanh))
SIGMOID = Curve(_peaked(_logistic_slope), _of(torch.sigmoid))
SOFTSIGN = Curve(_peaked(lambda u: 1 / (1 + u.abs()).square()), _between(-1.0, 1.0))
TANHSHRINK = Curve(_between(0.0, 1.0), lambda low, high: (low - 1, high + 1))
ATAN = Curve(_peaked(lambda u: 1 / (1 + u.square())), _of(torch.atan))


def _absolute(low: Tensor, high: Tensor) -> Ends:
    least = torch.maximum(low, -high).clamp(min=0)
    return least, torch.maximum(low.abs(), high.abs())


def _squares(low: Tensor, high: Tensor) -> Ends:
    least, most = _absolute(low, high)
    return least.square(), most.square()


def _exponential(_: Any) -> Curve:
    return Curve(_rising(torch.exp), _of(torch.exp, floor=0.0), True)


def clipped(lowest: float | None, highest: float | None) -> Curve:
    """Return min(max(u, l), h)."""
    low, high = (-math.inf if lowest is None else lowest), math.inf if highest is None else highest
    if low > high:  # as torch has it
        low = high
    return Curve(
        _steps((-math.inf, low, 0.0), (low, high, 1.0), (high, math.inf, 0.0)),
        lambda a, b: (a.clamp(low, high), b.clamp(low, high)),
        convex=high == math.inf,
        concave=low == -math.inf,
    )


def leaky(slope: Tensor | float) -> Curve:
    """Return u where u > 0, else a u, a one number or one for each unit."""
    a = torch.as_tensor(slope, dtype=torch.float64)

    def slopes(low: Tensor, high: Tensor) -> Ends:
        one = torch.ones_like(low)
        below, above = torch.where(low < 0, a, one), torch.where(high > 0, one, a)
        below = torch.where((low == 0) & (high == 0), a.expand_as(low), below)
        return torch.minimum(below, above), torch.maximum(below, above)

    def values(low: Tensor, high: Tensor) -> Ends:
        ends = [
            torch.where(x > 0, x, a * x).nan_to_num(0.0, math.inf, -math.inf) for x in (low, high)
        ]
        least = torch.where((low < 0) & (high > 0), torch.minimum(ends[0], ends[1].clamp(max=0)),
                            torch.minimum(*ends))  # fmt: skip
        return least, torch.maximum(*ends)

    return Curve(slopes, values, a <= 1, a >= 1)


def _elu(call: Any) -> Curve | None:
    alpha, scale, inside = (float(call.get(n, name, 1.0)) for n, name in
                            enumerate(("alpha", "scale", "input_scale"), start=1))  # fmt: skip
    if scale <= 0 or inside <= 0:
        return None
    steep = scale * alpha * inside * (1 + _OFF)
    convex = 0 <= alpha * inside <= 1

    def phi(u: Tensor) -> Tensor:
        return torch.where(u > 0, scale * u, scale * alpha * torch.expm1(inside * u.clamp(max=0)))

    if convex:

        def slope(u: Tensor) -> Tensor:
            return scale * alpha * inside * torch.exp(inside * u.clamp(max=0))

        def slopes(low: Tensor, high: Tensor) -> Ends:
            least = torch.where(low >= 0, scale, slope(low) * (1 - _OFF))
            return least, torch.where(high > 0, scale, slope(high) * (1 + _OFF))

        return Curve(slopes, _of(phi), True)
    rising = _of(phi) if alpha >= 0 else lambda low, high: (
        torch.full_like(low, -math.inf), torch.full_like(high, math.inf))  # fmt: skip
    return Curve(_between(min(0.0, steep), max(scale, steep)), rising)


def _celu(call: Any) -> Curve | None:
    alpha = float(call.get(1, "alpha", 1.0))
    if alpha <= 0:
        return None
    phi = lambda u: functional.celu(u, alpha)  # noqa: E731
    return Curve(_rising(lambda u: torch.exp(u.clamp(max=0) / alpha)), _of(phi, -alpha), True)


def _softplus(call: Any) -> Curve | None:
    """Return log(1 + exp(b u)) / b, which torch takes for u from a threshold t / b on.

    There it jumps by log(1 + exp(-t)) / b: known where that is less than rounding.
    """
    beta, threshold = float(call.get(1, "beta", 1)), float(call.get(2, "threshold", 20))
    if beta <= 0 or threshold <= 0:
        return None
    if math.log1p(math.exp(-threshold)) > threshold * torch.finfo(call.dtype).eps / 2:
        return None

    def slopes(low: Tensor, high: Tensor) -> Ends:
        least, most = torch.sigmoid(beta * low), torch.sigmoid(beta * high)
        return least * (1 - _OFF), torch.where(beta * high >= threshold, 1.0, most * (1 + _OFF))

    def phi(u: Tensor) -> Tensor:
        return u.clamp(min=0) + torch.log1p(torch.exp(-beta * u.abs())) / beta

    return Curve(slopes, _of(phi, 0.0), True)


def _gelu(call: Any) -> Curve:
    kind = call.kwargs.get("approximate", "none")
    slopes = _waved(_gelu_slope, 1 - _GELU, _GELU, math.sqrt(2))
    if kind == "tanh":
        slopes = _between(1 - _GELU_BY_TANH, _GELU_BY_TANH)
    return _bell("gelu", slopes, lambda u: functional.gelu(u, approximate=kind))


def _shrunk(call: Any) -> Curve | None:
    cut = float(call.get(1, "lambd", 0.5))
    phi = lambda u: functional.softshrink(u, cut)  # noqa: E731
    return Curve(_between(0.0, 1.0), _of(phi)) if cut >= 0 else None


def _power(call: Any) -> Curve | None:
    number = call.get(1, "exponent")
    if number == 1:
        return LINE
    return SQUARE if number == 2 else None


SQUARE = Curve(lambda low, high: (2 * low, 2 * high), _squares, True)


def _sine(low: Tensor, high: Tensor) -> Ends:
    inside = (low >= -math.pi / 2) & (high <= math.pi / 2)
    return torch.where(inside, 0.0, -1.0).to(low), torch.ones_like(low)


def _logarithm_of_sigmoid(u: Tensor) -> Tensor:
    return functional.logsigmoid(u)


CURVES: dict[str, Callable[[Any], Curve | None]] = {
    "relu": lambda _: RELU,
    "leaky_relu": lambda call: leaky(float(call.get(1, "negative_slope", 0.01))),
    "hardtanh": lambda call: clipped(call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)),
    "relu6": lambda _: clipped(0.0, 6.0),
    "tanh": lambda _: TANH,
    "sigmoid": lambda _: SIGMOID,
    "atan": lambda _: ATAN,
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
    "gelu": _gelu,
    "silu": lambda _: _bell(
        "silu", _waved(_silu_slope, 1 - _SILU, _SILU, _SILU_TURN), functional.silu),
    "mish": lambda _: _bell("mish", _between(_MISH_FALL, _MISH), functional.mish),
    # (2 u + 3) / 6 at -3 and 3
    "hardswish": lambda _: _bell("hardswish", _between(-0.5, 1.5), functional.hardswish),
    "hardsigmoid": lambda _: Curve(
        _between(0.0, 1 / 6 * (1 + _OFF)), _of(functional.hardsigmoid)),
    "softshrink": _shrunk,
    "log_sigmoid_forward": lambda _: Curve(
        _between(0.0, 1.0), _of(_logarithm_of_sigmoid), concave=True),
    "erf": lambda _: Curve(_between(0.0, 2 / math.sqrt(math.pi) * (1 + _OFF)), _of(torch.erf)),
    "sin": lambda _: Curve(_sine, _between(-1.0, 1.0)),
    "cos": lambda _: Curve(_between(-1.0, 1.0), _between(-1.0, 1.0)),
    "exp": _exponential,
    "abs": lambda _: Curve(_steps((-math.inf, 0, -1.0), (0, math.inf, 1.0)), _absolute, True),
    "pow": _power,
    "square": lambda _: SQUARE,
}  # fmt: skip
# Functions of Python in torch that are several calls beneath.
WHOLE = {"softsign": SOFTSIGN, "tanhshrink": TANHSHRINK}
