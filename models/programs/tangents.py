"""Steps of a problem with networks in it, each network by its tangent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from liftednet.lazy import cvxpy as cp

from ..bounds.curves import Array
from .first_answer import Search, sides_of, values_of

PRECISE = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
_STEPS = 30
_FIRST, _LAST = 0.3, 1e-7  # of the width of the region, that steps may go
_KEPT, _GOOD = 0.1, 0.7  # of what a step promised: it is taken; the next may go farther
_DONE = 1e-7  # of the merit, that a step promises at least
_PRICE = 10.0  # of a broken constraint, in those of the first search
_BROKEN = 1e-7  # of a constraint, that counts as none


class Local:
    """Steps of a convex problem near a point, and how far they may go.

    With y replaced by y_k + J_k (v - v_k) the problem is convex, and is solved for v within a box
    around v_k; constraints on outputs may be broken at a price (Fletcher, An l1 penalty method for
    nonlinear constraints, 1985; Drusvyatskiy and Lewis, Error bounds, quadratic growth, and linear
    convergence of proximal methods, 2018). The box grows where the step keeps what it promised and
    shrinks where not, after a second try with the curvature that was met (Fletcher, Second order
    corrections for non-differentiable optimization, 1982). Of networks that are linear in pieces a
    step within a piece is exact.
    """

    def __init__(self, search: Search) -> None:
        """State one step, with what changes as parameters."""
        self.search, entries = search, len(search.region.center)
        graphs = search.graphs
        outputs = len(search.network.output.offset)
        self.slopes, self.shift = cp.Parameter((outputs, entries)), cp.Parameter(outputs)
        self.low, self.high = cp.Parameter(entries), cp.Parameter(entries)
        self.price: Any = cp.Parameter(nonneg=True, value=0.0)
        v = cp.hstack([cp.vec(x, order="F") for x in search.variables])
        rows = [v >= self.low, v <= self.high]
        rows.append(cp.hstack([x.y for x in graphs]) == self.slopes @ v + self.shift)
        for graph in graphs:
            rows += [graph.x >= graph.box[0], graph.x <= graph.box[1]]
        known, broken = {x.y.id for x in graphs}, []
        for one in search.constraints:
            if not known & {x.id for x in one.variables()}:
                rows.append(one)
                continue
            for side in sides_of(one):
                slack = cp.Variable(side.shape, nonneg=True)
                rows.append(side <= slack)
                broken.append(cp.sum(slack))
        cost = search.objective + (self.price * cp.sum(cp.hstack(broken)) if broken else 0.0)
        self.broken = broken
        self.problem = cp.Problem(cp.Minimize(cost), rows)

    def steps(self, v: Array, consider: Callable[[], Any], left: Callable[[], float]) -> None:
        """Take steps from v; every point on the way is considered.

        Args:
            v: (entries,).
            consider: called where the variables are at a point.
            left: returns the seconds that there are.
        """
        search = self.search
        far, width = _FIRST, np.minimum(search.region.width, 1e6)
        self.price.value = max(_PRICE * search.prices, _PRICE)
        merit = self.merit(v)
        for _ in range(_STEPS):
            if left() <= 0 or far < _LAST:
                break
            self.low.value, self.high.value = v - far * width, v + far * width
            slopes, shift = search.network.tangent(v)
            self.slopes.value, self.shift.value = slopes, shift
            promised, slack = 0.0, 0.0
            for turn in range(2):  # the second with the curvature that the first has met
                there = self.solved()
                if there is None:
                    break
                if not turn:
                    promised = merit - float(np.asarray(self.problem.value))
                    slack = sum(float(np.asarray(x.value)) for x in self.broken)
                search.assign(there)
                consider()
                value = self.merit(there)
                if merit - value >= _KEPT * promised or promised <= _DONE * (1 + abs(merit)):
                    break
                self.shift.value = search.network.forward(there) - slopes @ there
            if there is None:
                break
            kept = merit - value >= _KEPT * promised and value < merit
            done = promised <= _DONE * (1 + abs(merit))
            if kept:
                far *= 2.0 if merit - value > _GOOD * promised else 1.0
                v, merit = there, value
            elif not done:
                far *= 0.25
            if done and slack <= _BROKEN:
                break
            if done:
                self.price.value *= 10.0
                far, merit = _FIRST, self.merit(v)

    def solved(self) -> Array | None:
        """Return where the problem with networks by their tangents has its least value."""
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            try:
                self.problem.solve(solver=cp.CLARABEL, **PRECISE)
            except (cp.SolverError, ValueError):
                return None
        value = self.problem.value
        if value is None or not math.isfinite(float(np.asarray(value))):
            return None
        return self.search.region.inside(values_of(self.search.variables)[None])[0]

    def merit(self, v: Array) -> float:
        """Return the objective and the price of broken constraints, with the network as it is."""
        self.search.assign(v)
        with np.errstate(all="ignore"):  # beyond an atom's domain
            value = float(np.asarray(self.search.objective.value))
        sides = self.search.on_outputs
        broken = sum(float(np.maximum(x.value, 0).sum()) for x in sides)
        return value + float(self.price.value) * broken
