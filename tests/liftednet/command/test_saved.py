"""predict, evaluate, export and show, on models that train and Python have saved."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes, load_iris
from typer.testing import CliRunner

from liftednet import (
    LiftedRegressor,
    certify,
    load,
    save,
    storage,
    to_torch,
)
from liftednet.activations import Tanh
from liftednet.command import app
from liftednet.constraints import Bounds, Linear
from liftednet.models import GaussNewton, LiftedMLP, LiftedRNN, Minibatch

X, LABELS = load_iris(return_X_y=True)
NAMES = load_iris().target_names[LABELS]
CLASSES = "iris.csv --target species --hidden 10 --max-iter 60 --output iris.st"
NUMBERS = (
    "diabetes.npz --target both --loss squared-error --method gauss-newton --activation tanh "
    "--hidden 5 --max-iter 5 --rho 0.1 --output both.st"
)
OWN = """
from liftednet import Activation

class Softsign(Activation):
    def forward(self, u):
        return u / (1 + u.abs())
"""


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def done(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refused(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    return str(result.stderr)


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with tables and with models of each kind."""
    found: Path = tmp_path_factory.mktemp("saved")
    lines = [",".join([*map(str, x), name]) for x, name in zip(X, NAMES, strict=True)]
    (found / "iris.csv").write_text("\n".join(["a,b,c,d,species", *lines]))
    (found / "new.csv").write_text(
        "\n".join(["d,c,b,a", *(",".join(map(str, x[::-1])) for x in X)])
    )
    np.savez(found / "iris.npz", X=X, y=LABELS)
    x, y = load_diabetes(return_X_y=True)
    np.savez(found / "diabetes.npz", X=x, y=y, both=np.stack([y, -y], axis=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        for line in (CLASSES, NUMBERS):
            done("train", *line.split())
    return found


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    """The folder, as the one at hand."""
    monkeypatch.chdir(folder)
    return Path(folder)


def test_labels_are_predicted_as_they_were_given(here):
    model = load("iris.st")
    head, *found = rows(done("predict", "iris.st", "iris.csv"))
    expected = model.predict(torch.from_numpy(X).float()).numpy()
    assert head == ["species"]
    assert [line[0] for line in found] == load_iris().target_names[expected].tolist()
    assert np.mean(np.array(found)[:, 0] == NAMES) > 0.9


def test_columns_are_found_by_their_names(here):
    assert done("predict", "iris.st", "new.csv") == done("predict", "iris.st", "iris.csv")
    assert done("predict", "iris.st", "iris.npz") == done("predict", "iris.st", "iris.csv")


def test_probabilities_are_named_by_their_labels(here):
    head, *found = rows(done("predict", "iris.st", "iris.csv", "--probabilities"))
    assert head == ["setosa", "versicolor", "virginica"]
    chances = load("iris.st").predict_proba(torch.from_numpy(X).float())
    np.testing.assert_allclose(np.array(found, dtype=float), chances.numpy(), rtol=1e-6)


def test_several_outputs_are_several_columns(here):
    head, *found = rows(done("predict", "both.st", "diabetes.npz"))
    assert head == ["both 1", "both 2"]
    x, y = load_diabetes(return_X_y=True)
    expected = load("both.st").predict(torch.from_numpy(x).float())
    np.testing.assert_allclose(np.array(found, dtype=float), expected.numpy(), rtol=1e-5)
    error = np.square(expected.numpy() - np.stack([y, -y], axis=1)).mean()
    assert f"mean squared error {error:.4g}, R2" in done("evaluate", "both.st", "diabetes.npz")


def test_evaluate_counts_right_answers(here):
    predicted = load("iris.st").predict(torch.from_numpy(X).float()).numpy()
    told = done("evaluate", "iris.st", "iris.csv")
    assert told == f"accuracy {np.mean(predicted == LABELS):.3f} on 150 samples of iris.csv\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nothing.st", "iris.csv"], "there is no model at nothing.st"),
        (["predict", "iris.csv", "iris.csv"], "no whole safetensors file"),
        (["predict", "iris.st", "diabetes.npz"], "4 inputs"),
        (["predict", "iris.st", "nothing.csv"], "cannot be read"),
        (["predict", "both.st", "diabetes.npz", "--probabilities"], "gives no probabilities"),
        (
            ["evaluate", "iris.st", "iris.npz"],
            "'species' (--target, --columns); it has X, y",
        ),
        (["evaluate", "iris.st", "iris.npz", "--target", "y"], "does not know the label 0"),
        (["evaluate", "iris.st", "new.csv"], "has no column 'species'"),
        (["export", "iris.st", "iris.exe"], "must be one of .safetensors, .pt2, .onnx"),
        (["export", "iris.st", "nowhere/iris.pt2"], "cannot be written"),
        (["show", "iris.npz"], "no whole safetensors file"),
        (["export", "both.safetensors", "./both.safetensors"], "would be lost"),
        (["train", *CLASSES.split(), "--checkpoint", "iris.st"], "would be lost"),
        (["train", "iris.csv", "--target", "species", "--output", "iris.csv"], "would be lost"),
        (["train", "iris.csv", "--target", "species", "--output", "/dev/null"], "is no file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(here, arguments, message):
    assert message in refused(*arguments)


def test_weights_are_exported_as_torch_has_them(here):
    done("export", "iris.st", "weights.safetensors")
    expected = to_torch(load("iris.st")).state_dict()
    found = load_file(here / "weights.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_program_is_exported_for_any_number_of_samples(here):
    done("export", "iris.st", "iris.pt2")
    program = torch.export.load(here / "iris.pt2").module()
    x = torch.from_numpy(X).float()
    torch.testing.assert_close(program(x), load("iris.st").forward(x))
    assert not list(here.glob(".iris*"))


def test_onnx_is_written_where_torch_can(here):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    done("export", "iris.st", "iris.onnx")
    session = runtime.InferenceSession(here / "iris.onnx")
    x = X.astype(np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, load("iris.st").forward(x).numpy(), atol=1e-6)


@pytest.fixture(scope="module")
def shares(folder) -> np.ndarray:
    """Inputs, of which a saved regressor answers with nonnegative parts of the first."""
    x = np.random.default_rng(0).uniform(1, 2, size=(60, 4))
    limits = [Linear(np.ones(3), equal=0, inputs=[-1, 0, 0, 0]), Bounds(lower=0)]
    parts = np.random.default_rng(1).dirichlet(np.ones(3), 60) * x[:, :1]
    model = LiftedRegressor((6,), within=limits, max_iter=5, random_state=0).fit(x, parts)
    save(model.model_, folder / "shares.st")
    np.savez(folder / "shares.npz", X=9 * x)
    return 9 * x


def test_what_is_within_limits_is_predicted_so(here, shares):
    _, *found = rows(done("predict", "shares.st", "shares.npz"))
    answers = np.array(found, dtype=float)
    np.testing.assert_allclose(answers, load("shares.st").predict(torch.from_numpy(shares)))
    np.testing.assert_allclose(answers.sum(1), shares[:, 0], rtol=1e-9)


def test_what_is_within_limits_is_written_to_onnx(here, shares):
    """With NaN where no answer meets them, as ONNX has no errors."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    done("export", "shares.st", "shares.onnx")
    session = runtime.InferenceSession(here / "shares.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: shares})
    expected = load("shares.st").predict(torch.from_numpy(shares)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    none = np.stack([-shares[0], shares[1]])  # parts that are not negative have no negative sum
    (found,) = session.run(None, {session.get_inputs()[0].name: none})
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-12)


def test_a_saved_model_is_certified(here, shares):
    text = done("certify", "shares.st")
    facts = certify(load("shares.st"))
    assert text == f"{facts}\n" and "Lipschitz constant not bounded" in text
    assert "output 0 + output 1 + output 2 - input 0 = 0" in text
    assert "inputs: 0 a, 1 b, 2 c, 3 d" in done("certify", "iris.st")


def test_onnx_is_refused_where_torch_cannot(here, monkeypatch):
    monkeypatch.setattr("liftednet.command.files.find_spec", lambda name: None)
    assert "pip install 'liftednet[onnx]'" in refused("export", "iris.st", "no.onnx")
    assert not (here / "no.onnx").exists()


def test_a_recurrent_network_is_exported_by_its_weights(here):
    x = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    save(LiftedRNN(2, 3, 2, method=GaussNewton(1)).fit(x, torch.arange(6) % 2), "rnn.st")
    np.savez("sequences.npz", X=x.numpy(), y=np.arange(6) % 2)
    assert len(rows(done("predict", "rnn.st", "sequences.npz"))) == 7
    done("export", "rnn.st", "rnn.safetensors")
    assert "input 1: Input(shape=(2,), sequence=True" in done("show", "rnn.st")
    module = to_torch(load("rnn.st"))
    assert load_file(here / "rnn.safetensors").keys() == module.state_dict().keys()
    assert "write FILE.safetensors" in refused("export", "rnn.st", "rnn.pt2")
    assert not (here / "rnn.pt2").exists()


def test_show_says_what_a_model_is(here):
    told = done("show", "iris.st")
    for words in (
        "LiftedMLP, 83 weights in float32",
        "layer 1: Dense(units=10, bias=True) of input 1 by weights 1",
        "activations: (ReLU())",
        "loss 1: CrossEntropy() of layer 2",
        "Minibatch(epochs=60",
        "trained on iris.csv, 112 samples, 60 of 60 epochs",
        "inputs: a, b, c, d",
        "labels of species: setosa, versicolor, virginica",
    ):
        assert words in told


def test_a_file_that_describes_no_network_is_refused(here):
    archive = storage.read(here / "iris.st")
    broken = {**archive.architecture, "graph": ["inputs"]}
    storage.write(replace(archive, architecture=broken), here / "broken.st")
    assert "broken.st describes no network" in refused("show", "broken.st")


def test_models_of_python_have_no_notes_and_are_served(here):
    model = LiftedMLP((4, 5, 3), Tanh(), method=Minibatch(5))
    save(model.fit(torch.from_numpy(X), torch.from_numpy(LABELS)), "python.st")
    assert "float64" in done("show", "python.st") and "trained on" not in done("show", "python.st")
    _, *found = rows(done("predict", "python.st", "iris.npz"))
    assert [int(line[0]) for line in found] == model.predict(X).tolist()
    accuracy = np.mean(model.predict(X).numpy() == LABELS)
    assert f"accuracy {accuracy:.3f}" in done("evaluate", "python.st", "iris.npz", "--target", "y")


def test_an_own_activation_is_named(here):
    (here / "mine_softsign.py").write_text(OWN)
    own = ["--activation", "mine_softsign:Softsign"]
    done("train", "iris.npz", "--max-iter", "1", "--hidden", "4", *own, "--output", "own.st")
    assert "Softsign" in done("show", "own.st")
    assert "declared outside of liftednet" in refused("predict", "own.st", "iris.npz")
    assert len(rows(done("predict", "own.st", "iris.npz", *own))) == 151
