"""What a lifted recurrent network is, before it has seen data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from liftednet.activation import Activation
from liftednet.divergences import Divergence, Joint, Tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import Loss, PinnedLoss
from liftednet.validation import is_integer, require_positive

from .architecture import COUPLINGS


@dataclass(frozen=True)
class Cell:
    """One recurrent layer in one direction.

    Attributes:
        layer: from 0 at the input.
        backward: whether it runs from the last step to the first.
        inputs: features that come from below.
        units: states.
    """

    layer: int
    backward: bool
    inputs: int
    units: int


@dataclass(frozen=True, eq=False)
class RecurrentArchitecture:
    """Cells, divergence, loss and their weights in the joint objective.

    Lifted Recurrent Neural Networks, section 4.1, for several layers and both directions.

    Attributes:
        cells: layer by layer, forward before backward.
        outputs: units of the output.
        divergence: of every recurrent layer.
        loss: pinned to the last pre-activation.
        lam: weight of the divergences (the paper's lambda_0; the loss has lambda_1 = 1).
        rho: weight of the squared Frobenius norm of the recurrent weights (W, U_0), and of U_1.
        learned_start: whether the initial states are learned, by a step that comes before all.
    """

    cells: tuple[Cell, ...]
    outputs: int
    divergence: Divergence
    loss: PinnedLoss
    lam: float
    rho: tuple[float, float]
    learned_start: bool

    @property
    def inputs(self) -> int:
        """Features of every step."""
        return self.cells[0].inputs

    @property
    def top(self) -> tuple[int, ...]:
        """The numbers of the cells of the last layer."""
        last = self.cells[-1].layer
        return tuple(n for n, cell in enumerate(self.cells) if cell.layer == last)

    def above(self, cell: Cell) -> tuple[int, ...]:
        """Return the numbers of the cells that a cell's states go to."""
        return tuple(n for n, other in enumerate(self.cells) if other.layer == cell.layer + 1)

    def below(self, cell: Cell) -> tuple[int, ...]:
        """Return the numbers of the cells whose states come to a cell; none at the input."""
        return tuple(n for n, other in enumerate(self.cells) if other.layer == cell.layer - 1)

    def columns(self, cell: Cell) -> slice:
        """Return where a cell's units stand among all states of its layer."""
        return slice(cell.units, 2 * cell.units) if cell.backward else slice(0, cell.units)

    @property
    def weight_shapes(self) -> list[tuple[int, int]]:
        """(rows, units) of [W; U_0; start] of every cell, and (inputs, outputs) of U_1."""
        start = int(self.learned_start)
        cells = [(cell.units + cell.inputs + start, cell.units) for cell in self.cells]
        return [*cells, (sum(self.cells[n].units for n in self.top), self.outputs)]


def design_recurrent(
    input_size: int,
    hidden_size: int | Sequence[int],
    output_size: int,
    activation: Activation,
    loss: Loss,
    lam: float,
    rho: float | Sequence[float],
    divergence: str,
    bidirectional: bool,
    learned_start: bool,
) -> RecurrentArchitecture:
    """Return the architecture, from what a user gives at the door.

    Raises:
        DataError: sizes, lam or rho are not positive, or not as many as they should be.
        DeclarationError: activation, loss and divergence do not fit together.
    """
    hidden = tuple(hidden_size) if isinstance(hidden_size, Sequence) else (hidden_size,)
    for size in (input_size, *hidden, output_size):
        if not is_integer(size) or size < 1:
            raise DataError(
                "sizes must be positive integers, got "
                f"{input_size!r}, {hidden_size!r} and {output_size!r}."
            )
    if not hidden:
        raise DataError("hidden_size names no layer.")
    require_positive("lam", lam)
    rhos = tuple(rho) if isinstance(rho, Sequence) else (rho, rho)
    if len(rhos) != 2:
        raise DataError(f"rho must be one number, or two (recurrent, output); got {rho!r}.")
    for value in rhos:
        require_positive("rho", value)
    coupled = _coupled(activation, divergence)
    if not isinstance(loss, PinnedLoss):
        raise DeclarationError(
            f"a recurrent network needs a loss on its last pre-activation, such as CrossEntropy; "
            f"{type(loss).__name__} has output states of its own."
        )
    cells = _cells(int(input_size), tuple(int(units) for units in hidden), bidirectional)
    recurrent, output = map(float, rhos)
    return RecurrentArchitecture(
        cells, int(output_size), coupled, loss, float(lam), (recurrent, output), learned_start
    )


def _coupled(activation: Activation, divergence: str) -> Divergence:
    if not isinstance(activation, Activation):
        raise DeclarationError(
            f"activation must be an Activation, got {activation!r}; a function becomes one by "
            "Activation.from_function."
        )
    if divergence not in tuple(COUPLINGS):
        raise DeclarationError(
            f"divergence must be one of {', '.join(map(repr, COUPLINGS))}, got {divergence!r}."
        )
    coupled = COUPLINGS[divergence](activation)
    per_unit = activation.per_unit and activation.pre_units(1) == 1
    if not isinstance(coupled, Tight | Joint) or not per_unit:
        raise DeclarationError(
            f"{activation!r} cannot be the activation of a recurrent layer: it needs a potential "
            "or a forward map, and must act unit by unit, on one pre-activation for each state."
        )
    return coupled


def _cells(inputs: int, hidden: tuple[int, ...], bidirectional: bool) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    directions = (False, True) if bidirectional else (False,)
    for layer, units in enumerate(hidden):
        cells += [Cell(layer, backward, inputs, units) for backward in directions]
        inputs = units * len(directions)
    return tuple(cells)
