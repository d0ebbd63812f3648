"""A ridge system that stands in for the Hessian of a generalized linear fit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import SolverError
from liftednet.problems import WeightFit

from . import deferred

_ROWS_PER_FEATURE = 8  # samples in the system; more did not save steps on real data
_SIGNS = 10_007  # samples after which the random signs of a probe come again
_PROBE = 0.1  # length of the probe, in units of the pre-activation
LEAST_CURVATURE = 1e-10  # of a sample, lest dead units be sent to infinity
_JITTERS = (0.0, 1e-12, 1e-9, 1e-6)  # of the diagonal, until Cholesky succeeds


@dataclass(frozen=True)
class Preconditioner:
    """The Cholesky factor of sum_i w_i [x_i, 1][x_i, 1]' + 2 rho / lam I, float64.

    Attributes:
        lower: the factor, (inputs + 1, inputs + 1) with a bias.
    """

    lower: Tensor

    def solve(self, right: Tensor) -> Tensor:
        """Return the solution for a right-hand side (inputs + 1, units), in its precision."""
        return torch.cholesky_solve(right.double(), self.lower).to(right)


def preconditioner(
    problem: WeightFit, inputs: Tensor, u: Tensor, pull_back: Tensor
) -> Preconditioner:
    """Return the factor at pre-activations u, (samples, units).

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
    return Preconditioner(jittered_cholesky(system))


def mean_curvature(problem: WeightFit, u: Tensor) -> Tensor:
    """Return r'(phi(u + h r) - phi(u)) / (h units) per sample, for a random sign vector r.

    It is nonnegative for every monotone map, and needs no derivative; kept from 0, where a
    direction would have no length. A sample's signs depend on its number alone, whichever of
    several processes has it.
    """
    generator, share = _generator(u.device), processes.share_of(len(u))
    shape = min(share.samples, _SIGNS), u.shape[1]
    drawn = torch.randint(0, 2, shape, generator=generator, device=u.device)
    if share.samples > _SIGNS:
        numbers = torch.arange(share.first, share.first + len(u), device=u.device)
        drawn = drawn[numbers % _SIGNS]
    else:
        drawn = drawn[share.first : share.first + len(u)]
    signs = drawn.to(u) * 2 - 1
    slope = problem.divergence.link_gradient
    change = slope(u + _PROBE * signs) - slope(u)
    curvature = problem.design.weighed((signs * change).mean(-1), slice(None))
    return curvature.clamp(min=LEAST_CURVATURE) / _PROBE


def rows_used(samples: int, features: int) -> int:
    """Return how many samples a preconditioner is made from."""
    return min(samples, _ROWS_PER_FEATURE * features)


def _sampled(inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    samples = int(processes.total_of(len(inputs)))
    count = rows_used(samples, inputs.shape[1] + 1)
    if samples == count:
        return inputs, weights.to(inputs)
    exact = weights.double()
    chance = 0.5 * exact / processes.total(exact.sum())[0] + 0.5 / samples
    drawn = _drawn(chance, count)
    return inputs[drawn], (weights / chance).to(inputs)[drawn] / count


def jittered_cholesky(system: Tensor) -> Tensor:
    """Return the Cholesky factor of a system that rounding may have made singular.

    Raises:
        SolverError: it is far from positive semidefinite; on a GPU the factor is NaN there.
    """
    if deferred.stays_on_device(system):
        return _first_factor(system)
    for jitter in _JITTERS:
        lower, info = _factored(system, jitter)
        if int(info) == 0:
            return lower
    raise SolverError("the system of a weight fit is not positive definite: scale the inputs.")


def _factored(system: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    shifted = system.clone()
    shifted.diagonal().mul_(1 + jitter).add_(torch.finfo(system.dtype).tiny)
    factor = torch.linalg.cholesky_ex(shifted)
    return factor.L, factor.info


def _first_factor(system: Tensor) -> Tensor:
    """Return the factor without jitter where it succeeds, else with most, without a look at it."""
    found = torch.full_like(system, torch.nan)
    for jitter in (_JITTERS[-1], _JITTERS[0]):
        lower, info = _factored(system, jitter)
        found = torch.where(info == 0, lower, found)
    return found


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
