"""The recurrent network as a graph."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations import ReLU
from liftednet.divergences import Raw, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import (
    Expression,
    concatenate,
    delay,
    dense,
    early,
    first_step,
    late,
    turn,
)
from liftednet.losses import CrossEntropy, Loss, PinnedLoss
from liftednet.network import Network, State
from liftednet.samples import Weights
from liftednet.starts import gaussian, identity, orthogonal
from liftednet.validation import is_integer, require_flag, require_positive, require_seed

from .block import Blocks, Structure
from .data import Data
from .diagnosis import is_useless
from .lifted import Lifted
from .methods import FullBatch, GaussNewton, Method, Minibatch
from .methods.descent import AnySolver
from .run import tracked
from .settings import Penalties, each_layer
from .standardization import Standardization
from .starts import Start, settled_start, start_named

_LARGEST_STATE = 1e6  # beyond it, squares of states cancel what float64 has left
_EPOCHS = 30  # at least, of minibatches
_MOST_WORK = 1e8  # answers times weights of a Gauss-Newton step that takes a few seconds
_TOLERANCE = 1e-4  # of its gradient, from which more steps teach no more (recurrent_defaults.md)
_MANY = 1000  # sequences, enough for minibatches
_TRIED, _TRIAL = ("orthogonal", "gaussian", "orthogonal"), 8  # starts, and steps with each
_LONGEST = "identity"  # where none of them learns: it remembers most steps, and learns sums worst
Square = Callable[[int, float, torch.Generator], Tensor]
RECURRENT_STARTS: dict[str, Square] = {
    "auto": lambda size, radius, _: 0.9 * radius * identity(size),
    "identity": lambda size, radius, _: radius * identity(size),
    "orthogonal": lambda size, radius, generator: radius * orthogonal(size, generator),
    "gaussian": gaussian,
}


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
class CellWeights:
    """One recurrent layer in one direction: H_t = phi(H_{t-1} W + X_t U_0 + b_0).

    Attributes:
        recurrent: W, (units, units).
        inputs: U_0, (features, units).
        bias: b_0, (units,).
        initial: the state before the first step, (units,).
        backward: whether it runs from the last step to the first.
    """

    recurrent: Tensor
    inputs: Tensor
    bias: Tensor
    initial: Tensor
    backward: bool


class LiftedRNN(Lifted):
    """A recurrent network whose states are variables, trained by convex subproblems.

    min over W, U_0, b_0, U_1, b_1, H of lam sum_t D(H_t, H_{t-1} W + X_t U_0 + b_0)
    + sum_t loss(y_t, H_t U_1 + b_1) + rho_0 |W; U_0|_F^2 + rho_1 |U_1|_F^2;
    Lifted Recurrent Neural Networks, section 4.1, with its lambda_1 = 1 and lambda_0 = lam / 2.

    Args:
        input_size: features of every step.
        hidden_size: units of the recurrent layer, or of each of several layers.
        output_size: units of the output.
        activation: of the recurrent layers, acting unit by unit.
        loss: CrossEntropy, BinaryCrossEntropy, SquaredError or another pinned loss.
        lam: weight of the divergences, which "gauss-newton" keeps at zero.
        rho: weight of the squared Frobenius norms, one number or (recurrent, output); None for 3,
            less before flat activations (see `Lifted`), and where there is a penalty.
        divergence: "tight" (zero at the forward pass) or "joint" (states convex over time).
        start: recurrent weights "identity", "orthogonal" or "gaussian", or all weights; "auto" for
            the best of three after some steps of "gauss-newton" (the identity, where none
            has learned anything), else 0.9 times the identity.
        spectral_radius: largest absolute eigenvalue of the first recurrent weights.
        bidirectional: whether every layer also runs from the last step to the first.
        learn_initial_state: whether the states before the first step are learned, or 0.
        state_solver: "auto" (two Newton steps over all time a sweep), "newton-over-time" (exact),
            "red-black", "cyclic" (the paper), or such a solver with options of its own.
        proximity: see `Lifted`.
        method: see `Lifted`; "full" (block-coordinate descent) or "gauss-newton" (weights and
            states together), here without extrapolation and with fifty sweeps or steps at most.
            "auto" is "gauss-newton", but minibatches where that would take many minutes or cannot
            be used, and "full" where the divergence is not tight.
        penalty: see `Lifted`.
        solver: see `Lifted`; for the weights.
        seed: see `Lifted`.
        dtype: torch.float64, or torch.float32, whose rounding long sequences amplify.
        device: see `Lifted`.
        warm_start: see `Lifted`.
        refit_output: see `Lifted`.
        standardize: see `Lifted`.

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activation, loss, divergence and solvers do not fit together.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import GaussNewton, LiftedRNN
        >>> x, y = data.echo(samples=30, length=20, lag=1, classes=3)
        >>> model = LiftedRNN(3, 4, 3, start="orthogonal", method=GaussNewton(steps=10)).fit(x, y)
        >>> bool((model.predict(x) == y)[:, 1:].float().mean() > 0.9)  # no one knows the first
        True
    """

    default_rho = 3.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int | Sequence[int],
        output_size: int,
        activation: Activation | None = None,
        loss: Loss | None = None,
        lam: float = 10.0,
        rho: float | Sequence[float] | None = None,
        divergence: str = "tight",
        *,
        start: Start = "auto",
        spectral_radius: float = 1.0,
        bidirectional: bool = False,
        learn_initial_state: bool = False,
        state_solver: AnySolver = "auto",
        proximity: float | None = None,
        method: str | Method = "auto",
        penalty: Penalties | None = None,
        solver: AnySolver = "auto",
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        warm_start: bool = False,
        refit_output: bool = False,
        standardize: bool = True,
    ) -> None:
        """Check what can be checked before there are data."""
        hidden = _checked_sizes(input_size, hidden_size, output_size)
        require_flag("bidirectional", bidirectional)
        require_flag("learn_initial_state", learn_initial_state)
        self.loss = _pinned(CrossEntropy() if loss is None else loss)
        self.activation = _by_unit(ReLU() if activation is None else activation)
        self.layer_cells = cells_of(int(input_size), hidden, bidirectional)
        self.learn_initial_state, self.spectral_radius = learn_initial_state, spectral_radius
        self.output_size = int(output_size)
        if isinstance(start, str):
            start_named(start, RECURRENT_STARTS)
        require_positive("spectral_radius", spectral_radius)
        network = recurrent(
            self.layer_cells, self.output_size, self.activation, self.loss, learn_initial_state
        )
        super().__init__(
            network, lam, rho, divergence, penalty=penalty, method=method, start=start,
            solver=solver, state_solver=state_solver, proximity=proximity, seed=seed, dtype=dtype,
            device=device, warm_start=warm_start, refit_output=refit_output,
            standardize=standardize,
        )  # fmt: skip

    def _method(self, structure: Structure) -> Method:
        if self.method == "full" or (self.method == "auto" and self.divergence != "tight"):
            return FullBatch(50, extrapolation=False)
        if self.method != "auto":
            return super()._method(structure)
        together = GaussNewton(tolerance=_TOLERANCE)
        try:
            together.refuse(structure, multipliers=False)
        except DeclarationError:
            return Minibatch(_EPOCHS)
        return together

    def _suited(
        self, method: Method, structure: Structure, X: Any, sample_weight: Any
    ) -> tuple[Method, Structure]:
        return self._by_size(method, X), structure

    def _by_size(self, method: Method, X: Any) -> Method:
        if self.method != "auto" or isinstance(method, FullBatch):
            return method
        if isinstance(X, DataLoader):
            return Minibatch(_EPOCHS)
        samples, steps = (*getattr(X, "shape", ()), 0, 0)[:2]
        samples = int(processes.total_of(samples))
        weights = sum(math.prod(p.shape) for p in self.network.parameters)
        fast = samples < _MANY or samples * steps * weights <= _MOST_WORK
        if fast and isinstance(method, GaussNewton):
            return method
        batches = max(1, -(-samples // Minibatch().batch_size))
        return Minibatch(max(_EPOCHS, Minibatch().epochs_of(batches)))

    def _begun(
        self, structure: Structure, data: Data, standardization: Standardization, method: Method,
        progress: bool,
    ) -> Blocks:  # fmt: skip
        """Return the blocks of a fit, after some steps from the best of several starts."""
        again = self.warm_start and self.is_fitted
        if self.start != "auto" or again or not isinstance(method, GaussNewton):
            return super()._begun(structure, data, standardization, method, progress)
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        brief = replace(method, steps=min(method.steps, _TRIAL))

        def tried(start: str) -> Blocks:
            weights = [layer.to(data.like) for layer in self._drawn(start, generator)]
            weights = settled_start(structure, weights, standardization.still)
            blocks = self._blocks_at(structure, data, weights)
            self._refuse_start(blocks)
            blocks.pass_forward()
            with torch.no_grad():
                deque(brief.take_steps(blocks), maxlen=0)
            return blocks

        starts = tracked(_TRIED, "starts", progress)
        best = min(map(tried, starts), key=Blocks.objective)
        return tried(_LONGEST) if is_useless(structure, data, best.values) else best

    def _rhos(self, layers: int) -> Sequence[float]:
        """Return rho of each layer's weights, of (recurrent, output) where two are given."""
        if not isinstance(self.rho, Sequence) or len(self.rho) != 2:
            return super()._rhos(layers)
        recurrent_rho, output_rho = self.rho
        return each_layer("rho", (*(recurrent_rho,) * (layers - 1), output_rho), layers)

    def _drawn(self, start: str, generator: torch.Generator) -> list[Weights]:
        """Return W of the start times the radius, other entries of variance 1 / inputs."""
        square, drawn = RECURRENT_STARTS[start], []
        *cells, readout = self.network.parameters
        for cell, parameter in zip(self.layer_cells, cells, strict=True):
            rows, units = parameter.shape
            parts = [square(units, self.spectral_radius, generator)]
            parts.append(_normal(cell.inputs, units, generator))
            parts.append(torch.zeros(rows - units - cell.inputs, units))
            drawn.append(Weights(torch.cat(parts), torch.zeros(units)))
        return [*drawn, Weights(_normal(*readout.shape, generator), torch.zeros(readout.shape[1]))]

    def _refuse_start(self, blocks: Blocks) -> None:
        """Refuse a start whose forward pass leaves the range in which a solve keeps digits.

        Raises:
            DataError: the largest state is not finite, or beyond a million.
        """
        ends = [float(state.abs().max()) if state.numel() else 0.0 for state in blocks.states]
        largest = float(processes.largest(ends).max())
        if not largest <= _LARGEST_STATE:  # also where it is NaN
            start = self.start if isinstance(self.start, str) else "given"
            raise DataError(
                f"the start {start!r} with spectral radius {self.spectral_radius:g} overflows: "
                f"over {blocks.states[0].shape[0]} steps its forward pass grows to {largest:.3g}. "
                "Use a smaller spectral_radius, a saturating activation, or smaller inputs."
            )

    def _settings(self) -> dict[str, Any]:
        hidden = [cell.units for cell in self.layer_cells if not cell.backward]
        found = {
            "input_size": self.layer_cells[0].inputs,
            "hidden_size": hidden,
            "output_size": self.output_size,
            "activation": self.activation,
            "loss": self.loss,
            **super()._settings(),
        }
        return {**found, "bidirectional": True} if self.bidirectional else found

    @property
    def bidirectional(self) -> bool:
        """Whether every layer also runs from the last step to the first."""
        return any(cell.backward for cell in self.layer_cells)

    @property
    def cells(self) -> tuple[CellWeights, ...]:
        """The weights of every cell in parts, layer by layer, forward before backward."""
        return tuple(
            _cell_weights(cell, layer, self.activation, self.learn_initial_state)
            for cell, layer in zip(self.layer_cells, self.weights, strict=False)
        )

    @property
    def readout(self) -> Weights:
        """U_1 (states, outputs) and b_1 (outputs,)."""
        return self.weights[-1]


def recurrent(
    cells: Sequence[Cell],
    outputs: int,
    activation: Activation,
    loss: PinnedLoss,
    learned_start: bool = False,
) -> Network:
    """Return layers of cells and a readout, each cell in its own order of time.

    Lifted Recurrent Neural Networks, section 3. A learned initial state is a step before all,
    driven by a weight of its own.
    """
    network, before = Network(), int(learned_start)
    x: Expression = network.input(cells[0].inputs, sequence=True)
    below: Expression = x
    for layer in range(cells[-1].layer + 1):
        seen = []
        for cell in (cell for cell in cells if cell.layer == layer):
            own = turn(below) if cell.backward else below
            if before:
                longer = early(own)
                own = concatenate(longer, first_step(early(x)))
            h: State = network.state(activation, units=cell.units, early=before)
            h.of(dense(concatenate(delay(h), own), cell.units))
            natural: Expression = late(h) if before else h
            seen.append(turn(natural) if cell.backward else natural)
        below = concatenate(*seen)
    network.loss(loss, dense(below, outputs))
    return network


def cells_of(inputs: int, hidden: Sequence[int], bidirectional: bool) -> tuple[Cell, ...]:
    """Return the cells, layer by layer, forward before backward."""
    cells: list[Cell] = []
    directions = (False, True) if bidirectional else (False,)
    for layer, units in enumerate(hidden):
        cells += [Cell(layer, backward, inputs, units) for backward in directions]
        inputs = units * len(directions)
    return tuple(cells)


def _checked_sizes(inputs: int, hidden: int | Sequence[int], outputs: int) -> tuple[int, ...]:
    layers = tuple(hidden) if isinstance(hidden, Sequence) else (hidden,)
    for size in (inputs, *layers, outputs):
        if not is_integer(size) or size < 1:
            raise DataError(
                f"sizes must be positive integers, got {inputs!r}, {hidden!r} and {outputs!r}."
            )
    if not layers:
        raise DataError("hidden_size names no layer.")
    return tuple(int(size) for size in layers)


def _pinned(loss: Loss) -> PinnedLoss:
    if not isinstance(loss, PinnedLoss):
        raise DeclarationError(
            f"a recurrent network needs a loss on its last pre-activation, such as CrossEntropy; "
            f"{type(loss).__name__} has output states of its own."
        )
    return loss


def _by_unit(activation: Activation) -> Activation:
    if not isinstance(activation, Activation):
        raise DeclarationError(
            f"activation must be an Activation, got {activation!r}; a function becomes one by "
            "Activation.from_function."
        )
    if isinstance(tight(activation), Raw) or not activation.per_unit or activation.pre_units(1) > 1:
        raise DeclarationError(
            f"{activation!r} cannot be the activation of a recurrent layer: it needs a potential "
            "or a forward map, and must act unit by unit, on one pre-activation for each state."
        )
    return activation


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def _cell_weights(
    cell: Cell, layer: Weights, activation: Activation, learned_start: bool
) -> CellWeights:
    assert layer.bias is not None  # every cell has one
    recurrent_part, rest = layer.matrix[: cell.units], layer.matrix[cell.units :]
    first = rest[cell.inputs :].sum(0) + layer.bias
    initial = activation.forward(first.unsqueeze(0))[0]
    if not learned_start:
        initial = initial.new_zeros(cell.units)
    return CellWeights(recurrent_part, rest[: cell.inputs], layer.bias, initial, cell.backward)
