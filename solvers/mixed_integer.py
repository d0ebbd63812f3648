"""Linear programs with whole numbers by HiGHS: least values that are proven, and branch and bound.

HiGHS: Huangfu and Hall, Parallelizing the dual revised simplex method, 2018. What `least` returns
is a bound by weak duality, from whatever multipliers the simplex method ends with, rounded outward
(Neumaier and Shcherbina, Safe bounds in linear and mixed-integer linear programming, 2004): it does
not depend on the solver's tolerances. What `branch_and_bound` returns is proven as far as HiGHS
proves it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from liftednet.errors import SolverError
from liftednet.lazy import sparse

Array = np.ndarray[Any, np.dtype[np.float64]]
Told = Callable[[float, float, int], None]  # best value, bound, nodes

_FEASIBLE = 1e-9  # violation of rows, and distance from whole numbers


@dataclass(eq=False)
class Program:
    """min <c, z> subject to low <= R z <= high, lower <= z <= upper, some z whole numbers.

    Attributes:
        rows: R, sparse, (rows, columns).
        low: (rows,), -inf where there is none.
        high: (rows,), inf where there is none.
        lower: (columns,).
        upper: (columns,).
        whole: (columns,) booleans.
    """

    rows: Any
    low: Array
    high: Array
    lower: Array
    upper: Array
    whole: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Bounded:
    """What branch and bound has found of a minimum.

    Attributes:
        z: the best point, (columns,), or None where there is none.
        value: <c, z>, infinite where there is none.
        bound: no point has less, as far as HiGHS has proven it.
        ending: "optimal", "infeasible", "time" or "unbounded".
        nodes: of the tree.
    """

    z: Array | None
    value: float
    bound: float
    ending: str
    nodes: int


def highs() -> Any:
    """Return the module highspy.

    Raises:
        SolverError: it is not installed.
    """
    try:
        return import_module("highspy")
    except ImportError as error:
        raise SolverError(
            "networks that are not convex need HiGHS, which is not installed: "
            "`pip install highspy` (cvxpy brings it along from 1.7 on)."
        ) from error


def _model(program: Program, cost: Array, whole: bool) -> Any:
    library = highs()
    rows = sparse.csr_array(program.rows)
    lp = library.HighsLp()
    lp.num_row_, lp.num_col_ = rows.shape
    infinity = library.kHighsInf
    lp.col_cost_ = cost
    for name in ("lower", "upper"):
        setattr(lp, f"col_{name}_", np.clip(getattr(program, name), -infinity, infinity))
    lp.row_lower_, lp.row_upper_ = program.low, program.high
    lp.a_matrix_.format_ = library.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = rows.indptr.astype(np.int32)
    lp.a_matrix_.index_ = rows.indices.astype(np.int32)
    lp.a_matrix_.value_ = rows.data
    if whole and program.whole.any():
        kinds = library.HighsVarType
        lp.integrality_ = [kinds.kInteger if x else kinds.kContinuous for x in program.whole]
    solver = library.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(lp)
    return solver


def least(program: Program, costs: Array, seconds: float) -> Array:
    """Return bounds below <c, z> for each c over all z of a program whose columns are bounded.

    z may be any numbers where it is whole: the bounds hold all the more where it is.

    Args:
        program: whose `lower` and `upper` are finite.
        costs: c, (problems, columns).
        seconds: after which what is left has -inf.
    """
    found = np.full(len(costs), -math.inf)
    if not len(costs):
        return found
    started, solver = time.perf_counter(), _model(program, costs[0], False)
    columns = np.arange(costs.shape[1], dtype=np.int32)
    multipliers = np.zeros((len(costs), len(program.low)))
    done = 0
    for number, cost in enumerate(costs):
        solver.changeColsCost(len(columns), columns, cost)
        solver.run()
        solution = solver.getSolution()
        if solution.dual_valid:
            multipliers[number] = solution.row_dual
        done = number + 1
        if time.perf_counter() - started > seconds:
            break
    found[:done] = _dual_values(program, costs[:done], multipliers[:done])
    return found


def _dual_values(program: Program, costs: Array, multipliers: Array) -> Array:
    """Return what weak duality proves of multipliers, (problems, rows), of any sign and size."""
    up, down = np.maximum(multipliers, 0), np.maximum(-multipliers, 0)
    up[:, ~np.isfinite(program.low)] = 0
    down[:, ~np.isfinite(program.high)] = 0
    low = np.where(np.isfinite(program.low), program.low, 0)
    high = np.where(np.isfinite(program.high), program.high, 0)
    matrix = sparse.csr_array(program.rows)
    reduced = costs - (matrix.T @ (up - down).T).T
    # an error in a reduced cost counts as often as its column is large
    sizes = np.abs(costs) + (abs(matrix).T @ (up + down).T).T
    largest = np.maximum(np.abs(program.lower), np.abs(program.upper))
    value = up @ low - down @ high
    value += np.maximum(reduced, 0) @ program.lower - np.maximum(-reduced, 0) @ program.upper
    scale = up @ np.abs(low) + down @ np.abs(high) + sizes @ largest
    safe: Array = value - 4 * (sum(program.rows.shape) + 8) * np.finfo(float).eps * scale
    return safe


def branch_and_bound(
    program: Program,
    cost: Array,
    *,
    gap: float,
    absolute: float = 0.0,
    seconds: float = math.inf,
    start: tuple[Array, Array] | None = None,
    told: Told | None = None,
) -> Bounded:
    """Return the least <c, z>, by branch and bound until a gap or a time is reached.

    Args:
        program: any.
        cost: c, (columns,).
        gap: (value - bound) / |value| that is enough.
        absolute: value - bound that is enough.
        seconds: of the solver.
        start: columns and their values, with which HiGHS tries to begin.
        told: called with the best value, the bound and the number of nodes, now and then.
    """
    library, solver = highs(), _model(program, cost, True)
    for name, option in {
        "mip_rel_gap": gap, "mip_abs_gap": absolute, "time_limit": seconds,
        "mip_feasibility_tolerance": _FEASIBLE, "primal_feasibility_tolerance": _FEASIBLE,
    }.items():  # fmt: skip
        solver.setOptionValue(name, option)
    if start is not None and len(start[0]):
        places, values = start
        solver.setSolution(len(places), places.astype(np.int32), values)
    if told is not None:
        solver.cbMipLogging.subscribe(lambda event: told(*_told(event.data_out)))
    solver.run()
    kinds, status = library.HighsModelStatus, solver.getModelStatus()
    if status == kinds.kUnboundedOrInfeasible:  # it is infeasible whatever the cost, or it is not
        columns = np.arange(len(cost), dtype=np.int32)
        solver.changeColsCost(len(columns), columns, np.zeros(len(cost)))
        solver.run()
        feasible = solver.getModelStatus() == kinds.kOptimal
        status = kinds.kUnbounded if feasible else solver.getModelStatus()
    info = solver.getInfo()
    nodes = max(int(info.mip_node_count), 0)
    if status == kinds.kInfeasible:
        return Bounded(None, math.inf, math.inf, "infeasible", nodes)
    if status == kinds.kUnbounded:
        return Bounded(None, -math.inf, -math.inf, "unbounded", nodes)
    solution = solver.getSolution()
    there = bool(solution.value_valid)
    value = float(info.objective_function_value) if there else math.inf
    optimal = status == kinds.kOptimal
    bound = float(info.mip_dual_bound) if program.whole.any() else value if optimal else -math.inf
    z = np.array(solution.col_value) if there else None
    return Bounded(z, value, bound, "optimal" if optimal else "time", nodes)


def _told(data: Any) -> tuple[float, float, int]:
    return data.mip_primal_bound, data.mip_dual_bound, int(data.mip_node_count)
