"""Training on minibatches: states from the forward pass, weights pulled to the previous ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Divergence, Raw, Tight
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.layers.expression import Applied, Expression, Parameter, arguments_of, value_of
from liftednet.losses import OutputLoss
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import OutputFit
from liftednet.samples import Weights
from liftednet.solvers import choose
from liftednet.solvers.metric_prox import low_rank_prox
from liftednet.validation import is_number, require_count, require_positive

from ..batches import Batches
from ..block import Structure, counted, row_weights
from ..data import Data
from ..forward_pass import Values, passed_forward
from ..graph import State, Term
from ..run import Ending, Step, Steps
from .layer_metric import LayerMetric

_MEMORY = 0.95  # of the running statistics at every look at them
_FIRST_LOOKS = 5  # batches that are all looked at, before the statistics stand
_ROWS = 10_000  # of inputs at a look, at most: a convolution has many more patches

Validate = Callable[[Sequence[Weights]], float]


@dataclass(frozen=True)
class Minibatch:
    """Training on minibatches; the defaults are the best of what was measured.

    Attributes:
        epochs: passes over the data.
        batch_size: samples of a batch (a DataLoader brings its own).
        rate: step of the weights in units of their metric; it falls linearly to zero. No step
            is longer than 2 loss / slope, where a parabola with minimum 0 ends.
        damping: how little the covariance of a layer's inputs is trusted.
        rank: eigenvectors of that covariance that are followed.
        refresh: batches from one look at the statistics to the next.
        validation: share of the samples that is held out; 0 for none.
        patience: epochs without a better validation objective until training stops and the best
            weights are kept; None trains to the end and keeps the last.

    Raises:
        DataError: a number is out of its range.
    """

    epochs: int = 10
    batch_size: int = 100
    rate: float = 0.3
    damping: float = 30.0
    rank: int = 16
    refresh: int = 20
    validation: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        counts = {"epochs": 1, "batch_size": 1, "refresh": 1, "rank": 0}
        if self.patience is not None:
            counts["patience"] = 1
        for name, least in counts.items():
            require_count(name, getattr(self, name), least)
        require_positive("rate", self.rate)
        require_positive("damping", self.damping)
        if not is_number(self.validation) or not 0 <= self.validation < 1:
            raise DataError(f"validation must be a share in [0, 1), got {self.validation!r}.")
        if self.patience is not None and self.validation == 0:
            raise DataError("patience needs a validation share; validation is 0.")

    @property
    def rounds(self) -> int:
        """The epochs."""
        return self.epochs

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

    def steps(self, moves: BatchSteps, batches: Batches, validate: Validate | None) -> Steps:
        """Train for all epochs, and yield what each did; the weights end where `moves` has them.

        Raises:
            SolverError: the loss or the weights are not finite; the weights are those after the
                last good epoch.
        """
        started, best = time.perf_counter(), _Best(self.patience)
        last, before = moves.weights, math.nan
        for number in range(self.epochs):
            try:
                loss = moves.epoch(batches, self._rates(number, len(batches)))
            except SolverError as error:
                moves.weights = last
                message = f"{error} The model keeps the last good epoch."
                raise SolverError(message, last) from error
            except (KeyboardInterrupt, GeneratorExit):
                if not moves.finite():
                    moves.weights = last
                raise
            last = moves.weights
            found = None if validate is None else validate(last)
            seconds = time.perf_counter() - started
            yield Step(
                number, "epoch", loss, before - loss, math.nan, len(batches), "minibatch", seconds,
                found,
            )  # fmt: skip
            before = loss
            if best.is_over(found, last):
                moves.weights = best.weights or last
                return Ending.STOPPED
        if best.weights is not None:
            moves.weights = best.weights
        return Ending.BUDGET

    def _rates(self, epoch: int, length: int) -> Iterator[float]:
        for number in range(epoch * length, (epoch + 1) * length):
            yield self.rate * (1 - number / (self.epochs * length))


class _Best:
    """The weights of the best validation, where training may stop early."""

    def __init__(self, patience: int | None) -> None:
        self.weights: list[Weights] | None = None
        self._patience, self._value, self._since = patience, math.inf, 0

    def is_over(self, value: float | None, weights: list[Weights]) -> bool:
        """Take the newest validation, and say whether patience has ended."""
        if self._patience is None or value is None:
            return False
        if value < self._value:
            self.weights, self._value, self._since = weights, value, 0
            return False
        self._since += 1
        return self._since >= self._patience


class _Lifted(torch.autograd.Function):
    """phi(u), whose states move to a target when a gradient comes back.

    The minimizer of lam D(v, u) + <g, v> is v = phi(u - g / lam), and lam (grad R(u) - v) is what
    its divergence then asks of u: for a large lam phi'(u) g, as in backpropagation.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, divergence: Divergence, lam: float) -> Tensor:
        """Return phi(u)."""
        states = divergence.activation.forward(u)
        ctx.divergence, ctx.lam = divergence, lam
        ctx.save_for_backward(u, states)
        return states

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, None, None]:
        """Return lam (grad R(u) - phi(u - g / lam))."""
        (push,), (u, states), divergence = pushes, ctx.saved_tensors, ctx.divergence
        target = divergence.activation.forward(torch.sub(u, push, alpha=1 / ctx.lam))
        at = states if isinstance(divergence, Tight) else divergence.link_gradient(u)
        return ctx.lam * (at - target), None, None


class BatchSteps:
    """Moves all weights by one batch at a time.

    The forward pass gives U and Z = phi(U) of all states. From the last to the first, states move
    to the minimizer of their fit with the links above linearized, V = phi(U - g / lam), where g
    is the gradient of these links. Then the weight fit to V, linearized too, is pulled to the
    previous weights in the metric of `LayerMetric`: an implicit step, with one ridge system for
    many batches. A penalty is part of the step, by its prox in that metric.

    Attributes:
        structure: of the network.
        weights: as they are, never changed in place.
    """

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
        self.structure, self.weights = structure, list(weights)
        self._settings = settings
        self._metrics = [
            LayerMetric(p.shape[0], p.bias, settings.rank, settings.damping, _MEMORY, generator)
            for p in structure.parameters
        ]
        self._layers = dict(_layers(structure))
        self._taken = 0

    def finite(self) -> bool:
        """Return whether no weight is NaN or infinite."""
        ends = [torch.aminmax(layer.stacked()) for layer in self.weights]
        return bool(torch.stack([end for pair in ends for end in pair]).isfinite().all())

    def epoch(self, batches: Batches, rates: Iterator[float]) -> float:
        """Take a step with every batch of a pass, and return the mean loss before the steps.

        Raises:
            SolverError: the loss or the weights are not finite.
        """
        total, seen = 0.0, 0
        for batch, rate in zip(batches, rates, strict=False):
            total += len(batch) * self.step(batch, rate, batches.samples)
            seen += len(batch)
        if not self.finite():  # no loss has seen the last step
            raise SolverError("weights have become NaN or infinite: lower the rate, or scale X.")
        return total / seen

    def step(self, batch: Data, rate: float, samples: int) -> float:
        """Move the weights by one batch, and return its mean loss before the step.

        Args:
            batch: some samples.
            rate: step in units of the metric.
            samples: of all data, over which the penalty on the weights is shared.

        Raises:
            SolverError: the loss is not finite; the weights are as they were.
        """
        loss, gradients, values = self._gradients(batch)
        if not loss < math.inf:
            raise SolverError(
                f"the loss of batch {self._taken} is {loss}: lower the rate ({rate:.3g} now), or "
                "scale the inputs."
            )
        self._look(values)
        pulls = [_pull(self.structure.penalties[p], samples) for p in self.structure.parameters]
        moves = [
            metric.move(torch.add(gradient.matrix, layer.matrix, alpha=pull), gradient.bias)
            for metric, gradient, layer, pull in zip(
                self._metrics, gradients, self.weights, pulls, strict=True
            )
        ]
        slope = max(sum(move.slope for move in moves), torch.finfo(torch.float64).tiny)
        length = min(2 * loss / slope, rate)
        self.weights = [
            self._held(parameter, metric, move.taken(layer, length), length, samples)
            for parameter, metric, move, layer in zip(
                self.structure.parameters, self._metrics, moves, self.weights, strict=True
            )
        ]
        self._taken += 1
        return loss

    def _held(
        self,
        parameter: Parameter,
        metric: LayerMetric,
        moved: Weights,
        length: float,
        samples: int,
    ) -> Weights:
        """Return moved weights after the proximal step of their penalty, in the metric."""
        penalty = self.structure.penalties[parameter]
        if isinstance(penalty, SquaredFrobenius):
            return moved  # its gradient is part of the move
        matrix = low_rank_prox(penalty, moved.matrix, metric.scaling, length / samples)
        return metric.shifted(moved, matrix)

    @torch.enable_grad()
    def _gradients(self, batch: Data) -> tuple[float, list[Weights], Values]:
        """Return the mean loss, what the divergences ask of the weights, and all values."""
        leaves = [_leaf(layer) for layer in self.weights]
        given = {**batch.values, **dict(zip(self.structure.parameters, leaves, strict=True))}
        values = passed_forward(self.structure.groups, given, self._activated)
        loss, tops, slopes = 0.0, [], []
        for term in self.structure.network.terms:
            value, u, slope = self._top(term, batch, values)
            loss += value
            tops.append(u)
            slopes.append(slope)
        parts = [part for leaf in leaves for part in (leaf.matrix, leaf.bias) if part is not None]
        found = iter(torch.autograd.grad(tops, parts, slopes, materialize_grads=True))
        gradients = [
            Weights(next(found), None if leaf.bias is None else next(found)) for leaf in leaves
        ]
        return loss, gradients, values

    def _activated(self, state: State, u: Tensor) -> Tensor:
        divergence, lam = self.structure.divergences[state], self.structure.lam[state]
        lifted: Tensor = _Lifted.apply(u, divergence, lam)  # type: ignore[no-untyped-call]
        return lifted if state.bounds is None else lifted.clamp(*state.bounds)

    def _top(self, term: Term, batch: Data, values: Values) -> tuple[float, Tensor, Tensor]:
        """Return the mean loss, the last pre-activations, and their part of the mean gradient."""
        u, y = value_of(term.argument, values), batch.values[term.label]
        weights = row_weights(batch.values, y)
        if term.argument.sequence:
            mask = counted(batch.values, batch.last_only, term.label, term.argument)
            if mask is not None:
                u, y = u[mask], y[mask]
                weights = None if weights is None else weights[mask]
            u, y = u.flatten(0, -2), y.flatten(0, -2)
        with torch.no_grad():
            if term.state is None:
                divergence = term.pinned.divergence
                rows = term.weight * divergence.values(y, u)
                slope = term.weight * (divergence.link_gradient(u) - y)
            else:
                rows, slope = self._output(term, term.state, y, u)
            if weights is not None:
                weights = weights.flatten()
                rows, slope = weights * rows, weights.unsqueeze(-1) * slope
        return float(rows.sum()) / len(u), u, slope / len(u)

    def _output(self, term: Term, state: State, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        divergence, lam = self.structure.divergences[state], self.structure.lam[state]
        assert isinstance(term.loss, OutputLoss)  # it has output states
        fit = OutputFit(term.loss, y, divergence, u.detach(), lam)
        states = choose(fit).solve(fit).value  # the loss tells of values that are not finite
        rows = term.loss.output_values(y, states) + lam * divergence.values(states, u)
        return rows, lam * (divergence.link_gradient(u) - states)

    def _look(self, values: Values) -> None:
        if self._taken % self._settings.refresh and self._taken >= _FIRST_LOOKS:
            return
        for parameter, metric in zip(self.structure.parameters, self._metrics, strict=True):
            expression = self._layers[parameter]
            inputs = expression.layer.inputs(arguments_of(expression, values))
            if inputs is not None:
                metric.look(inputs[:: -(-len(inputs) // _ROWS)].detach())


def _leaf(layer: Weights) -> Weights:
    bias = None if layer.bias is None else layer.bias.detach().requires_grad_()
    return Weights(layer.matrix.detach().requires_grad_(), bias)


def _pull(penalty: Penalty, samples: int) -> float:
    """Return what the gradient of a squared norm is, over the weights; 0 for other penalties."""
    plain = isinstance(penalty, SquaredFrobenius) and penalty.center is None
    return 2 * penalty.rho / samples if plain else 0.0  # type: ignore[attr-defined]


def _layers(structure: Structure) -> Iterator[tuple[Parameter, Applied]]:
    """Yield every layer with weights, by them."""

    def visit(expression: Expression) -> Iterator[tuple[Parameter, Applied]]:
        if isinstance(expression, Applied):
            if expression.weights is not None:
                yield expression.weights, expression
            for argument in expression.arguments:
                if isinstance(argument, Expression):
                    yield from visit(argument)

    for argument in structure.network.arguments:
        yield from visit(argument)
