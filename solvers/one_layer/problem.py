"""A network with one hidden layer as a convex problem over its units, and bounds on the least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from liftednet.activations import Identity
from liftednet.divergences import Divergence
from liftednet.problems.fit import curvatures
from liftednet.sets.polyhedron import Array, Limits

from .oracle import Kind, Kinked

_SLACK = 1e-10  # of the terms of a bound, far above their rounding
_PASSED = 1e-7  # of a limit, relative to the scores, from which units do not meet it
_INSIDE = 1e-9  # share of targets less their mean in residuals, which brings these inside


@dataclass(frozen=True, eq=False)
class Scores:
    """sum_i s_i D(y_i, f_i) with D(y, f) = Phi(y) - <y, f> + R(f), convex in the scores f.

    Attributes:
        divergence: D, tight and smooth.
        targets: y, (samples, outputs), float64.
        weights: s, (samples, 1), positive.
    """

    divergence: Divergence
    targets: Tensor
    weights: Tensor

    def value(self, f: Tensor) -> Tensor:
        """Return the sum."""
        return self.weights[:, 0] @ self.divergence.values(self.targets, f)

    def residuals(self, f: Tensor) -> Tensor:
        """Return V = s (y - grad R(f)), (samples, outputs), less the gradient."""
        return self.weights * (self.targets - self.divergence.link_gradient(f))

    def curvature(self, f: Tensor) -> Tensor:
        """Return the Hessians in the scores, (samples, outputs, outputs)."""
        return self.weights.unsqueeze(-1) * curvatures(self.divergence, f)

    def share(self, V: Tensor) -> float:
        """Return how much of residuals, 1 at most, lies in a domain that `dual` does not check."""
        return 1.0

    def majorant(self, f: Tensor) -> Tensor | None:
        """Return curvatures of which no step rises, where the Hessians vanish; None elsewhere."""
        return None

    def dual(self, V: Tensor) -> tuple[Tensor, Tensor]:
        """Return min over f of the sum + <V, f> of every sample, and the size of its terms.

        It is s (Phi(y) - Phi(y - V / s)) where y - V / s is in the domain of Phi.
        """
        phi = self.divergence.potential_value
        now, reached = phi(self.targets), phi(self.targets - V / self.weights)
        return self.weights[:, 0] * (now - reached), self.weights[:, 0] * (
            now.abs() + reached.abs()
        )

    def feasible(self, f: Tensor) -> Tensor:
        """Return residuals inside the domain of the dual, or that `share` brings there."""
        V = self.residuals(f)
        everywhere = isinstance(self.divergence.activation, Identity)
        return V if everywhere else (1 - _INSIDE) * V + _INSIDE * self._inner

    @cached_property
    def _inner(self) -> Tensor:
        """Residuals of sum 0 inside the domain: those of the best constant."""
        mean = (self.weights * self.targets).sum(0) / self.weights.sum()
        return self.weights * (self.targets - mean)


@dataclass(frozen=True, eq=False)
class HuberScores(Scores):
    """sum_i s_i H(y_i - f_i), H(r) = |r|^2 / 2 up to d and d |r| - d^2 / 2 beyond.

    Attributes:
        delta: d.
    """

    delta: float = 1.0

    def value(self, f: Tensor) -> Tensor:
        """Return the sum."""
        far = (self.targets - f).abs()
        near = far.clamp(max=self.delta)
        return (self.weights * near * (far - near / 2)).sum()

    def residuals(self, f: Tensor) -> Tensor:
        """Return V = s (y - f), cut off at s d."""
        return self.weights * (self.targets - f).clamp(-self.delta, self.delta)

    def curvature(self, f: Tensor) -> Tensor:
        """Return s where residuals are not cut off, and a little elsewhere."""
        near = ((self.targets - f).abs() < self.delta).to(f) + 1e-6
        return (self.weights * near).diag_embed()

    def dual(self, V: Tensor) -> tuple[Tensor, Tensor]:
        """Return <V, y> - V^2 / (2 s) of every sample, and the size of its terms."""
        one, other = V * self.targets, V.square() / (2 * self.weights)
        return (one - other).sum(1), (one.abs() + other).sum(1)

    def share(self, V: Tensor) -> float:
        """Return how much of residuals is not beyond s d, from where no minimum is."""
        ends = self.weights * self.delta
        return float((ends / torch.maximum(V.abs(), ends)).min())

    def majorant(self, f: Tensor) -> Tensor:
        """Return s min(1, d / |y - f|), whose quadratic touches H from above (Huber, 1981)."""
        near = self.delta / (self.targets - f).abs().clamp(min=self.delta)
        return (self.weights * near).diag_embed()


class ScoreLimits:
    """l <= A u <= h of the scores of all samples, rows of A of norm 1, with prices.

    Attributes:
        ends: l and h, (limits,).
        mu: of the squares that limits are held by on the way, mu |a - P(a)|^2 / 2 with a = A u +
            prices / mu and P the projection on [l, h] (Rockafellar, 1973).
    """

    def __init__(self, limits: Limits, mu: float = 1.0) -> None:
        """Keep limits on scores."""
        normed = limits.normed()
        self._matrix, self._back = normed.matrix, normed.matrix.T.tocsr()
        self.ends, self.mu = (normed.lower, normed.upper), mu

    def at(self, u: Tensor) -> Array:
        """Return A u."""
        return self._matrix @ u.cpu().numpy().reshape(-1)

    def pulled(self, u: Tensor, prices: Array) -> Tensor:
        """Return A'y, like u."""
        return torch.from_numpy(self._back @ prices).to(u).view_as(u)

    def narrow(self, share: float) -> None:
        """Stay as wide: limits on scores are no surrogate."""

    def slopes(self, J: Tensor) -> Tensor:
        """Return A J for derivatives J of scores, (scores, numbers)."""
        return torch.from_numpy(self._matrix @ J.cpu().numpy()).to(J)

    def excess(self, u: Tensor, prices: Tensor, mu: float) -> Tensor:
        """Return a - P(a), (limits,); times mu they are prices, positive at upper ends."""
        a = self.at(u) + prices.cpu().numpy() / mu
        return torch.from_numpy(a - np.clip(a, *self.ends)).to(prices)

    def paid(self, prices: Tensor) -> Array:
        """Return prices times the ends that they are of, (limits,)."""
        y, (lower, upper) = prices.cpu().numpy(), self.ends
        return y[y != 0] * np.where(y > 0, upper, lower)[y != 0]


@dataclass(frozen=True, eq=False)
class Units:
    """f = sum_j t_j phi(x w_j + b_j) z_j + c + x Q with |w_j| = |z_j| = 1.

    Attributes:
        w: (units, inputs).
        b: (units,).
        z: what an output is of a unit, (units, outputs).
        t: amplitudes, (units,), not negative.
        kind: numbers of their kinds, (units,).
        c: (outputs,).
        prices: of limits on scores, (limits,), of none where there are none.
        Q: (inputs, outputs), None where there is no linear layer beside the units.
    """

    w: Tensor
    b: Tensor
    z: Tensor
    t: Tensor
    kind: Tensor
    c: Tensor
    prices: Tensor
    Q: Tensor | None = None

    def __len__(self) -> int:
        return len(self.t)

    def take(self, kept: Tensor) -> Units:
        """Return some of the units."""
        parts = {x: getattr(self, x)[kept] for x in ("w", "b", "z", "t", "kind")}
        return replace(self, **parts)

    def joined(self, w: Tensor, b: Tensor, z: Tensor, kind: Tensor) -> Units:
        """Return the units with more of them, of amplitude 0."""
        more = {"w": w, "b": b, "z": z, "t": torch.zeros_like(b), "kind": kind}
        return replace(self, **{x: torch.cat([getattr(self, x), y]) for x, y in more.items()})


@dataclass(frozen=True, eq=False)
class OneLayer:
    """min over units of the loss + rho sum_j (|w_j|^2 + |a_j|^2) + linear |Q|^2, under limits.

    Since |w|^2 + |a|^2 >= 2 |w| |a| it equals the convex min of the loss + 2 rho sum_j t_j over
    measures of units of norm 1 (Bach, Breaking the Curse of Dimensionality with Convex Neural
    Networks, 2017), of one kind or several. Under l <= A f <= h its dual is the max over R and
    prices y of `Scores.dual`(R) - (h'y_+ - l'y_-) - |X'V|^2 / (4 linear) where V = R - A'y,
    sum_i V_i = 0 and no unit answers more than 2 rho, |sum_i V_i phi(x_i w + b)| <= 2 rho.

    Attributes:
        X: (samples, inputs), float64.
        scores: the loss.
        phi: the activation.
        rho: of the units, positive.
        kinds: of units.
        linear: of Q, None where there is no such layer.
        limits: on the scores, None for none.
    """

    X: Tensor
    scores: Scores
    phi: Kinked
    rho: float
    kinds: tuple[Kind, ...]
    linear: float | None = None
    limits: ScoreLimits | None = None

    def none(self) -> Units:
        """Return no units."""
        outputs = self.scores.targets.shape[1]
        w, z = self.X[:0], self.scores.targets[:0]
        Q = None if self.linear is None else self.X.new_zeros(self.X.shape[1], outputs)
        prices = self.X.new_zeros(0 if self.limits is None else len(self.limits.ends[0]))
        kind, t = torch.zeros(0, dtype=torch.long, device=w.device), z[:, 0]
        return Units(w, w[:, 0], z, t, kind, self.X.new_zeros(outputs), prices, Q)

    def outputs(self, w: Tensor, b: Tensor, kind: Tensor, V: Tensor) -> Tensor:
        """Return the z by which units lower the objective most, (units, outputs)."""
        z = torch.nn.functional.normalize(self.phi.of(self.X @ w.T + b).T @ V, dim=1)
        for number, one in enumerate(self.kinds):
            if one.z is not None:
                z[kind == number] = one.z
        return z

    def f(self, units: Units) -> Tensor:
        """Return the scores, (samples, outputs)."""
        f = self.phi.of(self.X @ units.w.T + units.b) @ (units.t[:, None] * units.z) + units.c
        return f if units.Q is None else f + self.X @ units.Q

    def objective(self, units: Units) -> float:
        """Return the loss + 2 rho sum t + linear |Q|^2."""
        penalty = 2 * self.rho * units.t.sum()
        if units.Q is not None and self.linear is not None:
            penalty = penalty + self.linear * units.Q.square().sum()
        return float(self.scores.value(self.f(units)) + penalty)

    def passed(self, units: Units) -> float:
        """Return by how much scores pass a limit of norm 1 at most, more than rounding has."""
        if self.limits is None:
            return 0.0
        f = self.f(units)
        most = float(self.limits.excess(f, torch.zeros_like(units.prices), 1.0).abs().max())
        return most if most > _PASSED * (1 + float(f.abs().max())) else 0.0

    def residuals(self, f: Tensor, prices: Tensor) -> Tensor:
        """Return V of scores and prices, feasible in the dual but for what units answer.

        They are brought to the sum 0, as those of the best constant have by themselves.
        """
        V = self.scores.feasible(f)
        if self.limits is not None:
            V = V - self.limits.pulled(V, prices.cpu().numpy())
        weights = self.scores.weights  # by which each has its share of room
        return V - weights * (V.sum(0) / weights.sum())

    def bound(self, V: Tensor, prices: Tensor, most: float) -> float:
        """Return what the objective cannot fall below.

        Args:
            V: residuals of sum 0, less what prices pull, inside the domain of the dual.
            prices: of the limits.
            most: what no unit answers more than, but for rounding.
        """
        far = (self.X - self.X.mean(0)).norm(dim=1)
        rounding = 8 * torch.finfo(V.dtype).eps * len(V)
        sums = abs(self.phi.bend) * float(V.norm(dim=1).sum() * 2 * far.max())
        most = (1 + _SLACK) * most + rounding * sums
        R = V if self.limits is None else V + self.limits.pulled(V, prices.cpu().numpy())
        t = self.scores.share(R)
        t = min(t, 2 * self.rho / most) if most > 0 else t
        found, size = (float(part.sum()) for part in self.scores.dual(t * R))
        if self.limits is not None:
            paid = t * self.limits.paid(prices)
            found, size = found - float(paid.sum()), size + float(np.abs(paid).sum())
        if self.linear is not None:
            pulled = float((self.X.T @ (t * V)).square().sum()) / (4 * self.linear)
            found, size = found - pulled, size + pulled
        return max(0.0, found - _SLACK * size)
