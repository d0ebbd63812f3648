"""Drawn subproblems of every kind: what is certified must be right, by CVXPY."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from liftednet import activations, penalties, problems
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import DeclarationError, SolverError
from liftednet.losses import CrossEntropy, OutputLoss, SimplexCrossEntropy, SquaredError
from liftednet.penalties import L1, Nonnegative, Penalty, SquaredFrobenius
from liftednet.problems import Link, StatesOverTime, WeightFit
from liftednet.problems.priors import BoxedStates
from liftednet.solution import Status
from liftednet.solvers import Reference, solve
from tests.draws import normal
from tests.torture import statements
from tests.torture.report import Finding

ACTIVATIONS: tuple[Any, ...] = (
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 1.0), activations.Sigmoid(), activations.Tanh(),
    activations.Softplus(), activations.ELU(), activations.Arctan(), activations.Sine(),
)  # fmt: skip
SOFTMAX = CrossEntropy().divergence
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the objective's size
PROMISE = "a SOLVED objective is within 1e-6 (float32: 1e-3) of CVXPY's, relative to its size"


@dataclass(frozen=True)
class Drawn:
    """A problem, and a value that tells how large its objective is.

    Attributes:
        problem: for `solve`.
        rest: a feasible value, far from the solution.
        dtype: of the data.
    """

    problem: Any
    rest: Any
    dtype: torch.dtype

    def judge(self, value: Any) -> tuple[float, float, float]:
        """Return the objective at a value, the least that CVXPY finds, and the size of both.

        What CVXPY may be off by itself counts for the least; NaN where it is sure of nothing,
        but for states over time, which SciPy may then bring lower.
        """
        found, rest = (_exact(self.problem, x) for x in (value, self.rest))
        judged = statements.least(self.problem)
        if judged is not None:
            least = judged[0] + math.copysign(
                min(judged[1], abs(found - judged[0])), found - judged[0]
            )
        else:  # no formula of cones, or none that CLARABEL is sure of
            try:
                other = Reference().solve(self.problem)
                sure = other.status is Status.SOLVED or _within(self.problem, other.value)
                least = other.objective if sure else math.nan
            except (DeclarationError, SolverError):
                over_time = isinstance(self.problem, StatesOverTime)
                least = min(found, _descended(self.problem)) if over_time else math.nan
        return found, least, abs(least) + (abs(rest) if math.isfinite(rest) else 0)


def _descended(problem: StatesOverTime) -> float:
    """Return the least that SciPy finds in v, Z = phi(v): CVXPY has no words for most joint D."""
    exact, shape = problem.double(), problem.drive.shape

    def valued(v: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(v).view(shape).requires_grad_()
        states = problem.divergence.activation.forward(at)
        total = exact.values(states.where(exact.valid.unsqueeze(-1), 0.0)).sum()
        (slope,) = torch.autograd.grad(total, at)
        return float(total), slope.nan_to_num(0.0).numpy().ravel()

    found = minimize(valued, np.zeros(shape.numel()), jac=True, method="L-BFGS-B",
                     options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-9})  # fmt: skip
    return float(found.fun)


def _within(problem: Any, value: Any) -> bool:
    """Say whether a value is one, so that its objective is no less than the least."""
    if not isinstance(problem, WeightFit):
        return True
    penalty = problem.penalty
    return penalty.violation(value.matrix.double()) <= 1e-9 * min(penalty.reach, 1.0)


def _exact(problem: Any, value: Any) -> float:
    """Return the objective, of targets that lie in their domain in float64."""
    if isinstance(problem, WeightFit):
        design = replace(problem.design, inputs=problem.design.inputs.double())
        targets = problem.divergence.nearest_target(problem.targets.double())
        offset = None if problem.offset is None else problem.offset.double()
        problem = replace(problem, design=design, targets=targets, offset=offset)
    return float(problem.measure(value).objective)


class Draw:
    """Numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = self.pick(torch.float64, torch.float32)

    def pick(self, *choices: Any) -> Any:
        """Return one of some choices."""
        return choices[int(torch.randint(len(choices), (), generator=self.generator))]

    def normal(self, *shape: int) -> Tensor:
        """Return normal numbers of the drawn type."""
        return normal(*shape, seed=self.generator).to(self.dtype)

    def lam(self) -> float:
        """Return a weight from 1e-3 to 1e3."""
        return float(10 ** (6 * torch.rand((), generator=self.generator).double() - 3))

    def divergence(self) -> Divergence:
        """Return a divergence, joint or tight."""
        activation, kind = self.pick(*ACTIVATIONS), self.pick(joint, tight)
        return kind(activation)

    def above(self) -> Divergence:
        """Return one for a link, with the softmax among them."""
        return self.pick(self.divergence(), SOFTMAX)

    def target(self, divergence: Divergence, rows: int, columns: int) -> Tensor:
        """Return states of a divergence, at their limits now and then."""
        return divergence.activation.forward(self.pick(1.0, 3.0, 30.0) * self.normal(rows, columns))

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Return a matrix: plain, ill-conditioned, of rank one, or large or small."""
        kinds = "plain", "plain", "conditioned", "rank one", "scaled"
        found, kind = self._made(rows, columns, *kinds)
        return self.pick(1e-3, 10.0, 100.0) * found if kind == "scaled" else found

    def inputs(self, rows: int, columns: int) -> Tensor:
        """Return inputs: in units from 1e3 to 1e-3, of lower rank but for rounding, with a mean."""
        found, _ = self._made(rows, columns, "plain", "units", "conditioned", "rank one", "twice")
        return found + self.pick(0.0, 0.0, 0.0, 1.0, 100.0, 1e4)

    def _made(self, rows: int, columns: int, *kinds: str) -> tuple[Tensor, str]:
        plain, kind = self.normal(rows, columns), self.pick(*kinds)
        if kind == "rank one":
            plain = plain[:, :1] * plain[:1]
        if kind == "twice":
            plain[:, -1] = plain[:, 0]
        first, last = {"units": (3, -3), "conditioned": (0, -4)}.get(kind, (0, 0))
        return plain * torch.logspace(first, last, columns).to(plain), kind


def _links(draw: Draw, samples: int, units: int) -> tuple[Link, ...]:
    made = []
    for _ in range(draw.pick(0, 1, 1, 2)):
        divergence = draw.above()
        columns = draw.pick(2, 4) if divergence is SOFTMAX else draw.pick(1, 2, 4)
        weight = draw.matrix(units, columns)
        offset = draw.normal(*draw.pick((columns,), (samples, columns)))
        target = draw.target(divergence, samples, columns)
        made.append(Link(divergence, weight, offset, target, draw.lam()))
    return tuple(made)


def _states(seed: int, block: bool = False) -> Drawn:
    draw = Draw(seed)
    samples, units = draw.pick(1, 2, 3), draw.pick(1, 2, 5)
    divergence = draw.divergence()
    u = draw.pick(1.0, 3.0, 100.0) * draw.normal(samples, units)
    links, lam, bounds = _links(draw, samples, units), draw.lam(), None
    if block:
        prior = BoxedStates(divergence, lam, (samples, units), None, u)
        problem: Any = problems.BlockFit(prior, lam * u, links)
    else:
        free = (activations.Identity, activations.ReLU, activations.LeakyReLU)
        if isinstance(divergence.activation, free) and draw.pick(True, False):
            bounds = (-0.5, 1.5)
        problem = problems.StateFit(divergence, u, links, lam, bounds)
    rest = divergence.activation.forward(u.clamp(-3, 3))
    return Drawn(problem, rest if bounds is None else rest.clamp(*bounds), draw.dtype)


def _outputs(seed: int) -> Drawn:
    draw = Draw(seed)
    samples, units, lam = draw.pick(1, 3), draw.pick(1, 2, 5), draw.lam()
    u = draw.pick(1.0, 3.0, 1e3) * draw.normal(samples, units)
    loss: OutputLoss = SquaredError()
    if draw.pick(True, False):
        loss, divergence = SimplexCrossEntropy(), joint(activations.SimplexProjection())
        y = (draw.pick(1.0, 5.0, 60.0) * draw.normal(*u.shape)).softmax(-1)
        rest = torch.full_like(u, 1 / units)
    else:
        divergence = draw.divergence()
        y = draw.pick(1.0, 10.0) * draw.normal(samples, units)
        rest = divergence.activation.forward(u.clamp(-3, 3))
    return Drawn(problems.OutputFit(loss, y, divergence, u, lam), rest, draw.dtype)


def _penalty(draw: Draw) -> Penalty:
    rho = draw.lam()
    ridge = SquaredFrobenius(rho)
    return draw.pick(ridge, ridge, L1(rho), Nonnegative(rho))


def _member(draw: Draw, inputs: int) -> Penalty:
    """Return one penalty, its bound from 1e-6 to 1e3."""
    rho, bound = draw.lam(), float(10 ** (9 * torch.rand((), generator=draw.generator) - 6))
    some = torch.randint(-1, 2, (inputs, 1), generator=draw.generator)
    row = draw.normal(1, inputs)
    return draw.pick(
        SquaredFrobenius(rho), L1(rho), penalties.GroupLasso(rho), Nonnegative(rho), Nonnegative(),
        penalties.RowNorm(bound), penalties.ColumnNorm(bound), penalties.SpectralNorm(bound),
        penalties.SpectralNorm(bound), penalties.Signs(some.to(row)),
        penalties.FixedZeros(some == 1),
    )  # fmt: skip


def _penalties(draw: Draw, inputs: int) -> Penalty:
    """Return one penalty of all, or several that 0 meets."""
    if draw.pick(True, False):
        return _member(draw, inputs)
    chosen: list[Penalty] = []
    while len(chosen) < draw.pick(2, 2, 3):
        chosen.append(_member(draw, inputs))
    return penalties.Sum(tuple(chosen))


def _weights(seed: int, penalized: bool = False) -> Drawn:
    draw, more = Draw(seed), int(penalized)
    samples, inputs = draw.pick(2, 6, 12, *more * [30]), draw.pick(1, 2, 4, *more * [8])
    divergence = draw.above()
    units = 2 if divergence is SOFTMAX else draw.pick(1, 2, *more * [4])
    if penalized:
        x, bias, lam = draw.inputs(samples, inputs), draw.pick(True, False), draw.lam()
    else:
        x = draw.matrix(samples, inputs) + draw.pick(0.0, 0.0, 1.0, 100.0, 1e4)
        bias, lam = draw.pick(True, True, False), draw.lam()
    penalty = _penalties(draw, inputs) if penalized else _penalty(draw)
    target = draw.target(divergence, samples, units)
    counts = draw.pick(None, *more * [None], draw.normal(samples).abs())
    offset = draw.pick(None, draw.normal(samples, units))
    problem = WeightFit(divergence, problems.Design(x, bias, counts), target, penalty, lam, offset)
    rest = problem.zeros()
    rest = replace(rest, matrix=penalty.project(rest.matrix))
    return Drawn(problem, rest, draw.dtype)


def _over_time(seed: int) -> Drawn:
    draw = Draw(seed)
    steps, samples, units = draw.pick(2, 5, 10, 20), 2, draw.pick(1, 1, 2)
    activation = draw.pick(*ACTIVATIONS)
    cross, lam = draw.pick(True, False), draw.lam()
    loss = CrossEntropy() if cross else SquaredError()
    recurrent = draw.normal(units, units)
    radius = float(torch.linalg.eigvals(recurrent.double()).abs().max())
    recurrent = recurrent * (3 * float(torch.rand((), generator=draw.generator)) / radius)
    target = loss.divergence.activation.forward(3 * draw.normal(steps * samples, 2))
    hard = torch.eye(2, dtype=draw.dtype)[target.argmax(-1)]
    target = hard if cross and draw.pick(True, False) else target
    target, drive = target.reshape(steps, samples, 2), draw.normal(steps, samples, units)
    lengths = torch.tensor([steps, draw.pick(1, steps)])
    counted = torch.arange(steps)[:, None] < lengths
    weight, offset = draw.normal(units, 2), draw.normal(2)
    link = problems.TimeLink(loss.divergence, weight, offset, target, counted)
    problem = StatesOverTime(joint(activation), drive, recurrent, (link,), lengths, lam)
    rest = activation.forward(torch.zeros_like(drive)).where(counted.unsqueeze(-1), 0.0)
    return Drawn(problem, rest, draw.dtype)


KINDS: dict[str, tuple[Callable[[int], Drawn], int]] = {
    "state fits": (_states, 3_000),
    "weight fits": (_weights, 2_500),
    "penalized weight fits": (partial(_weights, penalized=True), 3_000),
    "states over time, expanding up to 3": (_over_time, 2_000),
    "output fits": (_outputs, 1_500),
    "block fits": (partial(_states, block=True), 500),
}


def verdict(drawn: Drawn) -> tuple[str, str]:
    """Return the status of a case and what is wrong with it, "" where nothing is."""
    try:
        solution = solve(drawn.problem)
    except SolverError:
        return "refused", ""
    found, least, size = drawn.judge(solution.value)
    excess = found - least
    if solution.status is not Status.SOLVED:
        off = " more than 1 % off" if excess > 0.01 * size else ""
        return solution.status.name + off, ""
    if math.isnan(least):
        return "SOLVED, not judged", ""
    if excess <= ALLOWED[drawn.dtype] * size:
        return "SOLVED", ""
    return "SOLVED", f"{solution.solver}: {found:.10g} against {least:.10g}"


def findings(share: float, first: int = 0) -> Iterator[Finding]:
    """Yield a finding for each kind, from a share of its cases, drawn from a first seed on."""
    for what, (make, most) in KINDS.items():
        drawn = max(1, round(share * most))
        statuses: dict[str, int] = {}
        wrong: list[str] = []
        for seed in range(first, first + drawn):
            status, fault = verdict(make(seed))
            statuses[status] = statuses.get(status, 0) + 1
            if fault:
                wrong.append(f"seed {seed}: {fault}")
        solved = statuses.pop("SOLVED", 0)
        others = ", ".join(f"{count} {name}" for name, count in sorted(statuses.items()))
        named = f"{what} ({solved} SOLVED{', ' + others if others else ''})"
        yield Finding(named, drawn, len(wrong), PROMISE, wrong[0] if wrong else "")
