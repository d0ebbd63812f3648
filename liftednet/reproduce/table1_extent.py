"""How much of Table 1 is run: the whole, and a quick form."""

from __future__ import annotations

from dataclasses import dataclass, replace

from liftednet.reproduce.table1_printed import PRINTED_ALONE
from liftednet.reproduce.table1_starts import RATE, NamedStart, practical_starts


@dataclass(frozen=True)
class Comparison:
    """Data, hidden layers, the passes of the lifted start, and what it is compared with.

    Attributes:
        data: "mnist", "digits" or "har".
        architecture: of the hidden layers.
        start_epochs: passes of the lifted start over the data.
        starts: names of those that are run, or None for all.
        start_rate: of the lifted start's minibatches.
        rates: (optimizer, rate) to choose from, or None for those of the extent.
    """

    data: str
    architecture: str
    start_epochs: int
    starts: tuple[str, ...] | None = None
    start_rate: float = RATE
    rates: tuple[tuple[str, float], ...] | None = None

    def chosen(self) -> list[NamedStart]:
        """Return the starts that are run."""
        every = practical_starts(self.start_epochs, self.start_rate)
        return [start for start in every if self.starts is None or start.name in self.starts]


@dataclass(frozen=True)
class Extent:
    """How much is run.

    Attributes:
        samples: of MNIST to train on.
        test_samples: of MNIST to test on.
        architectures: of the paper's table, for the standalone networks.
        opponents: those of them that opponents train, too.
        paper_architectures: those that the paper's protocol is run with.
        paper_epochs: passes of the paper's protocol.
        paper_seeds: runs of every cell of it.
        lifted_epochs: passes of the standalone network and of the paper's lifted start.
        alone_seeds: runs of every standalone network.
        compared: what is compared at best rates.
        epochs: passes of every torch network there.
        seeds: runs of every row there.
        rates: (optimizer, rate) that every start may choose from.
        stored_only: whether the report is of the runs that are there, and nothing is run.
    """

    samples: int
    test_samples: int
    architectures: tuple[str, ...]
    opponents: tuple[str, ...]
    paper_architectures: tuple[str, ...]
    paper_epochs: int
    paper_seeds: int
    lifted_epochs: int
    alone_seeds: int
    compared: tuple[Comparison, ...]
    epochs: int
    seeds: int
    rates: tuple[tuple[str, float], ...]
    stored_only: bool = False


_RATES = (
    *(("Adam", rate) for rate in (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    *(("SGD", rate) for rate in (1e-3, 1e-2, 1e-1, 3e-1)),
)
FULL = Extent(
    samples=60_000,
    test_samples=10_000,
    architectures=tuple(PRINTED_ALONE),
    opponents=("300", "400-200-100-50"),
    paper_architectures=tuple(PRINTED_ALONE),
    paper_epochs=17,
    paper_seeds=5,
    lifted_epochs=10,
    alone_seeds=5,
    compared=(
        Comparison("mnist", "300", 10),
        Comparison("mnist", "400-200-100-50", 10),
        Comparison("mnist", "10 x 100", 10),
        Comparison("digits", "300", 100),
        Comparison("har", "300", 30, start_rate=1.0),
    ),
    epochs=17,
    seeds=5,
    rates=_RATES,
)
QUICK = replace(
    FULL,
    samples=6_000,
    test_samples=2_000,
    architectures=("300", "400-200-100-50"),
    opponents=("300",),
    paper_architectures=("300", "400-200-100-50"),
    paper_epochs=3,
    paper_seeds=1,
    alone_seeds=1,
    compared=(Comparison("mnist", "300", 10), Comparison("digits", "300", 30)),
    epochs=2,
    rates=(("Adam", 1e-4), ("Adam", 1e-3), ("SGD", 1e-1)),
)
