"""What the commands print and refuse, each refusal in one line with exit status 1."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from liftednet import __version__, load
from liftednet.command import app
from liftednet.models import Minibatch

DECLARED = '''
import torch
from liftednet import Activation

class Softsign(Activation):
    """u / (1 + |u|)."""

    def forward(self, u):
        return u / (1 + u.abs())

class Wrong(Activation):
    """A wrong prox."""

    def forward(self, u):
        return u / (1 + u.abs())

    def prox(self, w, t):
        return w

class Sloped(Softsign):
    def __init__(self, slope):
        self.slope_ = slope

made = Softsign()
number = 3
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a module of the user's and a small data set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_declared.py").write_text(DECLARED)
    (tmp_path / "mine_broken.py").write_text("1 / 0")
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "data.npz", X=x + 2 * np.eye(4)[y], y=y)
    np.savez(tmp_path / "from_one.npz", X=x, y=y % 2 + 1)
    np.savez(tmp_path / "gap.npz", X=x, y=y % 2 * 2)
    np.savez(tmp_path / "line.npz", X=x, y=x[:, 0] + 1)
    np.savez(tmp_path / "other.npz", a=x)
    np.savez(tmp_path / "yes.npz", X=x, y=x[:, 0] > 0)
    np.savez(tmp_path / "flat.npz", X=x[:, 0], y=y)
    np.savez(tmp_path / "words.npz", X=x + 2 * np.eye(4)[y], y=np.array(["b", "a", "c"])[y])
    np.savez(tmp_path / "several.npz", X=x, y=x[:, :2], z=x[:, 2:] > 0)
    np.savez(tmp_path / "one.npz", X=x, y=np.zeros(60, dtype=int))
    lines = [",".join([*map(str, row), "abc"[number]]) for row, number in zip(x, y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["p,q,r,s,kind", *lines]))
    yield tmp_path
    for name in ("mine_declared", "mine_broken"):
        sys.modules.pop(name, None)


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def refused(*arguments: str, status: int = 1) -> str:
    result = call(*arguments)
    assert result.exit_code == status
    assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("liftednet: ")
    return str(result.stderr)


@pytest.mark.parametrize(("name", "status"), [("made", 0), ("Wrong", 1)])
def test_check_prints_the_table(here, name, status) -> None:
    result = call("check", f"mine_declared:{name}")
    assert result.exit_code == status
    assert ("FAILS" if status else "the declaration holds") in result.stdout
    assert ("fails the check" in result.stderr) == bool(status)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine_declared", "as module:Name"),
        ("nowhere_to_be_found:A", "cannot be imported: ModuleNotFoundError"),
        ("mine_broken:A", "cannot be imported: ZeroDivisionError"),
        ("mine_declared:Missing", "has no 'Missing'"),
        ("mine_declared:number", "is no activation but 3"),
        ("mine_declared:Sloped", "cannot be made without arguments"),
    ],
)
def test_check_says_what_is_wrong_with_a_name(here, name, message) -> None:
    assert message in refused("check", name)


def test_train_saves_a_model_that_can_be_loaded(here) -> None:
    result = call("train", "data.npz", "--hidden", "6,5", "--max-iter", "1", "--output", "m.st")
    assert result.exit_code == 0, result.output
    assert [x for x in result.stdout.splitlines() if x.startswith(("training acc", "test acc"))]
    model = load("m.st")
    assert model.sizes == (4, 6, 5, 3)
    assert model.predict(torch.zeros(2, 4)).shape == (2,)


@pytest.mark.parametrize(
    ("file", "classes"), [("data.npz", 3), ("yes.npz", 2), ("from_one.npz", 2), ("gap.npz", 2)]
)
def test_train_by_minibatches(here, file, classes) -> None:
    result = call("train", file, "--method", "minibatch", "--max-iter", "2")
    assert result.exit_code == 0, result.output
    assert load("model.safetensors").sizes == (4, 100, classes)


def test_train_takes_a_declared_activation_and_a_regression(here) -> None:
    line = "train line.npz --hidden 5 --activation mine_declared:made --loss SquaredError"
    result = call(*line.split(), "--max-iter", "1")
    assert result.exit_code == 0, result.output
    assert "mean squared error" in result.stdout
    model = load("model.safetensors", import_module("mine_declared").made)
    assert model.sizes == (4, 5, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["line.npz", "--loss", "huber:wide"], "a number behind a colon"),
        (["missing.npz"], "not a readable npz file"),
        (["table.xlsx"], "must be one of"),
        (["table.csv"], "no column 'y' (--target, --columns); it has p, q"),
        (
            ["table.csv", "--target", "t"],
            "no column 't' (--target, --columns); it has p, q, r",
        ),
        (
            ["table.csv", "--target", "p", "--loss", "squared-error"],
            "'kind' of table.csv must hold",
        ),
        (["table.csv", "--target", "kind", "--loss", "SquaredError"], "are text, such as a"),
        (["other.npz"], "no column 'y'"),
        (["flat.npz"], "(samples, features)"),
        (["one.npz"], "cannot tell 1 classes apart: 0"),
        (["data.npz", "--loss", "BinaryCrossEntropy"], "cannot tell 3 classes apart: 0, 1, 2"),
        (["data.npz", "--method", "full", "--batch-size", "5"], "batch_size is for"),
        (["data.npz", "--resume"], "name its file by --checkpoint"),
        (["data.npz", "--output", "."], "is a folder"),
        (["data.npz", "--checkpoint", "nowhere/c"], "nowhere/c cannot be written"),
        (["digits", "--target", "y"], "are for files"),
        (["data.npz", "--hidden", "5,x"], "needs integers"),
        (["data.npz", "--hidden", "0"], "positive integers"),
        (["data.npz", "--hidden", "100,,50"], "needs integers"),
        (["digits", "--held-out", "3"], "are for files"),
        (["data.npz", "--activation", "wave"], "there are ELU, Arctan"),
        (["data.npz", "--loss", "hinge"], "there are BinaryCrossEntropy, Cross"),
        (["data.npz", "--lam", "-1"], "lam must be positive"),
        (["data.npz", "--held-out", "2"], "strictly between 0 and 1"),
        (["data.npz", "--output", "nowhere/m.st"], "No such file or directory: nowhere"),
        (["line.npz"], "CrossEntropy needs labels, and the targets are real numbers"),
        (["line.npz"], "--loss SquaredError"),
    ],
)
def test_train_refuses_in_one_line(here, arguments, message) -> None:
    assert message in refused("train", *arguments)
    assert not (here / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "data.npz", "--max-iter", "0"], "Invalid value for '--max-iter'"),
        (["train", "data.npz", "--method", "magic"], "Invalid value for '--method'"),
        (["train", "--nonsense"], "No such option: --nonsense"),
        (["train"], "Missing argument"),
        (["paint"], "No such command 'paint'"),
    ],
)
def test_wrong_options_are_refused_in_one_line_with_status_2(here, arguments, message) -> None:
    assert message in refused(*arguments, status=2)


def test_train_hands_on_what_is_asked_for(here) -> None:
    line = "train data.npz --batch-size 7 --lam 3 --rho 0.5 --seed 4 --max-iter 2"
    assert call(*line.split()).exit_code == 0
    model = load("model.safetensors")
    assert (model.lam, model.rho, model.seed) == (3.0, 0.5, 4)
    assert (model.method, model.max_iter, model.batch_size) == ("auto", 2, 7)
    assert (
        f"by {Minibatch(epochs=2, batch_size=7)!r}: minibatches, since CrossEntropy"
        in call("show", "model.safetensors").stdout
    )


def test_the_package_runs_as_a_module() -> None:
    line = [sys.executable, "-m", "liftednet", "--version"]
    found = subprocess.run(line, capture_output=True, text=True, check=True)
    assert found.stdout == f"liftednet {__version__}\n"


def test_help_is_quick_to_import() -> None:
    code = "import sys, liftednet.command; print('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
