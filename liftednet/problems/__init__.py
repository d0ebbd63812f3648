"""The one convex subproblem, and the names under which users build it (design, section 2)."""

from liftednet.problems.block_fit import BlockFit
from liftednet.problems.constrained_fit import ConstrainedFit
from liftednet.problems.fit import Fit, Formulation, Link
from liftednet.problems.state_fit import OutputFit, StateFit
from liftednet.problems.states_over_time import StatesOverTime, TimeLink
from liftednet.problems.weight_fit import WeightFit
from liftednet.samples import Design, Weights

__all__ = [
    "BlockFit",
    "ConstrainedFit",
    "Design",
    "Fit",
    "Formulation",
    "Link",
    "OutputFit",
    "StateFit",
    "StatesOverTime",
    "TimeLink",
    "WeightFit",
    "Weights",
]
