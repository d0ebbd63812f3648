"""Where data sets are found, and proof that they hold what they should."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from liftednet.errors import DataError
from liftednet.storage import replacement

Arrays = Mapping[str, NDArray[np.generic]]

FOLDER_VARIABLE = "LIFTEDNET_DATA"


@dataclass(frozen=True)
class Origin:
    """A file on the web that an archive can be made from.

    Attributes:
        url: address of the file.
        sha256: of the file.
        read: turns the downloaded file into the arrays of the archive.
    """

    url: str
    sha256: str
    read: Callable[[Path], Arrays]


@dataclass(frozen=True)
class Archive:
    """A compressed NumPy archive and what it must hold.

    Attributes:
        name: of the file, without its ending.
        digest: SHA-256 of its arrays (`digest`), whatever the compression.
        arrays: the names of its arrays, for the message that says how to make it.
        source: the publication, and where the data can be had.
        origin: where it is downloaded from, or None where no stable address is known.
    """

    name: str
    digest: str
    arrays: tuple[str, ...]
    source: str
    origin: Origin | None = None

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self.name}.npz"


def load(archive: Archive, folder: str | Path | None = None, download: bool = False) -> Arrays:
    """Return the arrays of an archive, found and checked.

    It is looked for in `folder`; without one in the folder that LIFTEDNET_DATA names, then in
    the cache. With `download` a missing archive is fetched into the cache.

    Args:
        archive: what to look for.
        folder: the folder that holds it, if the caller knows.
        download: whether a missing archive may be fetched from the web.

    Raises:
        DataError: it is found nowhere, cannot be read, or holds other data.
    """
    path = _find(archive, folder)
    if path is None:
        path = _download(archive) if download else None
    if path is None:
        raise DataError(_how_to_get(archive, folder))
    arrays = read_npz(path)
    if digest(arrays) != archive.digest:
        raise DataError(f"{path} does not hold the data of {archive.name}: the checksum differs.")
    return arrays


def read_npz(path: Path) -> Arrays:
    """Return the arrays of an npz file, in the byte order of the machine.

    Raises:
        DataError: the file is damaged or too large, or holds pickled objects or what is no array.
    """
    try:
        with np.load(path, allow_pickle=False) as opened:
            return {name: _native(name, opened[name]) for name in opened.files}
    except Exception as error:  # damage shows as whatever zipfile, zlib and numpy trip over
        reason = str(error) or type(error).__name__
        if reason.startswith("Object arrays"):
            reason = (
                "it has an array of Python objects, which numpy pickles; save numbers or text, as "
                "in y.astype('U')."
            )
        raise DataError(f"{path} is not a readable npz file: {reason}") from error


def _native(name: str, values: object) -> NDArray[np.generic]:
    if not isinstance(values, np.ndarray):
        raise DataError(f"its member {name!r} is no array.")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of names, types, shapes and values, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {values.dtype.str} {values.shape};".encode())
        total.update(values.data if values.size else b"")
    return total.hexdigest()


def cache_folder() -> Path:
    """Return the folder that downloads are kept in.

    Example:
        >>> from liftednet.data import cache_folder
        >>> cache_folder().name
        'liftednet'
    """
    import pooch

    return Path(pooch.os_cache("liftednet"))


def _find(archive: Archive, folder: str | Path | None) -> Path | None:
    places = (place / archive.file for place in _places(folder))
    return next((place for place in places if place.is_file()), None)


def _places(folder: str | Path | None) -> Iterator[Path]:
    # A folder that the caller names is meant: falling back to another would hide a typing error.
    if folder is not None:
        yield Path(folder)
        return
    if named := os.environ.get(FOLDER_VARIABLE):
        yield Path(named)
    yield cache_folder()  # which asks for pooch


def _download(archive: Archive) -> Path | None:
    if archive.origin is None:
        return None
    import pooch

    cache = cache_folder()
    name = "download-" + archive.origin.url.rsplit("/", 1)[1]
    target = cache / archive.file
    try:
        sha256 = f"sha256:{archive.origin.sha256}"
        fetched = pooch.retrieve(archive.origin.url, sha256, name, cache)
        with replacement(target) as place:
            arrays = dict(archive.origin.read(Path(fetched)))
            np.savez_compressed(place, allow_pickle=False, **arrays)
    except OSError as error:  # the web's, too
        reason = error.strerror or error
        raise DataError(f"{archive.file} cannot be fetched to {cache}: {reason}.") from None
    return target


def _how_to_get(archive: Archive, folder: str | Path | None) -> str:
    sought = f"the folder {folder}" if folder is not None else f"{FOLDER_VARIABLE} and the cache"
    way = (
        "Pass download=True to fetch it"
        if archive.origin is not None
        else f"Save it there as an npz file with the arrays {', '.join(archive.arrays)}"
    )
    return (
        f"{archive.file} was not found in {sought}. {way}, or set {FOLDER_VARIABLE} to the folder "
        f"that holds it. Source: {archive.source}"
    )
