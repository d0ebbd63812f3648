"""Echo-state networks: a random recurrence that stays, and a readout fitted by one convex solve."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.data.sequences import Sequences
from liftednet import errors
from liftednet.data.checks import fraction, generator, positive_integer
from liftednet.errors import DataError
from liftednet.losses import PinnedLoss, SquaredError
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.solvers import solve
from liftednet.starts import with_spectral_radius


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

    Raises:
        DataError: a size that is not positive, a leak or density out of range.
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
        loss: PinnedLoss | None = None,
        seed: int = 0,
    ) -> None:
        """Draw the reservoir."""
        positive_integer("units", units)
        fraction("density", density)
        if not 0 <= leak < 1:
            raise DataError(f"leak must be at least 0 and below 1; it is {leak!r}.")
        source = generator(seed)
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
        """Fit the readout to all steps, or to the last ones where y belongs to sequences.

        Args:
            x: (batch, time, features).
            y: targets as `Sequences.from_padded` takes them; labels are encoded by the loss,
                with the squared error as one-hot rows.
            lengths: (batch,) steps of each sequence; None: all have every step.

        Returns:
            This network.

        Raises:
            DataError: shapes or lengths that do not fit.
        """
        sequences = Sequences.from_padded(x, y, lengths)
        batch = sequences.batch(torch.arange(len(sequences)))
        states = self.states(batch.x)
        if sequences.per_step:
            rows, targets = states[batch.mask], batch.y[batch.mask]
        else:
            rows, targets = _last(states, batch.lengths), batch.y
        problem = WeightFit(
            self.loss.divergence,
            Design(rows),
            self._encode(targets).to(rows),
            SquaredFrobenius(self.rho),
        )
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

    def outputs_at_end(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the readout at the last step of each sequence: (batch, outputs).

        Args:
            x: (batch, time, features).
            lengths: (batch,) steps of each sequence; None: all have every step.
        """
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        return _last(self.outputs(x), lengths)

    def _encode(self, targets: Tensor) -> Tensor:
        if isinstance(self.loss, SquaredError) and not targets.is_floating_point():
            return torch.nn.functional.one_hot(targets, self.output_size).double()
        return self.loss.encode(targets, self.output_size)


def _last(values: Tensor, lengths: Tensor) -> Tensor:
    return values[torch.arange(len(values)), lengths - 1]


def _uniform(shape: tuple[int, ...], scale: float, source: torch.Generator) -> Tensor:
    return scale * (2 * torch.rand(shape, generator=source) - 1)
