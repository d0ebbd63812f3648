"""Generated tasks: one answer at the end (On Recurrent Neural Networks, 4.1), and a timer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

_Draw = Callable[[torch.Generator, tuple[int, int]], Tensor]


def hochreiter_lengths(samples: int, minimum: int, seed: int = 0) -> Tensor:
    """Draw sequence lengths uniformly from T to T + T / 10, T = `minimum` (section 4.1).

    Returns:
        (samples,) int64 lengths, for the argument `lengths` of the tasks below.
    """
    return torch.randint(
        minimum,
        minimum + minimum // 10 + 1,
        (samples,),
        generator=torch.Generator().manual_seed(seed),
    )


def adding(
    samples: int,
    length: int,
    variant: str = "arjovsky",
    seed: int = 0,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the two marked numbers of a sequence.

    "arjovsky" (RNN training along locally optimal trajectories, section V): numbers uniform on
    [0, 1], one marker in each half, y = x_i + x_j. "hochreiter" (On Recurrent Neural Networks,
    section 4.1): numbers uniform on [-1, 1], the first marker in the first tenth, the second
    in the fifth tenth, y = (x_i + x_j) / 2.

    Args:
        samples: number of sequences.
        length: steps of the longest possible sequence, at least 10.
        variant: "arjovsky" or "hochreiter".
        seed: of the random numbers.
        lengths: (samples,) steps of each sequence; beyond them X is zero. None: all `length`.

    Returns:
        X (samples, length, 2) float32, number and marker, and y (samples, 1) float32.
    """
    if variant == "arjovsky":
        x, first, second = _marked(samples, length, seed, lengths, _unit_interval, _halves)
        return x, first + second
    x, first, second = _marked(samples, length, seed, lengths, _symmetric_interval, _tenths)
    return x, (first + second) / 2


def multiplication(
    samples: int, length: int, seed: int = 0, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multiply the two marked numbers, uniform on [0, 1] (section 4.1): y = x_i x_j.

    Args:
        samples: number of sequences.
        length: steps of the longest possible sequence, at least 10.
        seed: of the random numbers.
        lengths: (samples,) steps of each sequence; beyond them X is zero. None: all `length`.

    Returns:
        X (samples, length, 2) float32, number and marker, and y (samples, 1) float32.
    """
    x, first, second = _marked(samples, length, seed, lengths, _unit_interval, _tenths)
    return x, first * second


def xor(
    samples: int, length: int, seed: int = 0, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Say whether the two marked bits differ (section 4.1): y = x_i xor x_j.

    Args:
        samples: number of sequences.
        length: steps of the longest possible sequence, at least 10.
        seed: of the random numbers.
        lengths: (samples,) steps of each sequence; beyond them X is zero. None: all `length`.

    Returns:
        X (samples, length, 2) float32, bit and marker, and y (samples,) int64 labels, 0 or 1.
    """
    x, first, second = _marked(samples, length, seed, lengths, _bits, _tenths)
    return x, (first != second).squeeze(1).long()


def temporal_order(
    samples: int, length: int, symbols: int = 2, seed: int = 0, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Say in which order two or three special symbols came (section 4.1).

    Each step shows one of a, b, c, d; at `symbols` random places stand x or y instead. The
    label counts the orders: xx, xy, yx, yy are 0 to 3, and with three xxx to yyy are 0 to 7.

    Args:
        samples: number of sequences.
        length: steps of the longest possible sequence, at least 10.
        symbols: how many special symbols, 2 or 3.
        seed: of the random numbers.
        lengths: (samples,) steps of each sequence; beyond them X is zero. None: all `length`.

    Returns:
        X (samples, length, 6) one-hot float32 over a, b, c, d, x, y, and y (samples,) int64.
    """
    lengths = _lengths(samples, length, lengths)
    source = torch.Generator().manual_seed(seed)
    shown = torch.randint(4, (samples, length), generator=source)
    # The places of the smallest of random scores are a uniform draw without repetition.
    scores = torch.rand(samples, length, generator=source).masked_fill(_padding(lengths, length), 2)
    places = scores.topk(symbols, dim=1, largest=False).indices.sort(1).values
    special = torch.randint(2, (samples, symbols), generator=source)
    x = one_hot(shown.scatter(1, places, 4 + special), 6).float()
    place_value = 2 ** torch.arange(symbols - 1, -1, -1)
    return _blank_padding(x, lengths), (special * place_value).sum(1)


def correct(prediction: Tensor, target: Tensor, tolerance: float = 0.04) -> Tensor:
    """Say which answers count as right (success rule of section 4.1).

    A number is right within `tolerance` of its target; labels are right where the largest
    entry of the last axis of `prediction` is theirs.

    Args:
        prediction: shape of `target` for numbers; shape of `target` plus (classes,) for labels.
        target: float numbers or int64 labels.
        tolerance: largest error that counts as right, in the units of the target.

    Returns:
        Booleans in the shape of `target`.
    """
    if target.is_floating_point():
        return (prediction - target).abs() < tolerance
    return prediction.argmax(-1) == target


def _lengths(samples: int, length: int, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.full((samples,), length)
    return lengths


def _padding(lengths: Tensor, steps: int) -> Tensor:
    return torch.arange(steps) >= lengths[:, None]


def _blank_padding(x: Tensor, lengths: Tensor) -> Tensor:
    return x.masked_fill(_padding(lengths, x.shape[1])[:, :, None], 0)


def _marked(
    samples: int,
    length: int,
    seed: int,
    lengths: Tensor | None,
    draw: _Draw,
    places: Callable[[torch.Generator, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return X and the two marked numbers (samples, 1) of the tasks with markers."""
    lengths = _lengths(samples, length, lengths)
    source = torch.Generator().manual_seed(seed)
    numbers = draw(source, (samples, length))
    first, second = places(source, lengths)
    markers = torch.zeros(samples, length).scatter(1, torch.stack([first, second], 1), 1.0)
    x = _blank_padding(torch.stack([numbers, markers], 2), lengths)
    return x, numbers.gather(1, first[:, None]), numbers.gather(1, second[:, None])


def _between(source: torch.Generator, low: Tensor, high: Tensor) -> Tensor:
    """Draw whole numbers from low to high - 1, one per sequence."""
    share = torch.rand(low.shape, generator=source, dtype=torch.float64)
    return low + (share * (high - low)).long()


def _halves(source: torch.Generator, lengths: Tensor) -> tuple[Tensor, Tensor]:
    zero, half = torch.zeros_like(lengths), lengths // 2
    return _between(source, zero, half), _between(source, half, lengths)


def _tenths(source: torch.Generator, lengths: Tensor) -> tuple[Tensor, Tensor]:
    first = _between(source, torch.zeros_like(lengths), lengths // 10)
    return first, _between(source, 4 * lengths // 10, 5 * lengths // 10)


def _unit_interval(source: torch.Generator, shape: tuple[int, int]) -> Tensor:
    return torch.rand(shape, generator=source)


def _symmetric_interval(source: torch.Generator, shape: tuple[int, int]) -> Tensor:
    return 2 * torch.rand(shape, generator=source) - 1


def _bits(source: torch.Generator, shape: tuple[int, int]) -> Tensor:
    return torch.randint(2, shape, generator=source).float()


def timer(
    samples: int, length: int, dependency: int, on_fraction: float | None = None, seed: int = 0
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
    """
    if on_fraction is None:
        on_fraction = balanced_on_fraction(length, dependency)
    source = torch.Generator().manual_seed(seed)
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
    """
    ages = torch.arange(min(length, dependency), dtype=torch.float64)
    reach = (dependency - ages) / dependency
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        off = torch.cumprod(1 - middle * reach, 0)
        mean_off = (off.sum() + (length - len(off)) * off[-1]) / length
        low, high = (middle, high) if mean_off > 0.5 else (low, middle)
    return (low + high) / 2
