"""The forward pass of a graph: states one after another, those with delays step by step.

LSTM and GRU layers run over all their steps forth and back without a graph of autograd for each
step: a step is a dozen operations on small tensors, whose nodes would cost more than they do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.expression import TIME, Applied, Expression, Variable, affine_in, value_of
from liftednet.layers.time import Delay, delayed
from liftednet.maps import Moved, Times, chain
from liftednet.network import State, layers_in
from liftednet.samples import Weights

Values = dict[Any, Any]  # of variables, by their identity
Activate = Callable[[State, Tensor], Tensor]


class Rule(Protocol):
    """How states follow from pre-activations, and what a push on the states asks of these."""

    def forward(self, u: Tensor) -> Tensor:
        """Return the states."""

    def gradient(self, u: Tensor, states: Tensor, push: Tensor) -> Tensor:
        """Return what stands for phi'(u) times a gradient on the states."""


Rules = Callable[[State], Any]  # a `Rule`, or where nothing is differentiated an activation


def passed_forward(
    groups: Sequence[Sequence[State]],
    values: Mapping[Variable, Any],
    activate: Activate,
    known: dict[int, Any] | None = None,
    rules: Rules | None = None,
    *,
    ends: bool = False,
) -> Values:
    """Return the values with the states of a forward pass; differentiable, nothing in place.

    Lifted Neural Networks, eq. (1); Lifted Recurrent Neural Networks, section 3.

    Args:
        groups: the states in order, as `Network.groups` gives them.
        values: of inputs and weights, and the timeline where there are sequences.
        activate: makes states of pre-activations.
        known: is given the values of layers, by id, that are made for all steps at once.
        rules: in place of `activate` where a recurrent layer runs over all steps at once; None
            where none does.
        ends: whether nothing is passed back to steps beyond the lengths of sequences, step by step;
            rules that ask nothing of them where they are not pushed need no look.
    """
    found = dict(values)
    known = {} if known is None else known
    for group in groups:
        if runs_alone(group):
            state = group[0]
            u = value_of(state.argument, found, known)
            activated = _until_end(activate, state, found) if ends and state.sequence else activate
            found[state] = counted_steps(state, activated(state, u), found)
        else:
            for state, rows in _over_time(group, found, known, activate, rules, ends).items():
                found[state] = rows
    return found


def refuse_overflow(outputs: Sequence[Tensor]) -> None:
    """Raise `DataError` where outputs are NaN or infinite: of finite inputs, they overflow."""
    for output in outputs:
        if not bool(torch.stack(torch.aminmax(output)).isfinite().all()):
            raise DataError(
                f"the forward pass overflows {output.dtype}: its output is NaN or infinite. Scale "
                "the inputs, or take torch.float64."
            )


def _until_end(
    activate: Activate, state: State, values: Values, step: int | None = None
) -> Activate:
    """Return what activates states, of a step or of all, and passes back what counts of slopes."""
    valid = values[TIME].longer(state.initial_steps).valid.unsqueeze(-1)
    counts = valid if step is None else valid[step]
    return lambda state, u: activate(state, u.where(counts, u.detach()))


def runs_alone(group: Sequence[State]) -> bool:
    """Return whether a group is one state that does not depend on itself."""
    return len(group) == 1 and group[0] not in group[0].argument.variables


def counted_steps(state: Expression, rows: Tensor, values: Mapping[Variable, Any]) -> Tensor:
    """Return states with zeros beyond the lengths of their sequences."""
    if not state.sequence or values[TIME].full:
        return rows
    return rows.where(values[TIME].longer(state.initial_steps).valid.unsqueeze(-1), 0.0)


def _over_time(
    group: Sequence[State],
    values: Values,
    known: dict[int, Any],
    activate: Activate,
    rules: Rules | None,
    ends: bool,
) -> dict[State, Tensor]:
    cell = group[0].cell
    if rules is not None and cell is not None and set(cell.states) == set(group) and not ends:
        found = cell.run(values, known, rules)
    else:
        fast = _driven(group, values, activate) if len(group) == 1 and not ends else None
        states = _stepwise(group, values, known, activate, ends) if fast is None else [fast]
        found = dict(zip(group, states, strict=True))
    return {state: counted_steps(state, rows, values) for state, rows in found.items()}


def _driven(group: Sequence[State], values: Values, activate: Activate) -> Tensor | None:
    """Return the states of u_t = z_(t-1) W + d_t, with d of all steps at once; else None."""
    (state,) = group
    like = _zeros(state, values)
    parts = affine_in(state.argument, state, {**values, state: like})
    recurrent = recurrent_weight(chain(parts.map))
    if recurrent is None or parts.offset is None or not state.activation.per_unit:
        return None
    from liftednet.solvers.gauss_newton.objective import recurrence

    drive = parts.offset.expand(*like.shape[:-1], -1)
    return recurrence(drive, recurrent, partial(activate, state))


def recurrent_weight(factors: Sequence[Any]) -> Tensor | None:
    """Return W where a map is v -> delay(v) W, else None."""
    match factors:
        case (Times(weight=weight), Moved(forth=forth)) if forth is delayed:
            return weight
    return None


def _zeros(state: State, values: Values) -> Tensor:
    timeline = values[TIME].longer(state.initial_steps)
    like: Tensor = next(x for x in values.values() if isinstance(x, Tensor))
    # No len(known): to torch.export it is a fixed number.
    return like.new_zeros(timeline.steps, timeline.known.shape[0], state.units)


def _stepwise(
    group: Sequence[State], values: Values, known: dict[int, Any], activate: Activate, ends: bool
) -> list[Tensor]:
    """Return states that depend on one another through delays, (steps, samples, units) each."""
    own, arguments = set(group), [state.argument for state in group]
    outside = {x: value_of(x, values, known).unbind() for x in _without(own, arguments)}
    delays = [x for x in layers_in(*arguments) if isinstance(x.layer, Delay) and x.variables & own]
    like, rows = _zeros(group[0], values), []
    before = {id(x): like.new_zeros(like.shape[1], x.units) for x in delays}
    for step in range(len(like)):
        here = {x: each[step] for x, each in outside.items()}
        moment: Values = {**values, **here}
        made = {**before, **{id(x): row for x, row in here.items()}}
        activated = _until_end(activate, group[0], values, step) if ends else activate
        for state in group:
            moment[state] = activated(state, value_of(state.argument, moment, made))
        before = {id(x): value_of(x.arguments[0], moment, made) for x in delays}
        rows.append([moment[state] for state in group])
    return [torch.stack(found) for found in zip(*rows, strict=True)]


def _without(states: set[State], expressions: Iterable[Any]) -> Iterator[Expression]:
    """Yield the largest parts of expressions that do not depend on states."""
    for x in expressions:
        if isinstance(x, Expression) and not x.variables & states:
            yield x
        elif isinstance(x, Applied):
            yield from _without(states, x.arguments)


Passed = Sequence[Tensor]  # W x + b and V h_(t-1) + c of all steps, and the states


@dataclass(frozen=True, eq=False)
class Gated:
    """States that follow from W x + b and V h_(t-1) + c, a step after another.

    Attributes:
        given: W x + b.
        kept: V h_(t-1) + c, with weights of its own.
        states: of the layer, in the order that the subclass tells.
    """

    given: Expression
    kept: Applied
    states: tuple[State, ...]

    def run(
        self, values: Mapping[Variable, Any], known: dict[int, Any], rules: Rules
    ) -> dict[State, Tensor]:
        """Return the states of all steps, differentiable in the weights and in what is given."""
        assert self.kept.weights is not None  # a plain layer has some
        weights = values[self.kept.weights]
        given = value_of(self.given, values, known)
        of = [rules(state) for state in self.states]
        with torch.no_grad():
            rows = [torch.stack(x) for x in zip(*self._forth(given, weights, of), strict=True)]
        if not torch.is_grad_enabled():
            return dict(zip(self.states, rows, strict=True))
        before = delayed(self._output(rows))
        known[id(self.kept)] = kept = self.kept.layer.value([before], weights)
        found = _OverTime.apply(  # type: ignore[no-untyped-call]
            self, of, weights.matrix.detach(), given, kept, *rows
        )
        return dict(zip(self.states, found, strict=True))

    @abstractmethod
    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        """Return h of all steps."""

    @abstractmethod
    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        """Yield the states of each step."""

    @abstractmethod
    def back(
        self, rules: Sequence[Rule], back: Tensor, passed: Passed, pushes: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients in both terms.

        Args:
            rules: of the states.
            back: V transposed.
            passed: the terms and the states of all steps.
            pushes: gradients in each of the states, from outside of the layer.
        """


class _OverTime(torch.autograd.Function):
    """The states of all steps, whose backward pass is a loop over time."""

    @staticmethod
    def forward(
        ctx: Any, cell: Gated, rules: Sequence[Rule], matrix: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the states as they are, (steps, samples, units) each."""
        ctx.cell, ctx.rules, ctx.back = cell, rules, matrix.T.contiguous()
        rows = tuple(x.view_as(x) for x in tensors[2:])
        ctx.save_for_backward(*tensors[:2], *rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients in both terms."""
        gradients = ctx.cell.back(ctx.rules, ctx.back, ctx.saved_tensors, pushes)
        return None, None, None, *gradients, *(None for _ in pushes)


class LSTM(Gated):
    """i, f, o = sigmoid(.), g = tanh(.), c_t = f c_(t-1) + i g, h = o tanh(c).

    States: [i, f], g, c, o, tanh(c); pre-activations [i, f, g, o].
    """

    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        return rows[3] * rows[4]

    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        gate, fresh, _, out, bend = rules
        n, matrix = given.shape[2] // 4, weights.matrix
        h = c = given.new_zeros(given.shape[1], n)
        for u in (given if weights.bias is None else given + weights.bias).unbind():
            u = torch.addmm(u, h, matrix)
            gates, g = gate.forward(u[:, : 2 * n]), fresh.forward(u[:, 2 * n : 3 * n])
            o = out.forward(u[:, 3 * n :])
            c = torch.addcmul(gates[:, n:] * c, gates[:, :n], g)
            bent = bend.forward(c)
            h = o * bent
            yield gates, g, c, o, bent

    def back(
        self, rules: Sequence[Rule], back: Tensor, passed: Passed, pushes: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return one gradient for both terms: they stand in a sum alone."""
        (gate, fresh, _, out, bend), (given, kept, *rows) = rules, passed
        n, u = given.shape[2] // 4, given + kept
        slope = torch.empty_like(u)
        push = torch.empty_like(rows[0][0])  # on [i, f]
        later, after = torch.zeros_like(rows[2][0]), torch.zeros_like(u[0])
        parts = (u, slope, delayed(rows[2]), *rows, *pushes)
        for u_t, slope_t, before, gates, g, c, o, bent, *given_t in _backwards(parts):
            on_gates, on_g, on_c, on_o, on_bent = given_t
            h = after @ back
            of_bent = bend.gradient(c, bent, torch.addcmul(on_bent, h, o))
            of_c = later + on_c + of_bent
            torch.addcmul(on_gates[:, :n], of_c, g, out=push[:, :n])
            torch.addcmul(on_gates[:, n:], of_c, before, out=push[:, n:])
            of_gates = gate.gradient(u_t[:, : 2 * n], gates, push)
            i, f = gates[:, :n], gates[:, n:]
            of_g = fresh.gradient(u_t[:, 2 * n : 3 * n], g, torch.addcmul(on_g, of_c, i))
            of_o = out.gradient(u_t[:, 3 * n :], o, torch.addcmul(on_o, h, bent))
            after = torch.cat([of_gates, of_g, of_o], 1, out=slope_t)
            later = of_c * f
        return slope, slope


class GRU(Gated):
    """r, z = sigmoid(.), n = tanh(. + r (V h_(t-1) + c)), h_t = z h_(t-1) + (1 - z) n.

    States: [r, z], n, h; pre-activations [r, z, n].
    """

    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        return rows[2]

    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        gate, fresh, _ = rules
        n = given.shape[2] // 3
        h = given.new_zeros(given.shape[1], n)
        for u in given.unbind():
            kept = weights.apply(h)
            gates = gate.forward(u[:, : 2 * n] + kept[:, : 2 * n])
            new = fresh.forward(torch.addcmul(u[:, 2 * n :], gates[:, :n], kept[:, 2 * n :]))
            h = torch.lerp(new, h, gates[:, n:])
            yield gates, new, h

    def back(
        self, rules: Sequence[Rule], back: Tensor, passed: Passed, pushes: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients in both terms: r multiplies a part of the second alone."""
        (gate, fresh, _), (given, kept, *rows) = rules, passed
        n = given.shape[2] // 3
        gated = given[..., : 2 * n] + kept[..., : 2 * n]
        curved = torch.addcmul(given[..., 2 * n :], rows[0][..., :n], kept[..., 2 * n :])
        apart = delayed(rows[2]) - rows[1]
        slope, slope_kept = torch.empty_like(given), torch.empty_like(kept)
        push = torch.empty_like(rows[0][0])  # on [r, z]
        later, after = torch.zeros_like(rows[2][0]), torch.zeros_like(kept[0])
        parts = (gated, curved, kept[..., 2 * n :], apart, slope, slope_kept, *rows[:2], *pushes)
        for u_gates, u_new, kept_t, apart_t, slope_t, slope_kept_t, *made in _backwards(parts):
            gates, new, on_gates, on_new, on_h = made
            r, z = gates[:, :n], gates[:, n:]
            of_h = torch.addmm(later + on_h, after, back)
            later = of_h * z
            of_new = fresh.gradient(u_new, new, on_new + of_h - later)
            torch.addcmul(on_gates[:, :n], of_new, kept_t, out=push[:, :n])
            torch.addcmul(on_gates[:, n:], of_h, apart_t, out=push[:, n:])
            of_gates = gate.gradient(u_gates, gates, push)
            torch.cat([of_gates, of_new], 1, out=slope_t)
            after = torch.cat([of_gates, of_new * r], 1, out=slope_kept_t)
        return slope, slope_kept


def _backwards(parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Return the steps of all parts, the last first."""
    yield from reversed(list(zip(*(x.unbind() for x in parts), strict=True)))
