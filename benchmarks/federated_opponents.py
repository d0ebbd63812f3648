"""What else trains on data that nobody may move: averaged weights, all-reduced gradients, heads.

Every opponent takes clients and a number of rounds, and returns how it predicts and what bytes one
client sends. A round is a message from all clients and an answer. All clients take part in every
round, their gradients are exact (of all their samples), and a server computes for free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

Weights = list[Tensor]
Predict = Callable[[Tensor], Tensor]
Trained = tuple[Predict, float]


@dataclass(frozen=True)
class Clients:
    """Samples of clients, padded to as many each.

    Attributes:
        x: (clients, most, inputs).
        y: (clients, most) labels, 0 where padded.
        counts: (clients, most) 1 for a sample, 0 where padded.
        units: of the network, inputs first.
    """

    x: Tensor
    y: Tensor
    counts: Tensor
    units: tuple[int, int, int]

    @property
    def pooled(self) -> tuple[Tensor, Tensor]:
        """All samples, for methods whose sums do not depend on who has which."""
        there = self.counts.flatten() > 0
        return self.x.flatten(0, 1)[there], self.y.flatten()[there]

    @property
    def shares(self) -> Tensor:
        """What share of all samples every client has."""
        return self.counts.sum(1) / self.counts.sum()


def start(units: tuple[int, int, int], seed: int) -> Weights:
    """Return torch's initial weights as X W + b takes them."""
    torch.manual_seed(seed)
    layers = [nn.Linear(units[0], units[1]), nn.Linear(units[1], units[2])]
    return [
        part for x in layers for part in (x.weight.detach().T.contiguous(), x.bias.detach().clone())
    ]


def outputs(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the logits; weights and x may have an axis of clients before their own."""
    first, bias, second, last = weights
    hidden = torch.relu(x @ first + bias.unsqueeze(-2))
    return hidden @ second + last.unsqueeze(-2)


def _predicts(weights: Weights) -> Predict:
    return lambda x: outputs(weights, x).argmax(-1)


def _bytes(weights: Weights) -> int:
    return 4 * sum(part.numel() for part in weights)


def _rate(rate: float, falls: bool, number: int, rounds: int) -> float:
    return rate * (1 - number / rounds) if falls else rate


def averaging(
    clients: Clients, rounds: int, seed: int, *,
    rate: float, steps: int, falls: bool = False, pull: float = 0.0, controls: bool = False,
) -> Trained:  # fmt: skip
    """FedAvg (McMahan et al., 2017), FedProx and SCAFFOLD (Li et al., Karimireddy et al., 2020).

    Args:
        clients: the samples.
        rounds: of averaging.
        seed: of the start.
        rate: of gradient steps on a client.
        steps: of them in a round.
        falls: whether the rate falls linearly to zero.
        pull: weight of |w - server's w|^2 / 2, FedProx.
        controls: whether gradients are corrected by control variates, SCAFFOLD.
    """
    weights, many = start(clients.units, seed), len(clients.x)
    shares = clients.shares
    held = [torch.zeros(many, *part.shape) for part in weights]  # of every client
    for number in range(rounds):
        length = _rate(rate, falls, number, rounds)
        whole = [torch.einsum("c,c...->...", shares, part) for part in held]
        own = [part.expand(many, *part.shape).clone() for part in weights]
        for _ in range(steps):
            own = [part.requires_grad_() for part in own]
            u = outputs(own, clients.x)
            loss = cross_entropy(u.flatten(0, 1), clients.y.flatten(), reduction="none")
            mean = (loss * (clients.counts / clients.counts.sum(1, keepdim=True)).flatten()).sum()
            slopes = torch.autograd.grad(mean, own)
            with torch.no_grad():
                if controls:
                    slopes = [g - h + c for g, h, c in zip(slopes, held, whole, strict=True)]
                own = [
                    part - length * (slope + pull * (part - first))
                    for part, slope, first in zip(own, slopes, weights, strict=True)
                ]
        if controls:
            held = [
                h - c + (first - part) / (steps * length)
                for h, c, first, part in zip(held, whole, weights, own, strict=True)
            ]
        weights = [torch.einsum("c,c...->...", shares, part) for part in own]
    return _predicts(weights), _bytes(weights) * rounds * (2 if controls else 1)


def _objective(weights: Weights, data: tuple[Tensor, Tensor], decay: float) -> Tensor:
    x, y = data
    squares = weights[0].square().sum() + weights[2].square().sum()
    return cross_entropy(outputs(weights, x), y) + decay / 2 * squares


def adam(
    clients: Clients, rounds: int, seed: int, *,
    rate: float, second: float = 0.999, falls: bool = True,
) -> Trained:  # fmt: skip
    """Adam on all-reduced gradients, which is FedAdam (Reddi et al., 2021) with one local step."""
    weights, data = start(clients.units, seed), clients.pooled
    weights = [part.requires_grad_() for part in weights]
    optimizer = torch.optim.Adam(weights, lr=rate, betas=(0.9, second))
    for number in range(rounds):
        optimizer.param_groups[0]["lr"] = _rate(rate, falls, number, rounds)
        optimizer.zero_grad()
        _objective(weights, data, 0.0).backward()
        optimizer.step()
    return _predicts([part.detach() for part in weights]), _bytes(weights) * rounds


def lbfgs(
    clients: Clients, rounds: int, seed: int, *, history: int, decay: float, wolfe: bool = True
) -> Trained:
    """L-BFGS on all-reduced gradients, one of which is a round, those of line searches too."""
    weights, data = start(clients.units, seed), clients.pooled
    weights = [part.requires_grad_() for part in weights]
    optimizer = torch.optim.LBFGS(
        weights, max_iter=rounds, max_eval=rounds, history_size=history, tolerance_grad=0.0,
        tolerance_change=0.0, line_search_fn="strong_wolfe" if wolfe else None,
    )  # fmt: skip
    best: list[Any] = [math.inf, None]
    sent = 0

    def closure() -> Tensor:
        nonlocal sent
        optimizer.zero_grad()
        loss = _objective(weights, data, decay)
        loss.backward()
        sent += 1
        if sent <= rounds and float(loss.detach()) < best[0]:
            best[:] = float(loss.detach()), [part.detach().clone() for part in weights]
        return loss

    optimizer.step(closure)
    return _predicts(best[1]), _bytes(weights) * min(sent, rounds)


def gauss_newton(
    clients: Clients, rounds: int, seed: int, *, damping: float, products: int, decay: float = 1e-4
) -> Trained:
    """Hessian-free Gauss-Newton (Martens, 2010): conjugate gradients on all-reduced products.

    A gradient, a product and a loss are a round each; a step starts from the last one, times .95.
    """
    weights, (x, y) = start(clients.units, seed), clients.pooled
    sent, reals = 0, 0
    before = [torch.zeros_like(part) for part in weights]
    value = None

    def function(*w: Tensor) -> Tensor:
        return outputs(w, x)

    while True:
        u, back = torch.func.vjp(function, *weights)
        chances = u.softmax(-1)
        slopes = back((chances - one_hot(y, u.shape[1])) / len(x))
        gradient = _with_decay(slopes, weights, decay)
        sent, reals = sent + 1, reals + 1
        if value is None:
            value = float(_objective(weights, (x, y), decay))  # beside the gradient

        def curved(
            v: Weights,
            chances: Tensor = chances, weights: Weights = weights, back: Any = back,
            damping: float = damping,
        ) -> Weights:  # fmt: skip
            _, ahead = torch.func.jvp(function, tuple(weights), tuple(v))
            bent = chances * (ahead - (chances * ahead).sum(-1, keepdim=True))
            found = _with_decay(back(bent / len(x)), v, decay)
            return [a + damping * b for a, b in zip(found, v, strict=True)]

        step = [0.95 * part for part in before]
        left = [-g - c for g, c in zip(gradient, curved(step), strict=True)]
        direction, squares = left, _dot(left, left)
        sent, reals = sent + 1, reals + 1
        for _ in range(products):
            if sent >= rounds - 1:
                break
            image = curved(direction)
            sent, reals = sent + 1, reals + 1
            length = squares / _dot(direction, image)
            step = [s + length * d for s, d in zip(step, direction, strict=True)]
            left = [r - length * i for r, i in zip(left, image, strict=True)]
            squares, old = _dot(left, left), squares
            direction = [r + squares / old * d for r, d in zip(left, direction, strict=True)]
        expected = (_dot(gradient, step) - _dot(left, step)) / 2
        reached = [w + s for w, s in zip(weights, step, strict=True)]
        after = float(_objective(reached, (x, y), decay))
        sent += 1
        share = (after - value) / expected if expected else 0.0
        damping *= 1.5 if share < 0.25 else 2 / 3 if share > 0.75 else 1.0
        lower = after < value
        if lower:
            weights, value = reached, after
        before = step if lower else [torch.zeros_like(part) for part in step]
        if sent >= rounds - 2:
            return _predicts(weights), _bytes(weights) * reals + 4.0 * (sent - reals)


def _with_decay(slopes: Sequence[Tensor], weights: Sequence[Tensor], decay: float) -> Weights:
    pulls = (decay, 0.0, decay, 0.0)
    return [g + pull * w for g, w, pull in zip(slopes, weights, pulls, strict=True)]


def _dot(one: Weights, other: Weights) -> float:
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))


def head(
    clients: Clients, rounds: int, seed: int, *, width: int, scale: float, ridge: float
) -> Trained:
    """A ridge regression of classes on random ReLU features: one round of Gram matrices."""
    (x, y), classes = clients.pooled, clients.units[2]
    source = torch.Generator().manual_seed(seed)
    first = torch.randn(x.shape[1], width, generator=source) * scale / math.sqrt(x.shape[1])
    bias = scale * (2 * torch.rand(width, generator=source) - 1)

    def features(rows: Tensor) -> Tensor:
        hidden = torch.relu(rows @ first + bias)
        return torch.cat([hidden, hidden.new_ones(len(rows), 1)], 1)

    gram = x.new_zeros(width + 1, width + 1, dtype=torch.float64)
    cross = x.new_zeros(width + 1, classes, dtype=torch.float64)
    for rows, labels in zip(x.split(2_000), y.split(2_000), strict=True):
        h = features(rows).double()
        gram += h.T @ h
        cross += h.T @ one_hot(labels, classes).double()
    system = gram + ridge * torch.eye(width + 1, dtype=torch.float64) * gram.trace() / width
    last = torch.linalg.solve(system, cross).float()
    sent = 8 * ((width + 1) * (width + 2) / 2 + (width + 1) * classes)
    return lambda rows: (features(rows) @ last).argmax(1), sent
