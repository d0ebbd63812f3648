"""The unit of norm 1 that answers residuals most: exactly in one or two inputs, locally in more.

max over |w| = 1 and b of |sum_i V_i phi(x_i w + b)|_2 with phi(u) = p max(u, 0) + q max(-u, 0) and
sum_i V_i = 0. The sum is linear in b between the data, and constant where b is so far that no row
is left on one side: the maximum has b = -x_k w for one of the rows. With that b the sum is linear
in w wherever no other row changes its side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_NUMBERS = 2**22  # of a chunk of the sweep
_ALIKE = 0.99  # correlation of answers from which two units are one
_COMPARED = 400  # units that those to be added are chosen from
_GROWTH, _SHRINKAGE = 1.5, 3.0  # of a local step that answers more, and of one that does not


@dataclass(frozen=True)
class Kinked:
    """phi(u) = p max(u, 0) + q max(-u, 0).

    Attributes:
        above: p, the slope of positive pre-activations.
        below: q, less the slope of negative ones.
    """

    above: float
    below: float

    @property
    def bend(self) -> float:
        """By how much the slope rises at 0."""
        return self.above + self.below

    def of(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.bend * u.clamp(min=0) - self.below * u

    def slope(self, u: Tensor) -> Tensor:
        """Return phi'(u), that of negative ones at 0."""
        return self.bend * (u > 0) - self.below


@dataclass(frozen=True, eq=False)
class Answers:
    """Units and how much they answer, the most first.

    Attributes:
        w: directions, (units, inputs), of norm 1.
        b: biases, (units,).
        values: |sum_i V_i phi(x_i w + b)|, (units,).
    """

    w: Tensor
    b: Tensor
    values: Tensor

    @staticmethod
    def ordered(w: Tensor, b: Tensor, values: Tensor) -> Answers:
        """Return units in their order."""
        order = values.argsort(descending=True)
        return Answers(w[order], b[order], values[order])

    def distinct(self, phi: Kinked, X: Tensor, least: float, most: int) -> Answers:
        """Return units of more than `least` whose answers are not much like those before."""
        count = int((self.values > least).sum())
        some = torch.arange(0, count, max(1, count // _COMPARED), device=X.device)
        h = phi.of(X @ self.w[some].T + self.b[some])
        h = h - h.mean(0)
        h = h / h.norm(dim=0).clamp(min=torch.finfo(h.dtype).tiny)
        left, chosen = torch.ones_like(h[0]), list[int]()
        while len(chosen) < most and bool(left.any()):
            number = int(left.argmax())
            chosen.append(number)
            left *= (h[:, number] @ h).abs() < _ALIKE
            left[number] = 0.0
        taken = some[chosen]
        return Answers(self.w[taken], self.b[taken], self.values[taken])


def exact(phi: Kinked, X: Tensor, V: Tensor, rows: Tensor | None = None) -> Answers:
    """Return the unit that answers most through every row, of one or two inputs.

    In the plane rows change their side at angles, which are sorted: the sums S of V_i (x_i - x_k)'
    over rows above follow by prefix sums, and |S w| is largest at an end of an arc or at the first
    singular vector of S. O(n^2 log n) for n rows.

    Args:
        phi: the activation.
        X: (rows, inputs), float64.
        V: (rows, outputs), each column of sum 0.
        rows: numbers of those that units in the plane go through; None for all.
    """
    if X.shape[1] == 1:
        w = X.new_tensor([[1.0], [-1.0]])
        b, values = _through_rows(phi, X, V, w)
        return Answers.ordered(w.repeat_interleave(len(X), 0), b.flatten(), values.flatten())
    through = X if rows is None else X[rows]
    size = max(1, _NUMBERS // (2 * X.numel() * V.shape[1]))
    found = [_best_of_arcs(*_arcs(phi, X, V, some)) for some in through.split(size)]
    angle, values = (torch.cat(part) for part in zip(*found, strict=True))
    w = torch.stack([angle.cos(), angle.sin()], 1)
    return Answers.ordered(w, -(through * w).sum(1), values)


def _arcs(phi: Kinked, X: Tensor, V: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
    """Return S, (rows, arcs, outputs, 2), and the angle that every arc begins at, (rows, arcs)."""
    apart = X - through[:, None]
    push = phi.bend * V[:, :, None] * apart[:, :, None]
    angle = torch.atan2(apart[..., 1], apart[..., 0])
    turns = torch.cat([angle - math.pi / 2, angle + math.pi / 2], 1).remainder(2 * math.pi)
    at, order = turns.sort(1)
    steps = torch.cat([push, -push], 1).flatten(2)
    steps = steps.gather(1, order[..., None].expand_as(steps)).view(*at.shape, *push.shape[2:])
    before = turns[:, len(X) :] < turns[:, : len(X)]  # above just before the angle 0
    begin = (push * before[..., None, None]).sum(1, keepdim=True)
    return begin + steps.cumsum(1) - phi.below * V.T @ X, at


def _best_of_arcs(S: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return angle and |S w| of the best w on all arcs of every row."""
    gram = S.mT @ S
    top = torch.atan2(gram[..., 0, 1], (gram[..., 0, 0] - gram[..., 1, 1]) / 2) / 2
    ends = torch.cat([at[:, 1:], at[:, :1] + 2 * math.pi], 1)
    inside = at + (top - at).remainder(math.pi)  # S w and -S w are as long
    best = torch.where(inside <= ends, inside, at)
    w = torch.stack([best.cos(), best.sin()], -1)
    values, place = (S @ w[..., None])[..., 0].norm(dim=-1).max(1)
    return best.gather(1, place[:, None])[:, 0], values


def ascended(phi: Kinked, X: Tensor, V: Tensor, w: Tensor, steps: int = 40) -> Answers:
    """Return what is reached from directions by gradient steps, each with its best bias.

    It proves nothing: there may be units that answer more.
    """
    b, values = _best_bias(phi, X, V, w)
    length = torch.full_like(b, 0.5)
    for _ in range(steps):
        u = w @ X.T + b[:, None]
        ahead = torch.nn.functional.normalize(phi.of(u) @ V, dim=1)
        uphill = (phi.slope(u) * (ahead @ V.T)) @ X
        moved = w + length[:, None] * torch.nn.functional.normalize(uphill, dim=1)
        moved = torch.nn.functional.normalize(moved, dim=1)
        bias, reached = _best_bias(phi, X, V, moved)
        up = reached > values
        w, b = torch.where(up[:, None], moved, w), torch.where(up, bias, b)
        values = torch.where(up, reached, values)
        length = torch.where(up, _GROWTH * length, length / _SHRINKAGE)
    return Answers.ordered(w, b, values)


def _best_bias(phi: Kinked, X: Tensor, V: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    b, values = _through_rows(phi, X, V, w)
    most, place = values.max(1)
    return b.gather(1, place[:, None])[:, 0], most


def _through_rows(phi: Kinked, X: Tensor, V: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the biases of units through every row, and what these answer, (units, rows) each."""
    u, order = (w @ X.T).sort(1, descending=True)
    pushes = V[order]
    above = (pushes * u[..., None]).cumsum(1) - u[..., None] * pushes.cumsum(1)
    linear = phi.below * w @ (X.T @ V)
    return -u, (phi.bend * above - linear[:, None]).norm(dim=2)
