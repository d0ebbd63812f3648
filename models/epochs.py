"""Passes over minibatches: the rate that falls, the validation that stops, what is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from liftednet.errors import SolverError
from liftednet.problems import Weights

from .batches import Batches
from .descent import Ending
from .minibatch import BatchSteps, Minibatch, are_finite, copied


@dataclass(frozen=True)
class Epoch:
    """What one pass over the data did.

    Attributes:
        number: from 1.
        loss: mean loss of a sample, met by the batches of the pass, each before its step.
        validation: mean objective of a held-out sample after the pass, or None.
        seconds: since training began.
    """

    number: int
    loss: float
    validation: float | None
    seconds: float


@dataclass
class EpochTrace:
    """The history of a training on minibatches.

    Attributes:
        epochs: one entry for every finished pass.
        ending: why training ended.
    """

    epochs: list[Epoch] = field(default_factory=list)
    ending: Ending = Ending.BUDGET


@dataclass
class EpochRun:
    """Trains for some epochs.

    Attributes:
        steps: moves the weights.
        settings: epochs, rate, patience.
        batches: the data.
        validate: returns the mean objective of held-out samples, or None without any.
    """

    steps: BatchSteps
    settings: Minibatch
    batches: Batches
    validate: Callable[[Sequence[Weights]], float] | None = None

    def run(self, on_epoch: Callable[[Epoch], None] | None = None) -> EpochTrace:
        """Train, and return the history; an interrupt keeps the weights as they are.

        Raises:
            SolverError: the loss or the weights are not finite; the weights are those after the
                last good epoch.
        """
        trace = EpochTrace()
        best = _Best(self.settings.patience)
        started = time.perf_counter()
        last = self._weights()
        try:
            for number in range(1, self.settings.epochs + 1):
                loss = self._pass(number - 1)
                last = self._weights()
                found = None if self.validate is None else self.validate(last)
                trace.epochs.append(Epoch(number, loss, found, time.perf_counter() - started))
                if on_epoch is not None:
                    on_epoch(trace.epochs[-1])
                if best.is_over(found, last):
                    trace.ending = Ending.STOPPED
                    break
        except KeyboardInterrupt:
            trace.ending = Ending.INTERRUPTED
            if not are_finite(self.steps.weights):
                self._restore(last)
        except SolverError as error:
            self._restore(last)
            raise SolverError(f"{error} The model keeps the last good epoch.", last) from error
        if best.weights is not None:
            self._restore(best.weights)
        return trace

    def _pass(self, epoch: int) -> float:
        length, total, seen = len(self.batches), 0.0, 0
        rates = self._rates(epoch * length, self.settings.epochs * length)
        for (inputs, target), rate in zip(self.batches, rates, strict=False):
            total += len(inputs) * self.steps.step(inputs, target, rate, self.batches.samples)
            seen += len(inputs)
        mean = float(total / seen)
        if not mean < float("inf"):  # on a GPU, where no step has looked at it
            raise SolverError(f"the loss of epoch {epoch + 1} is {mean}: lower the rate.")
        if not are_finite(self.steps.weights):  # no loss has seen the last step
            raise SolverError(
                f"epoch {epoch + 1} made weights NaN or infinite: lower the rate, or scale the "
                "inputs."
            )
        return mean

    def _rates(self, first: int, batches: int) -> Iterator[float]:
        for number in range(first, batches):
            yield self.settings.rate * (1 - number / batches)

    def _weights(self) -> list[Weights]:
        return [copied(layer) for layer in self.steps.weights]

    def _restore(self, weights: list[Weights]) -> None:
        self.steps.weights[:] = [copied(layer) for layer in weights]


class _Best:
    """The weights of the best validation, where training may stop early."""

    def __init__(self, patience: int | None) -> None:
        self.weights: list[Weights] | None = None
        self._patience, self._value, self._since = patience, float("inf"), 0

    def is_over(self, value: float | None, weights: list[Weights]) -> bool:
        """Take the newest validation, and say whether patience has ended."""
        if self._patience is None or value is None:
            return False
        if value < self._value:
            self.weights, self._value, self._since = weights, value, 0
            return False
        self._since += 1
        return self._since >= self._patience
