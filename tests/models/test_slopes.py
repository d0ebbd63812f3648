"""Slopes of leaky ReLUs that are learned."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liftednet import DataError, DeclarationError, activations, to_torch
from liftednet.models import LiftedMLP
from liftednet.problems import SlopeFit
from liftednet.problems.slope_fit import LEAST_SLOPE
from liftednet.solvers import Reference, choose
from tests.models.networks import full, labeled

X, Y = labeled(samples=40)


@given(st.integers(0, 1000), st.floats(0.01, 10), st.floats(0.05, 20))
def test_the_closed_form_is_the_minimum_that_cvxpy_finds(seed, size, lam):
    generator = torch.Generator().manual_seed(seed)
    states, u = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    fit = SlopeFit(size * states, u, lam)
    found = choose(fit).solve(fit)
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
