"""Kernels over time against float64 torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import Check, poisoned
from benchmarks.gpu.jobs import Job
from benchmarks.gpu.timing import Scale
from liftednet import activations
from liftednet.divergences import Divergence, joint
from liftednet.losses import CrossEntropy
from liftednet.problems import StatesOverTime, TimeLink
from liftednet.problems.states_over_time import forward_states
from liftednet.solvers.kernels.device import eliminated
from liftednet.solvers.over_time import DeviceSystem


def states_over_time(scale: Scale, divergence: Divergence, units: int) -> StatesOverTime:
    """Return sequences of unequal lengths below a softmax readout at every step."""
    device, steps, samples = scale.device, scale.size(400, 3), scale.size(200, 2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    lengths = torch.randint(1, steps + 1, (samples,), device=device)
    counted = torch.arange(steps, device=device)[:, None] < lengths
    above = CrossEntropy().divergence
    target = above.activation.forward(2 * draw(steps, samples, 5))
    link = TimeLink(above, draw(units, 5) / units**0.5, draw(5), target, counted)
    recurrent = 0.4 * draw(units, units) / units**0.5
    drive = draw(steps, samples, units)
    return StatesOverTime(divergence, drive, recurrent, (link,), lengths, 3.0)


def time_checks(scale: Scale) -> Iterator[Job]:
    """Yield the block-tridiagonal solve for several layers."""
    for units in (3,) if scale.toy else (5, 20, 50):
        yield Job(f"block-tridiagonal, {units} units", partial(_system, scale, units))


def _system(scale: Scale, units: int) -> Check:
    problem = states_over_time(scale, joint(activations.ReLU()), units).double()
    states = forward_states(problem)
    free = (torch.rand_like(states) > 0.3) & problem.valid.unsqueeze(-1)
    curvature = torch.where(free, problem.lam, 1.0).double()
    system = DeviceSystem(problem, states, free.double(), free, curvature)
    right = torch.randn_like(states) * free
    with poisoned():
        value = eliminated(system.blocks(slice(0, problem.steps)), system.coupling, free, right)
    off = torch.where(free, system.coupled(value) + curvature * value - right, 0.0)
    error = float(off.abs().max() / right.abs().max())
    name = f"{problem.steps:,} steps, {right.shape[1]} samples, {units} units, float64"
    return Check("block-tridiagonal", name, error, error, True, error <= 1e-9)
