"""The ways of declaring an activation, from the declaration to a solved subproblem."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

from liftednet import (
    Activation,
    DeclarationError,
    Link,
    StateFit,
    WeightFit,
    activations,
    check_activation,
)
from liftednet.divergences import joint, tight
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design
from liftednet.solvers import solve


class ReLU(Activation):
    lipschitz = 1.0

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def domain(self, v):
        return [v >= 0]

    def forward(self, u):
        return u.clamp(min=0)

    def conjugate(self, u):
        return cp.sum_squares(cp.pos(u)) / 2

    def prox(self, w, t):
        return (w / (1 + t)).clamp(min=0)


class Stated(Activation):
    """The second way: a CVXPY expression, its domain, and the forward map."""

    def potential(self, v):
        return -cp.sum(cp.entr(v)) - cp.sum(cp.entr(1 - v))

    def domain(self, v):
        return [v >= 0, v <= 1]

    def forward(self, u):
        return u.sigmoid()


class Ball(Activation):
    """Coupled units: the projection on the unit ball, without closed forms."""

    per_unit = False
    lipschitz = 1.0

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def domain(self, v):
        return [cp.norm(v, 2, axis=1) <= 1]

    def forward(self, u):
        return u / u.norm(dim=-1, keepdim=True).clamp(min=1)


def problems(activation, kind, generator):
    """Return a weight fit and a state fit of 8 samples."""

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    divergence = kind(activation)
    weights = WeightFit(
        divergence, Design(normal(8, 3)), activation.forward(normal(8, 2)), SquaredFrobenius(0.1)
    )
    link = Link(divergence, normal(2, 2), normal(2), activation.forward(normal(8, 2)), 0.7)
    return weights, StateFit(divergence, normal(8, 2), (link,), 0.5)


@pytest.mark.parametrize("kind", [tight, joint])
@pytest.mark.parametrize(
    "activation",
    [ReLU(), Stated(), Activation.from_function(torch.nn.functional.softsign)],
    ids=repr,
)
def test_a_declared_activation_is_solved_by_fast_and_reference_solvers(activation, kind, generator):
    assert check_activation(activation).passed
    for problem in problems(activation, kind, generator):
        fast, reference = solve(problem), solve(problem, "reference")
        assert fast.solver != "reference"
        assert fast.residual < 1e-7
        assert fast.objective == pytest.approx(reference.objective, rel=1e-6, abs=1e-6)
        assert fast.objective <= reference.objective + 1e-7


@pytest.mark.parametrize("kind", [tight, joint])
def test_the_user_s_relu_is_the_catalogue_s(kind, generator):
    state = generator.get_state()
    ours = problems(activations.ReLU(), kind, generator)
    generator.set_state(state)
    theirs = problems(ReLU(), kind, generator)
    for one, other in zip(ours, theirs, strict=True):
        assert solve(one).objective == pytest.approx(solve(other).objective, rel=1e-9)


def test_values_of_a_stated_potential_are_its_own(generator):
    """The derived values keep the constants of the declared expression: Phi*(0) = log 2."""
    u = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    v = u.sigmoid()
    closed = activations.Sigmoid()
    torch.testing.assert_close(Stated().potential_value(v), closed.potential_value(v))
    torch.testing.assert_close(Stated().conjugate_value(u), closed.conjugate_value(u))


def test_coupled_units_need_a_potential_a_domain_and_a_map_alone(generator):
    weights, states = problems(Ball(), joint, generator)
    assert solve(weights).residual < 1e-10
    solution = solve(states)
    assert solution.residual < 1e-4
    assert solution.objective == pytest.approx(solve(states, "reference").objective, rel=1e-6)
    assert solution.value.norm(dim=-1).max() <= 1 + 1e-6


def test_what_cannot_be_derived_is_asked_for_by_name():
    u = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(DeclarationError, match="does not declare `conjugate`"):
        Ball().conjugate(cp.Variable((2, 3)))
    with pytest.raises(DeclarationError, match="does not declare `prox`"):
        Ball().prox(u, 1.0)
    with pytest.raises(DeclarationError, match="does not declare `forward`"):
        Activation().forward(u)


@pytest.mark.parametrize("activation", [activations.Sign(), Activation.from_function(torch.exp)])
def test_a_joint_divergence_needs_a_lipschitz_constant(activation):
    with pytest.raises(DeclarationError, match="Lipschitz"):
        joint(activation)


def test_a_raw_divergence_is_solved_by_the_reference(generator):
    pooled = Activation.from_divergence(
        lambda v, u: cp.sum_squares(v - u) / 2,
        lambda u: u.clamp(min=0),
        domain=lambda v: [v >= 0],
    )
    assert check_activation(pooled).passed
    weights, states = problems(pooled, tight, generator)
    generator.manual_seed(0)
    right, _ = problems(activations.ReLU(), joint, generator)
    found = solve(weights)
    assert found.solver == "reference"
    torch.testing.assert_close(found.value.matrix, solve(right).value.matrix, rtol=1e-5, atol=1e-6)
    assert solve(states).solver == "reference"
