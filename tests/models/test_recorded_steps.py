"""Steps on minibatches that a GPU could record: nothing is read, and a replay is the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from liftednet import activations, lift, losses
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.data import Data
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.penalties import L1, Nonnegative, RowNorm
from tests.models.networks import labeled

X, Y = labeled(samples=60)
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero", "equal")


class Unread(TorchDispatchMode):
    """Refuses what would wait for a device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = function.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(x, Tensor) and x.dtype is torch.bool
            for part in args[1:]
            if isinstance(part, list | tuple)
            for x in part
        )
        assert name not in _READS and not masks, f"{name} reads from the device"
        return function(*args, **(kwargs or {}))


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


def _begun(name: str) -> tuple[BatchSteps, list[Data]]:
    """Return steps of which some are taken, as in a training, and batches of equal size."""
    torch.manual_seed(0)
    model, x, y = NETWORKS[name]()
    data = model._data(x, y)
    weights = [layer.to(data.like) for layer in model._first_weights()]
    steps = BatchSteps(model.checked()[0], weights, Minibatch(), torch.Generator().manual_seed(0))
    batches = [replace(data.take(rows), among=15) for rows in torch.arange(60).split(15)]
    with torch.no_grad():
        for batch in (*batches, *batches):
            steps.step(batch, 0.3, 60)
    steps.read()
    return steps, batches


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_nothing_is_read_in_a_step(name: str) -> None:
    steps, batches = _begun(name)
    for number in (3, 20):  # one that looks at statistics, too
        steps._taken = number
        with Unread():
            steps.step(batches[0], 0.3, 60)
    assert all(0 < loss < torch.inf for _, loss in steps.read())


@torch.no_grad()
def test_what_reads_is_found() -> None:
    x = torch.ones(3)
    for read in (x.sum().item, x.nonzero, lambda: x[x > 0], lambda: bool(x.sum() > 0)):
        with pytest.raises(AssertionError), Unread():
            read()
