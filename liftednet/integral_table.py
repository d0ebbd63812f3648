"""The integral of a nondecreasing map and its Legendre transform, from one fine table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from liftednet.piecewise import refined

_REACH = 38.0  # the table covers |x| <= sinh(38), about 1.6e16
_CELLS = 65_536
_STILL = 1e-9  # a map that moves by less, relative, over the last half of the table is at its limit
_CHUNK = 32_768  # entries, so that a few temporaries stay in the cache


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply an elementwise function of tensors of one shape, on a CPU part by part."""
    first = tensors[0]
    if first.numel() <= _CHUNK or first.device.type != "cpu":
        return function(*tensors) if first.numel() else first.clone()
    parts = zip(*(tensor.reshape(-1).split(_CHUNK) for tensor in tensors), strict=True)
    return torch.cat([function(*part) for part in parts]).reshape(first.shape)


class IntegralTable:
    """phi and its integral, tabulated once in float64 and interpolated at any size.

    Between the points the integral is the cubic with the right values and slopes at both ends, its
    error of the order of the cell's width to the fourth.

    Args:
        forward: phi, elementwise in torch, nondecreasing.

    Attributes:
        x: (points,) evenly spaced in asinh(x) about 0, and closer where phi bends.
        phi: (points,) phi(x).
        middle: the index at which x is 0.
        infimum: the limit of phi at minus infinity (may be infinite).
        supremum: the limit of phi at plus infinity (may be infinite).
    """

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        """Tabulate phi, and its integral by 8-point Gauss quadrature in every cell."""
        self._forward = forward
        half = torch.linspace(0.0, _REACH, _CELLS // 2 + 1, dtype=torch.float64).sinh()
        bends = torch.from_numpy(refined(forward)[0])
        self.x = torch.cat([-half, half, bends]).unique()
        self.phi = self._values(self.x)
        self.middle = int(torch.searchsorted(self.x, 0.0))
        self._integral = self._integrate()
        self._elsewhere: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self.infimum, self.supremum = self._limits()

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, phi and the integral on a device, where they are kept."""
        here = (self.x, self.phi, self._integral)
        if device == self.x.device:
            return here
        if device not in self._elsewhere:
            self._elsewhere[device] = (here[0].to(device), here[1].to(device), here[2].to(device))
        return self._elsewhere[device]

    def _values(self, x: Tensor) -> Tensor:
        return self._forward(x).detach().to(torch.float64)

    def _integrate(self) -> Tensor:
        nodes, weights = (torch.from_numpy(y) / 2 for y in np.polynomial.legendre.leggauss(8))
        width = self.x.diff()
        points = self.x[:-1, None] + width[:, None] * (nodes + 0.5)
        cells = width * (self._values(points) @ weights)
        right = cells[self.middle :].cumsum(0)
        left = -cells[: self.middle].flip(0).cumsum(0).flip(0)
        return torch.cat([left, torch.zeros(1, dtype=torch.float64), right])

    def _limits(self) -> tuple[float, float]:
        ends = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
        far, half = self.phi[[0, -1]], self._values(self.x[[0, -1]] / 2)
        seen = torch.where((far - half).abs() > _STILL * (1 + half.abs()), ends, far)
        at_ends = self._values(ends)  # NaN where it takes infinity from infinity
        low, high = torch.where(at_ends.isnan(), seen, at_ends).tolist()
        return low, high

    def integral(self, u: Tensor) -> Tensor:
        """Return the integral of phi from 0 to u, per entry, in float64."""
        return in_chunks(self._integral_at, u)

    def _integral_at(self, u: Tensor) -> Tensor:
        u = u.to(torch.float64).contiguous()
        x, _, _ = self._on(u.device)
        cell = (torch.searchsorted(x, u, right=True) - 1).clamp_(0, len(x) - 2)
        return self._cubic(u, cell)

    def _cubic(self, u: Tensor, cell: Tensor) -> Tensor:
        """Return the interpolated integral at u, which lies in the given cells."""
        x, phi, integral = self._on(u.device)
        following = cell + 1
        left, start, low, high = x[cell], integral[cell], phi[cell], phi[following]
        width = x[following] - left
        s = ((u - left) / width).clamp_(0, 1)
        mean = (integral[following] - start) / width
        bend = low + high - 2 * mean
        rise = ((bend * s + (3 * mean - 2 * low - high)) * s + low) * s
        beyond = u - left - width * s  # off the table phi stays at its end
        value = start + width * rise + torch.where(beyond > 0, high, low) * beyond
        return value.nan_to_num(torch.inf, torch.inf, -torch.inf)

    def legendre(self, v: Tensor) -> Tensor:
        """Return sup_u <u, v> - integral(u), per entry, in float64; infinite off the range.

        An error in the maximizer u counts only by its square.
        """
        return in_chunks(self._legendre_at, v)

    def _legendre_at(self, v: Tensor) -> Tensor:
        rounding = 4 * torch.finfo(v.dtype).eps * (1 + v.abs()).to(torch.float64)
        v = v.to(torch.float64)
        inside = v.clamp(self.infimum, self.supremum).contiguous()
        u, cell = self._maximizer(inside)
        value = u * inside - self._cubic(u, cell)
        return torch.where((v - inside).abs() > rounding, torch.inf, value)

    def _maximizer(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the u nearest to 0 with phi(u) = v, on the chord of its cell, and the cell."""
        x, phi, _ = self._on(v.device)
        above = torch.searchsorted(phi, v) - 1
        below = torch.searchsorted(phi, v, right=True) - 1
        cell = torch.where(v < phi[self.middle], below, above).clamp_(0, len(x) - 2)
        low, left = phi[cell], x[cell]
        share = ((v - low) / (phi[cell + 1] - low)).nan_to_num_(0.0).clamp_(0, 1)
        return left + share * (x[cell + 1] - left), cell
