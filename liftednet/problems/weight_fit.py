"""Weights of one layer, its inputs and states given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan

import torch
from torch import Tensor
from torch.nn import functional

from liftednet import processes
from liftednet.divergences import Divergence, Joint, require_divergence
from liftednet.errors import DeclarationError
from liftednet.maps import Rows
from liftednet.penalties import Penalty
from liftednet.problems.fit import NEAR, Fit, Link, Measure, curvatures, require_bounded
from liftednet.problems.priors import PenalizedWeights
from liftednet.samples import Design, Weights, row_chunks
from liftednet.sets.penalty import Judgement
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)

_ROUNDED = 1e-14  # of terms, by which their sums may be off
_UNSEEN = 1e-6  # of the objective's size, below which terms of weights may be their rounding
_FAR = 1e300
_TINY = torch.finfo(torch.float64).tiny
_EPS = torch.finfo(torch.float64).eps
LEAST_CURVATURE = 1e-10  # of a sample, lest dead units be sent to infinity
_SMALL = 1_024  # unknowns
_MOST = 1 << 31  # operations of a Hessian, beyond which a certificate does without it
_HIDDEN = 30.0  # ratio of terms from which a mean hides the others in a residual
_CANCELLED = 1e-6  # of the terms of a sum, that are left where it has lost nearly all digits
_SUMMED = 8  # times the rounding of the largest term, that sums may be off


@dataclass(frozen=True, eq=False, repr=False)
class WeightFit(Fit[Weights]):
    """min over W, b of lam sum_i [R(x_i W + b + c_i) - <x_i W + b + c_i, v_i>] + pi(W).

    Lifted Neural Networks, section 6.1. A joint divergence makes it a ridge regression with
    target (v - phi(0)) / L - c, a tight one a generalized linear model.

    Attributes:
        divergence: gives R.
        design: [X, 1] with X (samples, inputs).
        targets: V, (samples, units), states or data.
        lam: the weight of the divergence, positive.
        penalty: pi.

    Raises:
        DataError: shapes, types or lam do not fit.
        DeclarationError: no divergence, no `Design`, or no penalty.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import solve
        >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
        >>> fit = WeightFit(joint(Identity()), Design(x), 2 * x + 1, SquaredFrobenius(1e-9))
        >>> weights = solve(fit).value
        >>> weights.matrix.round(decimals=4), weights.bias.round(decimals=4)
        (tensor([[2.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    divergence: Divergence
    design: Design
    targets: Tensor
    penalty: Penalty
    lam: float = 1.0
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse data that do not fit together."""
        object.__setattr__(self, "lam", require_positive("lam", self.lam))
        require_divergence("a WeightFit", self.divergence)
        _require_kind("design", self.design, Design, "Design(X)")
        _require_kind("penalty", self.penalty, Penalty, "SquaredFrobenius(rho)")
        require_matrix("the targets V", self.targets)
        require_like("the targets V", self.targets, "the inputs X", self.design.inputs)
        if self.targets.shape[0] != self.design.samples:
            require_shape(
                "the targets V",
                self.targets,
                (self.design.samples, self.targets.shape[1]),
                f"beside inputs X of shape {tuple(self.design.inputs.shape)}",
            )
        if self.offset is not None:
            shape = (self.design.samples, self.units)
            require_shape("the offset C", self.offset, shape, "like X W")
            require_like("the offset C", self.offset, "the inputs X", self.design.inputs)

    @property
    def units(self) -> int:
        """The number of pre-activations, the columns of W."""
        return self.targets.shape[1]

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the fit unbounded."""
        require_finite("the inputs X", self.design.inputs)
        require_finite("the targets V", self.targets)
        require_bounded("the targets V", self.divergence, self.targets)
        if self.offset is not None:
            require_finite("the offset C", self.offset)
        if self.penalty.closed_form:  # others, which CVXPY states, tell it there
            self.penalty.refuse_infeasible((self.design.features, self.units))

    def zeros(self) -> Weights:
        """Return weights that are all zero, a feasible start."""
        x = self.design.inputs
        bias = x.new_zeros(self.units) if self.design.bias else None
        return Weights(x.new_zeros(self.design.features, self.units), bias)

    @property
    def quadratic(self) -> bool:
        """Whether it is a ridge regression, but for its penalty."""
        return self.divergence.quadratic

    @cached_property
    def balanced(self) -> bool:
        """Whether grad R(u) - v sums to 0 over units, so that what moves all u alike is free."""
        return self.divergence.balanced

    @cached_property
    def terms_above(self) -> Sequence[Link]:
        """The divergence, with [W; b] seen through [X, 1]."""
        offset = self.targets.new_zeros(self.units) if self.offset is None else self.offset
        rows, weights = Rows(self.design), self.design.weights
        return (Link(self.divergence, rows, offset, self.targets, self.lam, weights),)

    @cached_property
    def block(self) -> PenalizedWeights:
        """pi(W) of [W; b]."""
        return PenalizedWeights(self.penalty, self.zeros())

    @cached_property
    def pulled(self) -> Tensor:
        """V, less L C where the divergence is quadratic: what X W + b alone is pulled to."""
        if self.offset is None or not isinstance(self.divergence, Joint):
            return self.targets
        return torch.sub(self.targets, self.offset, alpha=self.divergence.smoothness)

    @property
    def ridge_targets(self) -> Tensor:
        """(V - c) / L - C, to which a quadratic divergence pulls X W + b, in float64."""
        assert isinstance(self.divergence, Joint) and self.divergence.smoothness is not None
        pulled = self.pulled.double()
        return (pulled - self.divergence.offset(pulled)) / self.divergence.smoothness

    @cached_property
    def rough(self) -> WeightFit:
        """The fit by sums of products in the type of X."""
        return replace(self, design=self.design.rough)

    @cached_property
    def cross(self) -> Tensor:
        """[X - shift, 1]' times what X W + b is pulled to, in float64."""
        design = self.design.centered
        return (design.cross_with_gram if self.by_gram else design.cross)(self.pulled)

    @cached_property
    def asked(self) -> Tensor:
        """[X - shift, 1]' times what a quadratic divergence pulls to, less c = phi(0)."""
        assert isinstance(self.divergence, Joint)
        offset = self.divergence.offset(self.cross)
        if not bool(offset.any()):
            return self.cross
        return self.cross - torch.outer(self.design.centered.total, offset)

    @cached_property
    def by_gram(self) -> bool:
        """Whether sums over samples tell everything."""
        return isinstance(self.divergence, Joint) and not self.design.wide

    @cached_property
    def by_rows(self) -> WeightFit:
        """The fit by passes over the samples, which take few units less time than a Gram matrix."""
        fit = replace(self)
        fit.__dict__["by_gram"] = False
        return fit

    @cached_property
    def constant(self) -> float:
        """What the offset alone adds to the value of a quadratic divergence, over lam."""
        if self.offset is None:
            return 0.0
        rows = self.divergence.link_values(self.offset.double(), self.targets.double())
        return processes.total_of(float(self.design.weighed(rows, slice(None)).sum()))

    @cached_property
    def _pulls(self) -> Tensor:
        """The sum of squares over samples of what every unit is pulled to, (units,), in float64."""
        squares = torch.zeros(self.units, dtype=torch.float64, device=self.targets.device)
        for part in row_chunks(self.design.samples, self.units, squares.device):
            squares += self.design.rooted(self.pulled[part].detach(), part).square().sum(0)
        return processes.total(squares)[0]

    @cached_property
    def _unit(self) -> float:
        """What an objective has of a sample: 1, or the |V|^2 of targets in small units."""
        if not self.divergence.quadratic:
            return 1.0
        return min(1.0, float(self._pulls.sum()) / self.design.mass or 1.0)

    @cached_property
    def _least_term(self) -> float:
        """A share of what sums over samples are made of, below which they are mostly rounding."""
        pull = float(self._pulls.max()) if self.divergence.quadratic else self.design.mass
        return _CANCELLED * (float(self.design.centered.squares.max()) * pull) ** 0.5

    @property
    def curvature(self) -> float:
        """Lam L, a Lipschitz constant of the gradient of the divergence in the pre-activations."""
        assert self.divergence.smoothness is not None  # asked for by who takes it
        return self.lam * self.divergence.smoothness

    @property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of the divergence in [W; b + shift W], or None."""
        if self.divergence.smoothness is None:
            return None
        return self.curvature * self.design.centered.squared_norm

    def measure(self, value: Weights) -> Measure:
        """Return the objective and the relative KKT residual at (W, b), in float64.

        The residual is the largest entry of the stationarity condition, X'(grad R(u) - V) lam +
        dpi(W), over the largest entry of its terms X'grad R(u) lam and X'V lam, X as it is
        centered (without a bias, its part across the mean of X is judged by centered terms, too, as
        with one all of it is where targets lie far from 0);
        what the rounding of b itself may bring to it does not count. It is at least the share of
        the objective that rounding hides where pre-activations are huge, or that steps of
        rows can gain; and, of several penalties, a duality gap over the objective's size,
        or over that of |W|'(X'grad R(u) + X'V) lam + pi(W) under a bound (see `Penalty.judged`).
        Sums of a `rough` design add what their own rounding may hide.
        """
        stacked = self.design.centered.joined(value)
        weight = value.matrix.double()
        if self.divergence.smoothness is None or not self.penalty.proximable:
            objective = self._link_value(stacked) + self.penalty.value(weight)
            return Measure(float(objective), torch.nan)
        link, slope = self._sums(stacked)
        gradient = self.lam * (slope - self.cross)
        judgement = self._judged(weight, gradient)
        violation = torch.cat([judgement.violation, gradient[len(weight) :]])
        lost, hidden = self._lost(weight, violation, gradient), (stacked * self.cross).abs().sum()
        found = [link, self.penalty.value(weight), lost, hidden]
        found += [part.abs().max() for part in (slope, self.cross, violation)]
        link, paid, lost, hidden, *largest = torch.stack(found).tolist()
        objective = self.lam * link + paid
        scale = self.lam * max(*largest[:2], self._least_term) or 1.0
        residual = largest[2] / scale
        if value.bias is not None and residual > _ROUNDED:
            off = torch.sub(violation.abs(), self._rounding(value.bias))
            residual = max(float(off.max()), 0.0) / scale
        unseen = 0.0 if self.design.exact else self._unseen(stacked)
        residual += unseen / scale
        residual = max(residual, self.across_mean(violation, unseen))
        residual = max(residual, self._about_mean(weight, gradient, unseen))
        hidden *= self.design.rounding * self.lam
        size = self.lam * self.design.mass * self._unit + abs(objective) or 1.0
        if value.bias is not None and not self.divergence.quadratic:
            residual = max(residual, self._run_away(stacked, violation[-1], residual * size) / size)
        if judgement.gap > 0:
            against = size
            if isfinite(self.penalty.reach):
                terms = weight.abs() * (slope.abs() + self.cross.abs())[: len(weight)]
                against = max(self.lam * float(terms.sum()) + paid, _UNSEEN * size)
            residual = max(residual, judgement.gap / against)
        worst = max(residual, hidden / size, lost / size)  # which passes over what is no number
        if isnan(hidden + lost + sum(largest)):
            return Measure(objective, torch.nan)
        if worst < NEAR and self.small:
            told = worst * size
            worst = max(worst, self._hidden(stacked, gradient, violation, told) / size)
        return Measure(objective, worst)

    def duals(self, value: Weights) -> tuple[Tensor, ...]:
        """Return the duals of the constraints on W, those of `formulate` in its order and shapes.

        At a minimizer G + 2 rho W + S = 0, with G = lam X'(grad R(u) - V) and S normal to the set:
        where pi is squares and one set, W tells S, and S its multipliers (Boyd and Vandenberghe,
        Convex Optimization, 2004, section 5.5.3). Of other penalties there is nothing.
        """
        sets = [part for part in self.penalty.parts if not part.smooth]
        if len(sets) != 1 or self.divergence.smoothness is None:
            return ()
        if type(sets[0]).duals is Penalty.duals:  # which has none, and needs no gradient
            return ()
        weight = value.matrix.double()
        gradient = self.gradient(self.design.centered.joined(value))[0][: len(weight)]
        for square in self.penalty.parts:
            if square.smooth:
                gradient = square.stationarity(weight, gradient, 0.0)
        return sets[0].duals(weight, gradient)

    def _run_away(self, stacked: Tensor, slope: Tensor, told: float) -> float:
        """Return what biases back at 0 may gain, or less than is told.

        Where phi is 0 for all samples targets next to 0 are all that holds a bias.
        """
        away = (slope * stacked[-1]).abs()
        if not float(away.max()) > told:
            return 0.0
        bent = slope.square() / (2 * self._curvature_of_bias(stacked))
        return float(torch.minimum(away, bent).max())

    def _hidden(self, stacked: Tensor, gradient: Tensor, violation: Tensor, told: float) -> float:
        """Return by how much the objective may still fall, or `told` where that is no less.

        With g a subgradient and H the Hessian it is nowhere lower than g'H^-1 g / 2 (exactly where
        R is quadratic), and no W further away than the reach of the penalty. Entries that a step
        puts at 0 lose what they have, and stay there. Inputs that hardly vary have next to no
        gradient, and much to gain. Targets that rounding has off the domain are the nearest in it,
        as CVXPY has them.
        """
        rows, curvature, penalty = self.design.features, self.penalty.curvature, self.penalty
        if penalty.smooth and self.divergence.quadratic:  # as it mostly is, by far
            least = min(curvature, self._steepest)
            if float(violation.square().sum()) <= 2 * least * told:
                return told
        targets = self.targets.double()
        rounded = self.divergence.nearest_target(targets) - targets
        if processes.largest([float(rounded.any())]).any():  # on one process: all form the sum
            gradient = gradient - self.lam * self.design.centered.cross(rounded)
        if self.balanced:
            gradient = gradient - gradient.mean(1, keepdim=True)  # rounding, over no curvature
        weight, slope = stacked[:rows], gradient[:rows]
        off, free = gradient.clone(), torch.ones_like(gradient, dtype=torch.bool)
        if penalty.smooth:
            off[:rows] = penalty.stationarity(weight, slope, 1.0)
        else:
            # A step of 1 / s may be lost in the rounding of W: then one of 1e-8 of W tells.
            seen = float(slope.abs().max() / (_EPS**0.5 * weight.abs().max()).clamp(min=_TINY))
            steep = min(self._smoothest or 1.0, seen or 1.0)
            point = penalty.prox(weight - slope / steep, 1 / steep)
            off[:rows], free[:rows] = steep * (weight - point), point != 0
        reach = min(penalty.reach, _FAR)
        within = float((off[:rows].abs() * (weight.abs() + reach)).sum())
        convex = float(off[:rows].square().sum()) / (2 * curvature or _TINY)
        most = min(within, convex)
        if self.design.bias:  # whose curvature is next to nothing where phi is saturated
            most += float((off[rows] ** 2 / (2 * self._curvature_of_bias(stacked))).sum())
        if isinstance(self.divergence, Joint):  # no curvature is told below eps
            flat = self.curvature * self.design.centered.squares.max()
            most = min(most, float(off.square().sum() / (2 * _EPS * flat).clamp(min=_TINY)))
        kept = free.any(1) | self.by_gram  # of inputs at 0 no curvature is asked for
        kept[0] = True  # for a design has one
        entries = self.design.mass * (int(kept.sum()) * self.units) ** 2  # alike on every process
        if not most > told or (entries > _MOST and not self.by_gram):
            return told
        u = stacked if self.by_gram else self.outputs(stacked)  # a Gram matrix asks for no outputs
        lost = float((off * stacked).abs().masked_fill(free, 0.0).sum())
        fit, curved = self if self.by_gram else self._of_inputs(kept[:rows]), torch.zeros_like(off)
        system, curved[:rows] = self.lam * fit.hessian(u, 0.0), curvature
        system.diagonal().add_(curved[kept].flatten())
        chosen = free[kept].flatten()
        system, right = system[chosen][:, chosen], off[free]
        least = _EPS * float(system.diagonal().max()) if len(right) else 0.0
        for _ in range(4):
            system.diagonal().add_(least)
            factor, failed = torch.linalg.cholesky_ex(system)
            if not int(failed):
                half = torch.linalg.solve_triangular(factor, right[:, None], upper=False)
                return max(told, min(most, lost + float(half.square().sum()) / 2))
            least *= 1e3
        return max(told, most)

    def _of_inputs(self, kept: Tensor) -> WeightFit:
        """Return the fit of some inputs, (inputs,), X as it is centered."""
        design = self.design.centered
        shift = None if design.shift is None else design.shift[kept]
        inputs = design.inputs.detach()[:, kept]
        return replace(self, design=replace(design, inputs=inputs, shift=shift))

    def _lost(self, weight: Tensor, violation: Tensor, gradient: Tensor) -> Tensor:
        """Return what the objective can fall by steps of rows of [W; b], at least.

        A gradient or prox-gradient mapping r by the curvature c of the row has r^2 / (2 c) to
        gain alone, in whatever units an input is, and all of n rows together 1 / n of their sum.
        """
        curved = self.curvature * self.design.centered.squares
        off, rows, steep = violation, len(weight), curved.unsqueeze(1)
        if self.penalty.by_rows:
            steep[:rows].add_(self.penalty.curvature)
        elif not self.penalty.smooth:  # its mapping rounds every row by what the largest has
            steep.clamp_(min=_EPS * float(steep.max()))
        if self.penalty.by_rows and not self.penalty.smooth:
            own = self.penalty.stationarity(weight, gradient[:rows], steep[:rows])
            off = torch.cat([own, violation[rows:]])
        gains = off.square().sum(1) / (2 * steep.squeeze(1).clamp(min=_TINY))
        together = gains[:rows].mean()
        return torch.maximum(together, gains[-1]) if self.design.bias else together

    def _rounding(self, bias: Tensor) -> Tensor:
        """Return what the rounding of b to its type may bring to the gradient.

        Of sums over samples to that in W, too: (inputs + 1, units), else in b, as in the last row.
        """
        least = bias.double().abs() * (torch.finfo(bias.dtype).eps * self._steepest)
        if not self.by_gram:
            return torch.nn.functional.pad(least.unsqueeze(0), (0, 0, self.design.features, 0))
        return torch.outer(self.design.centered.total.abs() / self.design.mass, least)

    def _curvature_of_bias(self, stacked: Tensor) -> Tensor:
        """Return the diagonal of the Hessian in b, (units,), or a bound where it takes longer."""
        curved = stacked.new_full((self.units,), self._steepest)
        if not self.divergence.quadratic and self.divergence.per_unit:
            curved = stacked.new_zeros(self.units)
            for part, _, u in self.pre_activations(stacked):
                curved += self.design.weighed(self.divergence.link_curvature(u), part).sum(0)
            curved = self.lam * processes.total(curved)[0]
        return curved.clamp(min=_TINY)

    @property
    def _steepest(self) -> float:
        """A Lipschitz constant of the gradient in b."""
        return self.curvature * self.design.mass

    def _unseen(self, stacked: Tensor) -> float:
        """Return what the rounding of products may add to the gradient.

        With d the lengths of the columns of [X, 1] it is 4 eps max d |d * w| for a column w of
        [W; b], several times what is seen, and 4 eps max d |v| over the root of the number of
        chunks that X'v is summed from.
        """
        design = self.design.centered
        lengths = design.gram.diagonal().sqrt()
        (chunks,) = processes.total(lengths.new_tensor(float(design.chunks(self.units))))
        found = self.curvature * (lengths.unsqueeze(1) * stacked).norm(dim=0)
        most = (found + self.lam * (self._pulls / chunks).sqrt()).max() * lengths.max()
        return 4 * design.rounding * float(most)

    def across_mean(self, violation: Tensor, unseen: float = 0.0) -> float:
        """Return the violation across the mean input, over terms of inputs about their mean.

        What rounding may hide of it is `unseen`.

        Without a bias the mean stays in X, whose terms may be so large beside those that tell
        samples apart that a wrong W looks stationary.
        """
        if self.design.bias or self.design.far is None:
            return 0.0
        pulled, mean = self.pulled.double(), self.design.far
        (total,) = processes.total(self.design.weighed(pulled, slice(None)).sum(0))
        about = (self.cross - mean.outer(total)).abs().max()
        most = self.cross.abs().max()
        if not _ROUNDED * most < about < most / _HIDDEN:
            return 0.0
        across = violation - mean.outer(mean @ violation) / mean.dot(mean)
        return float((across.abs().max() + unseen) / (self.lam * about))

    @cached_property
    def _hidden_scale(self) -> float:
        """The largest term of X'V about their means where a far mean of V hides it, else 0.

        A bias has that mean, beside which any W would look stationary.
        """
        if not (self.design.bias and isinstance(self.divergence, Joint)):
            return 0.0
        total, mass = self.cross[-1], self.design.mass
        apart = self._pulls - total.square() / mass
        if not bool((apart < self._pulls / _HIDDEN**2).any()):
            return 0.0
        own, most = self._with_bias(self.cross).abs().max(), self.cross.abs().max()
        return self.lam * float(own) if _ROUNDED * most < own < most / _HIDDEN else 0.0

    def _with_bias(self, rows: Tensor) -> Tensor:
        """Return what W has of a gradient of [W; b] where b follows it, (inputs, units)."""
        design = self.design.centered
        return rows[:-1] - design.total[:-1].outer(rows[-1]) / design.mass

    def _about_mean(self, weight: Tensor, gradient: Tensor, unseen: float) -> float:
        """Return the violation over terms about the means, where a far mean of V hides these."""
        scale = self._hidden_scale
        if not scale:
            return 0.0
        off = self._judged(weight, self._with_bias(gradient)).violation.abs().max()
        rounding = _SUMMED * _EPS * self.lam * self.cross.abs().max()
        return (max(float(off - rounding), 0.0) + unseen) / scale

    def total(self, stacked: Tensor) -> Tensor:
        """Return the objective at [W; b + shift W] in float64, a scalar."""
        matrix = stacked[: self.design.features]
        return self.lam * self._sums(stacked)[0] + self.penalty.value(matrix)

    def gradient(self, stacked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the divergence at [W; b + shift W] in float64, and its scale.

        The scale is the largest entry of its terms, and not 0.
        """
        slope = self._sums(stacked, valued=False)[1]
        scale = self.lam * torch.maximum(slope.abs().max(), self.cross.abs().max())
        scale = scale.new_tensor(self._hidden_scale) if self._hidden_scale else scale
        return self.lam * (slope - self.cross), torch.where(scale > 0, scale, 1.0)

    def _sums(self, stacked: Tensor, valued: bool = True) -> tuple[Tensor, Tensor]:
        """Return sum R(u) - <u, V>, of no meaning where not asked for, and X'grad R(u)."""
        return self._quadratic(stacked) if self.by_gram else self._pass(stacked, valued)

    def _judged(self, weight: Tensor, gradient: Tensor) -> Judgement:
        """Return how far W is from stationary, and its duality gap."""
        smoothness = 1.0 if self.penalty.smooth else self._smoothest or 1.0
        return self.penalty.judged(weight, gradient[: len(weight)], smoothness)

    @property
    def _smoothest(self) -> float:
        """No less than `smoothness`, which takes longer: shorter steps judge no less strictly."""
        return self.curvature * self.design.centered.steepest

    def _quadratic(self, stacked: Tensor) -> tuple[Tensor, Tensor]:
        """Return sum R(u) - <u, V> and X'grad R(u) from sums over samples alone."""
        assert isinstance(self.divergence, Joint)
        asked = self.asked  # before the Gram matrix, for one pass makes both
        curved = self.divergence.smoothness * (self.design.centered.gram @ stacked)
        value = (stacked * torch.sub(curved, asked, alpha=2)).sum() / 2
        slope = curved if asked is self.cross else curved + (self.cross - asked)
        return value + self.constant, slope

    def _pass(self, stacked: Tensor, valued: bool) -> tuple[Tensor, Tensor]:
        """Return sum R(u) - <u, V> and X'grad R(u) in one pass over the samples.

        Of a quadratic R it is X'(grad R(u) - L C), for `cross` is without L C, too.
        """
        value, sums = stacked.new_zeros(()), stacked.new_zeros(self.units, len(stacked))
        for part, chunk, u in self.pre_activations(stacked):
            target, push = self.targets[part].double(), self.divergence.link_gradient(u)
            if valued:  # the logarithms of R take longer than its gradient
                value += self._summed(u, target, part)
            if self.pulled is not self.targets:
                push = push - target + self.pulled[part].double()
            rows = self.design.weighed(push, part)
            sums[:, : self.design.features] += rows.T @ chunk  # faster than chunk' push
            sums[:, self.design.features :] += rows.sum(0).unsqueeze(1)
        value, sums = processes.total(value, sums)
        return value, sums.T

    def _link_value(self, stacked: Tensor) -> Tensor:
        value = stacked.new_zeros(())
        for part, _, u in self.pre_activations(stacked):
            value += self._summed(u, self.targets[part].double(), part)
        return self.lam * processes.total(value)[0]

    def _summed(self, u: Tensor, target: Tensor, part: slice) -> Tensor:
        if self.design.weights is None:
            return self.divergence.link_value(u, target)
        return self.design.weighed(self.divergence.link_values(u, target), part).sum()

    @property
    def small(self) -> bool:
        """Whether the whole Hessian is cheap."""
        return (self.design.features + self.design.bias) * self.units <= _SMALL

    def hessian(self, u: Tensor, least: float = LEAST_CURVATURE) -> Tensor:
        """Return sum_i x_i x_i' (x) R''(u_i), ((inputs + 1) units) squared, in float64.

        Args:
            u: X W + b + C, (samples, units).
            least: added to the curvature of every sample.
        """
        design, units = self.design.centered, u.shape[1]
        features = design.features + design.bias
        if isinstance(self.divergence, Joint) and not self.design.wide:
            identity = torch.eye(units, dtype=torch.float64, device=u.device)
            return torch.kron(self.divergence.smoothness * design.gram, identity)
        balanced, each = self.divergence.balanced, torch.arange(units)
        pairs = torch.triu_indices(units, units, int(balanced))  # the rest is their mirror and sum
        one, two = (each, each) if self.divergence.per_unit else pairs
        total = u.new_zeros(features, (len(one) + 1) * features, dtype=torch.float64)
        for part, x in design.rows():
            for some in row_chunks(len(x), units * units * features, x.device):
                slopes = curvatures(self.divergence, u[part][some].double())[:, one, two]
                rows = slice(part.start + some.start, part.start + some.stop)
                slopes = functional.pad(design.weighed(slopes, rows), (0, 1), value=least)
                total += x[some].T @ (slopes.unsqueeze(-1) * x[some, None]).flatten(1)
        (total,) = processes.total(total)
        *blocks, damping = total.view(features, -1, features).unbind(1)
        found = total.new_zeros(features, units, features, units)
        if blocks:
            found[:, one, :, two] = found[:, two, :, one] = torch.stack(blocks)
        diagonal = found.diagonal(dim1=1, dim2=3)
        if balanced:
            diagonal.sub_(found.sum(3).mT)
        diagonal.add_(damping.unsqueeze(-1))
        return found.view(features * units, features * units)

    def outputs(self, stacked: Tensor) -> Tensor:
        """Return X W + b + C at [W; b + shift W], (samples, units), in float64."""
        none = stacked.new_zeros(0, stacked.shape[1])
        return torch.cat([none, *(u for _, _, u in self.pre_activations(stacked))])

    def pre_activations(self, stacked: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield (rows, X - shift, X W + b + C) a chunk at a time, in float64."""
        design, features = self.design.centered, self.design.features
        turned, bias = stacked[:features].T.contiguous(), stacked[features:].sum(0).unsqueeze(1)
        for part, chunk in replace(design, bias=False).rows():  # without ones, X as it stands
            u = torch.addmm(bias, turned, chunk.T).T  # of few units half the time of X W
            yield part, chunk, u if self.offset is None else u + self.offset[part].double()


def _require_kind(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise DeclarationError(
            f"{name} must be a {kind.__name__}, such as {example}; got {type(value).__name__}."
        )
