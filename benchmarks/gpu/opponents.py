"""What torch does without our kernels: steps fused by torch.compile, and in CUDA graphs."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.timing import Scale, seconds
from liftednet.problems import StateFit
from liftednet.solvers.base import default_tolerance
from liftednet.solvers.proximal import PrimalRows, Walk, advance, curvature, primal_rows

_WARM = 3  # runs before a recording
_STAGE = 5  # steps of a loop that are compiled or captured together
_STAGES = 120  # at most, until a loop has lost


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return work as a CUDA graph of it; where there is no GPU, the work itself.

    It runs three times before, as torch asks; what that changes is the caller's to undo.
    """
    if device.type != "cuda":
        return work
    with torch.cuda.device(device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(_WARM):
                work()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # of another graph, which must not go while this one is recorded
        with torch.cuda.graph(graph, stream=side):
            work()
    return graph.replay


def compiled(scale: Scale, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return work by torch.compile in one piece; at toy sizes it is traced, and not fused."""
    backend = "eager" if scale.toy else "inductor"
    torch.compiler.reset()  # or the ninth problem would be refused, whose sizes are its own
    found: Callable[..., Any] = torch.compile(work, fullgraph=True, dynamic=False, backend=backend)
    return found


def timed(name: str, work: Callable[[], float]) -> float:
    """Return seconds of an opponent, or NaN where torch cannot have it so."""
    try:
        return work()
    except (
        Exception
    ) as error:  # whatever a compiler or a card may do: the kernel's row still counts
        print(
            f"  {name}: {type(error).__name__}: {str(error).strip().splitlines()[:1]}", flush=True
        )
        return math.nan


def best_of(*times: float) -> float:
    """Return the least of those that are known, or NaN."""
    return min((time for time in times if not math.isnan(time)), default=math.nan)


class StateLoop:
    """Accelerated proximal gradient steps of a state fit, as many as the tolerance takes.

    The tensors of the walk stay in place, so that a CUDA graph can replay a stage of steps.
    """

    def __init__(self, scale: Scale, problem: StateFit) -> None:
        """Count the steps on the way."""
        self._scale, self._problem = scale, problem
        self._rows = primal_rows(problem, slice(None), *curvature(problem))
        z = problem.divergence.activation.forward(problem.pre_activation)
        one = z.new_ones(len(z), 1)
        self._begin = z, z, one
        self._walk = [part.clone() for part in self._begin]
        self.stages = self._needed()

    def seconds(self, fused: bool) -> float:
        """Return the time of all steps in a CUDA graph, of torch or fused by its compiler."""
        if self.stages is None:
            return math.nan
        stage = compiled(self._scale, _stage) if fused else _stage
        replay = captured(partial(self._work, stage), self._scale.device)
        return seconds(partial(self._run, replay, self.stages), self._scale.device, 0.2)

    def _work(self, stage: Callable[..., tuple[Tensor, ...]]) -> None:
        for kept, found in zip(self._walk, stage(self._rows, *self._walk), strict=True):
            kept.copy_(found)

    def _run(self, replay: Callable[[], object], stages: int) -> None:
        for kept, first in zip(self._walk, self._begin, strict=True):
            kept.copy_(first)
        for _ in range(stages):
            replay()

    def _needed(self) -> int | None:
        """Return the stages until the residual is that of the tolerance, or None."""
        for count in range(1, _STAGES + 1):
            self._work(_stage)
            residual = float(self._problem.measure(self._walk[0]).residual)
            if residual <= default_tolerance(self._walk[0].dtype):
                return count
        return None


def _stage(rows: PrimalRows, states: Tensor, ahead: Tensor, momentum: Tensor) -> Any:
    at = Walk(states, ahead, momentum, momentum, momentum)
    for _ in range(_STAGE):
        at = advance(rows, at)
    return at.states, at.ahead, at.momentum
