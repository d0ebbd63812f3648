"""Maps that are linear in pieces, by potentials that are quadratic in pieces, and bounds on any."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from liftednet.activation import Activation, between, clipped, infinite_off
from liftednet.activations.smooth import Tanh
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.validation import is_integer, is_number, require_count

__all__ = ["Clipped", "Identity", "LeakyReLU", "MaxPooling", "PReLU", "Quantized", "ReLU", "Sign"]


class MaxPooling(Activation):
    """phi(u) = the largest entry of each block of u: a maxout layer behind a dense one.

    Lifted Neural Networks, eq. (9), whose divergence has no least value over v and u together. A
    network states the maximum by `Network.maximum`, as ReLU states of differences; the
    documentation has the proof that no divergence in the maximum alone would do.

    Attributes:
        block: how many pre-activations a unit is the largest of.

    Raises:
        DeclarationError: block is no integer from 2 on.

    Example:
        >>> import torch
        >>> from liftednet.activations import MaxPooling
        >>> MaxPooling(2).forward(torch.tensor([[-1.0, 0.0, 2.0, 1.0]]))
        tensor([[0., 2.]])
    """

    per_unit = False

    def __init__(self, block: int = 2) -> None:
        """Keep the block length."""
        if not is_integer(block) or block < 2:
            raise DeclarationError(f"MaxPooling needs an integer block >= 2, got {block!r}.")
        self.block = int(block)

    def forward(self, u: Tensor) -> Tensor:
        """Return the block maxima, (samples, block * units) to (samples, units)."""
        return u.unflatten(-1, (-1, self.block)).amax(-1)


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1) / 2


class Nearest(Activation):
    """phi(u) = the nearest point of a set, Phi(v) = |v|^2 / 2 there."""

    lipschitz: float | None = 1.0

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return |v|^2 / 2."""
        return cp.sum_squares(v) / 2

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return <u, v> - |v|^2 / 2 per sample at v = phi(u), (samples,)."""
        v = self.forward(u)
        return (v * (u - v / 2)).sum(-1)


class _NearestInInterval(Nearest):
    """phi(u) = the nearest point of an interval."""

    def forward(self, u: Tensor) -> Tensor:
        """Return u, cut off at the ends."""
        return clipped(u, *self.ends)

    def excess(self, v: cp.Expression) -> cp.Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t), cut off at the ends."""
        return clipped(w / (1 + t), *self.ends)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return |v|^2 / 2 per sample, infinite off the interval."""
        return infinite_off(self.ends, v, _half_square(v))


class Identity(_NearestInInterval):
    """phi(u) = u, Phi(v) = v^2 / 2: a linear layer, and the squared loss.

    Lifted Neural Networks, section 3 (phi_L for regression tasks).

    Example:
        >>> import torch
        >>> from liftednet.activations import Identity
        >>> Identity().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[-1.,  0.,  2.]])
    """

    ends = (-math.inf, math.inf)

    def slope(self, u: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(u)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return |u|^2 / 2."""
        return cp.sum_squares(u) / 2


class ReLU(_NearestInInterval):
    """phi(u) = max(u, 0), Phi(v) = v^2 / 2 on v >= 0.

    Lifted Neural Networks, eq. (4) and section 4 (non-strictly monotone examples).

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> ReLU().forward(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0., 0., 2.]])
    """

    ends = (0.0, math.inf)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else 0."""
        return (u > 0).to(u.dtype)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return |max(u, 0)|^2 / 2."""
        return cp.sum_squares(cp.pos(u)) / 2

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return |max(u, 0)|^2 / 2 per sample, (samples,)."""
        return _half_square(u.clamp(min=0))


class Clipped(_NearestInInterval):
    """phi(u) = min(max(u, lower), upper), Phi(v) = v^2 / 2 on the box.

    Lifted Neural Networks, section 4: the piecewise sigmoid, on [-1, 1] and on [0, 1].

    Example:
        >>> import torch
        >>> from liftednet.activations import Clipped
        >>> Clipped(-1.0, 1.0).forward(torch.tensor([[-2.0, 0.5, 2.0]]))
        tensor([[-1.0000,  0.5000,  1.0000]])
    """

    def __init__(self, lower: float = 0.0, upper: float = 1.0) -> None:
        """Keep the box."""
        self.lower, self.upper = _box(self, lower, upper)

    @property
    def ends(self) -> tuple[float, float]:
        """The box."""
        return self.lower, self.upper

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 inside the box, else 0."""
        return ((u > self.lower) & (u < self.upper)).to(u.dtype)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return sum of c u - c^2/2 + huber(u - c, r)/2 with center c and half width r."""
        center, radius = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        linear = center * cp.sum(u) - u.size * center**2 / 2
        huber = cp.huber(u - center, radius)  # type: ignore[arg-type]  # any positive number
        return linear + cp.sum(huber) / 2


def _box(activation: Activation, lower: float, upper: float) -> tuple[float, float]:
    """Return the ends of a box as floats.

    Raises:
        DeclarationError: there is nothing between them, or they are not finite.
    """
    numbers = is_number(lower) and is_number(upper)
    if not numbers or not -math.inf < lower < upper < math.inf:
        raise DeclarationError(
            f"{type(activation).__name__} needs finite lower < upper, got lower = {lower!r}, "
            f"upper = {upper!r}."
        )
    return float(lower), float(upper)


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

    ends = (-1.0, 1.0)
    lipschitz = None
    margin = Tanh()
    scale_free = True

    def forward(self, u: Tensor) -> Tensor:
        """Return sign(u)."""
        return u.sign()

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return 0."""
        return cp.Constant(0.0)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return |u|_1."""
        return cp.sum(cp.abs(u))

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w clipped to [-1, 1], whatever t."""
        return w.clamp(-1, 1)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return 0 per sample, infinite outside [-1, 1]."""
        return infinite_off(self.ends, v, v.new_zeros(v.shape[:-1]))

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return |u|_1 per sample, (samples,)."""
        return u.abs().sum(-1)


class Quantized(Nearest):
    """phi(u) = the level nearest to u, Phi(v) = v^2 / 2 at the levels and linear between them.

    The argmax of <u, v> - v^2 / 2 over k levels, evenly spaced from lower to upper, and Phi is the
    convex hull of what stands there. Two levels are a hard step at the middle. phi jumps, and has
    no Lipschitz constant; its margin is that of `Clipped`, see `liftednet.divergences.Margin`.

    Raises:
        DataError: levels is no integer of 2 or more.
        DeclarationError: lower < upper does not hold, or they are not finite.

    Example:
        >>> import torch
        >>> from liftednet.activations import Quantized
        >>> Quantized(3, -1.0, 1.0).forward(torch.tensor([[-2.0, -0.4, 0.6]]))
        tensor([[-1.,  0.,  1.]])
    """

    lipschitz = None

    def __init__(self, levels: int = 2, lower: float = 0.0, upper: float = 1.0) -> None:
        """Keep the levels."""
        require_count("levels", levels, 2)
        self.levels = int(levels)
        self.lower, self.upper = _box(self, lower, upper)
        self.margin = Clipped(self.lower, self.upper)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest level."""
        return self.lower, self.upper

    @property
    def _spacing(self) -> float:
        return (self.upper - self.lower) / (self.levels - 1)

    def _grid(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the levels, and the middles between them, where phi jumps."""
        number = torch.arange(self.levels, dtype=like.dtype, device=like.device)
        levels = self.lower + self._spacing * number
        return levels, (levels[1:] + levels[:-1]) / 2

    def forward(self, u: Tensor) -> Tensor:
        """Return the level nearest to u, the lower one where two are."""
        number = ((u - self.lower) / self._spacing - 0.5).ceil()
        return self.lower + self._spacing * number.clamp(0, self.levels - 1)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return the largest of the lines through two levels that follow each other."""
        levels, middles = (x.tolist() for x in self._grid(torch.zeros((), dtype=torch.float64)))
        lines = [level**2 / 2 + t * (v - level) for level, t in zip(levels, middles, strict=False)]
        return cp.sum(lines[0] if len(lines) == 1 else cp.maximum(*lines))

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return the largest of u v - v^2 / 2 over the levels v."""
        levels = self._grid(torch.zeros((), dtype=torch.float64))[0].tolist()
        return cp.sum(cp.maximum(*[u * level - level**2 / 2 for level in levels]))

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the point whose distance from w is t times a slope of Phi there."""
        levels, middles = self._grid(w)
        step = torch.as_tensor(t, dtype=w.dtype, device=w.device).unsqueeze(-1)
        climbed = w.unsqueeze(-1) - step * middles - levels[:-1]
        return self.lower + climbed.clamp(torch.zeros_like(middles), levels.diff()).sum(-1)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi per sample, infinite outside the box."""
        levels, middles = self._grid(v)
        lines = levels[:-1].square() / 2 + middles * (v.unsqueeze(-1) - levels[:-1])
        return infinite_off(self.ends, v, lines.amax(-1).sum(-1))


class _Leaky(Activation):
    """phi(u) = u where u > 0, else alpha u, alpha > 0 a number or one for each unit."""

    ends = (-math.inf, math.inf)
    slopes: tuple[float, ...]

    def spread(self, units: int) -> tuple[float, ...]:
        """Return the slope of every unit.

        Raises:
            DataError: units are no multiple of the slopes.
        """
        if units % len(self.slopes):
            raise DataError(f"{units} units are no multiple of the {len(self.slopes)} slopes.")
        times = units // len(self.slopes)
        return tuple(slope for slope in self.slopes for _ in range(times))

    def _alpha(self, u: Tensor) -> Tensor:
        if len(self.slopes) == 1:
            return u.new_tensor(self.slopes)
        return u.new_tensor(self.spread(u.shape[-1]))

    def _stated(self, v: cp.Expression) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.broadcast_to(self.spread(v.shape[-1]), v.shape)

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where u > 0, else alpha."""
        return torch.where(u > 0, 1.0, self._alpha(u))

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2."""
        negative = cp.multiply(1 / self._stated(v), cp.square(cp.neg(v)))
        return (cp.sum_squares(cp.pos(v)) + cp.sum(negative)) / 2

    def excess(self, v: cp.Expression) -> cp.Expression:
        """Return (1 - 1 / L) |max(v, 0)|^2 / 2 + (1 / alpha - 1 / L) |min(v, 0)|^2 / 2."""
        assert self.lipschitz is not None  # the largest slope
        negative = cp.multiply(1 / self._stated(v) - 1 / self.lipschitz, cp.square(cp.neg(v)))
        return ((1 - 1 / self.lipschitz) * cp.sum_squares(cp.pos(v)) + cp.sum(negative)) / 2

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2."""
        negative = cp.multiply(self._stated(u), cp.square(cp.neg(u)))
        return (cp.sum_squares(cp.pos(u)) + cp.sum(negative)) / 2

    def potential_value(self, v: Tensor) -> Tensor:
        """Return (|max(v, 0)|^2 + |min(v, 0)|^2 / alpha) / 2 per sample, (samples,)."""
        return (v.square() * torch.where(v > 0, 1.0, 1 / self._alpha(v))).sum(-1) / 2

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return (|max(u, 0)|^2 + alpha |min(u, 0)|^2) / 2 per sample, (samples,)."""
        return (u * self.forward(u)).sum(-1) / 2


class LeakyReLU(_Leaky):
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

    @property
    def slopes(self) -> tuple[float, ...]:  # type: ignore[override]
        """The one for all units."""
        return (self.alpha,)

    def forward(self, u: Tensor) -> Tensor:
        """Return max(u, alpha u)."""
        return functional.leaky_relu(u, self.alpha)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t) where w > 0, else w / (1 + t / alpha)."""
        return torch.maximum(w / (1 + t), w / (1 + t / self.alpha))  # the faster, by far


class PReLU(_Leaky):
    """phi(u) = u where u > 0, else alpha u, with a slope alpha > 0 for every channel.

    Phi(v) = (max(v, 0)^2 + min(v, 0)^2 / alpha) / 2 as in Lifted Neural Networks, eq. (8), unit by
    unit; He et al., Delving deep into rectifiers, 2015. A layer has as many units as slopes, or a
    multiple of that: channels of neighboring units, as flattened images have them. With one slope
    it takes any number of units.

    Raises:
        DeclarationError: a slope is not positive and finite, or there is none.

    Example:
        >>> import torch
        >>> from liftednet.activations import PReLU
        >>> PReLU([0.5, 0.1]).forward(torch.tensor([[-1.0, -1.0], [2.0, 3.0]]))
        tensor([[-0.5000, -0.1000],
                [ 2.0000,  3.0000]])
    """

    def __init__(self, slopes: float | Sequence[float] | Tensor = 0.25) -> None:
        """Keep the slopes.

        Args:
            slopes: alpha, one for all units or one for each channel, such as `weight` of a
                torch.nn.PReLU.
        """
        try:
            found = torch.as_tensor(slopes, dtype=torch.float64).detach().flatten().tolist()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DeclarationError(f"PReLU needs numbers as slopes, got {slopes!r}.") from error
        if not found or not all(0 < slope < math.inf for slope in found):
            raise DeclarationError(
                f"PReLU needs positive slopes, got {found}; a slope of 0 is ReLU(), and with a "
                "negative one the map is not monotone."
            )
        self.slopes = tuple(found)
        self.lipschitz = max(1.0, *found)

    def alone(self) -> Sequence[Activation]:
        """Return the map of every channel."""
        return tuple(PReLU(slope) for slope in self.slopes)

    def forward(self, u: Tensor) -> Tensor:
        """Return u where u > 0, else alpha u."""
        return torch.where(u > 0, u, self._alpha(u) * u)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return w / (1 + t) where w > 0, else w / (1 + t / alpha)."""
        return torch.where(w > 0, w / (1 + t), w / (1 + t / self._alpha(w)))


class Bounded(Activation):
    """Phi on l <= v <= h: phi, prox and projection of a unit-by-unit map are cut off there.

    Raises:
        DataError: there is no number between the bounds, or none in the domain.
        DeclarationError: the map couples units.
    """

    def __init__(self, inner: Activation, lower: float, upper: float) -> None:
        """Keep the map and its bounds.

        Args:
            inner: the map without bounds, unit by unit.
            lower: l, or -inf.
            upper: h, or inf.
        """
        if not inner.per_unit:
            raise DeclarationError(f"bounds need a map that acts unit by unit, not {inner!r}.")
        if not (all(is_number(x) for x in (lower, upper)) and lower <= upper):
            raise DataError(f"bounds must be two numbers, the smaller first; got {(lower, upper)}.")
        ends = torch.tensor([[lower, upper]], dtype=torch.float64)
        low, high = inner.project(ends)[0].tolist()
        if not (low <= upper and high >= lower):
            raise DataError(f"no state of {inner!r} lies between the bounds {lower} and {upper}.")
        self.inner, self.lower, self.upper = inner, float(lower), float(upper)
        self.lipschitz = inner.lipschitz

    def _cut(self, v: Tensor) -> Tensor:
        return v.clamp(self.lower, self.upper)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), cut off at the bounds."""
        return self._cut(self.inner.forward(u))

    def slope(self, u: Tensor) -> Tensor:
        """Return phi'(u), 0 at and beyond the bounds."""
        v = self.inner.forward(u)
        return self.inner.slope(u).where((v > self.lower) & (v < self.upper), 0.0)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return Phi(v)."""
        return self.inner.potential(v)

    def excess(self, v: cp.Expression) -> cp.Expression:
        """Return Phi(v) - |v|^2 / (2 L)."""
        return self.inner.excess(v)

    def domain(self, v: cp.Expression) -> list[cp.Constraint]:
        """Return the domain of Phi, and the bounds that are finite."""
        return [*self.inner.domain(v), *between(v, self.lower, self.upper)]

    @property
    def closed_prox(self) -> bool:
        """Whether that of Phi is a closed form."""
        return self.inner.closed_prox

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the prox of Phi cut off at the bounds, exact in one dimension."""
        return self._cut(self.inner.prox(w, t))

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi(v) per sample, infinite beyond the bounds."""
        return infinite_off((self.lower, self.upper), v, self.inner.potential_value(v))

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest point of the domain between the bounds."""
        return self._cut(self.inner.project(v))
