"""The training problems: which block of a lifted network is which convex subproblem."""

if __name__ == "models":
    raise ImportError(
        "the folder models is the package liftednet.models: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.models"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftednet.network import Network

from .builders import LiftedMLP, LiftedRNN
from .certify import Certificate, certify
from .checkpoint import Checkpoint
from .constraints import ConstraintReport
from .lifted import Lifted
from .methods import FullBatch, GaussNewton, Minibatch
from .shapes import input_convex
from .trace import Ending, Step, Trace

if TYPE_CHECKING:
    from .estimators import LiftedClassifier as LiftedClassifier
    from .estimators import LiftedRegressor as LiftedRegressor
    from .estimators import LiftedSequenceClassifier as LiftedSequenceClassifier

_ESTIMATORS = ("LiftedClassifier", "LiftedRegressor", "LiftedSequenceClassifier")

__all__ = [
    "Certificate",
    "Checkpoint",
    "ConstraintReport",
    "Ending",
    "FullBatch",
    "GaussNewton",
    "Lifted",
    "LiftedClassifier",
    "LiftedMLP",
    "LiftedRNN",
    "LiftedRegressor",
    "LiftedSequenceClassifier",
    "Minibatch",
    "Network",
    "Step",
    "Trace",
    "certify",
    "input_convex",
]


def __getattr__(name: str) -> Any:
    """Import an estimator on its first use: scikit-learn comes with it, which takes a second."""
    if name in _ESTIMATORS:
        return getattr(import_module(f"{__name__}.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
