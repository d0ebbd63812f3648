"""All weights under limits on the scores: multipliers around quasi-Newton steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.constraints.constraint import Array, Limits
from liftednet.errors import SolverError
from liftednet.layers.expression import value_of
from liftednet.network import Term
from liftednet.samples import Weights

from ..block import Blocks, row_weights
from ..run import Ending, Step, Steps

ROUNDS = 40  # of the multipliers
_STEPS = 100  # of L-BFGS in a round
_HISTORY = 20
_FALL, _RISE = 0.25, 4.0  # a round that brings less raises the weight of the squares by so much
_MET = 1e-5  # limits moved by less, over the norm of their rows, and the prices with them: the end
_SETTLED = 1e-5  # relative change of the objective in a round


class AugmentedLagrangian:
    """min over all weights of the network's objective f, subject to l <= A u <= h on its scores.

    A round minimizes f + mu |a - P(a)|^2 / 2 with a = A u + y / mu and P the projection on [l, h],
    by L-BFGS; then y is mu (a - P(a)) (Hestenes, 1969; Powell, 1969; Rockafellar, 1973, for
    inequalities). mu rises where a round has left too much. Rows of A have norm 1, so that one mu
    suits a mean of many scores and a difference of two. Inequalities are held with a little room,
    in which the exact fit of the last layer begins. Only weights with a smooth penalty move.

    Attributes:
        weights: of every layer, in the order of a forward pass.
    """

    def __init__(self, blocks: Blocks, term: Term, limits: Limits) -> None:
        """Begin at the weights of the blocks.

        Args:
            blocks: the network on its data.
            term: the loss on the scores.
            limits: on these scores, as training has them.
        """
        self._structure, self._term = blocks.structure, term
        parameters = self._structure.parameters
        self._values = {x: _double(v) for x, v in blocks.values.items() if x not in parameters}
        self._likes = blocks.weights
        self._leaves = [layer.stacked().double().clone() for layer in blocks.weights]
        self._moving = [
            leaf.requires_grad_()
            for parameter, leaf in zip(parameters, self._leaves, strict=True)
            if self._structure.penalties[parameter].smooth
        ]
        normed = limits.normed()
        self._matrix = normed.matrix
        room = np.minimum(_MET, (normed.upper - normed.lower) / 4)
        self._ends = normed.lower + room, normed.upper - room
        self._prices = np.zeros(len(room))
        self._mu = term.weight * (term.pinned.divergence.smoothness or 1.0)

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights that have been reached."""
        return tuple(
            like.like(leaf.detach().to(like.matrix))
            for like, leaf in zip(self._likes, self._leaves, strict=True)
        )

    def take_steps(self, first: int) -> Steps:
        """Take the rounds, numbered from the first, and yield the objective after each.

        Raises:
            SolverError: the objective is not finite; the weights are the last good ones.
        """
        if not self._moving:
            return Ending.CONVERGED
        _, before = self._objective()
        last = math.inf
        for number in range(first, first + ROUNDS):
            good = [leaf.detach().clone() for leaf in self._moving]
            taken = self._minimize()
            u, objective = self._objective()
            if not math.isfinite(float(objective)):
                for leaf, value in zip(self._moving, good, strict=True):
                    leaf.data.copy_(value)
                raise SolverError(
                    "the objective under constraints is not finite: scale the inputs."
                )
            off, change = self._renew(u), float(before - objective)
            yield Step(
                number, "weights under constraints", float(objective), change, off, taken,
                "augmented-lagrangian",
            )  # fmt: skip
            before = objective
            if off <= _MET and abs(change) <= _SETTLED * (1 + abs(float(objective))):
                return Ending.CONVERGED
            self._mu *= _RISE if off > max(_FALL * last, _MET) else 1.0
            last = off
        return Ending.BUDGET

    def _objective(self) -> tuple[Tensor, Tensor]:
        """Return the scores, and the loss of the forward pass with the penalties."""
        parameters, penalties = self._structure.parameters, self._structure.penalties
        layers = [like.like(leaf) for like, leaf in zip(self._likes, self._leaves, strict=True)]
        values: dict[Any, Any] = {**self._values, **dict(zip(parameters, layers, strict=True))}
        u = value_of(self._term.argument, self._structure.passed(values))
        y = values[self._term.label]
        rows = self._term.weight * self._term.pinned.divergence.values(y, u)
        weights = row_weights(values, y)
        total = (rows if weights is None else weights * rows).sum()
        for parameter, layer in zip(parameters, layers, strict=True):
            total = total + penalties[parameter].value(layer.matrix)
        return u, total

    @torch.enable_grad()
    def _minimize(self) -> int:
        optimizer = torch.optim.LBFGS(
            self._moving, max_iter=_STEPS, history_size=_HISTORY, line_search_fn="strong_wolfe"
        )

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            u, objective = self._objective()
            excess = self._excess(u)
            total = objective + self._mu / 2 * float(excess @ excess)
            pull = self._matrix.T @ (self._mu * excess)
            push = torch.from_numpy(pull).to(u).view_as(u)
            (objective + (u * push).sum()).backward()  # whose gradient is that of the total
            return total.detach()

        optimizer.step(evaluate)
        return int(optimizer.state[self._moving[0]]["func_evals"])

    def _excess(self, u: Tensor) -> Array:
        """Return a - P(a)."""
        at = self._matrix @ u.detach().cpu().numpy().reshape(-1) + self._prices / self._mu
        found: Array = at - np.clip(at, *self._ends)
        return found

    def _renew(self, u: Tensor) -> float:
        """Take the next prices, and return by how much limits or prices are off."""
        prices = self._mu * self._excess(u)
        off = np.abs(prices - self._prices).max() / self._mu
        self._prices = prices
        return float(off)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
