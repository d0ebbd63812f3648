"""Inversion, exact ranges and robustness radii: against pieces, grids and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from liftednet import LiftedClassifier, LiftedRegressor, certify, invert, robustness_radius
from liftednet.errors import DataError, DeclarationError, SolverError
from tests.models.networks import refuses
from tests.models.programs.networks import Called, drawn, grid, stated, values

RNG = np.random.default_rng(0)


def test_an_input_is_found_and_all_others_on_its_piece() -> None:
    network = drawn(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2))
    x, program = stated(network, 4)
    wanted = values(network, [0.3, -0.2, 0.1, 0.4])[0]
    found = invert(program, wanted, prior=np.zeros(4), constraints=[x[0] >= 0.1])
    np.testing.assert_allclose(values(network, found.x)[0], wanted, atol=1e-6)
    assert found.x[0] >= 0.1 - 1e-7
    assert np.linalg.norm(found.x) <= np.linalg.norm([0.3, -0.2, 0.1, 0.4]) + 1e-9
    assert found.optimum.proven and found.optimum.bound <= found.optimum.value
    assert found.optimum.gap <= 1e-2
    assert found.rows is not None and found.high is not None
    assert (found.rows @ found.x <= found.high + 1e-7).all()
    others = found.x + 0.02 * RNG.normal(size=(400, 4))
    inside = (others @ found.rows.T <= found.high).all(1)
    assert inside.any()
    affine = others[inside] @ found.slopes.T + found.offset
    np.testing.assert_allclose(affine, values(network, others[inside]), atol=1e-9)


def test_an_output_that_no_input_gives_is_told() -> None:
    network = drawn(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    x, program = stated(network, 2)
    refuses(SolverError, "no input meets", invert, program, [1e3])
    refuses(DataError, "shape", invert, program, [1.0, 2.0])
    refuses(DeclarationError, "prior must be one number", invert, program, [1.0], prior=x)
    refuses(DeclarationError, "must be a list", invert, program, [1.0], constraints=None)
    _, several = stated(network, (2, 2))
    refuses(DeclarationError, "one sample", invert, several, np.zeros((2, 1)))
    _, far = stated(drawn(nn.Linear(2, 4), nn.Tanh()), 2)
    refuses(SolverError, "no input meets", invert, far, [0.9, 0.9, -0.9, 0.9])


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.GELU()], ids=repr)
def test_a_smooth_network_is_inverted_with_a_proof(activation) -> None:
    network = drawn(nn.Linear(2, 6), activation, nn.Linear(6, 1), seed=2)
    _, program = stated(network, 2, -2, 2)
    wanted = values(network, [1.2, -0.8])[0]
    found = invert(program, wanted, prior=[0.5, 0.5])
    assert found.optimum.proven and found.optimum.gap <= 1e-2
    np.testing.assert_allclose(values(network, found.x)[0], wanted, atol=1e-6)
    plane = grid(-2, 2, 1001)
    near = np.abs(values(network, plane)[:, 0] - wanted) < 2e-3
    closest = np.linalg.norm(plane[near] - 0.5, axis=1).min()
    assert found.optimum.bound <= found.optimum.value <= closest * 1.02 + 1e-2
    beside = found.x + 1e-5 * RNG.normal(size=(20, 2))
    affine = beside @ found.slopes.T + found.offset
    np.testing.assert_allclose(affine, values(network, beside), atol=1e-7)


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_the_inputs_of_all_steps_of_a_recurrence_are_found(kind) -> None:
    recurrence = nn.RNN(2, 4, 2, kind, bidirectional=True, batch_first=True)
    network = drawn(recurrence, Called(lambda found: found[0].sum(1)), nn.Linear(8, 2))
    x = RNG.uniform(-1, 1, (1, 3, 2))
    variable, program = stated(network, 6, example=torch.from_numpy(x))
    wanted = values(network, x)[0]
    np.testing.assert_allclose(program.composition.forward(x.reshape(6)), wanted, rtol=1e-9)
    limits = [variable[0] >= 0.3]  # any gap will do: a norm is at least 0
    found = invert(program, wanted, np.zeros(6), limits, gap=1.0)
    off = 1.01e-7 * np.abs(wanted).max()  # what counts as kept
    np.testing.assert_allclose(values(network, found.x.reshape(1, 3, 2))[0], wanted, 0, off)
    assert found.x[0] >= 0.3 - 1e-6 and np.abs(found.x).max() <= 1 + 1e-6


def test_exact_ranges_are_attained_and_inside_those_of_intervals() -> None:
    network = drawn(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    about, exact = (certify(network, box=(-1, 1), exact=exact) for exact in (False, True))
    found = values(network, grid(-1, 1, 301))
    least, most = exact.least.numpy(), exact.most.numpy()
    span = (most - least).max()
    assert (least <= found.min(0)).all() and (found.max(0) <= most).all()
    assert np.abs(least - found.min(0)).max() < 0.02 * span
    assert np.abs(most - found.max(0)).max() < 0.02 * span
    assert bool((exact.least >= about.least).all()) and bool((exact.most < about.most).any())
    refuses(DeclarationError, "box", certify, network, exact=True)


GAPS = [(nn.Hardtanh(), 1e-6), (nn.Tanh(), 1e-3)]


@pytest.mark.parametrize(("activation", "gap"), GAPS, ids=repr)
def test_exact_slopes_are_attained_where_they_say(activation, gap) -> None:
    parts = nn.Linear(2, 4), activation, nn.BatchNorm1d(4), nn.Linear(4, 3), activation
    network = drawn(*parts, nn.Linear(3, 1)).eval()
    about = certify(network, box=(-0.5, 0.5))
    exact = certify(network, box=(-0.5, 0.5), exact=True, seconds=60.0)
    assert exact.attained is not None and exact.attained_at is not None
    at = exact.attained_at.reshape(-1, 2).clone().requires_grad_()
    assert bool((at.abs() <= 0.5).all())
    slopes = torch.autograd.grad(network(at).sum(), at)[0].reshape(2, 2, 2)
    there = torch.stack([slopes[0].diagonal(), slopes[1].diagonal()])
    assert torch.allclose(there, exact.attained[:, 0], rtol=1e-9)
    off = gap * float(exact.attained.abs().max())
    assert bool((exact.attained[0] - exact.lowest <= off).all())
    assert bool((exact.highest - exact.attained[1] <= off).all())
    assert exact.lipschitz < about.lipschitz
    points = torch.from_numpy(RNG.uniform(-0.5, 0.5, (20_000, 2))).requires_grad_()
    drawn_slopes = torch.autograd.grad(network(points).sum(), points)[0]
    assert bool((drawn_slopes >= exact.lowest - 1e-9).all())
    assert bool((drawn_slopes <= exact.highest + 1e-9).all())
    early = certify(network, box=(-0.5, 0.5), exact=True, seconds=1e-9)
    assert bool((early.lowest <= exact.attained[0]).all())
    assert bool((early.highest >= exact.attained[1]).all())


def test_no_input_within_the_radius_has_another_answer() -> None:
    X = RNG.normal(size=(300, 3))
    labels = np.where(X[:, 0] > X[:, 1] ** 2, "inside", "outside").astype(object)
    model = LiftedClassifier((8,), max_iter=10, random_state=0).fit(X, labels)
    found = robustness_radius(model, torch.tensor(X[0], requires_grad=True))
    assert found.label == model.predict(X[:1])[0]
    assert 0 < found.least <= found.most and found.most - found.least <= 2e-3 * found.most
    assert found.x is not None and np.abs(found.x - X[0]).max() == pytest.approx(found.most)
    around = X[0] + found.least * RNG.uniform(-1, 1, (5000, 3))
    assert (model.predict(around) == model.predict(X[:1])).all()
    assert model.predict((X[0] + (found.x - X[0]) * 1.001)[None]) != model.predict(X[:1])


def test_a_limit_of_time_leaves_a_radius_that_lines_prove(draw: np.random.Generator) -> None:
    network = drawn(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    x = draw.normal(size=20)
    found = robustness_radius(network, x, seconds=1e-6)
    assert found.x is not None
    assert 0 < found.least < found.most and np.abs(found.x - x).max() == pytest.approx(found.most)
    around = x + found.least * draw.uniform(-1, 1, (20_000, 20))
    assert (values(network, around).argmax(1) == found.label).all()


def test_what_has_no_radius_is_refused() -> None:
    line = nn.Linear(2, 2)
    refuses(DataError, "norm", robustness_radius, line, np.zeros(2), norm=1)
    regression = LiftedRegressor((2,), max_iter=1).fit(np.eye(2), [0.0, 1.0])
    refuses(DataError, "no class to keep", robustness_radius, regression, np.zeros(2))
    refuses(DataError, "finite", robustness_radius, line, [0.0, math.nan])
    refuses(DataError, "numbers", robustness_radius, line, ["0", "one"])
    refuses(DataError, "box", robustness_radius, line, np.full(2, 5.0), box=(0, 1))
    same = nn.Linear(2, 2)
    with torch.no_grad():
        same.weight.zero_()
        same.bias.copy_(torch.tensor([2.0, 1.0]))
    refuses(SolverError, "a wider one in", robustness_radius, same, np.zeros(2), box=(-1, 1))
    refuses(SolverError, "give a box in which", robustness_radius, same, np.zeros(2))
