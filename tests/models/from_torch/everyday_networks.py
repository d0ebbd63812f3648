"""Small networks whose forward passes are written as users write them, one idiom each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Written(nn.Module):
    """A network of four dense layers, shared where they are called twice, and a forward pass."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], outputs: int = 3) -> None:
        """Take what it computes."""
        super().__init__()
        self.written = forward
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, outputs)
        self.steps, self.picture = nn.Linear(2, 8), nn.Conv2d(1, 8, 2)
        self.narrow, self.single = nn.Linear(4, 8), nn.Linear(8, 1)
        self.scale, self.token = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(1, 1, 2))
        self.mix = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = self.written(self, x)
        return outputs


def gated_in_place(s: Any, x: Tensor) -> Any:
    """Multiply two tensors in place."""
    x = s.one(x).relu()
    x *= s.two(x).sigmoid()
    return s.three(x)


def shrunk(s: Any, x: Tensor) -> Any:
    """Subtract and divide in place."""
    x = s.one(x).relu()
    x -= 0.1
    x /= 2
    return s.three(x)


def method_in_place(s: Any, x: Tensor) -> Any:
    """Call the methods that end in an underscore."""
    x = s.one(x).relu_()
    x.add_(s.two(x)).mul_(0.5)
    return s.three(x)


def function_in_place(s: Any, x: Tensor) -> Any:
    """Forget the value of a function in place."""
    x = s.one(x)
    functional.relu(x, inplace=True)
    return s.three(x)


def halves(s: Any, x: Tensor) -> Any:
    """Multiply one half by the other's gate."""
    a, b = s.one(x).chunk(2, dim=-1)
    return s.three(s.narrow(a * torch.sigmoid(b)))


FLAT, STEPS, PICTURES = (6,), (3, 2), (1, 3, 3)
F = functional

# Sample shapes, outputs (0: one number, without an axis of its own), and the forward pass.
NETWORKS: dict[str, tuple[tuple[int, ...], int, Callable[[Any, Tensor], Any]]] = {
    "squeeze(-1)": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).squeeze(-1)),
    "view(-1)": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).view(-1)),
    "sigmoid at the end": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).sigmoid().squeeze(-1)),
    "dot": (FLAT, 0, lambda s, x: s.one(x).relu() @ s.scale),
    "product and sum": (FLAT, 0, lambda s, x: (s.one(x).relu() * s.two(s.one(x))).sum(dim=1)),
    "clamp": (FLAT, 3, lambda s, x: s.three(s.one(x).clamp(min=0))),
    "in place, not returned": (FLAT, 3, function_in_place),
    "*= gate": (FLAT, 3, gated_in_place),
    "-=, /=": (FLAT, 3, shrunk),
    "add_, mul_": (FLAT, 3, method_in_place),
    "scale": (FLAT, 3, lambda s, x: s.three(s.scale * s.one(x).relu())),
    "scalar parameter": (FLAT, 3, lambda s, x: s.three(s.mix * s.one(x).relu())),
    "chunk": (FLAT, 3, halves),
    "unbind": (STEPS, 3, lambda s, x: s.three(s.steps(x.unbind(1)[-1]).relu())),
    "cat": (FLAT, 3, lambda s, x: s.three(s.narrow(torch.cat([x[:, :2], x[:, 4:]], dim=1)).relu())),
    "[arange(n), -1]": (STEPS, 3, lambda s, x: s.three(s.steps(x)[torch.arange(len(x)), -1])),
    "view(len(x), -1)": (PICTURES, 3, lambda s, x: s.three(
        s.two(s.picture(x).relu().view(len(x), 8, -1).mean(-1)))),
    "steps as samples": (STEPS, 3, lambda s, x: s.three(
        s.steps(x.reshape(-1, 2)).relu().reshape(len(x), 3, 8).mean(1))),
    "token": (STEPS, 3, lambda s, x: s.three(
        s.steps(torch.cat([s.token.expand(len(x), -1, -1), x], dim=1)).relu()[:, 0])),
    "zeros as a state": (STEPS, 3, lambda s, x: s.three(
        (s.two(torch.zeros(len(x), 8)) + s.steps(x[:, 0])).tanh())),
    "adaptive pooling, squeeze()": (PICTURES, 3, lambda s, x: s.three(
        F.adaptive_avg_pool2d(s.picture(x).relu(), 1).squeeze())),
    "max pooling": (PICTURES, 3, lambda s, x: s.three(
        F.max_pool2d(F.relu(s.picture(x)), 2).view(x.size(0), -1))),
    "torch.where": (FLAT, 3, lambda s, x: s.three(torch.where(s.one(x) > 0, s.one(x), 0.1))),
    "x @ weight.T": (FLAT, 3, lambda s, x: s.three((x @ s.one.weight.T + s.one.bias).relu())),
    "t()": (FLAT, 3, lambda s, x: s.three((s.two.weight @ s.one(x).t()).t().relu())),
}  # fmt: skip
