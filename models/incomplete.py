"""Inputs of which entries are missing: states of their own below the network.

What was not seen has a Gaussian prior that is fitted to data. A network is trained on minibatches
of draws from it, new ones in every pass; every other time the states are the most likely ones.
Targets of regressions are part of the prior, and so move the draws as a minimum that also sees the
loss would: without them slopes are too flat (Little and Rubin, Statistical Analysis with Missing
Data, 2002).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import SAMPLE_WEIGHTS, Input
from liftednet.network import Label, Network
from liftednet.samples import row_chunks

from .data import Data

_RANK = 32  # of the prior, at most
_ROWS = 5_000  # that the prior is fitted to, at most
# of factor analysis
_SWEEPS = 40  # of expectation and maximization
_PULL = 0.5  # of loadings to 0, in samples for each column
_LEAST = 1e-4  # share of a column's variance that the factors cannot explain


@dataclass(frozen=True, eq=False)
class Factors:
    """x = mean + z F + e: z ~ N(0, I), e ~ N(0, diag(own)).

    Factor analysis (Rubin and Thayer, EM Algorithms for ML Factor Analysis, 1982).

    Attributes:
        mean: (columns,), all in float64.
        loadings: F, (rank, columns).
        own: (columns,) not negative; 0, as F is, where a column does not vary.

    Example:
        >>> import torch
        >>> from liftednet.models.incomplete import Factors
        >>> two = Factors(torch.zeros(2), torch.ones(1, 2), torch.ones(2))
        >>> two.completed(torch.tensor([[1.0, torch.nan]]))  # of correlation 1/2
        tensor([[1.0000, 0.5000]])
    """

    mean: Tensor
    loadings: Tensor
    own: Tensor

    @property
    def width(self) -> int:
        """How many standard normal numbers make a draw."""
        return sum(self.loadings.shape)

    def completed(self, rows: Tensor, normal: Tensor | None = None) -> Tensor:
        """Return x, given what is seen of it.

        Its mean is the most likely one.

        Args:
            rows: (samples, columns), NaN where nothing is seen.
            normal: standard normal numbers, (samples, width) or (1, width), which make a draw of
                x; None for its mean.
        """
        if normal is not None:
            normal = normal.to(self.mean).expand(len(rows), self.width)
        found = torch.empty_like(rows)
        for part in row_chunks(len(rows), len(self.loadings) ** 2 + rows.shape[1], rows.device):
            some = None if normal is None else normal[part]
            found[part] = self._completed(rows[part].to(self.mean), some).to(rows)
        return found

    def _completed(self, rows: Tensor, normal: Tensor | None) -> Tensor:
        away = rows - self.mean
        seen = away.isfinite()
        away = away.where(seen, 0.0)
        z, root = self.scores(seen, away)
        if normal is None:
            return rows.where(seen, self.mean + z @ self.loadings)
        rank = len(self.loadings)
        common = (z + (root @ normal[:, :rank, None])[..., 0]) @ self.loadings
        return rows.where(seen, self.mean + common + self.own.sqrt() * normal[:, rank:])

    def scores(self, seen: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of z, (samples, rank), and a root of its covariance."""
        rank = len(self.loadings)
        weighed = self.loadings / self.own.where(self.own > 0, 1.0)
        pairs = (weighed[:, None] * self.loadings).flatten(0, 1)
        precision = (seen.to(pairs) @ pairs.T).unflatten(1, (rank, rank))
        precision.diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky(precision)
        z = torch.cholesky_solve((away @ weighed.T).unsqueeze(2), factor).squeeze(2)
        eye = torch.eye(rank).to(pairs).expand_as(precision)
        return z, torch.linalg.solve_triangular(factor.mT, eye, upper=True)


def fit_factors(
    rows: Tensor, rank: int, rounding: Tensor, weights: Tensor | None = None
) -> Factors:
    """Return the factors under which rows are likely, by expectation and maximization.

    Loadings are pulled to 0 as if by samples that say so, which few rows need.

    Args:
        rows: (samples, columns), NaN where nothing is seen, and something seen in every column.
        rank: of the factors.
        rounding: (columns,) the distance of values from their mean, relative to it, up to which
            they are the same.
        weights: (samples,) positive, how often each row counts; None for once.
    """
    rows = rows.double()
    seen = rows.isfinite()
    counts = seen.double() if weights is None else seen * weights.double()[:, None]
    mass = counts.sum(0)
    mean = (counts * rows.nan_to_num()).sum(0) / mass
    rows = (rows - mean).where(seen, 0.0)  # squares of means would cost the digits of what moves
    varies = rows.abs().amax(0) > rounding * mean.abs()
    away = counts.sqrt() * rows
    variance = away.square().sum(0) / mass
    unit = variance.sqrt().where(varies, torch.inf)
    together = (away / unit).T @ (away / unit) / mass.max()
    values, vectors = torch.linalg.eigh(together)
    loadings = (vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()).T
    loadings = loadings * unit.where(varies, 0.0)
    least = _LEAST * variance * varies
    found = Factors(torch.zeros_like(mean), loadings, variance / 2 * varies)
    for _ in range(_SWEEPS):
        found = _improved(found, rows, seen, counts, least)
    return replace(found, mean=mean + found.mean * varies)


def _improved(known: Factors, rows: Tensor, seen: Tensor, counts: Tensor, least: Tensor) -> Factors:
    """Return the regression of every column on the factors, where it is seen."""
    rank, columns = known.loadings.shape
    gram = counts.new_zeros(columns, (rank + 1) ** 2)
    cross = counts.new_zeros(columns, rank + 1)
    for part in row_chunks(len(rows), (rank + 1) ** 2, rows.device):
        here, some, x = seen[part], counts[part], rows[part]
        z, root = known.scores(here, (x - known.mean).where(here, 0.0))
        z = torch.nn.functional.pad(z, (0, 1), value=1.0)
        second = z[:, :, None] * z[:, None]
        second[:, :rank, :rank] += root @ root.mT
        gram += some.T @ second.flatten(1)
        cross += (some * x).T @ z
    systems = gram.unflatten(1, (rank + 1, rank + 1))
    pulled = systems.clone()
    pulled.diagonal(dim1=1, dim2=2)[:, :rank] += _PULL * columns
    found = torch.linalg.solve(pulled, cross)
    squares = (counts * rows.square()).sum(0) - 2 * (found * cross).sum(1)
    squares += torch.einsum("pi,pij,pj->p", found, systems, found)
    own = torch.maximum(squares / counts.sum(0), least) * (least > 0)
    loadings = found[:, :rank].T * (least > 0)
    return Factors(found[:, rank], loadings.contiguous(), own)


@dataclass(frozen=True, eq=False)
class Completion:
    """The priors of a network's inputs with missing entries, in units of the data.

    Attributes:
        priors: by input, of its units and, after them, of the labels.
        labels: targets of regressions.
    """

    priors: Mapping[Input, Factors] = field(default_factory=dict)
    labels: Sequence[Label] = ()

    def of(self, data: Data, generator: torch.Generator | None = None) -> Data:
        """Return data with the means of what was not seen, or with draws, given the labels, too."""
        if not self.priors:
            return data
        values = dict(data.values)
        for variable, prior in self.priors.items():
            rows, normal = _with_labels(data, variable, ()), None
            if generator is not None:
                rows = _with_labels(data, variable, self.labels)
                size = len(rows), prior.width
                normal = torch.randn(size, generator=generator, dtype=torch.float64)
            unseen = rows.new_full((len(rows), len(prior.mean) - rows.shape[1]), torch.nan)
            here = Factors(*(x.to(rows.device) for x in astuple(prior)))
            found = here.completed(torch.cat([rows, unseen], 1), normal)
            values[variable] = found[:, : variable.units].contiguous()
        return replace(data, values=values)

    def packed(self, network: Network) -> dict[str, Tensor]:
        """Return the priors by the numbers of inputs, from 1."""
        return {
            f"prior.{number}.{part.name}": getattr(self.priors[x], part.name)
            for number, x in enumerate(network.inputs, start=1)
            if x in self.priors
            for part in fields(Factors)
        }


WHOLE = Completion()


def unpacked_completion(tensors: Mapping[str, Tensor], network: Network) -> Completion:
    """Return what `Completion.packed` has packed, among other tensors."""
    names = [part.name for part in fields(Factors)]
    priors = {
        x: Factors(*(tensors[f"prior.{number}.{name}"] for name in names))
        for number, x in enumerate(network.inputs, start=1)
        if f"prior.{number}.mean" in tensors
    }
    return Completion(priors, _labels(network))


def completion_of(network: Network, data: Data) -> Completion:
    """Return the priors that make data likely.

    Raises:
        DataError: several processes share the data, or a feature is seen in no sample.
    """
    incomplete = [x for x in network.inputs if x.missing]
    if incomplete and processes.size() > 1:
        raise DataError("inputs with missing entries need all samples in one process.")
    labels, priors = _labels(network), {}
    weights = data.values.get(SAMPLE_WEIGHTS)
    if incomplete and weights is not None and bool((weights == 0).any()):
        data = data.take((weights > 0).nonzero()[:, 0])
        weights = data.values[SAMPLE_WEIGHTS]
    for variable in incomplete:
        names: list[Input | Label] = [variable, *(x for x in labels if x in data.values)]
        rows = torch.cat([data.values[x] for x in names], 1)
        unseen = rows.isnan().all(0).nonzero()
        if len(unseen):
            raise DataError(
                f"feature {int(unseen[0])} of X, counted from 0, is missing in every sample that "
                "counts: leave it out."
            )
        some = slice(None, None, max(1, -(-len(rows) // _ROWS)))
        if bool(rows[some].isnan().all(0).any()):
            some = slice(None)
        rank = min(max(1, rows.shape[1] - 1), _RANK)
        each = (data.values[x].new_full(data.values[x].shape[1:], data.rounding(x)) for x in names)
        counts = None if weights is None else weights[some]
        priors[variable] = fit_factors(rows[some], rank, torch.cat([*each]).double(), counts)
    return Completion(priors, labels)


def _labels(network: Network) -> list[Label]:
    """Return the targets of regressions."""
    terms = (term for term in network.terms if not term.argument.sequence)
    return [term.label for term in terms if term.loss.equivariant]


def _with_labels(data: Data, variable: Input, labels: Sequence[Label]) -> Tensor:
    """Return an input with the labels that there are beside it."""
    return torch.cat([data.values[x] for x in (variable, *labels) if x in data.values], 1)
