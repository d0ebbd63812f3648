"""Parts of the language by the names that people write at a door.

A door is a command line or the settings of an estimator; behind it there are objects alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isabstract
from typing import Any

from liftednet import activations, losses
from liftednet.activation import Activation
from liftednet.errors import DataError, LiftedError
from liftednet.losses import Loss

_ALSO = {"logistic": "Sigmoid"}  # as scikit-learn calls it


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
    names = [name for name in losses.__all__ if not isabstract(getattr(losses, name))]
    name, _, number = text.partition(":") if isinstance(text, str) else (text, "", "")
    make = getattr(losses, _known("loss", name, [x for x in names if x != "Declared"]))
    try:
        found: Loss = make(*([float(number)] if number else []))
    except (TypeError, ValueError) as error:
        if isinstance(error, LiftedError):
            raise
        raise DataError(
            f"the loss {name.strip()!r} takes a number behind a colon where it has one, as in "
            f"quantile:0.9; got {text!r}."
        ) from error
    return found


def _known(kind: str, name: Any, names: Sequence[str]) -> str:
    plain = {_plain(known): known for known in names}
    if not isinstance(name, str) or _plain(name) not in plain:
        raise DataError(f"there is no {kind} {name!r}; there are {', '.join(names)}.")
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
