"""Laplace's approximation: against Gaussian densities, inverses of dense matrices, integrals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor
from torch.distributions import MultivariateNormal

from liftednet.activations import Identity, Softmax
from liftednet.divergences import Divergence, tight
from liftednet.losses import CrossEntropy
from liftednet.solvers.gauss_newton.covariance import unpacked_covariance
from liftednet.solvers.gauss_newton.equations import NormalEquations, OutputEquations
from liftednet.solvers.gauss_newton.evidence import (
    _LEAST_SHARE,
    evidence,
    precision_of,
    prior_of,
)
from liftednet.solvers.gauss_newton.laplace import averaged, laplace, share_of
from liftednet.solvers.gauss_newton.objective import Forward, Target

RHO = 0.4
SOFTMAX = CrossEntropy().divergence


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def linear(x: Tensor, y: Tensor, weight: float | Tensor = 1.0) -> Forward:
    """u = X W, of which every output has weights of its own."""

    def layers(weights, data):
        u = data[0] @ weights[0]
        return (u[:, None],), [(data[0], u)]

    target = Target(tight(Identity()), y[:, None], torch.ones(len(x), 1, dtype=torch.bool), weight)
    pull = torch.full((x.shape[1], y.shape[1]), 2 * RHO, dtype=torch.float64)
    return Forward(lambda w, d: layers(w, d)[0], (x,), (target,), (pull,), layers)


def solved(x: Tensor, y: Tensor) -> Tensor:
    system = x.T @ x + 2 * RHO * torch.eye(x.shape[1], dtype=torch.float64)
    found: Tensor = torch.linalg.solve(system, x.T @ y)
    return found


@pytest.mark.parametrize("samples", [40, 7])  # more and fewer than weights
def test_the_covariance_is_the_inverse_of_h(samples: int) -> None:
    x, y = normal(samples, 15), normal(samples, 1, seed=1)
    forward = linear(x, y)
    wanted = torch.linalg.inv(x.T @ x + 2 * RHO * torch.eye(15, dtype=torch.float64))
    for form in (NormalEquations, OutputEquations):
        found = form(forward, torch.zeros(15, dtype=torch.float64)).covariance(prior_of(forward))
        assert found is not None
        rows, units = normal(4, 15, seed=2), torch.eye(15, dtype=torch.float64)
        images = found.image(rows)
        torch.testing.assert_close(images @ images.T, rows @ wanted @ rows.T)
        torch.testing.assert_close(found.draw(units).T @ found.draw(units), wanted)
        again = unpacked_covariance(found.packed())
        torch.testing.assert_close(again.image(rows), images)


def test_weights_that_are_held_do_not_move() -> None:
    x, y = normal(30, 6), normal(30, 1, seed=1)
    point = torch.cat([torch.zeros(2, dtype=torch.float64), solved(x[:, 2:], y)[:, 0]])
    # columns that the data would like to use with a negative weight
    x[:, :2] *= -(x[:, :2].T @ (y[:, 0] - x @ point)).sign()
    lowest = torch.tensor([0.0, 0.0, *4 * [-torch.inf]], dtype=torch.float64)
    forward = replace(linear(x, y), ends=(lowest, torch.full_like(lowest, torch.inf)))
    alone = torch.linalg.inv(x[:, 2:].T @ x[:, 2:] + 2 * RHO * torch.eye(4, dtype=torch.float64))
    for form in (NormalEquations, OutputEquations):
        found = form(forward, point).covariance(prior_of(forward))
        assert found is not None
        assert not found.draw(normal(3, 6))[:, :2].any()
        images = found.image(torch.eye(6, dtype=torch.float64))
        torch.testing.assert_close(images[2:] @ images[2:].T, alone)


def test_a_linear_network_has_the_posterior_of_bayesian_regression() -> None:
    x, y = normal(25, 4), normal(25, 1, seed=1) + 2 * normal(25, 4)[:, :1]
    point, forward = solved(x, y)[:, 0], linear(x, y)
    found = laplace(forward, point)
    assert found is not None
    inverse = torch.linalg.inv(x.T @ x + 2 * RHO * torch.eye(4, dtype=torch.float64))
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
    density = torch.eye(25, dtype=torch.float64) + x @ x.T / (2 * RHO)
    density *= y[:, 0] @ torch.linalg.solve(density, y[:, 0]) / 25  # at its most likely scale
    right = MultivariateNormal(torch.zeros(25, dtype=torch.float64), density).log_prob(y[:, 0])
    assert found.logarithm == pytest.approx(float(right))


def test_what_nothing_pulls_is_as_open_as_without_its_rho() -> None:
    """A constant beside weights that a large rho holds at 0: the mean, known to s / N."""
    x, y = normal(25, 4), normal(25, 1, seed=1)
    x[:, 0] = 1
    forward = linear(x, y)
    pull = torch.full((4, 1), 1e9, dtype=torch.float64)
    pull[0] = 0
    point = torch.tensor([float(y.mean()), 0, 0, 0], dtype=torch.float64)
    found = laplace(replace(forward, pull=(pull,)), point)
    assert found is not None
    ((_, covariances),) = found.outputs(replace(forward, targets=()))
    # A pull of a thousandth of the answers is left for the sake of constants that tell nothing.
    wanted = torch.full((25,), found.scale / 25, dtype=torch.float64)
    torch.testing.assert_close(covariances[:, 0, 0, 0], wanted, rtol=2e-3, atol=0)


def hidden(x: Tensor, y: Tensor, loss: Divergence) -> tuple[Forward, Tensor]:
    """u = [tanh(X W), 1] V, and a point."""

    def layers(weights, data):
        first = data[0] @ weights[0]
        rows = torch.cat([first.tanh(), first.new_ones(len(first), 1)], 1)
        u = rows @ weights[1]
        return (u[:, None],), [(data[0], first), (rows, u)]

    target = Target(loss, y[:, None], torch.ones(len(x), 1, dtype=torch.bool))
    shapes = [(x.shape[1], 5), (6, y.shape[1])]
    pull = tuple(torch.full(shape, 2 * RHO, dtype=torch.float64) for shape in shapes)
    forward = Forward(lambda w, d: layers(w, d)[0], (x,), (target,), pull, layers)
    return forward, torch.cat([normal(*shape, seed=7).flatten() for shape in shapes])


@pytest.mark.parametrize("by_layers", [True, False])
@pytest.mark.parametrize("loss", [tight(Identity()), SOFTMAX])
def test_of_the_last_layer_alone_h_is_the_hessian_in_it(loss: Divergence, by_layers: bool) -> None:
    x, y = normal(40, 3), torch.eye(2, dtype=torch.float64)[torch.arange(40) % 2]
    forward, point = hidden(x, y, loss)
    if not by_layers:
        forward = replace(forward, layers=None)
    found = laplace(forward, point, among=(1,))
    assert found is not None

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
    found = laplace(forward, point, chosen=True)
    assert found is not None
    jacobian = torch.func.jacrev(lambda w: forward.outputs(forward.split(w), (x,))[0].flatten())
    rows, draws = jacobian(point), found.covariance.draw(torch.eye(21).double())
    system = torch.linalg.inv(draws.T @ draws)
    prior = (system - rows.T @ rows).diagonal()
    known = (1 - prior * (draws.T @ draws).diagonal()).split([15, 6])
    (u,) = forward.outputs(forward.split(point), (x,))
    noise = float((u[:, 0] - y).square().sum()) / (60 - sum(float(part.sum()) for part in known))
    assert found.scale == pytest.approx(noise, rel=1e-3)
    for own, part, weights in zip(prior.split([15, 6]), known, point.split([15, 6]), strict=True):
        asked = float(part.sum()) * noise / float(weights.square().sum())  # 2 rho
        torch.testing.assert_close(own, torch.full_like(own, asked), rtol=1e-2, atol=0)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("one", [False, True])  # copy of two, or all of them
def test_what_a_row_is_off_by_without_it_is_what_fits_without_it_leave(
    twice: bool, one: bool
) -> None:
    x, y = normal(20, 3), normal(20, 1, seed=1)
    weight = torch.ones(20, 1, 1, dtype=torch.float64)
    weight[4] += twice
    copies = [*range(20), *([4] if twice else [])]
    forward = linear(x, y, weight)
    found = laplace(forward, solved(x[copies], y[copies])[:, 0])
    assert found is not None
    ((without, wider),) = found.left_out(forward, copies=one)
    for row in (0, 4, 19):
        others = [number for number in copies if number != row]
        if row == 4 and one and twice:
            others.append(row)
        torch.testing.assert_close(without[row], x[row] @ solved(x[others], y[others]))
        system = x[others].T @ x[others] + 2 * RHO * torch.eye(3, dtype=torch.float64)
        width = found.scale * x[row] @ torch.linalg.inv(system) @ x[row]
        torch.testing.assert_close(wider[row, 0, 0], width)


def test_a_row_of_weight_two_counts_as_two() -> None:
    x, y = normal(20, 3), normal(20, 2, seed=1)
    copies = [*range(20), 4]
    weight = torch.ones(20, 1, 1, dtype=torch.float64)
    weight[4] = 2.0
    point = solved(x[copies], y[copies]).flatten()
    one, two = laplace(linear(x, y, weight), point), laplace(linear(x[copies], y[copies]), point)
    assert one is not None
    assert two is not None
    assert one.logarithm == pytest.approx(two.logarithm)
    assert one.degrees == pytest.approx(two.degrees)
    torch.testing.assert_close(one.noise, two.noise)


def test_every_output_has_a_noise_of_its_own() -> None:
    """Where outputs share no weights, they are regressions of their own but for their rho."""
    x = normal(300, 3)
    y = x @ normal(3, 2, seed=1) + normal(300, 2, seed=2) * torch.tensor([0.1, 3.0])
    forward = linear(x, y)
    found = laplace(forward, solved(x, y).flatten())
    assert found is not None
    np.testing.assert_allclose(found.noise.sqrt(), [0.1, 3.0], rtol=0.15)
    # with these noises, and the weights that are best by them, it is the density of both together
    ratio, right, best = found.scale / found.noise, 0.0, []
    for output, precision in enumerate(ratio):
        covariance = float(found.noise[output]) * torch.eye(300) + found.scale / (2 * RHO) * x @ x.T
        density = MultivariateNormal(torch.zeros(300, dtype=torch.float64), covariance)
        right += float(density.log_prob(y[:, output]))
        system = precision * x.T @ x + 2 * RHO * torch.eye(3, dtype=torch.float64)
        best.append(torch.linalg.solve(system, precision * x.T @ y[:, output]))
    point = torch.stack(best, 1).flatten()
    weighed = replace(forward, targets=(replace(forward.targets[0], precision=ratio),))
    model = NormalEquations(weighed, point)
    seen, asked = evidence(weighed, model, weighed.objective(point)), precision_of(weighed, model)
    assert seen is not None
    assert asked is not None
    assert seen.logarithm == pytest.approx(right, rel=1e-4)  # with the noise of these weights
    torch.testing.assert_close(asked, ratio, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("met", [False, True])  # the last output by its weights
def test_the_noise_of_an_output_is_over_what_its_weights_leave(met: bool) -> None:
    """|r_k|^2 / (N - gamma_k), of samples that weigh, where precisions free weights unlike."""
    x, c = normal(40, 12), 0.5 + torch.rand(40, generator=torch.Generator().manual_seed(3)).double()
    y, point = normal(40, 3, seed=1), normal(12, 3, seed=2)
    if met:
        y[:, 2] = x @ point[:, 2]
    forward, precision = linear(x, y, c.view(-1, 1, 1)), torch.tensor([0.001, 100.0, 1.0]).double()
    target = replace(forward.targets[0], precision=precision)
    forward, noise = replace(forward, targets=(target,)), []
    for k in range(3):
        weighed = precision[k] * c[:, None] * x
        inverse = torch.linalg.inv(weighed.T @ x + 2 * RHO * torch.eye(12, dtype=torch.float64))
        left = c.sum() - (weighed * (x @ inverse)).sum()
        noise.append((c * (y - x @ point)[:, k].square()).sum() / left)
    wanted = torch.stack(noise)
    wanted = wanted.clamp(min=float(wanted.max()) * _LEAST_SHARE)
    found = precision_of(forward, NormalEquations(forward, point.flatten()))
    assert found is not None
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


def test_of_many_samples_a_thousand_tell_how_far_probabilities_are_averaged() -> None:
    x = normal(2500, 2)
    chances = (3 * x @ normal(2, 2, seed=1)).softmax(-1)
    drawn = torch.rand(2500, generator=torch.Generator().manual_seed(2)) < chances[:, 0]
    y = torch.stack([drawn, ~drawn], 1).double()
    forward = linear(x, y)
    forward = replace(forward, targets=(replace(forward.targets[0], divergence=SOFTMAX),))
    found = laplace(forward, (3 * normal(2, 2, seed=1)).flatten())
    assert found is not None
    assert found.noise.tolist() == [0.0, 0.0]  # it is in the probabilities
    left = torch.arange(2500) % 3 != 0  # every third is looked at
    hidden = replace(forward, data=(x.masked_fill(left[:, None], torch.nan),))
    third = replace(forward, data=(x[::3],), targets=(forward.targets[0].take(slice(0, None, 3)),))
    assert share_of(found, hidden) == share_of(found, third) > 0


def test_what_all_logits_share_moves_no_probability() -> None:
    mean = torch.tensor([[1.0, 0.0, -2.0]], dtype=torch.float64)
    found = averaged(Softmax().forward, mean, torch.full((1, 3, 3), 50.0, dtype=torch.float64))
    torch.testing.assert_close(found, mean.softmax(-1))


def test_draws_have_the_covariance_of_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftednet.solvers.gauss_newton.equations._JACOBIAN_BYTES", 64)  # by parts
    x, y = normal(25, 4), normal(25, 1, seed=1)
    forward = linear(x, y)
    found = laplace(forward, solved(x, y)[:, 0])
    assert found is not None
    new = replace(forward, data=(normal(3, 4, seed=3),), targets=())
    drawn = found.draws(new, 4000, torch.Generator().manual_seed(0))[..., 0, 0]
    inverse = torch.linalg.inv(x.T @ x + 2 * RHO * torch.eye(4, dtype=torch.float64))
    wanted = found.scale * new.data[0] @ inverse @ new.data[0].T
    # standard errors of a mean and of a variance, at one in a million
    far = norm.isf(1e-6)
    error = (drawn.mean(0) - new.data[0] @ found.point) / wanted.diagonal().sqrt()
    assert float(error.abs().max()) < far / 4000**0.5
    ratio = drawn.var(0) / wanted.diagonal()
    assert float((ratio - 1).abs().max()) < far * (2 / 4000) ** 0.5
