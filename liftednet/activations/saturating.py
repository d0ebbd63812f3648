"""Sigmoid, tanh, arctan and sine: strictly increasing onto a bounded range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.lazy import cvxpy as cp

if TYPE_CHECKING:
    from cvxpy.constraints.constraint import Constraint
    from cvxpy.expressions.expression import Expression


_NEAR = 0.5  # to 0, where forms that are exact at the ends of the range cancel


def _off(v: Tensor, lower: float, upper: float) -> Tensor:
    return torch.where((v < lower) | (v > upper), torch.inf, 0.0).to(v.dtype)


class Sigmoid(Activation):
    """phi(u) = 1 / (1 + exp(-u)), Phi(v) = v log v + (1 - v) log(1 - v) on [0, 1].

    Lifted Neural Networks, section 4 (examples of strictly monotone activations).

    Example:
        >>> import torch
        >>> from liftednet.activations import Sigmoid
        >>> Sigmoid().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.2689, 0.5000, 0.8808]])
    """

    lipschitz = 0.25

    def forward(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-u))."""
        return u.sigmoid()

    def slope(self, u: Tensor) -> Tensor:
        """Return phi(u) (1 - phi(u))."""
        v = u.sigmoid()
        return v - v.square()

    def potential(self, v: Expression) -> Expression:
        """Return sum of v log v + (1 - v) log(1 - v)."""
        return -cp.sum(cp.entr(v)) - cp.sum(cp.entr(1 - v))

    def domain(self, v: Expression) -> list[Constraint]:
        """Return 0 <= v <= 1."""
        return [v >= 0, v <= 1]

    def conjugate(self, u: Expression) -> Expression:
        """Return sum of log(1 + exp(u))."""
        return cp.sum(cp.logistic(u))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v log v + (1 - v) log(1 - v) per sample, with 0 log 0 = 0."""
        inside = v.clamp(0, 1)
        entropy = torch.xlogy(inside, inside) + torch.special.xlog1py(1 - inside, -inside)
        return (entropy + _off(v, 0.0, 1.0)).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return log(1 + exp(u)) per sample, (samples,)."""
        return torch.nn.functional.softplus(u).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return v clipped to [0, 1]."""
        return v.clamp(0, 1)


class Tanh(Activation):
    """phi(u) = tanh(u), Phi(v) = ((1 - v) log(1 - v) + (1 + v) log(1 + v)) / 2 on [-1, 1].

    Lifted Neural Networks, section 4, where the same Phi is printed for "arctanh".

    Example:
        >>> import torch
        >>> from liftednet.activations import Tanh
        >>> Tanh().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.7616,  0.0000,  0.9640]])
    """

    lipschitz = 1.0
    _sigmoid = Sigmoid()

    def forward(self, u: Tensor) -> Tensor:
        """Return tanh(u)."""
        return u.tanh()

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 - tanh(u)^2."""
        return 1 - u.tanh().square()

    def potential(self, v: Expression) -> Expression:
        """Return sum of ((1 - v) log(1 - v) + (1 + v) log(1 + v)) / 2."""
        return -(cp.sum(cp.entr(1 - v)) + cp.sum(cp.entr(1 + v))) / 2

    def domain(self, v: Expression) -> list[Constraint]:
        """Return -1 <= v <= 1."""
        return [v >= -1, v <= 1]

    def conjugate(self, u: Expression) -> Expression:
        """Return sum of log cosh(u)."""
        return cp.sum(cp.logistic(2 * u) - u) - u.size * math.log(2)

    @property
    def closed_prox(self) -> bool:
        """False: that of the sigmoid is a root."""
        return self._sigmoid.closed_prox

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the prox of the sigmoid, rescaled: tanh(u) = 2 sigmoid(2 u) - 1."""
        return 2 * self._sigmoid.prox((w + 1) / 2, t / 4) - 1

    def potential_value(self, v: Tensor) -> Tensor:
        """Return ((1 - v) log(1 - v) + (1 + v) log(1 + v)) / 2 per sample, 0 log 0 = 0.

        Near 0 the same as v artanh(v) + log(1 - v^2) / 2, which loses no digits there.
        """
        inside = v.clamp(-1, 1)
        entropy = torch.xlogy(1 - inside, 1 - inside) + torch.xlogy(1 + inside, 1 + inside)
        near = inside * inside.atanh() + torch.log1p(-inside.square()) / 2
        value = torch.where(inside.abs() < _NEAR, near, entropy / 2)
        return (value + _off(v, -1.0, 1.0)).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return log cosh(u) per sample, (samples,), near 0 as log(1 + 2 sinh(u / 2)^2)."""
        size = u.abs()
        far = size + torch.log1p(torch.exp(-2 * size)) - math.log(2)
        near = torch.log1p(2 * (size.clamp(max=1) / 2).sinh().square())
        return torch.where(size < 1, near, far).sum(-1)

    def project(self, v: Tensor) -> Tensor:
        """Return v clipped to [-1, 1]."""
        return v.clamp(-1, 1)


class Arctan(Activation):
    """phi(u) = arctan(u), Phi(v) = -log cos(v) on [-pi/2, pi/2].

    By eq. (6) of Lifted Neural Networks, Phi(v) being the integral of tan. CVXPY has no atom for
    it, so that the stated potential is the piecewise quadratic that `Activation` derives.

    Example:
        >>> import torch
        >>> from liftednet.activations import Arctan
        >>> Arctan().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.7854,  0.0000,  1.1071]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return arctan(u)."""
        return u.atan()

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + u^2)."""
        return 1 / (1 + u.square())

    def potential_value(self, v: Tensor) -> Tensor:
        """Return -log cos(v) per sample, infinite from pi/2 on.

        Near 0 the same as -log(1 - 2 sin(v / 2)^2), which loses no digits there.
        """
        inside = v.clamp(-math.pi / 2, math.pi / 2)
        near = torch.log1p(-2 * (inside / 2).sin().square())
        cosine = inside.cos().clamp(min=torch.finfo(v.dtype).tiny)
        value = torch.where(inside.abs() < _NEAR, near, cosine.log())
        return (_off(v, -math.pi / 2, math.pi / 2) - value).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return u arctan(u) - log(1 + u^2) / 2 per sample, (samples,)."""
        size = u.abs()
        large = size.clamp(min=1)  # whose square may be too large, and that of 1 / u is not
        logarithm = large.log() + torch.log1p(torch.minimum(size, 1 / large).square()) / 2
        return (size * size.atan() - logarithm).sum(-1)


class Sine(Activation):
    """phi(u) = sin(u) on [-pi/2, pi/2] and its end values outside.

    Lifted Neural Networks, section 4, Phi(v) = v arcsin(v) + sqrt(1 - v^2) on [-1, 1], whose
    argmin is the sine on its monotone range alone. CVXPY has no atom for it, so that the stated
    potential is the piecewise quadratic that `Activation` derives.

    Example:
        >>> import torch
        >>> from liftednet.activations import Sine
        >>> Sine().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.8415,  0.0000,  1.0000]])
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return sin(u), u clipped to [-pi/2, pi/2]."""
        return u.clamp(-math.pi / 2, math.pi / 2).sin()

    def slope(self, u: Tensor) -> Tensor:
        """Return cos(u) inside [-pi/2, pi/2], else 0."""
        return torch.where(u.abs() < math.pi / 2, u.cos(), 0.0)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v arcsin(v) + sqrt(1 - v^2) - 1 per sample, infinite outside [-1, 1]."""
        inside = v.clamp(-1, 1)
        root = ((1 - inside) * (1 + inside)).sqrt()  # 1 - root = v^2 / (1 + root)
        value = inside * torch.atan2(inside, root) - inside.square() / (1 + root)
        return (value + _off(v, -1.0, 1.0)).sum(-1)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return 1 - cos(u) inside [-pi/2, pi/2], continued linearly, per sample."""
        inside = u.abs().clamp(max=math.pi / 2)
        return (2 * (inside / 2).sin().square() + (u.abs() - inside)).sum(-1)
