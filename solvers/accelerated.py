"""Accelerated proximal gradient steps: on any block of a network, and on weights with a penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.divergences import Joint
from liftednet.penalties import Sum
from liftednet.problems import BlockFit, WeightFit, Weights
from liftednet.samples import largest_eigenvalue
from liftednet.sets.splitting import Splitting

from .base import Solver
from .newton_weights import proximal, proximal_newton

# What points may be apart, by how much less where the verdict asks for more, and the least.
_NEAR, _STRICTER, _LEAST = 1e-9, 0.3, 1e-14


def consensus(
    problem: WeightFit, penalty: Sum, start: Tensor, tolerance: float
) -> tuple[Tensor, int]:
    """Return [W; b + shift W] where all penalties meet, and the rounds that it took.

    The model of the divergence is its gradient and lam L [X, 1]'[X, 1], its Hessian where it is
    quadratic. b is at its minimum in it.

    Raises:
        SolverError: the penalties do not meet; they may exclude each other.
    """
    splitting, goal = _splitting(problem, penalty, start), min(0.1 * tolerance, _NEAR)
    best, found = math.inf, start
    while True:
        met = splitting.meeting(goal)
        matrix = penalty.nearly(met) if met.apart <= goal else penalty.project(met.points[-1])
        value = torch.cat([matrix, met.value[len(matrix) :]])
        if problem.design.bias:
            steep = problem.curvature * problem.design.mass
            value[-1] -= problem.gradient(value)[0][-1] / steep
        residual = problem.measure(problem.design.centered.split(value)).residual
        if residual < best:
            best, found = residual, value
        if residual <= tolerance or met.apart > goal or goal < _LEAST:
            return found, met.rounds
        goal *= _STRICTER


def _splitting(problem: WeightFit, penalty: Sum, start: Tensor) -> Splitting:
    design, features = problem.design.centered, problem.design.features
    curvature, (gram, mean) = problem.curvature, design.about_mean
    sizes, basis = torch.linalg.eigh(curvature * gram)
    sizes = sizes.clamp(min=0) + sum(square.curvature for square in penalty.squares)

    def model(value: Tensor, center: Tensor, weight: float) -> Tensor:
        gradient, following = problem.gradient(value)[0], value.clone()
        right = gradient[:features]
        for square in penalty.squares:
            right = square.stationarity(value[:features], right, 1.0)
        if mean is not None:
            right = right - mean.outer(gradient[-1])
        right = weight * (center - value[:features]) - right
        move = basis @ ((basis.T @ right) / (sizes + weight).unsqueeze(1))
        following[:features] += move
        if mean is not None:
            following[-1] -= gradient[-1] / (curvature * design.mass) + mean @ move
        return following

    begin = start.clone()
    begin[:features] = 0.0
    steepest = float(problem.gradient(begin)[0][:features].abs().max())
    rho = max(float(sizes.mean()), steepest / penalty.reach, torch.finfo(start.dtype).tiny)
    maps = [member.prox for member in penalty.members]
    points = start[:features].expand(len(maps), -1, -1)
    return Splitting(maps, model, start, points, rho)


_ROUNDING = 1e-12
_HEARD = 100  # times the rounding of values that these tell a curvature by
_PATIENCE = 500  # steps in which the movement must fall
_FINER = 1e-3  # of a goal that the verdict found to hide too much
_MARGIN = 0.01  # of the tolerance: where curvature is small, its edge may still be far off


_EASED, _RAISED = 0.9, 2.0  # of s after a step that the bound allows, and one that it does not


@dataclass
class _Walk:
    """Where the steps are: v, the point ahead of it, momentum, and the local smoothness s.

    Where the problem is not convex, the objective at v, too.
    """

    v: Tensor
    ahead: Tensor
    momentum: float
    s: float
    total: float = math.inf


@dataclass(frozen=True)
class Accelerated(Solver[BlockFit, Any, None]):
    """Solves a block fit of any maps, by products with them and their adjoints alone.

    v <- prox_{g / s}(y - gradient / s), s found by backtracking (Beck and Teboulle, 2009), with
    restarts (O'Donoghue and Candes, 2015). Where the problem is not convex, a step that would go
    uphill is taken again without momentum: it goes downhill to a stationary point.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> from liftednet import Network, data
        >>> from liftednet.layers import convolution
        >>> from liftednet.losses import CrossEntropy
        >>> from liftednet.models import FullBatch, Lifted
        >>> from liftednet.solvers import Accelerated, solve
        >>> network, digits = Network(), data.digits()
        >>> outputs = network.loss(CrossEntropy(), convolution(network.input(1, 8, 8), 3, 7))
        >>> model = Lifted(network, method=FullBatch(sweeps=1))
        >>> fit = model.fit(digits.x_test.view(-1, 1, 8, 8), digits.y_test).subproblem("weights 1")
        >>> solve(fit, Accelerated(tolerance=1e-3)).status.name
        'SOLVED'
    """

    tolerance: float | None = None
    max_iterations: int = 5_000
    kind = BlockFit
    name: str = field(default="accelerated", init=False)

    def refusal(self, problem: BlockFit) -> str | None:
        """Ask for a prox, and Lipschitz constants."""
        if problem.smoothness is None:
            return "it needs a Lipschitz constant of every activation above"
        return problem.block.obstacle()

    def minimize(
        self, problem: BlockFit, start: Any, cache: None, tolerance: float
    ) -> tuple[Any, int]:
        """Return the minimizer to the tolerance, from a start or from zero made feasible."""
        exact, like = problem.double(), problem.like()
        v = torch.zeros_like(like) if start is None else problem.block.packed(start)
        v = problem.block.prox(v.double(), 1e-12)
        largest = problem.smoothness or 1.0
        at, steps, goal = _Walk(v, v, 1.0, largest), 0, 0.5 * tolerance
        while steps < self.max_iterations:
            steps += 1
            at, off = _advance(exact, at, largest)
            if off <= goal:
                residual = exact.measure(problem.block.unpacked(at.v)).residual
                if not residual > tolerance or goal < _ROUNDING:
                    break
                goal *= _STRICTER  # what it costs falls with the square
        return problem.block.unpacked(at.v), steps


def _advance(problem: BlockFit, at: _Walk, largest: float) -> tuple[_Walk, float]:
    """Return the walk after one step, and the violation at the point ahead, relatively."""
    terms = problem.terms(at.ahead)
    gradient, value = sum(terms[1:], terms[0]), problem.smooth_value(at.ahead)
    scale = float(torch.stack([term.abs().max() for term in terms]).max())
    s, slack = at.s, _ROUNDING * (1 + abs(float(value)))
    while True:
        following = problem.block.prox(at.ahead - gradient / s, 1 / s)
        moved, reached = following - at.ahead, problem.smooth_value(following)
        bend = s * moved.square().sum()
        if bend > _HEARD * slack:
            enough = bool(reached <= value + (gradient * moved).sum() + bend / 2 + slack)
        else:  # values are rounding: gradients tell of the curvature
            there = problem.terms(following)
            enough = bool(((sum(there[1:], there[0]) - gradient) * moved).sum() <= bend)
        if s >= largest or enough:
            break
        s = min(_RAISED * s, largest)
    off = s * float(moved.abs().max()) / (scale or 1.0)
    total = at.total if problem.convex else float(reached + problem.block.value(following))
    if total > at.total + _ROUNDING * (1 + abs(at.total)):  # a step from v itself goes downhill
        return replace(at, ahead=at.v, momentum=1.0, s=s), math.inf
    change = following - at.v
    momentum = 1.0 if bool((moved * change).sum() < 0) else at.momentum
    larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
    ahead = following + (momentum - 1) / larger * change
    return _Walk(following, ahead, larger, _EASED * s, total), off


@dataclass(frozen=True)
class ProximalWeights(Solver[WeightFit, Weights, None]):
    """Solves a weight fit with any proximable penalty by accelerated proximal gradient.

    W <- prox_{pi / s}(W - gradient / s), s = lam L |[X, 1]|_2^2; Beck and Teboulle (2009),
    restarted as O'Donoghue and Candes (2015). A quadratic divergence needs the Gram matrix alone,
    and b, which has no penalty, is then at its minimum for every W: steps see the Gram matrix about
    the mean of X. Small fits that resist are finished by Newton steps.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import L1
        >>> from liftednet.solvers import ProximalWeights, solve
        >>> x, y = torch.eye(2), torch.tensor([[3.0], [0.5]])
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, L1(1.0))
        >>> solve(fit, ProximalWeights()).value.matrix.flatten()
        tensor([2., 0.])
    """

    tolerance: float | None = None
    max_iterations: int = 50_000
    kind = WeightFit
    name: str = field(default="proximal-weights", init=False)

    def refusal(self, problem: WeightFit) -> str | None:
        """Ask for a Lipschitz constant and a penalty with a prox."""
        if problem.divergence.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        if not problem.penalty.proximable:
            return f"it needs `prox` of {type(problem.penalty).__name__}"
        if not problem.penalty.closed_form:  # thousands of steps, and one of CVXPY's solves in each
            return f"it needs `prox` of {type(problem.penalty).__name__} in closed form"
        return None

    def minimize(
        self, problem: WeightFit, start: Weights | None, cache: None, tolerance: float
    ) -> tuple[Weights, int]:
        """Return the minimizer to the tolerance."""
        design, penalty = problem.design.centered, problem.penalty
        begin = design.joined(problem.zeros() if start is None else start)
        if isinstance(penalty, Sum) and penalty.split:  # whose prox is a problem of its own
            value, steps = consensus(problem, penalty, begin, tolerance)
        else:
            value, steps = self._stepped(problem, begin, tolerance)
        return design.split(value), steps

    def _stepped(self, problem: WeightFit, start: Tensor, tolerance: float) -> tuple[Tensor, int]:
        goal, design = _MARGIN * tolerance, problem.design.centered
        value, steps, reached = self._descend(problem, start, goal)
        if not problem.small:
            return value, steps
        while not reached or problem.measure(design.split(value)).residual > tolerance:
            value, more = proximal_newton(problem, value, goal)
            steps, reached, goal = steps + more, True, _FINER * goal
            if goal < _ROUNDING:
                break
        return value, steps

    def _descend(self, problem: WeightFit, start: Tensor, goal: float) -> tuple[Tensor, int, bool]:
        mean, steep, smoothness = _about_the_mean(problem)
        if mean is not None:
            start = start.clone()
            start[-1] -= problem.gradient(start)[0][-1] / steep
        value, ahead, momentum = start, start, 1.0
        steps, best, since = 0, torch.inf, 0
        while steps < self.max_iterations and steps - since <= _PATIENCE:
            steps += 1
            gradient, scale = problem.gradient(ahead)
            following = proximal(problem, ahead - gradient / smoothness, 1 / smoothness)
            moved, change = ahead - following, following - value
            if mean is not None:
                following[-1] = ahead[-1] - gradient[-1] / steep + mean @ moved[:-1]
                change, moved[-1] = following - value, 0.0
            back = not problem.penalty.convex or bool((moved * change).sum() > 0)
            momentum = 1.0 if back else momentum
            larger = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = following + (momentum - 1) / larger * change
            value, momentum = following, larger
            share = smoothness * float((moved / scale).abs().max())
            if share <= goal:
                return following, steps, True
            if share < 0.9 * best:
                best, since = share, steps
        return value, steps, False


def _about_the_mean(problem: WeightFit) -> tuple[Tensor | None, float, float]:
    """Return the mean of X where b follows W in closed form, and the smoothness in b and in W."""
    whole, design = problem.smoothness or 1.0, problem.design.centered
    if not design.bias or design.wide or not isinstance(problem.divergence, Joint):
        return None, whole, whole
    (gram, mean), curvature = design.about_mean, problem.curvature
    least = torch.finfo(torch.float64).eps * whole
    return mean, curvature * design.mass, max(curvature * largest_eigenvalue(gram), least)
