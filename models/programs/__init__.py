"""Networks inside optimization problems: into CVXPY, proven optima, inversion."""

from .cvxpy_network import CvxpyNetwork, to_cvxpy
from .optimum import Optimum, optimize

__all__ = ["CvxpyNetwork", "Optimum", "optimize", "to_cvxpy"]
