"""The one lifted model: a network as a graph, trained by convex subproblems."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.constraints import Constraint, violations
from liftednet.errors import DataError, SolverError, telling_of_memory
from liftednet.layers.projection import Projection
from liftednet.samples import Weights
from liftednet.sets.polyhedron import Limits
from liftednet.validation import require_seed

from .batches import ArrayBatches, LoaderBatches, hold_out
from .block import Blocks, Structure
from .checkpoint import Checkpoint, Keeper
from .constraints import (
    ROUNDS,
    AugmentedLagrangian,
    ConstraintReport,
    HeldScores,
    Widths,
    refuse_unmet,
)
from .data import ArrayLike, Arrays, Data, Lengths, prepared, row_parts
from .described import described_training
from .diagnosis import scale_hint, warn_of, warn_of_far_rows, warn_of_scales
from .incomplete import WHOLE, Completion, completion_of, refuse_incomplete
from .methods import COUNTED, Method
from .methods.descent import FullBatch, Solvers
from .methods.gauss_newton import FIRST_RHO, GaussNewton, has_ends, pulled, suits_together
from .methods.minibatch import BatchSteps, Minibatch
from .methods.multipliers import MultiplierBlocks
from .output import refitted
from .parts import Parts, recalled
from .prediction import Fitted, Predictor
from .run import Report, Step, Steps, Trace, run
from .settings import MULTIPLIERS, feasible
from .shares import refuse_shares, refuse_unlike
from .standardization import (
    RAW,
    Standardization,
    has_several_units,
    spreads_of,
    standardization_of,
    unpacked_standardization,
)
from .starts import (
    AUTO,
    START_SAMPLES,
    fitted_start,
    given_weights,
    settled_start,
    thinned_start,
)
from .store import Store


class Lifted(Predictor):
    """A network whose layers are variables, trained by convex subproblems.

    min over weights and states of the losses + sum over states of lam D(Z, U) + the penalties;
    Lifted Neural Networks, eq. (10). Settings are kept as they are given and used by the next
    `fit`: change `model.method` or `model.lam` in between as you like.

    Args:
        network: of inputs, states and losses, joined by layers.
        lam: weight of the divergences, one number or one for each layer with states.
        rho: weight of the squared Frobenius norms, one number or one for each layer's weights; None
            for 1, times the square of the steepest slope that the weights act through where that is
            below 1 (1/16 before sigmoids), and where there is a penalty.
        divergence: "tight" (biconvex, zero at the forward pass), "joint" (jointly convex), or
            "multipliers" (at rest the states are the forward pass; lam is where damping begins).
        penalty: in place of rho, any of `liftednet.penalties`, one or one for each layer's weights,
            held by every method at every step.
        method: "minibatch", "full", "gauss-newton", a `Minibatch`, `FullBatch` or `GaussNewton`
            with numbers of its own; "auto" for minibatches, but where multipliers or a raw
            divergence need all samples, and for regressions of some hundreds of samples, which are
            standardized and not weighted, where no rho is given: for these Gauss-Newton, with rho
            by the evidence. Where weights have signs or places fixed to zero, as where outputs are
            monotone or convex, it is Gauss-Newton with a given rho, too.
        start: "auto" ("kaiming", but from five layers with states on "orthogonal", scaled by the
            first samples so that each layer lies in the nearly linear range of its activation),
            "kaiming", "orthogonal", "xavier", "normal" (variance 0.1), "variance-scaling", or
            weights. Weights on states whose penalty gives them signs begin with the identity and
            small entries, whatever the name.
        solver: "auto", a solver's name, or a solver, for every block.
        state_solver: the same for the states of recurrent layers.
        proximity: weight of a pull of every weight fit to the previous weights, or None.
        seed: of the initial weights and of the order of batches.
        dtype: torch.float32 or torch.float64; None takes that of X.
        device: where the model lives, such as "cpu" or "cuda".
        warm_start: whether another `fit` goes on from the weights and states that are there.
        refit_output: whether at the end the last layer, which must be dense, is fitted to the
            forward features of all samples by one convex problem, min over W, b of the loss + the
            penalty + pull |W - W_0|_F^2, W_0 from training, to a relative residual of 1e-3 where
            the solver is "auto". The pull is chosen on a fifth of the samples. Where none is better
            there, as after many passes, which have seen that fifth, or there are fewer than ten,
            W_0 stays.
        standardize: whether training sees inputs, and targets of regressions, on a common scale
            (see `standardization_of`); `weights` are those for raw data again, but where
            `standardization` keeps moments. None: where features are in several units.

    Raises:
        DataError: a number cannot be used.
        DeclarationError: the network, its divergence, penalties and method do not fit together.

    Example:
        >>> from liftednet import Network, data
        >>> from liftednet.activations import ReLU
        >>> from liftednet.layers import dense
        >>> from liftednet.losses import CrossEntropy
        >>> from liftednet.models import Lifted
        >>> network, digits = Network(), data.digits()
        >>> h = network.state(ReLU(), dense(network.input(64), 30))
        >>> outputs = network.loss(CrossEntropy(), dense(h, 10))
        >>> model = Lifted(network).fit(digits.x_train, digits.y_train)
        >>> bool((model.predict(digits.x_test) == digits.y_test).float().mean() > 0.95)
        True
    """

    _parts: Parts | None = None  # of partial_fit

    @telling_of_memory
    def fit(
        self,
        X: Arrays | DataLoader[Any],
        y: Arrays | None = None,
        *,
        lengths: Lengths = None,
        sample_weight: ArrayLike | None = None,
        progress: bool = False,
        on_step: Report | None = None,
        checkpoint: str | Path | Checkpoint | None = None,
        resume: bool = False,
        constraints: Sequence[Constraint] = (),
    ) -> Self:
        """Fit weights, and by the full method states, to data.

        Where a process group of torch.distributed has several processes, all of them call it, each
        with its own rows: it is the fit to the rows of all, one process after another, and every
        process has its weights (see docs/distributed.md).

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
            on_step: told after every step of the method, when the model is what has been reached.
                Where it raises an error, training ends and keeps what is done.
            checkpoint: a file that training is kept in while it runs, at most once a minute, or a
                `Checkpoint` with numbers of its own. It is written, too, where an interrupt or
                SIGTERM ends training; then SIGTERM does what it would have done without. A file
                that cannot be written while training runs is a warning.
            resume: whether to go on from the checkpoint, where there is one, as if nothing had
                happened: to the same bits on the same machine with as many threads, for a
                DataLoader if its order is that of torch's generators. One that is finished
                gives the finished model.
            constraints: of `liftednet.constraints`, on the scores of all samples of X, which the
                forward pass meets in the end: after the method, all weights with a smooth penalty
                are trained under them on the whole of X, by an augmented Lagrangian, and then the
                last layer is fitted under them exactly. In float32 they are met to its rounding. A
                checkpoint is of the method before. See `constraint_report`.

        Returns:
            The model; `trace` holds what every step did. An interrupt stops early and keeps what
            is done.

        Raises:
            DataError: X, y or lengths cannot be used, or the checkpoint cannot be written, is
                damaged or that of another training; nothing has changed.
            SolverError: a block failed or raised the joint objective, or the loss or the weights
                are not finite, or the last layer cannot meet the constraints; the model keeps the
                last good state.

        Warns:
            FitWarning: the fit is no better than a constant prediction, or most units of a layer
                answer the same to every sample, or some entries of a feature lie so far from all
                others that these look alike.
        """
        with torch.inference_mode(False), processes.together(self.device):
            with processes.agreed():
                structure, method = self.checked()
            refuse_unlike(
                self, structure, method, X=X, y=y, lengths=lengths, sample_weight=sample_weight,
                checkpoint=checkpoint, resume=resume,
                constraints=constraints or None,
            )  # fmt: skip
            if constraints and processes.size() > 1:
                raise DataError(
                    "constraints on scores need all samples in one process, and "
                    f"{processes.size()} share them."
                )
            method, structure = self._suited(method, structure, X, sample_weight)
            keeper = Keeper(checkpoint, resume)
            told = partial(run, keeper=keeper, progress=progress, on_step=on_step)
            if isinstance(method, Minibatch):
                given = X, y, lengths, sample_weight
                seen = self._fit_batches(structure, method, given, keeper, told, constraints)
            else:
                data = self._data(X, y, lengths, sample_weight)
                refuse_unmet(self.network, constraints, data)
                seen = self._fit_blocks(structure, method, data, keeper, told, progress)
            if constraints:
                self._hold(constraints, X, progress, on_step)
            elif self._goes_on(method, structure, len(seen)):
                self._go_on(None, progress, on_step)
            elif self.refit_output and not self.interrupted:
                self._refit_outputs()
            self._parts = None
            pruned = isinstance(method, GaussNewton) and method.evidence
            warn_of(self._known.structure, self._by_parameter(), seen, pruned=pruned)
        return self

    @telling_of_memory
    def partial_fit(
        self,
        X: Arrays,
        y: Arrays,
        *,
        lengths: Lengths = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Take one step on one batch, at the constant rate of `Minibatch`.

        The first call starts from the weights that are there, and brings inputs, and targets of
        regressions, to a common scale; where it draws the weights, this scale follows the samples
        until a thousand have been seen. `fit` forgets the running statistics of the steps before;
        `save` keeps them.

        Args:
            X: as in `fit`.
            y: as in `fit`; one class alone is no error.
            lengths: as in `fit`.
            sample_weight: as in `fit`.

        Returns:
            The model; `trace` holds this step.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            DeclarationError: the network cannot be trained on minibatches.
            SolverError: the loss or the weights are not finite; the weights have not changed.
        """
        with torch.inference_mode(False), processes.together(self.device):
            return self._partially_fitted(X, y, lengths, sample_weight)

    def _partially_fitted(self, X: Any, y: Any, lengths: Lengths, sample_weight: Any) -> Self:
        began = time.perf_counter()
        refuse_incomplete(self.network, "partial_fit")
        structure, method = self.checked()
        settings = method if isinstance(method, Minibatch) else Minibatch()
        settings.refuse(structure, self.divergence == MULTIPLIERS)
        parts = self._parts
        dtype = parts.steps.weights[0].matrix.dtype if parts else self.dtype
        batch = self._data(X, y, lengths, sample_weight, dtype=dtype, part=True)
        if parts is None:
            parts = self._first_part(structure, settings, batch)
        else:
            parts = parts.seeing(self.network, batch)
        if parts.spreads is not None:  # which the scales follow
            warn_of_far_rows(structure, batch)
        steps, batch = parts.steps, parts.standardization.of(batch)
        before = steps.memory()
        share = processes.share_of(len(batch))
        weight = processes.total_of(batch.mass) / share.samples
        batch = replace(batch, among=share.samples)
        with torch.no_grad():
            steps.step(batch, steps.rate, parts.samples, weight)
            try:
                ((_, loss),) = steps.read()
            except SolverError:
                steps.recall(before)
                raise
        if not steps.finite():
            steps.recall(before)
            self._parts = None  # its running statistics are spoiled, too
            raise SolverError("the step made weights NaN or infinite: scale the inputs.")
        found = tuple(steps.snapshot())
        step = Step(
            0, "batch", loss, math.nan, math.nan, 1, "minibatch", time.perf_counter() - began
        )
        trace = Trace(math.nan, [step])
        fitted = Fitted(
            structure, found, batch, None, trace, batch.last_only,
            standardization=parts.standardization, spread=processes.size() > 1,
        )  # fmt: skip
        self._parts, self._fit = parts, fitted
        return self

    def _first_part(self, structure: Structure, settings: Minibatch, batch: Data) -> Parts:
        """Return what the first of several batches begins with, or that after the last is loaded.

        Scales follow the samples where the weights are drawn for them: other weights belong to
        those of the first batch.
        """
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        loaded = None if self._fit is None else self._fit.parts
        if loaded is not None:
            steps = BatchSteps(structure, self._known.weights, settings, generator)
            return recalled(loaded, self.network, steps).seeing(self.network, batch)
        standardization = self._standardization(batch, goes_on=True).of_a_part
        begun = standardization.of(batch)
        weights = self._weights_to_begin_with(structure, begun, standardization, goes_on=True)
        steps = BatchSteps(structure, weights, settings, generator)
        follows = standardization.moments and not self.is_fitted and isinstance(self.start, str)
        spreads = spreads_of(self.network, batch) if follows else None
        return Parts(steps, standardization, spreads)

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
            wanted = ", or fit(loader) with a torch.utils.data.DataLoader of pairs"
            hint = "" if hasattr(X, "shape") else f"{wanted}; got a {type(X).__name__} alone"
            raise DataError(f"y is missing: fit(X, y){hint}.")
        several = processes.size() > 1
        with processes.agreed():
            found = self._checked_data(X, y, lengths, sample_weight, dtype, part or several)
        if several:
            refuse_shares(self.network, found, part)
        elif not len(found):
            raise DataError(f"X is empty: shape {tuple(getattr(X, 'shape', ()))}.")
        return found

    def _checked_data(
        self, X: Any, y: Any, lengths: Lengths, sample_weight: Any, dtype: Any, part: bool
    ) -> Data:
        return prepared(
            self.network, X, y, lengths, dtype=dtype or self.dtype, device=self.device, part=part,
            sample_weight=sample_weight,
        )  # fmt: skip

    def _fit_blocks(
        self,
        structure: Structure,
        method: FullBatch | GaussNewton,
        data: Data,
        keeper: Keeper,
        told: Callable[..., None],
        progress: bool,
    ) -> Data:
        completion = completion_of(self.network, data)
        standardization = self._standardization(completion.spread(data), self.warm_start)
        structure = self._structure_on(structure, standardization)
        described = partial(described_training, self, structure, method, data)
        if isinstance(method, FullBatch) and method.store is not None:
            refuse_incomplete(self.network, "A store")
            keeper.refuse("the states of a store change in place")
            with processes.agreed():
                store = Store(method.store)
                data = store.standardized(standardization, data)
            weights = self._weights_to_begin_with(structure, data, standardization, self.warm_start)
            blocks = self._stored_blocks(structure, data, weights, store)
        else:
            data = standardization.of(completion.of(data)).aligned()
            blocks = self._begun(structure, data, standardization, method, progress)
        self._refuse_start(blocks)
        memory, begun = keeper.begun(described, data.like.device, len(data))
        if isinstance(method, GaussNewton):
            blocks.pass_forward()
            steps: Steps = method.take_steps(blocks, memory)
        else:
            solvers = Solvers(self.solver, self.state_solver, method.tolerance)
            steps = method.take_steps(blocks, solvers, memory)
        trace = begun or Trace(_finite(blocks.objective()))

        def keep() -> None:
            self._fit = replace(
                _fitted(blocks, data, trace, standardization), completion=completion
            )

        with _hinting(data):
            told(trace, steps, memory, keep, max_iter=getattr(method, COUNTED[type(method)]))
        return data

    def _standardization(self, data: Data, goes_on: bool) -> Standardization:
        """Return what stands between data and weights: that of before, or that of the data."""
        if goes_on and self._fit is not None and self._fit.standardization.moments:
            before = self._known.standardization
            if self.warm_start:
                warn_of_scales(before, standardization_of(self.network, data))
            return before
        asked = self.standardize
        if not (has_several_units(self.network, data) if asked is None else asked):
            return RAW
        found = standardization_of(self.network, data)
        known = self._fit.weights if goes_on and self._fit is not None else self.start
        if isinstance(known, str) or found.unfolded(self.network, known) is not None:
            return found
        return RAW  # weights were given for raw data, and cannot be those for other

    def _structure_on(self, structure: Structure, standardization: Standardization) -> Structure:
        """Return the training problem on data that are standardized so."""
        return structure

    def _suited(
        self, method: Method, structure: Structure, X: Any, sample_weight: Any
    ) -> tuple[Method, Structure]:
        """Return the method of a fit to these data, and the problem that it begins with."""
        if self.method != "auto" or not isinstance(method, Minibatch):
            return method, structure
        shapes = [getattr(x, "shape", ()) for x in (X if isinstance(X, tuple) else (X,))]
        if not shapes[0] or not suits_together(structure, processes.total_of(shapes[0][0])):
            return method, structure
        given = [p.penalty for p in structure.parameters if p.penalty is not None]
        if self.rho is None and self.penalty is None and not any(x.curvature for x in given):
            if has_ends(structure) or (self.standardize and sample_weight is None):
                return GaussNewton(evidence=True), pulled(structure, FIRST_RHO)
            return method, structure
        return (GaussNewton() if has_ends(structure) else method), structure

    def _begun(
        self, structure: Structure, data: Data, standardization: Standardization, method: Method,
        progress: bool,
    ) -> Blocks:  # fmt: skip
        """Return the blocks of a fit: where the last has ended, or at a forward pass."""
        before = self._known if self.warm_start and self.is_fitted else None
        if before is not None:
            structure = replace(structure, divergences=before.structure.divergences)
        weights = self._weights_to_begin_with(structure, data, standardization, self.warm_start)
        kind = MultiplierBlocks if self.divergence == MULTIPLIERS else Blocks
        blocks = self._blocks_at(structure, data, weights, kind)
        known = None if before is None else before.memory(data)
        if known is not None:
            blocks.recall_states(known)
        return blocks

    def _stored_blocks(
        self, structure: Structure, data: Data, weights: Sequence[Weights], store: Store
    ) -> Blocks:
        """Return the blocks at a forward pass, whose states stand in files."""
        kept, like = {}, data.like.dtype
        with processes.agreed():
            for state in structure.states:
                kept[state] = store.empty((len(data), state.units), like)
            for part in row_parts({**data.values, **kept}):
                some = Data({x: v[part] for x, v in data.values.items()}, data.last_only)
                passed = self._blocks_at(structure, some, weights)
                for state, rows in kept.items():
                    rows[part] = passed.values[state]
        given = dict(zip(structure.parameters, weights, strict=True))
        values = {**data.values, **given, **kept}
        return Blocks(structure, values, data.last_only, self.proximity, stored=True)

    def _refuse_start(self, blocks: Blocks) -> None:
        """Refuse a start whose forward pass is of no use."""

    def _fit_batches(
        self,
        structure: Structure,
        method: Minibatch,
        given: tuple[Any, Any, Any, Any],
        keeper: Keeper,
        told: Callable[..., None],
        constraints: Sequence[Constraint],
    ) -> Data:
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        data, validate, batches = None, None, self._loaded(*given, method)
        if batches is None:
            data = self._data(*given)
            refuse_unmet(self.network, constraints, data)
            completion, raw = completion_of(self.network, data), data
            standardization = self._standardization(completion.spread(raw), self.warm_start)
            data = standardization.later(completion.of(raw))
            numbers, held = hold_out(data, method.validation, generator)
            batches = ArrayBatches(
                data, method.batch_size, generator, numbers,
                partial(_redrawn, raw, completion, standardization) if completion.priors else None,
            )  # fmt: skip
            first = data
            if held is not None:
                validate = partial(self._mean_objective, structure, data, held)
        elif constraints:
            raise DataError("constraints speak of all samples at once: give X and y as arrays.")
        else:
            raw, completion = batches.first(), WHOLE
            standardization = self._standardization(raw, self.warm_start).of_a_part
            first = standardization.of(raw)
        declared, structure = structure, self._structure_on(structure, standardization)
        weights = self._weights_to_begin_with(structure, first, standardization, self.warm_start)
        moves = BatchSteps(structure, weights, method, generator)
        described = partial(
            described_training, self, structure, method, raw, None if data else batches
        )
        memory, begun = keeper.begun(described, first.like.device, len(first))
        if data is None:
            if memory:  # the batches that came first then were others
                known = memory["standardization"]
                standardization = unpacked_standardization(known, self.network)
                first = standardization.of(raw)
                moves.structure = structure = self._structure_on(declared, standardization)
            batches.standardization = standardization
        memory["standardization"] = standardization.packed(self.network)
        trace = begun or Trace(float("nan"))

        def keep() -> None:
            found, last_only = tuple(moves.weights), first.last_only
            self._fit = Fitted(
                structure, found, data, None, trace, last_only, standardization=standardization,
                spread=processes.size() > 1, completion=completion,
            )  # fmt: skip

        with _hinting(first):
            steps = method.take_steps(moves, batches, validate, memory)
            told(trace, steps, memory, keep, max_iter=method.epochs_of(len(batches)))
        return first

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
        refuse_incomplete(self.network, "A DataLoader")
        return LoaderBatches(X, lambda a, b: self._checked_data(a, b, None, None, None, True))

    def _mean_objective(
        self, structure: Structure, data: Data, numbers: Tensor, weights: Sequence[Weights]
    ) -> float:
        """Return the objective over some samples at their forward pass, some of them at a time."""
        total = 0.0
        with processes.agreed():
            for part in data.parts(numbers, structure.states):
                total += self._blocks_at(structure, part, weights).own_sum()
        given = dict(zip(structure.parameters, weights, strict=True))
        held = processes.total_of(len(numbers))
        return (structure.penalty(given) + processes.total_of(total)) / held

    def _weights_to_begin_with(
        self, structure: Structure, data: Data, standardization: Standardization, goes_on: bool
    ) -> list[Weights]:
        """Return the weights of before, or of the start, on standardized data."""
        goes_on = goes_on and self.is_fitted
        given: Sequence[Weights] = self._known.weights if goes_on else self._first_weights()
        drawn = not goes_on and isinstance(self.start, str)
        if not drawn and not (goes_on and self._known.standardization.moments):  # for raw data
            given = standardization.unfolded(self.network, given) or given
        weights = [layer.to(data.like) for layer in given]
        if drawn:
            weights = settled_start(structure, weights, standardization.still)
        if not goes_on and (self.start == AUTO or not drawn):
            share = processes.share_of(len(data))
            some = data.take(share.own(torch.arange(min(START_SAMPLES, share.samples))))
            to_data = fitted_start if drawn else thinned_start
            weights = to_data(structure, weights, some.values)
        return feasible(weights, structure.penalties.values())

    def _refit_outputs(self) -> None:
        """Fit the last layers once more, to the features of a forward pass."""
        fitted, generator = self._known, torch.Generator().manual_seed(require_seed(self.seed))
        weights = refitted(
            fitted.structure, fitted.weights, self._on_data(), generator, self.solver
        )
        self._fit = replace(fitted, weights=tuple(weights), blocks=None)

    def _hold(
        self, constraints: Sequence[Constraint], X: Any, progress: bool, on_step: Report | None
    ) -> None:
        """Train all layers under constraints on the scores, and the last one exactly."""
        fitted, data = self._known, self._on_data()
        held = HeldScores(self.network.terms[0], tuple(constraints), fitted.standardization)
        blocks = self._blocks_at(fitted.structure, data, fitted.weights)
        if len((limits := held.problem(blocks).limits).lower):
            self._go_on(limits, progress, on_step)
            blocks = self._blocks_at(fitted.structure, data, self._known.weights)
        solution, gap = held.fitted(blocks)
        blocks.values[held.last] = solution.value
        self._fit = replace(fitted, weights=tuple(blocks.weights), data=data, blocks=blocks)
        report = ConstraintReport(
            held.constraints, violations(held.constraints, self.scores(X)), solution.duals,
            solution.objective, gap, solution.residual, solution.solver,
        )  # fmt: skip
        self._fit = replace(self._fit, report=report)

    def _goes_on(self, method: Method, structure: Structure, samples: int) -> bool:
        """Return whether more units for a while would lower what minibatches have reached.

        So they do behind a projection, where rho is not that of the evidence, if there are so few
        samples that all of them go into every step. A method that was asked for is all there is.
        """
        projected = any(isinstance(x.layer, Projection) for x in self.network.layers())
        small = projected and suits_together(structure, samples) and bool(Widths(structure))
        chosen = isinstance(method, Minibatch) and self.method == "auto"
        here = self._known.data is not None and processes.size() == 1
        return small and chosen and here and not self.interrupted

    def _go_on(self, limits: Limits | None, progress: bool, on_step: Report | None) -> None:
        """Train all layers on, by rounds of which some have more units, under limits if any."""
        fitted, data = self._known, self._on_data()
        assert fitted.trace is not None  # of the method before
        blocks = self._blocks_at(fitted.structure, data, fitted.weights)
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        moves = AugmentedLagrangian(blocks, self.network.terms[0], limits, generator)

        def keep() -> None:
            self._fit = replace(fitted, weights=moves.weights, blocks=None)

        run(
            fitted.trace, moves.take_steps(fitted.trace.n_iter), {}, keep,
            keeper=Keeper(None, resume=False), max_iter=fitted.trace.n_iter + ROUNDS,
            progress=progress, on_step=on_step,
        )  # fmt: skip

    def with_weights(self, weights: Sequence[Weights], *, per_step: bool | None = None) -> Self:
        """Take weights as if they were fitted: the model predicts, and `fit` starts from them.

        Args:
            weights: as `weights` gives them.
            per_step: whether sequences have an answer at every step, or one, at their last; None
                for what the last fit had, or every step where there was none.

        Raises:
            DataError: the first that does not fit, with both shapes.
        """
        given = given_weights(weights, self.network.parameters)
        like = torch.empty(0, dtype=self.dtype or given[0].matrix.dtype, device=self.device)
        self.start = [layer.to(like) for layer in given]
        last_only = frozenset() if self._fit is None else self._known.last_only
        if per_step is not None:
            terms = () if per_step else self.network.terms
            last_only = frozenset(term.label for term in terms if term.argument.sequence)
        self._fit = Fitted(self._structure(), tuple(self.start), last_only=last_only)
        self._parts = None
        return self


def _finite(objective: float) -> float:
    """Return the objective at the start, which no method lowers where it is none."""
    if not math.isfinite(objective):
        raise DataError(
            f"the objective at the start is {objective}: squares of its terms overflow. Scale X, "
            "or take a smaller start."
        )
    return objective


def _fitted(blocks: Blocks, data: Data, trace: Trace, standardization: Standardization) -> Fitted:
    return Fitted(
        blocks.structure, tuple(blocks.weights), data, blocks, trace, data.last_only,
        standardization=standardization, spread=processes.size() > 1,
    )  # fmt: skip


def _redrawn(
    raw: Data, completion: Completion, standardization: Standardization, generator: torch.Generator
) -> Data:
    return standardization.of(completion.drawn(raw, generator))


@contextmanager
def _hinting(data: Data) -> Iterator[None]:
    """Let an error say that scales are its cause, where they are."""
    try:
        yield
    except SolverError as error:
        if hint := scale_hint(data):
            raise SolverError(f"{error}{hint}", error.solution) from error
        raise
