"""One fit by several processes is the fit by one, however its rows are divided."""

import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from liftednet import LiftedClassifier, Network, lift
from liftednet.activations import Sigmoid, Tanh
from liftednet.data import shard
from liftednet.errors import DataError, LiftedError
from liftednet.layers import dense
from liftednet.losses import CrossEntropy, Huber, SquaredError
from liftednet.models import Checkpoint, FullBatch, GaussNewton, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.lifted import Lifted
from liftednet.models.methods import descent
from liftednet.penalties import L1, SquaredFrobenius
from liftednet.solvers import base
from tests.draws import normal
from tests.models.networks import refuses, trace_of
from tests.models.registry import BY_NAME, SERVED, Graph
from tests.models.together import free_port, in_processes

pytestmark = pytest.mark.filterwarnings("ignore::liftednet.FitWarning")

FULL = [("chain", "tight"), ("images", "joint"), ("recurrent", "joint")]
OTHERS = [case for case in SERVED if case[1] == "tight" and case[2] != "full"]
# One graph by one method, the next by the other; what samples share is alike in other graphs.
OTHERS = [case for n, case in enumerate(OTHERS) if n % 2 == n // 2 % 2]
OTHERS = [case for case in OTHERS if case[0].name != "output states"]
Found = tuple[list[float], list[Tensor], float]


def _part(given: Any, rows: slice) -> Any:
    if isinstance(given, tuple):
        return tuple(one[rows] for one in given)
    return None if given is None else given[rows]


def _fitted(graph: Graph, coupling: str, method: Any, rows: slice, **options: Any) -> Found:
    model = graph.model(coupling, method, **options)
    model.fit(*(_part(x, rows) for x in (graph.x, graph.y)), lengths=_part(graph.lengths, rows))
    return _found(model)


def _found(model: Any) -> Found:
    weights = [layer.stacked() for layer in model.weights]
    return [step.objective for step in model.trace.steps], weights, model.objective()


def _own(rank: int, shares: tuple[int, ...]) -> slice:
    first = sum(shares[:rank])
    return slice(first, first + shares[rank])


def _full(rank: int, shares: tuple[int, ...]) -> list[Found]:
    # Fits end at their tolerance, which may be anywhere within it: closer ones agree closer.
    base._TOLERANCES[torch.float64], descent._SHARE = 1e-10, 0.0
    given = FullBatch(1, tolerance=1e-10), _own(rank, shares)
    # Two steps of the other solvers of states are no solution.
    solver: Any = {"state_solver": "newton-over-time"}
    network = Network()
    states = network.state("tanh", dense(network.input(6), 3)[:2])
    network.loss("cross-entropy", dense(states, 3))
    x, y = (part[given[1]] for part in _rows(sum(shares)))
    of_slice = Lifted(network, method=given[0]).fit(x, y)
    each = [_fitted(BY_NAME[name], how, *given, **solver) for name, how in FULL]
    return [*each, _found(of_slice)]


def _other(rank: int, shares: tuple[int, ...]) -> list[Found]:
    rows = _own(rank, shares)
    methods: dict[str, Any] = {"minibatch": Minibatch(2, 4), "gauss-newton": GaussNewton(1)}
    return [_fitted(graph, how, methods[method], rows) for graph, how, method in OTHERS]


def _alike(found: Found, other: Found) -> None:
    """Compare two fits; the bias of a softmax may have moved by one number for all classes."""
    objectives = torch.tensor(found[0]), torch.tensor(other[0])
    torch.testing.assert_close(*objectives, atol=1e-10, rtol=1e-10, equal_nan=True)
    assert found[2] == pytest.approx(other[2], abs=1e-10, rel=1e-10)
    for one, another in zip(found[1], other[1], strict=True):
        torch.testing.assert_close(one[:-1], another[:-1], atol=1e-8, rtol=1e-8)


def _same_weights(found: Found, other: Found) -> bool:
    return all(a.equal(b) for a, b in zip(found[1], other[1], strict=True))


def _rows(samples: int = 60) -> tuple[Tensor, Tensor]:
    x = 5 * normal(samples, 6, seed=1) + 3
    return x, (x[:, 0] > 3).long() + (x[:, 1] > x[:, 2]).long()


def _share(samples: int = 60) -> tuple[Tensor, Tensor]:
    """Return the rows that this process brings."""
    x, y = _rows(samples)
    return x[shard(samples)], y[shard(samples)]


def _settled(rank: int, shares: tuple[int, ...]) -> list[Found]:
    """What is asked of all samples: scales, rows held out, quartiles, whether weights are 1."""
    x, y = _rows()
    rows, found = _own(rank, shares), []
    far = (x[:, :1] * x[:, 1:2] / 10).where(torch.arange(60)[:, None] % 9 > 0, 1e4)
    some, ones, each = x[:, 3].abs().round(), x.new_ones(60), x[:, 3].abs()
    ones[0], some[30:] = 2.0, 0.0  # all weigh alike, or nothing, in a share
    numbers: dict[str, Any] = {"loss": Huber(1.0)}
    held: dict[str, Any] = {"early_stopping": True, "validation_fraction": 0.3}
    own, few = Minibatch(2, 20), GaussNewton(2)
    for model, inputs, targets, weights in (
        (LiftedMLP((6, 5, 3), method=Minibatch(4, 20), n_iter_no_change=2, **held), x, y, None),
        (LiftedMLP((6, 5, 3), penalty=L1(0.1), method=own), x, y, None),
        (LiftedMLP((6, *(5,) * 5, 3), Tanh(), method=own), x, y, None),  # from a deep start
        (LiftedMLP((6, 5, 3), method=own), x, y, each),
        (LiftedMLP((6, 5, 3), Sigmoid(), method=few), x, y, each),
        (LiftedMLP((6, 5, 1), method=own, **numbers), x, far, None),
        (LiftedMLP((6, 5, 1), method=own, **numbers), x, far, some),
        (LiftedMLP((6, 5, 1), Tanh(), method=few, **numbers), x, far, some),
        (LiftedMLP((6, 5, 3), method=own), x, y, ones),
        (LiftedMLP((6, 5, 3), method=own, refit_output=True), x, y, some),
        (LiftedMLP((6, 5, 3), Tanh(), method=few, early_stopping=True), x, y, some),
        (LiftedRNN(2, 2, 1, loss=SquaredError(), method=own), x.view(-1, 3, 2), x[:, :1], None),
        (LiftedRNN(2, 2, 3, method=few), x.view(-1, 3, 2), y, None),  # the best of three starts
    ):  # fmt: skip
        weighed = None if weights is None else weights[rows]
        found.append(_found(model.fit(inputs[rows], targets[rows], sample_weight=weighed)))
    return found


# Uneven shares, one of them empty, and one of one class.
WORK = [(_full, (1, 0, 11)), (_other, (1, 0, 11)), (_settled, (13, 0, 47))]


@pytest.mark.parametrize(("work", "shares"), WORK)
def test_the_fit_of_several_processes_is_that_of_one(work: Any, shares: tuple[int, ...]) -> None:
    [one] = in_processes(1, work, (sum(shares),))
    first, *rest = in_processes(3, work, shares)
    for found, whole in zip(first, one, strict=True):
        _alike(found, whole)
    for other in rest:
        assert len(other) == len(one) and all(map(_same_weights, first, other))


def _loaded(rank: int, inside: bool) -> tuple[float, list[int]]:
    x, y = _rows()
    data = TensorDataset(x, y)
    sampler: Any = DistributedSampler(data, 2, rank, seed=3)
    loader: Any = DataLoader(data, 10, sampler=sampler)
    if inside:
        loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 10, drop_last=False))
    model = LiftedMLP((6, 5, 3), method=Minibatch(3)).fit(loader)
    return trace_of(model).losses[-1], sampler.epoch


@pytest.mark.parametrize("inside", [True, False])
def test_a_distributed_sampler_divides_the_data_and_draws_every_pass_anew(inside: bool) -> None:
    found = in_processes(2, _loaded, inside)
    assert found[0] == found[1] and found[0][1] == 2


class _Rows(IterableDataset[Any]):
    """Batches of ten rows, fewer than they say."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[Any]:
        x, y = _rows()
        return zip(x.split(10)[: self._batches], y.split(10)[: self._batches], strict=True)


def _of_fewer(rank: int, counts: tuple[int, ...]) -> list[float]:
    loader = DataLoader(_Rows(counts[rank]), batch_size=None)
    with warnings.catch_warnings(action="ignore"):
        return trace_of(LiftedMLP((6, 4, 3), method=Minibatch(3)).fit(loader)).losses


def test_a_process_without_more_batches_leaves_the_rest_of_a_pass_to_the_others() -> None:
    """Batches of ten rows twice, then one: the same rows with one process that has the rest."""
    first, other = in_processes(2, _of_fewer, (6, 4))
    assert first == other
    assert in_processes(2, _of_fewer, (4, 6))[0] == pytest.approx(first, rel=1e-9)


def _interrupted(rank: int) -> tuple[bool, int]:
    (x, y), model = _share(), LiftedMLP((6, 4, 3), method=Minibatch(9, 10))

    def on_step(step: Any) -> None:
        if rank == 1 and step.number == 1:
            raise KeyboardInterrupt

    model.fit(x, y, on_step=on_step)
    return model.interrupted, len(trace_of(model).steps)


def test_an_interrupt_of_one_process_ends_all_of_them() -> None:
    assert in_processes(2, _interrupted) == [(True, 2), (True, 2)]


def _torch(rank: int) -> list[Tensor]:
    """Fit a torch module."""
    x, y = _share()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    lifted = lift(module, x, loss=CrossEntropy(), method=Minibatch(3, 20))
    lifted.fit(x, y).write_()
    return [tensor.detach() for tensor in module.parameters()]


def test_modules_of_torch_are_those_of_all_processes() -> None:
    [one] = in_processes(1, _torch)
    first, other = in_processes(2, _torch)
    torch.testing.assert_close(first, one, atol=1e-8, rtol=1e-8)
    assert all(a.equal(b) for a, b in zip(first, other, strict=True))


# What is refused, on every process.


def _refusal(fit: Callable[[], Any]) -> str:
    try:
        fit()
    except LiftedError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _refusals(rank: int, folder: str) -> list[str]:
    x, y = _rows(20)
    rows = shard(20)
    own, labels = x[rows], y[rows]
    plain = LiftedMLP((6, 4, 3), method=Minibatch(2))
    bad = own.clone()
    bad[0, 0] = torch.nan if rank else 1.0
    many, more = _rows(2_500)
    late = TensorDataset(many[rank::2].index_fill(0, torch.tensor([1_249]), bad[0, 0]), more[::2])
    data, typed = TensorDataset(own, labels), TensorDataset(own.float() if rank else own, labels)
    apart = torch.zeros(6, 4, dtype=torch.float64)
    apart[3, 2] = 1e-6 * rank  # printed as 0
    center = SquaredFrobenius(0.1, apart)
    normalized = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    lifted = lift(normalized, own.float(), loss=CrossEntropy())
    return [
        _refusal(lambda: LiftedMLP((6, 4 + rank, 3)).fit(own, labels)),
        _refusal(lambda: LiftedMLP((6, 4, 3), lam=1.0 + rank).fit(own, labels)),
        _refusal(lambda: LiftedMLP((6, 4, 3), method=("minibatch", "full")[rank]).fit(own, labels)),
        _refusal(lambda: plain.fit(own.float() if rank else own, labels)),
        _refusal(lambda: plain.fit(own[:, : 6 - rank], labels)),
        _refusal(lambda: plain.fit(bad, labels)),
        _refusal(lambda: plain.fit(x, y)),
        _refusal(lambda: plain.fit(own, torch.ones_like(labels))),
        _refusal(lambda: plain.fit(own[:0], labels[:0])),
        _refusal(lambda: plain.fit(DataLoader(data, 5 - rank))),
        _refusal(lambda: plain.fit(own, labels, sample_weight=labels + 1.0 if rank else None)),
        _refusal(lambda: plain.fit(own, labels, sample_weight=labels * 0.0)),
        _refusal(lambda: LiftedMLP((6, 4, 3), lipschitz=1.0 + rank).fit(own, labels)),
        _refusal(lambda: LiftedMLP((6, 4, 3), penalty=[center, L1(1.0)]).fit(own, labels)),
        _refusal(lambda: plain.fit(DataLoader(typed, 5))),
        _refusal(lambda: plain.fit(DataLoader(TensorDataset(bad, labels), 5))),
        _refusal(lambda: plain.fit(DataLoader(late, 50))),
        _refusal(lambda: plain.fit(own, labels, confidence=0.9 if rank else None)),
        _refusal(lambda: plain.fit(own, labels, strict=bool(rank))),
        _refusal(lambda: plain.fit(own, labels, on_step=rank or None)),  # type: ignore[arg-type]
        _refusal(lambda: plain.fit(own, labels, checkpoint=f"{folder}/{rank}", resume=True)),
        _refusal(lambda: LiftedMLP((6, 4, 3), solver="reference", method="full").fit(own, labels)),
        _refusal(lambda: lifted.fit(own.float(), labels)),
        _refusal(lambda: LiftedClassifier((4,)).fit(own.numpy(), labels.numpy())),
        _refusal(lambda: LiftedMLP((6, 4, 3), method="global").fit(own, labels)),
    ]  # fmt: skip


REFUSED = (
    r"the same: weights 1 is .*\(6, 5\).* on process 1, and .*\(6, 4\)",
    r"the same: lam is \[2\.0\] on process 1, and \[1\.0\] on process 0", "the same: method",
    "of one kind: .* is torch.float32 .*on process 1", "X must have shape", "NaN or infinite",
    "processes 0 and 1 have brought the same rows",
    "at least two classes among the labels of all processes", "X is empty on every process",
    r"\[2, 3\] batches, and need equally many",
    "the same: sample_weight is given on process 1, and None", "not be all zero",
    "the same: lipschitz is 2.0 on process 1", "(?s)the same: penalty is .* of checksum",
    "of one kind: .* is torch.float32 .*on process 1", "NaN or infinite",
    "NaN or infinite", "a warranty needs all samples in one process", "strict=True hands out",
    "on_step must be a function", "some read another file there, or none",
    "CVXPY, which needs all samples in one process", "takes the statistics of a batch",
    "an estimator needs all samples in one process", "the global optimum needs all samples",
)  # fmt: skip


def test_what_does_not_fit_together_is_refused_on_every_process(tmp_path) -> None:
    LiftedMLP((6, 4, 3), method=Minibatch(2)).fit(*_rows(20), checkpoint=tmp_path / "1")
    found = in_processes(2, _refusals, str(tmp_path))
    for number, words in enumerate(REFUSED):
        for rank in range(2):
            assert re.search(words, found[rank][number]), (rank, words, found[rank][number])


def _silent(rank: int, port: int) -> str:
    """Train in a group that waits for two seconds, where one process is busy for longer."""
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=2)
    )
    x, y = _share()
    torch.distributed.barrier()
    if rank == 1:
        time.sleep(4)
        return ""
    return _refusal(lambda: LiftedMLP((6, 4, 3)).fit(x, y))


def test_a_process_that_does_not_answer_ends_the_others_in_time() -> None:
    text, _ = in_processes(2, _silent, free_port())
    assert text.startswith("ProcessError: another process has ended, or has not answered within")


def test_started_by_torchrun_without_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    x, y = _rows(20)
    words = r"call torch\.distributed.init_process_group"
    refuses(DataError, words, LiftedMLP((6, 4, 3)).fit, x, y)
    refuses(DataError, words, shard, 20)


def _elsewhere(rank: int) -> str:
    x, y = _rows(20)
    with patch("torch.distributed.distributed_c10d.get_backend_config", return_value="cuda:nccl"):
        return _refusal(lambda: LiftedMLP((6, 4, 3)).fit(x, y))


def test_a_backend_that_does_not_serve_the_device_is_refused() -> None:
    assert all("does not move tensors of 'cpu'" in text for text in in_processes(2, _elsewhere))


# Checkpoints.

SHARE = {"validation_fraction": 0.3}


def _kept(
    rank: int, path: str, method: Any, how: dict[str, Any], stop: int | None, resume: bool
) -> Found | None:
    """Train with a checkpoint, stopped by SIGTERM to one process at a step where that is asked."""
    x, y = _rows(24)
    x[1], y[1] = x[0], y[0]  # which one process takes for one row of weight 2
    rows = shard(len(x))
    model = LiftedMLP((6, 4, 3), method=method, seed=2, **how)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def on_step(step: Any) -> None:
        if rank == 0 and len(trace_of(model).steps) == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    model.fit(x[rows], y[rows], checkpoint=path, resume=resume, on_step=on_step)
    if stop is not None:
        assert len(trace_of(model).steps) < 2 * stop
        return None
    return _found(model)


@pytest.mark.parametrize(
    ("method", "how", "sizes"),
    [(FullBatch(3), {}, (2, 3)), (FullBatch(3), {"early_stopping": True, **SHARE}, (2, 1)),
     (Minibatch(4, 10), {"lipschitz": 9.0}, (2, 1)), (GaussNewton(3), {}, (1, 2))],
)  # fmt: skip
def test_a_checkpoint_goes_on_with_any_number_of_processes(tmp_path, method, how, sizes) -> None:
    whole, *_ = in_processes(sizes[0], _kept, str(tmp_path / "whole"), method, how, None, False)
    stopped = str(tmp_path / "stopped")
    in_processes(sizes[0], _kept, stopped, method, how, 2, False)
    for several in sizes:
        path = shutil.copy(stopped, tmp_path / f"{several}")
        found = in_processes(several, _kept, path, method, how, None, True)[0]
        if several == sizes[0]:  # two runs of as many processes agree to the last bit
            assert found[0] == whole[0] and _same_weights(found, whole)
        torch.testing.assert_close(found[0], whole[0], atol=1e-5, rtol=1e-5)


def _loaded_again(rank: int, path: str, stop: bool, resume: bool) -> list[float]:
    """Train by loaders that draw by generators of their own."""
    x, y = _share()
    generator = torch.Generator().manual_seed(rank)
    loader = DataLoader(TensorDataset(x, y), 10, shuffle=True, generator=generator)
    model = LiftedMLP((6, 4, 3), method=Minibatch(6))
    signal.signal(signal.SIGTERM, lambda *_: None)

    def on_step(step: Any) -> None:
        if stop and rank == 1 and step.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    model.fit(loader, checkpoint=path, resume=resume, on_step=on_step)
    return trace_of(model).losses


def test_loaders_go_on_each_with_its_own_generators(tmp_path) -> None:
    whole, path = str(tmp_path / "whole"), str(tmp_path / "stopped")
    wanted = in_processes(2, _loaded_again, whole, False, False)[0]
    in_processes(2, _loaded_again, path, True, False)
    assert in_processes(2, _loaded_again, path, False, True)[0] == wanted


def _unwritten(rank: int, folder: str) -> int:
    """Train with a checkpoint whose folder is gone."""
    x, y = _share(24)

    def on_step(step: Any) -> None:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)

    kept = Checkpoint(f"{folder}/run", seconds=0.0)
    model = LiftedMLP((6, 4, 3), method=FullBatch(2))
    return len(trace_of(model.fit(x, y, checkpoint=kept, on_step=on_step)).steps)


def test_a_file_that_cannot_be_written_does_not_end_a_training(tmp_path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    first, other = in_processes(2, _unwritten, str(folder))
    assert first == other > 4


def _chosen(rank: int, shares: tuple[int, ...]) -> str:
    """Return the method that is chosen for a network, and why, by how many rows there are."""
    x = normal(sum(shares), 5, seed=1)
    rows = _own(rank, shares)
    model = LiftedMLP((5, 285, 1), loss=SquaredError(), max_iter=1)
    model.fit(x[rows], x[rows, :1])
    return f"{trace_of(model).method} {trace_of(model).reason}"


def test_the_method_is_chosen_by_all_rows() -> None:
    assert len({*in_processes(1, _chosen, (3_900,)), *in_processes(2, _chosen, (3_800, 100))}) == 1


# What a client sends, where clients share no process group.


def _dying(rank: int) -> tuple[str, int]:
    x, y = _share()
    model = LiftedMLP((6, 4, 3), method=FullBatch(50, tolerance=1e-12))

    def on_step(step: Any) -> None:
        if rank == 1 and step.number == 1:
            os._exit(1)

    text = _refusal(lambda: model.fit(x, y, on_step=on_step))
    return text, len(trace_of(model).steps)


def test_a_process_that_dies_ends_the_others_with_a_sentence() -> None:
    (text, done), _ = in_processes(2, _dying)
    assert text.startswith("ProcessError: another process has ended") and done > 3
