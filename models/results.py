"""What calls return: certificates, optima, posteriors, traces, for annotations and reference."""

from liftednet.predictions import Prediction

from .certificate import Certificate
from .constraint_report import ConstraintReport
from .error_bars import Posterior
from .optimality import GlobalGap, MissingUnit, PathStep
from .programs import CvxpyNetwork, Inversion, Optimum, Radius
from .trace import Ending, Step, Trace

__all__ = [
    "Certificate",
    "ConstraintReport",
    "CvxpyNetwork",
    "Ending",
    "GlobalGap",
    "Inversion",
    "MissingUnit",
    "Optimum",
    "PathStep",
    "Posterior",
    "Prediction",
    "Radius",
    "Step",
    "Trace",
]
