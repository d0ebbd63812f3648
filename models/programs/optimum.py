"""The best input of a trained network under convex constraints, and a proof of how good it is.

A first answer comes from projected gradient steps from many points, and from steps that take the
network by its tangent where constraints are on outputs or not linear. Halved boxes of the inputs
then close the gap from below; where all is linear in pieces and boxes do not, branch and bound over
the sides of kinks goes on.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, Told, branch_and_bound
from liftednet.validation import require_positive

from ..bounds.curves import Array
from .boxes import Boxes, halved, lined, output_ends
from .cvxpy_network import CvxpyNetwork
from .local import PRECISE, Local
from .search import INFEASIBLE, Search, sides_of

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint

_HELD = 1e-7  # violation of a constraint, relative to its size, that counts as none
_ANSWERED = ("optimal", "optimal_inaccurate")
_TRIED = 3  # points from which tangents are tried
_BOXED, _BOXED_MANY = 0.6, 0.1  # of the time, after which boxes leave what is linear in pieces
_MANY = 16  # inputs, of which boxes seldom prove anything
_AT_ONCE = 256  # boxes that are halved together, at least
_BOXES = 300_000  # that are kept, some hundred megabytes
_SMALL = 1e-9  # an error that counts as none
_WIDER = 1e-6  # of ends that a solver has found, relative


@dataclass(frozen=True, eq=False)
class Optimum:
    """What `optimize` has found.

    Attributes:
        x: the best input, shaped as that of the network; None where none was found in time.
        output: the network's output there, by a forward pass.
        value: the objective there.
        bound: no x has a better one, as far as the solver has proven it.
        proven: whether |value - bound| is within the gap that was asked for.
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
        return (
            f"value {self.value:.6g}, bound {self.bound:.6g}, gap {self.gap:.2g}, {how}: "
            f"{self.seconds:.2f} s, {self.nodes} nodes"
        )

    __repr__ = __str__


def optimize(
    network: CvxpyNetwork,
    objective: Any,
    constraints: Sequence[Constraint] = (),
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
        network: from `to_cvxpy`.
        objective: cp.Minimize or cp.Maximize of x, of the outputs, and of other variables: convex
            or concave to CVXPY.
        constraints: convex ones of CVXPY's; those of the network are added.
        x0: a point to begin from, too, shaped as x.
        gap: |value - bound| / |value| that is enough; or this share of 1e-2 of the range of
            objectives seen, where the value is about 0.
        seconds: after which the best answer and the bound are returned as they are.
        progress: whether to show a bar.

    Raises:
        DataError: gap or seconds is not positive, or x0 has another shape.
        DeclarationError: the problem is not convex to CVXPY but for the network.
        SolverError: no x meets the constraints, there is no best one, or HiGHS is not installed.

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
    if not isinstance(network, CvxpyNetwork):
        raise DataError(f"optimize needs what to_cvxpy returns, got {type(network).__name__}.")
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
    if isinstance(constraints, cp.constraints.constraint.Constraint):
        raise DeclarationError(
            f"constraints must be a list, as in [cp.sum(x) <= 1]; got {type(constraints).__name__}."
        )
    given = list(constraints)
    if not cp.Problem(objective, given).is_dcp():
        advice = "" if network.graphs else ": to maximize a convex network, mixed_integer=True"
        raise DeclarationError(
            f"the objective or a constraint is not convex to CVXPY, the network taken as it is "
            f"stated{advice}."
        )
    if x0 is not None and np.shape(x0) != network.x.shape:
        raise DataError(f"x0 must have the shape {network.x.shape} of x, got {np.shape(x0)}.")
    if not network.graphs:
        return _convex(network, objective, given, gap)
    found = _Proof(network, objective, given, gap, time.perf_counter(), seconds)
    return found.optimum(x0, progress)


def _convex(
    network: CvxpyNetwork, objective: Any, constraints: Sequence[Constraint], gap: float
) -> Optimum:
    """Return the optimum of a problem that is convex with the network in it.

    Where CLARABEL calls its answer inaccurate, HiGHS is asked if all is linear in pieces, else
    CLARABEL without scaling.
    """
    started, sign = time.perf_counter(), _sign(objective)
    problem = cp.Problem(objective, list(constraints))
    precise: dict[str, Any] = dict.fromkeys(PRECISE, max(1e-10, min(1e-8, 0.1 * gap)))
    dual, proven = math.nan, False
    for options in (precise, precise | {"equilibrate_enable": False}):
        data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts=options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of inaccuracy, which the bound tells
            raw = chain.solve_via_data(problem, data, solver_opts=options)
            problem.unpack_results(raw, chain, inverse)
        if network.x.value is None:
            raise SolverError(f"no best input was found: the problem is {problem.status}.")
        value = float(problem.value)
        dual = value - sign * abs(raw.obj_val - raw.obj_val_dual)
        proven = problem.status == cp.OPTIMAL and _gap(value, dual) <= gap
        t = cp.Variable()
        epigraph = cp.Problem(cp.Minimize(t), [*constraints, sign * objective.expr <= t])
        if not proven and epigraph.is_qp():
            program, cost, places = _program_of(epigraph)
            found = branch_and_bound(program, cost, gap=0.0)
            if found.z is not None and found.ending == "optimal":
                _restore(epigraph, found.z, places)
                value, dual = float(objective.value), sign * found.bound
                proven = _gap(value, dual) <= gap
        if proven:
            break
    seconds = time.perf_counter() - started
    x, output = np.array(network.x.value), np.array(network.output.value)
    return Optimum(x, output, value, dual, proven, seconds, (value, seconds))


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
    constraints: Sequence[Constraint]
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
        self.graphs, outputs = self.network.graphs, {x.y.id for x in self.network.graphs}
        user = [x for one in (self.least, *self.constraints) for x in one.variables()]
        every = {x.id: x for x in (*self.network.x.variables(), *user) if x.id not in outputs}
        self.variables = list(every.values())
        whole = [x for x in self.variables if x.attributes["boolean"] or x.attributes["integer"]]
        with _bar(progress, self.sign) as told:
            if not whole:
                self.search = Search(self.graphs, self.variables, self.least, self.constraints)
                self.first(x0)
            first = (self.sign * self.value, self.elapsed)
            told(self.value, self.bound, 0)
            if not whole:
                self.halve(told)
            elif not self.straight:
                raise DeclarationError(
                    "variables that are whole numbers are for networks, objectives and constraints "
                    "that are linear in pieces."
                )
            if not self.is_proven() and self.left > 0 and self.straight:
                self.branch(told)
        self.recall()
        if self.best:
            self.network.pass_forward()
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

    def is_proven(self) -> bool:
        return _gap(self.value, self.bound) <= self.gap or self.value - self.bound <= self.tiny

    @property
    def tiny(self) -> float:
        """The difference that counts as none, of values about 0."""
        return max(1e-2 * self.gap * self.spread, _SMALL)

    @cached_property
    def straight(self) -> bool:
        """Whether all is linear in pieces, so that a mixed-integer program tells it."""
        sides = [x for one in self.constraints for x in sides_of(one)]
        curves = [c for b in self.network.composition.blocks for c in b.curves]
        linear = all(x.is_pwl() for x in (self.least, *sides))
        return linear and all(curve.piecewise_linear for curve in curves)

    # Answers.

    def first(self, x0: Any) -> None:
        """Find a first answer: by projected steps, then by tangents where constraints are left."""
        given, search = [], self.search
        if x0 is not None and len(self.variables) == 1:
            given.append(np.asarray(x0, dtype=float).flatten(order="F"))
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

    def consider(self) -> bool:
        """Keep the variables as they stand, with the network's outputs, where none were better."""
        for graph in self.graphs:
            graph.pass_forward()
        value = float(self.least.value)
        if not value < self.value or not all(map(_holds, self.constraints)):
            return False
        self.value = value
        self.best = [(x, np.copy(x.value)) for x in self.variables]
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
        if self.straight:
            whole *= _BOXED if len(search.region.center) <= _MANY else _BOXED_MANY
        until, count, rounds = self.elapsed + whole, 1, 0
        low, high = self.ends()
        limits = search.region.together

        def bounded(low: Array, high: Array) -> Boxes:
            return lined(search.networks, search.tangents(low, high), low, high, limits)

        boxes = bounded(low[None], high[None])
        while True:
            boxes = boxes.of(boxes.bound < self.cutoff())
            self.bound = max(self.bound, min(float(boxes.bound.min(initial=np.inf)), self.cutoff()))
            told(self.value, self.bound, count)
            self.nodes = count
            if not len(boxes) and not self.best:
                raise SolverError(INFEASIBLE)
            if not len(boxes) or self.elapsed > until or len(boxes) > _BOXES:
                return
            many = min(max(_AT_ONCE, len(boxes) // 8), len(boxes))
            order = np.argpartition(boxes.bound, many - 1)
            found = bounded(*halved(boxes.of(order[:many])))
            self.tried(found, rounds)
            boxes, rounds = boxes.of(order[many:]).beside(found), rounds + 1
            count += len(found)

    def tried(self, found: Boxes, rounds: int) -> None:
        """Take the best point of some boxes as an answer, and go on from there now and then."""
        points = self.search.region.inside(found.at)
        values = self.search.values(points)
        best = int(values.argmin())
        if not self.search.free or values[best] < self.value:
            self.search.assign(points[best])
            self.consider()
        if self.local is not None and (rounds & (rounds - 1)) == 0:
            lowest = points[int(found.bound.argmin())]
            self.local.steps(lowest, self.consider, lambda: self.left)

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
            box = (x[None] for x in graph.box)
            least, most = output_ends(graph.composition, *box)
            rows += [graph.x >= graph.box[0], graph.x <= graph.box[1]]
            rows += [graph.y >= least[0], graph.y <= most[0]]
        if self.best:
            rows.append(self.least <= self.value)
        flat = cp.hstack([cp.vec(x, order="F") for x in self.variables])
        for entry in lost:
            for target, sign in ((low, 1.0), (high, -1.0)):
                problem = cp.Problem(cp.Minimize(sign * flat[int(entry)]), rows)
                problem.solve(solver=cp.CLARABEL)
                if problem.status not in _ANSWERED:
                    raise SolverError(
                        "the objective has no best value, or a variable beside x may have any: "
                        "bound the other variables."
                    )
                found = float(problem.value)
                target[entry] = sign * (found - _WIDER * (1 + abs(found)))
        return low, high

    def branch(self, told: Told) -> None:
        """Raise the bound by branch and bound over the sides of kinks, by HiGHS."""
        t = cp.Variable()
        rows = [one for graph in self.graphs for one in graph.constraints()]
        problem = cp.Problem(cp.Minimize(t), [*self.constraints, *rows, self.least <= t])
        program, cost, places = _program_of(problem)
        nodes = self.nodes
        if self.left <= 0:
            return
        found = branch_and_bound(
            program, cost, gap=0.9 * self.gap, absolute=self.tiny, seconds=self.left,
            start=self.start(places),
            told=lambda value, bound, more: told(
                min(value, self.value), max(bound, self.bound), nodes + more
            ),
        )  # fmt: skip
        self.nodes += found.nodes
        if found.ending == "infeasible" and not self.best:
            raise SolverError(INFEASIBLE)
        if found.ending == "unbounded":
            raise SolverError("the objective has no best value: bound its other variables.")
        if found.ending != "infeasible":  # by rounding alone, where there is an answer
            self.bound = max(self.bound, min(found.bound, self.value))
        if found.z is None:
            return
        _restore(problem, found.z, places)
        self.consider()

    def start(self, places: dict[int, int]) -> tuple[Array, Array] | None:
        """Return the whole numbers of the best answer and their columns: HiGHS finds the rest."""
        if not self.best:
            return None
        self.recall()
        columns: list[int] = []
        numbers: list[float] = []
        for graph in self.graphs:
            if graph.whole is not None:
                first = places[graph.whole.id]
                columns += range(first, first + graph.whole.size)
                numbers += np.asarray(graph.whole.value).tolist()
        return np.array(columns, dtype=float), np.array(numbers)


def _program_of(problem: Any) -> tuple[Program, Array, dict[int, int]]:
    """Return a mixed-integer program, its cost, and the first column of every variable."""
    data = problem.get_problem_data(cp.HIGHS)[0]
    equal, rows = data["dims"].zero, sparse.csr_array(data["A"])
    high = np.asarray(data["b"], dtype=float)
    low = np.where(np.arange(len(high)) < equal, high, -np.inf)
    columns = rows.shape[1]
    lower, upper = (
        np.full(columns, none) if data.get(name) is None else np.asarray(data[name], dtype=float)
        for name, none in (("lower_bounds", -np.inf), ("upper_bounds", np.inf))
    )
    whole = np.zeros(columns, dtype=bool)
    whole[data["bool_vars_idx"]] = whole[data["int_vars_idx"]] = True
    binary = np.asarray(data["bool_vars_idx"], dtype=int)
    lower[binary], upper[binary] = np.maximum(lower[binary], 0), np.minimum(upper[binary], 1)
    program = Program(rows, low, high, lower, upper, whole)
    return program, data["c"], dict(data["param_prob"].var_id_to_col)


def _restore(problem: Any, z: Array, places: dict[int, int]) -> None:
    """Give the variables of a problem their values at the columns of its program."""
    for variable in problem.variables():
        part = z[places[variable.id] :][: variable.size]
        variable.save_value(part.reshape(variable.shape, order="F"))


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
