"""Full-batch fits whose states stand in files, of inputs that do."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from liftednet.errors import DataError, DeclarationError
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN, data
from liftednet.solvers.compiled import loops
from tests.models.registry import GRAPHS

pytestmark = pytest.mark.filterwarnings("ignore::liftednet.FitWarning")

PLAIN = ("chain", "without a bias", "images", "output states")


def _regression(samples: int = 90) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    x = source.normal(size=(samples, 6)) + 1
    return x, np.sin(x[:, :2] * x[:, 2:4])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_ENTRIES", 200)  # some ten samples at a time


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("divergence", ["joint", "tight"])
def test_a_store_changes_nothing_but_the_place(tmp_path: Path, divergence: str) -> None:
    x, y = _regression()
    np.save(tmp_path / "x.npy", x)
    mapped, found = np.load(tmp_path / "x.npy", mmap_mode="r"), []
    for store, inputs in ((None, x), (tmp_path, mapped)):
        method = FullBatch(3, extrapolation=False, store=store, tolerance=1e-10)
        model = LiftedMLP(
            (6, 7, 5, 2), loss=SquaredError(), lam=0.5, rho=0.1, divergence=divergence,
            method=method,
        )  # fmt: skip
        model.fit(inputs, y)
        assert model.trace is not None
        point = torch.tensor([*model.trace.objectives, model.objective(), *model.gap()])
        found.append((point, [layer.stacked() for layer in model.weights], model.residual()))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-5)
    assert 0 < found[1][2] < 10 * found[0][2]  # the worst of the parts, each in its own scale
    assert [file.name for file in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("graph", [g for g in GRAPHS if g.name in PLAIN], ids=lambda g: g.name)
def test_any_graph_without_steps_has_a_store(tmp_path: Path, graph: Any) -> None:
    found = []
    for store in (None, tmp_path):
        model = graph.model("tight", "full")
        model.method = FullBatch(2, extrapolation=False, store=store, tolerance=1e-9)
        found.append(model.fit(graph.x, graph.y).objective())
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def _in_fresh_process(work: Callable[..., str], *given: Any) -> str:
    """Return what work returns where no earlier test has left memory to be used again."""
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        try:
            return processes.submit(work, *given).result()
        except BrokenProcessPool:
            return "ended"


def _limited(folder: str, store: str | None) -> str:
    """Train where there is memory for less than the states."""
    data._ENTRIES = 300_000
    loops.WORTH_COMPILING = 1 << 62  # a compiler takes memory, too
    torch.set_num_threads(1)
    x = np.load(f"{folder}/x.npy", mmap_mode="r")
    labels = np.arange(len(x)) % 2
    warm = LiftedMLP((4, 3, 2), method=FullBatch(1), divergence="joint")
    warm.fit(np.array(x[:50]), labels[:50])  # what is loaded and compiled once
    status = Path("/proc/self/status").read_text(encoding="ascii")
    now = int(status.split("VmData:")[1].split()[0]) * 1024
    limit = now + 150 * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    method = FullBatch(1, store=store, tolerance=1e-2)
    model = LiftedMLP((4, 400, 2), divergence="joint", method=method, standardize=False)
    try:
        model.fit(x, labels)
    except (MemoryError, RuntimeError) as error:
        return type(error).__name__
    return "fitted"


def test_states_need_no_memory(tmp_path: Path) -> None:
    """Of 30,000 samples and 400 units in float32 they are 48 MB, of which solves hold several."""
    if not Path("/proc/self/status").exists():
        pytest.skip("asks Linux what memory there is")
    x = np.random.default_rng(0).normal(size=(30_000, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert _in_fresh_process(_limited, str(tmp_path), str(tmp_path)) == "fitted"
    assert _in_fresh_process(_limited, str(tmp_path), None) != "fitted"


def test_what_a_store_cannot_hold_is_refused(tmp_path: Path) -> None:
    x, _ = _regression()
    labels = (x[:, 0] > 0).astype(int)
    kept = FullBatch(1, store=tmp_path)
    with pytest.raises(DeclarationError, match="a store is for networks without steps"):
        LiftedRNN(6, 4, 2, method=kept).fit(x[:, None], labels)
    with pytest.raises(DataError, match="there can be no checkpoint here"):
        LiftedMLP((6, 4, 2), method=kept).fit(x, labels, checkpoint=tmp_path / "c")
    lost = LiftedMLP((6, 4, 2), method=FullBatch(1, store=tmp_path / "nowhere"))
    with pytest.raises(DataError, match="cannot keep 4 bytes: No such file"):
        lost.fit(x, labels)
    assert not lost.is_fitted
