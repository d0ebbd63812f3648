"""All weights under limits on the scores: multipliers around quasi-Newton steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import SolverError
from liftednet.layers.expression import Parameter, value_of
from liftednet.network import Term
from liftednet.samples import Weights
from liftednet.sets.polyhedron import Array, Limits, stacked

from ..block import Blocks, row_weights
from ..forward_pass import Values
from ..run import Ending, Step, Steps
from .widths import Stacked, Widths

ROUNDS = 50  # of the multipliers
_WIDEST, _WIDE, _NARROWING = 3.0, 3, 10  # times the units, in so many rounds, then in fewer
_STEPS, _FREE_STEPS = 100, 30  # of L-BFGS in a round, and where there are no limits
_HISTORY = 10
_FALL, _RISE = 0.25, 4.0  # a round that brings less raises the weight of the squares by so much
_MET = 1e-5  # limits moved by less, over the norm of their rows, and the prices with them: the end
_SETTLED = 1e-5  # relative change of the objective in a round


class AugmentedLagrangian:
    """min over all weights of the network's objective f, subject to l <= A u <= h on its scores.

    A round minimizes f + mu |a - P(a)|^2 / 2 with a = A u + y / mu and P the projection on [l, h],
    by L-BFGS; then y is mu (a - P(a)) (Hestenes, 1969; Powell, 1969; Rockafellar, 1973, for
    inequalities). mu rises where a round has left too much. Rows of A have norm 1, so that one mu
    suits a mean of many scores and a difference of two. Inequalities are held with a little room,
    in which the exact fit of the last layer begins. Only weights with a smooth penalty move. Where
    there are no limits, as behind a projection, rounds are short.

    The first rounds have three times the hidden units where they can (see `Widths`), the next ones
    fewer and fewer, until the network has its own. It ends in lower minima than one that never had
    more, and these depend less on the start.
    """

    def __init__(
        self, blocks: Blocks, term: Term, limits: Limits | None, generator: torch.Generator
    ) -> None:
        """Begin at the weights of the blocks.

        Args:
            blocks: the network on its data.
            term: the loss on the scores.
            limits: on these scores, as training has them; None for none.
            generator: of the units that come in.
        """
        self._structure, self._term = blocks.structure, term
        parameters = self._structure.parameters
        self._values = {x: _double(v) for x, v in blocks.values.items() if x not in parameters}
        self._likes = dict(zip(parameters, blocks.weights, strict=True))
        self._stacked = {x: like.stacked().double().clone() for x, like in self._likes.items()}
        self._moving = [x for x in parameters if self._structure.penalties[x].smooth]
        self._widths, self._generator = Widths(self._structure), generator
        self._steps = _FREE_STEPS if limits is None else _STEPS
        scores = blocks.values[term.label].numel()
        normed = (stacked([], scores) if limits is None else limits).normed()
        self._matrix, self._back = normed.matrix, normed.matrix.T.tocsr()
        room = np.minimum(_MET, (normed.upper - normed.lower) / 4)
        self._ends = normed.lower + room, normed.upper - room
        self._prices = np.zeros(len(room))
        self._mu = term.weight * (term.pinned.divergence.smoothness or 1.0)

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights that have been reached, of the network's own units."""
        own = self._fewer(1.0)
        return tuple(like.like(own[x].to(like.matrix)) for x, like in self._likes.items())

    def take_steps(self, first: int) -> Steps:
        """Take the rounds, numbered from the first, and yield the objective after each.

        Raises:
            SolverError: the objective is not finite; the weights are the last good ones.
        """
        if not self._moving:
            return Ending.CONVERGED
        _, before = self._reached()
        last, factors = math.inf, self._factors()
        for number in range(ROUNDS):
            wide = number < len(factors)
            if number == 0 and wide:
                self._stacked = self._widths.more(self._stacked, factors[0], self._generator)
            else:
                self._stacked = self._fewer(factors[number] if wide else 1.0)
            good = self._stacked
            taken = self._minimize()
            u, objective = self._reached()
            if not math.isfinite(objective):
                self._stacked = good
                raise SolverError(
                    "the objective under constraints is not finite: scale the inputs."
                )
            off, change = self._renew(u), before - objective
            yield Step(
                first + number, "weights under constraints", objective, change, off, taken,
                "augmented-lagrangian",
            )  # fmt: skip
            before = objective
            if wide:
                continue
            if off <= _MET and abs(change) <= _SETTLED * (1 + abs(objective)):
                return Ending.CONVERGED
            self._mu *= _RISE if off > max(_FALL * last, _MET) else 1.0
            last = off
        return Ending.BUDGET

    def _factors(self) -> list[float]:
        """Return how many times its own units the network has in each of the first rounds."""
        fewer = [_WIDEST ** (1 - n / _NARROWING) for n in range(1, _NARROWING)]
        return [*(_WIDEST,) * _WIDE, *fewer] if self._widths else []

    def _fewer(self, factor: float) -> Stacked:
        return self._widths.fewer(self._stacked, self._passed(self._stacked), factor)

    def _passed(self, stacked: Mapping[Parameter, Tensor]) -> Values:
        """Return the values with the states of a forward pass."""
        layers = {x: self._likes[x].like(layer) for x, layer in stacked.items()}
        return self._structure.passed({**self._values, **layers})

    def _reached(self) -> tuple[Tensor, float]:
        """Return the scores, and the loss of the forward pass with the penalties."""
        passed = self._passed(self._stacked)
        u = value_of(self._term.argument, passed)
        return u, self._objective(u, passed)

    def _objective(self, u: Tensor, passed: Values) -> float:
        rows = self._term.pinned.divergence.values(passed[self._term.label], u)
        loss = float((self._weighed(passed) * rows).sum())
        return loss + self._structure.penalty(passed)

    def _weighed(self, passed: Values) -> Tensor | float:
        """Return how much every sample counts."""
        weights = row_weights(passed, passed[self._term.label])
        return self._term.weight if weights is None else self._term.weight * weights

    def _minimize(self) -> int:
        """Take the steps of a round, and return how often the network was passed."""
        from scipy.optimize import minimize  # whose import takes .2 s

        likes = [self._stacked[x] for x in self._moving]
        sizes = [x.numel() for x in likes]

        def split(point: Array) -> Stacked:
            parts = torch.from_numpy(point).to(likes[0]).split(sizes)
            shaped = (part.view_as(like) for part, like in zip(parts, likes, strict=True))
            return dict(zip(self._moving, shaped, strict=True))

        def evaluated(point: Array) -> tuple[float, Array]:
            leaves = split(point)
            with torch.enable_grad():
                moved = {x: part.requires_grad_() for x, part in leaves.items()}
                passed = self._passed({**self._stacked, **moved})
                u = value_of(self._term.argument, passed)
            excess = self._excess(u)
            total = self._objective(u, passed) + self._mu / 2 * float(excess @ excess)
            pull = torch.from_numpy(self._back @ (self._mu * excess)).to(u).view_as(u)
            slopes = torch.autograd.grad(u, list(moved.values()), self._slope(u, passed) + pull)
            for parameter, slope in zip(moved, slopes, strict=True):
                matrix, penalty = passed[parameter].matrix, self._structure.penalties[parameter]
                rows = slice(len(matrix))  # a bias has no penalty
                slope[rows] = penalty.stationarity(matrix, slope[rows], 1.0)
            return total, _flat(slopes)

        found = minimize(
            evaluated, _flat(likes), jac=True, method="L-BFGS-B",
            options={"maxiter": self._steps, "maxcor": _HISTORY, "ftol": 1e-12, "gtol": 1e-7},
        )  # fmt: skip
        self._stacked = {**self._stacked, **split(found.x)}
        return int(found.nfev)

    def _slope(self, u: Tensor, passed: Values) -> Tensor:
        """Return the gradient of the loss in the scores."""
        weights = self._weighed(passed)
        weights = weights.unsqueeze(-1) if isinstance(weights, Tensor) else weights
        y: Tensor = passed[self._term.label]
        return weights * (self._term.pinned.divergence.link_gradient(u) - y)

    def _excess(self, u: Tensor) -> Array:
        """Return a - P(a)."""
        at = self._matrix @ u.detach().cpu().numpy().reshape(-1) + self._prices / self._mu
        found: Array = at - np.clip(at, *self._ends)
        return found

    def _renew(self, u: Tensor) -> float:
        """Take the next prices, and return by how much limits or prices are off."""
        prices = self._mu * self._excess(u)
        off = np.abs(prices - self._prices).max(initial=0.0) / self._mu
        self._prices = prices
        return float(off)


def _flat(parts: Sequence[Tensor]) -> Array:
    found: Array = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    return found


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
