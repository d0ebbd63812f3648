"""How strongly each layer is pulled to zero, told by the data that it is fitted to."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from liftednet import processes
from liftednet.noise import Noise

from .equations import DirectModel, hessians, output_jacobians, parts_of
from .kinks import exchanged, quasi_newton
from .objective import Forward, Target
from .steps import LevenbergMarquardt, Taken, direct

_SETTLED = 0.05  # relative decrease of a step, below which weights have followed their rho
_SLOW = 1e-3  # relative decrease at kinks, less than that of `steps`: rho moves the kinks, too
_STEPS = 50  # of L-BFGS across kinks, before another rho
_PATIENCE = 5  # looks at the evidence without a better one
_BETTER = 0.01  # of log p(y): less is no news
_DRAWN = 30  # units that look at what is left
_SEEN = 2.5  # F of what they explain, whose 99 % point is 2.4 of sixty answers, less of more
_LEFT = 0.05  # share of the first objective: where less is left, no unit is missed
_LOWERED = 0.03  # of the objective, at least, for other units to stay
_FAILURES = 5  # looks that lead to no other units, after which there are no more
_NOISELESS = 1e-20  # share of the first objective: below it no noise is left to tell a rho by
_FITTED = 0.5  # share of the answers that a first look may find fitted
_LEAST_SHARE = 1e-6  # of the largest noise of an output, that of others at least
_CLEAN = 1e-3  # of the first objective, below which there is little noise to follow
_CLEARLY = 3.0  # standard errors by which counts vary more than Poisson's
_CERTAIN = 0.01  # curvature for each weight that is determined: no minimizer has less
_LEAST = 1e-6  # of a rounding of the mean curvature: no rho is less
NO_TAILS = (math.inf, 0.0, 1.0)
_RESTART = 10.0  # factor on rho for the restart after weights have followed the noise


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of a network near a minimizer, and the rho that raise it.

    With noise of variance s and weights of layer l from N(0, s / (2 rho_l)), Laplace's
    approximation at the minimizer of F = |y - u(w)|^2 / 2 + sum_l rho_l |W_l|^2 is
    log p(y) = -F / s - (N / 2) log(2 pi s) + sum_l (n_l / 2) log(2 rho_l) - log det(H) / 2,
    H = J'J + 2 rho. Of all s it is largest at 2 F / N, by which it is told. It is stationary where
    s = |y - u|^2 / (N - gamma) and rho_l = gamma_l s / (2 |W_l|^2),
    gamma_l = n_l - 2 rho_l tr (H^-1)_l being the weights of a
    layer that the data determine: MacKay, A Practical Bayesian Framework for Backpropagation
    Networks, 1992; with Gauss-Newton's H Foresee and Hagan, Gauss-Newton Approximation to Bayesian
    Learning, 1997. Biases count as weights here, so that a unit that answers nothing tells nothing.
    Weights that rest on an end are known, and stand neither in n_l nor in H. Where N - gamma is
    below 1, s is 2 F / N, which is the same where it is stationary, and known by N degrees.

    Of Huber's loss s is sum psi^2 / (n - gamma), psi being residuals clipped at delta and n those
    within it (his own asymptotic variance, 1964, which outliers hardly move), B is 1 for these n,
    and the first two terms are the likelihood of `Noise`, whose tails are as far as residuals are.
    Other losses D(y, u) are probabilities by themselves, exp(-D): s is 1, the second term is none,
    and H = J'BJ + 2 rho with B the Hessian of D in u. Counts may vary more than Poisson's: where
    Pearson's sum (y - r)^2 / r over N - gamma is clearly above 1, that is s, and the first terms
    are -F / s - (N / 2) log s, the extended quasi-likelihood of Nelder and Pregibon (1987).

    Attributes:
        logarithm: log p(y).
        rhos: the next rho of every layer.
        fitted: sum of gamma_l over N, what the weights have of each answer.
        noise: s.
        degrees: N less the sum of gamma_l; infinite where s is known.
        tails: delta, share and length of those of the noise, see `Noise`.
        follows: whether the weights can follow every answer, so that the data tell of no noise.
    """

    logarithm: float
    rhos: tuple[float, ...]
    fitted: float
    noise: float
    degrees: float
    tails: tuple[float, float, float] = NO_TAILS
    follows: bool = False


def evidence(forward: Forward, model: DirectModel, objective: float) -> Evidence | None:
    """Return the evidence at the point of a model, None where rounding hides it, or is all of it.

    Args:
        forward: with one rho for each of its weights.
        model: of it.
        objective: F at its point.
    """
    prior = prior_of(forward)
    found = model.determined(prior)
    if found is None:
        return None
    determined, determinant = found
    parts = [part.numel() for part in forward.pull]
    known = [float(part.sum()) for part in determined.split(parts)]
    if not sum(known) > len(prior) * torch.finfo(torch.float64).eps:  # no weight moves an answer
        return None
    answers = processes.total_of(sum(map(count_answers, forward.targets)))
    logarithm = (float(model.released(prior.log()).sum()) - determinant) / 2
    noise, degrees, tails, follows = 1.0, math.inf, NO_TAILS, False
    if forward.squared:
        delta, outputs = forward.targets[0].delta, model.operator.linear.outputs
        sums = [x.residuals(u) for x, u in zip(forward.targets, outputs, strict=True)]
        near, squares, far, excess = processes.total(torch.stack(sums).sum(0))[0].tolist()
        degrees = max(near - sum(known), 1.0)
        beyond = delta**2 * far if far else 0.0
        noise = (squares + beyond) / degrees
        follows = answers - sum(known) < forward.targets[0].outputs
        if follows and not far:  # |y - u|^2 is then rounding as well
            noise, degrees = 2 * objective / answers, answers
        if not noise > 0:
            return None
        if math.isinf(delta):
            logarithm -= answers / 2 * (math.log(4 * math.pi * objective / answers) + 1)
        else:
            law = Noise.of_residuals(model.point.new_tensor(noise), delta, near, far, excess)
            tails = delta, law.share, law.length
            pulled = objective - (squares + beyond) / 2 - delta * excess
            logarithm += law.log_likelihood(near, squares, far, excess) - pulled / noise
    elif _vanishes(model, sum(known)):
        logarithm = -math.inf
    else:
        noise = _dispersion(forward, model, sum(known))
        logarithm -= objective / noise + answers / 2 * math.log(noise)
    sizes = [
        float(part.square().sum()) for part in (model.point * (forward.pulls > 0)).split(parts)
    ]
    rounding = torch.finfo(torch.float64).eps
    least = _LEAST * rounding * model.mean_curvature
    rhos = (
        max(count * noise / (2 * max(size, rounding * model.mean_curvature)), least)
        for count, size in zip(known, sizes, strict=True)
    )
    return Evidence(logarithm, tuple(rhos), sum(known) / answers, noise, degrees, tails, follows)


def _dispersion(forward: Forward, model: DirectModel, determined: float) -> float:
    """Return s of counts that vary more than chance lets Poisson's, 1 of all else."""
    pairs = zip(forward.targets, model.operator.linear.outputs, strict=True)
    sums = [target.pearson(outputs) for target, outputs in pairs if target.dispersed]
    if len(sums) < len(forward.targets):
        return 1.0
    answers, total, variance = processes.total(torch.stack(sums).sum(0))[0].tolist()
    found: float = total / max(answers - determined, 1.0)
    return found if found > 1 + _CLEARLY * variance**0.5 / answers else 1.0


def _vanishes(model: DirectModel, determined: float) -> bool:
    """Say whether probabilities are so certain that H is that of the prior, whatever the labels.

    All weights that the prior allows would answer like these then, and the evidence be as large of
    noise as of anything. No minimizer is like this: there the last weights are pulled as much as
    the loss asks for, which by the rho of the evidence is half of what is determined, and is at
    most the curvature of all answers times their log odds.
    """
    operator = model.operator
    pairs = zip(operator.curved, operator.linear.outputs, strict=True)
    bent = sum(float(hessians(*x).diagonal(dim1=-2, dim2=-1).sum()) for x in pairs)
    return processes.total_of(bent) < _CERTAIN * determined


def prior_of(forward: Forward) -> Tensor:
    """Return 2 rho of every weight, that of its layer for biases, (parameters,)."""
    return torch.cat([part.amax().expand(part.numel()) for part in forward.pull])


def count_answers(target: Target) -> float:
    """Return how many numbers a target asks for; a sample of weight 2 counts as two."""
    counted = target.counted
    weight = target.weight[..., 0] if isinstance(target.weight, Tensor) else target.weight
    return target.outputs * float((weight * counted).sum())


def pulled_by(
    forward: Forward, rhos: tuple[float, ...], precision: Tensor | None = None
) -> Forward:
    """Return the objective with another rho for every weight, and precision of every output."""
    pull = (2 * rho * (part > 0) for rho, part in zip(rhos, forward.pull, strict=True))
    targets = tuple(replace(target, precision=precision) for target in forward.targets)
    return replace(forward, pull=tuple(pull), targets=targets)


def precision_of(forward: Forward, model: DirectModel) -> Tensor | None:
    """Return s / s_k of outputs that have a noise s_k each, (outputs,); None where there is one.

    s_k = |r_k|^2 / (N - gamma_k) with what the weights have of the output's answers, gamma_k =
    sum_i j_ik' H^-1 j_ik, where j_ik is weighed as its sample is. Their geometric mean is s.

    Args:
        forward: the network and what it is held to.
        model: of it.
    """
    outputs = forward.targets[0].values.shape[-1]
    if len(forward.targets) > 1 or outputs == 1 or not forward.squared:
        return None
    if math.isfinite(forward.targets[0].delta):  # which all outputs have in common
        return None
    covariance = model.covariance(prior_of(forward))
    if covariance is None:
        return None
    sums = model.point.new_zeros(3, outputs)
    for part in parts_of(forward, len(model.point)):
        (answers,), (rows,) = output_jacobians(part, model.point)
        (target,) = (replace(x, precision=None) for x in part.targets)
        weights = target.curved(answers)(torch.ones_like(answers))
        shares = covariance.image(rows).square().sum(-1)
        if forward.targets[0].precision is not None:
            shares = shares * forward.targets[0].precision
        squares = (answers - target.values).square()
        terms = torch.stack([weights, weights * shares, weights * squares])
        sums += terms.sum((1, 2))
    (counted, known, squares) = processes.total(sums)[0]
    noise = squares / (counted - known).clamp(min=1.0)
    noise = noise.clamp(min=max(_NOISELESS, float(noise.max()) * _LEAST_SHARE))
    return noise.log().mean().exp() / noise


@dataclass
class Place:
    """Where steps by evidence stand.

    Attributes:
        point: all weights, (parameters,), float64.
        rhos: of every weight.
        begin: the weights and rho that these steps have begun with.
        best: those of the largest evidence, and it; None before the first look.
        logarithm: the largest evidence since they began.
        stale: looks since then.
        fitted: share of the answers that their first look has found fitted, None before it.
        precision: of every output, (outputs,), None where all have the same noise.
        looks: all there were, by which units are drawn.
        failures: looks that have led to no other units since some did.
        first: the objective where all began; None before the first step.
        corrections: of a step; longer ones follow the noise before the first look.
    """

    point: Tensor
    rhos: tuple[float, ...]
    begin: tuple[Tensor, tuple[float, ...]]
    best: tuple[Tensor, tuple[float, ...], float] | None = None
    logarithm: float = -math.inf
    stale: int = 0
    fitted: float | None = None
    precision: Tensor | None = None
    looks: int = 0
    failures: int = 0
    first: float | None = None
    corrections: int | None = 1

    @property
    def chosen(self) -> tuple[Tensor, tuple[float, ...]]:
        """The point and the rho to keep."""
        return (self.point, self.rhos) if self.best is None else self.best[:2]

    def take(self, seen: Evidence, precision: Tensor | None) -> None:
        """Take a look at the evidence of the point, and the rho and noise that it asks for."""
        self.fitted = seen.fitted if self.fitted is None else self.fitted
        self.stale += 1
        self.looks += 1
        if seen.logarithm > self.logarithm:
            # Weights that follow every answer trade lengths between layers for hundreds of steps.
            if seen.logarithm > self.logarithm + _BETTER and not seen.follows:
                self.logarithm, self.stale = seen.logarithm, 0
            if self.best is None or seen.logarithm > self.best[2]:
                self.best = self.point, self.rhos, seen.logarithm
        self.rhos, self.precision = seen.rhos, precision

    def begins_anew(self) -> bool:
        """Say whether weights have followed the noise, and if so, begin with more rho."""
        if self.fitted is None or self.fitted <= _FITTED:
            return False
        point, rhos = self.begin
        self.point, self.rhos = point, tuple(_RESTART * rho for rho in rhos)
        self.begin = self.point, self.rhos
        self.logarithm, self.stale, self.fitted, self.precision = -math.inf, 0, None, None
        return True


def steps_by_evidence(
    forward: Forward, place: Place, solver: LevenbergMarquardt
) -> Generator[Taken, None, bool]:
    """Yield one step after another; rho changes wherever the weights have followed it.

    Weights that have once fitted the noise are seldom led back: where the first look finds more
    than half of the answers fitted, the steps begin once more with ten times the rho, and what has
    the larger evidence is kept. Where units have kinks and others see what these have left, some
    are exchanged.

    Args:
        forward: the network and what it is held to.
        place: where to begin, brought up to date before every yield.
        solver: with the damping to go on with.

    Returns:
        Whether the evidence has reached its maximum; no step lowers the objective otherwise.
    """
    if place.first is None:
        place.first = pulled_by(forward, place.rhos).objective(place.point)
    first = place.first
    while True:
        solver.corrections = place.corrections
        if place.stale == _PATIENCE:
            if not place.begins_anew():
                return True
            solver.mu = 0.0
        now = pulled_by(forward, place.rhos, place.precision)
        objective = now.objective(place.point)
        if not math.isfinite(objective):  # by rho without bound, of outputs that nothing moves
            return False
        if objective <= _NOISELESS * first:  # of targets that are all alike, which zero weights fit
            return True
        model = direct(now, place.point)
        found = solver.descend(model, partial(now.decrease, place.point, objective))
        decrease = 0.0 if found is None else found.decrease
        after = None if found is None else now.within(place.point + found.step)
        if now.kinked and decrease < _SLOW * objective:
            reached, lower = quasi_newton(now, place.point, _STEPS)
            if objective - lower > decrease:
                after, decrease = reached, objective - lower
        looked = None
        if decrease < _SETTLED * objective:
            seen = evidence(now, model, objective)
            if seen is None:
                return False
            place.take(seen, precision_of(now, model))
            looked = seen.logarithm
            if objective > _LEFT * first and (other := _exchange(now, place)):
                after, decrease = other
            if seen.fitted <= _FITTED and objective < _CLEAN * first:
                place.corrections = None  # more than one follow the noise
        if after is not None:
            place.point = after
            attempts = 1 if found is None else found.attempts
            yield Taken(
                after, objective - decrease, decrease, model.residual, attempts, True,
                evidence=looked,
            )  # fmt: skip
        else:
            solver.mu = 0.0  # another rho is another problem


def _exchange(forward: Forward, place: Place) -> tuple[Tensor, float] | None:
    """Return where other units lead to, and how much lower the objective is there.

    No descent moves kinks across samples that want them elsewhere, and the evidence takes what they
    leave for noise, by which it pulls them the more: so rho is not larger than at first. None where
    random units see none but noise, or have not led far.
    """
    if not forward.hidden or place.failures == _FAILURES:
        return None
    place.failures += 1
    start, seen = exchanged(forward, place.point, place.looks, _DRAWN)
    if seen < _SEEN:
        return None
    rhos = tuple(map(min, place.rhos, place.begin[1]))
    forward = pulled_by(forward, rhos, place.precision)
    reached, lower = quasi_newton(forward, start, _STEPS)
    decrease = forward.objective(place.point) - lower
    if decrease < _LOWERED * lower:
        return None
    place.rhos, place.failures, place.stale = rhos, 0, 0
    return reached, decrease
