"""Maps that couple the units of a sample: softmax, projection on the simplex, and groups."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Nearest
from liftednet.lazy import cvxpy as cp

__all__ = ["SimplexProjection", "Softmax"]

SLACK = 1e-5  # how far a float32 sum of a sample's units may be from 1
_SHARP = 0.3  # below this t the prox is near the projection
_STEPS = 60  # about ten suffice
_ROWS = 32_768  # entries at a time, so that a few temporaries stay in the cache


def project_simplex(u: Tensor) -> Tensor:
    """Return argmin |v - u|^2 over v >= 0, sum v = 1, per sample, by sorting.

    Held, Wolfe, Crowder (1974). u and the result are (samples, units).
    """
    shifted = u - u.amax(-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    count = torch.arange(1, u.shape[-1] + 1, device=u.device, dtype=u.dtype)
    threshold = (ordered.cumsum(-1) - 1) / count
    support = (ordered > threshold).sum(-1, keepdim=True).clamp(min=1)
    return (shifted - threshold.gather(-1, support - 1)).clamp(min=0)


def _where_sum_is_one(v: Tensor, values: Tensor) -> Tensor:
    return values.masked_fill((v.sum(-1) - 1).abs() > SLACK, torch.inf)


class _OnSimplex(Activation):
    """What both maps onto the simplex share."""

    per_unit, constant_sum = False, True

    def domain(self, v: cp.Expression) -> list[cp.Constraint]:
        """Return v >= 0 and sum v = 1 per sample."""
        return [v >= 0, cp.sum(v, axis=1) == 1]

    def project(self, v: Tensor) -> Tensor:
        """Return the Euclidean projection of each sample on the simplex."""
        return project_simplex(v)


class Softmax(_OnSimplex):
    """phi(u) = exp(u) / sum exp(u), Phi(v) = sum v log v on the simplex.

    Lifted Neural Networks, eq. (11); Phi* is log-sum-exp, whose tight divergence from a one-hot
    label is the cross-entropy.

    Example:
        >>> import torch
        >>> from liftednet.activations import Softmax
        >>> Softmax().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.0420, 0.1142, 0.8438]])
    """

    lipschitz = 0.5

    def forward(self, u: Tensor) -> Tensor:
        """Return exp(u) / sum exp(u) per sample."""
        if u.ndim == 2 and u.mT.is_contiguous():  # stored unit by unit: ten times as fast there
            return u.mT.softmax(0).mT
        return u.softmax(-1)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return sum of v log v."""
        return -cp.sum(cp.entr(v))

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return log sum exp(u), summed over samples."""
        return cp.sum(cp.log_sum_exp(u, axis=1))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return sum of v log v per sample, (samples,), infinite off the simplex."""
        return _where_sum_is_one(v, -torch.special.entr(v).sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return log sum exp(u) per sample, (samples,)."""
        return u.logsumexp(-1)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return argmin t sum v log v + |v - w|^2 / 2 on the simplex, per sample.

        v = exp(x) with exp(x) + t x + nu = w and sum v = 1, by Newton steps in x and nu together;
        t is a number or (samples, 1).
        """
        rows = _ROWS // w.shape[-1] + 1
        weights = t.to(w) if isinstance(t, Tensor) else w.new_full((), t)
        weights = weights.expand(len(w), 1)
        parts = zip(w.split(rows), weights.split(rows), strict=True)
        return torch.cat([_entropic_states(part, weight) for part, weight in parts])


def _entropic_states(w: Tensor, t: Tensor) -> Tensor:
    """Return v on the simplex with v + t log v + nu = w, per sample.

    A step may raise no x by more than 2: from above each exponential is approached monotonically,
    from below one step could overshoot by far.
    """
    settled = torch.finfo(w.dtype).eps ** 0.75
    x = _start(w, t)
    v = x.exp()
    nu = ((w - v - t * x) * v).sum(-1, keepdim=True) / v.sum(-1, keepdim=True)
    for _ in range(_STEPS):
        gap, slope = v + t * x + nu - w, v + t
        share = v / slope
        excess = v.sum(-1, keepdim=True) - 1
        fall = (excess - (share * gap).sum(-1, keepdim=True)) / share.sum(-1, keepdim=True)
        change = ((gap + fall) / slope).clamp(min=-2)
        x, nu = x - change, nu + fall
        moved = float((v * change).abs().max())
        v = x.exp()
        if moved <= settled:
            break
    return v / v.sum(-1, keepdim=True)


def _start(w: Tensor, t: Tensor) -> Tensor:
    """Return log v near the solution: of the projection for small t, of a softmax for large."""
    soft = (w / (t + 1 / w.shape[-1])).log_softmax(-1)
    if float(t.min()) > _SHARP:
        return soft
    near = project_simplex(w)
    threshold = ((w - near) * near).sum(-1, keepdim=True)
    above = w - threshold
    tiny = torch.finfo(w.dtype).tiny
    sharp = torch.where(above > t, above.clamp(min=tiny).log(), (above - t) / t + t.log())
    return torch.where(t > _SHARP, soft, sharp)


class SimplexProjection(_OnSimplex, Nearest):
    """phi(u) = argmin |v - u|^2 over the simplex, Phi(v) = |v|^2 / 2 there.

    Lifted Neural Networks, section 4 (projection on the probability simplex), the output of
    eq. (15); the joint divergence takes c = 0 as there.

    Example:
        >>> import torch
        >>> from liftednet.activations import SimplexProjection
        >>> SimplexProjection().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0., 0., 1.]])
    """

    def forward(self, u: Tensor) -> Tensor:
        """Return the Euclidean projection of each sample on the simplex."""
        return project_simplex(u)

    def offset(self, units: int) -> Tensor:
        """Return zeros, (units,): the paper's divergence is |v - u|^2 / 2."""
        return torch.zeros(units, dtype=torch.float64)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return min over nu of nu + |max(u - nu, 0)|^2 / 2, summed over samples."""
        nu = cp.Variable((u.shape[0], 1))
        return cp.sum(nu) + cp.sum_squares(cp.pos(u - nu)) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the projection of w / (1 + t)."""
        return project_simplex(w / (1 + t))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return |v|^2 / 2 per sample, (samples,), infinite off the simplex."""
        inside = (v.square().sum(-1) / 2).masked_fill((v < 0).any(-1), torch.inf)
        return _where_sum_is_one(v, inside)


class Grouped(Activation):
    """Phi(v) = sum of the Phi of consecutive groups of units; phi acts on each group by itself.

    Scores of attention are such groups: a softmax over the positions for each query (Vaswani et
    al., 2017), with Lifted Neural Networks, eq. (11) for each.
    """

    per_unit = False

    def __init__(self, inner: Activation, size: int) -> None:
        """Keep the activation of a group.

        Args:
            inner: maps a group, and keeps its size.
            size: units of a group.
        """
        self.inner, self.size = inner, size
        self.lipschitz = inner.lipschitz

    def _groups(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, self.size)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi of every group, (samples, units)."""
        return self.inner.forward(self._groups(u)).view(u.shape)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return the sum of Phi over the groups."""
        return self.inner.potential(self._stacked(v))

    def domain(self, v: cp.Expression) -> list[cp.Constraint]:
        """Return the domain of every group."""
        return self.inner.domain(self._stacked(v))

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return the sum of Phi* over the groups."""
        return self.inner.conjugate(self._stacked(u))

    def _stacked(self, v: cp.Expression) -> cp.Expression:
        return cp.reshape(v, (v.size // self.size, self.size), order="C")

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the prox of every group."""
        groups = w.shape[-1] // self.size
        scale = t.expand(len(w), groups).reshape(-1, 1) if isinstance(t, Tensor) else t
        return self.inner.prox(self._groups(w), scale).view(w.shape)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return the sum of Phi over the groups of each sample, (samples,)."""
        return self.inner.potential_value(self._groups(v)).view(*v.shape[:-1], -1).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return the sum of Phi* over the groups of each sample, (samples,)."""
        return self.inner.conjugate_value(self._groups(u)).view(*u.shape[:-1], -1).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest point of the domain, group by group."""
        return self.inner.project(self._groups(v)).view(v.shape)
