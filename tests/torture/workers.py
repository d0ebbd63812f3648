"""Workers of torch.distributed that are killed at random moments, and trainings that go on."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from liftednet import LiftedError
from liftednet.activations import Tanh
from liftednet.data import shard
from liftednet.models import Checkpoint, FullBatch, GaussNewton, Lifted, LiftedMLP, Minibatch
from tests.models.together import in_processes
from tests.torture.kills import ROW_LABELS, ROWS, torch_alone
from tests.torture.report import Finding

_KILLS, _SIZES = 30, (2, 3)
_PROMISE = (
    "the other processes end with a sentence, and the resumed training with the bits of an "
    "uninterrupted one on every process, in weights, states and objectives (a process's own counts "
    "of iterations are those of the first), and no other file than its checkpoint"
)
TRAININGS: dict[str, Callable[[], Lifted]] = {
    "blocks": lambda: LiftedMLP((8, 12, 3), seed=3, method=FullBatch(8)),
    "minibatches": lambda: LiftedMLP((8, 12, 3), seed=3, method=Minibatch(20, 10)),
    "steps": lambda: LiftedMLP((8, 12, 3), Tanh(), seed=3, method=GaussNewton(8, form="products")),
}


def findings(share: float) -> list[Finding]:
    """Return what a share of the kills found."""
    most, draw, killed = max(1, round(_KILLS * share)), random.Random(0), 0
    wrong: list[str] = []
    for number in range(most):
        name = list(TRAININGS)[number % len(TRAININGS)]
        dead, reason = _killed_once(name, _SIZES[number % len(_SIZES)], draw)
        killed += dead
        if reason:
            wrong.append(f"{name}, kill {number} of {most}: {reason}")
    what = f"kills of a worker at random moments, {killed} of them in time"
    return [Finding(what, most, len(wrong), _PROMISE, wrong[0] if wrong else "")]


def _killed_once(name: str, size: int, draw: random.Random) -> tuple[bool, str]:
    """Kill one of several processes; return whether that was in time, and what went wrong."""
    started = time.monotonic()
    whole = in_processes(size, _trained, name, None, None, 0.0)
    seconds = time.monotonic() - started
    with tempfile.TemporaryDirectory() as folder:
        path, doomed = Path(folder) / "training", draw.randrange(size)
        found = in_processes(size, _trained, name, path, doomed, draw.uniform(0, 0.8) * seconds)
        others = [text for rank, text in enumerate(found) if rank != doomed]
        dead = found[doomed] is None
        if dead and not all(text in whole or _is_sentence(text) for text in others):
            return dead, f"the others say {others}"
        again = in_processes(size, _trained, name, path, None, 0.0)
        left = sorted(os.listdir(folder))
    if again != whole:
        return dead, f"resumed to {again}, not {whole}"
    return dead, "" if left == ["training"] else f"the folder holds {left}"


def _is_sentence(text: str | None) -> bool:
    return text is not None and text.startswith("ProcessError: another process has ended")


def _trained(rank: int, name: str, path: Path | None, doomed: int | None, after: float) -> str:
    """Train to the end, unless this process is doomed; return what came out."""
    warnings.simplefilter("ignore")
    torch_alone()
    if rank == doomed:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    model, rows = TRAININGS[name](), shard(len(ROWS))
    kept = None if path is None else Checkpoint(path, seconds=0)
    torch.manual_seed(0)
    try:
        model.fit(ROWS[rows], ROW_LABELS[rows], checkpoint=kept, resume=path is not None)
    except LiftedError as error:
        return f"{type(error).__name__}: {error}"
    assert model.trace is not None
    found = hashlib.sha256(repr([model.trace.start, model.trace.objectives]).encode())
    states = model.states if model._known.data is not None else ()
    for part in (*(layer.stacked() for layer in model.weights), *states):
        found.update(part.contiguous().numpy().tobytes())
    return found.hexdigest()
