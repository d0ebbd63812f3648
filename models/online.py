"""Training on one batch after another: what stands between two calls of `partial_fit`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from liftednet import processes
from liftednet.errors import SolverError
from liftednet.network import Network
from liftednet.samples import Spread

from .data import Data
from .methods.minibatch import BatchSteps
from .run import Memory
from .standardization import (
    Spreads,
    Standardization,
    named,
    spreads_of,
    standardization_by,
    unpacked_standardization,
    with_more,
)

_SAMPLES = 1_000  # that scales follow, and that share the penalties at least


@dataclass(frozen=True)
class OnlineState:
    """What the next batch goes on from.

    Attributes:
        steps: the weights, on standardized data, and the running statistics.
        standardization: what is between the data and the weights.
        spreads: where the data seen so far lie, or None where the standardization stays.
    """

    steps: BatchSteps
    standardization: Standardization
    spreads: Spreads | None

    def seeing(self, network: Network, batch: Data) -> OnlineState:
        """Return the same with the scales of all samples so far, the weights as they are."""
        if self.spreads is None:
            return self
        if max(found.mass for found in self.spreads.values()) >= _SAMPLES:
            return replace(self, spreads=None)
        spreads = with_more(self.spreads, spreads_of(network, batch))
        standardization = standardization_by(network, spreads, batch.like)
        return replace(self, spreads=spreads, standardization=standardization)

    def step(self, batch: Data) -> float:
        """Take a step on a standardized batch, and return its mean loss before that.

        Raises:
            SolverError: the loss or the weights are not finite; the weights are as they were.
        """
        steps, before = self.steps, self.steps.memory()
        among = processes.share_of(len(batch)).samples
        weight = processes.total_of(batch.mass) / among
        # penalties are shared over the samples so far, whatever a batch holds
        steps.step(replace(batch, among=among), steps.rate, max(steps.samples, _SAMPLES), weight)
        try:
            ((_, loss),) = steps.read()
            if not steps.finite():
                raise SolverError("the step made weights NaN or infinite: scale the inputs.")
        except SolverError:
            steps.recall(before)
            raise
        return loss

    def memory(self, network: Network) -> Memory:
        """Return all of it as numbers, tensors and weights."""
        known = self.spreads or {}
        spreads = {name: astuple(known[each]) for name, each in named(network) if each in known}
        scales = self.standardization.packed(network)
        return {"steps": self.steps.memory(), "scales": scales, "spreads": spreads}


def recalled_state(memory: Memory, network: Network, steps: BatchSteps) -> OnlineState:
    """Return what `OnlineState.memory` has returned, with steps that recall theirs."""
    steps.recall(memory["steps"])
    known = memory["spreads"]
    spreads = {each: Spread(*known[name]) for name, each in named(network) if name in known}
    standardization = unpacked_standardization(memory["scales"], network)
    return OnlineState(steps, standardization, spreads or None)
