"""Pre-activations as expressions: layers over inputs and states, affine in each variable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.layers.join import Concatenation, Part, Product, Scaled, Sum
from liftednet.layers.layer import Constant, Layer, Shape, columns, require_layer
from liftednet.maps import Identity, LinearMap, composed, summed
from liftednet.penalties import Penalty
from liftednet.samples import Weights
from liftednet.validation import is_integer, is_number

Values = Mapping[Any, Any]


class Variable:
    """Something that has a value at a point of a training problem: found by its identity.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import dense
        >>> from liftednet.layers.expression import Variable
        >>> x = Network().input(3)
        >>> up = dense(x, 5)  # depends on its weights; data are no variable of training
        >>> sorted(type(variable).__name__ for variable in up.variables)
        ['Input', 'Parameter']
    """

    name: str = "a variable of no network"

    def __repr__(self) -> str:
        """Name it."""
        return self.name


class Parameter(Variable):
    """The weights of a layer.

    Attributes:
        shape: (rows, columns) of the matrix.
        bias: whether there is a bias, (columns,).
        penalty: on the matrix, or None for that of the model.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import dense
        >>> x = Network().input(3)
        >>> up = dense(x, 5)
        >>> up.weights.shape, dense(x, 5, weights=up.weights).weights is up.weights
        ((3, 5), True)
    """

    def __init__(self, shape: tuple[int, int], bias: bool, penalty: Penalty | None = None) -> None:
        """Keep what it is."""
        self.shape, self.bias, self.penalty = shape, bias, penalty


class Context(Variable):
    """What is known of samples beside their inputs, such as the timeline."""


class _Single(Context):
    """A context of which there is one, the same in every network."""

    def __init__(self, name: str, constant: str) -> None:
        """Keep its name, and that of the constant of this module that it is."""
        self.name, self._constant = name, constant

    def __reduce__(self) -> str:
        """Be the same one in every copy."""
        return self._constant


TIME = _Single("timeline", "TIME")  # which steps the sequences have, a `Timeline`
SAMPLE_WEIGHTS = _Single("sample weights", "SAMPLE_WEIGHTS")  # (samples,) how much each counts


class Expression:
    """Values (samples, units), or (steps, samples, units) of sequences.

    Attributes:
        shape: of a sample, whose entries stand in one row of units.
        sequence: whether there is a value for every step.
        initial_steps: how many steps come before the first step of the data.
        variables: what it depends on.
        weights: of its layer, to be shared with another; None where there are none.

    Example:
        >>> from liftednet import Network
        >>> x = Network().input(3)
        >>> gated = (1 - x[:1]) * x[1:2] + 2 * x[2:]  # unit by unit
        >>> gated.shape, gated.units
        ((1,), 1)
    """

    shape: Shape
    sequence: bool = False
    initial_steps: int = 0
    variables: frozenset[Variable] = frozenset()
    weights: Parameter | None = None

    @property
    def units(self) -> int:
        """How many entries a sample has."""
        return columns(self.shape)

    def __add__(self, other: Expression | float) -> Expression:
        """Return the sum with a number, or with another expression, unit by unit."""
        if is_number(other):
            return apply(Scaled(1.0, _finite(other)), self)
        return apply(Sum(), self, as_expression(other))

    def __sub__(self, other: Expression | float) -> Expression:
        """Return the difference, unit by unit."""
        if is_number(other):
            return apply(Scaled(1.0, -_finite(other)), self)
        return apply(Sum(), self, apply(Scaled(-1.0), as_expression(other)))

    def __mul__(self, other: Expression | float) -> Expression:
        """Return the product with a number, or with another expression, unit by unit."""
        if is_number(other):
            return apply(Scaled(_finite(other)), self)
        return apply(Product(), self, as_expression(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: float) -> Expression:
        """Return a number minus each unit, as in 1 - z."""
        return apply(Scaled(-1.0, _finite(other)), self)

    def __neg__(self) -> Expression:
        """Return the negative."""
        return apply(Scaled(-1.0), self)

    def __getitem__(self, units: slice) -> Expression:
        """Return some of the units, as in gates[:10]."""
        ends = (units.start, units.stop) if isinstance(units, slice) else (units, "no slice")
        if not all(end is None or is_integer(end) for end in ends):
            raise DataError(f"units are cut out by a slice of integers, as in x[:10]; got {units}.")
        if units.step not in (None, 1):
            raise DataError(f"units are cut out one after another, got {units}.")
        first, last, _ = units.indices(self.units)
        return apply(Part(first, last), self)


def as_expression(value: object) -> Expression:
    """Return a value that is an expression.

    Raises:
        DeclarationError: it is none.
    """
    if not isinstance(value, Expression):
        raise DeclarationError(
            f"an expression of a network is needed here, an input, a state or a layer of them; got "
            f"{type(value).__name__}."
        )
    return value


def _finite(number: Any) -> float:
    if not is_number(number) or not math.isfinite(number):
        raise DeclarationError(
            f"an expression is joined with expressions and finite numbers, got {number!r}."
        )
    return float(number)


class Input(Expression, Variable):
    """Data that a network is given.

    Attributes:
        missing: whether entries may be NaN, which stands for what was not seen.

    Example:
        >>> from liftednet import Network
        >>> image = Network().input(1, 8, 8)
        >>> type(image).__name__, image.shape, image.units
        ('Input', (1, 8, 8), 64)
    """

    def __init__(self, shape: Shape, sequence: bool, missing: bool = False) -> None:
        """Keep what it is."""
        self.shape, self.sequence, self.missing = shape, sequence, missing
        self.variables = frozenset({self})


@dataclass(frozen=True, eq=False)
class Applied(Expression):
    """A layer over expressions.

    Attributes:
        layer: what is computed.
        arguments: of which expressions; those that are no `Expression` are variables.
        weights: of the layer, or None.
    """

    layer: Layer
    arguments: tuple[Any, ...]
    shape: Shape
    weights: Parameter | None
    sequence: bool
    initial_steps: int
    variables: frozenset[Variable]

    def __str__(self) -> str:
        """Name the layer and its arguments."""
        return f"{type(self.layer).__name__}({', '.join(map(str, self.arguments))})"

    def __repr__(self) -> str:
        """Name the layer, its arguments and its shape."""
        return f"{self} of shape {self.shape}"


def apply(
    layer: Layer, *arguments: Any, penalty: Penalty | None = None, weights: Parameter | None = None
) -> Expression:
    """Return a layer over expressions, with weights of its own or those of another layer.

    Args:
        layer: any `Layer`, one of yours, too.
        arguments: inputs, states, or layers of them.
        penalty: on the weights; None for that of the model.
        weights: of an expression made before, to be shared.

    Raises:
        DataError: the shapes do not fit.
        DeclarationError: an argument is no expression, or a variable stands in two arguments of a
            layer that is affine in each alone.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import Layer, apply
        >>> class Reversed(Layer):
        ...     def value(self, arguments, weights): return arguments[0].flip(-1)
        >>> apply(Reversed(), Network().input(4)).shape
        (4,)
    """
    given = [as_expression(x) for x in arguments if not isinstance(x, Context)]
    _refuse_others(layer, given, penalty, weights)
    _refuse_shared(layer, given)
    if len({(x.sequence, x.initial_steps) for x in given}) > 1:
        raise DataError(
            f"{type(layer).__name__} joins sequences with what has one value for each sample, or "
            "sequences with different initial steps."
        )
    shapes = [x.shape for x in given]
    try:
        shape = layer.shape(*shapes)
    except DataError as error:
        names = ", ".join(map(str, given))
        raise DataError(f"{type(layer).__name__} of {names}: {error}") from error
    wanted = layer.weight_shape(*shapes)
    if weights is not None and penalty is not None:
        raise DeclarationError("weights that are shared have a penalty where they were made.")
    if wanted is not None:
        weights = weights or Parameter(wanted, layer.bias, penalty)
        if (weights.shape, weights.bias) != (wanted, layer.bias):
            raise DataError(
                f"{layer} needs weights of shape {wanted}, and those to be shared have "
                f"{weights.shape}, or differ in the bias."
            )
    below: frozenset[Variable] = frozenset().union(*(x.variables for x in given))
    if weights in below:
        raise DeclarationError(
            f"{type(layer).__name__} shares weights with a layer below it: no pre-activation would "
            "be affine in them. Give the layer in between states of its own."
        )
    variables = below | {weights} if weights is not None else below
    initial_steps = given[0].initial_steps + layer.initial_steps
    sequence = given[0].sequence if layer.sequence is None else layer.sequence
    return Applied(layer, arguments, shape, weights, sequence, initial_steps, variables)


def parts_of(expression: Expression, kind: type[Layer]) -> list[Expression]:
    """Return what layers of a kind join to an expression, such as the terms of a sum."""
    if not isinstance(expression, Applied) or not isinstance(expression.layer, kind):
        return [expression]
    given = (x for x in expression.arguments if isinstance(x, Expression))
    return [part for x in given for part in parts_of(x, kind)]


def concatenate(*arguments: Expression) -> Expression:
    """Return the units of all arguments side by side, (..., sum of units).

    Args:
        arguments: of any units, all of them sequences or none.

    Raises:
        DataError: sequences stand beside what has one value for each sample.

    Example:
        >>> from liftednet import Network
        >>> from liftednet.layers import concatenate
        >>> network = Network()
        >>> concatenate(network.input(3), network.input(5)).shape
        (8,)
    """
    return (
        as_expression(arguments[0]) if len(arguments) == 1 else apply(Concatenation(), *arguments)
    )


def _refuse_others(layer: object, arguments: Sequence[Any], penalty: Any, weights: Any) -> None:
    """Raise `DeclarationError` where something is not of its kind."""
    require_layer(layer)
    if not arguments:
        raise DeclarationError(f"{type(layer).__name__} needs an expression to stand over.")
    if penalty is not None and not isinstance(penalty, Penalty):
        raise DeclarationError(
            f"penalty must be one of liftednet.penalties, such as Nonnegative(); got {penalty!r}."
        )
    if weights is not None and not isinstance(weights, Parameter):
        raise DeclarationError(
            "weights to be shared are those of an expression, as in weights=x.weights; got "
            f"{type(weights).__name__}."
        )


def _refuse_shared(layer: Layer, arguments: Sequence[Expression]) -> None:
    if layer.linear:
        return
    seen: set[Variable] = set()
    for argument in arguments:
        inside = {x for x in argument.variables if not isinstance(x, Input)}
        if both := seen & inside:
            one = min(both, key=lambda x: isinstance(x, Parameter))  # weights have no name yet
            raise DeclarationError(
                f"{type(layer).__name__} is affine in each argument alone, and {one} stands "
                "in two of them: give it a state of its own in between."
            )
        seen |= inside


def value_of(expression: Expression, values: Values, known: dict[int, Any] | None = None) -> Tensor:
    """Return the value of an expression at a point.

    Args:
        expression: what is asked for.
        values: of its variables: tensors, `Weights`, the `Timeline`.
        known: values of parts that are known already, by id; added to.
    """
    known = {} if known is None else known
    if not isinstance(expression, Applied):
        return values[expression]
    if id(expression) not in known:
        arguments = arguments_of(expression, values, known)
        weights = None if expression.weights is None else values[expression.weights]
        known[id(expression)] = expression.layer.value(arguments, weights)
    return known[id(expression)]


def arguments_of(
    expression: Applied, values: Values, known: dict[int, Any] | None = None
) -> list[Any]:
    """Return the values of a layer's arguments at a point."""
    return [
        value_of(x, values, known) if isinstance(x, Expression) else values[x]
        for x in expression.arguments
    ]


@dataclass(frozen=True)
class Affine:
    """u = A v + c.

    Attributes:
        map: A.
        offset: c, (units,) or of the shape of u; None for 0.
    """

    map: LinearMap
    offset: Constant


def affine_in(
    expression: Expression, variable: Variable, values: Values, known: dict[int, Any] | None = None
) -> Affine:
    """Return an expression as an affine map of one of its variables, the others at a point.

    Args:
        expression: that depends on the variable.
        variable: an input, a state or a parameter.
        values: of all variables.
        known: values of parts that are known already, by id; added to.
    """
    known = {} if known is None else known
    if not isinstance(expression, Applied):  # it depends on the variable, and so is it
        return Affine(Identity(), None)
    arguments = arguments_of(expression, values, known)
    weights: Weights | None = None if expression.weights is None else values[expression.weights]
    inside = [
        number
        for number, x in enumerate(expression.arguments)
        if isinstance(x, Expression) and variable in x.variables
    ]
    layer = expression.layer
    if expression.weights is variable:
        assert weights is not None and not inside  # they are the variable, see `apply`
        return Affine(layer.weight_map(arguments, weights), None)
    parts = {n: affine_in(expression.arguments[n], variable, values, known) for n in inside}
    constant = _constant(layer, arguments, weights, parts)
    total: LinearMap | None = None
    for number, part in parts.items():
        one = composed(layer.map(number, arguments, weights), part.map)
        total = one if total is None else summed(total, one)
    assert total is not None  # it depends on the variable
    return Affine(total, constant)


def _constant(
    layer: Layer, arguments: list[Any], weights: Weights | None, parts: Mapping[int, Affine]
) -> Constant:
    """Return the value of a layer where the parts that hold the variable are their constants."""
    (first, *others) = parts
    if not others and parts[first].offset is None:
        return layer.constant(first, arguments, weights)
    at_zero = list(arguments)
    for number, part in parts.items():
        like = arguments[number]
        at_zero[number] = (
            torch.zeros_like(like) if part.offset is None else part.offset.expand_as(like)
        )
    return layer.value(at_zero, weights)
