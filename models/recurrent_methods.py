"""How a recurrent network is trained: block after block, all blocks at once, or on minibatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from liftednet.errors import DeclarationError

from .descent import Descent, Trace
from .progress import Report
from .recurrent_architecture import RecurrentArchitecture
from .recurrent_blocks import RecurrentBlocks
from .recurrent_gauss_newton import GaussNewtonTraining
from .recurrent_minibatch import SequenceMinibatch

_MOST_WEIGHTS = 10_000  # whose square matrix is 0.8 GB in float64


class RecurrentMethod(Protocol):
    """A way to train the blocks of a recurrent network."""

    @property
    def rounds(self) -> int:
        """The most sweeps, steps or epochs."""
        ...

    def train(self, blocks: RecurrentBlocks, seed: int, report: Report | None) -> Trace:
        """Change weights and states in place, and return the history."""
        ...


@dataclass(frozen=True)
class BlockByBlock:
    """Block-coordinate descent, in at most `rounds` sweeps."""

    rounds: int
    descent: Descent

    def train(self, blocks: RecurrentBlocks, seed: int, report: Report | None) -> Trace:
        """Change weights and states in place, and return the history."""
        return self.descent.run(blocks, self.rounds, report)


@dataclass(frozen=True)
class Together:
    """Gauss-Newton steps of weights and states, at most `rounds`."""

    rounds: int
    tolerance: float

    def train(self, blocks: RecurrentBlocks, seed: int, report: Report | None) -> Trace:
        """Change weights and states in place, and return the history."""
        return GaussNewtonTraining(blocks, self.tolerance).run(self.rounds, report)


def method_named(
    method: str | SequenceMinibatch,
    architecture: RecurrentArchitecture,
    sweeps: int,
    tolerance: float,
) -> RecurrentMethod:
    """Return a method by its name, or as it is given.

    Raises:
        DeclarationError: there is no such method, or it cannot serve the architecture.
    """
    named: dict[str, RecurrentMethod] = {
        "full": BlockByBlock(sweeps, Descent(tolerance=tolerance)),
        "gauss-newton": Together(sweeps, tolerance),
        "minibatch": SequenceMinibatch(),
    }
    by_name = named.get(method) if isinstance(method, str) else None
    found = method if isinstance(method, SequenceMinibatch) else by_name
    if found is None:
        raise DeclarationError(
            "method must be 'full', 'gauss-newton', 'minibatch' or a SequenceMinibatch, got "
            f"{method!r}."
        )
    if method != "full":
        _refuse_joint(architecture)
    if isinstance(found, Together):
        _refuse_many_weights(architecture)
    return found


def _refuse_joint(architecture: RecurrentArchitecture) -> None:
    """Raise `DeclarationError` unless D vanishes at the forward pass and Newton steps serve."""
    divergence = architecture.divergence
    if divergence.quadratic or not divergence.activation.per_unit or not divergence.smoothness:
        raise DeclarationError(
            "a method that starts from forward passes needs divergence='tight', an activation "
            f"unit by unit, and its Lipschitz constant; got {divergence!r}."
        )


def _refuse_many_weights(architecture: RecurrentArchitecture) -> None:
    weights = sum((rows + 1) * units for rows, units in architecture.weight_shapes)
    if weights > _MOST_WEIGHTS:
        raise DeclarationError(
            f"method 'gauss-newton' factors a square matrix in all weights, and {weights:,} are "
            f"more than {_MOST_WEIGHTS:,}: use fewer units, or method='minibatch'."
        )
