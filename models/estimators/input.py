"""What estimators take of a user: arrays and data frames, and what is refused of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from torch import Tensor

from liftednet.errors import DataError, LiftedError
from liftednet.validation import is_missing, is_number

Rows = NDArray[Any]
FLOATS = np.float64, np.float32
_TEXT = {
    "X": "pass a data frame for categories, in fit as in predict",
    "y": "a regression needs numbers, and labels are for LiftedClassifier",
    "weights": "give numbers",
}
_MISSING = {  # as files of versions to 1.2.5 have it, and words that pandas reads as missing
    "", "None", "<NA>", "NA", "N/A", "n/a", "nan", "NaN", "-nan", "-NaN", "null", "NULL", "#N/A",
    "#NA", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
}  # fmt: skip
_FEW_KINDS = 20  # of a column, which may have a row each


class DataTypeError(DataError, TypeError):
    """Data of a type that has no numbers."""


@contextmanager
def refusals(**given: Any) -> Iterator[None]:
    """Make what scikit-learn refuses the library's error as well, which says where it is.

    Args:
        **given: arrays and data frames by the names that scikit-learn gives them, or what
            returns one, called where something is refused.
    """
    try:
        yield
    except LiftedError:
        raise
    except TypeError as error:
        raise DataTypeError(str(error)) from error
    except ValueError as error:
        # What follows names other estimators that take NaN; these do, too.
        text, follows, _ = str(error).partition("does not accept missing values")
        text = text.splitlines()[0] if follows else text
        for name, values in given.items():
            values = values() if callable(values) else values
            if "could not convert string" in text and (place := _first(values, text=True)):
                raise DataError(f"{name} holds text, first in {place}: {_TEXT[name]}.") from error
            if text.startswith(f"Input {name} contains") and (place := _first(values)):
                text = f"{text} The first is in {place}."
        if follows:
            text = f"{text} Say missing=True where it is what was not seen."
        raise DataError(text) from error


def _first(values: Any, text: bool = False) -> str:
    """Return where the first entry is that is not finite, or is text, and what it is."""
    names, start = list(getattr(values, "columns", ())), 0
    entries = np.atleast_1d(np.asarray(values))
    if entries.dtype.kind == "f":  # one row of many numbers, in place of an object for each
        start = int((~np.isfinite(entries)).reshape(len(entries), -1).any(1).argmax())
        entries = entries[start : start + 1]
    elif entries.dtype.kind != "O":
        entries = np.atleast_1d(np.asarray(values, dtype=object))
    for (row, *column), entry in np.ndenumerate(entries):
        try:
            bad = not math.isfinite(float(entry)) and not text
        except (TypeError, ValueError):
            bad = isinstance(entry, str) or not text
        if bad:
            of = "".join(f", column {names[x] if names else x}" for x in column[:1])
            return f"row {start + row}{of} ({entry!s:.40})"
    return ""


@dataclass(frozen=True)
class Kinds:
    """Columns of a data frame that name kinds, as numbers for a network.

    Of two kinds one column of -1/2 and 1/2, of more a column of zeros and ones for each; a kind
    that training has not seen is 0 in all of them, the middle of what weights are pulled to.
    Missing entries are a kind of their own, whatever says that they are missing (a word as "NA",
    which pandas reads as missing, unless both are there), and equal numbers of several types are
    one kind: a column of 1 and 2 becomes 1.0 and 2.0 where one is missing.

    Attributes:
        names: of all columns, in their order.
        seen: the kinds of each column that has some, sorted, as text.
    """

    names: tuple[Any, ...]
    seen: Mapping[Any, Rows]

    @classmethod
    def of(cls, X: Any) -> Kinds | None:
        """Return those of categories and strings of a data frame, None where it has none.

        Raises:
            DataError: a column has a kind for nearly every row, as names and numbers of rows have,
                several in an entry, or numbers beside text, or the name of another one.
        """
        if not hasattr(getattr(X, "dtypes", None), "items"):
            return None
        if (again := X.columns.duplicated()).any():
            raise DataError(f"X has two columns of the name {X.columns[again][0]!r}: rename one.")
        named = [name for name, kind in X.dtypes.items() if _names_kinds(name, X[name], str(kind))]
        seen = {name: np.unique(_words(X[name])[0]) for name in named}
        for name, kinds in seen.items():
            if len(kinds) > max(_FEW_KINDS, len(X) / 2):
                raise DataError(
                    f"column {name!r} of X has {len(kinds)} kinds in {len(X)} rows, from which "
                    "nothing is learned of other rows: leave it out, give what they have in "
                    "common, or make it numbers (pandas.to_numeric, or days by to_datetime)."
                )
        return cls(tuple(X.columns), seen) if seen else None

    @property
    def codes(self) -> list[Any]:
        """The columns whose kinds are not all numbers as Python prints them: "01" is not "1"."""
        return [name for name, kinds in self.seen.items() if not all(map(_is_printed, kinds))]

    @property
    def groups(self) -> dict[Any, list[int]]:
        """The places of every column of the frame among those of the network."""
        found, place = {}, 0
        for name in self.names:
            kinds = len(self.seen.get(name, "1"))
            width = 1 if kinds == 2 else kinds
            found[name] = list(range(place, place + width))
            place += width
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns of the network: that of a kind, of two kinds the second one's."""
        found = list[str]()
        for name, places in self.groups.items():
            kinds = self.seen.get(name, ())[-len(places) :]
            found += [f"{name}={kind}" for kind in kinds] or [str(name)]
        return tuple(found)

    def encoded(self, X: Any) -> Rows:
        """Return the columns of the network, (samples, columns), of a frame with these names.

        Raises:
            DataError: it is no data frame.
        """
        if not hasattr(X, "dtypes") or not hasattr(X, "columns"):
            kinds = ", ".join(map(repr, self.seen))
            raise DataError(f"columns {kinds} name kinds: give a data frame, as fit was given.")
        return np.column_stack([self._column(name, X[name]) for name in self.names])

    def _column(self, name: Any, values: Any) -> Rows:
        if name not in self.seen:
            return np.asarray(values, dtype=np.float64)[:, None]
        (words, places, texts), kinds = _words(values), self.seen[name]
        known = {str(kind): n for n, kind in enumerate(kinds)}
        equals = list(map(_number, kinds))
        equal = {x: n for n, x in enumerate(equals) if x == kinds[n] or equals.count(x) == 1}
        codes = name in self.codes  # of which a text is not equal to its number
        texts = [text and word not in _MISSING for word, text in zip(words, texts, strict=True)]
        found = [
            known.get(word, -1 if codes and text else equal.get(_number(word), -1))
            for word, text in zip(words, texts, strict=True)
        ]
        numbers = np.array(found)
        here: Rows = (numbers[places][:, None] == np.arange(len(kinds))).astype(np.float64)
        return (here[:, 1:] - here[:, :1]) / 2 if here.shape[1] == 2 else here


def _names_kinds(name: Any, column: Any, kind: str) -> bool:
    """Whether a column of a frame has categories or strings.

    Raises:
        DataError: an entry is a list or another container, or numbers stand beside text, such as
            "?" for a missing one.
    """
    if kind not in ("category", "object", "str", "string"):
        return False
    entries = column.astype(object)
    try:
        found = entries.dropna().unique()
    except TypeError:  # lists have no hash
        found = list(entries)
    for entry in found:
        if isinstance(entry, list | tuple | dict | set | np.ndarray):
            row = next(row for row, other in enumerate(entries) if other is entry)
            raise DataError(
                f"column {name!r} of X has a {type(entry).__name__} in row {row}: give each of its "
                "entries a column of its own."
            )
    words = [entry for entry in found if isinstance(entry, str)]
    if words and any(map(is_number, found)):
        row = int((entries == words[0]).to_numpy().argmax())
        raise DataError(
            f"column {name!r} of X has numbers beside text, {words[0]!r} in row {row} first: make "
            'it numbers, as by pandas.to_numeric(column, errors="coerce") with missing=True, or '
            "text."
        )
    return kind != "object" or bool(words)


def _words(column: Any) -> tuple[Rows, Rows, list[bool]]:
    """Return the kinds of a column as text, the number of every row's, and which were text."""
    places, found = column.astype(object).factorize()  # -1 where an entry is missing
    missing = bool((places < 0).any())
    words = [*map(str, found), *["nan"] * missing]
    return (
        np.array(words, dtype=str),
        places,
        [*(isinstance(x, str) for x in found), *[False] * missing],
    )


def _is_printed(kind: str) -> bool:
    """Say whether a kind is a number as Python prints it, or missing: no code with zeros before."""
    for read in (int, float):
        with suppress(ValueError):
            if str(read(kind)) == kind:
                return True
    return kind in ("True", "False", *_MISSING)


def _number(kind: str) -> str:
    """Return what a kind has in common with those that are equal, of other types or spellings."""
    if kind in _MISSING:
        return "nan"
    kind = {"True": "1", "False": "0"}.get(kind, kind)
    with suppress(ValueError):  # digits beyond those of a float
        return str(int(kind))
    with suppress(ValueError):
        return str(int(number)) if (number := float(kind)).is_integer() else kind
    return kind


def refuse_dates(name: str, values: Any) -> None:
    """Raise `DataTypeError` where an array, or columns of a frame, hold dates.

    scikit-learn takes them for numbers of their unit, and a missing one for the least of these.
    """
    kinds: Any = getattr(values, "dtypes", None)
    if hasattr(kinds, "items"):
        words = [
            repr(column) for column, kind in kinds.items()
            if getattr(kind, "kind", "O") in "mM" or str(kind).startswith("period")
            or (str(kind) == "object" and any(map(_is_date, values[column])))
        ]  # fmt: skip
        if words:
            raise DataTypeError(
                f"columns of {name} that hold dates: {', '.join(words)}. Leave them out, or give "
                "numbers, as (day - first_day).dt.days."
            )
    elif getattr(kind := getattr(values, "dtype", None), "kind", "f") in "mM":
        raise DataTypeError(
            f"{name} holds dates ({kind}); give numbers, such as days since a first."
        )


def _is_date(entry: Any) -> bool:
    return isinstance(entry, date) and not is_missing(entry)


def refuse_unlabelled(y: Any, within: Rows | bool = True) -> None:
    """Raise `DataError` where a label is missing.

    Args:
        y: (samples,) or (samples, steps).
        within: of the same shape, where there are labels.
    """
    if hasattr(y, "isna"):
        missing = np.asarray(y.isna())
    else:
        with refusals():
            labels = np.asarray(y)
        if labels.dtype.kind != "O" or not labels.ndim:
            return
        missing = np.vectorize(is_missing, otypes=[bool])(labels)
    if (missing := missing & within).any():
        row = int(np.argwhere(missing)[0, 0])
        raise DataError(f"y has no label in row {row}, counted from 0.")


def plain(values: Any) -> Any:
    """Return a tensor as an array, whatever its device and gradients; others as they are.

    Floats become float64, in which they are fitted, as `check_array` of tensors has it.
    """
    if not isinstance(values, Tensor):
        return values
    found = values.detach().cpu()
    return (found.double() if found.is_floating_point() else found).numpy()


def numbers(name: str, values: ArrayLike) -> Rows:
    """Return an array of finite numbers, float64.

    Raises:
        DataError: it is none.
    """
    with refusals(**{name: values}):
        found: Rows = check_array(
            np.asarray(plain(values)), dtype=np.float64, ensure_2d=False, force_writeable=True,
            input_name=name,
        )  # fmt: skip
    return found


def by_name(marks: Any) -> Any:
    """Return what a series of pandas has by the names of columns; others as they are."""
    return marks.to_dict() if hasattr(marks, "to_dict") else marks


def columns(y: Rows) -> Rows:
    """Return targets as (samples, outputs), float64.

    Raises:
        DataError: they are no numbers.
    """
    with refusals(y=y):
        found: Rows = y.astype(np.float64).reshape(len(y), -1)
    return found


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
