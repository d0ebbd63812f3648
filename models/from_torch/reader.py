"""From the calls of a torch network to the graph of a lifted one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations import Identity
from liftednet.errors import DataError
from liftednet.layers import Expression, Input, Parameter, apply
from liftednet.layers.dense import Dense, DenseAtPositions
from liftednet.layers.expression import value_of
from liftednet.layers.join import Shaped
from liftednet.layers.layer import Layer
from liftednet.layers.modules import Held, Layout, Mapped, RunningStatistics, Scale
from liftednet.network import Network

from ..bounds.tensors import LIKE
from .tracing import TAKEN, Call, tensors_in, trace

Row = Callable[["Reader", Call], Any]
ROWS: dict[str, Row] = {}

LAYER, STATES, PASSED, CURVED = "layer", "states", "passed through", "linearized"
HIDDEN = -1e30  # a score whose softmax is 0
# Whose second argument multiplies the first:
_FACTORS = ("linear", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d")


def reads(*names: str) -> Callable[[Row], Row]:
    """Register how calls are read: a row of the table.

    The row is given the reader and the call, and returns a `Seen` for each tensor of the result in
    the same nesting, or None where the call is to be passed through as it is and linearized, as
    every call is that has no row.

    Args:
        names: of torch functions without underscores at their ends, such as "relu".
    """

    def register(row: Row) -> Row:
        ROWS.update(dict.fromkeys(names, row))
        return row

    return register


@dataclass(frozen=True)
class Seen:
    """A tensor of the network as an expression of the graph.

    Attributes:
        expression: its rows.
        layout: how the tensor holds them.
    """

    expression: Expression
    layout: Layout

    def plain(self, axes: int) -> bool:
        """Say whether samples stand on the first axis, each with so many axes of its own."""
        layout = self.layout
        return layout.axis == 0 and layout.factor == 1 and len(layout.sizes) == axes + 1


def each(size: Any, axes: int) -> tuple[int, ...]:
    """Return a size for each of several axes, of which all may have been given as one."""
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


@dataclass(frozen=True)
class Line:
    """What became of a call.

    Attributes:
        place: path of its module.
        call: its name.
        kind: of what it became.
        text: what it became.
        where: the user's line.
    """

    place: str
    call: str
    kind: str
    text: str
    where: str


@dataclass(frozen=True, eq=False)
class Pair:
    """Parameters of torch that are one of the graph's.

    Attributes:
        weight: outputs first.
        bias: beside it, or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None


@dataclass
class Reader:
    """A graph under construction.

    Attributes:
        convex: whether every block is to be convex, and maxima are states.
        network: the graph.
        pairs: the parameters of torch, by those of the graph.
        statistics: of batch normalization in the network, and their copies in the graph.
        lines: what became of each call.
        samples: of the example.
        activated: whether the network ends with the activation that the loss has inside.
        log_softmax: the last one over the classes, and what it takes.
        by_position: parameters, by their ids, each row of which is added to one position.
        layouts: of the tensors that the call returns which is read.
        moving: ids of the tensors that other inputs or weights would change.
    """

    convex: bool = False
    network: Network = field(default_factory=Network)
    pairs: dict[Parameter, Pair] = field(default_factory=dict)
    statistics: list[tuple[RunningStatistics, RunningStatistics]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    samples: int = 0
    activated: bool = False
    log_softmax: tuple[Expression, Expression] | None = None
    by_position: set[int] = field(default_factory=set)
    layouts: list[Layout] = field(default_factory=list)
    moving: set[int] = field(default_factory=set)
    _seen: dict[int, Seen] = field(default_factory=dict)
    _together: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    _calls: list[tuple[Call, Call, list[Seen]]] = field(default_factory=list)
    _still: bool = False  # in a call under torch.no_grad

    def read(self, network: nn.Module, example: tuple[Tensor, ...]) -> Seen:
        """Read a network by what it computes of an example, and return its output.

        Raises:
            DataError: the network returns no single tensor with one entry for each sample, mixes
                samples, or assigns in place to a part of a tensor.
        """
        longer = tuple(torch.cat([x, x[:1]]) for x in example)
        (calls, output), (others, _) = trace(network, example), trace(network, longer)
        _refuse_packed(calls)
        if isinstance(output, Tensor) and not output.is_floating_point():
            raise DataError(
                f"a network is lifted that returns real numbers, and this returns {output.dtype}: "
                "give a module that returns the score from which that follows, as h for h > 0."
            )
        for call, again in zip_longest(calls, others):
            if call is None or again is None or call.name != again.name:
                stands = " and ".join(x.where if x else "nothing" for x in (call, again))
                raise DataError(
                    "the network computes other things when the samples change in number: "
                    f"{stands}. A network is lifted whose calls are the same for any samples: "
                    "write torch.where(condition, a, b) for an if on values."
                )
        self.samples = len(example[0])
        for x, y in zip(example, longer, strict=True):
            layout = self._layout(x, y, "the example")
            self._seen[id(x)] = Seen(self.network.input(*layout.shape), layout)
            self.moving.add(id(x))
        for call in calls:
            parameters = tuple(id(x) for x in self._trained(call))
            for one in parameters:
                self._together.setdefault(one, set()).add(parameters)
        for call, again in zip(calls, others, strict=True):
            self._read(call, again)
        if isinstance(output, Tensor) and id(output) not in self._seen:
            raise DataError(
                "a network is lifted whose output comes of its inputs by calls that can be "
                "followed, and this one's does not: do without torch.vmap and .data in forward."
            )
        if not isinstance(output, Tensor):
            raise DataError(
                "a network is lifted that returns one tensor of its inputs, and this returns "
                f"{type(output).__name__}: give a module whose forward picks the one that the "
                "loss is on."
            )
        return self._seen[id(output)]

    def _trained(self, call: Call) -> Iterator[Tensor]:
        given = () if call.still else tensors_in([call.args, call.kwargs])
        found = (x for x in given if self.trains(x))
        return iter({id(x): x for x in found}.values())

    def trains(self, tensor: object) -> bool:
        """Say whether it is a parameter that is trained in the call that is read."""
        return isinstance(tensor, nn.Parameter) and tensor.requires_grad and not self._still

    def _layout(self, tensor: Tensor, longer: Tensor, where: str) -> Layout:
        sizes, other = tuple(tensor.shape), tuple(longer.shape)
        moved = [n for n, (a, b) in enumerate(zip(sizes, other, strict=True)) if a != b]
        if not moved:
            return Layout(sizes, None)
        axis, samples = moved[0], self.samples
        factor = sizes[axis] // samples
        if len(moved) > 1 or (sizes[axis], other[axis]) != (
            factor * samples, factor * (samples + 1),
        ):  # fmt: skip
            raise DataError(f"{where} mixes samples: its shape goes from {sizes} to {other}.")
        return Layout((*sizes[:axis], 1, *sizes[axis + 1 :]), axis, factor)

    def _read(self, call: Call, again: Call) -> None:
        self._still = call.still
        if call.name in TAKEN and not call.versions:
            self._warn_of_taken(call)
            return
        if call.name in ("setitem", "index_put") and self.sees(call):
            raise DataError(
                f"{call.where} assigns to a part of a tensor in place: build it by torch.cat or "
                "torch.where."
            )
        pairs = zip(tensors_in(call.result), tensors_in(again.result), strict=True)
        self.layouts = [self._layout(a, b, call.where) for a, b in pairs]
        self._follow(call)
        if not self.sees(call) and not any(True for _ in self._trained(call)):
            for tensor, layout in zip(tensors_in(call.result), self.layouts, strict=True):
                if layout.axis is not None:  # made for so many samples, and the same for each
                    self._seen[id(tensor)] = self.constant(tensor, layout)
            return
        row = ROWS.get(call.name)
        found = (None if row is None else row(self, call)) or self.curved(call)
        every = tree_leaves(found)
        for tensor, seen in zip(tensors_in(call.result), every, strict=True):
            self._seen[id(tensor)] = seen
        self._calls.append((call, again, every))

    def moves(self, tensor: Tensor) -> bool:
        """Say whether other inputs or weights would change a tensor."""
        return id(tensor) in self.moving or self.trains(tensor)

    def _follow(self, call: Call) -> None:
        """Keep which tensors a call moves, and warn where samples meet in one."""
        given = [x for x in tensors_in([call.args, call.kwargs]) if self.moves(x)]
        if not given or call.name in LIKE:  # which take no values of their arguments
            return
        self.moving.update(id(x) for x in tensors_in(call.result))
        rows = [self._seen[id(x)].layout for x in given if id(x) in self._seen]
        if any(x.axis is not None for x in rows) and any(x.axis is None for x in self.layouts):
            processes.warn(
                f"{call.where} is of all samples of a batch together, as it is of the example's: "
                "what the network answers for one of them depends on the others beside it, unless "
                "that only checks the data."
            )

    def _warn_of_taken(self, call: Call) -> None:
        """Say that what Python was told of the values of the example holds for all samples."""
        if self.sees(call):
            processes.warn(
                f"{call.where} takes a value of the data for Python: an if, a count or a factor "
                f"that depends on it stays for all samples as it is for the example, where it is "
                f"{call.result}. Write torch.where(condition, a, b) for an if, and keep numbers in "
                "tensors; where it only checks the data, nothing is lost."
            )

    def first_off(self, values: dict[Any, Any], samples: int) -> str:
        """Name the first call whose value at a point is another than it was in its run."""
        for *calls, seen in self._calls:
            call = calls[samples > self.samples]
            for tensor, version, x in zip(
                tensors_in(call.result), call.versions, seen, strict=True
            ):
                known = set(x.expression.variables) <= set(values)
                if x.layout.axis is None or tensor._version != version or not known:
                    continue
                wanted = x.layout.pack(tensor, samples)
                found = value_of(x.expression, values).reshape(wanted.shape)
                if not torch.allclose(found, wanted.to(found.dtype), rtol=1e-3, atol=1e-4):
                    return f"at {call.where}"
        return "in what it returns"

    def constant(self, tensor: Tensor, layout: Layout) -> Seen:
        """Return what was made for so many samples: the same for each, or their numbers."""
        rows = layout.pack(tensor, self.samples)
        row, numbers = rows[0], torch.arange(self.samples, device=rows.device).to(rows)
        counts = layout.units == 1 and rows[:, 0].equal(numbers)
        like = self.network.inputs[0]
        above = Layout((1, layout.units))
        layer = Mapped(
            lambda x: torch.arange(len(x), device=x.device, dtype=x.dtype)[:, None]
            if counts
            else row.to(x.device).expand(len(x), -1),
            (Layout((1, like.units)),), above, "constant",
        )  # fmt: skip
        return Seen(apply(layer, like), layout)

    # What rows are made of.

    def sees(self, call: Call) -> bool:
        """Say whether a call has an argument that depends on the inputs."""
        return any(id(x) in self._seen for x in tensors_in([call.args, call.kwargs]))

    def seen(self, tensor: object) -> Seen | None:
        """Return what a tensor is in the graph, trained parameters by themselves; None for others.

        What holds no samples is a table, the same for each of them.
        """
        if isinstance(tensor, Tensor) and id(tensor) in self._seen:
            return self._seen[id(tensor)]
        return self.held(tensor) if self.trains(tensor) else None  # type: ignore[arg-type]

    def rows(self, tensor: object) -> Seen | None:
        """Return what a tensor is in the graph, where it holds samples."""
        found = self.seen(tensor)
        return found if found is not None and found.layout.axis is not None else None

    @property
    def layout(self) -> Layout:
        """The layout of the first tensor that the call returns which is read."""
        return self.layouts[0]

    def tell(self, call: Call, kind: str, text: str) -> None:
        """Keep what became of a call, for the summary."""
        self.lines.append(Line(call.place, call.name, kind, text, call.line))

    def state(self, call: Call, activation: Activation, x: Expression) -> Expression:
        """Return the states of an activation on an expression."""
        self.tell(call, STATES, f"{activation!r}")
        return self.network.state(activation, x)

    def own(self, x: Expression) -> Expression:
        """Return states that are equal to an expression: what is above is affine in them."""
        return self.network.state(Identity(), x)

    def shaped(self, x: Seen) -> Expression:
        """Return an expression in the shape that its tensor has."""
        same = x.expression.shape == x.layout.shape
        return x.expression if same else apply(Shaped(x.layout.shape), x.expression)

    def apart(self, *arguments: Expression) -> list[Expression]:
        """Return expressions that share no variable but inputs, given states where they do."""
        found: list[Expression] = []
        taken: set[Any] = set()
        for x in arguments:
            inside = {v for v in x.variables if not isinstance(v, Input)}
            if inside & taken:
                x = self.own(x)
                inside = set(x.variables)
            taken |= inside
            found.append(x)
        return found

    def held(self, parameter: nn.Parameter) -> Seen:
        """Return a trained parameter by itself, the same for every sample."""
        sizes = tuple(parameter.shape)
        layer = Held(sizes, id(parameter) in self.by_position)
        expression = self._weighted(layer, self.network.inputs[0], Pair(parameter, None))
        return Seen(expression, Layout(sizes, None))

    def weighted(
        self, make: Callable[[bool], Layer], x: Expression, weight: Any, bias: Any,
        above: Layout, spread: tuple[int, ...] = (),
    ) -> Expression | None:  # fmt: skip
        """Return a layer with weights of torch, its bias added; None where the weights are frozen.

        Args:
            make: the layer, with a bias or without.
            x: its argument.
            weight: whose transpose is the layer's matrix.
            bias: beside it, or None; not in the layer where it is frozen, or weights are tied
                without it.
            above: the layout of its result.
            spread: the shape of a bias beside that.
        """
        if not self.trains(weight):
            return None
        both = self.trains(bias) and self._together[id(weight)] == self._together[id(bias)]
        pair = Pair(weight, bias if both else None)
        found = Seen(self._weighted(make(both), x, pair), above)
        return self.shifted(found, None if both else bias, spread)

    def _weighted(self, layer: Layer, x: Expression, pair: Pair) -> Expression:
        known = next((p for p, q in self.pairs.items() if q.weight is pair.weight), None)
        if known is not None and known in x.variables:
            x = self.own(x)
        found = apply(layer, x, weights=known)
        assert found.weights is not None  # the layer has weights
        self.pairs.setdefault(found.weights, pair)
        return found

    def linear(self, x: Seen, weight: Any, bias: Any) -> Expression:
        """Return x W' + b over the last axis, weights as torch has them."""
        shape, units = x.layout.shape, len(weight)

        def make(biased: bool) -> Layer:
            if len(shape) == 1:
                return Dense(units, biased)
            return DenseAtPositions(shape, units, biased)

        above = Layout((1, *shape[:-1], units))
        found = self.weighted(make, x.expression, weight, bias, above, (units,))
        if found is not None:
            return found
        below = Seen(x.expression, Layout((1, *shape)))
        return self.torch_map(
            nn.functional.linear, (below, weight, bias), above, "linear", linear=True
        )

    def shifted(self, x: Seen, bias: Any, spread: tuple[int, ...]) -> Expression:
        """Return x plus a bias that is not in its layer, of the given shape beside it."""
        if bias is None:
            return x.expression
        return self.torch_map(
            lambda u, b: u + b.reshape(spread), (x, bias), x.layout, "bias", linear=True
        )

    def scaled(self, x: Expression, below: Layout, spread: tuple[int, ...], w: Any, b: Any) -> Any:
        """Return x w + b, of shapes that are spread over x; both may be None."""
        if w is None and b is None:
            return x
        found, plain = None, Layout((1, *below.shape))
        if len(getattr(w, "shape", ())) == 1:
            found = self.weighted(
                lambda biased: Scale(below.shape, spread, biased), x, w, b, plain, spread
            )
        if found is not None:
            return found
        if w is not None:
            x = self.torch_map(
                lambda u, s: u * s.reshape(spread), (Seen(x, plain), w), plain, "scale",
                linear=not self.trains(w),
            )  # fmt: skip
        return self.shifted(Seen(x, plain), b, spread)

    def torch_map(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        above: Layout,
        name: str,
        *,
        linear: bool = False,
        affine: bool = True,
    ) -> Expression:
        """Return any torch function of expressions, trained parameters, and constants.

        Args:
            function: of tensors.
            arguments: `Seen`, parameters of torch, or constants.
            above: the layout of its result.
            name: where it is shown.
            linear: whether it is affine in all of them together.
            affine: whether it is affine in each.
        """
        given = [x if isinstance(x, Seen) else self.seen(x) for x in arguments]
        inside = [x for x in given if x is not None]
        places = [n for n, x in enumerate(given) if x is not None]

        def filled(*tensors: Tensor) -> Any:
            every = [_like(x, tensors[0]) for x in arguments]
            for place, tensor in zip(places, tensors, strict=True):
                every[place] = tensor
            return function(*every)

        expressions = [x.expression for x in inside]
        if affine and not linear:
            expressions = self.apart(*expressions)
        layer = Mapped(
            filled, tuple(x.layout for x in inside), above, name, linear or not affine, affine
        )
        return apply(layer, *expressions)

    def affine(self, call: Call) -> Any:
        """Pass a call through that is affine in all that it sees."""
        kind = LAYER if any(map(self.trains, tensors_in(call.args))) else PASSED
        self.tell(call, kind, "affine")
        factors = call.args[:2] if call.name in _FACTORS else ()
        seen = [x for x in factors if self.seen(x) is not None]
        return self.mapped(call, affine=True, linear=len(seen) < 2)

    def curved(self, call: Call) -> Any:
        """Pass a call through for the method to differentiate at the forward pass."""
        self.tell(call, CURVED, "at the forward pass")
        return self.mapped(call, affine=False)

    def mapped(self, call: Call, *, affine: bool, linear: bool = True) -> Any:
        """Return a call as it is, a layer for each tensor that it returns."""
        tensors = list({id(x): x for x in tensors_in([call.args, call.kwargs])}.values())
        options = {k: v for k, v in call.kwargs.items() if k != "inplace"}

        def function(number: int, *given: Tensor) -> Tensor:
            by = {id(x): _as(x, y, call.in_place) for x, y in zip(tensors, given, strict=True)}
            args, named = tree_map_only(Tensor, lambda x: by[id(x)], (call.args, options))
            made = tensors_in(call.function(*args, **named))[number]
            if repeated:
                return layouts[number].pack(made, self.samples)[0].reshape(above[number].shape)
            return made

        layouts = self.layouts
        # Of parameters alone, once for every sample: a row for all.
        repeated = not any(self.rows(x) for x in tensors)
        above = [Layout(x.shape, None) if repeated else x for x in layouts]
        return [
            Seen(
                self.torch_map(
                    lambda *given, n=number: function(n, *given), tensors, table, call.name,
                    linear=linear, affine=affine,
                ),
                layout,
            )
            for number, (layout, table) in enumerate(zip(layouts, above, strict=True))
        ]  # fmt: skip


def _like(value: Any, tensor: Tensor) -> Any:
    """Return a constant in the type and on the device of what it meets."""
    if not isinstance(value, Tensor):
        return value
    moved = value.detach().to(tensor.device)
    return moved.to(tensor.dtype) if value.is_floating_point() else moved


def _as(original: Tensor, given: Tensor, in_place: bool) -> Tensor:
    """Return values of whole numbers or truth values where the network has them."""
    if original.is_floating_point():
        return given.clone() if in_place else given
    rounded = given.round() if given.is_floating_point() else given
    return rounded.to(original.dtype)


def _refuse_packed(calls: Sequence[Call]) -> None:
    """Raise `DataError` where sequences are packed, whose steps are of all samples at once."""
    for call in calls:
        if call.name in ("pack_padded_sequence", "pack_sequence"):
            raise DataError(
                f"{call.where} mixes samples. Run the recurrent layer on the padded sequences, "
                "h, _ = rnn(x) with batch_first=True: what comes after the end of a sequence "
                "changes nothing before it. As the last state take h[torch.arange(len(h)), "
                "lengths - 1], with lengths an input of the network, or h[:, -1] where all "
                "sequences have every step, in place of what rnn returns beside h. The backward "
                "half of a bidirectional layer would begin in the padding: there take sequences "
                "of one length, or LiftedRNN(..., bidirectional=True).fit(X, y, lengths=lengths)."
            )
