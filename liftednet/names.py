"""Parts of the language by the names that people write at a door.

A door is a command line or the settings of an estimator; behind it there are objects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from liftednet import activations, losses, penalties
from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.losses import Loss
from liftednet.penalties import Penalty

_ALSO = {"logistic": "Sigmoid"}  # as scikit-learn calls it
_LOSSES = ("CrossEntropy", "SquaredError", "BinaryCrossEntropy", "SimplexCrossEntropy")
_PENALTIES: dict[str, Callable[..., Penalty]] = {
    "SquaredFrobenius": penalties.SquaredFrobenius,
    "L1": penalties.L1,
    "GroupLasso": penalties.GroupLasso,
    "Nonnegative": penalties.Nonnegative,
    "RowNorm": penalties.RowNorm,
    "ColumnNorm": penalties.ColumnNorm,
    "SpectralNorm": penalties.SpectralNorm,
    "SimplexRows": penalties.SimplexRows,
    "DoublyStochastic": penalties.DoublyStochastic,
    "Orthogonal": penalties.Orthogonal,
}


def activation_named(name: str) -> Activation:
    """Return an activation of the catalogue, such as ReLU for "relu".

    Raises:
        DataError: there is none of that name.
    """
    known = [*activations.__all__, *_ALSO]
    found = _known("activation", name, known)
    made: Activation = getattr(activations, _ALSO.get(found, found))()
    return made


def loss_named(name: str) -> Loss:
    """Return a loss of `liftednet.losses`, such as SquaredError for "squared-error".

    Raises:
        DataError: there is none of that name.
    """
    made: Loss = getattr(losses, _known("loss", name, _LOSSES))()
    return made


def penalty_named(text: str) -> Penalty:
    """Return a penalty, such as L1(0.01) + Nonnegative() for "l1:0.01+nonnegative".

    Raises:
        DataError: there is none of that name, or its number cannot be used.
    """
    return reduce(add, (_one_penalty(part) for part in text.split("+")))


def _one_penalty(text: str) -> Penalty:
    name, _, number = text.partition(":")
    make = _PENALTIES[_known("penalty", name, list(_PENALTIES))]
    try:
        return make(*([float(number)] if number else []))
    except (TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"the penalty {name.strip()!r} needs a number behind a colon, as in l1:0.01; got "
            f"{text!r}."
        ) from error


def _known(kind: str, name: Any, names: Sequence[str]) -> str:
    plain = {_plain(known): known for known in names}
    if not isinstance(name, str) or _plain(name) not in plain:
        raise DataError(f"there is no {kind} {name!r}; there are {', '.join(names)}.")
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
