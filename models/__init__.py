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
from .lifted import Lifted
from .methods import FullBatch, GaussNewton, Global, Minibatch
from .shapes import input_convex
from .trace import Ending, Step, Trace
from .uncertainty import Ball, Box

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

_LATER = {
    "Certificate": "certificate",
    "ConstraintReport": "constraint_report",
    "CoverageDisplay": "displays",
    "CvxpyNetwork": "programs",
    "FitDisplay": "displays",
    "GlobalGap": "optimality",
    "Inversion": "programs",
    "LiftedClassifier": "estimators",
    "LiftedRegressor": "estimators",
    "LiftedSequenceClassifier": "estimators",
    "MissingUnit": "optimality",
    "Optimum": "programs",
    "PathDisplay": "displays",
    "PathStep": "paths",
    "Posterior": "error_bars",
    "Prediction": "error_bars",
    "Radius": "programs",
    "RelevanceDisplay": "displays",
    "add_unit": "optimality",
    "certify": "certificate",
    "global_gap": "optimality",
    "global_path": "paths",
    "posterior": "error_bars",
    "invert": "programs",
    "optimize": "programs",
    "robustness_radius": "programs",
    "to_cvxpy": "programs",
}

__all__ = [
    "Ball",
    "Box",
    "Certificate",
    "Checkpoint",
    "ConstraintReport",
    "CoverageDisplay",
    "CvxpyNetwork",
    "Ending",
    "FitDisplay",
    "FullBatch",
    "GaussNewton",
    "Global",
    "GlobalGap",
    "Inversion",
    "Lifted",
    "LiftedClassifier",
    "LiftedMLP",
    "LiftedRNN",
    "LiftedRegressor",
    "LiftedSequenceClassifier",
    "Minibatch",
    "MissingUnit",
    "Network",
    "Optimum",
    "PathDisplay",
    "PathStep",
    "Posterior",
    "Prediction",
    "Radius",
    "RelevanceDisplay",
    "Step",
    "Trace",
    "add_unit",
    "certify",
    "global_gap",
    "global_path",
    "input_convex",
    "invert",
    "optimize",
    "posterior",
    "robustness_radius",
    "to_cvxpy",
]


def __getattr__(name: str) -> Any:
    """Import what no fit needs on its first use: scikit-learn takes a second."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
