"""What estimators take of a user: arrays and data frames, and what is refused of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

from liftednet.errors import DataError, LiftedError

Rows = NDArray[Any]
FLOATS = np.float64, np.float32


class DataTypeError(DataError, TypeError):
    """Data of a type that has no numbers."""


@contextmanager
def refusals() -> Iterator[None]:
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


def refuse_dates(X: Any, y: Any, regression: bool) -> None:
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


def numbers(name: str, values: ArrayLike) -> Rows:
    """Return an array of finite numbers, float64.

    Raises:
        DataError: it is none.
    """
    with refusals():
        found: Rows = check_array(
            np.asarray(values), dtype=np.float64, ensure_2d=False, force_writeable=True,
            input_name=name,
        )  # fmt: skip
    return found


def columns(y: Rows) -> Rows:
    """Return targets as (samples, outputs), float64.

    Raises:
        DataError: they are no numbers.
    """
    try:
        return y.astype(np.float64).reshape(len(y), -1)
    except (TypeError, ValueError) as error:
        raise DataError(f"a regression needs numbers as y, got {y.dtype}: {error}.") from error


def numbered(labels: Rows, classes: Rows) -> Rows:
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
