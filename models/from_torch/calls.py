"""Calls of torch without weights: activations, sums, products, pooling, and moves of entries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import (
    ELU,
    GELU,
    Arctan,
    Clipped,
    Hardswish,
    LeakyReLU,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from liftednet.activations.simplex import Grouped
from liftednet.layers import Expression, apply
from liftednet.layers.join import Concatenation, Scaled, Sum
from liftednet.layers.modules import Layout
from liftednet.validation import is_number

from ..bounds.tensors import LIKE
from .reader import HIDDEN, PASSED, STATES, Reader, Seen, each, reads
from .tracing import Call

# Activations: which of ours they are, where they bend, and which of them are split.

_DECLARED = "celu", "selu", "softsign", "log_sigmoid", "hardsigmoid", "softshrink", "tanhshrink"
_SMOOTH = 20.0  # beta u, from where torch's softplus may go on as u: it differs by less than 3e-9


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
    beta, threshold = call.get(1, "beta", 1.0), call.get(2, "threshold", _SMOOTH)
    if not (beta > 0 and threshold >= _SMOOTH):
        return None
    return Softplus() if beta == 1 else _declared(call)


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


_NOT_MONOTONE = {"gelu": GELU, "silu": SiLU, "mish": Mish, "hardswish": Hardswish}


@reads(*_NOT_MONOTONE)
def _split(reader: Reader, call: Call) -> Seen | None:
    x = reader.rows(call.get(0, "input"))
    if x is None:
        return None
    slope = _NOT_MONOTONE[call.name].descent

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
    beside = (len(slope), *(1,) * (len(x.layout.shape) - 1)) if len(slope) > 1 else (1,)
    plain = Layout((1, *x.layout.shape))
    return Seen(up - reader.scaled(down, plain, beside, slope, None), x.layout)


# Sums, products, pooling, moves, and what is linearized.


@reads("add", "radd", "iadd", "sub", "isub", "rsub")
def _sum(reader: Reader, call: Call) -> Any:
    one, other = call.first("input", "other")
    scale = (-1.0 if "sub" in call.name else 1.0) * call.kwargs.get("alpha", 1)
    if call.name == "rsub":
        one, other = other, one
    x, y = reader.rows(one), reader.rows(other)
    if x is not None and y is not None and x.layout == y.layout:
        reader.tell(call, PASSED, "sum")
        second = reader.shaped(y) if scale == 1 else reader.shaped(y) * float(scale)
        return Seen(apply(Sum(), reader.shaped(x), second), x.layout)
    if x is not None and is_number(other):
        return Seen(apply(Scaled(1.0, scale * other), x.expression), x.layout)
    reader.by_position.update(id(x) for x in (one, other) if reader.trains(x))
    return reader.affine(call)


@reads("mul", "rmul", "imul", "div", "truediv", "itruediv")
def _product(reader: Reader, call: Call) -> Any:
    one, other = call.first("input", "other")
    x, quotient = reader.rows(one), "div" in call.name
    if x is not None and is_number(other) and "rounding_mode" not in call.kwargs:
        reader.tell(call, PASSED, "multiple")
        factor = 1 / other if quotient else other
        return Seen(apply(Scaled(float(factor)), x.expression), x.layout)
    if quotient and reader.seen(other) is not None:
        return None
    return _bilinear(reader, call)


@reads("addcmul")
def _sum_with_product(reader: Reader, call: Call) -> Any:
    """Read x + c y z, affine in all together where y or z stands still, in each where not."""
    _, y, z = call.first("input", "tensor1", "tensor2")
    if reader.seen(y) is None or reader.seen(z) is None:
        return reader.affine(call)
    return _bilinear(reader, call)


@reads(
    "matmul", "bmm", "mm", "einsum", "rmatmul", "bilinear", "outer", "baddbmm", "mv", "vdot", "dot"
)
def _bilinear(reader: Reader, call: Call) -> Any:
    reader.tell(call, PASSED, "affine in each")
    return reader.mapped(call, affine=True, linear=False)


@reads("cat", "concat", "concatenate")
def _concatenation(reader: Reader, call: Call) -> Any:
    tensors = call.get(0, "tensors")
    given = [x for x in map(reader.rows, tensors) if x is not None and x.plain(tensors[0].ndim - 1)]
    if call.get(1, "dim", 0) != 1 or len(given) < len(tensors):
        return reader.affine(call)
    reader.tell(call, PASSED, "concatenation")
    return Seen(apply(Concatenation(), *(x.expression for x in given)), reader.layout)


@reads("max_pool1d", "max_pool2d")
def _maximum(reader: Reader, call: Call) -> Any:
    """Read the largest of a window as ReLU states of differences between its entries."""
    x, axes = reader.rows(call.get(0, "input")), int(call.name[-2])
    window, stride = each(call.get(1, "kernel_size"), axes), call.get(2, "stride")
    rest = [call.get(3, "padding", 0), call.get(4, "dilation", 1), call.get(5, "ceil_mode", False)]
    plain = each(rest[0], axes) == (0,) * axes and each(rest[1], axes) == (1,) * axes
    if not reader.convex or x is None or not x.plain(axes + 1) or not plain or rest[2]:
        return None
    above, steps = reader.layout, each(stride or window, axes)
    counts = above.shape[1:]

    def part(first: tuple[int, ...]) -> Expression:
        ends = zip(first, counts, steps, strict=True)
        place = tuple(slice(one, one + (n - 1) * step + 1, step) for one, n, step in ends)
        return reader.torch_map(lambda t: t[(..., *place)], (x,), above, "window", linear=True)

    reader.tell(call, STATES, f"maximum over {window}, ReLU states of differences")
    return Seen(reader.network.maximum(*map(part, product(*map(range, window)))), above)


_SIZED = ("view", "reshape", "view_as", "reshape_as", "expand", "expand_as", "broadcast_to")


@reads(
    *_SIZED, "flatten", "unflatten", "permute", "transpose", "t", "movedim", "moveaxis",
    "swapaxes", "swapdims", "unsqueeze", "squeeze", "contiguous", "clone", "to", "float",
    "double", "type", "type_as", "dropout", "dropout1d", "dropout2d", "alpha_dropout",
    "feature_dropout", "feature_alpha_dropout", "split", "chunk", "unbind", "ravel",
    "tensor_split", "getitem", "select", "narrow", "flip", "roll", "mT", "mH", "T",
)  # fmt: skip
def _moved(reader: Reader, call: Call) -> Any:
    """A call that moves entries alone: no layer at all where rows stay as they are."""
    tensor = call.get(0, "input")
    x, layouts = reader.seen(tensor), reader.layouts
    if x is None or len(layouts) > 1 or layouts[0].axis is None:
        return reader.affine(call)
    if tensor.is_floating_point() and not call.result.is_floating_point():
        return reader.curved(call)
    below, above, axis = x.layout, layouts[0], layouts[0].axis
    if below.axis is None:
        same = below.units == above.units
        return Seen(x.expression, above) if same else reader.affine(call)
    places = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    moved = call.again(places)
    if moved.numel() == places.numel() and below.pack(places, reader.samples).equal(
        above.pack(moved, reader.samples).double()
    ):
        return Seen(x.expression, above)
    if call.name not in _SIZED:
        return reader.affine(call)

    def sized(u: Tensor) -> Tensor:
        samples = u.shape[below.axis or 0] // below.factor
        sizes = (*above.sizes[:axis], above.factor * samples, *above.sizes[axis + 1 :])
        return u.reshape(sizes) if "expand" not in call.name else u.expand(sizes)

    reader.tell(call, PASSED, "moved")
    return Seen(reader.torch_map(sized, (x,), above, call.name, linear=True), above)


reads(
    "mean", "sum", "neg", "pad", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d",
    "avg_pool2d", "interpolate", "upsample", "pixel_shuffle", "pixel_unshuffle", "fold", "unfold",
    "stack", "repeat", "repeat_interleave", "broadcast_tensors", "cumsum", "tril", "triu",
    "hstack", "vstack", "conv_transpose1d", "conv_transpose2d", "get", "diff",
)(Reader.affine)  # fmt: skip


@reads("masked_fill")
def _masked_fill(reader: Reader, call: Call) -> Any:
    """A mask, whose -inf becomes a finite number: a share of 0 times it is 0, and no NaN."""
    tensor, mask, value = call.first("input", "mask", "value")
    if not is_number(value):
        return reader.affine(call)
    reader.tell(call, PASSED, "affine")
    above, filled = reader.layout, max(value, HIDDEN)

    def masked(u: Tensor, hidden: Tensor) -> Tensor:
        return u.masked_fill(hidden.bool(), filled)

    return Seen(reader.torch_map(masked, (tensor, mask), above, call.name, linear=True), above)


@reads(*LIKE)
def _filled(reader: Reader, call: Call) -> Seen:
    made = call.function(*call.args, **call.kwargs)  # anew: a call behind may have changed it
    return reader.constant(made, reader.layout)
