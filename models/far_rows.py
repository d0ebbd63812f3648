"""Rows with an entry so far away that all others of its feature look alike beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import processes
from liftednet.samples import row_chunks

_APART = 10.0  # times as far as all others
_FEW = 0.1  # of a feature's entries that are not its median: more are a group of their own
_SAMPLES = 1_000  # rows that most features are judged by
_MEDIAN = 250  # of these, for a median: it only has to lie among most of the others


@dataclass(frozen=True, eq=False)
class Gaps:
    """The features with entries far from all others, and where these begin.

    Attributes:
        features: their numbers, (found,).
        center: their medians, (found,).
        limit: distances beyond which an entry is far, (found,).
        times: the smallest of these over the largest below them, (found,).
    """

    features: Tensor
    center: Tensor
    limit: Tensor
    times: Tensor

    def far(self, rows: Tensor) -> Tensor:
        """Return which rows have such an entry, (samples,)."""
        return ((rows[:, self.features] - self.center).abs_() > self.limit).any(1)


def gaps_of(rows: Tensor) -> Gaps:
    """Return the features of all processes' rows in which few entries are far away.

    Args:
        rows: (samples, features) of this process.
    """
    some = processes.joined(rows[:: max(1, -(-len(rows) // _SAMPLES))])
    middle = some[:: max(1, -(-len(some) // _MEDIAN))]
    center = middle.median(0).values if len(some) else rows.new_zeros(rows.shape[1])
    high = torch.zeros_like(center)
    if len(rows):
        high = torch.maximum(rows.amax(0) - center, center - rows.amin(0))
    limit = processes.largest(high).to(rows) / _APART
    far, other = ((some - center).abs() > limit).sum(0), (some != center).sum(0)
    few = (far <= 2 * _FEW * other) & (limit > 0)  # twice: these are some rows only
    features = few.nonzero().flatten()
    center, limit = center[features], limit[features]
    near, beyond = torch.zeros_like(limit), torch.full_like(limit, math.inf)
    counts = rows.new_zeros(2, len(features), dtype=torch.float64)
    for part in row_chunks(len(rows), max(1, len(features))):
        distance = (rows[part][:, features] - center).abs_()
        away = distance > limit
        counts += torch.stack([away.sum(0), (distance > 0).sum(0)])
        near = torch.maximum(near, distance.masked_fill(away, 0.0).amax(0))
        beyond = torch.minimum(beyond, distance.masked_fill_(~away, math.inf).amin(0))
    near, beyond = processes.largest(torch.stack([near, -beyond])).to(rows).abs()
    (counts,) = processes.total(counts)
    found = (counts[0] > 0) & (counts[0] <= _FEW * counts[1]) & (beyond >= _APART * near)
    return Gaps(features[found], center[found], limit[found], (beyond / near)[found])
