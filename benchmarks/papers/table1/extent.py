"""How much of Table 1 is run: the whole, and a quick form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.runs import Outcome, Record, Settings, finished, run_all
from benchmarks.papers.table1.starts import RATE, NamedStart, practical_starts


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
        architectures: hidden layers, for the standalone networks and the paper's protocol.
        opponents: those of them that opponents of standalone networks train, too.
        paper_epochs: passes of the paper's protocol.
        lifted_epochs: passes of the standalone network and of the paper's lifted start.
        compared: what is compared at best rates.
        epochs: passes of every torch network there.
        seeds: runs of every row.
        rates: (optimizer, rate) that every start may choose from.
        stored_only: whether the report is of the runs that are there, and nothing is run.
    """

    samples: int
    test_samples: int
    architectures: tuple[str, ...]
    opponents: tuple[str, ...]
    paper_epochs: int
    lifted_epochs: int
    compared: tuple[Comparison, ...]
    epochs: int
    seeds: int
    rates: tuple[tuple[str, float], ...]
    stored_only: bool = False

    def records(
        self,
        store: Path,
        settings: Sequence[Settings],
        run: Callable[[Settings], Outcome],
        title: str,
    ) -> list[Record[Settings]]:
        """Return all records, running what is missing, or those that are stored."""
        if self.stored_only:
            return finished(store, settings)
        return run_all(store, settings, run, title)


_RATES = (
    *(("Adam", rate) for rate in (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    *(("SGD", rate) for rate in (1e-3, 1e-2, 1e-1, 3e-1)),
)
FULL = Extent(
    samples=60_000,
    test_samples=10_000,
    architectures=("300", "300-100", "500-150", "500-200-100", "400-200-100-50"),
    opponents=("300", "400-200-100-50"),
    paper_epochs=17,
    lifted_epochs=10,
    compared=(
        Comparison("mnist", "300", 10),
        Comparison("mnist", "400-200-100-50", 10),
        Comparison("mnist", "10 x 100", 10),
        Comparison("digits", "300", 100),
        Comparison("har", "300", 30, start_rate=1.0),
    ),
    epochs=17,
    seeds=3,
    rates=_RATES,
)
QUICK = replace(
    FULL,
    samples=6_000,
    test_samples=2_000,
    architectures=("300", "400-200-100-50"),
    opponents=("300",),
    paper_epochs=3,
    compared=(Comparison("mnist", "300", 10), Comparison("digits", "300", 30)),
    epochs=2,
    seeds=1,
    rates=(("Adam", 1e-4), ("Adam", 1e-3), ("SGD", 1e-1)),
)
