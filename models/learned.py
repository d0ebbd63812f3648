"""Which parameters of a network's activations are variables of the training problem.

Lifted Neural Networks, section 9, names learned activations.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from liftednet.activations import LeakyReLU
from liftednet.divergences import Tight
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.problems import Fit, Formulation, Link, Measure
from liftednet.problems.fit import Statement, parameter
from liftednet.solution import Solution, Status
from liftednet.solvers import Solver

from .block import Block, Blocks, Structure
from .graph import State

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

LEAST_SLOPE = 1e-4
_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class SlopeFit(Fit[float]):
    """min over alpha in [1e-4, 1] of lam (s / alpha + alpha t) / 2.

    What a tight divergence of a leaky ReLU (Lifted Neural Networks, eq. (8)) asks of its slope,
    with s the sum of squares of the negative states and t that of the negative pre-activations.

    Attributes:
        states: V, (samples, units).
        pre_activation: U, (samples, units).
        lam: the weight of the divergence, positive.
    """

    states: Tensor
    pre_activation: Tensor
    lam: float

    @cached_property
    def sums(self) -> tuple[float, float]:
        """(s, t) in float64."""
        pair = (self.states.double(), self.pre_activation.double())
        s, t = torch.stack([part.clamp(max=0).square().sum() for part in pair]).tolist()
        return s, t

    @property
    def terms_above(self) -> Sequence[Link]:
        """None: it is all g."""
        return ()

    def unknown(self) -> tuple[Expression, dict[str, cp.Variable]]:
        """Return alpha, named "slope"."""
        slope = cp.Variable(pos=True, name="slope")
        return slope, {"slope": slope}

    def like(self) -> Tensor:
        """Return a number."""
        return torch.zeros((), dtype=torch.float64)

    def prior(self, v: Expression, parameters: dict[str, cp.Parameter]) -> Statement:
        """Return lam (s / alpha + alpha t) / 2 and the limits of alpha."""
        s = parameter("s", (), parameters, nonneg=True)
        t = parameter("t", (), parameters, nonneg=True)
        value = self.lam / 2 * (s * cp.inv_pos(v) + t * v)
        return value, [v >= LEAST_SLOPE, v <= 1]

    def prior_data(self) -> dict[str, Tensor]:
        """Return s and t."""
        return {name: torch.tensor(x) for name, x in zip(("s", "t"), self.sums, strict=True)}

    def read(self, formulation: Formulation) -> float:
        """Return alpha of a solved formulation."""
        value = formulation.variables["slope"].value
        assert value is not None  # read from a solved formulation alone
        return float(value)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where the sums of squares are not finite."""
        if not all(value < float("inf") for value in self.sums):
            raise DataError(f"the negative states and pre-activations sum to {self.sums}.")

    def refuse_bad_start(self, start: float) -> None:
        """Raise `DataError` where a slope is outside of (0, 1]."""
        if not 0 < start <= 1:
            raise DataError(f"a slope must be in (0, 1], got {start}.")

    def signature(self) -> Hashable:
        """Return lam."""
        return SlopeFit, self.lam

    def measure(self, value: float) -> Measure:
        """Return the objective, and the projected gradient over its larger term."""
        s, t = self.sums
        objective = self.lam / 2 * (s / value + value * t)
        scale = max(s / value**2, t)
        if scale == 0:
            return Measure(objective, 0.0)
        moved = min(max(value - (t - s / value**2) / scale, LEAST_SLOPE), 1.0)
        return Measure(objective, abs(moved - value))


@dataclass(frozen=True)
class SlopeSolver(Solver[SlopeFit, float, None]):
    """Solves a slope fit in closed form: alpha = sqrt(s / t), inside its limits."""

    name: str = field(default="slope", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for a slope fit."""
        return None if isinstance(problem, SlopeFit) else "it solves slope fits alone"

    def solve(
        self, problem: SlopeFit, start: float | None = None, cache: None = None
    ) -> Solution[float]:
        """Return the exact minimizer; a start stays where every slope is as good."""
        started = time.perf_counter()
        s, t = problem.sums
        slope = (s / t) ** 0.5 if t > 0 else (1.0 if s > 0 else start or 1.0)
        slope = min(max(slope, LEAST_SLOPE), 1.0)
        objective, residual = problem.measure(slope)
        seconds = time.perf_counter() - started
        return Solution(
            slope, objective, residual, 0, _TOLERANCE, Status.STALLED, seconds, self.name
        )


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

    return Block(
        f"slope {state.name.removeprefix('states ')}", fit, partial(_slope, blocks, state), assign,
        SlopeSolver(),
    )  # fmt: skip


def _slope(blocks: Blocks, state: State) -> float:
    activation = blocks.divergence(state).activation
    assert isinstance(activation, LeakyReLU)  # of learnable_states
    return activation.alpha
