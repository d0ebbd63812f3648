"""The best input of a trained network under convex constraints, and a proof of how good it is.

A first answer comes from projected gradient steps from many points, and from steps that take the
network by its tangent where constraints are on outputs or not linear. Halved boxes of the inputs
then close the gap from below, and, where they are many, branch and bound over the sides of units.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import finite_numbers, require_positive

from ..bounds.curves import Array
from .cvxpy_network import CvxpyNetwork, is_tied, require_stated
from .first_answer import INFEASIBLE, Search, affine_in, values_of
from .halving import Boxes, halved, lined
from .lines import Sums, Way, between, corner, lines_of, ranges
from .splits import Tree
from .tangents import PRECISE, Local

_HELD = 1e-7  # violation of a constraint, relative to its size, that counts as none
_ANSWERED = ("optimal", "optimal_inaccurate")
_TRIED = 3  # points from which tangents are tried
_BOXED, _BOXED_MANY = 0.6, 0.01  # of the time, after which boxes leave what others may prove
_MANY = 16  # inputs, of which boxes seldom prove anything
_RAISED = 20  # steps that bring the ends of units closer
_AT_ONCE = 256  # boxes that are halved together, at least
_BOXES = 300_000  # that are kept, some hundred megabytes
_SMALL = 1e-9  # an error that counts as none
_OUTSIDE = 1e-9  # of the box, that rounding of affine inputs may bring
_WIDER = 1e-6  # of ends that a solver has found, relative
_FEASIBLE = 1e-9  # violation of rows, for HiGHS
_DUAL = 1e-6  # of the objective's range, that its bound may be off
_ABOUT_ONE = 1e3  # of x and of the objective, beyond which no bound is told without a box
_DRAWS = 20  # points of a box, for the range of an objective
_SHAPES = ("symmetric", "diag", "PSD", "NSD", "hermitian", "complex", "imag", "sparsity")
Told = Callable[[float, float, int], None]  # best value, bound, nodes


@dataclass(frozen=True, eq=False)
class Optimum:
    """What `optimize` has found.

    Attributes:
        x: the best input, shaped as that of the network; None where none was found in time.
        output: the network's output there, by a forward pass.
        value: the objective there.
        bound: no x has a better one, as far as the solver has proven it.
        proven: whether |value - bound| is within what `optimize` was asked for.
        seconds: that it took.
        first: (value, seconds) of the first answer, before any proof.
        nodes: of branch and bound.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import optimize, to_cvxpy
        >>> x = cp.Variable(2)
        >>> plane = to_cvxpy(torch.nn.Linear(2, 1), x)
        >>> best = optimize(plane, cp.Maximize(plane.output[0]), [cp.norm(x) <= 1])
        >>> best.proven, best.gap < 1e-6
        (True, True)
    """

    x: Array | None
    output: Array | None
    value: float
    bound: float
    proven: bool
    seconds: float
    first: tuple[float, float]
    nodes: int = 0

    @property
    def gap(self) -> float:
        """|value - bound| / |value|."""
        return _gap(self.value, self.bound)

    def __str__(self) -> str:
        """Say what is known."""
        how = "proven" if self.proven else "not proven within the time"
        off = abs(self.value - self.bound)
        apart = f"gap {self.gap:.2g}" if self.gap < 1 else f"{off:.2g} apart"
        return (
            f"value {self.value:.6g}, bound {self.bound:.6g}, {apart}, {how}: "
            f"{self.seconds:.2f} s, {self.nodes} nodes"
        )

    __repr__ = __str__


def optimize(
    network: CvxpyNetwork,
    objective: Any,
    constraints: Sequence[cp.Constraint] = (),
    x0: Any = None,
    gap: float = 1e-4,
    *,
    seconds: float = 60.0,
    progress: bool = False,
) -> Optimum:
    """Return the best input of a trained network, with a bound that tells how good it is.

    A first answer comes from projected steps and steps by tangents, from many starts. Halved boxes
    then prove it, or find better ones, until the gap or the time is reached. All variables have
    the values found afterwards; `output.value` is the
    network's at `x.value`, by a forward pass.

    Args:
        network: from `to_cvxpy`; of a convex one with the box of x where x or the objective exceeds
            1e3, beyond which the tolerances of solvers prove nothing without one.
        objective: cp.Minimize or cp.Maximize of x, of the outputs, and of other variables: convex
            or concave to CVXPY.
        constraints: convex ones of CVXPY's; those of the network are added.
        x0: a value of x to begin from, too, shaped as x; a convex network needs none.
        gap: |value - bound| / |value| that is enough; or this share of 1e-2 of the range of
            objectives seen, where the value is about 0. What CVXPY knows to be nonnegative, as the
            distance from a target, has the bound 0 from the beginning.
        seconds: after which the best answer and the bound are returned as they are.
        progress: whether to show a bar.

    Raises:
        DataError: gap or seconds is not positive, a parameter has no value, or x0 has another shape
            or lies outside the box.
        DeclarationError: the problem is not convex to CVXPY but for the network, has an output of
            another network in it, or variables that are whole numbers, or symmetric, sparse and the
            like by themselves.
        SolverError: no x meets the constraints, or there is no best one.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet import optimize, to_cvxpy
        >>> _ = torch.manual_seed(0)
        >>> parts = torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        >>> x = cp.Variable(2, bounds=[-1, 1])
        >>> network = to_cvxpy(torch.nn.Sequential(*parts), x)
        >>> best = optimize(network, cp.Maximize(network.output[0]), [cp.sum(x) == 0])
        >>> best.proven, bool(abs(x.value.sum()) < 1e-6)
        (True, True)
    """
    require_stated("optimize", network)
    if not isinstance(objective, cp.Minimize | cp.Maximize):
        raise DeclarationError(
            f"objective must be cp.Minimize(...) or cp.Maximize(...), got {objective!r}."
        )
    require_positive("gap", gap)
    require_positive("seconds", seconds)
    if objective.expr.shape:
        raise DeclarationError(
            "objective must be one number, such as cp.Maximize(network.output[0]); it has the "
            f"shape {objective.expr.shape}."
        )
    given = listed(constraints)
    _require_choice((network.x, objective, *given), network)
    if not cp.Problem(objective, given).is_dcp():
        advice = "" if network.graphs else ": to maximize a convex network, mixed_integer=True"
        raise DeclarationError(
            f"the objective or a constraint is not convex to CVXPY, the network taken as it is "
            f"stated{advice}."
        )
    if x0 is not None:
        x0 = finite_numbers("x0", x0)
        if x0.shape != network.x.shape:
            raise DataError(f"x0 must have the shape {network.x.shape} of x, got {x0.shape}.")
        own: list[Any] = [graph.box for graph in network.graphs]  # of each sample
        low, high = np.array(own or [network.box or (-np.inf, np.inf)]).swapaxes(0, 1)
        if (np.maximum(low - x0, x0 - high) > _HELD * (1 + np.abs(x0))).any():
            raise DataError("x0 must lie in the box of the network, and does not.")
    if not network.graphs:
        return _convex(network, objective, given, gap)
    found = _Proof(network, objective, given, gap, time.perf_counter(), seconds)
    return found.optimum(x0, progress)


def listed(constraints: Any) -> list[cp.Constraint]:
    """Return constraints as a list, or raise `DeclarationError` where there is anything else."""
    given: list[Any] = list(constraints) if isinstance(constraints, Iterable) else [None]
    if not all(isinstance(one, cp.constraints.constraint.Constraint) for one in given):
        raise DeclarationError(
            "constraints must be a list of those of CVXPY, as in [cp.sum(x) <= 1], or [] for none; "
            f"got {constraints!r}."
        )
    return given


def _require_choice(every: Sequence[Any], network: CvxpyNetwork) -> None:
    """Raise an error unless x can be chosen, and all else that a problem consists of is known."""
    if not network.x.variables():
        raise DeclarationError(
            "the network's x is constant, so that there is nothing to choose: state it by "
            "to_cvxpy(network, cp.Variable(inputs), ...)."
        )
    for parameter in (one for each in every for one in each.parameters()):
        if parameter.value is None:
            raise DataError(f"parameter {parameter.name()} has no value: give it one before.")
    own = {graph.y.id for graph in network.graphs}
    for variable in (one for each in every for one in each.variables()):
        if is_tied(variable) and variable.id not in own:
            raise DeclarationError(
                "the problem has an output of another network in it, or a state, which optimize "
                "would take for a free number: it knows the outputs of the network that it is "
                "given. State two networks as one whose outputs are those of both, as by a module "
                "that returns torch.cat([first(x), second(x)], -1), and leave network.constraints "
                "out."
            )
        if variable.attributes["boolean"] or variable.attributes["integer"]:
            raise DeclarationError(
                "optimize takes no variables that are whole numbers; of networks linear in pieces "
                "cp.Problem(objective, [*network.constraints, *constraints]).solve("
                'solver="HIGHS") does.'
            )
        for name in _SHAPES:
            if variable.attributes.get(name):
                raise DeclarationError(
                    f"optimize takes no variable with {name}=...: make {variable.name()} a plain "
                    "cp.Variable, and what it has to be a constraint, such as X == X.T."
                )


def _convex(
    network: CvxpyNetwork, objective: Any, constraints: Sequence[cp.Constraint], gap: float
) -> Optimum:
    """Return the optimum of a problem that is convex with the network in it.

    It is stated in the units of the box and of the objective, for the tolerances of solvers are
    those of numbers about 1. Where CLARABEL calls its answer inaccurate, HiGHS is asked if all is
    linear in pieces, else CLARABEL without scaling.
    """
    started, sign = time.perf_counter(), _sign(objective)
    stated = _InUnits(network, sign * objective.expr, constraints)
    problem = cp.Problem(cp.Minimize(stated.least), stated.rows)
    precise: dict[str, Any] = dict.fromkeys(PRECISE, max(1e-10, min(1e-8, 0.1 * gap)))
    value, bound, proven = math.nan, -math.inf, False
    for options in (precise, precise | {"equilibrate_enable": False}):
        try:
            off = _solved(problem, options)
        except cp.SolverError:
            off = math.inf
        if off < math.inf:
            value, bound = stated.back(float(problem.value), off)
            proven = problem.status == cp.OPTIMAL and stated.is_near(value, bound, gap)
        elif problem.status in (cp.INFEASIBLE, cp.UNBOUNDED):
            raise SolverError(f"no best input was found: the problem is {problem.status}.")
        t = cp.Variable()
        epigraph = cp.Problem(cp.Minimize(t), [*stated.rows, stated.least <= t])
        if not proven and epigraph.is_qp() and cp.HIGHS in cp.installed_solvers():
            with suppress(cp.SolverError):
                epigraph.solve(solver=cp.HIGHS, primal_feasibility_tolerance=_FEASIBLE)
            if epigraph.status == cp.OPTIMAL:
                value, bound = stated.back(float(epigraph.value), _DUAL)
                proven = stated.is_near(value, bound, gap)
        if proven:
            break
    if not math.isfinite(value):
        raise SolverError(f"no best input was found: the solvers failed, {problem.status}.")
    seconds = time.perf_counter() - started
    x, output = np.array(network.x.value), np.array(network.output.value)
    value, bound = sign * value, sign * bound
    return Optimum(x, output, value, bound, proven, seconds, (value, seconds))


def _solved(problem: Any, options: dict[str, Any]) -> float:
    """Solve a problem by CLARABEL, and return how far its dual is off, infinity without an answer.

    Raises:
        cp.SolverError: it failed.
    """
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts=options)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the bound tells
        raw = chain.solve_via_data(problem, data, solver_opts=options)
        problem.unpack_results(raw, chain, inverse)
    answered = problem.status in _ANSWERED
    return abs(float(raw.obj_val) - float(raw.obj_val_dual)) if answered else math.inf


class _InUnits:
    """A convex problem stated in the units of a box around x and of the objective over it."""

    def __init__(
        self, network: CvxpyNetwork, least: Any, constraints: Sequence[cp.Constraint]
    ) -> None:
        """State min (least - base) / size of z, x = center + width z."""
        x, rows = network.x, [*network.constraints, *constraints]
        self.given, self.base, self.size, self.measured = least, 0.0, 1.0, False
        self.x, self.known = cast(Any, x), False
        self.rows, self.sources = rows, rows
        self.place: Any = x
        if not isinstance(x, cp.Variable):
            self.least = least
            return
        own, sides = x.get_bounds(), network.box or (-np.inf, np.inf)
        self.low = np.maximum(np.broadcast_to(own[0], x.shape), sides[0])
        self.high = np.minimum(np.broadcast_to(own[1], x.shape), sides[1])
        known = np.isfinite(self.low) & np.isfinite(self.high)
        ends = np.where(known, self.low, -1.0), np.where(known, self.high, 1.0)
        center, width = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        self.known = bool(known.all())
        if self.known:
            draws = np.random.default_rng(0).uniform(-1, 1, (_DRAWS, *x.shape))
            self._measure(center + width * np.append(np.zeros((1, *x.shape)), draws, 0))
        self.place = center + cp.multiply(np.where(width > 0, width, 1.0), cp.Variable(x.shape))
        within = {id(x): self.place}
        self.least = (least.tree_copy(within) - self.base) / self.size
        self.sources = [*rows, *x.domain]
        self.rows = [row.tree_copy(within) for row in self.sources]

    def _measure(self, points: Array) -> None:
        """Take the objective's value at the first point, and its range, where x is all it needs."""
        values = []
        for point in points:
            self.x.save_value(point)
            values.append(np.nan if self.given.value is None else float(self.given.value))
        size = float(np.ptp(values))
        if math.isfinite(size) and size > 0:
            self.base, self.size, self.measured = values[0], size, True

    def back(self, known: float, off: float) -> tuple[float, float]:
        """Return value and bound of a solution, in units of the objective, and keep it in x.

        Args:
            known: the value that a solver has found.
            off: how far its bound may be below.
        """
        if self.place is not self.x:
            self.x.save_value(np.clip(self.place.value, self.low, self.high))
            for source, row in zip(self.sources, self.rows, strict=True):
                for price, found in zip(source.dual_variables, row.dual_variables, strict=True):
                    price.save_value(None if found.value is None else self.size * found.value)
        value = float(self.given.value)  # by the network itself
        bound = self.base + self.size * (known - off)
        wrong = bound > value + _DUAL * self.size  # no bound, whatever the solver says
        reach = max(float(np.max(np.abs(self.x.value), initial=0.0)), abs(value))
        wrong |= not self.known and reach > _ABOUT_ONE  # tolerances of solvers are of about 1
        return value, -math.inf if wrong else min(value, bound)

    def is_near(self, value: float, bound: float, gap: float) -> bool:
        """Say whether a bound is as near to a value as was asked for."""
        tiny = 1e-2 * gap * self.size if self.measured else 0.0
        return _gap(value, bound) <= gap or value - bound <= tiny


@dataclass(eq=False)
class _Proof:
    """The way to an optimum.

    Attributes:
        network: whose input is sought.
        objective: cp.Minimize or cp.Maximize.
        constraints: the user's.
        gap: that is enough.
        started: when.
        seconds: that there are.
    """

    network: CvxpyNetwork
    objective: Any
    constraints: Sequence[cp.Constraint]
    gap: float
    started: float
    seconds: float
    bound: float = -math.inf  # of the objective that is minimized, as value is
    value: float = math.inf
    best: list[tuple[Any, Any]] = field(default_factory=list)
    nodes: int = 0

    def optimum(self, x0: Any, progress: bool) -> Optimum:
        self.sign, self.spread = _sign(self.objective), 0.0
        self.least = self.sign * self.objective.expr
        if self.least.is_nonneg():  # as what is matched: nothing has to be halved to know that
            self.bound = 0.0
        self.graphs, outputs = self.network.graphs, {x.y.id for x in self.network.graphs}
        user = [x for one in (self.least, *self.constraints) for x in one.variables()]
        every = {x.id: x for x in (*self.network.x.variables(), *user) if x.id not in outputs}
        self.variables = list(every.values())
        with _bar(progress, self.sign) as told:
            self.search = Search(self.graphs, self.variables, self.least, self.constraints)
            self.first(x0)
            self.bound = max(self.bound, self.by_ranges())
            first = (self.sign * self.value, self.elapsed)
            told(self.value, self.bound, 0)
            if not self.is_proven():
                self.halve(told)
            if self.search.functions.affine and not self.is_proven():
                self.split(told)
        self.recall()
        x = np.array(self.network.x.value) if self.best else None
        output = np.array(self.network.output.value) if self.best else None
        return Optimum(
            x, output, self.sign * self.value, self.sign * self.bound, self.is_proven(),
            self.elapsed, first, self.nodes,
        )  # fmt: skip

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.elapsed

    def by_ranges(self) -> float:
        """Return the bound that ranges of the outputs give an objective affine in them alone."""
        outputs = [graph.y for graph in self.graphs]
        known = {y.id for y in outputs}
        if not self.least.is_affine() or any(x.id not in known for x in self.least.variables()):
            return -math.inf
        each = [ranges(graph.composition, graph.box)[-1] for graph in self.graphs]
        low, high = (np.concatenate(ends) for ends in zip(*each, strict=True))
        matrix, offset = affine_in(self.least, outputs)
        return float(between(offset, {0: matrix.T}, [(low, high)])[0][0])

    def is_proven(self) -> bool:
        apart = abs(self.value - self.bound)
        return _gap(self.value, self.bound) <= self.gap or apart <= self.tiny

    @property
    def tiny(self) -> float:
        """The difference that counts as none, of values about 0."""
        return 1e-2 * self.gap * self.spread or _SMALL

    # Answers.

    def first(self, x0: Any) -> None:
        """Find a first answer: by projected steps, then by tangents where constraints are left."""
        given, search = [], self.search
        if x0 is not None:
            given.append(self.beginning(x0))
        points = search.best(given, np.random.default_rng(0))
        values = search.objectives(points)
        some = values[np.isfinite(values)]
        self.spread = float(np.ptp(some) + abs(some[0])) if len(some) else 0.0
        search.assign(points[0])
        self.consider()
        self.local = None if search.free and search.functions.affine else Local(search)
        if self.local is not None:
            for point in points[:_TRIED]:
                self.local.steps(point, self.consider, lambda: self.left)

    def beginning(self, x0: Array) -> Array:
        """Return v where x is as near to x0 as it comes, and variables beside x are best there."""
        x, center = self.network.x, self.search.region.center
        matrix, offset = affine_in(x, self.variables)
        off = x0.flatten(order="F") - offset - matrix @ center
        v = center + np.linalg.lstsq(matrix, off, rcond=None)[0]
        self.search.assign(v)
        held = [one == one.value for one in (x, *(graph.y for graph in self.graphs))]
        problem = cp.Problem(cp.Minimize(self.least), [*self.constraints, *held])
        with warnings.catch_warnings(), suppress(cp.SolverError, ValueError):
            warnings.simplefilter("ignore", UserWarning)
            problem.solve(solver=cp.CLARABEL)
        if problem.status in _ANSWERED:
            v = values_of(self.variables)
        return self.search.region.inside(v[None])[0]

    def consider(self) -> bool:
        """Keep the variables as they stand, with the network's outputs, where none were better."""
        for graph in self.graphs:
            graph.pass_forward()
        if any(np.max(one.violation()) > 0 for one in self.search.domains):
            return False  # where atoms have values, too
        value: float = float(self.least.value)
        apart = max(x.outside for x in self.graphs)
        if not value < self.value or apart > _OUTSIDE or not all(map(_holds, self.constraints)):
            return False
        self.value = value
        self.best = [(x, np.copy(x.value)) for x in self.variables]
        self.search.anchor = values_of(self.variables)
        return True

    def recall(self) -> None:
        """Give the variables the values of the best answer."""
        for variable, value in self.best:
            variable.save_value(value)
        for graph in self.graphs if self.best else ():
            graph.pass_forward()

    # Bounds.

    def cutoff(self) -> float:
        """Return what a better answer than the best is to have at most."""
        if not self.best:
            return math.inf
        return self.value - 0.9 * max(self.gap * abs(self.value), self.tiny)

    def halve(self, told: Told) -> None:
        """Raise the bound by halving boxes, hundreds at once, until the gap or the time."""
        search, whole = self.search, self.left
        if search.functions.affine:
            whole *= _BOXED if len(search.region.center) <= _MANY else _BOXED_MANY
        until, count, rounds = self.elapsed + whole, 1, 0
        low, high = self.ends()
        limits = search.region.together

        def bounded(low: Array, high: Array) -> Boxes:
            sums, curved = search.tangents(low, high)
            return lined(search.network, sums, low, high, limits, curved)

        boxes = bounded(low[None], high[None])
        while True:
            boxes = boxes.of(boxes.bound < self.cutoff())
            self.bound = max(self.bound, min(float(boxes.bound.min(initial=np.inf)), self.cutoff()))
            told(self.value, self.bound, count)
            self.nodes = count
            if not len(boxes) and not self.best:
                raise SolverError(INFEASIBLE)
            many = len(boxes)
            if not many or many > _BOXES or self.elapsed > until or self.is_proven():
                return
            many = min(max(_AT_ONCE, many // 8), many)
            order = np.argpartition(boxes.bound, many - 1)
            found = bounded(*halved(boxes.of(order[:many])))
            self.tried(found.at, int(found.bound.argmin()), rounds)
            boxes, rounds = boxes.of(order[many:]).beside(found), rounds + 1
            count += len(found)

    def split(self, told: Told) -> None:
        """Raise the bound by branch and bound over the sides of units, until the gap or the time.

        Rows and constraints are sums that are at most 0, and count with prices.
        """
        search, nodes, (rows, most) = self.search, self.nodes, self.search.region.together
        low, high = (x[None] for x in self.ends())
        sums, _ = search.tangents(low, high)
        largest, none = np.maximum(-low, high), np.zeros((1, len(rows), 1))
        sums = Sums(
            np.append(sums.constants, -most[None], 1),
            np.append(sums.slopes, rows[None], 1),
            {k: np.append(q, none + np.zeros(q.shape[2]), 1) for k, q in sums.costs.items()},
            np.append(sums.size, np.abs(most) + np.abs(rows) @ largest[0])[None],
        )
        until = time.perf_counter() + self.left
        lines, _ = lines_of(search.network, low, high, steps=_RAISED, until=until)
        way = Way(search.network, lines, sums, 1)
        reach = (np.abs(way.slopes[0]) @ (high - low)[0]).clip(_SMALL)
        scales, weights = reach[0] / reach, np.eye(len(reach))[:1]
        scales[0] = 0.0

        def stated(v: Any, line: Any) -> Any:
            return line[0], [line[1:] <= 0, v >= low[0], v <= high[0]]

        least = corner(low, high)
        tree = Tree(search.network, sums, least, largest, lines, weights, scales, stated)
        for number, x in enumerate(tree.rounds()):
            self.bound = max(self.bound, min(tree.bound, self.cutoff()))
            self.nodes = nodes + tree.count
            told(self.value, self.bound, self.nodes)
            if self.left <= 0:
                return
            self.tried(x, 0, number)
            tree.cutoff = self.cutoff()
        self.bound = max(self.bound, min(tree.bound, self.cutoff()))

    def tried(self, points: Array, lowest: int, rounds: int) -> None:
        """Take the best of some points as an answer, and go on from one now and then."""
        points = self.search.region.inside(points)
        values = self.search.values(points)
        best = int(values.argmin())
        if not self.search.free or values[best] < self.value:
            self.search.assign(points[best])
            self.consider()
        if self.local is not None and (rounds & (rounds - 1)) == 0:
            self.local.steps(points[lowest], self.consider, lambda: self.left)

    def ends(self) -> tuple[Array, Array]:
        """Return ends of all variables between which better answers lie.

        Raises:
            SolverError: one has none.
        """
        low, high = (x.copy() for x in self.search.region.ends)
        lost = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
        if not len(lost):
            return low, high
        rows = list(self.constraints)
        for graph in self.graphs:
            least, most = ranges(graph.composition, graph.box)[-1]
            rows += [graph.x >= graph.box[0], graph.x <= graph.box[1]]
            rows += [graph.y >= least, graph.y <= most]
        if self.best:
            rows.append(self.least <= self.value)
        flat = cp.hstack([cp.vec(x, order="F") for x in self.variables])
        for entry in lost:
            for target, sign in ((low, 1.0), (high, -1.0)):
                problem = cp.Problem(cp.Minimize(sign * flat[int(entry)]), rows)
                with suppress(cp.SolverError):
                    problem.solve(solver=cp.CLARABEL)
                if problem.status not in _ANSWERED:
                    raise SolverError(
                        "the objective has no best value, or a variable beside x may have any: "
                        "bound the other variables."
                    )
                found = float(problem.value)
                target[entry] = sign * (found - _WIDER * (1 + abs(found)))
        return low, high


def _holds(constraint: Any) -> bool:
    size = max(float(np.max(np.abs(x.value), initial=1.0)) for x in constraint.args)
    return bool(np.max(constraint.violation()) <= _HELD * size)


def _sign(objective: Any) -> float:
    return 1.0 if isinstance(objective, cp.Minimize) else -1.0


def _gap(value: float, bound: float) -> float:
    if not (math.isfinite(value) and math.isfinite(bound)):
        return math.inf
    return abs(value - bound) / abs(value) if value else math.inf if bound else 0.0


@contextmanager
def _bar(shown: bool, sign: float) -> Iterator[Told]:
    """Yield what is told of the best value and the bound: a bar where it is shown."""
    if not shown:
        yield lambda value, bound, nodes: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = SpinnerColumn(), TextColumn("{task.description}")
    with Progress(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task("a first answer", total=None)

        def told(value: float, bound: float, nodes: int) -> None:
            said = f"value {sign * value:.6g}, bound {sign * bound:.6g}"
            bar.update(task, description=f"{said}, gap {_gap(value, bound):.2g}, {nodes} nodes")

        yield told
