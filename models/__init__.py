"""The training problems: which block of a lifted network is which convex subproblem."""

if __name__ == "models":
    raise ImportError(
        "the folder models is the package liftednet.models: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.models"
    )

from liftednet.network import Network

from .checkpoint import Checkpoint
from .lifted import Lifted
from .methods import FullBatch, GaussNewton, Minibatch
from .mlp import LiftedMLP
from .rnn import LiftedRNN
from .run import Ending, Step, Trace
from .search import Trial, search

__all__ = [
    "Checkpoint",
    "Ending",
    "FullBatch",
    "GaussNewton",
    "Lifted",
    "LiftedMLP",
    "LiftedRNN",
    "Minibatch",
    "Network",
    "Step",
    "Trace",
    "Trial",
    "search",
]
