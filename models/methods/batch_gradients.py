"""What a batch asks of the weights: gradients, in which states move to targets.

The forward pass gives U and Z = phi(U) of all states. From the last to the first, states move to
the minimizer of their fit with the links above linearized, V = phi(U - g / lam), where g is the
gradient of these links; what the divergence then asks of U is passed on to the layer below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations import Identity
from liftednet.divergences import Divergence, Margin, Tight
from liftednet.layers.expression import (
    SAMPLE_WEIGHTS,
    TIME,
    Applied,
    Expression,
    arguments_of,
    value_of,
)
from liftednet.layers.modules import batch_statistics
from liftednet.layers.projection import Projection
from liftednet.losses import OutputLoss
from liftednet.maps import pulled_back
from liftednet.network import State, Term
from liftednet.problems import OutputFit
from liftednet.samples import Weights
from liftednet.solvers import choose
from liftednet.solvers.layer_metric import LayerMetric

from ..block import Structure, counted, row_weights
from ..data import Data
from ..forward_pass import Rule, Rules, Values, passed_forward

# From this lam on target - state, of the size of g / lam, cancels in float32.
_CANCELS = 1e3
_MARGIN_WIDTH = 0.6  # of a margin that has no scale, in root mean squares of u


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
        width = cast(float, _MARGIN_WIDTH * size.where(size > 0, 1.0))  # it acts as a number
        margin = replace(self.held, width=width)
        return replace(self, divergence=margin, held=margin)

    def gradient(self, u: Tensor, states: Tensor, push: Tensor) -> Tensor:
        """Return lam (grad R(u) - phi(u - g / lam)), the gradient in the pre-activation."""
        if self.weights is not None:  # a sample of weight 0 has no push
            weights = self.weights.unsqueeze(-1)
            push = push / weights.masked_fill(weights == 0, 1.0)
        dtype = u.dtype
        if self.near:
            u, push = u.double(), push.double()
            states = self.forward(u)
        target = self.held.minimizer(torch.sub(u, push, alpha=1 / self.lam))
        known = isinstance(self.divergence, Tight) and self.held is self.divergence
        at = states if known else self.divergence.link_gradient(u)
        gradient = (at - target).mul_(self.lam).to(dtype)
        return gradient if self.weights is None else weights * gradient


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
        """Return the gradient in u."""
        u, states = ctx.saved_tensors
        return ctx.rule.gradient(u, states, pushes[0]), None


@dataclass(frozen=True)
class Counts:
    """What counts in a batch.

    Attributes:
        met: samples, those of all processes.
        some: which of the rows here every loss has; None for all of them.
    """

    met: int
    some: list[Tensor | None]


@dataclass(frozen=True)
class LayerGradient:
    """The gradients in W and b of a layer, or where that is plain in X W + b, and the rows X."""

    parts: Sequence[Tensor]
    rows: Tensor | None = None

    def centered(
        self, metric: LayerMetric, layer: Weights, pull: float
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of W, on centered inputs and with its pull, and of b."""
        if self.rows is None:
            matrix, bias = self.parts[0], self.parts[1] if len(self.parts) > 1 else None
            return metric.centered_gradient(matrix, bias).add_(layer.matrix, alpha=pull), bias
        slope = self.parts[0].flatten(0, -2)
        matrix = (slope.T @ metric.centered(self.rows)).T  # sooner than its transpose
        matrix.add_(layer.matrix, alpha=pull)  # which in addmm would be copied first
        return matrix, None if layer.bias is None else slope.sum(0)


class BatchGradients:
    """The gradients of a network on batches, in which states move to targets.

    Attributes:
        structure: of the network.
    """

    def __init__(self, structure: Structure) -> None:
        """Take a network."""
        self.structure = structure
        layers, (term, *_) = structure.network.chain() or [], structure.network.terms
        pinned = term.state is None and term.argument in layers[-1:]
        # A divergence that a forward pass leaves above 0 asks for something without a push, too.
        self._pulled_at_ends = any(
            state.activation.margin is not None
            or (state.sequence and not isinstance(structure.divergences[state], Tight))
            for state in structure.states
        )
        self._chained = pinned and [x.weights for x in layers] == structure.parameters

    def counts(self, batch: Data) -> Counts:
        """Return what counts; lengths are known on the CPU, so that nobody waits for them."""
        terms, known = self.structure.network.terms, batch.values
        if TIME in known:
            known = {TIME: replace(known[TIME], device=torch.device("cpu"))}
        counting = list[Tensor | None]()
        for term in terms:
            mask = counted(known, batch.last_only, term.label, term.argument)
            some = None if mask is None else mask.flatten().nonzero().squeeze(1)
            counting.append(None if some is None else some.to(batch.like.device))
        met = batch.among
        return Counts(int(processes.total_of(len(batch))) if met is None else met, counting)

    def of(
        self, batch: Data, weights: Sequence[Weights], counts: Counts, mean: float
    ) -> tuple[Tensor, list[LayerGradient], Values]:
        """Return the mean loss, its gradients in the weights, and all values.

        Args:
            batch: some samples.
            weights: of the network.
            counts: of the batch.
            mean: what a sample weighs, as `Batches.weight`.
        """
        mass = counts.met * mean
        rules = partial(self._rule, batch, mass)
        ends = TIME in batch.values and not batch.values[TIME].full and self._pulled_at_ends
        if ends or not self._chained:
            return self._by_autograd(batch, weights, counts, mass, rules, ends)
        # A product of a hundred rows takes no longer than a node of autograd's graph.
        values, passed = dict(batch.values), list[tuple[Tensor, Rule | None]]()
        inputs: list[Tensor] = [values[self.structure.network.inputs[0]]]
        for state, layer in zip(self.structure.states, weights, strict=False):
            u = layer.apply(inputs[-1])
            rule = self._targets(rules, state, u)
            values[state] = u if rule is None else rule.forward(u)
            inputs.append(values[state])
            passed.append((u, rule))
        output = weights[-1].apply(inputs[-1])
        loss, _, slope = self._output_gradient(
            self.structure.network.terms[0], batch, output, counts.some[0], mass
        )
        slopes: list[Tensor] = [slope]
        for above, states, (u, rule) in zip(
            weights[:0:-1], inputs[:0:-1], reversed(passed), strict=True
        ):
            push = slopes[-1] @ above.matrix.T
            slopes.append(push if rule is None else rule.gradient(u, states, push))
        pairs = zip(reversed(slopes), inputs, strict=True)
        return loss, [LayerGradient([slope], rows) for slope, rows in pairs], values

    @torch.enable_grad()
    @batch_statistics()
    def _by_autograd(
        self, batch: Data, weights: Sequence[Weights], counts: Counts, mass: float, rules: Rules,
        ends: bool,
    ) -> tuple[Tensor, list[LayerGradient], Values]:  # fmt: skip
        """Return the same of any graph."""
        parameters, terms = self.structure.parameters, self.structure.network.terms
        leaves = [_leaf(layer) for layer in weights]
        given = {**batch.values, **dict(zip(parameters, leaves, strict=True))}
        known: dict[int, Tensor] = {}
        activate = partial(self._activated, rules)
        values = passed_forward(self.structure.groups, given, activate, known, rules, ends=ends)
        outputs = [_scores(term.argument, values, known) for term in terms]
        found = [
            self._output_gradient(term, batch, output, some, mass)
            for term, output, some in zip(terms, outputs, counts.some, strict=True)
        ]
        losses, tops, slopes = zip(*found, strict=True)
        wanted = [
            self._differentiated(self.structure.layers[parameter], leaf, values, known)
            for parameter, leaf in zip(parameters, leaves, strict=True)
        ]
        parts = [part for one in wanted for part in one.parts]
        pulled = iter(pulled_back(tops, parts, slopes, materialize_grads=True))
        gradients = [replace(one, parts=[next(pulled) for _ in one.parts]) for one in wanted]
        return sum(losses[1:], losses[0]), gradients, values

    def _differentiated(
        self, layers: Sequence[Applied], leaf: Weights, values: Values, known: dict[int, Tensor]
    ) -> LayerGradient:
        """Return in what gradients are formed: the weights, or where it is plain X W + b."""
        first, *more = layers
        if not more and first.layer.plain and id(first) in known:
            (inputs,) = arguments_of(first, values, known)
            return LayerGradient([known[id(first)]], inputs.detach().flatten(0, -2))
        return LayerGradient([leaf.matrix] if leaf.bias is None else [leaf.matrix, leaf.bias])

    def _activated(self, rules: Rules, state: State, u: Tensor) -> Tensor:
        rule = self._targets(rules, state, u)
        if rule is None:
            return u
        return _Lifted.apply(u, rule)  # type: ignore[no-untyped-call]

    def _targets(self, rules: Rules, state: State, u: Tensor) -> Rule | None:
        if isinstance(self.structure.held(state).activation, Identity):
            return None  # the gradient in u is then the gradient, whatever lam
        rule: Targets = rules(state)
        return rule if state.sequence else rule.at(u)  # steps of several processes do not meet

    def _rule(self, batch: Data, mass: float, state: State) -> Rule:
        # The slopes that come back are those of a mean, and so lam is that of a mean, too.
        divergence, held = self.structure.divergences[state], self.structure.held(state)
        lam = self.structure.lam[state]
        if held.activation.margin is not None:  # no push moves a target across a jump
            divergence = held = Margin(held.activation)
        weights = batch.values.get(SAMPLE_WEIGHTS)
        return Targets(divergence, held, lam / mass, weights, lam > _CANCELS)

    def _output_gradient(
        self, term: Term, batch: Data, u: Tensor, some: Tensor | None, mass: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a mean loss, the last pre-activations, and their part of the gradient.

        The mean is over samples of so much weight in all, of which other processes may have some.
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
                divergence = term.divergence
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
        """Return the loss of every row, or of all together, and the gradient in u."""
        divergence, lam = self.structure.divergences[state], self.structure.lam[state]
        loss = self.structure.loss(term)
        assert isinstance(loss, OutputLoss)  # it has output states
        fit = OutputFit(loss, y, divergence, u.detach(), lam)
        with processes.alone():  # the loss tells of values that are not finite
            states = u.detach()
            if len(y):
                states = choose(fit).value(fit)
        if together:  # which a declared loss evaluates at once
            rows = loss.output_value(y, states) + lam * divergence.value(states, u)
        else:
            rows = loss.output_values(y, states) + lam * divergence.values(states, u)
        return rows, lam * (divergence.link_gradient(u) - states)


def _scores(argument: Expression, values: Values, known: dict[int, Any]) -> Tensor:
    """Return what a loss sees; a projection lets gradients through that can leave its limits."""
    if isinstance(argument, Applied) and isinstance(argument.layer, Projection):
        return argument.layer.trained(arguments_of(argument, values, known))
    return value_of(argument, values, known)


def _leaf(layer: Weights) -> Weights:
    """Return weights of which gradients can be asked."""
    bias = None if layer.bias is None else layer.bias.detach().requires_grad_()
    return Weights(layer.matrix.detach().requires_grad_(), bias)
