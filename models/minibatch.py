"""Training on minibatches: states from the forward pass, weights pulled to the previous ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import deferred
from liftednet.deferred import at_least, at_most, reported, subtract_
from liftednet.divergences import Raw
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import OutputLoss, PinnedLoss
from liftednet.problems import OutputFit, Weights
from liftednet.solvers import choose
from liftednet.validation import is_number, require_positive

from .architecture import Architecture
from .arrays import require_count
from .layer_metric import LayerMetric, Move

_MEMORY = 0.95  # of the running statistics at every look at them
_FIRST_LOOKS = 5  # batches that are all looked at, before the statistics stand


@dataclass(frozen=True)
class Minibatch:
    """How a network is trained on minibatches; the defaults are the best of what was measured.

    Attributes:
        epochs: passes over the data.
        batch_size: samples of a batch (a DataLoader brings its own).
        rate: step of the weights in units of their metric; it falls linearly to zero. No step
            is longer than 2 loss / slope, where a parabola with minimum 0 ends.
        damping: how little the covariance of a layer's inputs is trusted.
        rank: eigenvectors of that covariance that are followed.
        refresh: batches from one look at the statistics to the next.
        validation: share of the samples that is held out; 0 for none.
        patience: epochs without a better validation objective until training stops and the best
            weights are kept; None trains to the end and keeps the last.

    Raises:
        DataError: a number is out of its range.
    """

    epochs: int = 10
    batch_size: int = 100
    rate: float = 0.3
    damping: float = 30.0
    rank: int = 16
    refresh: int = 20
    validation: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        counts = {"epochs": 1, "batch_size": 1, "refresh": 1, "rank": 0}
        if self.patience is not None:
            counts["patience"] = 1
        for name, least in counts.items():
            require_count(name, getattr(self, name), least)
        require_positive("rate", self.rate)
        require_positive("damping", self.damping)
        if not is_number(self.validation) or not 0 <= self.validation < 1:
            raise DataError(f"validation must be a share in [0, 1), got {self.validation!r}.")
        if self.patience is not None and self.validation == 0:
            raise DataError("patience needs a validation share; validation is 0.")

    def refuse(self, architecture: Architecture) -> None:
        """Raise `DeclarationError` where a network cannot be trained like this."""
        refuse_unfit(architecture)


def needs_all_samples(architecture: Architecture) -> bool:
    """Return whether a network has multipliers, or a raw divergence, which torch cannot follow."""
    raw = any(isinstance(divergence, Raw) for divergence in architecture.divergences)
    return raw or architecture.multipliers


def refuse_unfit(architecture: Architecture) -> None:
    """Raise `DeclarationError` where a network cannot be trained on minibatches."""
    if architecture.multipliers:
        raise DeclarationError(
            "on minibatches states begin at the forward pass in every step, and need no "
            'multipliers: use divergence="tight", or method="full".'
        )
    for number, divergence in enumerate(architecture.divergences, start=1):
        if isinstance(divergence, Raw):
            raise DeclarationError(
                f"minibatches need a potential or a forward map of every activation, and "
                f"{divergence.activation!r} of layer {number} is a raw divergence: use "
                'method="full".'
            )


class BatchSteps:
    """Moves all weights by one batch at a time.

    The forward pass gives U_l and Z_l = phi(U_l). From the top down, states move to the minimizer
    of their fit with the link linearized, V_l = phi(U_l - g_l / lam_l), where g_l is the gradient
    of the link above. Then the weight fit to V_l, linearized too, is pulled to the previous
    weights in the metric of `LayerMetric`: an implicit step, with one ridge system for many
    batches.

    Attributes:
        weights: of every layer, changed in place.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Sequence[Weights],
        settings: Minibatch,
        generator: torch.Generator,
    ) -> None:
        """Copy the weights.

        Raises:
            DeclarationError: an activation is a raw divergence, or there are multipliers.
        """
        refuse_unfit(architecture)
        self.architecture = architecture
        self.weights = [copied(layer) for layer in weights]
        self._refresh = settings.refresh
        self._metrics = [
            LayerMetric(inputs, settings.rank, settings.damping, _MEMORY, generator)
            for inputs, _ in architecture.weight_shapes
        ]
        self._taken = 0

    @torch.no_grad()
    def step(self, inputs: Tensor, target: Tensor, rate: float, samples: int) -> float:
        """Move the weights by one batch.

        Args:
            inputs: X, (batch, inputs).
            target: encoded y, (batch, outputs).
            rate: step in units of the metric.
            samples: of all data, over which the penalty on the weights is shared.

        Returns:
            The mean loss of the batch before the step; on a GPU it stays there until it is read.

        Raises:
            SolverError: the loss is not finite; the weights are as they were, on a GPU too, where
                whoever reads the loss must look.
        """
        below, above = self._forward(inputs)
        loss, gradients = self._gradients(above, target)
        if not deferred.stays_on_device(loss):
            refuse_infinite(loss, self._taken, rate)
        self._look(below)
        moves = [
            self._move(number, x, slope, samples)
            for number, (x, slope) in enumerate(zip(below, gradients, strict=True))
        ]
        slope = at_least(sum(move.slope for move in moves), torch.finfo(inputs.dtype).tiny)
        taken, finite = at_most(2 * loss / slope, rate), loss < float("inf")
        for layer, move in zip(self.weights, moves, strict=True):
            subtract_(layer.matrix, move.matrix, taken * move.scale, finite)
            subtract_(_bias(layer), move.bias, taken, finite)
        self._taken += 1
        return loss

    def _forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return inputs and pre-activations of every layer."""
        below, above = [], []
        for layer, activation in zip(self.weights, self.architecture.activations, strict=True):
            below.append(x)
            above.append(layer.apply(x))
            if len(above) < self.architecture.layers:
                x = activation.forward(above[-1])
        return below, above

    def _gradients(self, above: list[Tensor], target: Tensor) -> tuple[float, list[Tensor]]:
        """Return the mean loss, and lam (grad R(U) - V) of every layer."""
        loss, slope = self._top(above[-1], target)
        gradients = [slope]
        for number in reversed(range(self.architecture.layers - 1)):
            divergence = self.architecture.divergences[number]
            lam, u = self.architecture.lam[number], above[number]
            push = slope @ self.weights[number + 1].matrix.T
            states = divergence.activation.forward(u - push / lam)
            slope = lam * (divergence.link_gradient(u) - states)
            gradients.append(slope)
        return loss, gradients[::-1]

    def _top(self, u: Tensor, target: Tensor) -> tuple[float, Tensor]:
        loss = self.architecture.loss
        if self.architecture.has_output_states:
            assert isinstance(loss, OutputLoss)  # seen to by design_network
            divergence, lam = self.architecture.divergences[-1], self.architecture.lam[-1]
            fit = OutputFit(loss, target, divergence, u, lam)
            states = choose(fit).solve(fit).value  # the loss tells of values that are not finite
            value = loss.output_value(target, states) + lam * divergence.value(states, u)
            return reported(value) / len(u), lam * (divergence.link_gradient(u) - states)
        assert isinstance(loss, PinnedLoss)
        value = loss.divergence.value(target, u)
        return reported(value) / len(u), loss.divergence.link_gradient(u) - target

    def _look(self, below: list[Tensor]) -> None:
        if self._taken % self._refresh == 0 or self._taken < _FIRST_LOOKS:
            for metric, x in zip(self._metrics, below, strict=True):
                metric.look(x)

    def _move(self, number: int, x: Tensor, slope: Tensor, samples: int) -> Move:
        metric, matrix = self._metrics[number], self.weights[number].matrix
        pull = 2 * self.architecture.rho[number] / samples
        mean = slope / len(x)
        gradient = torch.addmm(matrix, metric.centered(x).T, mean, beta=pull)
        return metric.move(gradient, mean.sum(0))


def refuse_infinite(loss: float, batch: int, rate: float) -> None:
    """Raise `SolverError` where the loss of a batch is not finite."""
    if not loss < float("inf"):
        raise SolverError(
            f"the loss of batch {batch} is {float(loss)}: lower the rate ({rate:.3g} now), or "
            "scale the inputs."
        )


def are_finite(weights: Sequence[Weights]) -> bool:
    """Return whether no weight is NaN or infinite."""
    return bool(all_finite(weights))


def all_finite(weights: Sequence[Weights]) -> Tensor:
    """Return whether no weight is NaN or infinite, (), where the weights are."""
    ends = [torch.aminmax(part) for layer in weights for part in (layer.matrix, _bias(layer))]
    return torch.stack([end for pair in ends for end in pair]).isfinite().all()


def copied(layer: Weights) -> Weights:
    """Return weights of one's own, in rows as the gradients are."""
    matrix = layer.matrix.clone(memory_format=torch.contiguous_format)
    return Weights(matrix, _bias(layer).clone())


def _bias(layer: Weights) -> Tensor:
    assert layer.bias is not None  # every layer of a LiftedMLP has one
    return layer.bias
