"""Errors that say what was given, what is needed, and where."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")

_SIGNS = ("allocate memory", "out of memory", "Storage size calculation overflowed")  # torch's

__all__ = [
    "DataError",
    "DeclarationError",
    "FitWarning",
    "LiftedError",
    "NotFittedError",
    "OutOfMemoryError",
    "ProcessError",
    "SolverError",
]


class LiftedError(Exception):
    """Base of every error that liftednet raises on purpose.

    Example:
        >>> from liftednet import DataError, LiftedError
        >>> issubclass(DataError, LiftedError)
        True
    """


class DataError(LiftedError, ValueError):
    """The arrays or numbers that were given cannot be used; nothing has been computed.

    Example:
        >>> from liftednet import DataError
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
        >>> from liftednet import DeclarationError
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
        >>> from liftednet import SolverError
        >>> SolverError("it stopped early", solution=1.5).solution
        1.5
    """

    def __init__(self, message: str, solution: Any = None) -> None:
        """Keep the last good state beside the message."""
        super().__init__(message)
        self.solution = solution


class OutOfMemoryError(LiftedError, MemoryError):
    """There was less memory than was asked for; the message says how much and by what.

    Example:
        >>> from liftednet import OutOfMemoryError
        >>> issubclass(OutOfMemoryError, MemoryError)
        True
    """


class ProcessError(LiftedError):
    """Another process of torch.distributed has ended, or does not answer.

    Example:
        >>> from liftednet import LiftedError, ProcessError
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


if TYPE_CHECKING:

    class NotFittedError(LiftedError, ValueError, AttributeError):
        """A model was asked for what only a fitted one has."""


def __getattr__(name: str) -> Any:
    """Make `NotFittedError` when it is first asked for: scikit-learn, whose it is, loads slowly."""
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError as InSklearn

    known = {"__module__": __name__, "__doc__": _NOT_FITTED}
    made = globals()[name] = type(name, (LiftedError, InSklearn), known)
    return made


_NOT_FITTED = """A model was asked for what only a fitted one has.

    Example:
        >>> from liftednet import NotFittedError
        >>> from liftednet.models import LiftedMLP
        >>> try:
        ...     LiftedMLP((2, 3, 2)).predict([[0.0, 0.0]])
        ... except NotFittedError:
        ...     print("fit it first")
        fit it first
    """


def telling_of_memory(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Return a function that raises `OutOfMemoryError` where memory runs out within.

    torch raises a `RuntimeError` of its own for the CPU, another for GPUs, numpy a `MemoryError`.
    """

    @wraps(function)
    def told(*args: Given.args, **named: Given.kwargs) -> Found:
        try:
            return function(*args, **named)
        except OutOfMemoryError:
            raise
        except (MemoryError, RuntimeError) as error:
            import torch  # not above: errors are imported before a command is known

            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
                sign in str(error) for sign in _SIGNS
            ):
                raise
            arrays = [_shape(x) for x in (*args, *named.values())]
            given = ", ".join(shape for shape in arrays if shape)
            raise OutOfMemoryError(
                f"memory ran out in {function.__qualname__}({given}): {_reason(error)}. Give fewer "
                "samples at a time, as minibatches do, or make layers smaller."
            ) from error

    return told


def _shape(value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"array of shape {tuple(shape)}" if isinstance(shape, tuple) else ""


def _reason(error: BaseException) -> str:
    """Return what was asked for, which torch tells behind the place in its source."""
    lines = str(error).splitlines() or ["there is no more"]
    return lines[0].rpartition("Allocator: ")[2].rstrip(". ")
