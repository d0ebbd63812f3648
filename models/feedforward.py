"""Which block of a lifted feedforward network is which convex subproblem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import Clipped, LeakyReLU
from liftednet.divergences import Divergence, Tight
from liftednet.losses import OutputLoss, PinnedLoss
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, Subproblem, WeightFit, Weights
from liftednet.problems.design_matrix import sum_of

from .architecture import Architecture
from .descent import Block
from .learned import learnable_layers, limit_block, slope_block
from .limits import LimitFit, Limits
from .slopes import SlopeFit


def forward_states(
    architecture: Architecture, weights: Sequence[Weights], x: Tensor
) -> list[Tensor]:
    """Return the output of every layer by the feedforward rule, each (samples, units).

    Lifted Neural Networks, eq. (1); the last is the network's output.
    """
    states = []
    for layer, activation in zip(weights, architecture.activations, strict=True):
        x = activation.forward(layer.apply(x))
        states.append(x)
    return states


@dataclass(frozen=True)
class Above:
    """What stands at the upper end of a layer: states or data, and the divergence to them."""

    divergence: Divergence
    target: Tensor
    lam: float


class FeedforwardBlocks:
    """Weights and states of a network on given data, as blocks of convex subproblems.

    Lifted Neural Networks, eq. (10) and section 6: states from the top down, then weights.

    Attributes:
        architecture: sizes, divergences, loss.
        weights: of every layer.
        states: of every layer that has them, each (samples, units).
        learn_activations: whether slopes and boxes of activations are blocks, too.
    """

    learn_activations = False

    def __init__(
        self,
        architecture: Architecture,
        inputs: Design,
        target: Tensor | None,
        weights: Sequence[Weights],
        states: Sequence[Tensor],
        state_passes: int = 1,
        fixed_weights: bool = False,
    ) -> None:
        """Take data, current weights and current states.

        Args:
            architecture: what the network is.
            inputs: X beside a column of ones, (samples, inputs).
            target: encoded y, (samples, outputs); None leaves it free, as prediction does.
            weights: of every layer.
            states: of every layer that has them.
            state_passes: how often a sweep visits the states before the weights.
            fixed_weights: whether the states alone are blocks.
        """
        self.architecture = architecture
        self.weights = list(weights)
        self.states = list(states)
        self._inputs = inputs
        self._target = target
        self._passes = state_passes
        self._fixed_weights = fixed_weights
        self._penalties = [SquaredFrobenius(rho) for rho in architecture.rho]

    def sweep(self) -> list[Block]:
        """Return the blocks of one sweep: states from the top down, weights, activations."""
        states = [self._state_block(layer) for layer in reversed(range(len(self.states)))]
        weights = [self._weight_block(layer) for layer in range(self.architecture.layers)]
        learned = learnable_layers(self.architecture) if self.learn_activations else []
        maps = [self._activation_block(layer) for layer in learned]
        fitted = [] if self._fixed_weights else weights + maps
        return states * self._passes + fitted

    def objective(self) -> float:
        """Return the joint objective in float64."""
        total = sum_of(self._layer_value(layer) for layer in range(self.architecture.layers))
        loss, target = self.architecture.loss, self._target
        if self.architecture.has_output_states and target is not None:
            assert isinstance(loss, OutputLoss)
            total += loss.output_value(target.double(), self.states[-1].double())
        return float(total)

    @property
    def target(self) -> Tensor:
        """Encoded y, (samples, outputs)."""
        assert self._target is not None  # free only in prediction, which asks for none
        return self._target

    def gap(self) -> tuple[float, ...]:
        """Return |X_l - forward pass| / |forward pass| for every layer with states."""
        passed = forward_states(self.architecture, self.weights, self.inputs)
        return tuple(
            float((state - exact).norm() / exact.norm().clamp(min=torch.finfo(exact.dtype).tiny))
            for state, exact in zip(self.states, passed, strict=False)
        )

    @property
    def inputs(self) -> Tensor:
        """X, (samples, inputs)."""
        return self._inputs.inputs

    def take_states(self, previous: FeedforwardBlocks) -> None:
        """Go on from the states of an earlier fit to the same data."""
        self.states = previous.states

    def snapshot(self) -> tuple[list[Weights], list[Tensor]]:
        """Return the current weights and states."""
        return list(self.weights), list(self.states)

    def restore(self, snapshot: tuple[list[Weights], list[Tensor]]) -> None:
        """Go back to weights and states of before."""
        weights, states = snapshot
        self.weights, self.states = list(weights), list(states)

    def extrapolate(self, previous: tuple[list[Weights], list[Tensor]], factor: float) -> None:
        """Go on by factor times the way from the previous point, states inside their domains."""
        weights, states = previous
        self.weights = [
            _beyond(now, before, factor) for now, before in zip(self.weights, weights, strict=True)
        ]
        moved = [torch.lerp(b, x, 1 + factor) for x, b in zip(self.states, states, strict=True)]
        self.states = [
            divergence.activation.project(state)
            for divergence, state in zip(self.architecture.divergences, moved, strict=True)
        ]

    def pre_activation(self, layer: int) -> Tensor:
        """Return X_{l-1} W_l + b_l, (samples, pre-activations)."""
        return self.weights[layer].apply(self._design(layer).inputs)

    def lam(self, layer: int) -> float:
        """Return the weight of a layer's divergence."""
        return self.architecture.lam[layer]

    def _design(self, layer: int) -> Design:
        return self._inputs if layer == 0 else Design(self.states[layer - 1])

    def _above(self, layer: int) -> Above | None:
        if layer < len(self.states):
            divergence = self.architecture.divergences[layer]
            return Above(divergence, self.states[layer], self.lam(layer))
        if self._target is None:
            return None
        loss = self.architecture.loss
        assert isinstance(loss, PinnedLoss)
        return Above(loss.divergence, self._target, 1.0)

    def _layer_value(self, layer: int) -> Tensor:
        above = self._above(layer)
        weights = self.weights[layer]
        value = self._penalties[layer].value(weights.matrix.double())
        if above is None:
            return value
        stacked = weights.stacked().double()
        for rows, chunk in self._design(layer).rows():
            target = above.target[rows].double()
            value += above.lam * above.divergence.value(target, chunk @ stacked)
        return value

    def _weight_block(self, layer: int) -> Block:
        return Block(
            f"weights {layer + 1}",
            partial(self._weight_fit, layer),
            partial(self.weights.__getitem__, layer),
            partial(self.weights.__setitem__, layer),
        )

    def _activation_block(self, layer: int) -> Block:
        activation = self.architecture.activations[layer]

        def assign(found: Activation, states: Tensor | None = None) -> None:
            self.architecture = self.architecture.with_divergence(layer, Tight(found))
            self.states[layer] = self.states[layer] if states is None else states

        if isinstance(activation, LeakyReLU):
            return slope_block(layer, activation.alpha, partial(self._slope_fit, layer), assign)
        assert isinstance(activation, Clipped)  # of learnable_layers
        box = activation.lower, activation.upper
        return limit_block(layer, partial(self._limit_fit, layer, box), assign)

    def _slope_fit(self, layer: int) -> SlopeFit:
        return SlopeFit(self.states[layer], self.pre_activation(layer), self.lam(layer))

    def _limit_fit(self, layer: int, box: Limits) -> LimitFit:
        u, lam = self.pre_activation(layer), self.lam(layer)
        return LimitFit(self.states[layer], u, self._links(layer), lam, box)

    def _weight_fit(self, layer: int) -> WeightFit:
        above = self._above(layer)
        assert above is not None  # weights are blocks only where there are targets
        return WeightFit(
            above.divergence,
            self._design(layer),
            above.target,
            self._penalties[layer],
            above.lam,
        )

    def _state_block(self, layer: int) -> Block:
        return Block(
            f"states {layer + 1}",
            partial(self._state_fit, layer),
            partial(self.states.__getitem__, layer),
            partial(self.states.__setitem__, layer),
        )

    def _state_fit(self, layer: int) -> Subproblem[Tensor]:
        divergence, lam = self.architecture.divergences[layer], self.lam(layer)
        below = self.pre_activation(layer)
        if layer == self.architecture.layers - 1 and self._target is not None:
            loss = self.architecture.loss
            assert isinstance(loss, OutputLoss)
            return OutputFit(loss, self._target, divergence, below, lam)
        return StateFit(divergence, below, self._links(layer), lam)

    def _links(self, layer: int) -> tuple[Link, ...]:
        above = self._above(layer + 1) if layer + 1 < self.architecture.layers else None
        if above is None:
            return ()
        weights = self.weights[layer + 1]
        assert weights.bias is not None
        return (Link(above.divergence, weights.matrix, weights.bias, above.target, above.lam),)


def _beyond(now: Weights, before: Weights, factor: float) -> Weights:
    assert now.bias is not None and before.bias is not None  # every layer of a LiftedMLP has one
    matrix = torch.lerp(before.matrix, now.matrix, 1 + factor)
    return Weights(matrix, torch.lerp(before.bias, now.bias, 1 + factor))
