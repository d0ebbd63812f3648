"""Whether an activation's declaration holds, decided with numbers and by CVXPY's rules."""

from liftednet.check.report import Check, FailedCheckError, Report
from liftednet.check.run import check_activation

__all__ = ["Check", "FailedCheckError", "Report", "check_activation"]
