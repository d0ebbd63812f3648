"""Recurrences whose structure keeps what is long ago: a slow context, and gates between layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from liftednet.validation import require_count


class ContextRNN(nn.Module):
    """The structurally constrained recurrent network, with units that change slowly beside others.

    s_t = (1 - q) B x_t + q s_{t-1}, q = sigmoid(beta), and h_t = sigmoid(P s_t + A x_t +
    R h_{t-1}): On Recurrent Neural Networks, eq. 2.12 and 2.15, after Mikolov et al., 2015. What
    it shows is h_t and s_t together, so that a linear readout is eq. 2.13.

    Args:
        input_size: features.
        hidden_size: units of h.
        context_size: units of s, whose q start at 0.95.

    Raises:
        DataError: a size is not a positive integer.

    Example:
        >>> import torch
        >>> from benchmarks.papers.networks import ContextRNN
        >>> states, (h, s) = ContextRNN(3, 5, 2)(torch.zeros(4, 6, 3))
        >>> states.shape, s.shape
        (torch.Size([4, 6, 7]), torch.Size([4, 2]))
    """

    def __init__(self, input_size: int, hidden_size: int, context_size: int) -> None:
        """Draw the weights as torch.nn.Linear does."""
        super().__init__()
        for name, size in (("hidden_size", hidden_size), ("context_size", context_size)):
            require_count(name, size, 1)
        self.context = nn.Linear(input_size, context_size, bias=False)
        self.beta = nn.Parameter(torch.full((context_size,), 0.95).logit())
        self.input = nn.Linear(input_size, hidden_size)
        self.from_context = nn.Linear(context_size, hidden_size, bias=False)
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return h and s of every step (batch, time, hidden + context), and the last (h, s).

        Args:
            x: (batch, time, features).
            state: (batch, hidden) and (batch, context); None is zero.
        """
        q = torch.sigmoid(self.beta)
        if state is None:
            state = x.new_zeros(len(x), self.input.out_features), x.new_zeros(len(x), len(q))
        (h, s), shown = state, []
        for step in x.unbind(1):
            s = (1 - q) * self.context(step) + q * s
            h = torch.sigmoid(self.from_context(s) + self.input(step) + self.recurrent(h))
            shown.append(torch.cat([h, s], 1))
        return torch.stack(shown, 1), (h, s)


class GatedFeedbackRNN(nn.Module):
    """Stacked tanh layers, each fed by all layers a step before through one gate for each pair.

    h_t^j = tanh(W_j h_t^{j-1} + sum over i of g^{i->j} U_{ij} h_{t-1}^i), h_t^0 = x_t, with
    g^{i->j} = sigmoid(<w_{ij}, h_t^{j-1}> + <u_{ij}, h_{t-1}>) of all states a step before: On
    Recurrent Neural Networks, eq. 2.16, after Chung et al., 2015.

    Args:
        input_size: features.
        hidden_size: units of each layer.
        layers: number of layers.

    Raises:
        DataError: a size is not a positive integer.

    Example:
        >>> import torch
        >>> from benchmarks.papers.networks import GatedFeedbackRNN
        >>> states, last = GatedFeedbackRNN(3, 5, layers=2)(torch.zeros(4, 6, 3))
        >>> states.shape, last.shape
        (torch.Size([4, 6, 5]), torch.Size([4, 2, 5]))
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int) -> None:
        """Draw the weights as torch.nn.Linear does."""
        super().__init__()
        require_count("hidden_size", hidden_size, 1)
        require_count("layers", layers, 1)
        self._size = layers, hidden_size
        sizes, total = [input_size] + [hidden_size] * (layers - 1), layers * hidden_size
        self.inputs = nn.ModuleList(nn.Linear(below, hidden_size) for below in sizes)
        self.feedback = nn.ModuleList(nn.Linear(total, hidden_size, bias=False) for _ in sizes)
        self.gates_below = nn.ModuleList(nn.Linear(below, layers, bias=False) for below in sizes)
        self.gates_before = nn.ModuleList(nn.Linear(total, layers, bias=False) for _ in sizes)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the last layer's states (batch, time, units) and every layer's last state.

        Args:
            x: (batch, time, features).
            state: (batch, layers, units); None is zero.
        """
        before = x.new_zeros(len(x), *self._size) if state is None else state
        parts = list(zip(self.inputs, self.feedback, self.gates_below, self.gates_before,
                         strict=True))  # fmt: skip
        shown = []
        for below in x.unbind(1):
            now, known = [], before.flatten(1)
            for into, feedback, gate_below, gate_before in parts:
                gates = torch.sigmoid(gate_below(below) + gate_before(known))
                fed = feedback((gates.unsqueeze(2) * before).flatten(1))
                below = torch.tanh(into(below) + fed)
                now.append(below)
            before = torch.stack(now, 1)
            shown.append(below)
        return torch.stack(shown, 1), before
