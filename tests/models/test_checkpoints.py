"""A training that was killed goes on to the same bits; another is refused."""

import copy
import errno
import itertools
import json
import multiprocessing
import os
import signal
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from liftednet import activations, lift, load, penalties, save
from liftednet.errors import DataError
from liftednet.losses import CrossEntropy
from liftednet.models import Checkpoint, FullBatch, GaussNewton, Lifted, LiftedMLP, Minibatch
from liftednet.models.checkpoint import Keeper
from liftednet.models.results import Ending, Step
from liftednet.models.uncertainty import Ball
from liftednet.storage import read_tensors, replace_file
from tests.models.networks import labeled, outcome, refuses, trace_of
from tests.models.registry import GRAPHS, SERVED

X, Y = labeled(samples=60)
SHORT = Minibatch(epochs=3, batch_size=10)
WRITE = "liftednet.models.checkpoint.replace_file"


class Killed(BaseException):
    """What a test ends a training with."""


def short() -> LiftedMLP:
    """A network that is trained for a few epochs."""
    return LiftedMLP((4, 8, 3), method=SHORT)


def killed_after(writes: int, monkeypatch) -> None:
    """End the next training right after so many writes, without any chance to clean up."""
    calls = itertools.count(1)

    def write(*given: Any) -> None:
        replace_file(*given)
        if next(calls) == writes:
            monkeypatch.setattr(WRITE, replace_file)
            raise Killed

    monkeypatch.setattr(WRITE, write)


def resumed(make, fit, path, monkeypatch, writes) -> Any:
    """Return the model that went on after kills, each after so many writes."""
    for number in writes:
        killed_after(number, monkeypatch)
        refuses(Killed, "", fit, make(), checkpoint=Checkpoint(path, seconds=0), resume=True)
    return fit(make(), checkpoint=path, resume=True)


# Each network by one method, the next by another: by each with its first coupling.
FIRST = {(graph.name, method): (graph, x, method) for graph, x, method in SERVED[::-1]}
RUNS = [[run for run in FIRST.values() if run[0] is graph] for graph in GRAPHS]


@pytest.mark.parametrize(
    ("graph", "coupling", "method"), [each[n % len(each)] for n, each in enumerate(RUNS)], ids=str
)
def test_every_training_goes_on_as_if_nothing_had_happened(
    graph, coupling, method, tmp_path, monkeypatch
):
    def fit(model: Lifted, **options: Any) -> Lifted:
        return model.fit(graph.x, graph.y, lengths=graph.lengths, **options)

    make, path = partial(graph.model, coupling, method), tmp_path / "training"
    assert outcome(resumed(make, fit, path, monkeypatch, (2,))) == outcome(fit(make()))
    assert os.listdir(tmp_path) == ["training"]


PATIENCE = {"early_stopping": True, "validation_fraction": 0.3, "n_iter_no_change": 2}
OWN: list[tuple[str, Any, dict[str, Any]]] = [
    ("plain", FullBatch(3, extrapolation=False), {"divergence": "joint"}),
    ("reference", FullBatch(2), {"solver": "reference"}),
    ("patience", Minibatch(9, 10, rate=3.0), PATIENCE),
    ("patience of blocks", FullBatch(9), PATIENCE),
    ("patience of steps", GaussNewton(9), PATIENCE),
    ("penalty", SHORT, {"penalty": penalties.L1(0.1), "refit_output": False}),
    ("refit", SHORT, {"refit_output": True, "dtype": torch.float32}),
    (
        "products",
        GaussNewton(9, form="products"),  # no kinks, at which some processors' end
        {"dtype": torch.float32, "activations": activations.Tanh()},
    ),
    ("normal", GaussNewton(60, form="normal"), {}),
    ("evidence", GaussNewton(25, evidence=True), {"activations": activations.Tanh()}),
    ("evidence of kinks", GaussNewton(12, evidence=True), {"activations": activations.ReLU()}),
    ("missing", SHORT, {"missing": True}),
    ("norms", SHORT, {"lipschitz": 9.0, "dtype": torch.float32}),
]


@pytest.mark.parametrize(("name", "method", "options"), OWN, ids=[name for name, *_ in OWN])
def test_whatever_a_method_remembers_comes_back(name, method, options, tmp_path, monkeypatch):
    def fit(model: Lifted, **more: Any) -> Lifted:
        return model.fit(X.masked_fill(X > 1, torch.nan) if name == "missing" else X, Y, **more)

    make = partial(LiftedMLP, (4, 8, 3), method=method, **options)
    whole = outcome(fit(make()))
    last = 9 if "evidence" in name else 3  # after the first look at it
    for kills in ((1, 2, last), ()):  # and again, where it is finished
        assert outcome(resumed(make, fit, tmp_path / "training", monkeypatch, kills)) == whole


def test_running_statistics_of_a_torch_network_go_on_too(tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))

    def fit(model: Any, **options: Any) -> Any:
        return model.fit(X, Y, **options)

    def make() -> Any:
        return lift(copy.deepcopy(network), X[:2], loss=CrossEntropy(), show=False, method=SHORT)

    whole, model, path = fit(make()).write_().state_dict(), make(), tmp_path / "training"
    fit(model, checkpoint=path, on_step=Mock(side_effect=[None, KeyboardInterrupt]))
    again = [fit(model, checkpoint=path, resume=True), fit(fit(make()))]  # anew, as the first
    again.append(resumed(make, fit, tmp_path / "other", monkeypatch, (1, 2)))
    for one in again:
        found = one.write_().state_dict()
        assert all(torch.equal(value, found[name]) for name, value in whole.items())


@pytest.mark.parametrize("method", [SHORT, FullBatch(3), GaussNewton(3)], ids=str)
def test_a_warm_start_goes_on_with_its_scales(method, tmp_path):
    """Weights are those of rows in other units than the rows of the file."""

    def before() -> LiftedMLP:
        return LiftedMLP((4, 8, 3), method=method, warm_start=True, standardize=True)

    x, path = 2 * X + 1, tmp_path / "training"
    whole = outcome(before().fit(X, Y).fit(x, Y))
    stop = Mock(side_effect=[None, KeyboardInterrupt])
    before().fit(X, Y).fit(x, Y, checkpoint=path, on_step=stop)
    assert outcome(before().fit(x, Y, checkpoint=path, resume=True)) == whole


@pytest.mark.parametrize("source", ["global", "its own", "under a bound"])
def test_a_loader_goes_on_in_its_order(source, tmp_path, monkeypatch):
    def fit(model: Lifted, **options: Any) -> Lifted:
        torch.manual_seed(torch.initial_seed() + 1 if options else 5)  # a new process has another
        generator = torch.Generator().manual_seed(4) if source == "its own" else None
        loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True, generator=generator)
        return model.fit(loader, **options)

    def make() -> LiftedMLP:  # whose bounds follow from the first batches of the file
        return LiftedMLP(
            (4, 8, 3), method=SHORT, lipschitz=9.0 if source == "under a bound" else None
        )

    torch.manual_seed(4)
    with torch.random.fork_rng():
        whole = outcome(fit(make()))
        torch.manual_seed(4)  # so that the first of the resumed begins with 5
        assert outcome(resumed(make, fit, tmp_path / "file", monkeypatch, (9, 1, 5))) == whole


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """What a short training makes without any checkpoint."""
    return outcome(short().fit(X, Y))


@pytest.fixture
def written(tmp_path) -> Path:
    """The checkpoint of a short training."""
    path = Path(tmp_path) / "training"
    short().fit(X, Y, checkpoint=path)
    return path


OTHER_TRAININGS = [
    ({"lam": 3.0}, r"lam is \[3\.0\], and was \[10\.0\]"),
    ({"rho": 3.0}, r"penalty is \[SquaredFrobenius\(rho=3\.0.* and was .*\(rho=1\.0"),
    ({"seed": 1}, "seed is 1, and was 0"),
    ({"start": "orthogonal"}, "first weights is"),
    (
        {"method": replace(SHORT, epochs=9)},
        r"method is Minibatch\(epochs=9.* and was Minibatch\(epochs=3",
    ),
    ({"method": FullBatch(3)}, "method is FullBatch.* and was Minibatch"),
    ({"activations": activations.Tanh()}, r"activations is \[Tanh\(\)\], and was \[ReLU\(\)\]"),
    ({"sizes": (4, 9, 3)}, r"weights 1 is .*\(4, 9\).* and was .*\(4, 8\)"),
    ({"dtype": torch.float32}, "input 1 is .*torch.float32.* and was .*torch.float64"),
    ({"solver": "dual"}, "solver is 'dual', and was 'auto'"),
    ({"uncertainty": Ball(0.1)}, r"uncertainty is Ball\(.*, and was not there"),
    ({"X": X + 1e-9}, "data .*input 1 is .*checksum"),
    ({"y": Y.flip(0)}, "data .*y 1 is .*checksum"),
    ({"X": X[:50], "y": Y[:50]}, r"data .*input 1 is .*\[50, 4\].* and was .*\[60, 4\]"),
    ({"X": DataLoader(TensorDataset(X, Y), batch_size=10), "y": None}, "data"),
]


@pytest.mark.parametrize(("options", "message"), OTHER_TRAININGS)
def test_another_training_is_refused_with_the_first_difference(options, message, written):
    before = written.read_bytes()
    given = {name: options.get(name, known) for name, known in (("X", X), ("y", Y))}
    others = {name: value for name, value in options.items() if name not in given}
    model = LiftedMLP(**{"sizes": (4, 8, 3), "method": SHORT, **others})
    with pytest.raises(DataError, match=f"of another training: .*{message}"):
        model.fit(**given, checkpoint=written, resume=True)
    assert not model.is_fitted
    assert written.read_bytes() == before


def test_a_file_that_is_no_checkpoint_or_is_not_whole_is_refused(written):
    go_on = partial(short().fit, X, Y, checkpoint=written, resume=True)
    refuses(DataError, r"not saved by liftednet.*a liftednet checkpoint", load, written)
    content = written.read_bytes()
    written.write_bytes(content[:-9] + bytes([content[-9] ^ 16]) + content[-8:])
    refuses(DataError, "training is damaged", go_on)
    foreign = {"format": "liftednet checkpoint", "version": "5", "run": "{}"}
    save_file({}, written, foreign)
    refuses(DataError, "lost its checksum", go_on)
    replace_file(written, {}, foreign)
    refuses(DataError, "cannot be used: 'identity'", go_on)
    boolean = {"a": torch.ones(2) > 0}
    refuses(DataError, r"a is of torch\.bool", replace_file, written, boolean, foreign)
    save(LiftedMLP((4, 3), []).fit(X, Y), written)
    refuses(DataError, "is no checkpoint of liftednet", go_on)


FOREIGN: list[tuple[list[Any], Any, str]] = [  # where, what, and a word of what is told
    (["steps", 0, "objective"], "low", "objective of a step is 'low'"),
    (["steps", 1, "block"], 3, "block of a step is 3"),
    (["start"], {"a": [1, {"b": 2}]}, "dict"),
    (["memory", "moves", "weights", 0], [[1, 2], [3]], "list"),
    (["memory", "moves", "metrics"], None, "NoneType"),
    (["memory", "batches"], "text", "set_state"),
    (["memory", "last", 1, "$weights", 0, "$tensor"], "none", "'none'"),
]


@pytest.mark.parametrize(("where", "value", "word"), FOREIGN, ids=str)
def test_values_of_foreign_kinds_are_refused_in_a_sentence(where, value, word, written):
    """Their checksum is right, as where somebody has edited a file and sealed it again."""
    metadata, tensors = read_tensors(written)
    about = json.loads(metadata["run"])
    names = {x.name: place for place, x in enumerate(fields(Step))}
    *outer, last = (names.get(x, x) if where[0] == "steps" else x for x in where)
    inside = about
    for name in outer:
        inside = inside[name]
    inside[last] = value
    sealed = {name: metadata[name] for name in ("format", "version")}
    replace_file(written, tensors, {**sealed, "run": json.dumps(about)})
    before, model = written.read_bytes(), short()
    words = f"cannot be used: .* no memory of this training .*{word}"
    refuses(DataError, words, model.fit, X, Y, checkpoint=written, resume=True)
    assert not model.is_fitted and written.read_bytes() == before


def train_until_told(path: Path, begun: Any, go_on: Any) -> None:
    """Train on a checkpoint, and stay in it until told."""

    def wait(_: Any) -> None:
        begun.set()
        go_on.wait(60)

    short().fit(X, Y, checkpoint=path, on_step=wait)


def test_of_two_trainings_on_one_checkpoint_one_is_told(tmp_path):
    path = tmp_path / "training"
    (tmp_path / "link").symlink_to(path)
    fork = multiprocessing.get_context("fork")
    begun, go_on = fork.Event(), fork.Event()
    other = fork.Process(target=train_until_told, args=(path, begun, go_on))
    other.start()
    assert begun.wait(60)
    model = short()
    for place in (path, tmp_path / "link"):
        refuses(DataError, "that of a training that still runs", model.fit, X, Y, checkpoint=place)
    other.kill()
    other.join()
    model.fit(X, Y, checkpoint=path, on_step=lambda _: refused(path))  # the dead hold nothing
    other_sizes = LiftedMLP((4, 5, 3), method=SHORT)  # nor does a fit that was refused
    refuses(DataError, "another training", other_sizes.fit, X, Y, checkpoint=path, resume=True)
    model.fit(X, Y, checkpoint=path)
    assert sorted(os.listdir(tmp_path)) == ["link", "training"]


def refused(path: Path) -> None:
    refuses(DataError, "still runs, here or in another process", short().fit, X, Y, checkpoint=path)


def test_without_a_file_training_begins_and_without_resume_it_begins_anew(
    whole, tmp_path, monkeypatch
):
    path, model = tmp_path / "training", short()
    assert outcome(model.fit(X, Y, checkpoint=str(path), resume=True)) == whole
    killed_after(1, monkeypatch)
    refuses(Killed, "", LiftedMLP((4, 5, 3)).fit, X, Y, checkpoint=Checkpoint(path, seconds=0))
    words = r"\(4, 8\).* and was .*\(4, 5\)"
    refuses(DataError, words, model.fit, X, Y, checkpoint=path, resume=True)


def test_it_is_written_as_often_as_is_asked(tmp_path):
    for options, wanted in (({}, 1), ({"seconds": 0}, 21)):
        with patch(WRITE, wraps=replace_file) as write:
            short().fit(X, Y, checkpoint=Checkpoint(tmp_path / "training", **options))
        assert write.call_count == wanted


def test_what_killed_runs_have_left_is_removed(tmp_path, monkeypatch):
    path, found = tmp_path / "training", Path.glob
    (tmp_path / ".training.x1.unfinished").touch()
    (tmp_path / ".other.x1.unfinished").touch()
    gone = tmp_path / ".training.x2.unfinished"  # which another process removes meanwhile
    monkeypatch.setattr(Path, "glob", lambda *given: [gone, *found(*given)])
    short().fit(X, Y, checkpoint=path)
    assert sorted(os.listdir(tmp_path)) == [".other.x1.unfinished", "training"]


def test_the_place_is_tried_before_training(tmp_path):
    steps: list[Any] = []
    model = short()
    (tmp_path / "file").touch()
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    os.mkfifo(tmp_path / "pipe")
    for where, message in (
        (tmp_path / "pipe", "is no file"),
        (tmp_path / "missing" / "training", "No such file or directory"),
        (tmp_path / "file" / "training", "Not a directory"),
        (tmp_path, "is a folder"),
        (tmp_path / "table.csv", "is no checkpoint of liftednet, and one would replace it"),
    ):
        refuses(DataError, message, model.fit, X, Y, checkpoint=where, on_step=steps.append)
    refuses(DataError, "resume=True needs the checkpoint", lambda: model.fit(X, Y, resume=True))
    for bad in ({"path": 3}, {"path": "x", "seconds": -1.0}):
        refuses(DataError, "", Checkpoint, **bad)
    assert not steps and not model.is_fitted


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), MemoryError()])
def test_a_full_disk_is_a_warning_and_the_last_file_stands(error, written):
    before, model = written.read_bytes(), short()
    words = "(No space left|memory).*goes on, and the la"
    with patch(WRITE, side_effect=error), pytest.warns(RuntimeWarning, match=words) as told:
        model.fit(X, Y, checkpoint=Checkpoint(written, seconds=0))
    assert [x.category for x in told].count(RuntimeWarning) == 1
    assert trace_of(model).ending is Ending.BUDGET
    assert written.read_bytes() == before


def test_sigterm_keeps_what_is_done_and_then_does_what_it_does(whole, tmp_path):
    path, came = tmp_path / "training", list[Any]()
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(path.exists()))
    try:
        own, model = signal.getsignal(signal.SIGTERM), short()
        model.fit(X, Y, checkpoint=path, on_step=lambda _: signal.raise_signal(signal.SIGTERM))
        assert came == [True]
        assert trace_of(model).ending is Ending.INTERRUPTED
        assert len(trace_of(model).steps) == 1
        assert signal.getsignal(signal.SIGTERM) is own
        model.fit(X, Y, on_step=lambda _: signal.raise_signal(signal.SIGTERM))
        assert len(trace_of(model).steps) == 3 and len(came) == 4  # without one it is not ours
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome(short().fit(X, Y, checkpoint=path, resume=True)) == whole


def test_an_interrupt_in_the_middle_of_an_epoch_goes_on_there(whole, tmp_path, monkeypatch):
    path, real, calls = tmp_path / "training", Keeper.rest, itertools.count(1)

    def rest(*given: Any) -> None:
        real(*given)
        if next(calls) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "rest", rest)
    begun = short().fit(X, Y, checkpoint=path)
    assert len(trace_of(begun).steps) == 1
    assert trace_of(begun).ending is Ending.INTERRUPTED
    assert outcome(short().fit(X, Y, checkpoint=path, resume=True)) == whole
