"""Layers: affine as they say, with the values of torch, and refused where they are not."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from liftednet import Network, layers
from liftednet.activations import Softmax
from liftednet.activations.simplex import Grouped
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Layer, average_pooling, check_layer, concatenate, convolution, dense
from liftednet.layers.convolution import AveragePooling, Convolution
from liftednet.layers.dense import Dense, DenseAtPositions
from liftednet.layers.expression import affine_in, apply, value_of
from liftednet.layers.join import Concatenation, Part, Product, Scaled, Shaped, Sum
from liftednet.layers.modules import BatchNormalization, Layout, Mapped, RunningStatistics, Scale
from liftednet.layers.time import Delay, DropFirst, PadFirst
from liftednet.maps import Given
from liftednet.samples import Weights
from tests.draws import normal
from tests.models.networks import refuses

CONVOLUTIONS: list[Convolution] = [
    Convolution((2, 7), 3, (3,), (2,), (1,), bias=False),
    Convolution((1, 8), 2, (4,), (3,), (3,)),
    Convolution((2, 5, 4), 3, (3, 3), (1, 1), (1, 1)),
    Convolution((1, 6, 5), 2, (2, 3), (2, 1), (0, 2), bias=False),
    Convolution((4, 5, 6), 6, (2, 3), (2, 1), (1, 0), dilation=(1, 2), groups=2),
    Convolution((3, 6), 3, (3,), (1,), (1,), bias=False, groups=3),
]
STATISTICS = RunningStatistics(
    torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0]), torch.tensor(3), 0.1, follows=False
)
POOLINGS: list[Any] = [
    AveragePooling((2, 7), (3,), (1,)),
    AveragePooling((1, 5, 5), (3, 2), (1, 2)),
    AveragePooling((1, 6, 7), (2, 2), (3, 3)),
]
OTHERS: list[tuple[Layer, tuple[tuple[int, ...], ...]]] = [
    (Dense(3), ((4,),)),
    (Dense(3, bias=False), ((2, 2),)),
    (Sum(), ((4,), (4,))),
    (Concatenation(), ((4,), (2, 3), (1,))),
    (Scaled(-1.0, 1.0), ((4,),)),
    (Part(1, 3), ((4,),)),
    (Part(1, 6, 2), ((6,),)),
    (Product(), ((4,), (4,))),
    (Shaped((2, 2)), ((4,),)),
    (DenseAtPositions((3, 4), 2), ((3, 4),)),
    (DenseAtPositions((2, 3, 2), 3, bias=False), ((2, 3, 2),)),
    (BatchNormalization((2, 3), STATISTICS, 1e-5), ((2, 3),)),
    (Scale((2, 3), (2, 1)), ((2, 3),)),
    (Scale((2, 3), (3,), bias=False), ((2, 3),)),
    (Mapped(torch.matmul, (Layout((1, 2, 3)), Layout((1, 3, 2))), Layout((1, 2, 2)), "product",
            linear=False), ((2, 3), (3, 2))),
]  # fmt: skip


LAYERS = [*OTHERS, *((layer, (layer.below,)) for layer in (*CONVOLUTIONS, *POOLINGS))]


@pytest.mark.parametrize(("layer", "shapes"), LAYERS, ids=str)
def test_layers_are_what_they_say(layer, shapes):
    check_layer(layer, *shapes)
    check_layer(layer, *shapes, steps=3)


@pytest.mark.parametrize("layer", [Delay(), PadFirst(), DropFirst()], ids=str)
def test_layers_in_time_are_what_they_say(layer):
    sequence = torch.randn(4, 3, 2, dtype=torch.float64)
    linear = layer.map(0, [sequence], None)
    moved = layer.value([sequence], None)
    assert linear.apply(sequence).equal(moved)
    u = torch.randn(moved.shape, dtype=torch.float64)
    assert float((moved * u).sum()) == pytest.approx(float((sequence * linear.adjoint(u)).sum()))
    if isinstance(layer, Delay):
        check_layer(layer, (2,), steps=4)


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_a_convolution_is_that_of_torch(layer):
    x, (rows, channels) = normal(5, *layer.below), layer.weight_shape()
    weights = Weights(normal(rows, channels), normal(channels) if layer.bias else None)
    kernel = weights.matrix.T.reshape(channels, layer.below[0] // layer.groups, *layer.window)
    plain = functional.conv1d if len(layer.window) == 1 else functional.conv2d
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    wanted = plain(x, kernel, weights.bias, *how)
    assert layer.shape() == tuple(wanted.shape[1:])
    found = layer.value([x.flatten(1)], weights)
    torch.testing.assert_close(found, wanted.flatten(1))
    patches = layer.inputs([x.flatten(1)]).view(5, layer.groups, -1, len(weights.matrix))
    groups = weights.matrix.view(-1, layer.groups, channels // layer.groups)
    by_patches = torch.einsum("ngpi,igc->ngcp", patches, groups).flatten(1)
    shift = layer.constant(0, [x.flatten(1)], weights)
    torch.testing.assert_close(by_patches + (0 if shift is None else shift), found)


@pytest.mark.parametrize("layer", POOLINGS, ids=str)
def test_average_pooling_is_that_of_torch(layer):
    x = normal(5, *layer.below)
    plain: Any = functional.avg_pool1d if len(layer.window) == 1 else functional.avg_pool2d
    wanted = plain(x, layer.window, layer.stride)
    assert layer.shape() == tuple(wanted.shape[1:])
    torch.testing.assert_close(layer.value([x.flatten(1)], None), wanted.flatten(1))


def test_attention_is_a_softmax_for_every_group():
    grouped, u = Grouped(Softmax(), 4), normal(3, 8)
    torch.testing.assert_close(grouped.forward(u), u.view(3, 2, 4).softmax(-1).flatten(1))
    v = grouped.forward(u)
    gap = grouped.potential_value(v) + grouped.conjugate_value(u) - (u * v).sum(-1)
    assert gap.abs().max() < 1e-12
    for t in (0.3, torch.tensor([[0.1], [1.0], [5.0]], dtype=torch.float64)):
        near = grouped.prox(u, t)
        torch.testing.assert_close(near, grouped.forward((u - near) / t))
    assert grouped.project(3 * u).view(3, 2, 4).sum(-1).sub(1).abs().max() < 1e-12


def test_an_expression_is_the_plain_function_and_affine_in_each_variable():
    network = Network()
    x, y = network.input(4), network.input(4)
    hidden = dense(concatenate(x, 2.0 * y), 3)
    gated = hidden[:2] * dense(y, 2, bias=False) - 1.0 * hidden[1:]
    first, second = hidden.weights, gated.arguments[0].arguments[1].weights  # type: ignore[attr-defined]
    values: dict[Any, Any] = {x: normal(5, 4), y: normal(5, 4).flip(0)}
    values |= {first: Weights(normal(8, 3), normal(3)), second: Weights(normal(4, 2), None)}
    h = torch.cat([values[x], 2 * values[y]], 1) @ values[first].matrix + values[first].bias
    wanted = h[:, :2] * (values[y] @ values[second].matrix) - h[:, 1:]
    torch.testing.assert_close(value_of(gated, values), wanted)
    points: list[tuple[Any, Tensor]] = [(x, values[x])]
    points += [(w, values[w].stacked()) for w in (first, second)]
    numbers = ((x + 2, values[x] + 2), (2 - x, 2 - values[x]), (x - 3, values[x] - 3))
    for expression, right in numbers:
        torch.testing.assert_close(value_of(expression, values), right)
    for variable, at in points:
        part = affine_in(gated, variable, values)
        offset = 0 if part.offset is None else part.offset
        torch.testing.assert_close(part.map.apply(at) + offset, wanted)


@dataclass(frozen=True)
class Own(Layer):
    """A layer of a user: x times a number, or something else."""

    kind: str = "right"

    def shape(self, *shapes):
        return (2,) if self.kind == "shape" else shapes[0]

    def value(self, arguments, weights):
        x = arguments[0]
        return {"bent": x + 1e-3 * x * x, "shifted": 3 * x + 1}.get(self.kind, 3 * x)

    def map(self, position, arguments, weights):
        if self.kind == "autograd":
            return super().map(position, arguments, weights)
        factor = 2.0 if self.kind == "map" else 3.0
        back = 2.0 if self.kind == "adjoint" else factor
        bound = 8.9 if self.kind == "bound" else 9.0
        return Given(lambda v: factor * v, lambda u: back * u, bound)


@dataclass(frozen=True)
class _OwnWeights(Layer):
    """x W, or x W W' with weights that stand twice."""

    twice: bool

    def shape(self, *shapes):
        return shapes[0] if self.twice else (3,)

    def weight_shape(self, *shapes):
        return (*shapes[0], 3)

    def value(self, arguments, weights):
        u = arguments[0] @ weights.matrix
        return u @ weights.matrix.T if self.twice else u


@pytest.mark.parametrize(
    "layer", [Own(), Own("shifted"), Own("autograd"), _OwnWeights(twice=False)], ids=str
)
def test_a_layer_of_ones_own_passes(layer):
    check_layer(layer, (4,))


class _Mixed(Own):
    """Inputs less their mean over the samples."""

    def value(self, arguments, weights):
        return arguments[0] - arguments[0].mean(-2, keepdim=True)


WRONG = [
    (_Mixed(), "mixes samples: of one alone it gives another value"),
    (Own("bent"), r"argument 0, is not affine: off by .* at \[.*\] and \["),
    (Own("map"), r"argument 0, has a linear map that is not its own.* at \["),
    (Own("adjoint"), r"argument 0, has an adjoint that is not that of its map.* at \["),
    (Own("bound"), r"argument 0, has a squared norm of at least 9.*bound is 8\.9, at \["),
    (Own("shape"), r"says that it has shape \(3, 2\) and gives \(3, 4\)"),
    (_OwnWeights(twice=True), "its weights, is not affine"),
]


@pytest.mark.parametrize(("layer", "words"), WRONG)
def test_a_wrong_layer_is_refused_with_the_point(layer, words):
    refuses(DeclarationError, words, check_layer, layer, (4,))


REFUSED: list[tuple[Any, str]] = [
    (lambda x, y, i, s: x + y, r"sum.*\(4,\).*\(3,\)"),
    (lambda x, y, i, s: apply(Part(2, 6), x), "2 to 6.*cut out of 4"),
    (lambda x, y, i, s: x[::2], "one after another"),
    (lambda x, y, i, s: convolution(i, 3, 7), r"\(7,\).*\(2, 5\)"),
    (lambda x, y, i, s: convolution(x, 3, 2), "one or two axes"),
    (lambda x, y, i, s: convolution(i, 3, (2, 2)), "window.*one number or 1"),
    (lambda x, y, i, s: average_pooling(i, 6), r"\(6,\).*\(2, 5\)"),
    (lambda x, y, i, s: concatenate(x, s), "Concatenation.*sequences"),
    (lambda x, y, i, s: dense(x, 0), "units"),
    (lambda x, y, i, s: dense(y, 2, weights=dense(x, 2).weights), r"\(3, 2\).*\(4, 2\)"),
    (lambda x, y, i, s: layers.delay(x), "delay.*sequence"),
    (lambda x, y, i, s: average_pooling(i, 0), "window must be a positive integer, got 0"),
    (lambda x, y, i, s: concatenate(), "Concatenation needs an expression"),
    (lambda x, y, i, s: concatenate(3), "expression.*int"),  # type: ignore[arg-type]
    (lambda x, y, i, s: dense(x, 4, weights=y), r"weights=x\.weights; got Input"),
    (lambda x, y, i, s: dense(x, 4, penalty=y), r"liftednet\.penalties.*got"),
    (lambda x, y, i, s: dense(x, 4, bias=y), "bias must be True or False, got"),
    (lambda x, y, i, s: x[0], r"slice.*x\[:10\]; got 0"),
    (lambda x, y, i, s: apply(Dense, x), "Layer object.*make one"),  # type: ignore[arg-type]
    (lambda x, y, i, s: apply(Dense(3)), "Dense needs an expression"),
    (lambda x, y, i, s: x * float("nan"), "finite numbers, got nan"),
    (lambda x, y, i, s: check_layer(Dense(3), 3), r"shapes such as"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "words"), REFUSED)
def test_what_does_not_meet_and_what_is_no_layer_is_refused(build, words):
    network = Network()
    x, y, image = network.input(4), network.input(3), network.input(2, 5)
    sequence, errors = network.input(4, sequence=True), (DataError, DeclarationError)
    refuses(errors, words, build, x, y, image, sequence)
