"""Trainings that are killed at random moments and go on."""

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from liftednet import models
from liftednet.activations import Tanh
from liftednet.errors import DataError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.solvers.compiled import lanes, loops
from tests.draws import normal
from tests.models.networks import outcome
from tests.torture.report import Finding

_KILLS = 100
_TERMINATED = 0.2  # share of the kills that are SIGTERM
_OF_ONE = 8  # kills of one training, at most: a busy machine may let it get nowhere
_PROMISE = (
    "the resumed training ends with the bits of an uninterrupted one, in weights, states and "
    "history, and leaves no other file than its checkpoint"
)


ROWS, STEPS = normal(300, 8, seed=2), normal(30, 12, 3, seed=2)
ROW_DATA = ROWS, ROWS[:, :3].argmax(1)
STEP_DATA = STEPS, (STEPS.cumsum(1)[..., 0] > 0).long()
Data = tuple[torch.Tensor, torch.Tensor]


def _mlp(*activations: Any, **options: Any) -> Callable[[], Lifted]:
    return lambda: LiftedMLP((8, 12, 10, 3), *activations, seed=3, **options)


TRAININGS: dict[str, tuple[Callable[[], Lifted], Data]] = {
    "blocks": (_mlp(method=FullBatch(8)), ROW_DATA),
    "minibatches": (_mlp(method=Minibatch(20, 10), early_stopping=True), ROW_DATA),
    "normal equations": (_mlp(Tanh(), method=GaussNewton(30, form="normal")), ROW_DATA),
    "products": (_mlp(Tanh(), method=GaussNewton(8, form="products")), ROW_DATA),
    "states over time": (lambda: LiftedRNN(3, 6, 2, method=GaussNewton(8)), STEP_DATA),
}


def findings(share: float) -> list[Finding]:
    """Return what a share of the kills found."""
    with tempfile.TemporaryDirectory() as folder:
        return [_kills(_Nursery(Path(folder)), max(2, round(_KILLS * share)))]


class _Nursery:
    """Forks trainings from a process that has imported everything and has one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fork = multiprocessing.get_context("forkserver")
        self._fork.set_forkserver_preload([__name__])
        self._wholes: dict[str, tuple[str, float]] = {}

    def whole(self, name: str) -> tuple[str, float]:
        """Return what an uninterrupted training gives, and how long it takes."""
        if name not in self._wholes:
            started = time.monotonic()
            result = self.folder / "whole"
            self.started(name, None, result).join()
            self._wholes[name] = result.read_text(), time.monotonic() - started
        return self._wholes[name]

    def started(self, name: str, checkpoint: Path | None, result: Path) -> Any:
        """Start a training in a process of its own."""
        result.unlink(missing_ok=True)
        child = self._fork.Process(target=_train, args=(name, checkpoint, result))
        child.start()
        return child


def _train(name: str, checkpoint: Path | None, result: Path) -> None:
    """Train to the end in this process, and write what came out."""
    torch.set_num_threads(1)
    # A loop that another process has compiled meanwhile changes bits.
    loops.WORTH_COMPILING, lanes.at_hand = 1 << 62, lambda *_: False
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    make, data = TRAININGS[name]
    model, kept = make(), None if checkpoint is None else models.Checkpoint(checkpoint, seconds=0)
    warnings.simplefilter("ignore")
    try:
        model.fit(*data, checkpoint=kept, resume=kept is not None)
    except DataError as error:
        result.write_text(f"refused: {error}")
        return
    result.write_text(hashlib.sha256(repr(outcome(model)).encode()).hexdigest())


def _kills(nursery: _Nursery, most: int) -> Finding:
    draw, killed, trainings = random.Random(most), 0, 0
    wrong: list[str] = []
    while killed < most:
        name = list(TRAININGS)[trainings % len(TRAININGS)]
        number, reason = _killed(nursery, name, draw, min(most - killed, _OF_ONE))
        killed, trainings = killed + number, trainings + 1
        if reason:
            wrong.append(f"{name}, training {trainings} of findings with {most} kills: {reason}")
    what = f"kills at random moments of {trainings} trainings"
    return Finding(what, killed, len(wrong), _PROMISE, wrong[0] if wrong else "")


def _killed(nursery: _Nursery, name: str, draw: random.Random, most: int) -> tuple[int, str]:
    """Kill one training again and again until it ends; return how often, and what went wrong."""
    (whole, seconds), killed = nursery.whole(name), 0
    with tempfile.TemporaryDirectory(dir=nursery.folder) as folder:
        path, result = Path(folder) / "training", nursery.folder / "result"
        while True:
            child = nursery.started(name, path, result)
            if killed < most:
                child.join(draw.uniform(0, 0.8) * seconds)
            if child.exitcode is None and killed < most:
                way = signal.SIGTERM if draw.random() < _TERMINATED else signal.SIGKILL
                os.kill(child.pid, way)
            child.join()
            if child.exitcode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                return killed, f"exit status {child.exitcode}"
            if child.exitcode == 0:
                break
            killed += 1
        left = sorted(os.listdir(folder))
    if (found := result.read_text()) != whole:
        return killed, found if found.startswith("refused") else "other bits"
    return killed, "" if left == ["training"] else f"the folder holds {left}"
