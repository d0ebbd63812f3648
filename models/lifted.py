"""The one lifted model: a network as a graph, trained by convex subproblems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.layers import Parameter
from liftednet.network import Term
from liftednet.samples import Weights
from liftednet.solvers import solve
from liftednet.validation import require_seed

from .batches import ArrayBatches, LoaderBatches, hold_out
from .block import Blocks, Structure
from .data import ArrayLike, Arrays, Data, Lengths, prepared
from .methods.descent import FullBatch, Solvers
from .methods.gauss_newton import GaussNewton
from .methods.minibatch import BatchSteps, Minibatch
from .methods.multipliers import MultiplierBlocks
from .prediction import Fitted, Predictor
from .run import Report, Steps, Trace, run
from .settings import MULTIPLIERS
from .starts import AUTO, START_SAMPLES, fitted_start, given_weights


class Lifted(Predictor):
    """A network whose layers are variables, trained by convex subproblems.

    min over weights and states of the losses + sum over states of lam D(Z, U) + the penalties;
    Lifted Neural Networks, eq. (10). Settings are kept as they are given and used by the next
    `fit`: change `model.method` or `model.lam` in between as you like.

    Args:
        network: of inputs, states and losses, joined by layers.
        lam: weight of the divergences, one number or one for each layer with states.
        rho: weight of the squared Frobenius norms, one number or one for each layer's weights.
        divergence: "tight" (biconvex, zero at the forward pass), "joint" (jointly convex), or
            "multipliers" (at rest the states are the forward pass; lam is where damping begins).
        penalty: in place of rho, any of `liftednet.penalties`, one or one for each layer's weights,
            held by every method at every step.
        method: "minibatch", "full", "gauss-newton", a `Minibatch`, `FullBatch` or `GaussNewton`
            with numbers of its own; "auto" for minibatches, but where multipliers or a raw
            divergence need all samples.
        start: "auto" ("kaiming", but from five layers with states on "orthogonal", scaled by the
            first samples so that each layer lies in the nearly linear range of its activation),
            "kaiming", "orthogonal", "xavier", "normal" (variance 0.1), "variance-scaling", or
            weights.
        solver: "auto", a solver's name, or a solver, for every block.
        state_solver: the same for the states of recurrent layers.
        proximity: weight of a pull of every weight fit to the previous weights, or None.
        seed: of the initial weights and of the order of batches.
        dtype: torch.float32 or torch.float64; None takes that of X.
        device: where the model lives, such as "cpu" or "cuda".
        warm_start: whether another `fit` goes on from the weights and states that are there.
        refit_output: whether the weights of the last layer are fitted to the forward features at
            the end.

    Raises:
        DataError: a number cannot be used.
        DeclarationError: the network, its divergence, penalties and method do not fit together.
    """

    _steps: BatchSteps | None = None  # of partial_fit

    def fit(
        self,
        X: Arrays | DataLoader[Any],
        y: Arrays | None = None,
        *,
        lengths: Lengths = None,
        sample_weight: ArrayLike | None = None,
        progress: bool = False,
        on_step: Report | None = None,
    ) -> Self:
        """Fit weights, and by the full method states, to data.

        Args:
            X: (samples, inputs), or (samples, steps, inputs) of sequences, float32 or float64; a
                tuple, or a dictionary by name, where there are several inputs; or, by minibatches,
                a torch DataLoader that yields pairs (X, y).
            y: labels (samples,), or targets (samples, outputs), as the loss takes them; for each
                step labels (samples, steps) or targets (samples, steps, outputs).
            lengths: (samples,) steps of each sequence; None: all have every step.
            sample_weight: (samples,) factors of every sample's part of the objective, not
                negative; None for 1.
            progress: whether to show a progress bar.
            on_step: told after every step of the method.

        Returns:
            The model; `trace` holds what every step did. An interrupt stops early and keeps what
            is done.

        Raises:
            DataError: X, y or lengths cannot be used; nothing has changed.
            SolverError: a block failed or raised the joint objective, or the loss or the weights
                are not finite; the model keeps the last good state.
        """
        structure, method = self.checked()
        told = partial(run, rounds=method.rounds, progress=progress, on_step=on_step)
        if isinstance(method, Minibatch):
            self._fit_batches(structure, method, (X, y, lengths, sample_weight), told)
        else:
            data = self._data(X, y, lengths, sample_weight)
            self._fit_blocks(structure, method, data, told)
        if self.refit_output:
            self._refit_outputs(self._on_data())
        self._steps = None
        return self

    def partial_fit(self, X: Arrays, y: Arrays, *, lengths: Lengths = None) -> Self:
        """Take one step on one batch, at the constant rate of `Minibatch`.

        The first call starts from the weights that are there; `fit` forgets the running
        statistics of the steps before.

        Args:
            X: as in `fit`.
            y: as in `fit`; one class alone is no error.
            lengths: as in `fit`.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            DeclarationError: the network cannot be trained on minibatches.
            SolverError: the loss or the weights are not finite; the weights have not changed.
        """
        structure, method = self.checked()
        settings = method if isinstance(method, Minibatch) else Minibatch()
        settings.refuse(structure, self.divergence == MULTIPLIERS)
        steps = self._steps
        dtype = steps.weights[0].matrix.dtype if steps else self.dtype
        batch = self._data(X, y, lengths, dtype=dtype, part=True)
        if steps is None:
            weights = [layer.to(batch.like) for layer in self._known_weights()]
            generator = torch.Generator().manual_seed(require_seed(self.seed))
            steps = BatchSteps(structure, weights, settings, generator)
        before = steps.snapshot()
        with torch.no_grad():
            steps.step(batch, settings.rate, len(batch))
        if not steps.finite():
            steps.weights = before
            self._steps = None  # its running statistics are spoiled, too
            raise SolverError("the step made weights NaN or infinite: scale the inputs.")
        found = tuple(steps.snapshot())
        fitted = Fitted(structure, found, batch, last_only=batch.last_only)
        self._steps, self._fit = steps, fitted
        return self

    def _data(
        self,
        X: Any,
        y: Any,
        lengths: Lengths = None,
        sample_weight: ArrayLike | None = None,
        *,
        dtype: Any = None,
        part: bool = False,
    ) -> Data:
        if y is None and isinstance(X, DataLoader):
            raise DataError(
                "a DataLoader is for method='minibatch': this method needs all samples."
            )
        if y is None:
            raise DataError("y is missing: fit(X, y).")
        return prepared(
            self.network, X, y, lengths, dtype=dtype or self.dtype, device=self.device, part=part,
            sample_weight=sample_weight,
        )  # fmt: skip

    def _fit_blocks(
        self,
        structure: Structure,
        method: FullBatch | GaussNewton,
        data: Data,
        told: Callable[..., Trace],
    ) -> None:
        blocks = self._begun(structure, data)
        self._refuse_start(blocks)
        if isinstance(method, GaussNewton):
            blocks.pass_forward()
            steps: Steps = method.steps(blocks)
        else:
            solvers = Solvers(self.solver, self.state_solver, method.tolerance)
            steps = method.steps(blocks, solvers)
        trace = Trace(blocks.objective())
        before, self._fit = self._fit, _fitted(blocks, data, trace)
        try:
            told(trace, steps)
        except SolverError:  # the last good state is kept; of any other error nothing is
            self._fit = _fitted(blocks, data, trace)
            raise
        except BaseException:
            self._fit = before
            raise
        self._fit = _fitted(blocks, data, trace)

    def _begun(self, structure: Structure, data: Data) -> Blocks:
        """Return the blocks of a fit: where the last has ended, or at a forward pass."""
        before = self._fit if self.warm_start else None
        if before is not None:
            structure = replace(structure, divergences=before.structure.divergences)
        weights = self._weights_to_begin_with(structure, data)
        kind = MultiplierBlocks if self.divergence == MULTIPLIERS else Blocks
        blocks = self._blocks_at(structure, data, weights, kind)
        known = None if before is None or before.data is None else before.blocks
        if known is not None and before is not None and _same_inputs(before.data, data):
            blocks.values.update({s: known.values[s] for s in structure.states})
            if isinstance(blocks, MultiplierBlocks) and isinstance(known, MultiplierBlocks):
                blocks.take_multipliers(known)
        return blocks

    def _refuse_start(self, blocks: Blocks) -> None:
        """Refuse a start whose forward pass is of no use."""

    def _fit_batches(
        self,
        structure: Structure,
        method: Minibatch,
        given: tuple[Any, Any, Any, Any],
        told: Callable[..., Trace],
    ) -> None:
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        data, validate, batches = None, None, self._loaded(*given, method)
        if batches is None:
            data = self._data(*given)
            kept, held = hold_out(data, method.validation, generator)
            batches, first = ArrayBatches(kept, method.batch_size, generator), data
            if held is not None:
                validate = partial(self._mean_objective, structure, held)
        else:
            first = batches.first()
        weights = self._weights_to_begin_with(structure, first)
        moves = BatchSteps(structure, weights, method, generator)
        trace = Trace(float("nan"))

        def fitted() -> Fitted:
            found = tuple(moves.snapshot())
            return Fitted(structure, found, data, None, trace, first.last_only)

        try:
            told(trace, method.steps(moves, batches, validate))
        except SolverError:  # the last good epoch is kept; of any other error nothing is
            self._fit = fitted()
            raise
        self._fit = fitted()

    def _loaded(self, X: Any, y: Any, lengths: Any, weights: Any, method: Minibatch) -> Any:
        if not isinstance(X, DataLoader):
            return None
        if any(x is not None for x in (y, lengths, weights)) or method.validation > 0:
            raise DataError(
                "a DataLoader brings its own y and cannot be split: pass y, lengths or weights, or "
                "ask for a validation share, with arrays alone."
            )
        if self.refit_output:
            raise DataError("refit_output needs all samples: give X and y as arrays.")
        return LoaderBatches(X, lambda a, b: self._data(a, b, part=True))

    def _mean_objective(
        self, structure: Structure, data: Data, weights: Sequence[Weights]
    ) -> float:
        return self._blocks_at(structure, data, weights).objective() / len(data)

    def _weights_to_begin_with(self, structure: Structure, data: Data) -> Sequence[Weights]:
        goes_on = self.warm_start and self._fit is not None
        given = self._known_weights() if goes_on else self._first_weights()
        weights = [layer.to(data.like) for layer in given]
        if self.start == AUTO and not goes_on:
            some = data.take(torch.arange(min(START_SAMPLES, len(data))))
            weights = fitted_start(structure, weights, some.values)
        return self._feasible(weights)

    def _known_weights(self) -> Sequence[Weights]:
        return self._first_weights() if self._fit is None else self._fit.weights

    def _refit_outputs(self, data: Data) -> None:
        """Fit the weights of every loss once more, to the features of a forward pass."""
        fitted = self._known
        blocks = self._blocks_at(fitted.structure, data, fitted.weights)
        for term in self.network.terms:
            last = _last_weights(term)
            fit = blocks.weight_fit(last)
            blocks.values[last] = solve(fit, self.solver, blocks.values[last]).value
        weights = tuple(blocks.weights)
        self._fit = replace(fitted, weights=weights, data=data, blocks=blocks)

    def with_weights(self, weights: Sequence[Weights]) -> Self:
        """Take weights as if they were fitted: the model predicts, and `fit` starts from them.

        Args:
            weights: as `weights` gives them.

        Raises:
            DataError: the first that does not fit, with both shapes.
        """
        given = given_weights(weights, self.network.parameters)
        like = torch.empty(0, dtype=self.dtype or given[0].matrix.dtype, device=self.device)
        self.start = [layer.to(like) for layer in given]
        self._fit = Fitted(self._structure(), tuple(self.start))
        self._steps = None
        return self


def _fitted(blocks: Blocks, data: Data, trace: Trace) -> Fitted:
    weights = tuple(blocks.weights)
    return Fitted(blocks.structure, weights, data, blocks, trace, data.last_only)


def _last_weights(term: Term) -> Parameter:
    if term.argument.weights is None:
        raise DeclarationError("refit_output needs a loss right on a layer with weights.")
    return term.argument.weights


def _same_inputs(before: Data | None, now: Data) -> bool:
    if before is None or set(before.values) != set(now.values):
        return False
    return all(
        not isinstance(value, Tensor)
        or (value.dtype is now.values[variable].dtype and value.equal(now.values[variable]))
        for variable, value in before.values.items()
    )
