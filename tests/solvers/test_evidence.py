"""Rho by the evidence: against Gaussian densities, scikit-learn, and what noise is known to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import Tensor
from torch.distributions import MultivariateNormal

from liftednet import LiftedRegressor, Network, certify
from liftednet.activations import Identity, Tanh
from liftednet.divergences import tight
from liftednet.errors import DeclarationError
from liftednet.layers import dense
from liftednet.losses import CrossEntropy, Quantile, SquaredError
from liftednet.models import GaussNewton, Lifted, LiftedMLP, input_convex
from liftednet.models.results import Ending
from liftednet.penalties import SquaredFrobenius
from liftednet.solvers.gauss_newton.equations import NormalEquations, OutputEquations
from liftednet.solvers.gauss_newton.evidence import (
    Evidence,
    Place,
    count_answers,
    evidence,
    prior_of,
    pulled_by,
)
from liftednet.solvers.gauss_newton.objective import Forward, Target
from liftednet.solvers.gauss_newton.steps import steps


def linear(samples: int, units: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, units, generator=generator, dtype=torch.float64)
    right = torch.linspace(-1, 1, units, dtype=torch.float64)
    return x, x @ right + noise * torch.randn(samples, generator=generator, dtype=torch.float64)


def test_the_evidence_of_a_linear_network_is_a_gaussian_density() -> None:
    x, y = linear(12, 3, 0.3)
    target = Target(tight(Identity()), y[:, None, None], torch.ones(12, 1, dtype=torch.bool))
    plain = Forward(
        lambda weights, data: ((data[0] @ weights[0])[:, None],), (x,), (target,),
        (torch.ones(3, 1, dtype=torch.float64),),
    )  # fmt: skip
    found, right = [], []
    for rho in (0.05, 0.4, 3.0):
        forward = pulled_by(plain, (rho,))
        prior = 2 * rho * torch.eye(3, dtype=torch.float64)
        point = torch.linalg.solve(x.T @ x + prior, x.T @ y)
        seen = evidence(forward, NormalEquations(forward, point), forward.objective(point))
        assert seen is not None
        free = 3 - 2 * rho * torch.linalg.inv(x.T @ x + prior).trace()
        noise = (y - x @ point).square().sum() / (12 - free)
        assert seen.rhos[0] == pytest.approx(float(free * noise / (2 * point @ point)))
        assert seen.noise == pytest.approx(float(noise))
        unit = torch.eye(12, dtype=torch.float64) + x @ x.T / (2 * rho)
        found.append(seen.logarithm)
        right.append([
            float(MultivariateNormal(torch.zeros_like(y), scale * unit).log_prob(y))
            for scale in float(y @ torch.linalg.solve(unit, y)) / 12 * np.array([0.9, 1, 1.1])
        ])  # fmt: skip
    assert found == pytest.approx([each[1] for each in right])  # of the scale that is most likely
    assert all(each[1] > max(each[0], each[2]) for each in right)


def test_the_evidence_is_told_where_priors_are_lost_in_sums_of_squares() -> None:
    """Singular values 1 to 1e-7 and rho 1e-18: against the singular value decomposition."""
    generator = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(30, 4, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    values = torch.tensor([1.0, 1e-2, 1e-5, 1e-7], dtype=torch.float64)
    x, prior = left * values @ right, torch.full((4,), 2e-18, dtype=torch.float64)

    def layers(weights: Any, data: Any) -> Any:
        answers = data[0] @ weights[0]
        return (answers[:, None],), [(data[0], answers)]

    for rows in (x, x.T):  # of fewer weights than answers, and of more
        target = Target(
            tight(Identity()), rows.new_ones(len(rows), 1, 1),
            torch.ones(len(rows), 1, dtype=torch.bool),
        )  # fmt: skip
        pull = (torch.full((rows.shape[1], 1), 1e-30, dtype=torch.float64),)
        forward = Forward(
            lambda weights, data: ((data[0] @ weights[0])[:, None],), (rows,), (target,), pull,
            layers,
        )  # fmt: skip
        kind = NormalEquations if len(rows) == 30 else OutputEquations
        weights = rows.shape[1]
        seen = kind(forward, rows.new_zeros(weights)).determined(prior[:1].expand(weights))
        assert seen is not None
        known = values.square() / (values.square() + 2e-18)
        logarithm = (values.square() + 2e-18).log().sum() + (weights - 4) * prior[0].log()
        assert float(seen[0].sum()) == pytest.approx(float(known.sum()), rel=1e-4)
        assert seen[1] == pytest.approx(float(logarithm), rel=1e-6)


@pytest.mark.parametrize(("heads", "outputs"), [(1, 1), (1, 2), (2, 2)])  # of the same answers
def test_rho_of_a_linear_network_is_that_of_bayesian_ridge(heads: int, outputs: int) -> None:
    x, y = linear(60, 5, 0.7)
    nothing = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    right = BayesianRidge(fit_intercept=False, tol=1e-12, max_iter=5000, **nothing).fit(x, y)
    method = GaussNewton(steps=200, evidence=True)
    network = Network()
    inputs = network.input(5)
    for _ in range(heads):
        network.loss(SquaredError(), dense(inputs, outputs, bias=False))
    model = Lifted(network, standardize=False, method=method)
    answers = y[:, None].repeat(1, outputs)
    model.fit(x, (answers,) * heads if heads > 1 else answers)
    coefficients = torch.from_numpy(right.coef_)[:, None].expand(5, outputs)
    for penalty, layer in zip(model.structure.penalties.values(), model.weights, strict=True):
        assert isinstance(penalty, SquaredFrobenius)
        assert penalty.rho == pytest.approx(right.lambda_ / right.alpha_ / 2, rel=1e-2)
        torch.testing.assert_close(layer.matrix, coefficients, rtol=1e-3, atol=1e-4)
    assert model.trace is not None
    assert model.trace.ending is Ending.CONVERGED
    assert len(model.trace.steps) < 200


@pytest.mark.parametrize(("noise", "most"), [(0.0, 1e-4), (0.3, 0.1)])
def test_rho_follows_the_noise(noise: float, most: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x, unseen = 2 * torch.rand(2, 150, 1, generator=generator, dtype=torch.float64) - 1
    y = (3 * x).sin() + noise * torch.randn(150, 1, generator=generator, dtype=torch.float64)
    errors = []
    for method in (GaussNewton(evidence=True), GaussNewton()):
        model = LiftedMLP((1, 12, 1), Tanh(), SquaredError(), method=method).fit(x, y)
        errors.append(float((model.predict(unseen) - (3 * unseen).sin()).square().mean().sqrt()))
    assert errors[0] < most
    assert errors[0] < 1.2 * errors[1]


@pytest.mark.parametrize("last", [0, 12])  # before the first look at the evidence, and after it
def test_steps_by_evidence_go_on_where_they_were_killed(tmp_path: Any, last: int) -> None:
    x, y = linear(40, 3, 0.2)
    y = y.sin()

    def model() -> LiftedMLP:
        method = GaussNewton(steps=25, evidence=True)
        return LiftedMLP((3, 6, 1), Tanh(), SquaredError(), method=method)

    def stop(step: Any) -> None:
        if step.number == last:
            raise KeyboardInterrupt

    path = tmp_path / "run.checkpoint"
    model().fit(x, y, checkpoint=path, on_step=stop)
    again = model().fit(x, y, checkpoint=path, resume=True)
    whole = model().fit(x, y)
    assert torch.equal(again.forward(x), whole.forward(x))
    assert repr(again.structure.penalties.values()) == repr(whole.structure.penalties.values())


def test_steps_whose_evidence_is_lost_in_rounding_say_that_they_have_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = linear(40, 3, 0.2)
    model = LiftedMLP((3, 4, 1), Tanh(), SquaredError(), method=GaussNewton(evidence=True))
    monkeypatch.setattr("liftednet.solvers.gauss_newton.evidence.evidence", lambda *_: None)
    model.fit(x, y)
    assert model.trace is not None
    assert model.trace.ending is Ending.STALLED


@pytest.mark.parametrize("seed", [0, 1])
def test_kinks_that_lie_elsewhere_than_a_wave_are_exchanged(seed: int) -> None:
    x = np.linspace(-1, 1, 100)[:, None]
    y = np.sin(10 * x[:, 0])
    network = LiftedRegressor((10,), "relu", random_state=seed).fit(x, y)
    assert np.square(network.predict(x) - y).mean() < 0.05 * y.var()  # best lines between extrema


def test_what_has_no_evidence_is_refused() -> None:
    with pytest.raises(DeclarationError, match="needs the determinant"):
        GaussNewton(form="products", evidence=True)
    network = Network()
    x = network.input(2)
    network.loss(CrossEntropy(), dense(x, 2))
    network.loss(SquaredError(), dense(x, 1))
    with pytest.raises(DeclarationError, match="losses of one kind"):
        Lifted(network, method=GaussNewton(evidence=True))
    with pytest.raises(DeclarationError, match="a smooth loss on the last pre-activation"):
        LiftedMLP((2, 3, 1), Tanh(), Quantile(), method=GaussNewton(evidence=True))


def test_a_network_whose_matrix_has_no_room_is_refused_before_training() -> None:
    with pytest.raises(DeclarationError, match=r"at most 10,000; this network has 39,760"):
        LiftedMLP((784, 50, 10), loss=SquaredError(), method=GaussNewton(evidence=True))


def test_weights_that_rest_on_an_end_are_as_if_they_were_not_there() -> None:
    """The evidence of a linear network is that of its free inputs alone, by either matrix."""
    x, y = linear(12, 20, 0.3)
    highest = torch.full((20,), torch.inf, dtype=torch.float64)
    ends = torch.where(torch.arange(20) < 14, 0.0, -torch.inf).double(), highest
    target = Target(tight(Identity()), y[:, None, None], torch.ones(12, 1, dtype=torch.bool))

    def layers(weights: Any, data: Any) -> Any:
        answers = data[0] @ weights[0]
        return (answers[:, None],), [(data[0], answers)]

    def of(inputs: Tensor, ends: Any) -> Forward:
        pull = torch.full((inputs.shape[1], 1), 0.8, dtype=torch.float64)
        return Forward(
            lambda w, d: layers(w, d)[0], (inputs,), (target,), (pull,), layers, None, ends
        )

    forward = of(x, ends)
    *_, last = steps(forward, torch.zeros(20, dtype=torch.float64), 1e-9, NormalEquations)
    free = (last.point > 0) | ~ends[0].isfinite()
    assert 6 < int(free.sum()) < 20
    alone = of(x[:, free], None)
    objective = forward.objective(last.point)
    wanted = evidence(alone, NormalEquations(alone, last.point[free]), objective)
    assert wanted is not None
    for form in (NormalEquations, OutputEquations):
        found = evidence(forward, form(forward, last.point), objective)
        assert found is not None
        assert found.logarithm == pytest.approx(wanted.logarithm)
        assert found.rhos == pytest.approx(wanted.rhos)


def test_small_regressions_between_ends_are_trained_together_with_rho_of_the_data() -> None:
    x, y = linear(80, 3, 0.3)
    rising: dict[str, Any] = {"loss": SquaredError(), "monotonic_cst": [0, 0, 1]}
    chosen = LiftedMLP((3, 6, 1), Tanh(), **rising).fit(x, y)
    given = LiftedMLP((3, 6, 1), Tanh(), rho=0.5, **rising).fit(x, y)
    convex = Lifted(input_convex((3, 6, 1))).fit(x, y)
    for model in (chosen, given, convex):
        assert model.trace is not None
        assert {step.solver for step in model.trace.steps} == {"levenberg-marquardt"}
        penalties = [*model.structure.penalties.items()]
        rhos = [penalty.curvature / 2 for _, penalty in penalties]
        assert (rhos == [0.5, 0.5]) == (model is given)
        assert all(rho > 0 for rho in rhos)
        pairs = zip(penalties, model.weights, strict=True)
        assert all(penalty.violation(layer.matrix) == 0 for (_, penalty), layer in pairs)
    assert 2 in certify(chosen).increasing
    assert bool(certify(convex).convex.all())
    regressor = LiftedRegressor((6,), "tanh", monotonic_cst=[0, 0, 1], random_state=0)
    same = LiftedMLP((3, 6, 1), Tanh(), **rising).fit(x, y).forward(x)[:, 0].numpy()
    np.testing.assert_allclose(regressor.fit(x.numpy(), y.numpy()).predict(x.numpy()), same)


@pytest.mark.parametrize("rho", [1e-3, 0.1])
def test_a_rho_that_lets_weights_follow_the_noise_is_raised(rho: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x, unseen = 2 * torch.rand(2, 100, 5, generator=generator, dtype=torch.float64) - 1
    noise = 0.5 * torch.randn(100, generator=generator, dtype=torch.float64)
    right, wanted = 2 * x[:, 0] + x[:, 1].square(), 2 * unseen[:, 0] + unseen[:, 1].square()
    method = GaussNewton(steps=200, evidence=True)
    model = LiftedMLP((5, 60, 1), Tanh(), SquaredError(), rho=rho, method=method)
    model.fit(x, right + noise)
    error = (model.predict(unseen)[:, 0] - wanted).square().mean()
    assert error < 0.3 * noise.square().mean()  # nothing of it is followed beyond 20 or 30 weights


def test_of_a_probability_the_evidence_is_laplace_s_integral() -> None:
    """One weight: -F - log(H / (2 rho)) / 2 at the minimizer, beside the integral itself."""
    x, _ = linear(60, 1, 0.3)
    labels = (x[:, :1] > 0.4).double()
    y = torch.cat([labels, 1 - labels], 1)
    target = Target(CrossEntropy().divergence, y[:, None], torch.ones(60, 1, dtype=torch.bool))
    factors, rho = torch.tensor([[1.0, -1.0]], dtype=torch.float64), 0.7
    forward = Forward(
        lambda weights, data: ((data[0] @ weights[0] @ factors)[:, None],), (x,), (target,),
        (torch.full((1, 1), 2 * rho, dtype=torch.float64),),
    )  # fmt: skip
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    logits = x * grid  # (samples, grid)
    losses = torch.nn.functional.softplus(2 * torch.where(labels > 0, -logits, logits)).sum(0)
    exact = torch.logsumexp(-losses - rho * grid.square(), 0) + (grid[1] - grid[0]).log()
    exact = exact - 0.5 * np.log(np.pi / rho)  # of the prior
    point = grid[(losses + rho * grid.square()).argmin()][None]
    seen = evidence(forward, NormalEquations(forward, point), forward.objective(point))
    assert seen is not None
    assert seen.logarithm == pytest.approx(float(exact), abs=0.02)
    assert seen.noise == 1.0 and seen.degrees == np.inf
    shares = (2 * x * point).sigmoid()
    curved = 4 * float((x.square() * shares * (1 - shares)).sum()) + 2 * rho
    known = 1 - 2 * rho / curved
    assert seen.fitted == pytest.approx(known / 60)
    assert seen.rhos[0] == pytest.approx(known / (2 * float(point) ** 2))


def test_answers_are_counted_by_weights_rows_and_free_outputs() -> None:
    counted = torch.tensor([[True, True], [True, False], [False, False]])
    values, weight = torch.zeros(3, 2, 4), torch.tensor([2.0, 0.5, 7.0]).reshape(3, 1, 1)
    for divergence, outputs in ((tight(Identity()), 4), (CrossEntropy().divergence, 3)):
        target = Target(divergence, values, counted)
        assert count_answers(target) == outputs * 3
        assert count_answers(replace(target, weight=weight.double())) == outputs * 4.5


def test_another_rho_is_of_weights_that_are_pulled_and_the_prior_of_all() -> None:
    pull = torch.tensor([[0.6], [0.6], [0.0]]).double(), torch.tensor([[0.2], [0.0]]).double()
    target = Target(tight(Identity()), torch.zeros(2, 1, 1), torch.ones(2, 1, dtype=torch.bool))
    forward = pulled_by(Forward(lambda w, d: (d[0],), (), (target,), pull), (0.5, 2.0))
    assert [part.flatten().tolist() for part in forward.pull] == [[1.0, 1.0, 0.0], [4.0, 0.0]]
    assert prior_of(forward).tolist() == [1.0, 1.0, 1.0, 4.0, 4.0]  # biases, too
    assert forward.targets[0].precision is None
    precise = pulled_by(forward, (0.5, 2.0), torch.tensor([3.0]).double())
    assert precise.targets[0].precision == 3.0


def test_looks_at_the_evidence_keep_the_best_and_tell_when_it_no_longer_rises() -> None:
    start = torch.zeros(1, dtype=torch.float64)
    place = Place(start, (1.0,), (start, (1.0,)))
    assert place.chosen == (start, (1.0,)) and not place.begins_anew()

    def look(logarithm: float, fitted: float = 0.9) -> None:
        place.point = torch.full((1,), logarithm, dtype=torch.float64)
        place.take(Evidence(logarithm, (place.rhos[0] + 1,), fitted, 1.0, 9.0), None)

    look(-5.0)
    assert (place.stale, place.logarithm, place.fitted) == (0, -5.0, 0.9)
    assert place.chosen == (place.point, (1.0,)) and place.rhos == (2.0,)
    look(-4.995, 0.1)  # no news, but better; the first look is what tells of fitted noise
    assert (place.stale, place.logarithm, place.fitted) == (1, -5.0, 0.9)
    assert float(place.chosen[0]) == -4.995 and place.chosen[1] == (2.0,)
    look(-7.0)
    assert place.stale == 2 and float(place.chosen[0]) == -4.995
    look(-4.0)
    assert place.stale == 0 and place.chosen[1] == (4.0,)
    place.precision = torch.ones(1)
    assert place.begins_anew()  # more than half of the answers were fitted at first
    assert place.point.equal(start) and place.rhos == (10.0,) == place.begin[1]
    assert place.stale == 0 and place.fitted is None and place.precision is None
    assert float(place.chosen[0]) == -4.0  # is kept where it stays the best
    look(-6.0, 0.5)
    assert place.stale == 0 and float(place.chosen[0]) == -4.0
    assert not place.begins_anew()
