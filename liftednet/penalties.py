"""Penalties pi(W) on a weight matrix: what a weight fit adds to its divergence.

Penalties add up, `L1(0.1) + Nonnegative()`, and each of them has a proximal map, so that a method
of training can hold it at every step. A set of matrices is a penalty, too: 0 on it.
"""

from liftednet.sets import functions, matrices
from liftednet.sets.functions import *  # noqa: F403
from liftednet.sets.matrices import *  # noqa: F403
from liftednet.sets.penalty import Penalty
from liftednet.sets.penalty import Sum as Sum

__all__ = ["Penalty"]
__all__ += functions.__all__ + matrices.__all__
