"""Parts of the language by the names that people write at a door, and by torch's own modules.

A door is a command line, the settings of an estimator or of a model, or a call on a torch network;
behind it there are objects alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isabstract
from typing import Any

from torch import nn

from liftednet import activations, losses
from liftednet.activation import Activation
from liftednet.errors import DataError, DeclarationError, LiftedError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Huber, Loss, Quantile, SquaredError

_ACTIVATIONS = {"logistic": "Sigmoid"}  # as scikit-learn calls it
_NOT_MONOTONE = ("gelu", "silu", "swish", "mish", "hardswish")
_LOSSES = {"mse": "SquaredError"}
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


def activation_of(given: Activation | str) -> Activation:
    """Return an activation as it is, or of the catalogue by its name, such as ReLU for "relu".

    Raises:
        DataError: there is none of that name.
    """
    if not isinstance(given, str):
        return given
    if _plain(given) in _NOT_MONOTONE:
        raise DataError(
            f"{given!r} falls somewhere, so that it is the argmin of no convex potential: declare "
            "the network in torch and call liftednet.lift(network), which splits it into a part "
            'that rises and a line, or take "softplus" or "elu", which are near.'
        )
    found = _known("activation", given, [*activations.__all__, *_ACTIVATIONS])
    made: Activation = getattr(activations, _ACTIVATIONS.get(found, found))()
    return made


def loss_of(given: Any) -> Loss:
    """Return a loss as it is, by its name, or the one that stands for a module of torch.

    Names are those of `liftednet.losses`, with a number behind a colon where one has it:
    "squared-error" or "mse", "cross-entropy", "quantile:0.9". Ours are sums over samples, squares
    halved; what torch's mean makes of the factor is rho's.

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
    names = [name for name in losses.__all__ if not isabstract(getattr(losses, name))]
    name, _, number = text.partition(":")
    found = _known("loss", name, [*(x for x in names if x != "Declared"), *_LOSSES])
    make = getattr(losses, _LOSSES.get(found, found))
    try:
        made: Loss = make(*([float(number)] if number else []))
    except (TypeError, ValueError) as error:
        if isinstance(error, LiftedError):
            raise
        raise DataError(
            f"the loss {name.strip()!r} takes a number behind a colon where it has one, as in "
            f"quantile:0.9; got {text!r}."
        ) from error
    return made


def _known(kind: str, name: str, names: Sequence[str]) -> str:
    plain = {_plain(known): known for known in names}
    if _plain(name) not in plain:
        raise DataError(f"there is no {kind} {name!r}; there are {', '.join(names)}.")
    return plain[_plain(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
