"""Tables of the user's: the columns of csv and parquet files, the arrays of npz files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftednet.data.archives import Arrays, read_npz
from liftednet.errors import DataError, LiftedError

Values = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """What a file holds.

    Attributes:
        source: the file.
        columns: (samples,) by name, or the arrays of an npz file.
    """

    source: Path
    columns: Mapping[str, Values]

    def inputs(
        self,
        names: Sequence[str] | None = None,
        without: Sequence[str] = (),
        missing: bool = False,
    ) -> tuple[Values, list[str]]:
        """Return X in float64, (samples, features), and the names of its columns.

        Args:
            names: of the columns; None for all but some, or for the array X of an npz file, whose
                columns have no names.
            without: columns that are no inputs.
            missing: whether a value that is not there is NaN, and no error.

        Raises:
            DataError: columns are missing, or are no real numbers.
        """
        if names is None and self.source.suffix == ".npz":
            return _real(f"X of {self.source}", self._array("X"), missing).astype(np.float64), []
        found = [name for name in self.columns if name not in without] if names is None else names
        if not found:
            raise DataError(f"{self.source} has no columns beside {', '.join(without)}.")
        if names is None and "" in found:
            raise DataError(
                f"{self.source} has a column without a name, as pandas writes the numbers of rows: "
                "leave it out by index=False, give it a name, or choose columns."
            )
        parts = [
            _real(f"the column {x!r} of {self.source}", self._array(x), missing) for x in found
        ]
        if len({part.shape[:1] for part in parts}) > 1:
            shapes = ", ".join(str(part.shape) for part in parts)
            raise DataError(
                f"{', '.join(found)} of {self.source} have other numbers of samples: {shapes}."
            )
        return np.column_stack(parts).astype(np.float64), list(found)

    def targets(self, names: Sequence[str]) -> Values:
        """Return y, (samples,) of one column, or real numbers (samples, outputs) of several.

        Raises:
            DataError: columns are missing, or several are no real numbers.
        """
        if len(names) == 1:
            found = self._array(names[0])
            if found.dtype.kind not in "biufUS":
                raise DataError(f"{names[0]!r} of {self.source} must be labels or real numbers.")
            labels: Values = found.astype(str) if found.dtype.kind == "S" else found
            if labels.dtype.kind == "U" and (missing := np.flatnonzero(labels == "")).size:
                raise DataError(
                    f"{names[0]!r} of {self.source} has no value in row {missing[0] + 1}: fill it "
                    "in, or leave the row out."
                )
            return labels
        return self.inputs(names)[0]

    def _array(self, name: str) -> Values:
        if name not in self.columns:
            raise DataError(
                f"{self.source} has no column {name!r} (--target, --columns); it has "
                f"{', '.join(self.columns) or 'none'}."
            )
        return self.columns[name]


def read_table(path: Path) -> Table:
    """Return what a csv, tsv, parquet or npz file holds.

    A csv file begins with the names of its columns, with commas between them, or semicolons or
    tabs where that line has no comma. Columns of integers and of real numbers are read as such,
    others as text.

    Raises:
        DataError: the file cannot be read, or is of another kind.
        LiftedError: nothing is installed that reads parquet files.
    """
    if path.suffix not in _READERS:
        raise DataError(f"{path} must be one of {', '.join(f'a {x} file' for x in _READERS)}.")
    return Table(path, _READERS[path.suffix](path))


def _read_csv(path: Path) -> Arrays:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            marks = "\t" if path.suffix == ".tsv" else ",;\t"
            separator = next((mark for mark in marks if mark in first), marks[0])
            file.seek(0)
            lines = [line for line in csv.reader(file, delimiter=separator, strict=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if len(lines) < 2:
        raise DataError(f"{path} needs a line of names and lines of values; it has {len(lines)}.")
    names = lines[0]
    if len(set(names)) < len(names):
        raise DataError(f"{path} names a column twice in its first line: {', '.join(names)}.")
    for number, line in enumerate(lines, start=1):
        if len(line) != len(names):
            raise DataError(
                f"line {number} of {path} has {len(line)} values, and the first line has "
                f"{len(names)} names."
            )
    columns = zip(*lines[1:], strict=True)
    return {name: _typed(values) for name, values in zip(names, columns, strict=True)}


def _typed(values: Sequence[str]) -> Values:
    for kind in (np.int64, np.float64):
        try:
            return np.array(values).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(values)


def _read_parquet(path: Path) -> Arrays:
    if not find_spec("polars"):
        raise LiftedError("a parquet file needs polars: run `pip install 'liftednet[tables]'`.")
    import polars

    try:
        frame = polars.read_parquet(path)
        return {str(name): _plain(frame[name].to_numpy()) for name in frame.columns}
    except Exception as error:  # whatever the reader raises, of any of its own classes
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}.") from error


def _plain(values: Values) -> Values:
    """Return text as text: frames have it as objects."""
    text = values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    return values.astype(str) if text else values


def _real(name: str, values: Values, missing: bool) -> Values:
    if values.dtype.kind in "biuf":
        return values
    if missing and values.dtype.kind in "US":
        values = np.where(np.char.strip(values) == "", "nan", values)
    for row, value in enumerate(map(str, values.flat), start=1):
        try:
            float(value)
        except ValueError as error:
            held = f"has {value!r}: make numbers of it, or name other columns (--columns)"
            if not value.strip():
                held = "has none: fill it in, leave the row out, or say missing=True (at the "
                held += "command line --set missing=true)"
            raise DataError(f"{name} must hold real numbers, and row {row} {held}.") from error
    if missing:
        return values.astype(np.float64)
    raise DataError(f"{name} must hold real numbers, got {values.dtype}.")


_READERS: dict[str, Callable[[Path], Arrays]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".npz": read_npz,
}
