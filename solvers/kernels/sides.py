"""Links as the kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from liftednet.divergences import Divergence

from .table import link_map, padded_width


@dataclass(frozen=True)
class Side:
    """A link of a launch.

    Attributes:
        link: a `TileLink`.
        gradient: of R, a Triton function.
        full: whether C has a row for each sample.
        counted: whether not all samples are linked.
        width: columns of W, rounded up to a power of two.
    """

    link: Any
    gradient: Any
    full: bool
    counted: bool
    width: int


def link_refusal(divergence: Divergence, weight: Tensor) -> str | None:
    """Return why no kernel can take a link, or None."""
    activation = divergence.activation
    if divergence.smoothness is None:
        return f"it needs a Lipschitz constant of {activation!r}"
    if link_map(divergence, weight.shape[1]) is None:
        return f"there is no kernel for a link to {activation!r}"
    return None


def padded(weight: Tensor, rows: int) -> Tensor:
    """Return W with zeros beyond its size, (rows, columns rounded up to a power of two)."""
    units, columns = weight.shape
    wide = weight.new_zeros(rows, padded_width(columns))
    wide[:units, :columns] = weight
    return wide


def side(
    divergence: Divergence,
    weight: Tensor,
    offset: Tensor,
    target: Tensor,
    lam: float,
    rows: int,
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
        rows: units, rounded up to what a tile has.
        counted: (samples,) booleans, which samples are linked; None for all.
        ahead: how many rows later a sample finds its offset and target.
    """
    from .tile_steps import TileLink

    columns = weight.shape[1]
    kind = link_map(divergence, columns)
    assert kind is not None  # asked for by obstacle
    wide, flags = padded(weight, rows), target if counted is None else counted.char().contiguous()
    link = TileLink(
        wide,
        wide.T.contiguous(),
        offset.contiguous(),
        target.contiguous(),
        flags,
        ahead,
        columns,
        float(lam),
        kind.a,
        kind.b,
    )
    return Side(link, kind.load(), offset.ndim == 2, counted is not None, wide.shape[1])
