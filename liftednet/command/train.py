"""`liftednet train`: a lifted network on the user's data, saved to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from liftednet import data
from liftednet.command.named import IMAGES, activation_from
from liftednet.command.saved import Notes, require_place
from liftednet.command.targets import encoded, labels_of, outputs_of, score
from liftednet.data.tables import Table, read_table
from liftednet.errors import DataError
from liftednet.losses import Loss
from liftednet.models import Ending, LiftedMLP
from liftednet.models.methods import COUNTED, with_numbers
from liftednet.models.storage import save
from liftednet.names import loss_named, penalty_named
from liftednet.processes import shard

INTERRUPTED = 130  # as shells count it: 128 and the number of the signal
_PATIENCE = timedelta(minutes=10)  # with a process that does not answer
_HELD_OUT = 0.25  # of a file's samples, where the user names no share


@dataclass(frozen=True)
class Order:
    """What the user asks for, as given on the command line; None leaves it to the model."""

    data: str
    target: list[str]
    columns: str | None
    hidden: str
    activation: str
    loss: str
    divergence: str
    method: str
    solver: str | None
    penalty: str | None
    lam: float | None
    rho: float | None
    max_iter: int | None
    batch_size: int | None
    standardize: bool
    held_out: float | None
    seed: int
    output: Path
    checkpoint: Path | None
    resume: bool


@dataclass(frozen=True)
class Halves:
    """Samples to train on and samples to test on: X (samples, features) and y."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def run_train(order: Order) -> None:
    """Train, save the network, and print how good it is.

    Started by torchrun as one of several processes, train with its share of the samples; the first
    process prints and saves.

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


def _run_train(order: Order, rank: int) -> None:
    console = Console(quiet=rank > 0)
    activation, loss = activation_from(order.activation), loss_named(order.loss)
    require_place(order.output, order.data, order.checkpoint)
    if order.checkpoint is not None:
        require_place(order.checkpoint, order.data)
    if order.resume and order.checkpoint is None:
        raise DataError("--resume goes on from a checkpoint: name its file by --checkpoint.")
    halves, notes, outputs = _samples(order, loss)
    sizes = (halves.x_train.shape[1], *_hidden(order.hidden), outputs)
    model = LiftedMLP(sizes, activation, loss, **_options(order))
    batches = {} if order.batch_size is None else {"batch_size": order.batch_size}
    model.method = with_numbers(model.checked()[1], order.max_iter, **batches)
    console.print(f"{' - '.join(map(str, sizes))} units, {len(halves.y_train)} samples")
    kept: dict[str, Any] = {}
    if order.checkpoint is not None:
        kept = {"checkpoint": order.checkpoint, "resume": order.resume}
    rows = shard(len(halves.y_train))
    try:
        model.fit(halves.x_train[rows], halves.y_train[rows], progress=True, **kept)
    except KeyboardInterrupt:  # before it trains, or again while it comes to its end
        console.print(f"interrupted: nothing is saved{_as_it_was(order)}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    assert model.trace is not None  # it has been fitted just now
    done = f"{model.trace.n_iter} of {model.trace.max_iter} {COUNTED[type(model.method)]}"
    interrupted = model.trace.ending is Ending.INTERRUPTED
    if rank > 0:
        raise typer.Exit(INTERRUPTED if interrupted else 0)
    if interrupted and not model.trace.n_iter:
        console.print(
            f"interrupted after {done}: nothing is saved{_as_it_was(order)}", soft_wrap=True
        )
        raise typer.Exit(INTERRUPTED)
    notes = replace(notes, trained=f"{order.data}, {len(halves.y_train)} samples, {done}")
    path = save(model, order.output, notes.plain())
    if interrupted:
        console.print(f"interrupted after {done}: the model of then is saved to {path}"
            f"{_goes_on(order)}", soft_wrap=True)  # fmt: skip
        raise typer.Exit(INTERRUPTED)
    console.print(f"saved to {path}", soft_wrap=True)
    for line in _scores(model, halves):
        console.print(line, soft_wrap=True)


def _options(order: Order) -> dict[str, Any]:
    given = {
        "lam": order.lam,
        "rho": order.rho,
        "solver": order.solver,
        "penalty": None if order.penalty is None else penalty_named(order.penalty),
        "standardize": None if order.standardize else False,
    }
    if order.penalty is not None and order.rho is not None:
        raise DataError(
            "--penalty stands in place of --rho: its number follows a colon, as in l1:0.01."
        )
    found = {name: value for name, value in given.items() if value is not None}
    named = {"divergence": order.divergence, "method": order.method, "seed": order.seed}
    return {**found, **named}


def _as_it_was(order: Order) -> str:
    stays = f", and {order.output} is as it was" if order.output.exists() else ""
    return f"{stays}{_goes_on(order)}"


def _goes_on(order: Order) -> str:
    if order.checkpoint is None or not order.checkpoint.exists():
        return ""
    return f"; the same command with --resume goes on from {order.checkpoint}"


def _scores(model: LiftedMLP, halves: Halves) -> list[str]:
    parts = {
        "training": (halves.x_train, halves.y_train),
        "test": (halves.x_test, halves.y_test),
    }
    return [f"{part} {score(model.loss, model.predict(x), y)}" for part, (x, y) in parts.items()]


def _hidden(text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"--hidden needs integers, as in 100,50; got {text!r}.") from error


def _samples(order: Order, loss: Loss) -> tuple[Halves, Notes, int]:
    """Return both halves, what is noted of them, and how many outputs they ask for."""
    if order.data in IMAGES:
        if order.held_out is not None or order.target or order.columns:
            raise DataError(
                f"--held-out, --target and --columns are for files: {order.data} has test samples "
                "and labels of its own."
            )
        found = IMAGES[order.data]()
        labels = labels_of(found.y_train.numpy(), loss)
        y_train, y_test = (encoded(y.numpy(), labels) for y in (found.y_train, found.y_test))
        halves = Halves(found.x_train, y_train, found.x_test, y_test)
        return halves, Notes(labels=labels), outputs_of(y_train, labels, loss)
    table = read_table(Path(order.data))
    target = order.target or ["y"]
    y = _targets(table, target)
    labels = labels_of(y, loss)
    chosen = None if order.columns is None else [name.strip() for name in order.columns.split(",")]
    x, columns = table.inputs(chosen, target)
    if x.ndim != 2:
        raise DataError(f"X of {table.source} must be (samples, features), got shape {x.shape}.")
    numbers = encoded(y, labels)
    share = _HELD_OUT if order.held_out is None else order.held_out
    halves = Halves(*data.split(torch.from_numpy(x).float(), numbers, share, order.seed))
    return halves, Notes(columns, target, labels), outputs_of(numbers, labels, loss)


def _targets(table: Table, names: list[str]) -> Any:
    if names == ["y"] and "y" not in table.columns:
        raise DataError(
            f"{table.source} has no column or array 'y' of targets: name one by --target; there "
            f"are {', '.join(table.columns) or 'none'}."
        )
    return table.targets(names)
