"""State fits that compiled loops know, and their judgment by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations.loops import RAMP, SOFTMAX, LoopMap, at_ends, few, loop_map
from liftednet.activations.simplex import Softmax
from liftednet.compiled import in_threads, refusal
from liftednet.divergences import Divergence, Joint, Tight
from liftednet.problems.fit import Measure, measured

if TYPE_CHECKING:
    from liftednet.compiled.states import LinkRows
    from liftednet.problems.fit import Link
    from liftednet.problems.state_fit import StateFit

Array = np.ndarray[Any, np.dtype[Any]]
Looped = tuple[Array, "tuple[LinkRows, ...]"]


class Ramp(NamedTuple):
    """phi(u) = max(u, alpha u), cut off at low and high."""

    alpha: float
    low: float
    high: float


def ramp(activation: Activation) -> Ramp | None:
    """Return an activation as a ramp, or None where it is none."""
    found = loop_map(activation)
    return Ramp(*found[1:]) if found is not None and found.kind == RAMP else None


def unserved(problem: StateFit) -> str | None:
    """Return why the compiled solvers of ramps cannot take a state fit, or None."""
    activation = problem.divergence.activation
    if ramp(activation) is None:
        return f"it needs an activation of at most three straight pieces, not {activation!r}"
    if not problem.links or not problem.matrices:
        return "it needs links through a matrix that all samples share"
    if not all(link.divergence.quadratic for link in problem.links):
        return 'it needs links with a quadratic divergence (divergence="joint")'
    return refusal(problem.pre_activation)


def measured_by_loop(problem: StateFit, value: Tensor) -> Measure | None:
    """Return what `StateFit.measure` does by a compiled loop, or None where there is none."""
    own = own_map(problem.divergence)
    if own is None or problem.smoothness is None or problem.loops is None:
        return None
    straight = own.kind == RAMP and all(link.divergence.quadratic for link in problem.links)
    if not (straight or few(problem.samples * (problem.units + columns_above(problem)))):
        return None  # torch has exponentials in vectors
    if not len(value):  # of a process without samples
        return measured(0.0, 0.0, problem.lam)
    from liftednet.compiled.states import judged_states

    u, links = problem.loops
    own = at_ends(own, value.dtype)
    z, s = value.detach().contiguous().numpy(), problem.lam + problem.smoothness

    def work(part: slice) -> tuple[float, float, float]:
        given = u[part], z[part], rows_of(links, part)
        found: tuple[float, float, float] = judged_states(*given, problem.lam, s, own)
        return found

    objectives, violations, scales = zip(*in_threads(work, *z.shape), strict=True)
    objective = sum(objectives)
    violation = math.nan if math.isnan(objective) else max(violations)
    return measured(objective, violation, max(scales))


def own_map(divergence: Divergence) -> LoopMap | None:
    """Return phi as compiled loops know it, or None where they do not know Phi."""
    return loop_map(divergence.activation) if isinstance(divergence, Joint | Tight) else None


def columns_above(problem: StateFit) -> int:
    """Return the number of pre-activations that the links see."""
    return sum(link.weight.shape[1] for link in problem.links)


def looped(problem: StateFit) -> Looped | None:
    """Return U and the links of a fit as compiled loops take them, or None where they do not.

    Where there is no link, one that sees nothing stands for it.
    """
    if not problem.matrices or refusal(problem.pre_activation) is not None:
        return None
    above = [link_map(link.divergence) for link in problem.links]
    if None in above:
        return None
    from liftednet.compiled.states import LinkRows

    def parts(link: Link, above: LoopMap | None) -> tuple[Any, ...]:
        columns = link.weight.shape[1]
        return (
            _array(link.weight),
            _array(link.offset).reshape(-1, columns),
            _array(link.target),
            slope_of(link.divergence, columns),
            float(link.lam),
            float(link.divergence.smoothness) if isinstance(link.divergence, Joint) else 0.0,
            above,
        )

    u = _array(problem.pre_activation)
    if not above:
        none = np.empty((1, 0))
        nothing = np.empty((problem.units, 0)), none, np.empty((len(u), 0)), none.reshape(0, 1)
        return u, (LinkRows(*nothing, 1.0, 1.0, LoopMap(RAMP)),)
    links = zip(problem.links, above, strict=True)
    return u, tuple(LinkRows(*parts(link, map_)) for link, map_ in links)


def slope_of(divergence: Divergence, columns: int) -> Array:
    """Return c of a quadratic R, (columns, 1), and zeros for any other."""
    if not isinstance(divergence, Joint):
        return np.zeros((columns, 1))
    known = loop_map(divergence.activation)
    if known is not None:
        return np.full((columns, 1), known.center)
    return _array(divergence.activation.offset(columns)).reshape(-1, 1)


def link_map(divergence: Divergence) -> LoopMap | None:
    """Return the map whose Phi* a link is judged by, any for a quadratic one, or None."""
    if isinstance(divergence, Joint):
        return LoopMap(RAMP)
    if not isinstance(divergence, Tight):
        return None
    if type(divergence.activation) is Softmax:
        return LoopMap(SOFTMAX)
    return loop_map(divergence.activation)


def rows_of(links: tuple[LinkRows, ...], part: slice) -> tuple[LinkRows, ...]:
    """Return the links of some samples."""
    if not part.start and part.stop == len(links[0].target):
        return links
    return tuple(
        link._replace(
            target=link.target[part],
            offset=link.offset if len(link.offset) == 1 else link.offset[part],
        )
        for link in links
    )


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().contiguous().numpy()
    return found
