"""The error that is scikit-learn's, too; `liftednet.errors` has it by name."""

from sklearn.exceptions import NotFittedError as InSklearn

from liftednet.errors import LiftedError


class NotFittedError(LiftedError, InSklearn):  # type: ignore[misc]  # that one is untyped
    """A model was asked for what only a fitted one has.

    Example:
        >>> from liftednet.errors import NotFittedError
        >>> from liftednet.models import LiftedMLP
        >>> try:
        ...     LiftedMLP((2, 3, 2)).predict([[0.0, 0.0]])
        ... except NotFittedError:
        ...     print("fit it first")
        fit it first
    """

    __module__ = "liftednet.errors"
