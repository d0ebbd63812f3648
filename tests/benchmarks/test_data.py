"""Data of papers and benchmarks: tasks against their rules, batches, and files that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from benchmarks import data
from benchmarks.data import Sequences, archives
from benchmarks.data.archives import Archive, Origin
from benchmarks.data.mnist import mnist
from liftednet.errors import DataError

SEEDS = st.integers(0, 10_000)


def real(load):
    """Return a real data set, or skip the test where it is not on this machine."""
    try:
        return load()
    except DataError as error:
        if "was not found" in str(error):
            pytest.skip(str(error))
        raise


def test_recorded_sets_have_their_published_counts() -> None:
    windows = real(data.har2)
    assert windows.y_train.bincount().tolist() == [3586, 3766]
    assert windows.y_test.bincount().tolist() == [1448, 1499]
    assert torch.allclose(windows.x_train.std((0, 1)), torch.ones(9), atol=1e-4)
    noise = data.har2(noise_variance=2.0).x_test - windows.x_test
    assert abs(float(noise.var()) - 2) < 0.01 and abs(float(noise.mean())) < 0.01
    assert len(data.har_subjects().unique()) == 21
    rolls = real(data.jsb_chorales)
    parts = (rolls.train, rolls.valid, rolls.test)
    assert [len(part) for part in parts] == [229, 76, 77]
    assert [int(part.lengths.sum()) + len(part) for part in parts] == [13_807, 4_602, 4_725]


@given(seed=SEEDS, dependency=st.integers(1, 12), share=st.floats(0.02, 0.98))
@settings(max_examples=30, deadline=None)
def test_timer_follows_its_rule_step_by_step(seed: int, dependency: int, share: float) -> None:
    x, y = data.timer(4, 25, dependency, share, seed)
    for sequence, labels in zip(x.tolist(), y.tolist(), strict=True):
        running = 0.0
        for (value, on, off), label in zip(sequence, labels, strict=True):
            running = max(running - 1, 0)
            running = max(running, value) if on else running
            assert on + off == 1 and 1 <= value <= dependency
            assert label == (0 if running > 0 else 1)


@pytest.mark.parametrize("symbols", [2, 3])
def test_temporal_order_label_reads_the_special_symbols(symbols: int) -> None:
    lengths = data.hochreiter_lengths(50, 20, 3)
    x, y = data.temporal_order(50, 22, symbols, 3, lengths)
    for row in range(50):
        shown = x[row, : int(lengths[row])].argmax(1)
        special = (shown[shown >= 4] - 4).tolist()
        assert len(special) == symbols
        assert int("".join(map(str, special)), 2) == int(y[row])
        assert not x[row, int(lengths[row]) :].any()


@given(lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_next_step_batches_equal_padding_by_hand(lengths: list[int], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    songs = [torch.randint(2, (n, 4), generator=source) for n in lengths]
    sequences = Sequences.next_step(torch.cat(songs), torch.tensor(lengths))
    batch = sequences.batch(torch.arange(len(songs)))
    assert torch.equal(batch.x, pad_sequence([s[:-1].float() for s in songs], batch_first=True))
    assert torch.equal(batch.y, pad_sequence([s[1:].float() for s in songs], batch_first=True))
    assert torch.equal(batch.mask.sum(1), batch.lengths)


ARRAYS: dict[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "y": np.array([1, 0], np.uint8),
}
SMALL = Archive("small", archives.digest(ARRAYS), ("x", "y"), "a test")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data folder named, and an empty cache."""
    monkeypatch.delenv(archives.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(archives, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_missing_data_say_how_to_get_them(nowhere: Path) -> None:
    with pytest.raises(DataError, match="download=True"):
        mnist()
    with pytest.raises(DataError, match="the folder"):
        mnist(nowhere / "typing_error")


def test_folder_argument_then_variable_then_cache(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(nowhere / "cache" / "small.npz", **ARRAYS)
    assert archives.load(SMALL)["x"].shape == (2, 3)
    named = nowhere / "named"
    named.mkdir()
    monkeypatch.setenv(archives.FOLDER_VARIABLE, str(named))
    assert archives.load(SMALL)["x"].shape == (2, 3)
    np.savez_compressed(named / "small.npz", x=ARRAYS["x"] + 1, y=ARRAYS["y"])
    with pytest.raises(DataError, match="checksum"):
        archives.load(SMALL)
    with pytest.raises(DataError, match="not found"):
        archives.load(SMALL, nowhere)


def test_damaged_and_pickled_files_are_refused(nowhere: Path) -> None:
    (nowhere / "small.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a readable npz"):
        archives.load(SMALL, nowhere)
    np.savez(nowhere / "small.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="not a readable npz"):
        archives.load(SMALL, nowhere)


def test_download_only_when_asked_and_only_the_right_file(nowhere: Path) -> None:
    """A file address stands for the web; the archive made from it lands in the cache."""
    from hashlib import sha256

    original = nowhere / "original.npz"
    np.savez(original, **ARRAYS)
    right = sha256(original.read_bytes()).hexdigest()

    def archive(checksum: str) -> Archive:
        origin = Origin("https://example.invalid/original.npz", checksum, archives.read_npz)
        return Archive(SMALL.name, SMALL.digest, SMALL.arrays, SMALL.source, origin)

    import pooch

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> str:
        if known_hash != f"sha256:{right}":
            raise ValueError("hash")
        return str(original)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooch, "retrieve", retrieve)
        with pytest.raises(DataError, match="download=True"):
            archives.load(archive(right))
        with pytest.raises(ValueError, match="hash"):
            archives.load(archive("0" * 64), download=True)
        assert np.array_equal(archives.load(archive(right), download=True)["x"], ARRAYS["x"])
    assert (nowhere / "cache" / "small.npz").is_file()
