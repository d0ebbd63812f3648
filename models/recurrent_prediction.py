"""What a recurrent network with weights answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from liftednet.activation import Activation
from liftednet.errors import DeclarationError, NotFittedError
from liftednet.losses import PinnedLoss
from liftednet.problems import Weights

from .arrays import ArrayLike
from .descent import Descent
from .recurrent_architecture import RecurrentArchitecture
from .recurrent_blocks import RecurrentBlocks
from .recurrent_rules import Lengths, answers, decoded, passed_blocks
from .recurrent_solvers import Solvers
from .recurrent_weights import CellWeights, cell_weights, states_one_by_one

_PREDICTION_SWEEPS, _PREDICTION_TOLERANCE = 200, 1e-6


class RecurrentPredictor:
    """Weights, and the prediction rules of sections 3 and 4.2 of the paper.

    Attributes:
        architecture: cells, divergence, loss.
        per_step: whether there is an answer at every step, or one at the last.
    """

    architecture: RecurrentArchitecture
    per_step: bool
    _weights: list[Weights] | None
    _solvers: Solvers

    def __repr__(self) -> str:
        """Name sizes, activation, loss and divergence, and whether there are weights."""
        architecture = self.architecture
        hidden = [cell.units for cell in architecture.cells if not cell.backward]
        both = ", both directions" if len(hidden) < len(architecture.cells) else ""
        return (
            f"{type(self).__name__}({architecture.inputs}, {hidden}, {architecture.outputs}, "
            f"{self.activation!r}, {type(self.loss).__name__}, "
            f"{type(architecture.divergence).__name__.lower()}{both}, "
            f"{'not fitted' if self._weights is None else 'fitted'})"
        )

    def forward(self, X: ArrayLike, *, lengths: Lengths = None) -> Tensor:
        """Return outputs (samples, steps, outputs), or (samples, outputs) for one answer each.

        H_t = phi(H_{t-1} W + X_t U_0 + b_0), output phi_1(H_t U_1 + b_1); Lifted Recurrent
        Neural Networks, section 3.
        """
        return answers(self._passed(X, lengths), self.per_step)

    def predict(self, X: ArrayLike, *, lengths: Lengths = None) -> Tensor:
        """Return labels, or outputs for a regression; beyond the lengths they mean nothing."""
        return decoded(self.loss, self.forward(X, lengths=lengths))

    def forward_lifted(self, X: ArrayLike, *, lengths: Lengths = None) -> Tensor:
        """Return the outputs by the lifted rule, section 4.2: the training problem with y free.

        A pinned loss is zero for the best y: the states minimize the divergences alone.
        """
        blocks = self._passed(X, lengths)
        Descent("auto", _PREDICTION_TOLERANCE).run(blocks, _PREDICTION_SWEEPS)
        return answers(blocks, self.per_step)

    def predict_lifted(self, X: ArrayLike, *, lengths: Lengths = None) -> Tensor:
        """Return labels, or outputs for a regression, by the lifted rule of section 4.2."""
        return decoded(self.loss, self.forward_lifted(X, lengths=lengths))

    def stream(self, steps: Iterator[Tensor] | Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield outputs (samples, outputs) step by step, by the feedforward rule.

        Args:
            steps: (samples, inputs) of one step after another; samples must not change.

        Raises:
            DeclarationError: the network is bidirectional and needs all steps first.
        """
        if any(cell.backward for cell in self.architecture.cells):
            raise DeclarationError("a bidirectional network cannot stream: it needs the last step.")
        for below in states_one_by_one(self.cells, self.activation, steps):
            yield self.loss.activate(self.readout.apply(below))

    @property
    def weights(self) -> tuple[Weights, ...]:
        """[W; U_0] and b_0 of every cell, then U_1 and b_1 of the output."""
        return tuple(self._fitted())

    @property
    def cells(self) -> tuple[CellWeights, ...]:
        """The weights of every cell in parts, layer by layer, forward before backward."""
        return cell_weights(self.architecture, self._fitted())

    @property
    def readout(self) -> Weights:
        """U_1 (states, outputs) and b_1 (outputs,)."""
        return self._fitted()[-1]

    @property
    def activation(self) -> Activation:
        """The activation of the recurrent layers."""
        return self.architecture.divergence.activation

    @property
    def loss(self) -> PinnedLoss:
        """The loss."""
        return self.architecture.loss

    def _passed(self, X: ArrayLike, lengths: Lengths) -> RecurrentBlocks:
        return passed_blocks(
            self.architecture, X, lengths, self._fitted(), self._solvers, self.per_step
        )

    def _fitted(self) -> list[Weights]:
        if self._weights is None:
            raise NotFittedError("this LiftedRNN has not been fitted: call fit(X, y) first.")
        return self._weights
