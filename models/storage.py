"""Saved models: weights as tensors, everything else as JSON, and a model again from both."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from torch import Tensor, nn

import liftednet
from liftednet.activation import Activation
from liftednet.activations import MaxPooling
from liftednet.activations.not_monotone import NotMonotone
from liftednet.errors import DataError, LiftedError
from liftednet.network import Network, State
from liftednet.samples import Weights
from liftednet.solvers import NewtonOverTime
from liftednet.solvers.choice import class_named
from liftednet.storage import (
    CATALOGUE,
    OF_BAD_VALUES,
    Archive,
    Catalogue,
    Description,
    describe,
    read,
    rebuild,
    replacement,
    write,
)
from liftednet.validation import model_of, require_flag

from .builders import LiftedMLP, LiftedRNN
from .error_bars import PoissonByWeights, packed_posterior, restore_posterior
from .fingerprint import described_network, difference
from .incomplete import unpacked_completion
from .lifted import Lifted
from .methods import METHODS
from .settings import COUPLINGS, Settings
from .standardization import unpacked_standardization
from .uncertainty import Ball, Box

Activations = Activation | Sequence[Activation] | None
Arguments = dict[str, Any]
Tensors = dict[str, Tensor]

_SETTINGS = [x.name for x in fields(Settings) if x.name not in ("network", "start")]
_OF_OLDER_FILES = ("sweeps", "tolerance", "warm", "parts", "proximity", "spectral_radius")
_OF_THE_FILE = (  # beside what a class takes
    "activations", "hidden", "graph", "learned", "last_only", "chosen", "noise_network",
    *_OF_OLDER_FILES,
)  # fmt: skip
_NOISE = "noise_network."  # before the names of tensors of the network of a noise that varies
# In the lines of networks, by versions before 1.0; names of users' classes may end likewise.
_RENAMED = {"Turn(": "Reverse(", "Early(": "PadFirst(", "Late(": "DropFirst(",
    "early=": "initial_steps="}  # fmt: skip
_BEFORE = re.compile(rf"\b(?:{'|'.join(map(re.escape, _RENAMED))})")
_TYPES = {"float32": torch.float32, "float64": torch.float64}


def save(
    model: Any, path: str | Path, notes: Description | None = None, *, card: bool = False
) -> Path:
    """Save a fitted model: its weights as safetensors, what it is and how it trains as metadata.

    After a fit by the evidence the file has its error bars, too, where these take no more than
    16 MB: `posterior` of the model that `load` returns answers as before.

    Args:
        model: a fitted `LiftedMLP`, `LiftedRNN`, or `Lifted` network of any other kind, or an
            estimator, whose labels and names of columns are kept.
        path: of the file, replaced at once or not at all; its folder must exist.
        notes: JSON values to keep beside the model, such as the names of its labels;
            `liftednet.storage.read(path).notes` gives them back.
        card: whether to write a model card beside the file, in the form of Hugging Face, where it
            is called README.md: what the model is, and what `certify` proves of it, as
            "model.md" beside "model.safetensors".

    Returns:
        The path.

    Raises:
        DataError: the model is of a class that cannot be saved, or the path cannot be written.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from liftednet import load, save
        >>> from liftednet.models import LiftedMLP, Minibatch
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 20)
        >>> y = torch.tensor([0, 1] * 20)
        >>> model = LiftedMLP((2, 4, 2), method=Minibatch(5)).fit(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load(save(model, Path(folder) / "model.safetensors"))
        >>> bool((again.predict(x) == model.predict(x)).all())
        True
    """
    require_flag("card", card)
    given = model
    if (inside := model_of(model)) is not model:
        from .estimators.files import described_estimator  # scikit-learn takes a second

        notes = {**(notes or {}), **described_estimator(model, parts())}
    model = inside
    if type(model) in _KINDS.values():
        archive = _pack(model)
        tensors = {**archive.tensors, **packed_posterior(model)}
        archive = replace(archive, tensors=tensors, notes=notes or {})
        text = card_of(given, archive, Path(path)) if card else ""
        found = write(archive, path)
        if text:
            with replacement(found.with_suffix(".md")) as place:
                place.write_text(text, "utf-8")
        return found
    if isinstance(model, nn.Module) or hasattr(model, "write_"):
        raise DataError(
            f"save needs {_names()}, got {type(model).__name__}: a torch network is kept by torch, "
            "by torch.save(network.state_dict(), path), after write_() where it was lifted."
        )
    raise DataError(f"save needs {_names()}, got {type(model).__name__}.")


def load(path: str | Path, activations: Activations = None, **options: Any) -> Any:
    """Load a model or an estimator that `save` has written; it predicts, and can be trained on.

    Args:
        path: of the file.
        activations: those of the model, where it had some that are not in the catalogue: a file
            holds no code.
        options: of the model's class, in place of what was saved: how it trains, such as `method`
            or `device`; a penalty or loss of your own; and `network` for a `Lifted` network, made
            by the code that has made the one that was saved.

    Returns:
        A fitted model, or estimator, of the class that was saved.

    Raises:
        DataError: there is no such file, it is damaged, or what it does not hold is missing or
            differs from what was saved.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from liftednet import load, save
        >>> from liftednet.models import LiftedMLP, Minibatch
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 20)
        >>> y = torch.tensor([0, 1] * 20)
        >>> model = LiftedMLP((2, 4, 2), method=Minibatch(5)).fit(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load(save(model, Path(folder) / "model.safetensors"))
        >>> bool((again.predict(x) == model.predict(x)).all())
        True
    """
    archive = read(path)
    if str(archive.kind) not in _KINDS:  # in a damaged file it may be anything
        raise DataError(f"{path} holds a {archive.kind!r}; this liftednet loads {_names()}.")
    try:
        model = _unpacked(archive, _KINDS[archive.kind], activations, options)
        if (description := archive.notes.get("estimator")) is None:
            return model
        from .estimators.files import rebuilt_estimator

        return rebuilt_estimator(description, model, parts())
    except LiftedError:
        raise
    except OF_BAD_VALUES as error:
        raise DataError(f"file and options make no {archive.kind}: {error}.") from error


_KINDS: dict[str, type[Lifted]] = {kind.__name__: kind for kind in (LiftedMLP, LiftedRNN, Lifted)}


class _Parts(dict[str, type[Any]]):
    """Classes by name; a solver's is loaded when a file names it, as CVXPY is for some."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a class by its name."""
        return super().get(name) or class_named(name) or default


@cache
def parts() -> Catalogue:
    """Return the classes that files name."""
    methods = {method.__name__: method for method in METHODS.values()}
    earlier = {"Cyclic": NewtonOverTime, "RedBlack": NewtonOverTime}  # of earlier versions
    own = {kind.__name__: kind for kind in (Ball, Box, PoissonByWeights)}
    return _Parts({**CATALOGUE, **methods, **earlier, **own})


def _names() -> str:
    return " or ".join(f"a {name}" for name in _KINDS)


# Into a file.


def _pack(model: Lifted) -> Archive:
    constants, network, known = Tensors(), model.network, model._known
    tensors = {
        **_pack_weights(model.weights), **model.standardization.packed(network),
        **known.completion.packed(network),
    }  # fmt: skip
    described = [describe(state.activation) for state in network.states]
    divergences = model.structure.divergences
    activations = [(state, divergences[state].activation) for state in network.states]
    last_only = (term.label in known.last_only for term in network.terms)
    about = {
        **{name: describe(x, parts(), constants) for name, x in _arguments_of(model).items()},
        "activations": described,
        "graph": described_network(network),
        "learned": [
            None if own is state.activation else describe(own) for state, own in activations
        ],
        "last_only": [number for number, last in enumerate(last_only) if last],
        "chosen": known.chosen,
    }
    hidden = model.hidden if isinstance(model, LiftedMLP) else ()
    if any(isinstance(one, MaxPooling | NotMonotone) for one in hidden):  # states of another map
        about["hidden"] = [describe(one) for one in hidden]
    for number, (state, one) in enumerate(zip(network.states, described, strict=True), start=1):
        if "declared" in one:
            tensors[f"forward.{number}"] = _sampled(state)
    if known.varying is not None:
        noise, level = known.varying
        packed = _pack(noise)
        about["noise_network"] = {"architecture": packed.architecture, "level": level}
        tensors |= {f"{_NOISE}{name}": tensor for name, tensor in packed.tensors.items()}
    return Archive(type(model).__name__, about, {**tensors, **constants})


def _arguments_of(model: Any) -> Arguments:
    """Return what a model is made of again, beside its activations and weights."""
    found = {name: getattr(model, name) for name in _SETTINGS}
    if model.dtype is not None:
        found["dtype"] = str(model.dtype).removeprefix("torch.")
    if isinstance(model, LiftedMLP):
        names: tuple[str, ...] = ("sizes", "loss", "skip", "missing", "within")
        layers = model.network.parameters[: len(model.sizes) - 1]
        found["bias"] = True if model.convex is True else [parameter.bias for parameter in layers]
    elif isinstance(model, LiftedRNN):
        names = (
            "input_size", "hidden_size", "output_size", "loss", "bidirectional",
            "learn_initial_state",
        )  # fmt: skip
    else:
        names = ()
    return {**found, **{name: getattr(model, name) for name in names}}


def _pack_weights(weights: Sequence[Weights]) -> Tensors:
    """Return every W and b by the number of its layer, from 1."""
    tensors: Tensors = {}
    for number, layer in enumerate(weights, start=1):
        tensors[f"weight.{number}"] = layer.matrix
        if layer.bias is not None:
            tensors[f"bias.{number}"] = layer.bias
    return tensors


def _sampled(state: State) -> Tensor:
    """Return phi at fixed pre-activations, (4, units), to know a declared one again."""
    points = torch.linspace(-2, 2, 4 * state.argument.units, dtype=torch.float64)
    return state.activation.forward(points.reshape(4, -1)).detach()


# Out of a file.


def _unpacked(
    archive: Archive, kind: type[Lifted], activations: Activations, options: Arguments
) -> Lifted:
    weights = _unpack_weights(archive.tensors)
    given = _arguments(archive, kind, activations, options)
    if kind is not Lifted:  # whose network is there, and no larger than it should be
        given["start"] = weights
    model = kind(**{**given, **options})
    _require_same_network(archive, model.network)
    model.with_weights(weights)
    model.start = options.get("start", model.start)
    _restore(model, archive)
    return model


def _arguments(
    archive: Archive, kind: type[Lifted], activations: Activations, options: Arguments
) -> Arguments:
    """Return what the class is made of, but for what the options bring.

    Raises:
        DataError: something was declared outside of liftednet, and is not given.
    """
    about = archive.architecture
    if isinstance(method := about.get("method"), dict):
        gone_since = ("learn_activations", "state_passes", "precision", "validation", "patience")
        for gone in gone_since:
            method.get("parameters", {}).pop(gone, None)
    found = {
        name: rebuild(value, name, parts(), archive.tensors)
        for name, value in about.items()
        if name not in _OF_THE_FILE and name not in options
    }
    if {**found, **options}.get("penalty") is not None:
        found.pop("rho", None)  # which it takes the place of
    if found.get("divergence") == "multipliers":
        warnings.warn(
            "the file's divergence, 'multipliers', is gone: the model is 'tight' and predicts as "
            "before; another fit ends elsewhere.",
            stacklevel=2,
        )
        found["divergence"] = "tight"
    if bool(torch.as_tensor(found.pop("noise", 0.0)).any()):
        warnings.warn(
            "the file's noise= of inputs is gone: what was seen is taken as it was seen, and "
            "predictions differ from those before.",
            stacklevel=2,
        )
    if found.get("state_solver") in ("cyclic", "red-black"):  # of earlier versions
        found["state_solver"] = "newton-over-time"
    if (name := found.get("dtype")) is not None:
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            raise DataError(f"the file names the type {name!r}; it must be one of {known}.")
        found["dtype"] = _TYPES[name]
    if kind is Lifted:
        if activations is not None or not isinstance(options.get("network"), Network):
            raise DataError(
                "a file holds no code, and so no graph: make the network again as it was made, and "
                "pass it, its activations in it, to load(path, network=network)."
            )
    elif not {"activation", "activations"} & set(options):
        given: Any = activations
        if given is None:
            given = rebuild(about.get("hidden", about["activations"]), "activations")
        if kind is LiftedRNN:
            found["activation"] = given if isinstance(given, Activation) else given[0]
        else:
            found["activations"] = given
    return found


def _unpack_weights(tensors: Mapping[str, Tensor]) -> list[Weights]:
    """Return the layers that `_pack_weights` has numbered.

    Raises:
        DataError: they are not of one type.
    """
    layers: list[Weights] = []
    while (matrix := tensors.get(f"weight.{len(layers) + 1}")) is not None:
        layers.append(Weights(matrix, tensors.get(f"bias.{len(layers) + 1}")))
    types = {tensor.dtype for layer in layers for tensor in (layer.matrix, layer.bias)
             if tensor is not None}  # fmt: skip
    if len(types) != 1:
        raise DataError(f"the weights in a file are of one type, got {sorted(map(str, types))}.")
    return layers


def _restore(model: Lifted, archive: Archive) -> None:
    """Give a model what a fit has made beside weights; liftednet 0.1 has not saved it."""
    if archive.older:
        return
    about, network, structure = archive.architecture, model.network, model.structure
    divergences = dict(structure.divergences)
    for state, description in zip(network.states, about["learned"], strict=True):
        if description is not None:
            learned = rebuild(description, "activations")
            if type(learned) is not type(state.activation):
                raise DataError(f"the file gives {state.activation!r} as learned to {learned!r}.")
            divergences[state] = COUPLINGS[model.divergence](learned)
    last_only = frozenset(network.terms[number].label for number in about["last_only"])
    structure = replace(structure, divergences=divergences)
    model._fit = replace(
        model._known,
        structure=structure,
        last_only=last_only,
        standardization=unpacked_standardization(archive.tensors, network),
        completion=unpacked_completion(archive.tensors, network),
        chosen=str(about.get("chosen", "")),
    )
    if (noise := about.get("noise_network")) is not None:
        named = archive.tensors.items()
        own = {name.removeprefix(_NOISE): x for name, x in named if name.startswith(_NOISE)}
        packed = Archive(LiftedMLP.__name__, noise["architecture"], own)
        varying = _unpacked(packed, LiftedMLP, None, {}), float(noise["level"])
        model._fit = replace(model._known, varying=varying)
    restore_posterior(model, archive.tensors)


# Whether a network is the one that was saved.


def _require_same_network(archive: Archive, network: Network) -> None:
    """Raise `DataError` at the first difference from the network that was saved."""
    about = archive.architecture
    pooled = any(one.get("name") == "MaxPooling" for one in about["activations"])  # of earlier ones
    described = () if pooled else zip(network.states, about["activations"], strict=False)
    for number, (state, description) in enumerate(described, start=1):
        if "declared" in description:
            saved, found = archive.tensors[f"forward.{number}"], _sampled(state)
            same = saved.shape == found.shape and torch.allclose(
                found.to(saved), saved, rtol=1e-5, atol=1e-6
            )
        else:
            same = describe(state.activation) == description
        if not same:
            wanted = description.get("declared", description.get("name"))
            raise DataError(
                f"the activation of layer {number} was saved as {wanted} with parameters "
                f"{description.get('parameters', {})}; {state.activation!r} is another map."
            )
    if archive.older:
        return
    if "layers" in about["graph"]:  # before files had lines; weights have met their shapes
        return
    known = {
        name: _BEFORE.sub(lambda found: _RENAMED[found[0]], str(line))
        for name, line in about["graph"].items()
    }
    if differs := difference(known, described_network(network)):
        where, was, given = differs
        raise DataError(
            f"the network is not the one that was saved: {where} is {given}, and was {was}."
        )


_TASKS = {"LiftedClassifier": "classification", "LiftedRegressor": "regression"}
_HOW = ("divergence", "lam", "rho", "penalty", "method", "max_iter", "solver", "seed")


def card_of(model: Any, archive: Archive, path: Path) -> str:
    """Return a model card in Markdown, which begins with metadata in YAML.

    What `certify` proves from the weights stands in it as it prints, and where nothing can be
    certified, why. Model Cards for Model Reporting (Mitchell et al., 2019) names what such a card
    is to hold beside: data, use and evaluation, of which a file knows nothing.

    Args:
        model: a fitted model or estimator.
        archive: of its file.
        path: of its file.
    """
    from .certificate import certify  # which files are read without

    name = type(model).__name__
    task = [f"pipeline_tag: tabular-{_TASKS[name]}"] if name in _TASKS else []
    try:
        proven = str(certify(model))
    except LiftedError as error:
        proven = f"nothing was certified: {error}"
    return "\n".join([
        "---", "library_name: liftednet", *task, "tags:", "- liftednet", "- safetensors", "---",
        "", f"# {name}", "", indent("\n".join(lines_of(archive)), "    "),
        "", "## What is proven", "",
        "By `liftednet.certify`, from the weights, of the outputs of the network:",
        "", indent(proven, "    "),
        "", "## How to use it", "",
        "    from liftednet import load", "",
        f"    model = load({path.name!r})  # liftednet {liftednet.__version__}",
        "    model.predict(X)",
        "", "## Data, intended use, evaluation", "",
        "The file knows nothing of these: whoever shares it writes them here.", "",
    ])  # fmt: skip


def lines_of(archive: Archive) -> list[str]:
    """Return the network of a file, its weights, and how it was trained, without code that made it.

    Raises:
        LookupError: the file is damaged; or an AttributeError, TypeError or ValueError.
    """
    about, notes, tensors = archive.architecture, archive.notes, archive.tensors
    numbers = sum(x.numel() for n, x in tensors.items() if n.startswith(("weight.", "bias.")))
    types = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    lines = [f"{archive.kind}, {numbers:,} weights in {' and '.join(sorted(types))}"]
    if (graph := about.get("graph")) and "layers" not in graph:
        lines += [f"  {name}: {line}" for name, line in graph.items()]
        lines.append(f"activations: {_said(about['activations'])}")
    else:  # older files have no lines
        lines += [f"  {name}: {' x '.join(map(str, x.shape))}" for name, x in tensors.items()]
    how = [f"{name} {_said(about[name])}" for name in _HOW if about.get(name) is not None]
    lines.append(f"training: {', '.join(how)}")
    if about.get("chosen"):
        lines.append(f"by {about['chosen']}")
    if notes.get("trained"):
        lines.append(f"trained on {notes['trained']}")
    if notes.get("columns"):
        lines.append(f"inputs: {', '.join(notes['columns'])}")
    if notes.get("labels") is not None:
        target = ", ".join(notes.get("target", "y"))
        lines.append(f"labels of {target}: {', '.join(map(str, notes['labels']))}")
    return lines


def _said(value: Any) -> str:
    """Return a described value as Python would write it."""
    if isinstance(value, list):
        return f"({', '.join(map(_said, value))})"
    if not isinstance(value, dict):
        return str(value)
    if "declared" in value:
        return str(value["declared"])
    given = ", ".join(f"{name}={_said(x)}" for name, x in value.get("parameters", {}).items())
    return f"{value.get('name')}({given})"
