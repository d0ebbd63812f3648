"""A lifted recurrent network as scikit-learn's estimator, of sequences in three axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.multiclass import check_classification_targets

from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.samples import require_sample_weights
from liftednet.validation import model_of

from ..builders import LiftedRNN
from ..lifted import Lifted
from .base import Classifying, Constraints, Estimator, all_or_nothing, documented
from .input import FLOATS, Rows, numbered, numbers, plain, refusals, refuse_dates, refuse_unlabelled

__all__ = ["LiftedSequenceClassifier"]


@documented(Estimator)
@dataclass(eq=False, repr=False, kw_only=True)
class LiftedSequenceClassifier(ClassifierMixin, Classifying):  # type: ignore[misc]
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
        >>> LiftedSequenceClassifier((4,), max_iter=2, random_state=0).fit(X, y).predict(X).shape
        (50, 8)
    """

    hidden_layer_sizes: int | Sequence[int] = field(default=(50,), kw_only=False)
    activation: str | Activation | None = field(default=None, kw_only=False)
    class_weight: Mapping[Any, float] | str | None = None
    bidirectional: bool = False
    start: str | None = None

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        constraints: Constraints = (),
        confidence: float | None = None,
        held_out: float = 0.3,
        strict: bool = False,
    ) -> Self:
        """Fit the network.

        Args:
            X: (samples, steps, features).
            y: a label for every sequence, (samples,), or for every step, (samples, steps).
            sample_weight: (samples,), not negative; None for 1.
            lengths: (samples,) steps of each sequence; None: all have every step.
            constraints: of `liftednet.constraints`, as `LiftedClassifier.fit` takes them. Their
                rows are sequences, or where y has labels of steps all steps of the first sequence,
                then of the second; `Rising` and `Total` speak of the steps of each.
            confidence: with which rates shall hold on new sequences, which have one label each;
                it, `held_out` and `strict` as in `Lifted.fit`.
            held_out: the share of the sequences that is set aside for it.
            strict: whether there is no model where it is not shown.

        Raises:
            DataError: X, y, lengths or a setting cannot be used.
            SolverError: the training failed.
        """
        X, lengths = self._checked_sequences(X, lengths)
        labels = np.asarray(plain(y))
        if labels.ndim not in (1, 2) or labels.shape != X.shape[: labels.ndim]:
            raise DataError(
                f"y must have a label for each of {len(X)} sequences, or for each of their "
                f"{X.shape[1]} steps; got shape {labels.shape}."
            )
        self.n_features_in_ = X.shape[2]
        within = _within(lengths, *X.shape[:2])
        valid = within if labels.ndim == 2 else np.ones(labels.shape, dtype=bool)
        refuse_unlabelled(y if hasattr(y, "isna") else labels, valid)
        with refusals():
            check_classification_targets(labels[valid])
        self._take_classes(np.unique(labels[valid]), goes_on=self.warm_start)
        if labels.ndim == 2 and self.class_weight is not None:
            raise DataError(
                "class_weight counts sequences with one label each, and y has labels of steps: "
                "give sample_weight."
            )
        weights = self._weighted(labels, sample_weight)
        target = np.zeros(labels.shape, dtype=np.int64)
        target[valid] = numbered(labels[valid], self.classes_)
        return self._learn(
            X, target, len(self.classes_), weights, lengths=lengths,
            constraints=self._numbered(constraints), confidence=confidence, held_out=held_out,
            strict=strict,
        )  # fmt: skip

    def _held_at_best_size(self, *_: Any) -> None:
        """Return None: the evidence chooses no size of recurrent networks."""

    def predict_proba(self, X: Any, lengths: ArrayLike | None = None) -> Rows:
        """Return probabilities, (samples, classes), or (samples, steps, classes)."""
        model_of(self)
        X, lengths = self._checked_sequences(X, lengths)
        if X.shape[2] != self.n_features_in_:
            raise DataError(
                f"X has {X.shape[2]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return self._forward(X, lengths)

    def predict(self, X: Any, lengths: ArrayLike | None = None) -> Rows:
        """Return labels, (samples,), or (samples, steps) where every step has one."""
        best = self.predict_proba(X, lengths).argmax(-1)
        return np.asarray(self.classes_[best])

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> float:
        """Return the share of right labels; each step counts where every step has one.

        Raises:
            DataError: y has no label for each prediction, or weights are none.
        """
        predicted, labels = self.predict(X, lengths), np.asarray(plain(y))
        if labels.shape != predicted.shape:
            raise DataError(
                f"y must have a label for each prediction, {predicted.shape}; got {labels.shape}."
            )
        right, weights = predicted == labels, np.ones(len(labels))
        if sample_weight is not None:
            weights = numbers("weights", sample_weight)
            require_sample_weights(torch.from_numpy(weights), len(labels))
        if right.ndim == 2:
            weights = weights[:, None] * _within(lengths, *right.shape)
        return float(np.average(right, weights=weights))

    def _model(self, outputs: int, settings: Mapping[str, Any]) -> Lifted:
        given: dict[str, Any] = {**settings, "bidirectional": self.bidirectional}
        if self.start is not None:
            given["start"] = self.start
        return LiftedRNN(self.n_features_in_, self._hidden, outputs, self.activation, **given)

    def _checked_sequences(self, X: Any, lengths: Any) -> tuple[Rows, Rows | None]:
        if isinstance(X, list | tuple) and len({len(sequence) for sequence in X}) > 1:
            raise DataError(
                "sequences of different lengths are given as one array (samples, steps, features), "
                "padded at their ends, and as lengths=."
            )
        X, lengths = plain(X), None if lengths is None else np.asarray(plain(lengths))
        refuse_dates("X", X)
        with refusals(X=X):
            found: Rows = check_array(
                X, dtype=FLOATS, ensure_2d=False, allow_nd=True, force_writeable=True,
                ensure_all_finite=False, input_name="X",
            )  # fmt: skip
        if found.ndim != 3:
            raise DataError(
                f"X must be (samples, steps, features), got shape {found.shape}: write "
                "X[..., None] where each step is one number."
            )
        if lengths is not None:
            found = np.where(_within(lengths, *found.shape[:2])[..., None], found, 0)
        with refusals(X=found):
            assert_all_finite(found, input_name="X")
        return found, lengths

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that X has three axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def _within(lengths: ArrayLike | None, samples: int, steps: int) -> Rows:
    """Return which steps lie within their sequences, (samples, steps): what is beyond counts not.

    All do where there are no lengths, or such as the model refuses.
    """
    ends = np.full(samples, steps) if lengths is None else np.asarray(plain(lengths))
    if ends.shape != (samples,) or ends.dtype.kind not in "iuf":
        ends = np.full(samples, steps)
    return np.asarray(np.arange(steps) < ends[:, None])
