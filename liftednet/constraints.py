"""Constraints on scores, within a sample and across samples: what a fit and a network must meet.

Each is a convex set of the scores U (samples, outputs) of all samples at once, so that its dual
tells its price: by how much the objective falls where the limit is moved by one unit.
"""

from liftednet.sets import scores
from liftednet.sets.constraint import Constraint, Declared, violations
from liftednet.sets.scores import *  # noqa: F403

__all__ = ["Constraint", "Declared", "violations"]
__all__ += scores.__all__
