"""Networks inside optimization problems: into CVXPY, proven optima, inversion."""

from .cvxpy_network import CvxpyNetwork, to_cvxpy
from .inversion import Inversion, Radius, invert, robustness_radius
from .optimum import Optimum, optimize

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
