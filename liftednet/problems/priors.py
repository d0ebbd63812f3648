"""What a block has of its own, beside what layers above ask of it: potentials and penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Divergence
from liftednet.lazy import cvxpy as cp
from liftednet.penalties import Penalty
from liftednet.problems.fit import Formulation, Statement
from liftednet.samples import Weights
from liftednet.sets.penalty import Judgement


@dataclass(frozen=True, eq=False)
class BoxedStates:
    """lam Phi of the states that count; the others are 0.

    Attributes:
        divergence: gives Phi and its domain, bounds included.
        lam: its weight.
        shape: of the states, (samples, units) or (steps, samples, units).
        counted: (steps, samples) booleans, or None where all count.
        type: a tensor whose type and device the states have.
    """

    divergence: Divergence
    lam: float
    shape: tuple[int, ...]
    counted: Tensor | None
    type: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""
        return self.type.dtype

    def like(self) -> Tensor:
        """Return zeros of the shape of the states."""
        return self.type.new_zeros(self.shape)

    def packed(self, value: Tensor) -> Tensor:
        """Return the states."""
        return value

    def exact(self, value: Tensor) -> Tensor:
        """Return the states in float64, inside the ends that they are rounded to."""
        return in_float64(self.divergence.activation, value)

    def unpacked(self, v: Tensor) -> Tensor:
        """Return the states in the block's type."""
        return v.to(self.type)

    def value(self, v: Tensor) -> Tensor:
        """Return lam Phi(v), a scalar."""
        rows = self.divergence.activation.potential_value(v)
        return self.lam * (rows if self.counted is None else rows.where(self.counted, 0.0)).sum()

    def prox(self, v: Tensor, t: float) -> Tensor:
        """Return the prox of t lam Phi, 0 where nothing counts."""
        flat = self.divergence.activation.prox(v.flatten(0, -2), t * self.lam)
        return self._counted(flat.view(v.shape))

    def judged(self, v: Tensor, gradient: Tensor, s: float) -> Judgement:
        """Return the prox-gradient mapping of a step 1 / s."""
        return Judgement(s * (v - self.prox(v - gradient / s, 1 / s)))

    def _counted(self, v: Tensor) -> Tensor:
        return v if self.counted is None else v.where(self.counted.unsqueeze(-1), 0.0)

    def free(self, gradient: Tensor) -> None:
        """Return None: all states have a potential."""

    @property
    def modulus(self) -> float:
        """That of lam Phi, lam / L with L a Lipschitz constant of phi; 0 where phi has none."""
        lipschitz = self.divergence.activation.lipschitz
        return self.lam / lipschitz if lipschitz else 0.0

    def obstacle(self) -> str | None:
        """Ask for a prox."""
        activation = self.divergence.activation
        if not (activation.per_unit or activation.declares("prox")):
            return f"it needs `prox` of {activation!r}"
        return None

    def stated(self, v: cp.Expression) -> Statement:
        """Return lam Phi(v) and its domain."""
        activation = self.divergence.activation
        if self.counted is None:
            return self.lam * activation.potential(v), activation.domain(v)
        rows = self.counted.flatten().cpu().numpy()
        held = [] if rows.all() else [v[~rows] == 0]
        return self.lam * activation.potential(v[rows]), [*activation.domain(v[rows]), *held]

    def unknown(self) -> tuple[cp.Expression, dict[str, cp.Variable]]:
        """Return the states, named "states"."""
        rows = self.like().flatten(0, -2).shape
        states = cp.Variable(tuple(rows), name="states")
        return states, {"states": states}

    def read(self, formulation: Formulation) -> Tensor:
        """Return the states of a solved formulation, inside their domain."""
        found = torch.from_numpy(formulation.variables["states"].value)
        return self._counted(self.divergence.activation.project(found).view(self.shape))


@dataclass(frozen=True, eq=False)
class PenalizedWeights:
    """pi(W) of weights [W; b].

    Attributes:
        penalty: pi.
        weights: any of the shape and type of the block's.
    """

    penalty: Penalty
    weights: Weights

    @property
    def dtype(self) -> torch.dtype:
        """Of [W; b]."""
        return self.weights.matrix.dtype

    def like(self) -> Tensor:
        """Return [W; b]."""
        return self.weights.stacked()

    def packed(self, value: Weights) -> Tensor:
        """Return [W; b]."""
        return value.stacked()

    def exact(self, value: Weights) -> Tensor:
        """Return [W; b] in float64."""
        return value.stacked().double()

    def unpacked(self, v: Tensor) -> Weights:
        """Return W and b in the block's type."""
        return self.weights.like(v.to(self.weights.matrix))

    def _matrix(self, v: Any) -> Any:
        return v[: len(self.weights.matrix)]

    def value(self, v: Tensor) -> Tensor:
        """Return pi(W), a scalar."""
        return self.penalty.value(self._matrix(v))

    def prox(self, v: Tensor, t: float) -> Tensor:
        """Return the prox of t pi on W, with b as it is."""
        matrix = self.penalty.prox(self._matrix(v), t)
        return torch.cat([matrix, v[len(matrix) :]])

    def judged(self, v: Tensor, gradient: Tensor, s: float) -> Judgement:
        """Return what the penalty tells of W, and the gradient in b."""
        found = self.penalty.judged(self._matrix(v), self._matrix(gradient), s)
        return found._replace(
            violation=torch.cat([found.violation, gradient[len(self._matrix(v)) :]])
        )

    def free(self, gradient: Tensor) -> Tensor | None:
        """Return the part of a gradient that is of b, which is free; None without one."""
        if self.weights.bias is None:
            return None
        return torch.cat([torch.zeros_like(self._matrix(gradient)), gradient[-1:]])

    @property
    def modulus(self) -> float:
        """0: b is free."""
        return 0.0

    def obstacle(self) -> str | None:
        """Ask for a prox."""
        return None if self.penalty.proximable else f"it needs `prox` of {self.penalty!r}"

    def stated(self, v: cp.Expression) -> Statement:
        """Return pi(W) and its domain."""
        matrix = self._matrix(v)
        return self.penalty.expression(matrix), self.penalty.domain(matrix)

    def unknown(self) -> tuple[cp.Expression, dict[str, cp.Variable]]:
        """Return [W; b] of "weight" and "bias"."""
        rows, columns = self.weights.matrix.shape
        weight = cp.Variable((rows, columns), name="weight")
        if self.weights.bias is None:
            return weight, {"weight": weight}
        bias = cp.Variable((1, columns), name="bias")
        return cp.vstack([weight, bias]), {"weight": weight, "bias": bias}

    def read(self, formulation: Formulation) -> Tensor:
        """Return [W; b] of a solved formulation, W inside its domain."""
        parts = [torch.from_numpy(variable.value) for variable in formulation.variables.values()]
        if self.penalty.closed_form and self.penalty.proximable:  # others have but CVXPY's domain
            parts[0] = self.penalty.project(parts[0])
        return torch.cat(parts)


Prior = BoxedStates | PenalizedWeights


def in_float64(activation: Activation, states: Tensor) -> Tensor:
    """Return states in float64, at an end of the domain where they are it as their type has it."""
    z = states.double()
    if states.dtype is torch.float64 or not activation.per_unit:
        return z
    inside = activation.project(z)
    return torch.where(inside.to(states.dtype) == states, inside, z)
