"""The unit of norm 1 that answers residuals most: exactly in few inputs, locally in more.

max over |w| = 1 and b of |sum_i V_i phi(x_i w + b)|_2 with phi(u) = p max(u, 0) + q max(-u, 0) and
sum_i V_i = 0, over all units of a kind. The sum is linear in b between the data, and constant where
b is so far that no row is left on one side: the maximum has b = -x_k w for one of the rows. With
that b the sum is linear in w wherever no other row changes its side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NUMBERS = 2**22  # of a chunk of the sweep
_ALIKE = 0.99  # correlation of answers from which two units are one
_COMPARED = 400  # units that those to be added are chosen from
_GROWTH, _SHRINKAGE = 1.5, 3.0  # of a local step that answers more, and of one that does not
_ON_A_CIRCLE = 1e-12  # of the farthest row, that rounding may have one off it
_ON_AN_END = 1e-12  # of a direction, that rounding may be beyond a sign


Found = tuple[Tensor, Tensor, Tensor]  # directions of what a kind sees, biases, and values


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
class Kind:
    """Units that see some of the inputs, by weights of given signs.

    Attributes:
        seen: numbers of the inputs, (seen,).
        signs: of their weights, 1 or -1, and 0 for both, (seen,).
        z: what outputs are of a unit, (outputs,) of norm 1; None where it is free.
        units: the most that there may be.
    """

    seen: Tensor
    signs: Tensor
    z: Tensor | None
    units: int

    def inputs(self, X: Tensor) -> Tensor:
        """Return what units see, (rows, seen), turned so that weights with a sign are positive."""
        return X[:, self.seen] * torch.where(self.signs < 0, -1.0, 1.0).to(X)

    def residuals(self, V: Tensor) -> Tensor:
        """Return what units are asked for, (rows, outputs), or (rows, 1) where z is given."""
        return V if self.z is None else (V @ self.z)[:, None]

    def inside(self, w: Tensor) -> Tensor:
        """Return directions of norm 1 without what has the wrong sign."""
        return torch.nn.functional.normalize(torch.where(self.signs != 0, w.clamp(min=0), w), dim=1)

    def turned(self, w: Tensor) -> Tensor:
        """Return directions of norm 1 with the right signs."""
        return torch.nn.functional.normalize(torch.where(self.signs != 0, w.abs(), w), dim=1)

    def size(self, sums: Tensor) -> Tensor:
        """Return how much is answered of sums over rows, (..., outputs)."""
        return sums.norm(dim=-1) if self.z is None else sums[..., 0].clamp(min=0)

    def whole(self, w: Tensor, inputs: int) -> Tensor:
        """Return directions among all inputs."""
        found = w.new_zeros(len(w), inputs)
        found[:, self.seen] = w * torch.where(self.signs < 0, -1.0, 1.0).to(w)
        return found


@dataclass(frozen=True, eq=False)
class Answers:
    """Units and how much they answer, the most first.

    Attributes:
        w: directions, (units, inputs), of norm 1.
        b: biases, (units,).
        values: |sum_i V_i phi(x_i w + b)|, (units,).
        kind: numbers of their kinds, (units,).
    """

    w: Tensor
    b: Tensor
    values: Tensor
    kind: Tensor

    @staticmethod
    def ordered(parts: Sequence[tuple[Kind, Found]], inputs: int) -> Answers:
        """Return the units of all kinds in their order."""
        w = torch.cat([kind.whole(found[0], inputs) for kind, found in parts])
        b, values = (torch.cat([found[place] for _, found in parts]) for place in (1, 2))
        counts = torch.tensor([len(found[1]) for _, found in parts])
        number = torch.arange(len(parts)).repeat_interleave(counts)
        order = values.argsort(descending=True)
        return Answers(w[order], b[order], values[order], number.to(order)[order])

    def distinct(
        self, phi: Kinked, X: Tensor, least: float, most: int, room: Sequence[int]
    ) -> Answers:
        """Return units of more than `least` whose answers are not much like those before.

        Args:
            phi: the activation.
            X: (rows, inputs).
            least: as said.
            most: of them.
            room: of each kind.
        """
        count = int((self.values > least).sum())
        some = torch.arange(0, count, max(1, count // _COMPARED), device=X.device)
        h = phi.of(X @ self.w[some].T + self.b[some])
        h = h - h.mean(0)
        h = h / h.norm(dim=0).clamp(min=torch.finfo(h.dtype).tiny)
        left, chosen, kind = torch.ones_like(h[0]), list[int](), self.kind[some]
        for number, places in enumerate(room):
            left[kind == number] *= float(places > 0)
        while len(chosen) < most and bool(left.any()):
            number = int(left.argmax())
            chosen.append(number)
            left *= (h[:, number] @ h).abs() < _ALIKE
            left[number] = 0.0
            same = int(kind[number])
            if int((kind[chosen] == same).sum()) == room[same]:
                left[kind == same] = 0.0
        taken = some[chosen]
        return Answers(self.w[taken], self.b[taken], self.values[taken], self.kind[taken])


def exact(phi: Kinked, X: Tensor, V: Tensor, kind: Kind, rows: Tensor | None = None) -> Found:
    """Return the unit that answers most through every row, of a kind that sees up to three inputs.

    Of three there is one output.

    In the plane rows change their side at angles, which are sorted: the sums S of V_i (x_i - x_k)'
    over rows above follow by prefix sums, and |S w| is largest at an end of an arc or at the first
    singular vector of S: O(n^2 log n) for n rows. In space the same holds on the circles across
    x_l - x_k, which bound the cells where S is the same, and within those: O(n^3 log n).

    Args:
        phi: the activation.
        X: (rows, seen), float64, what the kind sees.
        V: (rows, outputs), what it is asked for, each column of sum 0.
        kind: of units.
        rows: numbers of those that units in the plane go through; None for all.
    """
    if X.shape[1] == 0:  # a constant, of which each column of V asks for nothing
        return X.new_zeros(1, 0), X.new_zeros(1), X.new_zeros(1)
    if X.shape[1] == 1:
        w = X.new_tensor([[1.0], [-1.0]])[: 1 if bool(kind.signs[0] != 0) else 2]
        b, values = _through_rows(phi, X, V, w, kind)
        return w.repeat_interleave(len(X), 0), b.flatten(), values.flatten()
    through = X if rows is None else X[rows]
    if X.shape[1] == 3:
        w, values = _in_space(phi, X, V, through, kind)
        return w, -(through * w).sum(1), values
    size = max(1, _NUMBERS // (2 * X.numel() * V.shape[1]))
    # Where weights have signs arcs end there, too.
    linear, plane = phi.below * V.T @ X, torch.eye(2).to(X)
    edges = plane[kind.signs != 0]
    push, found = phi.bend * _with_zeros(V, len(edges))[:, :, None], []
    for some in through.split(size):
        apart = torch.cat([X - some[:, None], edges.expand(len(some), -1, 2)], 1)
        S, at = _arcs(apart, push * apart[:, :, None])
        found.append(_best_of_arcs(S - linear, at, plane, kind))
    w, values = (torch.cat(part) for part in zip(*found, strict=True))
    return w, -(through * w).sum(1), values


def _with_zeros(V: Tensor, rows: int) -> Tensor:
    return torch.cat([V, V.new_zeros(rows, V.shape[1])])


def _in_space(
    phi: Kinked, X: Tensor, V: Tensor, through: Tensor, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Return the best w of three entries for every row that units go through, and its value.

    Where the best w = S / |S| of a cell lies in it, the nearest point of its boundary is on an arc
    that w is across: the arcs whose middle part S points to are looked at.
    """
    linear, unit = phi.below * V.T @ X, torch.eye(3).to(X)
    edges, found = unit[kind.signs != 0], []
    push = phi.bend * _with_zeros(V, len(edges))[:, :, None]
    for row in through:
        apart = torch.cat([X - row, edges])
        across = torch.nn.functional.normalize(apart, dim=1)
        across = torch.where(across.any(1, keepdim=True), across, unit[0])
        first = torch.linalg.cross(across, unit[across.abs().argmin(1)])
        first = torch.nn.functional.normalize(first, dim=1)
        plane = torch.stack([first, torch.linalg.cross(across, first)], 2)
        flat, pushes = apart @ plane, push * apart[:, None]
        on = flat.norm(dim=2) <= _ON_A_CIRCLE * apart.norm(dim=1).max()  # l, and rows in line
        S, at = _arcs(flat, torch.where(on[..., None, None], 0.0, pushes))
        S = S - linear
        w, values = _best_of_arcs(S @ plane[:, None], at, plane, kind)
        inside = [w[values.argmax()][None]]
        ends = torch.cat([at[:, 1:], at[:, :1] + 2 * math.pi], 1)
        for side, sign in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            passed = on & (side * across @ apart.T > 0)
            cells = sign * (S[:, :, 0] + (passed.to(X) @ pushes[:, 0])[:, None])
            ahead = cells @ plane
            angle = at + (torch.atan2(ahead[..., 1], ahead[..., 0]) - at).remainder(2 * math.pi)
            there = (angle <= ends) & (side * (cells @ across[..., None])[..., 0] > 0)
            inside.append(torch.nn.functional.normalize(cells[there], dim=1))
        w = torch.cat(inside)
        wrong = ((kind.signs != 0) & (w < -_ON_AN_END)).any(1)
        answers = kind.size(phi.of(w @ (X - row).T) @ V).masked_fill(wrong, 0.0)
        best = answers.argmax()
        found.append((w[best], answers[best]))
    return torch.stack([w for w, _ in found]), torch.stack([value for _, value in found])


def _arcs(apart: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of pushes of rows above on every arc, and the angle that it begins at.

    Args:
        apart: where rows are in a plane, (planes, rows, 2).
        push: of rows, (planes, rows, outputs, inputs).
    """
    angle = torch.atan2(apart[..., 1], apart[..., 0])
    turns = torch.cat([angle - math.pi / 2, angle + math.pi / 2], 1).remainder(2 * math.pi)
    at, order = turns.sort(1)
    steps = torch.cat([push, -push], 1).flatten(2)
    steps = steps.gather(1, order[..., None].expand_as(steps)).view(*at.shape, *push.shape[2:])
    count = apart.shape[1]
    before = turns[:, count:] < turns[:, :count]  # above just before the angle 0
    begin = (push * before[..., None, None]).sum(1, keepdim=True)
    return begin + steps.cumsum(1), at


def _best_of_arcs(S: Tensor, at: Tensor, plane: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the w in every plane with the longest S w on all its arcs, and how long that is.

    S is that of coordinates in the planes, whose axes are `plane`, (inputs, 2) or one for each.
    """
    gram = S.mT @ S
    top = torch.atan2(gram[..., 0, 1], (gram[..., 0, 0] - gram[..., 1, 1]) / 2) / 2
    ends = torch.cat([at[:, 1:], at[:, :1] + 2 * math.pi], 1)
    inside = at + (top - at).remainder(math.pi)  # S w and -S w are as long
    best, values = at, S.new_full(at.shape, -1.0)
    for angle in (torch.where(inside <= ends, inside, at), at)[: 1 if kind.z is None else 2]:
        turned = torch.stack([angle.cos(), angle.sin()], -1)
        wrong = ((kind.signs != 0) & (turned @ plane.mT < -_ON_AN_END)).any(-1)
        found = kind.size((S @ turned[..., None])[..., 0]).masked_fill(wrong, 0.0)
        best, values = torch.where(found > values, angle, best), found.maximum(values)
    values, place = values.max(1)
    angle = best.gather(1, place[:, None])
    return (plane @ torch.stack([angle.cos(), angle.sin()], 1))[..., 0], values


def ascended(phi: Kinked, X: Tensor, V: Tensor, w: Tensor, kind: Kind, steps: int = 40) -> Found:
    """Return what is reached from directions by gradient steps, each with its best bias.

    It proves nothing: there may be units that answer more.
    """
    b, values = _best_bias(phi, X, V, w, kind)
    length = torch.full_like(b, 0.5)
    for _ in range(steps):
        u = w @ X.T + b[:, None]
        ahead = torch.nn.functional.normalize(phi.of(u) @ V, dim=1)
        uphill = (phi.slope(u) * (ahead @ V.T)) @ X
        moved = w + length[:, None] * torch.nn.functional.normalize(uphill, dim=1)
        moved = kind.inside(moved)
        bias, reached = _best_bias(phi, X, V, moved, kind)
        up = reached > values
        w, b = torch.where(up[:, None], moved, w), torch.where(up, bias, b)
        values = torch.where(up, reached, values)
        length = torch.where(up, _GROWTH * length, length / _SHRINKAGE)
    return w, b, values


def _best_bias(phi: Kinked, X: Tensor, V: Tensor, w: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    b, values = _through_rows(phi, X, V, w, kind)
    most, place = values.max(1)
    return b.gather(1, place[:, None])[:, 0], most


def _through_rows(
    phi: Kinked, X: Tensor, V: Tensor, w: Tensor, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Return the biases of units through every row, and what these answer, (units, rows) each."""
    u, order = (w @ X.T).sort(1, descending=True)
    pushes = V[order]
    above = (pushes * u[..., None]).cumsum(1) - u[..., None] * pushes.cumsum(1)
    linear = phi.below * w @ (X.T @ V)
    return -u, kind.size(phi.bend * above - linear[:, None])
