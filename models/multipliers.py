"""Multipliers: a coupling whose states agree with the forward pass at a finite lam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from liftednet.divergences import Raw
from liftednet.errors import DeclarationError
from liftednet.losses import PinnedLoss
from liftednet.problems import Design, StateFit, Subproblem, Weights

from .architecture import Architecture
from .feedforward import Above, FeedforwardBlocks, forward_states

_EASED, _DAMPED = 0.8, 4.0  # factors of the damping after a sweep that paid, and one that did not


@dataclass(frozen=True)
class Multiplier:
    """What holds the states of one layer at X = phi(U), linearized at a pre-activation U_0.

    Attributes:
        states: P = Y / lam, with Y the multipliers of X = phi(U), (samples, units).
        pre_activation: Q = grad R(U_0) - phi(U_0) + phi'(U_0) P, (samples, units).
        level: D(phi(U_0), U_0) + <P, phi(U_0)> - <Q, U_0>, so that the layer's term vanishes there.
    """

    states: Tensor
    pre_activation: Tensor
    level: Tensor


class MultiplierBlocks(FeedforwardBlocks):
    """The augmented Lagrangian of X_l = phi(U_l), U_l = X_{l-1} W_l + b_l, as convex blocks.

    With multipliers Y = lam P, a sweep minimizes the loss, the penalties and, for every layer,

        lam [Phi(X) - <X, U> + R(U) + <P, X> - <Q, U>]

    with the R of the joint divergence: the tight divergence and <Y, X - phi(U)>, both linearized
    in U at the last sweep's U_0 (Phi* is R less a convex function). So weight fits are ridge
    regressions and state fits have quadratic links. After every sweep the multipliers become
    their first-order estimate, Y = - the gradient in X of all that stands above (Nocedal and
    Wright, Numerical Optimization, 2006, chapter 17). Where it comes to rest, X = phi(U) whatever
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
        damping: factor of the architecture's lam.
    """

    def __init__(
        self,
        architecture: Architecture,
        inputs: Design,
        target: Tensor | None,
        weights: Sequence[Weights],
        states: Sequence[Tensor],
        state_passes: int = 1,
    ) -> None:
        """Take what `FeedforwardBlocks` takes, and estimate the multipliers there."""
        super().__init__(architecture, inputs, target, weights, states, state_passes)
        self.damping = 1.0
        self._best = self.network_objective(), list(self.weights)
        self._multipliers = self._estimates()

    def take_states(self, previous: FeedforwardBlocks) -> None:
        """Go on from the states, multipliers and damping of an earlier fit to the same data."""
        super().take_states(previous)
        assert isinstance(previous, MultiplierBlocks)  # the architecture is the same
        self.damping, self._multipliers = previous.damping, previous._multipliers

    def network_objective(self) -> float:
        """Return the loss at the forward pass plus the penalties, in float64."""
        passed = forward_states(self.architecture, self.weights, self.inputs)
        above, last = self._above(self.architecture.layers - 1), self.weights[-1]
        assert above is not None  # there are targets in training
        u = last.apply(passed[-2] if len(passed) > 1 else self.inputs)
        penalties = (
            float(penalty.value(layer.matrix.double()))
            for penalty, layer in zip(self._penalties, self.weights, strict=True)
        )
        return float(above.divergence.value(above.target.double(), u.double())) + sum(penalties)

    def renew(self) -> None:
        """Keep the sweep or take it back, and estimate the multipliers anew."""
        reached, (best, weights) = self.network_objective(), self._best
        if reached <= best:
            self.damping *= _EASED
            self._best = reached, list(self.weights)
        else:
            self.damping *= _DAMPED
            self.weights = list(weights)
            self.states = forward_states(self.architecture, weights, self.inputs)[:-1]
        self._multipliers = self._estimates()

    def _estimates(self) -> list[Multiplier]:
        slope = self._output_slope()
        found: list[Multiplier] = []
        for layer in reversed(range(len(self.states))):
            push = slope @ self.weights[layer + 1].matrix.T
            u, activation = self.pre_activation(layer), self.architecture.activations[layer]
            passed, tangent = activation.forward(u), activation.slope(u) * push
            found.append(self._estimate(layer, u, passed, push, tangent))
            slope = self.lam(layer) * (passed - self.states[layer]) + tangent
        return found[::-1]

    def _output_slope(self) -> Tensor:
        layer = self.architecture.layers - 1
        above = self._above(layer)
        assert above is not None  # there are targets in training
        return above.divergence.link_gradient(self.pre_activation(layer)) - above.target

    def _estimate(
        self, layer: int, u: Tensor, passed: Tensor, push: Tensor, tangent: Tensor
    ) -> Multiplier:
        divergence, lam = self.architecture.divergences[layer], self.lam(layer)
        p, q = -push / lam, divergence.link_gradient(u) - passed - tangent / lam
        value = divergence.value(passed.double(), u.double())
        return Multiplier(p, q, _coupling(value, p, passed, q, u))

    def lam(self, layer: int) -> float:
        """Return the weight of a layer's divergence, with the damping."""
        return self.damping * super().lam(layer)

    def _above(self, layer: int) -> Above | None:
        above = super()._above(layer)
        if above is None or layer == len(self.states):
            return above
        target = above.target + self._multipliers[layer].pre_activation
        return Above(above.divergence, target, above.lam)

    def _layer_value(self, layer: int) -> Tensor:
        if layer == len(self.states):
            return super()._layer_value(layer)
        x, u, held = self.states[layer], self.pre_activation(layer), self._multipliers[layer]
        value = self.architecture.divergences[layer].value(x.double(), u.double())
        coupling = _coupling(value, held.states, x, held.pre_activation, u)
        penalty = self._penalties[layer].value(self.weights[layer].matrix.double())
        return penalty + self.lam(layer) * (coupling - held.level)

    def _state_fit(self, layer: int) -> Subproblem[Tensor]:
        below = self.pre_activation(layer) - self._multipliers[layer].states
        divergence = self.architecture.divergences[layer]
        return StateFit(divergence, below, self._links(layer), self.lam(layer))


def _coupling(value: Tensor, p: Tensor, x: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """Return D + <P, X> - <Q, U> in float64, ()."""
    return value + (p.double() * x).sum() - (q.double() * u).sum()


def refuse_unfit(architecture: Architecture) -> None:
    """Raise `DeclarationError` where a network has no multipliers of this kind."""
    if not isinstance(architecture.loss, PinnedLoss) or architecture.has_output_states:
        raise DeclarationError(
            'divergence="multipliers" needs a loss on the last pre-activation, such as '
            f"CrossEntropy, and no output states; the loss is {type(architecture.loss).__name__}."
        )
    for number, divergence in enumerate(architecture.divergences, start=1):
        activation = divergence.activation
        if isinstance(divergence, Raw) or not activation.per_unit:
            raise DeclarationError(
                'divergence="multipliers" needs activations that act unit by unit; '
                f"{activation!r} of layer {number} does not."
            )
