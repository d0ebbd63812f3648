"""Weights with a penalty of each entry: by descent, and of few units by the inputs that matter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import SolverError
from liftednet.penalties import L1, GroupLasso, Penalty, SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights

from .loops import Array, array, in_threads

MOST_INPUTS = 4_096  # that have a row of sums each
ROUNDING = 1e-13  # of terms, that sums over samples may be off
LONGEST = 400  # steps of accelerated gradients in whose time it is left to them
_LONGEST_OF_FEW = 8_000  # likewise, of steps that need all rows
_FEW_UNITS = 16  # inputs for each, from which passes over rows are faster than a Gram matrix
_FEW_ENTRIES = 1 << 20  # of X, whose Gram matrix takes as long as a few passes
_ADDED = 32  # inputs that a set begins with


class Parts(NamedTuple):
    """A penalty that sees each entry of W by itself, or each row.

    Attributes:
        low: the least W, (inputs, units) or (1, 1).
        high: the largest.
        kink: of kink |w|.
        group: of group |w_i|_2 for every row, beside squares alone.
        square: of square |w - w_0|^2 / 2.
        pull: the sum of square w_0, (inputs, units), or None.
    """

    low: Tensor
    high: Tensor
    kink: float
    group: float
    square: float
    pull: Tensor | None


def parts_of(penalty: Penalty, shape: tuple[int, int]) -> Parts | None:
    """Return a penalty by its parts, or None where it is more than that."""
    high = torch.full((1, 1), torch.inf, dtype=torch.float64)
    low, kink, group, square = -high, 0.0, 0.0, 0.0
    pull: Tensor | None = None
    for part in penalty.parts:
        if isinstance(part, SquaredFrobenius):
            square += part.curvature
            if part.center is not None:
                own = part.linear_term(torch.zeros(shape, dtype=torch.float64))
                pull = own if pull is None else pull + own
        elif isinstance(part, L1):
            kink += part.rho
        elif isinstance(part, GroupLasso):
            group += part.rho
        elif (ends := part.ends(shape)) is not None:
            low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        else:
            return None
    entries = kink > 0 or bool(low.isfinite().any()) or bool(high.isfinite().any())
    return None if group and entries else Parts(low, high, kink, group, square, pull)


def has_few_inputs(problem: WeightFit, found: Parts) -> bool:
    """Say whether passes over rows and the inputs that are not 0 take less than a Gram matrix."""
    design = problem.design
    if not found.kink or processes.size() > 1 or _FEW_UNITS * problem.units > design.features:
        return False
    if bool((found.low > 0).any()) or bool((found.high < 0).any()):
        return False
    return design.samples < design.features or design.inputs.numel() > _FEW_ENTRIES


def minimize_entries(
    found: Parts, hessian: Array, right: Array, goal: float, z: Array, longest: float
) -> None:
    """Put the least z'Hz / 2 - <z, b> + penalty of every unit into z.

    Args:
        found: the penalty, with ends of the inputs of H.
        hessian: H, (inputs, inputs).
        right: b, (units, inputs).
        goal: what a slope may miss.
        z: (units, inputs), where to begin.
        longest: sweeps of each unit.

    Raises:
        SolverError: they are not enough.
    """
    from .descent_rows import Rest, descend

    low, high = (array(end.expand(len(hessian), -1).T) for end in (found.low, found.high))
    rest = Rest(low, high, found.square, found.square, found.kink)
    goals = np.full((len(z), 1), goal)

    def work(part: slice) -> float:
        own: Any = rest if len(low) == 1 else rest._replace(low=low[part], high=high[part])
        budget = longest * 2.0 * len(hessian) ** 2 * len(z[part])
        return descend(hessian, right[part], own, goals[part], budget, z[part])

    if math.isinf(max(in_threads(work, *z.shape))):
        raise SolverError("descent takes longer than other solvers do.")


def by_few_inputs(
    problem: WeightFit, found: Parts, start: Weights | None, tolerance: float
) -> Weights:
    """Return the weights by a set of inputs, to which those are added that contradict the others.

    As celer and skglm do it (Massias, Gramfort and Salmon, Celer, 2018), but the fit of a set is
    exact.

    Raises:
        SolverError: that takes more than it does others.
    """
    design, curvature = problem.design.centered, problem.curvature
    features = design.features
    left, mean = _about_mean(design, problem.ridge_targets)
    pull = 0.0 if found.pull is None else found.pull
    ups, downs = found.high > 0, found.low < 0

    def slopes(rows: Tensor) -> Tensor:  # whose sum is 0: X needs no center
        sums = rows.new_zeros(rows.shape[1], features)
        for part, chunk in replace(design, bias=False).rows():
            sums += design.weighed(rows[part], part).T @ chunk
        return curvature * sums.T + pull

    right = gradient = slopes(left)
    goal = max(ROUNDING, tolerance) * max(float(right.abs().max()), found.kink)
    matrix = torch.zeros_like(right) if start is None else start.matrix.double().clone()
    added, inside = matrix.any(1), torch.zeros(features, dtype=torch.bool)
    chosen, blocks = inside.nonzero()[:, 0], [left[:, :0]]
    means, hessian = right[:0, 0], right[:0, :0]
    while True:
        wrong = (gradient * ups).maximum(-gradient * downs).amax(1).masked_fill(inside, 0.0)
        largest, first = wrong.topk(min(max(_ADDED, int(matrix.any(1).sum())), features))
        added[first[largest > found.kink + goal]] = True
        new = added.nonzero()[:, 0]
        if not len(new):
            break
        chosen, inside = torch.cat([chosen, new]), inside | added
        if len(chosen) > MOST_INPUTS:
            raise SolverError("too many inputs are not 0.")
        columns = design.inputs.detach().T[new].double().T  # of which each lies in one piece
        if design.shift is not None:
            columns -= design.shift[new]
        columns, center = _about_mean(design, columns)
        means = torch.cat([means, center])
        own = curvature * design.weighed(columns, slice(None))
        beside, corner = torch.cat([block.T @ own for block in blocks]), columns.T @ own
        hessian = torch.cat([torch.cat([hessian, beside], 1), torch.cat([beside.T, corner], 1)])
        blocks.append(columns)
        z = array(matrix[chosen].T).copy()
        ends = found
        if len(found.low) > 1:
            ends = found._replace(low=found.low[chosen], high=found.high[chosen])
        minimize_entries(ends, array(hessian), array(right[chosen].T), goal, z, _LONGEST_OF_FEW)
        matrix[chosen] = torch.from_numpy(z).T
        parts, rest = matrix[chosen].split([block.shape[1] for block in blocks]), left
        for block, part in zip(blocks, parts, strict=True):
            rest = rest - block @ part
        gradient, added = slopes(rest), torch.zeros_like(inside)
    bias = (mean - means @ matrix[chosen]).unsqueeze(0)
    return design.split(torch.cat([matrix, bias]) if design.bias else matrix)


def _about_mean(design: Design, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of all samples less their mean, and this; as they are, and 0, without a bias."""
    if not design.bias:
        return rows, rows.new_zeros(rows.shape[1])
    mean = design.weighed(rows, slice(None)).sum(0) / design.mass
    return rows - mean, mean
