"""The noise of targets: normal, and where losses are Huber's exponential from a distance on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import erfinv, log_ndtr

_LEAST_WIDTH = 1e-6  # of the noise, of what it is convolved with
_CELLS = 600  # of half a density
_BENT = 8.0  # how much finer they are in the middle: their sizes grow by up to cosh of it
_FAR = 40.0  # deviations and lengths of tails, beyond which nothing is left


@dataclass(frozen=True, eq=False)
class Noise:
    """Normal noise of variance s up to delta, with so long tails of so large a share beyond.

    Huber's least favorable density (Robust estimation of a location parameter, Annals of
    Mathematical Statistics 35, 1964) is one of them, its tails s / delta long. That length and
    their share are told by the data here, as outliers may be farther.

    Attributes:
        size: s, (outputs,), or with samples before.
        delta: the end of the normal part, infinite where there are no tails.
        share: of answers in both tails.
        length: of a tail: the density falls by e within it.
    """

    size: Tensor
    delta: float = math.inf
    share: float = 0.0
    length: float = 1.0

    @classmethod
    def of_residuals(
        cls, size: Tensor, delta: float, near: float, far: float, excess: float
    ) -> Noise:
        """Return the noise with the most likely tails, one more answer being as Huber's density.

        Args:
            size: s.
            delta: of the loss.
            near: how many residuals are within delta.
            far: how many are not.
            excess: what these have beyond, summed.
        """
        s = float(size.mean())
        k = delta / s**0.5
        inside = math.erf(k / math.sqrt(2))
        beyond = math.sqrt(2 / math.pi) / k * math.exp(-(k**2) / 2)
        share = (far + beyond / (inside + beyond)) / (near + far + 1)
        share = max(share, torch.finfo(torch.float32).tiny)  # whose logarithm is asked for
        return cls(size, delta, share, (excess + s / delta) / (far + 1))

    def scaled(self, unit: Tensor) -> Noise:
        """Return the noise in other units, of which one of these has so many, (outputs,)."""
        size, one = self.size * unit.square(), float(unit.mean())
        return replace(self, size=size, delta=self.delta * one, length=self.length * one)

    @property
    def variance(self) -> Tensor:
        """Its variance, (outputs,)."""
        if not self.share:
            return self.size
        k, d, b = self._k, self.delta, self.length
        lost = k * math.sqrt(2 / math.pi) * (-k.square() / 2).exp() / self._inside
        return (1 - self.share) * self.size * (1 - lost) + self.share * (d**2 + 2 * b * (d + b))

    @property
    def _k(self) -> Tensor:
        return self.delta / self.size.sqrt()

    @property
    def _inside(self) -> Tensor:
        """The share of a normal distribution within delta."""
        return torch.erf(self._k / math.sqrt(2))

    def log_likelihood(self, near: float, squares: float, far: float, excess: float) -> float:
        """Return log p of so many residuals on both sides of delta, by their sums."""
        middle = (2 * math.pi * self.size).log() / 2 + self._inside.log() - math.log1p(-self.share)
        beyond = far * math.log(2 * self.length / self.share) + excess / self.length
        return -float(squares / (2 * self.size) + near * middle) - beyond

    def log_density(self, r: Tensor, width: Tensor) -> Tensor:
        """Return log p of the noise and N(0, width^2) together, in closed form."""
        s, d, b, r = self.size, self.delta, self.length, r.abs()
        width = width.clamp(min=_LEAST_WIDTH * float(s.min()) ** 0.5)
        whole = s + width.square()
        center, root = r * s / whole, (s * width.square() / whole).sqrt()
        upper, lower = log_ndtr((d - center) / root), log_ndtr((-d - center) / root)
        between = upper + torch.log1p(-(lower - upper).exp().clamp(max=1 - 1e-15))
        normal = -r.square() / (2 * whole) - (2 * math.pi * whole).log() / 2
        parts = [normal + between + math.log1p(-self.share) - self._inside.log()]
        for side in (r, -r):
            fallen = (d - side) / b + (width / b).square() / 2 + math.log(self.share / (2 * b))
            parts.append(fallen + log_ndtr((side - d) / width - width / b))
        return torch.logsumexp(torch.stack(parts), 0)

    def quantile(self, level: float, width: Tensor) -> Tensor:
        """Return a quantile of both together, by trapezoids whose sum is a half."""
        reach = _FAR * (width + self.size.sqrt() + self.length)
        steps = torch.linspace(0, _BENT, _CELLS + 1, dtype=width.dtype, device=width.device)
        grid = (steps.sinh() / math.sinh(_BENT)).view(-1, *(1,) * width.ndim) * reach
        heights = self.log_density(grid, width).exp()
        areas = torch.cumsum((heights[1:] + heights[:-1]) / 2 * grid.diff(dim=0), 0)
        areas = torch.cat([torch.zeros_like(areas[:1]), areas / (2 * areas[-1])])
        wanted = abs(level - 0.5)
        place = (areas[1:] < wanted).sum(0, keepdim=True).clamp(max=_CELLS - 1)
        low, high = areas.gather(0, place), areas.gather(0, place + 1)
        share = (wanted - low) / (high - low).clamp(min=torch.finfo(width.dtype).tiny)
        found = torch.lerp(grid.gather(0, place), grid.gather(0, place + 1), share)[0]
        return math.copysign(1.0, level - 0.5) * found

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Return draws, as many as a tensor (..., outputs) has entries."""
        if not self.share:
            normal = torch.randn(like.shape, generator=generator, dtype=like.dtype)
            return self.size.sqrt() * normal.to(like.device)
        uniform = 2 * torch.rand(like.shape, generator=generator, dtype=like.dtype) - 1
        uniform, near = uniform.to(like.device), 1 - self.share
        inside = (uniform.abs() / near).clamp(max=1.0) * self._inside
        left = ((1 - uniform.abs()) / self.share).clamp(min=torch.finfo(like.dtype).tiny)
        middle = (2 * self.size).sqrt() * erfinv(inside)
        far = self.delta - self.length * left.log()
        return uniform.sign() * torch.where(uniform.abs() < near, middle, far)
