"""Identity, ReLU, leaky ReLU, clipped and sign: potentials that are quadratic in pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations.saturating import Tanh
from liftednet.errors import DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_number

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1) / 2


def _outside(v: Tensor, lower: float, upper: float) -> Tensor:
    return torch.where((v < lower) | (v > upper), torch.inf, 0.0).sum(-1)


class Identity(Activation):
    """phi(u) = u, Phi(v) = v^2 / 2: a linear layer, and the squared loss.

    Lifted Neural Networks, section 3 (phi_L for regression tasks).

    Example:
        >>> import torch
        >>> from liftednet.activations import Identity
        >>> Identity().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-1.,  0.,  2.]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return u."""
        return u

    def slope(self, u: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(u)

    def potential(self, v: Expression) -> Expression:
        """Return |v|^2 / 2."""
        return cp.sum_squares(v) / 2

    def excess(self, v: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def conjugate(self, u: Expression) -> Expression:
        """Return |u|^2 / 2."""
        return cp.sum_squares(u) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t)."""
        return w / (1 + t)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return |v|^2 / 2 per sample, (samples,)."""
        return _half_square(v)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return |u|^2 / 2 per sample, (samples,)."""
        return _half_square(u)

    def project(self, v: Tensor) -> Tensor:
        """Return v: the domain is everything."""
        return v


class ReLU(Activation):
    """phi(u) = max(u, 0), Phi(v) = v^2 / 2 on v >= 0.

    Lifted Neural Networks, eq. (4) and section 4 (non-strictly monotone examples).

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> ReLU().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0., 0., 2.]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return max(u, 0)."""
        return u.clamp(min=0)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else 0."""
        return (u > 0).to(u.dtype)

    def potential(self, v: Expression) -> Expression:
        """Return |v|^2 / 2."""
        return cp.sum_squares(v) / 2

    def domain(self, v: Expression) -> list[Constraint]:
        """Return v >= 0."""
        return [v >= 0]

    def excess(self, v: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def conjugate(self, u: Expression) -> Expression:
        """Return |max(u, 0)|^2 / 2."""
        return cp.sum_squares(cp.pos(u)) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return max(w / (1 + t), 0)."""
        return (w / (1 + t)).clamp(min=0)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return |v|^2 / 2 per sample, infinite where v < 0."""
        return _half_square(v) + _outside(v, 0.0, math.inf)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return |max(u, 0)|^2 / 2 per sample, (samples,)."""
        return _half_square(u.clamp(min=0))

    def project(self, v: Tensor) -> Tensor:
        """Return max(v, 0)."""
        return v.clamp(min=0)


class LeakyReLU(Activation):
    """phi(u) = max(u, alpha u), Phi(v) = (max(v, 0)^2 + min(v, 0)^2 / alpha) / 2.

    Lifted Neural Networks, eq. (8), for alpha in (0, 1].

    Example:
        >>> import torch
        >>> from liftednet.activations import LeakyReLU
        >>> LeakyReLU(0.1).forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.1000,  0.0000,  2.0000]])
    """

    lipschitz = 1.0

    def __init__(self, alpha: float = 0.01) -> None:
        """Keep the slope alpha of the negative half."""
        if not is_number(alpha) or not 0 < alpha <= 1:
            raise DeclarationError(
                f"LeakyReLU needs 0 < alpha <= 1, got alpha = {alpha!r}; alpha = 0 is ReLU()."
            )
        self.alpha = float(alpha)

    def forward(self, u: Tensor) -> Tensor:
        """Return max(u, alpha u)."""
        return torch.maximum(u, self.alpha * u)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else alpha."""
        return torch.where(u > 0, 1.0, u.new_tensor(self.alpha))

    def potential(self, v: Expression) -> Expression:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2."""
        return (cp.sum_squares(cp.pos(v)) + cp.sum_squares(cp.neg(v)) / self.alpha) / 2

    def excess(self, v: Expression) -> Expression:
        """Return (1 / alpha - 1) |min(v, 0)|^2 / 2."""
        return (1 / self.alpha - 1) / 2 * cp.sum_squares(cp.neg(v))

    def conjugate(self, u: Expression) -> Expression:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2."""
        return (cp.sum_squares(cp.pos(u)) + self.alpha * cp.sum_squares(cp.neg(u))) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t) where w > 0, else w / (1 + t / alpha)."""
        return torch.maximum(w / (1 + t), w / (1 + t / self.alpha))  # the faster, by far

    def potential_value(self, v: Tensor) -> Tensor:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2 per sample, (samples,)."""
        return _half_square(v.clamp(min=0)) + _half_square(v.clamp(max=0)) / self.alpha

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2 per sample, (samples,)."""
        return _half_square(u.clamp(min=0)) + self.alpha * _half_square(u.clamp(max=0))

    def project(self, v: Tensor) -> Tensor:
        """Return v: the domain is everything."""
        return v


class Clipped(Activation):
    """phi(u) = min(max(u, lower), upper), Phi(v) = v^2 / 2 on the box.

    Lifted Neural Networks, section 4: the piecewise sigmoid, on [-1, 1] and on [0, 1].

    Example:
        >>> import torch
        >>> from liftednet.activations import Clipped
        >>> Clipped(-1.0, 1.0).forward(torch.tensor([[-2.0, 0.5, 2.0]]))
        tensor([[-1.0000,  0.5000,  1.0000]])
    """

    lipschitz = 1.0

    def __init__(self, lower: float = 0.0, upper: float = 1.0) -> None:
        """Keep the box."""
        numbers = is_number(lower) and is_number(upper)
        if not numbers or not -math.inf < lower < upper < math.inf:
            raise DeclarationError(
                f"Clipped needs finite lower < upper, got lower = {lower!r}, upper = {upper!r}."
            )
        self.lower = float(lower)
        self.upper = float(upper)

    def forward(self, u: Tensor) -> Tensor:
        """Return u clipped to the box."""
        return u.clamp(self.lower, self.upper)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 inside the box, else 0."""
        return ((u > self.lower) & (u < self.upper)).to(u.dtype)

    def potential(self, v: Expression) -> Expression:
        """Return |v|^2 / 2."""
        return cp.sum_squares(v) / 2

    def domain(self, v: Expression) -> list[Constraint]:
        """Return lower <= v <= upper."""
        return [v >= self.lower, v <= self.upper]

    def excess(self, v: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def conjugate(self, u: Expression) -> Expression:
        """Return sum of c u - c^2/2 + huber(u - c, r)/2 with center c and half width r."""
        center, radius = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        linear = center * cp.sum(u) - u.size * center**2 / 2
        huber = cp.huber(u - center, radius)  # type: ignore[arg-type]  # any positive number
        return linear + cp.sum(huber) / 2

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t) clipped to the box."""
        return (w / (1 + t)).clamp(self.lower, self.upper)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return |v|^2 / 2 per sample, infinite outside the box."""
        return _half_square(v) + _outside(v, self.lower, self.upper)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return <u, v> - |v|^2 / 2 per sample at v = phi(u), (samples,)."""
        v = self.forward(u)
        return (v * (u - v / 2)).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return v clipped to the box."""
        return v.clamp(self.lower, self.upper)


class Sign(Activation):
    """phi(u) = sign(u), Phi(v) = 0 on [-1, 1].

    Lifted Neural Networks, section 4. At u = 0 every v in [-1, 1] is an argmin, and phi has no
    Lipschitz constant: as a layer it has no joint divergence and no fast weight fit. Its tight
    divergence |u| - u v is zero at u = 0, and so without force; minibatches take that of the
    margin of `Tanh`, see `liftednet.divergences.Margin`, as wide as the pre-activations are large:
    the sign of c u is that of u, and so no width fits by itself.

    Example:
        >>> import torch
        >>> from liftednet.activations import Sign
        >>> Sign().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-1.,  0.,  1.]])
    """

    lipschitz = None
    margin = Tanh()
    scale_free = True

    def forward(self, u: Tensor) -> Tensor:
        """Return sign(u)."""
        return u.sign()

    def slope(self, u: Tensor) -> Tensor:
        """Return zeros, the slope off the jump."""
        return torch.zeros_like(u)

    def potential(self, v: Expression) -> Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def domain(self, v: Expression) -> list[Constraint]:
        """Return -1 <= v <= 1."""
        return [v >= -1, v <= 1]

    def conjugate(self, u: Expression) -> Expression:
        """Return |u|_1."""
        return cp.sum(cp.abs(u))

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w clipped to [-1, 1], whatever t."""
        return w.clamp(-1, 1)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return 0 per sample, infinite outside [-1, 1]."""
        return _outside(v, -1.0, 1.0).to(v.dtype)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return |u|_1 per sample, (samples,)."""
        return u.abs().sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return v clipped to [-1, 1]."""
        return v.clamp(-1, 1)
