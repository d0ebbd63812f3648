"""Constraints on scores, within a sample and across samples: what a fit and a network must meet.

Each is a convex set of the scores U (samples, outputs) of all samples at once, so that its dual
tells its price: by how much the objective falls where the limit is moved by one unit. Those on
rates, of decisions and of probabilities, are no convex sets: they are held on the training rows by
rounds, which count decisions exactly, and on new rows with a confidence that is asked for.
"""

from liftednet.sets import rates, scores
from liftednet.sets.constraint import Constraint as Constraint
from liftednet.sets.constraint import Declared
from liftednet.sets.constraint import violations as violations
from liftednet.sets.rates import *  # noqa: F403
from liftednet.sets.rates import RateConstraint as RateConstraint
from liftednet.sets.scores import *  # noqa: F403

__all__ = ["Declared"]
__all__ += rates.__all__ + scores.__all__
