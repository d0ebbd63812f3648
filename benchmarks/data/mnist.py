"""The MNIST digits, from the data folder or the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from benchmarks.data.archives import Archive, Origin, load, read_npz
from liftednet.data import Classification

_MNIST = Archive(
    name="mnist",
    digest="76b7fc7e46d6dbf3be32e0dd2132a2e380f3098c6222f76d4c6f45dfb69c2100",
    arrays=("x_train", "y_train", "x_test", "y_test"),
    source="LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86(11), 1998.",
    origin=Origin(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
        read_npz,
    ),
)


def mnist(folder: str | Path | None = None, download: bool = False) -> Classification:
    """Return the MNIST digits in their official split: 60,000 and 10,000.

    Args:
        folder: the folder with mnist.npz; None looks in LIFTEDNET_DATA, then in the cache.
        download: whether it may be fetched from the web where it is missing.

    Returns:
        X (samples, 784) with pixels scaled from 0..255 to [0, 1], and labels 0 to 9.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.
    """
    arrays = load(_MNIST, folder, download)
    return Classification(
        _pixels(arrays["x_train"]),
        _labels(arrays["y_train"]),
        _pixels(arrays["x_test"]),
        _labels(arrays["y_test"]),
        10,
    )


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).flatten(1).float() / 255


def _labels(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels).long()


def validation_split(data: Classification) -> Classification:
    """Return the training images, a sixth of every class kept to choose by."""
    y = data.y_train
    kept, held = train_test_split(np.arange(len(y)), test_size=1 / 6, random_state=0, stratify=y)
    return Classification(data.x_train[kept], y[kept], data.x_train[held], y[held], data.classes)
