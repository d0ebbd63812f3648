"""Which parameters of a network's activations are variables of the training problem.

Lifted Neural Networks, section 9, names learned activations.
"""

from __future__ import annotations

from dataclasses import replace

from liftednet.activations import LeakyReLU, PReLU
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError
from liftednet.network import State
from liftednet.problems import SlopeFit

from .block import Block, Blocks, Structure


def learnable_states(structure: Structure) -> list[State]:
    """Return the states with slopes to learn: tight, and a leaky ReLU of one slope or many."""
    return [
        state
        for state, divergence in structure.divergences.items()
        if isinstance(divergence, Tight) and isinstance(divergence.activation, LeakyReLU | PReLU)
    ]


def refuse_fixed_activations(structure: Structure) -> None:
    """Raise `DeclarationError` where no layer has a parameter that can be learned."""
    if not learnable_states(structure):
        raise DeclarationError(
            'learn_activations needs a layer with LeakyReLU or PReLU, and divergence="tight": the '
            "joint divergence does not depend on the slope. The layers have "
            f"{[state.activation for state in structure.states]}."
        )


def learned_blocks(blocks: Blocks) -> list[Block]:
    """Return a block for every slope that is learned; it replaces the blocks' structure."""
    return [
        _slope_block(blocks, state, channel)
        for state in learnable_states(blocks.structure)
        for channel in range(len(_slopes(blocks, state)))
    ]


def _slope_block(blocks: Blocks, state: State, channel: int) -> Block:
    def fit() -> SlopeFit:
        states, u = blocks.values[state], blocks.pre_activation(state)
        mask = blocks.mask(state, state.argument)
        if mask is not None:
            states, u = states[mask], u[mask]
        width = u.shape[-1] // len(_slopes(blocks, state))
        units = slice(channel * width, (channel + 1) * width)
        return SlopeFit(states[..., units], u[..., units], blocks.lam(state))

    def assign(slope: float) -> None:
        slopes = list(_slopes(blocks, state))
        slopes[channel] = slope
        leaky = isinstance(blocks.divergence(state).activation, LeakyReLU)
        found = LeakyReLU(slope) if leaky else PReLU(slopes)
        divergences = {**blocks.structure.divergences, state: Tight(found)}
        blocks.structure = replace(blocks.structure, divergences=divergences)

    many = len(_slopes(blocks, state)) > 1
    number = state.name.removeprefix("states ")
    name = f"slope {number}.{channel + 1}" if many else f"slope {number}"
    return Block(name, fit, lambda: _slopes(blocks, state)[channel], assign)


def _slopes(blocks: Blocks, state: State) -> tuple[float, ...]:
    activation = blocks.divergence(state).activation
    if isinstance(activation, PReLU):
        return activation.slopes
    assert isinstance(activation, LeakyReLU)  # of learnable_states
    return (activation.alpha,)
