"""Networks that the recurrent papers compare: plain, with batch norm, IndRNN, echo state, cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from benchmarks.data.sequences import Sequences
from liftednet import errors
from liftednet.errors import DataError
from liftednet.losses import FenchelYoungLoss, SquaredError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import solve


def with_spectral_radius(weight: Tensor, radius: float) -> Tensor:
    """Return a square weight, scaled to a spectral radius."""
    return weight * (radius / float(torch.linalg.eigvals(weight.double()).abs().max()))


@torch.no_grad()
def spectral_start_(module: nn.Module, radius: float, generator: torch.Generator) -> None:
    """Draw every gate of the recurrent weights of a torch network by a spectral radius."""
    for name, weight in module.named_parameters():
        if name.rpartition(".")[2].startswith("weight_hh"):
            for gate in weight.split(weight.shape[1]):
                drawn = torch.randn(gate.shape, generator=generator)
                gate.copy_(with_spectral_radius(drawn, radius))


@dataclass(frozen=True)
class Elementwise:
    """An activation whose derivative follows from its output.

    Attributes:
        apply: replaces its argument by the activation, in place.
        slope: puts the derivatives that belong to outputs (first) into a tensor (second).
    """

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


RELU = Elementwise(torch.relu_, lambda output, out: torch.sign(output, out=out))
TANH = Elementwise(torch.tanh_, lambda output, out: torch.square(output, out=out).neg_().add_(1))


def independent_scan(
    drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise
) -> Tensor:
    """Run h_t = phi(a_t + w * h_{t-1}) over time (Li et al., IndRNN, 2018, eq. 2).

    Every step is two in-place passes forward and three backward, so the cost per step is that of
    reading the data; autograd would keep and schedule a node for each operation of each step.

    Args:
        drive: a, (time, batch, units).
        weight: w, (units,).
        start: h_0, (batch, units).
        activation: phi.

    Returns:
        h_1 to h_T, (time, batch, units); differentiable once in the three tensors.
    """
    states: Tensor = _IndependentScan.apply(  # type: ignore[no-untyped-call]
        drive, weight, start, activation, torch.addcmul
    )
    return states


def dense_scan(drive: Tensor, weight: Tensor, start: Tensor, activation: Elementwise) -> Tensor:
    """Run h_t = phi(a_t + h_{t-1} W) over time, the recurrence of a plain network.

    Args:
        drive: a, (time, batch, units).
        weight: W, (units, units).
        start: h_0, (batch, units).
        activation: phi.

    Returns:
        h_1 to h_T, (time, batch, units); differentiable once in the three tensors.
    """
    states: Tensor = _DenseScan.apply(  # type: ignore[no-untyped-call]
        drive, weight, start, activation, torch.addmm
    )
    return states


class _Scan(Function):
    @staticmethod
    def forward(
        ctx: Any,
        drive: Tensor,
        weight: Tensor,
        start: Tensor,
        activation: Elementwise,
        add_product: Callable[..., Tensor],
    ) -> Tensor:
        """Return all states, and keep what the way back needs."""
        states = torch.empty_like(drive)
        previous = start
        for driven, state in zip(drive.unbind(0), states.unbind(0), strict=True):
            add_product(driven, previous, weight, out=state)
            previous = activation.apply(state)
        ctx.save_for_backward(states, weight, start)
        ctx.activation = activation
        return states


class _IndependentScan(_Scan):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, start = ctx.saved_tensors
        # The error of the pre-activation: e_t = (g_t + w * e_{t+1}) * phi'(a_t + w * h_{t-1}).
        # Each step stays in the cache: whole-sequence products would read the memory again.
        errors, slope = torch.empty_like(states), torch.empty_like(start)
        weight_sum, later = torch.zeros_like(start), torch.zeros_like(start)
        earlier = (start, *states[:-1].unbind(0))
        steps = zip(gradient.unbind(0), states.unbind(0), earlier, errors.unbind(0), strict=True)
        for given, state, before, error in reversed(list(steps)):
            ctx.activation.slope(state, slope)
            later = torch.addcmul(given, weight, later, out=error).mul_(slope)
            weight_sum.addcmul_(later, before)
        return errors, weight_sum.sum(0), weight * later, None, None


class _DenseScan(_Scan):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, start = ctx.saved_tensors
        # The error of the pre-activation: e_t = (g_t + e_{t+1} W') * phi'(a_t + h_{t-1} W).
        errors, slope = torch.empty_like(states), torch.empty_like(start)
        back, later = weight.T.contiguous(), torch.zeros_like(start)
        steps = zip(gradient.unbind(0), states.unbind(0), errors.unbind(0), strict=True)
        for given, state, error in reversed(list(steps)):
            ctx.activation.slope(state, slope)
            later = torch.addmm(given, later, back, out=error).mul_(slope)
        # All steps in one product, which a graph would make one by one.
        weight_sum = states[:-1].flatten(0, 1).T @ errors[1:].flatten(0, 1)
        return errors, weight_sum.addmm_(start.T, errors[0]), later @ back, None, None


class CellRecurrence(nn.Module):
    """Applies any cell over time; the cell stays one module, called once a step.

    Args:
        cell: called as `state = cell(x, state)` with x (batch, features) and None for the first
            state, such as torch.nn.RNNCell, GRUCell and LSTMCell. A state that is a tuple shows
            its first part.
    """

    def __init__(self, cell: nn.Module) -> None:
        """Keep the cell."""
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return the states (batch, time, units) over time, and the last one as it is.

        Args:
            x: (batch, time, features).
            state: of the cell; None starts it.
        """
        shown = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            shown.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(shown, 1), state


class PlainRNN(nn.RNN):
    """torch.nn.RNN of one layer, batch first, run by a scan: same weights, same states, less time.

    Args:
        input_size: features.
        hidden_size: units.
        nonlinearity: "tanh" or "relu".
    """

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str = "tanh") -> None:
        """Draw the weights as torch.nn.RNN does.

        Raises:
            DataError: an unknown nonlinearity.
        """
        self._activation = _elementwise(nonlinearity)
        super().__init__(input_size, hidden_size, 1, nonlinearity, batch_first=True)

    def forward(  # type: ignore[override]
        self, x: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states (batch, time, units) and the last one (1, batch, units).

        Args:
            x: (batch, time, features).
            state: (1, batch, units); None is zero.
        """
        bias = self.get_parameter("bias_ih_l0") + self.get_parameter("bias_hh_l0")
        drive = linear(x.transpose(0, 1), self.get_parameter("weight_ih_l0"), bias)
        return _scanned(drive, self.get_parameter("weight_hh_l0"), state, self._activation)


class BatchNormRNN(nn.Module):
    """A tanh or ReLU network whose input-to-hidden part is batch-normalized.

    h_t = phi(BN(W x_t) + U h_{t-1} + b) with statistics over batch and time (Laurent et al.,
    Batch Normalized Recurrent Neural Networks, 2015, eq. 9; b is BN's own shift).

    Args:
        input_size: features.
        hidden_size: units.
        nonlinearity: "tanh" or "relu".
    """

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str = "tanh") -> None:
        """Build the parts; U is drawn as torch.nn.RNN draws it.

        Raises:
            DataError: an unknown nonlinearity.
        """
        super().__init__()
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.norm = nn.BatchNorm1d(hidden_size)
        self.recurrent = nn.Parameter(torch.empty(hidden_size, hidden_size))
        nn.init.uniform_(self.recurrent, -1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size))
        self._activation = _elementwise(nonlinearity)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the states (batch, time, units) and the last one (1, batch, units).

        Args:
            x: (batch, time, features).
            state: (1, batch, units); None is zero.
        """
        projected = self.input(x.transpose(0, 1))
        drive = self.norm(projected.flatten(0, 1)).unflatten(0, projected.shape[:2])
        return _scanned(drive, self.recurrent, state, self._activation)


class IndRNN(nn.Module):
    """Stacked layers of units that each recur on themselves alone.

    h_t = phi(W x_t + b + w * h_{t-1}) (Li et al., IndRNN, 2018, eq. 2), with batch normalization
    over batch and time between the layers. |w| is kept at most 2^(1/steps), so that no unit grows
    by more than a factor of 2 over a sequence; the last layer starts in
    [2^(-1/steps), 2^(1/steps)], the others in [0, 1] (the paper, section 3.2 and its code).

    Args:
        input_size: features.
        hidden_size: units of each layer.
        layers: number of layers.
        steps: length of the longest sequence, for the bound.
        nonlinearity: "relu" or "tanh".
    """

    def __init__(
        self, input_size: int, hidden_size: int, layers: int, steps: int, nonlinearity: str = "relu"
    ) -> None:
        """Build the layers.

        Raises:
            DataError: an unknown nonlinearity, or no layers or steps.
        """
        super().__init__()
        if layers < 1 or steps < 1:
            raise DataError(f"IndRNN needs layers and steps of at least 1: {layers}, {steps}.")
        self.bound = 2.0 ** (1 / steps)
        sizes = [input_size] + [hidden_size] * layers
        self.inputs = nn.ModuleList(nn.Linear(a, hidden_size) for a in sizes[:-1])
        self.weights = nn.ParameterList(torch.rand(hidden_size) for _ in range(layers))
        nn.init.uniform_(self.weights[-1], 1 / self.bound, self.bound)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_size) for _ in range(layers - 1))
        self._activation = _elementwise(nonlinearity)

    def forward(self, x: Tensor, state: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's states (batch, time, units) and each layer's last state.

        Args:
            x: (batch, time, features).
            state: one (batch, units) for each layer; None is zero.
        """
        signal = x.transpose(0, 1).contiguous()
        last = []
        for layer, (into, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            if layer > 0:
                signal = self.norms[layer - 1](signal.flatten(0, 1)).unflatten(0, signal.shape[:2])
            drive = into(signal)
            start = torch.zeros_like(drive[0]) if state is None else state[layer]
            signal = independent_scan(drive, weight, start, self._activation)
            last.append(signal[-1])
        return signal.transpose(0, 1), last

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring every recurrent weight back into its bound; call it after each step."""
        for weight in self.weights:
            weight.clamp_(-self.bound, self.bound)


def _scanned(
    drive: Tensor, weight: Tensor, state: Tensor | None, activation: Elementwise
) -> tuple[Tensor, Tensor]:
    """Return states, batch first, and the last one, of h_t = phi(a_t + U h_{t-1})."""
    start = torch.zeros_like(drive[0]) if state is None else state[0]
    states = dense_scan(drive, weight.T, start, activation)
    return states.transpose(0, 1), states[-1:]


def _elementwise(nonlinearity: str) -> Elementwise:
    known = {"relu": RELU, "tanh": TANH}
    if nonlinearity not in known:
        raise DataError(f'nonlinearity must be "relu" or "tanh"; it is {nonlinearity!r}.')
    return known[nonlinearity]


State = Any


class SequenceModel(nn.Module):
    """A recurrence followed by a linear layer.

    Args:
        recurrence: called as `states, state = recurrence(x, state)` with x
            (batch, time, features) and states (batch, time, units).
        hidden_size: units.
        output_size: outputs of the linear layer.
    """

    def __init__(self, recurrence: nn.Module, hidden_size: int, output_size: int) -> None:
        """Keep the recurrence and build the readout."""
        super().__init__()
        self.recurrence = recurrence
        self.readout = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return the outputs of every step (batch, time, outputs), and the state.

        Args:
            x: (batch, time, features).
            state: of the recurrence; None starts it.
        """
        states, state = self.recurrence(x, state)
        return self.readout(states), state

    def at_end(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the outputs at the last real step of each sequence: (batch, outputs).

        Args:
            x: (batch, time, features).
            lengths: (batch,) steps of each sequence; None: all have every step.
        """
        states, _ = self.recurrence(x)
        if lengths is None:
            return self.readout(states[:, -1])
        rows = torch.arange(len(states), device=states.device)
        return self.readout(states[rows, lengths - 1])


class EchoStateNetwork:
    """A reservoir of leaky integrators with a trained readout.

    h_t = (1 - alpha) tanh(W h_{t-1} + V x_t + b) + alpha h_{t-1} (On Recurrent Neural Networks,
    eq. 2.28, read with h_{t-1} inside), W sparse and scaled to a spectral radius; the outputs
    h_t A + a come from a `WeightFit`, with the squared error a ridge regression.

    Args:
        input_size: features.
        units: size of the reservoir.
        output_size: outputs; for labels one for each class.
        radius: spectral radius of W; near 1 for long memory.
        leak: alpha, from 0 (no memory of its own) to below 1.
        density: share of the entries of W that are not 0.
        input_scale: V and b are uniform on [-input_scale, input_scale].
        rho: weight of the readout's squared Frobenius penalty.
        loss: of the readout.
        seed: of the reservoir.
    """

    def __init__(
        self,
        input_size: int,
        units: int,
        output_size: int,
        *,
        radius: float = 0.95,
        leak: float = 0.0,
        density: float = 0.1,
        input_scale: float = 1.0,
        rho: float = 1e-4,
        loss: FenchelYoungLoss | None = None,
        seed: int = 0,
    ) -> None:
        """Draw the reservoir."""
        source = torch.Generator().manual_seed(seed)
        weight = torch.randn(units, units, generator=source)
        weight *= torch.rand(units, units, generator=source) < density
        self.weight = with_spectral_radius(weight, radius)
        self.input_weight = _uniform((input_size, units), input_scale, source)
        self.bias = _uniform((units,), input_scale, source)
        self.leak = leak
        self.output_size = output_size
        self.rho = rho
        self.loss = loss if loss is not None else SquaredError()
        self.readout: Weights | None = None

    def states(self, x: Tensor) -> Tensor:
        """Return the states (batch, time, units) that inputs (batch, time, features) drive."""
        drive = x @ self.input_weight + self.bias
        state = x.new_zeros(len(x), len(self.weight))
        states = torch.empty_like(drive)
        for step in range(x.shape[1]):
            update = torch.addmm(drive[:, step], state, self.weight).tanh_()
            state = torch.lerp(update, state, self.leak)
            states[:, step] = state
        return states

    def fit(self, x: Tensor, y: Tensor, lengths: Tensor | None = None) -> EchoStateNetwork:
        """Fit the readout to all steps.

        Args:
            x: (batch, time, features).
            y: targets of every step, as `Sequences.from_padded` takes them.
            lengths: (batch,) steps of each sequence; None: all have every step.

        Returns:
            This network.

        Raises:
            DataError: shapes or lengths that do not fit.
        """
        sequences = Sequences.from_padded(x, y, lengths)
        batch = sequences.batch(torch.arange(len(sequences)))
        states = self.states(batch.x)
        rows, targets = states[batch.mask], batch.y[batch.mask]
        encoded = self.loss.encode(targets, self.output_size).to(rows)
        problem = WeightFit(self.loss.divergence, Design(rows), encoded, SquaredFrobenius(self.rho))
        self.readout = solve(problem).value
        return self

    def outputs(self, x: Tensor) -> Tensor:
        """Return the readout at every step: (batch, time, outputs).

        Args:
            x: (batch, time, features).

        Raises:
            NotFittedError: there is no readout yet.
        """
        if self.readout is None:
            raise errors.NotFittedError(
                "The echo-state network has no readout yet: call fit first."
            )
        states = self.states(x)
        outputs: Tensor = self.readout.apply(states.flatten(0, 1))
        return outputs.reshape(*states.shape[:2], self.output_size)


def _uniform(shape: tuple[int, ...], scale: float, source: torch.Generator) -> Tensor:
    return scale * (2 * torch.rand(shape, generator=source) - 1)
