"""What a fitted model is, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from liftednet import errors, processes
from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.layers.expression import value_of
from liftednet.network import Label
from liftednet.problems import Fit
from liftednet.samples import Weights
from liftednet.solvers import solve

from .block import Blocks, Structure, by_sample
from .data import Arrays, Data, Lengths, prepared
from .forward_pass import refuse_overflow
from .incomplete import WHOLE, Completion
from .methods import Method
from .methods.descent import largest_residual
from .methods.gauss_newton import GaussNewton, rhos_of
from .methods.global_optimum import Global
from .settings import Settings
from .standardization import RAW, Standardization
from .trace import Ending, Problem, Trace

if TYPE_CHECKING:
    from liftednet.solvers.gauss_newton.laplace import Laplace

    from .constraint_report import ConstraintReport


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit has made, replaced whole by the next.

    Attributes:
        structure: of the training problem, with activations that were learned.
        weights: of every layer, on standardized data.
        data: of the fit, standardized, or None where weights were given, loaded, or fitted from a
            DataLoader.
        blocks: weights and states on the data, made when they are asked for.
        trace: the history, or None.
        last_only: the labels of sequences that have one answer, at the last step.
        distributed: whether several processes have the data, of which this one has a part.
        completion: the priors of inputs that are not seen as they are.
        chosen: the method and why it was chosen, in words.
        standardization: what is between the data and the weights.
        report: of constraints on scores, where the fit had some.
        varying: a network whose rates are precisions of the noise, and their mean; None where the
            noise is the same everywhere.
        spread: how much larger variances of outputs are than those about one fit.
    """

    structure: Structure
    weights: tuple[Weights, ...]
    data: Data | None = None
    blocks: Blocks | None = None
    trace: Trace | None = None
    last_only: frozenset[Label] = frozenset()
    standardization: Standardization = RAW
    report: ConstraintReport | None = None
    distributed: bool = False
    completion: Completion = WHOLE
    method: Method | None = None
    laplace: Laplace | None = None
    chosen: str = ""
    varying: tuple[Any, float] | None = None
    spread: float = 1.0

    @cached_property
    def folded(self) -> list[Weights] | None:
        """The weights of the same network on raw data, or None where there are none."""
        penalties = self.structure.penalties
        return self.standardization.folded(self.structure.network, self.weights, penalties)


class Predictor(Settings):
    """Settings, and what the last fit has made with them."""

    _fit: Fitted | None = None

    def __repr__(self) -> str:
        """Name the settings, whether there are weights, by what, and rho where a fit chose it."""
        named = super().__repr__()[:-1]
        if self._fit is None:
            return f"{named}, not fitted)"
        by = f" by {self._fit.chosen}" if self._fit.chosen else ""
        method, found = self._fit.trace and self._fit.trace.method, rhos_of(self._fit.structure)
        chosen = isinstance(method, GaussNewton) and method.evidence
        rhos = f"; rho in the end {', '.join(f'{x:.3g}' for x in found)}" if chosen else ""
        return f"{named}, fitted{by}{rhos})"

    def tell_reason(self, reason: str) -> None:
        """Keep why the method of the last fit was chosen, as others see it who chose it."""
        trace = self.trace
        assert trace is not None  # there has been a fit
        trace.reason = reason
        self._fit = replace(self._known, chosen=f"{trace.method!r}: {reason}")

    def tell_interrupted(self) -> None:
        """Keep that what others did with this fit was interrupted."""
        trace = self.trace
        assert trace is not None  # there has been a fit
        trace.ending = Ending.INTERRUPTED

    @property
    def is_fitted(self) -> bool:
        """Whether there are weights."""
        return self._fit is not None

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights of every layer, in the order of a forward pass.

        Of the network that takes raw data; only where `standardization` has moments, because they
        cannot be folded into weights, of the network between its two maps.
        """
        fitted = self._known
        return fitted.weights if fitted.folded is None else tuple(fitted.folded)

    @property
    def standardization(self) -> Standardization:
        """What stands before and behind the `weights`: nothing, where they take raw data."""
        fitted = self._known
        return fitted.standardization if fitted.folded is None else RAW

    @property
    def trace(self) -> Trace | None:
        """The history of the last fit."""
        return None if self._fit is None else self._fit.trace

    @property
    def interrupted(self) -> bool:
        """Whether the last fit was interrupted."""
        return self.trace is not None and self.trace.ending is Ending.INTERRUPTED

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states of every layer that has them, on the data of the last fit."""
        return tuple(self._blocks.states)

    @property
    def structure(self) -> Structure:
        """The training problem: divergences, their weights, penalties."""
        return self._structure() if self._fit is None else self._fit.structure

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of every layer with states, and of every loss without states."""
        hidden = tuple(self.structure.divergences[s].activation for s in self.structure.states)
        losses = tuple(t.activation for t in self.network.terms if t.state is None)
        return (*hidden, *losses)

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64.

        Like states, gaps and subproblems that of the training problem: on standardized data. After
        a fit by several processes it is that of all samples, as residual and gap are, and every
        process must ask for it; the states are those of the samples of this one.
        """
        with self._sums():
            return self._blocks.objective()

    def residual(self) -> float:
        """Return the largest relative KKT residual over all blocks at the current point."""
        with self._sums():
            return largest_residual(self._blocks)

    def gap(self) -> tuple[float, ...]:
        """Return |Z - forward pass| / |forward pass| for every layer with states."""
        with self._sums():
            return self._blocks.gap()

    def _sums(self) -> AbstractContextManager[None]:
        """Let sums be those over all samples of the last fit."""
        return processes.together(self.device) if self._known.distributed else nullcontext()

    def subproblem(self, name: str) -> Fit[Any]:
        """Return the convex fit of a block at the current point.

        After a fit by several processes it is that of the samples of this one.

        Args:
            name: of the block, such as "weights 2" or "states 1", as `trace` calls it.

        Raises:
            DataError: there is no such block.
            NotFittedError: there are no weights, or no data.
        """
        point = self._blocks.of_own_samples() if self._known.distributed else self._blocks
        blocks = {block.name: block for block in point.sweep()}
        if name not in blocks:
            raise DataError(f"there is no block {name!r}; there are {', '.join(blocks)}.")
        return point.fit(blocks[name])

    @property
    def _known(self) -> Fitted:
        if self._fit is None:
            raise errors.NotFittedError(
                f"this {type(self).__name__} has not been fitted: call fit(X, y) first."
            )
        if self._fit.structure.network is not self.network:
            raise errors.NotFittedError(
                f"this {type(self).__name__} has been fitted with another network: call fit(X, y) "
                "again, without warm_start, or put that network back."
            )
        return self._fit

    def _keep(self, problem: Problem) -> None:
        """Make what a method has reached the model's."""
        point, weights = problem.point, problem.best or problem.point.weights
        whole = problem.best is None and problem.seen is problem.data
        self._fit = Fitted(
            point.structure, tuple(layer.by_rows() for layer in weights), problem.data,
            point if whole and isinstance(point, Blocks) else None, problem.trace,
            problem.seen.last_only, standardization=replace(problem.standardization, still={}),
            distributed=processes.size() > 1, completion=problem.completion, chosen=problem.chosen,
        )  # fmt: skip

    @property
    def _blocks(self) -> Blocks:
        fitted = self._known
        if fitted.blocks is None:
            exact = isinstance(fitted.method, GaussNewton | Global)  # of the loss, not its envelope
            blocks = self._blocks_at(fitted.structure, self._on_data(), fitted.weights, exact)
            self._fit = fitted = replace(fitted, blocks=blocks)
        assert fitted.blocks is not None  # made just now
        return fitted.blocks

    def _on_data(self) -> Data:
        data = self._known.data
        if data is None:
            raise errors.NotFittedError(
                f"this {type(self).__name__} holds weights but no data (they were given, loaded, "
                "or fitted from a DataLoader): fit on arrays for states, objective, residual and "
                "gap."
            )
        return data

    def _blocks_at(
        self, structure: Structure, data: Data, weights: Sequence[Weights], forward: bool = False
    ) -> Blocks:
        """Return the blocks after a forward pass.

        Output states minimize their own fit, but where they are to be those of the pass, too.
        """
        values = {**data.values, **dict(zip(structure.parameters, weights, strict=True))}
        values = structure.passed(values)
        blocks = Blocks(structure, values, data.last_only)
        for term in self.network.terms:
            if term.state is not None and term.label in values and not forward:
                fit = blocks.state_fit(term.state)
                with processes.agreed():
                    if len(data):
                        blocks.values[term.state] = solve(fit, self.solver).value
        return blocks

    def forward(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return the output by the feedforward rule, (samples, outputs), or (samples, steps, ...).

        Lifted Neural Networks, eq. (1); this is what is exported. A tuple where there are several
        losses. Sequences that were fitted with one answer have that of their last step. Inputs with
        missing entries are `completed` before.

        Raises:
            DataError: X cannot be used, or the output overflows.
        """
        return self._passed(X, lengths)

    def scores(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return the last pre-activations by the feedforward rule, as `forward` returns outputs.

        What constraints on scores speak of: logits of a classifier, outputs of a regression.

        Raises:
            DataError: X cannot be used, or the scores overflow.
        """
        return self._passed(X, lengths, activated=False)

    def _passed(self, X: Arrays, lengths: Lengths, activated: bool = True) -> Any:
        data = self._unlabeled(X, lengths)
        values = self._known.structure.passed({**data.values, **self._by_parameter()})
        return self._answers(values, data, activated)

    def constraint_report(self) -> ConstraintReport:
        """Return how the forward pass meets the constraints of the last fit, and their prices.

        Raises:
            NotFittedError: there has been no fit with constraints, or only before it was saved.
        """
        report = self._known.report
        if report is None:
            raise errors.NotFittedError(
                f"this {type(self).__name__} was fitted without constraints, or comes from a file, "
                "which keeps no report of them: call fit(X, y, constraints=[...])."
            )
        return report

    def completed(self, X: Arrays) -> Any:
        """Return X with the most likely values where entries are missing, in units of X.

        Inputs that are not declared so come back as they are; a tuple where there are several.

        Raises:
            DataError: X cannot be used.
        """
        like = self._known.weights[0].matrix
        data = prepared(self.network, X, None, dtype=like.dtype, device=str(like.device))
        values = self._completion.of(data).values
        each = tuple(values[x].unflatten(-1, x.shape) for x in self.network.inputs)
        return each[0] if len(each) == 1 else each

    @property
    def _completion(self) -> Completion:
        found = self._known.completion
        if any(x.missing and x not in found.priors for x in self.network.inputs):
            raise errors.NotFittedError(
                "these weights were given, and no prior of what is missing with them: call "
                "fit(X, y)."
            )
        return found

    def _by_parameter(self) -> dict[Any, Weights]:
        fitted = self._known
        return dict(zip(fitted.structure.parameters, fitted.weights, strict=True))

    def _unlabeled(self, X: Arrays, lengths: Lengths) -> Data:
        like = self._known.weights[0].matrix
        data = prepared(self.network, X, None, lengths, dtype=like.dtype, device=str(like.device))
        whole = self._completion.of(Data(data.values, self._known.last_only))
        return self._known.standardization.of(whole)

    def _answers(self, values: Any, data: Data, activated: bool = True) -> Any:
        found, standardization = [], self._known.standardization
        for term in self.network.terms:
            if term.state is not None:
                found.append(standardization.answer(term, values[term.state]))
                continue
            output = value_of(term.argument, values)
            output = term.activation.forward(output) if activated else output
            answer = standardization.answer(term, output)
            found.append(by_sample(answer, term, data.values, data.last_only))
        refuse_overflow(found)
        return found[0] if len(found) == 1 else tuple(found)

    def predict(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return labels (samples,), or outputs for a regression, by the feedforward rule."""
        outputs, found = self.forward(X, lengths=lengths), list[Tensor]()
        each = outputs if isinstance(outputs, tuple) else (outputs,)
        for term, output in zip(self.network.terms, each, strict=True):
            flat = term.loss.decode(output.flatten(0, -2))
            found.append(flat.reshape(*output.shape[:-1], *flat.shape[1:]))
        return found[0] if len(found) == 1 else tuple(found)

    def predict_proba(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return class probabilities, (samples, outputs), by the feedforward rule.

        Raises:
            DataError: a loss has no probabilities.
        """
        for term in self.network.terms:
            if not term.loss.probabilistic:
                raise DataError(
                    f"{type(term.loss).__name__} gives no probabilities; use predict or forward."
                )
        return self.forward(X, lengths=lengths)
