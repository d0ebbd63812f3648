"""Kernels over time against float64 torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import Check, poisoned
from benchmarks.gpu.jobs import Job
from benchmarks.gpu.timing import Scale, wait
from liftednet import activations
from liftednet.divergences import Divergence, joint, tight
from liftednet.losses import CrossEntropy
from liftednet.problems import StatesOverTime, TimeLink
from liftednet.problems.states_over_time import forward_states
from liftednet.solvers import RedBlack
from liftednet.solvers.kernels import FusedRedBlack
from liftednet.solvers.kernels.elimination import eliminated
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
    """Yield red-black sweeps for several layers, and the block-tridiagonal solve."""
    cases: list[tuple[Divergence, int]] = [(joint(activations.ReLU()), scale.size(20, 3))]
    if not scale.toy:
        cases += [(tight(activations.Tanh()), 20), (joint(activations.ReLU()), 100)]
    for divergence, units in cases:
        yield Job(f"red-black, {units} units", partial(_red_black, scale, divergence, units))
    for units in (3,) if scale.toy else (5, 20, 50):
        yield Job(f"block-tridiagonal, {units} units", partial(_system, scale, units))


def _red_black(scale: Scale, divergence: Divergence, units: int) -> Check:
    problem = states_over_time(scale, divergence, units)
    name = f"{problem.steps:,} steps, {units} units, {type(divergence).__name__} "
    name += f"{divergence.activation!r}, softmax readout"
    started = time.perf_counter()
    with poisoned():
        first = FusedRedBlack().solve(problem)
        wait(scale.device)
    seconds = time.perf_counter() - started
    second = FusedRedBlack().solve(problem)
    expected = RedBlack().solve(problem.double()).value
    error = float((first.value - expected).abs().max())
    same, residual = bool(first.value.equal(second.value)), float(first.residual)
    good = residual <= 1e-5 and error <= 1e-3 and same
    note = f"{int(first.iterations)} sweeps, {seconds:.3f} s with compiling"
    return Check("fused-red-black", name, residual, error, same, good, note)


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
