"""Parts of the language by the names that people write at a door, and by torch's own modules.

A door is a command line, the settings of an estimator or of a model, or a call on a torch network;
behind it there are objects alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import isabstract
from typing import Any, cast

from torch import nn

from liftednet import activations, losses
from liftednet.activation import Activation
from liftednet.errors import DataError, DeclarationError, LiftedError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Huber, Loss, Quantile, SquaredError

_ACTIVATIONS: Mapping[str, Callable[[], Activation]] = {  # as scikit-learn and torch call them
    "logistic": activations.Sigmoid,
    "linear": activations.Identity,
    "atan": activations.Arctan,
    "hardtanh": lambda: activations.Clipped(-1.0, 1.0),
    "relu6": lambda: activations.Clipped(0.0, 6.0),
    "swish": activations.SiLU,
}
_NAMES = [*activations.__all__, *_ACTIVATIONS]
_LOSSES = {  # other names that they have in the field
    **dict.fromkeys(("mse", "l2"), "squared-error"),
    **dict.fromkeys(("mae", "l1", "absolute-error"), "quantile:0.5"),
    **dict.fromkeys(("ce", "log-loss", "nll"), "cross-entropy"),
    "bce": "binary-cross-entropy",
    "pinball": "quantile",
    "smooth-l1": "huber",
}
_BETWEEN = re.compile(r"(?<=[a-z])(?=[A-Z])")  # words of a class
_OF_TORCH: Mapping[type[nn.Module], Callable[[Any], Loss]] = {
    nn.CrossEntropyLoss: lambda loss: CrossEntropy(loss.label_smoothing),
    nn.BCEWithLogitsLoss: lambda _: BinaryCrossEntropy(),
    nn.MSELoss: lambda _: SquaredError(),
    nn.L1Loss: lambda _: Quantile(0.5),
    nn.HuberLoss: lambda loss: Huber(loss.delta),
    nn.SmoothL1Loss: lambda loss: Huber(loss.beta),
}
_AFTER_A_MAP = {nn.NLLLoss: "LogSoftmax", nn.BCELoss: "Sigmoid"}
_SETTINGS = {"weight": None, "pos_weight": None, "ignore_index": -100, "reduction": "mean"}


def activation_of(given: Any) -> Activation:
    """Return an activation as it is, or of the catalogue by its name, such as ReLU for "relu".

    Names are those of `liftednet.activations`, those of scikit-learn and torch where these have
    others, and torch's own modules, such as nn.ReLU().

    Raises:
        DataError: there is none of that name.
    """
    if isinstance(given, nn.Module) and type(given) is getattr(nn, type(given).__name__, None):
        given = _of_module(given)
    if not isinstance(given, str):
        return cast(Activation, given)  # which they see who need one
    found = _known("activation", given, _NAMES)
    return {**vars(activations), **_ACTIVATIONS}[found]()


def _of_module(given: nn.Module) -> Any:
    """Return the name of a module of torch that has the settings with which torch makes one."""
    name = type(given).__name__
    ours = _plain(name) in map(_plain, _NAMES)
    settings = re.sub(r"(, )?inplace=True", "", repr(given))
    return name if ours and settings == repr(type(given)()) else given


def loss_of(given: Any) -> Loss:
    """Return a loss as it is, by its name, or the one that stands for a module of torch.

    Names are those of `liftednet.losses`, with a number behind a colon where one has it:
    "squared-error" or "mse", "mae", "cross-entropy" or "log_loss", "bce", "quantile:0.9". Ours are
    sums over samples, squares and absolute values halved; what torch's mean makes of the factor is
    rho's.

    Raises:
        DataError: there is none of that name, or its number cannot be used.
        DeclarationError: it is no loss, or a module of torch with settings that ours has not.
    """
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        return _loss_named(given)
    if type(given) not in _OF_TORCH:
        hint = f": write {given.__name__}()" if isinstance(given, type) else ""
        if after := _AFTER_A_MAP.get(type(given)):
            hint = f": give the scores that the {after} takes, and the loss on them"
        raise DeclarationError(
            "loss must be one of liftednet.losses, such as CrossEntropy() for classes or "
            "SquaredError() for numbers, its name, or a module of torch such as "
            f"nn.CrossEntropyLoss(); got {given!r}{hint}."
        )
    for name, plain in _SETTINGS.items():
        if (value := getattr(given, name, plain)) is not plain and value != plain:
            raise DeclarationError(
                f"{type(given).__name__} has {name}={value!r}, which ours has not: weigh samples "
                "by sample_weight= of fit, or leave out those that do not count."
            )
    return _OF_TORCH[type(given)](given)


def _loss_named(text: str) -> Loss:
    found = [x for x in losses.__all__ if x != "Declared" and not isabstract(getattr(losses, x))]
    ours = {_BETWEEN.sub("-", x).lower(): getattr(losses, x) for x in found}
    name, _, number = text.partition(":")
    known = _known("loss", name, [*ours, *_LOSSES], "; huber:1.0 and quantile:0.9 with a number")
    name, _, level = _LOSSES.get(known, known).partition(":")
    make = ours[name]
    try:
        if level and number:
            raise ValueError
        made: Loss = make(*map(float, (level or number).split()))
    except (TypeError, ValueError) as error:
        if isinstance(error, LiftedError):
            raise
        raise DataError(
            "a loss takes a number behind a colon where it has one, as in quantile:0.9; got "
            f"{text!r}."
        ) from error
    return made


def _known(kind: str, name: str, names: Sequence[str], more: str = "") -> str:
    plain = {_plain(known): known for known in names}
    if _plain(name) not in plain:
        raise DataError(f"there is no {kind} {name!r}; there are {', '.join(names)}{more}.")
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
