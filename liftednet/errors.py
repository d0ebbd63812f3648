"""Errors that say what was given, what is needed, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftednet.not_fitted import NotFittedError as NotFittedError

__all__ = [
    "DataError",
    "DeclarationError",
    "FitWarning",
    "LiftedError",
    "NotFittedError",
    "ProcessError",
    "SolverError",
]


class LiftedError(Exception):
    """Base of every error that liftednet raises on purpose.

    Example:
        >>> from liftednet import LiftedError
        >>> from liftednet.errors import DataError
        >>> issubclass(DataError, LiftedError)
        True
    """


class DataError(LiftedError, ValueError):
    """The arrays or numbers that were given cannot be used; nothing has been computed.

    Example:
        >>> from liftednet.errors import DataError
        >>> from liftednet.penalties import L1
        >>> try:
        ...     L1(-1.0)
        ... except DataError as error:
        ...     print(error)
        rho must be positive and finite, got -1.0.
    """


class DeclarationError(LiftedError, ValueError):
    """An activation, loss or penalty lacks or contradicts what is needed of it.

    Example:
        >>> from liftednet.errors import DeclarationError
        >>> from liftednet.activations import LeakyReLU
        >>> try:
        ...     LeakyReLU(-1.0)
        ... except DeclarationError as error:
        ...     print(error)
        LeakyReLU needs 0 < alpha <= 1, got alpha = -1.0; alpha = 0 is ReLU().
    """


class SolverError(LiftedError):
    """A solve stopped before it was done.

    Attributes:
        solution: the last good state that was reached, or None where there is none.

    Example:
        >>> from liftednet.errors import SolverError
        >>> SolverError("it stopped early", solution=1.5).solution
        1.5
    """

    def __init__(self, message: str, solution: Any = None) -> None:
        """Keep the last good state beside the message."""
        super().__init__(message)
        self.solution = solution


class ProcessError(LiftedError):
    """Another process of torch.distributed has ended, or does not answer.

    Example:
        >>> from liftednet import LiftedError
        >>> from liftednet.errors import ProcessError
        >>> issubclass(ProcessError, LiftedError)
        True
    """


class FitWarning(UserWarning):
    """A fit has ended without an error, and its result is of no use.

    Example:
        >>> import torch, warnings
        >>> from liftednet import FitWarning
        >>> from liftednet.models import LiftedMLP
        >>> with warnings.catch_warnings(record=True) as told:
        ...     model = LiftedMLP((2, 4, 2)).fit(torch.ones(40, 2), torch.tensor([0, 1] * 20))
        >>> any(issubclass(warning.category, FitWarning) for warning in told)
        True
    """


def __getattr__(name: str) -> Any:
    """Import `NotFittedError` when first asked for it: scikit-learn, whose it is, loads slowly."""
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from liftednet.not_fitted import NotFittedError

    return NotFittedError
