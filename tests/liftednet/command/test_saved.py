"""predict, evaluate, export, certify and show, on models that Python has saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_iris

from liftednet import certify, load, save, storage, to_torch
from liftednet.activations import Tanh
from liftednet.constraints import Bounds, Linear
from liftednet.losses import SquaredError
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from tests.liftednet.command.test_commands import done, refused

X, LABELS = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a table and a model of it, as an earlier version's command has left it."""
    found: Path = tmp_path_factory.mktemp("saved")
    names = load_iris().target_names
    pd.DataFrame(X, columns=list("abcd")).assign(species=names[LABELS]).to_csv(
        found / "iris.csv", index=False
    )
    model = LiftedMLP((4, 5, 3), Tanh(), method=Minibatch(30))
    model.fit(torch.from_numpy(X), torch.from_numpy(LABELS))
    notes = {"columns": list("abcd"), "target": ["species"], "labels": names.tolist()}
    save(model, found / "iris.st", {**notes, "trained": "iris.csv, 150 samples"})
    save(model, found / "bare.st")
    return found


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    """The folder, as the one at hand."""
    monkeypatch.chdir(folder)
    return Path(folder)


def test_a_model_with_notes_predicts_its_labels(here) -> None:
    names = load_iris().target_names[load("iris.st").predict(X)]
    assert done("predict", "iris.st", "iris.csv").splitlines() == ["species", *names]
    right = np.mean(load("iris.st").predict(X).numpy() == LABELS)
    assert done("evaluate", "iris.st", "iris.csv").startswith(f"accuracy {right:.3f} on 150")
    head = done("predict", "iris.st", "iris.csv", "--probabilities").splitlines()[0]
    assert head == "setosa,versicolor,virginica"


def test_a_model_without_notes_takes_all_columns(here) -> None:
    pd.DataFrame(X).to_csv("plain.csv", index=False)
    lines = done("predict", "bare.st", "plain.csv").splitlines()
    assert lines == ["y", *map(str, load("bare.st").predict(X).tolist())]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nothing.st", "iris.csv"], "there is no model at nothing.st"),
        (["predict", "iris.csv", "iris.csv"], "no whole safetensors file"),
        (["predict", "bare.st", "iris.csv"], "must hold numbers"),
        (["predict", "iris.st", "nothing.csv"], "cannot be read"),
        (["evaluate", "iris.st", "iris.csv", "--target", "a"], "does not know the label"),
        (["export", "iris.st", "iris.exe"], "must be one of .safetensors, .pt2, .onnx"),
        (["export", "iris.st", "nowhere/iris.pt2"], "cannot be written"),
        (["show", "iris.csv"], "no whole safetensors file"),
        (["export", "iris.safetensors", "./iris.safetensors"], "would be lost"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(here, arguments, message) -> None:
    assert message in refused(*arguments)


def test_weights_are_exported_as_torch_has_them(here) -> None:
    done("export", "iris.st", "weights.safetensors")
    expected = to_torch(load("iris.st")).state_dict()
    found = load_file(here / "weights.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_program_is_exported_for_any_number_of_samples(here) -> None:
    done("export", "iris.st", "iris.pt2")
    program = torch.export.load(here / "iris.pt2").module()
    x = torch.from_numpy(X)
    torch.testing.assert_close(program(x), load("iris.st").forward(x))
    assert not list(here.glob(".iris*"))


def test_what_is_within_limits_is_certified_and_written_to_onnx(here) -> None:
    """With NaN where no answer meets them, as ONNX has no errors."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).uniform(1, 2, size=(60, 4))
    limits = [Linear(np.ones(3), equal=0, inputs=[-1, 0, 0, 0]), Bounds(lower=0)]
    parts = np.random.default_rng(1).dirichlet(np.ones(3), 60) * x[:, :1]
    model = LiftedMLP((4, 6, 3), loss=SquaredError(), within=limits, max_iter=5).fit(x, parts)
    save(model, "shares.st")
    assert done("certify", "shares.st") == f"{certify(load('shares.st'))}\n"
    done("export", "shares.st", "shares.onnx")
    session = runtime.InferenceSession(here / "shares.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    expected = model.predict(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    none = np.stack([-x[0], x[1]])  # parts that are not negative have no negative sum
    (found,) = session.run(None, {session.get_inputs()[0].name: none})
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-12)


def test_onnx_is_refused_where_torch_cannot(here, monkeypatch) -> None:
    monkeypatch.setattr("liftednet.command.files.find_spec", lambda name: None)
    assert "pip install 'liftednet[onnx]'" in refused("export", "iris.st", "no.onnx")
    assert not (here / "no.onnx").exists()


def test_a_recurrent_network_is_exported_by_its_weights(here) -> None:
    x = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    save(LiftedRNN(2, 3, 2, method=GaussNewton(1)).fit(x, torch.arange(6) % 2), "rnn.st")
    done("export", "rnn.st", "rnn.safetensors")
    assert "input 1: Input(shape=(2,), sequence=True" in done("show", "rnn.st")
    module = to_torch(load("rnn.st"))
    assert load_file(here / "rnn.safetensors").keys() == module.state_dict().keys()
    assert "write FILE.safetensors" in refused("export", "rnn.st", "rnn.pt2")
    assert not (here / "rnn.pt2").exists()


def test_a_file_that_describes_no_network_is_refused(here) -> None:
    archive = storage.read(here / "iris.st")
    broken = {**archive.architecture, "graph": ["inputs"]}
    storage.write(replace(archive, architecture=broken), here / "broken.st")
    assert "broken.st describes no network" in refused("show", "broken.st")
