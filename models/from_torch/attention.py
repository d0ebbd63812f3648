"""Attention of torch: scores and mixing are affine in each argument, the softmax is a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liftednet.layers import Expression
from liftednet.layers.mapped import Layout

from .reader import LAYER, Reader, Seen, reads
from .recording import Call
from .rows import HIDDEN, argument, softmax_over


def _attended(
    reader: Reader, call: Call, heads: tuple[Seen, Seen, Seen], mask: Any, scale: float
) -> tuple[Seen, Expression]:
    """Return softmax(scale q k' + mask) and its product with v; Vaswani et al., 2017, eq. (1).

    q, k and v hold (samples, heads, positions, features).
    """
    q, k, v = heads
    above = Layout((*q.layout.sizes[:-1], k.layout.sizes[-2]))

    def scores(one: Tensor, other: Tensor, *masks: Tensor) -> Tensor:
        found = scale * one @ other.mT
        if not masks:
            return found
        seen: Tensor = mask_of(masks[0], found)
        return found + seen

    given = (q, k) if mask is None else (q, k, mask)
    u = reader.torch_map(scores, given, above, "scores")
    share = Seen(reader.state(call, softmax_over(above), u), above)
    mixed = Layout((*q.layout.sizes[:-1], v.layout.sizes[-1]))
    return share, reader.torch_map(torch.matmul, (share, v), mixed, "mixing")


def mask_of(mask: Tensor, like: Tensor) -> Tensor:
    """Return what is added to scores, finite: `HIDDEN` where a truth value says no."""
    if mask.dtype is not torch.bool:
        return mask.clamp(min=HIDDEN)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, HIDDEN)


@reads("scaled_dot_product_attention")
def _attention(reader: Reader, call: Call) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    query, key, value, mask, _, causal, scale = (argument(call, n, k) for n, k in enumerate(names))
    found = [reader.rows(x) for x in (query, key, value)]
    if (
        any(
            x is None or x.layout.axis != 0 or x.layout.factor > 1 or query.ndim != 4 for x in found
        )
        or reader.seen(mask) is not None
        or query.shape[1] != key.shape[1]
    ):
        return None  # fmt: skip
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2]).tril().bool()
    heads: Any = tuple(found)
    reader.tell(call, LAYER, f"attention, {query.shape[1]} heads, {query.shape[-2]} positions")
    _, mixed = _attended(reader, call, heads, mask, scale or query.shape[-1] ** -0.5)
    return Seen(mixed, reader.layouts(call)[0])


@reads("multi_head_attention_forward")
def _multi_head(reader: Reader, call: Call) -> Any:
    """torch.nn.MultiheadAttention: x of (positions, samples, features), weights of all heads."""
    query, key, value, features, heads, weight, bias = call.args[:7]
    extra = (*call.args[7:9], call.args[9] or None)
    if (
        weight is None
        or call.kwargs.get("use_separate_proj_weight")
        or any(x is not None for x in extra)
        or call.kwargs.get("key_padding_mask") is not None
        or any(x is None or x.layout.axis != 1 for x in map(reader.rows, (query, key, value)))
    ):
        return None
    known: dict[int, Seen] = {}
    parts = []
    for number, tensor in enumerate((query, key, value)):
        if id(tensor) not in known:
            x: Any = reader.rows(tensor)
            above = Layout((1, len(tensor), 3 * features))
            known[id(tensor)] = Seen(reader.linear(x, weight, bias), above)
        parts.append(_head(reader, known[id(tensor)], number, heads))
    mask = call.kwargs.get("attn_mask")
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = ~mask  # True means no here
    reader.tell(call, LAYER, f"attention, {heads} heads, {len(query)} positions")
    q, k, v = parts
    share, mixed = _attended(reader, call, (q, k, v), mask, (features // heads) ** -0.5)
    positions = len(query)
    joined = reader.torch_map(
        lambda u: u.transpose(1, 2).flatten(2),
        (Seen(mixed, Layout((1, heads, positions, features // heads))),),
        Layout((1, positions, features)), "heads joined", linear=True,
    )  # fmt: skip
    out = reader.linear(Seen(joined, Layout((1, positions, features))), *call.args[11:13])
    layouts = reader.layouts(call)
    found = [Seen(out, layouts[0])]
    if len(layouts) > 1:
        each = call.kwargs.get("average_attn_weights", True)
        shown = reader.torch_map(
            (lambda a: a.mean(1)) if each else (lambda a: a), (share,), layouts[1], "shares",
            linear=True,
        )  # fmt: skip
        found.append(Seen(shown, layouts[1]))
    return found


def _head(reader: Reader, x: Seen, number: int, heads: int) -> Seen:
    """Return one third of (samples, positions, 3 features), as (samples, heads, positions, .)."""
    _, positions, width = x.layout.sizes
    features = width // 3
    above = Layout((1, heads, positions, features // heads))

    def cut(u: Tensor) -> Tensor:
        third = u[..., number * features : (number + 1) * features]
        parts: Tensor = third.unflatten(-1, (heads, -1))
        return parts.transpose(1, 2)

    return Seen(reader.torch_map(cut, (x,), above, "head", linear=True), above)
