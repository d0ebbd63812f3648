"""predict, evaluate, certify and show, on what Python has saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from torch.export import Dim

from liftednet import LiftedRegressor, certify, load, save, storage, to_torch
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
    return found


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    """The folder, as the one at hand."""
    monkeypatch.chdir(folder)
    return Path(folder)


def test_a_model_that_is_no_estimator_is_left_to_python(here) -> None:
    for command in ("predict", "evaluate"):
        assert "holds a LiftedMLP, which knows no columns" in refused(
            command, "iris.st", "iris.csv"
        )


def test_an_estimator_that_python_has_saved_names_its_answers(here) -> None:
    made = LiftedRegressor(3, max_iter=2).fit(X[:, :2], X[:, 2:])
    save(made, "two.st")
    pd.DataFrame(X[:, :2]).to_csv("plain.csv", index=False)
    head, *lines = done("predict", "two.st", "plain.csv").splitlines()
    assert head == "y 1,y 2"
    found = [[*map(float, line.split(","))] for line in lines]
    np.testing.assert_allclose(found, made.predict(X[:, :2]), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nothing.st", "iris.csv"], "there is no model at nothing.st"),
        (["predict", "iris.csv", "iris.csv"], "no whole safetensors file"),
        (["show", "iris.csv"], "no whole safetensors file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(here, arguments, message) -> None:
    assert message in refused(*arguments)


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
    program = torch.export.export(
        to_torch(model).eval(), (torch.from_numpy(x),), dynamic_shapes=(({0: Dim("samples")},),)
    )
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    exported.save(here / "shares.onnx")
    session = runtime.InferenceSession(here / "shares.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    expected = model.predict(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    none = np.stack([-x[0], x[1]])  # parts that are not negative have no negative sum
    (found,) = session.run(None, {session.get_inputs()[0].name: none})
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-12)


def test_a_recurrent_network_is_shown(here) -> None:
    x = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    save(LiftedRNN(2, 3, 2, method=GaussNewton(1)).fit(x, torch.arange(6) % 2), "rnn.st")
    assert "input 1: Input(shape=(2,), sequence=True" in done("show", "rnn.st")


def test_a_file_that_describes_no_network_is_refused(here) -> None:
    archive = storage.read(here / "iris.st")
    broken = {**archive.architecture, "graph": ["inputs"]}
    storage.write(replace(archive, architecture=broken), here / "broken.st")
    assert "broken.st describes no network" in refused("show", "broken.st")
