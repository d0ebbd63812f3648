"""Which block of a lifted feedforward network is which convex subproblem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Divergence
from liftednet.errors import DeclarationError
from liftednet.losses import OutputLoss, PinnedLoss
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, Subproblem, WeightFit, Weights
from liftednet.solvers import Solver, solve

from .architecture import Architecture
from .descent import Block


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
class _Above:
    """What stands at the upper end of a layer: states or data, and the divergence to them."""

    divergence: Divergence
    target: Tensor
    lam: float


def first_states(
    architecture: Architecture,
    weights: Sequence[Weights],
    inputs: Tensor,
    target: Tensor,
    solver: str | Solver[Any, Any, Any],
) -> list[Tensor]:
    """Return the states of the forward pass; those of the output minimize their own fit."""
    passed = forward_states(architecture, weights, inputs)
    if not architecture.has_output_states:
        return passed[:-1]
    below = weights[-1].apply(passed[-2] if len(passed) > 1 else inputs)
    divergence, lam, loss = architecture.divergences[-1], architecture.lam[-1], architecture.loss
    assert isinstance(loss, OutputLoss)  # seen to by design_network
    fit = OutputFit(loss, target, divergence, below, lam)
    return [*passed[:-1], solve(fit, solver).value]


class FeedforwardBlocks:
    """Weights and states of a network on given data, as blocks of convex subproblems.

    Lifted Neural Networks, eq. (10) and section 6: states from the top down, then weights.

    Attributes:
        architecture: sizes, divergences, loss.
        weights: of every layer.
        states: of every layer that has them, each (samples, units).
    """

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
        """Return the blocks of one sweep: states from the top down, then all weights."""
        states = [self._state_block(layer) for layer in reversed(range(len(self.states)))]
        weights = [self._weight_block(layer) for layer in range(self.architecture.layers)]
        return states * self._passes + ([] if self._fixed_weights else weights)

    def objective(self) -> float:
        """Return the joint objective in float64."""
        total = sum(self._layer_value(layer) for layer in range(self.architecture.layers))
        loss, target = self.architecture.loss, self._target
        if self.architecture.has_output_states and target is not None:
            assert isinstance(loss, OutputLoss)
            total += float(loss.output_value(target.double(), self.states[-1].double()))
        return total

    def at_forward_pass(self, solver: str | Solver[Any, Any, Any]) -> FeedforwardBlocks:
        """Return blocks of the same weights and data, with the states of the forward pass."""
        assert self._target is not None  # prediction has no forward pass to return to
        return blocks_at(
            self.architecture, self.weights, self.inputs, self._target, solver, self._passes
        )

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

    def _design(self, layer: int) -> Design:
        return self._inputs if layer == 0 else Design(self.states[layer - 1])

    def _above(self, layer: int) -> _Above | None:
        if layer < len(self.states):
            architecture = self.architecture
            return _Above(
                architecture.divergences[layer], self.states[layer], architecture.lam[layer]
            )
        if self._target is None:
            return None
        loss = self.architecture.loss
        assert isinstance(loss, PinnedLoss)
        return _Above(loss.divergence, self._target, 1.0)

    def _layer_value(self, layer: int) -> float:
        above = self._above(layer)
        weights = self.weights[layer]
        value = float(self._penalties[layer].value(weights.matrix.double()))
        if above is None:
            return value
        stacked = weights.stacked().double()
        for rows, chunk in self._design(layer).rows():
            target = above.target[rows].double()
            value += above.lam * float(above.divergence.value(target, chunk @ stacked))
        return value

    def _weight_block(self, layer: int) -> Block:
        return Block(
            f"weights {layer + 1}",
            partial(self._weight_fit, layer),
            partial(self.weights.__getitem__, layer),
            partial(self.weights.__setitem__, layer),
        )

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
        divergence, lam = self.architecture.divergences[layer], self.architecture.lam[layer]
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


def blocks_at(
    architecture: Architecture,
    weights: Sequence[Weights],
    inputs: Tensor,
    target: Tensor,
    solver: str | Solver[Any, Any, Any],
    state_passes: int = 1,
) -> FeedforwardBlocks:
    """Return the blocks of a network on data, with the states of its forward pass."""
    states = first_states(architecture, weights, inputs, target, solver)
    return FeedforwardBlocks(architecture, Design(inputs), target, weights, states, state_passes)


def mean_objective(
    architecture: Architecture,
    solver: str | Solver[Any, Any, Any],
    inputs: Tensor,
    target: Tensor,
    weights: Sequence[Weights],
) -> float:
    """Return the joint objective at the forward pass over the number of samples."""
    return blocks_at(architecture, weights, inputs, target, solver).objective() / len(inputs)


def refuse_output_states(architecture: Architecture) -> None:
    """Raise `DeclarationError` where the last layer has states, and no fit to the data."""
    if architecture.has_output_states:
        raise DeclarationError(
            "refit_output needs a loss on the last pre-activation, such as CrossEntropy; "
            f"{type(architecture.loss).__name__} has output states here."
        )


def refitted_output(
    blocks: FeedforwardBlocks, solver: str | Solver[Any, Any, Any]
) -> FeedforwardBlocks:
    """Return blocks at the forward pass, the last layer fitted to its features.

    Raises:
        SolverError: the fit failed.
    """
    fresh = blocks.at_forward_pass(solver)
    last = fresh.sweep()[-1]
    last.assign(solve(last.problem(), solver, last.value()).value)
    return fresh
