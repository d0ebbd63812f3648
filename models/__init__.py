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
from .checkpoint import Checkpoint
from .constraint_report import ConstraintReport
from .lifted import Lifted
from .methods import FullBatch, GaussNewton, Minibatch
from .shapes import input_convex
from .trace import Ending, Step, Trace

if TYPE_CHECKING:
    from .certificate import Certificate as Certificate
    from .certificate import certify as certify
    from .error_bars import Posterior as Posterior
    from .error_bars import Prediction as Prediction
    from .error_bars import posterior as posterior
    from .estimators import LiftedClassifier as LiftedClassifier
    from .estimators import LiftedRegressor as LiftedRegressor
    from .estimators import LiftedSequenceClassifier as LiftedSequenceClassifier
    from .programs import CvxpyNetwork as CvxpyNetwork
    from .programs import Optimum as Optimum
    from .programs import optimize as optimize
    from .programs import to_cvxpy as to_cvxpy

_LATER = {
    "Certificate": "certificate",
    "CvxpyNetwork": "programs",
    "LiftedClassifier": "estimators",
    "LiftedRegressor": "estimators",
    "LiftedSequenceClassifier": "estimators",
    "Optimum": "programs",
    "Posterior": "error_bars",
    "Prediction": "error_bars",
    "certify": "certificate",
    "posterior": "error_bars",
    "optimize": "programs",
    "to_cvxpy": "programs",
}

__all__ = [
    "Certificate",
    "Checkpoint",
    "ConstraintReport",
    "CvxpyNetwork",
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
    "Optimum",
    "Posterior",
    "Prediction",
    "Step",
    "Trace",
    "certify",
    "input_convex",
    "optimize",
    "posterior",
    "to_cvxpy",
]


def __getattr__(name: str) -> Any:
    """Import what no fit needs on its first use: scikit-learn takes a second."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
