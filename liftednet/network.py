"""A lifted network as a graph: inputs, states, weights, losses, and what each is an argument of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from liftednet.activation import Activation, require_activation, require_torch
from liftednet.activations.not_monotone import NotMonotone
from liftednet.activations.piecewise_linear import MaxPooling, ReLU
from liftednet.constraints import Constraint
from liftednet.divergences import Divergence, tight, within
from liftednet.errors import DataError, DeclarationError
from liftednet.layers.expression import (
    Applied,
    Expression,
    Input,
    Parameter,
    Variable,
    apply,
    as_expression,
)
from liftednet.layers.join import Sum
from liftednet.layers.layer import Shape, check_layer
from liftednet.layers.projection import Ends, Projection, projection
from liftednet.layers.time import Delay, DropFirst, PadFirst, Reverse
from liftednet.losses import FenchelYoungLoss, Loss, OutputLoss, Poisson
from liftednet.names import activation_of, loss_of
from liftednet.validation import is_integer, require_flag, require_positive

Bounds = tuple[float, float]

__all__ = ["Network", "State", "Term"]

_STEPS = 4  # of the sequences that a declared layer is checked on


class State(Expression, Variable):
    """The states of one layer, a variable of the training problem.

    lam [Phi(Z) - <Z, U> + R(U)] couples them to the pre-activations U, an expression.

    Attributes:
        activation: phi, with the potential Phi.
        lam: weight of the divergence, or None for that of the model.
        bounds: (lowest, highest) value, or None.
        argument: U.
        cell: the recurrent layer that it belongs to, where that can run over all steps at once: a
            `Gated` of `liftednet.models.forward_pass`.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.activations import ReLU
        >>> from liftednet.layers import dense
        >>> network = Network()
        >>> h = network.state(ReLU(), dense(network.input(3), 5), lam=2.0)
        >>> h.shape, h.lam, h.argument.weights.shape
        ((5,), 2.0, (3, 5))
    """

    def __init__(
        self, activation: Activation, shape: Shape, sequence: bool, initial_steps: int = 0
    ) -> None:
        """Declare the states, whose argument comes later."""
        self.activation, self.shape = activation, shape
        self.sequence, self.initial_steps = sequence, initial_steps
        self.variables = frozenset({self})
        self.lam: float | None = None
        self.bounds: Bounds | None = None
        self.cell: Any = None
        self._argument: Expression | None = None

    @property
    def argument(self) -> Expression:
        """The pre-activations U."""
        if self._argument is None:
            raise DeclarationError(f"{self} has no pre-activations yet: call of(expression).")
        return self._argument

    def of(self, argument: Expression) -> State:
        """Give the pre-activations of states that were declared first, and return the states.

        Raises:
            DataError: the shapes do not meet.
            DeclarationError: they have been given before.
        """
        if self._argument is not None:
            raise DeclarationError(f"{self} has its pre-activations already.")
        as_expression(argument)
        if argument.units != self.units:
            raise DataError(
                f"{self} of shape {self.shape} needs {self.units} pre-activations, and its "
                f"argument has the shape {argument.shape}."
            )
        if (argument.sequence, argument.initial_steps) != (self.sequence, self.initial_steps):
            raise DataError(
                f"{self} and its pre-activations differ in time: a sequence is declared with "
                "sequence=True."
            )
        self._argument = argument
        return self


class Label(Variable):
    """Data that a loss compares with: encoded y."""


@dataclass(frozen=True, eq=False)
class Term:
    """A loss of the network.

    Attributes:
        loss: D(y, U), or on the output states.
        argument: U, the last pre-activations.
        label: y.
        weight: factor of the loss.
        state: the output states, or None of a loss D(y, U).

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import dense
        >>> from liftednet.losses import CrossEntropy
        >>> network = Network()
        >>> outputs = network.loss(CrossEntropy(), dense(network.input(3), 2), weight=0.5)
        >>> network.terms[0].weight, network.terms[0].activation
        (0.5, Softmax())
    """

    loss: Loss
    argument: Expression
    label: Label
    weight: float
    state: State | None

    @property
    def divergence(self) -> Divergence:
        """D of a loss D(y, U), which has no output states."""
        assert isinstance(self.loss, FenchelYoungLoss)  # seen to by `Network.loss`
        return self.loss.divergence

    @property
    def activation(self) -> Activation:
        """What makes outputs of U."""
        if self.state is not None:
            return self.state.activation
        return self.divergence.activation


class Network:
    """Inputs, states and losses, joined by layers.

    Declare a network by its layers, and train it as a `Lifted` model:

        network = Network()
        x = network.input(64)
        h = network.state(ReLU(), dense(x, 50))
        g = network.state(ReLU(), dense(h, 50) + h)
        network.loss(CrossEntropy(), dense(concatenate(h, g), 10))

    Example:
        >>> from liftednet import Network
        >>> from liftednet.activations import ReLU
        >>> from liftednet.layers import dense
        >>> from liftednet.losses import CrossEntropy
        >>> network = Network()
        >>> h = network.state(ReLU(), dense(network.input(64), 50))
        >>> _ = network.loss(CrossEntropy(), dense(h, 10))
        >>> [weights.shape for weights in network.parameters]
        [(64, 50), (50, 10)]
    """

    def __init__(self) -> None:
        """Begin without anything."""
        self.steps: int | None = None  # of samples that are cut into steps inside
        self.inputs: list[Input] = []
        self.states: list[State] = []
        self.terms: list[Term] = []

    def input(self, *shape: int, sequence: bool = False, missing: bool = False) -> Input:
        """Declare data that come in.

        Args:
            shape: of a sample, or of a step of a sequence: features, or channels and positions.
            sequence: whether there are steps.
            missing: whether entries may be missing, as NaN. They are states of their own then,
                under a Gaussian prior that `fit` learns from what was seen: methods complete them.

        Raises:
            DataError: a size is no positive integer.
            DeclarationError: a sequence is to have missing entries.

        Example:
            >>> from liftednet import Network
            >>> x = Network().input(3, missing=True)
            >>> x.missing
            True
        """
        _require_shape(shape)
        require_flag("missing", missing)
        found = Input(tuple(map(int, shape)), sequence, missing)
        if sequence and missing:
            raise DeclarationError("entries of sequences cannot be declared missing.")
        self.inputs.append(_named(found, "input", len(self.inputs)))
        return found

    def state(
        self,
        activation: Activation | str | nn.Module,
        argument: Expression | None = None,
        *,
        units: int | None = None,
        sequence: bool = True,
        initial_steps: int = 0,
        lam: float | None = None,
        bounds: Bounds | None = None,
    ) -> State:
        """Declare the states of a layer, Z = phi(U) at the forward pass.

        Args:
            activation: phi, its name such as "relu", or torch's module.
            argument: U; None for states that are an argument of their own, through a delay: give
                `units`, and U by `of` later.
            units: of such states.
            sequence: whether such states have steps.
            initial_steps: how many steps of such states come before the first of the data.
            lam: weight of the divergence; None for that of the model.
            bounds: (lowest, highest) value of a state.

        Raises:
            DataError: the shapes do not meet, or lam is not positive.
            DeclarationError: it is no activation, its forward map is not one of torch, or both or
                none of argument and units are given.
        """
        activation = activation_of(activation)
        require_activation(activation, "a state")
        if isinstance(activation, MaxPooling):
            raise DeclarationError(
                f"{activation!r} has states of differences, not of its own: call "
                "network.maximum(...) with the expressions of which the largest is taken."
            )
        if isinstance(activation, NotMonotone):
            raise DeclarationError(
                f"{activation!r} falls somewhere: chains of dense layers take it in hidden layers "
                "alone. States are those of a map that does not: let "
                "z = network.state(activation.rising, u), and give layers above it "
                "z - activation.descent * u."
            )
        if (argument is None) == (units is None):
            raise DeclarationError("give the pre-activations of the states, or their units.")
        if bounds is not None:
            within(tight(activation), bounds)
        if argument is None:
            assert units is not None  # one of both is given
            _require_shape((units,))
            found = State(activation, (int(units),), sequence, initial_steps)
        else:
            shape = as_expression(argument).shape
            found = State(activation, shape, argument.sequence, argument.initial_steps)
        require_torch(activation, found.units)
        self.states.append(_named(found, "states", len(self.states)))
        found.lam = None if lam is None else require_positive("lam", lam)
        found.bounds = bounds
        return found if argument is None else found.of(argument)

    def maximum(self, *arguments: Expression) -> Expression:
        """Return the largest of some expressions, entry by entry, by ReLU states of differences.

        max(a, b) = a + max(b - a, 0), and of more by pairs of pairs: Lifted Neural Networks, eq.
        (9), with a divergence that is bounded and convex in each block.

        Args:
            arguments: expressions of one shape.

        Raises:
            DataError: the shapes differ.
            DeclarationError: there is none.

        Example:
            >>> from liftednet import Network
            >>> from liftednet.layers import dense
            >>> network = Network()
            >>> x = network.input(64)
            >>> network.maximum(dense(x, 20), dense(x, 20)).shape, network.states
            ((20,), [states 1])
        """
        if not arguments:
            raise DeclarationError("a maximum needs an expression to be taken of.")
        left = list(map(as_expression, arguments))
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=False)
            odd = left[len(left) // 2 * 2 :]
            left = [one + self.state(ReLU(), other - one) for one, other in pairs] + odd
        return left[0]

    def loss(
        self,
        loss: Loss | str | nn.Module,
        argument: Expression,
        *,
        weight: float = 1.0,
        activation: Activation | None = None,
        lam: float | None = None,
        within: Sequence[Constraint] = (),
    ) -> Expression:
        """Declare a loss on pre-activations, and return what the network answers with.

        Args:
            loss: from `liftednet.losses`, its name such as "cross-entropy", or torch's module.
            argument: U, the last pre-activations.
            weight: factor of the loss.
            activation: gives the output states of their own (Lifted Neural Networks, eq. (14)),
                which losses that are no Fenchel-Young losses have by themselves.
            lam: weight of the divergence of output states; None for that of the model.
            within: `Bounds` and `Linear` of `liftednet.constraints`, which the answers meet at
                every input, in units of the targets: the last layer projects U on them, in training
                and in the network that is exported. Of a classifier they are limits of the scores,
                which are logarithms of odds: U_j - U_k <= log 9 where class j is to be at most
                nine times as probable as k; U_j <= log 9 where a label by itself, with
                BinaryCrossEntropy, is to have at most 0.9. Of counts there are `Bounds` of the
                rates alone.

        Raises:
            DataError: weight or lam is not positive, or a constraint does not fit the outputs.
            DeclarationError: it is no loss, cannot be paired with the activation, or needs output
                states where U is to be within constraints.

        Example:
            >>> import torch
            >>> from liftednet import Network
            >>> from liftednet.constraints import Bounds, Linear
            >>> from liftednet.layers import dense
            >>> from liftednet.losses import SquaredError
            >>> from liftednet.models import Lifted
            >>> network = Network()
            >>> total = Linear([1, 1], equal=0, inputs=[-1, 0])  # outputs sum to the first input
            >>> scores = dense(network.input(2), 2)
            >>> _ = network.loss(SquaredError(), scores, within=[total, Bounds(lower=0)])
            >>> x = torch.rand(50, 2, dtype=torch.float64)
            >>> found = Lifted(network).fit(x, x[:, :1] * x).predict(x + 1)
            >>> bool((found.sum(1) - x[:, 0] - 1).abs().max() < 1e-9), bool(found.min() > -1e-9)
            (True, True)
        """
        loss = loss_of(loss)
        label = _named(Label(), "y", len(self.terms))
        as_expression(argument)
        weight, state = require_positive("weight", weight), None
        if len(within):
            argument = self._projected(loss, argument, label, activation, within)
        if activation is not None or not isinstance(loss, FenchelYoungLoss):
            if not isinstance(loss, OutputLoss):
                raise DeclarationError(f"{loss!r} holds the outputs at the data: no output states.")
            loss.require_activation(activation or loss.activation)
            if argument.sequence:
                raise DeclarationError(
                    "output states are for networks without sequences: use a loss on the last "
                    "pre-activation, such as CrossEntropy."
                )
            if weight != 1.0:
                raise DeclarationError("a loss on output states is weighed by lam, not by weight.")
            state = self.state(activation or loss.activation, argument, lam=lam)
        self.terms.append(Term(loss, argument, label, weight, state))
        return argument

    def _projected(
        self,
        loss: Loss,
        argument: Expression,
        label: Label,
        activation: Activation | None,
        within: Sequence[Constraint],
    ) -> Expression:
        """Return U as the nearest points that meet constraints."""
        if activation is not None or not isinstance(loss, FenchelYoungLoss) or argument.sequence:
            raise DeclarationError(
                "within= is for losses on the last pre-activation, such as SquaredError or "
                "CrossEntropy, without sequences and output states."
            )
        if isinstance(loss, Poisson):
            within = [one.of_logarithms() for one in within]
        layer = projection(within, argument.units, sum(x.units for x in self.inputs))
        seen = all(not (x.missing or x.sequence) for x in self.inputs)
        if not seen and any(map(any, layer.of_inputs)):
            raise DeclarationError(
                "limits that depend on inputs need all of them as they are, without missing "
                "entries and sequences."
            )
        return apply(layer, argument, Ends(layer, label))

    def ends(self, inputs: Mapping[Input, Tensor]) -> dict[Ends, Tensor]:
        """Return the ends of the limits that losses are within, at raw inputs."""
        limited = self.limited
        rows = [inputs[x].nan_to_num() for x in self.inputs] if limited else []  # a copy
        return {ends: ends.of(rows) for ends in limited}

    @property
    def limited(self) -> list[Ends]:
        """The ends of the limits of every loss that is within some."""
        return [ends for term in self.terms if (ends := ends_of(term.argument)) is not None]

    @property
    def parameters(self) -> list[Parameter]:
        """The weights, in the order in which a forward pass meets them; named on the way."""
        below = [state.argument for group in self.groups() for state in group]
        below += [term.argument for term in self.terms]
        found = dict.fromkeys(weights for argument in below for weights in parameters_of(argument))
        return [_named(weights, "weights", number) for number, weights in enumerate(found)]

    def groups(self) -> list[list[State]]:
        """Return the states in the order of a forward pass, those that run together in groups.

        Raises:
            DeclarationError: states depend on themselves without a delay, through reversed time,
                or on states of another network.
        """
        direct = {s: self._states_in(s.argument, delayed=False) for s in self.states}
        through = {s: self._states_in(s.argument, delayed=True) for s in self.states}
        order = _sorted(direct)
        reached = _closure(through)
        groups: list[list[State]] = []
        for state in order:
            if any(state in group for group in groups):
                continue
            together = [
                s for s in order if s is state or (state in reached[s] and s in reached[state])
            ]
            if len(together) > 1 or state in through[state]:
                _refuse_reversal(together)
            groups.append(together)
        return _after_needs(groups, reached)

    def _states_in(self, expression: Expression, delayed: bool) -> set[State]:
        found = set(_states(expression, delayed))
        for state in found:
            if state not in self.states:
                raise DeclarationError(f"{state} belongs to another network.")
        return found

    def check(self) -> None:
        """Refuse a network that cannot be trained.

        Raises:
            DeclarationError: there is no input or no loss, an output state feeds other layers, or
                what `groups` refuses.
        """
        if not self.inputs or not self.terms:
            raise DeclarationError("a network needs an input and a loss.")
        self.groups()
        for argument in self.arguments:
            self._states_in(argument, delayed=True)
            for variable in argument.variables:
                if isinstance(variable, Input) and variable not in self.inputs:
                    raise DeclarationError(f"{variable} belongs to another network.")
            _refuse_curved(argument)
        outputs = {term.state for term in self.terms if term.state is not None}
        for argument in self.arguments:
            if inside := outputs & set(_states(argument, delayed=True)):
                raise DeclarationError(f"{inside.pop()} has a loss of its own and feeds a layer.")

    def curved(self) -> Applied | None:
        """Return a layer that is not affine, which minibatches alone can train; None without."""
        return next((layer for layer in self.layers() if not layer.layer.affine), None)

    def chain(self, beside: bool = False) -> list[Applied] | None:
        """Return the dense layers of a chain, each on the one before; None of another graph.

        A chain has one input, which is no sequence, and one loss, which may be within limits. What
        is asked for `beside` may have another dense layer from its input to the loss.
        """
        states = [state for group in self.groups() for state in group]
        scores: list[Any] = [term.argument for term in self.terms if term.state is None]
        scores = [x if ends_of(x) is None else x.arguments[0] for x in scores]
        layers: list[Any] = [*(state.argument for state in states), *scores]
        if beside and layers:  # the last is that of the loss, which may have states of its own
            layers[-1] = _without_skip(layers[-1], self.inputs)
        alone = len(self.inputs) == len(self.terms) == 1 and not self.inputs[0].sequence
        pairs = zip(layers, [*self.inputs, *states], strict=False)  # the loss may have states
        dense = (isinstance(x, Applied) and x.layer.plain and x.arguments[0] is y for x, y in pairs)
        return layers if alone and all(dense) else None

    def layers(self) -> Iterator[Applied]:
        """Yield every layer, each once, after those that it stands on."""
        return layers_in(*self.arguments)

    @property
    def arguments(self) -> list[Expression]:
        """The pre-activations of all states and losses."""
        return [x.argument for x in self.states] + [x.argument for x in self.terms]


def ends_of(argument: Expression) -> Ends | None:
    """Return the ends of the limits that a loss's argument is within; None where there are none."""
    if isinstance(argument, Applied) and isinstance(argument.layer, Projection):
        return argument.arguments[1]
    return None


def _without_skip(scores: Any, inputs: Sequence[Input]) -> Any:
    """Return what is added to a dense layer on the input, or the scores where there is none."""
    if isinstance(scores, Applied) and isinstance(scores.layer, Sum):
        other, skip = scores.arguments
        if isinstance(skip, Applied) and skip.layer.plain and skip.arguments == tuple(inputs):
            return other
    return scores


def layers_in(*expressions: Any) -> Iterator[Applied]:
    """Yield every layer of some expressions, each once, after those that it stands on."""
    seen: set[int] = set()

    def visit(expression: Any) -> Iterator[Applied]:
        if isinstance(expression, Applied) and id(expression) not in seen:
            seen.add(id(expression))
            for argument in expression.arguments:
                yield from visit(argument)
            yield expression

    for expression in expressions:
        yield from visit(expression)


def _refuse_curved(expression: Expression) -> None:
    """Refuse a layer that was declared elsewhere and is not affine."""
    for layer in layers_in(expression):
        if not type(layer.layer).__module__.startswith("liftednet."):
            shapes = [x.shape for x in layer.arguments if isinstance(x, Expression)]
            check_layer(layer.layer, *shapes, steps=_STEPS if layer.sequence else None)


def parameters_of(expression: Expression) -> Iterator[Parameter]:
    """Yield the weights in an expression, arguments first."""
    return (layer.weights for layer in layers_in(expression) if layer.weights is not None)


def _states(expression: Expression, delayed: bool) -> Iterator[State]:
    """Yield the states in an expression, those behind a delay only where asked for."""
    if isinstance(expression, State):
        yield expression
    elif isinstance(expression, Applied) and (delayed or not isinstance(expression.layer, Delay)):
        for argument in expression.arguments:
            if isinstance(argument, Expression):
                yield from _states(argument, delayed)


def _sorted(needs: dict[State, set[State]]) -> list[State]:
    """Return the states, each after those that it needs at the same step."""
    order: dict[State, None] = {}

    def visit(state: State, path: tuple[State, ...]) -> None:
        if state in path:
            names = " -> ".join(map(str, (*path[path.index(state) :], state)))
            raise DeclarationError(f"{names}: states depend on themselves without a delay.")
        if state not in order:
            for needed in needs:  # in the order of their declaration
                if needed in needs[state]:
                    visit(needed, (*path, state))
            order[state] = None

    for state in needs:
        visit(state, ())
    return list(order)


def _closure(needs: dict[State, set[State]]) -> dict[State, set[State]]:
    reached = {state: set(found) for state, found in needs.items()}
    for middle in needs:
        for found in reached.values():
            if middle in found:
                found |= reached[middle]
    return reached


def _after_needs(groups: list[list[State]], reached: dict[State, set[State]]) -> list[list[State]]:
    """Return the groups, each after those that it needs."""
    order, left = [], list(groups)
    while left:
        others = [(group, {s for x in left if x is not group for s in x}) for group in left]
        order.append(next(group for group, rest in others if not reached[group[0]] & rest))
        left.remove(order[-1])
    return order


def _refuse_reversal(group: Sequence[State]) -> None:
    for layer in layers_in(*(state.argument for state in group)):
        if isinstance(layer.layer, Reverse | PadFirst | DropFirst) and layer.variables & set(group):
            raise DeclarationError(
                f"{group[0]} depends on itself through {type(layer.layer).__name__}, not only "
                "through delays: states can run in one direction of time alone."
            )


def _require_shape(shape: Sequence[Any]) -> None:
    if not shape or not all(map(is_integer, shape)) or min(shape) < 1:
        raise DataError(f"sizes must be positive integers, got {tuple(shape)}.")


def _named(variable: Any, kind: str, number: int) -> Any:
    variable.name = f"{kind} {number + 1}"
    return variable
