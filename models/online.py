"""Training on one batch after another: what stands between two calls of `partial_fit`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Self

import torch

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError
from liftednet.network import Network

from .block import Structure
from .data import ArrayLike, Arrays, Data, Lengths
from .diagnosis import warn_of_outliers
from .incomplete import WHOLE, refuse_incomplete
from .methods.minibatch import BatchSteps, Minibatch
from .preparation import Prepared
from .standardization import (
    Spreads,
    Standardization,
    spreads_of,
    standardization_by,
    with_more,
)
from .trace import Problem, Step, Trace

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


class Online(Prepared):
    """Settings that can learn from one batch after another."""

    _online: OnlineState | None = None

    def partial_fit(
        self,
        X: Arrays,
        y: Arrays,
        *,
        lengths: Lengths = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Take one step on one batch, at the constant rate of `Minibatch`.

        The first call starts from the weights that are there, and brings inputs, and targets of
        regressions, to a common scale; where it draws the weights, this scale follows the samples
        until a thousand have been seen. `fit` and `save` forget the running statistics of the
        steps before.

        Args:
            X: as in `fit`.
            y: as in `fit`; one class alone is no error.
            lengths: as in `fit`.
            sample_weight: as in `fit`.

        Returns:
            The model; `trace` holds this step.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            DeclarationError: the network cannot be trained on minibatches.
            SolverError: the loss or the weights are not finite; the weights have not changed.
        """
        with torch.inference_mode(False), processes.together(self.device):
            began = time.perf_counter()
            refuse_incomplete(self.network, "partial_fit")
            structure, method = self.checked()
            method = method if isinstance(method, Minibatch) else Minibatch()
            method.refuse(structure)
            known = self._online
            dtype = known.steps.weights[0].matrix.dtype if known else None
            batch = self._data(X, y, lengths, sample_weight, dtype=dtype, part=True)
            if known is None:
                online = self._first_online(structure, method, batch)
            else:
                online = known.seeing(self.network, batch)
            if online.spreads is not None:  # which the scales follow
                warn_of_outliers(structure, batch)
            batch = online.standardization.of(batch)
            with torch.no_grad():
                loss = online.step(batch)
            seconds = time.perf_counter() - began
            step = Step(0, "batch", loss, math.nan, math.nan, 1, "minibatch", seconds)
            self._online = online
            self._keep(Problem(
                online.steps, trace=Trace(math.nan, [step]), data=batch, seen=batch,
                standardization=online.standardization, completion=WHOLE,
            ))  # fmt: skip
        return self

    def _first_online(self, structure: Structure, method: Minibatch, batch: Data) -> OnlineState:
        """Return what the first of several batches begins with.

        Scales follow the samples where the weights are drawn for them: other weights belong to
        those of the first batch.
        """
        if self.lipschitz is not None:
            raise DeclarationError(
                "lipschitz is a bound on raw data, whose scale partial_fit learns on the way: call "
                "fit(X, y)."
            )
        generator = self._generator()
        standardization = self._standardization(batch, goes_on=True).of_a_part
        begun = standardization.of(batch)
        weights = self._weights_to_begin_with(structure, begun, standardization, goes_on=True)
        steps = BatchSteps(structure, weights, method, generator)
        follows = standardization.moments and not self.is_fitted and isinstance(self.start, str)
        spreads = spreads_of(self.network, batch) if follows else None
        return OnlineState(steps, standardization, spreads)
