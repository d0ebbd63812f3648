"""The one lifted model: a network as a graph, trained by convex subproblems.

A fit in one read: settings are `checked`, `_prepare` puts arrays on their scales and begins at a
point, the method takes its steps from there, and `_finish` refits, warns and reports.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.constraints import Constraint, RateConstraint
from liftednet.errors import DataError, DeclarationError, LiftedError, SolverError
from liftednet.layers.expression import TIME
from liftednet.samples import Weights
from liftednet.validation import require_flag

from .block import Structure
from .checkpoint import Checkpoint, Keeper
from .choice import Choice, choose, shape_of, shape_of_all
from .data import ArrayBatches, ArrayLike, Arrays, Data, Lengths, LoaderBatches, hold_out
from .diagnosis import judge_targets, judge_weights, scale_hint, warn_of
from .fingerprint import described_training, refuse_shares, refuse_unlike
from .incomplete import WHOLE, completion_of
from .methods import COUNTED, Method
from .methods.descent import FullBatch
from .methods.gauss_newton import GaussNewton
from .methods.global_optimum import Global
from .methods.minibatch import BatchSteps, Minibatch
from .output import levelled, refitted
from .prediction import Fitted
from .preparation import Prepared, few_threads
from .settings import passes_settings
from .standardization import Standardization
from .starts import given_weights
from .trace import Problem, Report, Trace, run, stopped_early
from .uncertainty import WorstRows

Given = tuple[Any, Any, Any, Any]  # X, y, lengths and the weights of the samples
Held = Sequence[Constraint | RateConstraint]


@passes_settings
class Lifted(Prepared):
    """A network whose layers are variables, trained by convex subproblems.

    min over weights and states of the losses + sum over states of lam D(Z, U) + the penalties;
    Lifted Neural Networks, eq. (10). Settings are kept as they are given and used by the next
    `fit`: change `model.method` or `model.lam` in between as you like.

    Args:
        network: of inputs, states and losses, joined by layers.
        **settings: see `Settings`.

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

    errors_aside = 1.0  # of the training rows, by which rates are aimed at within their limits

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
        constraints: Held = (),
        confidence: float | None = None,
        held_out: float = 0.3,
        strict: bool = False,
    ) -> Self:
        """Fit weights, and by the full method states, to data.

        Where a process group of torch.distributed has several processes, all of them call it, each
        with its own rows: it is the fit to the rows of all, one process after another, and every
        process has its weights (see docs/distributed.md).

        Args:
            X: (samples, inputs), or (samples, steps, inputs) of sequences, float32 or float64; a
                tuple where there are several inputs; or, by minibatches,
                a torch DataLoader that yields pairs (X, y). Up to 16 million numbers of all arrays
                are copied; more must stay as they are, for error bars and objectives later.
            y: labels (samples,), or targets (samples, outputs), as the loss takes them; for each
                step labels (samples, steps) or targets (samples, steps, outputs).
            lengths: (samples,) steps of each sequence; None: all have every step.
            sample_weight: (samples,) factors of every sample's part of the objective, not
                negative; None for 1. Rates count every sample once.
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
                checkpoint is of the method before. Those on rates are met as decisions are counted,
                where they can be: by rounds, with a margin. See `constraint_report`.
            confidence: with which constraints on rates shall hold on new rows, such as 0.95, all of
                them together; None asks for none. Then training takes a share of the rows, with a
                larger margin, and exact bounds on the others say whether they hold.
            held_out: the share of the rows that is set aside for it, of every group alike.
            strict: whether a model is handed out only if all constraints are shown to hold, with
                that confidence.

        Returns:
            The model; `trace` holds what every step did. An interrupt stops early and keeps what
            is done.

        Raises:
            DataError: X, y or lengths cannot be used, or the checkpoint cannot be written, is
                damaged or that of another training; nothing has changed.
            SolverError: a block failed or raised the joint objective, or the loss or the weights
                are not finite, or the last layer cannot meet the constraints; the model keeps the
                last good state. Asked strictly, a constraint is not shown to hold; there is no
                model then.

        Warns:
            FitWarning: the fit is no better than a constant prediction, or most units of a layer
                answer the same to every sample, or some entries of a feature lie so far from all
                others that these look alike.
        """
        with processes.together(self.device):
            with processes.agreed():
                require_flag("progress", progress)
                require_flag("resume", resume)
                if on_step is not None and not callable(on_step):
                    raise DataError(f"on_step must be a function of a step, got {on_step!r}.")
                if strict and confidence is None:
                    raise DataError(
                        "strict=True hands out a model that is shown to hold on new rows, which "
                        "takes rows set aside: say how surely, as in fit(..., confidence=0.95, "
                        "strict=True)."
                    )
            if bool(processes.largest([confidence is not None]).any()):
                _refuse_several("a warranty needs")
        if confidence is not None:
            from .warranty import fit_with_warranty

            fit_with_warranty(
                self, (X, y, lengths, sample_weight), constraints, confidence, held_out, strict,
                progress=progress, on_step=on_step, checkpoint=checkpoint, resume=resume,
            )  # fmt: skip
            return self
        with torch.inference_mode(False), processes.together(self.device):
            with processes.agreed():
                structure, _ = self.checked()
                shape = shape_of(self, X, y)
            shape = shape_of_all(shape)
            with processes.agreed():
                choice = choose(self, structure, shape)
            if processes.size() > 1:
                refuse_unlike(
                    self, structure, choice.method, X=X, y=y, lengths=lengths,
                    checkpoint=checkpoint, sample_weight=sample_weight, resume=resume,
                    constraints=constraints or None,
                )  # fmt: skip
                if constraints:
                    _refuse_several("constraints on scores need")
                if isinstance(choice.method, Global):
                    _refuse_several("a proof of the global optimum needs")
            given, search = (X, y, lengths, sample_weight), None
            if constraints and not isinstance(X, DataLoader):
                from .constraints import refuse_unmet
                from .warranty import searched

                refuse_unmet(structure, constraints, self._data(*given))
                search = searched(self, choice, constraints, given)
            first = given if search is None else search.part()
            with (
                few_threads(self.network, choice.method, X, self.device),
                Keeper(checkpoint, resume) as keeper,
            ):
                problem = self._tried(choice, first, constraints) if choice.otherwise else None
                if problem is None:
                    choice = choice.otherwise or choice
                    problem = self._prepare(choice, first, constraints, keeper)
                    self._train(choice, problem, keeper, progress, on_step)
                elif on_step is not None:  # now that the model is known to meet its bound
                    with suppress(KeyboardInterrupt):  # there is nothing left to stop
                        deque(map(on_step, problem.trace.steps), maxlen=0)
                finish = partial(
                    self._finish, choice.method, problem.seen, given, constraints, progress, on_step
                )
                if search is None:
                    finish()
                else:
                    search.choose(self, finish)
        return self

    def _train(
        self, choice: Choice, problem: Problem, keeper: Keeper, progress: bool,
        on_step: Report | None,
    ) -> None:  # fmt: skip
        """Take the steps of a method."""
        steps = choice.method.take_steps(problem)
        if problem.validate is not None:
            steps = stopped_early(steps, problem)
        problem.trace.method, problem.trace.reason = choice.method, choice.reason
        try:
            run(
                problem.trace, steps, problem.memory, partial(self._keep, problem), keeper=keeper,
                max_iter=_most(choice.method, problem), progress=progress, on_step=on_step,
            )  # fmt: skip
        except SolverError as error:
            if hint := scale_hint(problem.seen):
                raise SolverError(f"{error}{hint}", error.solution) from error
            raise

    def _tried(self, choice: Choice, given: Given, constraints: Held) -> Problem | None:
        """Return what a method without a bound reaches, None where that does not meet the bound."""
        from .certificate import certify

        assert self.lipschitz is not None  # it is what there is another choice for
        before, met = self._fit, False
        with Keeper(None, resume=False) as keeper:
            problem = self._prepare(choice, given, constraints, keeper)
            try:
                self._train(choice, problem, keeper, False, None)
                if self.interrupted:
                    raise KeyboardInterrupt
                with suppress(LiftedError):  # what has no certificate is not known to meet it
                    met = certify(self).lipschitz <= self.lipschitz
            finally:
                if not met:  # nothing that breaks the bound is left
                    self._fit = before
        return problem if met else None

    def _prepare(self, choice: Choice, given: Given, constraints: Held, keeper: Keeper) -> Problem:
        """Return the problem of a method: where the last fit ended, or at the start."""
        structure, method = choice.structure, choice.method
        if isinstance(method, Minibatch) and isinstance(given[0], DataLoader):
            return self._prepare_loader(choice, given, constraints, keeper)
        raw = self._data(*given).kept()
        judge_targets(structure, raw)
        judge_weights(raw)
        most = method.batch_size if isinstance(method, Minibatch) else Minibatch().batch_size
        few = len(raw) <= most and processes.size() == 1 and TIME not in raw.values
        few = few and not self.early_stopping  # which holds out rows, whatever equals them
        some = raw.merged() if few and not isinstance(method, FullBatch) else raw
        generator = self._generator()
        share = self.validation_fraction if self.early_stopping else 0.0
        numbers, held = hold_out(some, share, generator)
        by_batches = isinstance(method, Minibatch)
        if numbers is not None and not by_batches:
            # in order, as rows of several processes are, which go on from each other's files
            numbers = processes.share_of(len(some)).own(numbers.sort().values)
        identity = partial(described_training, self, structure, method, raw)
        rows = len(some) if numbers is None or by_batches else len(numbers)
        memory, begun = keeper.begun(identity, raw.like.device, rows)
        completion = completion_of(self.network, some)
        spread = completion.of(some, torch.Generator().manual_seed(0))  # as data; means do less
        with keeper.reading():
            standardization = self._standardization(spread, choice.lipschitz, memory)
        structure = self._bounded(structure, standardization, choice.lipschitz)
        problem = Problem(
            None, self.solver, self.state_solver, standardization=standardization, memory=memory,
            completion=completion, patience=self.n_iter_no_change, chosen=str(choice),
        )  # fmt: skip

        def scaled(part: Data) -> Data:
            if by_batches:
                return standardization.later(completion.of(part))
            return standardization.of(completion.of(part)).aligned()

        data = scaled(raw)
        whole = seen = data if some is raw else scaled(some)
        if isinstance(method, Minibatch):

            def redrawn(source: torch.Generator) -> Data:
                return standardization.of(completion.of(some, source))

            problem.batches = ArrayBatches(
                seen, method.batch_size, generator, numbers, redrawn if completion.priors else None
            )
            problem.point = self._first_steps(structure, seen, standardization, method, generator)
        else:
            if numbers is not None:
                seen = whole.take(numbers).aligned()
            problem.point = self._first_blocks(structure, seen, standardization, choice)
        if held is not None:
            forward = isinstance(method, GaussNewton)
            problem.validate = partial(self._mean_loss, structure, whole, held, forward)
        problem.data, problem.seen = data, seen
        if constraints and isinstance(method, Global):
            from .constraints import limits_in_training

            problem.limits = limits_in_training(self.network, constraints, seen, standardization)
        if begun is not None:
            problem.trace = begun
        elif not by_batches:
            problem.trace = Trace(problem.point.objective())
            if not math.isfinite(problem.trace.start):  # which no method lowers
                raise DataError(
                    f"the objective at the start is {problem.trace.start}: squares of its terms "
                    "overflow. Scale X, or take a smaller start."
                )
        return problem

    def _prepare_loader(
        self, choice: Choice, given: Given, constraints: Held, keeper: Keeper
    ) -> Problem:
        """Return the problem of minibatches that a DataLoader brings; scales are of the first."""
        structure, method, (loader, *others) = choice.structure, choice.method, given
        assert isinstance(method, Minibatch)  # the caller has seen to it
        if any(x is not None for x in others) or self.early_stopping:
            raise DataError(
                "a DataLoader brings its own y and cannot be split: pass y, lengths or weights, or "
                "early_stopping, with arrays alone."
            )
        if self.refit_output:
            raise DataError("refit_output needs all samples: give X and y as arrays.")
        if missing := [x for x in self.network.inputs if x.missing]:
            raise DeclarationError(
                "A DataLoader needs inputs that are seen as they are, and "
                f"{missing[0]} is declared with missing entries: call fit(X, y) on arrays."
            )
        batches = LoaderBatches(loader, lambda X, y: self._checked_data(X, y, None, None, True))
        if constraints:
            raise DataError("constraints speak of all samples at once: give X and y as arrays.")
        raw = batches.first()
        if processes.size() > 1:
            refuse_shares(self.network, raw, whole=False)
        judge_targets(structure, raw, whole=False)
        identity = partial(described_training, self, structure, method, raw, batches)
        memory, begun = keeper.begun(identity, raw.like.device, len(raw))
        with keeper.reading():
            standardization = self._standardization(raw, choice.lipschitz, memory)
        standardization = replace(standardization, still={})  # it may yet move in other batches
        first = standardization.of(raw)
        bounds = self._bounded(structure, standardization, choice.lipschitz)
        point = self._first_steps(bounds, first, standardization, method, self._generator())
        batches.standardize = standardization.of
        return Problem(
            point, batches=batches, memory=memory, trace=begun or Trace(math.nan), seen=first,
            standardization=standardization, completion=WHOLE, chosen=str(choice),
        )  # fmt: skip

    def _first_steps(
        self, structure: Structure, data: Data, standardization: Standardization,
        method: Minibatch, generator: torch.Generator,
    ) -> BatchSteps:  # fmt: skip
        """Return the steps of minibatches, on worst rows where X is uncertain."""
        weights = self._weights_to_begin_with(structure, data, standardization, self.warm_start)
        point = BatchSteps(structure, weights, method, generator)
        if self.uncertainty is not None:
            known = standardization.moments
            scales = {x: known[x].scale for x in self.network.inputs if x in known}
            point.worst = WorstRows(structure, self.uncertainty, scales)
        return point

    # What a fit leaves.

    def _finish(
        self, method: Method, seen: Data, given: Given, constraints: Held,
        progress: bool, on_step: Report | None,
    ) -> None:  # fmt: skip
        """Bring what a method has reached under constraints, or train or fit it on; warn."""
        if constraints:
            from .constraints import hold

            trained = isinstance(method, Global)  # by a convex problem that has them
            hold(self, constraints, given[0], progress, on_step, given[2], trained)
            self._warn(self._on_data(), held=True)
            return
        if self.refit_output and not self.interrupted:
            fitted, source = self._known, self._generator()
            weights = refitted(
                fitted.structure, fitted.weights, self._on_data(), source, self.solver
            )
            self._fit = replace(fitted, weights=tuple(weights), blocks=None)
        if isinstance(method, Minibatch) and not isinstance(given[0], DataLoader):
            fitted = self._known
            weights = levelled(fitted.structure, fitted.weights, seen)
            self._fit = replace(fitted, weights=tuple(weights))
        self._fit = replace(self._known, method=method)
        self._warn(seen)

    def _warn(self, seen: Data, *, held: bool = False, again: bool = False) -> None:
        """Warn where a fit to data, held to constraints or not, has come to nothing."""
        assert self.trace is not None  # of this fit
        method, steps = self.trace.method, self.trace.steps
        by_evidence = isinstance(method, GaussNewton) and method.evidence
        looks = [step.evidence for step in steps if by_evidence and step.evidence is not None]
        warn_of(
            self._known.structure, self._by_parameter(), seen,
            pruned=by_evidence or isinstance(method, Global),
            evidence=max(looks, default=None), held=held, again=again,
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
        like = torch.empty(0, dtype=self._dtype or given[0].matrix.dtype, device=self.device)
        self.start = [layer.to(like) for layer in given]
        last_only = frozenset() if self._fit is None else self._known.last_only
        if per_step is not None:
            terms = () if per_step else self.network.terms
            last_only = frozenset(term.label for term in terms if term.argument.sequence)
        self._fit = Fitted(self._structure(), tuple(self.start), last_only=last_only)
        return self


def _refuse_several(what: str) -> None:
    """Raise `DataError` where several processes share the samples."""
    if processes.size() > 1:
        raise DataError(f"{what} all samples in one process, and {processes.size()} share them.")


def _most(method: Method, problem: Problem) -> int:
    """Return how many sweeps, epochs or steps a method takes at most."""
    if isinstance(method, Minibatch):
        assert problem.batches is not None  # of which they are made
        return method.epochs_of(len(problem.batches))
    return int(getattr(method, COUNTED[type(method)]))
