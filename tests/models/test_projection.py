"""Networks whose last layer projects: limits that hold at every input."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from liftednet import LiftedClassifier, LiftedRegressor, Network, load, save, to_torch
from liftednet.activations import ReLU
from liftednet.constraints import Bounds, GroupMeans, Linear
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.layers import dense
from liftednet.losses import BinaryCrossEntropy, Quantile, SquaredError
from liftednet.models import FullBatch, Lifted, LiftedMLP, Minibatch
from liftednet.models.builders import feedforward
from liftednet.samples import Weights
from tests.models.networks import refuses, warned

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(size=(60, 4))
SHARES = np.exp(3 * np.sin(3 * X[:, 1:]))
Y = (200 + 300 * X[:, :1]) * SHARES / SHARES.sum(1, keepdims=True)
Y = Y + 30 * GENERATOR.normal(size=Y.shape)
BALANCE = Linear(np.ones(3), equal=200, inputs=[-300, 0, 0, 0])
OTHERS = GENERATOR.uniform(size=(100, 4))


def network(*within) -> Network:
    return feedforward((4, 8, 3), [ReLU()], SquaredError(), within=within)


def balanced(x, found) -> float:
    """Return by how much sums of three flows are off, or one is negative."""
    return max(float(np.abs(found.sum(1) - 200 - 300 * x[:, 0]).max()), -float(found.min()))


@pytest.mark.parametrize("method", ["minibatch", "gauss-newton"])
def test_what_is_declared_holds_at_other_inputs_of_the_exported_network(method) -> None:
    free = Lifted(network(), method=method, max_iter=10).fit(X, Y)
    assert balanced(OTHERS, free.forward(OTHERS).numpy()) > 1
    model = Lifted(network(BALANCE, Bounds(lower=0)), method=method, max_iter=10).fit(X, Y)
    found = model.forward(OTHERS)
    assert balanced(OTHERS, found.numpy()) < 1e-8
    assert torch.allclose(to_torch(model)(torch.from_numpy(OTHERS)), found, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*units of layer 1")
def test_training_goes_through_the_projection() -> None:
    """Its objective is that of projected answers, and falls from a free network's, projected."""
    held = network(BALANCE, Bounds(lower=0))
    free = Lifted(network(), method="gauss-newton", standardize=False).fit(X, Y)
    model = Lifted(held, method="gauss-newton", standardize=False, start=free.weights).fit(X, Y)

    def objective(weights, answers) -> float:
        squares = sum(float(layer.matrix.square().sum()) for layer in weights)
        return float(((answers.numpy() - Y) ** 2).sum()) / 2 + squares

    assert model.objective() == pytest.approx(objective(model.weights, model.forward(X)), rel=1e-9)
    after = Lifted(held, standardize=False).with_weights(free.weights).forward(X)
    assert model.objective() < objective(free.weights, after)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_limits_that_bind_for_all_samples_are_left_again(dtype) -> None:
    """No derivative comes through them there, but projected gradients do."""
    graph = feedforward((4, 2), [], SquaredError(), within=[Linear([[1], [-1]], lower=0.0)])
    y = np.stack([3 + X[:, 0], X[:, 1]], axis=1)
    wrong = [Weights(torch.zeros(4, 2, dtype=dtype), torch.tensor([-2.0, 5.0], dtype=dtype))]
    model = Lifted(graph, dtype=dtype, start=wrong, standardize=False, rho=1e-3)
    before = model.with_weights(wrong).forward(X)
    torch.testing.assert_close(before, torch.full_like(before, 1.5))
    assert ((model.fit(X, y).forward(X).double().numpy() - y) ** 2).mean() < 1e-3


def test_a_regressor_and_its_file_are_within_them_at_any_input(tmp_path, draw) -> None:
    limits = [Linear(np.ones(3), equal=1), Bounds(lower=0)]
    x = draw.normal(size=(40, 4))
    regressor = clone(LiftedRegressor((5,), within=limits, max_iter=2, random_state=0))
    found = regressor.fit(x, draw.dirichlet(np.ones(3), size=40)).predict(30 * x)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    assert found.min() > -1e-6
    path = save(regressor.model_, tmp_path / "model.safetensors")
    for again in (load(path), load(path, within=limits)):
        np.testing.assert_array_equal(again.predict(30 * x), found)
    refuses(DataError, "not the one that was saved", lambda: load(path, within=[Bounds(lower=0)]))


ODDS = [Linear([1, -1, 0], lower=0.0, upper=np.log(4)), Linear([0, 1, -1], lower=-1.0, upper=0.0)]
LABELS = (X[:, 1] > X[:, 2]).astype(int) + (X[:, 3] > 0.5)


def test_odds_of_a_classifier_are_within_limits_at_any_input() -> None:
    """p_0 is one to four times p_1, and that is exp(-1) to one times p_2."""
    held = LiftedClassifier((8,), within=ODDS, max_iter=100, random_state=0).fit(X, LABELS)
    free = clone(held).set_params(within=()).fit(X, LABELS)
    p, q = (model.predict_proba(30 * OTHERS) for model in (held, free))
    first, second = p[:, 0] / p[:, 1], p[:, 1] / p[:, 2]
    assert first.min() > 1 - 1e-6 and first.max() < 4 + 1e-5
    assert second.min() > np.exp(-1) - 1e-6 and second.max() < 1 + 1e-6
    assert (q[:, 0] / q[:, 1]).max() > 10
    exported = to_torch(held.model_)(torch.from_numpy(OTHERS)).detach()
    np.testing.assert_allclose(held.predict_proba(OTHERS), exported, atol=1e-9)


def test_labels_by_themselves_are_within_probabilities() -> None:
    """A part is not more probable than the whole, and none more than 0.9."""
    labels = np.stack([X[:, 1] > 0.3, X[:, 1] > 0.6], axis=1).astype(float)
    limits = [Linear([1, -1], lower=0.0), Bounds(lower=-np.log(9), upper=np.log(9))]
    found = LiftedMLP((4, 8, 2), loss=BinaryCrossEntropy(), within=limits, max_iter=100)
    found.fit(X, labels)
    p = found.predict_proba(30 * OTHERS)
    assert p.min() > 0.1 - 1e-9 and p.max() < 0.9 + 1e-9 and (p[:, 0] - p[:, 1]).min() > -1e-9
    assert p.max() > 0.9 - 1e-9 and p.min() < 0.1 + 1e-9


def test_counts_are_within_bounds_of_their_rates() -> None:
    counts = np.random.default_rng(0).poisson(np.exp(6 * X[:, 0] - 3)).astype(float)
    limits = [Bounds(lower=0.5, upper=4.0)]
    model = LiftedRegressor((5,), loss="poisson", within=limits, random_state=0).fit(X, counts)
    rates = model.predict(30 * OTHERS)
    assert rates.min() == pytest.approx(0.5) and rates.max() == pytest.approx(4.0)
    for limit, said in ((Linear([1.0], upper=1.0), "not linear"), (Bounds(upper=0), "none")):
        wrong = LiftedRegressor((5,), loss="poisson", within=[limit])
        refuses(DataError, said, wrong.fit, X, counts)


@pytest.fixture(scope="module")
def held() -> Lifted:
    return Lifted(network(BALANCE, Bounds(lower=0)), method=Minibatch(epochs=2)).fit(X, Y)


def test_a_traced_program_is_within_them(held, tmp_path) -> None:
    free = ({0: torch.export.Dim("samples")},)
    program = torch.export.export(to_torch(held), (torch.from_numpy(X),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "model.pt2")
    traced = torch.export.load(tmp_path / "model.pt2").module()
    slopes = []
    for module in (traced, to_torch(held)):
        x = torch.from_numpy(OTHERS).requires_grad_()
        found = module(x)
        torch.testing.assert_close(found, held.forward(OTHERS), rtol=0, atol=1e-9)
        slopes.append(torch.autograd.grad(found[:, 0].sum(), x)[0])
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-9)
    none = np.array([[-1.0, 0, 0, 0]])  # at which no answer meets the limits
    with torch.no_grad(), pytest.raises(RuntimeError, match="no scores meet the limits"):
        traced(torch.from_numpy(none))
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    written = torch.onnx.export(program, dynamo=True, verbose=False)
    assert written is not None
    written.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (answers,) = session.run(None, {session.get_inputs()[0].name: np.concatenate([OTHERS, none])})
    np.testing.assert_allclose(answers[:-1], held.forward(OTHERS), rtol=0, atol=1e-9)
    assert np.isnan(answers[-1]).all()  # as ONNX has no errors


def test_limits_that_no_answer_meets_at_an_input_are_told(held) -> None:
    refuses(DataError, "sample 1", held.forward, np.array([[0.5, 0, 0, 0], [-1.0, 0, 0, 0]]))


NOT_HELD = [
    ([GroupMeans([0, 1])], "each sample by itself"),
    ([Bounds(lower=[[0.0] * 3] * 2)], "shape"),
    ([Bounds(lower=1.0), Linear(np.ones(3), upper=2.0)], "contradict"),
    ([Linear(np.ones(3), equal=1, inputs=[1, 0])], "inputs"),
    ([Linear(np.ones(2), equal=1)], "2 outputs"),
]


@pytest.mark.parametrize(("within", "said"), NOT_HELD)
def test_what_cannot_be_held_is_refused(within, said) -> None:
    refuses(DataError, said, lambda: network(*within))


def test_where_it_cannot_stand() -> None:
    holes = Network()
    scores = dense(holes.input(4, missing=True), 3)
    refuses(DeclarationError, "SquaredError", holes.loss, Quantile(), scores, within=[BALANCE])
    refuses(DeclarationError, "missing", holes.loss, SquaredError(), scores, within=[BALANCE])
    refuses(DeclarationError, "not affine", Lifted, network(Bounds(lower=0)), method=FullBatch())
    held, means = Lifted(network(BALANCE)), [GroupMeans(np.arange(120) % 2)]
    refuses(DeclarationError, "by one of the two", held.fit, X, Y, constraints=means)
    refuses(DataError, "within=", Lifted(network()).fit, X, Y, constraints=[BALANCE])


@pytest.mark.parametrize("limits", [Bounds(5, 6), Bounds(-1e-9, 1e-9), Linear([1.0], equal=5)])
def test_limits_that_leave_one_answer_end_a_fit_with_a_sentence(limits) -> None:
    """No weight moves it, so that the evidence has nothing to go by."""
    y = X[:, 0]
    model = LiftedRegressor((5,), random_state=0, within=[limits], max_iter=5)
    warned("no better than a constant", model.fit, X, y)
    np.testing.assert_allclose(np.ptp(model.predict(OTHERS)), 0, atol=1e-8)
    refuses(SolverError, "no weight moves an answer", model.predict_interval, OTHERS)
