"""Links as the kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet.divergences import Divergence

from .groups import LinkPlan, TileLink
from .table import StateBlocks, link_map


@dataclass(frozen=True)
class Side:
    """A link of a launch: what it brings, and what the kernel is compiled for."""

    link: TileLink
    plan: LinkPlan


def link_refusal(divergence: Divergence, weight: Tensor) -> str | None:
    """Return why no kernel can take a link, or None."""
    activation = divergence.activation
    if divergence.smoothness is None:
        return f"it needs a Lipschitz constant of {activation!r}"
    if link_map(divergence, weight.shape[1]) is None:
        return f"there is no kernel for a link to {activation!r}"
    return None


def padded(weight: Tensor, blocks: StateBlocks) -> Tensor:
    """Return W with zeros beyond its size, (rows, columns), both rounded up."""
    units, columns = weight.shape
    wide = weight.new_zeros(blocks.padded(units), blocks.width(columns))
    wide[:units, :columns] = weight
    return wide


def side(
    divergence: Divergence,
    weight: Tensor,
    offset: Tensor,
    target: Tensor,
    lam: float,
    blocks: StateBlocks,
    counted: Tensor | None = None,
    ahead: int = 0,
) -> Side:
    """Return lam [R(Z W + C) - <Z W + C, V>] as the kernels take it.

    Args:
        divergence: gives R.
        weight: W, (units, columns).
        offset: C, (columns,) or (samples, columns).
        target: V, (samples, columns).
        lam: the weight of the link.
        blocks: sizes of the kernel.
        counted: (samples,) booleans, which samples are linked; None for all.
        ahead: how many rows later a sample finds its offset and target.
    """
    columns = weight.shape[1]
    kind = link_map(divergence, columns)
    assert kind is not None  # asked for by obstacle
    wide, flags = padded(weight, blocks), target if counted is None else counted.char().contiguous()
    largest = weight.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    link = TileLink(
        wide,
        (wide / largest).half(),
        largest,
        offset.contiguous(),
        target.contiguous(),
        flags,
        ahead,
        columns,
        float(lam),
        kind.a,
        kind.b,
    )
    return Side(link, LinkPlan(kind.load(), offset.ndim == 2, counted is not None, wide.shape[1]))
