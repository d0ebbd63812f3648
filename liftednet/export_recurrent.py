"""Trained recurrent weights as torch networks, and into a torch RNN that is already there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from liftednet.activation import Activation
from liftednet.activations import ReLU, Tanh
from liftednet.errors import DataError
from liftednet.export import before, behind, linear, refuse_standardized
from liftednet.samples import Weights

_TORCH_NAMES: dict[type[Activation], str] = {ReLU: "relu", Tanh: "tanh"}


class CellParts(Protocol):
    """One recurrent layer in one direction, h = phi(h W + x U_0 + b_0)."""

    @property
    def recurrent(self) -> Tensor:
        """W, (units, units)."""
        ...

    @property
    def inputs(self) -> Tensor:
        """U_0, (features, units)."""
        ...

    @property
    def bias(self) -> Tensor:
        """b_0, (units,)."""
        ...

    @property
    def initial(self) -> Tensor:
        """The state before the first step, (units,)."""
        ...

    @property
    def backward(self) -> bool:
        """Whether it runs from the last step to the first."""
        ...


class Recurrent(Protocol):
    """What a model must have to be exported, such as `LiftedRNN`."""

    @property
    def cells(self) -> Sequence[CellParts]:
        """Layer by layer, forward before backward."""
        ...

    @property
    def readout(self) -> Weights:
        """U_1 and b_1 of the output."""
        ...

    @property
    def activation(self) -> Activation:
        """Of the recurrent layers."""
        ...


class ExportedCell(nn.Module):
    """h_t = phi(h_{t-1} W + x_t U_0 + b_0) for an activation that torch.nn.RNN does not have.

    Attributes:
        activation: phi.
        backward_in_time: whether it runs from the last step to the first.
    """

    def __init__(self, cell: CellParts, activation: Activation) -> None:
        """Copy the weights; torch.nn.Linear keeps them transposed."""
        super().__init__()
        self.activation = activation
        self.backward_in_time = cell.backward
        self.input = linear(Weights(cell.inputs, cell.bias))
        self.recurrent = linear(Weights(cell.recurrent, None))

    def forward(self, x: Tensor, initial: Tensor, lengths: Tensor) -> Tensor:
        """Return the states (samples, steps, units) from x (samples, steps, features).

        Args:
            x: inputs.
            initial: (samples, units), the state before the first step.
            lengths: (samples,) steps of each sequence.
        """
        drive, steps = self.input(x), range(x.shape[1])
        state, states = initial, [initial] * x.shape[1]
        for step in reversed(steps) if self.backward_in_time else steps:
            following = self.activation.forward(drive[:, step] + self.recurrent(state))
            state = torch.where((step < lengths).unsqueeze(1), following, state)
            states[step] = state
        return torch.stack(states, 1)


class ExportedRNN(nn.Module):
    """A recurrent network of torch modules; its output is the last pre-activation (logits).

    Attributes:
        recurrence: a torch.nn.RNN for ReLU and tanh with equal layers, else the exported cells.
        readout: torch.nn.Linear.
        before: what standardizes the input, where that is not part of its weights.
        behind: the same for the answers.
        initial: (cells, units) or one row for each cell, the states before the first step.
    """

    def __init__(self, model: Recurrent) -> None:
        """Copy the weights of a model."""
        super().__init__()
        cells = list(model.cells)
        self.recurrence: nn.Module = _torch_rnn(cells, model.activation) or nn.ModuleList(
            ExportedCell(cell, model.activation) for cell in cells
        )
        self.initial = nn.ParameterList(cell.initial.clone() for cell in cells)
        self.readout = linear(model.readout)
        network = getattr(model, "network", None)
        self.before = nn.Identity() if network is None else before(model, network.inputs[0])
        self.behind = nn.Identity() if network is None else behind(model, network.terms[0])

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of every step, (samples, steps, outputs).

        Args:
            x: (samples, steps, features).
            lengths: (samples,) steps of each sequence; None: all have every step.
        """
        samples, steps = x.shape[:2]  # no len(x): to torch.export it is a fixed number
        x = self.before(x)
        if isinstance(self.recurrence, nn.RNN):
            states = self._fast(self.recurrence, x, lengths)
        else:
            given = torch.full((samples,), steps) if lengths is None else lengths
            states = self._cells(x, given.to(x.device))
        return self.behind(self.readout(states))  # type: ignore[no-any-return]

    def _fast(self, recurrence: nn.RNN, x: Tensor, lengths: Tensor | None) -> Tensor:
        initial = torch.stack([h.expand(x.shape[0], -1) for h in self.initial])
        if lengths is None:
            return recurrence(x, initial)[0]  # type: ignore[no-any-return]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = recurrence(packed, initial)
        return pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]

    def _cells(self, x: Tensor, lengths: Tensor) -> Tensor:
        assert isinstance(self.recurrence, nn.ModuleList)
        parts: list[Tensor] = []
        for cell, initial in zip(self.recurrence, self.initial, strict=True):
            assert isinstance(cell, ExportedCell)
            if parts and not cell.backward_in_time:  # a new layer begins
                x, parts = torch.cat(parts, -1), []
            parts.append(cell(x, initial.expand(x.shape[0], -1), lengths))
        return torch.cat(parts, -1)


def recurrent_to_torch(model: Recurrent) -> ExportedRNN:
    """Return a recurrent model as torch modules, trainable, in the model's precision.

    Its logits, through the loss's activation, equal the model's `forward` (Lifted Recurrent
    Neural Networks, section 3). `torch.export.export` takes it for any number of samples, and for
    the number of steps of the example.

    Args:
        model: a fitted model, such as `LiftedRNN`.

    Raises:
        NotFittedError: the model has no weights yet.

    Example:
        >>> import torch
        >>> from liftednet import recurrent_to_torch
        >>> from liftednet.models import LiftedRNN
        >>> x, y = torch.eye(2).repeat(20, 1)[:, None], torch.tensor([0, 1] * 20)
        >>> model = LiftedRNN(2, 3, 2).fit(x, y)
        >>> network = recurrent_to_torch(model)
        >>> network(x.double()).shape
        torch.Size([40, 1, 2])
    """
    return ExportedRNN(model)


@torch.no_grad()
def initialize_rnn_(recurrence: nn.RNN, readout: nn.Linear, model: Recurrent) -> None:
    """Write a model's weights into a torch RNN and the Linear after it, in place.

    torch's two biases are the model's bias and zero. A learned initial state is not part of a
    torch RNN: pass it as h_0, from `model.cells`.

    Args:
        recurrence: with the nonlinearity, sizes, layers and directions of the model.
        readout: the output layer.
        model: a fitted model, such as `LiftedRNN`.

    Raises:
        DataError: the first difference between the two.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet import initialize_rnn_
        >>> from liftednet.models import LiftedRNN
        >>> x, y = torch.eye(2).repeat(20, 1)[:, None], torch.tensor([0, 1] * 20)
        >>> model = LiftedRNN(2, 3, 2).fit(x, y)
        >>> cell, head = nn.RNN(2, 3, nonlinearity="relu", batch_first=True), nn.Linear(3, 2)
        >>> _ = initialize_rnn_(cell, head, model)
        >>> bool((head.weight == model.weights[-1].matrix.T).all())
        False
    """
    if not isinstance(recurrence, nn.RNN):
        raise DataError(f"the torch module must be an nn.RNN, got {type(recurrence).__name__}.")
    refuse_standardized(model)
    cells = list(model.cells)
    expected = _TORCH_NAMES.get(type(model.activation))
    if recurrence.nonlinearity != expected:
        raise DataError(
            f"the torch RNN has the nonlinearity {recurrence.nonlinearity!r} and the model "
            f"{model.activation!r}."
        )
    wanted = _rnn_state(cells)
    wanted.update({"readout weight": model.readout.matrix.T})
    found = {**dict(recurrence.named_parameters()), "readout weight": readout.weight}
    for name in sorted({*wanted, *found}):
        shapes = [tuple(part[name].shape) if name in part else None for part in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise DataError(f"{name} has shape {shapes[0]} in torch and {shapes[1]} in the model.")
    for name, value in wanted.items():
        found[name].copy_(value)
    if model.readout.bias is not None:
        readout.bias.copy_(model.readout.bias)


def _rnn_state(cells: Sequence[CellParts]) -> dict[str, Tensor]:
    """Return the parameters of a torch.nn.RNN by name."""
    state: dict[str, Tensor] = {}
    layer = -1
    for cell in cells:
        layer += not cell.backward
        ending = f"l{layer}" + ("_reverse" if cell.backward else "")
        state[f"weight_ih_{ending}"] = cell.inputs.T
        state[f"weight_hh_{ending}"] = cell.recurrent.T
        state[f"bias_ih_{ending}"] = cell.bias
        state[f"bias_hh_{ending}"] = torch.zeros_like(cell.bias)
    return state


@torch.no_grad()
def _torch_rnn(cells: Sequence[CellParts], activation: Activation) -> nn.RNN | None:
    """Return a torch.nn.RNN, or None for an activation or sizes that it does not have."""
    name = _TORCH_NAMES.get(type(activation))
    features, units = cells[0].inputs.shape
    if name is None or any(len(cell.recurrent) != units for cell in cells):
        return None
    directions = 1 + any(cell.backward for cell in cells)
    recurrence = nn.RNN(
        features,
        units,
        num_layers=len(cells) // directions,
        nonlinearity=name,
        batch_first=True,
        bidirectional=directions == 2,
        dtype=cells[0].inputs.dtype,
        device=cells[0].inputs.device,
    )
    recurrence.load_state_dict(_rnn_state(cells))
    return recurrence
