"""The restarted countdown (Lifted Recurrent Neural Networks, section 6.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednet.data.checks import fraction, generator, positive_integer


def timer(
    samples: int,
    length: int,
    dependency: int,
    on_fraction: float | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Say at every step whether a restarted countdown still runs (section 6.3).

    The running timer falls by 1 a step down to 0; where the switch is on it becomes the larger
    of itself and the timer input. y = 0 (on) where it is positive, else 1 (off).

    Args:
        samples: number of sequences.
        length: steps of each sequence.
        dependency: largest timer input, in steps.
        on_fraction: share of steps whose switch is on; None gives `balanced_on_fraction`.
        seed: of the random numbers.

    Returns:
        X (samples, length, 3) float32 with the timer input, a whole number from 1 to
        `dependency`, and the one-hot switch (on, off); y (samples, length) int64 labels.

    Raises:
        DataError: a count that is not a positive integer, or a share outside (0, 1).

    Example:
        >>> from benchmarks import data
        >>> x, y = data.timer(samples=1, length=6, dependency=3, on_fraction=0.4)
        >>> (x[..., 0] * x[..., 1]).int(), y  # where the timer is set, and 0 while it runs
        (tensor([[0, 0, 0, 0, 2, 0]], dtype=torch.int32), tensor([[1, 1, 1, 1, 0, 0]]))
    """
    positive_integer("samples", samples)
    if on_fraction is None:
        on_fraction = balanced_on_fraction(length, dependency)
    fraction("on_fraction", on_fraction)
    positive_integer("length", length)
    positive_integer("dependency", dependency)
    source = generator(seed)
    value = torch.randint(1, dependency + 1, (samples, length), generator=source)
    on = torch.rand(samples, length, generator=source) < on_fraction
    x = torch.stack([value, on, ~on], dim=2).float()
    return x, (_running_timer(value * on) == 0).long()


def _running_timer(restarts: Tensor) -> Tensor:
    """Return the countdown after each step; `restarts` is 0 where the switch is off."""
    # With t the step, the countdown is max over k <= t of (restart_k + k) - t, never below 0.
    step = torch.arange(restarts.shape[1])
    return ((restarts + step).cummax(1).values - step).clamp(min=0)


def balanced_on_fraction(length: int, dependency: int) -> float:
    """Return the share of on switches at which the timer's answers are half on, half off.

    The countdown is 0 after step t (from 0) with probability
    prod_{k=0}^{min(t, p-1)} (1 - f (p - k) / p), p the dependency; its mean over t is set to 1/2.

    Args:
        length: steps of each sequence.
        dependency: largest timer input, in steps.

    Raises:
        DataError: a count that is not a positive integer.

    Example:
        >>> from benchmarks import data
        >>> share = data.balanced_on_fraction(length=100, dependency=20)
        >>> _, y = data.timer(200, 100, 20, on_fraction=share)
        >>> round(share, 3), round(float(y.float().mean()), 2)
        (0.07, 0.51)
    """
    positive_integer("length", length)
    positive_integer("dependency", dependency)
    ages = torch.arange(min(length, dependency), dtype=torch.float64)
    reach = (dependency - ages) / dependency
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        off = torch.cumprod(1 - middle * reach, 0)
        mean_off = (off.sum() + (length - len(off)) * off[-1]) / length
        low, high = (middle, high) if mean_off > 0.5 else (low, middle)
    return (low + high) / 2
