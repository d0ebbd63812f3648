"""Times on the device, and the ceilings that they are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Scale:
    """Where the benchmark runs, and how large it is.

    Attributes:
        device: a GPU, or the CPU under the interpreter.
        toy: whether sizes are those of the interpreter, whose times mean nothing.
    """

    device: torch.device
    toy: bool

    def size(self, full: int, toy: int) -> int:
        """Return the size of this run."""
        return toy if self.toy else full


def wait(device: torch.device) -> None:
    """Wait until a device has done all that was handed to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, budget: float = 2.0) -> float:
    """Return the median time of a run, by events of the device where it has them.

    The first two runs are not counted: they compile, and fill caches. Runs are repeated until the
    budget in seconds is used up, at most 100 times.
    """
    for _ in range(2):
        work()
    wait(device)
    started = time.perf_counter()
    times: list[float] = []
    while len(times) < 3 or (time.perf_counter() - started < budget and len(times) < 100):
        times.append(_once(work, device))
    return median(times)


def _once(work: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


@dataclass(frozen=True)
class Ceilings:
    """What the card does best, measured.

    Attributes:
        copy: bytes a second of a large copy, read and written.
        float32: operations a second of a large float32 matrix product.
        tf32: the same with TF32 allowed.
        float64: the same in float64.
    """

    copy: float
    float32: float
    tf32: float
    float64: float


UNKNOWN = Ceilings(*4 * [float("nan")])


def ceilings(scale: Scale) -> Ceilings:
    """Measure the ceilings on random data."""
    return Ceilings(
        _copy(scale),
        _product(scale, torch.float32, allow_tf32=False),
        _product(scale, torch.float32, allow_tf32=True),
        _product(scale, torch.float64, allow_tf32=False),
    )


def _copy(scale: Scale) -> float:
    source = torch.randn(scale.size(1 << 29, 1 << 10), device=scale.device)
    copied = torch.empty_like(source)
    return 8 * source.numel() / seconds(partial(copied.copy_, source), scale.device)


def _product(scale: Scale, dtype: torch.dtype, allow_tf32: bool) -> float:
    size = scale.size(8192, 16)
    a, b = (torch.randn(size, size, device=scale.device, dtype=dtype) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    try:
        return 2 * size**3 / seconds(lambda: a @ b, scale.device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
