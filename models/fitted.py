"""What a fitted feedforward network knows of itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import NotFittedError
from liftednet.problems import Weights

from .architecture import MULTIPLIERS, Architecture
from .descent import largest_residual
from .feedforward import FeedforwardBlocks
from .forward_pass import blocks_at
from .prediction import Predictor


class FittedNetwork(Predictor):
    """Weights and, once they are asked for or fitted, states on the data of the last fit.

    Attributes:
        warm_start: whether a fit goes on from what is there.
    """

    warm_start: bool
    _first_weights: list[Weights]
    _declared: Architecture

    def __init__(self) -> None:
        """Begin without weights, data and blocks."""
        self._weights: list[Weights] | None = None  # where there are no blocks for them yet
        self._data: tuple[Tensor, Tensor] | None = None
        self._blocks: FeedforwardBlocks | None = None

    def __repr__(self) -> str:
        """Name sizes, activations, loss and divergence, and whether there are weights."""
        architecture = self.architecture
        hidden = ", ".join(map(repr, architecture.activations[: len(architecture.divergences)]))
        couplings = {type(divergence).__name__.lower() for divergence in architecture.divergences}
        if architecture.multipliers:
            couplings = {MULTIPLIERS}
        coupled = f"{' and '.join(sorted(couplings))}, " if couplings else ""
        return (
            f"{type(self).__name__}({architecture.sizes}, [{hidden}], "
            f"{type(architecture.loss).__name__}, {coupled}"
            f"{'fitted' if self.is_fitted else 'not fitted'})"
        )

    @property
    def is_fitted(self) -> bool:
        """Whether there are weights."""
        return self._weights is not None or self._blocks is not None

    @property
    def first_weights(self) -> tuple[Weights, ...]:
        """The weights of every layer from which a fit begins."""
        return tuple(self._first_weights)

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights of every layer: W (inputs, units) and b (units,)."""
        return tuple(self._weights if self._weights is not None else self._fitted().weights)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states of every layer that has them, on the data of the last fit."""
        return tuple(self._fitted().states)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of every layer, the loss giving the last where it is pinned."""
        return self.architecture.activations

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64."""
        return self._fitted().objective()

    def residual(self) -> float:
        """Return the largest relative KKT residual over all blocks at the current point."""
        return largest_residual(self._fitted())

    def gap(self) -> tuple[float, ...]:
        """Return |X_l - forward pass| / |forward pass| for every layer with states."""
        return self._fitted().gap()

    def _known_weights(self) -> Sequence[Weights]:
        """Return the weights that are there, or else those of the start."""
        if not self.is_fitted:
            return self._first_weights
        return self.weights

    def _start(self, like: Tensor) -> list[Weights]:
        if not self.warm_start:
            self.architecture = self._declared  # without what an earlier fit learned of activations
        first = self._known_weights() if self.warm_start else self._first_weights
        return [layer.to(like) for layer in first]

    def _settle(self, weights: list[Weights]) -> None:
        self._weights, self._blocks = weights, None

    def _fitted(self) -> FeedforwardBlocks:
        if self._blocks is None:
            if self._weights is None:
                raise NotFittedError("this LiftedMLP has not been fitted: call fit(X, y) first.")
            if self._data is None:
                raise NotFittedError(
                    "this LiftedMLP holds weights but no data (they were given, loaded, or fitted "
                    "from a DataLoader): fit on arrays for states, objective, residual and gap."
                )
            self._blocks = blocks_at(self.architecture, self._weights, *self._data, self.solver)
        return self._blocks
