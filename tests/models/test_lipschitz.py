"""Lipschitz bounds that are held, and the semidefinite one that is proved."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from liftednet import certify, load, save, to_torch
from liftednet.activations import LeakyReLU, Tanh
from liftednet.errors import DeclarationError
from liftednet.export import Affine
from liftednet.losses import SquaredError
from liftednet.models import (
    FullBatch,
    Lifted,
    LiftedClassifier,
    LiftedMLP,
    LiftedRegressor,
    Minibatch,
)
from liftednet.models.shapes import semidefinite_lipschitz


def steep(samples: int = 200) -> tuple[Tensor, Tensor]:
    """Return features of unlike scales, and a target as steep as 30."""
    rows = torch.rand(samples, 3, generator=torch.Generator().manual_seed(0))
    rows = rows * torch.tensor([1.0, 10.0, 0.5]) + 4
    return rows, 20 * (3 * rows[:, :1]).sin() + rows[:, 1:2]


def steepest(model: Lifted, rows: Tensor) -> float:
    """Return the largest quotient over pairs of rows."""
    scores = model.scores(rows)
    return float((torch.cdist(scores, scores) / torch.cdist(rows, rows).clamp(min=1e-3)).max())


@pytest.mark.parametrize("method", [Minibatch(epochs=20), FullBatch(2)])
def test_the_bound_is_held_on_raw_data_and_certified(method: Minibatch | FullBatch) -> None:
    rows, target = steep()
    sizes = (3, 12, 12, 1)
    free = LiftedMLP(sizes, loss=SquaredError(), method=method).fit(rows, target)
    assert certify(free).lipschitz > 4
    held = LiftedMLP(sizes, loss=SquaredError(), method=method, lipschitz=4.0).fit(rows, target)
    assert certify(held).lipschitz <= 4.0
    assert 0.5 < steepest(held, rows) <= 4.0 + 1e-4


def test_what_standardizes_an_exported_network_is_part_of_its_certificate() -> None:
    rows, target = steep()
    model = LiftedMLP((3, 12, 1), loss=SquaredError(), lipschitz=4.0, method=Minibatch(epochs=5))
    model.fit(rows, target)
    exported = to_torch(model)
    assert type(exported[0]) is Affine  # the bound is one of weights that are not folded
    facts, again = certify(model), certify(exported)
    assert again.lipschitz == pytest.approx(facts.lipschitz, rel=1e-6)
    torch.testing.assert_close(again.lowest, facts.lowest, rtol=1e-6, atol=0)


def test_a_product_that_is_added_is_affine_where_a_factor_stands_still() -> None:
    class Added(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.layer, self.kind = nn.Linear(3, 3), kind
            self.register_buffer("two", torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            u = self.layer(x)
            factors = {"still": self.two, "moves": u, "float32": torch.full_like(x, 2.0)}
            return torch.addcmul(u, x, factors[self.kind], value=0.5)

    still, *others = map(Added, ("still", "moves", "float32"))
    matrix = still.layer.weight.detach().double() + torch.eye(3)
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    assert certify(still, torch.randn(2, 3)).lipschitz == pytest.approx(largest, rel=1e-6)
    for other in others:  # the last is made anew of x, in float32: nothing is claimed of it
        assert certify(other, torch.randn(2, 3)).lipschitz == math.inf


def test_a_normalization_is_certified_where_its_statistics_are_given() -> None:
    layer, norm = nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3, eps=0.0)
    network = nn.Sequential(layer, norm)
    with torch.no_grad():
        norm.running_var.copy_(torch.tensor([4.0, 1.0, 0.25]))  # type: ignore[union-attr]
        norm.weight.copy_(torch.tensor([-1.0, 2.0, 3.0]))
    slopes = torch.tensor([-0.5, 2.0, 6.0])[:, None] * layer.weight.detach()
    facts = certify(network.eval())
    torch.testing.assert_close(facts.lowest, slopes.double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(facts.highest, slopes.double(), rtol=1e-6, atol=0)
    assert certify(network.train()).lipschitz == math.inf  # those of a batch


def test_bounds_of_estimators_and_of_files(tmp_path: Path) -> None:
    rows, target = steep(100)
    x, y = rows.numpy(), target[:, 0].numpy()
    regressor = LiftedRegressor((8,), "tanh", lipschitz=2.0, random_state=0, max_iter=5).fit(x, y)
    assert certify(regressor.model_).lipschitz <= 2.0
    again = load(save(regressor.model_, tmp_path / "model.safetensors"))
    assert certify(again).lipschitz <= 2.0 and again.lipschitz == 2.0
    classifier = LiftedClassifier((8,), lipschitz=0.5, random_state=0, max_iter=5)
    assert steepest(classifier.fit(x, y > y.mean()).model_, rows) <= 0.5 + 1e-4


def test_what_cannot_be_held_is_refused() -> None:
    rows, target = steep(50)
    with pytest.raises(DeclarationError, match="Gauss-Newton"):
        LiftedMLP((3, 4, 1), loss=SquaredError(), lipschitz=1.0, method="gauss-newton")
    with pytest.raises(DeclarationError, match="partial_fit"):
        LiftedMLP((3, 4, 1), loss=SquaredError(), lipschitz=1.0).partial_fit(rows, target)


def jacobians(weights: list[np.ndarray], points: np.ndarray) -> float:
    """Return the largest norm of a Jacobian of a ReLU network at points."""
    largest = 0.0
    for x in points:
        jacobian = np.eye(len(x))
        for weight in weights[:-1]:
            u = x @ weight
            jacobian, x = (jacobian @ weight) * (u > 0), np.maximum(u, 0)
        largest = max(largest, float(np.linalg.norm(jacobian @ weights[-1], 2)))
    return largest


def drawn(sizes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape) for shape in pairwise(sizes)]


@pytest.mark.parametrize("sizes", [(3, 6, 1), (8, 5, 4, 2), (2, 6, 6, 1)])
def test_the_semidefinite_bound_lies_between_jacobians_and_norms(sizes: tuple[int, ...]) -> None:
    weights = drawn(sizes)
    bound = semidefinite_lipschitz(weights, [(0.0, 1.0)] * (len(sizes) - 2))
    points = np.random.default_rng(1).normal(size=(1_000, sizes[0]))
    assert jacobians(weights, points) <= bound
    assert bound < 0.95 * np.prod([np.linalg.norm(w, 2) for w in weights])


def test_one_layer_is_bounded_above_all_slopes_and_exactly_where_units_are_apart() -> None:
    first, last = drawn((3, 6, 1))
    patterns = (np.linalg.norm(first @ (np.array(s)[:, None] * last), 2)
                for s in product((0.3, 1.0), repeat=6))  # fmt: skip
    largest = max(patterns)
    assert largest <= semidefinite_lipschitz([first, last], [(0.3, 1.0)]) <= 1.2 * largest
    apart = [np.diag([1.0, 2.0, 3.0]), np.diag([3.0, 2.0, 0.5])]
    assert semidefinite_lipschitz(apart, [(0.0, 1.0)]) == pytest.approx(4.0, rel=1e-3)
    assert semidefinite_lipschitz([first, last], [(1.0, 1.0)]) == pytest.approx(
        np.linalg.norm(first @ last, 2)
    )


def test_certificates_take_the_semidefinite_bound() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    loose, tight = certify(network).lipschitz, certify(network, semidefinite=True).lipschitz
    x = torch.randn(500, 4, requires_grad=True)
    (slopes,) = torch.autograd.grad(network(x).sum(), x)
    assert float(slopes.norm(dim=1).max()) <= tight < 0.95 * loose
    rows, target = steep(60)
    for activation in (LeakyReLU(0.5), Tanh()):
        model = LiftedMLP((3, 5, 1), activation, SquaredError(), method=Minibatch(epochs=5))
        model.fit(rows, target)
        found = certify(model, semidefinite=True).lipschitz
        assert steepest(model, rows) <= found <= certify(model).lipschitz


def test_the_semidefinite_bound_is_for_small_chains() -> None:
    with pytest.raises(DeclarationError, match="small"):
        certify(nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1)), semidefinite=True)
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
    with pytest.raises(DeclarationError, match="chain"):
        certify(images, torch.zeros(2, 1, 4, 4), semidefinite=True)
