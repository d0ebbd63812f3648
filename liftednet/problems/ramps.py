"""State fits that compiled loops know: phi of three straight pieces, below quadratic links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations.bounded import Bounded
from liftednet.activations.piecewise_linear import Clipped, Identity, LeakyReLU, ReLU
from liftednet.compiled import in_threads, refusal
from liftednet.divergences import Joint
from liftednet.problems.formulation import Measure, measured

if TYPE_CHECKING:
    from liftednet.compiled.states import LinkRows
    from liftednet.problems.link import Link
    from liftednet.problems.state_fit import StateFit

Array = np.ndarray[Any, np.dtype[Any]]


class Ramp(NamedTuple):
    """phi(u) = max(u, alpha u), cut off at low and high."""

    alpha: float
    low: float = -math.inf
    high: float = math.inf


def ramp(activation: Activation) -> Ramp | None:
    """Return an activation as a ramp, or None where it is none."""
    if isinstance(activation, Bounded):
        whole = ramp(activation.inner)
        if whole is None:
            return None
        low, high = max(whole.low, activation.lower), min(whole.high, activation.upper)
        return Ramp(whole.alpha, low, high)
    if type(activation) is LeakyReLU:
        return Ramp(activation.alpha)
    if type(activation) is Clipped:
        return Ramp(1.0, activation.lower, activation.upper)
    return {Identity: Ramp(1.0), ReLU: Ramp(1.0, low=0.0)}.get(type(activation))


def unserved(problem: StateFit) -> str | None:
    """Return why compiled loops cannot take a state fit, or None."""
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
    line = ramp(problem.divergence.activation)
    if line is None or problem.smoothness is None or unserved(problem) is not None:
        return None
    if not len(value):  # of a process without samples
        return measured(0.0, 0.0, problem.lam)
    from liftednet.compiled.states import judged_states

    u, links = looped(problem)
    low, high = line.low, line.high
    if value.dtype is torch.float32:  # as states have it
        low, high = float(np.float32(low)), float(np.float32(high))
    z, s = value.detach().contiguous().numpy(), problem.lam + problem.smoothness

    def work(part: slice) -> tuple[float, float, float]:
        given = u[part], z[part], rows_of(links, part)
        found: tuple[float, float, float] = judged_states(
            *given, problem.lam, s, line.alpha, low, high
        )
        return found

    objectives, violations, scales = zip(*in_threads(work, *z.shape), strict=True)
    return measured(sum(objectives), max(violations), max(scales))


def looped(problem: StateFit) -> tuple[Array, tuple[LinkRows, ...]]:
    """Return U and the links of a fit that compiled loops can take, as they take them."""
    from liftednet.compiled.states import LinkRows

    def parts(link: Link) -> tuple[Any, ...]:
        divergence, columns = link.divergence, link.shape[1]
        assert isinstance(divergence, Joint)  # the quadratic divergence
        return (
            _array(link.weight),
            _array(link.offset).reshape(-1, columns),
            _array(link.target),
            _array(divergence.activation.offset(columns)).reshape(-1, 1),
            float(link.lam),
            float(divergence.smoothness),
        )

    return _array(problem.pre_activation), tuple(LinkRows(*parts(link)) for link in problem.links)


def rows_of(links: tuple[LinkRows, ...], part: slice) -> tuple[LinkRows, ...]:
    """Return the links of some samples."""
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
