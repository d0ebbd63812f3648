"""Fits in closed form or by a scalar dual: outputs of every sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednet.losses import SimplexCrossEntropy
from liftednet.problems import OutputFit
from liftednet.samples import row_chunks

from .base import Solver

_NEWTON_STEPS = 50  # ten suffice
_SETTLED = 1e-12  # of the sum of a sample's states from 1, which then is divided out


@dataclass(frozen=True)
class ClosedForm(Solver[OutputFit, Tensor, None]):
    """Solves an output fit with a loss whose minimizer is known, such as the squared one.

    For the squared loss Z = prox_{lam Phi}(Y + lam U), Lifted Neural Networks, section 6.2, for any
    activation with a prox.

    Example:
        >>> import torch
        >>> from liftednet.problems import OutputFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.solvers import ClosedForm, solve
        >>> y, u = torch.tensor([[1.0, -1.0]]), torch.tensor([[3.0, -1.0]])
        >>> solve(OutputFit(SquaredError(), y, tight(ReLU()), u), ClosedForm()).value
        tensor([[2., 0.]])
    """

    kind = OutputFit
    name: str = field(default="closed-form", init=False)

    def refusal(self, problem: OutputFit) -> str | None:
        """Ask for a loss whose minimizer is known."""
        if not problem.loss.closed:
            return f"it needs a loss such as SquaredError, not {type(problem.loss).__name__}"
        return problem.block.obstacle()

    def minimize(
        self, problem: OutputFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the exact minimizer; a start is not used."""
        y, u, activation = problem.target, problem.pre_activation, problem.divergence.activation
        return problem.loss.stationary_point(y, y, u, activation, problem.lam), 0


@dataclass(frozen=True)
class SimplexDual(Solver[OutputFit, Tensor, None]):
    """Solves the cross-entropy on the simplex, all samples at once, by its scalar dual.

    sum_i z_i(nu) = 1 with z_i(nu) of appendix A, increasing and convex in nu: Newton from the
    upper end of a bracket is monotone. The bracket is h_i = t_i - a_i / t_i - u_i with a = y /
    lam, min h <= nu <= max h for any t in the simplex (here y / sum y and the uniform point; 0/0
    = 0), cut with the printed upper bound; it contains no exponential.

    Example:
        >>> import torch
        >>> from liftednet.problems import OutputFit
        >>> from liftednet.activations import SimplexProjection
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SimplexCrossEntropy
        >>> from liftednet.solvers import SimplexDual, solve
        >>> y, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> fit = OutputFit(SimplexCrossEntropy(), y, tight(SimplexProjection()), u)
        >>> solve(fit, SimplexDual()).value  # 2 z^2 = 1
        tensor([[0.7071, 0.2929]])
    """

    kind = OutputFit
    name: str = field(default="simplex-dual", init=False)

    def refusal(self, problem: OutputFit) -> str | None:
        """Ask for the simplex cross-entropy."""
        if not isinstance(problem.loss, SimplexCrossEntropy):
            return f"it needs the loss SimplexCrossEntropy, not {type(problem.loss).__name__}"
        return None

    def minimize(
        self, problem: OutputFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer; a start is not used."""
        value = torch.empty_like(problem.pre_activation)
        steps = 0
        for part in row_chunks(len(value), value.shape[1], value.device):
            y, u = problem.target[part].T.contiguous(), problem.pre_activation[part].T.contiguous()
            states, used = _simplex_columns(y, u, problem.lam)
            # A state below the smallest normal number stands for a target that is all but 0, whose
            # loss at 0 would be infinite.
            gone = (y > 0) & (states == 0)
            value[part] = states.masked_fill_(gone, torch.finfo(states.dtype).tiny).T
            steps = max(steps, used)
        return value, steps


def settled(dtype: torch.dtype) -> float:
    """Return how far a sum of states may be from 1, by which they then are divided."""
    return max(8 * torch.finfo(dtype).eps, _SETTLED)


def _simplex_columns(y: Tensor, u: Tensor, lam: float) -> tuple[Tensor, int]:
    """Return the states of samples that are columns, (outputs, samples), and the steps taken.

    Columns, because sums over ten outputs are slow where these lie side by side; and u is taken
    from its largest entry, so that u of 1e6 costs no digits.
    """
    u, a = u - u.amax(0), y / lam
    lower, nu = _bracket(a, y, u)
    steps, tiny = 0, torch.finfo(u.dtype).tiny
    while True:
        steps += 1
        states, slopes = _states_at(nu, a, u)
        total = states.sum(0)
        excess = total - 1
        if steps == _NEWTON_STEPS or float(excess.abs().max()) <= settled(u.dtype):
            return states.div_(total), steps
        nu = torch.maximum(nu - excess / slopes.sum(0).clamp_(min=tiny), lower)


def _states_at(nu: Tensor, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return z >= 0 with z - a / z = s at s = u + nu, and dz / ds.

    With the root of s^2 + 4 a they are max(s, 0) + 2 a / (|s| + root) and z / root: nothing
    cancels.
    """
    s = u + nu
    root = torch.addcmul(4 * a, s, s).sqrt_().clamp_(min=torch.finfo(u.dtype).tiny)
    states = s.clamp(min=0) + 2 * a / (s.abs() + root)
    return states, states / root


def _bracket(a: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds of nu for samples that are columns, (samples,)."""
    total, outputs, tiny = y.sum(0), len(y), torch.finfo(y.dtype).tiny
    label = torch.where(total > 0, y / total.clamp(min=tiny), 1 / outputs)
    ratio = torch.where(label > 0, a / label.clamp(min=tiny), 0.0)
    at_label = label - ratio - u
    at_center = 1 / outputs - a * outputs - u
    upper = torch.minimum(at_label.amax(0), at_center.amax(0))
    lower = torch.maximum(at_label.amin(0), at_center.amin(0))
    printed = 1 - (u + a).amax(0)
    return lower, torch.minimum(upper, printed)
