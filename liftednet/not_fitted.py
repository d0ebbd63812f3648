"""The one error that is scikit-learn's, too, in a module of its own: scikit-learn loads slowly."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as NotFittedInSklearn

from liftednet.errors import LiftedError


class NotFittedError(LiftedError, NotFittedInSklearn):  # type: ignore[misc]
    """A model was asked for what only a fitted one has.

    Example:
        >>> from liftednet import NotFittedError
        >>> from liftednet.models import LiftedMLP
        >>> try:
        ...     LiftedMLP((2, 3, 2)).predict([[0.0, 0.0]])
        ... except NotFittedError:
        ...     print("fit it first")
        fit it first
    """
