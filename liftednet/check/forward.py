"""The forward map: finite, of the right shape, monotone, with the slope and constant it claims."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from liftednet.check.report import Check
from liftednet.check.subject import Subject, judge, shown

_MODERATE, _WIDE = 30.0, 1e6
_ROUNDING = 1e-9
_STEP = 1e-5


def finite(subject: Subject) -> Check:
    """Check that phi keeps type and shape, is finite for |u| <= 30, and never NaN to 1e6."""
    activation, units = subject.activation, 3
    size = activation.pre_units(units)
    magnitudes = torch.logspace(-3, 6, 55, dtype=torch.float64)
    points = magnitudes.unsqueeze(-1) * subject.normal(len(magnitudes), size).clamp(-1, 1)
    name, tested = "forward: finite", f"{len(points)} samples to |u| = {_WIDE:.0e}, both types"
    for kind in (torch.float32, torch.float64):
        phi = activation.forward(points.to(kind)).detach()
        if phi.shape != (len(points), units) or phi.dtype != kind:
            found = f"{phi.dtype} of shape {tuple(phi.shape)}"
            wanted = f"{kind} of shape {(len(points), units)}"
            return Check(name, tested, torch.inf, 0.0, f"forward gives {found}, not {wanted}.")
        near = points.abs().amax(-1, keepdim=True) <= _MODERATE
        bad = phi.isnan() | (near & phi.isinf())
        tell = partial(_not_finite, points, phi)
        check = judge(name, tested, bad.sum(-1).double(), 0.0, tell)
        if not check.passed:
            return check
    return check


def _not_finite(points: Tensor, phi: Tensor, i: int) -> str:
    return f"at u = {shown(points[i])} it gives {shown(phi[i])}; it must be a finite number."


def separate(subject: Subject) -> Check:
    """Check that samples, and the units of a unit-by-unit map, are mapped by themselves."""
    activation = subject.activation
    points = 3 * subject.normal(20, activation.pre_units(3))
    together = activation.forward(points).detach()
    by_unit = activation.per_unit and not subject.is_raw
    parts, what = (points.reshape(-1, 1), "units") if by_unit else (points, "samples")
    alone = torch.cat([activation.forward(part.unsqueeze(0)) for part in parts]).detach()
    alone = alone.reshape(together.shape)

    def tell(i: int) -> str:
        return (
            f"at u = {shown(points[i])} it gives {shown(together[i])}, but {shown(alone[i])} where "
            f"the {what} stand alone (with per_unit = False the units of a sample may be coupled)."
        )

    tested = f"20 samples of 3 units, all together and {what} alone"
    difference = (together - alone).abs().amax(-1)
    return judge("forward: separate", tested, difference, _ROUNDING, tell)


def monotone(subject: Subject) -> Check:
    """Check <phi(u) - phi(u'), u - u'> >= 0, over pairs that are neighbors on a line or random."""
    left, right = _pairs(subject)
    low, high = (subject.activation.forward(x).detach() for x in (left, right))
    product = ((high - low) * (right - left)).sum(-1)
    scale = (right - left).norm(dim=-1) * (1 + low.norm(dim=-1))
    fall = -product / scale

    def tell(i: int) -> str:
        return (
            f"forward gives {shown(low[i])} at u = {shown(left[i])} and {shown(high[i])} at u' = "
            f"{shown(right[i])}, so that <phi(u) - phi(u'), u - u'> = {float(product[i]):.3g}; it "
            "must not be negative."
        )

    return judge("forward: monotone", f"{len(left)} pairs", fall.clamp(min=0), _ROUNDING, tell)


def lipschitz(subject: Subject) -> Check:
    """Check that no difference quotient of phi exceeds the declared or derived constant."""
    bound = subject.activation.lipschitz
    name = "lipschitz"
    if bound is None:
        return Check(name, "no constant: no joint divergence, no fast weight fit", 0.0, 0.0)
    if not 0 < bound < float("inf"):
        failure = f"the constant is {bound}; it must be positive and finite, or None."
        return Check(name, "the constant itself", torch.inf, 0.0, failure)
    left, right = _pairs(subject)
    change = (subject.activation.forward(right) - subject.activation.forward(left)).detach()
    rise = (change.norm(dim=-1) - subject.activation.accuracy).clamp(min=0)
    quotient = rise / (right - left).norm(dim=-1)

    def tell(i: int) -> str:
        return (
            f"between u = {shown(left[i])} and u' = {shown(right[i])} phi rises by "
            f"{float(quotient[i]):.6g} |u - u'|, more than the constant {bound:.6g}."
        )

    excess = (quotient / bound - 1).clamp(min=0)
    return judge(name, f"{len(left)} quotients against {bound:.6g}", excess, 1e-6, tell)


def _pairs(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return pairs of pre-activations, (pairs, pre-units), at which phi is finite."""
    left, right = _line() if subject.activation.per_unit else _random(subject)
    finite = torch.ones(len(left), dtype=torch.bool)
    for points in (left, right):
        finite &= subject.activation.forward(points).detach().isfinite().all(-1)
    return left[finite], right[finite]


def _line() -> tuple[Tensor, Tensor]:
    """Return neighbors on a line, from zero outwards."""
    fine = torch.linspace(0.0, 12.0, 2401, dtype=torch.float64)
    far = torch.logspace(1.1, 4, 60, dtype=torch.float64)
    x = torch.cat([fine, far])
    steps = torch.stack([x[:-1], x[1:]], dim=-1).repeat_interleave(2, dim=0)
    steps[1::2] = -steps[1::2].flip(-1)
    return steps[:, :1], steps[:, 1:]


def _random(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return pairs from near to far, half of them along the steepest direction."""
    center = subject.normal(400, subject.activation.pre_units(subject.units))
    direction = subject.normal(*center.shape)
    direction[::2] = _steepest(subject, center[::2])
    distance = torch.logspace(-3, 3, 400, dtype=torch.float64).unsqueeze(-1)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    return center, center + distance * direction


def _steepest(subject: Subject, points: Tensor) -> Tensor:
    """Return the first right singular vectors of phi's Jacobian, (samples, pre-units)."""

    def one(u: Tensor) -> Tensor:
        return subject.activation.forward(u.unsqueeze(0)).squeeze(0)

    jacobians = torch.stack([torch.autograd.functional.jacobian(one, u) for u in points])
    return torch.linalg.svd(jacobians).Vh[:, 0].contiguous()


def slope(subject: Subject) -> Check:
    """Check phi' against difference quotients on both sides, between which a kink may fall."""
    activation, u = subject.activation, subject.wide_u
    found, step = activation.slope(u).detach(), _STEP * (1 + u.abs())
    before, here, after = (activation.forward(u + k * step).detach() for k in (-1, 0, 1))
    left, right = (here - before) / step, (after - here) / step
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    error = torch.maximum(low - found, found - high).clamp(min=0) / (1 + high.abs())

    def tell(i: int) -> str:
        return (
            f"at u = {shown(u[i])} slope gives {shown(found[i])}, the difference quotient of "
            f"forward is {shown((left[i] + right[i]) / 2)}."
        )

    tested = f"{subject.origin('slope')}, {len(u)} difference quotients"
    return judge("slope", tested, error.amax(-1), 1e-5, tell)
