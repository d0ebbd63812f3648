"""A saved model comes back as it was; anything else is refused with a sentence."""

import inspect
import itertools
import json
import os
import random
import re
import resource
import stat
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from benchmarks.papers.lifted_rule import forward_lifted
from liftednet import Activation, LiftedClassifier, LiftedRegressor, activations, lift, load, save
from liftednet.command.app import app
from liftednet.errors import DataError, FitWarning, LiftedError, NotFittedError
from liftednet.losses import CrossEntropy, SimplexCrossEntropy
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.storage import _pack
from liftednet.penalties import L1, Declared, Nonnegative, RowNorm, SquaredFrobenius
from liftednet.solvers import NewtonOverTime, Proximal, get_solver, solver_names
from liftednet.storage import CATALOGUE as NAMED
from liftednet.storage import describe, read_tensors, rebuild, replace_file, write
from tests.draws import normal
from tests.models.graphs import NETWORKS, fitted, residual
from tests.models.networks import refuses, same_bits, warned

SOFTSIGN = torch.nn.functional.softsign


@pytest.fixture(scope="module")
def plain() -> LiftedMLP:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    model = LiftedMLP((5, 6, 3), activations.Tanh(), lam=0.5, rho=0.01, method=FullBatch(sweeps=1))
    return model.fit(x, x[:, :3].argmax(-1))


def untrained(*sizes: int, **options: Any) -> LiftedMLP:
    model = LiftedMLP(sizes or (5, 6, 3), **options)
    return model.with_weights(model._first_weights())


def require_same(loaded: Lifted, model: Lifted, x: Any) -> None:
    """Require that a loaded model answers as the saved one, and would be trained as it was."""
    torch.testing.assert_close(loaded.forward(x), model.forward(x))
    assert (loaded.method, loaded.dtype, loaded.lam) == (model.method, model.dtype, model.lam)
    for name in ("divergences", "lam", "penalties"):
        parts = (getattr(one.structure, name).values() for one in (loaded, model))
        assert len({repr([*part]) for part in parts}) == 1


CATALOGUE = [
    *(getattr(activations, name)() for name in activations.__all__),
    activations.LeakyReLU(0.3),
    activations.Clipped(-2.0, 0.5),
    activations.MaxPooling(3),
]


@pytest.mark.parametrize("activation", CATALOGUE, ids=repr)
def test_every_activation_of_the_catalogue_comes_back_by_name(activation) -> None:
    found = rebuild(json.loads(json.dumps(describe(activation))), "activations")
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
    x = normal(20, 5, 2, seed=2, dtype=torch.float32)
    y = torch.arange(100).reshape(20, 5) % 3
    for labels in (y, y[:, 0]):
        model = LiftedRNN(*sizes, method=GaussNewton(1), **options).fit(x, labels)
        loaded = load(save(model, tmp_path / "model"), model.activation)
        require_same(loaded, model, x)
        assert loaded.predict(x).shape == labels.shape
        assert loaded._declared().keys() == model._declared().keys()
        assert loaded.hidden_size == model.hidden_size


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float64) for name in NETWORKS), ("residual", torch.float32)]
)
def test_any_network_comes_back_into_the_same_graph(name, dtype, tmp_path) -> None:
    model, x = fitted(name, dtype, last=name == "gated")
    loaded = load(save(model, tmp_path / "model"), network=NETWORKS[name]())
    require_same(loaded, model, x)
    assert loaded.weights[0].matrix.dtype is dtype


OTHER_GRAPHS = [
    ("bias", "weights 1 is .*bias=False.* and was .*bias=True"),
    ("activation", r"layer 2 was saved as Tanh .*Sigmoid\(\) is another map"),
    ("state", r"weights 3 is .*\(5, 5\).* and was .*\(10, 3\)"),
    ("loss", r"loss 1 is BinaryCrossEntropy\(\).* and was CrossEntropy\(\)"),
]


@pytest.mark.parametrize(("change", "message"), OTHER_GRAPHS)
def test_another_graph_is_refused_with_the_first_difference(change, message, tmp_path) -> None:
    path = save(fitted("residual")[0], tmp_path / "model")
    refuses(DataError, message, lambda: load(path, network=residual(change)))
    load(path, network=residual())
    for options in ({}, {"network": residual}, {"network": residual(), "activations": []}):
        refuses(DataError, "holds no code, and so no graph", load, path, **options)


SETTINGS: list[dict[str, Any]] = [
    {"method": Minibatch(epochs=1, batch_size=7, rate=0.2), "seed": 3, "warm_start": True},
    {"method": GaussNewton(2, form="normal")},
    {"method": "minibatch", "divergence": "joint", "refit_output": True},
    {"method": FullBatch(1), "solver": "proximal-weights"},
    {"method": FullBatch(1), "divergence": "joint", "lam": (0.5,)},
    {"method": FullBatch(1), "solver": Proximal(1e-7)},
    {"penalty": (L1(0.1) + Nonnegative(1e-4), RowNorm(2.0))},
    {"penalty": SquaredFrobenius(0.2, torch.ones(5, 5)), "bias": [True, False]},
    {"bias": False, "rho": (0.1, 0.2), "dtype": torch.float64},
    {"sizes": (5, 6, 4, 3), "activations": [activations.Clipped(-1.0, 1.0), activations.Tanh()]},
    {"loss": SimplexCrossEntropy(), "divergence": "joint", "lam": 0.5},
    {"sizes": (5, 3), "activations": []},
    *({"state_solver": get_solver(name)} for name in solver_names()),
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_settings_come_back(options, tmp_path) -> None:
    model = LiftedMLP(**{"sizes": (5, 5, 5), "activations": activations.ReLU(), **options})
    model.with_weights(model._first_weights())
    loaded = load(save(model, tmp_path / "model"))
    require_same(loaded, model, torch.ones(2, 5, dtype=model.weights[0].matrix.dtype))
    assert same_bits(loaded.weights, model.weights)
    assert (repr(loaded), type(loaded.loss)) == (repr(model), type(model.loss))
    for name in ("warm_start", "refit_output", "state_solver"):
        assert getattr(loaded, name) == getattr(model, name)


ARCHIVES = Path(__file__).with_name("archives")
ANSWERS = "answers.safetensors"


class Doubled(CrossEntropy):
    """A loss of a user."""


def test_what_a_file_cannot_hold_is_asked_for(plain, tmp_path) -> None:
    own = Declared(lambda w: 0.1 * cp.sum_squares(w))
    model = untrained(5, 3, activations=[], loss=Doubled(), penalty=own, method=FullBatch(1))
    path = save(model, tmp_path / "model")
    refuses(DataError, r"Doubled\(\) was declared outside.*loss=\.\.\.", load, path, penalty=own)
    words = r"Declared.*was declared outside.*penalty=\.\.\."
    refuses(DataError, words, load, path, loss=Doubled())
    loaded = load(path, loss=Doubled(), penalty=own)
    assert loaded.penalty is own
    assert load(save(plain, path), penalty=own).penalty is own  # in place of a rho in the file
    torch.testing.assert_close(loaded.forward(torch.eye(5)), model.forward(torch.eye(5)))


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(ARCHIVES.glob("*.safetensors")) if path.name != ANSWERS]
)
def test_files_of_version_0_1_are_read(name) -> None:
    answers, path = load_file(ARCHIVES / ANSWERS), ARCHIVES / f"{name}.safetensors"
    softsign, given = Activation.from_function(SOFTSIGN), None
    if name in ("mlp_declared", "mlp_mixed", "rnn_declared"):
        refuses(DataError, "pass the activations to load", lambda: load(path))
        given = [activations.Clipped(-1.0, 1.0), softsign] if name == "mlp_mixed" else softsign
    gone = pytest.warns(UserWarning, match="'tight'") if "multipliers" in name else nullcontext()
    with gone:
        model, x = load(path, given), answers[f"{name}.X"]
    found, wanted = model.forward(x), answers[f"{name}.forward"]
    if name == "rnn_last":  # such a file does not say so
        found = found[:, -1]
    torch.testing.assert_close(found, wanted)
    if (lifted := answers.get(f"{name}.lifted")) is not None:
        torch.testing.assert_close(forward_lifted(model, x), lifted, atol=1e-5, rtol=1e-5)


def test_every_flipped_bit_and_every_exchange_of_tensors_is_refused(plain, tmp_path) -> None:
    path = save(plain, tmp_path / "model")
    content = path.read_bytes()
    source = random.Random(0)
    text = content.find(b'"model"')  # the architecture, among which a flip may still be JSON
    for place in [*range(text), *source.sample(range(text, len(content)), 150)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << source.randrange(8)
        path.write_bytes(flipped)
        refuses(DataError, re.escape(str(path)), lambda: load(path))
    path.write_bytes(content)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), load_file(path)
    for one, other in itertools.combinations(tensors, 2):
        save_file({**tensors, one: tensors[other], other: tensors[one].clone()}, path, metadata)
        refuses(DataError, "is damaged", lambda: load(path))


def test_permissions_and_links_stay(plain, tmp_path) -> None:
    before = os.umask(0o027)
    try:
        path = save(plain, tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o600)
    link, dangling = tmp_path / "link", tmp_path / "dangling"
    link.symlink_to("model")
    dangling.symlink_to("new")
    for place in (path, link, dangling):
        before_it = path.stat().st_ino
        save(plain, place)
        assert (path.stat().st_ino == before_it) == (place is dangling)  # it was written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (os.readlink(link), os.readlink(dangling)) == ("model", "new")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "model", "new"]
    assert same_bits(load(dangling).weights, load(path).weights)


def test_an_interrupt_or_a_full_disk_leaves_the_file_that_was(plain, tmp_path) -> None:
    path = save(plain, tmp_path / "model")
    before = path.read_bytes()

    with patch("os.replace", side_effect=KeyboardInterrupt):
        refuses(KeyboardInterrupt, "", save, plain, path)
    assert path.read_bytes() == before
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))  # as on a full disk
    try:
        full = refuses(DataError, "File too large", save, plain, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert full.__suppress_context__  # one error, not a chain
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def test_what_cannot_be_saved_or_loaded_is_refused(plain, tmp_path) -> None:
    path, file, torn = (tmp_path / name for name in ("model", "file", "torn"))
    save_file({"a": torch.zeros(2)}, file)
    torn.write_bytes(b"not a file of tensors")
    linear = torch.nn.Linear(3, 2)
    lifted = lift(linear, torch.zeros(2, 3), loss=CrossEntropy(), show=False)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: save(LiftedMLP((5, 6, 3)), path), "call fit"),
        (lambda: save(lifted, path), r"got LiftedModule: .*state_dict.*write_"),
        (lambda: save(linear, path), r"a LiftedMLP or .*, got Linear: a torch network"),
        (lambda: save(plain, tmp_path), "is no file"),
        (lambda: save(plain, "/dev/null"), "is no file"),
        (lambda: save(plain, tmp_path / "missing" / "model"), "No such file or directory"),
        (lambda: load(save(plain, tmp_path / "other"), swep=3), "has no argument 'swep'"),
        (lambda: load(path), "there is no model at"),
        (lambda: load(torn), "no whole safetensors file"),
        (lambda: load(file), r"not saved by liftednet\.save"),
    ]
    for call, words in refused:
        refuses(LiftedError, words, call)
    assert tmp_path.is_dir() and Path("/dev/null").is_char_device() and not path.exists()


def changed(path: Path, **changes: Any) -> Path:
    """Write a saved model again with other metadata or tensors, as before there were checksums."""
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), "version": "2"}
        del metadata["checksum"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors.update({name: changes.pop(name) for name in set(changes) & set(tensors)})
    save_file(tensors, path, {**metadata, **changes})
    return path


def described(**changes: Any) -> dict[str, str]:
    """The metadata of a small model, changed."""
    about = _pack(untrained(activations=activations.Tanh(), lam=0.5, rho=0.01)).architecture
    return {"model": json.dumps({"kind": "LiftedMLP", "architecture": {**about, **changes}})}


DAMAGED = [
    ({"version": "99"}, "version 99"),
    ({"model": "{"}, "cannot be read"),
    ({"model": "{}"}, "lacks"),
    ({"model": '{"kind": [[]], "architecture": {}}'}, r"holds a \[\[\]\]"),
    ({"model": '{"kind": "LiftedMLP", "architecture": {}}'}, "make no LiftedMLP"),
    ({"model": '{"kind": ' + "[" * 10**5 + "}"}, "cannot be read"),
    ({"model": '{"kind": "LiftedRNN", "architecture": {"activations": []}}'}, "no LiftedRNN"),
    ({"model": '{"kind": "LiftedMLP", "architecture": 3}'}, "make no LiftedMLP"),
    (described(learned=[]), "make no LiftedMLP"),
    (described(sizes=[10**9, 10**9, 3]), "start weight of layer 0 must have shape"),
    (described(sizes="5"), "sizes must be"),
    (described(activations=[{"name": "Tanh", "parameters": {"a": 1}}]), "describes no Tanh"),
    (described(lam=[-1.0]), "lam must be positive"),
    (described(dtype="float16"), "names the type 'float16'"),
    ({"weight.1": torch.zeros(5, 7)}, r"must have shape \(5, 6\), got \(5, 7\)"),
    ({"bias.2": torch.tensor([0.0, float("nan"), 0.0])}, "bias.2 .* NaN"),
    ({"bias.2": torch.tensor([0, 1, 0])}, "bias.2 .* must be torch.float32"),
    ({"bias.2": torch.zeros(3).double()}, "the weights in a file are of one type"),
    (described(state_solver={"name": "import_module", "parameters": {}}), "outside of lifted"),
    (described(graph={}), "the network is not the one that was saved"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED)
def test_a_damaged_file_is_refused(plain, tmp_path, changes, message):
    path = changed(save(plain, tmp_path / "model"), **changes)
    refuses(LiftedError, message, lambda: load(path))


def test_tensors_of_any_strides_are_kept(tmp_path) -> None:
    """One entry is contiguous whatever its stride, as bounds on one output are."""
    one, many = torch.tensor([3.0], dtype=torch.float64), torch.arange(6.0).reshape(2, 3)
    tensors = {
        "expanded": one.expand(1), "zero": one.as_strided((1,), (0,)), "far": one.expand(4),
        "turned": many.T, "column": many[:, 1:2], "none": many[:0], "scalar": torch.tensor(2.0),
    }  # fmt: skip
    replace_file(tmp_path / "file", tensors, {})
    metadata, found = read_tensors(tmp_path / "file")
    assert metadata.keys() == {"checksum"} and found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("labels", [np.array(["no", "yes"], dtype=object), np.array([3, 7])])
def test_an_estimator_comes_back_with_labels_columns_and_settings(labels, tmp_path, draw) -> None:
    X = pd.DataFrame(draw.normal(size=(60, 2)), columns=["age", "height"])
    X["town"] = pd.Categorical(draw.choice(["Ulm", "Bonn", "Kiel"], 60))
    y = labels[(X["age"] > 0).astype(int)]
    weights = dict(zip(labels.tolist(), (1.0, 20.0), strict=True))
    settings: dict[str, Any] = {"penalty": L1(0.01), "max_iter": 20, "class_weight": weights}
    settings["random_state"] = np.random.RandomState(0)
    fitted = LiftedClassifier((4,), **settings).fit(X, y)
    words, path = "cannot hold random_state=RandomState.*has the default", tmp_path / "model"
    found = load(warned(words, save, fitted, path))
    assert type(found) is LiftedClassifier and found.class_weight == weights
    assert found.get_params()["hidden_layer_sizes"] == (4,)
    assert repr(found.penalty) == repr(settings["penalty"])
    assert found.feature_names_in_.tolist() == ["age", "height", "town"]
    assert found.classes_.dtype == fitted.classes_.dtype
    assert (found.predict(X) == fitted.predict(X)).all()
    np.testing.assert_allclose(found.predict_proba(X), fitted.predict_proba(X), rtol=1e-12)
    refuses(NotFittedError, "no network yet", lambda: save(LiftedClassifier(), path))
    shown = CliRunner().invoke(app, ["show", str(path)], terminal_width=200).stdout
    assert "age" in shown
    assert str(labels[0]) in shown


FEW_STEPS = {"tolerance": 1e-3, "max_iterations": 7}
LEARNED = {"sweeps": 2, "learn_activations": True}
EARLIER: list[tuple[str, str, Any, Any]] = [  # a setting, as it was, and is today
    ("state_solver", "RedBlack", {**FEW_STEPS, "step_solver": "auto"}, NewtonOverTime(**FEW_STEPS)),
    ("state_solver", "red-black", None, "newton-over-time"),  # which is a name
    ("method", "FullBatch", {"sweeps": 3, "store": "/nowhere"}, FullBatch(3)),
    ("method", "FullBatch", LEARNED, FullBatch(2)),
    ("method", "Minibatch", {"epochs": 3, "refresh": 20}, Minibatch(3)),
    ("penalty", "SimplexRows", {"total": 1.0}, SquaredFrobenius(1.0)),
]


@pytest.mark.parametrize(("setting", "name", "parameters", "now"), EARLIER)
def test_settings_of_earlier_versions_are_those_of_today(setting, name, parameters, now, tmp_path):
    described_by = {"name": name, "parameters": parameters}
    before: dict[str, Any] = {setting: name if parameters is None else described_by}
    if parameters is LEARNED:  # slopes beside it
        for place, slope in (("activations", 0.2), ("learned", 0.3)):
            before[place] = [{"name": "LeakyReLU", "parameters": {"alpha": slope}}]
    gone = pytest.warns(FitWarning, match=f"{name} is gone") if setting == "penalty" else None
    path = changed(save(untrained(), tmp_path / "model"), **described(rho=None, **before))
    with gone or nullcontext():
        loaded = load(path)
    for found in (loaded, load(save(loaded, path))):
        assert repr(getattr(found, setting)) == repr(now)
        assert (repr(found.activations[0]) == "LeakyReLU(alpha=0.3)") == ("learned" in before)


def test_layers_of_earlier_names_are_those_of_today(tmp_path) -> None:
    x, y = torch.ones(6, 4, 2), torch.arange(6) % 3
    options: Any = {"bidirectional": True, "learn_initial_state": True}
    model = LiftedRNN(2, 3, 3, **options, max_iter=1, seed=0).fit(x, y)
    archive = _pack(model)
    graph = json.dumps(archive.architecture["graph"])
    names = {"Reverse(": "Turn(", "PadFirst(": "Early(", "DropFirst(": "Late("}
    for now, before in {**names, "initial_steps=": "early="}.items():
        assert now in graph
        graph = graph.replace(now, before)
    about = {**archive.architecture, "graph": json.loads(graph)}
    again = load(write(replace(archive, architecture=about), tmp_path / "model.safetensors"))
    assert torch.equal(again.predict_proba(x), model.predict_proba(x))


def test_a_card_says_what_is_proven_and_how_to_load(tmp_path, monkeypatch) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    X = pd.DataFrame(rows, columns=["rising", "# no title\n---"])
    options: Any = {"max_iter": 5, "random_state": 0, "monotonic_cst": [1, 0]}
    model = LiftedRegressor((4,), **options).fit(X, rows[:, 0] - rows[:, 1])
    path = tmp_path / "model.safetensors"
    save(model, path)
    assert not path.with_suffix(".md").exists()
    path.with_suffix(".md").write_text("of before")
    save(model, path, card=True)
    _, metadata, text = path.with_suffix(".md").read_text().split("---\n", 2)
    assert "library_name: liftednet\npipeline_tag: tabular-regression\n" in metadata
    assert "nondecreasing in 1 of 2 inputs: rising" in text  # the network is so by declaration
    titles = [line for line in text.splitlines() if line.startswith(("#", "-"))]
    assert len(titles) == 4  # names of columns are no Markdown
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"X": X}
    code = text.partition("## How to use it")[2].partition("##")[0]
    exec(inspect.cleandoc(code), found)
    np.testing.assert_array_equal(found["model"].predict(X), model.predict(X))
    recurrent = LiftedRNN(2, 3, 2, max_iter=1).fit(torch.ones(4, 3, 2), torch.arange(4) % 2)
    save(recurrent, path, card=True)
    assert "nothing was certified" in path.with_suffix(".md").read_text()


def test_a_file_names_nothing_that_could_hold_code() -> None:
    assert "Declared" not in NAMED and "ReLU" in NAMED
    assert all(isinstance(kind, type) for kind in NAMED.values())
    for name in ("Declared", "from_function", "check_activation"):
        described: dict[str, Any] = {"name": name, "parameters": {}}
        refuses(DataError, "a file holds no code", rebuild, described, "penalty")
