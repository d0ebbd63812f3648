"""Initial weights of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from liftednet import processes
from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.layers import Parameter
from liftednet.layers.dense import Dense
from liftednet.layers.expression import TIME, Applied, Expression, Input, arguments_of, parts_of
from liftednet.layers.join import Concatenation
from liftednet.layers.time import Delay, First, Timeline
from liftednet.network import Network, State, parameters_of
from liftednet.penalties import Penalty
from liftednet.samples import Weights

from .block import Structure
from .forward_pass import Values, passed_forward, runs_alone

AUTO = "auto"  # of deep networks orthogonal, then fitted to the first data

DEEP = 5  # layers of states with weights, from which the start is fitted
START_SAMPLES = 1000  # that a start is fitted to
_RANGES = ((0.0, 1.0), (0.0, 0.5), (0.0, 0.25), (0.5, 0.5), (1.0, 0.5))  # (mean, deviation)
_TURNED = (0.0, 0.2)  # of a map without a scale; 0.1 to 0.2 were best on digits held out
_BESIDE = 0.2  # sum of a column of small entries beside the identity, at most
_FEW = 3  # random samples, and steps of them, that tell what moves from what does not
_CURVED = 0.015  # share of the variance that may not be linear

Draw = Callable[[int, int, torch.Generator], Tensor]
Start = str | Sequence[Weights]


def kaiming(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 2 / inputs (He et al., 2015), (inputs, units)."""
    return nn.init.kaiming_normal_(torch.empty(units, inputs), generator=generator).T


def gaussian(size: int, generator: torch.Generator) -> Tensor:
    """Return normal entries, (size, size), scaled to the spectral radius 1.

    On Recurrent Neural Networks, section 3.2, whose variance 0.1 cancels in the scaling.
    """
    drawn = torch.randn(size, size, generator=generator)
    return drawn * (1 / float(torch.linalg.eigvals(drawn.double()).abs().max()))


def orthogonal(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return orthonormal columns, or rows where units are more than inputs."""
    return nn.init.orthogonal_(torch.empty(inputs, units), generator=generator)


def passing(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return the identity, its rows or columns repeated, with small entries beside it.

    Of weights that have signs: sums of many positive terms would all be alike, and after a few
    layers of them samples could no longer be told apart.
    """
    most = max(inputs, units)
    place = torch.arange(most)
    weight = (2 * torch.rand(inputs, units, generator=generator) - 1) * _BESIDE / inputs
    weight[place * inputs // most, place * units // most] = math.sqrt(units / most)
    return weight


def input_gain(inputs: int) -> float:
    """Return by what to scale weights on data: 1 / sqrt(inputs), but not less than 0.2.

    Random features of many inputs are noise that training must undo; those of one or two are what
    makes fine structure of a function visible at all. Measured on small data sets and MNIST.
    """
    return max(0.2, 1 / math.sqrt(inputs))


def weights_on_inputs(network: Network) -> set[Parameter | None]:
    """Return the weights of the layers that stand on data alone."""
    return {
        layer.weights
        for layer in network.layers()
        if all(isinstance(x, Input) for x in layer.arguments)
    }


def spread_bias(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return uniform biases within 2 / sqrt(inputs) of 0, (units,).

    Then units of a layer with few inputs bend at different places of the data, not all at 0.
    """
    return (2 * torch.rand(units, generator=generator) - 1) * 2 / math.sqrt(inputs)


STARTS: dict[str, Draw] = {"kaiming": kaiming, "orthogonal": orthogonal}


Square = Callable[[int, torch.Generator], Tensor]
RECURRENT_STARTS: dict[str, Square] = {  # of the weights from one step to the next
    AUTO: lambda size, _: 0.9 * torch.eye(size),
    "identity": lambda size, _: torch.eye(size),
    "orthogonal": lambda size, generator: orthogonal(size, size, generator),
    "gaussian": gaussian,
}


def recurrent_layers(network: Network) -> dict[Parameter, tuple[int, int]]:
    """Return units and inputs of the weights of h_t = phi([h_(t-1), x_t] W + b), layer by layer.

    Nothing where a state is another: of networks of such layers alone defaults are others.
    """
    found: dict[Parameter, tuple[int, int]] = {}
    for state in network.states:
        beside = _beside(state.argument)
        if not beside or not _is(beside[0], Delay) or beside[0].variables != {state}:
            return {}
        parameter = state.argument.weights
        assert parameter is not None  # it is dense
        found[parameter] = state.units, sum(x.units for x in beside[1:] if not _is(x, First))
    return found if len(found) == len(network.states) else {}


def _beside(argument: Expression) -> list[Expression]:
    """Return what stands side by side below a dense layer of a sequence; nothing below others."""
    if not isinstance(argument, Applied) or type(argument.layer) is not Dense:
        return []
    (below,) = argument.arguments
    return parts_of(below, Concatenation) if below.sequence else []


def _is(expression: Expression, kind: type) -> bool:
    return isinstance(expression, Applied) and isinstance(expression.layer, kind)


def drawn_weights(
    network: Network, penalties: Sequence[Penalty], start: str, generator: torch.Generator
) -> list[Weights]:
    """Return the weights of a start, layer by layer, before they are fitted to data.

    Args:
        network: whose weights they are.
        penalties: of these.
        start: its name.
        generator: of all draws.

    Raises:
        DataError: there is no start of that name.
    """
    layers = recurrent_layers(network)
    if layers and start in RECURRENT_STARTS:
        return [
            _recurrent_weights(parameter, layers.get(parameter), start, generator)
            for parameter in network.parameters
        ]
    if start != AUTO and start not in STARTS:
        names = dict.fromkeys((*STARTS, *(RECURRENT_STARTS if layers else ())))
        raise DataError(f"there is no start {start!r}; there are {', '.join(names)}.")
    fitted = start == AUTO and needs_fit(network, penalties)
    draw = orthogonal if fitted else STARTS["kaiming" if start == AUTO else start]
    first = weights_on_inputs(network)
    matrices = [
        penalty.begin(passing(*p.shape, generator))
        if penalty.signed and p not in first
        else penalty.project(draw(*p.shape, generator))
        for p, penalty in zip(network.parameters, penalties, strict=True)
    ]
    found = []
    for matrix, p in zip(matrices, network.parameters, strict=True):
        if start == AUTO and p in first:
            matrix = input_gain(p.shape[0]) * matrix
        bias = None
        if p.bias:  # which alone draws
            bias = spread_bias(*p.shape, generator) if start == AUTO else torch.zeros(p.shape[1])
        found.append(Weights(matrix, bias))
    return found


def _recurrent_weights(
    parameter: Parameter, layer: tuple[int, int] | None, start: str, generator: torch.Generator
) -> Weights:
    """Return W of the start, other entries of variance 1 / inputs."""
    rows, columns = parameter.shape
    if layer is None:
        matrix = _normal(rows, columns, generator)
    else:
        units, inputs = layer
        square = RECURRENT_STARTS[start](units, generator)
        drawn = _normal(inputs, units, generator)
        matrix = torch.cat([square, drawn, torch.zeros(rows - units - inputs, units)])
    return Weights(matrix, torch.zeros(columns) if parameter.bias else None)


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def needs_fit(network: Network, penalties: Iterable[Penalty]) -> bool:
    """Say whether the start "auto" of a network is fitted to the first data.

    That of maps without a scale is, whose steps turn small weights far and large ones hardly; and
    that of a deep one, unless weights have signs and activations leave what is positive as it
    is: then the identity, see `passing`, carries signals through any depth.
    """
    if any(state.activation.scale_free for state in network.states):
        return True
    if sum(any(map(_weighted, group)) for group in network.groups()) < DEEP:
        return False
    positive = torch.linspace(0.1, 3, 10).unsqueeze(1)
    states = (state for state in network.states if state.activation.per_unit)
    bent = any(bool((s.activation.forward(positive) != positive).any()) for s in states)
    return bent or not any(penalty.signed for penalty in penalties)


def _weighted(state: State) -> bool:
    return any(True for _ in parameters_of(state.argument))


def given_weights(weights: Sequence[Weights], parameters: Sequence[Parameter]) -> list[Weights]:
    """Return given weights, refused where a shape is not the network's.

    Raises:
        DataError: something else than `Weights`, or the first mismatch, with both shapes.
    """
    given = list(weights) if isinstance(weights, Sequence) else [weights]
    for layer in given:
        if not isinstance(layer, Weights):
            raise DataError(
                "start must be a name, or liftednet.problems.Weights(W, b) of every layer, got "
                f"{type(layer).__name__}."
            )
    if len(given) != len(parameters):
        raise DataError(f"{len(parameters)} layers need as many start weights, got {len(given)}.")
    for number, (layer, parameter) in enumerate(zip(given, parameters, strict=True)):
        bias = (parameter.shape[1],) if parameter.bias else None
        for name, part, wanted in (
            ("weight", layer.matrix, parameter.shape), ("bias", layer.bias, bias),
        ):  # fmt: skip
            if (found := None if part is None else tuple(part.shape)) != wanted:
                raise DataError(
                    f"the start {name} of layer {number} must have shape {wanted}, got {found}."
                )
        if not bool(layer.stacked().isfinite().all()):
            raise DataError(f"the start weights of layer {number} are NaN or infinite.")
    return given


def linear_range(activation: Activation) -> tuple[float, float]:
    """Return a mean and deviation of pre-activations at which an activation is nearly linear.

    The first of a few normal distributions, wide ones first, of which at most 1.5 % of the
    variance of phi(u) is not linear in u, or the one of the least: (0, 1) for the sigmoid, (0, 0.5)
    for tanh, (1, 0.5) for ReLU, whose units are then on for most samples. Signals and gradients
    pass many such layers. It is (0, 1) for activations that do not act unit by unit.
    A map without a scale begins small, so that steps turn its weights.
    """
    if activation.scale_free:
        return _TURNED
    if not activation.per_unit:
        return _RANGES[0]
    normal = torch.special.ndtri((torch.arange(200, dtype=torch.float64) + 0.5) / 200)
    curved = []
    for mean, deviation in _RANGES:
        u = (mean + deviation * normal).unsqueeze(1)
        v = activation.forward(u.expand(-1, 2))
        share = 1 - float(torch.corrcoef(torch.stack([u[:, 0], v[:, 0]]))[0, 1].square())
        curved.append(1.0 if math.isnan(share) else round(share, 4))  # NaN of a constant
    enough = [share <= _CURVED for share in curved]
    return _RANGES[enough.index(True) if any(enough) else curved.index(min(curved))]


@torch.no_grad()
def fitted_start(structure: Structure, weights: Sequence[Weights], values: Values) -> list[Weights]:
    """Scale weights, layer by layer, so that pre-activations lie in the range of their activation.

    After Mishkin, Matas, All you need is a good init, 2016, with the mean of every unit and an
    activation's own range, see `linear_range`; outputs have mean 0 and variance 1. Shared and
    recurrent weights stay as they are, and so does a layer whose pre-activations are constant.

    Args:
        structure: of the network.
        weights: to begin with.
        values: of the inputs of some samples, and the timeline where there are sequences.

    Returns:
        New weights, of the type of the given ones, or the given ones, see `needs_fit`.
    """
    if not needs_fit(structure.network, structure.penalties.values()):
        return list(weights)
    found = {**values, **dict(zip(structure.parameters, weights, strict=True))}
    for group in structure.groups:
        if runs_alone(group):
            wanted = linear_range(group[0].activation)
            _bring(structure, group[0].argument, wanted, found)
        found = passed_forward([group], found, structure.activated)
    for term in structure.network.terms:
        if term.state is None:
            _bring(structure, term.argument, _RANGES[0], found)
    return [found[parameter] for parameter in structure.parameters]


@torch.no_grad()
def settled_start(
    structure: Structure, weights: Sequence[Weights], still: Mapping[Input, Tensor]
) -> list[Weights]:
    """Return weights whose rows are zero where all that they see is zero in all of training.

    Training would leave them as they were drawn, and data that move there for the first time when
    the network predicts would find random weights. Which rows these are is read off random values
    in place of all that moves.

    Args:
        structure: of the network.
        weights: that were drawn.
        still: (units,) by input, not negative where it is zero in all samples; empty for none.
    """
    found = list(weights)
    if not still:
        return found
    generator, like = torch.Generator().manual_seed(0), weights[0].matrix
    timeline = Timeline(_FEW, torch.full((_FEW,), _FEW), like.device)
    values: Values = {TIME: timeline, **dict(zip(structure.parameters, weights, strict=True))}
    variables: list[Input | State] = [*structure.network.inputs, *structure.states]
    for variable in variables:
        initial_steps = variable.initial_steps if isinstance(variable, State) else 0
        steps = (_FEW + initial_steps,) if variable.sequence else ()
        values[variable] = torch.rand(*steps, _FEW, variable.units, generator=generator).to(like)
    for given, reach in still.items():
        values[given] = values[given].masked_fill(reach.to(like.device) >= 0, 0.0)
    for number, parameter in enumerate(structure.parameters):
        layers = structure.layers[parameter]
        seen = [x.layer.inputs(arguments_of(x, values)) for x in layers if _sees(x, still)]
        if len(seen) == len(layers) and not any(rows is None for rows in seen):
            zero = ~torch.cat([rows for rows in seen if rows is not None]).any(0)
            matrix = found[number].matrix.masked_fill(zero.unsqueeze(1), 0.0)
            found[number] = replace(found[number], matrix=matrix)
    return found


def _sees(layer: Applied, inputs: Container[object]) -> bool:
    """Say whether a layer stands on some inputs."""
    below = (x for x in layer.arguments if isinstance(x, Expression))
    return any(v in inputs for x in below for v in x.variables)


def _bring(
    structure: Structure, argument: Expression, wanted: tuple[float, float], values: Values
) -> None:
    """Give the layers of an argument the mean and deviation that are wanted."""
    mean, deviation = wanted
    for parameter in parameters_of(argument):
        first, *more = structure.layers[parameter]
        inputs = None if more else first.layer.inputs(arguments_of(first, values))
        if inputs is None:
            continue
        layer: Weights = values[parameter]
        u = inputs @ layer.matrix
        rows = processes.total_of(len(u))
        (center,) = processes.total(u.sum(0))
        center = torch.zeros_like(center) if layer.bias is None else center / rows
        off = (u - center).square()
        now = (processes.total(off.sum())[0] / (rows * u.shape[1])).sqrt()
        sizes = u.abs().amax(0) if len(u) else u.new_zeros(u.shape[1])
        if now > torch.finfo(u.dtype).eps * processes.largest(sizes).max():
            scale = deviation / now
            bias = None if layer.bias is None else mean - scale * center
            values[parameter] = Weights(scale * layer.matrix, bias)
