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
from liftednet.errors import DataError, DeclarationError
from liftednet.layers.expression import SAMPLE_WEIGHTS, Input
from liftednet.network import Label, Network
from liftednet.solvers.factor_analysis import Factors, fit_factors

from .data import Data

_RANK = 32  # of the prior, at most
_ROWS = 5_000  # that the prior is fitted to, at most


@dataclass(frozen=True, eq=False)
class Completion:
    """The priors of a network's inputs with missing entries, in units of the data.

    Attributes:
        priors: by input, of its units and, after them, of the labels.
        labels: targets of regressions.
    """

    priors: Mapping[Input, Factors] = field(default_factory=dict)
    labels: Sequence[Label] = ()

    def of(self, data: Data) -> Data:
        """Return data with the means of what was not seen."""
        return self._completed(data, None)

    def drawn(self, data: Data, generator: torch.Generator) -> Data:
        """Return data with draws of what was not seen, given the labels, too."""
        return self._completed(data, generator)

    def spread(self, data: Data) -> Data:
        """Return draws that spread as the data do, of which the means spread less."""
        return self.drawn(data, torch.Generator().manual_seed(0))

    def _completed(self, data: Data, generator: torch.Generator | None) -> Data:
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


def refuse_incomplete(network: Network, what: str) -> None:
    """Raise `DeclarationError` where something needs inputs that are seen as they are."""
    found = next((x for x in network.inputs if x.missing), None)
    if found is not None:
        raise DeclarationError(
            f"{what} needs inputs that are seen as they are, and {found} is declared with "
            "missing entries: call fit(X, y) on arrays."
        )


def completion_of(network: Network, data: Data) -> Completion:
    """Return the priors that make data likely.

    Raises:
        DataError: several processes share the data, or a feature is seen in no sample.
    """
    incomplete = [x for x in network.inputs if x.missing]
    if incomplete and processes.size() > 1:
        raise DataError("inputs with missing entries need all samples in one process.")
    labels = _labels(network)
    weights, priors = data.values.get(SAMPLE_WEIGHTS), {}
    for variable in incomplete:
        rows = _with_labels(data, variable, labels)
        unseen = rows.isnan().all(0).nonzero()
        if len(unseen):
            raise DataError(
                f"feature {int(unseen[0])} of X, counted from 0, is missing in every sample: "
                "leave it out."
            )
        some = slice(None, None, max(1, -(-len(rows) // _ROWS)))
        if bool(rows[some].isnan().all(0).any()):
            some = slice(None)
        rank = min(max(1, rows.shape[1] - 1), _RANK)
        priors[variable] = fit_factors(rows[some], rank, None if weights is None else weights[some])
    return Completion(priors, labels)


def _labels(network: Network) -> list[Label]:
    """Return the targets of regressions."""
    terms = (term for term in network.terms if not term.argument.sequence)
    return [term.label for term in terms if term.loss.equivariant]


def _with_labels(data: Data, variable: Input, labels: Sequence[Label]) -> Tensor:
    """Return an input with the labels that there are beside it."""
    there = [data.values[x] for x in labels if x in data.values]
    return torch.cat([data.values[variable], *there], 1)
