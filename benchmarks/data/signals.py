"""Recorded signals, and smaller draws of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.data.archives import Archive, load
from liftednet.data import Classification
from liftednet.errors import DataError

_HAR = Archive(
    name="har",
    digest="755d6fa7cd4b9dca23a68336f091e341975a2f58250e63aab0d37a20f96cad74",
    arrays=(
        "x_train (7352, 128, 9) float32",
        "y_train (7352,) uint8",
        "subject_train (7352,) uint8",
        "x_test (2947, 128, 9) float32",
        "y_test (2947,) uint8",
        "subject_test (2947,) uint8",
        "channels (9,) names body_acc_x to body_gyro_z, total_acc_x to total_acc_z",
        "classes (6,) names, numbered from 0",
    ),
    source="Inertial signals of the UCI data set 240, DOI 10.24432/C54S4K (Anguita et al., 2013).",
)

_HAR2_FIRST = (3, 5, 1)  # SITTING, LAYING, WALKING_UPSTAIRS


def har(folder: str | Path | None = None) -> Classification:
    """Return the windows of the Human Activity Recognition data in their official split.

    Args:
        folder: the folder with har.npz; None looks in LIFTEDNET_DATA, then in the cache.

    Returns:
        X (samples, 128, 9): 2.56 s at 50 Hz of body acceleration (g), angular velocity (rad/s)
        and total acceleration (g); labels 0 to 5 from walking to laying.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.
    """
    arrays = load(_HAR, folder)
    return Classification(
        torch.from_numpy(arrays["x_train"]),
        _labels(arrays["y_train"]),
        torch.from_numpy(arrays["x_test"]),
        _labels(arrays["y_test"]),
        6,
    )


def har_subjects(folder: str | Path | None = None, *, test: bool = False) -> Tensor:
    """Return who wore the phone in each training window of `har`, or each test window.

    Neighboring windows overlap by half, so a validation part is best made of whole persons.

    Returns:
        (7352,) int64 numbers of persons, (2947,) of test windows.

    Raises:
        DataError: the data are found nowhere, cannot be read, or fail their checksum.
    """
    return _labels(load(_HAR, folder)[f"subject_{'test' if test else 'train'}"])


def har2(
    folder: str | Path | None = None, noise_variance: float = 0.0, seed: int = 0
) -> Classification:
    """Return HAR-2, the binary version of `har`, normalized, and with noise Noisy-HAR-2.

    Sitting, laying and walking upstairs are class 1, the others class 0 (Kusupati et al.,
    FastGRNN, 2018). Each channel is shifted and scaled to mean 0 and variance 1 over the training
    windows; then Gaussian noise is added (RNN training along locally optimal trajectories, V).

    Args:
        folder: the folder with har.npz; None looks in LIFTEDNET_DATA, then in the cache.
        noise_variance: of the noise on every value, in the normalized units; the paper has 2.
        seed: of the noise.

    Returns:
        X (samples, 128, 9) and labels 0 and 1.

    Raises:
        DataError: a negative variance, or the data are not to be had.
    """
    if not noise_variance >= 0:
        raise DataError(f"noise_variance must not be negative; it is {noise_variance!r}.")
    windows = har(folder)
    mean = windows.x_train.mean((0, 1))
    deviation = windows.x_train.std((0, 1))
    source = torch.Generator().manual_seed(seed)
    x_train, x_test = (
        (x - mean) / deviation + noise_variance**0.5 * torch.randn(x.shape, generator=source)
        for x in (windows.x_train, windows.x_test)
    )
    first = torch.tensor(_HAR2_FIRST)
    y_train, y_test = (torch.isin(y, first).long() for y in (windows.y_train, windows.y_test))
    return Classification(x_train, y_train, x_test, y_test, 2)


def subsample(images: Classification, train: int, test: int, seed: int) -> Classification:
    """Draw smaller training and test sets without repetition.

    Args:
        images: the whole data set.
        train: training samples to keep.
        test: test samples to keep.
        seed: of the draw.
    """
    source = torch.Generator().manual_seed(seed)
    kept = torch.randperm(len(images.x_train), generator=source)[:train]
    tested = torch.randperm(len(images.x_test), generator=source)[:test]
    return Classification(
        images.x_train[kept],
        images.y_train[kept],
        images.x_test[tested],
        images.y_test[tested],
        images.classes,
    )


def _labels(labels: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(labels).long()
