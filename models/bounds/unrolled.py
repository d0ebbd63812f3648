"""Recurrences step by step, so that calls that are known make them up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Unrolled(nn.Module):
    """What torch.nn.RNN computes, as an affine map and an activation for every step.

    Args:
        recurrence: whose weights it shares.
    """

    def __init__(self, recurrence: nn.RNN) -> None:
        """Keep the recurrence."""
        super().__init__()
        self.weights = nn.ParameterDict(dict(recurrence.named_parameters()))
        self.like = {
            name: getattr(recurrence, name)
            for name in ("batch_first", "bidirectional", "nonlinearity", "num_layers", "bias")
        }
        self.units = recurrence.hidden_size

    def forward(self, x: Tensor, start: Any = None) -> tuple[Tensor, Tensor]:
        """Return the states of the last layer at all steps, and the last states of all layers."""
        steps = list(x.unbind(1 if self.like["batch_first"] else 0))
        bends = torch.tanh if self.like["nonlinearity"] == "tanh" else torch.relu
        last = list[Tensor]()
        for layer in range(self.like["num_layers"]):
            ways = []
            for suffix in ("", "_reverse")[: 1 + self.like["bidirectional"]]:
                h = (
                    steps[0].new_zeros(len(steps[0]), self.units)
                    if start is None
                    else start[len(last)]
                )
                own, found = f"l{layer}{suffix}", list[Tensor]()
                for step in reversed(steps) if suffix else steps:
                    u = self.affine(f"ih_{own}", step) + self.affine(f"hh_{own}", h)
                    h = bends(u)
                    found.append(h)
                ways.append(found[::-1] if suffix else found)
                last.append(h)
            steps = (
                [torch.cat(each, 1) for each in zip(*ways, strict=True)]
                if len(ways) > 1
                else ways[0]
            )
        return torch.stack(steps, 1 if self.like["batch_first"] else 0), torch.stack(last)

    def affine(self, name: str, v: Tensor) -> Tensor:
        """Return a weight times v, and its bias."""
        bias = self.weights[f"bias_{name}"] if self.like["bias"] else None
        return nn.functional.linear(v, self.weights[f"weight_{name}"], bias)


def unrolled(network: nn.Module) -> nn.Module:
    """Return a network whose recurrences of tanh or ReLU are unrolled, in place."""
    if type(network) is nn.RNN and not network.proj_size:
        return Unrolled(network)
    for name, child in network.named_children():
        setattr(network, name, unrolled(child))
    return network
