"""float32: every method gives what it gives in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, shown

_ALLOWED = 1e-4  # in units of 1 + |value|
_INPUT = 16 * torch.finfo(torch.float32).eps  # of the input: a step may round it once and again
_STEPS = (1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e8)

Method = Callable[[Tensor], Tensor]


def single(subject: Subject) -> Check:
    """Check that every method gives in float32 what it gives in float64, near and far."""
    for name, points, method in _methods(subject):
        rounded = points.float()
        found, right = method(rounded).detach(), method(rounded.double()).detach()
        check = _same(name, rounded, found, right)
        if not check.passed:
            return check
    return check


def _methods(subject: Subject) -> Iterator[tuple[str, Tensor, Method]]:
    activation = subject.activation
    u, v = subject.wide_u, subject.wide_v
    yield "forward", u, activation.forward
    if subject.is_raw:
        return
    yield "conjugate_value", u, activation.conjugate_value
    yield "project", 3 * u[:, : v.shape[1]], activation.project
    if activation.per_unit:
        yield "slope", u, activation.slope
    if activation.per_unit or activation.declares("prox"):
        for t in _STEPS:
            yield f"prox with t = {t:g}", u, partial(activation.prox, t=t)
    inside = activation.potential_value(v.float().double()).isfinite()  # rounding may leave it
    yield "potential_value", v[inside], activation.potential_value


def _same(name: str, points: Tensor, found: Tensor, right: Tensor) -> Check:
    shape = (len(points), -1)
    equal = found == right.to(found.dtype)  # infinite ones, too
    error = (found.double() - right).abs() - _INPUT * points.double().norm(dim=-1).view(
        -1, *(1,) * (right.ndim - 1)
    )
    error = torch.where(equal, 0.0, error.clamp(min=0) / (1 + right.abs())).reshape(shape)

    def tell(i: int) -> str:
        return (
            f"{name} gives {shown(found[i])} in float32 and {shown(right[i])} in float64 at "
            f"{shown(points[i])}."
        )

    tested = f"every method, {len(points)} samples"
    return judge("float32: as in float64", tested, error.amax(-1), _ALLOWED, tell)
