"""A proven bound on what any unit answers, by branch and bound over directions and biases."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from .oracle import Kind, Kinked

_NUMBERS = 2**20  # rows times cells of one step
_MOST_CELLS = 4_000_000  # half a gigabyte


class Branches:
    """Cells of directions and biases, and what no unit of a kind in them answers more than.

    A cell is a box on a face of the cube, around which lies a cap of angle a about a unit vector c,
    and an interval b +- h. Pre-activations lie in u +- r with u = x c + b and r = 2 sin(a / 2) |x|
    + h, where max(u, 0) = s u + e with s = (u + r) / (2 r) and 0 <= e <= s (r - u), or s is 0 or 1
    and e = 0 where no sign changes. So the sum is linear, Q w + q b, plus what the e bring, at most
    |sum_i V_i m_i / 2| + sum_i |V_i| m_i / 2. Cells without a kink are left out, since some unit
    with a kink answers most.

    Attributes:
        most: what some unit answers.
        best: direction and bias of that unit, (1, inputs) and (1,).
    """

    def __init__(self, phi: Kinked, X: Tensor, V: Tensor, kind: Kind) -> None:
        """Begin with the faces of the cube; X and V are those of the kind, V of sum 0."""
        inputs = X.shape[1]
        self._phi, self._V, self._center, self._kind = phi, V, X.mean(0), kind
        self._X = X - self._center
        self._far = self._X.norm(dim=1)
        self._size = self._far.square().mean().sqrt()
        self._products = torch.cat([(V[:, :, None] * self._X[:, None]).flatten(1), V], 1)
        self._linear = -phi.below * V.T @ self._X
        self.most, self.best = 0.0, (X.new_zeros(1, inputs), X.new_zeros(1))
        signs = torch.cat([torch.eye(inputs), -torch.eye(inputs)]).to(X)
        signed = (kind.signs != 0).to(X) / 2  # of cells from 0 to 1 in place of -1 to 1
        signs = signs[((signs < 0) & (signed > 0)).logical_not().all(1)]
        across, bias = 1 - signs.abs(), self._far.max().expand(len(signs), 1)
        middles, sides = signs + across * signed, across * (1 - signed)
        self._cells = torch.cat([middles, torch.zeros_like(bias), sides, bias], 1)
        self._bounds = self._bounded(self._cells)

    def tightened(self, goal: float, seconds: float) -> float:
        """Split cells, those of the largest bounds first, and return what no unit exceeds.

        It ends when that is `goal`, when a unit answers more than the goal, or in time.
        """
        ends = time.perf_counter() + seconds
        size = max(1, _NUMBERS // len(self._X))
        while True:
            self._keep(self._bounds > max(goal, self.most))
            if not len(self._bounds):
                return max(goal, self.most)
            full = len(self._bounds) > _MOST_CELLS
            if self.most > goal or full or time.perf_counter() > ends:
                return float(self._bounds.max())
            taken = self._bounds.topk(min(size, len(self._bounds))).indices
            halves = self._halved(self._cells[taken])
            rest = torch.ones_like(self._bounds, dtype=torch.bool)
            rest[taken] = False
            self._keep(rest)
            bounds = self._bounded(halves)
            left = bounds > max(goal, self.most)
            self._cells = torch.cat([self._cells, halves[left]])
            self._bounds = torch.cat([self._bounds, bounds[left]])

    def _keep(self, kept: Tensor) -> None:
        self._cells, self._bounds = self._cells[kept], self._bounds[kept]

    def _halved(self, cells: Tensor) -> Tensor:
        """Return both halves of every cell, across its longest side."""
        middles, sides = cells.chunk(2, 1)
        scaled = torch.cat([sides[:, :-1] * self._size, sides[:, -1:]], 1)
        axis = scaled.argmax(1, keepdim=True)
        half = sides.gather(1, axis) / 2
        sides = sides.scatter(1, axis, half)
        middle = middles.gather(1, axis)
        ends = (middles.scatter(1, axis, middle + step) for step in (-half, half))
        return torch.cat([torch.cat([end, sides], 1) for end in ends])

    def _bounded(self, cells: Tensor) -> Tensor:
        size = max(1, _NUMBERS // len(self._X))
        return torch.cat([self._bound_some(some) for some in cells.split(size)])

    def _bound_some(self, cells: Tensor) -> Tensor:
        """Return the bounds of cells, (cells,), 0 where there is no kink."""
        middles, sides = cells.chunk(2, 1)
        b, h = middles[:, -1:], sides[:, -1:]
        lengths = middles[:, :-1].norm(dim=1, keepdim=True)
        c = middles[:, :-1] / lengths
        angle = torch.asin((sides[:, :-1].norm(dim=1, keepdim=True) / lengths).clamp(max=1.0))
        u = torch.addmm(b, c, self._X.T)
        r = torch.addcmul(h, 2 * (angle / 2).sin(), self._far)
        self._look(c, b[:, 0], u)
        share = ((u + r) / (2 * r)).clamp_(0, 1)
        over = (share * (r - u)).clamp_(min=0)
        bend, outputs = self._phi.bend, self._V.shape[1]
        sums = bend * (share @ self._products)
        Q = self._linear + sums[:, :-outputs].unflatten(1, (outputs, -1))
        q = sums[:, -outputs:]
        more = (over @ self._V).norm(dim=1) + over @ self._V.norm(dim=1)
        more = abs(bend) / 2 * more + q.norm(dim=1) * h[:, 0]
        found = _largest_on_cap(Q, q * b, c, angle[:, 0], self._kind) + more
        return torch.where((u.abs() <= r).any(1), found, 0.0)

    def _look(self, c: Tensor, b: Tensor, u: Tensor) -> None:
        """Keep the middle that answers most."""
        sums = c @ self._linear.T + self._phi.bend * (u.clamp(min=0) @ self._V)
        values = self._kind.size(sums)
        most, place = values.max(0)
        if float(most) > self.most:
            w = c[place, None]
            self.most, self.best = float(most), (w, b[place, None] - w @ self._center)


def _largest_on_cap(Q: Tensor, constant: Tensor, c: Tensor, angle: Tensor, kind: Kind) -> Tensor:
    """Return an upper bound on the size of Q w + constant over unit vectors within an angle of c.

    With w = cos(t) c + sin(t) z it is at most |cos(t) Q c + constant| + sin(t) |Q P|, P across c.
    """
    along = (Q @ c[..., None])[..., 0]
    across = (Q.square().sum((1, 2)) - along.square().sum(1)).clamp(min=0).sqrt()
    if Q.shape[1] > 1:
        length = along.norm(dim=1)
        bent = (1 - angle.cos()) * length + angle.sin() * across
        return (along + constant).norm(dim=1) + bent

    def largest(sign: float) -> Tensor:
        length = sign * along[:, 0]
        turn = torch.minimum(torch.atan2(across, length), angle)
        return length * turn.cos() + across * turn.sin() + sign * constant[:, 0]

    return largest(1.0) if kind.z is not None else largest(1.0).maximum(largest(-1.0))
