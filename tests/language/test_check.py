"""`check_activation` passes what holds, and refuses what does not with its first failing point."""

from __future__ import annotations

import re
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import Activation, DeclarationError, activations, check_activation
from liftednet.check import FailedCheckError
from tests.language.catalogue import EVERY


@pytest.mark.parametrize("activation", EVERY, ids=repr)
def test_what_holds_passes(activation):
    report = check_activation(activation)
    assert report.passed
    assert all(check.worst <= check.allowed for check in report.checks)


def test_report_prints_as_a_table():
    report = check_activation(activations.ReLU())
    text = str(report)
    assert "ReLU()" in text
    assert all(check.name in text for check in report.checks)


def test_same_generator_same_figures():
    first, second = (
        check_activation(activations.Softmax(), generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    )
    assert first == second


class PaperArctanh(Activation):
    """Section 4: the Phi printed there belongs to tanh."""

    def potential(self, v):
        return -(cp.sum(cp.entr(1 - v)) + cp.sum(cp.entr(1 + v))) / 2

    def forward(self, u):
        return torch.atanh(u)


class BoundedArctanh(PaperArctanh):
    """The same with a forward map that is finite everywhere."""

    def forward(self, u):
        return torch.atanh(u.clamp(-0.99, 0.99))


class PaperSine(Activation):
    """Section 4: the argmin is the sine on [-pi/2, pi/2] alone, and CVXPY has no arcsine."""

    def potential(self, v):
        return cp.sum(cp.multiply(v, np.arcsin(v)) + cp.sqrt(1 - v**2))

    def forward(self, u):
        return u.clamp(-torch.pi / 2, torch.pi / 2).sin()


class SineAlone(Activation):
    def forward(self, u):
        return u.sin()


class UnclampedSine(activations.Sine):
    def forward(self, u):
        return u.sin()


class Decreasing(Activation):
    def forward(self, u):
        return -u


class DecreasingVector(Activation):
    per_unit = False

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def forward(self, u):
        return -u


class Concave(activations.Identity):
    def potential(self, v):
        return -cp.sum_squares(v) / 2


class Disagreeing(activations.ReLU):
    def forward(self, u):
        return torch.nn.functional.softplus(u)


class Unbounded(activations.Identity):
    def potential(self, v):
        return cp.sum(v)


class WrongDomain(activations.ReLU):
    def domain(self, v):
        return [v >= 0, v <= 1]


class WrongProx(activations.Sigmoid):
    def prox(self, w, t):
        return w.clamp(0, 1)


class ExpansiveProx(activations.Identity):
    def prox(self, w, t):
        return w / (1 + t) if float(torch.as_tensor(t).max()) < 200 else 2 * w


class WrongConjugate(activations.ReLU):
    def conjugate(self, u):
        return cp.sum_squares(u) / 2


class ShiftedConjugate(activations.Sigmoid):
    def conjugate(self, u):
        return cp.sum(cp.logistic(u)) + u.size


class ConcaveConjugate(activations.Identity):
    def conjugate(self, u):
        return -cp.sum_squares(u) / 2


class WrongConjugateValue(activations.Sigmoid):
    def conjugate_value(self, u):
        return u.clamp(min=0).sum(-1)


class WrongPotentialValue(activations.Sigmoid):
    def potential_value(self, v):
        return super().potential_value(v) + 1


class FinitePotentialValue(activations.ReLU):
    def potential_value(self, v):
        return v.square().sum(-1) / 2


class SmallLipschitz(activations.Sigmoid):
    lipschitz = 0.2


class SmallSoftmaxLipschitz(activations.Softmax):
    lipschitz = 0.4


class NegativeLipschitz(activations.Sigmoid):
    lipschitz = -1.0


class WrongSlope(activations.Tanh):
    def slope(self, u):
        return torch.ones_like(u)


class WrongProjection(activations.ReLU):
    def project(self, v):
        return v


class CoupledUnits(Activation):
    """A softmax that says nothing of its coupled units."""

    def forward(self, u):
        return u.softmax(-1)


class CoupledSamples(activations.Identity):
    def forward(self, u):
        return u - u.mean(0)


class WrongShape(activations.Identity):
    def forward(self, u):
        return u.sum(-1)


class NotANumber(activations.ReLU):
    def forward(self, u):
        return u.sqrt()


class NotASum(activations.ReLU):
    def potential(self, v):
        return cp.square(v) / 2


class NotCompiledOnce(activations.Identity):
    """A product of two parameters is convex, and not DPP."""

    def potential(self, v):
        scale = cp.Parameter(nonneg=True, value=1.0)
        return scale * scale * cp.sum_squares(v) / 2


def pooling(weight: float) -> Activation:
    def divergence(v, u):
        repeat = np.kron(np.eye(v.shape[1]), np.ones((1, 2)))
        return weight * cp.sum(v) + cp.sum(cp.pos(u - v @ repeat))

    return Activation.from_divergence(
        divergence, lambda u: u.unflatten(-1, (-1, 2)).amax(-1), block=2
    )


def leaky_half_space(forward: Callable[[torch.Tensor], torch.Tensor]) -> Activation:
    def divergence(v, u):
        return cp.sum_squares(v - u) / 2 + cp.transforms.indicator([v >= 2 * u])

    return Activation.from_divergence(divergence, forward)


REFUSED: dict[str, tuple[Callable[[], Activation], str]] = {
    "arctanh": (PaperArctanh, "forward: finite"),
    "arctanh, bounded": (BoundedArctanh, "argmin: equals forward"),
    "max-pooling of weight 1": (lambda: pooling(1.0), "argmin: unique"),
    "leaky ReLU of the other form": (
        lambda: leaky_half_space(lambda u: torch.maximum(u, u / 2)),
        "argmin: equals forward",
    ),
    "sine, with the printed Phi": (PaperSine, "potential: convex in v"),
    "sine, alone": (SineAlone, "forward: monotone"),
    "sine, outside its range": (UnclampedSine, "forward: monotone"),
    "decreasing": (Decreasing, "forward: monotone"),
    "decreasing vector": (DecreasingVector, "forward: monotone"),
    "concave": (Concave, "potential: convex in v"),
    "disagreeing": (Disagreeing, "argmin: equals forward"),
    "unbounded": (Unbounded, "argmin: unique"),
    "wrong domain": (WrongDomain, "argmin: equals forward"),
    "wrong prox": (WrongProx, "prox: argmin"),
    "expansive prox": (ExpansiveProx, "prox: finite, nonexpansive"),
    "wrong conjugate": (WrongConjugate, "tight divergence in CVXPY: D >= 0"),
    "shifted conjugate": (ShiftedConjugate, "tight divergence in CVXPY: D >= 0"),
    "concave conjugate": (ConcaveConjugate, "conjugate: convex in u"),
    "wrong conjugate value": (WrongConjugateValue, "conjugate: one value"),
    "wrong potential value": (WrongPotentialValue, "potential: one value"),
    "finite outside": (FinitePotentialValue, "potential_value: infinite outside"),
    "small Lipschitz": (SmallLipschitz, "lipschitz"),
    "small Lipschitz, coupled": (SmallSoftmaxLipschitz, "lipschitz"),
    "negative Lipschitz": (NegativeLipschitz, "lipschitz"),
    "wrong slope": (WrongSlope, "slope"),
    "wrong projection": (WrongProjection, "project: nearest in the domain"),
    "coupled units": (CoupledUnits, "forward: separate"),
    "coupled samples": (CoupledSamples, "forward: separate"),
    "wrong shape": (WrongShape, "forward: finite"),
    "not a number": (NotANumber, "forward: finite"),
    "not a sum": (NotASum, "potential: convex in v"),
    "not compiled once": (NotCompiledOnce, "potential: convex in v"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_hold_is_refused(case):
    declare, check = REFUSED[case]
    with pytest.raises(FailedCheckError) as refusal:
        check_activation(declare())
    *before, last = refusal.value.report.checks
    assert last.name == check
    assert all(earlier.passed for earlier in before)
    assert str(last.failure) in str(refusal.value)


POINTED = [
    case
    for case in REFUSED
    if case
    not in (
        "sine, with the printed Phi",
        "wrong shape",
        "negative Lipschitz",
        "not a sum",
        "not compiled once",
        "concave conjugate",
    )
]


@pytest.mark.parametrize("case", POINTED)
def test_a_refusal_names_a_point_and_numbers(case):
    declare, _ = REFUSED[case]
    with pytest.raises(DeclarationError) as refusal:
        check_activation(declare())
    assert len(re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(refusal.value))) >= 2


def test_arctanh_is_told_what_its_potential_stands_for():
    """The numbers of the refusal: at the first u the argmin is tanh(u), not arctanh(u)."""
    with pytest.raises(DeclarationError) as refusal:
        check_activation(BoundedArctanh())
    u, forward, right = (
        float(number)
        for number in re.findall(r"(?:u = |gives |divergence is )(-?[\d.]+\d)", str(refusal.value))
    )
    assert forward == pytest.approx(np.arctanh(np.clip(u, -0.99, 0.99)), abs=1e-5)
    assert right == pytest.approx(np.tanh(u), abs=1e-5)


def test_pooling_is_told_both_ends_of_its_argmin():
    """With weight 1 every v from the second largest entry to the largest is an argmin."""
    with pytest.raises(DeclarationError) as refusal:
        check_activation(pooling(1.0), units=1)
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", str(refusal.value))]
    entries, ends = sorted(numbers[:2]), sorted(numbers[2:4])
    assert ends == pytest.approx(entries, abs=1e-3)
    assert check_activation(pooling(0.5)).passed


def test_leaky_relu_of_the_second_form_is_the_other_leaky_relu():
    report = check_activation(leaky_half_space(lambda u: torch.maximum(2 * u, u)))
    assert report.passed


@pytest.mark.parametrize("function", [torch.sin, torch.neg, torch.cos])
def test_from_function_refuses_a_map_that_decreases(function):
    with pytest.raises(DeclarationError, match="decreases"):
        Activation.from_function(function)


@pytest.mark.parametrize("function", [torch.sqrt, torch.log, torch.atanh])
def test_from_function_refuses_a_map_that_is_not_finite(function):
    with pytest.raises(DeclarationError, match="finite"):
        Activation.from_function(function)


def test_from_function_refuses_other_shapes_and_constants():
    with pytest.raises(DeclarationError, match="shape"):
        Activation.from_function(lambda u: u.sum(-1))
    with pytest.raises(DeclarationError, match="whatever"):
        Activation.from_function(torch.zeros_like)


@pytest.mark.parametrize(
    "activation",
    [activations.ReLU, torch.relu, None],
    ids=["a class", "a function", "nothing"],
)
def test_something_else_is_refused(activation):
    with pytest.raises(DeclarationError, match="needs an activation"):
        check_activation(activation)


class ForwardOnly(Activation):
    per_unit = False

    def forward(self, u):
        return u.softmax(-1)


def test_a_coupled_map_alone_is_asked_for_its_potential():
    with pytest.raises(DeclarationError, match="does not declare `potential`"):
        check_activation(ForwardOnly())


class Ball(Activation):
    """Projection on the unit ball by a CVXPY potential and domain alone, units coupled."""

    per_unit = False

    def potential(self, v):
        return cp.sum_squares(v) / 2

    def domain(self, v):
        return [cp.norm(v, 2, axis=1) <= 1]

    def forward(self, u):
        return u / u.norm(dim=-1, keepdim=True).clamp(min=1)


def test_a_coupled_potential_and_forward_are_enough():
    names = {check.name for check in check_activation(Ball()).checks}
    assert "argmin: equals forward" in names
    assert not any("prox" in name for name in names)
