"""Layers of torch with weights: dense ones, convolutions, tables, norms, attention, recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from liftednet.activation import Activation
from liftednet.activations import Identity, ReLU, Sigmoid, Tanh
from liftednet.layers import Expression, apply, concatenate, delay, reverse
from liftednet.layers.convolution import Convolution
from liftednet.layers.expression import Applied
from liftednet.layers.join import Part
from liftednet.layers.modules import BatchNormalization, Embedding, Layout, RunningStatistics
from liftednet.layers.time import AllSteps, Steps
from liftednet.network import State

from ..forward_pass import GRU, LSTM, Gated
from .reader import CURVED, LAYER, Reader, Seen, each, reads
from .tracing import Call


@reads("linear")
def _linear(reader: Reader, call: Call) -> Any:
    tensor, weight, bias = call.first("input", "weight", "bias")
    x = reader.rows(tensor)
    if x is None or x.layout.axis == tensor.ndim - 1 or not isinstance(weight, torch.nn.Parameter):
        return reader.affine(call)
    reader.tell(call, LAYER, f"dense {tuple(weight.shape)[::-1]}")
    return Seen(reader.linear(x, weight, bias), reader.layout)


@reads("conv1d", "conv2d")
def _convolution(reader: Reader, call: Call) -> Any:
    tensor, weight, bias, stride, padding, dilation, groups = call.first(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    x, axes = reader.rows(tensor), weight.ndim - 2
    window, steps = tuple(weight.shape[2:]), each(dilation or 1, axes)
    if padding is None:
        padding = 0
    elif isinstance(padding, str):
        reach = [(w - 1) * d * (padding == "same") for w, d in zip(window, steps, strict=True)]
        padding = None if any(r % 2 for r in reach) else tuple(r // 2 for r in reach)
    if x is None or not x.plain(axes + 1) or padding is None:
        return reader.affine(call)
    sizes, pads = each(stride or 1, axes), each(padding, axes)
    found = reader.weighted(
        lambda biased: Convolution(
            x.layout.shape, len(weight), window, sizes, pads, biased, steps, groups or 1
        ),
        x.expression, weight, bias, reader.layout, (-1, *(1,) * axes),
    )  # fmt: skip
    if found is None:
        return reader.affine(call)
    reader.tell(call, LAYER, f"convolution {tuple(weight.shape)}")
    return Seen(found, reader.layout)


@reads("embedding")
def _embedding(reader: Reader, call: Call) -> Any:
    numbers, table, padding = call.first("input", "weight", "padding_idx")
    x, special = reader.rows(numbers), call.get(3, "max_norm") or call.get(5, "scale_grad_by_freq")
    if padding is not None and padding < 0:
        padding = None
    found = None
    if x is not None and not special:
        sizes = tuple(table.shape)
        found = reader.weighted(
            lambda _: Embedding(sizes, padding), x.expression, table, None, reader.layout
        )
    if x is None:  # places, the same for every sample
        reader.by_position.add(id(table))
    if found is None:
        return reader.affine(call)
    reader.tell(call, LAYER, f"embedding {tuple(table.shape)}")
    return Seen(found, reader.layout)


# Normalization.


@reads("batch_norm")
def _batch_norm(reader: Reader, call: Call) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    tensor, mean, _, weight, bias = call.first(*names)
    x, module = reader.rows(tensor), call.modules[-1][1]
    if x is None or mean is None or not isinstance(module, _BatchNorm) or x.layout.axis != 0:
        return None
    mean, variance = module.running_mean, module.running_var  # of which the call had copies
    assert mean is not None and variance is not None
    assert isinstance(module.num_batches_tracked, Tensor)  # it has running statistics
    theirs = RunningStatistics(
        mean, variance, module.num_batches_tracked, module.momentum, module.training
    )
    known = next((ours for one, ours in reader.statistics if one.mean is mean), None)
    if known is None:
        known = theirs.copied()
        reader.statistics.append((theirs, known))
    layer = BatchNormalization(x.layout.shape, known, call.get(7, "eps", 1e-5))
    standard = "of batches, running ones kept" if module.training else "given, as in eval mode"
    reader.tell(call, LAYER, f"normalization, statistics {standard}")
    beside = (len(mean), *(1,) * (len(x.layout.shape) - 1))
    found = apply(layer, x.expression)
    return Seen(reader.scaled(found, x.layout, beside, weight, bias), x.layout)


@reads("layer_norm", "rms_norm", "group_norm")
def _sample_norm(reader: Reader, call: Call) -> Any:
    x, of_groups = reader.rows(call.get(0, "input")), call.name == "group_norm"
    if x is None:
        return None
    sizes = call.get(1, "num_groups" if of_groups else "normalized_shape")
    shape, weight, bias = x.layout.shape, call.get(2, "weight"), call.get(3, "bias")
    eps = call.get(4, "eps", 1e-5)
    if call.name == "rms_norm":
        bias, eps = None, call.get(3, "eps")
    beside = (shape[0], *(1,) * (len(shape) - 1)) if of_groups else tuple(sizes)
    if x.layout.axis != 0 if of_groups else shape[-len(beside) :] != beside:
        return None
    norm: Callable[..., Tensor] = getattr(functional, call.name)
    found = reader.torch_map(
        lambda u: norm(u, sizes, eps=eps), (x,), x.layout, call.name, affine=False
    )
    reader.tell(call, CURVED, "standardized sample by sample, its scale and shift a layer")
    return Seen(reader.scaled(found, x.layout, beside, weight, bias), x.layout)


@reads("multi_head_attention_forward")
def _multi_head(reader: Reader, call: Call) -> Any:
    """torch.nn.MultiheadAttention: x of (positions, samples, features), weights of all heads."""
    query, key, value, features, heads, weight, bias = call.args[:7]
    extra = (*call.args[7:9], call.args[9] or None, call.kwargs.get("key_padding_mask"))
    tensors = query, key, value
    seen = [reader.rows(x) for x in tensors]
    if (
        weight is None
        or call.kwargs.get("use_separate_proj_weight")
        or any(x is not None for x in extra)
        or any(x is None or x.layout.axis != 1 for x in seen)
    ):
        return None
    mask, averaged = call.kwargs.get("attn_mask"), call.kwargs.get("average_attn_weights", True)
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:  # True means no here
        mask = torch.zeros(mask.shape).masked_fill(mask, -math.inf)

    def attended(*given: Tensor) -> tuple[Tensor, Tensor]:
        """Return softmax(q k' / d^(1/2) + mask) v, and the softmax; Vaswani et al. (2017)."""
        q, k, v = (
            x.unflatten(-1, (3, heads, -1))[..., number, :, :].transpose(1, 2)
            for number, x in enumerate(given[:3])
        )
        scores = q @ k.mT / math.sqrt(features // heads)
        shares = (scores + sum(given[3:])).softmax(-1)
        return (shares @ v).transpose(1, 2).flatten(2), shares.mean(1) if averaged else shares

    reader.tell(call, CURVED, f"attention, {heads} heads, {len(query)} positions, between layers")
    known: dict[int, Seen] = {}
    for tensor, x in zip(tensors, seen, strict=True):
        if id(tensor) not in known:
            assert x is not None  # as just seen
            above = Layout((1, len(tensor), 3 * features))
            known[id(tensor)] = Seen(reader.linear(x, weight, bias), above)
    given = [*(known[id(x)] for x in tensors), *(() if mask is None else (mask,))]
    wide, layouts = Layout((1, len(query), features)), reader.layouts
    mixed, *shown = (
        reader.torch_map(
            lambda *rows, n=n: attended(*rows)[n], given, above, "attention", affine=False
        )
        for n, above in enumerate((wide, *layouts[1:]))
    )
    out = reader.linear(Seen(mixed, wide), *call.args[11:13])
    return [Seen(x, layout) for x, layout in zip((out, *shown), layouts, strict=True)]


@reads("scaled_dot_product_attention")
def _attention(reader: Reader, call: Call) -> Any:
    """Attention whose gradients are differentiable, as those of torch's fused kernels are not."""

    def attended(*args: Any, **options: Any) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(*args, **options)

    return reader.curved(replace(call, function=attended))


# Recurrence: gates are states, products of them multi-affine links.


@dataclass(frozen=True)
class _Cell:
    """One recurrent layer in one direction, or one step of it.

    Attributes:
        reader: whose graph it stands in.
        x: its inputs.
        units: of h.
        weights: of the inputs and of the states before, and their biases where there are some.
        before: what was there a step before, of the first or second thing that the cell keeps.
    """

    reader: Reader
    x: Expression
    units: int
    weights: Sequence[Any]
    before: Callable[[Expression, int], Expression]

    def state(self, phi: Activation, parts: int = 1) -> State:
        """Return states whose pre-activations come later."""
        units = parts * self.units
        return self.reader.network.state(phi, units=units, sequence=self.x.sequence)

    def dense(self, x: Expression, number: int) -> Expression:
        """Return W x + b with the weights of the inputs (0), or of the states before (1)."""
        bias = self.weights[2 + number] if len(self.weights) > 2 else None
        return self.reader.linear(Seen(x, Layout((1, x.units))), self.weights[number], bias)

    def at_once(
        self, kind: type[Gated], given: Expression, kept: Expression, *states: State
    ) -> None:
        """Let a layer of a sequence run over all its steps at once, unless its weights stand."""
        if isinstance(kept, Applied) and kept.layer.plain and self.x.sequence:
            for state in states:
                state.cell = kind(given, kept, states)


Kept = tuple[Expression, Expression]  # h, and c where there is one


def _lstm(cell: _Cell) -> Kept:
    """i, f, o = sigmoid(.), g = tanh(.), c_t = f c_(t-1) + i g, h = o tanh(c); torch.nn.LSTM."""
    units = cell.units
    gates, out = cell.state(Sigmoid(), 2), cell.state(Sigmoid())
    fresh, c = cell.state(Tanh()), cell.state(Identity())
    c.of(gates[units:] * cell.before(c, 1) + gates[:units] * fresh)
    bent = cell.reader.network.state(Tanh(), c)
    h = out * bent
    given, kept = cell.dense(cell.x, 0), cell.dense(cell.before(h, 0), 1)
    u = given + kept
    gates.of(u[: 2 * units])
    fresh.of(u[2 * units : 3 * units])
    out.of(u[3 * units :])
    cell.at_once(LSTM, given, kept, gates, fresh, c, out, bent)
    return h, c


def _gru(cell: _Cell) -> Kept:
    """r, z = sigmoid(.), n = tanh(W x + b + r (U h + b')), h_t = (1 - z) n + z h_(t-1)."""
    units, h = cell.units, cell.state(Identity())
    gates, fresh = cell.state(Sigmoid(), 2), cell.state(Tanh())
    before = cell.before(h, 0)
    given, kept = cell.dense(cell.x, 0), cell.dense(before, 1)
    gates.of(given[: 2 * units] + kept[: 2 * units])
    fresh.of(given[2 * units :] + gates[:units] * kept[2 * units :])
    z = gates[units:]
    h.of(z * before + (1.0 - z) * fresh)
    cell.at_once(GRU, given, kept, gates, fresh, h)
    return h, h


def _plain(phi: Activation) -> Callable[[_Cell], Kept]:
    def run(cell: _Cell) -> Kept:
        """h_t = phi(W x + b + U h_(t-1) + b')."""
        h = cell.state(phi)
        h.of(cell.dense(cell.x, 0) + cell.dense(cell.before(h, 0), 1))
        return h, h

    return run


_CELLS: dict[str, Callable[[_Cell], Kept]] = {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _plain(Tanh()), "rnn_relu": _plain(ReLU()),
}  # fmt: skip


@reads(*(f"{name}_cell" for name in _CELLS))
def _step(reader: Reader, call: Call) -> Any:
    """One step of a cell from given states, as `h`, or `(h, c)` of an LSTM."""
    tensor, kept, *weights = call.args
    before = [reader.rows(x) for x in (kept if isinstance(kept, tuple | list) else (kept,))]
    x = reader.rows(tensor)
    if x is None or any(one is None or one.layout != above for one, above in zip(
            before, reader.layouts, strict=True)):  # fmt: skip
        return None
    given = [one.expression for one in before if one is not None]
    units, name = weights[1].shape[1], call.name.removesuffix("_cell")
    cell = _Cell(reader, x.expression, units, weights, lambda _, number: given[number])
    reader.tell(call, LAYER, f"a step of {units} recurrent units, {name}")
    found = _CELLS[name](cell)
    return [Seen(one, layout) for one, layout in zip(found, reader.layouts, strict=False)]


@reads(*_CELLS)
def _recurrent(reader: Reader, call: Call) -> Any:
    """A stack of recurrent layers that starts from zeros, as `(output, h_n[, c_n])`."""
    if len(call.args) != 9:
        return None
    tensor, initial, flat, biases, layers, _, _, both, batch_first = call.args
    x, many = reader.rows(tensor), 4 if biases else 2
    starts = initial if isinstance(initial, tuple | list) else [initial]
    steps = tensor.shape[1 if batch_first else 0]
    if (
        x is None
        or x.layout.axis != (0 if batch_first else 1)
        or any(reader.moves(h) or bool(h.any()) for h in starts)
        or len(flat) != many * layers * (1 + both)  # a projection is one more
        or reader.network.steps not in (None, steps)
    ):
        return None
    reader.network.steps = steps
    groups = [flat[n : n + many] for n in range(0, len(flat), many)]
    sequence, last, cells = apply(Steps(steps), x.expression), [], []
    units = groups[0][1].shape[1]
    for layer in range(layers):
        found = []
        for direction in range(1 + both):
            weights = groups[layer * (1 + both) + direction]
            own = reverse(sequence) if direction else sequence
            cell = _Cell(reader, own, units, weights, lambda x, _: delay(x))
            h, c = _CELLS[call.name](cell)
            last.append(_last(h, steps))
            cells.append(_last(c, steps))
            found.append(reverse(h) if direction else h)
        sequence = concatenate(*found)
    reader.tell(
        call, LAYER, f"{layers} recurrent layers of {units} over {steps} steps, {call.name}"
    )
    layouts = reader.layouts
    results = [apply(AllSteps(steps), sequence), concatenate(*last), concatenate(*cells)]
    return [Seen(one, layout) for one, layout in zip(results, layouts, strict=False)]


def _last(h: Expression, steps: int) -> Expression:
    """Return the last step of a sequence, in its own direction."""
    return apply(Part((steps - 1) * h.units, steps * h.units), apply(AllSteps(steps), h))
