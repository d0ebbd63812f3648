"""What calls of torch make of units: the short list of those whose bounds are structural.

Moves of entries act on numbers of units; linear calls are matrices over them; maps of one unit
stand in `curves`; softmax, maxima and products have bounds of their own. An index, a mask or a
whole number that depends on the inputs makes what it chooses unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.power import Power
from liftednet.validation import is_number

from .curves import CURVES, SQUARE, WHOLE, Curve, leaky, mean_of_power
from .intervals import EPS, OTHER
from .tensors import Call, Followed, Walk

Rule = Callable[[Walk, Call], Any]
RULES: dict[str, Rule] = {}
# Functions of Python that are read as one call, and what has their shape.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(WHOLE, torch.empty_like),
    "nearest_in_polyhedron": lambda rows, u, *_: torch.empty_like(u),
    "power_mean": lambda t, _: torch.empty_like(t),
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register what operators of torch make of units, by their names without overloads."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return register


# Maps of one unit.


def _curved(
    walk: Walk, x: Any, *curves: Curve | None, which: Tensor | None = None
) -> Tensor | None:
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves) or not isinstance(x, Followed):
        return None
    return walk.units.bent(x.units.flatten(), *known, which=which).reshape(x.shape)


@rule(*CURVES)
def _unit_by_unit(walk: Walk, call: Call) -> Tensor | None:
    options = [x for x in (*call.args[1:], *call.kwargs.values()) if not isinstance(x, str)]
    if not all(x is None or isinstance(x, bool) or is_number(x) for x in options):
        return None
    return _curved(walk, call.args[0], CURVES[call.name](call))


@rule("_prelu_kernel", "prelu")
def _parametric(walk: Walk, call: Call) -> Tensor | None:
    """The slope a of every channel, of u where u > 0, else a u."""
    x, slope = call.args[:2]
    a = walk.fixed(slope)
    if a is None or not isinstance(x, Followed):
        return None
    slopes, which = a.double().expand(x.shape).flatten().unique(return_inverse=True)
    return _curved(walk, x, *map(leaky, slopes.tolist()), which=which)


@rule("power_mean")
def _of_powers(walk: Walk, call: Call) -> Tensor | None:
    """The mean of targets of a power, each output by a curve of its own."""
    x, parts = call.args[0], walk.fixed(call.args[1])
    if parts is None:
        return None
    curves = [mean_of_power(Power(*part)) for part in parts.double().T]
    which = torch.arange(len(curves)).expand(x.shape).flatten()
    return _curved(walk, x, *curves, which=which)


# Moves of entries.

# Where what is put somewhere stands; whole numbers elsewhere are places.
_VALUES = {"index_put": 2, "scatter": 3, "slice_scatter": 1, "select_scatter": 1}


@rule(
    "clone", "_unsafe_view", "index_select", "gather", "take", "cat", "stack", "flip", "roll",
    "repeat", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "slice_scatter", "select_scatter", "index", "scatter", "copy",
    "_to_copy", "lift_fresh_copy", "pixel_shuffle", "pixel_unshuffle", "contiguous",
    "expand_copy", "view_copy", "index_put",
)  # fmt: skip
def _moved(walk: Walk, call: Call) -> Tensor | None:
    """The call itself, on numbers of units in place of the entries."""
    added = call.name == "index_put" and bool(call.get(3, "accumulate", False))
    if call.kwargs.get("reduce") is not None or added:
        return None
    if call.name in ("_to_copy", "copy"):
        units = walk.numbers(call.args[call.name == "copy"])
        return units.expand(call.args[0].shape) if call.name == "copy" else units
    args = list(call.args)
    if call.name in ("cat", "stack"):
        args[0] = [walk.numbers(x) for x in args[0]]
    else:
        args[0] = walk.numbers(args[0])
    if (place := _VALUES.get(call.name)) is not None:
        args[place] = walk.numbers(args[place])
    if call.name == "scatter":
        x, dim, index, value = args[:4]
        return torch.scatter(x, dim, index, value.expand(index.shape) if not value.ndim else value)
    options = {k: x for k, x in call.kwargs.items() if k not in ("memory_format", "accumulate")}
    if "tion_pad" in call.name:
        args[0] = args[0].double()  # they know no whole numbers; doubles hold all of these
    found: Tensor = call.function(*args, **options)
    return found.long()


@rule("where", "masked_fill")
def _chosen(walk: Walk, call: Call) -> Tensor:
    condition, one, other = call.args[:3]
    if call.name == "masked_fill":
        condition, one, other = one, other, condition
    return torch.where(condition, walk.numbers(one), walk.numbers(other))


@rule("constant_pad_nd")
def _padded(walk: Walk, call: Call) -> Tensor:
    none = int(walk.numbers(float(call.get(2, "value", 0.0))))
    return torch.constant_pad_nd(call.args[0].units, call.args[1], none)


# Sums and multiples.


def _combined(walk: Walk, terms: Sequence[tuple[Any, Any]], shift: Any = 0.0) -> Tensor:
    """Return sum_k c_k x_k + b, entry by entry, of tensors that may be numbers or constants."""
    below, factors, moved = [], [], [torch.as_tensor(shift, dtype=torch.float64)]
    for x, c in terms:
        factor = torch.as_tensor(c, dtype=torch.float64)
        if isinstance(x, Followed) and not walk.units.constant(x.units):
            below.append(x.units)
            factors.append(factor)
        else:
            moved.append(torch.as_tensor(walk.fixed(x), dtype=torch.float64) * factor)
    shape = np.broadcast_shapes(*(x.shape for x in (*below, *factors, *moved)))
    flat = [[x.expand(shape).flatten() for x in part] for part in (below, factors)]
    shifts = torch.stack([x.expand(shape).flatten() for x in moved])
    total, off = shifts.sum(0), 4 * EPS * shifts.abs().sum(0)
    if len(below) == 1 and bool((factors[0] == 1).all()) and not bool((total != 0).any()):
        return below[0].expand(shape)
    units, scales = (torch.stack(x, 1) for x in flat)
    return walk.units.sums(units, scales, total, off).reshape(shape)


@rule("add", "sub", "rsub")
def _sum(walk: Walk, call: Call) -> Tensor | None:
    one, other = call.args[:2]
    scale = call.kwargs.get("alpha", call.get(2, "alpha", 1))
    if call.name == "rsub":
        return _combined(walk, [(other, 1.0), (one, -float(scale))])
    return _combined(walk, [(one, 1.0), (other, -float(scale) if call.name == "sub" else scale)])


@rule("neg")
def _negative(walk: Walk, call: Call) -> Tensor | None:
    return _combined(walk, [(call.args[0], -1.0)])


@rule("mul")
def _product(walk: Walk, call: Call) -> Tensor | None:
    return _times(walk, *call.args[:2])


def _times(walk: Walk, one: Any, other: Any) -> Tensor | None:
    for x, y in ((one, other), (other, one)):
        fixed = walk.fixed(x)
        if fixed is not None and isinstance(y, Followed):
            return _combined(walk, [(y, fixed)])
    x, y = torch.broadcast_tensors(one.units, other.units)
    if x.equal(y):
        return _curved(walk, one, SQUARE)
    return walk.units.product(x.flatten(), y.flatten()).reshape(x.shape)


@rule("div")
def _quotient(walk: Walk, call: Call) -> Tensor | None:
    x, y = call.args[:2]
    fixed = walk.fixed(y)
    if fixed is None or call.kwargs.get("rounding_mode") is not None:
        return None
    # The rounding of 1 / d is within that of `sums`.
    return _combined(walk, [(x, 1 / torch.as_tensor(fixed, dtype=torch.float64))])


@rule("addcmul")
def _sum_with_product(walk: Walk, call: Call) -> Tensor | None:
    x, y, z = call.args[:3]
    scale = float(call.get(3, "value", 1))
    for one, other in ((y, z), (z, y)):
        fixed = walk.fixed(one)
        if fixed is not None:
            return _combined(walk, [(x, 1.0), (other, scale * fixed.double())])
    product = Followed(_times(walk, y, z), y.dtype, walk)  # type: ignore[arg-type]
    return _combined(walk, [(x, 1.0), (product, scale)])


# Matrices.


def _weights(value: Any) -> Tensor:
    return value.detach().double()


def _multiplied(walk: Walk, one: Any, other: Any, shift: Any = None, scale: float = 1.0) -> Any:
    """Return A B + shift of matrices, one of which depends on the inputs."""
    a, b = walk.fixed(one), walk.fixed(other)
    added = None if shift is None else walk.fixed(shift)
    if (a is None) == (b is None) or (shift is not None and added is None):
        return None
    if b is not None:
        bias = None if added is None else _weights(added)
        return walk.units.affine(one.units, scale * _weights(b), bias)
    rows = walk.units.affine(other.units.T, scale * _weights(a).T)
    if added is None:
        return rows.T
    return _combined(walk, [(Followed(rows.T, other.dtype, walk), 1.0)], _weights(added))


@rule("mm")
def _matrices(walk: Walk, call: Call) -> Any:
    return _multiplied(walk, *call.args[:2])


@rule("addmm")
def _affine(walk: Walk, call: Call) -> Any:
    shift, one, other = call.args[:3]
    beta, alpha = (float(call.kwargs.get(name, 1)) for name in ("beta", "alpha"))
    fixed = walk.fixed(shift)
    if fixed is not None:
        return _multiplied(walk, one, other, beta * _weights(fixed), alpha)
    product = _multiplied(walk, one, other, None, alpha)
    if product is None:
        return None
    return _combined(walk, [(shift, beta), (Followed(product, shift.dtype, walk), 1.0)])


@rule("bmm")
def _batches(walk: Walk, call: Call) -> Any:
    one, other = call.args[:2]

    def at(x: Any, n: int) -> Any:
        return Followed(x.units[n], x.dtype, walk) if isinstance(x, Followed) else x[n]

    found = [_multiplied(walk, at(one, n), at(other, n)) for n in range(len(one))]
    return None if any(x is None for x in found) else torch.stack(found)


def _over(x: Tensor, dims: Any) -> Tensor:
    """Return rows of units over some axes, one for each entry of the others."""
    x = torch.atleast_1d(x)
    if dims is None or (isinstance(dims, tuple | list) and not dims):
        dims = range(x.ndim)
    axes = [d % x.ndim for d in ((dims,) if isinstance(dims, int) else dims)]
    rest = [d for d in range(x.ndim) if d not in axes]
    return x.permute(*rest, *axes).reshape(math.prod(x.shape[d] for d in rest), -1)


@rule("sum", "mean")
def _reduced(walk: Walk, call: Call) -> Tensor:
    rows = _over(call.args[0].units, call.get(1, "dim"))
    wide = rows.shape[1]
    share = 1.0 if call.name == "sum" else 1 / wide
    return walk.units.affine(rows, torch.full((wide, 1), share, dtype=torch.float64))


@rule("cumsum")
def _accumulated(walk: Walk, call: Call) -> Tensor:
    rows, back = _rows(call.args[0].units, call.args[1])
    return back(walk.units.affine(rows, torch.ones(rows.shape[1], rows.shape[1]).triu().double()))


@rule("convolution")
def _convolved(walk: Walk, call: Call) -> Tensor | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    kernel, shift = walk.fixed(weight), None if bias is None else walk.fixed(bias)
    if kernel is None or (bias is not None and shift is None) or not isinstance(x, Followed):
        return None
    if transposed:
        plain = (stride, padding, dilation, True, call.args[7], groups)
        found = _by_matrix(walk, x.units, 1, lambda v: call.function(
            v, _weights(kernel), None, *plain))  # fmt: skip
        if shift is None:
            return found
        along = _weights(shift).reshape(-1, *(1,) * (found.ndim - 2))
        return _combined(walk, [(Followed(found, x.dtype, walk), 1.0)], along)
    axes = kernel.ndim - 2
    steps, pads, holes = (list(s) * (axes // len(s)) for s in (stride, padding, dilation))
    windows = _windows(x.units, kernel.shape[2:], steps, pads, holes, walk.numbers(0.0))
    outputs = windows.shape[2 : 2 + axes]
    channels = len(kernel) // groups
    parts = []
    for own, factors, b in zip(
        windows.chunk(groups, 1), _weights(kernel).chunk(groups),
        [None] * groups if shift is None else _weights(shift).chunk(groups), strict=True,
    ):  # fmt: skip
        rows = own.movedim(1, 1 + axes).reshape(len(x) * math.prod(outputs), -1)
        made = walk.units.affine(rows, factors.flatten(1).T, b)
        parts.append(made.reshape(len(x), *outputs, channels).movedim(-1, 1))
    return torch.cat(parts, 1)


def _windows(x: Tensor, sizes: Any, steps: Any, pads: Any, holes: Any, none: Tensor) -> Tensor:
    """Return windows (samples, channels, places, sizes) of units (samples, channels, ...)."""
    around = [p for pad in reversed(list(pads)) for p in (pad, pad)]
    wide = torch.constant_pad_nd(x, around, int(none)).contiguous()
    lengths = [
        (n - h * (k - 1) - 1) // s + 1
        for n, k, s, h in zip(wide.shape[2:], sizes, steps, holes, strict=True)
    ]
    strides = wide.stride()[2:]
    moved = [a * s for a, s in zip(strides, steps, strict=True)]
    inside = [a * h for a, h in zip(strides, holes, strict=True)]
    return wide.as_strided(
        (*wide.shape[:2], *lengths, *sizes), (*wide.stride()[:2], *moved, *inside)
    )


def _by_matrix(walk: Walk, x: Tensor, axis: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a linear map that torch applies to each entry of the axes before `axis` alone."""
    size = math.prod(x.shape[axis:])
    lone = [1] * max(0, axis - 1)
    columns = function(torch.eye(size, dtype=torch.float64).reshape(size, *lone, *x.shape[axis:]))
    found = walk.units.affine(x.reshape(-1, size), columns.reshape(size, -1))
    return found.reshape(*x.shape[:axis], *columns.shape[axis:])


@rule(
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_linear1d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
)  # fmt: skip
def _pooled(walk: Walk, call: Call) -> Tensor | None:
    """Means and interpolations, channel by channel."""
    x = call.args[0].units
    return _by_matrix(walk, x, 2, lambda v: call.function(v, *call.args[1:], **call.kwargs))


@rule("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
      "_native_batch_norm_legit")  # fmt: skip
def _normalized(walk: Walk, call: Call) -> Any:
    """(x - mean) / sqrt(variance + eps) w + b with given statistics."""
    x, weight, bias, mean, variance = call.args[:5]
    given = call.name == "_native_batch_norm_legit_no_training" or not call.args[5]
    eps = call.args[6 if call.name.endswith("no_training") else 7]
    if not given or mean is None or not isinstance(x, Followed):
        return None
    parts = [None if p is None else walk.fixed(p) for p in (weight, bias, mean, variance)]
    w, b, m, v = (None if p is None else _weights(p) for p in parts)
    assert m is not None and v is not None  # given
    scale = (1 if w is None else w) / (v + eps).sqrt()
    shift = torch.zeros_like(m) if b is None else b
    m, scale, shift = (one.reshape(-1, *(1,) * (x.ndim - 2)) for one in (m, scale, shift))
    return (_combined(walk, [(x, scale), (m, -scale)], shift),)


# Softmax and maxima.


def _rows(x: Tensor, dim: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return units with one axis last, (rows, entries), and the way back."""
    last = torch.atleast_1d(x).movedim(dim, -1)
    rows = last.reshape(-1, last.shape[-1])
    return rows, lambda found: found.reshape(last.shape).movedim(-1, dim)


@rule("_softmax", "_safe_softmax", "_log_softmax")
def _shares(walk: Walk, call: Call) -> Tensor:
    rows, back = _rows(call.args[0].units, call.args[1])
    log = call.name == "_log_softmax"
    return back(walk.units.log_softmax(rows) if log else walk.units.softmax(rows))


@rule("amax", "max", "logsumexp", "amin", "min", "maximum", "minimum", "logaddexp", "fmax", "fmin")
def _largest(walk: Walk, call: Call) -> Any:
    """The largest or least entry over some axes, or of two tensors entry by entry."""
    dims = call.get(1, "dim")
    if isinstance(dims, Tensor):
        pair = torch.broadcast_tensors(*map(walk.numbers, call.args[:2]))
        rows = torch.stack(pair, -1).reshape(-1, 2)
    else:
        rows = _over(call.args[0].units, dims)
    low = call.name in ("amin", "min", "minimum", "fmin")
    if low:
        rows = _turned(walk, rows)
    soft = math.log(max(1, rows.shape[1])) if call.name.startswith("log") else 0.0
    found = walk.units.largest(rows, soft)
    found = _turned(walk, found) if low else found
    with_places = call.name in ("max", "min") and isinstance(dims, int)
    return (found,) if with_places else found


def _turned(walk: Walk, units: Tensor) -> Tensor:
    return _combined(walk, [(Followed(units, walk.dtype, walk), -1.0)])


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d")
def _max_pooled(walk: Walk, call: Call) -> Any:
    x, sizes = call.args[0].units, list(call.args[1])
    steps, pads = list(call.get(2, "stride") or sizes), call.get(3, "padding", [0])
    holes, ceil = call.get(4, "dilation", [1]), call.get(5, "ceil_mode", False)
    axes = len(sizes)
    if ceil or len(sizes) != (3 if "3d" in call.name else 2):
        return None
    pads, holes = (list(s) * (axes // len(s)) for s in (pads, holes))
    whole = x if x.ndim == axes + 2 else x[None]
    windows = _windows(whole, sizes, steps, pads, holes, torch.tensor(-1))
    rows = windows.flatten(2 + axes).flatten(0, -2)
    first = rows.gather(1, (rows >= 0).int().argmax(1, keepdim=True))
    rows = torch.where(rows < 0, first, rows)  # padding is never the largest
    return (walk.units.largest(rows),)


@rule("nearest_in_polyhedron")
def _projected(walk: Walk, call: Call) -> Tensor | None:
    """Nearest points within limits that do not move with the inputs."""
    rows, u, lower, upper = call.args[:4]
    ends = []
    for end in (lower, upper):
        if isinstance(end, Followed):
            own = end.units[(end.units != OTHER).all(1)]
            low, high = walk.units.low[own], walk.units.high[own]
            if bool((low[..., :-1] != 0).any() | (high[..., :-1] != 0).any()):
                return None
            end = walk.units.low[own, -1]
        ends.append(end[0].double())
    return walk.units.projected(u.units, rows.double(), *ends)
