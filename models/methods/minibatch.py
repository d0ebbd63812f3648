"""Training on minibatches: states from the forward pass, weights pulled to the previous ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations import Identity
from liftednet.divergences import Divergence, Margin, Raw, Tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.layers.expression import (
    SAMPLE_WEIGHTS,
    TIME,
    Applied,
    Expression,
    Parameter,
    arguments_of,
    value_of,
)
from liftednet.layers.modules import (
    RunningStatistics,
    batch_statistics,
    running_statistics,
)
from liftednet.layers.projection import Projection
from liftednet.losses import OutputLoss
from liftednet.maps import pulled_back
from liftednet.network import State, Term
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import OutputFit
from liftednet.products import added, linear
from liftednet.samples import Weights
from liftednet.solvers import choose
from liftednet.solvers.captured import graphs_for
from liftednet.solvers.deferred import stays_on_device
from liftednet.solvers.layer_metric import LayerMetric, slope_of
from liftednet.validation import is_number, require_count, require_positive

from ..block import Structure, counted, row_weights
from ..cells import Rule, Rules
from ..data import Data
from ..forward_pass import Values, passed_forward
from ..run import Ending, Memory, Problem, Step, Steps
from .chain import chain_of
from .recorded import RecordedSteps

_RATE, _RANK = 0.3, 16
_MEMORY = 0.95  # of the running statistics at every look at them
_FIRST_LOOKS = 5  # batches that are all looked at, before the statistics stand
_NEAR = 1e3  # lam from which targets are so near to the states that float64 tells them apart
_WIDTH = 0.6  # of a margin that has no scale, in root mean squares of u
_EPOCHS, _STEPS = 10, 500  # at least, where nobody says how many
_ROWS = 10_000  # of inputs at a look, at most: a convolution has many more patches
_UNREAD = 20  # losses of batches at most, that stay on a device
_KEPT = 8  # sizes of batches for which a problem stays compiled


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
        refresh: batches from one look at the statistics to the next.
        validation: share of the samples that is held out; 0 for none.
        patience: epochs without a better validation objective until training stops and the best
            weights are kept; None trains to the end and keeps the last.
        precision: "bfloat16" for the products of layers, with sums and weights still in float32:
            a step of wide layers takes seven to nine tenths of the time on processors that multiply
            such numbers (avx512_bf16, AMX), more on others. None for the type of the data.

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
    refresh: int = 20
    validation: float = 0.0
    patience: int | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        counts = {"epochs": 1, "batch_size": 1, "refresh": 1, "rank": 0, "patience": 1}
        for name, least in counts.items():
            if getattr(self, name) is not None or name not in ("epochs", "patience", "rank"):
                require_count(name, getattr(self, name), least)
        if self.rate is not None:
            require_positive("rate", self.rate)
        require_positive("damping", self.damping)
        if not is_number(self.validation) or not 0 <= self.validation < 1:
            raise DataError(f"validation must be a share in [0, 1), got {self.validation!r}.")
        if self.patience is not None and self.validation == 0:
            raise DataError("patience needs a validation share; validation is 0.")
        if self.precision not in (None, "bfloat16"):
            raise DataError(f"precision must be None or 'bfloat16', got {self.precision!r}.")

    def epochs_of(self, batches: int) -> int:
        """Return the epochs, of so many batches each."""
        return self.epochs or max(_EPOCHS, -(-_STEPS // batches))

    def refuse(self, structure: Structure, multipliers: bool) -> None:
        """Raise `DeclarationError` where a network cannot be trained like this."""
        if multipliers:
            raise DeclarationError(
                "on minibatches states begin at the forward pass in every step, and need no "
                'multipliers: use divergence="tight", or method="full".'
            )
        for number, state in enumerate(structure.states, start=1):
            if isinstance(structure.divergences[state], Raw):
                raise DeclarationError(
                    f"minibatches need a potential or a forward map of every activation, and "
                    f"{state.activation!r} of layer {number} is a raw divergence: use "
                    'method="full".'
                )

    def take_steps(self, problem: Problem) -> Steps:
        """Train for all epochs, and yield what each did; the problem's point are `BatchSteps`.

        Raises:
            SolverError: the loss or the weights are not finite; the weights are those after the
                last good epoch.
        """
        moves, batches, memory = problem.point, problem.batches, problem.memory
        epoch, done, total, seen, before = memory.get("place", (0, 0, 0.0, 0, math.nan))
        best = _Best(self.patience, memory.get("best"))
        if "moves" in memory:
            moves.recall(memory["moves"])
            batches.recall(memory["batches"])
        last, order = memory.get("last", moves.weights), batches.memory()

        def remember() -> None:
            memory.update(
                place=[epoch, done, total, seen, before], moves=moves.memory(), last=last,
                best=best.memory(), batches=order,
            )  # fmt: skip

        while epoch < self.epochs_of(len(batches)) and not best.over:
            try:
                pairs = zip(batches, self._shares(epoch, len(batches)), strict=False)
                for batch, share in islice(pairs, done, None):
                    before_it = moves.weights
                    moves.step(batch, share * moves.rate, batches.samples, batches.weight)
                    if before_it is not last:
                        moves.reuse(before_it)
                    if not moves.due:
                        continue
                    for met, loss in moves.read():
                        total, seen, done = total + met * loss, seen + met, done + 1
                    remember()
                    yield None
                for met, loss in moves.read():
                    total, seen, done = total + met * loss, seen + met, done + 1
                moves.require_finite()  # no loss has seen the last step
            except SolverError as error:
                moves.weights = last
                message = f"{error} The model keeps the last good epoch."
                raise SolverError(message, last) from error
            except (KeyboardInterrupt, GeneratorExit):
                if not moves.finite():
                    moves.weights = last
                raise
            loss, last, order = total / seen, moves.weights, batches.memory()
            found = None if problem.validate is None else problem.validate(last)
            step = Step(
                epoch, "epoch", loss, before - loss, math.nan, len(batches), "minibatch",
                validation=found,
            )  # fmt: skip
            epoch, done, total, seen, before = epoch + 1, 0, 0.0, 0, loss
            best.take(found, last)
            remember()
            yield step
        moves.weights = best.weights or moves.weights
        return Ending.STOPPED if best.over else Ending.BUDGET

    def _shares(self, epoch: int, length: int) -> Iterator[float]:
        for number in range(epoch * length, (epoch + 1) * length):
            yield 1 - number / (self.epochs_of(length) * length)


class _Best:
    """The weights of the best validation, where training may stop early."""

    def __init__(self, patience: int | None, memory: list[Any] | None) -> None:
        self._patience = patience
        self.weights: list[Weights] | None = None
        self._value, self._since = math.inf, 0
        if memory is not None:
            self.weights, self._value, self._since = memory

    def memory(self) -> list[Any]:
        """Return the weights, their validation, and the epochs since then."""
        return [self.weights, self._value, self._since]

    @property
    def over(self) -> bool:
        """Whether patience has ended."""
        return self._patience is not None and self._since >= self._patience

    def take(self, value: float | None, weights: list[Weights]) -> None:
        """Take the newest validation."""
        if self._patience is None or value is None:
            return
        self._since += 1
        if value < self._value:
            self.weights, self._value, self._since = weights, value, 0


@dataclass(frozen=True)
class Targets:
    """What a gradient that comes back to states asks of their pre-activations.

    The minimizer of lam D(v, u) + <g, v> is v = phi(u - g / lam), and lam (grad R(u) - v) is what
    its divergence then asks of u: for a large lam phi'(u) g, as in backpropagation.

    Attributes:
        divergence: gives R.
        held: the same where the states stay between bounds.
        lam: weight of the divergence.
        weights: (samples,) of the samples, or None: a sample of weight w has w lam.
        near: whether targets are so near to the states that only float64 tells them apart.
    """

    divergence: Divergence
    held: Divergence
    lam: float
    weights: Tensor | None = None
    near: bool = False

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), within the bounds."""
        return self.held.activation.forward(u)

    def at(self, u: Tensor) -> Targets:
        """Return the rule with a margin that is as wide as u asks for, where it has no scale."""
        if not (isinstance(self.held, Margin) and self.held.activation.scale_free):
            return self
        rows = u.detach()
        ones = rows.new_ones(len(rows)) if self.weights is None else self.weights.to(rows)
        squares, mass = processes.total(ones @ rows.square().mean(-1), ones.sum())
        size = (squares / mass.clamp(min=1.0)).sqrt()
        width = cast(float, _WIDTH * size.where(size > 0, 1.0))  # it acts as a number
        margin = replace(self.held, width=width)
        return replace(self, divergence=margin, held=margin)

    def asked(self, u: Tensor, states: Tensor, push: Tensor) -> Tensor:
        """Return lam (grad R(u) - phi(u - g / lam))."""
        if self.weights is not None:  # a sample of weight 0 has no push
            weights = self.weights.unsqueeze(-1)
            push = push / weights.masked_fill(weights == 0, 1.0)
        dtype = u.dtype
        if self.near:  # their difference has no digits in float32
            u, push = u.double(), push.double()
            states = self.forward(u)
        target = self.held.minimizer(torch.sub(u, push, alpha=1 / self.lam))
        known = isinstance(self.divergence, Tight) and self.held is self.divergence
        at = states if known else self.divergence.link_gradient(u)
        asked = (at - target).mul_(self.lam).to(dtype)
        return asked if self.weights is None else weights * asked


class _Lifted(torch.autograd.Function):
    """States that move to a target when a gradient comes back."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, rule: Rule) -> Tensor:
        """Return phi(u)."""
        states = rule.forward(u)
        ctx.rule = rule
        ctx.save_for_backward(u, states)
        return states

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, None]:
        """Return what the gradient asks of u."""
        u, states = ctx.saved_tensors
        return ctx.rule.asked(u, states, pushes[0]), None


class BatchSteps:
    """Moves all weights by one batch at a time.

    The forward pass gives U and Z = phi(U) of all states. From the last to the first, states move
    to the minimizer of their fit with the links above linearized, V = phi(U - g / lam), where g
    is the gradient of these links. Then the weight fit to V, linearized too, is pulled to the
    previous weights in the metric of `LayerMetric`: an implicit step, with one ridge system for
    many batches. A penalty is part of the step, by its prox in that metric.

    Attributes:
        structure: of the network.
        weights: replaced by every step, and never changed in place but for those to `reuse`.
        rate: of the first step.
        samples: how many have been seen so far, those of all processes.
        met: samples of the last batch, likewise.
    """

    met = 0

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

        Raises:
            DataError: products in bfloat16 are asked for, and the weights are in float64.
        """
        self.structure = structure
        self.weights = [_copied(layer) for layer in weights]
        if settings.precision is not None and self.weights[0].matrix.dtype is not torch.float32:
            raise DataError(
                f"precision={settings.precision!r} is for data in float32, and X is in float64: "
                "pass X.float(), or dtype=torch.float32 to the model."
            )
        self._settings = settings
        penalties = structure.penalties.values()
        signed = any(penalty.signed for penalty in penalties)
        rank = settings.rank
        if rank is None:
            rank = _RANK if all(map(_is_plain, penalties)) else 0
        of_signs = 1 / max(0.5, len(structure.groups) - 0.5)
        self.rate = settings.rate or (of_signs if signed else _RATE)
        self._metrics = [
            LayerMetric(
                p.shape[0],
                p.bias,
                rank if _is_plain(structure.penalties[p]) else 0,
                settings.damping,
                _MEMORY,
                generator,
                max(x.layer.variance for x in structure.layers[p]),
            )
            for p in structure.parameters
        ]
        self._layers = structure.layers
        self._still = not any(state.sequence for state in structure.states)
        self._chain = chain_of(structure) if settings.precision is None else None
        self.statistics = running_statistics(x.layer for x in structure.network.layers())
        _refuse_statistics_of_parts(self.statistics)
        self._taken, self.samples, self._looked = 0, 0, -1
        self._unread: list[tuple[int, float, Tensor]] = []
        self._prepared: dict[Hashable, Any] = {}
        self._spare: list[Tensor | None] = [None] * len(self.weights)
        graphs = graphs_for(self.weights[0].matrix) if processes.size() == 1 else None
        self._recorded = None if graphs is None else RecordedSteps(self, graphs)

    def snapshot(self) -> list[Weights]:
        """Return the weights, which the next step replaces."""
        return self.weights

    def memory(self) -> Memory:
        """Return what the next step depends on."""
        return {
            "weights": self.weights, "metrics": [metric.state for metric in self._metrics],
            "taken": [self._taken, self.samples],
            "statistics": [known.memory() for known in self.statistics],
        }  # fmt: skip

    def recall(self, memory: Memory) -> None:
        """Go back to what `memory` has returned."""
        self.weights = [Weights(x.matrix.clone(), x.bias) for x in memory["weights"]]
        self._taken, self.samples = memory["taken"]
        for metric, held in zip(self._metrics, memory["metrics"], strict=True):
            metric.recall(held)
        for known, numbers in zip(self.statistics, memory["statistics"], strict=True):
            known.recall(numbers)

    def reuse(self, weights: Sequence[Weights]) -> None:
        """Give the next step the memory of weights that nobody needs any more.

        Memory that is new in every step costs more than what is written to it.
        """
        if self._recorded is None:
            self._spare = [layer.matrix for layer in weights]

    def finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        ends = [torch.aminmax(layer.stacked()) for layer in self.weights]
        return bool(torch.stack([end for pair in ends for end in pair]).isfinite().all())

    def require_finite(self) -> None:
        """Raise `SolverError` where a weight is NaN or infinite."""
        if not self.finite():
            raise SolverError("weights have become NaN or infinite: lower the rate, or scale X.")

    def step(self, batch: Data, rate: float, samples: int, weight: float = 1.0) -> Tensor:
        """Move the weights by one batch, and return its mean loss before the step, float64, ().

        Where that is not finite, nor are the weights from then on: `require` tells of it.

        Args:
            batch: some samples.
            rate: step in units of the metric.
            samples: of all data, over which the penalty on the weights is shared.
            weight: the mean weight of these samples.
        """
        counts, loss = self._counts(batch), None
        if self._recorded is not None and not self._looking and self._scaled(samples * weight):
            loss = self._recorded.step(batch, counts, rate, samples, weight)
        self.met = counts.met
        if loss is None:
            loss = self.moved(batch, counts, rate, samples, weight)
        self.samples += counts.met
        self._taken += 1
        self._unread.append((counts.met, rate, loss))
        return loss

    def moved(
        self, batch: Data, counted: Counts, rate: float | Tensor, samples: int, weight: float
    ) -> Tensor:
        """Move the weights as `step` does, without a record of it; a rate may be a tensor, ()."""
        loss, slopes, values = self._slopes(batch, counted, weight)
        looks = self._looks(values, len(batch))
        self._begin(looks)
        counts, means = samples * weight, [metric.mean for metric in self._metrics]
        penalties = [self.structure.penalties[p] for p in self.structure.parameters]
        pulls = self._pulls(counts)
        spare, self._spare = self._spare, [None] * len(self.weights)
        gradients = [
            found.gradient(metric, layer, pull / processes.size(), memory)
            for metric, found, layer, pull, memory in zip(
                self._metrics, slopes, self.weights, pulls, spare, strict=True
            )
        ]
        sent = [x for pair in gradients for x in pair if x is not None]
        seen = [metric.sums(*rows) for metric, *rows in looks]
        told = loss if processes.size() == 1 else loss.to(sent[0])
        loss, *answered = processes.total(told, *sent, *(part for parts in seen for part in parts))
        whole = iter(answered)
        found = [(next(whole), None if bias is None else next(whole)) for _, bias in gradients]
        for (metric, *_), parts in zip(looks, seen, strict=True):
            metric.look(*(next(whole) for _ in parts))
            self._looked = self._taken
        moves = [
            metric.move(metric.about(mean, *pair), pair[1], pull)
            if _is_plain(penalty)
            else metric.proximal_move(metric.about(mean, *pair), pair[1], penalty, counts)
            for metric, mean, pair, pull, penalty in zip(
                self._metrics, means, found, pulls, penalties, strict=True
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
    def weight_tensors(self) -> list[Tensor]:
        """W and b of all layers, one after the other."""
        pairs = [(layer.matrix, layer.bias) for layer in self.weights]
        return [x for pair in pairs for x in pair if x is not None]

    @property
    def tensors(self) -> list[Tensor]:
        """The weights, and what the metrics know: all that a step without a look depends on."""
        return [*self.weight_tensors, *(x for metric in self._metrics for x in metric.tensors)]

    @tensors.setter
    def tensors(self, tensors: Sequence[Tensor]) -> None:
        """Take the weights, and what the metrics know where it is given."""
        given = iter(tensors)
        self.weights = [
            Weights(next(given), None if layer.bias is None else next(given))
            for layer in self.weights
        ]
        for metric in self._metrics:
            if known := list(islice(given, len(metric.tensors))):
                metric.tensors = known

    def _pulls(self, counts: float) -> list[float]:
        return [_pull(self.structure.penalties[p], counts) for p in self.structure.parameters]

    def _scaled(self, counts: float) -> bool:
        """Return whether the last step has left what all metrics scale by."""
        pairs = zip(self._metrics, self._pulls(counts), strict=True)
        return all(metric.scaled_for(pull) for metric, pull in pairs)

    @property
    def _looking(self) -> bool:
        return self._taken % self._settings.refresh == 0 or self._taken < _FIRST_LOOKS

    @property
    def due(self) -> bool:
        """Whether losses are to be read, at every step but where a device would be waited for."""
        return len(self._unread) >= (_UNREAD if stays_on_device(self._unread[-1][-1]) else 1)

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

    def _slopes(
        self, batch: Data, counted: Counts, weight: float
    ) -> tuple[Tensor, list[_Slope], Values]:
        """Return the mean loss, what the divergences ask of the weights, and all values."""
        rules = partial(self._rule, batch, max(counted.rows) * weight)
        if self._chain is None:
            return self._slopes_of_graph(batch, counted, weight, rules)
        passed = self._chain.forth(batch.values, self.weights, partial(self._lifting, rules))
        ((loss, _, slope),) = self._tops(batch, counted, weight, [passed.output])
        asked = zip(passed.inputs, passed.back(slope), strict=True)
        return loss, [_Slope(rows, [part]) for rows, part in asked], passed.values

    @torch.enable_grad()
    @batch_statistics()
    def _slopes_of_graph(
        self, batch: Data, counted: Counts, weight: float, rules: Rules
    ) -> tuple[Tensor, list[_Slope], Values]:
        """Return the same of any graph, by autograd."""
        leaves = [
            self._leaf(parameter, layer)
            for parameter, layer in zip(self.structure.parameters, self.weights, strict=True)
        ]
        given = {**batch.values, **dict(zip(self.structure.parameters, leaves, strict=True))}
        known: dict[int, Tensor] = {}
        activated = partial(self._activated, batch.like, rules)
        with self._precision(batch.like):
            values = passed_forward(self.structure.groups, given, activated, known, rules)
            outputs = [
                _answered(term.argument, values, known) for term in self.structure.network.terms
            ]
        losses, tops, slopes = zip(*self._tops(batch, counted, weight, outputs), strict=True)
        asked = [
            self._asked(parameter, leaf, values, known)
            for parameter, leaf in zip(self.structure.parameters, leaves, strict=True)
        ]
        parts = [part for one in asked for part in one.parts]
        found = iter(pulled_back(tops, parts, slopes, materialize_grads=True))
        asks = [_Slope(one.rows, [next(found) for _ in one.parts]) for one in asked]
        return sum(losses[1:], losses[0]), asks, values

    def _tops(
        self, batch: Data, counted: Counts, weight: float, outputs: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return loss, last pre-activations and their part of the gradient for every loss."""
        return [
            self._top(term, batch, output.to(batch.like), some, count * weight)
            for term, output, some, count in zip(
                self.structure.network.terms, outputs, counted.some, counted.rows, strict=True
            )
        ]

    def _leaf(self, parameter: Parameter, layer: Weights) -> Weights:
        """Return weights as they stand in a forward pass, of which gradients can be asked."""
        first, *more = self._layers[parameter]
        precise = self._settings.precision is None
        if precise and self._still and not more and first.layer.plain:
            return _Multiplied(layer.matrix, layer.bias)
        bias = None if layer.bias is None else layer.bias.detach().requires_grad_()
        return Weights(layer.matrix.detach().requires_grad_(), bias)

    def _precision(self, like: Tensor) -> AbstractContextManager[None]:
        """Let products be those of another type than the data's, which is that of all else."""
        if self._settings.precision is None:
            return nullcontext()
        return torch.autocast(like.device.type, torch.bfloat16)

    def _asked(
        self, parameter: Parameter, leaf: Weights, values: Values, known: dict[int, Tensor]
    ) -> _Asked:
        """Return by what a gradient is formed: the weights, or where it is plain X and X W + b."""
        first, *more = self._layers[parameter]
        if not more and first.layer.plain and id(first) in known:
            (inputs,) = arguments_of(first, values, known)
            return _Asked([known[id(first)]], inputs.detach().flatten(0, -2))
        return _Asked([leaf.matrix] if leaf.bias is None else [leaf.matrix, leaf.bias], None)

    def _counts(self, batch: Data) -> Counts:
        """Return what counts; lengths are known on the CPU, so that nobody waits for them."""
        terms, known = self.structure.network.terms, batch.values
        if TIME in known:
            known = {TIME: replace(known[TIME], device=torch.device("cpu"))}
        rows, counting = [len(batch)], list[Tensor | None]()
        for term in terms:
            mask = counted(known, batch.last_only, term.label, term.argument)
            some = None if mask is None else mask.flatten().nonzero().squeeze(1)
            y = batch.values[term.label]
            rows.append(y.shape[:-1].numel() if some is None else len(some))
            counting.append(None if some is None else some.to(batch.like.device))
        if batch.among is not None and not any(term.argument.sequence for term in terms):
            rows = [batch.among] * len(rows)
        elif processes.size() > 1:
            rows = processes.gathered(rows).sum(0).long().tolist()
        return Counts(rows[0], rows[1:], counting)

    def _activated(self, like: Tensor, rules: Rules, state: State, u: Tensor) -> Tensor:
        u = u.to(like)
        rule = self._lifting(rules, state, u)
        if rule is None:
            return u
        lifted: Tensor = _Lifted.apply(u, rule)  # type: ignore[no-untyped-call]
        return lifted

    def _lifting(self, rules: Rules, state: State, u: Tensor) -> Rule | None:
        if isinstance(self.structure.held(state).activation, Identity):
            return None  # what the divergence asks of u is then the gradient, whatever lam
        rule: Targets = rules(state)
        return rule if state.sequence else rule.at(u)  # steps of several processes do not meet

    def _rule(self, batch: Data, counts: float, state: State) -> Rule:
        # The slopes that come back are those of a mean, and so lam is that of a mean, too.
        divergence, held = self.structure.divergences[state], self.structure.held(state)
        lam = self.structure.lam[state]
        if held.activation.margin is not None:  # no push moves a target across a jump
            divergence = held = Margin(held.activation)
        return Targets(
            divergence, held, lam / counts, batch.values.get(SAMPLE_WEIGHTS), lam > _NEAR
        )

    def _top(
        self, term: Term, batch: Data, u: Tensor, some: Tensor | None, mass: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss, the last pre-activations, and their part of the mean gradient.

        The means are over rows of so much weight, of which other processes may have some.
        """
        y = batch.values[term.label]
        weights = row_weights(batch.values, y)
        if term.argument.sequence:
            u, y = u.flatten(0, -2), y.flatten(0, -2)
            weights = None if weights is None else weights.flatten()
            if some is not None:
                u, y = u.index_select(0, some), y.index_select(0, some)
                weights = None if weights is None else weights.index_select(0, some)
        with torch.no_grad():
            if term.state is None:
                divergence = term.pinned.divergence
                rows, slope = divergence.values(y, u), divergence.link_gradient(u) - y
                share = term.weight / mass
            else:
                rows, slope = self._output(term, term.state, y, u, weights is None)
                share = 1 / mass
            if weights is not None:
                rows, slope = weights * rows, weights.unsqueeze(-1) * slope
            return share * rows.sum(dtype=torch.float64), u, slope.mul_(share)

    def _output(
        self, term: Term, state: State, y: Tensor, u: Tensor, together: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every row, or of all together, and what it asks of u."""
        divergence, lam = self.structure.divergences[state], self.structure.lam[state]
        assert isinstance(term.loss, OutputLoss)  # it has output states
        fit = OutputFit(term.loss, y, divergence, u.detach(), lam)
        with processes.alone():  # the loss tells of values that are not finite
            states = self._solved(fit) if len(y) else u.detach()
        if together:  # which a declared loss evaluates at once
            rows = term.loss.output_value(y, states) + lam * divergence.value(states, u)
        else:
            rows = term.loss.output_values(y, states) + lam * divergence.values(states, u)
        return rows, lam * (divergence.link_gradient(u) - states)

    def _solved(self, fit: OutputFit) -> Tensor:
        """Return the output states of a batch; what is compiled for its size is kept."""
        solver, kind = choose(fit), fit.signature()
        cache = solver.prepare(fit, self._prepared.pop(kind, None))
        self._prepared[kind] = cache  # the latest last
        if len(self._prepared) > _KEPT:
            del self._prepared[next(iter(self._prepared))]
        states: Tensor = solver.value(fit, cache)
        return states

    def _looks(self, values: Values, samples: int) -> list[tuple[LayerMetric, Tensor, Any]]:
        """Return the metrics whose turn it is, each with rows of inputs and what these weigh."""
        if not self._looking:
            return []
        found = []
        for parameter, metric in zip(self.structure.parameters, self._metrics, strict=True):
            layers = self._layers[parameter]  # a cell that is called step by step is several
            seen = [self._seen(layer, values, samples, _ROWS // len(layers)) for layer in layers]
            if any(rows is None for rows, _ in seen):
                continue
            inputs, weights = (
                [x for x in part if x is not None] for part in zip(*seen, strict=True)
            )
            found.append((metric, _joined(inputs), _joined(weights) if weights else None))
        return found

    def _begin(self, looks: Sequence[tuple[LayerMetric, Tensor, Any]]) -> None:
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
        if weights is not None:  # a convolution has several rows for each
            weights = weights.flatten()
            weights = weights.repeat_interleave(len(inputs) // max(1, len(weights)))[every]
        return inputs[every].detach(), weights


def _answered(argument: Expression, values: Values, known: dict[int, Any]) -> Tensor:
    """Return what a loss sees; a projection lets gradients through that can leave its limits."""
    if isinstance(argument, Applied) and isinstance(argument.layer, Projection):
        return argument.layer.trained(arguments_of(argument, values, known))
    return value_of(argument, values, known)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _refuse_statistics_of_parts(statistics: Sequence[RunningStatistics]) -> None:
    """Raise `DeclarationError` where several processes would normalize each its part of a batch."""
    if statistics and processes.size() > 1:
        raise DeclarationError(
            f"BatchNorm takes the statistics of a batch, of which each of the {processes.size()} "
            "processes has a part: put the network in eval mode, or normalize by samples "
            "(LayerNorm, GroupNorm)."
        )


@dataclass(frozen=True)
class Counts:
    """What counts in a batch.

    Attributes:
        met: samples, those of all processes.
        rows: over how many the mean of every loss is taken.
        some: which of the rows here; None for all of them.
    """

    met: int
    rows: list[int]
    some: list[Tensor | None]


@dataclass(frozen=True)
class _Asked:
    """What gradients are asked of, and the rows X where that is X W + b."""

    parts: list[Tensor]
    rows: Tensor | None


@dataclass(frozen=True)
class _Slope:
    """What the divergences ask of the weights of a layer, or of its pre-activations X W + b."""

    rows: Tensor | None
    parts: list[Tensor]

    def gradient(
        self, metric: LayerMetric, layer: Weights, pull: float, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of W, on centered inputs and with its pull, and of b."""
        if self.rows is None:
            matrix, bias = self.parts[0], self.parts[1] if len(self.parts) > 1 else None
            return metric.centered_gradient(matrix, bias).add_(layer.matrix, alpha=pull), bias
        slope = self.parts[0].flatten(0, -2)
        rows, known = metric.centered(self.rows).T, layer.matrix
        if slope.dtype is known.dtype:
            matrix = added(known, rows, slope, pull, memory)
        else:
            matrix = torch.add(rows.to(slope.dtype) @ slope, known, alpha=pull, out=memory)
        return matrix, None if layer.bias is None else slope.sum(0, dtype=known.dtype)


def _copied(layer: Weights) -> Weights:
    """Return weights of one's own, in rows as the gradients are."""
    matrix = layer.matrix.clone(memory_format=torch.contiguous_format)
    return Weights(matrix, None if layer.bias is None else layer.bias.clone())


class _Multiplied(Weights):
    """Weights whose gradient is formed of X and X W + b: the product asks nothing of them."""

    def apply(self, inputs: Tensor) -> Tensor:
        """Return X W + b, of which a gradient can be asked."""
        return linear(inputs, self.matrix, self.bias).requires_grad_()


def _pull(penalty: Penalty, samples: float) -> float:
    """Return what the gradient of a squared norm is, over the weights; 0 for other penalties."""
    return 2 * penalty.rho / samples if _is_plain(penalty) else 0.0  # type: ignore[attr-defined]


def _is_plain(penalty: Penalty) -> bool:
    return isinstance(penalty, SquaredFrobenius) and penalty.center is None
