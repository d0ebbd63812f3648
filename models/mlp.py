"""The lifted feedforward network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import ReLU
from liftednet.errors import DataError, NotFittedError
from liftednet.losses import CrossEntropy, Loss, OutputLoss
from liftednet.problems import Design, OutputFit, Weights
from liftednet.solvers import Solver, named, solve
from liftednet.validation import require_float, require_positive

from .architecture import design_network
from .arrays import ArrayLike, checked_inputs, checked_targets
from .descent import Descent, Step, Trace, largest_residual
from .feedforward import FeedforwardBlocks, forward_states
from .layer_starts import draw_weights, given_weights, start_named
from .progress import sweep_progress

_PREDICTION_SWEEPS = 200  # two layers need a handful; a longer chain converges linearly
_PREDICTION_TOLERANCE = 1e-6


class LiftedMLP:
    """A feedforward network whose layers are variables, trained by convex subproblems.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10), by the block-coordinate descent of section 6.

    Args:
        sizes: units of the input, every hidden layer, and the output.
        activations: one for all hidden layers, or one for each; one more than that gives the
            output states of its own (eq. (14)), which SimplexCrossEntropy has by itself.
        loss: a loss from `liftednet.losses`.
        lam: weight of the divergences, one number or one for each layer with states.
        rho: weight of the squared Frobenius norms, one number or one for each layer.
        divergence: "tight" (biconvex, zero at the forward pass) or "joint" (jointly convex).
        start: "kaiming", "xavier", "normal" (variance 0.1), "variance-scaling", or weights.
        sweeps: the most sweeps over all blocks.
        state_passes: visits of the states in one sweep; several solve the states all at once,
            which is exact where the divergence is joint.
        tolerance: stop when every block's relative KKT residual is below this.
        solver: "auto", a solver's name, or a solver, for every block.
        seed: of the initial weights.
        dtype: torch.float32 or torch.float64; None takes that of X.
        device: where the model lives, such as "cpu" or "cuda".
        warm_start: whether another `fit` goes on from the weights and states that are there.

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activations, loss and divergence do not fit together.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activations: Activation | Sequence[Activation] | None = None,
        loss: Loss | None = None,
        lam: float | Sequence[float] = 1.0,
        rho: float | Sequence[float] = 1e-3,
        divergence: str = "tight",
        *,
        start: str | Sequence[Weights] = "kaiming",
        sweeps: int = 20,
        state_passes: int = 1,
        tolerance: float = 1e-4,
        solver: str | Solver[Any, Any, Any] = "auto",
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        warm_start: bool = False,
    ) -> None:
        """Check what can be checked before there are data."""
        self.loss = CrossEntropy() if loss is None else loss
        activations = ReLU() if activations is None else activations
        self.architecture = design_network(sizes, activations, self.loss, lam, rho, divergence)
        for name, count in (("sweeps", sweeps), ("state_passes", state_passes)):
            if not isinstance(count, int) or count < 1:
                raise DataError(f"{name} must be a positive integer, got {count!r}.")
        require_positive("tolerance", tolerance)
        if dtype is not None:
            require_float("dtype", torch.empty(0, dtype=dtype))
        self.start = start if isinstance(start, str) else tuple(start)
        self.seed = seed
        self.dtype = dtype
        self.device = device
        self.sweeps = sweeps
        self.state_passes = state_passes
        self.warm_start = warm_start
        self._descent = Descent(_known(solver), tolerance)
        self._first_weights = self._draw()
        self._given = False
        self._blocks: FeedforwardBlocks | None = None
        self._inputs: Tensor | None = None
        self.trace: Trace | None = None

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        progress: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> LiftedMLP:
        """Fit weights and states to data.

        Args:
            X: (samples, inputs), float32 or float64.
            y: labels (samples,), or targets (samples, outputs), as the loss takes them.
            progress: whether to show a progress bar.
            on_step: told after every block update.

        Returns:
            The model; `trace` holds the objective after every block. An interrupt stops early
            and keeps the last finished block.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            SolverError: a block failed or raised the joint objective; the model keeps the last
                good state.
        """
        inputs = checked_inputs(X, self.architecture.sizes[0], self.dtype, self.device)
        targets = checked_targets(y, inputs.shape[0])
        target = self.loss.encode(targets, self.architecture.sizes[-1]).to(inputs)
        self._blocks = self._begin(inputs, target)
        self._inputs = inputs
        with sweep_progress(self.sweeps, progress, on_step) as report:
            self.trace = self._descent.run(self._blocks, self.sweeps, report)
        return self

    def forward(self, X: ArrayLike) -> Tensor:
        """Return the output by the feedforward rule, (samples, outputs).

        Lifted Neural Networks, eq. (1); this is what `to_torch` exports.
        """
        weights = self.weights
        return forward_states(self.architecture, weights, self._prepared(X, weights))[-1]

    def predict(self, X: ArrayLike) -> Tensor:
        """Return labels (samples,), or outputs for a regression, by the feedforward rule."""
        return self.loss.decode(self.forward(X))

    def predict_proba(self, X: ArrayLike) -> Tensor:
        """Return class probabilities, (samples, outputs), by the feedforward rule.

        Raises:
            DataError: the loss has no probabilities.
        """
        if not self.loss.probabilistic:
            raise DataError(
                f"{type(self.loss).__name__} gives no probabilities; use predict or forward."
            )
        return self.forward(X)

    def forward_lifted(self, X: ArrayLike) -> Tensor:
        """Return the output by the lifted rule, (samples, outputs).

        The training problem with the weights fixed and y free; Lifted Neural Networks, eq. (12).

        Raises:
            SolverError: the states did not reach their tolerance.
        """
        weights = self.weights
        inputs = self._prepared(X, weights)
        outputs = forward_states(self.architecture, weights, inputs)
        states = outputs[: len(self.architecture.divergences)]
        blocks = FeedforwardBlocks(
            self.architecture, Design(inputs), None, weights, states, fixed_weights=True
        )
        Descent(self._descent.solver, _PREDICTION_TOLERANCE).run(blocks, _PREDICTION_SWEEPS)
        if self.architecture.has_output_states:
            return blocks.states[-1]
        return self.architecture.activations[-1].forward(
            blocks.pre_activation(self.architecture.layers - 1)
        )

    def predict_lifted(self, X: ArrayLike) -> Tensor:
        """Return labels (samples,), or outputs for a regression, by the lifted rule, eq. (12)."""
        return self.loss.decode(self.forward_lifted(X))

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
        self._given, self._blocks = True, None
        return self

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights of every layer: W (inputs, units) and b (units,)."""
        if self._given and self._blocks is None:
            return tuple(self._first_weights)
        return tuple(self._fitted().weights)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states of every layer that has them, on the data of the last fit."""
        return tuple(self._fitted().states)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of every layer, the loss giving the last where it is pinned."""
        return self.architecture.activations

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64."""
        return self._fitted().objective()

    def residual(self) -> float:
        """Return the largest relative KKT residual over all blocks at the current point."""
        return largest_residual(self._fitted())

    def gap(self) -> tuple[float, ...]:
        """Return |X_l - forward pass| / |forward pass| for every layer with states."""
        blocks, inputs = self._fitted(), self._inputs
        assert inputs is not None
        passed = forward_states(self.architecture, blocks.weights, inputs)
        return tuple(
            float((state - exact).norm() / exact.norm().clamp(min=torch.finfo(exact.dtype).tiny))
            for state, exact in zip(blocks.states, passed, strict=False)
        )

    def _draw(self) -> list[Weights]:
        shapes = self.architecture.weight_shapes
        if isinstance(self.start, str):
            generator = torch.Generator().manual_seed(self.seed)
            return draw_weights(shapes, start_named(self.start), generator)
        return given_weights(self.start, shapes)

    def _begin(self, inputs: Tensor, target: Tensor) -> FeedforwardBlocks:
        previous = self._blocks if self.warm_start else None
        first = self._first_weights if previous is None else previous.weights
        weights = [layer.to(inputs) for layer in first]
        if previous is not None and self._inputs is not None and inputs.equal(self._inputs):
            states = previous.states
        else:
            states = self._first_states(weights, inputs, target)
        return FeedforwardBlocks(
            self.architecture, Design(inputs), target, weights, states, self.state_passes
        )

    def _first_states(
        self, weights: Sequence[Weights], inputs: Tensor, target: Tensor
    ) -> list[Tensor]:
        passed = forward_states(self.architecture, weights, inputs)
        if not self.architecture.has_output_states:
            return passed[:-1]
        below = weights[-1].apply(passed[-2] if len(passed) > 1 else inputs)
        divergence, lam = self.architecture.divergences[-1], self.architecture.lam[-1]
        assert isinstance(self.loss, OutputLoss)  # seen to by design_network
        fit = OutputFit(self.loss, target, divergence, below, lam)
        return [*passed[:-1], solve(fit, self._descent.solver).value]

    def _prepared(self, X: ArrayLike, weights: Sequence[Weights]) -> Tensor:
        inputs = checked_inputs(X, self.architecture.sizes[0], self.dtype, self.device)
        return inputs.to(weights[0].matrix)

    def _fitted(self) -> FeedforwardBlocks:
        if self._blocks is None:
            raise NotFittedError("this LiftedMLP has not been fitted: call fit(X, y) first.")
        return self._blocks


def _known(solver: str | Solver[Any, Any, Any]) -> str | Solver[Any, Any, Any]:
    """Return the solver, a name looked up so that an unknown one is refused at once."""
    return named(solver) if isinstance(solver, str) and solver != "auto" else solver
