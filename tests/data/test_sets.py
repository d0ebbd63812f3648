"""Data sets against their published counts, and files that are missing or wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from liftednet import data
from liftednet.data import archives, piano_rolls
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


def real(load: Callable[[], object]) -> object:
    """Return a real data set, or skip the test where it is not on this machine."""
    try:
        return load()
    except DataError as error:
        if "was not found" in str(error):
            pytest.skip(str(error))
        raise


def test_digits_are_scaled_and_split_class_by_class() -> None:
    digits = data.digits()
    assert float(digits.x_train.min()) == 0 and float(digits.x_train.max()) == 1
    assert len(digits.x_train) + len(digits.x_test) == 1797
    train, test = digits.y_train.bincount(), digits.y_test.bincount()
    assert bool(((train - 3 * test).abs() <= 5).all())
    assert torch.equal(data.digits(seed=0).x_train, digits.x_train)
    assert not torch.equal(data.digits(seed=1).x_train, digits.x_train)


def test_mnist_has_its_published_labels_and_mean() -> None:
    mnist = real(data.mnist)
    assert isinstance(mnist, data.Classification)
    assert mnist.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert abs(float(mnist.x_train.mean()) - 0.1307) < 1e-4
    few = data.subsample(mnist, 50, 20, seed=0)
    rows = data.pixel_sequences(few, permutation_seed=3)
    plain = data.pixel_sequences(few)
    assert rows.x_train.shape == (50, 784, 1)
    assert torch.equal(rows.x_train.sort(1).values, plain.x_train.sort(1).values)
    assert abs(float(plain.x_train.mean())) < 1e-4 and abs(float(plain.x_train.std()) - 1) < 1e-4


def test_har2_has_the_published_classes_and_noise() -> None:
    clean = real(data.har2)
    assert isinstance(clean, data.Classification)
    assert clean.y_train.bincount().tolist() == [3586, 3766]
    assert clean.y_test.bincount().tolist() == [1448, 1499]
    assert torch.allclose(clean.x_train.std((0, 1)), torch.ones(9), atol=1e-4)
    noise = data.har2(noise_variance=2.0).x_test - clean.x_test
    assert abs(float(noise.var()) - 2) < 0.01 and abs(float(noise.mean())) < 0.01
    assert len(data.har_subjects().unique()) == 21


def test_piano_rolls_have_the_published_sizes() -> None:
    rolls = real(data.jsb_chorales)
    assert isinstance(rolls, data.PianoRolls)
    parts = (rolls.train, rolls.valid, rolls.test)
    assert [len(part) for part in parts] == [229, 76, 77]
    assert [int(part.lengths.sum()) + len(part) for part in parts] == [13_807, 4_602, 4_725]


def test_missing_data_say_how_to_get_them(nowhere: Path) -> None:
    for load, word in (
        (data.mnist, "download=True"),
        (data.har, "10.24432"),
        (data.muse_data, "download=True"),
    ):
        with pytest.raises(DataError, match=word):
            load()
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


def test_matlab_rolls_become_the_arrays_of_the_archive(tmp_path: Path) -> None:
    from scipy.io import savemat

    songs = [np.eye(88, dtype=np.uint8)[:n] for n in (3, 5)]
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = songs
    savemat(tmp_path / "m.mat", {"traindata": cells, "validdata": cells, "testdata": cells})
    arrays = piano_rolls._from_matlab(tmp_path / "m.mat")
    assert np.array_equal(arrays["roll_valid"], np.concatenate(songs))
    assert arrays["lengths_test"].tolist() == [3, 5]


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
