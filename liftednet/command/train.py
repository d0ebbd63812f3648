"""`liftednet train`: a lifted network on the user's data, saved to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from liftednet import data
from liftednet.command.named import IMAGES, activation_from, loss_from
from liftednet.data.archives import read_npz
from liftednet.errors import DataError
from liftednet.losses import BinaryCrossEntropy, Loss
from liftednet.models import FullBatch, LiftedMLP, Minibatch
from liftednet.models.storage import save
from liftednet.validation import as_tensor

_HELD_OUT = 0.25  # of a file's samples, where the user names no share

METHODS: dict[str, Callable[[int], FullBatch | Minibatch]] = {
    "full": lambda sweeps: FullBatch(sweeps=sweeps),
    "minibatch": lambda epochs: Minibatch(epochs=epochs),
}


@dataclass(frozen=True)
class Order:
    """What the user asks for, as given on the command line."""

    data: str
    hidden: str
    activation: str
    loss: str
    divergence: str
    method: str
    lam: float
    rho: float
    sweeps: int
    held_out: float | None
    seed: int
    output: Path


@dataclass(frozen=True)
class Halves:
    """Samples to train on and samples to test on: X (samples, features) and y."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def run_train(order: Order) -> None:
    """Train, print how good the network is, and save it.

    Raises:
        LiftedError: the data, a name or a number cannot be used; nothing has been trained.
        SolverError: the training failed.
    """
    loss, activation = loss_from(order.loss), activation_from(order.activation)
    if not order.output.parent.is_dir():
        raise DataError(f"the folder {order.output.parent} of the model does not exist.")
    halves = _samples(order)
    sizes = (halves.x_train.shape[1], *_hidden(order.hidden), _outputs(halves, loss))
    model = LiftedMLP(
        sizes,
        activation,
        loss,
        order.lam,
        order.rho,
        order.divergence,
        seed=order.seed,
        method=METHODS[order.method](order.sweeps),
    )
    console = Console()
    console.print(f"{' - '.join(map(str, sizes))} units, {len(halves.y_train)} samples")
    model.fit(halves.x_train, halves.y_train, progress=True)
    for line in _scores(model, halves):
        console.print(line, soft_wrap=True)
    console.print(f"saved to {save(model, order.output)}", soft_wrap=True)


def _scores(model: LiftedMLP, halves: Halves) -> list[str]:
    parts = {
        "training": (halves.x_train, halves.y_train),
        "test": (halves.x_test, halves.y_test),
    }
    return [
        f"{part} {_score(model.loss, model.predict(x), y)} by the feedforward rule, "
        f"{_score(model.loss, model.predict_lifted(x), y)} by the lifted rule"
        for part, (x, y) in parts.items()
    ]


def _score(loss: Loss, predicted: Tensor, y: Tensor) -> str:
    y = y.reshape(predicted.shape)
    if loss.probabilistic:
        return f"accuracy {float((predicted == y).double().mean()):.3f}"
    return f"mean squared error {float((predicted - y).square().mean()):.4g}"


def _hidden(text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise DataError(f"--hidden needs integers, as in 100,50; got {text!r}.") from error


def _outputs(halves: Halves, loss: Loss) -> int:
    y = halves.y_train
    if y.ndim == 2:
        return y.shape[1]
    if isinstance(loss, BinaryCrossEntropy) or not loss.probabilistic:
        return 1
    if y.is_floating_point():
        raise DataError(
            f"{type(loss).__name__} needs integer labels, and y holds real numbers: for a "
            "regression take --loss SquaredError."
        )
    found = torch.cat((y, halves.y_test)).unique()
    if not torch.equal(found, torch.arange(len(found))):
        raise DataError(
            "labels must count the classes from 0 without gaps, and these are "
            f"{_some(found.tolist())}: numpy.unique(y, return_inverse=True)[1] numbers them so."
        )
    return len(found)


def _some(labels: list[int]) -> str:
    shown = ", ".join(map(str, labels[:5]))
    return shown if len(labels) <= 5 else f"{shown}, ..., {labels[-1]}"


def _samples(order: Order) -> Halves:
    if order.data in IMAGES:
        if order.held_out is not None:
            raise DataError(f"--held-out is for files: {order.data} has test samples of its own.")
        found = IMAGES[order.data]()
        return Halves(found.x_train, found.y_train, found.x_test, found.y_test)
    x, y = _read(Path(order.data))
    share = _HELD_OUT if order.held_out is None else order.held_out
    return Halves(*data.split(x, y, share, order.seed))


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Return X in float32 and y from a NumPy archive."""
    if path.suffix != ".npz":
        raise DataError(f"the data must be digits, mnist or an .npz file, got {str(path)!r}.")
    arrays = read_npz(path)
    missing = {"X", "y"} - set(arrays)
    if missing:
        raise DataError(
            f"{path} must hold the arrays X (samples, features) and y (samples,); it holds "
            f"{', '.join(arrays) or 'none'}."
        )
    x, y = (as_tensor(f"{name} of {path}", arrays[name]) for name in ("X", "y"))
    if x.ndim != 2:
        raise DataError(
            f"X of {path} must have the shape (samples, features), got {tuple(x.shape)}."
        )
    return x.float(), y.float() if y.is_floating_point() else y.long()
