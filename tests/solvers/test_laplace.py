"""The evidence and Laplace's approximation: Gaussian densities, dense inverses, scikit-learn."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import BayesianRidge
from torch import Tensor
from torch.distributions import MultivariateNormal

from liftednet import Network, posterior
from liftednet.activations import Identity, Softmax, Tanh
from liftednet.divergences import Divergence, tight
from liftednet.errors import DeclarationError
from liftednet.layers import dense
from liftednet.losses import CrossEntropy, Quantile, SquaredError
from liftednet.models import GaussNewton, Lifted, LiftedMLP
from liftednet.models.results import Ending
from liftednet.penalties import SquaredFrobenius
from liftednet.solvers.gauss_newton import evidence as evidences
from liftednet.solvers.gauss_newton.covariance import unpacked_covariance
from liftednet.solvers.gauss_newton.equations import NormalEquations, OutputEquations, answers
from liftednet.solvers.gauss_newton.evidence import evidence, prior_of
from liftednet.solvers.gauss_newton.laplace import averaged, laplace, share_of
from liftednet.solvers.gauss_newton.objective import Forward
from liftednet.solvers.gauss_newton.steps import steps
from tests.draws import normal
from tests.models.networks import refuses, trace_of
from tests.models.registry import BY_NAME
from tests.solvers.forwards import linear as linear_network
from tests.solvers.forwards import target

RHO = 0.4
SOFTMAX = CrossEntropy().divergence


linear = partial(linear_network, pull=2 * RHO)


def there(found: Any) -> Any:
    assert found is not None
    return found


def system_of(x: Tensor) -> Tensor:
    """Return X'X + 2 rho."""
    return x.T @ x + 2 * RHO * torch.eye(x.shape[1], dtype=torch.float64)


def solved(x: Tensor, y: Tensor) -> Any:
    return torch.linalg.solve(system_of(x), x.T @ y)


@pytest.mark.parametrize("samples", [40, 7])  # more and fewer than weights
def test_the_covariance_is_the_inverse_of_h(samples: int) -> None:
    x, y = normal(samples, 15), normal(samples, 1, seed=1)
    forward = linear(x, y)
    wanted, prior = torch.linalg.inv(system_of(x)), prior_of(forward)
    for form in (NormalEquations, OutputEquations):
        found = there(form(forward, torch.zeros(15, dtype=torch.float64)).covariance(prior))
        rows, units = normal(4, 15, seed=2), torch.eye(15, dtype=torch.float64)
        images = found.image(rows)
        torch.testing.assert_close(images @ images.T, rows @ wanted @ rows.T)
        torch.testing.assert_close(found.draw(units).T @ found.draw(units), wanted)
        torch.testing.assert_close(unpacked_covariance(found.packed()).image(rows), images)


def test_a_linear_network_has_the_posterior_of_bayesian_regression() -> None:
    x, y = normal(25, 4), normal(25, 1, seed=1) + 2 * normal(25, 4)[:, :1]
    point, forward = solved(x, y)[:, 0], linear(x, y)
    found, inverse = there(laplace(forward, point)), torch.linalg.inv(system_of(x))
    known = float((x.T @ x @ inverse).trace())
    noise = float((y[:, 0] - x @ point).square().sum()) / (25 - known)
    assert found.degrees == pytest.approx(25 - known)
    assert found.scale == pytest.approx(noise)
    assert float(found.noise) == pytest.approx(noise)
    unseen = normal(9, 4, seed=3)
    ((outputs, covariances),) = found.outputs(replace(forward, data=(unseen,), targets=()))
    torch.testing.assert_close(outputs[:, 0, 0], unseen @ point)
    wanted = noise * (unseen @ inverse @ unseen.T).diagonal()
    torch.testing.assert_close(covariances[:, 0, 0, 0], wanted)
    equations = NormalEquations(forward, point)  # whose density the evidence has, see below
    seen = there(evidence(forward, equations, forward.objective(point)))
    assert found.logarithm == pytest.approx(seen.logarithm)


def hidden(x: Tensor, y: Tensor, loss: Divergence) -> tuple[Forward, Tensor]:
    """u = [tanh(X W), 1] V, and a point."""

    def layers(weights, data):
        first = data[0] @ weights[0]
        rows = torch.cat([first.tanh(), first.new_ones(len(first), 1)], 1)
        u = rows @ weights[1]
        return (u[:, None],), [(data[0], first), (rows, u)]

    shapes = [(x.shape[1], 5), (6, y.shape[1])]
    pull = tuple(torch.full(shape, 2 * RHO, dtype=torch.float64) for shape in shapes)
    forward = Forward(lambda w, d: layers(w, d)[0], (x,), (target(loss, y),), pull, layers)
    return forward, torch.cat([normal(*shape, seed=7).flatten() for shape in shapes])


@pytest.mark.parametrize("by_layers", [True, False])
@pytest.mark.parametrize("loss", [tight(Identity()), SOFTMAX])
def test_of_the_last_layer_alone_h_is_the_hessian_in_it(loss: Divergence, by_layers: bool) -> None:
    x, y = normal(40, 3), torch.eye(2, dtype=torch.float64)[torch.arange(40) % 2]
    forward, point = hidden(x, y, loss)
    if not by_layers:
        forward = replace(forward, layers=None)
    found = there(laplace(forward, point, among=(1,)))

    def objective(last: Tensor) -> Tensor:  # the network is linear in it: H leaves nothing out
        (u,) = forward.outputs(forward.split(torch.cat([point[:15], last])), (x,))
        if loss is SOFTMAX:
            return torch.nn.functional.cross_entropy(u[:, 0], y, reduction="sum")
        return (u[:, 0] - y).square().sum() / 2

    bent = torch.autograd.functional.hessian(objective, point[15:])
    wanted = found.scale * torch.linalg.inv(bent + 2 * RHO * torch.eye(12, dtype=torch.float64))
    if found.noise.any():  # of two outputs whose noise is not the same
        weights = (found.scale / found.noise).repeat(6)
        system = bent * weights.outer(weights).sqrt()
        wanted = found.scale * torch.linalg.inv(system + 2 * RHO * torch.eye(12).double())
    unseen = replace(forward, data=(normal(7, 3, seed=4),), targets=())
    ((outputs, covariances),) = found.outputs(unseen)
    (u,) = forward.outputs(forward.split(point), unseen.data)
    torch.testing.assert_close(outputs, u)
    rows = torch.cat([(unseen.data[0] @ forward.split(point)[0]).tanh(), u.new_ones(7, 1)], 1)
    jacobian = torch.einsum("np,kl->nkpl", rows, torch.eye(2).double()).flatten(2)
    torch.testing.assert_close(covariances[:, 0], jacobian @ wanted @ jacobian.mT)


def test_rho_chosen_afterwards_are_where_the_evidence_stands_still() -> None:
    x, y = normal(60, 3), normal(60, 1, seed=1)
    forward, point = hidden(x, y, tight(Identity()))
    found = there(laplace(forward, point, chosen=True))
    jacobian = torch.func.jacrev(lambda w: forward.outputs(forward.split(w), (x,))[0].flatten())
    rows, draws = jacobian(point), found.covariance.draw(torch.eye(21).double())
    prior = (torch.linalg.inv(draws.T @ draws) - rows.T @ rows).diagonal()
    known = (1 - prior * (draws.T @ draws).diagonal()).split([15, 6])
    (u,) = forward.outputs(forward.split(point), (x,))
    noise = float((u[:, 0] - y).square().sum()) / (60 - sum(float(part.sum()) for part in known))
    assert found.scale == pytest.approx(noise, rel=1e-3)
    for own, part, weights in zip(prior.split([15, 6]), known, point.split([15, 6]), strict=True):
        asked = float(part.sum()) * noise / float(weights.square().sum())  # 2 rho
        torch.testing.assert_close(own, torch.full_like(own, asked), rtol=1e-2, atol=0)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("one", [False, True])  # copy of two, or all of them
def test_what_a_row_is_off_by_without_it_is_what_fits_without_it_leave(twice, one) -> None:
    x, y = normal(20, 3), normal(20, 1, seed=1)
    weight = torch.ones(20, 1, 1, dtype=torch.float64)
    weight[4] += twice
    copies = [*range(20), *([4] if twice else [])]
    forward, point = linear(x, y, weight=weight), solved(x[copies], y[copies])[:, 0]
    found, each = (
        there(laplace(one, point)) for one in (forward, linear(x[copies], y[copies]))
    )  # a row of weight two counts as two
    assert found.logarithm == pytest.approx(each.logarithm)
    assert found.degrees == pytest.approx(each.degrees)
    torch.testing.assert_close(found.noise, each.noise)
    ((without, wider),) = found.left_out(forward, copies=one)
    for row in (0, 4, 19):
        others = [number for number in copies if number != row]
        if row == 4 and one and twice:
            others.append(row)
        torch.testing.assert_close(without[row], x[row] @ solved(x[others], y[others]))
        width = found.scale * x[row] @ torch.linalg.inv(system_of(x[others])) @ x[row]
        torch.testing.assert_close(wider[row, 0, 0], width)


@pytest.mark.parametrize("met", [False, True])  # the last output by its weights
def test_the_noise_of_an_output_is_over_what_its_weights_leave(met: bool) -> None:
    """|r_k|^2 / (N - gamma_k), of samples that weigh, where precisions free weights unlike."""
    x, c = normal(40, 12), 0.5 + torch.rand(40, generator=torch.Generator().manual_seed(3)).double()
    y, point = normal(40, 3, seed=1), normal(12, 3, seed=2)
    if met:
        y[:, 2] = x @ point[:, 2]
    forward = linear(x, y, weight=c.view(-1, 1, 1))
    precision, noise = torch.tensor([0.001, 100.0, 1.0]).double(), []
    forward = replace(forward, targets=(replace(forward.targets[0], precision=precision),))
    for k in range(3):
        weighed = precision[k] * c[:, None] * x
        inverse = torch.linalg.inv(weighed.T @ x + 2 * RHO * torch.eye(12, dtype=torch.float64))
        left = c.sum() - (weighed * (x @ inverse)).sum()
        noise.append((c * (y - x @ point)[:, k].square()).sum() / left)
    wanted = torch.stack(noise)
    wanted = wanted.clamp(min=float(wanted.max()) * evidences._LEAST_SHARE)
    found = there(evidences.precision_of(forward, NormalEquations(forward, point.flatten())))
    torch.testing.assert_close(found, wanted.log().mean().exp() / wanted)


def test_probabilities_of_two_classes_are_those_of_an_integral() -> None:
    mean = torch.tensor([[0.3, -1.2], [2.0, 0.0]], dtype=torch.float64)
    half = normal(2, 2, 2)
    covariance = half @ half.mT
    found = averaged(Softmax().forward, mean, covariance)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, dtype=torch.float64))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for row in range(2):
        contrast = torch.tensor([1.0, -1.0], dtype=torch.float64)
        center, width = float(contrast @ mean[row]), float(contrast @ covariance[row] @ contrast)
        right = weights @ (1 / (1 + np.exp(-center - np.sqrt(width) * nodes))) / weights.sum()
        assert float(found[row, 0]) == pytest.approx(right, abs=2e-3)


def test_what_all_logits_share_moves_no_probability() -> None:
    mean = torch.tensor([[1.0, 0.0, -2.0]], dtype=torch.float64)
    found = averaged(Softmax().forward, mean, torch.full((1, 3, 3), 50.0, dtype=torch.float64))
    torch.testing.assert_close(found, mean.softmax(-1))


def test_draws_have_the_covariance_of_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftednet.solvers.gauss_newton.equations._JACOBIAN_BYTES", 64)  # by parts
    x, y = normal(25, 4), normal(25, 1, seed=1)
    forward = linear(x, y)
    found = there(laplace(forward, solved(x, y)[:, 0]))
    new = replace(forward, data=(normal(3, 4, seed=3),), targets=())
    drawn = found.draws(new, 4000, torch.Generator().manual_seed(0))[..., 0, 0]
    wanted = found.scale * new.data[0] @ torch.linalg.inv(system_of(x)) @ new.data[0].T
    # standard errors of a mean and of a variance, at one in a million
    far = norm.isf(1e-6)
    error = (drawn.mean(0) - new.data[0] @ found.point) / wanted.diagonal().sqrt()
    assert float(error.abs().max()) < far / 4000**0.5
    assert float((drawn.var(0) / wanted.diagonal() - 1).abs().max()) < far * (2 / 4000) ** 0.5


def drawn(samples: int, units: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = normal(samples, units, seed=generator)
    right = torch.linspace(-1, 1, units, dtype=torch.float64)
    return x, x @ right + noise * normal(samples, seed=generator)


def test_the_evidence_of_a_linear_network_is_a_gaussian_density() -> None:
    x, y = drawn(12, 3, 0.3)
    plain = linear(x, y[:, None])
    found, right = [], []
    for rho in (0.05, 0.4, 3.0):
        forward = evidences.pulled_by(plain, (rho,))
        prior = 2 * rho * torch.eye(3, dtype=torch.float64)
        point = torch.linalg.solve(x.T @ x + prior, x.T @ y)
        seen = there(evidence(forward, NormalEquations(forward, point), forward.objective(point)))
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


@pytest.mark.parametrize(("heads", "outputs"), [(1, 1), (1, 2), (2, 2)])  # of the same answers
def test_rho_of_a_linear_network_is_that_of_bayesian_ridge(heads: int, outputs: int) -> None:
    x, y = drawn(60, 5, 0.7)
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
    assert trace_of(model).ending is Ending.CONVERGED
    assert len(trace_of(model).steps) < 200
    if heads == 1:
        unseen = 3 * normal(7, 5, seed=2)
        found = posterior(model).predict(unseen)
        mean, std = right.predict(unseen.numpy(), return_std=True)
        for column in range(outputs):
            np.testing.assert_allclose(found.mean[:, column], mean, rtol=1e-2, atol=1e-3)
            np.testing.assert_allclose(found.std[:, column], std, rtol=1e-2)
            np.testing.assert_allclose(found.noise[:, column], right.alpha_**-0.5, rtol=1e-2)


def test_steps_whose_evidence_is_lost_in_rounding_say_that_they_have_not_ended(monkeypatch) -> None:
    x, y = drawn(40, 3, 0.2)
    model = LiftedMLP((3, 4, 1), Tanh(), SquaredError(), method=GaussNewton(evidence=True))
    monkeypatch.setattr("liftednet.solvers.gauss_newton.evidence.evidence", lambda *_: None)
    model.fit(x, y)
    assert trace_of(model).ending is Ending.STALLED


def test_what_has_no_evidence_is_refused() -> None:
    method = GaussNewton(evidence=True)
    refuses(DeclarationError, "needs the determinant", GaussNewton, form="products", evidence=True)
    network = BY_NAME["two of each"].network()
    refuses(DeclarationError, "losses of one kind", Lifted, network, method=method)
    words = "a smooth loss on the last pre-activation"
    refuses(DeclarationError, words, LiftedMLP, (2, 3, 1), Tanh(), Quantile(), method=method)
    words, many = r"at most 10,000; this network has 39,760", (784, 50, 10)
    refuses(DeclarationError, words, LiftedMLP, many, loss=SquaredError(), method=method)


def test_weights_that_rest_on_an_end_are_as_if_they_were_not_there() -> None:
    """A linear network is that of its free inputs alone, by either matrix; the others stand."""
    x, y = drawn(12, 20, 0.3)
    highest = torch.full((20,), torch.inf, dtype=torch.float64)
    ends = torch.where(torch.arange(20) < 14, 0.0, -torch.inf).double(), highest
    forward = replace(linear(x, y[:, None]), ends=ends)
    *_, last = steps(forward, torch.zeros(20, dtype=torch.float64), 1e-9, NormalEquations)
    free = (last.point > 0) | ~ends[0].isfinite()
    assert 6 < int(free.sum()) < 20
    alone = linear(x[:, free], y[:, None])
    objective = forward.objective(last.point)
    wanted = there(evidence(alone, NormalEquations(alone, last.point[free]), objective))
    inverse = torch.linalg.inv(system_of(x[:, free]))
    for form in (NormalEquations, OutputEquations):
        equations = form(forward, last.point)
        found = there(evidence(forward, equations, objective))
        assert found.logarithm == pytest.approx(wanted.logarithm)
        assert found.rhos == pytest.approx(wanted.rhos)
        held = there(equations.covariance(prior_of(forward)))
        assert not held.draw(normal(3, 20))[:, ~free].any()
        images = held.image(torch.eye(20, dtype=torch.float64))[free]
        torch.testing.assert_close(images @ images.T, inverse)


def test_of_a_probability_the_evidence_is_laplace_s_integral() -> None:
    """One weight: -F - log(H / (2 rho)) / 2 at the minimizer, beside the integral itself."""
    x, _ = drawn(60, 1, 0.3)
    labels = (x[:, :1] > 0.4).double()
    y = torch.cat([labels, 1 - labels], 1)
    factors, rho = torch.tensor([[1.0, -1.0]], dtype=torch.float64), 0.7
    forward = Forward(
        lambda weights, data: ((data[0] @ weights[0] @ factors)[:, None],), (x,),
        (target(SOFTMAX, y),),
        (torch.full((1, 1), 2 * rho, dtype=torch.float64),),
    )  # fmt: skip
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    logits = x * grid  # (samples, grid)
    losses = torch.nn.functional.softplus(2 * torch.where(labels > 0, -logits, logits)).sum(0)
    exact = torch.logsumexp(-losses - rho * grid.square(), 0) + (grid[1] - grid[0]).log()
    exact = exact - 0.5 * np.log(np.pi / rho)  # of the prior
    point = grid[(losses + rho * grid.square()).argmin()][None]
    seen = there(evidence(forward, NormalEquations(forward, point), forward.objective(point)))
    assert seen.logarithm == pytest.approx(float(exact), abs=0.02)
    assert seen.noise == 1.0 and seen.degrees == np.inf
    shares = (2 * x * point).sigmoid()
    known = 1 - 2 * rho / (4 * float((x.square() * shares * (1 - shares)).sum()) + 2 * rho)
    assert seen.fitted == pytest.approx(known / 60)
    assert seen.rhos[0] == pytest.approx(known / (2 * float(point) ** 2))


def test_where_labels_are_met_with_certainty_there_is_no_evidence() -> None:
    """H is that of the prior there: any labels that are met would have nearly the evidence 0."""
    x = torch.cat([normal(40, 3), torch.eye(40, dtype=torch.float64)], 1)
    noise = torch.rand(40, generator=torch.Generator().manual_seed(3)) < 0.5
    labels = torch.stack([noise, ~noise], 1).double()
    soft = labels.clamp(0.2, 0.8)  # which can be met without being certain

    def logarithms(y: Tensor, logits: Tensor) -> tuple[float, float]:
        forward = linear_network(x, y, 1e-6, SOFTMAX)
        point = (torch.linalg.pinv(x) @ logits).flatten()
        model = NormalEquations(forward, point)
        objective, shares = forward.objective(point), logits.softmax(1)
        bent = shares.diag_embed() - shares[:, :, None] * shares[:, None]
        told = torch.einsum("np,nq,nkl->pkql", x, x, bent).reshape(86, 86)
        volume = torch.logdet(told / 1e-6 + torch.eye(86, dtype=torch.float64))
        by_outputs = OutputEquations(forward, point)
        assert len(by_outputs.rows) == answers(forward) == 40  # the second class is told by one
        seen, same = (there(evidence(forward, m, objective)) for m in (model, by_outputs))
        assert same.logarithm == pytest.approx(seen.logarithm)
        assert same.rhos == pytest.approx(seen.rhos)
        return seen.logarithm, -objective - float(volume) / 2

    assert logarithms(labels, 30 * labels)[0] == -np.inf
    for y, logits in ((labels, 5 * labels), (soft, soft.log())):
        found, wanted = logarithms(y, logits)
        assert found == pytest.approx(wanted)


def test_of_many_samples_a_thousand_tell_how_far_probabilities_are_averaged() -> None:
    x = normal(2500, 2)
    chances = (3 * x @ normal(2, 2, seed=1)).softmax(-1)
    drawn = torch.rand(2500, generator=torch.Generator().manual_seed(2)) < chances[:, 0]
    forward = linear(x, torch.stack([drawn, ~drawn], 1).double(), loss=SOFTMAX)
    found = there(laplace(forward, (3 * normal(2, 2, seed=1)).flatten()))
    assert found.noise.tolist() == [0.0, 0.0]  # it is in the probabilities
    left = torch.arange(2500) % 3 != 0  # every third is looked at
    hidden = replace(forward, data=(x.masked_fill(left[:, None], torch.nan),))
    third = replace(forward, data=(x[::3],), targets=(forward.targets[0].take(slice(0, None, 3)),))
    assert share_of(found, hidden) == share_of(found, third) > 0


def test_a_rho_that_lets_weights_follow_the_noise_is_raised() -> None:
    generator = torch.Generator().manual_seed(3)
    x, unseen = 2 * torch.rand(2, 100, 5, generator=generator, dtype=torch.float64) - 1
    noise = 0.5 * normal(100, seed=generator)
    right, wanted = 2 * x[:, 0] + x[:, 1].square(), 2 * unseen[:, 0] + unseen[:, 1].square()
    method = GaussNewton(steps=200, evidence=True)
    model = LiftedMLP((5, 60, 1), Tanh(), SquaredError(), rho=1e-3, method=method)
    model.fit(x, right + noise)
    error = (model.predict(unseen)[:, 0] - wanted).square().mean()
    assert error < 0.3 * noise.square().mean()  # nothing of it is followed beyond 20 or 30 weights
