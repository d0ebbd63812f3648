"""The forward pass of a graph: states one after another, those with delays step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.layers.expression import TIME, Applied, Expression, Variable, affine_in, value_of
from liftednet.layers.time import Delay, delayed
from liftednet.maps import Moved, Times, chain
from liftednet.network import State
from liftednet.solvers.gauss_newton.objective import recurrence

from .cells import Rules

Values = dict[Any, Any]  # of variables, by their identity
Activate = Callable[[State, Tensor], Tensor]


def passed_forward(
    groups: Sequence[Sequence[State]],
    values: Mapping[Variable, Any],
    activate: Activate,
    known: dict[int, Any] | None = None,
    rules: Rules | None = None,
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
    """
    found = dict(values)
    known = {} if known is None else known
    for group in groups:
        if runs_alone(group):
            state = group[0]
            u = value_of(state.argument, found, known)
            found[state] = counted_steps(state, activate(state, u), found)
        else:
            for state, rows in _over_time(group, found, known, activate, rules).items():
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


def runs_alone(group: Sequence[State]) -> bool:
    """Return whether a group is one state that does not depend on itself."""
    return len(group) == 1 and group[0] not in group[0].argument.variables


def counted_steps(state: Expression, rows: Tensor, values: Mapping[Variable, Any]) -> Tensor:
    """Return states with zeros beyond the lengths of their sequences."""
    if not state.sequence or values[TIME].full:
        return rows
    return rows.where(values[TIME].longer(state.early).valid.unsqueeze(-1), 0.0)


def _over_time(
    group: Sequence[State],
    values: Values,
    known: dict[int, Any],
    activate: Activate,
    rules: Rules | None,
) -> dict[State, Tensor]:
    cell = group[0].cell
    if rules is not None and cell is not None and set(cell.states) == set(group):
        found = cell.run(values, known, rules)
    else:
        fast = _driven(group, values, activate) if len(group) == 1 else None
        states = [fast] if fast is not None else _Steps(group, values, known, activate).run()
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
    drive = parts.offset.expand(*like.shape[:-1], -1)
    return recurrence(drive, recurrent, partial(activate, state))


def recurrent_weight(factors: Sequence[Any]) -> Tensor | None:
    """Return W where a map is v -> delay(v) W, else None."""
    match factors:
        case (Times(weight=weight), Moved(forth=forth)) if forth is delayed:
            return weight
    return None


def _zeros(state: State, values: Values) -> Tensor:
    timeline = values[TIME].longer(state.early)
    like: Tensor = next(x for x in values.values() if isinstance(x, Tensor))
    # No len(known): to torch.export it is a fixed number.
    return like.new_zeros(timeline.steps, timeline.known.shape[0], state.units)


class _Steps:
    """States that depend on one another through delays, a step of all after another."""

    def __init__(
        self, group: Sequence[State], values: Values, known: dict[int, Any], activate: Activate
    ) -> None:
        self._group, self._values, self._known = group, values, known
        self._activate = activate
        self._given: dict[int, tuple[Tensor, ...]] = {}
        self._now: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] | None = None

    def run(self) -> list[Tensor]:
        """Return the states of every step, (steps, samples, units) each."""
        steps = len(_zeros(self._group[0], self._values))
        rows: list[list[Tensor]] = [[] for _ in self._group]
        for step in range(steps):
            self._now = {}
            for state, found in zip(self._group, rows, strict=True):
                row = self._activate(state, self._at(state.argument, step))
                self._now[id(state)] = row
                found.append(row)
            self._before = self._finished(step)
        return [torch.stack(found) for found in rows]

    def _finished(self, step: int) -> dict[int, Tensor]:
        """Return what the next step may ask of this one."""
        for state in self._group:
            for expression in delayed_in(state.argument):
                self._at(expression, step)
        return self._now

    def _at(self, expression: Expression, step: int) -> Tensor:
        if not expression.variables & set(self._group):
            return self._of_all_steps(expression)[step]
        if id(expression) not in self._now:
            assert isinstance(expression, Applied)  # states stand there already
            self._now[id(expression)] = self._applied(expression, step)
        return self._now[id(expression)]

    def _of_all_steps(self, expression: Expression) -> tuple[Tensor, ...]:
        """Return the steps of what does not depend on the states, cut apart once."""
        if id(expression) not in self._given:
            self._given[id(expression)] = value_of(expression, self._values, self._known).unbind()
        return self._given[id(expression)]

    def _applied(self, expression: Applied, step: int) -> Tensor:
        if isinstance(expression.layer, Delay):
            (inside,) = expression.arguments
            if self._before is None:
                return _zeros(self._group[0], self._values)[0].new_zeros(
                    self._values[TIME].known.shape[0], inside.units
                )
            if not inside.variables & set(self._group):
                return self._of_all_steps(expression)[step]
            return self._before[id(inside)]
        arguments = [self._at(x, step) for x in expression.arguments]
        weights = None if expression.weights is None else self._values[expression.weights]
        return expression.layer.value(arguments, weights)


def delayed_in(expression: Expression) -> list[Expression]:
    """Return what stands behind a delay in an expression."""
    if not isinstance(expression, Applied):
        return []
    inside = [y for x in expression.arguments if isinstance(x, Expression) for y in delayed_in(x)]
    return [*inside, expression.arguments[0]] if isinstance(expression.layer, Delay) else inside
