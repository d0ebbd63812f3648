"""Multipliers: a coupling whose states agree with the forward pass at a finite lam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.divergences import Raw
from liftednet.errors import DeclarationError
from liftednet.layers.expression import affine_in, value_of
from liftednet.network import State
from liftednet.samples import Weights

from ..block import Blocks, Edge, Structure, row_weights
from ..forward_pass import Values
from ..run import Memory, OfSamples, Step

_EASED, _DAMPED = 0.8, 4.0  # factors of the damping after a sweep that paid, and one that did not


@dataclass(frozen=True)
class Multiplier:
    """What holds the states of one layer at X = phi(U), linearized at a pre-activation U_0.

    Attributes:
        states: P = Y / lam, with Y the multipliers of X = phi(U), (samples, units).
        pre_activation: Q = grad R(U_0) - phi(U_0) + phi'(U_0) P, (samples, units).
        level: D(phi(U_0), U_0) + <P, phi(U_0)> - <Q, U_0> of every sample, (samples,), so that the
            layer's term vanishes there.
    """

    states: Tensor
    pre_activation: Tensor
    level: Tensor


class MultiplierBlocks(Blocks):
    """The augmented Lagrangian of Z = phi(U) for all states, as convex blocks.

    With multipliers Y = lam P, a sweep minimizes the losses, the penalties and, for all states,

        lam [Phi(Z) - <Z, U> + R(U) + <P, Z> - <Q, U>]

    with the R of the joint divergence: the tight divergence and <Y, Z - phi(U)>, both linearized
    in U at the last sweep's U_0 (Phi* is R less a convex function). So weight fits are ridge
    regressions and state fits have quadratic links. After every sweep the multipliers become
    their first-order estimate, Y = - the gradient in Z of all that stands above (Nocedal and
    Wright, Numerical Optimization, 2006, chapter 17). Where it comes to rest, Z = phi(U) whatever
    lam, and the weights are stationary for the network's own objective: lam is a damping, not a
    penalty.

    The damping falls by a fifth after a sweep that lowered the network's objective. After one
    that raised it, the weights go back, the states to their forward pass, and lam rises fourfold,
    as in the method of Levenberg and Marquardt. So the network's objective falls in every sweep
    that is kept, and the gap does not: a low damping makes long moves, after which the states are
    off the forward pass by up to a tenth. Wide ReLU layers may not be at rest after a hundred
    sweeps. A damping that rises where the gap has grown keeps the gap small, and slows training:
    results/training/NOTES.md.

    Attributes:
        damping: factor of the structure's lam.
    """

    def __init__(self, structure: Structure, values: Values, *rest: Any) -> None:
        """Take what `Blocks` takes, and estimate the multipliers there."""
        self.damping = 1.0
        self._multipliers: dict[State, Multiplier] = {}
        super().__init__(structure, values, *rest)
        self._best: tuple[float, list[Weights]] = self.network_objective(), self.weights
        self._multipliers = self._estimates()

    def memory(self) -> Memory:
        """Return the point, the multipliers and the damping, and the best weights so far."""
        parts = [
            [OfSamples(part) for part in (x.states, x.pre_activation, x.level)]
            for x in self._multipliers.values()
        ]
        held = {"damping": self.damping, "multipliers": parts, "best": list(self._best)}
        return {**super().memory(), **held}

    def recall(self, memory: Memory) -> None:
        """Go back to what `memory` has returned."""
        super().recall(memory)
        self._recall_multipliers(memory)
        self._best = tuple(memory["best"])

    def recall_states(self, memory: Memory) -> None:
        """Take the states, the multipliers and the damping, where an earlier fit had some."""
        super().recall_states(memory)
        if "multipliers" in memory:
            self._recall_multipliers(memory)

    def _recall_multipliers(self, memory: Memory) -> None:
        held = (Multiplier(*(x.tensor for x in parts)) for parts in memory["multipliers"])
        self._multipliers = dict(zip(reversed(self.structure.states), held, strict=True))
        self.damping = memory["damping"]

    def network_objective(self) -> float:
        """Return the loss at the forward pass plus the penalties, in float64."""
        passed, loss = self.structure.passed(self.values), 0.0
        for edge in self.edges():
            if not isinstance(edge.target, State):
                loss += float(self.edge_value(edge, passed))
        return self.structure.penalty(self.values) + processes.total_of(loss)

    def renewal(self, sweep: int) -> Step:
        """Keep the sweep or take it back, estimate the multipliers anew, and say what it did."""
        before, off = self.objective(), max(self.gap(), default=0.0)
        reached, (best, weights) = self.network_objective(), self._best
        if reached <= best:
            self.damping *= _EASED
            self._best = reached, self.weights
        else:
            self.damping *= _DAMPED
            self.values.update(zip(self.structure.parameters, weights, strict=True))
            self.pass_forward()
        self._multipliers = self._estimates()
        objective = self.objective()
        return Step(sweep, "renewal", objective, before - objective, off, 0, "renewal")

    def _estimates(self) -> dict[State, Multiplier]:
        edges = list(self.edges())
        slopes: dict[Any, Tensor] = {}
        for edge in edges:
            if not isinstance(edge.target, State):
                passed = edge.divergence.link_gradient(value_of(edge.argument, self.values))
                slopes[edge.target] = edge.lam * (passed - self.values[edge.target])
        found: dict[State, Multiplier] = {}
        for state in reversed(self.structure.states):
            push = self._push(state, edges, slopes)
            u, activation = self.pre_activation(state), self.divergence(state).activation
            passed, tangent = activation.forward(u), activation.slope(u) * push
            divergence, lam = self.divergence(state), self.lam(state)
            p, q = -push / lam, divergence.link_gradient(u) - passed - tangent / lam
            level = divergence.values(passed.double(), u.double()) + _coupling(p, passed, q, u)
            found[state] = Multiplier(p, q, level)
            slopes[state] = lam * (passed - self.values[state]) + tangent
        return found

    def _push(self, state: State, edges: list[Edge], slopes: Mapping[Any, Tensor]) -> Tensor:
        """Return the gradient in states of all that stands above."""
        total = torch.zeros_like(self.values[state])
        for edge in edges:
            if state in edge.argument.variables:
                part = affine_in(edge.argument, state, self.values)
                total = part.map.add_adjoint(total, slopes[edge.target], 1.0)
        return total

    def lam(self, state: State) -> float:
        """Return the weight of a divergence, with the damping."""
        return self.damping * super().lam(state)

    def drive(self, state: State) -> Tensor:
        """Return U - P."""
        return self.pre_activation(state) - self._multipliers[state].states

    def link_target(self, edge: Edge) -> Tensor:
        """Return the target, plus Q for states."""
        target = super().link_target(edge)
        if not isinstance(edge.target, State):
            return target
        return target + self._multipliers[edge.target].pre_activation

    def objective(self) -> float:
        """Return the augmented Lagrangian at the current point, in float64."""
        total = 0.0
        for state, held in self._multipliers.items():
            u = self.pre_activation(state)
            coupling = _coupling(held.states, self.values[state], held.pre_activation, u)
            rows, weights = coupling - held.level, row_weights(self.values, u)
            rows = rows if weights is None else weights * rows
            total += self.lam(state) * float(rows.sum())
        return super().objective() + processes.total_of(total)


def _coupling(p: Tensor, x: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """Return <P, X> - <Q, U> of every sample in float64, (samples,)."""
    return (p.double() * x).sum(-1) - (q.double() * u).sum(-1)


def refuse_unfit(structure: Structure) -> None:
    """Raise `DeclarationError` where a network has no multipliers of this kind."""
    for term in structure.network.terms:
        if term.state is not None:
            raise DeclarationError(
                'divergence="multipliers" needs a loss on the last pre-activation, such as '
                f"CrossEntropy, and no output states; the loss is {type(term.loss).__name__}."
            )
    for number, state in enumerate(structure.states, start=1):
        divergence = structure.divergences[state]
        if isinstance(divergence, Raw) or not state.activation.per_unit:
            raise DeclarationError(
                'divergence="multipliers" needs activations that act unit by unit; '
                f"{state.activation!r} of layer {number} does not."
            )
        if state.sequence or state.bounds is not None:
            raise DeclarationError(
                'divergence="multipliers" is for networks without sequences and without bounds on '
                "their states."
            )
