"""`liftednet predict` and `liftednet evaluate`: a saved model on data."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from liftednet.command.saved import Saved, inputs_for, opened, require_place, targets_for
from liftednet.command.targets import Values, decoded, encoded, score
from liftednet.errors import DataError
from liftednet.losses import Loss


def run_predict(
    path: Path, data: str, probabilities: bool, output: Path | None, activation: str | None
) -> None:
    """Write predictions as csv: a line of names, and a line for every sample.

    Raises:
        LiftedError: the model or the data cannot be used.
    """
    if output is not None:
        require_place(output, path, data)
    saved = opened(path, activation)
    x = inputs_for(saved, data)
    if probabilities:
        found = saved.model.predict_proba(x).cpu().numpy()
        names = _classes(saved, found.shape[-1])
    else:
        found = decoded(saved.model.predict(x), saved.notes.labels)
        names = _targets(saved, found)
    lines = [[str(value) for value in line] for line in found.reshape(len(found), -1)]
    # newline="" keeps the csv module's own ends of lines.
    place: Any = nullcontext(sys.stdout) if output is None else output.open("w", newline="")
    with place as file:
        csv.writer(file, lineterminator="\n").writerows([names, *lines])
    if output is not None:
        Console().print(f"{len(lines)} predictions written to {output}", soft_wrap=True)


def run_evaluate(path: Path, data: str, target: list[str], activation: str | None) -> None:
    """Print accuracy, or the mean squared error.

    Raises:
        LiftedError: the model or the data cannot be used, or it does not know a label.
    """
    saved = opened(path, activation)
    x = inputs_for(saved, data)
    y = encoded(targets_for(saved, data, target), saved.notes.labels)
    predicted = saved.model.predict(x)
    if len(y) != len(predicted):
        raise DataError(f"{data} has {len(predicted)} samples and {len(y)} targets.")
    found = score(_loss(saved.model), predicted, y.to(predicted.dtype))
    Console().print(f"{found} on {len(y)} samples of {data}", soft_wrap=True)


def _loss(model: Any) -> Loss:
    (term,) = model.network.terms
    found: Loss = term.loss
    return found


def _classes(saved: Saved, outputs: int) -> list[str]:
    """Return the names of probabilities: one alone is that of the last label."""
    labels = saved.notes.labels
    if labels is not None and len(labels) >= outputs:
        return [str(label) for label in labels[-outputs:]]
    return [str(number) for number in range(outputs)]


def _targets(saved: Saved, found: Values) -> list[str]:
    names, width = saved.notes.target, found.reshape(len(found), -1).shape[1]
    return names if len(names) == width else [f"{names[0]} {n}" for n in range(1, width + 1)]
