"""The best input of a trained network under convex constraints, and a proof of how good it is.

Minimizing over x and states by blocks: for given sides of all kinks x and states are one convex
program, for given x the sides follow by a forward pass; it begins at the best of projected gradient
steps from many points. Branch and bound then closes the gap from below. Where units are smooth, or
the objective or a constraint is not linear in pieces, a program that is too low is refined in
rounds: pieces of units end where its solution is, and tangents are added there (Kelley, The
cutting-plane method for solving convex programs, 1960).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.lazy import cvxpy as cp
from liftednet.lazy import sparse
from liftednet.solvers.mixed_integer import Program, Told, branch_and_bound
from liftednet.validation import require_positive

from ..bounds.curves import Array
from .cvxpy_network import CvxpyNetwork, Graph
from .relaxation import relaxation
from .search import Search, linear_in, region_of

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint

_HELD = 1e-6  # violation of a constraint, relative to its size, that counts as none
_ANSWERED = ("optimal", "optimal_inaccurate")
_PRECISE = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
_TRIED, _TURNS = 3, 8  # ends of projected steps, and turns of blocks from each
_ROUNDS = 200
_BOXED = 0.6  # of the time, after which boxes leave networks linear in pieces to HiGHS
_SMALL = 1e-9  # an error that counts as none
_NEAR = 0.1  # of a piece's width: a new end is not as near to another
_SPLIT = 0.2  # of the largest error among units: those above it have another piece
_SHARE = 0.3  # of the gap that one program of several may leave


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
        rounds: of programs that were solved.

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
    rounds: int = 1

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

    A first answer comes from projected steps and exact steps by blocks, over inputs and states,
    from many starts. Branch and bound by HiGHS then proves it, or finds better ones, until the gap
    or the time is reached. All variables have the values found afterwards; `output.value` is the
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
    found = _Search(network, objective, given, gap, time.perf_counter(), seconds)
    return found.optimum(x0, progress)


def _convex(
    network: CvxpyNetwork, objective: Any, constraints: Sequence[Constraint], gap: float
) -> Optimum:
    """Return the optimum of a problem that is convex with the network in it."""
    started = time.perf_counter()
    problem = cp.Problem(objective, list(constraints))
    precise = dict.fromkeys(_PRECISE, max(1e-10, min(1e-8, 0.1 * gap)))
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts=precise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of inaccuracy, which the bound tells
        raw = chain.solve_via_data(problem, data, solver_opts=precise)
        problem.unpack_results(raw, chain, inverse)
    if network.x.value is None:
        raise SolverError(f"no best input was found: the problem is {problem.status}.")
    value, seconds = float(problem.value), time.perf_counter() - started
    dual = value - _sign(objective) * abs(raw.obj_val - raw.obj_val_dual)
    proven = problem.status == cp.OPTIMAL and _gap(value, dual) <= gap
    x, output = np.array(network.x.value), np.array(network.output.value)
    return Optimum(x, output, value, dual, proven, seconds, (value, seconds))


@dataclass(eq=False)
class _Problem:
    """A program of HiGHS made of a problem of CVXPY whose last variable t is minimized.

    Attributes:
        stated: the problem.
        program: its rows.
        cost: of its columns.
        places: the first column of every variable, by its number.
    """

    stated: Any
    program: Program
    cost: Array
    places: dict[int, int]

    def restore(self, z: Array) -> None:
        """Give the variables of the problem their values at z."""
        for variable in self.stated.variables():
            first = self.places[variable.id]
            part = z[first : first + variable.size]
            variable.save_value(part.reshape(variable.shape, order="F"))

    def held(self, graphs: Sequence[Graph]) -> Program:
        """Return the program with the whole numbers of the graphs as they stand."""
        lower, upper = self.program.lower.copy(), self.program.upper.copy()
        for graph in graphs:
            if graph.whole is not None:
                first = self.places[graph.whole.id]
                columns = slice(first, first + graph.whole.size)
                lower[columns] = upper[columns] = np.round(graph.whole.value)
        whole = self.program.whole & (lower < upper)
        return replace(self.program, lower=lower, upper=upper, whole=whole)


def _program_of(problem: Any) -> _Problem:
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
    return _Problem(problem, program, data["c"], dict(data["param_prob"].var_id_to_col))


@dataclass(eq=False)
class _Search:
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
    rounds: int = 0

    def optimum(self, x0: Any, progress: bool) -> Optimum:
        self.sign = _sign(self.objective)
        self.least = self.sign * self.objective.expr
        self.curved = [x for x in self.constraints if not _is_linear(x)]
        self.straight = self.least.is_pwl()
        self.t = cp.Variable()
        self.variables = self.network.x.variables()
        # with variables of their own, as pieces are added
        self.graphs = [replace(g) for g in self.network.graphs]
        self.cuts: list[Any] = []
        self.splits: list[dict[tuple[int, int], list[float]]] = [{} for _ in self.graphs]
        self.search = self.searched()
        self.smooth = not all(
            curve.piecewise_linear
            for block in self.network.composition.blocks
            for curve in block.curves
        )
        with _bar(progress, self.sign) as told:
            self.first(x0)
            first = (self.sign * self.value, self.elapsed)
            told(self.value, self.bound, 0)
            self.prove(told)
        self.recall()
        found = bool(self.best)
        if found:
            self.network.pass_forward()
        x = np.array(self.network.x.value) if found else None
        output = np.array(self.network.output.value) if found else None
        return Optimum(
            x, output, self.sign * self.value, self.sign * self.bound, self.is_proven(),
            self.elapsed, first, self.nodes, self.rounds,
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

    # Answers.

    def searched(self) -> Search | None:
        """Return projected steps over the variables in x; None where there is no region of them."""
        self.spread = 0.0
        inside = {x.id for x in (*self.variables, *(graph.y for graph in self.graphs))}
        if not self.variables or not {x.id for x in self.least.variables()} <= inside:
            return None
        if any(x.attributes["boolean"] or x.attributes["integer"] for x in self.variables):
            return None
        region = region_of(self.graphs, self.variables, self.constraints)
        if region is None:
            return None
        found = Search(self.graphs, self.variables, self.least, region)
        try:
            found.values(region.center[None])
        except NotImplementedError:  # of CVXPY, which has no gradient of some atoms
            return None
        return found

    def first(self, x0: Any) -> None:
        """Find a first answer: by projected steps, and by blocks where no boxes follow."""
        if self.search is None:
            self.problem = _program_of(self.stated())
            if x0 is not None and len(self.variables) == 1:
                self.variables[0].save_value(np.asarray(x0, dtype=float))
                for graph in self.graphs:
                    graph.pass_forward()
                self.descended()
            return
        given = []
        if x0 is not None and len(self.variables) == 1:
            given.append(np.asarray(x0, dtype=float).flatten(order="F"))
        points = self.search.best(given, np.random.default_rng(0))
        values = self.search.values(points)[0]
        self.spread = float(np.ptp(values)) + abs(float(values[0]))
        if not self.search.can_be_boxed:
            self.problem = _program_of(self.stated())
        for point in points[: 1 if self.search.can_be_boxed else _TRIED]:
            self.search.assign(point)
            self.consider()
            if not self.search.can_be_boxed:
                self.descended()

    def consider(self) -> bool:
        """Keep the variables as they stand, with a forward pass, where they are the best so far."""
        for graph in self.graphs:
            graph.pass_forward()
        if any(x.value is None for x in self.least.variables()):
            return False
        value = float(self.least.value)
        if not value < self.value or not all(map(_holds, self.constraints)):
            return False
        self.value = value
        self.best = [(x, np.copy(x.value)) for x in self.involved()]
        return True

    def involved(self) -> list[Any]:
        own = [x for graph in self.graphs for x in graph.variables]
        user = [x for one in (self.least, *self.constraints) for x in one.variables()]
        return list({x.id: x for x in (*self.variables, *own, *user)}.values())

    def descended(self) -> None:
        """Move x and states together with all sides of kinks as they are, then these, in turns."""
        for _ in range(_TURNS):
            if self.left <= 0 or not self.block():
                return
            if not self.consider():
                return

    def block(self) -> bool:
        """Solve the convex program that is left where whole numbers stand as they are."""
        if self.straight and not self.curved:
            held = self.problem.held(self.graphs)
            found = branch_and_bound(held, self.problem.cost, gap=0.0, seconds=self.left)
            if found.z is None:
                return False
            self.problem.restore(found.z)
            return True
        rows = [one for g in self.graphs for one in g.constraints(_numbers(g.whole))]
        problem = cp.Problem(cp.Minimize(self.least), [*self.constraints, *rows])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                problem.solve(solver=cp.CLARABEL, **_PRECISE)
            except cp.SolverError:
                return False
        return bool(self.network.x.value is not None and problem.status in _ANSWERED)

    # Bounds.

    def stated(self) -> Any:
        """Return the problem with what is not linear in pieces by its tangents."""
        rows = [one for graph in self.graphs for one in graph.constraints()]
        below = [self.least <= self.t] if self.straight else []
        linear = [x for x in self.constraints if _is_linear(x)]
        return cp.Problem(cp.Minimize(self.t), [*linear, *rows, *below, *self.cuts])

    def cutoff(self, value: float) -> float:
        """Return what a better answer than one of a value is to have at most."""
        return value - 0.9 * max(self.gap * abs(value), self.tiny)

    def boxed(self, told: Told) -> bool:
        """Raise the bound by halving boxes of x; return whether that is enough."""
        if self.search is None or not self.search.can_be_boxed or not self.best:
            return False
        whole = self.left if self.smooth else _BOXED * self.left
        self.bound, point, count = self.search.bounded(self.value, self.cutoff, whole, told)
        self.nodes += count
        if point is not None:
            self.search.assign(point)
            self.consider()
        return self.is_proven()

    def prove(self, told: Told) -> None:
        """Raise the bound until the gap or the time is reached."""
        if self.boxed(told):
            return
        exact = self.straight and not self.curved
        exact &= all(graph.relaxation.exact for graph in self.graphs)
        if self.best:
            self.recall()
            self.cut()
        share = 1.0 if exact else _SHARE
        for _ in range(_ROUNDS):
            if self.left <= 0:
                return
            self.problem = _program_of(self.stated())
            found = branch_and_bound(
                self.problem.program, self.problem.cost, gap=0.9 * share * self.gap,
                absolute=share * self.tiny, seconds=self.left, start=self.start(),
                told=lambda value, bound, nodes: told(
                    min(value, self.value) if exact else self.value,
                    max(bound, self.bound), self.nodes + nodes,
                ),
            )  # fmt: skip
            self.rounds, self.nodes = self.rounds + 1, self.nodes + found.nodes
            if found.ending == "infeasible" and self.best:
                return  # by rounding alone
            if found.ending == "infeasible":
                raise SolverError(
                    "no input meets the constraints within the box, which is proven: widen the box "
                    "or leave a constraint out."
                )
            if found.ending == "unbounded":
                raise SolverError("the objective has no best value: bound its other variables.")
            self.bound = max(self.bound, min(found.bound, self.value))
            if found.z is None:
                return
            self.problem.restore(found.z)
            zs = [_columns(graph) for graph in self.graphs]
            more = self.cut()
            self.answer()
            told(self.value, self.bound, self.nodes)
            if self.is_proven():
                return
            if exact and found.ending == "time":
                return
            if not exact and not (self.refine(zs) or more):
                return

    def start(self) -> tuple[Array, Array] | None:
        """Return the whole numbers of the best answer and their columns: HiGHS finds the rest."""
        if not self.best:
            return None
        self.recall()
        places: list[int] = []
        numbers: list[float] = []
        for graph in self.graphs:
            if graph.whole is not None:
                graph.pass_forward()
                first = self.problem.places[graph.whole.id]
                places += range(first, first + graph.whole.size)
                numbers += np.asarray(graph.whole.value).tolist()
        return np.array(places, dtype=float), np.array(numbers)

    def recall(self) -> None:
        """Give the variables the values of the best answer."""
        for variable, value in self.best:
            variable.save_value(value)

    def answer(self) -> None:
        """Take x as a bound has left it, and go on from there."""
        self.consider()
        if all(graph.relaxation.exact for graph in self.graphs):
            if not self.straight or self.curved:
                self.descended()
        elif self.search is not None:
            values = [np.asarray(x.value).flatten(order="F") for x in self.variables]
            self.search.assign(self.search.refined(np.concatenate(values)))
            self.consider()

    # Refinement.

    def cut(self) -> bool:
        """Add tangents of what is not linear in pieces, where the variables are."""
        before = len(self.cuts)
        if not self.straight:
            self.cuts.append(_tangent(self.least) <= self.t)
        for one in self.curved:
            if np.max(one.violation()) > _HELD * 1e-3:
                self.cuts.append(_tangent(one.expr) <= 0)
        return len(self.cuts) > before

    def refine(self, zs: Sequence[Array]) -> bool:
        """End pieces of smooth units where their values are off; return whether some were."""
        more = False
        for number, (graph, z) in enumerate(zip(self.graphs, zs, strict=True)):
            off = graph.relaxation.off(z)
            off = [x for x in off if x[0] > max(_SPLIT * off[0][0], _SMALL)]
            for _, block, unit, u in off:
                low, high = (float(end[unit]) for end in graph.relaxation.ranges[block])
                curve = graph.relaxation.composition.blocks[block].curve(unit)
                known = self.splits[number].setdefault((block, unit), [])
                ends = curve.pieces(low, high, known)
                piece = min(max(int(np.searchsorted(ends, u)), 1), len(ends) - 1)
                left, right = ends[piece - 1 : piece + 1]
                inside = min(u - left, right - u) > _NEAR * (right - left)
                known.append(u if inside else (left + right) / 2)
                more = True
            if off:
                old = graph.relaxation
                found = relaxation(
                    old.composition, old.box, splits=self.splits[number], known=old.ranges
                )
                graph.take(found)
        return more


def _columns(graph: Graph) -> Array:
    """Return z of a graph's variables as they stand."""
    program = graph.relaxation.program
    z = np.zeros(len(program.whole))
    z[: graph.x.size] = graph.x.value
    for variable, columns in ((graph.free, graph._free), (graph.whole, graph._whole)):
        if variable is not None:
            z[columns] = variable.value
    return z


def _tangent(expression: Any) -> Any:
    """Return the tangent of an expression where its variables are, flat."""
    variables = expression.variables()
    at = linear_in(expression, variables)
    flat = cp.hstack([cp.vec(x, order="F") for x in variables])
    values = np.concatenate([np.asarray(x.value).flatten(order="F") for x in variables])
    return at.matrix @ flat + (at.offset - at.matrix @ values)


def _is_linear(constraint: Any) -> bool:
    """Say whether a constraint is linear in pieces."""
    if isinstance(constraint, cp.constraints.Inequality):
        return bool(constraint.expr.is_pwl())
    if isinstance(
        constraint, cp.constraints.Equality | cp.constraints.NonNeg | cp.constraints.Zero
    ):
        return True
    raise DeclarationError(
        f"{type(constraint).__name__} is not known here: state the constraint as an inequality, "
        "such as cp.norm(x) <= 1."
    )


def _holds(constraint: Any) -> bool:
    if any(x.value is None for x in constraint.variables()):
        return False
    size = max(float(np.max(np.abs(x.value), initial=1.0)) for x in constraint.args)
    return bool(np.max(constraint.violation()) <= _HELD * size)


def _numbers(whole: Any) -> Any:
    return None if whole is None else np.round(whole.value)


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
