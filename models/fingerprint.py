"""What a network and its training are, as JSON, by which files and processes are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes, solvers
from liftednet.errors import DataError
from liftednet.layers import Expression
from liftednet.layers.expression import TIME, Applied, Input
from liftednet.layers.time import Timeline
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.network import Network
from liftednet.storage import CATALOGUE, Description, describe

from .block import Structure
from .data import Batches, Data
from .methods import METHODS, Method

_OF_TRAINING = (
    "divergence", "solver", "state_solver", "proximity", "seed", "refit_output", "standardize",
)  # fmt: skip
_SOLVERS = ("Accelerated", "ClosedForm", "Cyclic", "Dual", "FrankWolfe", "GeneralizedLinear",
    "NewtonOverTime", "NewtonStates", "Proximal", "ProximalWeights", "RedBlack", "Ridge",
    "SimplexDual", "TemporalSimplexDescent",
)  # fmt: skip
_ROWS = 1_000  # by which the rows of processes are told apart, before all of them are looked at


@cache
def known_parts() -> dict[str, Any]:
    """Return the classes that files and fingerprints name; solvers are loaded for them."""
    return {
        **CATALOGUE,
        **{method.__name__: method for method in METHODS.values()},
        **{name: getattr(solvers, name) for name in _SOLVERS},
    }


def described_network(network: Network) -> Description:
    """Return shapes, layers, their fields, penalties and losses as JSON, in order."""
    names: dict[Any, str] = {}
    for kind, variables in (
        ("input", network.inputs), ("states", network.states), ("weights", network.parameters),
    ):  # fmt: skip
        names.update({x: f"{kind} {number}" for number, x in enumerate(variables, start=1)})
    layers: list[Description] = []
    for argument in network.arguments:
        _describe_layers(argument, names, layers)
    return {
        "inputs": [_described_input(x) for x in network.inputs],
        "weights": [_described_fields(x, ("shape", "bias", "penalty")) for x in network.parameters],
        "layers": layers,
        "states": [
            {"of": names[state.argument],
             **_described_fields(state, ("shape", "sequence", "early", "lam", "bounds"))}
            for state in network.states
        ],
        "losses": [
            {"loss": describe(term.loss), "of": names[term.argument], "weight": term.weight,
             "states": None if term.state is None else names[term.state]}
            for term in network.terms
        ],
    }  # fmt: skip


def _described_input(x: Input) -> Description:
    found = {"shape": list(x.shape), "sequence": x.sequence}
    return {**found, "missing": x.missing, "noise": list(x.noise)} if x.incomplete else found


def described_training(
    model: Any, structure: Structure, method: Method, data: Data, batches: Batches | None = None
) -> Description:
    """Return as JSON what tells a training from others.

    Args:
        model: that is trained.
        structure: of the problem.
        method: of training.
        data: all of it, as it was given, or the first batch.
        batches: of a loader, whose data cannot be looked at.
    """
    about = described_data(data) if batches is None else _described_loader(data, batches)
    return {**described_settings(model, structure, method), "data": about}


def described_settings(model: Any, structure: Structure, method: Method) -> Description:
    """Return the same without the data."""
    constants: dict[str, Tensor] = {}
    settings = {name: getattr(model, name) for name in _OF_TRAINING}
    settings["method"] = method
    settings["lam"] = [structure.lam[state] for state in structure.states]
    settings["penalty"] = [structure.penalties[each] for each in structure.parameters]
    described = {
        name: describe(value, known_parts(), constants) for name, value in settings.items()
    }
    weights = [layer.stacked() for layer in model._first_weights()]
    return {
        "model": type(model).__name__,
        "network": described_network(model.network),
        "activations": _comparable(describe([state.activation for state in structure.states])),
        **_comparable(described),
        "constants": checksum(*constants.values()),
        "the checksum of the first weights": checksum(*weights),
    }


def described_data(data: Data) -> Description:
    """Return shapes, types and checksums as JSON; on the first process those of all samples."""
    found: dict[str, Any] = {}
    for x, v in data.values.items():
        if isinstance(v, Timeline):
            found[str(x)] = {"lengths": checksum(processes.collected(v.known))}
            continue
        whole = processes.collected(v, int(TIME in data.values and v.ndim == 3))
        about = {"shape": list(whole.shape), "type": str(v.dtype), "checksum": checksum(whole)}
        found[str(x)] = about
    return found


def _described_loader(first: Data, batches: Batches) -> Description:
    return {"samples": batches.samples, "batches": len(batches)} | {
        str(x): {"units": v.shape[-1], "type": str(v.dtype)}
        for x, v in first.values.items()
        if isinstance(v, Tensor)
    }


def checksum(*tensors: Tensor) -> str:
    """Return what tells other tensors, by their types, shapes and entries, from these."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        entries: Any = tensor.detach().cpu().contiguous().numpy()
        total.update(entries)
    return total.hexdigest()[:16]


def _describe_layers(
    expression: Expression, names: dict[Any, str], layers: list[Description]
) -> None:
    """Add the layers of an expression, each after its arguments and once, and name them."""
    if expression in names or not isinstance(expression, Applied):
        return
    for argument in expression.arguments:
        if isinstance(argument, Expression):
            _describe_layers(argument, names, layers)
    layer = expression.layer
    names_of = [x.name for x in fields(layer)] if is_dataclass(layer) else sorted(vars(layer))
    layers.append({
        "layer": type(layer).__name__,
        "fields": _described_fields(layer, [x for x in names_of if not x.startswith("_")]),
        "of": [names.get(argument, str(argument)) for argument in expression.arguments],
        "weights": None if expression.weights is None else names[expression.weights],
    })  # fmt: skip
    names[expression] = f"layer {len(layers)}"


def _described_fields(part: Any, names: Sequence[str]) -> Description:
    return {name: _comparable(describe(getattr(part, name))) for name in names}


def _comparable(described: Any) -> Any:
    """Return a description without what prints differently in every run."""
    if isinstance(described, list):
        return [_comparable(each) for each in described]
    if not isinstance(described, dict):
        return described
    if "declared" in described:
        return {"declared": described["declared"].split("(")[0].split(" at 0x")[0]}
    return {name: _comparable(value) for name, value in described.items()}


def differences(saved: Any, given: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, saved, given) wherever two descriptions differ."""
    if isinstance(saved, dict) and isinstance(given, dict):
        for name in {**given, **saved}:
            place = f"{where} {name}".strip()
            yield from differences(saved.get(name), given.get(name), place)
    elif isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        for number, (one, other) in enumerate(zip(saved, given, strict=True), start=1):
            yield from differences(one, other, f"{where} {number}")
    elif isinstance(saved, list) and isinstance(given, list) and {*map(type, saved)} == {dict}:
        yield f"the number of {where}", len(saved), len(given)
    elif saved != given:
        yield where, saved, given


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
        **described_settings(model, structure, method),
        **{name: str(getattr(model, name)) for name in names},
        **{name: _kind(value) for name, value in given.items()},
    }
    told = [json.loads(text) for text in processes.texts(json.dumps(about))]
    _refuse_unequal("the processes of a fit must be told the same", told)


def _refuse_unequal(rule: str, about: Sequence[Description]) -> None:
    """Raise `DataError` at the first difference of a process from the first."""
    for number, other in enumerate(about[1:], start=1):
        for where, one, found in differences(about[0], other):
            raise DataError(
                f"{rule}: {where} is {found} on process {number}, and {one} on process 0."
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
    about = {str(x): _kind_of_rows(v) for x, v in data.values.items()}
    rows = torch.arange(0, len(data), max(1, -(-len(data) // _ROWS)))
    own = {"about": about, "samples": len(data), "some": _checksum_of(data.take(rows))}
    found = [json.loads(text) for text in processes.texts(json.dumps(own))]
    rule = "the rows of all processes must be of one kind"
    _refuse_unequal(rule, [one["about"] for one in found])
    if not any(one["samples"] for one in found):
        raise DataError("X is empty on every process: at least one of them needs samples.")
    alike = {(one["samples"], one["some"]) for one in found if one["samples"]}
    if len(alike) < sum(one["samples"] > 0 for one in found):
        _refuse_same(data)
    for term in network.terms:
        if not part and isinstance(term.loss, CrossEntropy | SimplexCrossEntropy):
            _refuse_one_class(data.values[term.label].flatten(0, -2), type(term.loss).__name__)


def _kind_of_rows(value: Any) -> dict[str, Any]:
    if isinstance(value, Timeline):
        return {"steps": value.steps}
    return {"type": str(value.dtype), "units": value.shape[-1] if value.ndim > 1 else 1}


def _checksum_of(data: Data) -> str:
    return checksum(*(x.known if isinstance(x, Timeline) else x for x in data.values.values()))


def _refuse_same(data: Data) -> None:
    """Raise `DataError` where two processes have the same rows."""
    found = processes.texts(_checksum_of(data) if len(data) else "")
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
