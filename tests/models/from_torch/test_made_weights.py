"""Weights that a module makes of others: by their norms, by spectral norms, by pruning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune

from liftednet import FitWarning, initialize_, lift, to_torch
from liftednet.activations import Tanh
from liftednet.errors import DataError
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def _pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.l1_unstructured(layer, "bias", 1)
    return layer


MAKERS: dict[str, Callable[[Any], Any]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm by a hook": utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm by a hook": utils.spectral_norm,
    "pruned": _pruned,
}
EXACT = {"weight norm", "weight norm by a hook"}
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def _network(make: Callable[[Any], Any], kind: str) -> nn.Sequential:
    torch.manual_seed(1)
    if kind == "convolution":
        first = nn.Unflatten(1, (1, 5)), make(nn.Conv1d(1, 4, 3)), nn.Flatten()
        return nn.Sequential(*first, nn.ReLU(), make(nn.Linear(12, 3)))
    return nn.Sequential(make(nn.Linear(5, 8)), nn.Tanh(), make(nn.Linear(8, 3)))


@pytest.mark.parametrize("kind", ["dense", "convolution"])
@pytest.mark.parametrize("name", MAKERS)
def test_they_are_lifted_trained_and_written_back(name: str, kind: str) -> None:
    network = _network(MAKERS[name], kind)
    masks = {n: mask.clone() for n, mask in network.named_buffers() if n.endswith("_mask")}
    lifted = lift(network, X[:2], loss=CrossEntropy(), show=False, method=Minibatch(3))
    before = nn.functional.cross_entropy(network.eval()(X), Y)
    scores = lifted.fit(X, Y).scores(X)
    lifted.write_()
    torch.testing.assert_close(network(X), scores)
    assert nn.functional.cross_entropy(scores, Y) < before
    assert bool(masks) == (name == "pruned")
    for path, mask in masks.items():
        made = network.get_submodule(path.rpartition(".")[0])
        part = getattr(made, path.rpartition(".")[2].removesuffix("_mask"))
        assert not part[mask == 0].any() and part[mask == 1].all()


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_is_written_into_what_they_are_made_of(name: str) -> None:
    model = LiftedMLP((5, 8, 3), Tanh(), method=Minibatch(5)).fit(X, Y)
    network = _network(MAKERS[name], "dense")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FitWarning)
        initialize_(network, model)
    exact = any(issubclass(x.category, FitWarning) for x in told) == (name not in EXACT)
    assert exact  # norms of one, and masks, cannot hold any weights
    if name in EXACT:
        torch.testing.assert_close(network(X), to_torch(model, logits=True)(X))
    if name == "pruned":
        first: Any = network[0]
        kept = first.weight_mask == 1
        wanted = model.weights[0].matrix.T
        torch.testing.assert_close(first.weight[kept], wanted[kept])


def test_what_cannot_be_found_is_refused_and_nothing_is_written() -> None:
    model = LiftedMLP((5, 8, 3), Tanh(), method=Minibatch(1)).fit(X, Y)

    class Doubled(nn.Module):  # of which torch knows no right inverse
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    parametrize.register_parametrization(network[2], "weight", Doubled())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(DataError, match="weight of layer 2, '2', is frozen, or made of others"):
        initialize_(network, model)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
