"""The solvers whose loops are compiled: of states, of outputs on the simplex, and of weights.

What a loop does not solve is finished by a solver in torch.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from liftednet import processes
from liftednet.activations import ReLU, SimplexProjection
from liftednet.activations.simplex import SLACK
from liftednet.divergences import Joint, Tight
from liftednet.errors import SolverError
from liftednet.losses import SimplexCrossEntropy
from liftednet.penalties import GroupLasso, SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit, Weights
from liftednet.problems.fit import Measure, measured
from liftednet.problems.priors import in_float64
from liftednet.samples import row_chunks
from liftednet.solution import Solution, Status

from ..base import Problem, Solver, Value, default_tolerance
from ..choice import solved_by
from ..dual import Dual, shared_map
from ..output import SimplexDual, settled
from ..ridge import Ridge
from ..state_links import columns_above, hessian_of, pulled, row_scales
from .loops import (
    RAMP,
    WORTH_COMPILING,
    Array,
    LoopMap,
    Loops,
    array,
    at_hand,
    compiled_beside,
    in_threads,
    link_rows,
    ramp,
    refusal,
    rows_of,
    worth_compiling,
)
from .sparse_weights import (
    LONGEST,
    MOST_INPUTS,
    ROUNDING,
    by_few_inputs,
    has_few_inputs,
    minimize_entries,
    parts_of,
)

# of CompiledNewton
_MOST = 32  # columns of all links, whose products are as many as half their square
_NEWTON = "newton_rows.newton_rows", "measure_rows.of_states"
# of CompiledDescent
_UNITS = 500  # whose matrix in float32 a core's own cache holds
_FEW = 12  # units, of which samples are not worth trying sweeps on, and all sets have an inverse
_PROBED, _SWEPT = 4, 16  # samples that tell what the others will take
_SWEEPS = 1_000  # of a sample at most
_SLOW = 8.0  # times units x columns x log of the condition: beyond it others are faster, measured
_PATIENCE = 3.0  # times that, once it has begun
_CALLED = 2e7  # operations of descent in the time that others take to begin
_SWEEP = 5.0  # operations of sample after sample in the time of one of sixteen together, measured
_BY_DESCENT = (
    "descent_rows.descend", "descent_rows.sweep", "descent_rows.panelled", "pivot_rows.inverses",
    "pivot_rows.pivot",
)  # fmt: skip
_DESCENT = Loops((*_BY_DESCENT, _NEWTON[1]), "sweeps")
_RELU = LoopMap(RAMP, 1.0, 0.0, math.inf)
# of CompiledSimplex
_SIMPLEX = "simplex_rows.simplex_rows", "measure_rows.of_simplex"
# of CompiledRidge
_RIDGE = ("ridge_rows.ridge",)
_INPUTS = 400  # whose factor LAPACK has sooner
_SUMS = 1 << 27  # operations, for which torch would have more threads
_SUMMED = 1 << 25  # operations in the time of torch's calls, where sums are kept
_EXACT = 1e-12  # relative residual, beyond which a solution is refined
# of CoordinateDescent
_PASSES = 20_000  # over rows
_QUICK = 16  # times as fast an entry of sums is in a step of torch's as one of states
_FIT = 1_500  # entries in whose time torch begins and ends a fit


class _ByLoops(Solver[Problem, Value, None]):
    """A solver that suits what its loops serve, where no compiler is waited for in vain.

    Attributes:
        others: the names of those that solve what the loops leave.
    """

    others: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _asks(self, problem: Problem) -> tuple[Loops, int] | None:
        """Return loops, and entries as for `worth_compiling`; None of what suits others."""

    def suits(self, problem: Problem) -> bool:
        """Say whether loops wait for a problem that suits them, or that is worth the compiler."""
        asked = self._asks(problem)
        return asked is not None and (worth_compiling(asked[1]) or at_hand(asked[0]))

    def repeated(self, problem: Problem) -> bool:
        """Say whether loops are compiled for a problem that suits them, maybe beside others."""
        asked = self._asks(problem)
        return asked is not None and compiled_beside(*asked)

    def solve(
        self, problem: Problem, start: Value | None = None, cache: None = None
    ) -> Solution[Value]:
        """Return the minimizer to the tolerance; the solution names the solver that found it."""
        started = time.perf_counter()
        with suppress(SolverError):  # what the loops leave unfinished
            solution = self._by_loops(problem, start)
            if solution.status is Status.SOLVED:
                return solution
        solution = solved_by(problem, self.others, start, self.tolerance)
        return replace(solution, seconds=time.perf_counter() - started)

    def _by_loops(self, problem: Problem, start: Value | None) -> Solution[Value]:
        """Return what the loops find; a `SolverError` leaves the problem to others."""
        return super().solve(problem, start)


@dataclass(frozen=True)
class _OnRamps(_ByLoops[StateFit, Tensor]):
    """A solver of what `Dual` serves, where the activation is a ramp, on a CPU with Numba."""

    kind = StateFit
    tolerance: float | None = None

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for quadratic links, a ramp, a CPU, and Numba."""
        activation = problem.divergence.activation
        if refused := Dual().refusal(problem):
            return refused
        if ramp(activation) is None:
            return f"it needs an activation of at most three straight pieces, not {activation!r}"
        return refusal(problem.pre_activation)

    def measured(self, problem: StateFit, value: Tensor) -> Measure:
        """Return the measure of the problem by a loop, in a quarter of its time."""
        from .measure_rows import of_states

        activation, s = problem.divergence.activation, problem.lam + (problem.smoothness or 0.0)
        line, links = ramp(activation), link_rows(problem)
        assert line is not None  # asked for by obstacle
        u, z = array(problem.pre_activation.double()), array(in_float64(activation, value))

        def work(part: slice) -> tuple[float, float]:
            return of_states(u[part], rows_of(links, part), problem.lam, s, line, z[part])

        return _joined(in_threads(work, *u.shape))


@dataclass(frozen=True)
class CompiledNewton(_OnRamps):
    """Solves a state fit with few quadratic links exactly, samples in vector registers.

    Semismooth Newton steps on the dual of `Dual`, min |y + h|^2 / 2 + Phi*(U - y A'), for an
    activation of at most three straight pieces: the Hessian I + A'DA changes with the few units
    whose piece changes, and is kept in float32, gradients in float64. What is too ill-conditioned
    for that is finished by `Dual`.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import CompiledNewton
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,))
        >>> CompiledNewton().solve(fit).value
        tensor([[1.5000, 0.0000]])
    """

    others = ("dual",)
    name: str = field(default="compiled-newton", init=False)

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for few quadratic links, a ramp, a CPU, and Numba."""
        if refused := super().refusal(problem):
            return refused
        columns = columns_above(problem)
        if columns > _MOST:
            return f"it serves at most {_MOST} columns of all links, not {columns}"
        return None

    def _asks(self, problem: StateFit) -> tuple[Loops, int] | None:
        """Return the loop where columns are fewer than units, and sets of these are many."""
        if columns_above(problem) >= problem.units or _has_few_sets(problem):
            return None
        return Loops(_NEWTON, "below_links"), problem.pre_activation.numel()

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer, not yet to the tolerance where it is too ill-conditioned."""
        from .newton_rows import newton_rows

        line, shared = ramp(problem.divergence.activation), shared_map(problem)
        assert line is not None  # asked for by refusal
        map_ = [x.contiguous().numpy() for x in (shared.map, shared.turn, shared.spectrum)]
        u, links = array(problem.pre_activation.double()), link_rows(problem)
        begin, z = u[:0] if start is None else array(start.double()), np.empty(u.shape)

        def work(part: slice) -> int:
            rows = u[part], rows_of(links, part), problem.lam, begin[part]
            return newton_rows(*rows, *map_, line, tolerance, z[part])

        most = max(in_threads(work, *u.shape))
        return torch.from_numpy(z).to(problem.pre_activation), most


@dataclass(frozen=True)
class SharedHessian:
    """What all samples share, in the forms that loops take.

    Attributes:
        hessian: H, the sum of scale_k W_k W_k', (units, units), float64.
        columns: of all links.
    """

    hessian: Array
    columns: int

    @cached_property
    def panels(self) -> Array:
        """H for sweeps."""
        from .descent_rows import panelled

        return panelled(self.hessian)

    @cached_property
    def inverses(self) -> Array:
        """Those of I + H for every set of free units."""
        from .pivot_rows import inverses

        return inverses(np.eye(len(self.hessian)) + self.hessian)

    @cached_property
    def work(self) -> float:
        """Operations of a sample beyond which others are faster."""
        steepest = float(np.linalg.norm(self.hessian))
        return _SLOW * len(self.hessian) * self.columns * math.log1p(steepest)


@dataclass(frozen=True)
class CompiledDescent(_OnRamps):
    """Solves a state fit below quadratic links by coordinate descent, where steps are few.

    Sixteen samples at a time in vector registers where few sweeps over the units do. Else sample
    by sample: a few sweeps tell the pieces of phi on which the states are, and a Cholesky factor
    of A A' on the free units their minimizer; pieces that it contradicts change, as in block
    principal pivoting (Kim and Park, 2011), fastest where units or free states are few or the start
    is nearly optimal. Some samples tell, and `Dual` or `Proximal` take what they are faster at.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import CompiledDescent
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> fit = StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,))
        >>> CompiledDescent().solve(fit).value
        tensor([[1.5000, 0.0000]])
    """

    others = "dual", "proximal"
    name: str = field(default="compiled-descent", init=False)

    def _asks(self, problem: StateFit) -> tuple[Loops, int] | None:
        """Return the loops where the units' matrix stays in a cache."""
        of_newton = columns_above(problem) < min(problem.units, _MOST + 1)
        theirs = of_newton and not _has_few_sets(problem)
        entries = 0 if theirs else problem.pre_activation.numel()
        return (_DESCENT, entries) if problem.units <= _UNITS else None

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer.

        Raises:
            SolverError: that takes more than it does others.
        """
        from .descent_rows import descend, sweep
        from .pivot_rows import pivot

        line = ramp(problem.divergence.activation)
        assert line is not None  # asked for by refusal
        shared = SharedHessian(hessian_of(problem).numpy(), columns_above(problem))
        rest = rest_of(line, problem.units)
        value = problem.pre_activation.new_empty(problem.samples, problem.units)

        def begun(part: slice) -> tuple[Array, Array]:
            right = right_side(problem, part)
            z = torch.zeros_like(right) if start is None else start[part].double().clone()
            return right.numpy(), z.contiguous().numpy()

        def goal(part: slice) -> Array:
            return (tolerance * row_scales(problem, part).double().unsqueeze(1)).numpy()

        def alone(part: slice, budget: float) -> tuple[float, Array]:
            right, z = begun(part)
            used: float = descend(shared.hessian, right, rest, goal(part), budget * len(z), z)
            return used / len(z), z

        def by_sets(part: slice, _: Any) -> tuple[float, Array]:
            right, z = begun(part)
            most: float = pivot(shared.inverses, right, z)
            return most, z

        def together(part: slice, most: int) -> tuple[int, Array]:
            right, z = begun(part)
            return sweep(shared.hessian, shared.panels, right, line, goal(part), most, z), z

        def all_by(way: Callable[[slice, Any], tuple[float, Array]], most: Any) -> bool:
            def work(mine: slice) -> bool:
                for part in _chunks(mine, problem.units):
                    used, z = way(part, most)
                    if not used < math.inf:
                        return False
                    value[part] = torch.from_numpy(z)
                return True

            return all(in_threads(work, *value.shape))

        if _has_few_sets(problem) and all_by(by_sets, None):
            return value, 1
        if problem.samples <= _SWEPT or problem.units <= _FEW:
            done = all_by(alone, max(_PATIENCE * shared.work, _CALLED / problem.samples))
        else:
            used, _ = alone(_some(problem, _PROBED), shared.work)
            most = int(min(_SWEEP * min(used, shared.work) / problem.units**2, _SWEEPS))
            sweeps, _ = together(_some(problem, _SWEPT), most)
            done = sweeps < math.inf and all_by(together, 2 * most)
            done = done or (used < math.inf and all_by(alone, _PATIENCE * shared.work))
        if not done:
            raise SolverError("descent takes longer than other solvers do.")
        return value, 1


def rest_of(line: LoopMap, units: int) -> Any:
    """Return a ramp as descent in one sample after another takes it."""
    from .descent_rows import Rest

    low, high = (np.full((1, units), end) for end in (line.low, line.high))
    return Rest(low, high, 1.0 / line.alpha, 1.0, 0.0)


def _has_few_sets(problem: StateFit) -> bool:
    """Say whether states are not negative, and samples more than sets of units that are free."""
    few = problem.units <= _FEW and problem.samples >= 1 << problem.units
    return few and ramp(problem.divergence.activation) == _RELU


def _some(problem: StateFit, count: int) -> slice:
    """Return some samples from all over."""
    step = max(1, problem.samples // count)
    return slice(0, min(count * step, problem.samples), step)


def right_side(problem: StateFit, part: slice) -> Tensor:
    """Return b for these samples, U and the sum of (V - c - L C) W' lam_k / lam, float64."""
    links = (link.rows(part).double() for link in problem.links)
    return pulled(problem.lam, problem.pre_activation[part].double(), links) / problem.lam


def _chunks(whole: slice, columns: int) -> Iterator[slice]:
    """Yield parts of some samples, each of as many as a device takes at a time."""
    for part in row_chunks(whole.stop - whole.start, columns, torch.device("cpu")):
        yield slice(whole.start + part.start, min(whole.start + part.stop, whole.stop))


@dataclass(frozen=True)
class CompiledSimplex(_ByLoops[OutputFit, Tensor]):
    """Solves the cross-entropy on the simplex as `SimplexDual` does, samples in vector registers.

    Lifted Neural Networks, appendix A.

    Example:
        >>> import torch
        >>> from liftednet.problems import OutputFit
        >>> from liftednet.activations import SimplexProjection
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SimplexCrossEntropy
        >>> from liftednet.solvers import CompiledSimplex, solve
        >>> y, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> fit = OutputFit(SimplexCrossEntropy(), y, tight(SimplexProjection()), u)
        >>> solve(fit, CompiledSimplex()).value  # 2 z^2 = 1
        tensor([[0.7071, 0.2929]])
    """

    kind = OutputFit
    others = ("simplex-dual",)
    name: str = field(default="compiled-simplex", init=False)

    def refusal(self, problem: OutputFit) -> str | None:
        """Ask for the simplex cross-entropy, a CPU, and Numba."""
        return SimplexDual().refusal(problem) or refusal(problem.pre_activation)

    def _asks(self, problem: OutputFit) -> tuple[Loops, int]:
        u = problem.pre_activation
        return Loops(_SIMPLEX, "on_simplex", u.dtype), u.numel()

    def minimize(
        self, problem: OutputFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer; a start is not used."""
        from .simplex_rows import simplex_rows

        y, u = array(problem.target), array(problem.pre_activation)
        value = torch.empty(u.shape, dtype=problem.target.dtype)
        lam, end, z = u.dtype.type(problem.lam), u.dtype.type(settled(value.dtype)), value.numpy()

        def work(part: slice) -> int:
            return simplex_rows(y[part], u[part], lam, end, z[part])

        return value, max(in_threads(work, *u.shape))

    def measured(self, problem: OutputFit, value: Tensor) -> Measure:
        """Return the measure of the problem by a loop, in a fifth of its time."""
        from .measure_rows import of_simplex

        y, u, z = (array(x.double()) for x in (problem.target, problem.pre_activation, value))

        def work(part: slice) -> tuple[float, float]:
            return of_simplex(y[part], u[part], problem.lam, SLACK, z[part])

        return _joined(in_threads(work, *u.shape))


def _joined(parts: Iterable[tuple[float, float]]) -> Measure:
    """Return the measure of samples whose parts have given objectives and residuals."""
    objectives, residuals = zip(*parts, strict=True)
    return measured(sum(objectives), max(residuals))


@dataclass(frozen=True)
class CompiledRidge(_ByLoops[WeightFit, Weights]):
    """Solves small ridge regressions as `Ridge` does, from data to certificate in one loop.

    Lifted Neural Networks, section 6.1.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import CompiledRidge, solve
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> fit = WeightFit(joint(Identity()), Design(x), x, SquaredFrobenius(1.0))
        >>> solve(fit, CompiledRidge()).value.matrix  # 2 / (2 + 2 rho)
        tensor([[0.5000]])
    """

    kind = WeightFit
    others = ("ridge",)
    name: str = field(default="compiled-ridge", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a small ridge regression with a bias, of plain samples, a CPU, and Numba."""
        other = Ridge().refusal(problem) or refusal(problem.targets)
        if other is not None:
            return other
        design, penalty = problem.design, problem.penalty
        plain = design.bias and design.weights is None and design.shift is None and design.exact
        if not plain or problem.offset is not None or penalty.center is not None:  # type: ignore[attr-defined]
            return "it needs a bias, and no weights of samples, offset or center"
        if processes.size() > 1 or design.features > _INPUTS:
            return f"it needs at most {_INPUTS} inputs, of one process"
        if worth_compiling(*design.inputs.shape):  # nobody is to wait for what torch does in 10 ms
            return f"it needs fewer than {WORTH_COMPILING:,} numbers in X"
        return None

    def _asks(self, problem: WeightFit) -> tuple[Loops, int] | None:
        """Return the loop where its sums, and more where they are kept, take less than calls do."""
        design, units = problem.design, problem.units
        columns, size = design.features + units, design.inputs.numel()
        work = size * columns + design.features**2 * columns
        if work > (_SUMMED if design.has_sums else _SUMS):
            return None
        return Loops(_RIDGE, "ridges", problem.targets.dtype), size

    def _by_loops(self, problem: WeightFit, start: Weights | None) -> Solution[Weights]:
        """Return the exact minimizer; a start is not used."""
        from .ridge_rows import ridge

        started, divergence = time.perf_counter(), problem.divergence
        assert isinstance(divergence, Joint)  # asked for by refusal
        x, v = array(problem.design.inputs), array(problem.targets)
        found, dtype = np.empty((x.shape[1] + 1, v.shape[1]), v.dtype), problem.targets.dtype
        offset = array(divergence.activation.offset(problem.units))
        rho, eps = problem.penalty.curvature / 2, float(np.finfo(v.dtype).eps)
        objective, residual, exact = ridge(
            x, v, offset, problem.lam, divergence.smoothness, rho, eps, found
        )
        if not exact <= _EXACT:
            raise SolverError("rounding keeps the solution from being exact.")
        value = Weights(torch.from_numpy(found[:-1]), torch.from_numpy(found[-1]))
        tolerance, seconds = default_tolerance(dtype), time.perf_counter() - started
        return Solution(
            value, objective, residual, 0, tolerance, Status.STALLED, seconds, self.name
        ).require_usable()


@dataclass(frozen=True)
class CoordinateDescent(_ByLoops[WeightFit, Weights]):
    """Solves a quadratic weight fit with a penalty of entries or of rows, by its Gram matrix.

    With H the Gram matrix about the mean of X and q what it pulls to, every unit is
    min w'Hw / 2 - <q, w> + penalty(w): coordinate descent finds which entries are zero, at an
    end or free, and a Cholesky factor of H there what the free ones are; entries that
    contradict it change (Kim and Park, 2011, for nonnegative ones). Of few units with an L1
    penalty only inputs that are not 0 are in H. Rows of a `GroupLasso` are
    minimized over one after another. What takes too long is left to `ProximalWeights`.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import L1
        >>> from liftednet.solvers import CoordinateDescent, solve
        >>> x, y = torch.eye(2), torch.tensor([[3.0], [0.5]])
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, L1(1.0))
        >>> solve(fit, CoordinateDescent()).value.matrix.flatten()
        tensor([2., 0.])
    """

    kind = WeightFit
    others = ("proximal-weights",)
    tolerance: float | None = None
    name: str = field(default="coordinate-descent", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a quadratic divergence, a penalty of entries or rows, a CPU, and Numba."""
        if not isinstance(problem.divergence, Joint):
            return 'it needs divergence="joint"'
        found = parts_of(problem.penalty, (problem.design.features, problem.units))
        if found is None:
            return f"it needs a penalty of each entry or row by itself, not {problem.penalty!r}"
        if not has_few_inputs(problem, found):
            if problem.design.wide:
                return "it needs as many samples as inputs, or an L1 penalty of few units"
            if problem.design.features > MOST_INPUTS:
                return f"it serves at most {MOST_INPUTS} inputs, not {problem.design.features}"
        return refusal(problem.targets)

    def _asks(self, problem: WeightFit) -> tuple[Loops, int]:
        groups = any(isinstance(part, GroupLasso) for part in problem.penalty.parts)
        loop, call = ("descend_together", "of_groups") if groups else ("descend", "of_entries")
        entries = _FIT + problem.design.features**2 // _QUICK * problem.units
        return Loops((f"descent_rows.{loop}",), call), entries

    def minimize(
        self, problem: WeightFit, start: Weights | None, cache: None, tolerance: float
    ) -> tuple[Weights, int]:
        """Return the minimizer.

        Raises:
            SolverError: that takes more than it does others.
        """
        from .descent_rows import descend_together

        found = parts_of(problem.penalty, (problem.design.features, problem.units))
        assert found is not None  # asked for by refusal
        if has_few_inputs(problem, found):
            return by_few_inputs(problem, found, start, 1e-3 * tolerance), 1
        design, asked = problem.design.centered, problem.asked  # by one pass with the Gram matrix
        (gram, mean), lam = design.about_mean, problem.lam
        hessian = problem.curvature * gram
        right = lam * (asked if mean is None else asked[:-1] - mean.outer(asked[-1]))
        right = right if found.pull is None else right + found.pull
        size = max(float(right.abs().max()), found.kink, found.group)
        goal, whole, b = max(ROUNDING, 1e-3 * tolerance) * size, array(hessian), array(right.T)
        begin = problem.zeros() if start is None else start
        z = array(begin.matrix.double().T).copy()
        if found.group:
            square, group = float(found.square), float(found.group)
            if math.isinf(descend_together(whole, b, square, group, goal, _PASSES, z)):
                raise SolverError("passes take longer than other solvers do.")
        else:
            minimize_entries(found, whole, b, goal, z, LONGEST)
        matrix = torch.from_numpy(z).T
        if mean is not None:
            bias = lam * asked[-1] / (design.mass * problem.curvature) - mean @ matrix
            matrix = torch.cat([matrix, bias.unsqueeze(0)])
        return design.split(matrix), 1

    def measured(self, problem: WeightFit, value: Weights) -> Measure:
        """Return the measure of the problem, by passes over the samples where these are enough."""
        found = parts_of(problem.penalty, (problem.design.features, problem.units))
        by_rows = found is not None and has_few_inputs(problem, found)
        return (problem.by_rows if by_rows else problem).measure(value)


# What has loops compiled calls them with numbers of the types that they take.


def below_links(_: str) -> None:
    """Call the loop of state fits with few columns."""
    CompiledNewton().solve(_below())


def _below() -> StateFit:
    one, joint = torch.ones(1, 1, dtype=torch.float64), Joint(ReLU())
    return StateFit(joint, one, (Link(joint, one, one[0], one),))


def on_simplex(kind: str) -> None:
    """Call the loop of output fits on the simplex."""
    one = torch.ones(1, 1, dtype=getattr(torch, kind))
    fit = OutputFit(SimplexCrossEntropy(), one, Tight(SimplexProjection()), one)
    CompiledSimplex().solve(fit)


def ridges(kind: str) -> None:
    """Call the loop of small ridge regressions."""
    one = torch.ones(2, 1, dtype=getattr(torch, kind))
    CompiledRidge().solve(WeightFit(Joint(ReLU()), Design(one), one, SquaredFrobenius(1.0)))


def of_entries(*_: Any) -> None:
    """Call the loop of weight fits with penalties of entries."""
    from .descent_rows import Rest, descend

    one = np.ones((1, 1))
    descend(one, one, Rest(one, one, 1.0, 1.0, 1.0), one, 1.0, one)


def sweeps(*_: Any) -> None:
    """Call the loops of state fits by descent."""
    from .descent_rows import panelled, sweep
    from .pivot_rows import inverses, pivot

    of_entries()
    pivot(inverses(np.ones((1, 1))), np.ones((1, 1)), np.ones((1, 1)))
    one = np.ones((1, 1))
    sweep(one, panelled(one), one, _RELU, one, 1, one)
    CompiledDescent().measured(_below(), torch.ones(1, 1, dtype=torch.float64))


def of_groups(*_: Any) -> None:
    """Call the loop of weight fits with penalties of rows."""
    from .descent_rows import descend_together

    one = np.ones((1, 1))
    descend_together(one, one, 1.0, 1.0, 1.0, 1, one)
