"""What a network and its training are, line by line, by which files and processes are compared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import TIME
from liftednet.layers.time import Timeline
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.network import Network

from .block import Structure
from .data import Data, LoaderBatches
from .methods import Method

_OF_TRAINING = (
    "divergence", "solver", "state_solver", "seed", "refit_output", "standardize",
    "early_stopping", "validation_fraction", "n_iter_no_change",
)  # fmt: skip
_ROWS = 1_000  # by which the rows of processes are told apart

Lines = dict[str, Any]


def described_network(network: Network) -> Lines:
    """Return a line for every input, all weights, every layer, all states and every loss."""
    about = {str(x): _line(x, ("shape", "sequence", "missing")) for x in network.inputs}
    about |= {str(x): _line(x, ("shape", "bias", "penalty")) for x in network.parameters}
    names: dict[int, str] = {}
    for number, found in enumerate(network.layers(), start=1):
        layer, of = found.layer, [names.get(id(x), str(x)) for x in found.arguments]
        own = [x.name for x in fields(layer)] if is_dataclass(layer) else sorted(vars(layer))
        kept = _line(layer, [name for name in own if not name.startswith("_")])
        names[id(found)] = f"layer {number}"
        about[f"layer {number}"] = f"{kept} of {', '.join(of)} by {found.weights}"
    for state in network.states:
        of_state = names.get(id(state.argument), str(state.argument))
        kept = _line(state, ("shape", "sequence", "initial_steps", "lam", "bounds"))
        about[str(state)] = f"{kept} of {of_state}"
    for number, term in enumerate(network.terms, start=1):
        of_term = names.get(id(term.argument), str(term.argument))
        about[f"loss {number}"] = f"{_text(term.loss)} of {of_term}, {term.weight}, {term.state}"
    return about


def _line(part: Any, names: Sequence[str]) -> str:
    told = ", ".join(f"{name}={_text(getattr(part, name))}" for name in names)
    return f"{type(part).__name__}({told})"


def _text(value: Any) -> str:
    """Return how a value prints, without places in memory, which are others in every run.

    Tensors print some digits of some of their entries: their checksums tell the others.
    """
    printed, inside = re.sub(r" at 0x\w+", "", repr(value)), [*_tensors(value)]
    return f"{printed} of checksum {digest(*inside)}" if inside else printed


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that a value is declared with."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif is_dataclass(value):
        yield from _tensors([getattr(value, one.name) for one in fields(value)])


def described_training(
    model: Any, structure: Structure, method: Method, data: Data,
    batches: LoaderBatches | None = None,
) -> Lines:  # fmt: skip
    """Return what tells a training from others; of a loader, whose data cannot be looked at, less.

    Args:
        model: that is trained.
        structure: of the problem.
        method: of training.
        data: all of it, as it was given, or the first batch.
        batches: of a loader.
    """
    about = described_data(data)
    if batches is not None:
        about = {"loader": [batches.told_samples, len(batches), str(data.like.dtype)]}
    told = {f"data {name}": value for name, value in about.items()}
    return {**_described_settings(model, structure, method), **told}


def _described_settings(model: Any, structure: Structure, method: Method) -> Lines:
    settings = {name: getattr(model, name) for name in _OF_TRAINING}
    if model.uncertainty is not None:
        settings["uncertainty"] = model.uncertainty
    settings["model"], settings["method"] = type(model).__name__, method
    settings["lam"] = [structure.lam[state] for state in structure.states]
    settings["penalty"] = [structure.penalties[each] for each in structure.parameters]
    settings["lipschitz"] = model.lipschitz  # from which bounds follow, with rounding and scales
    settings["activations"] = [state.activation for state in structure.states]
    return {
        **described_network(model.network),
        **{name: _text(value) for name, value in settings.items()},
        "first weights": digest(*(layer.stacked() for layer in model._first_weights())),
    }


def described_data(data: Data) -> Lines:
    """Return shapes, types and checksums; on the first process those of all samples."""
    found: Lines = {}
    for x, v in data.values.items():
        if isinstance(v, Timeline):
            found[str(x)] = {"lengths": digest(processes.collected(v.known))}
            continue
        whole = processes.collected(v, int(TIME in data.values and v.ndim == 3))
        about = {"shape": list(whole.shape), "type": str(v.dtype), "checksum": digest(whole)}
        found[str(x)] = about
    return found


def digest(*tensors: Tensor) -> str:
    """Return what tells other tensors, by their types, shapes and entries, from these."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        entries: Any = tensor.detach().cpu().contiguous().numpy()
        total.update(entries)
    return total.hexdigest()[:16]


def difference(saved: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first name at which two descriptions differ, what is saved there, and given."""
    for name in {**given, **saved}:
        before, now = saved.get(name, "not there"), given.get(name, "not there")
        if before != now:
            return name, before, now
    return None


# What the processes of one fit must have alike, and what each must have of its own.


def refuse_unlike(model: Any, structure: Structure, method: Method, **given: Any) -> None:
    """Raise `DataError` on every process where the settings of one are not those of the first.

    Args:
        model: that is to be fitted.
        structure: of its problem.
        method: of training.
        given: what `fit` was given, of which its kind must be the same.
    """
    names = ("warm_start", "dtype", "is_fitted")
    about = {
        **_described_settings(model, structure, method),
        **{name: str(getattr(model, name)) for name in names},
        **{name: _kind(value) for name, value in given.items()},
    }
    if model.warm_start and model.is_fitted:
        known = model._known
        before = [*(layer.stacked() for layer in known.weights)]
        before += known.standardization.packed(model.network).values()
        about["weights of the last fit"] = digest(*before)
    _refuse_unequal("the processes of a fit must be told the same", about)


def _refuse_unequal(rule: str, about: Lines) -> None:
    """Raise `DataError` at the first difference of a process from the first."""
    first, *others = (json.loads(text) for text in processes.texts(json.dumps(about)))
    for number, other in enumerate(others, start=1):
        if found := difference(first, other):
            where, one, another = found
            raise DataError(
                f"{rule}: {where} is {another} on process {number}, and {one} on process 0."
            )


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return "a DataLoader" if isinstance(value, DataLoader) else "given"


def refuse_shares(network: Network, data: Data, *, whole: bool = True) -> None:
    """Raise `DataError` on every process where their rows cannot be those of one fit.

    Args:
        network: whose data they are.
        data: of this process.
        whole: whether these are all, not the first batches, which may be of one class.
    """
    about = {str(x): _kind_of_rows(v) for x, v in data.values.items()}
    _refuse_unequal("the rows of all processes must be of one kind", about)
    rows = torch.arange(0, len(data), max(1, -(-len(data) // _ROWS)))
    some = (x.known if isinstance(x, Timeline) else x for x in data.take(rows).values.values())
    found = processes.texts(f"{len(data)} {digest(*some)}" if len(data) else "")
    if not any(found):
        raise DataError("X is empty on every process: at least one of them needs samples.")
    for number, text in enumerate(found):
        if text and text in found[:number]:
            raise DataError(
                f"processes {found.index(text)} and {number} have brought the same "
                f"{'sequences' if TIME in data.values else 'rows'}, which would count twice: each "
                "brings its own, as X[liftednet.data.shard(len(X))] of an array that all can read."
            )
    for term in network.terms if whole else ():
        if isinstance(term.loss, CrossEntropy | SimplexCrossEntropy):
            _refuse_one_class(data.values[term.label].flatten(0, -2), type(term.loss).__name__)


def _kind_of_rows(value: Any) -> str:
    if isinstance(value, Timeline):
        return f"of {value.steps} steps"
    return f"{value.dtype} of {value.shape[-1] if value.ndim > 1 else 1} units"


def _refuse_one_class(targets: torch.Tensor, loss: str) -> None:
    """Raise `DataError` where every row of all processes has the same target."""
    ends = [targets.amax(0), -targets.amin(0)] if len(targets) else []
    own = torch.stack(ends) if ends else targets.new_full((2, targets.shape[1]), -torch.inf)
    high, low = processes.largest(own)
    if bool((high == -low).all()):
        raise DataError(
            f"{loss} needs at least two classes among the labels of all processes; there is one."
        )
