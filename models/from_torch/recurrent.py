"""Recurrent layers of torch: gates as states, products of them as multi-affine links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from liftednet.activations import Identity, ReLU, Sigmoid, Tanh
from liftednet.layers import Expression, apply, concatenate, delay, turn
from liftednet.layers.join import Part
from liftednet.layers.mapped import Layout
from liftednet.layers.time import AllSteps, Steps

from .reader import LAYER, Reader, Seen, reads
from .recording import Call

Dense = Callable[[Expression, int], Expression]  # of an input, with the weights of that number


def _lstm(reader: Reader, x: Expression, units: int, dense: Dense) -> tuple[Expression, Expression]:
    """i, f, o = sigmoid(.), g = tanh(.), c_t = f c_(t-1) + i g, h = o tanh(c); torch.nn.LSTM."""
    state = reader.network.state
    gates, fresh, out = (
        state(phi, units=n)
        for phi, n in ((Sigmoid(), 2 * units), (Tanh(), units), (Sigmoid(), units))
    )
    cell = state(Identity(), units=units)
    cell.of(gates[units:] * delay(cell) + gates[:units] * fresh)
    h = out * state(Tanh(), cell)
    u = dense(x, 0) + dense(delay(h), 1)
    gates.of(u[: 2 * units])
    fresh.of(u[2 * units : 3 * units])
    out.of(u[3 * units :])
    return h, cell


def _gru(reader: Reader, x: Expression, units: int, dense: Dense) -> tuple[Expression, Expression]:
    """r, z = sigmoid(.), n = tanh(W x + b + r (U h + b')), h_t = (1 - z) n + z h_(t-1)."""
    state = reader.network.state
    h = state(Identity(), units=units)
    gates, fresh = state(Sigmoid(), units=2 * units), state(Tanh(), units=units)
    given, before = dense(x, 0), dense(delay(h), 1)
    gates.of(given[: 2 * units] + before[: 2 * units])
    fresh.of(given[2 * units :] + gates[:units] * before[2 * units :])
    z = gates[units:]
    h.of(z * delay(h) + (1.0 - z) * fresh)
    return h, h


def _plain(phi: type[Tanh] | type[ReLU]) -> Any:
    def cell(
        reader: Reader, x: Expression, units: int, dense: Dense
    ) -> tuple[Expression, Expression]:
        """h_t = phi(W x + b + U h_(t-1) + b')."""
        h = reader.network.state(phi(), units=units)
        h.of(dense(x, 0) + dense(delay(h), 1))
        return h, h

    return cell


_CELLS: dict[str, Any] = {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _plain(Tanh), "rnn_relu": _plain(ReLU),
}  # fmt: skip


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
            h, c = _CELLS[call.name](reader, own, units, _dense(reader, weights))
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


def _dense(reader: Reader, weights: Sequence[Any]) -> Dense:
    """Return x -> W x + b with the weights of an input (0) or of the states before (1)."""

    def dense(x: Expression, number: int) -> Expression:
        bias = weights[2 + number] if len(weights) > 2 else None
        return reader.linear(Seen(x, Layout((1, x.units))), weights[number], bias)

    return dense


def _last(h: Expression, steps: int) -> Expression:
    """Return the last step of a sequence, in its own direction."""
    return apply(Part((steps - 1) * h.units, steps * h.units), apply(AllSteps(steps), h))
