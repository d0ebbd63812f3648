"""Generated tasks with one answer at the end of a sequence (On Recurrent Neural Networks, 4.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from liftednet.data.checks import generator, positive_integer, sequence_lengths
from liftednet.errors import DataError

_Draw = Callable[[torch.Generator, tuple[int, int]], Tensor]


def hochreiter_lengths(samples: int, minimum: int, seed: int = 0) -> Tensor:
    """Draw sequence lengths uniformly from T to T + T / 10, T = `minimum` (section 4.1).

    Returns:
        (samples,) int64 lengths, for the argument `lengths` of the tasks below.

    Raises:
        DataError: a count that is not a positive integer.

    Example:
        >>> from benchmarks import data
        >>> lengths = data.hochreiter_lengths(samples=100, minimum=50)
        >>> int(lengths.min()), int(lengths.max())
        (50, 55)
    """
    positive_integer("samples", samples)
    positive_integer("minimum", minimum)
    return torch.randint(
        minimum, minimum + minimum // 10 + 1, (samples,), generator=generator(seed)
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

    Raises:
        DataError: an unknown variant, a length below 10, or lengths beyond the data.

    Example:
        >>> import torch
        >>> from benchmarks import data
        >>> x, y = data.adding(samples=3, length=10)
        >>> numbers, markers = x.unbind(2)
        >>> torch.equal((numbers * markers).sum(1, keepdim=True), y), markers.sum(1).tolist()
        (True, [2.0, 2.0, 2.0])
    """
    if variant not in ("arjovsky", "hochreiter"):
        raise DataError(f'variant must be "arjovsky" or "hochreiter"; it is {variant!r}.')
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

    Raises:
        DataError: a length below 10, or lengths beyond the data.

    Example:
        >>> import torch
        >>> from benchmarks import data
        >>> x, y = data.multiplication(samples=3, length=10)
        >>> numbers, markers = x.unbind(2)
        >>> torch.allclose(numbers[markers == 1].view(3, 2).prod(1, keepdim=True), y)
        True
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

    Raises:
        DataError: a length below 10, or lengths beyond the data.

    Example:
        >>> from benchmarks import data
        >>> x, y = data.xor(samples=3, length=10)
        >>> bits, markers = x.unbind(2)
        >>> bits[markers == 1].view(3, 2).int(), y
        (tensor([[0, 1],
                [1, 0],
                [0, 0]], dtype=torch.int32), tensor([1, 1, 0]))
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

    Raises:
        DataError: `symbols` is neither 2 nor 3, a length below 10, or lengths beyond the data.

    Example:
        >>> from benchmarks import data
        >>> x, y = data.temporal_order(samples=1, length=10)
        >>> "".join("abcdxy"[symbol] for symbol in x[0].argmax(1)), int(y)  # xx, xy, yx, yy
        ('adxaddddyd', 1)
    """
    if symbols not in (2, 3):
        raise DataError(f"symbols must be 2 or 3; it is {symbols!r}.")
    lengths = _lengths(samples, length, lengths)
    source = generator(seed)
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

    Raises:
        DataError: the two shapes do not fit.

    Example:
        >>> import torch
        >>> from benchmarks.data import correct
        >>> correct(torch.tensor([0.50, 0.50]), torch.tensor([0.53, 0.55]))
        tensor([ True, False])
        >>> correct(torch.tensor([[0.2, 0.8]]), torch.tensor([1]))
        tensor([True])
    """
    expected = target.shape if target.is_floating_point() else prediction.shape[:-1]
    actual = prediction.shape if target.is_floating_point() else target.shape
    if actual != expected:
        raise DataError(
            f"Predictions of shape {tuple(prediction.shape)} do not fit targets of shape "
            f"{tuple(target.shape)} and type {target.dtype}."
        )
    if target.is_floating_point():
        return (prediction - target).abs() < tolerance
    return prediction.argmax(-1) == target


def _lengths(samples: int, length: int, lengths: Tensor | None) -> Tensor:
    positive_integer("samples", samples)
    positive_integer("length", length, least=10)
    if lengths is None:
        return torch.full((samples,), length)
    lengths = sequence_lengths(lengths, samples, length)
    if int(lengths.min()) < 10:
        raise DataError(f"Each sequence needs 10 steps; the shortest has {int(lengths.min())}.")
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
    source = generator(seed)
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
