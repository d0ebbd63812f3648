"""Data sets to try things on, and generated tasks over time."""

from liftednet.data.archives import cache_folder
from liftednet.data.sets import Classification, digits, mnist, split
from liftednet.data.streams import echo, running_sum

__all__ = [
    "Classification",
    "cache_folder",
    "digits",
    "echo",
    "mnist",
    "running_sum",
    "split",
]
