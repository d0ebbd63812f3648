"""The processes of torch.distributed among which the samples of a fit are divided.

Within `together` every sum over samples is that of all processes: each forms the sum of its own
rows, and one message adds them up. Everything else (weights, steps, decisions) is computed by each
process for itself, from the same numbers, and so alike. Outside of it nothing is sent.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributed

from liftednet.errors import DataError, FitWarning, LiftedError, ProcessError

_TOGETHER: ContextVar[str | None] = ContextVar("the device of messages", default=None)


# To stop, and to write: what this process asks of all, and what sums have told that any has asked.
_OWN_HANDS, _SEEN_HANDS = [False, False], [False, False]
_INSIDE = ("liftednet", "torch", "contextlib", "sklearn")  # a warning points at whom they serve


def warn(text: str, category: type[Warning] = FitWarning) -> None:
    """Warn from the first process, at the line of the user's that has asked for the work."""
    if rank() > 0:
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _package(names: dict[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def ask(stop: bool, write: bool) -> None:
    """Let the sums that this process sends from now on say what it asks of all."""
    _OWN_HANDS[:] = stop, write


def asked() -> tuple[bool, bool]:
    """Return what any of several has asked for since the last call: alike on all of them."""
    stop, write = _SEEN_HANDS
    _SEEN_HANDS[:] = False, False
    return stop, write


def size() -> int:
    """Return how many processes a sum is taken over: 1 outside of `together`."""
    return 1 if _TOGETHER.get() is None else distributed.get_world_size()


def rank() -> int:
    """Return the number of this process among them, from 0."""
    return 0 if _TOGETHER.get() is None else distributed.get_rank()


def together(device: str = "cpu") -> AbstractContextManager[None]:
    """Let sums be those of all processes, where there is a process group of several.

    Args:
        device: on which the tensors are.

    Raises:
        DataError: torchrun has started this process as one of several, and there is no process
            group; or its backend does not move tensors of the device.
    """
    return _messages(device if _several(device) else None)


def alone() -> AbstractContextManager[None]:
    """Let sums be those of this process."""
    return _messages(None)


@contextmanager
def _messages(device: str | None) -> Iterator[None]:
    """Let messages be sent from a device, or none."""
    token = _TOGETHER.set(device)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def _grouped() -> bool:
    """Say whether there is a process group of several processes.

    Raises:
        DataError: there should be one.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        started = os.environ.get("WORLD_SIZE", "1")
        if started != "1" and "RANK" in os.environ:
            raise DataError(
                f"this process is one of {started} that torchrun has started, and there is no "
                "process group: call torch.distributed.init_process_group() first, or remove "
                "WORLD_SIZE from the environment for a fit to the samples of this process alone."
            )
        return False
    return distributed.get_world_size() > 1


def _several(device: str) -> bool:
    """Say whether there is a process group of several processes, which serves a device."""
    if not _grouped():
        return False
    kind = torch.device(device).type
    served = distributed.distributed_c10d.get_backend_config()
    if f"{kind}:" not in served:
        raise DataError(
            f"the process group has the backend {distributed.get_backend()!r}, which does not move "
            f"tensors of {kind!r}, where the model is: init_process_group('cpu:gloo,cuda:nccl') "
            "serves both."
        )
    return True


@contextmanager
def _sending() -> Iterator[None]:
    """Raise `ProcessError` where another process does not answer."""
    try:
        yield
    except LiftedError:
        raise
    except RuntimeError as error:  # of the backend, which has no class of its own for all
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ProcessError(
            "another process has ended, or has not answered within the time that "
            "init_process_group(timeout=...) gives it (30 minutes, if it was not told): the fit "
            f"ends here, and the model keeps what was done. ({reason})"
        ) from error


def total(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of tensors over all processes, by one message.

    They travel in the widest of their types, and are added in an order that depends on the number
    of processes alone: two runs agree bit for bit, and so do all processes.
    """
    if size() == 1:
        return parts
    widest = max((part.dtype for part in parts), key=lambda dtype: torch.finfo(dtype).bits)
    hands = parts[0].new_tensor(_OWN_HANDS, dtype=widest)
    packed = torch.cat([*(part.detach().to(widest).flatten() for part in parts), hands])
    with _sending():
        distributed.all_reduce(packed)
    *found, hands = packed.split([*(part.numel() for part in parts), len(hands)])
    _see(hands > 0)
    return tuple(x.view(part.shape).to(part) for x, part in zip(found, parts, strict=True))


def _see(hands: Tensor) -> None:
    _SEEN_HANDS[:] = [x or y for x, y in zip(_SEEN_HANDS, hands.tolist(), strict=True)]


def total_of(number: float) -> float:
    """Return the sum of a number over all processes, in float64."""
    return number if size() == 1 else float(gathered([number])[:, 0].sum())


def gathered(numbers: Sequence[float] | Tensor) -> Tensor:
    """Return numbers of every process, (processes, ...), float64, in the order of the processes."""
    device = _TOGETHER.get()
    own = torch.as_tensor(numbers, dtype=torch.float64, device=device)
    if size() == 1:
        return own.unsqueeze(0)
    shape = own.shape
    own = torch.cat([own.flatten(), own.new_tensor(_OWN_HANDS)])
    found = [torch.empty_like(own) for _ in range(size())]
    with _sending():
        distributed.all_gather(found, own)
    rows = torch.stack(found)
    _see((rows[:, -len(_OWN_HANDS) :] > 0).any(0))
    return rows[:, : -len(_OWN_HANDS)].view(size(), *shape)


def largest(numbers: Sequence[float] | Tensor) -> Tensor:
    """Return the largest of each number over all processes, float64; NaN where one is."""
    return gathered(numbers).amax(0)


def joined(rows: Tensor, axis: int = 0) -> Tensor:
    """Return the rows of all processes, one process after another."""
    return _rows_of_all(rows, axis, everywhere=True)


def collected(rows: Tensor, axis: int = 0) -> Tensor:
    """Return the same on the first process, and the rows of its own on others."""
    return _rows_of_all(rows, axis, everywhere=False)


def _rows_of_all(rows: Tensor, axis: int, everywhere: bool) -> Tensor:
    """Return the rows of all processes, on all of them or on the first."""
    if size() == 1:
        return rows
    counts = gathered([rows.shape[axis]])[:, 0].long().tolist()
    moved = rows.detach().movedim(axis, 0)
    padded = moved.new_zeros(max(counts), *moved.shape[1:])
    padded[: len(moved)] = moved
    kept = everywhere or rank() == 0
    found = [torch.empty_like(padded) for _ in counts] if kept else None
    with _sending():
        if everywhere:
            distributed.all_gather(found, padded)
        else:
            distributed.gather(padded, found)
    if found is None:
        return rows
    parts = [part[:count] for part, count in zip(found, counts, strict=True)]
    return torch.cat(parts).movedim(0, axis)


def texts(own: str) -> list[str]:
    """Return the texts of all processes."""
    entries = torch.frombuffer(bytearray(own.encode() + b"\n"), dtype=torch.uint8)
    found = joined(entries.to(_TOGETHER.get() or "cpu"))
    return found.cpu().numpy().tobytes().decode().split("\n")[: size()]


@contextmanager
def agreed() -> Iterator[None]:
    """Work on the rows of this process alone; an error on one process is raised on all.

    Raises:
        LiftedError: of another process, of the same class where it is one of this library's.
    """
    if size() == 1:
        yield
        return
    own: Exception | None = None
    with alone():
        try:
            yield
        except Exception as error:
            own = error
    if not bool(largest([own is not None]).any()):
        return
    known = isinstance(own, LiftedError)
    kind = type(own).__name__ if known else ""
    told = texts("" if own is None else f"{kind}:{own}".replace("\n", " "))
    if own is not None:
        raise own
    number, text = next((number, text) for number, text in enumerate(told) if text)
    name, _, message = text.partition(":")
    kinds = {kind.__name__: kind for kind in LiftedError.__subclasses__()}
    raise kinds.get(name, ProcessError)(f"process {number}: {message}")


@dataclass(frozen=True)
class Share:
    """Which of all samples a process has: those that follow the rows of the processes before it.

    Attributes:
        counts: samples of every process.
        rank: of this one.
    """

    counts: tuple[int, ...]
    rank: int

    @cached_property
    def first(self) -> int:
        """The number, among all samples, of the first of this process."""
        return sum(self.counts[: self.rank])

    @property
    def rows(self) -> slice:
        """Where, among all samples, those of this process stand."""
        return slice(self.first, self.first + self.counts[self.rank])

    @cached_property
    def samples(self) -> int:
        """The number of all samples."""
        return sum(self.counts)

    def own(self, numbers: Tensor) -> Tensor:
        """Return which samples of this process are among the samples of some numbers, in order."""
        if len(self.counts) == 1:
            return numbers
        here = numbers - self.first
        return here[(here >= 0) & (here < self.counts[self.rank])]


def share_of(samples: int) -> Share:
    """Return what this process has, which brings so many samples."""
    counts = gathered([samples])[:, 0].long().tolist()
    return Share(tuple(counts), rank())


def shard(samples: int) -> slice:
    """Return which rows of an array that every process can read this process should take.

    They are equal parts in the order of the processes, so that a fit to X[shard(len(X))] on every
    process is the fit to X. Where there is one process they are all rows.

    Args:
        samples: of the whole array.

    Raises:
        DataError: torchrun has started several processes, and there is no process group.

    Example:
        >>> from liftednet.data import shard
        >>> shard(60_000)
        slice(0, 60000, None)
    """
    if not _grouped():
        return slice(0, samples)
    number, processes = distributed.get_rank(), distributed.get_world_size()
    return slice(samples * number // processes, samples * (number + 1) // processes)
