"""What the commands print, take as options, and refuse in one line with exit status 1."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import train_test_split
from typer.testing import CliRunner

from liftednet import LiftedClassifier, LiftedRegressor, __version__, certify, load, save, storage
from liftednet.command import app
from liftednet.command.train import options_of, read_table
from liftednet.constraints import Bounds
from liftednet.models import GaussNewton, LiftedRNN
from liftednet.models.methods import minibatch
from liftednet.penalties import L1, Nonnegative

IRIS = "train iris.csv --target species --set hidden_layer_sizes=10 --set max_iter=60"


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def done(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refused(*arguments: str, status: int = 1) -> str:
    result = call(*arguments)
    assert result.exit_code == status
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("liftednet: ")
    assert isinstance(result.exception, SystemExit)
    return str(result.stderr)


def iris() -> pd.DataFrame:
    X, y = load_iris(return_X_y=True)
    frame = pd.DataFrame(X, columns=list("abcd"))
    place = np.where(np.arange(len(X)) % 3, "hill", "shore")
    return frame.assign(place=place, species=load_iris().target_names[y])


BROKEN = {
    "empty.csv": "", "names.csv": "a,b\n", "unnamed.csv": ",a\n0,1\n",
    "ragged.csv": "a,b\n1,2\n1,2,3,4\n",
    "longer.csv": "a,b\n1,2,3\n4,5,6\n", "twice.csv": "a,b,a\n1,2,3\n", "one.csv": "a\n1\n2\n",
    "commas.csv": "a;b\n3;4\n1,5;2\n", "beyond.csv": f"a,b\n1{'0' * 25},2\n3{'0' * 25},4\n",
    "text.csv": "a,b\n" + "".join(f"{n},{n / 8 if n - 30 else 'err'}\n" for n in range(60)),
    "lines.csv": '"a\nb","a\nb",c\n1,2,3\n',
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working folder with tables."""
    monkeypatch.chdir(tmp_path)
    iris().to_csv("iris.csv", index=False)
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    X.assign(y=y, z=-y).to_csv("numbers.csv", index=False)
    X.assign(y=y, bmi=X.bmi.where(X.index != 99)).to_csv("hole.csv", index=False)
    X.assign(y=y.where(y.index != 99), z=-y).to_csv("gap.csv", index=False)
    for name, content in BROKEN.items():
        (tmp_path / name).write_text(content)
    return Path(tmp_path)


def test_train_fits_the_estimator_with_columns_of_words(here) -> None:
    told = done(*IRIS.split())
    frame = iris()
    parts = train_test_split(
        frame.drop(columns="species"), frame.species, test_size=0.25, random_state=0,
        stratify=frame.species,
    )  # fmt: skip
    wanted = LiftedClassifier(10, max_iter=60, random_state=0).fit(parts[0], parts[2])
    found = load("model.safetensors")
    assert type(found) is LiftedClassifier
    np.testing.assert_allclose(found.predict_proba(parts[1]), wanted.predict_proba(parts[1]))
    assert f"test accuracy {wanted.score(parts[1], parts[3]):.3f}" in told
    shown = done("show", "model.safetensors")
    for words in ("trained on iris.csv, 112 rows", "inputs: a, b, c, d, place",
                  "labels of species: setosa, versicolor, virginica",
                  "layer 1: Dense(units=10, bias=True) of input 1 by weights 1"):  # fmt: skip
        assert words in shown
    assert done("certify", "model.safetensors") == f"{certify(found)}\n"


def test_a_saved_estimator_predicts_and_is_evaluated(here) -> None:
    done(*IRIS.split())
    made, frame = load("model.safetensors"), iris()
    frame[["place", "d", "c", "b", "a"]].to_csv("new.csv", index=False)
    for data in ("iris.csv", "new.csv"):  # columns are found by their names
        lines = done("predict", "model.safetensors", data).splitlines()
        assert lines == ["species", *made.predict(frame.drop(columns="species"))]
    text = done("predict", "model.safetensors", "new.csv", "--probabilities").splitlines()
    assert text[0] == "setosa,versicolor,virginica" and len(text) == 151
    right = np.mean(made.predict(frame.drop(columns="species")) == frame.species)
    told = done("evaluate", "model.safetensors", "iris.csv")
    assert told == f"accuracy {right:.3f} on 150 rows of iris.csv\n"
    frame.assign(species=7).to_csv("digits.csv", index=False)
    wrong = refused("evaluate", "model.safetensors", "digits.csv")
    assert "does not know the label '7'" in wrong  # as the words that it knows
    wrong = refused("evaluate", "model.safetensors", "iris.csv", "--target", "place")
    assert "does not know the label" in wrong
    assert "cannot be read" in refused("predict", "model.safetensors", "nothing.csv")
    plain = LiftedRegressor(4, max_iter=9, random_state=0).fit(
        frame[["a", "b"]].to_numpy(), frame.c
    )
    save(plain, "plain.safetensors")  # which knows no names: all but the targets are its inputs
    frame[["c", "a", "b"]].to_csv("numbers.csv", index=False)
    told = done("evaluate", "plain.safetensors", "numbers.csv", "--target", "c")
    assert f"R2 {plain.score(frame[['a', 'b']].to_numpy(), frame.c):.3f} " in told


def test_words_that_pandas_reads_as_missing_are_the_kinds_of_python(here) -> None:
    kinds = np.array(["NA", "EU", "AS"])[np.arange(90) % 3]
    frame = pd.DataFrame({"kind": kinds, "b": np.linspace(-1, 1, 90)})
    y = (kinds == "NA") * 10.0 + frame.b
    save(LiftedRegressor(4, random_state=0).fit(frame, y), "python.safetensors")
    frame.assign(y=y).to_csv("kinds.csv", index=False)
    assert "R2 1.000" in done("evaluate", "python.safetensors", "kinds.csv")
    line = "train kinds.csv --target y --set hidden_layer_sizes=4 --output own.safetensors"
    done(*line.split())
    assert load("own.safetensors").score(frame, y) > 0.999


def test_a_word_among_numbers_is_told_in_whatever_piece_of_a_table_it_stands(here) -> None:
    codes = np.where(np.arange(9_000) < 8_500, "7", "A1")
    table = pd.DataFrame(np.zeros((9_000, 130))).add_prefix("x")
    table.assign(code=codes, y=np.arange(9_000) % 2).to_csv("wide.csv", index=False)
    line = "train wide.csv --target y --columns code,x1 --set max_iter=1"
    told = call(*line.split())
    assert told.exit_code == 0 and "'code' has numbers beside text, 'A1' in row 8500" in told.stderr


def test_numbers_are_a_regression_of_one_column_or_of_several(here) -> None:
    given = ["--columns", "bmi,s5", "--set", "hidden_layer_sizes=5", "--set", "max_iter=5"]
    done("train", "numbers.csv", "--target", "y", *given)
    assert load("model.safetensors").feature_names_in_.tolist() == ["bmi", "s5"]
    done("train", "numbers.csv", "--target", "y", "--target", "z", *given)
    made, frame = load("model.safetensors"), pd.read_csv("numbers.csv")
    assert type(made) is LiftedRegressor
    head, *lines = done("predict", "model.safetensors", "numbers.csv").splitlines()
    expected = made.predict(frame[["bmi", "s5"]])
    assert head == "y,z"
    np.testing.assert_allclose([[*map(float, x.split(","))] for x in lines], expected, rtol=1e-12)
    wrong = "has 2 outputs, and 1 columns are held against them"
    assert wrong in refused("evaluate", "model.safetensors", "numbers.csv", "--target", "y")
    wrong = "NaN. The first is in row 99, column y"
    assert wrong in refused("evaluate", "model.safetensors", "gap.csv")
    error = np.square(expected - frame[["y", "z"]].to_numpy()).mean()
    told = done("evaluate", "model.safetensors", "numbers.csv")
    assert told.startswith(f"mean squared error {error:.4g}, R2")
    assert "no probabilities" in refused(
        "predict", "model.safetensors", "numbers.csv", "--probabilities"
    )


CODES = {"true": ("true", "false", "true"), "text": ("01", "02", "01"), "mixed": ("1", "2.50", "x")}


@pytest.mark.parametrize("labels", CODES.values(), ids=CODES)
def test_labels_and_codes_are_the_spellings_of_the_training(here, labels) -> None:
    """A file of some rows has digits alone where that of the training had words."""
    room = np.arange(120) % 3
    frame = pd.DataFrame({"a": np.linspace(-1, 1, 120), "code": np.array(["1", "01", "A"])[room]})
    frame = frame.assign(y=np.array(labels)[room])
    frame.to_csv("codes.csv", index=False)
    line = "train codes.csv --target y --set hidden_layer_sizes=5 --set max_iter=100"
    done(*line.split())
    some = room < 2
    frame[some].to_csv("some.csv", index=False)
    for name in ("codes.csv", "some.csv"):
        assert done("evaluate", "model.safetensors", name).startswith("accuracy 1.000")
    whole = done("predict", "model.safetensors", "codes.csv").splitlines()[1:]
    assert [x.lower() for x in whole] == frame.y.to_list()
    part = done("predict", "model.safetensors", "some.csv").splitlines()[1:]
    assert part == [x for x, kept in zip(whole, some, strict=True) if kept]


TRAIN = "train iris.csv --target species"
REFUSED = [
    ("train missing.csv --target y", "cannot be read"),
    ("train table.xlsx --target y", "must be a csv"),
    ("train iris.csv --target t", "no column 't'; it has a, b"),
    ("train iris.csv --target species --target species", "'species' is named twice"),
    ("train numbers.csv --target y --loss cross-entropy", "in one row alone"),
    ("train iris.csv --target a --columns b,x", "no column 'x'"),
    (f"{TRAIN} --loss squared-error", "y holds text, first"),
    (f"{TRAIN} --held-out 2", "strictly between 0 and 1"),
    (f"{TRAIN} --set lam=-1", "lam must be positive"),
    (f"{TRAIN} --set class_weight={{a:1}}", "texts stand between quotes"),
    ("train hole.csv --target y", "in row 99, column bmi"),
    ("train empty.csv --target y", "cannot be read"),
    ("train names.csv --target b", "and no rows"),
    ("train unnamed.csv --target a", "without a name"),
    ("train ragged.csv --target a", "cannot be read"),
    ("train longer.csv --target a", "2 names in its first line, and rows of more values"),
    ("train twice.csv --target b", "two columns of the name 'a'"),
    ("train one.csv --target a", "no column of one.csv is an input"),
    ("train commas.csv --target b", "numbers with commas in the column 'a', such as '1,5'"),
    ("train text.csv --target b", "'b' has numbers beside text, 'err' in row 30"),
    ("train beyond.csv --target b --columns b", "'b' is the target, and no input"),
    ("train lines.csv --target c", "two columns of the name 'a\\nb'"),
    (f"{TRAIN} --columns a,species", "'species' is the target, and no input"),
    (f"{TRAIN} --set max_iter", "--set takes name=value"),
    (f"{TRAIN} --set max_itr=3", "no option 'max_itr' of LiftedClassifier: did you mean max_iter?"),
    (f"{TRAIN} --set zzz=3", "there are activation, batch_size"),
    (f"{TRAIN} --set rho=1 --set rho=2", "given twice"),
    (f"{TRAIN} --set penalty=L9(1)", "there is no L9"),
    (f"{TRAIN} --set penalty=L1()", "cannot be made"),
    (f"{TRAIN} --set penalty=L1(-1)", "rho must"),
    (f"{TRAIN} --output .", "is a folder"),
    (f"{TRAIN} --output iris.csv", "would be lost"),
    (f"{TRAIN} --output /dev/null", "is no file"),
    (f"{TRAIN} --output nowhere/m", "No such file or dir"),
    ("predict nothing.st iris.csv", "there is no model at nothing.st"),
    ("show iris.csv", "no whole safetensors file"),
    (f"{TRAIN} --seed x", "Invalid value for '--seed'"),
    ("train", "Missing argument"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(here, line, message) -> None:
    """With status 2 where the line itself is wrong, as other commands have it."""
    wrong_line = message.startswith(("Invalid", "Missing"))
    assert message in refused(*line.split(), status=2 if wrong_line else 1)
    assert not (here / "model.safetensors").exists()


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t")])
def test_a_table_is_read_whatever_stands_between_its_values(tmp_path, name, mark) -> None:
    path = tmp_path / name
    text = mark.join(["a", "b"]) + "\n" + mark.join(["1.5", "x"]) + "\n"
    path.write_text(text, encoding="utf-8-sig")
    assert read_table(path).to_dict("list") == {"a": [1.5], "b": ["x"]}
    quoted = mark.join(["a", '"b, c"']) + "\n" + mark.join(["1.5", "x"]) + "\n"
    path.write_text("\n" + quoted)  # after a line that is blank
    assert read_table(path).to_dict("list") == {"a": [1.5], "b, c": ["x"]}


def test_after_an_interrupt_the_model_of_then_is_saved(here, monkeypatch) -> None:
    step, calls = minibatch.BatchSteps.step, iter(range(9))

    def interrupted(*arguments, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    monkeypatch.setattr(minibatch.BatchSteps, "step", interrupted)
    result = call(*IRIS.split())
    assert result.exit_code == 130
    assert "interrupted: the model of then is saved to model.safetensors" in result.stdout
    assert load("model.safetensors").n_iter_ == 1  # of two steps each


def test_the_package_runs_as_a_module() -> None:
    line = [sys.executable, "-m", "liftednet", "--version"]
    found = subprocess.run(line, capture_output=True, text=True, check=True)
    assert found.stdout == f"liftednet {__version__}\n"


def test_a_model_that_is_no_estimator_is_shown_and_left_to_python(here) -> None:
    x = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    save(LiftedRNN(2, 3, 2, method=GaussNewton(1)).fit(x, torch.arange(6) % 2), "rnn.st")
    assert "input 1: Input(shape=(2,), sequence=True" in done("show", "rnn.st")
    for command in ("predict", "evaluate"):
        assert "a LiftedRNN, which knows no columns" in refused(command, "rnn.st", "iris.csv")
    save(LiftedRegressor(3, max_iter=2).fit(x[:, 0].numpy(), x[:, 1].numpy()), "two.st")
    pd.read_csv("numbers.csv")[["bmi", "s5"]].to_csv("plain.csv", index=False)
    assert done("predict", "two.st", "plain.csv").startswith("y 1,y 2\n")
    archive = storage.read(Path("rnn.st"))
    broken = {**archive.architecture, "graph": ["inputs"]}
    storage.write(replace(archive, architecture=broken), Path("broken.st"))
    assert "broken.st describes no network" in refused("show", "broken.st")


WRITTEN: list[tuple[str, Any]] = [
    ("max_iter=5", 5), ("rho=1e-3", 1e-3), ("rho=[1, 2.5]", [1, 2.5]),
    ("early_stopping=true", True), ("activation=tanh", "tanh"), ("device='cpu'", "cpu"),
    ("lipschitz = none", None), ("hidden_layer_sizes=(5, 4)", [5, 4]),
    ("monotonic_cst={'age': 1}", {"age": 1}), ("method=GaussNewton(steps=7)", GaussNewton(7)),
    ("penalty=L1(0.1) + Nonnegative()", L1(0.1) + Nonnegative()),
    ("within=[Bounds(0.0, 1.0)]", [Bounds(0.0, 1.0)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), WRITTEN)
def test_values_are_those_of_python(text: str, value: Any) -> None:
    (found,) = options_of(LiftedRegressor, [text]).values()
    assert found == value or repr(found) == repr(value)
    assert type(found) is type(value)
