"""The three convex subproblems that training is made of (design, section 2)."""

from liftednet.problems.design_matrix import Design, Weights
from liftednet.problems.formulation import Formulation, Measure, Subproblem
from liftednet.problems.output_fit import OutputFit
from liftednet.problems.state_fit import Link, StateFit
from liftednet.problems.states_over_time import StatesOverTime, TimeLink
from liftednet.problems.weight_fit import WeightFit

__all__ = [
    "Design",
    "Formulation",
    "Link",
    "Measure",
    "OutputFit",
    "StateFit",
    "StatesOverTime",
    "Subproblem",
    "TimeLink",
    "WeightFit",
    "Weights",
]
