"""The two prediction rules of a network with weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.losses import Loss
from liftednet.problems import Design, Weights
from liftednet.solvers import Solver, named

from .architecture import Architecture
from .arrays import ArrayLike, checked_inputs
from .descent import Descent
from .feedforward import FeedforwardBlocks, forward_states

_PREDICTION_SWEEPS = 200  # two layers need a handful; a longer chain converges linearly
_PREDICTION_TOLERANCE = 1e-6


class Predictor(ABC):
    """Predicts by the feedforward rule, eq. (1), or by the lifted rule, eq. (12).

    Attributes:
        architecture: what the network is.
        loss: decodes outputs.
        solver: of the states of the lifted rule.
        dtype: of the inputs, or None for that of X.
        device: where the model lives.
    """

    architecture: Architecture
    loss: Loss
    solver: str | Solver[Any, Any, Any]
    dtype: torch.dtype | None
    device: str

    @property
    @abstractmethod
    def weights(self) -> tuple[Weights, ...]:
        """The weights of every layer: W (inputs, units) and b (units,)."""

    def forward(self, X: ArrayLike) -> Tensor:
        """Return the output by the feedforward rule, (samples, outputs).

        Lifted Neural Networks, eq. (1); this is what `to_torch` exports.
        """
        weights = self.weights
        return forward_states(self.architecture, weights, self._prepared(X, weights))[-1]

    def predict(self, X: ArrayLike) -> Tensor:
        """Return labels (samples,), or outputs for a regression, by the feedforward rule."""
        return self.loss.decode(self.forward(X))

    def predict_proba(self, X: ArrayLike) -> Tensor:
        """Return class probabilities, (samples, outputs), by the feedforward rule.

        Raises:
            DataError: the loss has no probabilities.
        """
        if not self.loss.probabilistic:
            raise DataError(
                f"{type(self.loss).__name__} gives no probabilities; use predict or forward."
            )
        return self.forward(X)

    def forward_lifted(self, X: ArrayLike) -> Tensor:
        """Return the output by the lifted rule, (samples, outputs).

        The training problem with the weights fixed and y free; Lifted Neural Networks, eq. (12).

        Raises:
            SolverError: the states did not reach their tolerance.
        """
        if self.architecture.multipliers:
            return self.forward(X)  # where they hold the states
        weights = self.weights
        inputs = self._prepared(X, weights)
        outputs = forward_states(self.architecture, weights, inputs)
        states = outputs[: len(self.architecture.divergences)]
        blocks = FeedforwardBlocks(
            self.architecture, Design(inputs), None, weights, states, fixed_weights=True
        )
        Descent(self.solver, _PREDICTION_TOLERANCE).run(blocks, _PREDICTION_SWEEPS)
        if self.architecture.has_output_states:
            return blocks.states[-1]
        return self.architecture.activations[-1].forward(
            blocks.pre_activation(self.architecture.layers - 1)
        )

    def predict_lifted(self, X: ArrayLike) -> Tensor:
        """Return labels (samples,), or outputs for a regression, by the lifted rule, eq. (12)."""
        return self.loss.decode(self.forward_lifted(X))

    def _prepared(self, X: ArrayLike, weights: Sequence[Weights]) -> Tensor:
        inputs = checked_inputs(X, self.architecture.sizes[0], self.dtype, self.device)
        return inputs.to(weights[0].matrix)


def known_solver(solver: str | Solver[Any, Any, Any]) -> str | Solver[Any, Any, Any]:
    """Return the solver, a name looked up so that an unknown one is refused at once.

    Raises:
        DeclarationError: there is no solver of that name, or it is something else.
    """
    if not isinstance(solver, str | Solver):
        raise DeclarationError(
            f'solver must be "auto", a name or a Solver of liftednet.solvers, got {solver!r}.'
        )
    return named(solver) if isinstance(solver, str) and solver != "auto" else solver
