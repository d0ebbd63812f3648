"""Options of estimators as they are written in a shell: `--set name=value`."""

from __future__ import annotations

import ast
import inspect
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from liftednet import solvers
from liftednet.errors import DataError, LiftedError
from liftednet.models.methods import METHODS
from liftednet.storage import CATALOGUE

Options = dict[str, Any]


def options_of(kind: type, texts: Sequence[str]) -> Options:
    """Return the options that `name=value` give an estimator.

    Values are written as in Python: numbers, True, None, "text", lists, and parts of the library
    such as L1(0.1) + Nonnegative(); a word that is nothing of these is text.

    Args:
        kind: of the estimator.
        texts: of all options.

    Raises:
        DataError: there is no such option, or its value is of another type, or given twice.

    Example:
        >>> from liftednet import LiftedRegressor
        >>> options_of(LiftedRegressor, ["max_iter=5", "penalty=L1(0.1)", "device=cpu"])
        {'max_iter': 5, 'penalty': L1(rho=0.1), 'device': 'cpu'}
    """
    known, found = list(inspect.signature(kind).parameters), Options()
    hints = get_type_hints(kind)
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
        if not fits(found[name], hints[name]):
            wanted = inspect.formatannotation(hints[name]).replace("collections.abc.", "")
            raise DataError(f"{name} takes {wanted}, and {text!r} gives {found[name]!r}.")
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
            if name not in _parts():
                near = get_close_matches(name, _parts(), 3)
                raise DataError(f"there is no {name}; there are {', '.join(near or _parts())}.")
            options = {x.arg: _made(x.value) for x in named if x.arg is not None}
            return _parts()[name](*map(_made, args), **options)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return operator.add(_made(left), _made(right))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_made(part) for part in parts]
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            names = [_made(key) for key in keys if key is not None]
            return dict(zip(names, map(_made, values), strict=True))
    try:
        return ast.literal_eval(tree)
    except ValueError as error:
        raise _PlainTextError from error


@cache
def _parts() -> Mapping[str, Callable[..., Any]]:
    """Return the classes that values may be made of."""
    methods = {method.__name__: method for method in METHODS.values()}
    named = {name: getattr(solvers, name) for name in solvers.__all__}
    classes = {name: x for name, x in named.items() if isinstance(x, type)}
    return {**classes, **CATALOGUE, **methods}


def fits(value: Any, hint: Any) -> bool:
    """Say whether a value is of a type, as annotations write it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or not (origin or inspect.isclass(hint)):
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is not None:
        if isinstance(value, str) or not isinstance(value, origin):
            return False
        parts: Any = value.values() if isinstance(value, Mapping) else value
        return all(fits(x, arguments[-1]) for x in parts)
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)
