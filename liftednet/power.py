"""Skewed targets on a scale on which their noise is alike: the powers of Yeo and Johnson."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

_POINTS = 16  # of Gauss-Hermite quadrature: exact for polynomials of degree 31
_CLEAR = 0.1  # of the deviation of answers: of less noise answers beyond them are believed
_NO_POWER = 1e-6  # exponents below are those of a logarithm, to the digits of float32


@dataclass(frozen=True, eq=False)
class Power:
    """t = psi(z), z = (y - center) / scale: Yeo and Johnson's power transformation of each target.

    psi(z) = ((1 + z)^p - 1) / p for z >= 0, -((1 - z)^(2 - p) - 1) / (2 - p) below, logarithms
    where an exponent is 0 (A New Family of Power Transformations to Improve Normality or Symmetry,
    2000). Exponents are between 0 and 2, so that all of the line is reached.

    Attributes:
        center: (units,), in units of y, where psi has slope 1.
        scale: (units,) positive, in units of y.
        exponent: p, (units,) in [0, 2]; 1 changes nothing.
        noise: standard deviation of t around the network's answer, (units,); by it medians become
            means, and with 0 they stay.
        lowest: the least answer t that a mean is given of, (units,): that of training.
        highest: the largest, (units,).

    Example:
        >>> import torch
        >>> from liftednet.power import Power
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> power = Power(zero, one, zero, one, -one, one)
        >>> float(power.of(torch.tensor([1.0]))), float(power.quantile(torch.log(2 * one)))
        (0.6931471824645996, 1.0)
        >>> round(float(power.mean(zero)), 3)  # exp(1 / 2) - 1 above 0, 1 - exp(1 / 2) mirrored
        0.387
    """

    center: Tensor
    scale: Tensor
    exponent: Tensor
    noise: Tensor
    lowest: Tensor
    highest: Tensor

    def to(self, like: Tensor) -> Power:
        """Return the same in the type and on the device of a tensor."""
        return Power(*(getattr(self, part.name).to(like) for part in fields(self)))

    def fitted(self, t: Tensor, noise: Tensor) -> Power:
        """Return the same with what a fit answers in training, (..., units), and its noise."""
        rows, noise = t.to(self.scale).reshape(-1, len(self.scale)), noise.to(self.scale)
        low, high = rows.amin(0), rows.amax(0)
        room = torch.where(noise < _CLEAR * rows.std(0, correction=0), high - low, 0.0)
        return replace(self, noise=noise, lowest=low - room, highest=high + room)

    @property
    def logarithmic(self) -> Tensor:
        """Whether one of the tails is that of an exponential, (units,) booleans."""
        return torch.minimum(self.exponent, 2 - self.exponent) < _NO_POWER

    def within(self, t: Tensor) -> Tensor:
        """Return the nearest answers that training has, (..., units)."""
        return torch.minimum(torch.maximum(t, self.lowest), self.highest)

    def about_training(self, t: Tensor, mean: Tensor, width: Tensor) -> Tensor:
        """Return draws t of N(mean, width^2) as predictions have them, (draws, ..., units).

        They are about the nearest answer that training has, and as much wider as that is off.
        """
        center = self.within(mean)
        wider = torch.hypot(width, mean - center) / width.clamp(min=torch.finfo(t.dtype).tiny)
        return center + (t - mean) * wider

    def of(self, y: Tensor) -> Tensor:
        """Return t of targets, (..., units)."""
        z = (y - self.center) / self.scale
        p = torch.where(z < 0, 2 - self.exponent, self.exponent)
        some = p.clamp(min=_NO_POWER)
        grown = torch.log1p(z.abs())
        return z.sign() * torch.where(p < _NO_POWER, grown, torch.expm1(some * grown) / some)

    def quantile(self, t: Tensor) -> Tensor:
        """Return y of t, (..., units): that of a quantile of t is the same quantile of y."""
        grown, _ = self._grown(t)
        return self.center + self.scale * t.sign() * torch.expm1(grown)

    def _grown(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log(1 + |z|) of t = psi(z), and log dz / dt, (..., units)."""
        p = torch.where(t < 0, 2 - self.exponent, self.exponent)
        some, far = p.clamp(min=_NO_POWER), t.abs()
        near, none = torch.log1p(some * far), p < _NO_POWER
        return torch.where(none, far, near / some), torch.where(none, far, near * (1 / some - 1))

    def mean(self, t: Tensor) -> Tensor:
        """Return the mean of y where t has the noise around it, (..., units)."""
        return self.moments(self.within(t), self.noise)[0]

    def moments(self, t: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of y over t from N(t, spread^2), by quadrature."""
        points, shares = normal_points(t, spread, _POINTS)
        parts = self.quantile(points)
        mean = (shares * parts).sum(0)
        return mean, (shares * (parts - mean).square()).sum(0).sqrt()

    def mean_slopes(self, t: Tensor) -> Tensor:
        """Return the derivative of the mean in t, (..., units): 0 beyond answers of training."""
        points, shares = normal_points(self.within(t), self.noise, _POINTS)
        _, slopes = self._grown(points)
        inside = (t > self.lowest) & (t < self.highest)
        return torch.where(inside, self.scale * (shares * slopes.exp()).sum(0), 0.0)

    def log_slopes(self, y: Tensor) -> Tensor:
        """Return log dt / dy at targets, (..., units): log p(y) is log p(t) and this."""
        z = (y - self.center) / self.scale
        return (self.exponent - 1) * z.sign() * torch.log1p(z.abs()) - self.scale.log()


def power_mean(t: Tensor, parts: Tensor) -> Tensor:
    """Return `Power.mean` of t, (..., units), whose power is given by its parts, (6, units)."""
    if has_torch_function((t, parts)):  # `certify` and `to_cvxpy` follow it as one call
        return handle_torch_function(power_mean, (t, parts), t, parts)
    return Power(*parts.unbind()).mean(t)


def normal_points(center: Tensor, width: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return points of N(center, width^2), (count, ...), and their shares, by Gauss and Hermite."""
    shape = (-1, *(1,) * center.ndim)
    nodes, shares = (
        center.new_tensor(x).view(shape) for x in np.polynomial.hermite_e.hermegauss(count)
    )
    return center + nodes * width, shares / shares.sum()
