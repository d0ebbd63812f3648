"""Estimators with scikit-learn's conventions: settings kept as given, arrays in, arrays out."""

from .feedforward import LiftedClassifier as LiftedClassifier
from .feedforward import LiftedRegressor as LiftedRegressor
from .sequences import LiftedSequenceClassifier as LiftedSequenceClassifier

__all__ = ["LiftedClassifier", "LiftedRegressor", "LiftedSequenceClassifier"]
