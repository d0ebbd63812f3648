"""Drawn subproblems of every kind: what is certified must be right, by a judge of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet import activations
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import SolverError
from liftednet.losses import CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.penalties import L1, Nonnegative, Penalty, SquaredFrobenius
from liftednet.problems import (
    BlockFit,
    Design,
    Link,
    OutputFit,
    SlopeFit,
    StateFit,
    StatesOverTime,
    TimeLink,
    WeightFit,
)
from liftednet.problems.priors import BoxedStates
from liftednet.solution import Status
from liftednet.solvers import solve
from tests.torture.judge import MAPS, Array, Convex, Term
from tests.torture.report import Finding

ACTIVATIONS: dict[str, Any] = {
    "Identity": activations.Identity(),
    "ReLU": activations.ReLU(),
    "LeakyReLU": activations.LeakyReLU(0.2),
    "Clipped": activations.Clipped(-1.0, 1.0),
    "Sigmoid": activations.Sigmoid(),
    "Tanh": activations.Tanh(),
    "Softplus": activations.Softplus(),
    "ELU": activations.ELU(),
    "Arctan": activations.Arctan(),
    "Sine": activations.Sine(),
}
SOFTMAX = ("Softmax", False, CrossEntropy().divergence)
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the objective's size
PROMISE = "a SOLVED objective is within 1e-6 (float32: 1e-3) of the judge's, relative to its size"


@dataclass(frozen=True)
class Drawn:
    """A problem, how its solution is judged, and how its size is measured.

    Attributes:
        problem: for `solve`.
        judge: returns the objective at a value, the judge's, and the size of both.
        dtype: of the data.
    """

    problem: Any
    judge: Callable[[Any], tuple[float, float, float]]
    dtype: torch.dtype


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
        normal = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return normal.to(self.dtype)

    def lam(self) -> float:
        """Return a weight from 1e-3 to 1e3."""
        return float(10 ** (6 * torch.rand((), generator=self.generator).double() - 3))

    def divergence(self) -> tuple[str, bool, Divergence]:
        """Return the name of an activation, whether it is joint, and the divergence."""
        name, is_joint = self.pick(*ACTIVATIONS), self.pick(True, False)
        is_joint = is_joint or name == "Identity"
        return name, is_joint, (joint if is_joint else tight)(ACTIVATIONS[name])

    def above(self) -> tuple[str, bool, Divergence]:
        """Return the same for a link, with the softmax among them."""
        above: tuple[str, bool, Divergence] = self.pick(self.divergence(), SOFTMAX)
        return above

    def target(self, divergence: Divergence, rows: int, columns: int) -> Tensor:
        """Return states of a divergence, at their limits now and then."""
        u = self.pick(1.0, 3.0, 30.0) * self.normal(rows, columns)
        return divergence.activation.forward(u)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Return a matrix: plain, ill-conditioned, of rank one, or large or small."""
        plain = self.normal(rows, columns)
        kind = self.pick("plain", "plain", "conditioned", "rank one", "scaled")
        if kind == "conditioned":
            plain = plain * torch.logspace(0, -4, columns).to(plain)
        if kind == "rank one":
            plain = plain[:, :1] * plain[:1]
        return self.pick(1e-3, 10.0, 100.0) * plain if kind == "scaled" else plain


def exact(value: Tensor) -> Array:
    """Return a tensor as long double."""
    return value.detach().double().numpy().astype(np.longdouble)


def judged(parts: list[tuple[Convex, Array, Array]]) -> tuple[float, float, float]:
    """Return objectives of problems side by side: at values, the judge's, and their size."""
    found = least = size = np.longdouble(0)
    for problem, value, other in parts:
        here, best = problem.improved(value)
        rest, from_rest = problem.improved(other)
        found, least = found + here, least + min(best, from_rest)
        size = size + abs(best) + (abs(rest) if np.isfinite(rest) else 0)
    return float(found), float(least), float(size)


def _inside(name: str, u: Array) -> Array:
    return MAPS[name].phi(u)


def _links(draw: Draw, samples: int, units: int) -> list[tuple[Link, tuple[str, bool]]]:
    made = []
    for _ in range(draw.pick(0, 1, 1, 2)):
        name, is_joint, divergence = draw.above()
        columns = draw.pick(1, 2, 4) if name != "Softmax" else draw.pick(2, 4)
        weight = draw.matrix(units, columns)
        offset = draw.normal(*draw.pick((columns,), (samples, columns)))
        target = draw.target(divergence, samples, columns)
        made.append((Link(divergence, weight, offset, target, draw.lam()), (name, is_joint)))
    return made


def _row_terms(links: list[tuple[Link, tuple[str, bool]]], row: int) -> list[Term]:
    terms = []
    for link, (name, is_joint) in links:
        offset = link.offset if link.offset.ndim == 1 else link.offset[row]
        matrix, target = exact(link.weight).T, exact(link.target[row])
        if name == "Softmax":
            target = target / target.sum()
        size = len(target)
        terms.append(Term(name, is_joint, matrix, exact(offset), target, link.lam, size))
    return terms


def _states(seed: int, block: bool = False) -> Drawn:
    draw = Draw(seed)
    samples, units = draw.pick(1, 2, 3), draw.pick(1, 2, 5)
    name, _, divergence = draw.divergence()
    u = draw.pick(1.0, 3.0, 100.0) * draw.normal(samples, units)
    links, lam = _links(draw, samples, units), draw.lam()
    given, bounds = tuple(link for link, _ in links), None
    lower, upper = MAPS[name].lower, MAPS[name].upper
    if block:
        prior = BoxedStates(divergence, lam, (samples, units), None, u)
        problem: Any = BlockFit(prior, lam * u, given)
    else:
        if name in ("Identity", "ReLU", "LeakyReLU") and draw.pick(True, False):
            bounds = (-0.5, 1.5)
            lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
        problem = StateFit(divergence, u, given, lam, bounds)

    def judge(value: Tensor) -> tuple[float, float, float]:
        parts = []
        for row in range(samples):
            weight, pull = np.full(units, lam, np.longdouble), lam * exact(u[row])
            own = Convex(units, _row_terms(links, row), name, weight, None, pull, lower, upper)
            parts.append((own, exact(value[row]), _inside(name, exact(u[row]).clip(-3, 3))))
        return judged(parts)

    return Drawn(problem, judge, draw.dtype)


def _blocks(seed: int) -> Drawn:
    return _states(seed, block=True)


def _outputs(seed: int) -> Drawn:
    draw = Draw(seed)
    samples, units, lam = draw.pick(1, 3), draw.pick(1, 2, 5), draw.lam()
    u = draw.pick(1.0, 3.0, 1e3) * draw.normal(samples, units)
    if draw.pick(True, False):
        return _simplex(draw, u, lam)
    name, _, divergence = draw.divergence()
    y = draw.pick(1.0, 10.0) * draw.normal(samples, units)
    problem = OutputFit(SquaredError(), y, divergence, u, lam)

    def judge(value: Tensor) -> tuple[float, float, float]:
        size, own_y = u.numel(), exact(y).ravel()
        weight = np.full(size, lam, np.longdouble)
        loss = Term("Identity", True, np.eye(size, dtype=np.longdouble), 0 * own_y, own_y, 1.0)
        own = Convex(
            size, [loss], name, weight, None, lam * exact(u).ravel(),
            MAPS[name].lower, MAPS[name].upper,
        )  # fmt: skip
        other = _inside(name, exact(u).ravel().clip(-3, 3))
        return judged([(own, exact(value).ravel(), other)])

    return Drawn(problem, judge, draw.dtype)


def _simplex(draw: Draw, u: Tensor, lam: float) -> Drawn:
    y = (draw.pick(1.0, 5.0, 60.0) * draw.normal(*u.shape)).softmax(-1)
    divergence = joint(activations.SimplexProjection())
    problem = OutputFit(SimplexCrossEntropy(), y, divergence, u, lam)

    def judge(value: Tensor) -> tuple[float, float, float]:
        """Compare with the root of sum z(nu) = 1 by bisection."""
        found = least = size = np.longdouble(0)
        for z, label, pre in zip(exact(value), exact(y), exact(u), strict=True):
            a = label / lam
            low, high = -pre.max() - a.sum() * len(a) - 2, 2 - pre.min()

            def states(nu: Any, a: Array = a, pre: Array = pre) -> Array:
                s = pre + nu
                root = np.sqrt(s * s + 4 * a)
                shrunk = np.divide(2 * a, root - s, out=np.zeros_like(a), where=(s < 0) & (a > 0))
                return np.asarray(np.where(s >= 0, (s + root) / 2, shrunk))

            for _ in range(300):
                middle = (low + high) / 2
                low, high = (low, middle) if states(middle).sum() > 1 else (middle, high)
            best = states((low + high) / 2)

            def objective(z: Array, label: Array = label, pre: Array = pre) -> Any:
                with np.errstate(divide="ignore"):
                    loss = -(label[label > 0] * np.log(z[label > 0])).sum()
                return loss + lam * ((z * z).sum() / 2 - pre @ z)

            found, least = found + objective(z), least + objective(best / best.sum())
            size = size + abs(objective(best)) + lam * abs(pre).max()
        return float(found), float(least), float(size)

    return Drawn(problem, judge, draw.dtype)


def _penalty(draw: Draw) -> Penalty:
    rho = draw.lam()
    ridge = SquaredFrobenius(rho)
    penalty: Penalty = draw.pick(ridge, ridge, L1(rho), Nonnegative(rho))
    return penalty


def _weights(seed: int) -> Drawn:
    draw = Draw(seed)
    samples, inputs = draw.pick(2, 6, 12), draw.pick(1, 2, 4)
    name, is_joint, divergence = draw.above()
    units = 2 if name == "Softmax" else draw.pick(1, 2)
    x = draw.matrix(samples, inputs) + draw.pick(0.0, 0.0, 1.0, 100.0, 1e4)
    bias, lam, penalty = draw.pick(True, True, False), draw.lam(), _penalty(draw)
    target = draw.target(divergence, samples, units)
    counts = draw.pick(None, draw.normal(samples).abs())
    offset = draw.pick(None, draw.normal(samples, units))
    problem = WeightFit(divergence, Design(x, bias, counts), target, penalty, lam, offset)

    def judge(value: Any) -> tuple[float, float, float]:
        center = exact(x).mean(0) if bias else np.zeros(inputs, np.longdouble)
        convex = _weight_statement(
            exact(x) - center, bias, counts, name, is_joint, exact(target), offset, lam, penalty
        )
        weight = exact(value.matrix)
        start = [weight.ravel(), np.zeros(0)]
        if bias:
            start[1] = exact(value.bias) + center @ weight
        if isinstance(penalty, L1):
            start[0] = np.concatenate([weight.ravel().clip(0), (-weight.ravel()).clip(0)])
        begin = np.concatenate(start)
        return judged([(convex, begin, np.zeros_like(begin))])

    return Drawn(problem, judge, draw.dtype)


def _weight_statement(
    x: Array, bias: bool, counts: Tensor | None, name: str, is_joint: bool, target: Array,
    offset: Tensor | None, lam: float, penalty: Any,
) -> Convex:  # fmt: skip
    """Return the fit of W (row by row) and b; for L1 W is the difference of two parts."""
    samples, inputs = x.shape
    units = target.shape[1]
    if name == "Softmax":
        target = target / target.sum(1, keepdims=True)
    eye = np.eye(units, dtype=np.longdouble)
    of_weight = np.kron(x, eye)
    columns = [of_weight, -of_weight] if isinstance(penalty, L1) else [of_weight]
    if bias:
        columns.append(np.kron(np.ones((samples, 1), np.longdouble), eye))
    matrix = np.concatenate(columns, 1)
    shift = np.zeros(samples * units, np.longdouble) if offset is None else exact(offset).ravel()
    weights = None if counts is None else np.repeat(exact(counts), units)
    size, split = matrix.shape[1], inputs * units
    term = Term(name, is_joint, matrix, shift, target.ravel(), lam, units, weights)
    linear, quadratic = np.zeros(size, np.longdouble), np.zeros((size, size), np.longdouble)
    lower = np.full(size, -np.inf)
    if isinstance(penalty, L1):
        linear[: 2 * split], lower[: 2 * split] = -penalty.rho, 0.0
    else:
        quadratic[:split, :split] = 2 * penalty.rho * np.eye(split)
    if isinstance(penalty, Nonnegative):
        lower[:split] = 0.0
    return Convex(size, [term], None, None, quadratic, linear, lower)


def _over_time(seed: int) -> Drawn:
    draw = Draw(seed)
    steps, samples, units = draw.pick(2, 5, 10, 20), 2, draw.pick(1, 1, 2)
    name = draw.pick(*ACTIVATIONS)
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
    link = TimeLink(loss.divergence, weight, offset, target, counted)
    problem = StatesOverTime(joint(ACTIVATIONS[name]), drive, recurrent, (link,), lengths, lam)

    def judge(value: Tensor) -> tuple[float, float, float]:
        parts = []
        for sample, length in enumerate(lengths.tolist()):
            size = length * units
            after = np.kron(np.eye(length, k=-1, dtype=np.longdouble), exact(recurrent).T)
            flat = exact(drive[:length, sample]).ravel()
            zero = np.zeros(size, np.longdouble)
            own = Term(name, True, after, flat, zero, lam)
            above = Term(
                "Softmax" if cross else "Identity", not cross,
                np.kron(np.eye(length, dtype=np.longdouble), exact(weight).T),
                np.tile(exact(offset), length), _probable(exact(target[:length, sample]), cross),
                1.0, 2,
            )  # fmt: skip
            convex = Convex(
                size, [own, above], name, np.full(size, lam, np.longdouble),
                -lam * (after + after.T), lam * flat, MAPS[name].lower, MAPS[name].upper,
            )  # fmt: skip
            rest = _inside(name, zero)
            parts.append((convex, exact(value[:length, sample]).ravel(), rest))
        return judged(parts)

    return Drawn(problem, judge, draw.dtype)


def _probable(target: Array, cross: bool) -> Array:
    return (target / target.sum(1, keepdims=True) if cross else target).ravel()


def _slopes(seed: int) -> Drawn:
    draw = Draw(seed)
    scale = draw.pick(1e-6, 1.0, 1e6)
    states, u = scale * draw.normal(4, 3), draw.pick(1e-6, 1.0, 1e6) * draw.normal(4, 3)
    lam = draw.lam()
    problem = SlopeFit(states, u, lam)

    def judge(value: float) -> tuple[float, float, float]:
        s, t = ((exact(part).clip(max=0) ** 2).sum() for part in (states, u))
        best = np.clip(np.sqrt(s / t) if t > 0 else np.longdouble(1), 1e-4, 1)
        found, least = (lam / 2 * (s / a + a * t) for a in (np.longdouble(value), best))
        return float(found), float(least), float(least)

    return Drawn(problem, judge, draw.dtype)


KINDS: dict[str, tuple[Callable[[int], Drawn], int]] = {
    "state fits": (_states, 3_000),
    "weight fits": (_weights, 2_500),
    "states over time, expanding up to 3": (_over_time, 2_000),
    "output fits": (_outputs, 1_500),
    "block fits": (_blocks, 500),
    "slope fits": (_slopes, 500),
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
