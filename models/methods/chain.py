"""Plain layers one upon another, passed forth and back without a graph of autograd.

A product of a hundred rows takes no longer than a node of a graph, which it needs in neither pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from liftednet.layers.expression import Applied, Input
from liftednet.network import State
from liftednet.products import linear, product
from liftednet.samples import Weights

from ..block import Structure
from ..cells import Rule
from ..forward_pass import Values

Lift = Callable[[State, Tensor], Rule | None]  # None where states are their pre-activations


@dataclass(frozen=True)
class Chain:
    """States one above another, each of a plain layer of the one below.

    Attributes:
        source: below the first layer.
        states: from the first to the last, above each layer but the topmost.
    """

    source: Input
    states: tuple[State, ...]

    def forth(self, values: Values, weights: Sequence[Weights], lift: Lift) -> PassedChain:
        """Return the values of all states, and what passing back needs."""
        found, rows = dict(values), values[self.source]
        inputs, rules = [rows], list[tuple[Tensor, Rule | None]]()
        for state, layer in zip(self.states, weights, strict=False):
            u = linear(rows, layer.matrix, layer.bias)
            rule = lift(state, u)
            found[state] = rows = u if rule is None else rule.forward(u)
            inputs.append(rows)
            rules.append((u, rule))
        top = weights[-1]
        return PassedChain(found, linear(rows, top.matrix, top.bias), inputs, rules, weights)


@dataclass(frozen=True)
class PassedChain:
    """A chain after its forward pass.

    Attributes:
        values: those given, and the states.
        output: X W + b of the topmost layer.
        inputs: X of each layer.
        rules: the pre-activations of each state, and its rule.
        weights: of each layer.
    """

    values: Values
    output: Tensor
    inputs: list[Tensor]
    rules: list[tuple[Tensor, Rule | None]]
    weights: Sequence[Weights]

    def back(self, slope: Tensor) -> list[Tensor]:
        """Return what is asked of X W + b of each layer, of which `slope` is the topmost's."""
        asked = [slope]
        for above, states, (u, rule) in zip(
            self.weights[:0:-1], self.inputs[:0:-1], self.rules[::-1], strict=True
        ):
            push = product(asked[-1], above.matrix.T)
            asked.append(push if rule is None else rule.asked(u, states, push))
        return asked[::-1]


def chain_of(structure: Structure) -> Chain | None:
    """Return the chain that a network is, or None where it is another graph."""
    network, states = structure.network, tuple(structure.states)
    if len(network.terms) != 1 or len(network.inputs) != 1:
        return None
    source, layers = network.inputs[0], [*(x.argument for x in states), network.terms[0].argument]
    for below, layer in zip((source, *states), layers, strict=True):
        if not isinstance(layer, Applied) or not layer.layer.plain or layer.sequence:
            return None
        if layer.arguments[0] is not below:
            return None
    own = [layer.weights for layer in layers if isinstance(layer, Applied)]
    return Chain(source, states) if own == structure.parameters else None
