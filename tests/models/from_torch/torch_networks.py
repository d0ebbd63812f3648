"""Torch networks as people write them, which the tests of `lift` share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.programs.networks import Called


class LeNet(nn.Module):
    """Modules registered in another order than they run, and functions beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        self.dense = nn.Linear(400, 120)
        self.second = nn.Conv2d(6, 16, 5)
        self.first = nn.Conv2d(1, 6, 5, padding=2)

    def forward(self, x: Tensor) -> Any:
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.avg_pool2d(torch.tanh(self.second(x)), 2)
        x = functional.relu(self.dense(x.view(x.size(0), -1)), inplace=True)
        return self.out(x)


def vgg() -> nn.Module:
    def block(below: int, above: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(below, above, 3, padding=1), nn.BatchNorm2d(above), nn.ReLU(inplace=True)
        )

    return nn.Sequential(
        block(3, 8), block(8, 8), nn.MaxPool2d(2), block(8, 16), block(16, 16), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 12), nn.ELU(), nn.Dropout(0.5), nn.Linear(12, 5),
    )  # fmt: skip


class Attention(nn.Module):
    """Causal attention written out."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.heads = nn.Dropout(0.1), heads
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(longest, longest).tril().bool())

    def forward(self, x: Tensor) -> Any:
        samples, steps, width = x.size()
        if steps > len(self.mask):
            raise ValueError("too long")
        q, k, v = (
            part.view(samples, steps, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attend(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(~self.mask[:steps, :steps], float("-inf"))
        y = self.dropout(functional.softmax(scores, dim=-1)) @ v
        return self.project(y.transpose(1, 2).contiguous().view(samples, steps, width))


class GPT(nn.Module):
    """A block of a transformer with tied tables, on whole numbers."""

    def __init__(self, words: int = 11, width: int = 8, longest: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2, longest)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, numbers: Tensor) -> Any:
        x = self.words(numbers) + self.places(torch.arange(numbers.size(1), device=numbers.device))
        x = x + self.attention(self.first(x))
        x = x + self.mlp(self.second(x))
        return self.head(self.last(x))


class Sequences(nn.Module):
    """A classifier on the last step of recurrent layers, or on each."""

    def __init__(self, kind: Any = nn.LSTM, steps: bool = False, **options: Any) -> None:
        super().__init__()
        self.steps = steps
        self.recurrent = kind(3, 5, batch_first=True, **options)
        width = 5 * (1 + bool(options.get("bidirectional")))
        self.dropout, self.out = nn.Dropout(0.3), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Any:
        states, _ = self.recurrent(x)
        return self.out(self.dropout(states if self.steps else states[:, -1]))


class LastState(nn.Module):
    """h and c of a recurrent network whose samples stand second."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(3, 5, num_layers=2, bidirectional=True)
        self.out = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Any:
        _, (h, c) = self.recurrent(x.transpose(0, 1))
        return self.out(torch.cat([h[-1], h[-2], c[0], c[-1]], dim=1))


class Rounded(torch.autograd.Function):
    """A function whose backward pass is not that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(ctx: Any, *push: Tensor) -> Tensor:
        return push[0]


class Tied(nn.Module):
    """A weight at two places with biases of their own, parameters without layers, no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.scale, self.shift = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(1, 6))
        self.act = nn.PReLU()

    def forward(self, x: Tensor) -> Any:
        x = self.act(self.first(x) * self.scale + self.shift)
        x = torch.tanh(self.second(x)) + x.detach() * (4 * x).long().to(x.dtype)
        return self.out(x)


class Many(nn.Module):
    """Layers that the others lack."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.rows = nn.Conv1d(4, 3, 3, padding="same", padding_mode="circular")
        self.line = nn.BatchNorm1d(3)
        self.acts = nn.ModuleList([nn.SiLU(), nn.Mish(), nn.LeakyReLU(0.2), nn.Hardtanh()])
        self.more = nn.ModuleList([nn.ReLU6(), nn.Softplus(), nn.Sigmoid(), nn.SELU()])
        self.out = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.acts[0](self.norm(self.groups(x)))
        x = self.acts[1](self.up(x)).mean(dim=-1)
        x = self.acts[2](self.line(self.rows(x)))
        x = self.acts[3](x) * self.more[0](x) - self.more[1](x) / 2.0
        x = torch.cat([self.more[2](x), self.more[3](x)], dim=2).mean(2)
        return self.out(x)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    return nn.Sequential(
        nn.Linear(3, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Flatten(), nn.Linear(40, 4),
    )  # fmt: skip


class Fused(nn.Module):
    """Attention by torch's function, on tokens cut from pictures, with a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token, self.places = nn.Parameter(torch.rand(1, 1, 8)), nn.Parameter(torch.rand(5, 8))
        self.attend, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        q, k, v = self.attend(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(functional.silu(x + y.transpose(1, 2).flatten(2))[:, -1])


class Cells(nn.Module):
    """Recurrent cells that Python runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LSTMCell(3, 5), nn.GRUCell(5, 5)
        self.three, self.out = nn.RNNCell(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        h = c = g = f = x.new_zeros(len(x), 5)
        for step in range(x.shape[1]):
            h, c = self.one(x[:, step], (h, c))
            g = self.two(h, g)
            f = self.three(g, f)
        return self.out(f)


class Translator(nn.Module):
    """Cells that read all tokens, and others that write five of as many kinds as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.writer = nn.GRUCell(6, 9), nn.GRUCell(6, 9)
        self.readout = nn.Linear(9, 6)

    def forward(self, x: Tensor) -> Any:
        state, written = None, []
        for token in x.unbind(1):
            state = self.reader(token, state)
        for _ in range(5):
            state = self.writer(torch.zeros_like(x[:, 0]), state)
            written.append(self.readout(state))
        return torch.stack(written, 1)


class Words(nn.Module):
    """Recurrent layers on words, the missing ones left out of a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, padding_idx=0)
        self.recurrent = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.again, self.out = nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, numbers: Tensor) -> Any:
        there = (numbers != 0).unsqueeze(-1).to(self.out.weight.dtype)
        x, _ = self.recurrent(self.words(numbers))
        x = (x * there).sum(1) / there.sum(1).clamp(min=1)
        return self.out(torch.tanh(self.again(self.again(x))) + x)


class Parts(list[Tensor]):
    """A list that torch looks into as into any."""


def quantized() -> nn.Module:
    """Return layers with a function and a list of the user's own, held from before it is read."""
    parts = Called(lambda x: torch.cat(Parts(x.split(1, 1)), 1))
    layers = nn.Sigmoid(), Called(Rounded.apply), parts
    return nn.Sequential(nn.Linear(6, 5), *layers, nn.Linear(5, 3))


def rare() -> nn.Module:
    """Return a chain of activations that torch alone has."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.Softshrink(0.1), nn.Linear(6, 6), nn.LogSigmoid(), nn.Linear(6, 6),
        nn.Hardswish(), nn.Linear(6, 6), nn.Tanhshrink(), nn.Linear(6, 3),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network and what it takes.

    Attributes:
        make: the network.
        shape: of a sample, floating point; or how many whole numbers there are in `words`.
        words: whole numbers are below this; 0 for floating point.
        steps: how many answers it has, or 0 where it has one without an axis of steps.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: int = 0
    steps: int = 0

    def samples(self, count: int, generator: torch.Generator) -> Tensor:
        """Return samples, (count, ...)."""
        if self.words:
            return torch.randint(self.words, (count, *self.shape), generator=generator)
        return torch.randn(count, *self.shape, generator=generator)

    def labels(self, count: int) -> Tensor:
        """Return labels of three classes."""
        shape = (count, self.steps) if self.steps else (count,)
        return torch.arange(count * max(1, self.steps)).reshape(shape) % 3


CASES = {
    "lenet": Case(LeNet, (1, 28, 28)),
    "vgg": Case(vgg, (3, 8, 8)),
    "gpt": Case(GPT, (6,), 11, steps=6),
    "lstm": Case(lambda: Sequences(num_layers=2), (7, 3)),
    "gru": Case(lambda: Sequences(nn.GRU, num_layers=2), (5, 3)),
    "rnn": Case(lambda: Sequences(nn.RNN, nonlinearity="relu"), (5, 3)),
    "last state": Case(LastState, (4, 3)),
    "own function": Case(quantized, (6,)),
    "cells": Case(Cells, (3, 3)),
    "translator": Case(Translator, (8, 6), steps=5),
    "words": Case(Words, (4,), 9),
    "rare activations": Case(rare, (4,)),
    "tied": Case(Tied, (6,)),
    "many": Case(Many, (4, 4, 4)),
    "transformer": Case(transformer, (5, 3)),
    "fused attention": Case(Fused, (3, 8, 8)),
}
