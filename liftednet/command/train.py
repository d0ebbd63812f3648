"""`liftednet train`, `predict` and `evaluate`: an estimator, its options, and a user's tables."""

from __future__ import annotations

import ast
import csv
import inspect
import operator
import re
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import typer
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.model_selection import train_test_split

from liftednet import processes, storage
from liftednet.errors import DataError, LiftedError
from liftednet.models.estimators import LiftedClassifier, LiftedRegressor
from liftednet.models.estimators.base import Estimator
from liftednet.models.estimators.input import numbers
from liftednet.models.storage import load, parts, save
from liftednet.models.trace import Ending
from liftednet.names import loss_of
from liftednet.validation import require_seed, require_share

Options = dict[str, Any]


def options_of(kind: type, texts: Sequence[str]) -> Options:
    """Return the options that `name=value` give an estimator.

    Values are written as in Python: numbers, True, None, "text", lists, and parts of the library
    such as L1(0.1) + Nonnegative(); a word that is nothing of these is text.

    Args:
        kind: of the estimator.
        texts: of all options.

    Raises:
        DataError: there is no such option, or it is given twice, or its value cannot be made.

    Example:
        >>> from liftednet import LiftedRegressor
        >>> options_of(LiftedRegressor, ["max_iter=5", "penalty=L1(0.1)", "device=cpu"])
        {'max_iter': 5, 'penalty': L1(rho=0.1), 'device': 'cpu'}
    """
    known, found = list(inspect.signature(kind).parameters), Options()
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise DataError(f"--set takes name=value, as in max_iter=100; got {text!r}.")
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}."
            raise DataError(f"there is no option {name!r} of {kind.__name__}: {hint}")
        if name in found:
            raise DataError(f"the option {name} is given twice.")
        found[name] = value_of(text, value)
    return found


def value_of(text: str, value: str) -> Any:
    """Return what a value is, as Python writes it; what it does not write so is text.

    Raises:
        DataError: it names a part of the library that there is not, or cannot be made.
    """
    plain = {"true": "True", "false": "False", "none": "None"}.get(value, value)
    try:
        tree = ast.parse(plain, mode="eval").body
        return _made(tree)
    except (SyntaxError, _PlainTextError) as error:
        if value.startswith(("{", "[", "(")):
            raise DataError(
                f"{text!r} cannot be read: inside brackets texts stand between quotes, as in "
                "--set 'convex={\"age\": 1}'."
            ) from error
        return value
    except LiftedError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"{text!r} cannot be made: {error}.") from error


class _PlainTextError(Exception):
    """What is written is no value of Python."""


def _made(tree: ast.expr) -> Any:
    match tree:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=named):
            if name not in (known := parts()):
                near = get_close_matches(name, known, 3)
                raise DataError(f"there is no {name}; there are {', '.join(near or known)}.")
            options = {x.arg: _made(x.value) for x in named if x.arg is not None}
            return known[name](*map(_made, args), **options)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return operator.add(_made(left), _made(right))
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return [_made(entry) for entry in entries]
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            names = [_made(key) for key in keys if key is not None]
            return dict(zip(names, map(_made, values), strict=True))
    try:
        return ast.literal_eval(tree)
    except ValueError as error:
        raise _PlainTextError from error


INTERRUPTED = 130  # as shells count it: 128 and the number of the signal
_KINDS = 20  # of integers that are labels, if nobody says otherwise
_WITH_COMMAS = r"\s*[+-]?\d+(,\d+)*(\.\d+)?\s*"


def read_table(path: Path, texts: Sequence[Any] = ()) -> pd.DataFrame:
    """Return what a csv or tsv file holds, whose first line has the names of its columns.

    Between values stand commas, or semicolons or tabs where that line has no comma outside of
    quotes.

    Args:
        path: of the file.
        texts: columns that are text, whatever stands there.

    Raises:
        DataError: the file cannot be read, is of another kind, has a column without a name or two
            of one name, rows that are longer than its first line, or numbers with commas.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise DataError(f"{path} must be a csv or a tsv file.")
    try:
        marks = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = (line for line in file if line.strip())
            first = next(lines, "")
            plain = re.sub('"[^"]*"?', "", first)
            mark = next((mark for mark in marks if mark in plain), marks[0])
            names = next(csv.reader(chain([first], lines), delimiter=mark), [])
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            told: Options = {
                "sep": mark, "encoding": "utf-8-sig", "index_col": False, "low_memory": False,
            }  # fmt: skip
            frame = pd.read_csv(path, **told)
            if words := [name for name in frame if name in texts]:  # among which NA is a word
                told |= {"usecols": words, "dtype": str, "keep_default_na": False}
                frame[words] = pd.read_csv(path, na_values=[""], **told)
    except pd.errors.ParserWarning:
        raise DataError(
            f"{path} has {len(names)} names in its first line, and rows of more values: name every "
            "column, and end no row with a separator."
        ) from None
    except (OSError, ValueError) as error:  # pandas' own errors are of the latter
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error
    if not len(frame):
        raise DataError(f"{path} has a first line of names, and no rows.")
    if nameless := [name for name in frame if str(name).startswith("Unnamed: ")]:
        raise DataError(
            f"{path} has a column without a name ({nameless[0]}), as pandas writes the numbers of "
            "rows: leave it out by index=False, or give it a name."
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} has two columns of the name {twice[0]!r}: name one otherwise.")
    for name in frame.select_dtypes(exclude="number").columns.difference(texts):
        entries = frame[name].dropna().astype(str)
        commas = entries[entries.str.contains(",")]
        if len(commas) and entries.str.fullmatch(_WITH_COMMAS).all():
            raise DataError(
                f"{path} has numbers with commas in the column {name!r}, such as "
                f"{commas.iloc[0]!r}: write 1.5 in place of 1,5, and 1000 in place of 1,000."
            )
    return frame


def columns_of(frame: pd.DataFrame, names: list[str], path: Path) -> pd.DataFrame:
    """Return some columns.

    Raises:
        DataError: there is none of a name, or one is named twice.
    """
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"the column {twice[0]!r} is named twice.")
    if missing := [name for name in names if name not in frame]:
        raise DataError(
            f"{path} has no column {missing[0]!r}; it has {', '.join(map(str, frame))}."
        )
    return frame[names]


def require_place(path: Path, *others: Path | str | None) -> None:
    """Try whether a file can be written, before there is something to write.

    Args:
        path: of the file.
        others: files that the command reads or writes, too.

    Raises:
        DataError: its folder does not exist or cannot be written to, it is a folder or a device
            itself, or one of the others.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file in it.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be written: it is there, and is no file.")
    if any(path.resolve() == Path(other).resolve() for other in others if other is not None):
        raise DataError(f"{path} has another use in this command, and would be lost: name another.")
    try:
        with TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}: {path.parent}.") from error


def run_train(
    data: Path, target: list[str], columns: str | None, loss: str | None, options: Sequence[str],
    held_out: float, seed: int, output: Path,
) -> None:  # fmt: skip
    """Train, save the estimator, and print how good it is.

    Args:
        data: the table.
        target: names of the columns of targets.
        columns: names of those of the inputs; None for all others.
        loss: its name; None for that of what the targets are.
        options: of the estimator, as `options_of` takes them.
        held_out: the share of the rows that is kept to test.
        seed: of the weights and the split.
        output: where the model is saved.

    Raises:
        LiftedError: the data, a name or a number cannot be used; nothing has been trained.
        SolverError: the training failed.
        typer.Exit: it was interrupted; what has been done is saved, if it is an epoch at least.
    """
    require_place(output, data)
    require_share("--held-out", held_out)
    require_seed(seed)
    frame = read_table(data)
    y = columns_of(frame, target, data)
    others = [name for name in frame if name not in target]
    chosen = others if columns is None else _names(columns, others)
    if both := [name for name in chosen if name in target]:
        raise DataError(f"{both[0]!r} is the target, and no input: leave it out of --columns.")
    if not chosen:
        raise DataError(f"no column of {data} is an input: it takes one beside the target.")
    X = columns_of(frame, chosen, data)
    _warn_of_numbers(X)
    labelled = _is_labels(y) if loss is None else loss_of(loss).probabilistic
    if labelled and y.dtypes.map(pd.api.types.is_integer_dtype).all():
        spelled = columns_of(read_table(data, target), target, data)
        y = y if spelled.equals(y.astype(str)) else spelled  # as 01 is
    kind: Any = LiftedClassifier if labelled else LiftedRegressor
    given = options_of(kind, options)
    told: dict[str, Any] = {"random_state": seed, "verbose": True} | (
        {} if loss is None else {"loss": loss}
    )
    estimator = kind(**told | given)
    if labelled and len(target) == 1 and (alone := y.value_counts()).min() < 2:
        raise DataError(
            f"{', '.join(target)} has the label {alone.idxmin()[0]} in one row alone, and "
            "training and test need one each: leave it out, or name a --loss of numbers."
        )
    targets = y.iloc[:, 0] if len(target) == 1 else y
    estimator._checked_pair(X, targets)  # which names rows of the file, and fit shuffled ones
    try:
        parts = train_test_split(
            X, targets, test_size=held_out, random_state=seed, stratify=y if labelled else None
        )
    except ValueError as error:
        reason = str(error).partition(" Adjust any")[0]  # of what no option is called
        raise DataError(f"{len(frame)} rows cannot be split: {reason}") from error
    x_train, x_test, y_train, y_test = parts
    typer.echo(f"{kind.__name__}, {len(x_train)} rows of {len(chosen)} columns")
    estimator.fit(x_train, y_train)
    trace = estimator.model_.trace
    interrupted = trace.ending is Ending.INTERRUPTED
    if interrupted and not trace.n_iter:
        typer.echo("interrupted: nothing is saved")
        raise typer.Exit(INTERRUPTED)
    save(estimator, output, {"target": target, "trained": f"{data}, {len(x_train)} rows"})
    if interrupted:
        typer.echo(f"interrupted: the model of then is saved to {output}")
        raise typer.Exit(INTERRUPTED)
    typer.echo(f"saved to {output}")
    for name, x, known in (("training", x_train, y_train), ("test", x_test, y_test)):
        typer.echo(f"{name} {score(known, estimator.predict(x), labelled)}")


def _is_labels(y: pd.DataFrame) -> bool:
    """Say whether targets are labels: words, or integers of few kinds."""
    if y.shape[1] > 1:
        return False
    values = y.iloc[:, 0]
    if not pd.api.types.is_numeric_dtype(values):
        words = _words(values)
        if values.nunique() > _KINDS and 2 * len(words) < len(values):
            raise DataError(
                f"{values.name!r} has numbers beside text, {words.iloc[0]!r} in row "
                f"{words.index[0]} first: leave these rows out, or name a --loss of labels."
            )
        return True
    return not pd.api.types.is_float_dtype(values) and values.nunique() <= _KINDS


def _words(values: pd.Series) -> pd.Series:
    """Return the entries that are no numbers, nor missing."""
    return values[pd.to_numeric(values, errors="coerce").isna() & values.notna()]


def _warn_of_numbers(X: pd.DataFrame) -> None:
    """Say which columns some words among numbers turn into kinds."""
    for name in X.select_dtypes(exclude=["number", "bool"]):
        words = _words(X[name])
        if 0 < 2 * len(words) < X[name].count():
            processes.warn(
                f"{name!r} has numbers beside text, {words.iloc[0]!r} in row {words.index[0]} "
                "first: each of its entries is taken as a kind. To have numbers, leave what is "
                "missing empty, with --set missing=true."
            )


def _names(columns: str, known: Sequence[str]) -> list[str]:
    """Return names between commas, with blanks about them or quotes if they are so."""
    found = chain.from_iterable(csv.reader(columns.splitlines()))
    return [name if name in known else name.strip() for name in found]


def score(y: Any, predicted: Any, labelled: bool) -> str:
    """Return how good predictions are, in words."""
    if labelled:
        return f"accuracy {np.mean(np.asarray(y) == predicted):.3f}"
    known = f", R2 {r2_score(y, predicted):.3f}" if len(y) > 1 else ""
    return f"mean squared error {mean_squared_error(y, predicted):.4g}{known}"


def _loaded(path: Path) -> tuple[Any, list[str]]:
    """Return a saved estimator, and the names of its targets.

    Raises:
        DataError: the file holds a model that is no estimator.
    """
    made = load(path)
    if not isinstance(made, Estimator):
        raise DataError(
            f"{path} holds a {type(made).__name__}, which knows no columns: predict with "
            "liftednet.load in Python."
        )
    return made, list(storage.read(path).notes.get("target", ["y"]))


def _codes(made: Any) -> list[Any]:
    """Return the columns of kinds that are text even where a file has digits alone."""
    kinds = getattr(made, "_kinds", None)
    return [] if kinds is None else kinds.codes


def _inputs(made: Any, frame: pd.DataFrame, target: Sequence[str], data: Path) -> Any:
    """Return the columns that an estimator has seen by name, or the numbers of all but targets."""
    if (names := getattr(made, "feature_names_in_", None)) is None:
        return frame.drop(columns=target, errors="ignore").to_numpy()
    return columns_of(frame, list(names), data)


def run_predict(path: Path, data: Path, probabilities: bool) -> None:
    """Print predictions as csv: a line of names, and a line for every row.

    Raises:
        LiftedError: the model or the data cannot be used.
    """
    made, names = _loaded(path)
    if probabilities and not hasattr(made, "predict_proba"):
        raise DataError(f"{path} holds a regression, which gives no probabilities.")
    X = _inputs(made, read_table(data, _codes(made)), names, data)
    found = np.asarray(made.predict_proba(X) if probabilities else made.predict(X))
    lines = found.reshape(len(X), -1)
    heads = made.classes_.tolist() if probabilities else names
    if len(heads) != lines.shape[1]:  # of an estimator that Python has saved
        heads = [f"{names[0]} {number}" for number in range(1, lines.shape[1] + 1)]
    pd.DataFrame(lines, columns=heads).to_csv(sys.stdout, index=False)


def run_evaluate(path: Path, data: Path, target: list[str] | None) -> None:
    """Print accuracy, or the mean squared error.

    Raises:
        LiftedError: the model or the data cannot be used.
    """
    made, known = _loaded(path)
    labelled = hasattr(made, "classes_")
    words = labelled and made.classes_.dtype.kind in "OU"  # even where this file has digits alone
    frame = read_table(data, [*_codes(made), *((target or known) if words else ())])
    truth = columns_of(frame, target or known, data)
    if words:
        truth = truth.astype(str)
    elif not labelled:
        numbers("y", truth)
    y = truth.to_numpy()
    if labelled and (new := set(y.ravel().tolist()) - set(made.classes_.tolist())):
        raise DataError(f"the model does not know the label {new.pop()!r}.")
    predicted = np.asarray(made.predict(_inputs(made, frame, [*known, *(target or ())], data)))
    if y.size != predicted.size:
        raise DataError(
            f"the model has {predicted.size // len(y)} outputs, and {y.shape[1]} columns are held "
            "against them: name one for each by --target."
        )
    found = score(y.reshape(predicted.shape), predicted, labelled)
    typer.echo(f"{found} on {len(y)} rows of {data}")
