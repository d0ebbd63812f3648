"""Steps on minibatches that a GPU could record: nothing is read, and a replay is the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from liftednet import activations, lift, losses
from liftednet.errors import FitWarning
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.methods import minibatch
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.penalties import L1, Nonnegative, RowNorm
from liftednet.solvers.cuda_graphs import Captured, Unread
from tests.models.networks import labeled
from tests.models.test_checkpoints import outcome, resumed

X, Y = labeled(samples=60)


class Replays:
    """A CPU's stand-in for CUDA graphs: a replay runs the recorded work on the same tensors.

    As there, a recording runs nothing that counts, and what it makes stays where it is.
    """

    def __init__(self) -> None:
        self.recorded, self.replayed = 0, 0

    def record(self, work: Any) -> Any:
        self.recorded += 1
        made = [torch.full_like(x, torch.nan) for x in work()]

        def replay() -> None:
            self.replayed += 1
            for kept, found in zip(made, work(), strict=True):
                kept.copy_(found)

        return made, replay


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.output = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.recurrent(x)[0][:, -1])
        return found


def _dense(*args: Any, **options: Any) -> LiftedMLP:
    return LiftedMLP((4, 8, 6, 3), *args, **options)


def _lifted(network: nn.Module, *shape: int) -> tuple[Any, Tensor, Tensor]:
    x = torch.randn(60, *shape, generator=torch.Generator().manual_seed(0))
    y = (x.flatten(1).sum(1) > 0).long()
    model = lift(network, x[:2], loss=losses.CrossEntropy(), show=False)
    return model, x, y


NETWORKS = {
    "dense": lambda: (_dense(), X, Y),
    "float32": lambda: (_dense(dtype=torch.float32), X, Y),
    "joint": lambda: (_dense(activations.Sigmoid(), divergence="joint"), X, Y),
    "squares": lambda: (_dense(loss=losses.SquaredError()), X, torch.eye(3)[Y].double()),
    "signs": lambda: (_dense(penalty=Nonnegative(), rho=None), X, Y),
    "sums": lambda: (_dense(penalty=L1(0.1) + RowNorm(0.5), rho=None), X, Y),
    "jumps": lambda: (_dense(activations.Sign()), X, Y),
    "convolution": lambda: _lifted(
        nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
        ).train(),
        1, 8, 8,
    ),
    "recurrent": lambda: _lifted(Last(), 6, 3),
}  # fmt: skip


@torch.no_grad()
def test_what_reads_is_found() -> None:
    x = torch.ones(3)
    for read in (x.sum().item, x.nonzero, lambda: x[x > 0], lambda: bool(x.sum() > 0)):
        with pytest.raises(RuntimeError), Unread():
            read()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    found = Replays()
    monkeypatch.setattr(minibatch, "graphs_for", lambda tensor: found)
    late = property(lambda steps: len(steps._unread) >= minibatch._UNREAD)
    monkeypatch.setattr(BatchSteps, "due", late)
    return found


def _same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def _trained(name: str, replays: Replays | None) -> tuple[list[float], BatchSteps]:
    """Return losses and steps after epochs in new orders, whose last batches are shorter."""
    torch.manual_seed(0)
    model, x, y = NETWORKS[name]()
    data, generator = model._data(x, y), torch.Generator().manual_seed(1)
    weights = [layer.to(data.like) for layer in model._first_weights()]
    with pytest.MonkeyPatch.context() as patch:
        if replays is not None:
            patch.setattr(minibatch, "graphs_for", lambda tensor: replays)
        steps = BatchSteps(model.checked()[0], weights, Minibatch(), generator)
    losses = []
    with torch.no_grad():
        for epoch in range(13):
            for rows in torch.randperm(60, generator=generator).split(16):
                rate = 0.3 / (1 + epoch)
                steps.step(replace(data.take(rows), among=len(rows)), rate, 60)
        losses = [loss for _, loss in steps.read()]
    return losses, steps


@pytest.mark.parametrize("name", NETWORKS)
def test_a_replay_is_the_plain_step(name: str) -> None:
    replays = Replays()
    (losses, plain), (found, steps) = _trained(name, None), _trained(name, replays)
    assert replays.recorded == 2  # of 16 samples, and of the 12 that are left
    assert replays.replayed > 20
    _same(found, losses)
    _same(steps.memory()["metrics"], plain.memory()["metrics"])
    _same(steps.memory()["statistics"], plain.memory()["statistics"])
    for one, other in zip(steps.weights, plain.weights, strict=True):
        _same([one.matrix, one.bias], [other.matrix, other.bias])


def test_static_tensors_are_what_is_read_and_what_is_handed_out_stays() -> None:
    replays, x = Replays(), torch.zeros(3)
    doubled = Captured(lambda x, y: [2 * x + y], [x, x], replays)
    first, given = torch.ones(3), torch.arange(3.0)
    (one,) = doubled(first, x)
    (two,) = doubled(given, x)
    _same([one, two], [2 * first, 2 * given])
    given.fill_(torch.nan)  # what has been given is the caller's again
    _same(doubled(first, x), [2 * first])
    _same([one, two], [2 * first, 2 * torch.arange(3.0)])


def test_a_network_that_reads_takes_plain_steps(replays: Replays) -> None:
    def fitted() -> list[float]:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(6, momentum=None)  # its share of a batch is a number that is read
        network = nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, 3)).train()
        model = lift(
            network, X[:2].float(), loss=losses.CrossEntropy(), show=False,
            method=Minibatch(epochs=5, batch_size=10),
        )  # fmt: skip
        trace = model.fit(X.float(), Y).trace
        assert trace is not None
        return trace.losses

    with pytest.warns(
        FitWarning, match="not recorded as a CUDA graph.* reads from the dev"
    ) as told:
        recorded = fitted()
    assert sum("CUDA graph" in str(each.message) for each in told) == 1
    assert replays.recorded == replays.replayed == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatch, "graphs_for", lambda tensor: None)
        assert fitted() == recorded


def _make() -> LiftedMLP:
    return _dense(
        activations.Tanh(), dtype=torch.float32, method=Minibatch(epochs=4, batch_size=2),
        early_stopping=True, validation_fraction=0.2, n_iter_no_change=3,
    )  # fmt: skip


def _fit(model: LiftedMLP, **options: Any) -> LiftedMLP:
    return model.fit(X, Y, **options)


def test_validation_and_checkpoints_read_the_weights_of_their_step(
    replays: Replays, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _fit(_make())
    assert replays.replayed > 50
    again = resumed(_make, _fit, tmp_path / "training", monkeypatch, (1, 2, 3))  # and within epochs
    monkeypatch.setattr(minibatch, "graphs_for", lambda tensor: None)
    assert outcome(found) == outcome(again) == outcome(_fit(_make()))
