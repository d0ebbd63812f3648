"""What the networks of Table 1 are trained on, and their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.data import har, har_subjects, subsample
from liftednet.data import Classification, digits, mnist, split

ARCHITECTURES = {
    "300": (300,),
    "300-100": (300, 100),
    "500-150": (500, 150),
    "500-200-100": (500, 200, 100),
    "400-200-100-50": (400, 200, 100, 50),
    "10 x 100": (100,) * 10,
}


def loaded(name: str, samples: int, test_samples: int, held_out: bool) -> Classification:
    """Return data by name, or a part of them with another part of the training data to test on."""
    source = SOURCES[name]
    data = source.load()
    if samples < len(data.x_train):
        data = subsample(data, samples, min(test_samples, len(data.x_test)), seed=0)
    return source.hold_out(data) if held_out else data


def _random_part(data: Classification) -> Classification:
    return Classification(*split(data.x_train, data.y_train, 1 / 6, 0), data.classes)


def _windows() -> Classification:
    """Return the windows of HAR as rows, every channel with mean 0 and variance 1."""
    data = har()
    mean, deviation = data.x_train.mean((0, 1)), data.x_train.std((0, 1))
    train, test = (((x - mean) / deviation).flatten(1) for x in (data.x_train, data.x_test))
    return Classification(train, data.y_train, test, data.y_test, data.classes)


def _four_persons(data: Classification) -> Classification:
    """Hold out persons: neighboring windows overlap, so that random ones would tell nothing."""
    persons = har_subjects()
    held = torch.isin(persons, persons.unique()[2::5])
    x, y = data.x_train, data.y_train
    return Classification(x[~held], y[~held], x[held], y[held], data.classes)


@dataclass(frozen=True)
class Source:
    """Data by name.

    Attributes:
        load: returns all of them.
        hold_out: returns a part of the training data with another part as its test data.
    """

    load: Callable[[], Classification]
    hold_out: Callable[[Classification], Classification] = _random_part


SOURCES = {
    "mnist": Source(mnist),
    "digits": Source(digits),
    "har": Source(_windows, _four_persons),
}


def sizes_of(data: Classification, architecture: str) -> tuple[int, ...]:
    """Return the units of inputs, hidden layers and outputs."""
    return (data.x_train.shape[1], *ARCHITECTURES[architecture], data.classes)
