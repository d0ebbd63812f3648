"""The control that every comparison of training carries: the same step with exact gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.models.data import Data
from liftednet.models.methods.batch_gradients import BatchGradients
from liftednet.network import State


@dataclass(frozen=True)
class _Backpropagated:
    """phi(u) with its derivative, in place of lifted targets."""

    activation: Activation

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.activation.forward(u)

    def at(self, _: Tensor) -> _Backpropagated:
        """Return itself: the derivative is that of each sample alone."""
        return self

    @torch.enable_grad()
    def gradient(self, u: Tensor, states: Tensor, push: Tensor) -> Tensor:
        """Return phi'(u) times the gradient."""
        u = u.detach().requires_grad_()
        return torch.autograd.grad(self.activation.forward(u), u, push)[0]


def _rule(gradients: BatchGradients, _: Data, counts: float, state: State) -> _Backpropagated:
    return _Backpropagated(gradients.structure.held(state).activation)


@contextmanager
def exact_gradients() -> Iterator[None]:
    """Train on minibatches by backpropagation within, the step and all else unchanged.

    A huge lam does not do it: lam (phi(u) - phi(u - g / lam)) loses its digits in float32.
    """
    with patch.object(BatchGradients, "_rule", _rule):
        yield
