"""What new rows answer: means, what is noise in them and what is ignorance, and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.errors import DataError
from liftednet.noise import Noise
from liftednet.power import Power
from liftednet.validation import finite_numbers, require_share

_MOST_DEGREES = 1e9  # from which Student's distribution is the normal one
_POINTS, _REACH = 24, 8.0  # to each side of a normal law, evenly, and how many widths out
_MOST_WIDTH = 10.0  # of logarithms, for which there are so many times as many
_KERNEL = 2 / 3  # of the distance of two points: laws as wide leave ripples of 3e-4
_POISSON = 1 + 1e-6  # s at which a negative binomial is Poisson's but for a millionth
MOST_LOGARITHM = 36.0  # of a rate: counts beyond are no whole numbers of float64
_LEAST_LOGARITHM = -80.0  # which has a reciprocal in float32, too


@dataclass(frozen=True, eq=False)
class Prediction:
    """Means and standard deviations of what new rows answer, in units of y.

    Their distribution is Student's where nothing else is said, as the noise is estimated by so many
    degrees of freedom.

    Attributes:
        mean: what the network answers, (samples, outputs).
        noise: standard deviation of answers around the network, which no network can know.
        ignorance: that of the network's answer, by what the data leave open about its weights.
        degrees: of freedom by which the noise is known.

    Example:
        >>> import torch
        >>> from liftednet.models.results import Prediction
        >>> found = Prediction(torch.zeros(1, 1), torch.tensor([[3.0]]), torch.tensor([[4.0]]))
        >>> float(found.std), [round(float(end), 2) for end in found.interval(0.9)]
        (5.0, [-8.22, 8.22])
    """

    mean: Tensor
    noise: Tensor
    ignorance: Tensor
    degrees: float = float("inf")

    @property
    def std(self) -> Tensor:
        """The standard deviation of an answer, sqrt(noise^2 + ignorance^2)."""
        return torch.hypot(self.noise, self.ignorance)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the ends between which an answer lies with a probability.

        Ends of counts are counts, which lie between them with at least this probability.

        Raises:
            DataError: the level is not strictly between 0 and 1.
        """
        require_share("level", level)
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def quantile(self, level: float) -> Tensor:
        """Return what an answer is below with a probability, (samples, outputs)."""
        from scipy.special import stdtrit

        reach = float(stdtrit(min(self.degrees, _MOST_DEGREES), level))
        return self.mean + reach * self.std

    def log_density(self, y: Any) -> Tensor:
        """Return log p(y), (samples, outputs), in units of y; of counts log P(y).

        Args:
            y: answers, (samples, outputs), or (samples,) of one output, as `fit` takes them; of one
                row as many as there are.

        Raises:
            DataError: y are no finite numbers, or not as many as there are answers.
        """
        given = torch.tensor(finite_numbers("y", y)).to(self.mean)
        shape = self.mean.shape
        if given.ndim == len(shape) - 1 and shape[-1] == 1:
            given = given.unsqueeze(-1)
        if given.shape[1:] != shape[1:] or shape[0] not in (1, len(given)):
            raise DataError(
                f"y must have an entry for each answer, of shape {tuple(shape)}, got "
                f"{tuple(given.shape)}."
            )
        return self._log_density(given)

    def _log_density(self, y: Tensor) -> Tensor:
        """Return log p(y) of answers of the shape of the mean."""
        from scipy.stats import t

        away = ((y - self.mean) / self.std).cpu().numpy()
        found = t.logpdf(away, min(self.degrees, _MOST_DEGREES))
        return torch.from_numpy(found).to(self.std) - self.std.log()


@dataclass(frozen=True, eq=False, kw_only=True)
class PowerPrediction(Prediction):
    """Answers of which a power has Student's distribution.

    Attributes:
        power: of the answers.
        raised: mean, noise and ignorance on its scale, where answers are alike to both sides.
    """

    power: Power
    raised: Prediction

    @classmethod
    def of(cls, power: Power, raised: Prediction) -> PowerPrediction:
        """Return the same answers in units of y."""
        center = power.within(raised.mean)
        _, alone = power.moments(center, raised.noise)
        _, both = power.moments(center, raised.std)
        unknown = (both.square() - alone.square()).clamp(min=0).sqrt()
        # The network says more of it than is answered, which is no noise in the exponent.
        unknown = torch.hypot(unknown, power.quantile(raised.mean) - power.quantile(center))
        beside = torch.hypot(raised.ignorance, raised.mean - center)
        raised = Prediction(center, raised.noise, beside, raised.degrees)
        return cls(power.mean(center), alone, unknown, power=power, raised=raised)

    def quantile(self, level: float) -> Tensor:
        """Return that of the power, undone."""
        return self.power.quantile(self.raised.quantile(level))

    def _log_density(self, y: Tensor) -> Tensor:
        """Return that of the power, and the logarithm of its slope."""
        return self.raised._log_density(self.power.of(y)) + self.power.log_slopes(y)


@dataclass(frozen=True, eq=False, kw_only=True)
class CountPrediction(Prediction):
    """Counts of rates r that have these values with these shares: Poisson's, or negative binomial.

    Attributes:
        rates: (points, samples, outputs).
        shares: (points, 1, 1), of sum 1.
        dispersion: s, (points, samples, outputs): variances are s r, by negative binomials where s
            is above 1.
    """

    rates: Tensor
    shares: Tensor
    dispersion: Tensor

    @classmethod
    def around(cls, center: Tensor, width: Tensor, dispersion: Tensor) -> CountPrediction:
        """Return the counts whose rates have logarithms from N(center, width^2).

        Even points stand for that law. Counts of large rates are nearer to theirs than points are
        to each other: those are taken as wide as the gaps, and the points together by as much.
        """
        s = dispersion.clamp(min=1).to(center)
        widest = float(width.max()) if width.numel() else 0.0
        half = round(_POINTS * min(max(widest, 1.0), _MOST_WIDTH))
        points = torch.linspace(-_REACH, _REACH, 2 * half + 1).to(center)
        z = points.view(-1, *(1,) * center.ndim)
        shares = (-z.square() / 2).softmax(0)
        rates = (center + z * width).clamp(max=MOST_LOGARITHM).exp()
        mean = (shares * rates).sum(0)
        apart = (shares * (rates - mean).square()).sum(0).sqrt()
        wide = (_KERNEL * (points[1] - points[0]) * width).square()  # variances of logarithms
        added = (wide - s * (-center).exp()).clamp(min=0)
        near = center + added / 2 + z * (width.square() - added).sqrt()  # as means of laws lie
        near = near.clamp(_LEAST_LOGARITHM, MOST_LOGARITHM).exp()
        noise = (s * mean).sqrt()
        laws = torch.maximum(s, near * wide)
        return cls(center.exp(), noise, apart, rates=near, shares=shares, dispersion=laws)

    def quantile(self, level: float) -> Tensor:
        """Return the least count that is not passed with a probability, (samples, outputs)."""
        from scipy.special import betainc, gammaincc

        parts = self.shares, self.rates, self.dispersion
        shares, rates, laws = (x.double().cpu().flatten(1).numpy() for x in parts)
        mean = (shares * rates).sum(0)
        width = np.sqrt((shares * (laws * rates + (rates - mean) ** 2)).sum(0))
        odds = np.sqrt(level / (1 - level))  # Cantelli's inequality, to both sides
        low = np.floor(np.maximum(mean - width / odds, 0.0))
        high = np.ceil(mean + width * odds)
        while (left := np.flatnonzero(low < high)).size:
            middle = low[left] + (high[left] - low[left]) // 2
            r, s = rates[:, left], np.maximum(laws[:, left], _POISSON)
            below = gammaincc(middle + 1, r)  # where it has no more than Poisson's variance
            more = s > _POISSON
            ends = np.broadcast_to(middle + 1, r.shape)[more]
            below[more] = betainc(r[more] / (s[more] - 1), ends, 1 / s[more])
            enough = (shares * below).sum(0) >= level
            above = np.maximum(middle + 1, np.nextafter(middle, np.inf))  # beyond 2^53, too
            low[left] = np.where(enough, low[left], above)
            high[left] = np.where(enough, middle, high[left])
        beyond = (shares * (rates >= 0.999 * np.exp(MOST_LOGARITHM))).sum(0) > 1 - level
        found = torch.from_numpy(np.where(beyond, np.inf, low))
        return found.view(self.mean.shape).to(self.rates)

    def _log_density(self, y: Tensor) -> Tensor:
        """Return log P(y), (samples, outputs)."""
        y, r, s = y.double(), self.rates.double(), self.dispersion.double()
        plain = torch.xlogy(y, r) - r - torch.lgamma(y + 1)
        size = r / (s.clamp(min=_POISSON) - 1)
        count = torch.lgamma(y + size) - torch.lgamma(size) - torch.lgamma(y + 1)
        varied = count - size * s.log() + torch.xlogy(y, 1 - 1 / s)
        each = torch.where(s > _POISSON, varied, plain)
        return torch.logsumexp(each + self.shares.log(), 0).to(self.rates)


@dataclass(frozen=True, eq=False, kw_only=True)
class RobustPrediction(Prediction):
    """Answers around outputs from N(mean, ignorance^2), whose noise has tails.

    Attributes:
        law: of the noise.
    """

    law: Noise

    def quantile(self, level: float) -> Tensor:
        """Return it by the integral of the density."""
        return self.mean + self.law.quantile(level, self.ignorance)

    def _log_density(self, y: Tensor) -> Tensor:
        """Return log p(y), (samples, outputs)."""
        return self.law.log_density(y - self.mean, self.ignorance)
