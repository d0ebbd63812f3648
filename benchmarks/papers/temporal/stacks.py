"""Networks of one size trained together: many small products become a few larger ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from benchmarks.papers.networks import SequenceModel


class NetworkStack(nn.Module):
    """The tanh networks of `temporal_methods.network`, as one with an outer axis.

    Args:
        models: plain recurrences of one size with a readout; they are not changed.
    """

    def __init__(self, models: Sequence[SequenceModel]) -> None:
        """Stack the weights."""
        super().__init__()
        for name, weights in stack_module_state(list(models))[0].items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(weights.detach()))

    def at_end(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the outputs at the last real step: (networks, batch, outputs).

        Args:
            x: (networks, batch, time, features).
            lengths: (networks, batch) steps of each sequence.
        """
        weight = self.get_parameter
        bias = weight("recurrence_bias_ih_l0") + weight("recurrence_bias_hh_l0")
        drive = torch.einsum("sbtf,shf->tsbh", x, weight("recurrence_weight_ih_l0"))
        back = weight("recurrence_weight_hh_l0").mT
        state, states = torch.zeros_like(drive[0]), []
        for step in drive + bias[:, None]:
            state = torch.tanh(torch.baddbmm(step, state, back))
            states.append(state)
        network, row = (torch.arange(size) for size in lengths.shape)
        last = torch.stack(states)[lengths - 1, network[:, None], row]
        readout = weight("readout_weight").mT
        return torch.baddbmm(weight("readout_bias")[:, None], last, readout)

    def backward(self, losses: Tensor, clip: float | None, rates: Tensor) -> None:
        """Set every network's gradient, clipped by its own norm and times its own rate.

        Args:
            losses: (networks,).
            clip: largest norm of a gradient, or None.
            rates: (networks,) learning rates, for an optimizer whose rate is 1.
        """
        self.zero_grad()
        losses.sum().backward()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        scale = rates
        if clip is not None:
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
            # The small number is that of torch.nn.utils.clip_grad_norm_.
            scale = rates * (clip / (norms + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(scale.reshape(-1, *[1] * (gradient.ndim - 1)))


def network_losses(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> Tensor:
    """Return the mean loss of each network: (networks,).

    Args:
        loss: of the outputs (batch, outputs) and targets of one network.
        outputs: (networks, batch, outputs).
        targets: (networks, batch, ...).
    """
    pairs = zip(outputs.unbind(0), targets.unbind(0), strict=True)
    return torch.stack([loss(out, target) for out, target in pairs])
