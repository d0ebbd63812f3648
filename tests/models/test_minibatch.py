"""Training on minibatches: what a step is, what a run keeps, and what is refused."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader, TensorDataset

from liftednet import Network, activations, losses
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import dense
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.data import Data, prepared
from liftednet.models.methods.batch_gradients import Targets, _Lifted
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.models.results import Step
from liftednet.penalties import Nonnegative, Penalty, RowNorm
from liftednet.problems import OutputFit, StateFit, Weights
from liftednet.solvers import solve
from liftednet.solvers.layer_metric import LayerMetric, slope_of
from tests.draws import normal
from tests.models.networks import bias_of, full, gradients, labeled, refuses, same_bits

X, Y = labeled(samples=60)
SHORT = Minibatch(epochs=3, batch_size=10)


def _steps(network: LiftedMLP, damping: float = 1e12) -> BatchSteps:
    chosen = Minibatch(rank=0, damping=damping)
    return BatchSteps(network.structure, network.weights, chosen, torch.Generator())


def _batch(network: LiftedMLP) -> Data:
    return prepared(network.network, X, Y)


def test_lam_is_that_of_a_sample_however_many_a_batch_has():
    network = full((4, 6, 5, 3), activations.Tanh(), lam=0.5, sweeps=1).fit(X, Y)
    once = gradients(_steps(network), _batch(network))
    both = prepared(network.network, X.repeat(2, 1), Y.repeat(2))
    for found, expected in zip(gradients(_steps(network), both), once, strict=True):
        assert torch.allclose(found.stacked(), expected.stacked(), atol=1e-6)
    (w0, b0), (w1, b1), (w2, b2) = ((w.matrix, bias_of(w)) for w in network.weights)
    z1 = (X @ w0 + b0).tanh()
    z2 = (z1 @ w1 + b1).tanh()
    top = (z2 @ w2 + b2).softmax(1) - torch.nn.functional.one_hot(Y, 3)
    target = (z1 @ w1 + b1 - top @ w2.T / 0.5).tanh()
    assert torch.allclose(bias_of(once[1]), 0.5 * (z2 - target).mean(0), atol=1e-6)


@pytest.mark.parametrize("activation", [activations.ReLU(), activations.Sigmoid()])
def test_the_moved_states_lower_their_state_fit(activation):
    start = full((4, 6, 3), activation, sweeps=1).fit(X, Y).weights
    # Phi is 1-strongly convex here: with this lam the linearized link is an upper bound.
    lam = float(torch.linalg.matrix_norm(start[1].matrix, 2)) ** 2
    how: dict[str, Any] = {"lam": lam, "rho": 1e-3, "start": start, "standardize": False}
    network = LiftedMLP((4, 6, 3), activation, method=Minibatch(epochs=1), **how).fit(X, Y)
    fit, (passed,) = network.subproblem("states 1"), network.states
    assert isinstance(fit, StateFit)
    u = network.weights[0].apply(X).requires_grad_()
    divergence = network.structure.divergences[network.network.states[0]]
    above = network.weights[1].apply(_Lifted.apply(u, Targets(divergence, divergence, lam)))
    (pull,) = torch.autograd.grad(torch.nn.functional.cross_entropy(above, Y, reduction="sum"), u)
    moved = fit.measure(passed - pull / lam).objective
    assert solve(fit).objective <= moved < fit.measure(passed).objective


def test_a_small_step_lowers_the_loss_and_a_zero_rate_changes_nothing():
    network = full((4, 6, 3), lam=10.0, rho=1e-9, sweeps=1).fit(X, Y)
    steps, batch = _steps(network), _batch(network)
    first = steps.step(batch, 0.0, len(X))
    assert same_bits(steps.weights, network.weights)
    found = [first] + [steps.step(batch, 0.02, len(X)) for _ in range(20)]
    assert found == sorted(found, reverse=True)


def test_steps_of_layers_with_signs_are_shorter_the_more_there_are():
    def first(*sizes: int, **options) -> float:
        return _steps(full(sizes, sweeps=1, **options).fit(X, Y)).rate

    assert first(4, 6, 6, 3) == 0.3
    signs = {"penalty": Nonnegative(1.0), "rho": None}
    assert [first(4, *hidden, 3, **signs) for hidden in ((6,), (6, 6))] == [2, 2 / 3]


@pytest.mark.parametrize("penalty", [Nonnegative(), Nonnegative(0.3), RowNorm(0.5)])
def test_a_step_ends_at_the_nearest_point_of_the_constraint(penalty: Penalty) -> None:
    metric = LayerMetric(6, True, 0, 30.0, 0.95, torch.Generator())
    x, w = 2 * normal(200, 6) + 1, normal(6, 4, seed=1)
    metric.begin(*metric.first_sums(x))
    metric.look(*metric.sums(x))
    none, length = torch.zeros(6, 4).double(), torch.tensor(0.7, dtype=torch.float64)
    move = metric.move(none, torch.zeros(4).double(), penalty=penalty)
    found = move.taken(Weights(w, torch.ones(4).double()), length, length * move.scale)
    p = cp.Variable((6, 4))
    distance = float((x - x.mean(0)).square().mean()) * cp.sum_squares(p - w.numpy()) / (2 * 0.7)
    problem = cp.Problem(cp.Minimize(penalty.expression(p) + distance), penalty.domain(p))
    problem.solve(solver="CLARABEL")
    assert p.value is not None and np.allclose(found.matrix, p.value, atol=1e-5)
    means = x.mean(0) @ w + 1, x.mean(0) @ found.matrix + bias_of(found)
    torch.testing.assert_close(*means)  # what the constraint moves, the bias brings back


def test_steps_count_as_in_the_objective() -> None:
    """A label a step and one a sequence, lengths, weights, rho: least squares in closed form."""
    x, lengths = normal(30, 6, 2), torch.arange(30) % 6 + 1
    weights = lengths.double() ** 2
    every, last = normal(30, 6, 1, seed=1), normal(30, 1, seed=2)
    network = Network()
    answers = dense(network.input(2, sequence=True), 1, bias=False)
    for _ in range(2):
        network.loss("squared-error", answers)
    method = Minibatch(300, batch_size=30)
    model = Lifted(network, rho=20.0, method=method, standardize=False)
    model.fit(x, (every, last), lengths=lengths, sample_weight=weights)
    there = torch.arange(6) < lengths[:, None]
    of_steps = (weights[:, None] * there)[..., None] * x
    ends = x[torch.arange(30), lengths - 1]
    of_ends = weights[:, None] * ends
    left = of_steps.flatten(0, 1).T @ x.flatten(0, 1) + of_ends.T @ ends + 40 * torch.eye(2)
    right = of_steps.flatten(0, 1).T @ every.flatten(0, 1) + of_ends.T @ last
    found = model.weights[0].matrix
    torch.testing.assert_close(found, torch.linalg.solve(left, right), atol=1e-6, rtol=1e-6)


def test_no_step_is_longer_than_the_parabola_allows():
    network = full((4, 6, 3), lam=10.0, sweeps=1).fit(X, Y)
    steps, batch = _steps(network), _batch(network)
    found = [steps.step(batch, 1e9, len(X)) for _ in range(200)]
    assert np.isfinite(found).all()
    assert found[-1] < 3 * found[0]


@given(st.integers(1, 40), st.floats(0.1, 100))
def test_the_metric_is_inverted_exactly_once_the_eigenvectors_are_found(samples, damping):
    generator = torch.Generator().manual_seed(samples)
    basis = torch.linalg.qr(normal(8, 8, seed=generator))[0]
    x = normal(200, 2, seed=generator) * torch.tensor([5.0, 2.0]) @ basis[:2] + 1
    metric = LayerMetric(8, True, 2, damping, 0.0, generator)
    metric.begin(*metric.first_sums(x))
    for _ in range(50):
        metric.look(*metric.sums(x))
    centered = x - x.mean(0)
    variance, covariance = centered.square().mean(), centered.T @ centered / 200
    full = torch.zeros(9, 9, dtype=torch.float64)  # [W; b] -> centered inputs, then the metric
    full[:8, :8] = variance * torch.eye(8) + covariance / damping
    full[8, 8] = variance + 1 / damping
    shift = torch.eye(9, dtype=torch.float64)
    shift[8, :8] = x.mean(0)  # the bias of centered inputs is b + mean' W
    gradient = normal(9, 3, seed=generator)
    wanted = torch.linalg.solve(shift.T @ full @ shift, gradient)
    move = metric.move(metric.centered_gradient(gradient[:8], gradient[8]), gradient[8])
    assert move.bias is not None
    found = torch.cat([move.scale * move.matrix, move.bias[None]])
    assert slope_of([move]) == pytest.approx(float((gradient * found).sum()))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-8)


def test_one_layer_on_minibatches_comes_close_to_logistic_regression():
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16), torch.from_numpy(labels)
    model = LiftedMLP((64, 10), rho=0.5, method=Minibatch(epochs=60)).fit(x, y)
    exact = LogisticRegression(C=1.0, tol=1e-8, max_iter=2000).fit(x.numpy(), y.numpy())
    chances = exact.predict_proba(x.numpy()).clip(1e-300)
    best = -np.log(chances[np.arange(len(y)), labels]).sum() + 0.5 * (exact.coef_**2).sum()
    assert model.objective() < 1.02 * best


def test_the_output_states_of_a_step_are_those_of_their_fit():
    loss = losses.SimplexCrossEntropy()
    network = full((4, 6, 3), loss=loss, lam=0.5, sweeps=1).fit(X, Y)
    target = torch.nn.functional.one_hot(Y, 3).double()
    found = gradients(_steps(network), _batch(network))
    features = torch.relu(network.weights[0].apply(X))
    u, outputs = network.weights[1].apply(features), network.network.states[-1]
    fit = OutputFit(loss, target, network.structure.divergences[outputs], u, 0.5)
    slope = 0.5 * (network.activations[-1].forward(u) - solve(fit, "reference").value)
    assert torch.allclose(found[1].matrix, features.T @ slope / len(X), atol=1e-4)
    assert torch.allclose(bias_of(found[1]), slope.mean(0), atol=1e-4)


def test_the_pull_of_the_output_is_chosen_on_samples_that_it_has_not_seen():
    """Two features for each label of noise: a fit without a pull knows all labels by heart."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(400, 2, generator=generator), torch.randint(3, (400,), generator=generator)
    unseen = torch.randn(4000, 2, generator=generator), torch.randint(3, (4000,))
    losses_ = []
    for refit in (False, True):
        model = LiftedMLP((2, 300, 3), method=Minibatch(1), rho=1e-6, refit_output=refit)
        chances = model.fit(x, y).predict_proba(unseen[0])
        losses_.append(float(-chances.gather(1, unseen[1][:, None]).log().mean()))
    assert losses_[1] < losses_[0] + 0.01


def test_an_interrupted_training_has_no_last_fit():
    def stop(step: Step) -> None:
        raise KeyboardInterrupt

    model = LiftedMLP((4, 8, 3), method=Minibatch(2), refit_output=True).fit(X, Y, on_step=stop)
    plain = LiftedMLP((4, 8, 3), method=Minibatch(2)).fit(X, Y, on_step=stop)
    assert model.interrupted
    assert model.weights[1].matrix.equal(plain.weights[1].matrix)


def test_numbers_out_of_range_are_refused():
    bad = {"epochs": 0, "batch_size": 2.5, "rate": 0.0, "damping": float("inf"), "rank": -1}
    for name, value in bad.items():
        refuses(DataError, name, Minibatch, **{name: value})


def test_what_does_not_go_together_is_refused():
    loader, rows = DataLoader(TensorDataset(X, Y)), DataLoader(TensorDataset(X))
    short, loss = LiftedMLP((4, 8, 3), method=SHORT), losses.SimplexCrossEntropy()
    refit, held = LiftedMLP((4, 3), refit_output=True), LiftedMLP((4, 3), early_stopping=True)
    words = "SimplexCrossEntropy"
    refuses(DeclarationError, words, LiftedMLP, (4, 5, 3), loss=loss, refit_output=True)
    refuses(DataError, "DataLoader", full((4, 8, 3)).fit, loader)
    refuses(DataError, "refit_output", refit.fit, loader)
    refuses(DataError, "own y", short.fit, loader, Y)
    refuses(DataError, "pairs", short.fit, rows)
    refuses(DataError, "holds out 0 of 2", held.fit, X[:2], Y[:2])
