"""Checkpoints: what a training goes on from, in a file that is whole at any moment."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError, LiftedError
from liftednet.processes import share_of
from liftednet.samples import Weights
from liftednet.storage import (
    OF_BAD_VALUES,
    TYPES,
    Description,
    owned,
    read_tensors,
    remove_unfinished,
    replace_file,
)
from liftednet.validation import is_number

from .fingerprint import difference
from .trace import Ending, Memory, PerSample, Step, Trace

_FORMAT, _VERSION = "liftednet checkpoint", "5"
_HEAD = 200  # bytes of a file, in which its format stands
_CACHE_LINE = 64  # bytes: where torch's memory begins
Saved = tuple[Description, Description, Mapping[str, Tensor]]  # all, of it the identity, tensors


@dataclass(frozen=True)
class Checkpoint:
    """Where a training is kept while it runs, and how often.

    It is written where it is due at the end of a block, a batch or a step of all weights, and
    always where training ends, whether by itself, an interrupt, SIGTERM or an error.

    Attributes:
        path: of the file, replaced at once or not at all; its folder must exist.
        seconds: the least between two writes.

    Raises:
        DataError: a number is out of its range.

    Example:
        >>> import tempfile
        >>> from liftednet import data
        >>> from liftednet.models import Checkpoint, LiftedMLP
        >>> digits, folder = data.digits(), tempfile.TemporaryDirectory()
        >>> kept = Checkpoint(f"{folder.name}/run.checkpoint", seconds=10)
        >>> model = LiftedMLP((64, 10)).fit(digits.x_train, digits.y_train, checkpoint=kept)
        >>> again = LiftedMLP((64, 10))
        >>> again = again.fit(digits.x_train, digits.y_train, checkpoint=kept, resume=True)
        >>> folder.cleanup()
        >>> again.trace.losses == model.trace.losses  # a finished one is given back
        True
    """

    path: str | Path
    seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        if not isinstance(self.path, str | Path):
            raise DataError(f"a checkpoint needs the path of a file, got {self.path!r}.")
        if not is_number(self.seconds) or not 0 <= self.seconds < math.inf:
            raise DataError(f"seconds must not be negative, got {self.seconds!r}.")


class Keeper:
    """Keeps one training in its file; without a file it does nothing.

    Of several processes the first reads and writes the file, which is that of one process: the
    rows of all stand in it, and any number of processes can go on from it.
    """

    def __init__(self, checkpoint: str | Path | Checkpoint | None, resume: bool) -> None:
        """Try the place, and read what there is to go on from.

        Raises:
            DataError: the folder cannot be written to, or the file is no whole checkpoint.
        """
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        self._checkpoint, self._saved, self._owned = checkpoint, None, ExitStack()
        self._held: tuple[Memory, int] | None = None
        self._kept: tuple[Memory, int] | None = None
        self._terminated = self._stopped = self._told = self.resumed = False
        self._signal = int(signal.SIGTERM)
        processes.ask(stop=False, write=False)
        processes.asked()  # what was asked of a training before is forgotten
        if checkpoint is None:
            if resume:
                raise DataError("resume=True needs the checkpoint to go on from.")
            return
        self._path = Path(checkpoint.path)
        first = processes.rank() == 0
        with self._owned as held:
            with processes.agreed():
                if first:
                    _take_place(self._path, resume, held)
                if resume and self._path.exists():
                    self._saved = _read(self._path)
            if len(set(processes.texts(self._saved[0]["checksum"] if self._saved else ""))) > 1:
                raise DataError(
                    f"{self._path} must be where every process can read it: some read another "
                    "file there, or none."
                )
            self._owned = held.pop_all()
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        """Keep the file from other trainings."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the file to others."""
        self._owned.close()

    def begun(
        self, identity: Callable[[], Description], device: torch.device, samples: int
    ) -> tuple[Memory, Trace | None]:
        """Return the memory and the history to go on from, {} and None to begin with.

        Args:
            identity: describes network, settings and data as JSON, asked where there is a file.
            device: where floating-point tensors of the memory go.
            samples: that this process has.

        Raises:
            DataError: the file is that of another training; the message says where they differ.
        """
        if self._checkpoint is None:
            return {}, None
        self._identity = json.loads(json.dumps(identity()))
        first = processes.rank() == 0
        with processes.agreed():
            known = self._saved[1] if first and self._saved else self._identity
            if found := difference(known, self._identity):
                where, was, given = found
                raise DataError(
                    f"{self._path} is the checkpoint of another training: {where} is {given}, and "
                    f"was {was}. A run that does not resume replaces it."
                )
        saved, self._saved = self._saved, None
        if saved is None:
            return {}, None
        about, _, tensors = saved
        self.resumed = True
        own = share_of(samples).rows if processes.size() > 1 else None
        with processes.agreed(), self.reading():
            steps = [_step(values) for values in about["steps"]]
            memory = unpacked(about["memory"], tensors, device, own)
            trace = Trace(float(about["start"]), steps)
        return memory, trace

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `DataError` where what a file holds is of other kinds than what was written."""
        try:
            yield
        except OF_BAD_VALUES as error:
            if foreign := self.foreign(error):
                raise foreign from error
            raise

    def foreign(self, error: BaseException) -> DataError | None:
        """Return what to raise for an error that what a file holds has led to, or None."""
        elsewhere = isinstance(error, LiftedError | torch.OutOfMemoryError)
        if elsewhere or not self.resumed or not isinstance(error, OF_BAD_VALUES):
            return None
        return DataError(
            f"the checkpoint {self._path} cannot be used: unless this error has another cause, "
            f"what it holds is no memory of this training ({type(error).__name__}: {error}). "
            "The file stays as it is."
        )

    def rest(self, trace: Trace, memory: Memory) -> None:
        """Hold what a training remembers between two steps, and write it where that is due.

        Raises:
            KeyboardInterrupt: SIGTERM has come where its exception was lost; or it, or Ctrl-C, has
                come to one of several processes, which all end here.
        """
        if self._checkpoint is not None:
            self._held = dict(memory), len(trace.steps)
        elif processes.size() == 1:
            return
        stop, waited = self._terminated, self._has_waited()
        if processes.size() > 1:
            stop, waited = processes.asked()
        if stop:
            self._stopped = True
            raise KeyboardInterrupt
        if waited:
            self._write(trace)
        processes.ask(self._terminated, self._has_waited() and processes.rank() == 0)

    def _has_waited(self) -> bool:
        known = self._checkpoint
        return known is not None and time.monotonic() - self._last >= known.seconds

    def close(self, trace: Trace) -> None:
        """Write what is held, unless it has been written.

        Where one of several processes has ended alone, the last file stands.
        """
        alone = trace.ending is Ending.INTERRUPTED and not self._stopped
        if self._held is not self._kept and not (alone and processes.size() > 1):
            self._write(trace)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Let SIGTERM end what is inside as an interrupt does, and give it its due afterwards.

        In the main thread alone, where Python takes signals, and unless SIGTERM is ignored. Of
        several processes each ends with the others, after the step whose sums tell them, after
        Ctrl-C, too.
        """
        before = signal.getsignal(signal.SIGTERM)
        main = threading.current_thread() is threading.main_thread()
        several = processes.size() > 1
        unkept = self._checkpoint is None and not several
        if unkept or not main or before in (None, signal.SIG_IGN):
            yield
            return
        interrupts = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGTERM, self._ask if several else self._terminate)
        if several:
            signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGINT, interrupts)
            if self._terminated and self._signal == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """End a training that is interrupted between two steps: of several processes all of them.

        Raises:
            KeyboardInterrupt: of one process, at once.
        """
        if processes.size() == 1:
            raise KeyboardInterrupt
        self._ask(signal.SIGINT)

    def _terminate(self, *_: object) -> None:
        if not self._terminated:  # a second one does not stop the writing
            self._terminated = True
            raise KeyboardInterrupt

    def _ask(self, number: int, _: object = None) -> None:
        if self._terminated and number == signal.SIGINT:  # the others do not answer
            raise KeyboardInterrupt
        self._terminated, self._signal = True, number
        processes.ask(stop=True, write=False)

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
            metadata = {"format": _FORMAT, "version": _VERSION, "run": text}
            if processes.rank() == 0:
                replace_file(self._path, tensors, metadata)
            written = True
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or "memory has run out"
            kept = "the last one stands" if self._path.exists() else "there is none yet"
            if not self._told:
                processes.warn(
                    f"the checkpoint cannot be written to {self._path}: {reason}. Training goes "
                    f"on, and {kept}.",
                    RuntimeWarning,
                )
            self._told, written = True, False
        if bool(processes.gathered([written]).all()):  # else all of them try again at the end
            self._kept = held
        self._last = time.monotonic()


def _take_place(path: Path, resume: bool, held: ExitStack) -> None:
    """Keep a file from other trainings, and remove what killed ones have left beside it.

    Raises:
        DataError: no file can be made there, or a file that is no checkpoint would be replaced, or
            another training that still runs keeps it.
    """
    if path.is_dir():
        raise DataError(f"the checkpoint {path} is a folder: name a file.")
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise DataError(f"no checkpoint can be written to {path}: it is there, and is no file.")
    try:
        if not held.enter_context(owned(path)):
            raise DataError(
                f"the checkpoint {path} is that of a training that still runs, here or in another "
                "process: wait for it, or name another file."
            )
        if not resume and path.exists() and not _begins_as_one(path):
            raise DataError(f"{path} is no checkpoint of liftednet, and one would replace it.")
        remove_unfinished(path)
    except OSError as error:
        raise DataError(f"no checkpoint can be written to {path}: {error.strerror}.") from None


def _step(values: Sequence[Any]) -> Step:
    """Return a step of numbers and names."""
    step = Step(*values)
    for name, value in vars(step).items():
        untold = value is None and name in ("validation", "evidence")
        named = name in ("block", "solver")
        if not untold and not isinstance(value, str if named else int | float):
            raise TypeError(f"{name} of a step is {value!r}")
    return step


def _begins_as_one(path: Path) -> bool:
    """Say whether a file begins as a checkpoint, whole or damaged, or is empty."""
    with path.open("rb") as file:
        begun = file.read(_HEAD)
    return not begun or _FORMAT.encode() in begun


def _read(path: Path) -> Saved:
    try:
        metadata, tensors = read_tensors(path)
    except OSError as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error}.") from error
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path} is no checkpoint of liftednet, and to resume needs one.")
    if metadata.get("version") != _VERSION:
        raise DataError(
            f"{path} has version {metadata.get('version')} of checkpoints, and this liftednet "
            f"reads version {_VERSION}: go on with the liftednet that wrote it."
        )
    if "checksum" not in metadata:
        raise DataError(f"the checkpoint {path} is damaged: it has lost its checksum.")
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            raise DataError(
                f"the checkpoint {path} cannot be used: its tensor {name} is of {tensor.dtype}."
            )
    try:
        about = json.loads(metadata["run"]) | {"checksum": metadata["checksum"]}
        return about, about["identity"], tensors
    except OF_BAD_VALUES as error:
        raise DataError(f"the checkpoint {path} cannot be used: {error}.") from error


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
    if isinstance(value, PerSample):
        whole = value.tensor
        if processes.size() > 1:
            whole = _laid_as(processes.collected(whole, value.axis), whole)
        return {**packed(whole, tensors, names), "$samples": value.axis}
    if not isinstance(value, Tensor):
        return value
    place = value.data_ptr(), value.dtype, value.shape, value.stride()
    name = names.setdefault(place, str(len(names)))
    tensors[name] = value
    offset = value.data_ptr() % _CACHE_LINE // value.element_size()  # in whole entries
    stride = list(value.contiguous().stride() if 0 in value.stride() else value.stride())
    return {"$tensor": name, "stride": stride, "offset": offset}


def unpacked(
    value: Any, tensors: Mapping[str, Tensor], device: torch.device, own: slice | None = None
) -> Any:
    """Return the memory that `packed` has packed, on a device.

    Args:
        value: as JSON.
        tensors: by their names in it.
        device: of floating-point tensors.
        own: which samples are those of this process; None for all.
    """
    if isinstance(value, list):
        return [unpacked(each, tensors, device, own) for each in value]
    if not isinstance(value, dict):
        return value
    if "$weights" in value:
        return Weights(*unpacked(value["$weights"], tensors, device))
    if "$tensor" not in value:
        return {name: unpacked(each, tensors, device, own) for name, each in value.items()}
    if "$samples" in value:
        about = dict(value)
        axis = about.pop("$samples")
        whole = unpacked(about, tensors, device)
        if own is None:
            return PerSample(whole, axis)
        return PerSample(_laid_as(whole.narrow(axis, own.start, own.stop - own.start), whole), axis)
    found, stride = tensors[value["$tensor"]], value["stride"]
    target = device if found.is_floating_point() else found.device
    span = 1 + sum((n - 1) * step for n, step in zip(found.shape, stride, strict=True))
    room = torch.empty(value["offset"] + max(span, 0), dtype=found.dtype, device=target)
    return room.as_strided(found.shape, stride, value["offset"]).copy_(found)


def _laid_as(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows whose axes lie in memory in the order of another tensor's, without gaps."""
    strides = like.stride()
    order = sorted(range(rows.ndim), key=lambda axis: -strides[axis])
    return rows.permute(order).contiguous().permute([order.index(n) for n in range(rows.ndim)])
