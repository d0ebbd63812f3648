"""Data sets of images and recorded signals, with their published splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from liftednet.data.archives import Archive, Origin, load, read_npz
from liftednet.data.checks import fraction, generator, positive_integer, same_rows
from liftednet.errors import DataError

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


@dataclass(frozen=True)
class Classification:
    """Samples with one label each, split into training and test.

    Attributes:
        x_train: (samples, ...) float32.
        y_train: (samples,) int64 labels from 0 to classes - 1.
        x_test: (samples, ...) float32.
        y_test: (samples,) int64.
        classes: number of classes.

    Example:
        >>> from liftednet import data
        >>> digits = data.digits()
        >>> tuple(digits.x_train.shape), tuple(digits.x_test.shape), digits.classes
        ((1347, 64), (450, 64), 10)
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int


def digits(test_fraction: float = 0.25, seed: int = 0) -> Classification:
    """Return the 8 x 8 digits that scikit-learn carries: 1,797 images, no file needed.

    Args:
        test_fraction: share of each class that is kept for testing.
        seed: of the stratified split.

    Returns:
        X (samples, 64) with pixels scaled from 0..16 to [0, 1], and labels 0 to 9.

    Raises:
        DataError: a share outside (0, 1).

    Example:
        >>> from liftednet import data
        >>> digits = data.digits(test_fraction=0.1)
        >>> tuple(digits.x_test.shape), float(digits.x_train.max())
        ((180, 64), 1.0)
        >>> digits.y_test.bincount().tolist()  # of every class a tenth
        [18, 18, 18, 18, 18, 18, 18, 18, 18, 18]
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 16
    return Classification(*split(x, torch.from_numpy(labels).long(), test_fraction, seed), 10)


def mnist(folder: str | Path | None = None, download: bool = False) -> Classification:
    """Return the MNIST digits in their official split: 60,000 and 10,000.

    Args:
        folder: the folder with mnist.npz; None looks in LIFTEDNET_DATA, then in the cache.
        download: whether it may be fetched from the web where it is missing.

    Returns:
        X (samples, 784) with pixels scaled from 0..255 to [0, 1], and labels 0 to 9.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.

    Example:
        >>> from liftednet import data
        >>> mnist = data.mnist()
        >>> tuple(mnist.x_train.shape), tuple(mnist.x_test.shape), mnist.y_train[:5].tolist()
        ((60000, 784), (10000, 784), [5, 0, 4, 1, 9])
    """
    arrays = load(_MNIST, folder, download)
    return Classification(
        _pixels(arrays["x_train"]),
        _labels(arrays["y_train"]),
        _pixels(arrays["x_test"]),
        _labels(arrays["y_test"]),
        10,
    )


def pixel_sequences(images: Classification, permutation_seed: int | None = None) -> Classification:
    """Show images one pixel a step, normalized to mean 0 and variance 1 over the training set.

    Pixel-MNIST and Permute-MNIST (RNN training along locally optimal trajectories, section V).

    Args:
        images: with X (samples, pixels).
        permutation_seed: of one random order of the pixels for all images; None keeps theirs.

    Returns:
        X (samples, pixels, 1).

    Example:
        >>> from liftednet import data
        >>> steps = data.pixel_sequences(data.digits(), permutation_seed=0)
        >>> tuple(steps.x_train.shape), round(float(steps.x_train.std()), 4)
        ((1347, 64, 1), 1.0)
    """
    pixels = images.x_train.shape[1]
    order = torch.arange(pixels)
    if permutation_seed is not None:
        order = torch.randperm(pixels, generator=generator(permutation_seed))
    mean, deviation = images.x_train.mean(), images.x_train.std()
    return replace(
        images,
        x_train=((images.x_train[:, order] - mean) / deviation).unsqueeze(2),
        x_test=((images.x_test[:, order] - mean) / deviation).unsqueeze(2),
    )


def har(folder: str | Path | None = None) -> Classification:
    """Return the windows of the Human Activity Recognition data in their official split.

    Args:
        folder: the folder with har.npz; None looks in LIFTEDNET_DATA, then in the cache.

    Returns:
        X (samples, 128, 9): 2.56 s at 50 Hz of body acceleration (g), angular velocity (rad/s)
        and total acceleration (g); labels 0 to 5 from walking to laying.

    Raises:
        DataError: it is found nowhere, cannot be read, or fails its checksum.

    Example:
        >>> from liftednet import data
        >>> windows = data.har()
        >>> tuple(windows.x_train.shape), tuple(windows.x_test.shape), int(windows.y_train.max())
        ((7352, 128, 9), (2947, 128, 9), 5)
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

    Example:
        >>> from liftednet import data
        >>> data.har_subjects().unique().numel()  # persons in the training windows
        21
        >>> data.har_subjects(test=True).unique().numel()
        9
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

    Example:
        >>> from liftednet import data
        >>> windows = data.har2(noise_variance=2.0)
        >>> round(float(windows.x_train.var()), 1)  # 1 of the signal and 2 of the noise
        3.0
    """
    if not noise_variance >= 0:
        raise DataError(f"noise_variance must not be negative; it is {noise_variance!r}.")
    windows = har(folder)
    mean = windows.x_train.mean((0, 1))
    deviation = windows.x_train.std((0, 1))
    source = generator(seed)
    x_train, x_test = (
        (x - mean) / deviation + noise_variance**0.5 * torch.randn(x.shape, generator=source)
        for x in (windows.x_train, windows.x_test)
    )
    first = torch.tensor(_HAR2_FIRST)
    y_train, y_test = (torch.isin(y, first).long() for y in (windows.y_train, windows.y_test))
    return Classification(x_train, y_train, x_test, y_test, 2)


def split(
    x: Tensor, y: Tensor, held_out: float, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split samples at random, labels class by class.

    Args:
        x: (samples, ...).
        y: (samples,) int64 labels, split in proportion, or (samples, ...) other targets.
        held_out: share of the samples in the second part.
        seed: of the split.

    Returns:
        X and y of the first part, X and y of the second part.

    Raises:
        DataError: no samples, row counts that differ, a share outside (0, 1), or too few samples.

    Example:
        >>> import torch
        >>> from liftednet.data import split
        >>> x, y = torch.arange(8.0).unsqueeze(1), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        >>> x_kept, y_kept, x_held, y_held = split(x, y, held_out=0.5, seed=0)
        >>> y_kept.bincount().tolist(), y_held.bincount().tolist()  # three to one in both
        ([3, 1], [3, 1])
    """
    from sklearn.model_selection import train_test_split

    same_rows(x, y)
    share = fraction("The held-out share", held_out)
    strata = y.numpy() if y.ndim == 1 and not y.is_floating_point() else None
    try:
        kept, held = train_test_split(
            np.arange(len(x)), test_size=share, random_state=seed, stratify=strata
        )
    except ValueError as error:
        raise DataError(f"{len(x)} samples cannot be split: {error}") from error
    return x[kept], y[kept], x[held], y[held]


def subsample(images: Classification, train: int, test: int, seed: int) -> Classification:
    """Draw smaller training and test sets without repetition.

    Args:
        images: the whole data set.
        train: training samples to keep.
        test: test samples to keep.
        seed: of the draw.

    Raises:
        DataError: a count that is not positive or beyond the data.

    Example:
        >>> from liftednet import data
        >>> few = data.subsample(data.digits(), train=100, test=50, seed=0)
        >>> tuple(few.x_train.shape), tuple(few.y_test.shape)
        ((100, 64), (50,))
    """
    source = generator(seed)
    kept = [
        _some(len(images.x_train), positive_integer("train", train), source),
        _some(len(images.x_test), positive_integer("test", test), source),
    ]
    return replace(
        images,
        x_train=images.x_train[kept[0]],
        y_train=images.y_train[kept[0]],
        x_test=images.x_test[kept[1]],
        y_test=images.y_test[kept[1]],
    )


def _some(available: int, wanted: int, source: torch.Generator) -> Tensor:
    if wanted > available:
        raise DataError(f"{wanted} samples were asked for; the data set has {available}.")
    return torch.randperm(available, generator=source)[:wanted]


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).flatten(1).float() / 255


def _labels(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels).long()
