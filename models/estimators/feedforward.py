"""Lifted feedforward networks as scikit-learn's estimators, of labels and of numbers."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Never, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, check_X_y
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d, validate_data

from liftednet.constraints import Constraint
from liftednet.errors import DataError, DeclarationError, FitWarning, SolverError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Likelihood, Loss, SquaredError
from liftednet.names import activation_of, loss_of
from liftednet.validation import is_number, model_of

from ..builders import LiftedMLP
from ..by_evidence import EXACT_STEPS, SHAPED, STEPS, Candidate, Size, fit_by_evidence, suits
from ..error_bars import PoissonByWeights, has_evidence, posterior, relevance_of
from ..lifted import Lifted
from ..methods import GaussNewton
from ..shapes import CONVEX_UNITS, interaction_groups, marks_of
from .base import Classifying, Constraints, Estimator, all_or_nothing, documented, on_cpu
from .input import (
    FLOATS,
    DataTypeError,
    Kinds,
    Rows,
    by_name,
    columns,
    numbered,
    plain,
    refusals,
    refuse_dates,
    refuse_unlabelled,
)

__all__ = ["LiftedClassifier", "LiftedRegressor"]


_ROUNDING = 1e-9  # of the largest target: rows alike that are as near have no noise
_LEAST_SQUARE = 1e-6  # of the mean square: a residual that is less says no more
_SIZED = (  # settings of a network and a method of one's own, which has the size that is given
    "hidden_layer_sizes", "lam", "rho", "penalty", "divergence", "method", "solver", "batch_size",
    "interaction_cst", "lipschitz",
)  # fmt: skip


class _NoEvidenceError(DataError, DeclarationError, AttributeError):
    """The fit has no evidence, which `hasattr` may ask."""


@dataclass(eq=False, repr=False, kw_only=True)
class _Feedforward(Estimator):
    """What estimators on a `LiftedMLP` share.

    Args:
        monotonic_cst: as in scikit-learn's trees: of every feature 1, -1 or 0, where outputs, or
            the probability of the second of two classes, must not fall, not rise, or may do both;
            or these numbers by name of a data frame's columns.
        interaction_cst: as in scikit-learn's boosting: sets of features, by number or name, that
            may interact, "no_interactions" or "pairwise"; the scores are a sum of functions of each
            set. None for all.
        missing: whether entries of X may be NaN, for what was not seen: a Gaussian prior that is
            learned from what was seen completes them, in training and in predictions.
        lipschitz: the most by which outputs, or scores of classes, may differ over the Euclidean
            distance of their rows of X, held at every step; None for no bound.
        within: `Bounds` and `Linear` of `liftednet.constraints`, which the outputs, or the scores
            of the labels in the order of `classes_`, meet at every input: a last layer projects on
            them, in units of y; scores are logarithms of odds.
    """

    monotonic_cst: Mapping[str, int] | Sequence[int] | None = None
    interaction_cst: str | Sequence[Iterable[int | str]] | None = None
    missing: bool = False
    lipschitz: float | None = None
    within: Sequence[Constraint] = ()

    def _of_best_size(
        self, data: tuple[Rows, Rows, Any], outputs: int, fit: Callable[[Lifted], object]
    ) -> Lifted | None:
        X, y, weights = data
        if weights is not None:  # rows that do not count choose nothing
            counts = weights > 0
            data = X[counts], y[counts], weights[counts]
        shapes = self._shapes()
        goes_on = self.warm_start and self.__sklearn_is_fitted__()
        if goes_on and getattr(self.model_, "skip", False) and suits(self.model_, *data):
            vars(self.model_).update(shapes)
            spread = self.model_._known.spread  # of several fits, which are not made again
            fit(self.model_)
            self.model_._fit = replace(self.model_._known, spread=spread)
            return self.model_
        given = (getattr(self, name) for name in _SIZED)
        own = self.missing or self.within or shapes["convex"] is True
        if own or any(x is not None for x in given):
            return None
        loss = self._loss()
        size = Size(self._inputs, outputs, isinstance(loss, SquaredError))
        if shaped := any(shapes.values()):
            size = replace(size, units=SHAPED)
        served = isinstance(loss, CrossEntropy | Likelihood)
        if not served or not size.serves(len(data[0])):
            return None
        settings, told = {**self._settings(), **shapes}, dict[str, Any]()
        if shapes["convex"]:
            told["activations"] = CONVEX_UNITS
        if self.activation is not None:
            if isinstance(self.activation, Sequence) and not isinstance(self.activation, str):
                return None  # one for each of several layers
            told["activations"] = (activation_of(self.activation),)

        def make(one: Candidate) -> LiftedMLP:
            hidden = one.size.layers * (one.size.units,)
            sizes = one.size.inputs, *hidden, one.size.outputs
            steps = STEPS if one.size.layers == 1 else EXACT_STEPS
            return LiftedMLP(
                sizes, one.activation, loss, **settings | {
                    "rho": one.size.rho, "seed": settings["seed"] + one.start, "skip": True,
                    "method": GaussNewton(steps=steps, evidence=True),
                }
            )  # fmt: skip

        exact = getattr(self, "noise", None) == 0.0 and not shaped  # signs hold up two layers
        return fit_by_evidence(size, data, make, fit, exact=exact, bent=not shaped, **told)

    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        told = {"missing": self.missing, "within": self.within, **settings, **self._shapes()}
        if self.interaction_cst is not None:
            told["interaction_cst"] = self._sets_of_inputs()
        sizes = (self._inputs, *self._hidden, outputs)
        return LiftedMLP(sizes, self.activation, self._loss(), **told)

    def _shapes(self) -> dict[str, Any]:
        """Return directions and curvature of the network's inputs, of which kinds have none."""
        found = {"monotonic_cst": self.monotonic_cst, "convex": getattr(self, "convex", False)}
        return {name: self._by_input(name, given) for name, given in found.items()}

    def _by_input(self, setting: str, given: Any) -> Any:
        if given is None or isinstance(given, bool):
            return given
        if isinstance(given := by_name(given), Mapping):
            self._refuse_unknown(setting, map(str, given))
            given = [given.get(name, 0) for name in self.feature_names_in_]
        marks = marks_of(setting, given, self.n_features_in_)
        if self._kinds is None:
            return marks
        for name, mark in zip(self._kinds.names, marks, strict=True):
            if mark and name in self._kinds.seen:
                raise DataError(f"column {name!r} names kinds, which have no order to be held.")
        each = zip(marks, self._kinds.groups.values(), strict=True)
        return [mark for mark, group in each for _ in group]

    def _sets_of_inputs(self) -> list[list[int]]:
        """Return the sets of features that may interact as sets of the network's inputs."""
        names = list(map(str, getattr(self, "feature_names_in_", ())))
        allowed: Any = self.interaction_cst
        if not isinstance(allowed, str) and isinstance(allowed, Iterable):
            one = (
                x if isinstance(x, Iterable) and not isinstance(x, str) else [x] for x in allowed
            )
            named = [list(x) for x in one]
            self._refuse_unknown("interaction_cst", [x for some in named for x in some])
            allowed = [
                [names.index(x) if isinstance(x, str) else x for x in some] for some in named
            ]
        found = interaction_groups(allowed, self.n_features_in_)
        if self._kinds is None:
            return found
        groups = list(self._kinds.groups.values())
        return [[n for feature in group for n in groups[feature]] for group in found]

    def _refuse_unknown(self, setting: str, columns: Iterable[Any]) -> None:
        """Raise `DataError` where a setting names what is no column of the data frame."""
        names = list(map(str, getattr(self, "feature_names_in_", ())))
        if unknown := [x for x in columns if isinstance(x, str) and x not in names]:
            array = "X is an array, without names: give a data frame, or a list of numbers"
            known = f"there are {', '.join(names)}" if names else array
            raise DataError(f"{setting} names {unknown[0]!r}, which is no column of X: {known}.")

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        constraints: Constraints = (),
        confidence: float | None = None,
        held_out: float = 0.3,
        strict: bool = False,
        **unknown: Never,
    ) -> Self:
        """Fit the network.

        Args:
            X: (samples, features), an array or a data frame, whose categories and strings are
                kinds; those that training has not seen answer as the middle of those it has.
            y: of a classifier labels (samples,) of any type; of a regressor numbers, (samples,) or
                (samples, outputs).
            sample_weight: (samples,), not negative; None for 1.
            constraints: of `liftednet.constraints`, on the scores of all samples of X, or of a
                classifier on rates of its decisions, as `Lifted.fit` takes them.
            confidence: with which rates shall hold on new rows, as in `Lifted.fit`.
            held_out: the share of the rows that is set aside for it.
            strict: whether a model is handed out only if they are shown to hold.
            **unknown: nothing, which is told by the name of the estimator.

        Raises:
            DataError: X, y or a setting cannot be used.
            SolverError: the training failed.
        """
        if unknown:
            raise DataTypeError(
                f"{type(self).__name__}.fit has no {', '.join(unknown)}: it takes X, y, "
                "sample_weight, constraints, confidence, held_out and strict."
            )
        X, y = self._checked_pair(X, y)
        return self._learn(
            X, *self._told(y, sample_weight), constraints=self._numbered(constraints),
            confidence=confidence, held_out=held_out, strict=strict,
        )  # fmt: skip

    @abstractmethod
    def _told(self, y: Any, sample_weight: ArrayLike | None) -> tuple[Rows, int, Any]:
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
        numeric, X, y = isinstance(self, RegressorMixin), plain(X), plain(y)
        refuse_dates("X", X)
        if numeric:
            refuse_dates("y", y)
        else:
            refuse_unlabelled(y)
        if reset:
            self._kinds = Kinds.of(X)
        with refusals(X=partial(self._of_numbers, X), y=y):
            told = {**self._checks, "multi_output": True, "y_numeric": numeric}
            if self._kinds is None:
                found: tuple[Rows, Any] = validate_data(self, X, y, reset=reset, **told)
            else:
                validate_data(self, X, skip_check_array=True, reset=reset)
                found = check_X_y(self._kinds.encoded(X), y, estimator=self, **told)
        self._inputs = found[0].shape[1]
        return found

    def _checked(self, X: Any) -> Rows:
        """Return X of predictions, (samples, features).

        Raises:
            DataError: it is not what has been fitted.
            NotFittedError: nothing has been fitted.
        """
        model_of(self)
        X = plain(X)
        refuse_dates("X", X)
        with refusals(X=partial(self._of_numbers, X)):
            if self._kinds is None:
                found: Rows = validate_data(self, X, reset=False, **self._checks)
            else:
                validate_data(self, X, skip_check_array=True, reset=False)
                found = check_array(
                    self._kinds.encoded(X), input_name="X", estimator=self, **self._checks
                )
        return found

    def _of_numbers(self, X: Any) -> Any:
        """Return X without the columns that name kinds."""
        named = list(self._kinds.seen) if self._kinds is not None else []
        return X.drop(columns=named, errors="ignore") if named and hasattr(X, "drop") else X

    @property
    def log_evidence_(self) -> float:
        """The log evidence, log p(y) in units of y: of two fits the larger is better."""
        try:
            return posterior(self).log_evidence
        except (DataError, DeclarationError) as error:
            raise _NoEvidenceError(str(error)) from error

    @property
    def relevance_(self) -> Rows:
        """How far answers move with each feature of another row, in units of y, (features,).

        Of several outputs (features, outputs); of classes in units of probability. A category is
        one feature. See `relevance_of`.
        """
        model_of(self)
        whole = [[column] for column in range(self._inputs)]
        groups = whole if self._kinds is None else list(self._kinds.groups.values())
        found = on_cpu(relevance_of(self.model_, groups))
        if self._loss().probabilistic:
            return np.asarray(np.sqrt((found**2).sum(1) / min(2, found.shape[1])))
        return found[:, 0] if found.shape[1] == 1 else found

    @property
    def _checks(self) -> dict[str, Any]:
        finite = "allow-nan" if self.missing else True
        return {"dtype": FLOATS, "force_writeable": True, "ensure_all_finite": finite}

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether entries may be missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.missing)
        return tags


@documented(Estimator, _Feedforward)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedClassifier(ClassifierMixin, Classifying, _Feedforward):  # type: ignore[misc]
    """A lifted feedforward network that predicts labels, with scikit-learn's conventions.

    min over W, b, X_1.. of cross-entropy + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l)
    + rho_l |W_l|_F^2; Lifted Neural Networks, eq. (10). Without settings the data choose the
    size of the network, too.

    Args:
        hidden_layer_sizes: units of every hidden layer. None leaves it to the evidence of the data
            where that can be had (`fit_by_evidence`: some thousands of samples, and no setting of
            a method, a penalty, interactions or a bound): one hidden layer beside a linear one, of
            4 units, of 8 where it rises or bends as asked, or of 16, 48 or 144 as long as log p(y)
            clearly grows. Elsewhere it has 100.
        activation: of the hidden layers, an `Activation`, torch's module, or a name such as "relu",
            "tanh", "gelu", "logistic" or "identity"; or one for each. None is "relu", and of a size
            by the evidence "tanh" where log p(y) is larger with it.
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

    def _told(self, y: Any, sample_weight: ArrayLike | None) -> tuple[Rows, int, Any]:
        labels = self._labels(y)
        self._take_classes(np.unique(labels), self.warm_start)
        target = numbered(labels, self.classes_)
        return target, self._outputs, self._weighted(labels, sample_weight)

    def predict_proba(self, X: Any) -> Rows:
        """Return probabilities, (samples, classes).

        By the feedforward rule; after a fit by the evidence averaged over the weights that the
        data leave open, see `Posterior.predict_proba`, but under `monotonic_cst`, which holds for
        these weights alone.
        """
        chances = None
        if has_evidence(model_of(self)) and self.monotonic_cst is None:
            with suppress(SolverError):  # one class is sure, and leaves nothing open
                chances = on_cpu(posterior(self).predict_proba(X))
        if chances is None:
            chances = self._forward(self._checked(X))
        return chances if chances.shape[1] > 1 else np.hstack([1 - chances, chances])

    def predict(self, X: Any) -> Rows:
        """Return the most probable labels, (samples,)."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def _loss(self) -> Loss:
        loss = CrossEntropy() if self.loss is None else loss_of(self.loss)
        if not loss.probabilistic:
            raise DataError(f"loss={self.loss!r} is of numbers, which LiftedRegressor predicts.")
        return loss

    @property
    def _outputs(self) -> int:
        if not isinstance(self._loss(), BinaryCrossEntropy):
            return len(self.classes_)
        if len(self.classes_) > 2:
            raise DataError(f"BinaryCrossEntropy is for two labels, and y has {self.classes_}.")
        return 1

    def _labels(self, y: Any) -> Rows:
        """Return labels (samples,)."""
        with refusals():
            check_classification_targets(y)
            if type_of_target(y).startswith("multi") and np.ndim(y) == 2 and np.shape(y)[1] > 1:
                raise DataError(
                    "y has several labels a sample: wrap the estimator in "
                    "sklearn.multioutput.MultiOutputClassifier."
                )
            found: Rows = column_or_1d(y, warn=True)
        return found


@documented(Estimator, _Feedforward)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedRegressor(RegressorMixin, _Feedforward):  # type: ignore[misc]
    """A lifted feedforward network that predicts numbers, with scikit-learn's conventions.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10).

    Args:
        hidden_layer_sizes: units of every hidden layer. None leaves it to the evidence of the data
            where that can be had (`fit_by_evidence`: some thousands of samples, and no setting of
            a method, a penalty, interactions or a bound): one hidden layer beside a linear one, of
            4 units, of 8 where it rises or bends as asked, or of 16, 48 or 144 as long as log p(y)
            clearly grows. Elsewhere it has 100.
        activation: of the hidden layers, an `Activation`, torch's module, or a name such as "relu",
            "tanh", "gelu", "logistic" or "identity"; or one for each. None is "relu", and of a size
            by the evidence "tanh" where log p(y) is larger with it, or "softplus" for `convex`.
        loss: of `liftednet.losses`, or its name, such as "huber" or "quantile:0.9"; None for
            SquaredError().
        convex: whether predictions are a convex function of X at every input, as `certify` proves;
            or of every feature 1 (convex in it while the others stand still), -1 (concave) or 0, or
            these numbers by name of a data frame's columns; with loss="poisson" of log rates. The
            activation is then "relu", "leaky_relu", "elu", "softplus" or "identity".
        noise: 0.0 for targets that are a smooth function of X, to as many digits as they have: two
            layers of units, as many as there are samples for, without a search. It leaves size and
            method to the model, as None does, which finds out about noise. "varying" where its size
            follows X: a second network answers the logarithm of its precision, by the evidence of
            squared residuals, and the first is fitted again to samples that weigh by it.
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
    convex: bool | Mapping[str, int] | Sequence[int] = False
    noise: float | str | None = None

    def _of_best_size(
        self, data: tuple[Rows, Rows, Any], outputs: int, fit: Callable[..., object]
    ) -> Lifted | None:
        model = super()._of_best_size(data, outputs, fit)
        if self.noise != "varying" or model is None or model.interrupted:
            return model
        X, y, given = data
        counts = np.ones(len(X)) if given is None else np.asarray(given, dtype=float)
        squares = on_cpu(posterior(model).residuals())
        squares = squares[:, 0] / np.average(squares[:, 0], weights=counts)
        squares = np.maximum(squares, _LEAST_SQUARE)
        # u with e^u / 2 r^2 - u / 2 is the logarithm of a precision: of Poisson by weights r^2 / 2.
        apart = LiftedRegressor(
            activation="tanh", loss=PoissonByWeights(), random_state=self.random_state
        )
        with warnings.catch_warnings():  # a noise that does not vary is well
            warnings.simplefilter("ignore", FitWarning)
            apart.fit(X, 1 / squares, sample_weight=counts * squares / 2)
        if apart.model_.interrupted:  # noise is one number then
            model.tell_interrupted()
            return model
        precision = apart.predict(X)
        level = float(np.average(precision, weights=counts))
        weights = counts * precision / level
        model = super()._of_best_size((X, y, weights), outputs, partial(fit, sample_weight=weights))
        assert model is not None  # it was none before
        known = replace(model._known, varying=(apart.model_, level), laplace=None)
        model._fit = known
        return model

    def _checked_pair(self, X: Any, y: Any, reset: bool = True) -> tuple[Rows, Any]:
        exact = is_number(self.noise) and self.noise == 0
        if not (self.noise in (None, "varying") or exact):
            raise DataError(
                'noise is None to find it, 0.0 of targets that have none, or "varying" where its '
                f"size follows X; got {self.noise!r}."
            )
        if self.noise is not None and not isinstance(self._loss(), SquaredError):
            given = f"noise={self.noise!r} is of squares, without loss="
            raise DataError(f"{given}; got {self._loss()!r}.")
        X, y = super()._checked_pair(X, y, reset)
        if self.noise == "varying" and (self.early_stopping or columns(y).shape[1] > 1):
            raise DataError('noise="varying" is for one output, and without early_stopping.')
        if exact:
            _, first, same = np.unique(X, axis=0, return_index=True, return_inverse=True)
            apart = np.abs(columns(y) - columns(y)[first[same.ravel()]]).max(1)
            if (apart > _ROUNDING * np.abs(y).max()).any():
                row = int(apart.argmax())
                raise DataError(
                    f"noise=0.0, but rows {first[same.ravel()[row]]} and {row} have the same X and "
                    f"targets that are {apart[row]:.3g} apart: leave noise=None."
                )
        return X, y

    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        if self.noise is not None:
            raise DataError(
                f"noise={self.noise!r} has size and method by squares of all samples: it goes "
                "without settings of these, other losses, constraints, missing=True, and very many "
                "columns."
            )
        return super()._model(outputs, settings)

    def _told(self, y: Any, sample_weight: ArrayLike | None) -> tuple[Rows, int, Any]:
        self._one, target = y.ndim == 1, columns(y)
        return target, target.shape[1], sample_weight

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return numbers by the feedforward rule, in the shape of y: (samples,[ outputs]).

        Args:
            X: (samples, features).
            return_std: whether to return their standard deviations, too, in the same shape and unit
                as y: of the noise and of what the data leave open together; `posterior` tells
                them apart.

        Raises:
            DataError: X cannot be used, or a row is so far away that its answer overflows.
            DeclarationError: return_std, and the loss is no likelihood.
            NotFittedError: nothing has been fitted, or return_std, as in `posterior`.
        """
        if not return_std:
            return self._shaped(self._forward(self._checked(X)))
        found = posterior(self).predict(X)
        return self._finite(found.mean, found.std)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Rows, Rows]:
        """Return the ends between which y lies with a probability, each in the shape of y.

        Args:
            X: (samples, features).
            level: the probability, of each number by itself.

        Raises:
            DataError: X or the level cannot be used, or a row is so far away that an end overflows.
            DeclarationError: the loss is no likelihood.
            NotFittedError: as in `posterior`.
        """
        return self._finite(*posterior(self).predict(X).interval(level))

    def _finite(self, *pair: torch.Tensor) -> tuple[Rows, Rows]:
        """Return two numbers of every answer in the shape of y, if both are finite."""
        finite = torch.stack(pair).isfinite().all(0).flatten(1).all(1)
        if not bool(finite.all()):
            row = int(finite.logical_not().nonzero()[0])
            raise DataError(
                f"row {row} of X, counted from 0, is so far from those of training that what is "
                "known of its answer overflows: leave it out."
            )
        low, high = (self._shaped(on_cpu(part)) for part in pair)
        return low, high

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
        with refusals():
            seed = int(check_random_state(random_state).randint(2**31))
        generator = torch.Generator().manual_seed(seed)
        return self._shaped(on_cpu(posterior(self).sample(X, n_samples, generator).movedim(0, -1)))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return R2 of the predictions, computed in float64, whatever the type of X and y."""
        from sklearn.metrics import r2_score  # whose import takes .1 s

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
