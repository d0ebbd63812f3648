"""Questions about a network that are optimization problems: inversion, exact ranges, robustness."""

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
from liftednet.validation import require_positive

from ..bounds.curves import Array
from ..bounds.reading import require_box
from ..prediction import Predictor
from .boxes import Tangents, lined, output_ends
from .composition import Composition, composition_of
from .cvxpy_network import CvxpyNetwork, to_cvxpy
from .optimum import Optimum, optimize
from .search import Region

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint

_TOLERANCE = 1e-7  # of HiGHS on a range, relative to what outputs span
_FIRST_RADIUS, _DOUBLINGS, _HALVINGS = 1e-3, 24, 12  # of the search for another answer
_ATTACKS = 7  # points from which it begins, beside x


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
        >>> parts = torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1)
        >>> network = torch.nn.Sequential(*parts)
        >>> x = cp.Variable(3)
        >>> stated = to_cvxpy(network, x, box=(-1, 1))
        >>> wanted = network(torch.tensor([[0.2, 0.1, -0.3]])).detach().numpy()[0]
        >>> found = invert(stated, wanted, prior=[0.0, 0.0, 0.0])
        >>> bool(abs(stated.output.value - wanted).max() < 1e-6)
        True
    """
    if len(network.graphs) != 1:
        raise DeclarationError(
            "invert is for one sample of a network that is stated by to_cvxpy with a box, and with "
            "mixed_integer=True where it is convex."
        )
    x, wanted = network.x, np.asarray(y, dtype=float)
    if wanted.shape != network.output.shape:
        raise DataError(f"y must have the shape {network.output.shape}, got {wanted.shape}.")
    if prior is None:
        cost: Any = cp.Constant(0.0)
    elif isinstance(prior, cp.Expression):
        cost = prior
    else:
        point = np.asarray(prior, dtype=float)
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
        if len(block.windows):
            best = block.windows[np.arange(len(block)), u[block.windows].argmax(1)]
            for window, chosen in zip(block.windows, best, strict=True):
                rows.append((matrix[:, window] - matrix[:, [chosen]]).T)
                high.append(offset[chosen] - offset[window])
            sources.append((matrix[:, best], offset[best]))
            continue
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
) -> tuple[Array, Array]:
    """Return the least and the largest outputs over a box, (outputs,) each, by branch and bound.

    They hold to HiGHS's tolerances, of which ten times as much is left. Where the time ends they
    are bounds that are not attained.

    Args:
        model: as in `to_cvxpy`, whose scores are its outputs.
        box: (lowest, highest), numbers or (inputs,) each.
        inputs: how many there are.
        example: as in `to_cvxpy`.
        seconds: for all of them together.

    Raises:
        DeclarationError: outputs are made of scores by a last activation.
    """
    inside = getattr(model, "model_", model)
    if isinstance(inside, Predictor):
        last = [
            term.pinned.divergence.activation for term in inside.network.terms if term.state is None
        ]
        if not all(type(activation) is Identity for activation in last):
            raise DeclarationError(
                "exact ranges are those of scores: give to_torch(model, logits=True)."
            )
    started = time.perf_counter()
    stated = to_cvxpy(model, cp.Variable(inputs), box=box, mixed_integer=True, example=example)
    graph = stated.graphs[0]
    low, high = (x[0] for x in output_ends(graph.composition, *(x[None] for x in graph.box)))
    ends, count = [low.copy(), high.copy()], 2 * len(low)
    for number in range(count):
        output, side = divmod(number, 2)
        left = (seconds - (time.perf_counter() - started)) / (count - number)
        sense = cp.Maximize if side else cp.Minimize
        if left > 0:
            found = optimize(stated, sense(stated.output[output]), gap=1e-9, seconds=left)
            off = 10 * _TOLERANCE * max(high[output] - low[output], 1e-300)
            if side:
                ends[1][output] = min(high[output], found.bound + off)
            else:
                ends[0][output] = max(low[output], found.bound - off)
    return ends[0], ends[1]


@dataclass(frozen=True, eq=False)
class Radius:
    """How far an input may move before a classifier's answer changes.

    Attributes:
        label: the class of the largest score at the input.
        least: inside this distance the answer is the same, as far as HiGHS has proven it.
        most: at this distance is an input with another answer; infinite where none was found.
        x: that input, or None.

    Example:
        >>> import torch
        >>> from liftednet import robustness_radius
        >>> network = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = network.weight.copy_(torch.eye(2)), network.bias.zero_()
        >>> found = robustness_radius(network, [1.0, 0.0], norm=float("inf"))
        >>> found.label, round(found.least, 2), round(found.most, 2)
        (0, 0.5, 0.5)
    """

    label: int
    least: float
    most: float
    x: Array | None


def robustness_radius(
    model: Any,
    x: Any,
    *,
    norm: float = math.inf,
    box: Any = None,
    gap: float = 1e-3,
    seconds: float = 60.0,
    example: Any = None,
) -> Radius:
    """Return the radius of the largest ball around an input in which a class stays the answer.

    min |x' - x| subject to f_j(x') >= f_i(x') for each other class j, within the box of the nearest
    x' with another answer that projected steps find. Of one score the answer is its sign.

    Args:
        model: a classifier, its model, or a torch network of logits.
        x: (inputs,).
        norm: 2 or float("inf").
        box: (lowest, highest) inputs that there are, such as (0, 255) for pixels; None for all.
        gap: (most - least) / most that is enough.
        seconds: for all classes together.
        example: as in `to_cvxpy`.

    Raises:
        DataError: x is not in the box, or norm is another number.
        SolverError: no other answer was found anywhere.

    Example:
        >>> import torch
        >>> from liftednet import robustness_radius
        >>> network = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = network.weight.copy_(torch.eye(2)), network.bias.zero_()
        >>> found = robustness_radius(network, [1.0, 0.0], norm=2)
        >>> round(found.most, 3), bool(0.69 < found.least <= 0.7072)
        (0.707, True)
    """
    point = np.asarray(x, dtype=float).flatten()
    if norm not in (2, math.inf):
        raise DataError(f'norm must be 2 or float("inf"), got {norm!r}.')
    require_positive("seconds", seconds)
    started, composition = time.perf_counter(), composition_of(model, len(point), example)
    ends = (-np.inf, np.inf) if box is None else require_box(box, len(point))
    if not ((ends[0] <= point) & (point <= ends[1])).all():
        raise DataError("x does not lie in the box.")
    scores = composition.forward(point)
    label = int(scores.argmax()) if len(scores) > 1 else int(scores[0] > 0)
    near, others = _nearest_other(composition, point, ends, norm, label)
    most = float(np.linalg.norm(near - point, norm))
    variable: Any = cp.Variable(len(point))
    around = np.maximum(ends[0], point - most), np.minimum(ends[1], point + most)
    sure, others = _proven_radius(composition, point, ends, norm, most, label, others)
    stated = to_cvxpy(
        model, variable, box=around, mixed_integer=True, seconds=seconds / 4, example=example
    )
    least = most
    for number, other in enumerate(others):
        left = (seconds - (time.perf_counter() - started)) / (len(others) - number)
        if left <= 0:
            return Radius(label, min(sure, most), most, near)
        margin = _margin(stated.output, label, other)
        distance = cp.Minimize(cp.norm(variable - point, "inf" if norm > 2 else 2))
        try:
            found = optimize(stated, distance, [margin <= 0], near, gap=gap, seconds=left)
        except SolverError as error:
            if "no input meets" not in str(error):
                raise
            continue  # this class is farther than another
        least = min(least, max(found.bound, sure))
        if found.x is not None and found.value < most:
            most, near = found.value, found.x
    return Radius(label, min(least, most), most, near)


def _proven_radius(
    composition: Composition,
    x: Array,
    ends: Any,
    norm: float,
    most: float,
    label: int,
    others: list[int],
) -> tuple[float, list[int]]:
    """Return a radius in which lines prove the answer, and classes that may be nearer than most."""
    outputs, none = len(composition.output.offset), np.zeros((1, 1, len(x)))
    limits = np.zeros((0, len(x))), np.zeros(0)

    def apart(radii: Array, other: int) -> Any:
        """Say within which radii a class is proven to be no answer."""
        cost = np.asarray(_margin(np.eye(outputs), label, other), dtype=float)[None, None]
        margin = Tangents(np.zeros((1, 1)), none, [cost], none[0])
        low, high = x - radii[:, None], x + radii[:, None]
        ball = radii * (1 + 1e-9) if norm == 2 else None
        if ball is None:
            low, high = np.maximum(ends[0], low), np.minimum(ends[1], high)
        return lined([composition], margin, low, high, limits, ball).bound > 0

    near = [other for other in others if not apart(np.array([most]), other)[0]]
    radii = most * np.linspace(1, 0, 64, endpoint=False)
    sure = [float(radii[proven].max(initial=0.0)) for proven in (apart(radii, n) for n in near)]
    return min(sure, default=most), near


def _margin(scores: Any, label: int, other: int) -> Any:
    """Return what is negative where another class is the answer."""
    if other < 0:
        return scores[..., 0] * (2 * label - 1)
    return scores[..., label] - scores[..., other]


def _nearest_other(
    composition: Composition, x: Array, ends: Any, norm: float, label: int
) -> tuple[Array, list[int]]:
    """Return an input with another answer, near in steps of the distance, and the other classes."""
    outputs = len(composition.output.offset)
    others = [n for n in range(outputs) if n != label] if outputs > 1 else [-1]
    scale = max(float(np.abs(x).max()), 1.0)
    best, farthest = None, math.inf
    for other in others:
        radius = _FIRST_RADIUS * scale
        for _ in range(_DOUBLINGS):
            if radius >= farthest:
                break
            found = _attacked(composition, x, ends, radius, label, other)
            if found is not None:
                best, farthest = found, float(np.linalg.norm(found - x, np.inf))
                break
            radius *= 2
    if best is None:
        raise SolverError(
            "projected steps find no input with another answer: give a box in which there is one."
        )
    low, high = 0.0, 1.0  # the border lies between x and what was found
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scores = composition.forward(x + middle * (best - x))
        changed = min(float(_margin(scores, label, other)) for other in others) <= 0
        low, high = (low, middle) if changed else (middle, high)
    return x + high * (best - x), others


def _attacked(
    composition: Composition, x: Array, ends: Any, radius: float, label: int, other: int
) -> Array | None:
    """Return an input of another class within a radius, or None where steps find none."""
    low, high = np.maximum(ends[0], x - radius), np.minimum(ends[1], x + radius)
    direction = np.zeros(len(composition.output.offset))
    direction[label if other >= 0 else 0] = 1.0 if other >= 0 else 2.0 * label - 1
    if other >= 0:
        direction[other] = -1.0
    region = Region(np.eye(len(x)), low, high, (low + high) / 2, True)
    drawn = np.concatenate([x[None], region.drawn(_ATTACKS, np.random.default_rng(0))])

    def margins(v: Array) -> tuple[Array, Array]:
        rows = np.broadcast_to(direction, (len(v), len(direction)))
        return composition.forward(v) @ direction, composition.gradient(v, rows)

    best: Array = region.descended(drawn, margins)[0]
    return best if float(composition.forward(best) @ direction) <= 0 else None
