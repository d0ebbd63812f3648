"""All states of one recurrent layer, its weights and everything around it given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from liftednet.divergences import Divergence, Joint, Tight
from liftednet.errors import DataError, DeclarationError
from liftednet.layers.time import advanced, delayed, steps_before
from liftednet.lazy import cvxpy as cp
from liftednet.maps import Composed, Moved, Times
from liftednet.problems.block_fit import BlockFit
from liftednet.problems.fit import (
    NEAR,
    Fit,
    Link,
    Measure,
    Statement,
    curvatures,
    measured,
    rounding,
)
from liftednet.problems.priors import BoxedStates, in_float64
from liftednet.samples import outlined, squared_norm_of
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)

_RIGID = 1e-10  # a state whose prox has a smaller slope, relative to lam, is held
_NOTHING = 1e-9  # a share of the objective that no default asks for


@dataclass(frozen=True, eq=False, repr=False)
class TimeLink:
    """What a layer above asks of the states Z at some steps: lam [R(Z W + C) - <Z W + C, V>].

    Attributes:
        divergence: gives R.
        weight: W, (units, next units).
        offset: C, (next units,) or (steps, samples, next units).
        target: V, (steps, samples, next units).
        counted: (steps, samples) booleans, the steps that are linked.
        lam: the weight of the divergence, positive.

    Example:
        >>> import torch
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.problems import TimeLink
        >>> counted, target = torch.tensor([[True], [False]]), torch.ones(2, 1, 1)
        >>> link = TimeLink(joint(Identity()), torch.eye(1), torch.zeros(1), target, counted)
        >>> link.values(torch.tensor([3.0, 3.0]).view(2, 1, 1)).flatten()  # 9 / 2 - 3, and no link
        tensor([1.5000, 0.0000])
    """

    divergence: Divergence
    weight: Tensor
    offset: Tensor
    target: Tensor
    counted: Tensor
    lam: float = 1.0
    __repr__ = outlined

    @cached_property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient in Z, lam L |W|_2^2, or None."""
        return Link(self.divergence, self.weight, self.offset, self.target, self.lam).smoothness

    def pre_activation(self, states: Tensor) -> Tensor:
        """Return Z W + C, (steps, samples, next units)."""
        return states @ self.weight + self.offset

    def values(self, states: Tensor) -> Tensor:
        """Return the value of the link at every step, (steps, samples), 0 where it is not."""
        above = self.pre_activation(states)
        rows = self.divergence.link_values(above, self.target)
        return self.lam * rows.where(self.counted, 0.0)

    def back(self, slope: Tensor) -> Tensor:
        """Return lam S W' at the linked steps, else 0, (steps, samples, units)."""
        rows = self.lam * slope @ self.weight.T
        return rows.where(self.counted.unsqueeze(-1), 0.0)

    def link(self) -> Link:
        """Return the link at the steps that it sees, in a row."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[self.counted]
        through = Composed(picked(self.counted), Times(self.weight))
        return Link(self.divergence, through, offset, self.target[self.counted], self.lam)

    def take(self, samples: Tensor) -> TimeLink:
        """Return the link of some samples."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[:, samples]
        target, counted = self.target[:, samples], self.counted[:, samples]
        return replace(self, offset=offset, target=target, counted=counted)

    def double(self) -> TimeLink:
        """Return the link in float64."""
        weight, offset, target = (x.double() for x in (self.weight, self.offset, self.target))
        return replace(self, weight=weight, offset=offset, target=target)


def picked(counted: Tensor) -> Moved:
    """Return the choice of the steps that count, (steps, samples) booleans, as rows."""

    def back(rows: Tensor) -> Tensor:
        steps = rows.new_zeros(*counted.shape, rows.shape[-1])
        steps[counted] = rows
        return steps

    return Moved(lambda steps: steps[counted], back)


@dataclass(frozen=True, eq=False, repr=False)
class StatesOverTime(Fit[Tensor]):
    """min over Z_0, Z_1, ... in dom Phi of lam sum_t D(Z_t, Z_{t-1} W + D_t) + the links.

    Lifted Recurrent Neural Networks, section 5.2, all steps at once. Z_{-1} W belongs to D_0.
    Convex for a joint divergence; for a tight one convex in each step alone.

    Attributes:
        divergence: of the layer.
        drive: D, (steps, samples, units): what comes to each step besides Z_{t-1} W.
        recurrent: W, (units, units).
        links: what layers above and outputs ask of the states.
        lengths: (samples,) int64 steps of each sequence; states beyond are 0 and count nothing.
        lam: the weight of the divergence, positive.

    Raises:
        DataError: shapes or lam do not fit.
        DeclarationError: a divergence that is neither tight nor joint.

    Example:
        >>> import torch
        >>> from liftednet.problems import StatesOverTime
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import solve
        >>> drive, recurrent = torch.ones(2, 1, 1), torch.full((1, 1), 0.5)
        >>> fit = StatesOverTime(joint(ReLU()), drive, recurrent, (), torch.tensor([2]))
        >>> solve(fit).value.flatten()  # 1, then 1 + 0.5, as nothing stands above
        tensor([1.0000, 1.5000])
    """

    divergence: Divergence
    drive: Tensor
    recurrent: Tensor
    links: tuple[TimeLink, ...]
    lengths: Tensor
    lam: float = 1.0

    def __post_init__(self) -> None:
        """Refuse data that do not fit together."""
        object.__setattr__(self, "lam", require_positive("lam", self.lam))
        require_matrix("the recurrent weight", self.recurrent)
        if self.drive.ndim != 3:
            raise DataError(
                f"the drive must be (steps, samples, units), got {tuple(self.drive.shape)}."
            )
        steps, samples, units = self.drive.shape
        require_shape("the recurrent weight", self.recurrent, (units, units), f"for {units} units")
        require_like("the recurrent weight", self.recurrent, "the drive", self.drive)
        require_shape("the lengths", self.lengths, (samples,), f"for {samples} samples")
        outside = (self.lengths < 1) | (self.lengths > steps)
        if self.lengths.is_floating_point() or bool(outside.any()):
            raise DataError(
                f"the lengths must be integers from 1 to the {steps} steps of the drive, got "
                f"{self.lengths.tolist()}."
            )
        for number, link in enumerate(self.links):
            shape = (steps, samples, link.weight.shape[1])
            require_shape(f"the target of link {number}", link.target, shape, "beside its weight")
            require_shape(f"the steps of link {number}", link.counted, shape[:2], "beside it")
            if link.counted.dtype is not torch.bool:
                raise DataError(f"the steps of link {number} must be booleans.")
            rows = link.offset if link.offset.ndim == 1 else link.offset.flatten(0, 1)
            whole = Link(link.divergence, link.weight, rows, link.target.flatten(0, 1), link.lam)
            whole.require(f"of link {number}", steps * samples, units, self.drive)
        for divergence in (self.divergence, *(link.divergence for link in self.links)):
            if not isinstance(divergence, Tight | Joint):
                raise DeclarationError(
                    f"states over time have tight or joint divergences, not {divergence!r}."
                )

    @property
    def steps(self) -> int:
        """The number of steps of the longest sequence."""
        return self.drive.shape[0]

    @cached_property
    def valid(self) -> Tensor:
        """(steps, samples) booleans, true where a sequence has the step."""
        return steps_before(self.steps, self.lengths)

    @cached_property
    def last(self) -> Tensor:
        """(steps, samples) booleans, true at the last step of each sequence."""
        return self.valid & ~steps_before(self.steps, self.lengths - 1)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where the data have NaN or infinite entries."""
        require_finite("the drive", self.drive)
        require_finite("the recurrent weight", self.recurrent)
        for number, link in enumerate(self.links):
            require_finite(f"the weight of link {number}", link.weight)
            link.link().refuse_bad_values(f"of link {number}")

    def pre_activation(self, states: Tensor) -> Tensor:
        """Return U_t = Z_{t-1} W + D_t, (steps, samples, units)."""
        above = self.drive.clone()
        above[1:] += states[:-1] @ self.recurrent
        return above

    def values(self, states: Tensor) -> Tensor:
        """Return the objective of every sample, (samples,)."""
        rows = self.divergence.values(states, self.pre_activation(states))
        total = self.lam * rows.where(self.valid, 0.0).sum(0)
        for link in self.links:
            total = total + link.values(states).sum(0)
        return total

    def terms(self, states: Tensor) -> list[Tensor]:
        """Return the terms of the gradient of all but Phi; every one is zero beyond the lengths.

        They are -lam U_t, lam grad R(U_{t+1}) W', -lam Z_{t+1} W', and two like these per link.
        """
        u = self.pre_activation(states)
        follows = self.valid.unsqueeze(-1)
        push = torch.where(follows, self.lam * self.divergence.link_gradient(u), 0.0)
        pull = torch.where(follows, -self.lam * states, 0.0)
        terms = [torch.where(follows, -self.lam * u, 0.0), self._back(push), self._back(pull)]
        for link in self.links:
            terms.append(link.back(link.divergence.link_gradient(link.pre_activation(states))))
            terms.append(link.back(-link.target))
        return terms

    def _back(self, slope: Tensor) -> Tensor:
        moved = torch.zeros_like(slope)
        moved[:-1] = slope[1:] @ self.recurrent.T
        return moved

    @cached_property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of all but Phi, or None."""
        if self.divergence.smoothness is None:
            return None
        norm = squared_norm_of(self.recurrent) ** 0.5
        total = self.lam * norm * (2 + self.divergence.smoothness * norm)
        each = [link.smoothness for link in self.links]
        known = [one for one in each if one is not None]
        return sum(known, total) if len(known) == len(each) else None

    def measure(self, value: Tensor) -> Measure:
        """Return the objective and the relative KKT residual at Z, in float64.

        The residual is the largest over the samples, each a problem of its own. It is that of a
        `StateFit` over all steps: the largest entry of s (Z - prox_{lam Phi / s}(Z - g / s)), g
        the gradient of all but Phi and s = lam + its Lipschitz constant, over lam and the largest
        entry of a term of g. Where W expands, terms of g can be of any size at a wrong point: the
        residual is then at least the share of lam + |objective| by which the objective can still
        fall, by a bound from the strong convexity of a joint D in Z_t - L Z_{t-1} W, or by the
        model of a Newton step where that promises less.
        """
        problem, states = self.double(), in_float64(self.divergence.activation, value)
        if self.smoothness is None:
            return measured(problem.values(states).sum(), torch.nan)
        if not self.drive.shape[1]:  # of a process without samples
            return measured(0.0, 0.0)
        point = LinearizedSteps(problem, states)
        return measured(point.objectives.sum(), point.relative.max())

    def double(self) -> StatesOverTime:
        """Return the problem in float64."""
        links = tuple(link.double() for link in self.links)
        drive, recurrent = self.drive.double(), self.recurrent.double()
        return replace(self, drive=drive, recurrent=recurrent, links=links)

    def take(self, samples: Tensor) -> StatesOverTime:
        """Return the problem of some samples."""
        links = tuple(link.take(samples) for link in self.links)
        return replace(
            self, drive=self.drive[:, samples], links=links, lengths=self.lengths[samples]
        )

    @cached_property
    def block(self) -> BoxedStates:
        """Lam Phi of the states that count."""
        shape = tuple(self.drive.shape)
        return BoxedStates(self.divergence, self.lam, shape, self.valid, self.drive)

    @cached_property
    def as_block(self) -> BlockFit:
        """The same problem with its maps spelled out: the delay, and the steps that count."""
        valid, delay = picked(self.valid), Moved(delayed, advanced)
        through = Composed(Composed(valid, Times(self.recurrent)), delay)
        drive = self.drive[self.valid]
        own = Link(self.divergence, through, drive, drive, self.lam)
        return BlockFit(self.block, None, tuple(link.link() for link in self.links), own, valid)

    @property
    def terms_above(self) -> Sequence[Link]:
        """The links, at the steps that they see."""
        return self.as_block.links

    def prior(self, v: cp.Expression) -> Statement:
        """Return lam sum_t D(Z_t, Z_{t-1} W + D_t) and the domain of Phi.

        Raises:
            DeclarationError: D is tight, and so not convex in all steps together.
        """
        return self.as_block.prior(v)


class LinearizedSteps:
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
            part = LinearizedSteps(self.problem.take(doubtful), self.states[:, doubtful])
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

    def step(self) -> Tensor:
        """Return the Newton step, (steps, samples, units)."""
        free, system, right = self._system()
        held = torch.where(free, 0.0, self.moved)
        right = torch.where(free, right - system.coupled(held), 0.0)
        return torch.where(free, system.solve(right), held)

    def _promise(self) -> Tensor:
        """Return by how much a Newton step lowers its model of the objective, (samples,)."""
        free, system, right = self._system()
        right = torch.where(free, right + self.rounded - self.violation, 0.0)
        return (right * system.solve(right)).sum((0, 2)) / 2

    def _system(self) -> tuple[Tensor, System, Tensor]:
        """Return which states are free, the system, and its right-hand side where they are."""
        lam = self.problem.lam
        free = (self.slope > _RIGID) & self.valid
        rise = self.slope.clamp(min=_RIGID)
        curvature = torch.where(free, lam / rise, 1.0)
        system = System(self.problem, self.states, self.slope, free, curvature)
        return free, system, (self.inertia + lam / rise) * self.moved


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
        return torch.where(both, -self.problem.lam * self.problem.recurrent.T, 0.0)


def hessian(link: TimeLink, states: Tensor) -> Tensor:
    """Return lam times the Hessian of R, 0 where not linked, (steps, samples, next, next)."""
    curved = curvatures(link.divergence, link.pre_activation(states))
    return link.lam * curved.where(link.counted[..., None, None], 0.0)


def forward_states(problem: StatesOverTime) -> Tensor:
    """Return the states of a forward pass, (steps, samples, units), 0 beyond the lengths."""
    states = torch.zeros_like(problem.drive)
    previous = torch.zeros_like(states[0])
    for step, drive in enumerate(problem.drive):
        driven = torch.addmm(drive, previous, problem.recurrent)
        previous = problem.divergence.activation.forward(driven)
        states[step] = previous
    return states.where(problem.valid.unsqueeze(-1), 0.0)


def best_start(problem: StatesOverTime) -> Tensor:
    """Return the states of a forward pass, or of rest in the samples where those are better.

    A forward pass through weights that expand makes states of 1e9, beside which the rounding of
    one step hides what the links ask for.
    """
    forward, exact = forward_states(problem), problem.double()
    rest = problem.divergence.activation.project(torch.zeros_like(forward))
    rest = rest.where(problem.valid.unsqueeze(-1), 0.0)
    reached = exact.values(forward.double()).nan_to_num(torch.inf)
    return torch.where((exact.values(rest.double()) < reached)[:, None], rest, forward)
