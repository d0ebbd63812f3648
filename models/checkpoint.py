"""Checkpoints: what a training goes on from, in a file that is whole at any moment."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.samples import Weights
from liftednet.storage import Description, remove_unfinished, replace_file, unfinished
from liftednet.validation import is_number, require_count

from .described import checksum, differences
from .run import Memory, Step, Trace

_FORMAT, _VERSION = "liftednet checkpoint", "1"
_CACHE_LINE = 64  # bytes: where torch's memory begins
_OF_BAD_VALUES = (LookupError, RecursionError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Checkpoint:
    """Where a training is kept while it runs, and how often.

    It is written where it is due at the end of a block, a batch or a step of all weights, and
    always where training ends, whether by itself, an interrupt, SIGTERM or an error.

    Attributes:
        path: of the file, replaced at once or not at all; its folder must exist.
        seconds: the least between two writes.
        every: entries of the trace (blocks, epochs, steps of all weights) after which it is
            written, however short they are; None for no such number.

    Raises:
        DataError: a number is out of its range.

    Example:
        >>> import tempfile
        >>> from liftednet import data
        >>> from liftednet.models import Checkpoint, LiftedMLP
        >>> digits, folder = data.digits(), tempfile.TemporaryDirectory()
        >>> kept = Checkpoint(f"{folder.name}/run.checkpoint", every=1)
        >>> model = LiftedMLP((64, 10)).fit(digits.x_train, digits.y_train, checkpoint=kept)
        >>> again = LiftedMLP((64, 10))
        >>> again = again.fit(digits.x_train, digits.y_train, checkpoint=kept, resume=True)
        >>> folder.cleanup()
        >>> again.trace.losses == model.trace.losses  # a finished one is given back
        True
    """

    path: str | Path
    seconds: float = 60.0
    every: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        if not isinstance(self.path, str | Path):
            raise DataError(f"a checkpoint needs the path of a file, got {self.path!r}.")
        if not is_number(self.seconds) or not 0 <= self.seconds < math.inf:
            raise DataError(f"seconds must not be negative, got {self.seconds!r}.")
        if self.every is not None:
            require_count("every", self.every, 1)


class Keeper:
    """Keeps one training in its file; without a file it does nothing."""

    def __init__(self, checkpoint: str | Path | Checkpoint | None, resume: bool) -> None:
        """Try the place, and read what there is to go on from.

        Raises:
            DataError: the folder cannot be written to, or the file is no whole checkpoint.
        """
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        self._checkpoint, self._saved = checkpoint, None
        self._held: tuple[Memory, int] | None = None
        self._kept: tuple[Memory, int] | None = None
        self._terminated = False
        if checkpoint is None:
            if resume:
                raise DataError("resume=True needs the checkpoint to go on from.")
            return
        self._path = Path(checkpoint.path)
        _try_place(self._path)
        if resume and self._path.exists():
            self._saved = _read(self._path)
        self._last = time.monotonic()

    def begun(
        self, identity: Callable[[], Description], device: torch.device
    ) -> tuple[Memory, Trace | None]:
        """Return the memory and the history to go on from, {} and None to begin with.

        Args:
            identity: describes network, settings and data as JSON, asked where there is a file.
            device: where floating-point tensors of the memory go.

        Raises:
            DataError: the file is that of another training; the message says where they differ.
        """
        if self._checkpoint is None:
            return {}, None
        self._identity = json.loads(json.dumps(identity()))
        if self._saved is None:
            return {}, None
        about, tensors = self._saved
        self._saved = None
        for where, was, given in differences(about["identity"], self._identity):
            raise DataError(
                f"{self._path} is the checkpoint of another training: {where} is {given}, and was "
                f"{was}. Without resume=True it is replaced."
            )
        try:
            steps = [Step(*fields) for fields in about["steps"]]
            return unpacked(about["memory"], tensors, device), Trace(about["start"], steps)
        except _OF_BAD_VALUES as error:
            raise DataError(f"the checkpoint {self._path} cannot be used: {error}.") from error

    def rest(self, trace: Trace, memory: Memory) -> None:
        """Hold what a training remembers between two steps, and write it where that is due.

        Raises:
            KeyboardInterrupt: SIGTERM has come where its exception was lost.
        """
        if self._checkpoint is None:
            return
        self._held = dict(memory), len(trace.steps)
        if self._terminated:
            raise KeyboardInterrupt
        every, written = self._checkpoint.every, 0 if self._kept is None else self._kept[1]
        waited = time.monotonic() - self._last >= self._checkpoint.seconds
        if waited or (every is not None and len(trace.steps) - written >= every):
            self._write(trace)

    def close(self, trace: Trace) -> None:
        """Write what is held, unless it has been written."""
        if self._held is not self._kept:
            self._write(trace)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Let SIGTERM end what is inside as an interrupt does, and give it its due afterwards.

        In the main thread alone, where Python takes signals, and unless SIGTERM is ignored.
        """
        before = signal.getsignal(signal.SIGTERM)
        main = threading.current_thread() is threading.main_thread()
        if self._checkpoint is None or not main or before in (None, signal.SIG_IGN):
            yield
            return
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            if self._terminated:
                signal.raise_signal(signal.SIGTERM)

    def _terminate(self, *_: object) -> None:
        if not self._terminated:  # a second one does not stop the writing
            self._terminated = True
            raise KeyboardInterrupt

    def _write(self, trace: Trace) -> None:
        """Write what is held; a full disk is a warning, for training is worth more than a file."""
        assert self._held is not None
        held, tensors = self._held, dict[str, Tensor]()
        memory, steps = held
        about = {
            "identity": self._identity,
            "start": trace.start,
            "steps": [astuple(step) for step in trace.steps[:steps]],
            "memory": packed(memory, tensors, {}),
        }
        try:
            text = json.dumps(about)
            metadata = {
                "format": _FORMAT, "version": _VERSION, "run": text,
                "checksum": _checksum(text, tensors),
            }  # fmt: skip
            replace_file(self._path, tensors, metadata)
            self._kept = held
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or "memory has run out"
            kept = "the last one stands" if self._path.exists() else "there is none yet"
            warnings.warn(
                f"the checkpoint cannot be written to {self._path}: {reason}. Training goes on, "
                f"and {kept}.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._last = time.monotonic()


def _try_place(path: Path) -> None:
    """Raise `DataError` where no file can be made; what killed runs have left is removed."""
    if path.is_dir():
        raise DataError(f"the checkpoint {path} is a folder: name a file.")
    try:
        remove_unfinished(path)
        Path(unfinished(path)).unlink()
    except OSError as error:
        raise DataError(f"no checkpoint can be written to {path}: {error.strerror}.") from error


def _read(path: Path) -> tuple[Description, Mapping[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error}.") from error
    except (SafetensorError, *_OF_BAD_VALUES) as error:
        raise DataError(f"{path} is no whole safetensors file: {error}.") from error
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path} is no checkpoint of liftednet, and resume=True needs one.")
    if metadata.get("version") != _VERSION:
        raise DataError(
            f"{path} has version {metadata.get('version')} of checkpoints, and this liftednet "
            f"reads version {_VERSION}: go on with the liftednet that wrote it."
        )
    text = metadata.get("run", "")
    if metadata.get("checksum") != _checksum(text, tensors):
        raise DataError(f"the checkpoint {path} is damaged: its checksum is another.")
    about: Description = json.loads(text)
    return about, tensors


# Memories and data as JSON and tensors.


def packed(value: Any, tensors: dict[str, Tensor], names: dict[Any, str]) -> Any:
    """Return a memory as JSON; tensors are put aside, each once and with how it lies in memory.

    A product rounds by the order and the alignment of its factors.
    """
    if isinstance(value, Weights):
        return {"$weights": packed([value.matrix, value.bias], tensors, names)}
    if isinstance(value, Mapping):
        return {name: packed(each, tensors, names) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [packed(each, tensors, names) for each in value]
    if not isinstance(value, Tensor):
        return value
    name = names.setdefault(_place(value), str(len(names)))
    tensors[name] = value
    stride = list(value.contiguous().stride() if 0 in value.stride() else value.stride())
    return {"$tensor": name, "stride": stride, "offset": _offset(value)}


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _offset(tensor: Tensor) -> int:
    """Return how many entries after an address of whole cache lines a tensor begins."""
    return tensor.data_ptr() % _CACHE_LINE // tensor.element_size()


def unpacked(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return the memory that `packed` has packed, on a device."""
    if isinstance(value, list):
        return [unpacked(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    if "$weights" in value:
        return Weights(*unpacked(value["$weights"], tensors, device))
    if "$tensor" not in value:
        return {name: unpacked(each, tensors, device) for name, each in value.items()}
    found, stride = tensors[value["$tensor"]], value["stride"]
    target = device if found.is_floating_point() else found.device
    span = 1 + sum((n - 1) * step for n, step in zip(found.shape, stride, strict=True))
    room = torch.empty(value["offset"] + max(span, 0), dtype=found.dtype, device=target)
    return room.as_strided(found.shape, stride, value["offset"]).copy_(found)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    parts = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return checksum(parts, *(tensors[name] for name in sorted(tensors)))
