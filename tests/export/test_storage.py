"""A saved model comes back as it was; anything else is refused with a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from liftednet import Activation, LiftedError, activations, load, losses, save
from liftednet.errors import DataError, NotFittedError
from liftednet.models import FullBatch, LiftedMLP, LiftedRNN
from liftednet.storage import describe, rebuild_activation

SOFTSIGN = torch.nn.functional.softsign


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 5, generator=generator)
    return x, x[:, :3].argmax(-1)


def fit(data, *args, **options) -> LiftedMLP:
    x, y = data
    return LiftedMLP(*args, **{"method": FullBatch(sweeps=1), **options}).fit(x, y)


@pytest.fixture(scope="module")
def plain(data) -> LiftedMLP:
    return fit(data, (5, 6, 3), activations.Tanh(), lam=0.5, rho=0.01)


@pytest.fixture(scope="module")
def declared(data) -> LiftedMLP:
    return fit(data, (5, 6, 3), Activation.from_function(SOFTSIGN))


MODELS = [
    ((5, 6, 3), activations.LeakyReLU(0.2), losses.CrossEntropy(), "tight"),
    ((5, 6, 4, 3), [activations.Clipped(-1.0, 1.0), activations.ReLU()], None, "joint"),
    ((5, 6, 3), activations.ReLU(), losses.SimplexCrossEntropy(), "joint"),
    ((5, 6, 3), activations.Identity(), losses.CrossEntropy(), "tight"),
    ((5, 3), [], losses.CrossEntropy(), "tight"),
]


@pytest.mark.parametrize(("sizes", "layers", "loss", "divergence"), MODELS)
def test_a_loaded_model_is_the_one_that_was_saved(
    sizes, layers, loss, divergence, data, tmp_path
) -> None:
    x, _ = data
    model = fit(data, sizes, layers, loss, 0.5, 0.01, divergence)
    loaded = load(save(model, tmp_path / "model.safetensors"))
    for found, wanted in zip(loaded.weights, model.weights, strict=True):
        assert torch.equal(found.stacked(), wanted.stacked())
    torch.testing.assert_close(loaded.forward(x), model.forward(x))
    assert torch.equal(loaded.predict_lifted(x), model.predict_lifted(x))
    assert vars(loaded.architecture).keys() == vars(model.architecture).keys()
    assert [repr(d) for d in loaded.architecture.divergences] == [
        repr(d) for d in model.architecture.divergences
    ]
    assert loaded.architecture.lam == model.architecture.lam
    assert loaded.architecture.rho == model.architecture.rho
    assert type(loaded.loss) is type(model.loss)


CATALOGUE = [
    *(getattr(activations, name)() for name in activations.__all__),
    activations.LeakyReLU(0.3),
    activations.Clipped(-2.0, 0.5),
    activations.MaxPooling(3, 0.25),
]


@pytest.mark.parametrize("activation", CATALOGUE, ids=repr)
def test_every_activation_of_the_catalogue_comes_back_by_name(activation) -> None:
    described = json.loads(json.dumps(describe(activation)))
    found = rebuild_activation(described)
    assert type(found) is type(activation)
    assert repr(found) == repr(activation)


RECURRENT = [
    ((2, 4, 3), {}),
    ((2, [4, 3], 3), {"bidirectional": True, "divergence": "tight"}),
    ((2, 4, 3, activations.Tanh()), {"learn_initial_state": True, "dtype": torch.float32}),
    ((2, 4, 3, Activation.from_function(SOFTSIGN)), {"lam": 2.0, "rho": [0.1, 0.2]}),
]


@pytest.mark.parametrize(("sizes", "options"), RECURRENT)
def test_a_loaded_recurrent_model_is_the_one_that_was_saved(sizes, options, tmp_path) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(20, 5, 2, generator=generator)
    y = torch.arange(100).reshape(20, 5) % 3
    model = LiftedRNN(*sizes, sweeps=1, **options).fit(x, y)
    loaded = load(save(model, tmp_path / "model"), model.activation)
    torch.testing.assert_close(loaded.forward(x), model.forward(x))
    assert loaded.architecture.cells == model.architecture.cells
    assert (loaded.architecture.lam, loaded.architecture.rho) == (
        model.architecture.lam,
        model.architecture.rho,
    )
    assert repr(loaded.architecture.divergence) == repr(model.architecture.divergence)


def test_a_loaded_model_is_trained_on_from_its_weights(plain, data, tmp_path):
    loaded = load(save(plain, tmp_path / "model"), method=FullBatch(sweeps=1)).fit(*data)
    assert loaded.trace.start < plain.trace.start / 2
    how = {"start": plain.weights, "method": FullBatch(sweeps=1)}
    fresh = LiftedMLP((5, 6, 3), activations.Tanh(), None, 0.5, 0.01, **how)
    fresh.fit(*data)
    assert fresh.trace is not None
    assert fresh.trace.start == pytest.approx(loaded.trace.start, rel=1e-6)


def test_double_precision_is_kept(data, tmp_path) -> None:
    x, y = data
    model = fit((x.double(), y), (5, 6, 3))
    assert load(save(model, tmp_path / "model")).weights[0].matrix.dtype == torch.float64


def test_the_architecture_can_be_read_without_liftednet(plain, tmp_path) -> None:
    with safe_open(save(plain, tmp_path / "model"), framework="np") as file:
        metadata, names = file.metadata(), set(file.keys())
    about = json.loads(metadata["model"])["architecture"]
    assert about["sizes"] == [5, 6, 3]
    assert about["activations"] == [{"name": "Tanh", "parameters": {}}]
    assert (about["loss"]["name"], about["divergence"], about["dtype"]) == (
        "CrossEntropy",
        "tight",
        "float32",
    )
    assert names == {"weight.1", "bias.1", "weight.2", "bias.2"}


def test_a_declared_activation_is_asked_for(declared, data, tmp_path) -> None:
    path = save(declared, tmp_path / "model")
    with pytest.raises(DataError, match=r"softsign.*pass the activations to load"):
        load(path)
    loaded = load(path, Activation.from_function(SOFTSIGN))
    torch.testing.assert_close(loaded.forward(data[0]), declared.forward(data[0]))


def test_another_activation_than_the_saved_one_is_refused(declared, plain, tmp_path) -> None:
    path = save(declared, tmp_path / "model")
    with pytest.raises(DataError, match=r"layer 1 was saved as .*Tanh\(\) is another map"):
        load(path, activations.Tanh())
    with pytest.raises(DataError, match=r"saved as Tanh .*ReLU\(\) is another map"):
        load(save(plain, path), activations.ReLU())


def test_an_interrupted_save_keeps_the_file_that_was_there(plain, tmp_path, monkeypatch) -> None:
    path = save(plain, tmp_path / "model")
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        save(plain, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def test_what_cannot_be_saved_is_refused(plain, tmp_path) -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        save(LiftedMLP((5, 6, 3)), tmp_path / "model")
    with pytest.raises(DataError, match=r"save needs a LiftedMLP or a LiftedRNN, got Linear"):
        save(torch.nn.Linear(2, 2), tmp_path / "model")
    with pytest.raises(DataError, match="No such file or directory"):
        save(plain, tmp_path / "missing" / "model")


def test_what_is_no_model_is_refused(tmp_path) -> None:
    path = tmp_path / "model"
    with pytest.raises(DataError, match="there is no model at"):
        load(path)
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(DataError, match="no whole safetensors file"):
        load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(DataError, match=r"not saved by liftednet\.save"):
        load(path)


def changed(path: Path, **changes: Any) -> Path:
    """Write a saved model again with other metadata or tensors."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors.update({name: changes.pop(name) for name in set(changes) & set(tensors)})
    save_file(tensors, path, {**metadata, **changes})
    return path


def described(**changes: Any) -> dict[str, str]:
    """The metadata of a small model, changed."""
    about = {
        "sizes": [5, 6, 3],
        "activations": [{"name": "Tanh", "parameters": {}}],
        "loss": {"name": "CrossEntropy", "parameters": {}},
        "lam": [1.0],
        "rho": [1.0, 1.0],
        "divergence": "tight",
        "dtype": "float32",
    }
    return {"model": json.dumps({"kind": "LiftedMLP", "architecture": {**about, **changes}})}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "99"}, "version 99"),
        ({"model": "{"}, "cannot be read"),
        ({"model": "{}"}, "lacks"),
        ({"model": '{"kind": "Other", "architecture": {}}'}, "holds a 'Other'"),
        ({"model": '{"kind": "LiftedMLP", "architecture": {}}'}, "make no LiftedMLP: 'sizes'"),
        ({"model": '{"kind": "LiftedMLP", "architecture": 3}'}, "make no LiftedMLP"),
        (described(sizes=[10**9, 10**9, 3]), "start weight of layer 0 must have shape"),
        (described(sizes="5"), "sizes must be"),
        (described(activations=["Tanh"]), "make no LiftedMLP"),
        (described(activations=[{"name": "Tanh", "parameters": {"a": 1}}]), "describes no Tanh"),
        (described(loss={"name": "Mine"}), "loss Mine is declared outside"),
        (described(lam=[-1.0]), "lam must be positive"),
        (described(dtype="float16"), "names the type 'float16'"),
        ({"weight.1": torch.zeros(5, 7)}, r"must have shape \(5, 6\), got \(5, 7\)"),
        ({"bias.2": torch.tensor([0.0, float("nan"), 0.0])}, "bias.2 .* NaN"),
    ],
)
def test_a_damaged_file_is_refused(plain, tmp_path, changes, message):
    path = changed(save(plain, tmp_path / "model"), **changes)
    with pytest.raises(LiftedError, match=message):
        load(path)


def test_an_option_that_the_model_does_not_have_is_refused(plain, tmp_path) -> None:
    with pytest.raises(DataError, match="unexpected keyword argument 'swep'"):
        load(save(plain, tmp_path / "model"), swep=3)
