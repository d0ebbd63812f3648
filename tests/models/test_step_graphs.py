"""Steps on minibatches that a GPU replays: a replay is the step, and what was handed out stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from liftednet import activations, lift, losses
from liftednet.errors import FitWarning
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.data import ArrayBatches
from liftednet.models.methods import minibatch, step_graphs
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.penalties import L1, Nonnegative, RowNorm
from liftednet.solvers.layer_metric import LayerMetric
from tests.draws import normal
from tests.models.from_torch.torch_networks import Sequences
from tests.models.networks import labeled, outcome
from tests.models.test_checkpoints import resumed

X, Y = labeled(samples=60)


class Replays:
    """A CPU's stand-in for CUDA graphs: a replay runs the recorded work on the same tensors.

    As there, a recording runs the work before, whose results are the caller's to undo.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.recorded, self.replayed = 0, 0
        patch.setattr(step_graphs, "recorded", self.record)
        patch.setattr(minibatch, "serves", lambda rows: True)

    def record(self, work: Callable[[], None], device: torch.device) -> Callable[[], None]:
        self.recorded += 1
        for _ in range(3):
            work()

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def _normalized() -> nn.Module:
    parts = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
    return nn.Sequential(*parts).train()


def _dense(*args: Any, **options: Any) -> LiftedMLP:
    return LiftedMLP((4, 8, 6, 3), *args, **options)


def _lifted(network: nn.Module, *shape: int) -> tuple[Any, Tensor, Tensor]:
    x = normal(60, *shape, dtype=torch.float32)
    y = (x.flatten(1).sum(1) > 0).long()
    return lift(network, x[:2], loss=losses.CrossEntropy(), show=False, max_iter=3), x, y


NETWORKS = {
    "float32": lambda: (_dense(dtype=torch.float32), X, Y),
    "joint": lambda: (_dense(activations.Sigmoid(), divergence="joint"), X, Y),
    "signs": lambda: (_dense(penalty=Nonnegative(), rho=None), X, Y),
    "sums": lambda: (_dense(penalty=L1(0.1) + RowNorm(0.5), rho=None), X, Y),
    "convolution": lambda: _lifted(_normalized(), 1, 8, 8),
    "recurrent": lambda: _lifted(Sequences(nn.GRU), 6, 3),
}  # fmt: skip


def _trained(name: str) -> tuple[list[float], BatchSteps]:
    """Return losses and steps after 15 passes of four batches."""
    torch.manual_seed(0)
    model, x, y = NETWORKS[name]()
    data, generator = model._data(x, y), torch.Generator().manual_seed(1)
    weights = [layer.to(data.like) for layer in model._first_weights()]
    steps = BatchSteps(model.checked()[0], weights, Minibatch(), generator)
    batches, found = ArrayBatches(data, 16, generator), []
    with torch.no_grad():
        for epoch in range(15):
            for batch in batches:
                steps.step(batch, 0.3 / (1 + epoch), 15)
            found += [loss for _, loss in steps.read()]
    return found, steps


@pytest.mark.parametrize("name", NETWORKS)
def test_a_replay_is_the_plain_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, plain = _trained(name)
    replays = Replays(monkeypatch)
    found, steps = _trained(name)
    assert replays.recorded == 2  # with a look, and without
    assert replays.replayed > 50
    torch.testing.assert_close(found, losses, rtol=0, atol=0)
    for one, other in zip(steps.tensors, plain.tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    one, other = (x.memory()["statistics"] for x in (steps, plain))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_means_that_meet_are_where_the_weights_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer whose inputs nobody looks at, too: on a GPU a sum of two devices fails."""
    about, seen = LayerMetric.about, []

    def watched(self: LayerMetric, mean: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append((mean.dtype, weight.dtype))  # they are made in float32, on a CPU
        return about(self, mean, weight, bias)

    monkeypatch.setattr(LayerMetric, "about", watched)
    model, x, y = _lifted(_normalized().double(), 1, 8, 8)
    model.fit(x.double(), y)
    assert set(seen) == {(torch.float64, torch.float64)}


def test_what_cannot_be_recorded_stays_plain_and_is_told_once(monkeypatch) -> None:
    losses, _ = _trained("float32")
    replays = Replays(monkeypatch)

    def refused(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
        replays.record(work, device)
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(step_graphs, "recorded", refused)
    with pytest.warns(FitWarning, match="not replayed from a CUDA graph: called a sync") as told:
        found, _ = _trained("float32")
    assert len(told) == 1 and not replays.replayed
    assert found == losses


def test_validation_and_checkpoints_read_the_weights_of_their_step(monkeypatch, tmp_path) -> None:
    def make() -> LiftedMLP:
        return _dense(
            activations.Tanh(), dtype=torch.float32, method=Minibatch(epochs=4, batch_size=2),
            early_stopping=True, validation_fraction=0.2, n_iter_no_change=3,
        )  # fmt: skip

    def fit(model: LiftedMLP, **options: Any) -> LiftedMLP:
        return model.fit(X, Y, **options)

    plain = outcome(fit(make()))
    replays = Replays(monkeypatch)
    found = fit(make())
    assert replays.replayed > 50
    again = resumed(make, fit, tmp_path / "training", monkeypatch, (1, 2, 3))  # and within epochs
    assert outcome(found) == outcome(again) == plain
