"""`check_activation` passes what holds, and refuses what does not with its first failing point."""

import re
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from liftednet import Activation, activations, check_activation
from liftednet.activations import Identity, ReLU, Sigmoid, Softmax, Softplus, Tanh
from liftednet.check import FailedCheckError
from liftednet.errors import DataError, DeclarationError
from tests.liftednet.activations.catalogue import EVERY, OWN, Ball
from tests.models.networks import refuses


@pytest.mark.parametrize("activation", [*EVERY, *OWN], ids=repr)
def test_what_holds_passes(activation):
    report = check_activation(activation)
    assert report.passed and repr(activation) in str(report)
    assert all(check.worst <= check.allowed for check in report.checks)
    names = {check.name for check in report.checks}
    assert "argmin: equals forward" in names and all(name in str(report) for name in names)
    assert any("prox" in name for name in names) != isinstance(activation, Ball)


Declare = Callable[[], Activation]
SQUARES = {"per_unit": False, "potential": lambda _, v: cp.sum_squares(v) / 2}


def off(base: type[Activation], **methods: Any) -> Declare:
    """Return what makes an activation of a class with some methods of its own."""
    return lambda: type(f"Off{base.__name__}", (base,), methods)()


def in_single(base: type[Activation], method: str, factor: float) -> Declare:
    """Return what makes an activation with a method that is off in float32."""

    def wrong(self: Any, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        right: torch.Tensor = getattr(base, method)(self, x, *rest, **named)
        return right * (factor if x.dtype is torch.float32 else 1)

    return off(base, **{method: wrong})


def twice_scaled(_: Any, v: Any) -> Any:
    """A product of two parameters is convex, and not DPP."""
    scale = cp.Parameter(nonneg=True, value=1.0)
    return scale * scale * cp.sum_squares(v) / 2


def overflowing(_: Any, u: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(u)) as it is printed: infinite from 88 on in float32, from 710 in float64."""
    small = u.clamp(max=700) if u.dtype is torch.float64 else u
    return (torch.log(1 + torch.exp(small)) + (u - 700).clamp(min=0)).sum(-1)


def off_for_small(base: type[Activation], wrong: Callable[..., Any]) -> Declare:
    """Return what makes an activation whose prox is wrong for small steps."""

    def prox(self: Any, w: torch.Tensor, t: Any) -> torch.Tensor:
        right, step = base.prox(self, w, t), torch.as_tensor(t).to(w)
        return torch.where(step < 0.01, wrong(self, w, step), right)

    return off(base, prox=prox)


FINITE, SEPARATE, MONOTONE = "forward: finite", "forward: separate", "forward: monotone"
CONVEX, UNIQUE, ARGMIN = "potential: convex in v", "argmin: unique", "argmin: equals forward"
PROX = "prox: v = phi((w - v) / t)"
POTENTIAL, CONJUGATE = "potential: one value", "conjugate: one value"
OUTSIDE, PROJECT = "potential_value: infinite outside", "project: nearest in the domain"
SINGLE, EXCESS = "float32: as in float64", "excess: potential less its square"

REFUSED: dict[str, tuple[Declare, str]] = {
    "raising potential": (off(Identity, potential=lambda _, v: np.arcsin(v)), CONVEX),
    "decreasing": (off(Activation, forward=lambda _, u: -u), MONOTONE),
    "concave": (off(Identity, potential=lambda _, v: -cp.sum_squares(v) / 2), CONVEX),
    "unbounded": (off(Identity, potential=lambda _, v: cp.sum(v)), UNIQUE),
    "wrong domain": (off(ReLU, domain=lambda _, v: [v >= 0, v <= 1]), ARGMIN),
    "concave conjugate": (
        off(Identity, conjugate=lambda _, u: -cp.sum_squares(u) / 2), "conjugate: convex in u",
    ),
    "small Lipschitz": (off(Sigmoid, lipschitz=0.2), "lipschitz"),
    "small Lipschitz, coupled": (off(Softmax, lipschitz=0.4), "lipschitz"),
    "slope beyond 12": (off(Identity, slope=lambda _, u: (u.abs() < 12).to(u.dtype)), "slope"),
    "wrong projection": (off(ReLU, project=lambda _, v: v), PROJECT),
    "coupled units": (off(Activation, forward=lambda _, u: u.softmax(-1)), SEPARATE),
    "coupled samples": (off(Identity, forward=lambda _, u: u - u.mean(0)), SEPARATE),
    "wrong shape": (off(Identity, forward=lambda _, u: u.sum(-1)), FINITE),
    "not a number": (off(ReLU, forward=lambda _, u: u.sqrt()), FINITE),
    "raising": (  # a prox that compares its weight, which may be one for each sample
        off(ReLU, prox=lambda _, w, t: w.clamp(min=0) / (1 + t) if t > 0 else w),
        "prox stationary",
    ),
    "not a sum": (off(ReLU, potential=lambda _, v: cp.square(v) / 2), CONVEX),
    "not compiled once": (off(Identity, potential=twice_scaled), CONVEX),
    "conjugate beyond 9": (
        off(Identity, conjugate=lambda _, u: cp.sum(cp.huber(u, 9)) / 2), CONJUGATE,
    ),
    "conjugate value beyond 50": (
        off(Softplus, conjugate_value=lambda a, u: Softplus.conjugate_value(a, u.clamp(max=50))),
        "tight divergence: D = 0",
    ),
    "potential value beyond 50": (
        off(ReLU, potential_value=lambda a, v: ReLU.potential_value(a, v.clamp(max=50))),
        POTENTIAL,
    ),
    "finite outside, beyond 50": (
        off(ReLU, potential_value=lambda a, v:
            ReLU.potential_value(a, torch.where(v < -50, 0, v))), OUTSIDE,
    ),
    "forward beyond 30, coupled": (
        off(Activation, **SQUARES, forward=lambda _, u: u.clamp(-30, 30)), ARGMIN,
    ),
    "prox of small steps, coupled": (
        off_for_small(Softmax, lambda a, w, t: Softmax.prox(a, 0.9 * w, t)), PROX,
    ),
    "wrong from 39 to 43": (
        off(ReLU, forward=lambda _, u: torch.where((u - 41).abs() < 2, 0, u.clamp(min=0))),
        "forward: monotone",
    ),
    "prox of numbers": (
        off(ReLU, prox=lambda a, w, t: ReLU.prox(a, w, t if torch.is_tensor(t) else 1.1 * t)), PROX,
    ),
    "without a gradient": (
        off(ReLU, forward=lambda _, u: u.detach().clamp(min=0)), "forward: differentiable",
    ),
    "another gradient, coupled": (
        off(Softmax, forward=lambda _, u: (2 * u - u.detach()).softmax(-1)),
        "forward: differentiable",
    ),
    "no constant sum": (off(ReLU, constant_sum=True), "constant_sum, scale_free"),
    "a scale": (off(Tanh, scale_free=True), "constant_sum, scale_free"),
    "5 % off in float32": (in_single(Tanh, "forward", 1.05), SINGLE),
    "prox in float32": (in_single(ReLU, "prox", 0.95), SINGLE),
    "overflowing in float32": (off(Sigmoid, conjugate_value=overflowing), SINGLE),
    "offset of zero": (
        off(Sigmoid, offset=lambda _, n: torch.zeros(n, dtype=torch.float64)), "offset",
    ),
    "offset of another shape": (
        off(Softmax, offset=lambda _, n: torch.zeros(1, dtype=torch.float64)), "offset",
    ),
    "wrong excess": (off(activations.LeakyReLU, excess=lambda _, v: cp.sum_squares(v) / 2), EXCESS),
    "ends that phi never meets": (  # of which v > 0
        off(Activation, ends=(-1.0, torch.inf), lipschitz=1.0,
            potential=lambda _, v: cp.sum_squares(v) / 2 - cp.sum(cp.log(v)),
            forward=lambda _, u: (u + (u * u + 4).sqrt()) / 2,
            prox=lambda _, w, t: (w + (w * w + 4 * t * (1 + t)).sqrt()) / (2 + 2 * t)),
        "ends: those of phi",
    ),
    "concave excess": (off(Identity, excess=lambda _, v: -cp.sum_squares(v)), EXCESS),
}  # fmt: skip


WITHOUT_A_POINT = {
    "raising potential", "wrong shape", "not a sum", "without a gradient",
    "not compiled once", "raising", "concave conjugate", "concave excess",
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_hold_is_refused_at_a_point_with_numbers(case):
    declare, check = REFUSED[case]
    refusal = refuses(FailedCheckError, "", lambda: check_activation(declare()))
    *before, last = refusal.report.checks
    assert last.name == check
    assert all(earlier.passed for earlier in before)
    assert str(last.failure) in str(refusal)
    if case not in WITHOUT_A_POINT:
        assert len(re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(refusal))) >= 2


UNFIT: dict[str, tuple[Any, ...]] = {
    "decreases": (torch.sin, torch.neg, torch.cos),
    "finite": (torch.sqrt, torch.log, torch.atanh),
    "not elementwise": (
        lambda u: u.softmax(-1),
        lambda u: u + u.max(0).values,
        lambda u: u + 0 * u[:, :2].sum() + u[:, min(1, u.shape[1])].mean(),
    ),
    "write it in torch": (np.tanh, lambda u: torch.from_numpy(np.tanh(u.numpy()))),
    "shape": (lambda u: u.sum(-1),),
    "whatever": (torch.zeros_like,),
    "cannot be applied": (torch.nn.Linear(3, 3),),
    "must be callable": (1.0,),
    r"^gelu decreases .* read by liftednet\.lift": (torch.nn.functional.gelu,),
    r"got the class: write Softsign\(\)\.": (torch.nn.Softsign,),
}


def test_ends_that_phi_comes_to_slowly_pass():
    slow = off(
        Activation, ends=(-1.0, 1.0), lipschitz=1.0,
        forward=lambda _, u: u.sign() * (1 - 1 / (1 + (1 + u.abs()).log())),
    )  # fmt: skip
    assert check_activation(slow()).passed


@pytest.mark.parametrize("words", UNFIT)
def test_from_function_refuses_what_is_no_activation_s_map(words):
    for function in UNFIT[words]:
        refuses(DeclarationError, words, Activation.from_function, function)


def test_a_constant_that_is_none_is_refused_and_a_potential_asked_for():
    refuses(DataError, "lipschitz", Activation.from_function, torch.tanh, lipschitz=-1.0)
    coupled = off(Activation, per_unit=False, forward=lambda _, u: u.softmax(-1))()
    refuses(DeclarationError, "does not declare `potential`", check_activation, coupled)


AT_INFINITY = [
    (lambda u: ((u * u + 1).sqrt() - 1) / 2 + u, -torch.inf),  # NaN at both ends: inf - inf
    (lambda u: u / (1 + u * u).sqrt(), -1.0),  # NaN, too: inf / inf
    (torch.nn.functional.hardshrink, -torch.inf),  # two jumps
]


@pytest.mark.parametrize(("function", "infimum"), AT_INFINITY)
def test_right_functions_pass_whatever_they_give_at_infinity(function, infimum):
    activation = Activation.from_function(function)
    assert check_activation(activation).passed
    assert activation.scalar_map.infimum == pytest.approx(infimum)
