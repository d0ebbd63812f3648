"""Questions about a network that are optimization problems: inversion, exact ranges."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from liftednet.activations import Identity
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import finite_numbers, model_of

from ..bounds.curves import Array
from ..prediction import Predictor
from .composition import Composition
from .cvxpy_network import CvxpyNetwork, require_stated, to_cvxpy
from .halving import kinked
from .lines import ranges
from .optimum import Optimum, optimize

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint

_RAISED = 100  # steps that bring ranges closer
_RANGE = 1e-6  # of what an output spans, that its ends are proven to


@dataclass(frozen=True, eq=False)
class Inversion:
    """An input that a network answers to as wanted, and all others on its piece.

    Attributes:
        x: (inputs,).
        optimum: of the prior, with its bound; x is a local answer where it is not proven.
        slopes: J, (outputs, inputs): on the piece the output is J x + c; near x alone where the
            network is not linear in pieces.
        offset: c, (outputs,).
        rows: G, (sides, inputs): the piece is {x : G x <= h} in the box; every x in it with
            J x + c = y is an answer, too. None where there are no pieces.
        high: h, (sides,), or None.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import invert, to_cvxpy
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU())
        >>> with torch.no_grad():
        ...     _ = network[0].weight.fill_(1.0), network[0].bias.zero_()
        >>> stated = to_cvxpy(network, cp.Variable(2), box=(-1, 1), mixed_integer=True)
        >>> found = invert(stated, [1.0], prior=[0.0, 0.0])
        >>> bool(abs(found.x - 0.5).max() < 1e-4), found.slopes.tolist()
        (True, [[1.0, 1.0]])
    """

    x: Array
    optimum: Optimum
    slopes: Array
    offset: Array
    rows: Array | None
    high: Array | None


def invert(
    network: CvxpyNetwork,
    y: Any,
    prior: Any = None,
    constraints: Sequence[Constraint] = (),
    *,
    gap: float = 1e-2,
    seconds: float = 60.0,
) -> Inversion:
    """Return the most likely input to which a network answers y, and the others on its piece.

    min prior(x) subject to f(x) = y, x in the box and under convex constraints. Steps that take the
    network by its tangent (Gauss-Newton steps with the prior kept as it is) give local answers;
    halved boxes, or sides of kinks, prove that there are none that are more likely, or say how much
    so they may be. Of a recurrent network x is what all steps are given, one after another.

    Args:
        network: from `to_cvxpy`, of one sample, with a box.
        y: (outputs,).
        prior: a convex expression of x that is least where x is most likely; or a point, (inputs,),
            to which x is to be near in the Euclidean norm; None for any x.
        constraints: convex ones of CVXPY's.
        gap: of the prior, that is enough.
        seconds: after which the best input found is returned.

    Raises:
        DataError: y or the point has another shape.
        DeclarationError: the network is stated for several samples, or without a box.
        SolverError: no input gives y, which is proven, or none was found in time.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import invert, to_cvxpy
        >>> _ = torch.manual_seed(0)
        >>> parts = torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)
        >>> network = torch.nn.Sequential(*parts)
        >>> x = cp.Variable(3)
        >>> stated = to_cvxpy(network, x, box=(-1, 1))
        >>> wanted = network(torch.tensor([[0.2, 0.1, -0.3]])).detach().numpy()[0]
        >>> found = invert(stated, wanted, prior=[0.0, 0.0, 0.0])
        >>> bool(abs(stated.output.value - wanted).max() < 1e-6)
        True
    """
    require_stated("invert", network)
    if len(network.graphs) != 1:
        raise DeclarationError(
            "invert is for one sample of a network that is stated by to_cvxpy with a box, and with "
            "mixed_integer=True where it is convex."
        )
    x, wanted = network.x, finite_numbers("y", y)
    if wanted.shape != network.output.shape:
        raise DataError(f"y must have the shape {network.output.shape}, got {wanted.shape}.")
    if prior is None:
        cost: Any = cp.Constant(0.0)
    elif isinstance(prior, cp.Expression):
        cost = prior
    else:
        point = finite_numbers("the prior's point", prior)
        if point.shape != x.shape:
            raise DataError(f"the prior's point must have the shape {x.shape}, got {point.shape}.")
        cost = cp.norm(x - point)
    limits = [network.output == wanted, *constraints]
    found = optimize(network, cp.Minimize(cost), limits, gap=gap, seconds=seconds)
    if found.x is None:
        raise SolverError(
            f"no input with this output was found within {seconds:g} s, nor that there is none: "
            "give more seconds, a smaller box, or look for the nearest output by optimize(network, "
            "cp.Minimize(cp.sum_squares(network.output - y)))."
        )
    composition = network.composition
    if all(curve.piecewise_linear for block in composition.blocks for curve in block.curves):
        return Inversion(found.x, found, *piece_of(composition, found.x))
    count = len(wanted)
    slopes = composition.gradient(np.repeat(found.x[None], count, 0), np.eye(count))
    output = composition.forward(found.x)
    return Inversion(found.x, found, slopes, output - slopes @ found.x, None, None)


def piece_of(composition: Composition, x: Array) -> tuple[Array, Array, Array, Array]:
    """Return J and c with y = J x + c on the piece of x, and G and h of its sides G x <= h."""
    inputs = composition.inputs
    sources: list[tuple[Array, Array]] = [(np.eye(inputs), np.zeros(inputs))]
    rows, high = [np.zeros((0, inputs))], [np.zeros(0)]

    def of(combination: Any) -> tuple[Array, Array]:
        matrix, offset = np.zeros((inputs, len(combination.offset))), combination.offset.copy()
        for source, part in combination.parts.items():
            below, constant = sources[source]
            matrix, offset = matrix + below @ part, offset + constant @ part
        return matrix, offset

    for block in composition.blocks:
        matrix, offset = of(block.argument)
        u = x @ matrix + offset
        slopes, shifts = np.zeros(len(u)), np.zeros(len(u))
        for unit, at in enumerate(u.tolist()):
            curve = block.curve(unit)
            low = max((k for k in curve.knots if k <= at), default=-math.inf)
            top = min((k for k in curve.knots if k > at), default=math.inf)
            slopes[unit], shifts[unit] = curve.chord(max(low, at - 1), min(top, at + 1))
            for end, sign in ((low, -1.0), (top, 1.0)):
                if math.isfinite(end):
                    rows.append(sign * matrix[:, [unit]].T)
                    high.append(np.array([sign * (end - offset[unit])]))
        sources.append((matrix * slopes, offset * slopes + shifts))
    matrix, offset = of(composition.output)
    return matrix.T, offset, np.concatenate(rows), np.concatenate(high)


def exact_range(
    model: Any, box: Any, inputs: int, example: Any = None, *, seconds: float = 60.0
) -> tuple[Array, Array, Composition]:
    """Return the least and the largest outputs over a box, (outputs,) each, and the network.

    Both are by branch and bound, and hold to rounding; where the time ends they are bounds that are
    not attained.

    Args:
        model: as in `to_cvxpy`, whose scores are its outputs.
        box: (lowest, highest), numbers or (inputs,) each.
        inputs: how many there are.
        example: as in `to_cvxpy`.
        seconds: for all of them together.

    Raises:
        DeclarationError: outputs are made of scores by a last activation.
    """
    inside = model_of(model)
    if isinstance(inside, Predictor):
        last = [term.divergence.activation for term in inside.network.terms if term.state is None]
        if not all(type(activation) is Identity for activation in last):
            raise DeclarationError(
                "exact ranges are those of scores: give to_torch(model, logits=True)."
            )
    started = time.perf_counter()
    stated = to_cvxpy(model, cp.Variable(inputs), box=box, mixed_integer=True, example=example)
    graph = stated.graphs[0]
    low, high = ranges(graph.composition, graph.box, steps=_RAISED, seconds=seconds / 4)[-1]
    ends, count = [low.copy(), high.copy()], 2 * len(low)
    for number in range(count):
        output, side = divmod(number, 2)
        left = (seconds - (time.perf_counter() - started)) / (count - number)
        sense = cp.Maximize if side else cp.Minimize
        if left > 0:
            gap = _RANGE * (high - low)[output] / max(abs(low[output]), abs(high[output]), 1e-300)
            found = optimize(
                stated, sense(stated.output[output]), gap=max(gap, _RANGE**2), seconds=left
            )
            if side:
                ends[1][output] = min(high[output], found.bound)
            else:
                ends[0][output] = max(low[output], found.bound)
    return ends[0], ends[1], kinked(graph.composition)
