"""The one error that is scikit-learn's, too, in a module of its own: scikit-learn loads slowly."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as NotFittedInSklearn

from liftednet.errors import LiftedError


class NotFittedError(LiftedError, NotFittedInSklearn):  # type: ignore[misc]
    """A model was asked for what only a fitted one has."""
