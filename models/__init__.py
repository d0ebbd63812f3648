"""The training problems: which block of a lifted network is which convex subproblem."""

if __name__ == "models":
    raise ImportError(
        "the folder models is the package liftednet.models: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.models"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftednet.network import Network as Network

from .builders import LiftedMLP as LiftedMLP
from .builders import LiftedRNN as LiftedRNN
from .checkpoint import Checkpoint as Checkpoint
from .lifted import Lifted as Lifted
from .methods import FullBatch as FullBatch
from .methods import GaussNewton as GaussNewton
from .methods import Global as Global
from .methods import Minibatch as Minibatch
from .shapes import input_convex as input_convex
from .trace import Ending as Ending
from .trace import Step as Step
from .trace import Trace as Trace
from .uncertainty import Ball as Ball
from .uncertainty import Box as Box

if TYPE_CHECKING:
    from .certificate import Certificate as Certificate
    from .certificate import certify as certify
    from .constraint_report import ConstraintReport as ConstraintReport
    from .displays import CoverageDisplay as CoverageDisplay
    from .displays import FitDisplay as FitDisplay
    from .displays import PathDisplay as PathDisplay
    from .displays import RelevanceDisplay as RelevanceDisplay
    from .error_bars import Posterior as Posterior
    from .error_bars import Prediction as Prediction
    from .error_bars import posterior as posterior
    from .estimators import LiftedClassifier as LiftedClassifier
    from .estimators import LiftedRegressor as LiftedRegressor
    from .estimators import LiftedSequenceClassifier as LiftedSequenceClassifier
    from .optimality import GlobalGap as GlobalGap
    from .optimality import MissingUnit as MissingUnit
    from .optimality import add_unit as add_unit
    from .optimality import global_gap as global_gap
    from .paths import PathStep as PathStep
    from .paths import global_path as global_path
    from .programs import CvxpyNetwork as CvxpyNetwork
    from .programs import Inversion as Inversion
    from .programs import Optimum as Optimum
    from .programs import Radius as Radius
    from .programs import invert as invert
    from .programs import optimize as optimize
    from .programs import robustness_radius as robustness_radius
    from .programs import to_cvxpy as to_cvxpy

_MODULES = {
    "certificate": "Certificate certify",
    "constraint_report": "ConstraintReport",
    "displays": "CoverageDisplay FitDisplay PathDisplay RelevanceDisplay",
    "error_bars": "Posterior Prediction posterior",
    "estimators": "LiftedClassifier LiftedRegressor LiftedSequenceClassifier",
    "optimality": "GlobalGap MissingUnit add_unit global_gap",
    "paths": "PathStep global_path",
    "programs": "CvxpyNetwork Inversion Optimum Radius invert optimize robustness_radius to_cvxpy",
}
_LATER = {name: module for module, names in _MODULES.items() for name in names.split()}
_AT_ONCE = (
    "Ball", "Box", "Checkpoint", "Ending", "FullBatch", "GaussNewton", "Global", "Lifted",
    "LiftedMLP", "LiftedRNN", "Minibatch", "Network", "Step", "Trace", "input_convex",
)  # fmt: skip

__all__ = sorted((*_AT_ONCE, *_LATER))


def __getattr__(name: str) -> Any:
    """Import what no fit needs on its first use: scikit-learn takes a second."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
