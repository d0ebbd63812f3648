"""Questions about a network that are optimization problems: inversion, exact ranges, radii."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from liftednet.activations import Identity
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import finite_numbers, model_of, require_positive

from ..bounds.curves import Array
from ..bounds.reading import require_box
from ..prediction import Predictor
from .composition import Composition, composition_of
from .cvxpy_network import CvxpyNetwork, require_stated, to_cvxpy
from .first_answer import Region
from .halving import kinked
from .lines import Least, Sums, lines_of, ranges
from .optimum import Optimum, listed, optimize
from .splits import Tree

_RAISED = 100  # steps that bring ranges closer
_RANGE = 1e-6  # of what an output spans, that its ends are proven to
_ALIKE = 1e-10  # of an output's size: as near as bounds come for rounding
_FIRST_RADIUS, _DOUBLINGS, _HALVINGS = 1e-3, 24, 12  # of the search for another answer
_ATTACKS = 7  # points from which it begins, beside x
_RAISED_IN_BALL = 20  # steps that bring the ends of units closer
_NEWTON = 8  # steps to the border of a half-space
_POLISHED = 2  # steps from where lines have their border to that of the network
_BEYOND = 0.05  # of the gap, that points are tried beyond the border of a solver
_ROUNDED = 1e-9  # of a radius, that is left for rounding


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
    constraints: Sequence[cp.Constraint] = (),
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
        if not prior.is_scalar():
            raise DeclarationError(
                f"the prior must be one number, such as cp.norm(x - m), or a point of numbers; it "
                f"is an expression of shape {prior.shape}."
            )
        cost = prior
    else:
        point = finite_numbers("the prior's point", prior)
        if point.shape != x.shape:
            raise DataError(f"the prior's point must have the shape {x.shape}, got {point.shape}.")
        cost = cp.norm(x - point)
    limits = [network.output == wanted, *listed(constraints)]
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
    return Inversion(found.x, found, *composition.tangent(found.x), None, None)


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
            curve = block.curves[block.which[unit]]
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
        width, size = (high - low)[output], max(abs(low[output]), abs(high[output]))
        if left > 0 and width > _ALIKE * size:
            gap = max(_RANGE * width / size, _ALIKE)
            found = optimize(stated, sense(stated.output[output]), gap=gap, seconds=left)
            if side:
                ends[1][output] = min(high[output], found.bound)
            else:
                ends[0][output] = max(low[output], found.bound)
    return ends[0], ends[1], graph.composition


# How far an input may move before a classifier's answer changes.


@dataclass(frozen=True, eq=False)
class Radius:
    """How far an input may move before another class has the largest score.

    Attributes:
        label: the class of the largest score at the input, of an estimator its name.
        least: inside this distance the answer is the same, which is proven.
        most: at this distance is an input with another answer.
        x: that input.

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

    label: Any
    least: float
    most: float
    x: Array


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

    The answer is that of the scores; after a fit by the evidence `predict` of three classes or more
    averages over the weights, and may answer otherwise where two are about as likely.
    min |x' - x| subject to f_j(x') >= f_i(x') for another class j. Projected steps find an x' with
    another answer; branch and bound over the sides of units, in the ball up to there, proves that
    there is none nearer, or finds it. On a node the margin of each class has a line below it, and
    |x' - x| is at least the distance to where that line is 0. Of one score the answer is its sign.

    Args:
        model: a classifier, its model, or a torch network of logits.
        x: (inputs,).
        norm: 2 or float("inf").
        box: (lowest, highest) inputs that there are, such as (0, 255) for pixels; None for all.
        gap: (most - least) / most that is enough.
        seconds: after which both are returned as they are.
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
        >>> round(found.most, 3), bool(0.70 < found.least <= 0.7072)
        (0.707, True)
    """
    point = finite_numbers("x", x).flatten()
    if norm not in (2, math.inf):
        raise DataError(f'norm must be 2 or float("inf"), got {norm!r}.')
    require_positive("gap", gap)
    require_positive("seconds", seconds)
    network = getattr(model_of(model), "network", None)
    if any(term.loss.equivariant for term in getattr(network, "terms", ())):
        raise DataError("a regression has no class to keep: robustness_radius is of classifiers.")
    until = time.perf_counter() + seconds
    composition = kinked(composition_of(model, len(point), example))
    none = np.full(len(point), np.inf)
    ends = (-none, none) if box is None else require_box(box, len(point))
    if not ((ends[0] <= point) & (point <= ends[1])).all():
        raise DataError("x does not lie in the box.")
    scores = composition.forward(point)
    label = int(scores.argmax()) if len(scores) > 1 else int(scores[0] > 0)
    margins = _margins(len(scores), label)
    name = model.classes_.tolist()[label] if hasattr(model, "classes_") else label
    near = _nearest_other(composition, point, ends, margins)
    most = float(np.linalg.norm(near - point, norm))
    if most == 0:
        return Radius(name, 0.0, 0.0, near)
    wide = most * (1 + _ROUNDED)
    low, high = np.maximum(ends[0], point - wide), np.minimum(ends[1], point + wide)
    ball = (point, wide) if norm == 2 else None
    lines, _ = lines_of(
        composition, low[None], high[None], ball=ball, steps=_RAISED_IN_BALL, until=until
    )
    sums = Sums.of(margins, composition.output, len(point))
    least, largest = nearest(point, low, high, most, norm), np.maximum(-low, high)[None]
    classes = np.eye(len(margins))

    def stated(z: Any, line: Any) -> Any:
        return cp.norm(z - point, "inf" if norm > 2 else 2), [line <= 0, z >= low, z <= high]

    scales = np.zeros(len(margins))
    tree = Tree(composition, sums, least, largest, lines, classes, scales, stated)
    for found in tree.rounds():
        tried = [found]
        for _ in range(_POLISHED):
            y, back = composition.both(tried[-1])
            closest = margins[(y @ margins.T).argmin(1)]
            slopes, values = back(closest), (y * closest).sum(1)
            sizes = np.abs(values) + np.abs(slopes * tried[-1]).sum(1)
            values = values - (slopes * tried[-1]).sum(1) + _ROUNDED * sizes
            tried.append(least(slopes[:, None], values[:, None])[1][:, 0])
        beyond = point + (1 + _BEYOND * gap) * (np.concatenate(tried) - point)
        points = np.concatenate([*tried, np.clip(beyond, *ends)])
        changed = ((composition.forward(points) @ margins.T) <= 0).any(1)
        far = np.where(changed, np.linalg.norm(points - point, norm, axis=1), np.inf)
        if far.min() < most:
            most, near = float(far.min()), points[far.argmin()]
        tree.cutoff = most * (1 - 0.9 * gap)
        if time.perf_counter() > until:
            break
    return Radius(name, min(tree.bound, most), most, near)


def _margins(outputs: int, label: int) -> Array:
    """Return M where an entry of M f(x) is negative if another class is the answer."""
    if outputs == 1:
        return np.array([[2.0 * label - 1]])
    found = np.delete(-np.eye(outputs), label, 0)
    found[:, label] = 1.0
    return found


def nearest(center: Array, low: Array, high: Array, most: float, norm: float) -> Least:
    """Return what bounds the distance to where lines are at most 0 in a box, up to `most`.

    In the largest norm Newton's steps in x(t) = center - t sign(s), held in the box, end below the
    distance, since the line falls along them ever more slowly; in the Euclidean norm x(t) =
    center - t s and any t >= 0 prove that |x - center|^2 / 2 >= min |x - center|^2 / 2 + t line(x).
    """

    def least(slopes: Array, values: Array) -> tuple[Array, Array]:
        along = slopes if norm == 2 else np.sign(slopes)
        far, steep = np.zeros_like(values), slopes * along
        for step in range(_NEWTON + 1):
            x = np.clip(center - far[..., None] * along, low, high)
            line = values + (slopes * x).sum(2)
            free = np.where(along > 0, x > low, x < high)
            fall = (steep * free).sum(2)
            lost = (line > 0) & (fall <= 0)  # no point of the box
            if step < _NEWTON:
                move = np.where((line > 0) & ~lost, line / np.where(fall > 0, fall, 1.0), 0.0)
                far = far + move
        found = far
        if norm == 2:
            found = np.sqrt(np.maximum(((x - center) ** 2).sum(2) + 2 * far * line, 0))
        found = np.where(lost, most, np.minimum(found * (1 - 1e-12), most))
        return found, x

    return least


def _nearest_other(composition: Composition, x: Array, ends: Any, margins: Array) -> Array:
    """Return an input with another answer, near in steps of the distance."""
    scale = max(float(np.abs(x).max()), 1.0)
    best, farthest = None, math.inf
    for direction in margins:
        radius = _FIRST_RADIUS * scale
        for _ in range(_DOUBLINGS):
            if radius >= farthest:
                break
            found = _attacked(composition, x, ends, radius, direction)
            if found is not None:
                best, farthest = found, float(np.linalg.norm(found - x, np.inf))
                break
            radius *= 2
    if best is None:
        given = " in the box: give a wider one" if np.isfinite(ends).all() else ": give a box"
        raise SolverError(
            f"projected steps find no input with another answer{given} in which there is one."
        )
    low, high = 0.0, 1.0  # the border lies between x and what was found
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        changed = (margins @ composition.forward(x + middle * (best - x))).min() <= 0
        low, high = (low, middle) if changed else (middle, high)
    return x + high * (best - x)


def _attacked(
    composition: Composition, x: Array, ends: Any, radius: float, direction: Array
) -> Array | None:
    """Return an input of another class within a radius, or None where steps find none."""
    low, high = np.maximum(ends[0], x - radius), np.minimum(ends[1], x + radius)
    region = Region(np.eye(len(x)), low, high, (low + high) / 2, True)
    drawn = np.concatenate([x[None], region.drawn(_ATTACKS, np.random.default_rng(0))])

    def both(v: Array) -> tuple[Array, Array]:
        y, back = composition.both(v)
        return y @ direction, back(np.broadcast_to(direction, y.shape))

    best: Array = region.descended(drawn, both)[0]
    return best if float(composition.forward(best) @ direction) <= 0 else None
