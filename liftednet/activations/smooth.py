"""Smooth maps: sigmoid, tanh, arctan and sine onto a bounded range, softplus and ELU above one."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from liftednet.activation import Activation, infinite_off
from liftednet.lazy import cvxpy as cp

__all__ = ["ELU", "Arctan", "Sigmoid", "Sine", "Softplus", "Tanh"]

_MIDDLE = 0.5  # within this of 0 forms that are exact at the ends of the range cancel
_NEAR = 0.25  # to 0, where series are right to rounding
LINEAR = 40.0  # log(1 + exp(u)) is u beyond, in float64 too
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
SERIES = tuple(b / math.factorial(2 * k + 3) for k, b in enumerate(_BERNOULLI))
EXPONENTIAL = tuple(1 / math.factorial(k) for k in range(2, 14))
ARTANH = tuple(1 / (2 * k + 3) for k in range(10))


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return c_0 + c_1 x + c_2 x^2 + ..."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def _exponential_rest(u: Tensor) -> Tensor:
    """Return exp(u) - 1 - u for u <= 0; near 0 the terms cancel, and its series does not."""
    series = u.square() * _horner(EXPONENTIAL, u)
    return torch.where(u > -_NEAR, series, torch.expm1(u) - u)


def _entropy_rest(v: Tensor) -> Tensor:
    """Return (1 + v) log(1 + v) - v for -1 <= v <= 0; near 0 by a series.

    With w = v / (2 + v), log(1 + v) = 2 artanh(w) and it is
    2 (w^2 + (1 + w) (artanh(w) - w)) / (1 - w).
    """
    w = v / (2 + v)
    square = w.square()
    near = 2 * square * (1 + (1 + w) * w * _horner(ARTANH, square)) / (1 - w)
    above = 1 + v
    return torch.where(v > -_NEAR, near, torch.xlogy(above, above) - v)


def _negated_dilogarithm(u: Tensor) -> Tensor:
    """Return -Li2(-exp(u)), the integral of log(1 + exp(x)) from minus infinity to u.

    With t = log(1 + exp(-|u|)) <= log 2 it is t + t^2 / 4 + sum_k B_2k t^(2k + 1) / (2k + 1)! for
    u <= 0, and u^2 / 2 + pi^2 / 6 less the same for u > 0 (Lewin, Polylogarithms, 1981).
    """
    t = torch.log1p(torch.exp(-u.abs()))
    square = t.square()
    low = t * (1 + t / 4 + square * _horner(SERIES, square))
    return torch.where(u > 0, u.square() / 2 + math.pi**2 / 6 - low, low)


class Sigmoid(Activation):
    """phi(u) = 1 / (1 + exp(-u)), Phi(v) = v log v + (1 - v) log(1 - v) on [0, 1].

    Lifted Neural Networks, section 4 (examples of strictly monotone activations).

    Example:
        >>> import torch
        >>> from liftednet.activations import Sigmoid
        >>> Sigmoid().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.2689, 0.5000, 0.8808]])
    """

    ends = (0.0, 1.0)
    lipschitz = 0.25

    def forward(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-u))."""
        return u.sigmoid()

    def slope(self, u: Tensor) -> Tensor:
        """Return phi(u) phi(-u), which keeps its digits where phi(u) is near 1."""
        return u.sigmoid() * (-u).sigmoid()

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return sum of v log v + (1 - v) log(1 - v)."""
        return -cp.sum(cp.entr(v)) - cp.sum(cp.entr(1 - v))

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return sum of log(1 + exp(u))."""
        return cp.sum(cp.logistic(u))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v log v + (1 - v) log(1 - v) per sample, with 0 log 0 = 0."""
        inside = v.clamp(0, 1)
        entropy = torch.xlogy(inside, inside) + torch.special.xlog1py(1 - inside, -inside)
        return infinite_off(self.ends, v, entropy.sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return log(1 + exp(u)) per sample, (samples,)."""
        return functional.softplus(u, threshold=LINEAR).sum(-1)


class Tanh(Activation):
    """phi(u) = tanh(u), Phi(v) = ((1 - v) log(1 - v) + (1 + v) log(1 + v)) / 2 on [-1, 1].

    Lifted Neural Networks, section 4, where the same Phi is printed for "arctanh".

    Example:
        >>> import torch
        >>> from liftednet.activations import Tanh
        >>> Tanh().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.7616,  0.0000,  0.9640]])
    """

    ends = (-1.0, 1.0)
    lipschitz = 1.0
    closed_prox = False  # that of the sigmoid is a root
    _sigmoid = Sigmoid()

    def forward(self, u: Tensor) -> Tensor:
        """Return tanh(u)."""
        return u.tanh()

    def slope(self, u: Tensor) -> Tensor:
        """Return 4 s(2 u) s(-2 u) with s the sigmoid: 1 - tanh(u)^2, at the ends, too."""
        return 4 * self._sigmoid.slope(2 * u)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return sum of ((1 - v) log(1 - v) + (1 + v) log(1 + v)) / 2."""
        return -(cp.sum(cp.entr(1 - v)) + cp.sum(cp.entr(1 + v))) / 2

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return sum of log cosh(u)."""
        return cp.sum(cp.logistic(2 * u) - u) - u.size * math.log(2)

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
        value = torch.where(inside.abs() < _MIDDLE, near, entropy / 2)
        return infinite_off(self.ends, v, value.sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return log cosh(u) per sample, (samples,), near 0 as log(1 + 2 sinh(u / 2)^2)."""
        size = u.abs()
        far = size + torch.log1p(torch.exp(-2 * size)) - math.log(2)
        near = torch.log1p(2 * (size.clamp(max=1) / 2).sinh().square())
        return torch.where(size < 1, near, far).sum(-1)


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

    ends = (-math.pi / 2, math.pi / 2)
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
        inside = v.clamp(*self.ends)
        near = torch.log1p(-2 * (inside / 2).sin().square())
        cosine = inside.cos().clamp(min=torch.finfo(v.dtype).tiny)
        value = torch.where(inside.abs() < _MIDDLE, near, cosine.log())
        return infinite_off(self.ends, v, -value.sum(-1))

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

    ends = (-1.0, 1.0)
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
        return infinite_off(self.ends, v, value.sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return 1 - cos(u) inside [-pi/2, pi/2], continued linearly, per sample."""
        inside = u.abs().clamp(max=math.pi / 2)
        return (2 * (inside / 2).sin().square() + (u.abs() - inside)).sum(-1)


class Softplus(Activation):
    """phi(u) = log(1 + exp(u)), Phi(v) = integral of log(exp(z) - 1) from 0 to v, on v >= 0.

    Lifted Neural Networks, section 4, where Phi is said to have no closed form; by the dilogarithm
    it is v log(exp(v) - 1) - Phi*(log(exp(v) - 1)) with Phi*(u) = -Li2(-exp(u)). CVXPY has no atom
    for it, so that the stated potential is the piecewise quadratic that `Activation` derives.

    Example:
        >>> import torch
        >>> from liftednet.activations import Softplus
        >>> Softplus().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.3133, 0.6931, 2.1269]])
    """

    ends = (0.0, math.inf)
    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return log(1 + exp(u))."""
        return functional.softplus(u, threshold=LINEAR)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-u))."""
        return u.sigmoid()

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v u - Phi*(u) per sample at u = log(exp(v) - 1), infinite where v < 0."""
        inside = v.clamp(min=0)
        rest = -torch.expm1(-inside)  # u = v + log(1 - exp(-v))
        product = inside.square() + torch.xlogy(inside, rest)
        value = product - _negated_dilogarithm(inside + rest.log())
        return infinite_off(self.ends, v, value.sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return -Li2(-exp(u)) per sample, (samples,)."""
        return _negated_dilogarithm(u).sum(-1)


class Exponential(Activation):
    """phi(u) = exp(u), Phi(v) = v log v - v on v >= 0: the rate of `Poisson` counts by its log.

    Example:
        >>> import torch
        >>> from liftednet.activations.smooth import Exponential
        >>> Exponential().forward(torch.tensor([[0.0, 1.0]]))
        tensor([[1.0000, 2.7183]])
    """

    ends = (0.0, math.inf)
    lipschitz = None

    def forward(self, u: Tensor) -> Tensor:
        """Return exp(u)."""
        return u.exp()

    slope = forward

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return sum of v log v - v."""
        return -cp.sum(cp.entr(v)) - cp.sum(v)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return sum of exp(u)."""
        return cp.sum(cp.exp(u))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return v log v - v per sample, with 0 log 0 = 0."""
        return infinite_off(self.ends, v, (torch.xlogy(v, v.clamp(min=0)) - v).sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return exp(u) per sample, (samples,)."""
        return u.exp().sum(-1)


class ELU(Activation):
    """phi(u) = u for u > 0, else exp(u) - 1.

    By eq. (6) of Lifted Neural Networks: Phi(v) = max(v^2 / 2, (1 + v) log(1 + v) - v) on v >= -1.

    Example:
        >>> import torch
        >>> from liftednet.activations import ELU
        >>> ELU().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-0.6321,  0.0000,  2.0000]])
    """

    ends = (-1.0, math.inf)
    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return u where u > 0, else exp(u) - 1."""
        return functional.elu(u)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else exp(u)."""
        return u.clamp(max=0).exp()

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return sum of max(v^2 / 2, (1 + v) log(1 + v) - v)."""
        return cp.sum(cp.maximum(cp.square(v) / 2, cp.kl_div(1 + v, 1)))

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return sum of a^2 / 2 + exp(b) - b - 1, where u = a + b, a >= 0 >= b."""
        positive = cp.Variable(u.shape, nonneg=True)
        negative = u - positive
        value = cp.sum_squares(positive) / 2 + cp.sum(cp.exp(negative) - negative - 1)
        return value + cp.transforms.indicator([negative <= 0])

    def potential_value(self, v: Tensor) -> Tensor:
        """Return max(v^2 / 2, (1 + v) log(1 + v) - v) per sample, infinite below -1."""
        value = torch.where(v > 0, v.square() / 2, _entropy_rest(v.clamp(-1, 0)))
        return infinite_off(self.ends, v, value.sum(-1))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return u^2 / 2 where u > 0, else exp(u) - u - 1, per sample, (samples,)."""
        low = u.clamp(max=0)
        return (u.clamp(min=0).square() / 2 + _exponential_rest(low)).sum(-1)
