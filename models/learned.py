"""Which parameters of a network's activations are variables of the training problem.

Lifted Neural Networks, section 9, names learned activations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from liftednet.activations import LeakyReLU
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError
from liftednet.network import State
from liftednet.problems import SlopeFit

from .block import Block, Blocks, Structure


def learnable_states(structure: Structure) -> list[State]:
    """Return the states with a slope to learn: tight, and a leaky ReLU."""
    return [
        state
        for state, divergence in structure.divergences.items()
        if isinstance(divergence, Tight) and isinstance(divergence.activation, LeakyReLU)
    ]


def refuse_fixed_activations(structure: Structure) -> None:
    """Raise `DeclarationError` where no layer has a parameter that can be learned."""
    if not learnable_states(structure):
        raise DeclarationError(
            'learn_activations needs a hidden layer with LeakyReLU, and divergence="tight": the '
            "joint divergence does not depend on the slope. The layers have "
            f"{[state.activation for state in structure.states]}."
        )


def learned_blocks(blocks: Blocks) -> list[Block]:
    """Return a block for every slope that is learned; it replaces the blocks' structure."""
    return [_slope_block(blocks, state) for state in learnable_states(blocks.structure)]


def _slope_block(blocks: Blocks, state: State) -> Block:
    def fit() -> SlopeFit:
        states, u = blocks.values[state], blocks.pre_activation(state)
        mask = blocks.mask(state, state.argument)
        if mask is not None:
            states, u = states[mask], u[mask]
        return SlopeFit(states, u, blocks.lam(state))

    def assign(slope: float) -> None:
        divergences = {**blocks.structure.divergences, state: Tight(LeakyReLU(slope))}
        blocks.structure = replace(blocks.structure, divergences=divergences)

    name = f"slope {state.name.removeprefix('states ')}"
    return Block(name, fit, partial(_slope, blocks, state), assign)


def _slope(blocks: Blocks, state: State) -> float:
    activation = blocks.divergence(state).activation
    assert isinstance(activation, LeakyReLU)  # of learnable_states
    return activation.alpha
