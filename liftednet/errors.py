"""Errors that say what was given, what is needed, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftednet.not_fitted import NotFittedError as NotFittedError


class LiftedError(Exception):
    """Base of every error that liftednet raises on purpose."""


class DataError(LiftedError, ValueError):
    """The arrays or numbers that were given cannot be used; nothing has been computed."""


class DeclarationError(LiftedError):
    """An activation, loss or penalty lacks or contradicts what is needed of it."""


class SolverError(LiftedError):
    """A solve stopped before it was done.

    Attributes:
        solution: the last good state that was reached, or None where there is none.
    """

    def __init__(self, message: str, solution: Any = None) -> None:
        """Keep the last good state beside the message."""
        super().__init__(message)
        self.solution = solution


class FitWarning(UserWarning):
    """A fit has ended without an error, and its result is of no use."""


def __getattr__(name: str) -> Any:
    """Import `NotFittedError`, and scikit-learn with it, when it is first asked for."""
    if name == "NotFittedError":
        from liftednet.not_fitted import NotFittedError

        return NotFittedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
