"""Files of data that are missing or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import archives
from benchmarks.data.archives import Archive, Origin
from benchmarks.data.mnist import mnist
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
