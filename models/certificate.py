"""What a network is for certain, from its weights alone: monotone, convex, Lipschitz."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import Arctan, Clipped, Identity, LeakyReLU, Sigmoid, Sine, Softmax, Tanh
from liftednet.errors import DataError, DeclarationError
from liftednet.export import Affine, ExportedGraph
from liftednet.layers.dense import Dense
from liftednet.layers.expression import Applied, Expression, Input
from liftednet.layers.join import Scaled, Sum
from liftednet.layers.layer import Layer
from liftednet.layers.projection import Projection
from liftednet.losses import SquaredError
from liftednet.network import State
from liftednet.samples import Weights
from liftednet.sets.polyhedron import Array
from liftednet.validation import model_inside

from .prediction import Predictor
from .shapes import CONVEX, semidefinite_lipschitz
from .standardization import Moments

_MONOTONE = (*CONVEX, Arctan, Clipped, Sigmoid, Sine, Tanh)
_NORM = 1 + 1e-10  # that rounding may take from a norm in float64
_ENTRIES = 20_000_000  # of a layer's matrix at most


@dataclass(frozen=True, eq=False)
class Certificate:
    """What holds for a network at every input, in exact arithmetic with the weights it has.

    Attributes:
        lowest: of the derivative of each output in each input, (outputs, inputs); outward rounded.
        highest: the same.
        convex: outputs that are convex in all inputs together, (outputs,) booleans.
        concave: outputs that are concave, (outputs,) booleans.
        lipschitz: |f(x) - f(x')|_2 <= lipschitz |x - x'|_2; infinite where nothing is known.
        limits: those of `within=`, such as "0 <= output 1 - output 0"; scores are outputs before
            their last activation.

    Example:
        >>> import torch
        >>> from liftednet import certify
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = network[0].weight.copy_(torch.tensor([[0.0, -3.0]]))
        >>> facts = certify(network)
        >>> facts.decreasing, round(facts.lipschitz, 6)
        ((0, 1), 3.0)
    """

    lowest: Tensor
    highest: Tensor
    convex: Tensor
    concave: Tensor
    lipschitz: float
    limits: tuple[str, ...] = ()

    @property
    def increasing(self) -> tuple[int, ...]:
        """Inputs with which no output falls, numbered from 0."""
        return _numbers((self.lowest >= 0).all(0))

    @property
    def decreasing(self) -> tuple[int, ...]:
        """Inputs with which no output rises, numbered from 0."""
        return _numbers((self.highest <= 0).all(0))

    def __str__(self) -> str:
        """Return what is certain, line by line."""
        outputs, inputs = self.lowest.shape
        lines = [f"certified of {inputs} inputs and {outputs} outputs, from the weights alone:"]
        monotone = {"nondecreasing": self.lowest >= 0, "nonincreasing": self.highest <= 0}
        for name, of_output in monotone.items():
            for output, row in enumerate(of_output):
                if found := _numbers(row):
                    some = ", ".join(map(str, found[:12])) + (", ..." if len(found) > 12 else "")
                    lines.append(
                        f"  output {output} is {name} in inputs {some} ({len(found)} of {inputs})"
                    )
        for name, of_outputs in (("convex", self.convex), ("concave", self.concave)):
            if which := ", ".join(map(str, _numbers(of_outputs))):
                lines.append(f"  {name} in the inputs: outputs {which}")
        if self.limits:
            more = [f"and {len(self.limits) - 12} more"] if len(self.limits) > 12 else []
            lines.append("  limits that are met:")
            lines += [f"    {limit}" for limit in [*self.limits[:12], *more]]
        bound = "not bounded" if math.isinf(self.lipschitz) else f"at most {self.lipschitz:.6g}"
        lines.append(f"  Lipschitz constant {bound}")
        return "\n".join(lines)

    __repr__ = __str__


@torch.no_grad()
def certify(model: Any, example: Any = None, *, semidefinite: bool = False) -> Certificate:
    """Return what a fitted model or a torch network is for certain, at every input.

    Derivatives go through the layers as intervals: those of u = x W + b by
    [l W+ - h W-, h W+ - l W-], of phi(u) by its slopes (those of torch's GELU, SiLU, Mish, SELU
    and their like by the extremes of phi'); rounded outward in float64. An output is
    convex where it is a nonnegative combination of convex units (and a nonpositive one of concave
    ones) under convex, nondecreasing activations (Amos, Xu, Kolter, 2017). The Lipschitz constant
    is the smallest one of the product of spectral norms, the norm of the largest absolute
    derivatives, and the norm of their middles plus that of their radii. Standardization is part of
    the network. Nothing is claimed of what is not known, such as a declared activation or a layer
    that is not affine.

    Args:
        model: a fitted lifted model, of which the output of `forward` is meant (export it with
            logits=True for the last pre-activation); or a torch.nn.Module that `lift` reads, whose
            calls do not depend on values.
        example: some inputs of a torch network, such as X[:2]; not needed where the first module
            with weights is a torch.nn.Linear.
        semidefinite: whether a semidefinite problem, too, bounds the Lipschitz constant, often at
            half of the others; for chains of dense layers with up to 120 inputs and hidden units,
            which take half a minute (see `semidefinite_lipschitz`).

    Raises:
        DataError: it is neither, or the network cannot be read.
        DeclarationError: there are sequences, or a layer is too large, or the network is no chain
            that is small enough where the semidefinite bound is asked for.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import torch
        >>> from liftednet import certify
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP
        >>> X = torch.rand(200, 2)
        >>> y = (X[:, :1] * X[:, 1:]).sqrt()
        >>> model = LiftedMLP((2, 20, 1), loss=SquaredError(), monotonic_cst=[1, 0]).fit(X, y)
        >>> certify(model).increasing
        (0,)
    """
    weights: Sequence[Weights]
    last = True
    if isinstance(model, ExportedGraph):
        weights, structure, last = model.layers, model.structure, not model.logits
        moments = dict(standardizing(model))
    elif isinstance(model, nn.Module):
        # a model's own loss is not known, and of SquaredError outputs are the last pre-activation
        from .from_torch import lift  # which few certificates need

        model = lift(model, _example(model, example), loss=SquaredError(), show=False)
        weights = model._first_weights()
        structure, moments = model.structure, {}
    elif isinstance(model, Predictor):
        weights, structure = model.weights, model.structure
        moments = dict(model.standardization.moments)
    else:
        raise DataError(
            f"certify needs a fitted model or a torch.nn.Module, got {type(model).__name__}"
            f"{model_inside(model)}."
        )
    exact = [layer.to(torch.empty(0, dtype=torch.float64)) for layer in weights]
    walk = _Walk(structure, dict(zip(structure.parameters, exact, strict=True)), moments, last)
    return walk.certificate(semidefinite)


@dataclass(frozen=True, eq=False)
class _Facts:
    """What is known of the units of an expression, as functions of all inputs.

    Attributes:
        low: of the derivatives, (inputs, units).
        high: the same.
        convex: (units,) booleans.
        concave: (units,) booleans.
        lipschitz: of all units together.
    """

    low: Tensor
    high: Tensor
    convex: Tensor
    concave: Tensor
    lipschitz: float

    def unknown(self, units: int) -> _Facts:
        """Return that nothing is known of so many units."""
        any_size = self.low.new_full((len(self.low), units), math.inf)
        return _bent(-any_size, any_size, math.inf)

    def scaled(self, scale: Tensor) -> _Facts:
        """Return the facts of units times positive factors, (units,)."""
        low, high = _outward(self.low * scale, self.high * scale)
        largest = float(scale.max()) * _NORM
        return replace(self, low=low, high=high, lipschitz=self.lipschitz * largest)

    def activated(self, activation: Activation) -> _Facts:
        """Return the facts of phi(u)."""
        if type(activation) is Softmax:
            return self._softmax()
        slopes = _slopes(activation)
        if slopes is None:
            return self.unknown(self.low.shape[1] // activation.pre_units(1))
        convex = self.convex & (type(activation) in CONVEX)
        concave = self.concave & (type(activation) is Identity)
        return replace(self.sloped(slopes), convex=convex, concave=concave)

    def sloped(self, slopes: tuple[float, float]) -> _Facts:
        """Return the facts of units phi(u) whose phi' lies between two slopes."""
        ends = [end * slope for end in (self.low, self.high) for slope in slopes]
        ends = [end.nan_to_num(0.0, torch.inf, -torch.inf) for end in ends]  # 0 times any size
        low, high = _outward(*torch.stack(ends).aminmax(dim=0))
        largest = max(map(abs, slopes))
        return _bent(low, high, largest * self.lipschitz if largest else 0.0)

    def _softmax(self) -> _Facts:
        """Return the facts of p: dp_k / du_k in [0, 1/4], dp_k / du_j in [-1/4, 0]."""
        rise, fall = self.high.clamp(min=0), (-self.low).clamp(min=0)
        others = 1 - torch.eye(rise.shape[1], dtype=rise.dtype)
        high, low = rise + _summed(fall, others), fall + _summed(rise, others)
        return _bent(*_outward(-low / 4, high / 4), self.lipschitz / 2)

    def projected(self, layer: Projection) -> _Facts:
        """Return the facts of the nearest points, whose derivative J in u is a projection.

        J_kk is in [0, 1], J_jk in [-1/2, 1/2], and not negative where each limit is on one unit or
        on the difference of two: J then is the mean over units that are held together, or 0.
        Nothing is known where limits move with the inputs.
        """
        rows = torch.tensor(layer.of_outputs, dtype=self.low.dtype)
        if any(map(any, layer.of_inputs)):
            return self.unknown(rows.shape[1])
        touched = rows != 0
        single, bound = touched.sum(1) == 1, touched.any(0)
        up, down = self.high.clamp(min=0), (-self.low).clamp(min=0)
        either = torch.maximum(up, down)
        means = bool((single | ((touched.sum(1) == 2) & (rows.sum(1) == 0))).all())
        halves = _together(touched).to(up) / 2
        low = -down - _summed(down if means else either, halves)
        high = up + _summed(up if means else either, halves)
        alone = ~touched[~single].any(0)
        lower, upper = (
            (torch.tensor([end is not None for end in ends]) & single)[:, None]
            for ends in (layer.lower, layer.upper)
        )
        raised = (((rows > 0) & lower) | ((rows < 0) & upper)).any(0)  # max(u, l), which is convex
        lowered = (((rows > 0) & upper) | ((rows < 0) & lower)).any(0)
        return _Facts(
            torch.where(bound, low, self.low), torch.where(bound, high, self.high),
            self.convex & alone & ~lowered, self.concave & alone & ~raised,
            _steepest(self.low, self.high, self.lipschitz),
        )  # fmt: skip


def _bent(low: Tensor, high: Tensor, lipschitz: float) -> _Facts:
    """Return the facts of units that are neither convex nor concave."""
    no = torch.zeros(low.shape[1], dtype=torch.bool)
    return _Facts(low, high, no, no, lipschitz)


@dataclass(frozen=True, eq=False)
class _Walk:
    """A network from its inputs to its outputs.

    Attributes:
        structure: of the network.
        weights: of the layers, in float64.
        moments: what standardizes inputs and outputs, where that is not part of the weights.
        last: whether the activations of the losses are part of the network.
        known: what has been found out of expressions.
    """

    structure: Any
    weights: dict[Any, Weights]
    moments: dict[Any, Moments]
    last: bool
    known: dict[Any, _Facts] = field(default_factory=dict)

    def certificate(self, semidefinite: bool) -> Certificate:
        self._begin()
        for group in self.structure.groups:
            for state in group:
                self.known[state] = self._state(state)
        found = [self._term(term) for term in self.structure.network.terms]
        low, high = (torch.cat([getattr(x, end).T for x in found]) for end in ("low", "high"))
        convex, concave = _joined(found, "convex"), _joined(found, "concave")
        lipschitz = _steepest(low, high, math.hypot(*(x.lipschitz for x in found)))
        if semidefinite:
            lipschitz = min(lipschitz, self._semidefinite())
        return Certificate(low, high, convex, concave, lipschitz, tuple(self._limits()))

    def _limits(self) -> Iterator[str]:
        first = 0
        for term in self.structure.network.terms:
            if _is_of(Projection, term.argument):
                kind = type(term.pinned.divergence.activation)
                name = "output" if kind is Identity or not self.last else "score"
                yield from term.argument.layer.lines(first, name)
            first += term.argument.units

    def _semidefinite(self) -> float:
        """Return the bound of `semidefinite_lipschitz`, with what stands before and behind."""
        network = self.structure.network
        inside = network.terms[0].argument
        if _is_of(Projection, inside):
            inside = inside.arguments[0]
        alone = len(network.terms) == len(network.inputs) == 1
        bound = semidefinite_lipschitz(*self._chain(inside if alone else None)) * _NORM
        bounded = replace(self._facts(inside), lipschitz=bound)
        return (
            replace(self, known={**self.known, inside: bounded})._term(network.terms[0]).lipschitz
        )

    def _chain(self, expression: Any) -> tuple[list[Array], list[tuple[float, float]]]:
        """Return the matrices and the slopes between them of a chain of dense layers."""
        below = expression.arguments[0] if _is_of(Dense, expression) else None
        unit = None if below is None else self._unit(below)
        if not (unit or isinstance(below, Input | State)):
            raise DeclarationError("the semidefinite bound is for one chain of dense layers.")
        matrix = self.weights[expression.weights].matrix
        if isinstance(below, Input):
            moments = self.moments.get(below)
            scaled = matrix if moments is None else matrix / moments.scale.double()[:, None]
            return [scaled.numpy()], []
        if unit is None:
            activation = self.structure.divergences[below].activation
            raise DeclarationError(f"the slopes of {activation!r} are not known.")
        weights, slopes = self._chain(unit[0])
        return [*weights, matrix.numpy()], [*slopes, unit[1]]

    def _unit(self, expression: Expression) -> tuple[Expression, tuple[float, float]] | None:
        """Return u and the ends of phi' of an expression phi(u), unit by unit; None of any other.

        It is a state, or z + k u of a state z = phi(u), as a map that is not monotone is lifted.
        """
        if isinstance(expression, State):
            slopes = _slopes(self.structure.divergences[expression].activation)
            if slopes is None or expression.bounds is None:
                return None if slopes is None else (expression.argument, slopes)
            return expression.argument, (min(slopes[0], 0.0), max(slopes[1], 0.0))
        if not isinstance(expression, Applied):
            return None
        layer, below = expression.layer, expression.arguments[0]
        if isinstance(layer, Sum) and len(expression.arguments) == 2 and isinstance(below, State):
            factor, other = 1.0, expression.arguments[1]
            while isinstance(other, Applied) and isinstance(other.layer, Scaled):
                factor, other = factor * other.layer.scale, other.arguments[0]
            unit = self._unit(below)
            if unit is not None and unit[0] is other and below.bounds is None:
                return other, (unit[1][0] + factor, unit[1][1] + factor)
        return None

    def _begin(self) -> None:
        """Begin with what is known of the inputs."""
        inputs = self.structure.network.inputs
        if any(variable.sequence for variable in inputs):
            raise DeclarationError("certify is for networks without sequences.")
        every = torch.eye(sum(x.units for x in inputs), dtype=torch.float64)
        for variable, part in zip(inputs, every.split([x.units for x in inputs], 1), strict=True):
            yes = torch.ones(variable.units, dtype=torch.bool)
            facts, moments = _Facts(part, part, yes, yes, 1.0), self.moments.get(variable)
            scaled = facts if moments is None else facts.scaled(1 / moments.scale.double())
            self.known[variable] = scaled

    def _state(self, state: State) -> _Facts:
        found = self._facts(state.argument).activated(self.structure.divergences[state].activation)
        if state.bounds is None:
            return found
        return _bent(found.low.clamp(max=0), found.high.clamp(min=0), found.lipschitz)

    def _term(self, term: Any) -> _Facts:
        if term.state is not None and self.last:
            facts = self.known[term.state]
        else:
            facts = self._facts(term.argument)
            if self.last:
                facts = facts.activated(term.pinned.divergence.activation)
        moments = self.moments.get(term.label)
        return facts if moments is None else facts.scaled(moments.scale.double())

    def _facts(self, expression: Expression) -> _Facts:
        if expression not in self.known:
            assert isinstance(expression, Applied)  # states and inputs are known
            self.known[expression] = self._applied(expression)
        return self.known[expression]

    def _applied(self, expression: Applied) -> _Facts:
        layer, unit = expression.layer, self._unit(expression)
        if unit is not None and not expression.sequence:
            return self._facts(unit[0]).sloped(unit[1])
        inside = [self._facts(x) for x in expression.arguments if isinstance(x, Expression)]
        if isinstance(layer, Projection):
            return inside[0].projected(layer)
        tells = layer.affine and layer.linear  # a normalization by given statistics, too
        if tells and not expression.sequence and len(inside) == len(expression.arguments):
            matrices = self._matrices(expression, inside)
            if all(matrix.dtype is torch.float64 for matrix in matrices):  # torch may round it
                return _affine(inside, matrices)
        return inside[0].unknown(expression.units)

    def _matrices(self, expression: Applied, inside: Sequence[_Facts]) -> list[Tensor]:
        """Return A of each argument, u = sum x A + b, (units below, units)."""
        below = [facts.low.shape[1] for facts in inside]
        if sum(below) * expression.units > _ENTRIES:
            raise DeclarationError(f"{expression} is too large to be certified.")
        weights = None if expression.weights is None else self.weights[expression.weights]
        found = []
        for position, units in enumerate(below):
            zeros = [torch.zeros(units, each, dtype=torch.float64) for each in below]
            through = expression.layer.map(position, zeros, weights)
            found.append(through.apply(torch.eye(units, dtype=torch.float64)))
        return found


def _affine(inside: Sequence[_Facts], matrices: Sequence[Tensor]) -> _Facts:
    """Return the facts of u = sum x A + b."""
    matrix = torch.cat(list(matrices))
    low, high = (torch.cat([getattr(x, end) for x in inside], 1) for end in ("low", "high"))
    plus, minus = matrix > 0, matrix < 0
    bent_up, bent_down = (~_joined(inside, name)[:, None] for name in ("convex", "concave"))
    apart = sum(_through(a, x.lipschitz) for a, x in zip(matrices, inside, strict=True))
    together = _through(matrix, math.hypot(*(x.lipschitz for x in inside)))
    return _Facts(
        _low(low, high, matrix),
        -_low(-high, -low, matrix),
        ~((plus & bent_up) | (minus & bent_down)).any(0),
        ~((plus & bent_down) | (minus & bent_up)).any(0),
        min(apart, together),
    )


def _joined(facts: Sequence[_Facts], name: str) -> Tensor:
    return torch.cat([getattr(x, name) for x in facts])


def _steepest(low: Tensor, high: Tensor, lipschitz: float) -> float:
    """Return a Lipschitz constant, or what the ends of derivatives say where that is less."""
    largest = torch.maximum(low.abs(), high.abs())
    if not bool(largest.isfinite().all()):
        return lipschitz
    about = _norm((low + high) / 2) + _norm((high - low) / 2)
    return min(lipschitz, _norm(largest), about)


def _together(touched: Tensor) -> Tensor:
    """Return which units one limit or several hold together, (units, units), but for themselves."""
    near = touched.double().T @ touched.double() > 0
    for _ in range(len(near).bit_length()):
        near = near.double() @ near.double() > 0
    return near.fill_diagonal_(False)


def _through(matrix: Tensor, lipschitz: float) -> float:
    """Return a Lipschitz constant behind a matrix, 0 behind one of zeros."""
    norm = _norm(matrix)
    return norm * lipschitz if norm else 0.0


def _low(low: Tensor, high: Tensor, matrix: Tensor) -> Tensor:
    """Return the lower ends of [low, high] A, never above them by rounding."""
    plus, minus = matrix.clamp(min=0), (-matrix).clamp(min=0)
    endless = low.isinf().to(matrix) @ (plus > 0).to(matrix)
    endless += high.isinf().to(matrix) @ (minus > 0).to(matrix)
    low, high = (end.masked_fill(end.isinf(), 0.0) for end in (low, high))
    positive = low.clamp(min=0) @ plus + (-high).clamp(min=0) @ minus
    negative = (-low).clamp(min=0) @ plus + high.clamp(min=0) @ minus
    rounding = 4 * (len(matrix) + 4) * torch.finfo(matrix.dtype).eps
    found = positive * (1 - rounding) - negative * (1 + rounding)
    return found.masked_fill(endless > 0, -math.inf)


def _outward(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return ends that are farther apart by some units in the last place; 0 stays 0."""
    off = 16 * torch.finfo(low.dtype).eps
    return low - off * low.abs(), high + off * high.abs()


def _summed(sizes: Tensor, matrix: Tensor) -> Tensor:
    """Return sizes A (inputs, units), of entries that are not negative, never below by rounding."""
    return -_low(-sizes, torch.zeros_like(sizes), matrix)


def _slopes(activation: Activation) -> tuple[float, float] | None:
    """Return the ends of phi', or None where nothing proves any."""
    if isinstance(activation, FunctionActivation):
        return activation.slopes
    if type(activation) not in _MONOTONE:
        return None
    if type(activation) is Identity:
        return 1.0, 1.0
    assert activation.lipschitz is not None  # of those that are monotone here
    flattest = activation.alpha if isinstance(activation, LeakyReLU) else 0.0
    return flattest, activation.lipschitz


def _is_of(kind: type[Layer], expression: Any) -> bool:
    return isinstance(expression, Applied) and type(expression.layer) is kind


def standardizing(module: ExportedGraph) -> Iterator[tuple[Any, Moments]]:
    """Yield what an exported network does to its inputs and outputs beside its weights."""
    network = module.structure.network
    for variable, part in zip(network.inputs, getattr(module, "before", ()), strict=False):
        if isinstance(part, Affine):
            yield variable, Moments(part.center, 1 / part.scale)
    for term, part in zip(network.terms, getattr(module, "behind", ()), strict=False):
        if isinstance(part, Affine):
            yield term.label, Moments(part.shift, part.scale)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2)) * _NORM


def _numbers(which: Tensor) -> tuple[int, ...]:
    return tuple(which.nonzero().flatten().tolist())


def _example(module: nn.Module, example: Any) -> Any:
    if example is not None:
        return example
    weighed = (x for x in module.modules() if next(x.parameters(recurse=False), None) is not None)
    first = next(weighed, None)
    if not isinstance(first, nn.Linear):
        raise DataError("certify needs an example of the inputs, such as certify(network, X[:2]).")
    return torch.zeros(2, first.in_features, dtype=first.weight.dtype)
