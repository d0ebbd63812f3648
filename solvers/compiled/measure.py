"""What the language measures, by compiled loops where these serve.

They are none of a solver's own loops: it does not judge itself by them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from liftednet.activations.simplex import SLACK
from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import Measure, OutputFit, StateFit
from liftednet.problems.fit import QUICKER, measured

from .loops import (
    Ramp,
    array,
    in_threads,
    like_link_rows,
    link_rows,
    ramp,
    ramp_refusal,
    refusal,
    rows_of,
    worth_compiling,
)

Judged = tuple[float, float, float]


def measured_states(problem: StateFit, value: Tensor) -> Measure | None:
    """Return what `StateFit.measure` does, of states below quadratic links, or None."""
    if not len(value) or problem.smoothness is None or ramp_refusal(problem) is not None:
        return None
    dtypes = problem.pre_activation.dtype, value.dtype
    if not (worth_compiling(*value.shape) or _states_at_hand(*dtypes, len(problem.links))):
        return None
    from .measure_rows import judged_states

    line = ramp(problem.divergence.activation)
    assert line is not None  # it is served
    u, z, links = array(problem.pre_activation), array(value), link_rows(problem)
    low, high = (np.float64(z.dtype.type(end)) for end in line[1:])  # as states have them
    line = line._replace(low=low, high=high)
    s = problem.lam + problem.smoothness

    def work(part: slice) -> Judged:
        found: Judged = judged_states(u[part], z[part], rows_of(links, part), problem.lam, s, line)
        return found

    objectives, violations, scales = zip(*in_threads(work, *z.shape), strict=True)
    objective = sum(objectives)
    violation = math.nan if math.isnan(objective) else max(violations)
    return measured(objective, violation, max(scales))


def measured_outputs(problem: OutputFit, value: Tensor) -> Measure | None:
    """Return what `OutputFit.measure` does, of the cross-entropy on the simplex, or None."""
    simplex = isinstance(problem.loss, SimplexCrossEntropy)
    if not simplex or not len(value) or refusal(value) is not None:
        return None
    from .measure_rows import judged_on_simplex

    given = problem.target, problem.pre_activation, value
    if not (worth_compiling(*value.shape) or _outputs_at_hand(*(x.dtype for x in given))):
        return None
    rows = [array(part) for part in given]

    def work(part: slice) -> Judged:
        found: Judged = judged_on_simplex(*(x[part] for x in rows), problem.lam, SLACK)
        return found

    objectives, violations, largest = zip(*in_threads(work, *value.shape), strict=True)
    return measured(sum(objectives), max(violations), max(1.0, *largest))


@cache
def _states_at_hand(fit: torch.dtype, value: torch.dtype, links: int) -> bool:
    from .lanes import at_hand
    from .measure_rows import judged_states

    u, z = (torch.empty(0, 0, dtype=dtype).numpy() for dtype in (fit, value))
    line = Ramp(1.0, 0.0, 1.0).to(np.float64)
    return at_hand(judged_states, u, z, like_link_rows(fit, links), 1.0, 1.0, line)


@cache
def _outputs_at_hand(*dtypes: torch.dtype) -> bool:
    from .lanes import at_hand
    from .measure_rows import judged_on_simplex

    rows = (torch.empty(0, 0, dtype=dtype).numpy() for dtype in dtypes)
    return at_hand(judged_on_simplex, *rows, 1.0, SLACK)


def bring() -> None:
    """Have the language look here first."""
    QUICKER[StateFit] = measured_states
    QUICKER[OutputFit] = measured_outputs
