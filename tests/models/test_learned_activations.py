"""Slopes of leaky ReLUs and boxes of clipped layers that are learned."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import DataError, DeclarationError, activations, to_torch
from liftednet.divergences import tight
from liftednet.models import LiftedMLP
from liftednet.models.limits import LimitFit, LimitSolver
from liftednet.models.slopes import LEAST_SLOPE, SlopeFit, SlopeSolver
from liftednet.solvers import Reference
from tests.models.networks import full, labeled

X, Y = labeled(samples=40)


@given(st.integers(0, 1000), st.floats(0.01, 10), st.floats(0.05, 20))
def test_the_closed_form_is_the_minimum_that_cvxpy_finds(seed, size, lam):
    generator = torch.Generator().manual_seed(seed)
    states, u = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    fit = SlopeFit(size * states, u, lam)
    found = SlopeSolver().solve(fit)
    assert found.residual <= 1e-8
    assert LEAST_SLOPE <= found.value <= 1
    reference = Reference().solve(fit)
    assert found.objective <= reference.objective * (1 + 1e-6) + 1e-9
    assert found.value == pytest.approx(reference.value, abs=1e-3)


def test_the_objective_of_a_slope_is_that_of_the_divergence_up_to_what_it_does_not_change():
    states, u = torch.randn(2, 5, 3, dtype=torch.float64)
    fit = SlopeFit(states, u, 1.0)

    def gap(alpha: float) -> float:
        leaky = activations.LeakyReLU(alpha)
        return float((leaky.potential_value(states) + leaky.conjugate_value(u)).sum())

    change = fit.measure(0.7).objective - fit.measure(0.2).objective
    assert change == pytest.approx(gap(0.7) - gap(0.2))


def test_learned_slopes_lower_the_objective_and_are_exported():
    leaky = activations.LeakyReLU(0.1)
    learned = full((4, 6, 5, 3), leaky, rho=0.05, sweeps=8, learn_activations=True).fit(X, Y)
    assert learned.trace is not None
    found = learned.trace.objectives
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(found))
    assert learned.objective() == pytest.approx(found[-1], rel=1e-9)
    assert any(step.block == "slope 1" and step.decrease > 0 for step in learned.trace.steps)
    slopes = _slopes(learned)
    assert slopes != [0.1, 0.1]
    with torch.no_grad():
        assert torch.allclose(to_torch(learned)(X), learned.forward(X))
    assert _slopes(learned.fit(X, Y)) == slopes


def _slopes(model: LiftedMLP) -> list[float]:
    hidden = model.activations[:-1]
    return [a.alpha for a in hidden if isinstance(a, activations.LeakyReLU)]


def _box_fit(seed: int, lam: float) -> LimitFit:
    """Return a fit of a network's first layer at its forward pass, the box too narrow."""
    model = LiftedMLP((4, 6, 3), activations.Clipped(-0.4, 0.4), lam=lam, rho=0.1, seed=seed)
    block = model.partial_fit(X, Y)._fitted()
    block.learn_activations = True
    fit = block.sweep()[-1].problem()
    assert isinstance(fit, LimitFit)
    return fit


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.05, 20))
def test_the_box_is_the_best_of_a_grid(seed, lam):
    fit = _box_fit(seed, lam)
    found = LimitSolver().solve(fit, fit.box)
    assert found.objective <= fit.value(fit.box)
    (_, upper), (lows, highs) = found.value, fit.reach
    tops = [fit.value((fit.box[0], h)) for h in torch.linspace(*highs, 30).tolist()]
    ends = [fit.value((x, upper)) for x in torch.linspace(*lows, 30).tolist()]
    slack = 1e-3 * (1 + abs(found.objective))
    assert fit.value((fit.box[0], upper)) <= min(tops) + slack
    assert found.objective <= min(ends) + slack
    assert float(fit.moved(found.value).max()) <= upper + 1e-9


def test_the_objective_of_a_box_is_the_joint_objective_with_states_moved():
    fit = _box_fit(0, 1.0)
    box, states = (-0.6, 0.9), fit.moved((-0.6, 0.9))
    change = fit.value(box) - fit.value(fit.box)
    (link,) = fit.links
    for limits, v, sign in ((box, states, 1), (fit.box, fit.states, -1)):
        change -= sign * float(tight(activations.Clipped(*limits)).value(v, fit.pre_activation))
        u = v @ link.weight + link.offset
        change -= sign * float(torch.logsumexp(u, 1).sum() - (u * link.target).sum())
    assert change == pytest.approx(0, abs=1e-8)
    assert fit.states.amax() == pytest.approx(0.4) and states.amax() == pytest.approx(0.9)


@pytest.mark.parametrize("half", [0.3, 5.0])
def test_learned_boxes_lower_the_objective_and_are_exported(half):
    clipped = activations.Clipped(-half, half)
    plain = full((4, 6, 5, 3), clipped, lam=1.0, rho=0.05, sweeps=8).fit(X, Y)
    learned = full((4, 6, 5, 3), clipped, lam=1.0, rho=0.05, sweeps=8, learn_activations=True)
    learned.fit(X, Y)
    assert learned.trace is not None
    found = learned.trace.objectives
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(found))
    assert learned.objective() == pytest.approx(found[-1], rel=1e-9)
    boxes = [a for a in learned.activations if isinstance(a, activations.Clipped)]
    if half < 1:
        assert all(box.upper > half for box in boxes)
        assert learned.objective() < plain.objective()
    with torch.no_grad():
        assert torch.allclose(to_torch(learned)(X), learned.forward(X))


def test_a_box_is_fitted_by_its_own_solver_alone():
    fit = _box_fit(0, 1.0)
    with pytest.raises(DeclarationError, match="scalar search"):
        fit.formulate()
    with pytest.raises(DataError, match="limit must be"):
        fit.refuse_bad_start((0.0, 100.0))


def test_what_has_no_slope_to_learn_is_refused():
    with pytest.raises(DeclarationError, match="LeakyReLU"):
        full((4, 5, 3), learn_activations=True)
    with pytest.raises(DeclarationError, match="joint"):
        full((4, 5, 3), activations.LeakyReLU(), divergence="joint", learn_activations=True)
    fit = SlopeFit(torch.full((2, 2), -float("inf")), torch.zeros(2, 2), 1.0)
    with pytest.raises(DataError, match="inf"):
        fit.refuse_bad_values()
    with pytest.raises(DataError, match=r"\(0, 1\]"):
        fit.refuse_bad_start(0.0)
