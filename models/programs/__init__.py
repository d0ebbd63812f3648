"""Networks inside optimization problems: into CVXPY, proven optima, inversion."""

from .cvxpy_network import CvxpyNetwork, to_cvxpy
from .inversion import Inversion, invert
from .optimum import Optimum, optimize
from .radius import Radius, robustness_radius

__all__ = [
    "CvxpyNetwork",
    "Inversion",
    "Optimum",
    "Radius",
    "invert",
    "optimize",
    "robustness_radius",
    "to_cvxpy",
]
