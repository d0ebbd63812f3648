"""Which parameters of a network's activations are variables of the training problem."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import Clipped, LeakyReLU
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError

from .architecture import Architecture
from .descent import Block
from .limits import LimitFit, Limits, LimitSolver
from .slopes import SlopeFit, SlopeSolver


def learnable_layers(architecture: Architecture) -> list[int]:
    """Return the layers with a parameter to learn: tight, and a leaky ReLU or a clipped map."""
    return [
        number
        for number, divergence in enumerate(architecture.divergences)
        if isinstance(divergence, Tight) and isinstance(divergence.activation, LeakyReLU | Clipped)
    ]


def refuse_fixed_activations(architecture: Architecture) -> None:
    """Raise `DeclarationError` where no layer has a parameter that can be learned."""
    if not learnable_layers(architecture):
        raise DeclarationError(
            "learn_activations needs a hidden layer with LeakyReLU or Clipped, and "
            'divergence="tight": the joint divergence does not depend on slope and box. The layers '
            f"have {architecture.activations}."
        )


def slope_block(
    layer: int, slope: float, fit: Callable[[], SlopeFit], assign: Callable[[Activation], None]
) -> Block:
    """Return the block of a leaky ReLU's slope.

    Args:
        layer: its number, from 0.
        slope: so far.
        fit: returns its subproblem.
        assign: puts another activation in its place.
    """
    return Block(
        f"slope {layer + 1}",
        fit,
        lambda: slope,
        lambda found: assign(LeakyReLU(found)),
        SlopeSolver(),
    )


def limit_block(
    layer: int, fit: Callable[[], LimitFit], assign: Callable[[Activation, Tensor], None]
) -> Block:
    """Return the block of a clipped layer's box.

    Args:
        layer: its number, from 0.
        fit: returns its subproblem.
        assign: puts another activation and the moved states in their places.
    """

    def take(limits: Limits) -> None:
        assign(Clipped(*limits), fit().moved(limits))

    return Block(f"limits {layer + 1}", fit, lambda: fit().box, take, LimitSolver())
