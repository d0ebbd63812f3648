"""How torch's functions are read: the table of activations, layers, joins and moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

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
from liftednet.activations.grouped import Grouped
from liftednet.layers import apply
from liftednet.layers.convolution import Convolution
from liftednet.layers.gated import Product
from liftednet.layers.join import Concatenation, Scaled, Sum
from liftednet.layers.mapped import Embedding, Layout
from liftednet.layers.normalization import BatchNormalization, RunningStatistics
from liftednet.layers.pooling import AveragePooling
from liftednet.validation import is_number

from .reader import CURVED, LAYER, PASSED, Reader, Seen, reads
from .recording import Call, tensors_in
from .slopes import slopes_of


def argument(call: Call, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, by its place or its name."""
    if position < len(call.args):
        return call.args[position]
    return call.kwargs.get(name, default)


# Activations.


def _hardtanh(call: Call) -> Activation:
    lowest, highest = argument(call, 1, "min_val", -1.0), argument(call, 2, "max_val", 1.0)
    return Clipped(lowest, highest)


def _clamp(call: Call) -> Activation | None:
    lowest, highest = argument(call, 1, "min"), argument(call, 2, "max")
    if lowest == 0 and highest is None:
        return ReLU()
    return Clipped(lowest, highest) if is_number(lowest) and is_number(highest) else None


def _leaky(call: Call) -> Activation | None:
    slope = argument(call, 1, "negative_slope", 0.01)
    return LeakyReLU(slope) if 0 < slope <= 1 else ReLU() if slope == 0 else None


def _elu(call: Call) -> Activation:
    return ELU() if argument(call, 1, "alpha", 1.0) == 1 else _declared(call)


def _softplus(call: Call) -> Activation | None:
    if slopes_of(call) is None:  # it falls where it goes over to u
        return None
    return Softplus() if argument(call, 1, "beta", 1) == 1 else _declared(call)


def _declared(call: Call) -> Activation:
    """Return an activation declared by its forward map alone."""
    options = {k: v for k, v in call.kwargs.items() if k not in ("inplace", "input")}

    def declared(u: Tensor) -> Tensor:
        return cast(Tensor, call.function(u, *call.args[1:], **options))

    declared.__name__ = call.name
    return FunctionActivation(declared, slopes=slopes_of(call))


ACTIVATIONS: dict[str, Callable[[Call], Activation | None]] = {
    "relu": lambda _: ReLU(),
    "relu6": lambda _: Clipped(0.0, 6.0),
    "hardtanh": _hardtanh,
    "clamp": _clamp,
    "clip": _clamp,
    "leaky_relu": _leaky,
    "tanh": lambda _: Tanh(),
    "sigmoid": lambda _: Sigmoid(),
    "elu": _elu,
    "softplus": _softplus,
    "atan": lambda _: Arctan(),
    **dict.fromkeys(
        ("celu", "selu", "softsign", "log_sigmoid", "hardsigmoid", "softshrink", "rrelu"), _declared
    ),
}


@reads(*ACTIVATIONS)
def _activated(reader: Reader, call: Call) -> Seen | None:
    x = reader.rows(argument(call, 0, "input"))
    activation = None if x is None else ACTIVATIONS[call.name](call)
    if x is None or activation is None:
        return None
    return Seen(reader.state(call, activation, x.expression), x.layout)


@reads("softmax")
def _softmax(reader: Reader, call: Call) -> Seen | None:
    tensor, dim = argument(call, 0, "input"), argument(call, 1, "dim")
    x = reader.rows(tensor)
    if x is None or dim not in (-1, tensor.ndim - 1) or x.layout.axis == tensor.ndim - 1:
        return None
    return Seen(reader.state(call, softmax_over(x.layout), x.expression), x.layout)


@reads("log_softmax")
def _log_softmax(reader: Reader, call: Call) -> Any:
    tensor, dim = argument(call, 0, "input"), argument(call, 1, "dim")
    (found,), x = _curved(reader, call), reader.rows(tensor)
    if x is not None and dim in (-1, tensor.ndim - 1) and x.layout.axis != tensor.ndim - 1:
        reader.log_softmax = found.expression, x.expression
    return found


def softmax_over(layout: Layout) -> Activation:
    """Return the softmax over the last axis."""
    size = layout.shape[-1]
    return Softmax() if size == layout.units else Grouped(Softmax(), size)


# phi(u) + c u is nondecreasing from the steepest descent of phi on, so that the layer above sees
# z - c u. The steepest descents are -0.12890, -0.12899 (by tanh), -0.09984 and -0.11253.
_DESCENTS: dict[str, tuple[Callable[..., Tensor], float]] = {
    "gelu": (functional.gelu, 0.13),
    "silu": (functional.silu, 0.1),
    "mish": (functional.mish, 0.113),
}


@reads(*_DESCENTS)
def _split(reader: Reader, call: Call) -> Seen | None:
    x = reader.rows(argument(call, 0, "input"))
    if x is None:
        return None
    phi, slope = _DESCENTS[call.name]
    if "approximate" in call.kwargs:
        phi = partial(phi, approximate=call.kwargs["approximate"])

    def risen(u: Tensor) -> Tensor:
        return phi(u) + slope * u

    risen.__name__ = f"{call.name}(u) + {slope} u"
    known = slopes_of(call)
    slopes = None if known is None else (known[0] + slope, known[1] + slope)
    raised = FunctionActivation(risen, slopes=slopes)
    z = reader.state(call, raised, x.expression)
    return Seen(z - slope * x.expression, x.layout)


@reads("hardswish", "tanhshrink")
def _sloped(reader: Reader, call: Call) -> Any:
    (found,) = _curved(reader, call)
    layer = replace(found.expression.layer, slopes=slopes_of(call))
    return replace(found, expression=replace(found.expression, layer=layer))


@reads("prelu")
def _prelu(reader: Reader, call: Call) -> Seen | None:
    """max(u, 0) - a max(-u, 0), with both parts as states and a as weights."""
    x, slope = reader.rows(argument(call, 0, "input")), argument(call, 1, "weight")
    if x is None or x.layout.axis != 0:
        return None
    up, down = (reader.state(call, ReLU(), u) for u in (x.expression, -x.expression))
    spread = (-1, *(1,) * (len(x.layout.shape) - 1)) if len(slope) > 1 else (1,)
    plain = Layout((1, *x.layout.shape))
    return Seen(up - reader.scaled(down, plain, spread, slope, None), x.layout)


# Layers with weights.


@reads("linear")
def _linear(reader: Reader, call: Call) -> Any:
    tensor, weight, bias = (argument(call, n, k) for n, k in enumerate(("input", "weight", "bias")))
    x = reader.rows(tensor)
    if x is None or x.layout.axis == tensor.ndim - 1 or not isinstance(weight, torch.nn.Parameter):
        return _affine(reader, call)
    reader.tell(call, LAYER, f"dense {tuple(weight.shape)[::-1]}")
    return Seen(reader.linear(x, weight, bias), reader.layouts(call)[0])


@reads("conv1d", "conv2d")
def _convolution(reader: Reader, call: Call) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = [argument(call, n, k, d) for n, (k, d) in enumerate(
        zip(names, (None, None, None, 1, 0, 1, 1), strict=True))]  # fmt: skip
    tensor, weight, bias, stride, padding, dilation, groups = given
    x, axes = reader.rows(tensor), weight.ndim - 2
    window, steps = tuple(weight.shape[2:]), _each(dilation, axes)
    if isinstance(padding, str):
        reach = [(w - 1) * d * (padding == "same") for w, d in zip(window, steps, strict=True)]
        padding = None if any(r % 2 for r in reach) else tuple(r // 2 for r in reach)
    if x is None or not _plain(x, axes + 1) or padding is None:
        return _affine(reader, call)
    sizes, pads = _each(stride, axes), _each(padding, axes)
    found = reader.weighted(
        lambda biased: Convolution(
            x.layout.shape, len(weight), window, sizes, pads, biased, steps, groups
        ),
        x.expression, weight, bias,
    )  # fmt: skip
    if found is None:
        return _affine(reader, call)
    reader.tell(call, LAYER, f"convolution {tuple(weight.shape)}")
    layout, spread = reader.layouts(call)[0], (-1, *(1,) * axes)
    shifted = reader.shifted(Seen(found[0], layout), None if found[1] else bias, spread)
    return Seen(shifted, layout)


@reads("embedding")
def _embedding(reader: Reader, call: Call) -> Any:
    numbers, table = argument(call, 0, "input"), argument(call, 1, "weight")
    x = reader.rows(numbers)
    found = None
    if x is not None and not any(
        argument(call, n, k, False) for n, k in ((3, "max_norm"), (5, "scale_grad_by_freq"))
    ):
        sizes = tuple(table.shape)
        padding = argument(call, 2, "padding_idx")
        padding = None if padding is None or padding < 0 else padding
        found = reader.weighted(lambda _: Embedding(sizes, padding), x.expression, table, None)
    if found is None:
        if x is None:  # places, the same for every sample
            reader.by_position.add(id(table))
        return _affine(reader, call)
    reader.tell(call, LAYER, f"embedding {tuple(table.shape)}")
    return Seen(found[0], reader.layouts(call)[0])


@reads("embedding_bag")
def _embedding_bag(reader: Reader, call: Call) -> Any:
    """The sum, mean or maximum of rows of a table, which are a layer of their own."""
    numbers, table = argument(call, 0, "input"), argument(call, 1, "weight")
    mode, x = argument(call, 6, "mode", "mean"), reader.rows(numbers)
    special = ("offsets", "max_norm", "scale_grad_by_freq", "per_sample_weights", "padding_idx")
    found = None
    if x is not None and not any(call.kwargs.get(name) not in (None, False) for name in special):
        found = reader.weighted(lambda _: Embedding(tuple(table.shape)), x.expression, table, None)
    if x is None or found is None:
        return _curved(reader, call) if mode == "max" else _affine(reader, call)
    rows = Seen(found[0], Layout((1, *x.layout.shape, table.shape[1])))
    above, affine = reader.layouts(call)[0], mode != "max"
    kind = LAYER if affine else CURVED
    reader.tell(call, kind, f"embedding {tuple(table.shape)}, their {mode}")

    def joined(u: Tensor) -> Tensor:
        found: Tensor = getattr(u, mode if affine else "amax")(1)
        return found

    taken = reader.torch_map(joined, (rows,), above, call.name, linear=affine, affine=affine)
    return Seen(taken, above)


def _each(size: Any, axes: int) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


def _plain(x: Seen, axes: int) -> bool:
    """Say whether samples stand on the first axis, each with so many axes of its own."""
    return x.layout.axis == 0 and x.layout.factor == 1 and len(x.layout.sizes) == axes + 1


# Normalization.


@reads("batch_norm")
def _batch_norm(reader: Reader, call: Call) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    tensor, mean, variance, weight, bias = (argument(call, n, k) for n, k in enumerate(names))
    x, module = reader.rows(tensor), call.modules[-1][1]
    if x is None or mean is None or not isinstance(module, _BatchNorm) or x.layout.axis != 0:
        return None
    assert isinstance(module.num_batches_tracked, Tensor)  # it has running statistics
    theirs = RunningStatistics(
        mean, variance, module.num_batches_tracked, module.momentum, module.training
    )
    known = next((ours for one, ours in reader.statistics if one.mean is mean), None)
    if known is None:
        known = theirs.copied()
        reader.statistics.append((theirs, known))
    layer = BatchNormalization(x.layout.shape, known, argument(call, 7, "eps", 1e-5))
    standard = "of batches, running ones kept" if module.training else "given, as in eval mode"
    reader.tell(call, LAYER, f"normalization, statistics {standard}")
    spread = (len(mean), *(1,) * (len(x.layout.shape) - 1))
    found = apply(layer, x.expression)
    return Seen(reader.scaled(found, x.layout, spread, weight, bias), x.layout)


@reads("layer_norm", "rms_norm")
def _layer_norm(reader: Reader, call: Call) -> Any:
    tensor, shape = argument(call, 0, "input"), tuple(argument(call, 1, "normalized_shape"))
    x, weight = reader.rows(tensor), argument(call, 2, "weight")
    if x is None or x.layout.shape[-len(shape) :] != shape:
        return None
    if call.name == "rms_norm":
        bias, eps = None, argument(call, 3, "eps")
        norm: Callable[..., Tensor] = functional.rms_norm
    else:
        bias, eps = argument(call, 3, "bias"), argument(call, 4, "eps", 1e-5)
        norm = functional.layer_norm
    standard = partial(norm, normalized_shape=list(shape), eps=eps)
    found = reader.torch_map(standard, (x,), x.layout, call.name, affine=False)
    reader.tell(call, CURVED, "standardized sample by sample, its scale and shift a layer")
    return Seen(reader.scaled(found, x.layout, shape, weight, bias), x.layout)


@reads("group_norm")
def _group_norm(reader: Reader, call: Call) -> Any:
    names = ("input", "num_groups", "weight", "bias")
    tensor, groups, weight, bias = (argument(call, n, k) for n, k in enumerate(names))
    x, eps = reader.rows(tensor), argument(call, 4, "eps", 1e-5)
    if x is None or x.layout.axis != 0:
        return None
    found = reader.torch_map(
        lambda u: functional.group_norm(u, groups, eps=eps), (x,), x.layout, call.name,
        affine=False,
    )  # fmt: skip
    reader.tell(call, CURVED, "standardized sample by sample, its scale and shift a layer")
    spread = (x.layout.shape[0], *(1,) * (len(x.layout.shape) - 1))
    return Seen(reader.scaled(found, x.layout, spread, weight, bias), x.layout)


# Joins, pooling, moves.


@reads("add", "radd", "iadd", "sub", "isub", "rsub")
def _sum(reader: Reader, call: Call) -> Any:
    one, other = call.args[0], argument(call, 1, "other")
    sign = -1.0 if "sub" in call.name else 1.0
    scale = sign * call.kwargs.get("alpha", 1)
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
    return _affine(reader, call)


@reads("mul", "rmul", "imul", "div", "truediv", "itruediv")
def _product(reader: Reader, call: Call) -> Any:
    one, other = call.args[0], argument(call, 1, "other")
    x, y, quotient = reader.rows(one), reader.rows(other), "div" in call.name
    if x is not None and is_number(other) and "rounding_mode" not in call.kwargs:
        reader.tell(call, PASSED, "multiple")
        factor = 1 / other if quotient else other
        return Seen(apply(Scaled(float(factor)), x.expression), x.layout)
    if quotient and reader.seen(other) is not None:
        return None
    if x is not None and y is not None and x.layout == y.layout and not quotient:
        reader.tell(call, PASSED, "product")
        return Seen(apply(Product(), *reader.apart(reader.shaped(x), reader.shaped(y))), x.layout)
    return _bilinear(reader, call)


@reads("addcmul")
def _sum_with_product(reader: Reader, call: Call) -> Any:
    """Read x + c y z, affine in all together where y or z stands still, in each where not."""
    y, z = argument(call, 1, "tensor1"), argument(call, 2, "tensor2")
    if reader.seen(y) is None or reader.seen(z) is None:
        return _affine(reader, call)
    return _bilinear(reader, call)


@reads(
    "matmul", "bmm", "mm", "einsum", "rmatmul", "bilinear", "outer", "baddbmm", "mv", "vdot", "dot"
)
def _bilinear(reader: Reader, call: Call) -> Any:
    reader.tell(call, PASSED, "affine in each")
    return reader.mapped(call, affine=True, linear=False)


@reads("cat", "concat", "concatenate")
def _concatenation(reader: Reader, call: Call) -> Any:
    tensors, dim = argument(call, 0, "tensors"), argument(call, 1, "dim", 0)
    given = [reader.rows(x) for x in tensors]
    if dim == 1 and all(x is not None and _plain(x, tensors[0].ndim - 1) for x in given):
        reader.tell(call, PASSED, "concatenation")
        found = apply(Concatenation(), *(x.expression for x in given if x is not None))
        return Seen(found, reader.layouts(call)[0])
    return _affine(reader, call)


@reads("avg_pool1d", "avg_pool2d")
def _average_pooling(reader: Reader, call: Call) -> Any:
    axes = int(call.name[-2])
    x, window = (
        reader.rows(argument(call, 0, "input")),
        _each(argument(call, 1, "kernel_size"), axes),
    )
    stride, padding = argument(call, 2, "stride"), argument(call, 3, "padding", 0)
    above = reader.layouts(call)[0]
    if x is None or not _plain(x, axes + 1) or any(_each(padding, axes)):
        return _affine(reader, call)
    layer = AveragePooling(x.layout.shape, window, _each(stride or window, axes))
    if layer.shape() != above.shape:  # by ceil_mode or another divisor
        return _affine(reader, call)
    reader.tell(call, PASSED, "average pooling")
    return Seen(apply(layer, x.expression), above)


_MOVES = (
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "moveaxis",
    "swapaxes", "swapdims", "unsqueeze", "squeeze", "contiguous", "clone", "to", "float",
    "double", "type", "type_as", "expand", "expand_as", "view_as", "reshape_as", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
    "feature_alpha_dropout", "split", "chunk", "unbind",
    "ravel", "tensor_split", "getitem", "select", "narrow", "flip", "roll", "mT", "mH", "T",
)  # fmt: skip


_SIZED = ("view", "reshape", "view_as", "reshape_as", "expand", "expand_as", "broadcast_to")


@reads(*_MOVES, "broadcast_to")
def _moved(reader: Reader, call: Call) -> Any:
    """A call that moves entries alone: no layer at all where rows stay as they are."""
    tensor = argument(call, 0, "input")
    x, layouts = reader.seen(tensor), reader.layouts(call)
    if x is None or len(layouts) > 1 or layouts[0].axis is None:
        return _affine(reader, call)
    if tensor.is_floating_point() and not call.result.is_floating_point():
        return _curved(reader, call)
    above = layouts[0]
    if x.layout.axis is None:
        same = x.layout.units == above.units
        return Seen(x.expression, above) if same else _affine(reader, call)
    places = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    options = {k: v for k, v in call.kwargs.items() if k not in ("inplace", "input")}
    moved = call.function(places, *call.args[1:], **options)
    if moved.numel() == places.numel() and x.layout.pack(places, reader.samples).equal(
        above.pack(moved, reader.samples).double()
    ):
        return Seen(x.expression, above)
    if call.name not in _SIZED:
        return _affine(reader, call)
    below, axis = x.layout, above.axis or 0

    def sized(u: Tensor) -> Tensor:
        samples = u.shape[below.axis or 0] // below.factor
        sizes = (*above.sizes[:axis], above.factor * samples, *above.sizes[axis + 1 :])
        return u.reshape(sizes) if "expand" not in call.name else u.expand(sizes)

    reader.tell(call, PASSED, "moved")
    return Seen(reader.torch_map(sized, (x,), above, call.name, linear=True), above)


HIDDEN = -1e30  # a score whose softmax is 0


_AFFINE = (
    "mean", "sum", "neg", "pad", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "channel_shuffle", "interpolate", "upsample", "pixel_shuffle",
    "pixel_unshuffle", "fold", "unfold", "stack", "repeat", "repeat_interleave",
    "broadcast_tensors", "index_select", "gather", "cumsum",
    "tril", "triu", "hstack", "vstack", "avg_pool3d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "get", "diff",
)  # fmt: skip


_FACTORS = (  # whose second argument multiplies the first
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
)  # fmt: skip


@reads(*_AFFINE)
def _affine(reader: Reader, call: Call) -> Any:
    """A call that is affine in all that it sees: passed through."""
    kind = LAYER if any(map(reader.trains, tensors_in(call.args))) else PASSED
    reader.tell(call, kind, "affine")
    factors = call.args[:2] if call.name in _FACTORS else ()
    seen = [x for x in factors if reader.seen(x) is not None]
    return reader.mapped(call, affine=True, linear=len(seen) < 2)


@reads("masked_fill")
def _masked_fill(reader: Reader, call: Call) -> Any:
    """A mask, whose -inf becomes a finite number: a share of 0 times it is 0, and no NaN."""
    tensor, mask, value = (argument(call, n, k) for n, k in enumerate(("input", "mask", "value")))
    if not is_number(value):
        return _affine(reader, call)
    reader.tell(call, PASSED, "affine")
    above, filled = reader.layouts(call)[0], max(value, HIDDEN)

    def masked(u: Tensor, hidden: Tensor) -> Tensor:
        return u.masked_fill(hidden.bool(), filled)

    return Seen(reader.torch_map(masked, (tensor, mask), above, call.name, linear=True), above)


# What is known to be curved, and passed through for the method to differentiate.
_CURVED = (
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "lp_pool3d", "fractional_max_pool2d", "pairwise_distance", "hardshrink",
    "max_pool1d_with_indices", "max_pool2d_with_indices", "boolean_dispatch", "fn",
    "lp_pool1d", "lp_pool2d", "normalize", "instance_norm", "local_response_norm",
    "max", "min", "amax", "amin", "logsumexp", "var", "std", "var_mean", "norm", "pow", "rpow",
    "square", "exp", "log", "sqrt", "rsqrt", "abs", "sin", "cos", "where", "eq", "ne", "gt", "lt",
    "ge", "le", "argmax", "long", "bool", "one_hot", "reciprocal", "cosine_similarity", "sign",
    "glu", "weight_norm", "threshold", "softmin", "detach", "lerp",
    "addmm", "maximum", "minimum", "erf", "log1p", "expm1", "prod", "topk", "sort", "nan_to_num",
    "logical_not", "logical_and", "logical_or", "invert", "and", "or",
)  # fmt: skip


@reads(*_CURVED)
def _curved(reader: Reader, call: Call) -> Any:
    reader.tell(call, CURVED, "at the forward pass")
    return reader.mapped(call, affine=False)


@reads("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def _filled(reader: Reader, call: Call) -> Seen:
    made = call.function(*call.args, **call.kwargs)  # anew: a call behind may have changed it
    return reader.constant(made, reader.layouts(call)[0])
