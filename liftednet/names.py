"""Parts of the language by the names that people write at a door.

A door is a command line or the settings of an estimator; behind it there are objects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from inspect import isabstract, signature
from operator import add
from types import ModuleType
from typing import Any

from liftednet import activations, losses, penalties
from liftednet.activation import Activation
from liftednet.errors import DataError, LiftedError
from liftednet.losses import Loss
from liftednet.penalties import Penalty

_ALSO = {"logistic": "Sigmoid"}  # as scikit-learn calls it


def _by_numbers(room: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the parts of a room that numbers suffice to make."""
    parts = {name: getattr(room, name) for name in room.__all__ if name != "Declared"}
    return {
        name: part
        for name, part in parts.items()
        if not isabstract(part)
        and all(
            x.annotation == "float"
            for x in signature(part).parameters.values()
            if x.default is x.empty
        )
    }


_LOSSES, _PENALTIES = _by_numbers(losses), _by_numbers(penalties)


def activation_named(name: str) -> Activation:
    """Return an activation of the catalogue, such as ReLU for "relu".

    Raises:
        DataError: there is none of that name.
    """
    known = [*activations.__all__, *_ALSO]
    found = _known("activation", name, known)
    made: Activation = getattr(activations, _ALSO.get(found, found))()
    return made


def loss_named(text: str) -> Loss:
    """Return a loss, such as SquaredError() of "squared-error" or Quantile(0.9) of "quantile:0.9".

    Raises:
        DataError: there is none of that name, or its number cannot be used.
    """
    found: Loss = _made("loss", text, _LOSSES, "quantile:0.9")
    return found


def penalty_named(text: str) -> Penalty:
    """Return a penalty, such as L1(0.01) + Nonnegative() for "l1:0.01+nonnegative".

    Raises:
        DataError: there is none of that name, or its number cannot be used.
    """
    parts = (_made("penalty", part, _PENALTIES, "l1:0.01") for part in text.split("+"))
    found: Penalty = reduce(add, parts)
    return found


def _made(kind: str, text: Any, known: Mapping[str, Callable[..., Any]], example: str) -> Any:
    """Return what a name stands for, made of the number behind its colon, if any."""
    name, _, number = text.partition(":") if isinstance(text, str) else (text, "", "")
    make = known[_known(kind, name, list(known))]
    try:
        return make(*([float(number)] if number else []))
    except (TypeError, ValueError) as error:
        if isinstance(error, LiftedError):
            raise
        raise DataError(
            f"the {kind} {name.strip()!r} takes a number behind a colon where it has one, as in "
            f"{example}; got {text!r}."
        ) from error


def _known(kind: str, name: Any, names: Sequence[str]) -> str:
    plain = {_plain(known): known for known in names}
    if not isinstance(name, str) or _plain(name) not in plain:
        raise DataError(f"there is no {kind} {name!r}; there are {', '.join(names)}.")
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
