"""Lifted networks as scikit-learn's estimators: settings kept as given, arrays in, arrays out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array, check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_monotonic_cst, column_or_1d, validate_data

from liftednet import errors, processes
from liftednet.activation import Activation
from liftednet.constraints import Constraint, RateConstraint
from liftednet.errors import DataError, LiftedError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from liftednet.names import activation_of, loss_of
from liftednet.validation import is_integer

from .builders import LiftedMLP, LiftedRNN
from .by_evidence import STEPS, Size, fit_by_evidence
from .error_bars import has_evidence, posterior
from .fingerprint import described_network
from .lifted import Lifted
from .methods import GaussNewton, Method
from .methods.descent import AnySolver
from .settings import Penalties, Settings, told_in

__all__ = ["LiftedClassifier", "LiftedRegressor", "LiftedSequenceClassifier"]

_TYPES = (np.float64, np.float32)
_PASSED_ON = [x.name for x in fields(Settings) if x.name not in ("network", "start", "seed")]

_SIZED = (  # settings of a network and a method of one's own, which has the size that is given
    "hidden_layer_sizes", "lam", "rho", "penalty", "divergence", "method", "solver", "batch_size",
    "monotonic_cst", "lipschitz",
)  # fmt: skip

Rows = NDArray[Any]
Names = str | Activation | Sequence[str | Activation] | None


def _documented(*sources: type) -> Callable[[type], type]:
    """Let the docstring of an estimator show the settings that it shares with others."""

    def filled(estimator: Any) -> Any:
        return told_in(estimator, "    **settings: see the estimators.", *sources)

    return filled


class DataTypeError(DataError, TypeError):
    """Data of a type that has no numbers."""


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """One lifted model behind scikit-learn's conventions; `fit` looks at the settings.

    Args:
        lam: as in `LiftedMLP`, like the following up to `solver`; None leaves it to the model.
        rho: weight of the squared Frobenius norms.
        penalty: in place of rho, any of `liftednet.penalties`.
        divergence: "tight" or "joint".
        standardize: whether training sees inputs, and targets of regressions, on a common scale.
        method: "minibatch", "full", "gauss-newton", or a method with numbers of its own.
        solver: of every block.
        max_iter: the most epochs, sweeps or steps; None for the method's own number.
        batch_size: samples of a minibatch; None for the method's own number.
        early_stopping: whether some samples are held out, whatever the method is: training ends
            where their mean loss no longer falls, and keeps the weights of the least.
        validation_fraction: share of the samples that is held out for it.
        n_iter_no_change: epochs, sweeps or steps without a smaller loss that it waits.
        warm_start: whether another `fit` goes on from the weights that are there.
        random_state: of the first weights and the order of batches; an integer is the seed of
            the model, None draws one.
        verbose: whether to show a progress bar.
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
        if not is_integer(seed):
            with _refusals():
                seed = check_random_state(seed).randint(2**31)
        return {**settings, "seed": seed}

    def _learn(
        self,
        X: Rows,
        target: Rows,
        outputs: int,
        sample_weight: Any,
        lengths: Any = None,
        constraints: Sequence[Constraint | RateConstraint] = (),
        **asked: Any,
    ) -> Self:
        weights = None if sample_weight is None else _numbers("sample_weight", sample_weight)

        def fit(model: Lifted) -> Lifted:
            return model.fit(
                X, target, lengths=lengths, sample_weight=weights, progress=bool(self.verbose),
                constraints=constraints, **asked,
            )  # fmt: skip

        model = self._of_best_size(len(X), outputs, fit) if not constraints else None
        model = fit(self._start(outputs)) if model is None else model
        assert model.trace is not None  # it has been fitted just now
        last = {step.number: step.objective for step in model.trace.steps}
        self.model_, self.n_iter_, self.loss_curve_ = model, len(last), list(last.values())
        return self

    def _learn_part(self, X: Rows, target: Rows, outputs: int, sample_weight: Any) -> Self:
        """Take one step on one batch; the first is one of a new model."""
        model = self.model_ if self.__sklearn_is_fitted__() else self._start(outputs)
        weights = None if sample_weight is None else _numbers("sample_weight", sample_weight)
        model.partial_fit(X, target, sample_weight=weights)
        assert model.trace is not None  # of the step
        before = self.loss_curve_ if self.__sklearn_is_fitted__() else []
        self.model_, self.loss_curve_ = model, [*before, *model.trace.losses]
        self.n_iter_ = len(self.loss_curve_)
        return self

    @abstractmethod
    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        """Return a network for X as it has been validated."""

    def _of_best_size(
        self, samples: int, outputs: int, fit: Callable[[Lifted], object]
    ) -> Lifted | None:
        """Return a fitted model whose size the evidence has chosen; None where it cannot."""
        return None

    def _forward(self, X: Rows, lengths: Any = None) -> Rows:
        """Return the outputs by the feedforward rule, (samples, outputs)."""
        found: Rows = self.model_.forward(X, lengths=lengths).cpu().numpy()
        return found

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are weights."""
        return hasattr(self, "model_")

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise errors.NotFittedError(
                f"this {type(self).__name__} has not been fitted: call fit(X, y) first."
            )


@dataclass(eq=False, repr=False, kw_only=True)
class _Feedforward(_Estimator):
    """What estimators on a `LiftedMLP` share.

    Args:
        monotonic_cst: as in scikit-learn's trees: of every feature 1, -1 or 0, where outputs, or
            the probability of the second of two classes, must not fall, not rise, or may do both;
            or these numbers by name of a data frame's columns.
        missing: whether entries of X may be NaN: states of their own, see `Network.input`.
        noise: standard deviation of X around what there is, see `Network.input`.
        lipschitz: a bound on how steep the scores are in X, see `LiftedMLP`; None for no bound.
        within: `Bounds` and `Linear` of `liftednet.constraints`, which the outputs, or the scores
            of the labels in the order of `classes_`, meet at every input, see `Network.loss`.
    """

    monotonic_cst: Mapping[str, int] | Sequence[int] | None = None
    missing: bool = False
    noise: float | Sequence[float] = 0.0
    lipschitz: float | None = None
    within: Sequence[Constraint] = ()

    def _of_best_size(
        self, samples: int, outputs: int, fit: Callable[[Lifted], object]
    ) -> Lifted | None:
        if self.warm_start and self.__sklearn_is_fitted__() and getattr(self.model_, "skip", False):
            fit(self.model_)
            return self.model_
        given = (getattr(self, name) for name in _SIZED)
        if any(x is not None for x in given) or self.missing or self.within or np.any(self.noise):
            return None
        loss = self._loss()
        size = Size(self.n_features_in_, outputs, not loss.probabilistic)
        known = isinstance(loss, SquaredError | CrossEntropy)
        if not known or not size.serves(samples):
            return None
        settings, kinds = self._settings(), self.activation
        if kinds is not None:
            kinds = _activations(kinds)
            if not isinstance(kinds, Activation):
                return None  # one for each of several layers

        def candidate(size: Size, activation: Activation, start: int) -> LiftedMLP:
            sizes = (size.inputs, size.units, size.outputs)
            told = {
                **settings, "rho": size.rho, "seed": settings["seed"] + start, "skip": True,
                "method": GaussNewton(steps=STEPS, evidence=True),
            }  # fmt: skip
            return LiftedMLP(sizes, activation, loss, **told)

        if kinds is None:
            return fit_by_evidence(size, samples, candidate, fit)
        return fit_by_evidence(size, samples, candidate, fit, (kinds,))

    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        hidden_units = (100,) if self.hidden_layer_sizes is None else self.hidden_layer_sizes
        hidden = tuple(np.atleast_1d(np.asarray(hidden_units, dtype=object)))
        activation = "relu" if self.activation is None else self.activation
        with _refusals():
            directions = _check_monotonic_cst(self, self.monotonic_cst)
        told = {"missing": self.missing, "noise": self.noise, "within": self.within, **settings}
        if self.monotonic_cst is not None:
            told["monotonic_cst"] = directions.tolist()
        sizes = (self.n_features_in_, *hidden, outputs)
        return LiftedMLP(sizes, _activations(activation), self._loss(), **told)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        constraints: Sequence[Constraint | RateConstraint] = (),
        confidence: float | None = None,
        held_out: float = 0.3,
        strict: bool = False,
    ) -> Self:
        """Fit the network.

        Args:
            X: (samples, features), an array or a data frame.
            y: of a classifier labels (samples,) of any type; of a regressor numbers, (samples,) or
                (samples, outputs).
            sample_weight: (samples,), not negative; None for 1.
            constraints: of `liftednet.constraints`, on the scores of all samples of X, or of a
                classifier on rates of its decisions, as `Lifted.fit` takes them.
            confidence: with which rates shall hold on new rows, as in `Lifted.fit`.
            held_out: the share of the rows that is set aside for it.
            strict: whether a model is handed out only if they are shown to hold.

        Raises:
            DataError: X, y or a setting cannot be used.
            SolverError: the training failed.
        """
        X, y = self._checked_pair(X, y)
        told = self._told(y, sample_weight)
        return self._learn(
            X, *told, constraints=self._numbered(constraints), confidence=confidence,
            held_out=held_out, strict=strict,
        )  # fmt: skip

    def _numbered(
        self, constraints: Sequence[Constraint | RateConstraint]
    ) -> Sequence[Constraint | RateConstraint]:
        """Return constraints with numbers of labels in place of labels."""
        return constraints

    def declared(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, classes: Any = None
    ) -> tuple[Lifted, Rows, Rows, Any]:
        """Return the model that `fit` begins with, and what it gives it: X, y and weights.

        For what estimators do not do: checkpoints, several processes.

        Args:
            X: as in `fit`.
            y: as in `fit`.
            sample_weight: as in `fit`.
            classes: all labels of a classifier, where y may lack some; None for those of y.

        Raises:
            DataError: X, y or a setting cannot be used.
        """
        X, y = self._checked_pair(X, y)
        target, outputs, weights = self._told(y, sample_weight, classes)
        return self._model(outputs, self._settings()), X, target, weights

    @abstractmethod
    def _told(
        self, y: Any, sample_weight: ArrayLike | None, classes: Any = None
    ) -> tuple[Rows, int, Any]:
        """Return targets as the loss takes them, the number of outputs, and weights of samples."""

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss."""

    def _checked_pair(self, X: Any, y: Any, reset: bool = True) -> tuple[Rows, Any]:
        """Return arrays (samples, features) and y, of equal length.

        Raises:
            DataError: they are not, or are not finite; a TypeError, too, where there are no
                numbers.
        """
        with _refusals():
            _refuse_dates(X, y, isinstance(self, RegressorMixin))
            found: tuple[Rows, Any] = validate_data(
                self, X, y, dtype=_TYPES, multi_output=True, force_writeable=True, reset=reset,
                y_numeric=isinstance(self, RegressorMixin), ensure_all_finite=self._finite,
            )  # fmt: skip
        return found

    def _checked(self, X: Any) -> Rows:
        """Return X of predictions, (samples, features).

        Raises:
            DataError: it is not what has been fitted.
            NotFittedError: nothing has been fitted.
        """
        self._require_fitted()
        with _refusals():
            found: Rows = validate_data(
                self, X, dtype=_TYPES, force_writeable=True, reset=False,
                ensure_all_finite=self._finite,
            )  # fmt: skip
        return found

    @property
    def log_evidence_(self) -> float:
        """The log evidence, log p(y) in units of y: of two fits the larger is better."""
        self._require_fitted()
        return posterior(self).log_evidence

    @property
    def _finite(self) -> bool | str:
        return "allow-nan" if self.missing else True

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether entries may be missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.missing)
        return tags


class _Classifying(_Estimator):
    """What classifiers share: labels, of which some may count more than others."""

    class_weight: Mapping[Any, float] | str | None
    classes_: Rows

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

    def _weighted(self, labels: Rows, sample_weight: ArrayLike | None) -> ArrayLike | None:
        if self.class_weight is None:
            return sample_weight
        with _refusals():
            weights: Rows = compute_sample_weight(self.class_weight, labels)
        return weights if sample_weight is None else weights * _numbers("weights", sample_weight)


@_documented(_Estimator, _Feedforward)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedClassifier(ClassifierMixin, _Classifying, _Feedforward):  # type: ignore[misc]
    """A lifted feedforward network that predicts labels, with scikit-learn's conventions.

    min over W, b, X_1.. of cross-entropy + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l)
    + rho_l |W_l|_F^2; Lifted Neural Networks, eq. (10). Without settings the data choose the
    size of the network, too.

    Args:
        hidden_layer_sizes: units of every hidden layer. None leaves it to the evidence of the data
            where that can be had (`fit_by_evidence`: some thousands of samples, and no setting of
            a method, a penalty or a shape): one hidden layer beside a linear one, of 16 units, or
            of 48 or 144 as long as log p(y) grows. Elsewhere it has 100.
        activation: of the hidden layers, an `Activation` or a name such as "relu", "tanh",
            "logistic" or "identity"; or one for each. None is "relu", and of a size by the
            evidence "tanh" where log p(y) is larger with it.
        class_weight: weights by label, "balanced", or None for 1.
        loss: of labels, from `liftednet.losses`, or its name; None for CrossEntropy().
        **settings: see the estimators.

    Attributes:
        classes_: the labels, sorted.
        model_: the fitted `LiftedMLP`.
        n_iter_: epochs, sweeps or steps that were taken.
        loss_curve_: the objective after each of them.
        n_features_in_: inputs; feature_names_in_: their names, where a data frame has them.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from liftednet import LiftedClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> network = LiftedClassifier((20,), max_iter=200, random_state=0)
        >>> make_pipeline(StandardScaler(), network).fit(X, y).score(X, y) > 0.9
        True
    """

    class_weight: Mapping[Any, float] | str | None = None
    loss: Loss | str | None = None

    def _told(
        self, y: Any, sample_weight: ArrayLike | None, classes: Any = None
    ) -> tuple[Rows, int, Any]:
        labels = self._labels(y)
        self._take_classes(np.unique(labels if classes is None else classes), self.warm_start)
        target = _numbered(labels, self.classes_)
        return target, self._outputs, self._weighted(labels, sample_weight)

    def _numbered(
        self, constraints: Sequence[Constraint | RateConstraint]
    ) -> Sequence[Constraint | RateConstraint]:
        if not isinstance(constraints, Sequence):
            return constraints  # which the model refuses
        return [
            one.numbered(self.classes_) if isinstance(one, RateConstraint) else one
            for one in constraints
        ]

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Take one step on one batch.

        Args:
            X: (samples, features).
            y: labels (samples,).
            classes: all labels that there will be; needed by the first call.
            sample_weight: (samples,), not negative; None for 1.

        Raises:
            DataError: X, y or a setting cannot be used, or classes are missing or others.
            SolverError: the step failed; the weights have not changed.
        """
        first = not self.__sklearn_is_fitted__()
        X, y = self._checked_pair(X, y, reset=first)
        labels, known = self._labels(y), None if classes is None else np.unique(classes)
        if first and known is None:
            raise DataError("classes must be passed to the first call of partial_fit.")
        if known is not None:
            self._take_classes(known, goes_on=True)
        target, weights = _numbered(labels, self.classes_), self._weighted(labels, sample_weight)
        return self._learn_part(X, target, self._outputs, weights)

    def predict_proba(self, X: Any) -> Rows:
        """Return probabilities, (samples, classes).

        By the feedforward rule; after a fit by the evidence averaged over the weights that the
        data leave open, see `Posterior.predict_proba`.
        """
        X = self._checked(X)
        averaged = has_evidence(self.model_)
        chances = posterior(self).predict_proba(X).cpu().numpy() if averaged else self._forward(X)
        return chances if chances.shape[1] > 1 else np.hstack([1 - chances, chances])

    def predict(self, X: Any) -> Rows:
        """Return the most probable labels, (samples,)."""
        chances = self.predict_proba(X)
        found: Rows = self.classes_[chances.argmax(1)]
        return found

    def _loss(self) -> Loss:
        return CrossEntropy() if self.loss is None else loss_of(self.loss)

    @property
    def _outputs(self) -> int:
        if not isinstance(self._loss(), BinaryCrossEntropy):
            return len(self.classes_)
        if len(self.classes_) > 2:
            raise DataError(f"BinaryCrossEntropy is for two labels, and y has {self.classes_}.")
        return 1

    def _labels(self, y: Any) -> Rows:
        """Return labels (samples,)."""
        with _refusals():
            check_classification_targets(y)
            if type_of_target(y).startswith("multi") and np.ndim(y) == 2 and np.shape(y)[1] > 1:
                raise DataError(
                    "y has several labels a sample: wrap the estimator in "
                    "sklearn.multioutput.MultiOutputClassifier."
                )
            found: Rows = column_or_1d(y, warn=True)
        return found


@_documented(_Estimator, _Feedforward)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedRegressor(RegressorMixin, _Feedforward):  # type: ignore[misc]
    """A lifted feedforward network that predicts numbers, with scikit-learn's conventions.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10).

    Args:
        hidden_layer_sizes: units of every hidden layer, or None, as in `LiftedClassifier`.
        activation: of the hidden layers, as in `LiftedClassifier`.
        loss: of `liftednet.losses`, or its name, such as "huber" or "quantile:0.9"; None for
            SquaredError().
        **settings: see the estimators.

    Attributes:
        model_: the fitted `LiftedMLP`.
        n_iter_: epochs, sweeps or steps that were taken.
        loss_curve_: the objective after each of them.
        n_features_in_: inputs; feature_names_in_: their names, where a data frame has them.
        log_evidence_: log p(y) of a fit by Gauss-Newton, see `posterior`.

    Example:
        >>> import numpy as np
        >>> from liftednet import LiftedRegressor
        >>> X = np.linspace(-1, 1, 200)[:, None]
        >>> network = LiftedRegressor((20,), "tanh", rho=1e-4, method="gauss-newton")
        >>> network.fit(X, np.sin(3 * X[:, 0])).score(X, np.sin(3 * X[:, 0])) > 0.99
        True
    """

    loss: Loss | str | None = None

    def _told(
        self, y: Any, sample_weight: ArrayLike | None, classes: Any = None
    ) -> tuple[Rows, int, Any]:
        self._one, target = y.ndim == 1, _columns(y)
        return target, target.shape[1], sample_weight

    def partial_fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Take one step on one batch.

        Args:
            X: (samples, features).
            y: numbers, (samples,) or (samples, outputs).
            sample_weight: (samples,), not negative; None for 1.

        Raises:
            DataError: X, y or a setting cannot be used.
            SolverError: the step failed; the weights have not changed.
        """
        X, y = self._checked_pair(X, y, reset=not self.__sklearn_is_fitted__())
        return self._learn_part(X, *self._told(y, sample_weight))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return numbers by the feedforward rule, in the shape of y: (samples,[ outputs]).

        Args:
            X: (samples, features).
            return_std: whether to return their standard deviations, too, in the same shape and unit
                as y: of the noise and of what the data leave open together; `posterior` tells
                them apart.

        Raises:
            DataError: X cannot be used.
            DeclarationError: return_std, and the loss is no likelihood.
            NotFittedError: nothing has been fitted, or return_std, and by a method without a
                factor; as in `posterior`.
        """
        X = self._checked(X)
        if not return_std:
            return self._shaped(self._forward(X))
        found = posterior(self).predict(X)
        return self._shaped(found.mean.cpu().numpy()), self._shaped(found.std.cpu().numpy())

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Rows, Rows]:
        """Return the ends between which y lies with a probability, each in the shape of y.

        Args:
            X: (samples, features).
            level: the probability, of each number by itself.

        Raises:
            DataError: X or the level cannot be used.
            DeclarationError: the loss is no likelihood.
            NotFittedError: as in `posterior`.
        """
        X = self._checked(X)
        lower, upper = posterior(self).predict(X).interval(level)
        return self._shaped(lower.cpu().numpy()), self._shaped(upper.cpu().numpy())

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Rows:
        """Return draws of y at all rows together, (samples,[ outputs,] n_samples).

        As scikit-learn's Gaussian process returns them; `posterior(...).sample` draws functions
        without noise, too.

        Args:
            X: (samples, features).
            n_samples: how many.
            random_state: of the draws, an integer or a numpy generator.

        Raises:
            DataError: X or a number cannot be used.
            DeclarationError: the loss is no likelihood.
            NotFittedError: as in `posterior`.
        """
        X = self._checked(X)
        with _refusals():
            seed = int(check_random_state(random_state).randint(2**31))
        generator = torch.Generator().manual_seed(seed)
        drawn = posterior(self).sample(X, n_samples, generator).movedim(0, -1).cpu().numpy()
        return drawn[:, 0] if self._one else drawn

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return R2 of the predictions, computed in float64, whatever the type of X and y."""
        given = (np.asarray(values, dtype=np.float64) for values in (y, self.predict(X)))
        return float(r2_score(*given, sample_weight=sample_weight))

    def _shaped(self, outputs: Rows) -> Rows:
        """Return (samples, outputs) in the shape of y."""
        return outputs[:, 0] if self._one else outputs

    def _loss(self) -> Loss:
        return SquaredError() if self.loss is None else loss_of(self.loss)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several outputs are possible."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@_documented(_Estimator)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedSequenceClassifier(ClassifierMixin, _Classifying):  # type: ignore[misc]
    """A lifted recurrent network that labels sequences, or their steps.

    Lifted Recurrent Neural Networks, section 4.1. X has three axes, and so stands beyond what
    scikit-learn's own checks and scalers take; `clone`, parameters, searches over them and
    cross-validation work.

    Args:
        hidden_layer_sizes: units of every recurrent layer.
        activation: of these layers, an `Activation` or its name; None for that of `LiftedRNN`.
        bidirectional: whether every layer also runs from the last step to the first.
        start: of the recurrent weights, as in `LiftedRNN`; None leaves it to `LiftedRNN`.
        class_weight: weights by label, "balanced", or None for 1; for one label a sequence.
        **settings: see the estimators.

    Attributes:
        classes_: the labels, sorted.
        model_: the fitted `LiftedRNN`.
        n_iter_: sweeps, epochs or steps that were taken.
        loss_curve_: the objective after each of them.
        n_features_in_: features of every step.

    Example:
        >>> from liftednet import LiftedSequenceClassifier
        >>> from liftednet.data import echo
        >>> X, y = (part.numpy() for part in echo(samples=50, length=8, lag=1))
        >>> LiftedSequenceClassifier((8,), max_iter=5, random_state=0).fit(X, y).predict(X).shape
        (50, 8)
    """

    hidden_layer_sizes: int | Sequence[int] = field(default=(50,), kw_only=False)
    activation: str | Activation | None = field(default=None, kw_only=False)
    class_weight: Mapping[Any, float] | str | None = None
    bidirectional: bool = False
    start: str | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> Self:
        """Fit the network.

        Args:
            X: (samples, steps, features).
            y: a label for every sequence, (samples,), or for every step, (samples, steps).
            sample_weight: (samples,), not negative; None for 1.
            lengths: (samples,) steps of each sequence; None: all have every step.

        Raises:
            DataError: X, y, lengths or a setting cannot be used.
            SolverError: the training failed.
        """
        X = self._checked_sequences(X)
        labels = np.asarray(y)
        if labels.ndim not in (1, 2) or labels.shape != X.shape[: labels.ndim]:
            raise DataError(
                f"y must have a label for each of {len(X)} sequences, or for each of their "
                f"{X.shape[1]} steps; got shape {labels.shape}."
            )
        self.n_features_in_ = X.shape[2]
        lengths = None if lengths is None else np.asarray(lengths)
        valid = np.ones(labels.shape, dtype=bool)
        if labels.ndim == 2 and lengths is not None and lengths.shape == labels.shape[:1]:
            valid = np.arange(X.shape[1]) < lengths[:, None]
        with _refusals():
            check_classification_targets(labels[valid])
        self._take_classes(np.unique(labels[valid]), goes_on=self.warm_start)
        if labels.ndim == 2 and self.class_weight is not None:
            raise DataError(
                "class_weight counts sequences with one label each, and y has labels of steps: "
                "give sample_weight."
            )
        weights = self._weighted(labels, sample_weight)
        target = np.zeros(labels.shape, dtype=np.int64)
        target[valid] = _numbered(labels[valid], self.classes_)
        return self._learn(X, target, len(self.classes_), weights, lengths)

    def predict_proba(self, X: Any, lengths: ArrayLike | None = None) -> Rows:
        """Return probabilities, (samples, classes), or (samples, steps, classes)."""
        self._require_fitted()
        X = self._checked_sequences(X)
        if X.shape[2] != self.n_features_in_:
            raise DataError(
                f"X has {X.shape[2]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return self._forward(X, None if lengths is None else np.asarray(lengths))

    def predict(self, X: Any, lengths: ArrayLike | None = None) -> Rows:
        """Return labels, (samples,), or (samples, steps) where every step has one."""
        chances = self.predict_proba(X, lengths)
        found: Rows = self.classes_[chances.argmax(-1)]
        return found

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> float:
        """Return the share of right labels; each step counts where every step has one."""
        right = self.predict(X, lengths) == np.asarray(y)
        weights = np.ones(len(right)) if sample_weight is None else np.asarray(sample_weight)
        every = np.broadcast_to(weights.reshape(-1, *(1,) * (right.ndim - 1)), right.shape)
        if right.ndim == 2 and lengths is not None:
            every = every * (np.arange(right.shape[1]) < np.asarray(lengths)[:, None])
        return float(np.average(right, weights=every))

    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        given: dict[str, Any] = {**settings, "bidirectional": self.bidirectional}
        if self.start is not None:
            given["start"] = self.start
        hidden = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)).tolist()
        activation = _activations(self.activation)
        return LiftedRNN(self.n_features_in_, hidden, outputs, activation, **given)

    def _checked_sequences(self, X: Any) -> Rows:
        if isinstance(X, list | tuple) and len({len(sequence) for sequence in X}) > 1:
            raise DataError(
                "sequences of different lengths are given as one array (samples, steps, features), "
                "padded at their ends, and as lengths=."
            )
        with _refusals():
            found: Rows = check_array(
                X, dtype=_TYPES, ensure_2d=False, allow_nd=True, force_writeable=True
            )
        if found.ndim != 3:
            raise DataError(
                f"X must be (samples, steps, features), got shape {found.shape}: write "
                "X[..., None] where each step is one number."
            )
        return found

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that X has three axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


@contextmanager
def _refusals() -> Iterator[None]:
    """Make what scikit-learn refuses the library's error as well."""
    try:
        yield
    except LiftedError:
        raise
    except TypeError as error:
        raise DataTypeError(str(error)) from error
    except ValueError as error:
        # What follows names other estimators that take NaN; these do, too.
        text, follows, _ = str(error).partition("does not accept missing values")
        if follows:
            text = f"{text.splitlines()[0]} Say missing=True where it is what was not seen."
        raise DataError(text) from error


def _refuse_dates(X: Any, y: Any, regression: bool) -> None:
    """Raise `DataTypeError` where columns of a frame, or targets of a regression, are no numbers.

    scikit-learn names no column, and takes dates for nanoseconds.
    """
    kinds: Any = getattr(X, "dtypes", None)
    if hasattr(kinds, "items"):
        words = [repr(name) for name, kind in kinds.items() if not _is_number_like(kind)]
        if words:
            raise DataTypeError(
                f"columns of X that hold no numbers: {', '.join(words)}. Encode them, as "
                "sklearn.preprocessing.OneHotEncoder does, or leave them out; of a date, give days "
                "since a first one."
            )
    if regression and getattr(getattr(y, "dtype", None), "kind", "f") in "mM":
        raise DataTypeError(f"y holds dates ({y.dtype}); give numbers, such as days since a first.")


def _is_number_like(kind: Any) -> bool:
    """Whether a column's type may hold numbers; of objects scikit-learn sees what they are."""
    return getattr(kind, "kind", "O") in "biufO" and str(kind) not in ("category", "str", "string")


def _activations(given: Names) -> Any:
    """Return activations, one or several, of names or of activations."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [_activations(one) for one in given]
    return activation_of(given)


def _numbers(name: str, values: ArrayLike) -> Rows:
    with _refusals():
        found: Rows = check_array(
            np.asarray(values), dtype=np.float64, ensure_2d=False, force_writeable=True,
            input_name=name,
        )  # fmt: skip
    return found


def _columns(y: Rows) -> Rows:
    """Return targets as (samples, outputs), float64.

    Raises:
        DataError: they are no numbers.
    """
    try:
        return y.astype(np.float64).reshape(len(y), -1)
    except (TypeError, ValueError) as error:
        raise DataError(f"a regression needs numbers as y, got {y.dtype}: {error}.") from error


def _numbered(labels: Rows, classes: Rows) -> Rows:
    """Return the number of every label's class, int64.

    Raises:
        DataError: a label is none of the classes.
    """
    found = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = labels[classes[found] != labels]
    if len(unknown):
        raise DataError(
            f"y has the label {str(unknown[0])!r}, which is none of the classes {classes}."
        )
    return found.astype(np.int64)
