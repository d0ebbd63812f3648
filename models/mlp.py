"""The lifted feedforward network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet.activation import Activation
from liftednet.activations import ReLU
from liftednet.deferred import sent
from liftednet.errors import DataError, SolverError
from liftednet.losses import CrossEntropy, Loss
from liftednet.problems import Weights
from liftednet.solvers import Solver
from liftednet.validation import require_device, require_seed

from .architecture import design_network
from .arrays import ArrayLike, checked_inputs, checked_targets, require_dtype
from .batches import Batch, Batches, LoaderBatches, encode_part, hold_out
from .descent import Descent, Trace
from .epochs import EpochRun, EpochTrace
from .fitted import FittedNetwork
from .forward_pass import blocks_at, mean_objective, refitted_output, refuse_output_states
from .full_batch import FullBatch, method_for
from .layer_starts import first_weights, given_weights
from .minibatch import BatchSteps, Minibatch, are_finite, copied, refuse_infinite
from .prediction import known_solver
from .progress import epoch_progress, sweep_progress


class LiftedMLP(FittedNetwork):
    """A feedforward network whose layers are variables, trained by convex subproblems.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10), by the block-coordinate descent of section 6.

    Args:
        sizes: units of the input, every hidden layer, and the output.
        activations: one for all hidden layers, or one for each; one more than that gives the
            output states of its own (eq. (14)), which SimplexCrossEntropy has by itself.
        loss: a loss from `liftednet.losses`.
        lam: weight of the divergences, one number or one for each layer with states (which are
            no more than a choice of rho for a ReLU: `with_one_lam`).
        rho: weight of the squared Frobenius norms, one number or one for each layer.
        divergence: "tight" (biconvex, zero at the forward pass), "joint" (jointly convex), or
            "multipliers" (at rest the states are the forward pass; lam is where damping begins).
        start: "kaiming", "xavier", "normal" (variance 0.1), "variance-scaling", or weights.
        solver: "auto", a solver's name, or a solver, for every block.
        seed: of the initial weights.
        dtype: torch.float32 or torch.float64; None takes that of X.
        device: where the model lives, such as "cpu" or "cuda".
        warm_start: whether another `fit` goes on from the weights and states that are there.
        method: "minibatch" or a `Minibatch` with numbers of its own, which measured best; "full" or
            a `FullBatch` for the paper's algorithm, block after block on all samples; "auto" for
            minibatches, but where multipliers or a raw divergence need all samples.
        refit_output: whether the last layer is fitted to the forward features at the end.

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activations, loss and divergence do not fit together.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activations: Activation | Sequence[Activation] | None = None,
        loss: Loss | None = None,
        lam: float | Sequence[float] = 10.0,
        rho: float | Sequence[float] = 1e-3,
        divergence: str = "tight",
        *,
        start: str | Sequence[Weights] = "kaiming",
        solver: str | Solver[Any, Any, Any] = "auto",
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        method: str | Minibatch | FullBatch = "auto",
        refit_output: bool = False,
    ) -> None:
        """Check what can be checked before there are data."""
        super().__init__()
        self.loss = CrossEntropy() if loss is None else loss
        activations = ReLU() if activations is None else activations
        self.architecture = design_network(sizes, activations, self.loss, lam, rho, divergence)
        if dtype is not None:
            require_dtype(dtype)
        self.seed = require_seed(seed)
        require_device(device)
        self.dtype, self.device = dtype, device
        self.warm_start = warm_start
        self.solver = known_solver(solver)
        self.method = method_for(self.architecture, method)
        self.method.refuse(self.architecture)
        self.refit_output = refit_output
        if refit_output:
            refuse_output_states(self.architecture)
        self._declared = self.architecture
        self._descent: Descent | None = None
        self._first_weights = first_weights(start, self.architecture.weight_shapes, self.seed)
        self._steps: BatchSteps | None = None
        self.trace: Trace | None = None
        self.epochs: EpochTrace | None = None

    def fit(
        self,
        X: ArrayLike | DataLoader[Any],
        y: ArrayLike | None = None,
        *,
        progress: bool = False,
        on_step: Callable[[Any], None] | None = None,
    ) -> LiftedMLP:
        """Fit weights, and by the full method states, to data.

        Args:
            X: (samples, inputs), float32 or float64; or, by minibatches, a torch DataLoader that
                yields pairs (X, y).
            y: labels (samples,), or targets (samples, outputs), as the loss takes them.
            progress: whether to show a progress bar.
            on_step: told after every block update (`Step`), or every epoch (`Epoch`).

        Returns:
            The model; `trace` holds the objective after every block, `epochs` what every pass
            over minibatches did. An interrupt stops early and keeps what is done.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            SolverError: a block failed or raised the joint objective, or the loss or the weights
                are not finite; the model keeps the last good state.
        """
        if isinstance(self.method, FullBatch):
            self._fit_blocks(*self._encoded(X, y), self.method, progress, on_step)
        else:
            self._fit_batches(X, y, self.method, progress, on_step)
        if self.refit_output:
            self._blocks = refitted_output(self._fitted(), self.solver)
            self._weights = None
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> LiftedMLP:
        """Take one step on one batch, at the constant rate of `Minibatch`.

        The first call starts from the weights that are there; `fit` forgets the running
        statistics of the steps before.

        Args:
            X: (samples, inputs).
            y: labels (samples,), or targets (samples, outputs); one class alone is no error.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            DeclarationError: an activation is a raw divergence.
            SolverError: the loss or the weights are not finite; the weights have not changed.
        """
        steps = self._steps
        inputs, target = self._batch(X, y, steps.weights[0].matrix.dtype if steps else self.dtype)
        settings = self.method if isinstance(self.method, Minibatch) else Minibatch()
        if self._steps is None:
            source = torch.Generator().manual_seed(self.seed)
            weights = [layer.to(inputs) for layer in self._known_weights()]
            self._steps = BatchSteps(self.architecture, weights, settings, source)
        loss = self._steps.step(inputs, target, settings.rate, len(inputs))
        refuse_infinite(loss, 0, settings.rate)
        if not are_finite(self._steps.weights):
            self._steps = None  # its running statistics are spoiled, too
            raise SolverError("the step made weights NaN or infinite: scale the inputs.")
        self._settle([copied(layer) for layer in self._steps.weights])
        self._data = inputs, target
        return self

    def with_weights(self, weights: Sequence[Weights]) -> LiftedMLP:
        """Take weights as if they were fitted: the model predicts, and `fit` starts from them.

        Args:
            weights: W (inputs, units) and b (units,) of every layer.

        Raises:
            DataError: the first layer that does not fit the sizes, with both shapes.
        """
        given = given_weights(weights, self.architecture.weight_shapes)
        like = torch.empty(0, dtype=self.dtype or given[0].matrix.dtype, device=self.device)
        self._first_weights = [layer.to(like) for layer in given]
        self._settle(self._first_weights)
        self._steps = self._data = None
        return self

    def _encoded(self, X: object, y: object) -> Batch:
        inputs = checked_inputs(X, self.architecture.sizes[0], self.dtype, self.device)
        targets = checked_targets(y, inputs.shape[0])
        return inputs, self.loss.encode(targets, self.architecture.sizes[-1]).to(inputs)

    def _batch(self, X: object, y: object, dtype: torch.dtype | None) -> Batch:
        place = str(X.device) if isinstance(X, Tensor) else "cpu"  # where it is checked
        inputs = checked_inputs(X, self.architecture.sizes[0], dtype, place)
        targets = checked_targets(y, inputs.shape[0])
        target = encode_part(self.loss, targets, self.architecture.sizes[-1]).to(inputs.dtype)
        there = torch.device(self.device)
        return sent(inputs, there), sent(target, there)

    def _fit_blocks(
        self,
        inputs: Tensor,
        target: Tensor,
        method: FullBatch,
        progress: bool,
        on_step: Callable[[Any], None] | None,
    ) -> None:
        previous, weights = self._blocks if self.warm_start else None, self._start(inputs)
        blocks = blocks_at(
            self.architecture, weights, inputs, target, self.solver, method.state_passes
        )
        if previous is not None and previous.inputs.equal(inputs):
            blocks.take_states(previous)
        blocks.learn_activations = method.learn_activations
        self._blocks, self._weights, self._steps = blocks, None, None
        if self._descent is None:
            self._descent = method.descent(self.solver, self.architecture.multipliers)
        try:
            with sweep_progress(method.sweeps, progress, on_step) as report:
                self.trace = method.train(blocks, self._descent, report)
        finally:
            self.architecture = blocks.architecture

    def _fit_batches(
        self,
        X: ArrayLike | DataLoader[Any],
        y: ArrayLike | None,
        method: Minibatch,
        progress: bool,
        on_step: Callable[[Any], None] | None,
    ) -> None:
        source = torch.Generator().manual_seed(self.seed)
        data, validate = None, None
        batches: Batches
        if isinstance(X, DataLoader):
            if self.refit_output:
                raise DataError("refit_output needs all samples: give X and y as arrays.")
            batches = LoaderBatches(X, y, method, partial(self._batch, dtype=self.dtype))
            like = batches.like()
        else:
            like, target = data = self._encoded(X, y)
            batches, held = hold_out(like, target, method, source)
            validate = held and partial(mean_objective, self.architecture, self.solver, *held)
        steps = BatchSteps(self.architecture, self._start(like), method, source)
        try:
            with epoch_progress(method.epochs, progress, on_step) as report:
                self.epochs = EpochRun(steps, method, batches, validate).run(report)
        except (KeyboardInterrupt, SolverError):  # of any other error the model knows nothing
            self._take(steps.weights, data)
            raise
        self._take(steps.weights, data)

    def _take(self, weights: list[Weights], data: Batch | None) -> None:
        self._settle(weights)
        self._data, self._steps = data, None
