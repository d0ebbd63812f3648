"""Weight fits with a tight divergence: generalized linear models by conjugate gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednet import processes
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import WeightFit, Weights
from liftednet.problems.weight_fit import LEAST_CURVATURE
from liftednet.solution import Solution, Status

from .base import Solver
from .conjugate import Point, advance, downhill_point
from .newton_weights import dense_newton, jittered_cholesky

_EARLY = 5  # steps after which the curvature is measured anew: by then it is nearly the last one
_RENEWAL = 100  # and again; to restart the directions more often costs more than it brings
_PATIENCE = 100  # steps in which the violation must fall
_DRIFT = 1e-3  # fall of the violation at which the anchor follows
_HALT = 8  # steps without a fall after which it follows, too
_ROUNDING = 1e-6  # of a unit's gradient at the anchor, which products in float32 leave of it
_NOISE = 1e-3  # of eps |X'V|: gradients below it are noise
_ROWS_PER_FEATURE = 8  # samples in the system; more did not save steps on real data
_SIGNS = 10_007  # samples after which the random signs of a probe come again
_PROBE = 0.1  # length of the probe, in units of the pre-activation


@dataclass(frozen=True)
class GeneralizedLinear(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with a smooth divergence by preconditioned conjugate gradients.

    The preconditioner is a ridge system with the samples weighted by their curvature, renewed a
    few times; the line search moves along the pre-activations, so that a step costs two products
    with X. Units that the activation does not couple are searched each by itself. Small fits that
    resist are finished by Newton steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.divergences import tight
        >>> from liftednet.activations import Sigmoid
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import GeneralizedLinear, solve
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.2], [0.8]])
        >>> fit = WeightFit(tight(Sigmoid()), Design(x), y, SquaredFrobenius(1e-9))
        >>> solve(fit, GeneralizedLinear()).value.matrix  # log(0.8 / 0.2)
        tensor([[1.3863]])
    """

    tolerance: float | None = None
    max_iterations: int = 2_000
    kind = WeightFit
    name: str = field(default="generalized-linear", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a Lipschitz constant and a squared Frobenius penalty."""
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not isinstance(problem.penalty, SquaredFrobenius):
            return "it needs the penalty SquaredFrobenius"
        return None

    def solve(
        self, problem: WeightFit, start: Weights | None = None, cache: None = None
    ) -> Solution[Weights]:
        """Return the solution; Newton steps go on where the descent stalls.

        Where phi is saturated gradient and curvature vanish together, and what is left of the
        objective may be more than the tolerance of it.

        Raises:
            SolverError: nothing usable was reached.
        """
        found = super().solve(problem, start, cache)
        if found.status is not Status.STALLED or not problem.small:
            return found
        started, first = time.perf_counter() - found.seconds, start or problem.zeros()
        ran_away = found.objective > problem.measure(first).objective
        descent = weight_descent(problem, first if ran_away else found.value)
        at, more = dense_newton(descent, descent.starting_point(), found.tolerance)
        value, steps = problem.design.centered.split(at.y), found.iterations + more
        further = self.judged(problem, value, steps, started, found.tolerance)
        return further if further.residual < found.residual else found

    def minimize(
        self, problem: WeightFit, start: Weights | None, cache: None, tolerance: float
    ) -> tuple[Weights, int]:
        """Return the minimizer to the tolerance."""
        descent = weight_descent(problem, start or problem.zeros())
        at, steps = self._descend(descent, tolerance * descent.scale)
        return problem.design.centered.split(at.y), steps

    def _descend(self, descent: WeightDescent, goal: float) -> tuple[Point, int]:
        """Return where the descent ends, and its steps.

        The violation counts as met where the anchor is; now and then the curvature is measured
        anew.
        """
        at, anchored, steps = descent.starting_point(), True, 0
        best, since, last = torch.inf, 0, 0.0
        while steps < self.max_iterations:
            share = float(descent.violation(at.gradient) / goal)
            halted = (steps - since) % _HALT == _HALT - 1
            if anchored:
                last = share
                if share <= 1:
                    return at, steps
            elif halted or share <= max(1, _DRIFT * last):
                descent, at = descent.anchored(at)
                anchored = True
                continue
            if share < 0.9 * best:
                best, since = share, steps
            if steps - since > _PATIENCE:
                break
            steps += 1
            at, anchored = advance(descent, at, steps), False
            if steps == _EARLY or steps % _RENEWAL == 0:
                descent, at = descent.renewed(at)
        return at, steps


@dataclass(frozen=True)
class Anchor:
    """What is known in full precision at one point.

    Attributes:
        y: the point, [W; b], with b for X less the shift of the design.
        u: X W + b, (samples, units).
        v: phi(u).
        pulled: [X, 1]'v, (inputs + 1, units).
    """

    y: Tensor
    u: Tensor
    v: Tensor
    pulled: Tensor


def anchor_at(problem: WeightFit, y: Tensor) -> Anchor:
    """Return the anchor at [W; b]."""
    inputs, bias = problem.design.centered.shifted, problem.design.bias
    u = _lift(inputs, bias, y)
    if problem.offset is not None:
        u = u + problem.offset
    v = weighed_gradient(problem, u)
    return Anchor(y, u, v, *processes.total(_pull(inputs, bias, v)))


@dataclass(frozen=True)
class WeightDescent:
    """min over Y = [W; b] of (pi(W) - <lam X'V, Y>) / lam + Phi*(X W + b), lam divided out.

    Products with X are taken in float32, but of differences alone: of Y from step to step, and of
    phi(u) to an anchor. Their rounding vanishes with the differences, so that the fit is as exact
    as with float64, in half of the time, if only the anchor follows now and then.

    Attributes:
        problem: the weight fit.
        inputs: X less the shift of the design, in float32.
        cross: [X, 1]'V + 2 rho W_0 / lam, (inputs + 1, units).
        pull_back: 2 rho / lam on the rows of W and 0 on that of b, (inputs + 1, 1).
        system: the Cholesky factor of the preconditioner, float64.
        anchor: the last one.
    """

    problem: WeightFit
    inputs: Tensor
    cross: Tensor
    pull_back: Tensor
    system: Tensor
    anchor: Anchor

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> per unit, (1, units), or in all where the activation couples units."""
        columns = (a * b).sum(0, keepdim=True)
        coupled = not self.problem.divergence.activation.per_unit
        return columns.sum(1, keepdim=True) if coupled else columns

    def paired(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return the same of every pair over samples."""
        return processes.total(*(self.inner(*pair) for pair in pairs))

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), times the weights of the samples."""
        return weighed_gradient(self.problem, u)

    def lift(self, y: Tensor) -> Tensor:
        """Return X W + b, in the type of the inputs."""
        return _lift(self.inputs, self.problem.design.bias, y.to(self.inputs)).to(y)

    def pre_activation(self, y: Tensor) -> Tensor:
        """Return X W + b, by float32 from the anchor."""
        return self.anchor.u + self.lift(y - self.anchor.y)

    def quadratic_gradient(self, y: Tensor) -> Tensor:
        """Return 2 rho (W - W_0) / lam - [X, 1]'V."""
        return self.curved(y) - self.cross

    def curved(self, d: Tensor) -> Tensor:
        """Return 2 rho / lam times the rows of W."""
        return self.pull_back * d

    def pull(self, v: Tensor) -> Tensor:
        """Return [X, 1]'v, by float32 from the anchor."""
        change = (v - self.anchor.v).to(self.inputs)
        (pulled,) = processes.total(_pull(self.inputs, self.problem.design.bias, change))
        return self.anchor.pulled + pulled.to(v)

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return the solution of the ridge system with the gradient on its right.

        A unit whose gradient may be the rounding of products rests until the anchor follows: where
        its activation is flat, nothing would hold it on its way. So does one at its minimizer: the
        squares of what is left there vanish, and the length of a step is their ratio.
        """
        columns = gradient.abs().amax(0, keepdim=True)
        right = gradient.where(columns > self._at_rest, 0.0).double()
        return torch.cholesky_solve(right, self.system).to(gradient)

    @cached_property
    def scale(self) -> float:
        """What gradients are measured against, the largest entry of [X, 1]'V, or 1."""
        return float(self.problem.cross.abs().max()) or 1.0

    @cached_property
    def _at_rest(self) -> Tensor:
        """What is too little of every unit's gradient to move it, (1, units)."""
        gradient = self.quadratic_gradient(self.anchor.y) + self.anchor.pulled
        least = _NOISE * torch.finfo(gradient.dtype).eps * self.cross.abs().max()
        return (_ROUNDING * gradient.abs().amax(0, keepdim=True)).clamp(min=least)

    def violation(self, gradient: Tensor) -> Tensor:
        """Return the largest entry of the gradient."""
        return gradient.abs().max()

    def starting_point(self) -> Point:
        """Return the anchor as a point to descend from."""
        anchor, slope = self.anchor, self.quadratic_gradient(self.anchor.y)
        return downhill_point(self, anchor.y, anchor.u, anchor.v, slope, slope + anchor.pulled)

    def anchored(self, at: Point) -> tuple[WeightDescent, Point]:
        """Return the descent with its anchor at a point, and this point in full precision."""
        anchor = anchor_at(self.problem, at.y)
        slope = self.quadratic_gradient(at.y)
        gradient = slope + anchor.pulled
        exact = replace(at, u=anchor.u, v=anchor.v, slope=slope, gradient=gradient)
        return replace(self, anchor=anchor), exact

    def renewed(self, at: Point) -> tuple[WeightDescent, Point]:
        """Return the descent with the curvature at a point, and the point to go on from."""
        system = preconditioner(self.problem, self.inputs, at.u, self.pull_back)
        renewed = replace(self, system=system)
        return renewed, downhill_point(renewed, at.y, at.u, at.v, at.slope, at.gradient)


def weight_descent(problem: WeightFit, start: Weights) -> WeightDescent:
    """Return the descent, anchored and preconditioned at the start."""
    assert isinstance(problem.penalty, SquaredFrobenius)  # asked for by obstacle
    design = problem.design.centered
    inputs, features = design.shifted, design.features
    pull_back = inputs.new_zeros(features + problem.design.bias, 1)
    pull_back[:features] = 2 * problem.penalty.rho / problem.lam
    cross = problem.cross.clone()
    cross[:features] += problem.penalty.linear_term(cross[:features]) / problem.lam
    begin = design.joined(start).to(inputs)
    anchor, single = anchor_at(problem, begin), inputs.float()
    system = preconditioner(problem, single, anchor.u, pull_back)
    return WeightDescent(problem, single, cross.to(inputs), pull_back, system, anchor)


def weighed_gradient(problem: WeightFit, u: Tensor) -> Tensor:
    """Return grad R(u) of all samples, each times the weight of its sample."""
    return problem.design.weighed(problem.divergence.link_gradient(u), slice(None))


def _lift(x: Tensor, bias: bool, y: Tensor) -> Tensor:
    """Return X W + b, stored unit by unit: products in this order are several times as fast."""
    u = y[: x.shape[1]].T @ x.T
    return (u.add_(y[-1].unsqueeze(1)) if bias else u).T


def _pull(x: Tensor, bias: bool, v: Tensor) -> Tensor:
    """Return [X, 1]'v, by the fast order again."""
    moment = (v.T @ x).T
    return torch.cat([moment, v.sum(0, keepdim=True)]) if bias else moment


def preconditioner(problem: WeightFit, inputs: Tensor, u: Tensor, pull_back: Tensor) -> Tensor:
    """Return the Cholesky factor of sum_i w_i [x_i, 1][x_i, 1]' + 2 rho / lam I, float64.

    w_i is the curvature of R at u_i, averaged over the units; the sum is estimated from a sample
    of the rows, drawn half by w and half evenly.

    Args:
        problem: the weight fit.
        inputs: X in float32.
        u: X W + b.
        pull_back: the diagonal that the penalty adds, (inputs + 1, 1).

    Raises:
        SolverError: the system has no Cholesky factor.
    """
    weights = mean_curvature(problem, u)
    rows, weights = _sampled(inputs, weights)
    if problem.design.bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    (system,) = processes.total(((rows * weights.unsqueeze(1)).T @ rows).double())
    system.diagonal().add_(pull_back[:, 0])
    return jittered_cholesky(system)


def mean_curvature(problem: WeightFit, u: Tensor) -> Tensor:
    """Return r'(phi(u + h r) - phi(u)) / (h units) per sample, for a random sign vector r.

    It is nonnegative for every monotone map, and needs no derivative; kept from 0, where a
    direction would have no length. A sample's signs depend on its number alone, whichever of
    several processes has it.
    """
    generator, share = _generator(u.device), processes.share_of(len(u))
    shape = min(share.samples, _SIGNS), u.shape[1]
    drawn = torch.randint(0, 2, shape, generator=generator, device=u.device)
    numbers = torch.arange(share.first, share.first + len(u), device=u.device)
    signs = drawn[numbers % _SIGNS].to(u) * 2 - 1
    slope = problem.divergence.link_gradient
    change = slope(u + _PROBE * signs) - slope(u)
    curvature = problem.design.weighed((signs * change).mean(-1), slice(None))
    return curvature.clamp(min=LEAST_CURVATURE) / _PROBE


def _sampled(inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    samples = int(processes.total_of(len(inputs)))
    count = min(samples, _ROWS_PER_FEATURE * (inputs.shape[1] + 1))
    if samples == count:
        return inputs, weights.to(inputs)
    exact = weights.double()
    chance = 0.5 * exact / processes.total(exact.sum())[0] + 0.5 / samples
    drawn = _drawn(chance, count)
    return inputs[drawn], (weights / chance).to(inputs)[drawn] / count


def _drawn(chance: Tensor, count: int) -> Tensor:
    """Return numbers of samples, of so many that all processes draw, each drawn with its chance.

    They lie where random numbers fall among the cumulated chances, the same on every process.
    """
    uniform = torch.rand(
        count, generator=_generator(chance.device), dtype=chance.dtype, device=chance.device
    )
    bounds = chance.cumsum(0)  # not multinomial, in which a NaN ends the process on a GPU
    if processes.size() == 1:
        return torch.searchsorted(bounds, uniform * bounds[-1]).clamp_(max=len(chance) - 1)
    ends = processes.gathered(bounds[-1:].sum().unsqueeze(0))[:, 0].cumsum(0)
    places = uniform * ends[-1]
    first = ends[processes.rank() - 1] if processes.rank() else 0.0
    own = places[(places >= first) & (places < ends[processes.rank()])]
    return torch.searchsorted(bounds, own - first).clamp_(max=len(chance) - 1)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)  # the same rows every time, so that it repeats
