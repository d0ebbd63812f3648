"""One full-batch sweep over all blocks at 60,000 samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.timing import Scale, wait
from benchmarks.gpu.training_data import Images
from liftednet.activations import ReLU
from liftednet.models import FullBatch, LiftedMLP
from liftednet.models.results import Trace


@dataclass(frozen=True)
class SweepSpeed:
    """A sweep of a network.

    Attributes:
        network: its sizes and divergence.
        milliseconds: median of a sweep, from its first block to the next sweep's.
        blocks: of the slowest sweep that was timed, when each was handed on, in milliseconds.
        waits: how often the host waited for the device in a fit of two sweeps; -1 if not known.
        objectives: after each sweep.
    """

    network: str
    milliseconds: float
    blocks: str
    waits: int
    objectives: tuple[float, ...]


def sweep_speeds(scale: Scale, images: Images) -> Iterator[Job]:
    """Yield the networks of the aims, joint and tight."""
    for sizes in [(784, 6, 10) if scale.toy else (784, 300, 10)]:
        for divergence in ("joint", "tight"):
            name = f"{'-'.join(map(str, sizes))}, {divergence}"
            yield Job(name, partial(_speed, scale, images, sizes, divergence))


def _speed(scale: Scale, images: Images, sizes: tuple[int, ...], divergence: str) -> SweepSpeed:
    sweeps = scale.size(5, 3)
    _fit(scale, images, sizes, divergence, 2)
    wait(scale.device)
    trace = _fit(scale, images, sizes, divergence, sweeps)
    begun = [
        next(step.seconds for step in trace.steps if step.number == sweep)
        for sweep in range(sweeps)
        if any(step.number == sweep for step in trace.steps)
    ]
    spans = [after - before for before, after in pairwise(begun)]
    ends = [
        [step.objective for step in trace.steps if step.number == sweep][-1]
        for sweep in range(len(begun))
    ]
    last = [step for step in trace.steps if step.number == len(begun) - 1]
    blocks = ", ".join(f"{step.block} +{1e3 * (step.seconds - begun[-1]):.2f}" for step in last)
    name = f"{'-'.join(map(str, sizes))}, {divergence}"
    waits = _waits(scale, images, sizes, divergence)
    return SweepSpeed(name, 1e3 * median(spans), blocks, waits, tuple(ends))


def _fit(
    scale: Scale, images: Images, sizes: tuple[int, ...], divergence: str, sweeps: int
) -> Trace:
    model = LiftedMLP(
        sizes,
        ReLU(),
        lam=0.1,
        rho=0.1,
        divergence=divergence,
        method=FullBatch(sweeps=sweeps, tolerance=1e-12, extrapolation=False),
        dtype=torch.float32,
        device=str(scale.device),
    )
    trace = model.fit(images.x_train, images.y_train).trace
    assert trace is not None
    return trace


def _waits(scale: Scale, images: Images, sizes: tuple[int, ...], divergence: str) -> int:
    if scale.device.type != "cuda":
        return -1
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _fit(scale, images, sizes, divergence, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
