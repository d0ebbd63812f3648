"""A last layer that projects on a polyhedron: limits that scores meet at every input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.constraints import Constraint, Linear
from liftednet.errors import DataError
from liftednet.layers.expression import Context, Variable
from liftednet.layers.layer import Arguments, Layer
from liftednet.samples import Weights
from liftednet.sets.constraint import refuse_contradictions, require_constraints
from liftednet.sets.polyhedron import nearest_in_polyhedron, stacked, trained_in_polyhedron

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Projection(Layer):
    """v = argmin |v - u|^2 subject to l <= v C + x M <= h, x the raw inputs of the sample.

    It is not affine, and so for minibatches and Gauss-Newton alone.

    Attributes:
        of_outputs: C', (limits, outputs).
        of_inputs: M', (limits, features of all inputs side by side).
        lower: l, (limits,), None where there is none.
        upper: h, likewise.
    """

    of_outputs: Rows
    of_inputs: Rows
    lower: tuple[float | None, ...]
    upper: tuple[float | None, ...]
    affine = False

    def __repr__(self) -> str:
        """Count the limits, of which there may be many."""
        return f"Projection({len(self.of_outputs)} limits of {len(self.of_outputs[0])} outputs)"

    def lines(self, first: int = 0, name: str = "output") -> Iterator[str]:
        """Yield every limit, such as "0 <= output 1 - 2 output 0 + input 3 <= 1".

        Args:
            first: number of the first output.
            name: of what is within them.
        """
        for row, move, low, high in zip(
            self.of_outputs, self.of_inputs, self.lower, self.upper, strict=True
        ):
            parts = [(x, f"{name} {n}") for n, x in enumerate(row, first) if x]
            parts += [(x, f"input {n}") for n, x in enumerate(move) if x]
            text = "".join(_part(*part) for part in parts)
            text = f"-{text[3:]}" if text.startswith(" - ") else text.removeprefix(" + ")
            if low == high:
                yield f"{text} = {low:g}"
            else:
                above = "" if low is None else f"{low:g} <= "
                yield f"{above}{text}" + ("" if high is None else f" <= {high:g}")

    def value(self, arguments: Arguments, weights: Weights | None) -> Tensor:
        """Return the nearest points, (samples, outputs), of u and of the ends."""
        return self._nearest(nearest_in_polyhedron, arguments)

    def trained(self, arguments: Arguments) -> Tensor:
        """Return the same, through which minibatches train (see `trained_in_polyhedron`)."""
        return self._nearest(trained_in_polyhedron, arguments)

    def _nearest(self, point: Callable[..., Tensor], arguments: Arguments) -> Tensor:
        u, ends = arguments
        rows = torch.tensor(self.of_outputs, dtype=torch.float64, device=u.device)
        return point(rows, u, *ends.chunk(2, dim=-1))


def _part(factor: float, name: str) -> str:
    size = "" if abs(factor) == 1 else f"{abs(factor):g} "
    return f" {'-' if factor < 0 else '+'} {size}{name}"


class Ends(Context):
    """l - x M and h - x M of every sample, side by side, (samples, 2 limits).

    Attributes:
        layer: whose ends they are.
        label: the targets in whose units they are.
    """

    name = "the ends of limits"
    sequence = False

    def __init__(self, layer: Projection, label: Variable) -> None:
        """Keep both."""
        self.layer, self.label = layer, label

    def of(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the ends at raw inputs, each (samples, features)."""
        x = torch.cat(list(inputs), dim=-1).double()
        moved = x @ torch.tensor(self.layer.of_inputs, dtype=torch.float64, device=x.device).T
        sides = (self.layer.lower, -torch.inf), (self.layer.upper, torch.inf)
        both = [[none if end is None else end for end in ends] for ends, none in sides]
        ends = torch.tensor(both, dtype=torch.float64, device=x.device)
        return torch.cat([end - moved for end in ends], dim=-1)

    def on(self, ends: Tensor, center: Tensor, scale: Tensor) -> Tensor:
        """Return the ends for v where v scale + center meets them; scale is one number, (1,)."""
        rows = torch.tensor(self.layer.of_outputs, dtype=torch.float64, device=ends.device)
        return (ends - (rows @ center.double()).repeat(2)) / scale.double()


def projection(constraints: Sequence[Constraint], outputs: int, features: int) -> Projection:
    """Return the layer that holds constraints within a sample.

    Args:
        constraints: `Bounds` and `Linear`.
        outputs: units of the scores.
        features: of all inputs.

    Raises:
        DataError: one does not fit, or they contradict each other at every input.
        DeclarationError: one is no constraint.
    """
    given = require_constraints(constraints, "within")
    each = [one.each(outputs) for one in given]
    moves = np.concatenate(
        [_moved(one, features, len(x.lower)) for one, x in zip(given, each, strict=True)], 1
    )
    limits = stacked(each, outputs)
    kept = np.isfinite(limits.lower) | np.isfinite(limits.upper)
    free = [x for x in given if not (isinstance(x, Linear) and x.inputs is not None)]
    refuse_contradictions(free, 1, outputs)

    def rows(matrix: Any) -> Rows:
        return tuple(map(tuple, matrix[kept].tolist()))

    def ends(given: Any) -> tuple[float | None, ...]:
        return tuple(end if np.isfinite(end) else None for end in given[kept].tolist())

    return Projection(
        rows(limits.matrix.toarray()), rows(moves.T), ends(limits.lower), ends(limits.upper)
    )


def _moved(one: Constraint, features: int, limits: int) -> Any:
    """Return M of a constraint, (features, limits).

    Raises:
        DataError: it has another shape.
    """
    given = getattr(one, "inputs", None)
    moved = np.zeros((features, limits)) if given is None else given
    if moved.shape != (features, limits):
        raise DataError(
            f"the inputs of {one!r} must have the shape {(features, limits)}, for {features} "
            f"features and {limits} limits; got {moved.shape}."
        )
    return moved
