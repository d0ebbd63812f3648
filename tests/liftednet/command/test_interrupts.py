"""Ctrl-C while a network trains: what is kept, what is said, and the exit status."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from liftednet import load
from liftednet.command import app
from liftednet.models import Lifted
from liftednet.models.methods import minibatch


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a small data set."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "data.npz", X=x, y=np.arange(60) % 3)
    return tmp_path


def interrupting(function, call: int):
    """The function, interrupted at a call of it."""
    calls = iter(range(1, call + 1))

    def found(*arguments, **options):
        if next(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return found


def train(*arguments: str):
    return CliRunner().invoke(app, ["train", "data.npz", *arguments], terminal_width=200)


def after_epochs(monkeypatch, number: int) -> None:
    """Interrupt the step after so many, of which each is an epoch."""
    step = interrupting(minibatch.BatchSteps.step, number + 1)
    monkeypatch.setattr(minibatch.BatchSteps, "step", step)


@pytest.mark.parametrize("epoch", [True, False])
def test_before_an_epoch_is_finished_nothing_is_replaced(here, monkeypatch, epoch):
    (here / "model.safetensors").write_bytes(b"from before")
    if epoch:
        after_epochs(monkeypatch, 0)
    else:
        monkeypatch.setattr(Lifted, "_data", interrupting(Lifted._data, 1))
    result = train("--max-iter", "7")
    assert result.exit_code == 130
    done = " after 0 of 7 epochs" if epoch else ""
    said = f"interrupted{done}: nothing is saved"
    assert said in result.stdout
    assert (here / "model.safetensors").read_bytes() == b"from before"


def test_after_an_epoch_the_model_of_then_is_saved(here, monkeypatch):
    after_epochs(monkeypatch, 2)
    result = train("--max-iter", "7")
    assert result.exit_code == 130
    said = "interrupted after 2 of 7 epochs: the model of then is saved to model.safetensors"
    assert said in result.stdout
    assert "accuracy" not in result.stdout
    load("model.safetensors")
    shown = CliRunner().invoke(app, ["show", "model.safetensors"]).stdout
    assert "trained on data.npz, 45 samples, 2 of 7 epochs" in shown


def test_the_same_command_goes_on_from_its_checkpoint(here, monkeypatch):
    given = ["--method", "minibatch", "--max-iter", "5", "--checkpoint", "kept"]
    with monkeypatch.context() as patch:
        after_epochs(patch, 2)
        result = train(*given)
    assert "; the same command with --resume goes on from kept" in result.stdout
    assert "interrupted" not in train(*given, "--resume").stdout
    resumed = load("model.safetensors").weights[0].matrix
    train("--method", "minibatch", "--max-iter", "5")
    assert load("model.safetensors").weights[0].matrix.equal(resumed)


def test_an_interrupt_outside_of_the_training_is_one_line(here, monkeypatch):
    monkeypatch.setattr("liftednet.command.train.read_table", interrupting(None, 1))
    result = train()
    assert (result.exit_code, result.stderr) == (130, "liftednet: interrupted.\n")
