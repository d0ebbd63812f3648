"""Options of estimators as they are written in a shell: `--set name=value`."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from liftednet.errors import DataError, LiftedError
from liftednet.models.storage import parts

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
    except (SyntaxError, _PlainTextError):
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
