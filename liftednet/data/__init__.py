"""Data sets, generated tasks and mini-batches of sequences."""

from liftednet.data.archives import cache_folder
from liftednet.data.piano_rolls import PianoRolls, jsb_chorales, muse_data
from liftednet.data.sequences import IGNORED_LABEL, Batch, Sequences
from liftednet.data.sets import (
    Classification,
    digits,
    har,
    har2,
    har_subjects,
    mnist,
    pixel_sequences,
    split,
    subsample,
)
from liftednet.data.streams import balanced_on_fraction, echo, running_sum, timer
from liftednet.data.verdicts import (
    adding,
    correct,
    hochreiter_lengths,
    multiplication,
    temporal_order,
    xor,
)

__all__ = [
    "IGNORED_LABEL",
    "Batch",
    "Classification",
    "PianoRolls",
    "Sequences",
    "adding",
    "balanced_on_fraction",
    "cache_folder",
    "correct",
    "digits",
    "echo",
    "har",
    "har2",
    "har_subjects",
    "hochreiter_lengths",
    "jsb_chorales",
    "mnist",
    "multiplication",
    "muse_data",
    "pixel_sequences",
    "running_sum",
    "split",
    "subsample",
    "temporal_order",
    "timer",
    "xor",
]
