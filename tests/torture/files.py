"""Mutated archives: no exception but the library's own."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from liftednet import LiftedError, activations, load, penalties, save
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN
from tests.models.graphs import residual
from tests.torture.report import Finding

Json = Any
_PROMISE = "it is read, and what was read can be used, or an error of the library says why not"


def findings(share: float) -> list[Finding]:
    """Read `share` of 1,500 mutated files, at least a few."""
    models, wrong, drawn = _models(), [], max(4, round(share * 1500))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        for number in range(drawn):
            source = random.Random(f"archives, metadata changed {number}")
            path.write_bytes(_metadata_changed(source.choice(models), source))
            try:
                _use(path)
            except LiftedError:
                continue
            except Exception as error:
                wrong.append(f"number {number}: {type(error).__name__}: {error}")
    example = wrong[0] if wrong else ""
    return [Finding("archives, metadata changed", drawn, len(wrong), _PROMISE, example)]


# Whole files.

_INPUTS = 4


def _models() -> list[bytes]:
    x = torch.randn(12, _INPUTS, generator=torch.Generator().manual_seed(0))
    y, method = torch.arange(12) % 3, FullBatch(sweeps=1)
    layers = [activations.LeakyReLU(0.3), activations.Clipped(-1.0, 1.0)]
    penalty = penalties.L1(0.1) + penalties.Nonnegative()
    models = [
        LiftedMLP((_INPUTS, 5, 3), activations.Tanh(), method=method).fit(x, y),
        LiftedMLP((_INPUTS, 5, 4, 3), layers, penalty=penalty, method=method).fit(x, y),
        Lifted(residual(), lam=(1.0, 2.0), method=method).fit(x, y),
        LiftedRNN(_INPUTS, [3, 2], 3, bidirectional=True, method=GaussNewton(1)).fit(_steps(x), y),
    ]
    with tempfile.TemporaryDirectory() as folder:
        return [save(model, Path(folder) / "model").read_bytes() for model in models]


def _steps(x: torch.Tensor) -> torch.Tensor:
    return x.double().unsqueeze(1).repeat(1, 3, 1)


def _use(path: Path) -> None:
    options: Any = {"network": residual()} if b'"Lifted\\"' in path.read_bytes() else {}
    model = load(path, **options)
    x = torch.ones(2, _INPUTS)
    x = _steps(x) if isinstance(model, LiftedRNN) else x
    model.predict(x)
    repr(model)
    model.checked()
    model.method = FullBatch(sweeps=1)
    model.fit(x, torch.tensor([0, 1]))


# Changes.


def _metadata_changed(content: bytes, source: random.Random) -> bytes:
    """Change what describes the model, in a file of before there were checksums."""
    size = int.from_bytes(content[:8], "little")
    metadata = {**json.loads(content[8 : 8 + size])["__metadata__"], "version": "2"}
    del metadata["checksum"]
    chance = source.random()
    if chance < 0.1:
        metadata[source.choice(sorted(metadata))] = source.choice(_TEXTS)
    else:
        model = json.loads(metadata["model"])
        for _ in range(source.choice((1, 1, 1, 3))):
            if source.random() < 0.1 or not isinstance(model, dict):
                model = _mutated(model, source, _VALUES)
            else:
                model["architecture"] = _mutated(model.get("architecture"), source, _VALUES, 0.02)
        metadata["model"] = json.dumps(model)
    return safetensors.torch.save(safetensors.torch.load(content), metadata)


_DEEP = 100_000
_TEXTS = ["", "1", "3", "null", "[]", "{}", "\x00", "nan"]
_TEXTS += ["[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP]
_VALUES: list[Json] = [
    None, True, False, -1, 0, 1, 2, 10**400, 1e308, -0.5, float("nan"), float("inf"), "", "x",
    "tight", "joint", "float16", "gauss-newton", [], {}, [[]], [None], [1, "x"],
    {"tensor": "weight.1"},
    {"tensor": "x"}, {"tensor": []}, {"name": "ReLU"}, {"name": []}, {"name": "Minibatch"},
    {"name": "Minibatch", "parameters": {"epochs": "x"}}, {"name": "ReLU", "parameters": []},
    {"name": "LeakyReLU", "parameters": {"alpha": []}},
    {"name": "L1", "parameters": {"rho": 1e999}},
    {"name": "MaxPooling", "parameters": {}}, {"name": "CrossEntropy", "parameters": {}},
    {"name": "Sum", "parameters": {"parts": [1]}}, {"declared": "x"}, {"declared": []},
    json.loads("[" * 300 + "]" * 300),
]  # fmt: skip


def _mutated(document: Json, source: random.Random, values: Json, whole: float = 0.1) -> Json:
    """Return a document with one part replaced, left out, doubled or renamed."""
    if not isinstance(document, dict | list) or not document or source.random() < whole:
        return source.choice(values)
    places = sorted(document) if isinstance(document, dict) else range(len(document))
    place = source.choice(places)
    changed = document.copy()
    chance = source.random()
    if chance < 0.08:
        del changed[place]
    elif chance < 0.16 and isinstance(changed, dict):
        changed[str(source.choice(places)) + source.choice(("", "x"))] = changed.pop(place)
    elif chance < 0.16 and isinstance(changed, list):
        changed.append(changed[place])
    else:
        changed[place] = _mutated(changed[place], source, values)
    return changed
