"""Penalties: proxes of each and of sums against CVXPY, their domains, and what is refused."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import cvxpy as cp
import pytest
import torch
from scipy.linalg import polar
from torch import Tensor

from liftednet import penalties
from liftednet.errors import DataError, DeclarationError
from liftednet.penalties import L1, Declared, Nonnegative, Penalty, RowNorm, Signs, SquaredFrobenius
from tests.draws import normal
from tests.models.networks import refuses

SHAPE = (4, 3)
CENTER = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(SHAPE)
SINGLE: list[Penalty] = [
    SquaredFrobenius(0.3), SquaredFrobenius(0.3, CENTER), L1(0.4), penalties.GroupLasso(0.5),
    Nonnegative(), Nonnegative(0.2), RowNorm(0.7), penalties.SpectralNorm(0.8),
    penalties.ColumnNorm(0.7),
]  # fmt: skip
SIGNS = torch.tensor([[1.0, -1, 0], [0, 0, 0], [-1, -1, 1], [1, 1, 1]])
LINEAR: list[Penalty] = [Signs(SIGNS), penalties.FixedZeros(SIGNS)]
LONG: list[Penalty] = [
    RowNorm(0.7)
    + penalties.GroupLasso(0.1)
    + Nonnegative(0.1)
    + L1(0.1)
    + SquaredFrobenius(0.2, CENTER),
    L1(0.1) + L1(0.2) + penalties.GroupLasso(0.1) + penalties.GroupLasso(0.2),
    L1(0.1) + penalties.FixedZeros(SIGNS) + Signs(SIGNS) + SquaredFrobenius(0.1),
    RowNorm(0.9) + RowNorm(0.6),
    penalties.SpectralNorm(0.9) + penalties.SpectralNorm(0.5) + Nonnegative(),
]
DECLARED: list[Penalty] = [
    Declared(lambda W: 0.4 * cp.norm1(W)),
    Declared(constraints=lambda W: [W >= -0.1, cp.sum(W, axis=0) == 1]),
    Declared(lambda W: 0.1 * cp.norm1(W), lambda W: W >= 0),
    Declared(lambda W: 0.5 * cp.normNuc(W)) + SquaredFrobenius(0.2),
    Declared(cp.norm1) + Nonnegative(0.3) + RowNorm(0.5),
]
CHEAP = [*SINGLE, *LINEAR, *(one + other for one, other in combinations(SINGLE, 2)), *LONG]


@dataclass(frozen=True)
class Box(Penalty):
    """A penalty of a user's own: |W_ij| <= 0.5, known by its prox alone."""

    def expression(self, weight: Any) -> Any:
        return cp.Constant(0.0)

    def domain(self, weight: Any) -> list[Any]:
        return [cp.abs(weight) <= 0.5]

    def value(self, weight: Tensor) -> Tensor:
        return weight.new_zeros(())

    def prox(self, weight: Tensor, t: float) -> Tensor:
        return weight.clamp(-0.5, 0.5)


def name(value: Any) -> str:
    terms = value.terms if isinstance(value, penalties.Sum) else (value,)
    return " + ".join(type(term).__name__ for term in terms)


def distance_to_cvxpy(penalty: Penalty, w: Tensor, t: float, found: Tensor) -> float:
    """Return the distance to CLARABEL's prox at the tolerance that suits it best.

    A tighter one can end in "optimal_inaccurate", farther away.
    """
    p = cp.Variable(w.shape)
    objective = t * penalty.expression(p) + cp.sum_squares(p - w.numpy()) / 2
    problem = cp.Problem(cp.Minimize(objective), penalty.domain(p))
    names, distances = ("tol_gap_abs", "tol_gap_rel", "tol_feas"), []
    for tolerance in (1e-13, 1e-12, 1e-11, 1e-10):
        problem.solve(solver="CLARABEL", **dict.fromkeys(names, tolerance))
        distances.append(float(abs(p.value - found.numpy()).max()))
    return min(distances)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    "penalty", [*CHEAP, *DECLARED, Box() + penalties.GroupLasso(0.2)], ids=name
)
@pytest.mark.parametrize("t", [0.1, 3.0])
def test_prox_solves_its_problem(penalty: Penalty, t: float, generator: torch.Generator) -> None:
    w = normal(*SHAPE, seed=generator)
    assert distance_to_cvxpy(penalty, w, t, penalty.prox(w, t)) < 1e-6


@pytest.mark.parametrize("penalty", [*SINGLE, *LINEAR, *DECLARED], ids=name)
def test_between_ends_is_the_domain(penalty: Penalty, generator: torch.Generator) -> None:
    w, ends = normal(*SHAPE, seed=generator), penalty.ends(SHAPE)
    if ends is None:
        known = (Nonnegative, Signs, penalties.FixedZeros)
        assert len(penalty.parts) > 1 or not isinstance(penalty, known)
    else:
        torch.testing.assert_close(penalty.prox(w, 0.7), w.clamp(*ends), rtol=0, atol=0)
        assert float(penalty.value(w.clamp(*ends))) == 0.0


@pytest.mark.parametrize("penalty", [*SINGLE, *LINEAR, *DECLARED, *LONG], ids=name)
def test_value_is_the_expression(penalty: Penalty, generator: torch.Generator) -> None:
    w = penalty.prox(normal(*SHAPE, seed=generator), 0.5)  # inside the domain
    constant = cp.Constant(w.numpy())
    stated: Any = penalty.expression(constant).value
    assert float(penalty.value(w)) == pytest.approx(float(stated))
    violations = [constraint.violation().max() for constraint in penalty.domain(constant)]
    assert max(violations, default=0.0) < 1e-7


@pytest.mark.parametrize("penalty", [*SINGLE, *LINEAR, penalties.Orthogonal(), *LONG], ids=name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_projected_is_held(penalty, dtype, generator) -> None:
    w = 3 * normal(*SHAPE, seed=generator, dtype=dtype)
    for inside in (penalty.project(w), penalty.prox(w, 0.0)):
        assert inside.dtype is dtype
        assert penalty.violation(inside) < 1e-5
        torch.testing.assert_close(penalty.project(inside), inside)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_a_number_cannot_meet_is_met_to_rounding(dtype: torch.dtype) -> None:
    w = normal(150, 150, dtype=dtype)
    rounding = len(w) * torch.finfo(dtype).eps  # of a sum of so many
    assert penalties.Orthogonal().violation(penalties.Orthogonal().project(w)) < rounding
    assert penalties.Orthogonal().violation(w) > 1.0


def test_the_polar_factor_is_the_nearest_orthogonal_matrix(generator: torch.Generator) -> None:
    """Against scipy's polar decomposition and against orthogonal matrices that are drawn."""
    w = normal(*SHAPE, seed=generator)
    found = penalties.Orthogonal().project(w)
    assert torch.allclose(found, torch.from_numpy(polar(w.numpy())[0]))
    drawn = torch.linalg.qr(normal(100, *SHAPE, seed=generator, dtype=w.dtype))[0]
    assert bool(((drawn - w).flatten(1).norm(dim=1) >= (found - w).norm()).all())


REFUSED: list[tuple[Any, str]] = [
    (lambda: Signs(torch.tensor([[2.0]])), "1, -1 or 0"),
    (lambda: Signs(torch.ones(3)), "two dimensions"),
    (lambda: Signs(torch.ones(3, 1)).refuse_infeasible(SHAPE), r"\(3, 1\).*\(4, 3\)"),
    (lambda: Declared(), "function"),
    (lambda: penalties.Orthogonal() + Nonnegative(), "squares"),
    (lambda: penalties.FixedZeros([[1]]), "torch tensor"),  # type: ignore[arg-type]
    (lambda: Declared(constraints=lambda W: [W >= 1, cp.sum(W) <= 2]).refuse_infeasible(SHAPE),
        r"no W of shape \(4, 3\).*<= 2"),
    (lambda: (Declared(constraints=lambda W: W >= 1) + RowNorm(1.0)).refuse_infeasible(SHAPE),
        r"1\.0 <= W"),
    *((lambda kind=kind, number=number: kind(number), r"positive|real number")
      for kind in (SquaredFrobenius, L1, RowNorm, Nonnegative, penalties.GroupLasso,
                   penalties.SpectralNorm)
      for number in (-1.0, float("nan"), float("inf"), "1", None)),
    *((lambda kind=kind: kind(0.0), "positive") for kind in (SquaredFrobenius, RowNorm)),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    refuses((DataError, DeclarationError), message, make)


NOT_STATED: list[tuple[Penalty, str]] = [
    (Declared(lambda W: -cp.norm1(W)), "CONCAVE"),
    (Declared(cp.abs), r"scalar.*\(4, 3\)"),
    (Declared(constraints=lambda W: [cp.norm1(W) >= 1]), "not convex"),
    (Declared(constraints=lambda W: [True]), "got True"),  # type: ignore[list-item]
    (L1(0.1) + Declared(lambda W: -cp.norm1(W)), "CONCAVE"),
]


@pytest.mark.parametrize(("penalty", "message"), NOT_STATED)
def test_what_is_not_convex_is_refused_at_first_use(penalty: Penalty, message: str) -> None:
    refuses(DeclarationError, message, penalty.prox, CENTER, 1.0)
    refuses(DeclarationError, message, penalty.value, CENTER)
    refuses(DeclarationError, message, penalty.refuse_infeasible, SHAPE)
