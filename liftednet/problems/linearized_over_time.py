"""The linearized states over time: what a Newton step solves, and what one promises."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from liftednet.divergences import Divergence, Joint

if TYPE_CHECKING:
    from liftednet.problems.states_over_time import StatesOverTime, TimeLink

_RIGID = 1e-10  # a state whose prox has a smaller slope, relative to lam, is held
_EPSILON = torch.finfo(torch.float64).eps
NEAR = 2e-5  # a relative violation above it says enough: it is solved by no default
_NOTHING = 1e-9  # a share of the objective that no default asks for


class Linearized:
    """Gradient, proximal point and residual of every sample at some states.

    Z = prox_{lam Phi / s}(Z - g / s) is linearized. Where the prox is flat (a state at its bound)
    the state is held, elsewhere lam / phi' is its curvature.

    Attributes:
        scale: (samples,) the largest term of the gradient, at least lam.
        violation: s (prox - Z), (steps, samples, units), s the smoothness of all but Phi plus lam.
        residual: (samples,) its largest entry.
    """

    def __init__(self, problem: StatesOverTime, states: Tensor) -> None:
        """Take a proximal gradient step."""
        self.problem, self.states = problem, states
        lam, activation = problem.lam, problem.divergence.activation
        self.terms = terms = problem.terms(states)
        sizes = [term.abs().amax((0, 2)) for term in terms]
        self.scale = torch.stack(sizes).amax(0).clamp(min=lam)
        self.inertia = lam + cast(float, problem.smoothness)
        self.shifted = states - sum(terms) / self.inertia
        proximal = activation.prox(self.shifted, lam / self.inertia)
        self.valid = problem.valid.unsqueeze(-1)
        self.proximal = torch.where(self.valid, proximal, 0.0)
        self.moved = self.proximal - states
        self.violation = self.inertia * self.moved
        self.residual = self.violation.abs().amax((0, 2))

    @cached_property
    def slope(self) -> Tensor:
        """Phi' where the prox lies, (steps, samples, units)."""
        ratio = self.inertia / self.problem.lam
        return self.problem.divergence.activation.slope((self.shifted - self.proximal) * ratio)

    @cached_property
    def rounded(self) -> Tensor:
        """The violation and as much as rounding may hide of it, with random signs.

        Where that makes a difference, the violation itself says nothing.
        """
        sizes = sum((term.abs() for term in self.terms), self.inertia * self.states.abs())
        return self.violation + rounding(sizes)

    @cached_property
    def objectives(self) -> Tensor:
        """The objective of every sample, (samples,)."""
        return self.problem.values(self.states)

    @cached_property
    def relative(self) -> Tensor:
        """The residual of every sample, (samples,), as `StatesOverTime.measure` has it."""
        residual = self.residual / self.scale
        near = residual < NEAR
        if not bool(near.any()):
            return residual
        unit = self.problem.lam + self.objectives.abs()
        excess = torch.where(near, (self._bound() / unit).nan_to_num(torch.inf, torch.inf), 0.0)
        doubtful = (excess > residual.clamp(min=_NOTHING)).nonzero()[:, 0]
        if len(doubtful) and self.problem.divergence.activation.per_unit:
            part = Linearized(self.problem.take(doubtful), self.states[:, doubtful])
            promised = (part._promise() / unit[doubtful]).nan_to_num(torch.inf, torch.inf)
            excess[doubtful] = torch.minimum(excess[doubtful], promised)
        return torch.maximum(residual, excess)

    def _bound(self) -> Tensor:
        """Return a bound of how far the objective is above the least one, (samples,).

        A joint D is (|z_t - L u_t|^2 / L) / 2 and something convex, so that for a subgradient g
        the objective is nowhere lower by more than L |B'^-1 g|^2 / (2 lam), where B Z stands for
        z_t - L z_{t-1} W; B'^-1 is a pass backward through the steps. The violation stands for g.
        """
        problem = self.problem
        curvature = cast(float, problem.divergence.smoothness)
        back = curvature * problem.recurrent.T
        carried = torch.zeros_like(self.violation[0])
        total = carried.new_zeros(len(carried))
        for violation in self.rounded.flip(0):  # zero beyond the lengths
            carried = violation + carried @ back
            total = total + carried.square().sum(-1)
        return total * curvature / (2 * problem.lam)

    def step(self, kind: type[System]) -> Tensor:
        """Return the Newton step, (steps, samples, units)."""
        free, system, right = self._system(kind)
        held = torch.where(free, 0.0, self.moved)
        right = torch.where(free, right - system.coupled(held), 0.0)
        return torch.where(free, system.solve(right), held)

    def _promise(self) -> Tensor:
        """Return by how much a Newton step lowers its model of the objective, (samples,)."""
        free, system, right = self._system(System)
        right = torch.where(free, right + self.rounded - self.violation, 0.0)
        return (right * system.solve(right)).sum((0, 2)) / 2

    def _system(self, kind: type[System]) -> tuple[Tensor, System, Tensor]:
        """Return which states are free, the system, and its right-hand side where they are."""
        lam = self.problem.lam
        free = (self.slope > _RIGID) & self.valid
        rise = self.slope.clamp(min=_RIGID)
        curvature = torch.where(free, lam / rise, 1.0)
        system = kind(self.problem, self.states, self.slope, free, curvature)
        return free, system, (self.inertia + lam / rise) * self.moved


def rounding(sizes: Tensor) -> Tensor:
    """Return what rounding may add to sums of terms of these sizes, with random signs."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, sizes.shape, generator=generator) * 2 - 1
    return _EPSILON * sizes * signs.to(sizes)


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
