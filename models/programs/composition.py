"""A network of given weights for one sample: affine maps and activations in turn.

Whatever is affine between two activations is one affine map here: layers, convolutions, means,
residual sums, normalization by given statistics, standardization. What stands on them is either a
scalar curve for each unit or the largest entry of each window.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from liftednet.activation import Activation
from liftednet.activations import Identity
from liftednet.activations.piecewise_linear import Bounded
from liftednet.curvature import ABSOLUTE, Array, Curve, clip, curves_of
from liftednet.errors import DataError, DeclarationError
from liftednet.export import Affine, ExportedGraph
from liftednet.layers.expression import Applied, Expression, Input
from liftednet.layers.modules import Mapped
from liftednet.losses import SquaredError
from liftednet.samples import Weights

from ..prediction import Predictor
from ..standardization import Moments

Places = np.ndarray[Any, np.dtype[np.intp]]

_ENTRIES = 20_000_000  # of a layer's matrix at most
_SEEN = 32  # points at which a reading is compared with the network
_FAR = 1e-9  # that both may differ there, relative to the largest output
_WINDOWS = ("max_pool1d", "max_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d")


@dataclass(frozen=True, eq=False)
class Combination:
    """u = c + sum over sources of v A.

    Attributes:
        parts: A, (units below, units), by the number of its source: 0 for the inputs, k for what
            the k-th block gives.
        offset: c, (units,).
    """

    parts: Mapping[int, Array]
    offset: Array

    def of(self, values: Sequence[Any]) -> Any:
        """Return u of the values of all sources, (..., units); of CVXPY's expressions, too."""
        found = self.offset
        for source, matrix in self.parts.items():
            found = values[source] @ matrix + found
        return found

    def through(self, matrix: Array) -> Combination:
        """Return u B."""
        return Combination(
            {source: part @ matrix for source, part in self.parts.items()}, self.offset @ matrix
        )

    def plus(self, other: Combination) -> Combination:
        """Return the sum with another of as many units."""
        parts = dict(self.parts)
        for source, part in other.parts.items():
            parts[source] = parts[source] + part if source in parts else part
        return Combination(parts, self.offset + other.offset)


@dataclass(frozen=True, eq=False)
class Block:
    """v = phi(u), unit by unit, or v = the largest entry of u over each window.

    Attributes:
        argument: u.
        curves: of every unit; none where there are windows.
        windows: the entries of u that each unit is the largest of.
        activation: phi as it was declared; None of windows.
    """

    argument: Combination
    curves: Sequence[Curve] = ()
    windows: Sequence[Places] = ()
    activation: Activation | None = None

    def forward(self, u: Array) -> Array:
        """Return v, (..., units), of u (..., pre-activations)."""
        if self.windows:
            return np.stack([u[..., window].max(-1) for window in self.windows], -1)
        found = np.empty_like(u)
        for curve in set(self.curves):
            which = [n for n, other in enumerate(self.curves) if other is curve]
            found[..., which] = curve.forward(u[..., which])
        return found


@dataclass(frozen=True, eq=False)
class Composition:
    """x -> y for one sample, in float64 with the weights that the network has.

    Attributes:
        inputs: units of x, all inputs side by side.
        blocks: activations, each of inputs and blocks before it.
        output: y.
    """

    inputs: int
    blocks: Sequence[Block]
    output: Combination

    def values(self, x: Array) -> list[Array]:
        """Return x and what every block gives, each (..., units)."""
        found = [np.asarray(x, dtype=np.float64)]
        for block in self.blocks:
            found.append(block.forward(block.argument.of(found)))
        return found

    def forward(self, x: Array) -> Array:
        """Return y, (..., outputs), of x (..., inputs)."""
        found: Array = self.output.of(self.values(x))
        return found

    def gradient(self, x: Array, direction: Array) -> Array:
        """Return the gradient of <direction, y> in x, (samples, inputs); of kinks that of one side.

        Args:
            x: (samples, inputs).
            direction: (samples, outputs).
        """
        values = self.values(x)
        pushes = [np.zeros_like(value) for value in values]

        def back(combination: Combination, push: Array) -> None:
            for source, matrix in combination.parts.items():
                pushes[source] += push @ matrix.T

        back(self.output, direction)
        for number in range(len(self.blocks), 0, -1):
            block, push = self.blocks[number - 1], pushes[number]
            u = block.argument.of(values)
            below = np.zeros_like(u)
            if block.windows:
                for unit, window in enumerate(block.windows):
                    best = window[u[:, window].argmax(1)]
                    below[np.arange(len(u)), best] += push[:, unit]
            else:
                for curve in set(block.curves):
                    which = [n for n, other in enumerate(block.curves) if other is curve]
                    below[:, which] = curve.slope(u[:, which]) * push[:, which]
            back(block.argument, below)
        return pushes[0]


def composition_of(model: Any, inputs: int, example: Any = None) -> Composition:
    """Return a fitted model, an estimator or a torch network, taken apart.

    Of a model that is fitted the scores are meant: the outputs of a regression, logits of a
    classifier. Of a torch network it is what the network returns.

    Args:
        model: that is meant.
        inputs: units of x.
        example: some inputs of a torch network whose samples have axes, such as X[:2].

    Raises:
        DataError: it is neither, cannot be read, or has another number of inputs.
        DeclarationError: a part is neither affine nor an activation whose curvature is known.
        NotFittedError: the model has no weights yet.
    """
    model = getattr(model, "model_", model)
    if isinstance(model, nn.Module) and not isinstance(model, ExportedGraph):
        return _of_torch(model, inputs, example)
    weights: Sequence[Weights]
    if isinstance(model, ExportedGraph):
        weights, structure, last = model.layers, model.structure, not model.logits
        moments = dict(_standardizing(model))
    elif isinstance(model, Predictor):
        weights, structure, last = model.weights, model.structure, False
        moments = dict(model.standardization.moments)
    else:
        raise DataError(
            "a fitted model, an estimator or a torch.nn.Module is needed, got "
            f"{type(model).__name__}."
        )
    return _Walk(structure, weights, moments, last).composition(inputs)


def _of_torch(network: nn.Module, inputs: int, example: Any) -> Composition:
    from ..from_torch import lift  # which few need

    exact = copy.deepcopy(network).double().requires_grad_(True)  # frozen weights are read, too
    exact.eval()
    if example is None:
        weighed = (x for x in network.modules() if any(True for _ in x.parameters(recurse=False)))
        first = next(weighed, None)
        if not isinstance(first, nn.Linear):
            raise DataError(
                "to_cvxpy needs an example of the inputs, such as to_cvxpy(..., example=X[:2])."
            )
        _require_inputs(first.in_features, inputs)
    like = torch.zeros(1, inputs) if example is None else torch.as_tensor(example)[:1]
    size = float(like.abs().max()) or 1.0
    generator = torch.Generator().manual_seed(0)

    def drawn(samples: int) -> Tensor:
        shape = (samples, *like.shape[1:])
        return size * torch.randn(shape, generator=generator, dtype=torch.float64) + like

    model = lift(exact, drawn(2), loss=SquaredError(), show=False)
    walk = _Walk(model.structure, model._first_weights(), {}, True)
    found, x = walk.composition(inputs), drawn(_SEEN)
    with torch.no_grad():
        wanted = exact(x).reshape(_SEEN, -1).numpy()
    off = np.abs(found.forward(x.reshape(_SEEN, -1).numpy()) - wanted).max()
    if not off <= _FAR * max(1.0, np.abs(wanted).max()):
        raise DataError(
            f"what was read of {type(network).__name__} is off by {off:.3g} from what it computes: "
            "it makes Python numbers or indices of its values. Write torch.where for an if."
        )
    return found


@dataclass(eq=False)
class _Walk:
    """A graph from its inputs to its outputs.

    Attributes:
        structure: of the network.
        weights: of its parameters, in their order.
        moments: what standardizes inputs and outputs, where that is not part of the weights.
        last: whether the activations of the losses are part of the network.
    """

    structure: Any
    weights: Sequence[Weights]
    moments: dict[Any, Any]
    last: bool
    blocks: list[Block] = field(default_factory=list)
    known: dict[Any, Combination] = field(default_factory=dict)

    def composition(self, inputs: int) -> Composition:
        network = self.structure.network
        self._begin(network.inputs, inputs)
        exact = [layer.to(torch.empty(0, dtype=torch.float64)) for layer in self.weights]
        self.exact = dict(zip(self.structure.parameters, exact, strict=True))
        for group in self.structure.groups:
            for state in group:
                u = self._of(state.argument)
                self.known[state] = self._activated(u, self.structure.held(state).activation, state)
        found = [self._term(term) for term in network.terms]
        return Composition(inputs, self.blocks, _side_by_side(found))

    def _begin(self, variables: Sequence[Input], inputs: int) -> None:
        widths = [variable.units for variable in variables]
        if any(variable.sequence for variable in variables):
            raise DeclarationError(
                "networks on sequences cannot stand in an optimization problem yet: give one on "
                "windows of some steps."
            )
        _require_inputs(sum(widths), inputs)
        parts = np.split(np.eye(inputs), np.cumsum(widths)[:-1], axis=1)
        for variable, part in zip(variables, parts, strict=True):
            moments = self.moments.get(variable)
            if moments is None:
                self.known[variable] = Combination({0: part}, np.zeros(variable.units))
            else:
                center, scale = moments.center.double().numpy(), moments.scale.double().numpy()
                self.known[variable] = Combination({0: part / scale}, -center / scale)

    def _term(self, term: Any) -> Combination:
        if self.last and term.state is not None:
            found = self.known[term.state]
        else:
            found = self._of(term.argument)
            if self.last and term.state is None:
                activation = term.pinned.divergence.activation
                found = self._activated(found, activation, "the last activation")
        moments = self.moments.get(term.label)
        if moments is None:
            return found
        scale = moments.scale.double().numpy()
        scaled = {source: part * scale for source, part in found.parts.items()}
        return Combination(scaled, found.offset * scale + moments.center.double().numpy())

    def _of(self, expression: Expression) -> Combination:
        if expression not in self.known:
            assert isinstance(expression, Applied)  # states and inputs are known
            self.known[expression] = self._applied(expression)
        return self.known[expression]

    def _applied(self, expression: Applied) -> Combination:
        layer = expression.layer
        if isinstance(layer, Mapped) and not layer.affine and layer.name in ("abs", *_WINDOWS):
            return self._bent(expression)
        variables = [x for x in expression.arguments if not isinstance(x, Expression)]
        if expression.sequence or variables or not (layer.affine and layer.linear):
            kind = layer.name if isinstance(layer, Mapped) else type(layer).__name__
            raise DeclarationError(
                f"{kind} is neither affine in the inputs nor an activation whose curvature is "
                "known, and cannot stand in an optimization problem: products of two values, "
                "softmax, indices and masks that depend on the inputs. A last softmax may be left "
                "out: its logits have the same order."
            )
        inside = [self._of(x) for x in expression.arguments]
        below = [len(x.offset) for x in inside]
        if sum(below) * expression.units > _ENTRIES:
            raise DeclarationError(f"{expression} is too large to stand in a problem.")
        weights = None if expression.weights is None else self.exact[expression.weights]
        zeros = [torch.zeros(1, units, dtype=torch.float64) for units in below]
        offset = layer.value(zeros, weights)[0].detach().numpy()
        total = Combination({}, offset)
        for position, (part, units) in enumerate(zip(inside, below, strict=True)):
            rows = [torch.zeros(units, each, dtype=torch.float64) for each in below]
            through = layer.map(position, rows, weights)
            matrix = through.apply(torch.eye(units, dtype=torch.float64)).detach().double().numpy()
            total = total.plus(part.through(matrix))
        return total

    def _bent(self, expression: Applied) -> Combination:
        """Return |u|, or the largest entries over windows, which layers of torch compute."""
        inside, layer = self._of(expression.arguments[0]), expression.layer
        units = len(inside.offset)
        if isinstance(layer, Mapped) and layer.name == "abs":
            return self._block(Block(inside, [ABSOLUTE] * units))
        seen = layer.value([torch.eye(units, dtype=torch.float64)], None) > 0  # of a window's entry
        return self._block(Block(inside, windows=[np.flatnonzero(row) for row in seen.T.numpy()]))

    def _activated(self, u: Combination, activation: Activation, where: Any) -> Combination:
        if type(activation) is Identity:
            return u
        if type(activation) is Bounded:
            inside = self._activated(u, activation.inner, where)
            ends = clip(activation.lower, activation.upper)
            return self._block(Block(inside, [ends] * len(inside.offset)))
        curves = curves_of(activation, len(u.offset))
        if curves is None:
            raise DeclarationError(
                f"nothing is known of where {activation!r}, of {where}, is convex or concave, "
                "which a relaxation needs; what is known: Identity, ReLU, LeakyReLU, PReLU, "
                "Clipped, Sigmoid, Tanh, Arctan, Sine, Softplus, ELU and the elementwise maps of "
                "torch.nn.functional. A last softmax may be left out: its logits have the same "
                "order."
            )
        return self._block(Block(u, curves, activation=activation))

    def _block(self, block: Block) -> Combination:
        units = len(block.windows) or len(block.curves)
        self.blocks.append(block)
        return Combination({len(self.blocks): np.eye(units)}, np.zeros(units))


def _require_inputs(units: int, inputs: int) -> None:
    if units != inputs:
        raise DataError(f"the network has {units} inputs, and x has {inputs}.")


def _side_by_side(found: Sequence[Combination]) -> Combination:
    if len(found) == 1:
        return found[0]
    widths = [len(x.offset) for x in found]
    places = np.split(np.eye(sum(widths)), np.cumsum(widths)[:-1])
    total = Combination({}, np.zeros(sum(widths)))
    for x, place in zip(found, places, strict=True):
        total = total.plus(x.through(place))
    return total


def _standardizing(module: ExportedGraph) -> Iterator[tuple[Any, Moments]]:
    """Yield what an exported network does to its inputs and outputs beside its weights."""
    network = module.structure.network
    for variable, part in zip(network.inputs, getattr(module, "before", ()), strict=False):
        if isinstance(part, Affine):
            yield variable, Moments(part.center, 1 / part.scale)
    for term, part in zip(network.terms, getattr(module, "behind", ()), strict=False):
        if isinstance(part, Affine):
            yield term.label, Moments(part.shift, part.scale)
