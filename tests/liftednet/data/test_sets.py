"""Data sets and generated tasks, and files that are missing or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import data
from liftednet.data import archives
from liftednet.data.archives import Archive, Origin
from liftednet.errors import DataError

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


def test_digits_are_scaled_and_split_class_by_class() -> None:
    digits = data.digits()
    assert float(digits.x_train.min()) == 0 and float(digits.x_train.max()) == 1
    assert len(digits.x_train) + len(digits.x_test) == 1797
    train, test = digits.y_train.bincount(), digits.y_test.bincount()
    assert bool(((train - 3 * test).abs() <= 5).all())
    assert torch.equal(data.digits(seed=0).x_train, digits.x_train)
    assert not torch.equal(data.digits(seed=1).x_train, digits.x_train)


def test_missing_data_say_how_to_get_them(nowhere: Path) -> None:
    with pytest.raises(DataError, match="download=True"):
        data.mnist()
    with pytest.raises(DataError, match="the folder"):
        data.mnist(nowhere / "typing_error")


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


def test_split_keeps_every_sample_once_and_the_shares() -> None:
    x = torch.arange(100.0)[:, None]
    y = torch.arange(100) % 4
    first_x, first_y, second_x, second_y = data.split(x, y, 0.2, seed=5)
    assert torch.equal(torch.cat([first_x, second_x]).sort(0).values, x)
    assert second_y.bincount().tolist() == [5, 5, 5, 5] and len(first_y) == 80
    with pytest.raises(DataError, match="between 0 and 1"):
        data.split(x, y, 1.0, seed=5)
    with pytest.raises(DataError, match="rows"):
        data.split(x, y[:-1], 0.2, seed=5)
    with pytest.raises(DataError, match="cannot be split"):
        data.split(x[:3], y[:3], 0.2, seed=5)
    with pytest.raises(DataError, match="empty"):
        data.split(x[:0], y[:0], 0.2, seed=5)


@given(seed=st.integers(0, 10_000), lag=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_echo_repeats_the_input_after_the_lag(seed: int, lag: int) -> None:
    x, y = data.echo(7, 12, lag, 4, seed)
    assert torch.equal(x.sum(2), torch.ones(7, 12))
    assert torch.equal(y[:, lag:], x.argmax(2)[:, : 12 - lag])


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_running_sum_labels_the_sign_of_the_sum(seed: int) -> None:
    x, y = data.running_sum(5, 30, seed)
    for numbers, labels in zip(x.squeeze(2).tolist(), y.tolist(), strict=True):
        total = 0.0
        for number, label in zip(numbers, labels, strict=True):
            total += number
            assert label == (0 if total > 0 else 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.echo(0, 10), "samples"),
        (lambda: data.echo(5, 10, lag=10), "lag must be below"),
        (lambda: data.running_sum(5, 0), "length"),
        (lambda: data.running_sum(5, 5, seed=1.5), "seed"),  # type: ignore[arg-type]
    ],
)
def test_tasks_that_cannot_be_drawn_are_refused(call, words) -> None:
    with pytest.raises(DataError, match=words):
        call()
