"""Training on minibatches: states from the forward pass, weights pulled to the previous ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DeclarationError, SolverError
from liftednet.layers.expression import TIME, Applied, arguments_of
from liftednet.layers.modules import running_statistics
from liftednet.layers.time import Timeline
from liftednet.penalties import Penalty
from liftednet.samples import Weights
from liftednet.solvers.layer_metric import LayerMetric, slope_of
from liftednet.validation import require_count, require_positive

from ..block import Structure, row_weights
from ..data import Batch, Data
from ..forward_pass import Values
from ..trace import Ending, Memory, Problem, Step, Steps
from ..uncertainty import WorstRows
from .batch_gradients import BatchGradients
from .gauss_newton import is_square
from .step_graphs import StepGraphs, serves

_RATE, _RANK = 0.3, 16  # of the step, and of the metric, where nobody says
_EPOCHS, _STEPS = 10, 500  # at least, where nobody says how many
_STATISTICS_MEMORY = 0.95  # of the running statistics at every look at them
_LOOK_AGAIN = 20  # batches from one look at the statistics to the next
_FIRST_LOOKS = 5  # batches that are all looked at, before the statistics stand
_LOOK_ROWS = 10_000  # of inputs at a look, at most: a convolution has many more patches
_UNREAD = 20  # losses of batches at most, that stay on a device

_Pair = tuple[Tensor, Tensor | None]  # gradients of W and b
_Look = tuple[LayerMetric, Tensor, Any]  # a metric, rows of inputs, and what these weigh


@dataclass(frozen=True)
class Minibatch:
    """Training on minibatches; the defaults are the best of what was measured.

    Attributes:
        epochs: passes over the data; None for ten, or as many as make 500 steps.
        batch_size: samples of a batch (a DataLoader brings its own).
        rate: step of the weights in units of their metric; it falls linearly to zero. No step
            is longer than 2 loss / slope, where a parabola with minimum 0 ends. None for 0.3, or
            where weights have signs for 1 / (L - 1/2), of L layers of states: steps of layers
            that cannot cancel add up (measured at 1, 3, 6 and 8).
        damping: how little the covariance of a layer's inputs is trusted.
        rank: eigenvectors of that covariance that are followed; always 0 for weights with a
            constraint, or another penalty than a square, so that its prox is the exact step.
            None for 16, or 0 for all layers where there are such weights.

    Raises:
        DataError: a number is out of its range.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import LiftedMLP, Minibatch
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 30, 10), method=Minibatch(epochs=3, batch_size=50))
        >>> losses = model.fit(digits.x_train, digits.y_train).trace.losses
        >>> len(losses), losses[0] > losses[1] > losses[2]
        (3, True)
    """

    epochs: int | None = None
    batch_size: int = 100
    rate: float | None = None
    damping: float = 30.0
    rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        counts = {"epochs": 1, "batch_size": 1, "rank": 0}
        for name, least in counts.items():
            if getattr(self, name) is not None or name not in ("epochs", "rank"):
                require_count(name, getattr(self, name), least)
        if self.rate is not None:
            require_positive("rate", self.rate)
        require_positive("damping", self.damping)

    def epochs_of(self, batches: int) -> int:
        """Return the epochs, of so many batches each."""
        return self.epochs or max(_EPOCHS, -(-_STEPS // batches))

    def refuse(self, structure: Structure) -> None:
        """Refuse no network."""

    def take_steps(self, problem: Problem) -> Steps:
        """Train for all epochs, and yield what each did; the problem's point are `BatchSteps`.

        Raises:
            SolverError: the loss or the weights are not finite; the weights are those after the
                last good epoch.
        """
        moves, batches, memory = problem.point, problem.batches, problem.memory
        place = _Place(*memory.get("place", ()))
        if "moves" in memory:
            moves.recall(memory["moves"])
            batches.recall(memory["batches"])
        last, epochs = memory.get("last", moves.weights), self.epochs_of(len(batches))
        weight = memory.setdefault("weight", batches.weight)  # of what a loader began with
        memory["batches"] = batches.memory()
        while place.epoch < epochs:
            try:
                # batches before numbers: a pass is read to its end, where samplers draw once more
                for batch, number in zip(batches, range(len(batches)), strict=False):
                    if number < place.done:  # of the training that goes on here
                        continue
                    share = 1 - (place.epoch * len(batches) + number) / (epochs * len(batches))
                    moves.step(batch, share * moves.rate, batches.samples, weight)
                    if moves.due:
                        place.meet(moves.read())
                        memory.update(place=place.packed(), moves=moves.memory(), last=last)
                        yield None
                place.meet(moves.read())
                if not moves.finite():  # no loss has seen the last step
                    raise SolverError(
                        "weights have become NaN or infinite: lower the rate, or scale X."
                    )
            except SolverError as error:
                moves.weights = last
                message = f"{error} The model keeps the last good epoch."
                raise SolverError(message, last) from error
            except (KeyboardInterrupt, GeneratorExit):
                if not moves.finite():
                    moves.weights = last
                raise
            loss, last = place.total / place.seen, moves.weights
            step = Step(
                place.epoch, "epoch", loss, place.before - loss, math.nan, len(batches), "minibatch"
            )
            place = _Place(place.epoch + 1, before=loss)
            memory.update(
                place=place.packed(), moves=moves.memory(), last=last, batches=batches.memory()
            )
            yield step
        return Ending.BUDGET


@dataclass
class _Place:
    """Where a training stands: what its epoch has met so far, and the mean loss of the last."""

    epoch: int = 0
    done: int = 0
    total: float = 0.0
    seen: int = 0
    before: float = math.nan

    def packed(self) -> list[float]:
        """Return the numbers that it is made of again; `astuple` would copy them in every step."""
        return list(vars(self).values())

    def meet(self, batches: Sequence[tuple[int, float]]) -> None:
        """Take the samples and the loss of some batches."""
        for met, loss in batches:
            self.total += met * loss
            self.seen += met
            self.done += 1


class BatchSteps:
    """Moves all weights by one batch at a time.

    The weight fit to the targets of `BatchGradients`, linearized too, is pulled to the previous
    weights in the metric of `LayerMetric`: an implicit step, with one ridge system for many
    batches. A penalty is part of the step, by its prox in that metric.

    Attributes:
        structure: the training problem.
        gradients: of the network.
        weights: replaced by every step, and never changed in place.
        rate: of the first step.
        samples: how many have been seen so far, those of all processes.
        met: samples of the last batch, likewise.
        worst: what finds the rows of a batch that a step is taken on; None for those that it has.
    """

    met = 0
    worst: WorstRows | None = None

    def __init__(
        self,
        structure: Structure,
        weights: Sequence[Weights],
        settings: Minibatch,
        generator: torch.Generator,
    ) -> None:
        """Begin without statistics.

        Args:
            structure: of the network.
            weights: to begin with.
            settings: how the metric is made.
            generator: of the first directions of the metric.
        """
        self.structure, self.gradients = structure, BatchGradients(structure)
        self.weights = [_copied(layer) for layer in weights]
        penalties = structure.penalties.values()
        signed = any(penalty.signed for penalty in penalties)
        rank = settings.rank
        if rank is None:
            rank = _RANK if all(map(is_square, penalties)) else 0
        of_signs = 1 / max(0.5, len(structure.groups) - 0.5)
        self.rate = settings.rate or (of_signs if signed else _RATE)
        self._metrics = [
            LayerMetric(
                p.shape[0],
                p.bias,
                rank if is_square(structure.penalties[p]) else 0,
                settings.damping,
                _STATISTICS_MEMORY,
                generator,
                max(x.layer.variance for x in structure.layers[p]),
            )
            for p in structure.parameters
        ]
        self.statistics = running_statistics(x.layer for x in structure.network.layers())
        if self.statistics and processes.size() > 1:
            raise DeclarationError(
                "BatchNorm takes the statistics of a batch, of which each of the "
                f"{processes.size()} processes has a part: put the network in eval mode, or "
                "normalize by samples (LayerNorm, GroupNorm)."
            )
        self._taken, self.samples, self._looked = 0, 0, -1
        self._unread: list[tuple[int, float, Tensor]] = []
        self._graphs: StepGraphs | None = None

    def memory(self) -> Memory:
        """Return what the next step depends on."""
        return {
            "weights": self.weights, "metrics": [metric.state for metric in self._metrics],
            "taken": [self._taken, self.samples],
            "statistics": [known.memory() for known in self.statistics],
        }  # fmt: skip

    def recall(self, memory: Memory) -> None:
        """Go back to what `memory` has returned."""
        self.weights = list(memory["weights"])  # as they lie: products round by the order of axes
        self._taken, self.samples = memory["taken"]
        for metric, held in zip(self._metrics, memory["metrics"], strict=True):
            metric.recall(held)
        for known, numbers in zip(self.statistics, memory["statistics"], strict=True):
            known.recall(numbers)

    def finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        ends = [torch.aminmax(layer.stacked()) for layer in self.weights]
        return bool(torch.stack([end for pair in ends for end in pair]).isfinite().all())

    def step(self, batch: Data | Batch, rate: float, samples: int, weight: float = 1.0) -> Tensor:
        """Move the weights by one batch, and return its mean loss before the step, float64, ().

        Where that is not finite, nor are the weights from then on: `finite` tells of it.

        Args:
            batch: some samples.
            rate: step in units of the metric.
            samples: of all data, over which the penalty on the weights is shared.
            weight: of a sample in the mean, as `Batches.weight`.
        """
        loss = None if isinstance(batch, Data) else self._replayed(batch, rate, samples, weight)
        if loss is None:
            data = batch if isinstance(batch, Data) else batch.data
            loss = self.moved(data, rate, samples, weight)
        self.samples += self.met
        self._taken += 1
        self._unread.append((self.met, rate, loss))
        return loss

    def _replayed(self, batch: Batch, rate: float, samples: int, weight: float) -> Tensor | None:
        """Take a step by replaying a graph, or return None where it has to be a plain one."""
        if not serves(batch.rows) or processes.size() > 1 or self.worst is not None:
            return None
        pairs = zip(self._metrics, self._pulls(samples * weight), strict=True)
        if not all(metric.scaled_for(pull) for metric, pull in pairs):
            return None
        self._graphs = self._graphs or StepGraphs(self)
        loss = self._graphs.step(batch, rate, samples, weight, self._looking)
        if loss is not None:
            self.met, self._looked = batch.among, self._taken if self._looking else self._looked
        return loss

    def moved(self, batch: Data, rate: float | Tensor, samples: int, weight: float) -> Tensor:
        """Move the weights as `step` does, without a record of it; a rate may be a tensor, ()."""
        counts = self.gradients.counts(batch)
        self.met = counts.met
        if self.worst is not None:
            batch = self.worst.of(batch, self.weights)
        loss, gradients, values = self.gradients.of(batch, self.weights, counts, weight)
        looks = self._looks(values, len(batch))
        self._begin(looks)
        mass = samples * weight
        pulls = self._pulls(mass)
        centered = [
            gradient.centered(metric, layer, pull / processes.size())
            for gradient, metric, layer, pull in zip(
                gradients, self._metrics, self.weights, pulls, strict=True
            )
        ]
        means = [metric.mean for metric in self._metrics]  # with which they are centered
        loss, centered = self._summed(loss, centered, looks)
        ends = [None if is_square(penalty) else penalty for penalty in self._penalties]
        moves = [
            metric.move(metric.about(mean, *pair), pair[1], pull, end, mass)
            for metric, mean, pair, pull, end in zip(
                self._metrics, means, centered, pulls, ends, strict=True
            )
        ]
        slope = slope_of(moves)
        least = torch.finfo(slope.dtype).tiny
        length = (2 * loss / slope.clamp(min=least)).clamp(max=rate).to(slope)
        scaled = length * torch.stack([move.scale for move in moves])
        self.weights = [
            move.taken(x, length, part)
            for move, x, part in zip(moves, self.weights, scaled.unbind(), strict=True)
        ]
        return loss

    @property
    def tensors(self) -> list[Tensor]:
        """W and b of all layers, and what the metrics know: all that the next step depends on."""
        pairs = [(layer.matrix, layer.bias) for layer in self.weights]
        weights = [x for pair in pairs for x in pair if x is not None]
        return weights + [x for metric in self._metrics for x in metric.tensors]

    @tensors.setter
    def tensors(self, tensors: Sequence[Tensor]) -> None:
        """Take all of them."""
        given = iter(tensors)
        self.weights = [
            Weights(next(given), None if layer.bias is None else next(given))
            for layer in self.weights
        ]
        for metric in self._metrics:
            metric.tensors = list(islice(given, len(metric.tensors)))

    def _summed(
        self, loss: Tensor, gradients: Sequence[_Pair], looks: Sequence[_Look]
    ) -> tuple[Tensor, list[_Pair]]:
        """Return loss and gradients over all processes, and let metrics look, in one message."""
        sent = [x.mT if x.ndim > 1 else x for pair in gradients for x in pair if x is not None]
        seen = [metric.sums(*rows) for metric, *rows in looks]
        told = loss if processes.size() == 1 else loss.to(sent[0])
        loss, *answered = processes.total(told, *sent, *(part for parts in seen for part in parts))
        whole = iter(answered)
        found = [(next(whole).mT, None if bias is None else next(whole)) for _, bias in gradients]
        for (metric, *_), parts in zip(looks, seen, strict=True):
            metric.look(*(next(whole) for _ in parts))
            self._looked = self._taken
        return loss, found

    def _pulls(self, samples: float) -> list[float]:
        """Return what the gradients of squared norms are, over the weights; 0 for the others."""
        return [
            2 * penalty.rho / samples if is_square(penalty) else 0.0  # type: ignore[attr-defined]
            for penalty in self._penalties
        ]

    @property
    def _penalties(self) -> list[Penalty]:
        return [self.structure.penalties[p] for p in self.structure.parameters]

    @property
    def _looking(self) -> bool:
        return self._taken % _LOOK_AGAIN == 0 or self._taken < _FIRST_LOOKS

    @property
    def due(self) -> bool:
        """Whether losses are to be read, at every step but where a device would be waited for."""
        return len(self._unread) >= (_UNREAD if self._unread[-1][-1].is_cuda else 1)

    def read(self) -> list[tuple[int, float]]:
        """Return samples and loss of the batches since the last reading.

        Raises:
            SolverError: a loss is not finite, or the variance of a layer's inputs.
        """
        if not self._unread:
            return []
        mets, rates, losses = zip(*self._unread, strict=True)
        self._unread.clear()
        several, first = len(losses) > 1, self._taken - len(losses)
        found = torch.stack(losses).tolist() if several else [float(losses[0])]
        bad = next((i for i, loss in enumerate(found) if not loss < math.inf), len(found))
        if first <= self._looked < first + bad:  # what comes after the look is of its making
            spreads = torch.stack([metric.variance.to(losses[0]) for metric in self._metrics])
            if not bool(spreads.isfinite().all()):
                raise SolverError("the variance of a layer's inputs is not finite: scale X.")
        if bad < len(found):
            raise SolverError(
                f"the loss of batch {first + bad} is {found[bad]}: lower the rate "
                f"({rates[bad]:.3g} now), or scale the inputs."
            )
        return list(zip(mets, found, strict=True))

    def _looks(self, values: Values, samples: int) -> list[_Look]:
        """Return the metrics whose turn it is, each with rows of inputs and what these weigh."""
        if not self._looking:
            return []
        found = []
        for parameter, metric in zip(self.structure.parameters, self._metrics, strict=True):
            layers = self.structure.layers[parameter]  # several of a cell called step by step
            seen = [
                self._seen(layer, values, samples, _LOOK_ROWS // len(layers)) for layer in layers
            ]
            if any(rows is None for rows, _ in seen):
                continue
            inputs, weights = (
                [x for x in part if x is not None] for part in zip(*seen, strict=True)
            )
            found.append((metric, _joined(inputs), _joined(weights) if weights else None))
        return found

    def _begin(self, looks: Sequence[_Look]) -> None:
        """Tell metrics that have seen nothing where the inputs lie."""
        blind = [(metric, metric.first_sums(*rows)) for metric, *rows in looks if metric.blind]
        if blind:
            whole = iter(processes.total(*(part for _, parts in blind for part in parts)))
            for metric, _ in blind:
                metric.begin(next(whole), next(whole))

    def _seen(
        self, layer: Applied, values: Values, samples: int, most: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return rows that a layer multiplies by its weights, evenly taken, and what they weigh."""
        arguments = arguments_of(layer, values)
        inputs = layer.layer.inputs(arguments)
        if inputs is None:
            return None, None
        rows = len(inputs) * self.met // max(1, samples)  # of all processes
        every = slice(None, None, max(1, -(-rows // max(1, most))))
        weights = row_weights(values, arguments[0])
        steps: Timeline | None = values.get(TIME)
        if steps is not None and not steps.full and arguments[0].ndim > 2:  # none beyond the ends
            there = steps.longer(len(arguments[0]) - steps.steps).valid.to(inputs)
            weights = there if weights is None else there * weights
        if weights is not None:  # a convolution has several rows for each
            weights = weights.flatten()
            weights = weights.repeat_interleave(len(inputs) // max(1, len(weights)))[every]
        return inputs[every].detach(), weights


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _copied(layer: Weights) -> Weights:
    """Return weights of one's own, stored unit by unit as the gradients are."""
    matrix = layer.matrix.T.clone(memory_format=torch.contiguous_format).T
    return Weights(matrix, None if layer.bias is None else layer.bias.clone())
