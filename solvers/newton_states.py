"""Newton's method for states: below tight or cross-entropy links, and of recurrent layers.

A state fit is solved as its links see it: Z(a), the gap Z(a) W + C - a, and the links' curvature;
the states of a recurrent layer by steps that are exact over time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import Softmax
from liftednet.problems import Link, StateFit
from liftednet.problems.states_over_time import LinearizedSteps, StatesOverTime, best_start
from liftednet.samples import row_chunks

from .base import Solver
from .proximal import Proximal
from .state_links import OfSamples, Unfinished, columns_above, quadratic, row_scales, states_refusal

_FEW = 32  # columns above up to which the steps pay for any activation
_FORCING = 0.02  # relative residual of the linear system of a step
_INNER = 50  # conjugate gradient steps for one step
_HALVINGS = 10
# of NewtonOverTime
_CHUNK_BYTES = 2**28  # of factors at a time
_CHUNK_BYTES_ON_GPU = 2**32
_HALVINGS_OVER_TIME = 20

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinkState(OfSamples):
    """Where the pre-activations above stand, sample by sample.

    Attributes:
        seen: a, (samples, columns of all links).
        push: (grad R_k(a) - V_k) lam_k / lam.
        u: U - push W'.
        states: Z(a) = phi(u).
        gap: F(a) = Z(a) W + C - a.
    """

    seen: Tensor
    push: Tensor
    u: Tensor
    states: Tensor
    gap: Tensor


@dataclass(frozen=True)
class LinkRows:
    """Some samples of a state fit whose links stand side by side.

    Attributes:
        activation: phi.
        links: one by one, for these samples.
        ratios: lam_k / lam.
        weight: [W_k], (units, columns).
        adjoint: its transpose, contiguous.
        u: U, (samples, units).
        scale: the largest of 1, the reach of U and V_k W_k' lam_k / lam, (samples,).
    """

    activation: Activation
    links: tuple[Link, ...]
    ratios: tuple[float, ...]
    weight: Tensor
    adjoint: Tensor
    u: Tensor
    scale: Tensor

    def rows(self, keep: Tensor) -> LinkRows:
        """Return some of the samples."""
        links = tuple(link.rows(keep) for link in self.links)
        return replace(self, links=links, u=self.u[keep], scale=self.scale[keep])

    def seen(self, states: Tensor) -> Tensor:
        """Return Z W + C."""
        return torch.cat([link.pre_activation(states) for link in self.links], 1)

    def pushed(self, seen: Tensor) -> Tensor:
        """Return (grad R_k(a) - V_k) lam_k / lam."""
        parts = zip(self.links, self.ratios, self._split(seen), strict=True)
        return torch.cat(
            [ratio * (link.divergence.link_gradient(a) - link.target) for link, ratio, a in parts],
            1,
        )

    def state(self, seen: Tensor) -> LinkState:
        """Return Z(a) and its gap."""
        push = self.pushed(seen)
        u = torch.addmm(self.u, push, self.adjoint, alpha=-1)
        states = self.activation.forward(u)
        return LinkState(seen, push, u, states, self.seen(states) - seen)

    def violation(self, at: LinkState) -> Tensor:
        """Return how far Z(a) is from stationary, (samples,), over lam."""
        change = self.pushed(at.seen + at.gap) - at.push
        return (change @ self.adjoint).abs().amax(1)

    def through(self, at: LinkState, x: Tensor) -> Tensor:
        """Return B x, with B = W' phi'(u) W."""
        return ((x @ self.adjoint) * self.activation.slope(at.u)) @ self.weight

    def roots(self, at: LinkState) -> tuple[Map, Map]:
        """Return M x and M'x, with M a root of the links' curvature J = M M' lam_k / lam."""
        parts = zip(self.links, self.ratios, self._split(at.seen), strict=True)
        roots, transposed = zip(*(_root(*part) for part in parts), strict=True)

        def beside(maps: tuple[Map, ...]) -> Map:
            return lambda x: torch.cat([f(y) for f, y in zip(maps, self._split(x), strict=True)], 1)

        return beside(roots), beside(transposed)

    def _split(self, seen: Tensor) -> tuple[Tensor, ...]:
        return seen.split([link.weight.shape[1] for link in self.links], 1)


def link_rows(problem: StateFit, part: slice) -> LinkRows:
    """Return the samples of a slice."""
    weight = torch.cat([link.weight for link in problem.links], 1)
    ratios = tuple(link.lam / problem.lam for link in problem.links)
    links = tuple(link.rows(part) for link in problem.links)
    u, adjoint = problem.pre_activation[part], weight.T.contiguous()
    scale = row_scales(problem, part)
    return LinkRows(problem.divergence.activation, links, ratios, weight, adjoint, u, scale)


def _root(link: Link, ratio: float, a: Tensor) -> tuple[Map, Map]:
    """Return a root of one link's curvature, and its transpose: diagonal, or of the softmax.

    diag(p) - p p' = M M' with M = diag(d) (I - d d') and d = sqrt(p), of length 1.
    """
    above = link.divergence
    if above.per_unit:
        diagonal = (ratio * above.link_curvature(a).clamp(min=0)).sqrt()
        return lambda x: diagonal * x, lambda x: diagonal * x
    d = above.link_gradient(a).sqrt()

    def projected(x: Tensor) -> Tensor:
        return x - d * (d * x).sum(1, keepdim=True)

    scale = ratio**0.5
    return lambda x: scale * d * projected(x), lambda x: scale * projected(d * x)


_Batch = Unfinished[LinkRows, LinkState]


@dataclass(frozen=True)
class NewtonStates(Solver[StateFit, Tensor, None]):
    """Solves a state fit by Newton's method in the pre-activations above.

    With a the pre-activations Z W + C that the links see, stationarity gives Z(a) = phi(U - (grad
    R(a) - V) W' lam_k / lam), and what remains is F(a) = Z(a) W + C - a = 0, with as many unknowns
    as units above. Its Jacobian is -(I + B J), B = W' phi' W and J the curvature of the links:
    conjugate gradients on I + J^(1/2) B J^(1/2), two products with W each. No prox is asked for.
    Samples that are done leave the batch; those whose steps no longer lower |F|, at kinks, are
    left to proximal gradient steps. A sample is done by its own scale, and Newton's steps are its
    own: what they come to does not depend on which samples are beside it.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: Newton steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import Tanh
        >>> from liftednet.divergences import tight
        >>> from liftednet.solvers import NewtonStates, solve
        >>> link = Link(tight(Tanh()), torch.eye(1), torch.zeros(1), torch.tensor([[0.5]]))
        >>> solve(StateFit(tight(Tanh()), torch.tensor([[1.0]]), (link,)), NewtonStates()).value
        tensor([[0.7108]])
    """

    tolerance: float | None = None
    max_iterations: int = 30
    kind = StateFit
    name: str = field(default="newton", init=False)

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for units mapped each by itself, and curvatures of the links."""
        if refused := states_refusal(problem):
            return refused
        if not problem.divergence.activation.per_unit:
            return f"{problem.divergence.activation!r} does not map each unit by itself"
        for above in (link.divergence for link in problem.links):
            if above.smoothness is None:
                return f"it needs a Lipschitz constant of {above.activation!r}"
            if not (above.per_unit or isinstance(above.activation, Softmax)):
                return f"it needs the curvature of {above.activation!r}"
        return None

    def suits(self, problem: StateFit) -> bool:
        """Say whether few units see the states, or the activation has no prox in closed form."""
        if quadratic(problem):
            return False
        return columns_above(problem) <= _FEW or not problem.divergence.activation.closed_prox

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer to the tolerance."""
        value = problem.divergence.activation.forward(problem.pre_activation).clone()
        value = value if start is None else start.clone()
        steps = 0
        for part in row_chunks(problem.samples, problem.units, value.device):
            batch, used = self._descend(link_rows(problem, part), value[part], 0.8 * tolerance)
            (value[part],) = batch.results()
            left = part.start + batch.unsolved()
            if len(left):  # at kinks
                u, links = problem.pre_activation[left], tuple(x.rows(left) for x in problem.links)
                some = replace(problem, pre_activation=u, links=links)
                rest = Proximal(tolerance).solve(some, value[left])
                value[left], used = rest.value, used + rest.iterations
            steps = max(steps, used)
        return value, steps

    def _descend(self, rows: LinkRows, states: Tensor, goal: float) -> tuple[_Batch, int]:
        """Return the batch where samples are solved, or their steps no longer lower |F|."""
        at, steps = rows.state(rows.seen(states)), 0
        batch = Unfinished(rows, at, lambda at: (at.states,), share=1.0)
        while True:
            late = batch.problem.violation(batch.at) > goal * batch.problem.scale
            if not batch.release(late, late) or steps == self.max_iterations:
                return batch, steps
            steps += 1
            batch.at, lower = _advance(batch.problem, batch.at)
            batch.release(lower, ~lower)


def _advance(rows: LinkRows, at: LinkState) -> tuple[LinkState, Tensor]:
    """Return the samples after a step along which F falls, and which of them found one."""
    direction = _direction(rows, at)
    length = torch.ones_like(at.gap[:, :1])
    before = at.gap.norm(dim=1, keepdim=True)
    for _ in range(_HALVINGS):
        to = rows.state(at.seen + length * direction)
        falls = to.gap.norm(dim=1, keepdim=True) <= (1 - 1e-4 * length) * before
        if bool(falls.all()):
            break
        length = torch.where(falls, length, length / 2)
    return to, falls[:, 0]


def _direction(rows: LinkRows, at: LinkState) -> Tensor:
    """Return (I + B J)^-1 F: x from (I + M'B M) x = M'F with J = M M', then F - B M x."""
    root, transposed = rows.roots(at)
    residual = transposed(at.gap)
    x, towards = torch.zeros_like(residual), residual
    size = residual.square().sum(1, keepdim=True)
    goal, tiny = _FORCING**2 * size, torch.finfo(size.dtype).tiny
    for _ in range(_INNER):
        image = towards + transposed(rows.through(at, root(towards)))
        length = size / (towards * image).sum(1, keepdim=True).clamp(min=tiny)
        length = length.where(size > goal, 0.0)  # others may go on
        x, residual = x + length * towards, residual - length * image
        following = residual.square().sum(1, keepdim=True)
        if bool((following <= goal).all()):
            break
        towards, size = residual + following / size.clamp(min=tiny) * towards, following
    return at.gap - rows.through(at, root(x))


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

    Example:
        >>> import torch
        >>> from liftednet.problems import StatesOverTime
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import NewtonOverTime, solve
        >>> drive, recurrent = torch.ones(2, 1, 1), torch.full((1, 1), 0.5)
        >>> fit = StatesOverTime(joint(ReLU()), drive, recurrent, (), torch.tensor([2]))
        >>> solution = solve(fit, NewtonOverTime())
        >>> solution.value.flatten(), solution.iterations
        (tensor([1.0000, 1.5000]), 0)
    """

    tolerance: float | None = None
    max_iterations: int = 100
    kind = StatesOverTime
    name: str = field(default="newton-over-time", init=False)

    def refusal(self, problem: StatesOverTime) -> str | None:
        """Ask for units that act by themselves, and Lipschitz constants."""
        if not problem.divergence.activation.per_unit:
            return f"it needs an activation unit by unit, not {problem.divergence.activation!r}"
        if problem.smoothness is None:
            return f"it needs a Lipschitz constant of {problem.divergence.activation!r}"
        return None

    def minimize(
        self, problem: StatesOverTime, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states to the tolerance, a stationary point where D is tight."""
        states = best_start(problem) if start is None else start.clone()
        exact, steps = problem.double(), 0
        units = problem.drive.shape[2]
        room = _CHUNK_BYTES_ON_GPU if states.is_cuda else _CHUNK_BYTES
        size = max(1, room // (16 * units * (units + 1) * problem.steps))
        for part in torch.arange(states.shape[1], device=states.device).split(size):
            value, taken = self._newton(exact.take(part), states[:, part].double(), tolerance)
            states[:, part] = value.to(states)
            steps = max(steps, taken)
        return states, steps

    def _newton(
        self, problem: StatesOverTime, states: Tensor, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the states of some samples, dropping each sample when it is done."""
        left = torch.arange(states.shape[1], device=states.device)
        open_problem, steps = problem, 0
        for steps in range(self.max_iterations + 1):
            point = LinearizedSteps(open_problem, states[:, left])
            going = point.relative > 0.5 * tolerance
            if not bool(going.any()) or steps == self.max_iterations:
                break
            if not bool(going.all()):
                left = left[going]
                open_problem = problem.take(left)
                point = LinearizedSteps(open_problem, states[:, left])
            states[:, left] = _improved(point)
        return states, steps


def _improved(at: LinearizedSteps) -> Tensor:
    """Return states whose objective is lower, as far as rounding allows."""
    step, best, before = at.step(), at.proximal.clone(), at.objectives
    slack = 1e-13 * (1 + before.abs())
    todo = torch.ones_like(before, dtype=torch.bool)
    for _ in range(_HALVINGS_OVER_TIME):
        trial = at.problem.divergence.activation.project(at.states + step)
        trial = torch.where(at.valid, trial, 0.0)
        better = todo & (at.problem.values(trial) <= before + slack)
        best = torch.where(better[:, None], trial, best)
        todo = todo & ~better
        if not bool(todo.any()):
            break
        step = step / 2
    return best
