"""Networks inside optimization problems: into CVXPY, proven optima, inversion."""

from .cvxpy_network import CvxpyNetwork, to_cvxpy

__all__ = ["CvxpyNetwork", "to_cvxpy"]
