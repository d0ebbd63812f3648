"""`check_activation` passes what holds, and refuses what does not with its first failing point."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from liftednet import Activation, check_activation
from liftednet.check import FailedCheckError
from liftednet.errors import DataError, DeclarationError
from tests.liftednet.activations.catalogue import EVERY, OWN, Ball
from tests.liftednet.check.wrong import REFUSED, off
from tests.models.networks import refuses


@pytest.mark.parametrize("activation", [*EVERY, *OWN], ids=repr)
def test_what_holds_passes(activation):
    report = check_activation(activation)
    assert report.passed and repr(activation) in str(report)
    assert all(check.worst <= check.allowed for check in report.checks)
    names = {check.name for check in report.checks}
    assert "argmin: equals forward" in names and all(name in str(report) for name in names)
    assert any("prox" in name for name in names) != isinstance(activation, Ball)


WITHOUT_A_POINT = {
    "sine, with the printed Phi", "wrong shape", "not a sum", "without a gradient",
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
