"""Training on all samples at once: the paper's algorithm, block after block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liftednet.errors import DeclarationError
from liftednet.solvers import Solver
from liftednet.validation import require_positive

from .architecture import Architecture
from .arrays import require_count
from .descent import Descent, Ending, Step, Trace
from .feedforward import FeedforwardBlocks
from .learned import refuse_fixed_activations
from .minibatch import Minibatch, needs_all_samples
from .multipliers import refuse_unfit


@dataclass(frozen=True)
class FullBatch:
    """How a network is trained on all samples, every block by its convex problem.

    Lifted Neural Networks, section 6.

    Attributes:
        sweeps: the most over all blocks.
        state_passes: visits of the states in one sweep; several solve the states all at once,
            which is exact where the divergence is joint.
        tolerance: stop when every block's relative KKT residual is below this.
        extrapolation: whether to go on along the last move where that is lower. With multipliers
            the objective changes between sweeps, and they have a safeguard of their own.
        continuation: multiples of lam, such as (0.01, 0.1), that are fitted first, each from where
            the last ended: a large lam then ends lower.
        learn_activations: whether the slopes of leaky ReLUs and the boxes of clipped layers are
            fitted, too.

    Raises:
        DataError: a number is out of its range.
    """

    sweeps: int = 20
    state_passes: int = 1
    tolerance: float = 1e-4
    extrapolation: bool = True
    continuation: tuple[float, ...] = ()
    learn_activations: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_count("sweeps", self.sweeps, 1)
        require_count("state_passes", self.state_passes, 1)
        require_positive("tolerance", self.tolerance)
        for factor in self.continuation:
            require_positive("continuation", factor)

    def refuse(self, architecture: Architecture) -> None:
        """Raise `DeclarationError` where a network cannot be trained like this."""
        if architecture.multipliers:
            refuse_unfit(architecture)
        if self.learn_activations:
            refuse_fixed_activations(architecture)
        if self.continuation and architecture.multipliers:
            raise DeclarationError(
                'continuation goes with divergence="tight" or "joint"; with multipliers lam is '
                "only where the damping begins, and adapts by itself."
            )

    def descent(self, solver: str | Solver[Any, Any, Any], multipliers: bool) -> Descent:
        """Return the loop over the blocks."""
        return Descent(solver, self.tolerance, self.extrapolation and not multipliers)

    def train(
        self,
        blocks: FeedforwardBlocks,
        descent: Descent,
        report: Callable[[Step], None] | None,
    ) -> Trace:
        """Descend at every lam of the continuation, and return the last history."""
        lam = blocks.architecture.lam
        try:
            for factor in (*self.continuation, 1.0):
                scaled = tuple(factor * weight for weight in lam)
                blocks.architecture = blocks.architecture.with_lam(scaled)
                trace = descent.run(blocks, self.sweeps, report)
                if trace.ending is Ending.INTERRUPTED:
                    break
        finally:
            blocks.architecture = blocks.architecture.with_lam(lam)
        return trace


def method_for(
    architecture: Architecture, method: str | Minibatch | FullBatch
) -> Minibatch | FullBatch:
    """Return the method, by its name where that is given.

    "auto" is minibatches, but for networks that need all samples at once.

    Raises:
        DeclarationError: there is no such method.
    """
    if isinstance(method, Minibatch | FullBatch):
        return method
    if method not in ("auto", "full", "minibatch"):
        raise DeclarationError(
            "method must be 'auto', 'full', 'minibatch', a Minibatch or a FullBatch, got "
            f"{method!r}."
        )
    all_at_once = method == "full" or (method == "auto" and needs_all_samples(architecture))
    return FullBatch() if all_at_once else Minibatch()
