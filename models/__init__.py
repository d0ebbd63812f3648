"""The training problems: which block of a lifted network is which convex subproblem."""

if __name__ == "models":
    raise ImportError(
        "the folder models is the package liftednet.models: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.models"
    )

from .descent import Descent, Step, Trace
from .epochs import Epoch, EpochTrace
from .full_batch import FullBatch
from .minibatch import Minibatch
from .mlp import LiftedMLP
from .recurrent_minibatch import SequenceMinibatch
from .rescaling import with_one_lam
from .rnn import LiftedRNN
from .search import Trial, search

__all__ = [
    "Descent",
    "Epoch",
    "EpochTrace",
    "FullBatch",
    "LiftedMLP",
    "LiftedRNN",
    "Minibatch",
    "SequenceMinibatch",
    "Step",
    "Trace",
    "Trial",
    "search",
    "with_one_lam",
]
