"""The lifted recurrent network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import ReLU
from liftednet.errors import NotFittedError
from liftednet.losses import CrossEntropy, Loss
from liftednet.problems import Weights
from liftednet.solvers import Solver, solve
from liftednet.validation import require_device, require_positive, require_seed

from .arrays import ArrayLike, require_count, require_dtype
from .descent import Step, Trace, largest_residual
from .layer_starts import given_weights
from .progress import sweep_progress
from .recurrent_architecture import design_recurrent
from .recurrent_blocks import RecurrentBlocks
from .recurrent_methods import method_named
from .recurrent_minibatch import SequenceMinibatch
from .recurrent_prediction import RecurrentPredictor
from .recurrent_rules import Lengths, readout_fit, training_task
from .recurrent_solvers import solvers_for
from .recurrent_starts import first_weights, refuse_overflow
from .sequence_arrays import Task


class LiftedRNN(RecurrentPredictor):
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
        rho: weight of the squared Frobenius norms, one number or (recurrent, output).
        divergence: "joint" (states convex over time) or "tight" (zero at the forward pass).
        start: recurrent weights "identity", "orthogonal" or "gaussian".
        spectral_radius: largest absolute eigenvalue of the first recurrent weights.
        bidirectional: whether every layer also runs from the last step to the first.
        learn_initial_state: whether the states before the first step are learned, or 0.
        state_solver: "auto" (two Newton steps over all time a sweep), "newton-over-time" (exact),
            "red-black", "cyclic" (the paper), or such a solver with options of its own.
        proximity: weight of a pull of every weight fit to the previous weights, or None.
        method: "full" (block-coordinate descent), "gauss-newton" (weights and states together),
            "minibatch" or a `SequenceMinibatch`; the last three need divergence="tight".
        sweeps: the most sweeps over all blocks, or steps of "gauss-newton".
        tolerance: stop when every block's relative KKT residual is below this.
        solver: "auto", a solver's name, or a solver, for the weights.
        seed: of the initial weights.
        dtype: torch.float64, or torch.float32, whose rounding long sequences amplify.
        device: where the model lives, such as "cpu" or "cuda".

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activation, loss, divergence and solvers do not fit together.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | Sequence[int],
        output_size: int,
        activation: Activation | None = None,
        loss: Loss | None = None,
        lam: float = 10.0,
        rho: float | Sequence[float] = 0.1,
        divergence: str = "joint",
        *,
        start: str | Sequence[Weights] = "identity",
        spectral_radius: float = 1.0,
        bidirectional: bool = False,
        learn_initial_state: bool = False,
        state_solver: str | Solver[Any, Any, Any] = "auto",
        proximity: float | None = None,
        method: str | SequenceMinibatch = "full",
        sweeps: int = 50,
        tolerance: float = 1e-4,
        solver: str | Solver[Any, Any, Any] = "auto",
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
    ) -> None:
        """Check what can be checked before there are data."""
        self.architecture = design_recurrent(
            input_size,
            hidden_size,
            output_size,
            ReLU() if activation is None else activation,
            CrossEntropy() if loss is None else loss,
            lam,
            rho,
            divergence,
            bidirectional,
            learn_initial_state,
        )
        require_count("sweeps", sweeps, 1)
        require_positive("tolerance", tolerance)
        if proximity is not None:
            require_positive("proximity", proximity)
        require_dtype(dtype)
        self.seed = require_seed(seed)
        require_device(device)
        self.sweeps = sweeps
        self.method = method_named(method, self.architecture, sweeps, tolerance)
        self.proximity = proximity
        self.dtype = dtype
        self.device = device
        self.trace: Trace | None = None
        self.per_step = True
        self._start = "given" if not isinstance(start, str) else start
        self._radius = spectral_radius
        self._first_weights = first_weights(self.architecture, start, spectral_radius, self.seed)
        self._weights: list[Weights] | None = None
        self._blocks: RecurrentBlocks | None = None
        self._solvers = solvers_for(
            state_solver, solver, self.architecture.divergence, self.loss.divergence, tolerance
        )

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        lengths: Lengths = None,
        progress: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> LiftedRNN:
        """Fit weights and states to sequences.

        Args:
            X: (samples, steps, inputs), float32 or float64; beyond the lengths anything.
            y: labels (samples, steps) or targets (samples, steps, outputs) for an answer at
                every step; labels (samples,) or targets (samples, outputs) for one at the end.
            lengths: (samples,) steps of each sequence; None: all have every step.
            progress: whether to show a progress bar.
            on_step: told after every block update.

        Returns:
            The model; `trace` holds the objective after every block, or the mean loss of every
            batch. An interrupt stops early and keeps the last finished block.

        Raises:
            DataError: X, y or lengths cannot be used, or the start overflows on these data.
            SolverError: a block failed or raised the objective; the last good state is kept.
        """
        task = self._task(X, y, lengths)
        weights = [layer.to(task.inputs) for layer in self._first_weights]
        blocks = RecurrentBlocks(self.architecture, task, weights, self._solvers, self.proximity)
        refuse_overflow(blocks.states, self._start, self._radius)
        self.per_step = task.per_step
        self._blocks, self._weights = blocks, blocks.weights
        with sweep_progress(self.method.rounds, progress, on_step) as report:
            self.trace = self.method.train(blocks, self.seed, report)
        return self

    def refit_readout(self, X: ArrayLike, y: ArrayLike, *, lengths: Lengths = None) -> LiftedRNN:
        """Fit the output weights once more, to the states of a forward pass.

        One convex fit that closes the gap of the states to the feedforward rule; as in `fit`.
        """
        task, passed = self._task(X, y, lengths), self._passed(X, lengths)
        problem = readout_fit(passed, task, self.architecture.rho[1])
        self._fitted()[-1] = solve(problem, self._solvers.readout, self.readout).value
        return self

    def with_weights(self, weights: Sequence[Weights]) -> LiftedRNN:
        """Take weights as if they were fitted: the model predicts, and `fit` starts from them.

        Args:
            weights: as `weights` gives them.

        Raises:
            DataError: the first that does not fit, with both shapes.
        """
        given = given_weights(weights, self.architecture.weight_shapes)
        self._first_weights, self._weights, self._blocks = given, list(given), None
        self._start = "given"
        return self

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states of every cell on the data of the last fit, (steps, samples, units)."""
        return tuple(self._trained().states)

    def objective(self) -> float:
        """Return the joint objective, in float64."""
        return self._trained().objective()

    def residual(self) -> float:
        """Return the largest relative KKT residual over all blocks at the current point."""
        return largest_residual(self._trained())

    def _task(self, X: ArrayLike, y: ArrayLike, lengths: Lengths) -> Task:
        return training_task(self.architecture, X, y, lengths, self.dtype, self.device)

    def _trained(self) -> RecurrentBlocks:
        if self._blocks is None:
            raise NotFittedError("this LiftedRNN has no states: call fit(X, y) first.")
        return self._blocks
