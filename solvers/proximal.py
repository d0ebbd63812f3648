"""State fits by accelerated proximal gradient steps, for any activation with a prox."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.problems import Link, StateFit
from liftednet.samples import largest_eigenvalue, row_chunks

from .base import Solver
from .state_links import OfSamples, Unfinished, hessian_of, pulled, quadratic, row_scales

_PATIENCE = 200  # steps in which a sample's movement must fall
_COARSE = 1e-6  # relative movement that float32 reaches without trouble
_CHECK = 4  # steps between two looks at which samples are done


def curvature(problem: StateFit) -> tuple[float, Tensor | None]:
    """Return the smoothness of the links, and their Hessian, (units, units), of quadratic ones."""
    if not problem.matrices or not quadratic(problem):
        assert problem.smoothness is not None  # asked for by refusal
        return problem.smoothness, None
    hessian = problem.lam * hessian_of(problem)
    return largest_eigenvalue(hessian), hessian.to(problem.pre_activation)


@dataclass(frozen=True)
class PrimalRows:
    """min over Z of lam Phi(Z) - <Z, pull> + links, sample by sample.

    Attributes:
        activation: gives Phi.
        lam: its weight.
        step: s, the smoothness of the links.
        pull: lam U plus what quadratic links pull at, (samples, units).
        hessian: H of the quadratic links, or None.
        links: the other links.
        scale: what a sample's violation is relative to, (samples, 1).
    """

    activation: Activation
    lam: float
    step: float
    pull: Tensor
    hessian: Tensor | None
    links: tuple[Link, ...]
    scale: Tensor

    def rows(self, keep: Tensor) -> PrimalRows:
        """Return the problem of some of the samples."""
        links = tuple(link.rows(keep) for link in self.links)
        return replace(self, pull=self.pull[keep], links=links, scale=self.scale[keep])

    def to(self, dtype: torch.dtype) -> PrimalRows | None:
        """Return the problem in another precision, or None where links are not quadratic."""
        if self.hessian is None:
            return None
        pull, hessian, scale = (x.to(dtype) for x in (self.pull, self.hessian, self.scale))
        return replace(self, pull=pull, hessian=hessian, scale=scale)

    def gradient(self, states: Tensor) -> Tensor:
        """Return the gradient of all but Phi, (samples, units)."""
        if self.hessian is not None:
            return torch.addmm(self.pull, states, self.hessian, beta=-1)
        gradient = -self.pull
        for link in self.links:
            slope = link.divergence.link_gradient(link.pre_activation(states)) - link.target
            gradient = gradient + link.lam * link.map.adjoint(slope)
        return gradient

    def prox(self, states: Tensor) -> Tensor:
        """Return prox_{lam Phi / s}."""
        return self.activation.prox(states, self.lam / self.step)


def primal_rows(problem: StateFit, part: slice, step: float, hessian: Tensor | None) -> PrimalRows:
    """Return the problem for the samples of a slice, given its `curvature`."""
    links = tuple(link.rows(part) for link in problem.links)
    seen, others = ((), links) if hessian is None else (links, ())
    pull = pulled(problem.lam, problem.pre_activation[part], seen)
    scale = problem.lam * row_scales(problem, part).unsqueeze(1)
    activation = problem.divergence.activation
    return PrimalRows(activation, problem.lam, step, pull, hessian, others, scale)


@dataclass
class Walk(OfSamples):
    """Where accelerated steps of a batch are.

    Attributes:
        states: Z, (samples, units).
        ahead: the point Y from which the next step goes.
        momentum: of each sample, (samples, 1), at least 1.
        moved: largest entry of the last movement, (samples, 1).
        earlier: the same some steps before.
    """

    states: Tensor
    ahead: Tensor
    momentum: Tensor
    moved: Tensor
    earlier: Tensor


@dataclass(frozen=True)
class Proximal(Solver[StateFit, Tensor, None]):
    """Solves a state fit by accelerated proximal gradient with restarts.

    Z <- prox_{lam Phi / s}(Y - (gradient of the links at Y - lam U) / s) with s the smoothness of
    the links; Beck and Teboulle (2009), restarted as O'Donoghue and Candes (2015), each sample by
    itself. Samples that are done leave the batch. Quadratic links are one matrix H, for which,
    without a start, float32 leads and float64 finishes.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Proximal, solve
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> solve(StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,)), Proximal()).value
        tensor([[1.5000, 0.0000]])
    """

    tolerance: float | None = None
    max_iterations: int = 20_000
    kind = StateFit
    name: str = field(default="proximal", init=False)

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for a prox, and links with Lipschitz constants."""
        for link in problem.links:
            if link.divergence.smoothness is None:
                return f"it needs a Lipschitz constant of {link.divergence.activation!r}"
        return problem.block.obstacle()

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer to the tolerance."""
        value = problem.divergence.activation.forward(problem.pre_activation).clone()
        step, hessian = curvature(problem)
        if step == 0.0:
            return value, 0
        value = value if start is None else start.clone()
        steps = 0
        for part in row_chunks(problem.samples, problem.units, value.device):
            rows, goal = primal_rows(problem, part, step, hessian), 0.3 * tolerance
            near, led = (
                (value[part], 0) if start is not None else self._led(rows, value[part], goal)
            )
            value[part], used = self._descend(rows, near, goal)
            steps = max(steps, led + used)
        return value, steps

    def _led(self, rows: PrimalRows, start: Tensor, goal: float) -> tuple[Tensor, int]:
        """Return where float32 leads from a start that nobody gave, and the steps taken."""
        quick = rows.to(torch.float32)
        if quick is None or start.dtype is torch.float32:
            return start, 0
        near, steps = self._descend(quick, start.float(), max(goal, _COARSE))
        return near.double(), steps

    def _descend(self, rows: PrimalRows, start: Tensor, goal: float) -> tuple[Tensor, int]:
        """Return the states where their movement is within the goal, or no longer falls."""
        one, steps = start.new_ones(len(start), 1), 0
        begin = Walk(start, start, one, torch.inf * one, torch.inf * one)
        batch = Unfinished(rows, begin, lambda at: (at.states,))
        while steps < self.max_iterations:
            steps += 1
            batch.at = advance(batch.problem, batch.at)
            if steps % _CHECK in (0, 1) and not _goes_on(batch, goal, steps):
                break
        return batch.results()[0], steps


def _goes_on(batch: Unfinished[PrimalRows, Walk], goal: float, steps: int) -> bool:
    """Let samples end that hardly move, or move no less than before; say whether some go on."""
    at = batch.at
    going = late = batch.problem.step * at.moved > goal * batch.problem.scale
    if steps % _PATIENCE == 0:
        going = late & (at.moved < 0.7 * at.earlier)
        at.earlier = at.moved
    return batch.release(going[:, 0], late[:, 0])


def advance(rows: PrimalRows, at: Walk) -> Walk:
    """Return where one accelerated step leads."""
    following = rows.prox(at.ahead - rows.gradient(at.ahead) / rows.step)
    moved, change = at.ahead - following, following - at.states
    restart = (moved * change).sum(-1, keepdim=True) > 0
    momentum = torch.where(restart, 1.0, at.momentum)
    larger = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
    ahead = torch.addcmul(following, (momentum - 1) / larger, change)
    return Walk(following, ahead, larger, moved.abs().amax(-1, keepdim=True), at.earlier)
