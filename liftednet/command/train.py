"""`liftednet train`, `predict` and `evaluate`: a lifted network and the user's data."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from liftednet import data
from liftednet.command.files import Labels, Notes, activation_from, opened, require_place, some
from liftednet.command.options import options_of
from liftednet.data import Classification
from liftednet.data.tables import read_table
from liftednet.errors import DataError
from liftednet.losses import BinaryCrossEntropy, Loss
from liftednet.models import Ending, LiftedMLP
from liftednet.models.estimators import LiftedClassifier, LiftedRegressor
from liftednet.models.methods import COUNTED
from liftednet.models.storage import save
from liftednet.names import loss_of
from liftednet.processes import shard

INTERRUPTED = 130  # as shells count it: 128 and the number of the signal
_PATIENCE = timedelta(minutes=10)  # with a process that does not answer
_HELD_OUT = 0.25  # of a file's samples, where the user names no share

IMAGES: dict[str, Callable[[], Classification]] = {"digits": data.digits, "mnist": data.mnist}
Values = NDArray[Any]
Halves = tuple[Tensor, Tensor, Tensor, Tensor]  # X and y to train on, X and y to test on


def run_train(order: SimpleNamespace) -> None:
    """Train, save the network, and print how good it is.

    Started by torchrun as one of several processes, train with its share of the samples; the first
    process prints and saves.

    Args:
        order: the options of the command, as given; None leaves one to the model.

    Raises:
        LiftedError: the data, a name or a number cannot be used; nothing has been trained.
        SolverError: the training failed.
        typer.Exit: it was interrupted; what has been done is saved, if it is an epoch at least.
    """
    with _process_group() as rank:
        _run_train(order, rank)


@contextmanager
def _process_group() -> Iterator[int]:
    """Join the process group of what torchrun has started, and yield the number of this process."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield 0
        return
    store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    # A store of its own for every start: torch's has the addresses of processes that are gone.
    own = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    distributed.init_process_group("gloo", None, _PATIENCE, size, rank, own)
    try:
        yield distributed.get_rank()
    finally:
        distributed.destroy_process_group()


def _run_train(order: SimpleNamespace, rank: int) -> None:
    def say(line: str) -> None:
        if rank == 0:
            typer.echo(line)

    loss = loss_of(order.loss)
    require_place(order.output, order.data, order.checkpoint)
    if order.checkpoint is not None:
        require_place(order.checkpoint, order.data)
    elif order.resume:
        raise DataError("--resume goes on from a checkpoint: name its file by --checkpoint.")
    (x, y, *test), notes, estimator = _samples(order, loss)
    labels = None if notes.labels is None else range(len(notes.labels))
    model, x, y, weights = estimator.declared(x.numpy(), y.numpy(), classes=labels)
    assert isinstance(model, LiftedMLP)  # that of these estimators
    say(f"{' - '.join(map(str, model.sizes))} units, {len(y)} samples")
    kept: dict[str, Any] = {}
    if order.checkpoint is not None:
        kept = {"checkpoint": order.checkpoint, "resume": order.resume}
    rows = shard(len(y))
    try:
        some = None if weights is None else weights[rows]
        model.fit(x[rows], y[rows], sample_weight=some, progress=True, **kept)
    except KeyboardInterrupt:  # before it trains, or again while it comes to its end
        say(f"interrupted: nothing is saved{_goes_on(order)}")
        raise typer.Exit(INTERRUPTED) from None
    assert model.trace is not None  # it has been fitted just now
    done = f"{model.trace.n_iter} of {model.trace.max_iter} {COUNTED[type(model.trace.method)]}"
    interrupted = model.trace.ending is Ending.INTERRUPTED
    if interrupted and not model.trace.n_iter:
        say(f"interrupted after {done}: nothing is saved{_goes_on(order)}")
        raise typer.Exit(INTERRUPTED)
    if rank == 0:
        notes = replace(notes, trained=f"{order.data}, {len(y)} samples, {done}")
        save(model, order.output, asdict(notes))
    if interrupted:
        saved = f"the model of then is saved to {order.output}"
        say(f"interrupted after {done}: {saved}{_goes_on(order)}")
        raise typer.Exit(INTERRUPTED)
    say(f"saved to {order.output}")
    if rank == 0:
        say("\n".join(_scores(model, (x, y, *test))))


def _estimator(order: SimpleNamespace, kind: type, loss: Loss, notes: Notes) -> Any:
    """Return the estimator with the options that were given."""
    hidden = None if order.hidden is None else _hidden(order.hidden)
    activation = None if order.activation is None else activation_from(order.activation)
    method = None if order.method.value == "auto" else order.method.value
    given = {
        "hidden_layer_sizes": hidden, "activation": activation, "loss": loss, "lam": order.lam,
        "rho": order.rho, "method": method, "max_iter": order.max_iter,
        "batch_size": order.batch_size, "random_state": order.seed,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    options = options_of(kind, order.options or ())
    if twice := [name for name in options if name in given]:  # --loss and --seed always are
        raise DataError(f"{twice[0]} has an option of its own here: say that, and not --set.")
    if isinstance(by_label := options.get("class_weight"), dict) and notes.labels is not None:
        places = {str(label): number for number, label in enumerate(notes.labels)}
        options["class_weight"] = {places.get(str(x), x): w for x, w in by_label.items()}
    if isinstance(by_name := options.get("monotonic_cst"), dict):
        options["monotonic_cst"] = [by_name.pop(name, 0) for name in notes.columns]
        if by_name:
            raise DataError(f"monotonic_cst names {next(iter(by_name))!r}, which is no input.")
    return kind(**given, **options)


def _goes_on(order: SimpleNamespace) -> str:
    if order.checkpoint is None or not order.checkpoint.exists():
        return ""
    return f"; the same command with --resume goes on from {order.checkpoint}"


def _scores(model: LiftedMLP, halves: Sequence[Any]) -> list[str]:
    dtype, parts = model.weights[0].matrix.dtype, {"training": halves[:2], "test": halves[2:]}
    found = []
    for part, (x, y) in parts.items():
        predicted = model.predict(torch.as_tensor(x).to(dtype))
        found.append(f"{part} {score(model.loss, predicted, torch.as_tensor(y))}")
    return found


def _hidden(text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"--hidden needs integers, as in 100,50; got {text!r}.") from error


def _samples(order: SimpleNamespace, loss: Loss) -> tuple[Halves, Notes, Any]:
    """Return both halves, what is noted of them, and the estimator to train."""
    if order.data in IMAGES:
        if order.held_out is not None or order.target or order.columns:
            raise DataError(
                f"--held-out, --target and --columns are for files: {order.data} has test samples "
                "and labels of its own."
            )
        found = IMAGES[order.data]()
        labels = labels_of(found.y_train.numpy(), loss)
        y_train, y_test = (encoded(y.numpy(), labels) for y in (found.y_train, found.y_test))
        halves, notes = (found.x_train, y_train, found.x_test, y_test), Notes(labels=labels)
        return halves, notes, _estimator(order, _kind(labels), loss, notes)
    table = read_table(Path(order.data))
    target = order.target or ["y"]
    y = table.targets(target)
    labels = labels_of(y, loss)
    chosen = None if order.columns is None else [name.strip() for name in order.columns.split(",")]
    missing = bool(options_of(_kind(labels), order.options or ()).get("missing", False))
    x, columns = table.inputs(chosen, target, missing)
    if x.ndim != 2:
        raise DataError(f"X of {table.source} must be (samples, features), got shape {x.shape}.")
    share = _HELD_OUT if order.held_out is None else order.held_out
    halves = data.split(torch.from_numpy(x).float(), encoded(y, labels), share, order.seed)
    notes = Notes(columns, target, labels)
    return halves, notes, _estimator(order, _kind(labels), loss, notes)


def _kind(labels: Labels | None) -> type:
    return LiftedRegressor if labels is None else LiftedClassifier


# Labels of any kind as the numbers that a loss takes, and back.


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
    """Return y as a network takes it: float64, or int64 numbers of the labels.

    Raises:
        DataError: y has a label that the network does not know, or text for a regression.
    """
    if labels is None:
        if y.dtype.kind not in "biuf":
            raise DataError(f"the model predicts numbers, and the targets are text: {y.flat[0]!s}.")
        return torch.from_numpy(y.astype(np.float64))
    place = {label: number for number, label in enumerate(labels)}
    unknown = [label for label in np.unique(y).tolist() if label not in place]
    if unknown:
        raise DataError(
            f"the model does not know the label {unknown[0]!r}; it knows {some(labels)}."
        )
    return torch.tensor([place[label] for label in y.ravel().tolist()]).reshape(y.shape)


def score(loss: Loss, predicted: Tensor, y: Tensor) -> str:
    """Return how good predictions are, in words."""
    y = y.argmax(-1) if y.ndim > predicted.ndim else y.reshape(predicted.shape)
    if loss.probabilistic:
        return f"accuracy {float((predicted == y).double().mean()):.3f}"
    predicted, y = predicted.double(), y.double()  # whose squares overflow later
    error, variance = (predicted - y).square().mean(0), (y - y.mean(0)).square().mean(0)
    known = f", R2 {float(1 - (error / variance).mean()):.3f}" if bool((variance > 0).all()) else ""
    return f"mean squared error {float(error.mean()):.4g}{known}"


# A saved model on data.


def run_predict(path: Path, data: str, probabilities: bool, activation: str | None) -> None:
    """Print predictions as csv: a line of names, and a line for every sample.

    Raises:
        LiftedError: the model or the data cannot be used.
    """
    model, notes = opened(path, activation)
    x, labels = _inputs_for(model, notes, data), notes.labels
    found = (model.predict_proba(x) if probabilities else model.predict(x)).cpu().numpy()
    lines = found.reshape(len(found), -1)
    width = lines.shape[1]
    if probabilities:  # one alone is that of the last label
        known = labels is not None and len(labels) >= width
        names = [str(label) for label in (labels[-width:] if labels and known else range(width))]
    else:
        lines = lines if labels is None else np.array(labels)[lines]
        named = len(notes.target) == width
        names = notes.target if named else [f"{notes.target[0]} {n}" for n in range(1, width + 1)]
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerows([names, *([str(value) for value in line] for line in lines)])


def run_evaluate(path: Path, data: str, target: Sequence[str], activation: str | None) -> None:
    """Print accuracy, or the mean squared error.

    Raises:
        LiftedError: the model or the data cannot be used, or it does not know a label.
    """
    model, notes = opened(path, activation)
    x = _inputs_for(model, notes, data)
    if data in IMAGES:
        targets = IMAGES[data]().y_test.numpy()
    else:
        targets = read_table(Path(data)).targets(target or notes.target)
    y, predicted = encoded(targets, notes.labels), model.predict(x)
    if len(y) != len(predicted):
        raise DataError(f"{data} has {len(predicted)} samples and {len(y)} targets.")
    (term,) = model.network.terms
    found = score(term.loss, predicted, y.to(predicted.dtype))
    typer.echo(f"{found} on {len(y)} samples of {data}")


def _inputs_for(model: Any, notes: Notes, data: str) -> Tensor:
    """Return X of new data, in the type of the model's weights.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    if data in IMAGES:
        found = IMAGES[data]().x_test
    else:
        table, columns = read_table(Path(data)), notes.columns
        if table.source.suffix == ".npz" and not set(columns) <= set(table.columns):
            columns = []  # of a table; its columns are those of X
        missing = any(x.missing for x in model.network.inputs)
        found = torch.from_numpy(table.inputs(columns or None, notes.target, missing)[0])
    return found.to(model.weights[0].matrix.dtype)
