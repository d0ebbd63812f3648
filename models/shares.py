"""What the processes of one fit must have alike, and what each must have of its own."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import TIME
from liftednet.layers.time import Timeline
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.network import Network

from .block import Structure
from .data import Data
from .described import checksum, described_settings, differences
from .methods import Method

_ROWS = 1_000  # by which shares are told apart, before all of their rows are looked at


def refuse_unlike(model: Any, structure: Structure, method: Method, **given: Any) -> None:
    """Raise `DataError` on every process where the settings of one are not those of the first.

    Args:
        model: that is to be fitted.
        structure: of its problem.
        method: of training.
        given: what `fit` was given, of which its kind must be the same.
    """
    if processes.size() == 1:
        return
    names = ("warm_start", "dtype", "is_fitted")
    about = {
        **described_settings(model, structure, method),
        **{name: str(getattr(model, name)) for name in names},
        **{name: _kind(value) for name, value in given.items()},
    }
    first, *others = map(json.loads, processes.texts(json.dumps(about)))
    for number, other in enumerate(others, start=1):
        for where, one, found in differences(first, other):
            raise DataError(
                f"the processes of a fit must be told the same: {where} is {found} on process "
                f"{number}, and {one} on process 0."
            )


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return "a DataLoader" if isinstance(value, DataLoader) else "given"


def refuse_shares(network: Network, data: Data, part: bool) -> None:
    """Raise `DataError` on every process where their rows cannot be those of one fit.

    Args:
        network: whose data they are.
        data: of this process.
        part: whether all of them are a part of the data, in which classes may be missing.
    """
    about = {str(x): _described(v) for x, v in data.values.items()}
    rows = torch.arange(0, len(data), max(1, -(-len(data) // _ROWS)))
    own = {"about": about, "samples": len(data), "some": _checksum(data.take(rows))}
    first, *others = found = list(map(json.loads, processes.texts(json.dumps(own))))
    for number, other in enumerate(others, start=1):
        for where, one, another in differences(first["about"], other["about"]):
            raise DataError(
                f"the rows of all processes must be of one kind: {where} is {another} on process "
                f"{number}, and {one} on process 0."
            )
    if not any(one["samples"] for one in found):
        raise DataError("X is empty on every process: at least one of them needs samples.")
    alike = {(one["samples"], one["some"]) for one in found if one["samples"]}
    if len(alike) < sum(one["samples"] > 0 for one in found):
        _refuse_same(data)
    for term in network.terms:
        if not part and isinstance(term.loss, CrossEntropy | SimplexCrossEntropy):
            _refuse_one_class(data.values[term.label].flatten(0, -2), type(term.loss).__name__)


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, Timeline):
        return {"steps": value.steps}
    return {"type": str(value.dtype), "units": value.shape[-1] if value.ndim > 1 else 1}


def _checksum(data: Data) -> str:
    return checksum(*(x.known if isinstance(x, Timeline) else x for x in data.values.values()))


def _refuse_same(data: Data) -> None:
    """Raise `DataError` where two processes have the same rows."""
    found = processes.texts(_checksum(data) if len(data) else "")
    for number, text in enumerate(found):
        if text and text in found[:number]:
            raise DataError(
                f"processes {found.index(text)} and {number} have brought the same "
                f"{'sequences' if TIME in data.values else 'rows'}, which would count twice: each "
                "brings its own, as X[liftednet.shard(len(X))] of an array that all can read."
            )


def _refuse_one_class(targets: torch.Tensor, loss: str) -> None:
    """Raise `DataError` where every row of all processes has the same target."""
    ends = [targets.amax(0), -targets.amin(0)] if len(targets) else []
    own = torch.stack(ends) if ends else targets.new_full((2, targets.shape[1]), -torch.inf)
    high, low = processes.largest(own)
    if bool((high == -low).all()):
        raise DataError(
            f"{loss} needs at least two classes among the labels of all processes; there is one."
        )
