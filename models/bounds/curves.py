"""Maps of one unit: how they bend, the ends of phi' and phi on intervals, and lines beside them.

Between two knots a `Curve` is convex, concave or linear. So phi' is extreme at the ends of an
interval or on a side of a knot; phi at an end, at a knot, or where phi' = 0; and the least
phi(u) - s u at an end, at a knot, or, where phi is convex, at the one point whose derivative is s.
All ends are moved outwards by more than rounding can take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.power import Power

Array = np.ndarray[Any, np.dtype[np.float64]]
Ends = tuple[Tensor, Tensor]
Line = tuple[float, float]  # slope and value at 0

_OFF = 1e-14  # that functions of torch may err by in float64, relative
_ROUNDING = 1e-12  # of lines, relative: thousands of units in the last place
_HALVINGS = 20  # of the way to a tangent, whose own error counts


@dataclass(frozen=True, eq=False)
class Curve:
    """A continuous map phi of one unit, and how it bends.

    Attributes:
        forward: phi, of a tensor in float64.
        slope: phi', of a tensor; at a knot one of both sides.
        knots: points between which the sign of phi'' is one, in order.
        signs: 1 where phi is convex, -1 where concave, 0 where linear, one more than knots.
        turns: where else phi' is 0.
        off: what phi and phi' may err by beside 1e-14 of themselves.
        window: inputs of which this is known; of others, the ends of phi' and phi are -1 and 1.
        atom: phi(u) of CVXPY, for a smooth one that is convex or concave.

    Example:
        >>> import torch
        >>> from liftednet.models.bounds.curves import RELU, TANH
        >>> RELU.pieces(-1.0, 3.0), RELU.convex, RELU.concave
        ([-1.0, 0.0, 3.0], True, False)
        >>> one = torch.ones(1).double()
        >>> slopes, least, most = TANH.beside(-one, 2 * one)
        >>> round(least[0, 0].item(), 4), round(most[0, 0].item(), 4)  # of the flat lines
        (-0.7616, 0.964)
    """

    forward: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    knots: tuple[float, ...] = ()
    signs: tuple[int, ...] = (1,)
    turns: tuple[float, ...] = ()
    off: float = 0.0
    window: Line = (-math.inf, math.inf)
    atom: Callable[[Any], Any] | None = None
    sides: Array = field(init=False)
    marks: tuple[Line, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Take the slopes at both sides of knots, (2, knots), and values at knots and turns."""
        knots = torch.tensor(self.knots, dtype=torch.float64)
        aside = [torch.nextafter(knots, torch.full_like(knots, x)) for x in (-torch.inf, torch.inf)]
        object.__setattr__(self, "sides", np.stack([self.slope(x).numpy() for x in aside]))
        at = (*self.knots, *self.turns)
        values = self.forward(torch.tensor(at, dtype=torch.float64)).tolist()
        object.__setattr__(self, "marks", tuple(zip(at, values, strict=True)))

    @property
    def piecewise_linear(self) -> bool:
        """Whether it is linear between all knots."""
        return not any(self.signs)

    @cached_property
    def convex(self) -> bool:
        """Whether it is convex."""
        return self._bends_one_way(1)

    @cached_property
    def concave(self) -> bool:
        """Whether it is concave."""
        return self._bends_one_way(-1)

    def _bends_one_way(self, sign: int) -> bool:
        known = self.window[1] == math.inf and all(sign * s >= 0 for s in self.signs)
        return known and bool((sign * np.diff(self.sides, axis=0) >= 0).all())

    # Ends on intervals, of many units at once.

    def linear_between(self, low: Tensor, high: Tensor) -> Tensor:
        """Say where it is linear on [l, h]."""
        knots = torch.tensor(self.knots, dtype=torch.float64)
        first, last = torch.bucketize(low, knots, right=True), torch.bucketize(high, knots)
        return (first == last) & (torch.tensor(self.signs)[first] == 0)

    def slopes(self, low: Tensor, high: Tensor) -> Ends:
        """Return the least and the largest phi' on [l, h], of both sides where that is a point."""
        down, up = torch.full_like(low, -torch.inf), torch.full_like(low, torch.inf)
        point = low == high
        ends = (
            self.slope(torch.nextafter(low, torch.where(point, down, up))),
            self.slope(torch.nextafter(high, torch.where(point, up, down))),
        )
        least, most = torch.minimum(*ends), torch.maximum(*ends)
        for knot, *sides in zip(self.knots, *self.sides.tolist(), strict=True):
            inside = (low < knot) & (knot < high)
            least = torch.where(inside, least.clamp(max=min(sides)), least)
            most = torch.where(inside, most.clamp(min=max(sides)), most)
        loose = ~self.linear_between(low, high)
        least = least - loose * (_OFF * least.abs().clamp(max=1e300) + self.off)
        most = most + loose * (_OFF * most.abs().clamp(max=1e300) + self.off)
        return self._in_window(low, high, least, most)

    def values(self, low: Tensor, high: Tensor) -> Ends:
        """Return the least and the largest phi on [l, h]."""
        # 0 times infinity is 0 in all that are here
        ends = [self.forward(u).nan_to_num(0.0, torch.inf, -torch.inf) for u in (low, high)]
        least, most = torch.minimum(*ends), torch.maximum(*ends)
        for at, value in self.marks:
            inside = (low < at) & (at < high)
            least = torch.where(inside, least.clamp(max=value), least)
            most = torch.where(inside, most.clamp(min=value), most)
        if not self.piecewise_linear:
            least = least - (_OFF * least.abs() + self.off).nan_to_num(posinf=0.0)
            most = most + (_OFF * most.abs() + self.off).nan_to_num(posinf=0.0)
        return self._in_window(low, high, least, most)

    def beside(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return slopes s of lines, and the ends of phi(u) - s u on [l, h], (..., 4) each.

        Slopes are 0, that of the chord, and phi' at both ends.
        """
        down, up = torch.full_like(low, -torch.inf), torch.full_like(low, torch.inf)
        ends = [torch.nextafter(low, up), torch.nextafter(high, down)]
        slopes = torch.stack([torch.zeros_like(low), self.chords(low, high),
                              *map(self.slope, ends)], -1)  # fmt: skip
        return slopes, *self.extremes(slopes, low[..., None], high[..., None])

    def chords(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the slopes of the lines through both ends of [l, h]."""
        rise, width = self.forward(high) - self.forward(low), high - low
        return torch.where(width > 0, rise / width, self.slope(low))

    def extremes(self, slopes: Tensor, low: Tensor, high: Tensor) -> Ends:
        """Return the least and the largest phi(u) - s u on [l, h], rounded outwards.

        Between knots phi' is monotone, and so there is one point at most where it is s.
        """
        at = [low, high, *(torch.full_like(low, x).clamp(low, high) for x in self.knots)]
        values = [self.forward(u) - slopes * u for u in at]
        least, most = torch.stack(values).aminmax(dim=0)
        regions = pairwise((-math.inf, *self.knots, math.inf))
        for sign, (first, last) in zip(self.signs, regions, strict=True):
            left, right = low.clamp(min=first).minimum(high), high.clamp(max=last).maximum(low)
            if not sign or not bool((left < right).any()):
                continue
            left, right = (x.expand(slopes.shape) for x in (left, right))
            for _ in range(_HALVINGS):
                middle = (left + right) / 2
                before = sign * (self.slope(middle) - slopes) < 0
                left, right = torch.where(before, middle, left), torch.where(before, right, middle)
            middle = (left + right) / 2
            value = self.forward(middle) - slopes * middle
            off = (self.slope(middle) - slopes).abs() * (right - left) / 2
            least, most = torch.minimum(least, value - off), torch.maximum(most, value + off)
        largest = torch.maximum(*(self.forward(u).abs() for u in (low, high)))
        farthest = torch.maximum(low.abs(), high.abs())
        rounding = _ROUNDING * (largest + slopes.abs() * farthest) + self.off
        return least - rounding, most + rounding

    def _in_window(self, low: Tensor, high: Tensor, least: Tensor, most: Tensor) -> Ends:
        if self.window[1] == math.inf:
            return least, most
        inside = (low >= self.window[0]) & (high <= self.window[1])
        return torch.where(inside, least, -1.0), torch.where(inside, most, 1.0)

    def of(self, *given: Array, function: str = "forward") -> Any:
        """Return phi, or phi' by function="slope", or another function of tensors, of arrays."""
        tensors = (torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)) for x in given)
        found = getattr(self, function)(*tensors)
        return (torch.stack(found) if isinstance(found, tuple) else found).numpy()

    # One interval, whose ends are finite.

    def pieces(self, lower: float, upper: float) -> list[float]:
        """Return both ends, and in between the knots, in order.

        Raises:
            DeclarationError: an end is not in the window.
        """
        if lower < self.window[0] or upper > self.window[1]:
            raise DeclarationError(
                f"a wave over {lower:g} to {upper:g} cannot stand in an optimization problem: from "
                f"{self.window[0]:.4g} to {self.window[1]:.4g} it is known how it bends. Give a "
                "smaller box."
            )
        return [lower, *(x for x in self.knots if lower < x < upper), upper]

    def chord(self, lower: float, upper: float) -> Line:
        """Return the line through both ends of an interval."""
        low, high = self.of(np.array([lower, upper])).tolist()
        slope = (high - low) / (upper - lower) if upper > lower else 0.0
        return slope, low - slope * lower


# What they are.


def _falls(u: Tensor) -> Tensor:
    """Return s (1 - s) of the logistic s."""
    falls = torch.exp(-u.abs())
    return falls / (1 + falls).square()


def clipped(lowest: float | None, highest: float | None) -> Curve:
    """Return min(max(u, l), h)."""
    low, high = (-math.inf if lowest is None else lowest), math.inf if highest is None else highest
    low = min(low, high)  # as torch has it
    knots = tuple(end for end in (low, high) if math.isfinite(end) and low < high)
    return Curve(
        lambda u: u.clamp(low, high), lambda u: ((u > low) & (u < high)).double(),
        knots, (0,) * (len(knots) + 1),
    )  # fmt: skip


def leaky(slope: float) -> Curve:
    """Return u where u > 0, else a u."""
    return Curve(
        lambda u: torch.where(u > 0, u, slope * u if slope else 0.0),
        lambda u: torch.where(u > 0, torch.ones_like(u), slope), (0.0,), (0, 0),
    )  # fmt: skip


LINE = clipped(None, None)
RELU = clipped(0.0, None)
TANH = Curve(torch.tanh, lambda u: 4 * _falls(2 * u), (0.0,), (1, -1))
SIGMOID = Curve(torch.sigmoid, _falls, (0.0,), (1, -1))
SOFTSIGN = Curve(
    lambda u: torch.where(u.isinf(), u.sign(), u / (1 + u.abs())),
    lambda u: 1 / (1 + u.abs()).square(), (0.0,), (1, -1),
)  # fmt: skip
TANHSHRINK = Curve(lambda u: u - u.tanh(), lambda u: u.tanh().square(), (0.0,), (-1, 1), off=_OFF)
ATAN = Curve(torch.atan, lambda u: 1 / (1 + u.square()), (0.0,), (1, -1))
ERF = Curve(torch.erf, lambda u: 2 / math.sqrt(math.pi) * torch.exp(-u.square()), (0.0,), (1, -1))
LOGSIGMOID = Curve(
    functional.logsigmoid, lambda u: torch.sigmoid(-u), (), (-1,), atom=lambda u: -cp.logistic(-u)
)
ABSOLUTE = Curve(torch.abs, lambda u: 2 * (u > 0).double() - 1, (0.0,), (0, 0))
SQUARE = Curve(torch.square, lambda u: 2 * u, (), (1,), (0.0,), atom=lambda u: cp.square(u))
EXPONENTIAL = Curve(torch.exp, torch.exp, atom=lambda u: cp.exp(u))
HARDSIGMOID = Curve(
    functional.hardsigmoid, lambda u: (u.abs() < 3).double() / 6,
    (-3.0, 3.0), (0, 0, 0),
)  # fmt: skip
SINE = Curve(
    torch.sin, torch.cos, (0.0,), (1, -1), (-math.pi / 2, math.pi / 2), _OFF, (-math.pi, math.pi)
)
COSINE = Curve(
    torch.cos, lambda u: -torch.sin(u), (-math.pi / 2, math.pi / 2), (1, -1, 1), (0.0,), _OFF,
    (-math.pi, math.pi),
)  # fmt: skip

# These fall from 0 to a least value and rise from there. Where phi'' or phi' is 0: roots to 18
# digits by bisection, for GELU of 2 - u^2.


def _gelu_slope(u: Tensor) -> Tensor:
    near = u.clamp(-40, 40)
    below: Tensor = torch.special.ndtr(u)
    return below + near * torch.exp(-near.square() / 2) / math.sqrt(2 * math.pi)


def _gelu_slope_by_tanh(u: Tensor) -> Tensor:
    near, c = u.clamp(-40, 40), math.sqrt(2 / math.pi)
    t = torch.tanh(c * (near + 0.044715 * near**3))
    return (1 + t + near * (1 - t.square()) * c * (1 + 0.134145 * near.square())) / 2


def _silu_slope(u: Tensor) -> Tensor:
    near = u.clamp(-700, 700)
    return near.sigmoid() * (1 + near * (-near).sigmoid())


def _mish_slope(u: Tensor) -> Tensor:
    near = u.clamp(-700, 700)
    t = functional.softplus(near, threshold=40).tanh()
    return t + near * (1 - t.square()) * near.sigmoid()


GELU = Curve(
    functional.gelu, _gelu_slope, (-math.sqrt(2), math.sqrt(2)), (-1, 1, -1),
    (-0.751791524693564457,), _OFF,
)  # fmt: skip
GELU_BY_TANH = Curve(
    lambda u: functional.gelu(u, approximate="tanh"), _gelu_slope_by_tanh,
    (-1.41850400879082836, 1.41850400879082836), (-1, 1, -1), (-0.752461422071016259,), _OFF,
)  # fmt: skip
SILU = Curve(
    functional.silu, _silu_slope, (-2.39935728051546767, 2.39935728051546767), (-1, 1, -1),
    (-1.27846454276107380,), _OFF,
)  # fmt: skip
MISH = Curve(
    functional.mish, _mish_slope, (-2.25637639636079312, 1.49057117948542846), (-1, 1, -1),
    (-1.19243121451549521,), _OFF,
)  # fmt: skip
HARDSWISH = Curve(
    functional.hardswish,
    lambda u: torch.where(u > 3, 1.0, torch.where(u < -3, 0.0, (2 * u + 3) / 6)),
    (-3.0, 3.0), (0, 1, 0), (-1.5,), _OFF,
)  # fmt: skip


# By the options of a call.


def _elu(call: Any) -> Curve | None:
    alpha, scale, inside = (float(call.get(n, name, 1.0)) for n, name in
                            enumerate(("alpha", "scale", "input_scale"), start=1))  # fmt: skip
    return _exponential_below(scale, scale * alpha, inside) if scale > 0 and inside > 0 else None


def _celu(call: Any) -> Curve | None:
    alpha = float(call.get(1, "alpha", 1.0))
    return _exponential_below(1.0, alpha, 1 / alpha) if alpha > 0 else None


def _exponential_below(scale: float, alpha: float, inside: float) -> Curve:
    """Return scale u where u > 0, else alpha (exp(inside u) - 1)."""
    return Curve(
        lambda u: torch.where(u > 0, scale * u, alpha * torch.expm1(inside * u.clamp(max=0))),
        lambda u: torch.where(u > 0, scale, alpha * inside * torch.exp(inside * u.clamp(max=0))),
        (0.0,), (int(np.sign(alpha)), 0),
    )  # fmt: skip


def _softplus(call: Any) -> Curve | None:
    """Return log(1 + exp(b u)) / b, which torch takes for u from a threshold t / b on.

    There it jumps by log(1 + exp(-t)) / b: known where that is less than rounding.
    """
    beta, threshold = float(call.get(1, "beta", 1)), float(call.get(2, "threshold", 20))
    if beta <= 0 or threshold <= 0:
        return None
    if math.log1p(math.exp(-threshold)) > threshold * torch.finfo(call.dtype).eps / 2:
        return None
    return Curve(
        lambda u: u.clamp(min=0) + torch.log1p(torch.exp(-beta * u.abs())) / beta,
        lambda u: torch.sigmoid(beta * u), atom=lambda u: cp.logistic(beta * u) / beta,
    )  # fmt: skip


def _shrunk(call: Any) -> Curve:
    cut = float(call.get(1, "lambd", 0.5))
    return LINE if cut == 0 else Curve(
        lambda u: functional.softshrink(u, cut), lambda u: (u.abs() > cut).double(),
        (-cut, cut), (0, 0, 0),
    )  # fmt: skip


def mean_of_power(power: Power) -> Curve:
    """Return the mean of one target of a power: convex up to exponents of 1, concave from there.

    Beyond the answers that training has it is constant, as predictions are.
    """
    ends = torch.stack([power.lowest, power.highest]).flatten()
    inside = ends[0] + (ends[1] - ends[0]) * ends.new_tensor([1e-9, 1 - 1e-9])
    sizes = power.mean(ends).abs().max(), power.mean_slopes(inside).max()
    sign = -1 if float(power.exponent) > 1 else 1
    two = bool(power.lowest < power.highest)
    return Curve(
        power.mean, power.mean_slopes, tuple(ends.tolist()) if two else (),
        (0, sign, 0) if two else (sign,), off=_ROUNDING * float(max(sizes)),
    )  # fmt: skip


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
    "gelu": lambda call: (
        GELU_BY_TANH if call.kwargs.get("approximate", "none") == "tanh" else GELU),
    "silu": lambda _: SILU,
    "mish": lambda _: MISH,
    "hardswish": lambda _: HARDSWISH,
    "hardsigmoid": lambda _: HARDSIGMOID,
    "softshrink": _shrunk,
    "log_sigmoid_forward": lambda _: LOGSIGMOID,
    "erf": lambda _: ERF,
    "sin": lambda _: SINE,
    "cos": lambda _: COSINE,
    "exp": lambda _: EXPONENTIAL,
    "abs": lambda _: ABSOLUTE,
    "pow": lambda call: {1: LINE, 2: SQUARE}.get(call.get(1, "exponent")),
    "square": lambda _: SQUARE,
    "clamp": lambda call: clipped(call.get(1, "min"), call.get(2, "max")),
    "clamp_min": lambda call: clipped(call.get(1, "min"), None),
    "clamp_max": lambda call: clipped(None, call.get(1, "max")),
    "softsign": lambda _: SOFTSIGN,
    "tanhshrink": lambda _: TANHSHRINK,
}  # fmt: skip
WHOLE = ("softsign", "tanhshrink")  # functions of Python in torch that are several calls beneath
