"""`liftednet reproduce`: the published tables and figures, run again."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console

from liftednet.errors import DataError


@dataclass(frozen=True)
class Reproduction:
    """What can be reproduced.

    Attributes:
        module: has `run(folder, quick, seeds)`, which returns the path of its report.
        about: one line.
    """

    module: str
    about: str


REPRODUCTIONS = {
    "frank-wolfe": Reproduction(
        "liftednet.reproduce.frank_wolfe.report",
        "recurrent networks by Frank-Wolfe steps, table III and figures 3 to 5",
    ),
    "lifted-rnn": Reproduction(
        "liftednet.reproduce.lifted_rnn.report",
        "lifted recurrent networks, the four tables of section 6",
    ),
    "table1": Reproduction(
        "liftednet.reproduce.table1.report", "Table 1 of the lifted networks: starts on MNIST"
    ),
    "temporal": Reproduction(
        "liftednet.reproduce.temporal.report", "early inputs in recurrent networks: tasks and music"
    ),
}


def run_reproduction(name: str, quick: bool, seeds: int | None, folder: Path) -> None:
    """Run one reproduction and say where its report lies; without a name, list all.

    Raises:
        DataError: there is no reproduction of that name, or its data are missing.
    """
    console = Console()
    if not name:
        for known, reproduction in REPRODUCTIONS.items():
            console.print(f"{known:14s}{reproduction.about}", soft_wrap=True)
        return
    if name not in REPRODUCTIONS:
        raise DataError(f"there is no reproduction {name!r}; there are {', '.join(REPRODUCTIONS)}.")
    run = import_module(REPRODUCTIONS[name].module).run
    counted = {} if seeds is None else {"seeds": seeds}
    console.print(f"written to {run(folder / name, quick=quick, **counted)}", soft_wrap=True)
