"""Shapes that are held in training, and the semidefinite Lipschitz bound that is proved."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from liftednet import LiftedClassifier, LiftedRegressor, certify, load, save, to_torch
from liftednet.activations import LeakyReLU, MaxPooling, ReLU, Sigmoid, Softmax, Tanh
from liftednet.errors import DataError, DeclarationError
from liftednet.export import Affine
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, Lifted, LiftedMLP, Minibatch, input_convex
from liftednet.models.settings import Penalties
from liftednet.models.shapes import semidefinite_lipschitz
from liftednet.penalties import (
    ColumnNorm,
    DoublyStochastic,
    FewRows,
    FixedZeros,
    LinearEqualities,
    Nonnegative,
    Orthogonal,
    Penalty,
    Signs,
    SimplexRows,
    SpectralNorm,
    SquaredFrobenius,
)

X = torch.rand(240, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 10, 100.0])
Y = (X[:, :1] * X[:, 1:2]).sqrt() - X[:, 2:] / 50
BRIEF = Minibatch(epochs=30)


def digits():
    """Return (samples, 64) and labels."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def test_a_score_that_is_monotone_is_as_good_and_stays_so_in_a_file(tmp_path):
    inputs, target = load_diabetes(return_X_y=True)
    x, rest = inputs[:300].astype("float32"), inputs[300:].astype("float32")
    y, expected = target[:300].astype("float32"), target[300:]
    directions = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0]
    pairs = [
        [
            LiftedRegressor((30,), random_state=seed, monotonic_cst=asked).fit(x, y)
            for asked in (None, directions)
        ]
        for seed in range(3)
    ]
    without, with_signs = (
        sum(one.score(rest, expected) for one in each) / 3 for each in zip(*pairs, strict=True)
    )
    assert with_signs >= without - 0.01
    free, score = pairs[0]
    assert certify(score.model_).increasing == (2, 3, 8)
    assert certify(free.model_).increasing == ()
    again = load(save(score.model_, tmp_path / "score.safetensors"))
    assert again.fit(x, y[:, None]).monotonic_cst[2] == 1
    assert certify(again).increasing == (2, 3, 8)
    with pytest.raises(DataError, match="shape"):
        LiftedRegressor((5,), monotonic_cst=[1]).fit(x, y)


def test_the_probability_of_the_second_class_is_monotone():
    frames = pytest.importorskip("pandas")
    x = frames.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    labels = ["yes" if one > two / 10 else "no" for one, two in zip(x.a, x.b, strict=True)]
    found = LiftedClassifier((20, 10), monotonic_cst={"a": 1, "b": -1}, random_state=0)
    assert found.fit(x, labels).score(x, labels) > 0.95
    facts = certify(found.model_)
    assert bool((facts.lowest[1, 0] >= 0) & (facts.highest[1, 1] <= 0))


@pytest.mark.parametrize("method", ["minibatch", "full"])
def test_signs_are_held_at_every_step(method):
    made = BRIEF if method == "minibatch" else FullBatch(sweeps=2)
    model = LiftedMLP((3, 6, 6, 1), loss=SquaredError(), monotonic_cst=[1, 0, -1], method=made)
    seen = []

    def told(step):
        pairs = zip(model.structure.parameters, model._known.weights, strict=True)
        seen.append(max(model.structure.penalties[p].violation(w.matrix) for p, w in pairs))

    model.fit(X, Y, on_step=told)
    assert len(seen) > 5 and max(seen) == 0


def test_a_convex_surface_is_convex():
    x = 4 * torch.rand(600, 3, generator=torch.Generator().manual_seed(0)) - 2
    y = x.square().sum(1, keepdim=True) + 2 * (x[:, :1] - x[:, 1:2]).abs()
    for sizes in ((3, 20, 20, 1), (3, *[12] * 6, 1)):
        model = Lifted(input_convex(sizes), dtype=torch.float64).fit(x[:400], y[:400])
        off = (model.predict(x[400:]) - y[400:]).square().mean() / y.var()
        assert float(off) < 0.06
        assert certify(model).convex.all()


def regression(**shape):
    return LiftedMLP((3, 4, 1), loss=SquaredError(), **shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regression(monotonic_cst=[1, 0]), "each of 3 inputs"),
        (lambda: regression(monotonic_cst=[1, 0, 2]), "1, -1 or 0"),
        (lambda: regression(monotonic_cst=[1, 0, 0.5]), "1, -1 or 0"),
        (lambda: LiftedMLP((3, 4, 3), monotonic_cst=[1, 0, 0]), "3 classes"),
        (
            lambda: regression(activations=MaxPooling(), monotonic_cst=[1, 0, 0]),
            "chains of dense layers",
        ),
        (lambda: input_convex((3, 4, 1), Tanh()), "one of ELU"),
        (lambda: input_convex((3, 4, 1), Softmax()), "one of ELU"),
        (lambda: input_convex((3, 1)), "hidden"),
        (lambda: regression(lipschitz=1.0, method="gauss-newton"), "Gauss-Newton"),
    ],
)
def test_a_shape_that_cannot_be_held_is_refused(make, message):
    with pytest.raises((DataError, DeclarationError), match=message):
        make()


@pytest.mark.parametrize(
    "penalty",
    [
        Nonnegative(), SimplexRows(), DoublyStochastic(), Orthogonal(), ColumnNorm(1.0),
        FewRows(15), LinearEqualities(torch.ones(1, 20)), SpectralNorm(1.0),
        FixedZeros(torch.eye(20)) + Signs(torch.ones(1, 1)),
    ],
    ids=lambda penalty: type(penalty).__name__,
)  # fmt: skip
def test_constraints_train_from_the_default_start(penalty: Penalty):
    """Three layers learn the digits of `load_digits` under every constraint, held to rounding."""
    pixels, labels = digits()
    ridge = SquaredFrobenius(0.1)
    given: Penalties = [ridge, *[ridge + penalty if penalty.convex else penalty] * 2, ridge]
    model = LiftedMLP((64, 20, 20, 20, 10), penalty=given, method=Minibatch(epochs=15))
    model.fit(pixels[:1200], labels[:1200])
    assert all(penalty.violation(layer.matrix) < 2e-6 for layer in model.weights[1:3])
    assert float((model.predict(pixels[1200:]) == labels[1200:]).float().mean()) > 0.8


def test_eight_nonnegative_layers_train_from_the_default_start():
    pixels, labels = digits()
    for activation, layers in ((ReLU(), 8), (Sigmoid(), 5)):
        penalty = [SquaredFrobenius(1.0), *[Nonnegative(1.0)] * layers]
        model = LiftedMLP((64, *[30] * layers, 10), activation, penalty=penalty, method=BRIEF)
        model.fit(pixels[:1200], labels[:1200])
        assert float((model.predict(pixels[1200:]) == labels[1200:]).float().mean()) > 0.8
        assert all(bool((layer.matrix >= 0).all()) for layer in model.weights[1:])


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


def test_bounds_of_estimators_and_of_files(tmp_path: Path) -> None:
    rows, target = steep(100)
    x, y = rows.numpy(), target[:, 0].numpy()
    regressor = LiftedRegressor((8,), "tanh", lipschitz=2.0, random_state=0, max_iter=5).fit(x, y)
    assert certify(regressor.model_).lipschitz <= 2.0
    again = load(save(regressor.model_, tmp_path / "model.safetensors"))
    assert certify(again).lipschitz <= 2.0 and again.lipschitz == 2.0
    classifier = LiftedClassifier((8,), lipschitz=0.5, random_state=0, max_iter=5)
    assert steepest(classifier.fit(x, y > y.mean()).model_, rows) <= 0.5 + 1e-4


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
    found = certify(images, torch.zeros(2, 1, 4, 4), semidefinite=True).lipschitz
    x = torch.randn(300, 1, 4, 4, requires_grad=True)  # a chain of matrices, as it is read
    (slopes,) = torch.autograd.grad(images(x).sum(), x)
    assert float(slopes.flatten(1).norm(dim=1).max()) <= found
    with pytest.raises(DeclarationError, match="chain"):
        certify(Residual(), torch.zeros(2, 3), semidefinite=True)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = self.linear(x).relu()
        return x + moved
