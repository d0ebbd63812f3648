"""The one lifted model: a network as a graph, trained by convex subproblems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet.activation import Activation
from liftednet.divergences import Divergence, Raw, joint, tight
from liftednet.errors import DataError, DeclarationError, NotFittedError, SolverError
from liftednet.layers.expression import value_of
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.problems import Fit
from liftednet.samples import Weights
from liftednet.solvers import Solver, named, solve
from liftednet.validation import FLOATS, require_device, require_positive, require_seed

from .batches import ArrayBatches, LoaderBatches, hold_out
from .block import Blocks, Structure
from .data import Arrays, Data, Lengths, prepared
from .graph import Network, State, Term
from .methods import Method, method_named
from .methods.descent import AnySolver, FullBatch, Solvers, largest_residual
from .methods.gauss_newton import GaussNewton
from .methods.minibatch import BatchSteps, Minibatch
from .methods.multipliers import MultiplierBlocks, refuse_unfit
from .run import Report, Steps, Trace, run
from .starts import Draw, Start, given_weights, start_named

Penalties = Penalty | Sequence[Penalty]
Outputs = Tensor | tuple[Tensor, ...]

MULTIPLIERS = "multipliers"  # joint divergences, and what holds the states at the forward pass
COUPLINGS: Mapping[str, Callable[[Activation], Divergence]] = {
    "tight": tight,
    "joint": joint,
    MULTIPLIERS: joint,
}
_PREDICTION_SWEEPS = 200  # two layers need a handful; a longer chain converges linearly
_PREDICTION_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit has made, replaced whole by the next.

    Attributes:
        structure: of the training problem, with activations that were learned.
        weights: of every layer.
        data: of the fit, or None where weights were given, loaded, or fitted from a DataLoader.
        blocks: weights and states on the data, made when they are asked for.
        trace: the history, or None.
    """

    structure: Structure
    weights: tuple[Weights, ...]
    data: Data | None = None
    blocks: Blocks | None = None
    trace: Trace | None = None


class Lifted:
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
        start: "kaiming", "xavier", "normal" (variance 0.1), "variance-scaling", or weights.
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

    _starts: Mapping[str, Draw] | None = None

    def __init__(
        self,
        network: Network,
        lam: float | Sequence[float] = 10.0,
        rho: float | Sequence[float] = 1e-3,
        divergence: str = "tight",
        *,
        penalty: Penalties | None = None,
        method: str | Method = "auto",
        start: Start = "kaiming",
        solver: AnySolver = "auto",
        state_solver: AnySolver = "auto",
        proximity: float | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        refit_output: bool = False,
    ) -> None:
        """Check what can be checked before there are data."""
        self.network = network
        self.lam, self.rho, self.divergence, self.penalty = lam, rho, divergence, penalty
        self.method, self.start, self.seed = method, start, seed
        self.solver, self.state_solver, self.proximity = solver, state_solver, proximity
        self.dtype, self.device = dtype, device
        self.warm_start, self.refit_output = warm_start, refit_output
        self._fit: Fitted | None = None
        self._steps: BatchSteps | None = None
        self._solvers: Solvers | None = None
        network.check()
        self._checked()

    # Settings.

    def _checked(self) -> tuple[Structure, Method]:
        """Return the training problem and the method that the settings ask for.

        Raises:
            DataError: a number cannot be used.
            DeclarationError: settings do not fit together.
        """
        structure, multipliers = self._structure(), self.divergence == MULTIPLIERS
        if multipliers:
            refuse_unfit(structure)
        method = self._method(structure)
        method.refuse(structure, multipliers)
        if self.dtype is not None and self.dtype not in FLOATS:
            raise DataError(f"dtype must be torch.float32 or torch.float64, got {self.dtype!r}.")
        if self.proximity is not None:
            require_positive("proximity", self.proximity)
        require_seed(self.seed)
        require_device(self.device)
        for solver in (self.solver, self.state_solver):
            _refuse_unknown(solver)
        if self.refit_output:
            _refuse_output_states(self.network)
        self._first_weights()
        return structure, method

    def _structure(self) -> Structure:
        if self.divergence not in COUPLINGS:
            names = ", ".join(map(repr, COUPLINGS))
            raise DeclarationError(f"divergence must be one of {names}, got {self.divergence!r}.")
        couple = COUPLINGS[self.divergence]
        states = [state for group in self.network.groups() for state in group]
        parameters = self.network.parameters
        lam = _each("lam", self.lam, len(states))
        penalties = self._penalties(len(parameters))
        for parameter, penalty in zip(parameters, penalties, strict=True):
            penalty.refuse_infeasible(parameter.shape)
        return Structure(
            self.network,
            {state: couple(state.activation) for state in states},
            {s: s.lam if s.lam is not None else x for s, x in zip(states, lam, strict=True)},
            {p: p.penalty or x for p, x in zip(parameters, penalties, strict=True)},
        )

    def _penalties(self, layers: int) -> Sequence[Penalty]:
        if self.penalty is None:
            return [SquaredFrobenius(rho) for rho in _each("rho", self.rho, layers)]
        given = self.penalty
        found = list(given) if isinstance(given, Sequence) else [given] * layers
        for one in found:
            if not isinstance(one, Penalty):
                raise DeclarationError(
                    f"a penalty must be one of liftednet.penalties, such as Nonnegative(); got "
                    f"{one!r}."
                )
        if len(found) != layers:
            raise DataError(f"penalty needs one, or one for each of {layers}; got {len(found)}.")
        return found

    def _method(self, structure: Structure) -> Method:
        if self.method != "auto":
            return method_named(self.method)
        raw = any(isinstance(divergence, Raw) for divergence in structure.divergences.values())
        return FullBatch() if raw or self.divergence == MULTIPLIERS else Minibatch()

    def _first_weights(self) -> list[Weights]:
        """Return the weights of the start, each where its penalty allows it."""
        parameters = self.network.parameters
        if not isinstance(self.start, str):
            return given_weights(self.start, parameters)
        generator = torch.Generator().manual_seed(self.seed)
        drawn = self._drawn(self.start, generator)
        feasible = zip(drawn, self._penalties(len(drawn)), parameters, strict=True)
        return [
            replace(layer, matrix=(parameter.penalty or penalty).project(layer.matrix))
            for layer, penalty, parameter in feasible
        ]

    def _drawn(self, start: str, generator: torch.Generator) -> list[Weights]:
        draw = start_named(start)
        return [
            Weights(draw(*p.shape, generator), torch.zeros(p.shape[1]) if p.bias else None)
            for p in self.network.parameters
        ]

    def __repr__(self) -> str:
        """Name the settings that are not the defaults, and whether there are weights."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"{type(self).__name__}({shown}, {'fitted' if self.is_fitted else 'not fitted'})"

    def _settings(self) -> dict[str, Any]:
        names = ("lam", "rho", "divergence", "penalty", "method", "start", "solver", "seed")
        found = {name: getattr(self, name) for name in names}
        if not isinstance(self.start, str):
            found["start"] = "given"
        return {name: value for name, value in found.items() if value is not None}

    # Training.

    def fit(
        self,
        X: Arrays | DataLoader[Any],
        y: Arrays | None = None,
        *,
        lengths: Lengths = None,
        progress: bool = False,
        on_step: Report | None = None,
    ) -> Any:
        """Fit weights, and by the full method states, to data.

        Args:
            X: (samples, inputs), or (samples, steps, inputs) of sequences, float32 or float64; a
                tuple, or a dictionary by name, where there are several inputs; or, by minibatches,
                a torch DataLoader that yields pairs (X, y).
            y: labels (samples,), or targets (samples, outputs), as the loss takes them; for each
                step labels (samples, steps) or targets (samples, steps, outputs).
            lengths: (samples,) steps of each sequence; None: all have every step.
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
        structure, method = self._checked()
        told = partial(run, rounds=method.rounds, progress=progress, on_step=on_step)
        if isinstance(method, Minibatch):
            self._fit_batches(structure, method, X, y, lengths, told)
        else:
            data = self._data(X, y, lengths)
            self._fit_blocks(structure, method, data, told)
        if self.refit_output:
            self._refitted()
        self._steps = None
        return self

    def partial_fit(self, X: Arrays, y: Arrays, *, lengths: Lengths = None) -> Any:
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
        structure, method = self._checked()
        settings = method if isinstance(method, Minibatch) else Minibatch()
        settings.refuse(structure, self.divergence == MULTIPLIERS)
        steps = self._steps
        dtype = steps.weights[0].matrix.dtype if steps else self.dtype
        batch = self._data(X, y, lengths, dtype=dtype, part=True)
        if steps is None:
            weights = [layer.to(batch.like) for layer in self._known_weights()]
            generator = torch.Generator().manual_seed(self.seed)
            steps = BatchSteps(structure, weights, settings, generator)
        before = steps.weights
        with torch.no_grad():
            steps.step(batch, settings.rate, len(batch))
        if not steps.finite():
            steps.weights = before
            self._steps = None  # its running statistics are spoiled, too
            raise SolverError("the step made weights NaN or infinite: scale the inputs.")
        self._steps, self._fit = steps, Fitted(structure, tuple(steps.weights), batch)
        return self

    def _data(
        self, X: Any, y: Any, lengths: Lengths, *, dtype: Any = None, part: bool = False
    ) -> Data:
        if y is None and isinstance(X, DataLoader):
            raise DataError(
                "a DataLoader is for method='minibatch': this method needs all samples."
            )
        if y is None:
            raise DataError("y is missing: fit(X, y).")
        return prepared(
            self.network, X, y, lengths, dtype=dtype or self.dtype, device=self.device, part=part
        )

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
            if self._solvers is None or not self.warm_start:
                self._solvers = Solvers(self.solver, self.state_solver, method.tolerance)
            steps = method.steps(blocks, self._solvers)
        trace = Trace(blocks.objective())
        try:
            told(trace, steps)
        finally:
            self._fit = Fitted(blocks.structure, tuple(blocks.weights), data, blocks, trace)

    def _begun(self, structure: Structure, data: Data) -> Blocks:
        """Return the blocks of a fit: where the last has ended, or at a forward pass."""
        before = self._fit if self.warm_start else None
        if before is not None:
            structure = replace(structure, divergences=before.structure.divergences)
        weights = [layer.to(data.like) for layer in self._weights_to_begin_with()]
        kind = MultiplierBlocks if self.divergence == MULTIPLIERS else Blocks
        blocks = self._blocks_at(structure, data, weights, kind)
        known = None if before is None or before.data is None else before.blocks
        if known is not None and before is not None and _same_inputs(before.data, data):
            blocks.values.update({s: known.values[s] for s in structure.states})
            if isinstance(blocks, MultiplierBlocks) and isinstance(known, MultiplierBlocks):
                blocks.take_multipliers(known)
        return blocks

    def _blocks_at(
        self,
        structure: Structure,
        data: Data,
        weights: Sequence[Weights],
        kind: type[Blocks] = Blocks,
    ) -> Blocks:
        """Return the blocks after a forward pass; output states minimize their own fit."""
        values = {**data.values, **dict(zip(structure.parameters, weights, strict=True))}
        values = structure.passed(values)
        blocks = kind(structure, values, data.last_only, self.proximity)
        for term in self.network.terms:
            if term.state is not None and term.label in values:
                fit = blocks.state_fit(term.state)
                blocks.values[term.state] = solve(fit, self.solver).value
        return blocks

    def _refuse_start(self, blocks: Blocks) -> None:
        """Refuse a start whose forward pass is of no use."""

    def _fit_batches(
        self,
        structure: Structure,
        method: Minibatch,
        X: Any,
        y: Any,
        lengths: Lengths,
        told: Callable[..., Trace],
    ) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        data, validate, batches = None, None, self._loaded(X, y, method)
        if batches is None:
            data = self._data(X, y, lengths)
            kept, held = hold_out(data, method.validation, generator)
            batches, like = ArrayBatches(kept, method.batch_size, generator), data.like
            validate = held and partial(self._mean_objective, structure, held)
        else:
            like = batches.first().like
        weights = [layer.to(like) for layer in self._weights_to_begin_with()]
        moves, trace = BatchSteps(structure, weights, method, generator), Trace(float("nan"))
        try:
            told(trace, method.steps(moves, batches, validate))
        except DataError:  # of a bad batch the model knows nothing
            raise
        except BaseException:
            self._fit = Fitted(structure, tuple(moves.weights), data, None, trace)
            raise
        self._fit = Fitted(structure, tuple(moves.weights), data, None, trace)

    def _loaded(self, X: Any, y: Any, method: Minibatch) -> Any:
        if not isinstance(X, DataLoader):
            return None
        if y is not None or method.validation > 0:
            raise DataError(
                "a DataLoader brings its own y and cannot be split: pass y or ask for a "
                "validation share with arrays alone."
            )
        if self.refit_output:
            raise DataError("refit_output needs all samples: give X and y as arrays.")
        return LoaderBatches(X, lambda a, b: self._data(a, b, None, part=True))

    def _mean_objective(
        self, structure: Structure, data: Data, weights: Sequence[Weights]
    ) -> float:
        return self._blocks_at(structure, data, weights).objective() / len(data)

    def _weights_to_begin_with(self) -> Sequence[Weights]:
        return self._known_weights() if self.warm_start else self._first_weights()

    def _known_weights(self) -> Sequence[Weights]:
        return self._first_weights() if self._fit is None else self._fit.weights

    def _refitted(self) -> None:
        """Fit the weights of every loss once more, to the features of a forward pass."""
        fitted = self._blocks
        blocks = self._blocks_at(fitted.structure, self._on_data(), fitted.weights)
        for term in self.network.terms:
            last = _last_weights(term)
            fit = blocks.weight_fit(last)
            blocks.values[last] = solve(fit, self.solver, blocks.values[last]).value
        assert self._fit is not None  # fitted just now
        self._fit = replace(self._fit, weights=tuple(blocks.weights), blocks=blocks)

    def with_weights(self, weights: Sequence[Weights]) -> Any:
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

    # What there is after a fit.

    @property
    def is_fitted(self) -> bool:
        """Whether there are weights."""
        return self._fit is not None

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The weights of every layer, in the order of a forward pass."""
        return self._known.weights

    @property
    def trace(self) -> Trace | None:
        """The history of the last fit."""
        return None if self._fit is None else self._fit.trace

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
        """The activation of every layer with states, and of every pinned loss."""
        hidden = tuple(self.structure.divergences[s].activation for s in self.structure.states)
        pinned = tuple(t.activation for t in self.network.terms if t.state is None)
        return (*hidden, *pinned)

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64."""
        return self._blocks.objective()

    def residual(self) -> float:
        """Return the largest relative KKT residual over all blocks at the current point."""
        return largest_residual(self._blocks)

    def gap(self) -> tuple[float, ...]:
        """Return |Z - forward pass| / |forward pass| for every layer with states."""
        return self._blocks.gap()

    def subproblem(self, name: str) -> Fit[Any]:
        """Return the convex fit of a block at the current point.

        Args:
            name: of the block, such as "weights 2" or "states 1", as `trace` calls it.

        Raises:
            DataError: there is no such block.
            NotFittedError: there are no weights, or no data.
        """
        blocks = {block.name: block for block in self._blocks.sweep()}
        if name not in blocks:
            raise DataError(f"there is no block {name!r}; there are {', '.join(blocks)}.")
        return blocks[name].problem()

    @property
    def _known(self) -> Fitted:
        if self._fit is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not been fitted: call fit(X, y) first."
            )
        return self._fit

    @property
    def _blocks(self) -> Blocks:
        fitted = self._known
        if fitted.blocks is None:
            blocks = self._blocks_at(fitted.structure, self._on_data(), fitted.weights)
            self._fit = fitted = replace(fitted, blocks=blocks)
        assert fitted.blocks is not None  # made just now
        return fitted.blocks

    def _on_data(self) -> Data:
        data = self._known.data
        if data is None:
            raise NotFittedError(
                f"this {type(self).__name__} holds weights but no data (they were given, loaded, "
                "or fitted from a DataLoader): fit on arrays for states, objective, residual and "
                "gap."
            )
        return data

    # Prediction.

    def forward(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return the output by the feedforward rule, (samples, outputs), or (samples, steps, ...).

        Lifted Neural Networks, eq. (1); this is what is exported. A tuple where there are several
        losses. Sequences that were fitted with one answer have that of their last step.
        """
        structure, data = self._known.structure, self._unlabeled(X, lengths)
        values = structure.passed({**data.values, **self._by_parameter()})
        return self._answers(values, data, structure)

    def _by_parameter(self) -> dict[Any, Weights]:
        fitted = self._known
        return dict(zip(fitted.structure.parameters, fitted.weights, strict=True))

    def _unlabeled(self, X: Arrays, lengths: Lengths) -> Data:
        like = self._known.weights[0].matrix
        data = prepared(self.network, X, None, lengths, dtype=like.dtype, device=str(like.device))
        return Data(data.values, self._last_only())

    def _last_only(self) -> frozenset[Any]:
        data = self._known.data
        return frozenset() if data is None else data.last_only

    def _answers(self, values: Any, data: Data, structure: Structure) -> Any:
        found = []
        for term in self.network.terms:
            if term.state is not None:
                found.append(values[term.state])
                continue
            u = value_of(term.argument, values)
            found.append(_by_sample(term.pinned.activate(u), term, data))
        return found[0] if len(found) == 1 else tuple(found)

    def predict(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return labels (samples,), or outputs for a regression, by the feedforward rule."""
        return self._decoded(self.forward(X, lengths=lengths))

    def _decoded(self, outputs: Outputs) -> Any:
        each = outputs if isinstance(outputs, tuple) else (outputs,)
        found = tuple(
            _decode(term, output) for term, output in zip(self.network.terms, each, strict=True)
        )
        return found[0] if len(found) == 1 else found

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

    def forward_lifted(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return the output by the lifted rule, (samples, outputs).

        The training problem with the weights fixed and y free; Lifted Neural Networks, eq. (12);
        Lifted Recurrent Neural Networks, section 4.2.

        Raises:
            SolverError: the states did not reach their tolerance.
        """
        if self.divergence == MULTIPLIERS:
            return self.forward(X, lengths=lengths)  # where they hold the states
        structure, data = self._known.structure, self._unlabeled(X, lengths)
        blocks = _StatesAlone(structure, {**data.values, **self._by_parameter()}, data.last_only)
        descent = FullBatch(
            _PREDICTION_SWEEPS, tolerance=_PREDICTION_TOLERANCE, extrapolation=False
        )
        solvers = Solvers(self.solver, self.state_solver, _PREDICTION_TOLERANCE)
        for _ in descent.steps(blocks, solvers):
            pass
        return self._answers(blocks.values, data, structure)

    def predict_lifted(self, X: Arrays, *, lengths: Lengths = None) -> Any:
        """Return labels, or outputs for a regression, by the lifted rule, eq. (12)."""
        return self._decoded(self.forward_lifted(X, lengths=lengths))


class _StatesAlone(Blocks):
    """Blocks whose weights stay as they are, as in prediction."""

    def sweep(self, state_passes: int = 1) -> list[Any]:
        """Return the blocks of the states, from the top down."""
        return self.state_blocks()


def _each(name: str, value: float | Sequence[float], layers: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * layers
    if len(values) != layers:
        raise DataError(f"{name} needs one number, or one for each of {layers}; got {value!r}.")
    for number in values:
        require_positive(name, number)
    if not layers:
        require_positive(name, 1.0 if isinstance(value, Sequence) else value)
    return tuple(float(number) for number in values)


def _refuse_unknown(solver: object) -> None:
    """Raise `DeclarationError` where there is no such solver."""
    if not isinstance(solver, str | Solver):
        raise DeclarationError(
            f'solver must be "auto", a name or a Solver of liftednet.solvers, got {solver!r}.'
        )
    if isinstance(solver, str) and solver != "auto":
        named(solver)


def _refuse_output_states(network: Network) -> None:
    for term in network.terms:
        if term.state is not None:
            raise DeclarationError(
                "refit_output needs a loss on the last pre-activation, such as CrossEntropy; "
                f"{type(term.loss).__name__} has output states here."
            )


def _last_weights(term: Term) -> Any:
    weights = getattr(term.argument, "weights", None)
    if weights is None:
        raise DeclarationError("refit_output needs a loss right on a layer with weights.")
    return weights


def _same_inputs(before: Data | None, now: Data) -> bool:
    if before is None or set(before.values) != set(now.values):
        return False
    return all(
        not isinstance(value, Tensor) or value.equal(now.values[variable])
        for variable, value in before.values.items()
    )


def _by_sample(output: Tensor, term: Term, data: Data) -> Tensor:
    """Return outputs of sequences as (samples, steps, outputs), or those of the last steps."""
    if not term.argument.sequence:
        return output
    if term.label not in data.last_only:
        return output.transpose(0, 1)
    timeline = next(v for v in data.values.values() if hasattr(v, "lengths"))
    last = timeline.lengths - 1
    return output[last, torch.arange(output.shape[1], device=output.device)]


def _decode(term: Term, output: Tensor) -> Tensor:
    flat = term.loss.decode(output.flatten(0, -2))
    return flat.reshape(*output.shape[:-1], *flat.shape[1:])


__all__ = ["COUPLINGS", "MULTIPLIERS", "Fitted", "Lifted", "State"]
