"""One W for a convex function and several penalties, each met by its own prox alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_ROUNDS, _PATIENCE = 5_000, 500  # in all, and while points come no nearer
_BALANCED = 20  # rounds, and then twice as many again and again, after which rho is looked at
_RATIO = 2.0  # of what is apart in W and in pulls, from which rho is changed
_VANISHED = 1e-4  # of the first W, below which one may be on its way to 0
_KEPT = 10  # changes that are mixed
_NEARLY_SINGULAR = 1e-14  # of the products of changes

Prox = Callable[[Tensor, float], Tensor]
Model = Callable[[Tensor, Tensor, float], Tensor]


class Meeting(NamedTuple):
    """Where the points of the penalties meet.

    Attributes:
        points: of each penalty, (penalties, inputs, units).
        pulls: of each, a subgradient there, likewise.
        value: what the function's steps have reached, W and what may stand below it.
        apart: the largest distance of two points, relative to them, or what pulls leave over.
        rounds: taken.
    """

    points: Tensor
    pulls: Tensor
    value: Tensor
    apart: float
    rounds: int


class Splitting:
    """min over W of f(W) + sum_k pi_k(W) by a copy of W for every penalty.

    P_k = prox_{pi_k / rho}(s_k), W = argmin f(W) + sum_k rho |W - (2 P_k - s_k)|^2 / 2,
    s_k <- s_k + W - P_k: Douglas and Rachford's splitting (Eckstein and Bertsekas, 1992), with
    Anderson's mixing. Where it rests, all P_k are W, and the rho (s_k - P_k), each in dpi_k(W), sum
    to -df(W). Of f a model about the last W will do that has its gradient and is nowhere below f.

    Args:
        proxes: of the penalties: takes W and t.
        model: takes the last value, a center C and a weight c, and returns the next value, least in
            the model of f + c |W - C|^2 / 2; W are its first rows.
        value: to begin with.
        points: s_k to begin with, (penalties, inputs, units).
        rho: to begin with; it follows how far W and the pulls are from rest.
    """

    def __init__(
        self, proxes: Sequence[Prox], model: Model, value: Tensor, points: Tensor, rho: float
    ) -> None:
        """Begin."""
        self._proxes, self._model, self._rho = proxes, model, rho
        self._shapes, self._rows = (points.shape, value.shape), points.shape[1]
        self._state, self._mixing = torch.cat([points.flatten(), value.flatten()]), _Mixing()
        self._earlier, self._rounds, self._look, self._least = points, 0, _BALANCED, 0.0

    def meeting(self, goal: float) -> Meeting:
        """Return where the points are apart by a goal at most, or come no nearer."""
        best, since = torch.inf, self._rounds
        while True:
            self._rounds += 1
            shifted, value = self._parts()
            points = torch.stack(
                [prox(s, 1 / self._rho) for prox, s in zip(self._proxes, shifted, strict=True)]
            )
            centers = (2 * points - shifted).mean(0)
            following = self._model(value, centers, self._rho * len(points))
            gaps = following[: self._rows] - points
            if self._rounds == 1:  # mixtures may lead far away later
                self._least = _VANISHED * float(torch.maximum(gaps.abs(), points.abs()).max())
            apart = self._apart(points, gaps, shifted)
            if apart < 0.9 * best:
                best, since = apart, self._rounds
            late = self._rounds >= _ROUNDS or self._rounds - since > _PATIENCE
            if apart <= goal or late or apart != apart:
                pulls = self._rho * (shifted - points)
                return Meeting(points, pulls, following, apart, self._rounds)
            self._go_on(shifted, points, gaps, following)

    def _apart(self, points: Tensor, gaps: Tensor, shifted: Tensor) -> float:
        """Return how far points are apart in W, or pulls from -df(W), relative to their size."""
        parts = [points, points - points[-1], gaps.mean(0), shifted]
        size, spread, rest, pulled = torch.stack([part.abs().max() for part in parts]).tolist()
        return max(_share(spread, max(size, self._least)), _share(rest, pulled))

    def _parts(self) -> tuple[Tensor, Tensor]:
        points, value = self._shapes
        shifted, rest = self._state.split([points.numel(), value.numel()])
        return shifted.view(points), rest.view(value)

    def _go_on(self, shifted: Tensor, points: Tensor, gaps: Tensor, following: Tensor) -> None:
        mapped = torch.cat([(shifted + gaps).flatten(), following.flatten()])
        if self._rounds < self._look:
            self._state, self._earlier = self._mixing.following(self._state, mapped), points
            return
        self._look = self._rounds + 2 * self._look
        change = self._imbalance(shifted, points, gaps)
        if change > _RATIO or change < 1 / _RATIO:  # the pulls stay: rho (s - P)
            shifted, self._rho = points + (shifted - points) / change, self._rho * change
            mapped = torch.cat([shifted.flatten(), following.flatten()])
            self._mixing = _Mixing()
        self._state, self._earlier = mapped, points

    def _imbalance(self, shifted: Tensor, points: Tensor, gaps: Tensor) -> float:
        """Return by which factor rho is too small, as far as the last round tells."""
        parts = [gaps, points, points - self._earlier, shifted - points]
        off, size, moved, pull = (float(part.norm()) for part in parts)
        if not min(off, size, moved, pull) > 0:
            return 1.0
        return min(max((off / size / (moved / pull)) ** 0.5, 0.1), 10.0)


def _share(part: float, whole: float) -> float:
    """Return a part over a whole, which may both be 0."""
    return part / max(whole, torch.finfo(torch.float64).tiny)


class _Mixing:
    """Anderson's mixing for a nonexpansive map T: where T(z) - z would be least by past changes.

    A mixture that does not lessen it is given up, and T goes on from where it was last less.
    """

    def __init__(self) -> None:
        self._past = deque[tuple[Tensor, Tensor]](maxlen=_KEPT + 1)  # z and T(z) - z
        self._best, self._safe = torch.inf, torch.empty(0)

    def following(self, value: Tensor, mapped: Tensor) -> Tensor:
        """Return the value to go on with, z and T(z) given."""
        residual = mapped - value
        size = float(residual.norm())
        if size > self._best and len(self._past) > 1:
            self._past.clear()
            self._best = torch.inf
            return self._safe
        self._best, self._safe = size, mapped
        self._past.append((value, residual))
        if len(self._past) == 1:
            return mapped
        moved, changed = (torch.stack(x).diff(dim=0) for x in zip(*self._past, strict=True))
        products = changed @ changed.T
        products.diagonal().add_(_NEARLY_SINGULAR * products.trace())
        shares, failed = torch.linalg.solve_ex(products, changed @ residual)
        mixture = mapped - shares @ (moved + changed)
        return mixture if not failed and bool(mixture.isfinite().all()) else mapped
