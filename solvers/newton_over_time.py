"""States of a recurrent layer, exact over time: Newton steps by elimination backward in time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from liftednet.divergences import Divergence, Joint
from liftednet.problems import Fit
from liftednet.problems.states_over_time import StatesOverTime, TimeLink
from liftednet.solution import Solution

from . import deferred
from .base import Solver, default_tolerance, judged
from .forward_over_time import forward_states
from .kernels.elimination import eliminated, serves

_CHUNK_BYTES = 2**28  # of factors at a time
_CHUNK_BYTES_ON_GPU = 2**32
_RIGID = 1e-10  # a state whose prox has a smaller slope, relative to lam, is held
_HALVINGS = 20


@dataclass(frozen=True)
class NewtonOverTime(Solver[StatesOverTime, Tensor, None]):
    """Solves all steps at once by semismooth Newton steps, each exact over time.

    Z = prox_{lam Phi / s}(Z - g / s) is linearized. Where the prox is flat (a state at its bound)
    the state is held, elsewhere lam / phi' is its curvature: an active-set method for the ReLU
    and clipped, Newton's for smooth activations. The linear system is block-tridiagonal for each
    sample; eliminated from the last step to the first, every pivot is at least lam / L, however
    much W expands. A sample whose objective would rise takes a shorter step, at last a proximal
    gradient step, which lowers it.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: Newton steps.
    """

    tolerance: float | None = None
    max_iterations: int = 100
    name: str = field(default="newton-over-time", init=False)

    def obstacle(self, problem: Fit[Any]) -> str | None:
        """Ask for states over time whose units act by themselves, and Lipschitz constants."""
        if not isinstance(problem, StatesOverTime):
            return "it solves states over time alone"
        if not problem.divergence.activation.per_unit:
            return f"it needs an activation unit by unit, not {problem.divergence.activation!r}"
        if problem.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        return None

    def solve(
        self, problem: StatesOverTime, start: Tensor | None = None, cache: None = None
    ) -> Solution[Tensor]:
        """Return the states to the tolerance, a stationary point where D is tight."""
        started = time.perf_counter()
        tolerance = self.tolerance or default_tolerance(problem.drive.dtype)
        states = forward_states(problem) if start is None else start.clone()
        exact, steps = problem.double(), 0
        units = problem.drive.shape[2]
        room = _CHUNK_BYTES_ON_GPU if states.is_cuda else _CHUNK_BYTES
        size = max(1, room // (16 * units * (units + 1) * problem.steps))
        for part in torch.arange(states.shape[1], device=states.device).split(size):
            value, taken = self._newton(exact.take(part), states[:, part].double(), tolerance)
            states[:, part] = value.to(states)
            steps = max(steps, taken)
        return judged(problem, states, steps, started, tolerance, self.name)

    def _newton(
        self, problem: StatesOverTime, states: Tensor, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states of some samples, dropping each sample when it is done."""
        if deferred.stays_on_device(states):
            return self._newton_of_all(problem, states, tolerance)
        left = torch.arange(states.shape[1], device=states.device)
        open_problem, steps = problem, 0
        for steps in range(self.max_iterations + 1):
            point = Point(open_problem, states[:, left])
            going = point.residual > 0.5 * tolerance * point.scale
            if not bool(going.any()) or steps == self.max_iterations:
                break
            if not bool(going.all()):
                left = left[going]
                open_problem = problem.take(left)
                point = Point(open_problem, states[:, left])
            states[:, left] = point.improved(going[going])
        return states, steps

    def _newton_of_all(
        self, problem: StatesOverTime, states: Tensor, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states of some samples, on a GPU, where a sample that is done rests."""
        looks = deferred.Late[None]()
        for step in range(self.max_iterations):
            point = Point(problem, states)
            going = point.residual > 0.5 * tolerance * point.scale
            if not looks.some(going):
                return states, step
            states = torch.where(going[:, None], point.improved(going), states)
        return states, self.max_iterations


class Point:
    """Where a Newton step begins: gradient, proximal point and residual of every sample."""

    def __init__(self, problem: StatesOverTime, states: Tensor) -> None:
        """Take a proximal gradient step."""
        self.problem, self.states = problem, states
        lam, activation = problem.lam, problem.divergence.activation
        terms = problem.terms(states)
        self.scale = deferred.largest(terms, lam)
        self.inertia = lam + cast(float, problem.smoothness)
        shifted = states - sum(terms) / self.inertia
        proximal = activation.prox(shifted, lam / self.inertia)
        self.valid = problem.valid.unsqueeze(-1)
        self.proximal = torch.where(self.valid, proximal, 0.0)
        self.slope = activation.slope((shifted - proximal) * (self.inertia / lam))
        self.moved = self.proximal - states
        self.residual = self.inertia * self.moved.abs().amax((0, 2))

    def improved(self, going: Tensor) -> Tensor:
        """Return states whose objective is lower, as far as rounding allows.

        Args:
            going: the samples to move, (samples,) booleans; others may come to anything.
        """
        step = self._direction()
        before = self.problem.values(self.states)
        slack = 1e-13 * (1 + before.abs())
        best, todo, some = self.proximal.clone(), going, deferred.Late[None](lag=1)
        for _ in range(_HALVINGS):
            trial = self.problem.divergence.activation.project(self.states + step)
            trial = torch.where(self.valid, trial, 0.0)
            better = todo & (self.problem.values(trial) <= before + slack)
            best = torch.where(better[:, None], trial, best)
            todo = todo & ~better
            if not some.some(todo):
                break
            step = step / 2
        return best

    def _direction(self) -> Tensor:
        """Solve the linearized fixed point equation."""
        lam = self.problem.lam
        free = (self.slope > _RIGID) & self.valid
        slope = self.slope.clamp(min=_RIGID)
        curvature = torch.where(free, lam / slope, 1.0)
        system = System(self.problem, self.states, self.slope, free, curvature)
        held = torch.where(free, 0.0, self.moved)
        right = (self.inertia + lam / slope) * self.moved - system.coupled(held)
        return torch.where(free, system.solve(torch.where(free, right, 0.0)), held)


class System:
    """The block-tridiagonal system of one Newton step, for every sample.

    Its blocks are lam / phi' + lam W S W' + the links' W_k S_k W_k' at a step, and -lam W between
    a step and the next, with S the curvature of R, raised where D would not be convex.
    """

    def __init__(
        self,
        problem: StatesOverTime,
        states: Tensor,
        slope: Tensor,
        free: Tensor,
        curvature: Tensor,
    ) -> None:
        """Collect the curvatures at a point."""
        self.problem, self.free, self.curvature = problem, free, curvature
        bend = problem.divergence.link_curvature(problem.pre_activation(states))
        bend = torch.maximum(bend, slope)
        self.bend = torch.where(problem.valid.unsqueeze(-1), problem.lam * bend, 0.0)
        self.links = [(link, hessian(link, states)) for link in problem.links]

    def coupled(self, held: Tensor) -> Tensor:
        """Return H d for the part of the states that is held, (steps, samples, units)."""
        problem, weight = self.problem, self.problem.recurrent
        ahead = torch.zeros_like(held)
        ahead[1:] = held[:-1] @ weight
        product = torch.where(problem.valid.unsqueeze(-1), -problem.lam * ahead, 0.0)
        back = self.bend * ahead - torch.where(problem.valid.unsqueeze(-1), problem.lam * held, 0.0)
        product[:-1] += back[1:] @ weight.T
        for link, curved in self.links:
            product += ((held @ link.weight).unsqueeze(-2) @ curved).squeeze(-2) @ link.weight.T
        return product

    def blocks(self, steps: slice) -> Tensor:
        """Return the diagonal blocks of some steps, (steps, samples, units, units).

        Rows and columns of states that are held are masked.
        """
        weight, free = self.problem.recurrent, self.free[steps]
        after = torch.zeros_like(self.bend[steps])
        bend = self.bend[steps.start + 1 : steps.stop + 1]
        after[: len(bend)] = bend
        total = (weight * after.unsqueeze(-2)) @ weight.T
        for link, curved in self.links:
            total = total + link.weight @ curved[steps] @ link.weight.T
        total = torch.where(free.unsqueeze(-1) & free.unsqueeze(-2), total, 0.0)
        total.diagonal(dim1=-2, dim2=-1).add_(self.curvature[steps])
        return total

    def solve(self, right: Tensor) -> Tensor:
        """Return the solution, (steps, samples, units); right is zero where states are held."""
        if serves(right):
            blocks = self.blocks(slice(0, self.problem.steps))
            return eliminated(blocks, self.coupling, self.free, right)
        lowers, gains, halves = self._eliminate(right)
        solution = torch.empty_like(right)
        behind = halves[0]
        for step in range(self.problem.steps):
            if step > 0:
                behind = halves[step] - gains[step] @ solution[step - 1].unsqueeze(-1)
            lower = lowers[step]
            solution[step] = torch.linalg.solve_triangular(lower.mT, behind, upper=True).squeeze(-1)
        return solution

    def _eliminate(self, right: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return L_t, L_t^-1 E_t and L_t^-1 r_t, with L_t the factor of pivot t."""
        steps = self.problem.steps
        empty = right.new_empty(0)
        lowers, gains, halves = ([empty] * steps for _ in range(3))
        update: Tensor | float = 0.0
        carried = right[-1].unsqueeze(-1)
        for step in reversed(range(steps)):
            (block,) = self.blocks(slice(step, step + 1))
            lower = torch.linalg.cholesky_ex(block - update).L  # if it failed, the step is refused
            both = torch.cat([self._between(step), carried], dim=2)
            solved = torch.linalg.solve_triangular(lower, both, upper=False)
            gain, half = solved[..., :-1], solved[..., -1:]
            lowers[step], gains[step], halves[step] = lower, gain, half
            if step > 0:
                update = gain.mT @ gain
                carried = right[step - 1].unsqueeze(-1) - gain.mT @ half
        return lowers, gains, halves

    def _between(self, step: int) -> Tensor:
        """Return the block of rows `step` and columns `step - 1`, (samples, units, units)."""
        before = self.free[max(step - 1, 0)]
        both = self.free[step].unsqueeze(2) & before.unsqueeze(1)
        return torch.where(both, self.coupling, 0.0)

    @property
    def coupling(self) -> Tensor:
        """The block of a step and the one before where no state is held, -lam W'."""
        return -self.problem.lam * self.problem.recurrent.T


def hessian(link: TimeLink, states: Tensor) -> Tensor:
    """Return lam times the Hessian of R, 0 where not linked, (steps, samples, next, next)."""
    above = link.pre_activation(states)
    if _separable(link.divergence):
        curved = torch.diag_embed(link.divergence.link_curvature(above))
    else:
        curved = jacobian(link.divergence, above)
    return link.lam * curved.where(link.counted[..., None, None], 0.0)


def _separable(divergence: Divergence) -> bool:
    return isinstance(divergence, Joint) or divergence.activation.per_unit


def jacobian(divergence: Divergence, u: Tensor) -> Tensor:
    """Return the Jacobian of grad R at every row of u, (..., units, units), by autograd."""
    with torch.enable_grad():
        point = u.detach().requires_grad_()
        gradient = divergence.link_gradient(point)
        columns = [
            torch.autograd.grad(gradient[..., unit].sum(), point, retain_graph=True)[0]
            for unit in range(u.shape[-1])
        ]
    return torch.stack(columns, dim=-1)
