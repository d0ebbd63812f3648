"""Windows of a phone's sensors with noise, or turned as if it sat otherwise on the body."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise to every value.

    Attributes:
        deviation: in the units of the values.
    """

    deviation: float

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return values with noise.

        Args:
            x: of any shape.
            source: of the noise.
        """
        return x + self.deviation * torch.randn(x.shape, generator=source)


@dataclass(frozen=True)
class Rotations:
    """Turns every window by a small random rotation of its own, the same for all its sensors.

    Attributes:
        mean: (channels,) of the sensors' own units, three axes of each in a row.
        deviation: (channels,) by which the normalized windows are to be multiplied.
        angle: deviation of the rotation about each axis, in radians.
    """

    mean: Tensor
    deviation: Tensor
    angle: float

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return normalized windows (batch, time, channels) that are turned.

        Args:
            x: (batch, time, channels), normalized.
            source: of the rotations.
        """
        vectors = self.angle * torch.randn(len(x), 3, generator=source)
        sensors = (x * self.deviation + self.mean).unflatten(2, (-1, 3))
        turned: Tensor = sensors @ rotation_matrices(vectors).to(x)[:, None]
        return (turned.flatten(2) - self.mean) / self.deviation


def rotation_matrices(vectors: Tensor) -> Tensor:
    """Return the rotations (count, 3, 3) about axes and by angles given as vectors (count, 3)."""
    identity = torch.eye(3).to(vectors)
    rotations: Tensor = torch.linalg.matrix_exp(
        torch.linalg.cross(vectors[:, None], identity[None], dim=-1)
    )
    return rotations
