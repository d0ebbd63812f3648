"""What stands between data and weights: it changes scales, and no answer."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from torch.utils.data import DataLoader, TensorDataset

from liftednet import LiftedClassifier, to_torch
from liftednet.activations import ReLU, Tanh
from liftednet.errors import DataError, FitWarning
from liftednet.losses import SimplexCrossEntropy, SquaredError
from liftednet.models import Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.storage import load, save
from liftednet.penalties import Nonnegative, SpectralNorm
from liftednet.samples import Weights
from tests.draws import normal
from tests.models.networks import refuses, told, warned
from tests.models.registry import BY_NAME


def drawn(samples=120, features=4):
    x = normal(samples, features)
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:3]).contiguous()


def seen(model):
    """Return what training has seen of X."""
    return model._on_data().values[model.network.inputs[0]]


def warns(words, model, x, y):
    """Return whether a fit has warned in these words."""
    return any(words in text for text in told(model.fit, x, y))


QUICK = Minibatch(epochs=3)


def test_no_unit_of_inputs_and_targets_changes_what_is_learned():
    x, y = drawn()
    plain, moved, scaled = (
        LiftedMLP((4, 20, 1), loss=SquaredError(), method=QUICK)
        .fit(inputs, targets)
        .predict(inputs)
        for inputs, targets in ((x, y), (1e3 * x - 5e4, y), (x, 1e4 * y + 7))
    )
    torch.testing.assert_close(moved, plain, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close((scaled - 7) / 1e4, plain, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("method", ["full", "minibatch", "gauss-newton"])
def test_weights_take_raw_data(method):
    x, y = drawn()
    x = x * torch.tensor([1.0, 1e3, 1e-3, 5.0], dtype=torch.float64) + 3.0
    model = LiftedMLP((4, 6, 1), Tanh(), SquaredError(), method=method).fit(x, y)
    (first, second) = model.weights
    torch.testing.assert_close(second.apply(torch.tanh(first.apply(x))), model.forward(x))
    torch.testing.assert_close(to_torch(model)(x), model.forward(x))
    assert not model.standardization.moments


@pytest.mark.parametrize("narrowest", [0.5, 1e-3])
def test_features_of_one_unit_keep_their_proportions_and_others_come_near(narrowest, draw):
    deviations = np.array([1.0, 1.0, 1.5, 0.6, 100.0, narrowest])
    x = draw.uniform(-(3**0.5), 3**0.5, (4000, 6)) * deviations + 10
    labels = draw.integers(0, 2, 4000)
    model = LiftedMLP((6, 2), method=Minibatch(epochs=1, rate=1e-6)).fit(x, labels)
    found = seen(model).numpy().std(0)
    kept = 3 if narrowest == 0.5 else 1  # 1e5 times the narrowest is in another unit
    expected = np.clip(deviations / np.median(deviations), 1 / kept, kept)
    np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=0.05)
    assert np.square(found).mean() == pytest.approx(1.0)


def test_what_is_seldom_off_its_mean_stays_within_bounds_and_constants_do_no_harm():
    x, _ = drawn(500, 3)
    x[:, 1] = 0
    x[7, 1] = 1.0  # a pixel in a corner
    x[:, 2] = 1e8  # a constant
    labels = (x[:, 0] > 0).long()
    model = LiftedMLP((3, 10, 2), method=Minibatch(epochs=30)).fit(x, labels)
    standardized = seen(model)
    assert standardized.abs().max() <= 10 + 1e-9
    assert standardized[:, 2].abs().max() == 0
    assert (model.predict(x) == labels).double().mean() > 0.95


@pytest.mark.filterwarnings("ignore::liftednet.FitWarning")
def test_given_weights_are_for_raw_data():
    x, y = drawn()
    x = 100 * x + 30
    ones, zero = torch.ones(3).double(), torch.zeros(1).double()
    start = [Weights(normal(4, 3) / 100, ones), Weights(normal(3, 1, seed=1), zero)]
    still = Minibatch(epochs=1, rate=1e-12)
    model = LiftedMLP((4, 3, 1), Tanh(), SquaredError(), start=start, method=still).fit(x, y)
    expected = torch.tanh(start[0].apply(x)) @ start[1].matrix
    torch.testing.assert_close(model.forward(x), expected, rtol=1e-6, atol=1e-8)


def test_a_warm_start_keeps_its_scales():
    x, y = drawn()
    model = LiftedMLP((4, 8, 1), loss=SquaredError(), warm_start=True, method=QUICK).fit(x, y)
    before = model.predict(x)
    model.method = Minibatch(epochs=1, rate=1e-12)
    model.fit(50 * x, y)
    torch.testing.assert_close(model.predict(x), before, rtol=1e-6, atol=1e-8)
    model.standardize = False
    refuses(DataError, "goes on from weights of data on a common scale", model.fit, x, y)


def test_a_constraint_that_folding_would_break_keeps_the_maps_as_layers(tmp_path):
    x, y = drawn()
    x = x * 1e-3
    model = LiftedMLP(
        (4, 6, 1), loss=SquaredError(), penalty=[SpectralNorm(1.0), Nonnegative()],
        method=Minibatch(epochs=20),
    ).fit(x, y)  # fmt: skip
    assert model.standardization.moments
    assert torch.linalg.matrix_norm(model.weights[0].matrix, 2) <= 1 + 1e-6
    torch.testing.assert_close(to_torch(model)(x), model.forward(x))
    again = load(save(model, tmp_path / "m.safetensors"))
    torch.testing.assert_close(again.forward(x), model.forward(x))


@pytest.mark.parametrize("learned", [False, True])
def test_sequences_keep_zeros_where_they_have_ended(learned, generator):
    x = 50 + 10 * normal(30, 6, 3, seed=generator)
    lengths = torch.randint(2, 7, (30,), generator=generator)
    y = torch.randint(0, 2, (30,), generator=generator)
    model = LiftedRNN(3, 5, 2, method=Minibatch(epochs=4), divergence="tight",
                      learn_initial_state=learned).fit(x, y, lengths=lengths)  # fmt: skip
    spoiled = x.where((torch.arange(6) < lengths[:, None])[..., None], 1e6)
    answers = model.forward(x, lengths=lengths)
    torch.testing.assert_close(model.forward(spoiled, lengths=lengths), answers)
    torch.testing.assert_close(to_torch(model)(x, lengths=lengths), answers)
    assert bool(model.standardization.moments) == learned


def test_images_have_one_scale_for_each_channel():
    graph = BY_NAME["images"]
    x = 100 + torch.tensor([3.0, 5.0])[:, None, None] * graph.x
    model = Lifted(graph.network(), method=Minibatch(epochs=3)).fit(x, graph.y)
    assert model.standardization.moments  # the border of zeros is not one of raw data
    torch.testing.assert_close(to_torch(model)(x), model.forward(x))


def test_a_fit_that_comes_to_nothing_warns():
    x, y = drawn()
    labels = (y[:, 0] > 0).long()
    warned("constant prediction", LiftedMLP((4, 5, 2), rho=1e5, method=QUICK).fit, x, labels)
    dead = [Weights(torch.ones(4, 5), torch.full((5,), -99.0)),
            Weights(torch.eye(5, 2), torch.zeros(2))]  # fmt: skip
    model = LiftedMLP((4, 5, 2), start=dead, method=QUICK)
    warned("5 of the 5 units", model.fit, x.float(), labels)


def test_units_that_a_penalty_leaves_out_are_not_called_dead():
    x, y = drawn()
    x = x.float()
    left_out = [Weights(torch.zeros(4, 5), torch.zeros(5)),
                Weights(torch.zeros(5, 2), torch.zeros(2))]  # fmt: skip
    left_out[0].matrix[:, :2] = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    model = LiftedMLP((4, 5, 2), start=left_out, method=QUICK)
    assert not warns("dead", model, x, (y[:, 0] > 0).long())


@pytest.mark.parametrize("linear", [True, False])
def test_units_that_do_not_move_are_told_of_only_where_something_is_left_to_learn(linear):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, 4, generator=generator)
    y = x[:, :1] if linear else (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3].abs()
    alive = torch.tensor([0.0] * 4 + [-99.0] * 6)
    start = [Weights(torch.randn(4, 10, generator=generator), alive),
             Weights(0.1 * torch.randn(10, 1, generator=generator), torch.zeros(1))]  # fmt: skip
    model = LiftedMLP((4, 10, 1), loss=SquaredError(), start=start, method=Minibatch(epochs=60))
    assert warns("6 of the 10 units", model, x, y) != linear
    assert (float((model.predict(x) - y).square().mean() / y.var()) < 0.03) == linear


def test_a_loader_is_judged_and_scaled_by_more_than_its_first_batch():
    x, y = drawn(400)
    labels = (y[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(1e3 * x, labels), batch_size=2)
    model = LiftedMLP((4, 20, 2), method=Minibatch(epochs=2, rate=0.03)).fit(loader)
    assert float((model.predict(1e3 * x) == labels).double().mean()) > 0.7
    warned("constant prediction", LiftedMLP((4, 20, 2), rho=1e6, method=QUICK).fit, loader)


@pytest.mark.parametrize("activation", [ReLU(), Tanh()])
@pytest.mark.parametrize("hidden", [(20,), (20, 20, 20)])
def test_features_that_say_nothing_leave_the_shares_of_the_classes(activation, hidden):
    labels = torch.tensor([0] * 140 + [1] * 40 + [2] * 16 + [3] * 4)
    x = torch.full((200, 3), 5.0, dtype=torch.float64)
    model = warned("constant prediction", LiftedMLP((3, *hidden, 4), activation).fit, x, labels)
    shares = torch.bincount(labels).double() / 200
    torch.testing.assert_close(model.forward(x), shares.expand(200, 4), atol=0.005, rtol=0)


def test_classes_without_probability_are_told():
    x, _ = drawn()
    wrong = [Weights(torch.zeros(4, 2), torch.tensor([9.0, -9.0]))]
    model = LiftedMLP((4, 2), loss=SimplexCrossEntropy(), start=wrong, rho=1e9, method=QUICK)
    labels = (torch.arange(120) % 3 == 0).long()
    warned("40 of the 120 .* infinite SimplexCrossEntropy", model.fit, x, labels)


@pytest.mark.parametrize("factor", [1e2, 1e6])
def test_rows_far_from_all_others_are_told(factor):
    x, y = drawn(200)
    x[[17, 90]] *= factor
    model = LiftedMLP((4, 5, 1), loss=SquaredError(), method=QUICK)
    warned("2 of the 200 rows of input 1, the first of them row 17", model.fit, x, y)


def test_one_entry_that_stands_for_a_missing_one_is_told():
    x, y = drawn(200)
    x[[20, 90], 2] = -9999.0
    model = LiftedMLP((4, 5, 1), loss=SquaredError(), method=QUICK)
    warned("2 of the 200 rows .* first of them row 20.*feature 2 ", model.fit, x, y)


UNLIKE = {
    "heavy tails": lambda x: (2 * x).exp(),
    "mostly zeros": lambda x: (x > 2).double(),
    "few counts": lambda x: (x > 1.5) * (3 * x).round(),
    "a far class": lambda x: x + 8 * (x[:, 2:3] > 0),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_rows_that_are_only_unlike_are_not_called_far(kind):
    x, _ = drawn(300)
    labels = (x[:, 2] > 0).long()
    assert not warns("lies far", LiftedMLP((4, 5, 2), method=QUICK), UNLIKE[kind](x), labels)


def test_a_warning_points_at_the_line_that_asked_for_the_fit():
    x = np.ones((40, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LiftedMLP((2, 4, 2), method=QUICK).fit(x, np.arange(40) % 2)
        make_pipeline(LiftedClassifier(max_iter=2)).fit(x, np.arange(40) % 2)
    told = [one for one in caught if issubclass(one.category, FitWarning)]
    assert len(told) == 2
    assert {one.filename for one in told} == {__file__}
