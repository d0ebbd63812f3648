"""Data sets and generated tasks that papers and benchmarks use."""

from benchmarks.data.piano_rolls import PianoRolls, jsb_chorales, muse_data
from benchmarks.data.sequences import IGNORED_LABEL, Batch, Sequences
from benchmarks.data.signals import har, har2, har_subjects, subsample
from benchmarks.data.tasks import (
    adding,
    balanced_on_fraction,
    correct,
    hochreiter_lengths,
    multiplication,
    temporal_order,
    timer,
    xor,
)

__all__ = [
    "IGNORED_LABEL",
    "Batch",
    "PianoRolls",
    "Sequences",
    "adding",
    "balanced_on_fraction",
    "correct",
    "har",
    "har2",
    "har_subjects",
    "hochreiter_lengths",
    "jsb_chorales",
    "multiplication",
    "muse_data",
    "subsample",
    "temporal_order",
    "timer",
    "xor",
]
