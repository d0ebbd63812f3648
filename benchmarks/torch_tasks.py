"""Torch networks and their data, on which lifted training and starts are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from benchmarks.data import Sequences, har, jsb_chorales
from benchmarks.data.mnist import mnist
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Loss

BATCH = 100
Sets = dict[str, tuple[Tensor, Tensor]]


class ResidualNetwork(nn.Module):
    """h + relu(h W + b), thirty times over."""

    def __init__(self) -> None:
        """Draw the weights as torch does."""
        super().__init__()
        self.first = nn.Linear(784, 128)
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(30))
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, 10) of (samples, 1, 28, 28)."""
        h = torch.relu(self.first(x.flatten(1)))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.last(h)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A gated layer of 32 units, whose last state is read."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU]) -> None:
        """Draw the weights as torch does."""
        super().__init__()
        self.layer = layer(9, 32, batch_first=True)
        self.last = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, 6) of (samples, steps, 9)."""
        return self.last(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


class NextChord(nn.Module):
    """A gated layer of 32 units, read at every step."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU]) -> None:
        """Draw the weights as torch does."""
        super().__init__()
        self.layer = layer(88, 32, batch_first=True)
        self.last = nn.Linear(32, 88)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, steps, 88) of (samples, steps, 88)."""
        return self.last(self.layer(x)[0])  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """One block of four heads over the rows of a picture, width 48, then the mean."""

    def __init__(self) -> None:
        """Draw the weights as torch does."""
        super().__init__()
        self.embed, self.place = nn.Linear(28, 48), nn.Parameter(0.02 * torch.randn(1, 28, 48))
        self.before, self.between = nn.LayerNorm(48), nn.LayerNorm(48)
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.last = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, 10) of (samples, 1, 28, 28)."""
        h = self.embed(x.squeeze(1)) + self.place
        seen = self.before(h)
        h = h + self.attention(seen, seen, seen, need_weights=False)[0]
        h = h + self.dense(self.between(h))
        return self.last(h.mean(1))  # type: ignore[no-any-return]


def lenet() -> nn.Module:
    """Return LeNet-5 with ReLU and the largest entry of each pool."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def five_layers() -> nn.Module:
    """Return three convolutions of 3 x 3 and two dense layers, as VGG has them."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def sigmoids() -> nn.Module:
    """Return ten layers of 50 sigmoids."""
    widths = [784, *10 * [50]]
    layers = [(nn.Linear(a, b), nn.Sigmoid()) for a, b in pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *sum(layers, ()), nn.Linear(50, 10))


@cache
def digits(samples: int, held: int) -> Sets:
    """Return images (samples, 1, 28, 28) and labels: to train on, to choose by, to test on."""
    data = mnist()
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(7))
    images = data.x_train.view(-1, 1, 28, 28)
    parts = order[: samples + held].split([samples, held])
    train, unseen = ((images[rows], data.y_train[rows]) for rows in parts)
    return {
        "train": train, "held": unseen, "test": (data.x_test.view(-1, 1, 28, 28), data.y_test)
    }  # fmt: skip


@cache
def windows() -> Sets:
    """Return windows (samples, 128, 9) of HAR: 1,000 to train on, 1,000 to choose by, its test."""
    data = har()
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(7))
    train, held = order[:1000], order[1000:2000]
    x, y = data.x_train, data.y_train
    parts = {"train": (x[train], y[train]), "held": (x[held], y[held])}
    return {**parts, "test": (data.x_test, data.y_test)}


@cache
def chorales() -> Sets:
    """Return chords of JSB and those that follow, (samples, steps, 88), its songs as split.

    To train on are windows of 12 steps, about as many as of HAR; the rest of a song, which is
    shorter, is left out. Other songs are whole: what follows their last chord is NaN.
    """
    songs = jsb_chorales()
    pieces = songs.train.windows(12)
    train = pieces.batch((pieces.lengths == 12).nonzero()[:, 0])
    return {"train": (train.x, train.y), "held": whole(songs.valid), "test": whole(songs.test)}


def whole(songs: Sequences) -> tuple[Tensor, Tensor]:
    """Return songs and their targets, padded to the longest."""
    batch = songs.batch(torch.arange(len(songs)))
    return batch.x, batch.y.masked_fill(~batch.mask[:, :, None], torch.nan)


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of samples that a network gets right."""
    right = torch.cat([network(part).argmax(1) for part in x.split(1000)]) == y
    return float(right.double().mean())


@torch.no_grad()
def negative_log_likelihood(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return nats a step, of all steps of all songs, summed over the notes."""
    real = ~y[:, :, 0].isnan()
    losses = binary_cross_entropy_with_logits(network(x)[real], y[real], reduction="none")
    return float(losses.double().sum(1).mean())


@dataclass(frozen=True)
class Goal:
    """What a network learns, and how it is judged.

    Attributes:
        loss: of lifted training.
        objective: the mean of the same loss in torch, of outputs and targets.
        constant: the outputs, the same for all inputs, that are best for targets.
        figure: of merit, of a network on inputs and targets.
        perfect: figure, from which the error is counted.
        error: its name.
    """

    loss: Loss
    objective: Callable[[Tensor, Tensor], Tensor]
    constant: Callable[[Tensor], Tensor]
    figure: Callable[[nn.Module, Tensor, Tensor], float]
    perfect: float
    error: str


CLASSES = Goal(
    CrossEntropy(), cross_entropy, lambda y: y.bincount().log(), accuracy, 1.0, "test error"
)
CHORDS = Goal(
    BinaryCrossEntropy(),
    binary_cross_entropy_with_logits,
    lambda y: y.flatten(0, 1).mean(0).clamp(1e-4).logit(),  # of notes that never sound, too
    negative_log_likelihood,
    0.0,
    "nats a step",
)


@dataclass(frozen=True)
class Task:
    """A network as torch starts it, and the data that it learns.

    Attributes:
        build: draws it from torch's own generator.
        sets: "train", "held" and "test".
        goal: what it learns.
    """

    build: Callable[[], nn.Module]
    sets: Callable[[], Sets]
    goal: Goal = CLASSES


def few() -> Sets:
    """Return 5,000 digits to train on and 5,000 to choose by."""
    return digits(5_000, 5_000)


TASKS = {
    "LeNet-5": Task(lenet, few),
    "VGG, five layers": Task(five_layers, few),
    "residual, 30 x 128": Task(ResidualNetwork, few),
    "10 x 50 sigmoids": Task(sigmoids, few),
    "LSTM of 32, HAR": Task(lambda: Recurrent(nn.LSTM), windows),
    "GRU of 32, HAR": Task(lambda: Recurrent(nn.GRU), windows),
    "transformer, rows of digits": Task(Transformer, few),
    "LSTM of 32, JSB": Task(lambda: NextChord(nn.LSTM), chorales, CHORDS),
    "GRU of 32, JSB": Task(lambda: NextChord(nn.GRU), chorales, CHORDS),
}


def adam(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    rate: float = 2e-3,
    epochs: int = 1,
    objective: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> None:
    """Train in an order that torch's generator gives, the rate falling to zero."""
    optimizer = torch.optim.Adam(network.parameters(), rate, fused=True)
    steps = epochs * -(-len(x) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            objective(network(x[rows]), y[rows]).backward()
            optimizer.step()
            falling.step()
