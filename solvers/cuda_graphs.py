"""Work of many launches as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Made = TypeVar("Made")

_WARM = 3  # runs before a recording, as torch asks
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero", "equal")
_COPIES = ("_to_copy", "copy_")


class Graphs(Protocol):
    """Records work, and replays it on the tensors that it saw."""

    def record(self, work: Callable[[], Made]) -> tuple[Made, Callable[[], None]]:
        """Return what the work makes, which has values after a replay, and the replay."""
        ...


class CudaGraphs:
    """CUDA graphs that share one pool of memory.

    What a graph makes on its way is dead when the next one begins, so that they can.
    No card has run this yet; tests see that torch is called in the order that it asks for.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin without a pool.

        Args:
            device: of the tensors.
        """
        self._device, self._pool = device, cast(Any, None)

    def record(self, work: Callable[[], Made]) -> tuple[Made, Callable[[], None]]:
        """Run the work three times on a stream of its own, and record it there."""
        with torch.cuda.device(self._device):
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                for _ in range(_WARM):
                    work()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Threads that load data may do meanwhile what a recording may not.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=side, capture_error_mode="thread_local"
            ):
                made = work()
        self._pool = graph.pool()
        return made, graph.replay


def graphs_for(tensor: Tensor) -> Graphs | None:
    """Return what records work on a tensor's device, None where launches cost nothing."""
    return CudaGraphs(tensor.device) if tensor.is_cuda else None


class Captured:
    """A function of tensors that replays what was recorded on tensors of its own.

    The function makes new tensors, and reads nothing of what is on the device.
    """

    def __init__(
        self, function: Callable[..., list[Tensor]], given: Sequence[Tensor], graphs: Graphs
    ) -> None:
        """Record the function.

        Args:
            function: of as many tensors as are given.
            given: of the shapes and types of all calls.
            graphs: records it.

        Raises:
            RuntimeError: the function reads from the device, or cannot be recorded.
        """
        self._held = [x.clone() for x in given]
        self._last: list[Tensor | None] = [None] * len(self._held)
        with Unread():  # type: ignore[no-untyped-call]
            function(*self._held)
        self._made, self._replay = graphs.record(lambda: function(*self._held))

    def __call__(self, *given: Tensor) -> list[Tensor]:
        """Return what the function makes; what is given again must not have changed in place."""
        for held, new, last in zip(self._held, given, self._last, strict=True):
            if new is not last:
                held.copy_(new)
        self._last = list(given)
        self._replay()
        return [x.clone() for x in self._made]


class Unread(TorchDispatchMode):
    """Refuses what waits for a device, and so cannot be recorded, by a `RuntimeError`."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at an operation, and do it."""
        name = function.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(x, Tensor) and x.dtype is torch.bool
            for part in args[1:]
            if isinstance(part, list | tuple)
            for x in part
        )
        found = function(*args, **(kwargs or {}))
        moves = name in _COPIES and any(
            isinstance(x, Tensor) and x.is_cuda != found.is_cuda for x in args
        )
        if name in _READS or masks or moves:
            raise RuntimeError(f"{name} reads from the device")
        return found
