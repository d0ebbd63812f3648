"""Saved models: which class a file holds, and how it becomes one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liftednet.activation import Activation
from liftednet.errors import DataError
from liftednet.storage import Archive, read, write

from .mlp import LiftedMLP
from .mlp_archive import pack_mlp, unpack_mlp
from .rnn import LiftedRNN
from .rnn_archive import pack_rnn, unpack_rnn

Activations = Activation | Sequence[Activation] | None


@dataclass(frozen=True)
class Kind:
    """How a class of models is written and read.

    Attributes:
        model: the class.
        pack: turns a fitted model into an archive.
        unpack: turns archive, activations and options into a fitted model.
    """

    model: type[Any]
    pack: Callable[[Any], Archive]
    unpack: Callable[..., Any]


_KINDS = (Kind(LiftedMLP, pack_mlp, unpack_mlp), Kind(LiftedRNN, pack_rnn, unpack_rnn))


def save(model: Any, path: str | Path) -> Path:
    """Save a fitted model: its weights as safetensors, its architecture in the metadata.

    Args:
        model: a fitted model, a `LiftedMLP` or `LiftedRNN`.
        path: of the file, replaced at once or not at all; its folder must exist.

    Returns:
        The path.

    Raises:
        DataError: the model is of a class that cannot be saved, or the path cannot be written.
        NotFittedError: the model has no weights yet.
    """
    for kind in _KINDS:
        if type(model) is kind.model:
            return write(kind.pack(model), path)
    raise DataError(f"save needs {_names()}, got {type(model).__name__}.")


def load(path: str | Path, activations: Activations = None, **options: Any) -> Any:
    """Load a model that `save` has written; it predicts, and `fit` goes on from its weights.

    Args:
        path: of the file.
        activations: those of the model, where it had some that are not in the catalogue: a file
            holds no code.
        options: of the model's class that say how it trains, such as `sweeps` or `device`.

    Returns:
        A fitted model of the class that was saved.

    Raises:
        DataError: there is no such file, it is damaged, or an activation is missing or differs.
    """
    archive = read(path)
    for kind in _KINDS:
        if archive.kind == kind.model.__name__:
            return kind.unpack(archive, activations, **options)
    raise DataError(f"{path} holds a {archive.kind!r}; this liftednet loads {_names()}.")


def _names() -> str:
    return " or ".join(f"a {kind.model.__name__}" for kind in _KINDS)
