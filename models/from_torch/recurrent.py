"""Recurrent layers of torch: gates as states, products of them as multi-affine links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from liftednet.activation import Activation
from liftednet.activations import Identity, ReLU, Sigmoid, Tanh
from liftednet.layers import Expression, apply, concatenate, delay, turn
from liftednet.layers.expression import Applied
from liftednet.layers.join import Part
from liftednet.layers.mapped import Layout
from liftednet.layers.time import AllSteps, Steps
from liftednet.network import State

from ..cells import GRU, LSTM, Gated
from .reader import LAYER, Reader, Seen, reads
from .recording import Call


@dataclass(frozen=True)
class _Cell:
    """One recurrent layer in one direction, or one step of it.

    Attributes:
        reader: whose graph it stands in.
        x: its inputs.
        units: of h.
        weights: of the inputs and of the states before, and their biases where there are some.
        before: what was there a step before, of the first or second thing that the cell keeps.
    """

    reader: Reader
    x: Expression
    units: int
    weights: Sequence[Any]
    before: Callable[[Expression, int], Expression]

    def state(self, phi: Activation, parts: int = 1) -> State:
        """Return states whose pre-activations come later."""
        units = parts * self.units
        return self.reader.network.state(phi, units=units, sequence=self.x.sequence)

    def dense(self, x: Expression, number: int) -> Expression:
        """Return W x + b with the weights of the inputs (0), or of the states before (1)."""
        bias = self.weights[2 + number] if len(self.weights) > 2 else None
        return self.reader.linear(Seen(x, Layout((1, x.units))), self.weights[number], bias)

    def at_once(
        self, kind: type[Gated], given: Expression, kept: Expression, *states: State
    ) -> None:
        """Let a layer of a sequence run over all its steps at once, unless its weights stand."""
        if isinstance(kept, Applied) and kept.layer.plain and self.x.sequence:
            for state in states:
                state.cell = kind(given, kept, states)


Kept = tuple[Expression, Expression]  # h, and c where there is one


def _lstm(cell: _Cell) -> Kept:
    """i, f, o = sigmoid(.), g = tanh(.), c_t = f c_(t-1) + i g, h = o tanh(c); torch.nn.LSTM."""
    units = cell.units
    gates, out = cell.state(Sigmoid(), 2), cell.state(Sigmoid())
    fresh, c = cell.state(Tanh()), cell.state(Identity())
    c.of(gates[units:] * cell.before(c, 1) + gates[:units] * fresh)
    bent = cell.reader.network.state(Tanh(), c)
    h = out * bent
    given, kept = cell.dense(cell.x, 0), cell.dense(cell.before(h, 0), 1)
    u = given + kept
    gates.of(u[: 2 * units])
    fresh.of(u[2 * units : 3 * units])
    out.of(u[3 * units :])
    cell.at_once(LSTM, given, kept, gates, fresh, c, out, bent)
    return h, c


def _gru(cell: _Cell) -> Kept:
    """r, z = sigmoid(.), n = tanh(W x + b + r (U h + b')), h_t = (1 - z) n + z h_(t-1)."""
    units, h = cell.units, cell.state(Identity())
    gates, fresh = cell.state(Sigmoid(), 2), cell.state(Tanh())
    before = cell.before(h, 0)
    given, kept = cell.dense(cell.x, 0), cell.dense(before, 1)
    gates.of(given[: 2 * units] + kept[: 2 * units])
    fresh.of(given[2 * units :] + gates[:units] * kept[2 * units :])
    z = gates[units:]
    h.of(z * before + (1.0 - z) * fresh)
    cell.at_once(GRU, given, kept, gates, fresh, h)
    return h, h


def _plain(phi: Activation) -> Callable[[_Cell], Kept]:
    def run(cell: _Cell) -> Kept:
        """h_t = phi(W x + b + U h_(t-1) + b')."""
        h = cell.state(phi)
        h.of(cell.dense(cell.x, 0) + cell.dense(cell.before(h, 0), 1))
        return h, h

    return run


_CELLS: dict[str, Callable[[_Cell], Kept]] = {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _plain(Tanh()), "rnn_relu": _plain(ReLU()),
}  # fmt: skip


@reads(*(f"{name}_cell" for name in _CELLS))
def _step(reader: Reader, call: Call) -> Any:
    """One step of a cell from given states, as `h`, or `(h, c)` of an LSTM."""
    tensor, kept, *weights = call.args
    before = [reader.rows(x) for x in (kept if isinstance(kept, tuple | list) else (kept,))]
    x = reader.rows(tensor)
    if x is None or any(one is None or one.layout != above for one, above in zip(
            before, reader.layouts(call), strict=True)):  # fmt: skip
        return None
    given = [one.expression for one in before if one is not None]
    units, name = weights[1].shape[1], call.name.removesuffix("_cell")
    cell = _Cell(reader, x.expression, units, weights, lambda _, number: given[number])
    reader.tell(call, LAYER, f"a step of {units} recurrent units, {name}")
    found = _CELLS[name](cell)
    return [Seen(one, layout) for one, layout in zip(found, reader.layouts(call), strict=False)]


@reads(*_CELLS)
def _recurrent(reader: Reader, call: Call) -> Any:
    """A stack of recurrent layers that starts from zeros, as `(output, h_n[, c_n])`."""
    if len(call.args) != 9:
        return None
    tensor, initial, flat, biases, layers, _, _, both, batch_first = call.args
    x, many = reader.rows(tensor), 4 if biases else 2
    starts = initial if isinstance(initial, tuple | list) else [initial]
    steps = tensor.shape[1 if batch_first else 0]
    if (
        x is None
        or x.layout.axis != (0 if batch_first else 1)
        or any(bool(h.any()) for h in starts)
        or len(flat) != many * layers * (1 + both)  # a projection is one more
        or reader.network.steps not in (None, steps)
    ):
        return None
    reader.network.steps = steps
    groups = [flat[n : n + many] for n in range(0, len(flat), many)]
    sequence, last, cells = apply(Steps(steps), x.expression), [], []
    units = groups[0][1].shape[1]
    for layer in range(layers):
        found = []
        for direction in range(1 + both):
            weights = groups[layer * (1 + both) + direction]
            own = turn(sequence) if direction else sequence
            cell = _Cell(reader, own, units, weights, lambda x, _: delay(x))
            h, c = _CELLS[call.name](cell)
            last.append(_last(h, steps))
            cells.append(_last(c, steps))
            found.append(turn(h) if direction else h)
        sequence = concatenate(*found)
    reader.tell(
        call, LAYER, f"{layers} recurrent layers of {units} over {steps} steps, {call.name}"
    )
    layouts = reader.layouts(call)
    results = [apply(AllSteps(steps), sequence), concatenate(*last), concatenate(*cells)]
    return [Seen(one, layout) for one, layout in zip(results, layouts, strict=False)]


def _last(h: Expression, steps: int) -> Expression:
    """Return the last step of a sequence, in its own direction."""
    return apply(Part((steps - 1) * h.units, steps * h.units), apply(AllSteps(steps), h))
