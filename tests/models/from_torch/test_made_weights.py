"""Weights that a module makes of others: by their norms, by spectral norms, by pruning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, prune

from liftednet import certify, lift
from liftednet.losses import CrossEntropy
from liftednet.models import Minibatch

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
def test_they_are_certified_as_what_they_are_now(name: str) -> None:
    network = _network(MAKERS[name], "dense").eval()
    network(X)  # where hooks make weights anew, which have a gradient
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for place in (0, 2):
            for name in ("weight", "bias"):
                getattr(plain[place], name).copy_(getattr(network[place], name))
    found, wanted = certify(network), certify(plain)
    assert found.lipschitz == pytest.approx(wanted.lipschitz, rel=1e-5)
    torch.testing.assert_close(found.lowest, wanted.lowest, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.highest, wanted.highest, rtol=1e-5, atol=1e-6)
