"""Constraints on scores, within a sample and across samples: what a fit and a network must meet.

Each is a convex set of the scores U (samples, outputs) of all samples at once, so that its dual
tells its price: by how much the objective falls where the limit is moved by one unit.
"""

from liftednet.constraints.catalogue import Bounds, Budget, GroupMeans, Linear, Order, Values
from liftednet.constraints.constraint import Constraint, violations
from liftednet.constraints.declared import Declared

__all__ = [
    "Bounds",
    "Budget",
    "Constraint",
    "Declared",
    "GroupMeans",
    "Linear",
    "Order",
    "Values",
    "violations",
]
