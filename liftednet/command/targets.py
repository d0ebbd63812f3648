"""Labels of any kind as the numbers that a loss takes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftednet.errors import DataError
from liftednet.losses import BinaryCrossEntropy, Loss

Values = NDArray[Any]
Labels = list[Any]  # JSON values, sorted


def labels_of(y: Values, loss: Loss) -> Labels | None:
    """Return the labels that are counted from 0, or None where y holds numbers for the loss.

    Args:
        y: (samples,) or (samples, outputs).
        loss: of the network.

    Raises:
        DataError: y holds text or numbers that the loss cannot take.
    """
    name, real = type(loss).__name__, y.dtype.kind == "f"
    if y.ndim > 1 or not loss.probabilistic or (real and isinstance(loss, BinaryCrossEntropy)):
        if y.dtype.kind not in "biuf":
            raise DataError(
                f"{name} needs numbers, and the targets are text, such as {y.flat[0]!s}."
            )
        return None
    if real:
        raise DataError(
            f"{name} needs labels, and the targets are real numbers: for a regression take "
            "--loss SquaredError."
        )
    labels: Labels = np.unique(y).tolist()
    if len(labels) < 2 or (isinstance(loss, BinaryCrossEntropy) and len(labels) > 2):
        raise DataError(f"{name} cannot tell {len(labels)} classes apart: {some(labels)}.")
    return labels


def encoded(y: Values, labels: Labels | None) -> Tensor:
    """Return y as a network takes it: float32, or int64 numbers of the labels.

    Raises:
        DataError: y has a label that the network does not know, or text for a regression.
    """
    if labels is None:
        if y.dtype.kind not in "biuf":
            raise DataError(f"the model predicts numbers, and the targets are text: {y.flat[0]!s}.")
        return torch.from_numpy(y.astype(np.float32))
    place = {label: number for number, label in enumerate(labels)}
    unknown = [label for label in np.unique(y).tolist() if label not in place]
    if unknown:
        raise DataError(
            f"the model does not know the label {unknown[0]!r}; it knows {some(labels)}."
        )
    return torch.tensor([place[label] for label in y.ravel().tolist()]).reshape(y.shape)


def decoded(predicted: Tensor, labels: Labels | None) -> Values:
    """Return predictions as labels of the data, or as they are: (samples,), (samples, outputs)."""
    found: Values = predicted.cpu().numpy()
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    return found if labels is None else np.array(labels)[found]


def outputs_of(y: Tensor, labels: Labels | None, loss: Loss) -> int:
    """Return how many outputs a network needs."""
    if y.ndim == 2:
        return y.shape[1]
    return 1 if labels is None or isinstance(loss, BinaryCrossEntropy) else len(labels)


def score(loss: Loss, predicted: Tensor, y: Tensor) -> str:
    """Return how good predictions are, in words."""
    y = y.argmax(-1) if y.ndim > predicted.ndim else y.reshape(predicted.shape)
    if loss.probabilistic:
        return f"accuracy {float((predicted == y).double().mean()):.3f}"
    error, spread = (predicted - y).square().mean(0), (y - y.mean(0)).square().mean(0)
    known = f", R2 {float(1 - (error / spread).mean()):.3f}" if bool((spread > 0).all()) else ""
    return f"mean squared error {float(error.mean()):.4g}{known}"


def some(labels: Sequence[Any]) -> str:
    """Return the first of them, and the last."""
    shown = ", ".join(map(str, labels[:5]))
    return shown if len(labels) <= 5 else f"{shown}, ..., {labels[-1]}"
