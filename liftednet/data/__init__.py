"""Data sets to try things on, and generated tasks over time."""

from liftednet.data.archives import cache_folder
from liftednet.data.sets import Classification, digits, echo, mnist, running_sum, split
from liftednet.processes import shard

__all__ = [
    "Classification",
    "cache_folder",
    "digits",
    "echo",
    "mnist",
    "running_sum",
    "shard",
    "split",
]
