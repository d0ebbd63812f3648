"""Data sets, generated tasks and mini-batches of sequences."""

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
    "adding",
    "balanced_on_fraction",
    "correct",
    "echo",
    "hochreiter_lengths",
    "multiplication",
    "running_sum",
    "temporal_order",
    "timer",
    "xor",
]
