"""What estimators share: settings kept as given, a model behind them, labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial, wraps
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, compute_sample_weight
from torch import Tensor

from liftednet import processes
from liftednet.activation import Activation
from liftednet.constraints import Constraint, RateConstraint
from liftednet.errors import DataError
from liftednet.samples import require_sample_weights
from liftednet.validation import is_integer, require_seed

from ..fingerprint import described_network
from ..lifted import Lifted
from ..methods import Method
from ..methods.descent import AnySolver
from ..settings import Penalties, Settings, told_in
from .input import Rows, numbers, refusals

_JUDGED = 1_000  # rows, by which an export's type is found
_OF_SPREAD, _OF_RESIDUALS = 1e-4, 1e-2  # of answers, and of what they leave, that float32 may lose

_PASSED_ON = [x.name for x in fields(Settings) if x.name not in ("network", "start", "seed")]

Constraints = Sequence[Constraint | RateConstraint]
Fitted = TypeVar("Fitted", bound=Callable[..., Any])
Names = str | Activation | Sequence[str | Activation] | None


def documented(*sources: type) -> Callable[[type], type]:
    """Let the docstring of an estimator show the settings that it shares with others."""

    def filled(estimator: Any) -> Any:
        return told_in(estimator, "    **settings: see the estimators.", *sources)

    return filled


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """One lifted model behind scikit-learn's conventions; `fit` looks at the settings.

    Args:
        lam: weight of the divergences, which tie each layer to the one below: one number, or one
            for each hidden layer; None for 10. Gauss-Newton goes without.
        rho: weight of the squared Frobenius norms of the weights, one number or one for each layer;
            None leaves it to the evidence where "auto" takes Gauss-Newton steps, and is 1
            elsewhere, of recurrent networks 3, less before activations that are flat.
        penalty: in place of rho, any of `liftednet.penalties`, one or one for each layer.
        divergence: "tight", which is 0 where a layer is the forward pass of the one below, or
            "joint", which is convex in both layers; None for "tight".
        standardize: whether training sees inputs, and targets of regressions, on a common scale;
            weights are those for raw data again. None for True.
        method: "minibatch", "full" (the papers' descent over convex subproblems), "gauss-newton",
            "global" (one hidden layer of ReLU to the proven optimum), or one of `liftednet.models`
            with numbers of its own, such as `Minibatch(epochs=50)`; None for "auto": Gauss-Newton
            where a step of it takes at most seconds, else minibatches. `model_` prints the choice.
        solver: of the subproblems of method="full", a name or a solver of `liftednet.solvers`; None
            for "auto", the first of a table that suits.
        max_iter: the most epochs, sweeps or steps; None for the method's own number.
        batch_size: samples of a minibatch; None for the method's own number.
        early_stopping: whether some samples are held out, whatever the method is: training ends
            where their mean loss no longer falls, and keeps the weights of the least.
        validation_fraction: share of the samples that is held out for it.
        n_iter_no_change: epochs, sweeps or steps without a smaller loss that it waits.
        warm_start: whether another `fit` goes on from the weights that are there.
        random_state: of the first weights and the order of batches; an integer is the seed of
            the model, None draws one.
        verbose: whether to show a progress bar: True or False, or 1 or 0.
        device: where the model lives, such as "cpu" or "cuda".
    """

    hidden_layer_sizes: int | Sequence[int] | None = None
    activation: Names = None
    _: KW_ONLY
    lam: float | Sequence[float] | None = None
    rho: float | Sequence[float] | None = None
    penalty: Penalties | None = None
    divergence: str | None = None
    standardize: bool | None = None
    method: str | Method | None = None
    solver: AnySolver | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    warm_start: bool = False
    random_state: Any = None
    verbose: bool = False
    device: str | None = None

    def _start(self, outputs: int) -> Lifted:
        """Return the model to fit: a new one, or at a warm start the one that is there.

        Raises:
            DataError: a warm start has another network than the last fit, or several processes
                have the samples.
        """
        with processes.together(self.device or "cpu"):
            if processes.size() > 1:
                raise DataError(
                    f"an estimator needs all samples in one process, and {processes.size()} share "
                    "them: fit a LiftedMLP or LiftedRNN, which takes numbers of the classes."
                )
        model = self._model(outputs, self._settings())
        if not self.warm_start or not self.__sklearn_is_fitted__():
            return model
        if described_network(model.network) != described_network(self.model_.network):
            raise DataError(
                f"warm_start goes on with the network of the last fit, {self.model_!r}, and the "
                f"settings and data ask for another, {model!r}: set warm_start=False."
            )
        for name in _PASSED_ON:
            setattr(self.model_, name, getattr(model, name))
        return self.model_

    def _settings(self) -> dict[str, Any]:
        """Return what the model is told; what is None is left to the model."""
        given = {name: getattr(self, name) for name in _PASSED_ON if hasattr(self, name)}
        settings = {name: value for name, value in given.items() if value is not None}
        seed = self.random_state
        if is_integer(seed):
            require_seed(seed, "random_state")
        else:
            with refusals():
                seed = check_random_state(seed).randint(2**31)
        return {**settings, "seed": seed}

    def _learn(self, X: Rows, target: Rows, outputs: int, sample_weight: Any, **told: Any) -> Self:
        if not isinstance(self.verbose, bool) and not is_integer(self.verbose):
            raise DataError(f"verbose must be True or False, or 1 or 0, got {self.verbose!r}.")
        told["sample_weight"] = None
        if sample_weight is not None:
            told["sample_weight"] = given = numbers("weights", sample_weight)
            require_sample_weights(torch.from_numpy(given), len(X))

        def fit(model: Lifted, rows: tuple[Rows, Rows] = (X, target), **other: Any) -> Lifted:
            return model.fit(*rows, progress=bool(self.verbose), **{**told, **other})

        data, held = (X, target, told["sample_weight"]), told.get("constraints")
        if not held:
            model = self._of_best_size(data, outputs, fit)
        elif not isinstance(self, Classifying) or getattr(self, "monotonic_cst", None) is not None:
            model = None  # targets that are bent have no limits, nor sums of layers with signs
        elif told.get("confidence") is None:
            model = self._held_at_best_size(data, outputs, partial(fit, constraints=()), held)
        else:
            model = self._with_warranty(data, outputs, fit, told)
        self.model_ = fit(self._start(outputs)) if model is None else model
        self.precision_ = _precision(self.model_, X, target)
        assert self.model_.trace is not None  # it has been fitted just now
        last = {step.number: step.objective for step in self.model_.trace.steps}
        self.n_iter_, self.loss_curve_ = len(last), list(last.values())
        return self

    @property
    def _hidden(self) -> tuple[int, ...]:
        """The units of every hidden layer, 100 in one where none are given."""
        given = 100 if self.hidden_layer_sizes is None else self.hidden_layer_sizes
        hidden = tuple(np.atleast_1d(np.asarray(given, dtype=object)))
        if not all(is_integer(units) and units > 0 for units in hidden):
            raise DataError(f"hidden_layer_sizes must be positive integers, got {given!r}.")
        return hidden

    @abstractmethod
    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        """Return a network for X as it has been validated."""

    def _of_best_size(
        self, data: tuple[Rows, Rows, Any], outputs: int, fit: Callable[[Lifted], object]
    ) -> Lifted | None:
        """Return a fitted model whose size the evidence has chosen; None where it cannot."""
        return None

    def _numbered(self, constraints: Constraints) -> Constraints:
        """Return constraints with numbers of labels in place of labels."""
        return constraints

    def _held_at_best_size(
        self, data: tuple[Rows, Rows, Any], outputs: int, fit: Callable[..., Lifted], held: Any
    ) -> Lifted | None:
        """Return such a model brought under constraints, which are refused before any training."""
        from ..constraints import hold, refuse_unmet
        from ..warranty import HeldOutRho

        first, given = self._start(outputs), (*data[:2], None, data[2])
        refuse_unmet(first.structure, held, first._data(*data[:2]))
        search = HeldOutRho.of(first, held, given)
        X, y, _, weights = given if search is None else search.part()
        train = partial(fit, rows=(X, y), sample_weight=weights)
        model = self._of_best_size((X, y, weights), outputs, train)
        if model is not None:
            finish = partial(hold, model, held, data[0], bool(self.verbose), None)
            if search is None:
                finish()
            else:
                search.choose(model, finish)
            model._warn(model._on_data(), held=True, again=True)
        return model

    def _with_warranty(
        self, data: tuple[Rows, Rows, Any], outputs: int, fit: Callable[..., Lifted],
        told: Mapping[str, Any],
    ) -> Lifted:  # fmt: skip
        """Return such a model, or one without a choice of its size, judged on rows set aside."""
        from ..constraints import hold
        from ..warranty import fit_with_warranty

        def other(some: tuple[Any, Any, Any], held: Any, errors: float) -> Lifted | None:
            free = {"constraints": (), "confidence": None, "strict": False}
            train = partial(fit, rows=some[:2], sample_weight=some[2], **free)
            model = self._of_best_size(some, outputs, train)
            if model is not None:
                model.errors_aside = errors
                hold(model, held, some[0], bool(self.verbose), None)
                model._warn(model._on_data(), held=True, again=True)
                model.errors_aside = 1.0
            return model

        X, target, weights = data
        return fit_with_warranty(
            self._start(outputs), (X, target, told.get("lengths"), weights), told["constraints"],
            told["confidence"], told["held_out"], told["strict"], other,
            progress=bool(self.verbose),
        )  # fmt: skip

    def _forward(self, X: Rows, lengths: Any = None) -> Rows:
        """Return the outputs by the feedforward rule, (samples, outputs)."""
        return on_cpu(self.model_.forward(X, lengths=lengths))

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are weights."""
        return hasattr(self, "model_")


def all_or_nothing(fit: Fitted) -> Fitted:
    """Return a `fit` after which, where it fails, an estimator has what it had before.

    Labels and names of a fit that is refused would stand beside the weights of the last one.
    """

    @wraps(fit)
    def run(self: Estimator, *args: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **options)
        except BaseException:
            self.__dict__ = before
            raise

    return cast(Fitted, run)


class Classifying(Estimator):
    """What classifiers share: labels, of which some may count more than others."""

    class_weight: Mapping[Any, float] | str | None
    classes_: Rows

    def predict_log_proba(self, X: Any, **lengths: Any) -> Rows:
        """Return logarithms of what `predict_proba` returns, -inf of what is 0 to rounding."""
        with np.errstate(divide="ignore"):
            found: Rows = np.log(self.predict_proba(X, **lengths))
        return found

    def _take_classes(self, classes: Rows, goes_on: bool) -> None:
        """Keep the labels, which nothing that goes on can change."""
        if len(classes) < 2:
            raise DataError(
                f"a classifier needs at least two classes, and y has 1 class: {classes}."
            )
        if goes_on and self.__sklearn_is_fitted__() and not np.array_equal(self.classes_, classes):
            raise DataError(
                f"the classes were {self.classes_} in the fit that goes on, and are {classes} now."
            )
        self.classes_ = classes

    def _numbered(self, constraints: Constraints) -> Constraints:
        if not isinstance(constraints, Sequence):
            return constraints  # which the model refuses
        return [
            one.numbered(self.classes_) if isinstance(one, RateConstraint) else one
            for one in constraints
        ]

    def _weighted(self, labels: Rows, sample_weight: ArrayLike | None) -> ArrayLike | None:
        if self.class_weight is None:
            return sample_weight
        with refusals():
            weights: Rows = compute_sample_weight(self.class_weight, labels)
            if sample_weight is None:
                return weights
            counts = numbers("weights", sample_weight)
            if counts.shape != labels.shape or (counts < 0).any() or not counts.any():
                return counts  # which the model refuses
            if self.class_weight == "balanced":  # of rows that are there as often as they count
                place = np.searchsorted(self.classes_, labels)
                masses = np.bincount(place, counts)
                each = masses.sum() / np.count_nonzero(masses)
                weights = np.divide(each, masses, where=masses > 0, out=masses)[place]
            return weights * counts


def _precision(model: Lifted, X: Rows, target: Rows) -> str:
    """Return the type, "float32" if it does, in which an export answers as the model does."""
    some, like = slice(None, None, 1 + len(X) // _JUDGED), model.weights[0].matrix.float()
    single = copy(model)
    single._fit = replace(model._known, weights=tuple(x.to(like) for x in model._known.weights))
    exact = model.forward(X[some])
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused
            rows = X[some].astype(np.float32)
        lost = (single.forward(rows) - exact).abs()
    except DataError:  # beyond the range of float32
        return "float64"
    seen = _OF_SPREAD * exact.flatten(0, -2).std(0, correction=0)
    if target.dtype.kind == "f":
        left = (torch.as_tensor(target[some]).to(exact) - exact).square().mean(0).sqrt()
        seen = torch.minimum(seen, _OF_RESIDUALS * left)
    return "float32" if bool((lost <= seen).all()) else "float64"


def on_cpu(outputs: Tensor) -> Rows:
    """Return a tensor as an array."""
    return outputs.cpu().numpy()
