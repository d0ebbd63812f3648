"""The properties of a declaration, each a test of one, and which declarations have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.check.report import Check, Subject, judge, relative, shown
from liftednet.errors import LiftedError
from liftednet.evaluation import evaluate_all, nearest, solve_precisely
from liftednet.lazy import cvxpy as cp

Test = Callable[[Subject], Check]

_TYPES = (torch.float32, torch.float64)
_MODERATE, _WIDE = 30.0, 1e6  # pre-activations up to which phi is finite, and no NaN
_FAR, _SHORT = 1e12, 1e-3  # where phi is at an end of its domain, but for so much
_NEARER = 0.9  # of the distance that it had at 1e6, where it comes to it slowly
_RANDOM_PAIRS = 400
_SQUARED = 1e150  # of phi, whose square float64 holds
_ROUNDING = 1e-9  # of phi
_VALUE = 1e-7  # rounding of a value, where CVXPY minimizes over variables inside an expression
_STEP = _SLOPE = 1e-5  # of difference quotients, and what these are off
_TILT = 1e-4  # of the linear term: it moves a unique argmin by little, any other by much
_APART = 1e-2  # how far the argmin of the tilted problems may be apart
_NEAR = 1e-5  # of a prox to the solution, in units of 1 + |v|
_SINGLE = 1e-4  # of float32, in units of 1 + |value|
_INPUT = 16 * torch.finfo(torch.float32).eps  # of the input: a step may round it once and again


def properties(subject: Subject) -> Iterator[Test]:
    """Yield the tests of what the activation declares or has derived, the simplest first."""
    activation = subject.activation
    alone, declares = activation.per_unit, activation.declares
    table: tuple[tuple[Test, bool], ...] = (
        (finite, True),
        (separate, True),
        (monotone, True),
        (convex_in_states, True),
        (unique, True),
        (argmin, True),
        (lipschitz, True),
        (convex_in_pre_activations, alone or declares("conjugate")),
        (potential_values, declares("potential")),
        (conjugate_values, declares("conjugate")),
        (excess, declares("excess")),
        (divergence, True),
        (outside, True),
        (reached, alone and declares("ends")),
        (offset, True),
        (prox_stationary, alone or declares("prox")),
        (slope, alone),
        (differentiable, True),
        (promised, activation.constant_sum or activation.scale_free),
        (projection, True),
        (single, True),
    )
    return (test for test, has in table if has)


def _first(checks: Iterable[Check]) -> Check:
    """Return the first check that fails, or the last."""
    for check in checks:
        if not check.passed:
            break
    return check


def _failed(name: str, tested: str, failure: str, allowed: float = 0.0) -> Check:
    return Check(name, tested, torch.inf, allowed, failure)


# The forward map


def finite(subject: Subject) -> Check:
    """Check that phi keeps type and shape, is finite for |u| <= 30, and never NaN to 1e6."""
    activation, units = subject.activation, 3
    magnitudes = torch.logspace(-3, 6, 55, dtype=torch.float64)
    drawn = subject.normal(len(magnitudes), units).clamp(-1, 1)
    points = magnitudes.unsqueeze(-1) * drawn
    name, tested = "forward: finite", f"{len(points)} samples to |u| = {_WIDE:.0e}, both types"

    def one(kind: torch.dtype) -> Check:
        phi = activation.forward(points.to(kind)).detach()
        if phi.shape != (len(points), units) or phi.dtype != kind:
            found = f"{phi.dtype} of shape {tuple(phi.shape)}"
            wanted = f"{kind} of shape {(len(points), units)}"
            return _failed(name, tested, f"forward gives {found}, not {wanted}.")
        near = points.abs().amax(-1, keepdim=True) <= _MODERATE
        bad = phi.isnan() | (near & phi.isinf())
        tell = "at u = {} it gives {}; it must be a finite number."
        return judge(name, tested, bad.sum(-1).double(), 0.0, tell, points, phi)

    return _first(map(one, _TYPES))


def separate(subject: Subject) -> Check:
    """Check that samples, and the units of a unit-by-unit map, are mapped by themselves."""
    activation = subject.activation
    points = 3 * subject.normal(20, 3)
    together = activation.forward(points).detach()
    parts, what = (points.reshape(-1, 1), "units") if activation.per_unit else (points, "samples")
    alone = torch.cat([activation.forward(part.unsqueeze(0)) for part in parts]).detach()
    alone = alone.reshape(together.shape)
    tell = (
        "at u = {} it gives {}, but {} where "
        f"the {what} stand alone (with per_unit = False the units of a sample may be coupled)."
    )
    tested = f"20 samples of 3 units, all together and {what} alone"
    difference = (together - alone).abs().amax(-1)
    rows = (points, together, alone)
    return judge("forward: separate", tested, difference, _ROUNDING, tell, *rows)


def monotone(subject: Subject) -> Check:
    """Check <phi(u) - phi(u'), u - u'> >= 0, over pairs that are neighbors on a line or random."""
    left, right = _pairs(subject)
    low, high = (subject.activation.forward(x).detach() for x in (left, right))
    product = ((high - low) * (right - left)).sum(-1)
    scale = (right - left).norm(dim=-1) * (1 + low.norm(dim=-1))
    fall = (-product / scale).clamp(min=0)
    tell = (
        "forward gives {} at u = {} and {} at u' = {}, so that <phi(u) - phi(u'), u - u'> = {}; it "
        "must not be negative."
    )
    rows = (low, left, high, right, product)
    return judge("forward: monotone", f"{len(left)} pairs", fall, _ROUNDING, tell, *rows)


def lipschitz(subject: Subject) -> Check:
    """Check that no difference quotient of phi exceeds the declared or derived constant."""
    bound = subject.activation.lipschitz
    if bound is None:
        return Check("lipschitz", "no constant: no joint divergence, no fast weight fit", 0.0, 0.0)
    if not 0 < bound < float("inf"):
        failure = f"the constant is {bound}; it must be positive and finite, or None."
        return _failed("lipschitz", "the constant itself", failure)
    left, right = _pairs(subject)
    change = (subject.activation.forward(right) - subject.activation.forward(left)).detach()
    quotient = change.norm(dim=-1) / (right - left).norm(dim=-1)
    tell = (
        "between u = {} and u' = {} phi rises by {} |u - u'|, "
        f"more than the constant {bound:.6g}."
    )
    excess = (quotient / bound - 1).clamp(min=0)
    tested = f"{len(left)} quotients against {bound:.6g}"
    return judge("lipschitz", tested, excess, 1e-6, tell, left, right, quotient)


def _pairs(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return pairs of pre-activations, (pairs, pre-units), at which squares of phi are finite."""
    left, right = _line(subject) if subject.activation.per_unit else _random(subject)
    finite = torch.ones(len(left), dtype=torch.bool)
    for points in (left, right):
        finite &= (subject.activation.forward(points).detach().abs() < _SQUARED).all(-1)
    return left[finite], right[finite]


def _line(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return neighbors on a line, from zero outwards, far ones at random: nothing lies between."""
    fine = torch.linspace(0.0, 12.0, 2401, dtype=torch.float64)
    far = 10 ** (1.1 + 2.9 * subject.uniform(_RANDOM_PAIRS))
    x = torch.cat([fine, far.sort().values])
    steps = torch.stack([x[:-1], x[1:]], dim=-1).repeat_interleave(2, dim=0)
    steps[1::2] = -steps[1::2].flip(-1)
    return steps[:, :1], steps[:, 1:]


def _random(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return pairs from near to far, half of them along the steepest direction."""
    center = subject.normal(_RANDOM_PAIRS, subject.units)
    direction = subject.normal(*center.shape)
    direction[::2] = _steepest(subject, center[::2])
    distance = torch.logspace(-3, 3, _RANDOM_PAIRS, dtype=torch.float64).unsqueeze(-1)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    return center, center + distance * direction


def _steepest(subject: Subject, points: Tensor) -> Tensor:
    """Return the first right singular vectors of phi's Jacobian, (samples, pre-units)."""

    def together(u: Tensor) -> Tensor:  # samples are mapped by themselves
        return subject.activation.forward(u).sum(0)

    jacobians = torch.autograd.functional.jacobian(together, points).transpose(0, 1)
    return torch.linalg.svd(jacobians).Vh[:, 0].contiguous()


def slope(subject: Subject) -> Check:
    """Check phi' against difference quotients on both sides, between which a kink may fall."""
    activation, u = subject.activation, subject.wide_u
    found, step = activation.slope(u).detach(), _STEP * (1 + u.abs())
    phi = [activation.forward(u + k * step).detach() for k in (-1, 0, 1)]
    error, quotient = _beside_quotients(found, phi, step)
    tell = "at u = {} slope gives {}, the difference quotient of forward is {}."
    tested = f"{len(u)} difference quotients"
    rows = (u, found, quotient)
    return judge("slope", tested, error.amax(-1), _SLOPE, tell, *rows)


def _beside_quotients(found: Tensor, phi: Sequence[Tensor], step: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far slopes are beyond the quotients on both sides, and the quotient over both."""
    before, here, after = phi
    left, right = (here - before) / step, (after - here) / step
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    error = torch.maximum(low - found, found - high).clamp(min=0) / (1 + high.abs())
    return error, (left + right) / 2


def differentiable(subject: Subject) -> Check:
    """Check the slopes that autograd has of phi, along random lines, against quotients."""
    activation, u = subject.activation, subject.wide_u
    name, along = "forward: differentiable", subject.normal(*u.shape)
    x, step = u.clone().requires_grad_(), _STEP * (1 + u.norm(dim=-1, keepdim=True))
    phi = activation.forward(x)
    if not phi.requires_grad:
        return _failed(name, "autograd", "forward loses the gradient: it must be torch's alone.")
    along = along / along.norm(dim=-1, keepdim=True)
    weights = subject.normal(*phi.shape)
    (slopes,) = torch.autograd.grad((phi * weights).sum(), x)
    found = (slopes * along).sum(-1)
    moved = (activation.forward(u + k * step * along).detach() for k in (-1, 0, 1))
    error, quotient = _beside_quotients(found, [(x * weights).sum(-1) for x in moved], step[:, 0])
    tell = "at u = {} autograd has a slope of {}, the difference quotient of forward is {}."
    rows = (u, found, quotient)
    return judge(name, f"{len(u)} difference quotients", error, _SLOPE, tell, *rows)


def promised(subject: Subject) -> Check:
    """Check that states sum to the same where that is promised, and have no scale where that is."""
    activation, u, v = subject.activation, subject.wide_u, subject.wide_v
    error = torch.zeros(len(u), dtype=torch.float64)
    if activation.constant_sum:
        error = (v.sum(-1) - v[0].sum()).abs() / (1 + v.abs().sum(-1))
    if activation.scale_free:
        error = torch.maximum(error, relative(activation.forward(3 * u).detach(), v))
    tell = (
        "at u = {} phi(u) = {} has another sum, or another value at 3 u, than its class promises."
    )
    return judge("constant_sum, scale_free", f"{len(u)} samples", error, _ROUNDING, tell, u, v)


# The argmin: a convex problem in each block by CVXPY's rules, whose one solution is `forward`


def _solved(subject: Subject, u: Tensor, tilt: float = 0.0) -> Tensor | str:
    """Return the argmin over v of D(v, u) + tilt sum(v), or what CVXPY says instead."""
    return next(_each_solved(subject, [u], tilt))


def _each_solved(
    subject: Subject, parts: Sequence[Tensor], tilt: float = 0.0
) -> Iterator[Tensor | str]:
    """Yield the same of parts of as many samples, by one problem that CVXPY compiles once."""
    u = cp.Parameter(tuple(parts[0].shape))
    v = cp.Variable((len(parts[0]), subject.units))
    objective = subject.divergence.state_term(v, u) + tilt * cp.sum(v)
    problem = cp.Problem(cp.Minimize(objective), subject.activation.domain(v))
    for part in parts:
        u.value = part.numpy()
        try:
            solve_precisely(problem)
        except cp.error.SolverError as error:
            yield str(error)
            continue
        yield f"CVXPY reports {problem.status}" if v.value is None else torch.from_numpy(v.value)


def convex_in_states(subject: Subject) -> Check:
    """Check that D is convex in v, and its parameters DPP, by CVXPY's rules."""
    v, u = cp.Variable(tuple(subject.v.shape)), cp.Parameter(tuple(subject.u.shape))
    return _convex(
        "potential: convex in v",
        lambda: (subject.divergence.state_term(v, u), subject.activation.domain(v)),
        lambda: _bulge(subject),
    )


def convex_in_pre_activations(subject: Subject) -> Check:
    """Check that D is convex in u, and its parameters DPP, by CVXPY's rules."""
    v, u = cp.Parameter(tuple(subject.v.shape)), cp.Variable(tuple(subject.u.shape))
    return _convex("conjugate: convex in u", lambda: (subject.divergence.link_term(u, v), []))


def _convex(
    name: str,
    state: Callable[[], tuple[cp.Expression, list[cp.Constraint]]],
    example: Callable[[], str | None] = lambda: None,
) -> Check:
    failed = partial(_failed, name, tested := "CVXPY's rules (DCP, DPP)")
    try:
        objective, constraints = state()
        problem = cp.Problem(cp.Minimize(cp.sum(objective)), constraints)
    except LiftedError:
        raise
    except Exception as error:  # whatever a user's expression may raise
        reason = " ".join(str(error).split())
        return failed(f"CVXPY cannot build the expression: {type(error).__name__}: {reason}")
    if objective.size != 1:
        return failed(f"the expression has shape {objective.shape}; it must be a sum, one number.")
    if problem.is_dpp():
        return Check(name, tested, 0.0, 0.0)
    kind = "is convex, but a product of parameters keeps it from being compiled once (DPP)"
    if not problem.is_dcp():
        kind = f"is {objective.curvature.lower()} by CVXPY's rules, or its domain is not convex"
    return failed(f"the expression {kind}{example() or '.'}")


def _bulge(subject: Subject) -> str | None:
    """Return the first pair of states between which Phi lies above its chord, in words."""
    left, right = subject.v, subject.other
    rows = torch.cat([left, right, (left + right) / 2])
    low, high, middle = _stated(subject.activation.potential, rows).chunk(3)
    above = middle > (low + high) / 2 + 1e-9 * (1 + low.abs() + high.abs())
    if not bool(above.any()):
        return None
    i = int(above.nonzero()[0])
    return (
        f": halfway between v = {shown(left[i])} and v' = {shown(right[i])} Phi is "
        f"{shown(middle[i])}, above the mean {shown((low[i] + high[i]) / 2)} of its ends."
    )


def unique(subject: Subject) -> Check:
    """Check that tilting D by -1e-4 and 1e-4 in v leaves its argmin where it is."""
    name, tested = "argmin: unique", f"{len(subject.u)} samples, tilted by {_TILT:g} both ways"
    low, high = (_solved(subject, subject.u, tilt) for tilt in (_TILT, -_TILT))
    if isinstance(low, str) or isinstance(high, str):
        return _failed(name, tested, _unsolved(subject, str(low)))
    tell = "at u = {} both v = {} and v = {} minimize D(v, u); forward gives {}."
    rows = (subject.u, low, high, subject.v)
    return judge(name, tested, relative(low, high), _APART, tell, *rows)


def argmin(subject: Subject) -> Check:
    """Check that the argmin of D over v, as CVXPY solves it, is `forward`.

    Far pre-activations are solved one by one; those of a unit-by-unit map are left to the values
    and the prox.
    """
    activation, near, allowed = subject.activation, len(subject.u), subject.tolerance("potential")
    far = [] if activation.per_unit else list(subject.wide_u[near:].split(1))
    found = [_solved(subject, subject.u), *(_each_solved(subject, far) if far else ())]
    tested = f"{near + len(far)} samples, solved by CVXPY"
    if isinstance(found[0], str):
        return _failed("argmin: equals forward", tested, _unsolved(subject, found[0]), allowed)
    v, u = subject.wide_v[: near + len(far)], subject.wide_u[: near + len(far)]
    nowhere = torch.full_like(v[:1], torch.nan)
    right = torch.cat([nowhere if isinstance(x, str) else x for x in found])
    tell = "at u = {} forward gives {}, but the argmin of the divergence is {}."
    return judge("argmin: equals forward", tested, relative(v, right), allowed, tell, u, v, right)


def _unsolved(subject: Subject, status: str) -> str:
    """Name the first sample for which CVXPY finds no argmin."""
    for u, v in zip(subject.u, subject.v, strict=True):
        found = _solved(subject, u[None])
        if isinstance(found, str):
            return (
                f"at u = {shown(u)} D(v, u) has no minimum over v: {found}; forward gives "
                f"{shown(v)}."
            )
    return f"CVXPY finds no argmin for the samples together: {status}."


# Values: the tight divergence, and the same potential and conjugate in CVXPY and in torch


def _stated(expression: Callable[[cp.Expression], cp.Expression], rows: Tensor) -> Tensor:
    """Return the value of a CVXPY expression at each row, (samples,)."""
    values = evaluate_all([expression(cp.Constant(row[None])) for row in rows.numpy()])
    return torch.tensor(values, dtype=torch.float64)


def divergence(subject: Subject) -> Check:
    """Check that Phi(v) - <u, v> + Phi*(u) is 0 at v = phi(u), in torch.

    That it is so in CVXPY, too, follows from equal values there; that it is nowhere negative, from
    phi(u) being its argmin.
    """
    u, v = subject.wide_u, subject.wide_v
    found = subject.divergence.values(v, u).double()
    error = found.abs() / (1 + (u * v).sum(-1).abs())
    tell = (
        "at u = {} and v = forward(u) = {} the divergence Phi(v) - <u, v> + Phi*(u) is {}; it must "
        "be 0."
    )
    tested = f"{len(u)} samples at v = forward(u)"
    return judge("tight divergence: D = 0", tested, error, _VALUE, tell, u, v, found)


def potential_values(subject: Subject) -> Check:
    """Check that torch and CVXPY give the same Phi(v)."""
    return _one_value(subject, "potential", subject.wide_v)


def conjugate_values(subject: Subject) -> Check:
    """Check that torch and CVXPY give the same Phi*(u)."""
    return _one_value(subject, "conjugate", subject.wide_u)


def _one_value(subject: Subject, method: str, points: Tensor) -> Check:
    computed = getattr(subject.activation, f"{method}_value")(points).detach()
    stated = _stated(getattr(subject.activation, method), points)
    error = (computed - stated).abs() / (1 + stated.abs())
    tell = f"at {{}} {method}_value gives {{}} in torch, {method} {{}} in CVXPY."
    tested = f"{len(points)} samples, torch and CVXPY"
    rows = (points, computed, stated)
    return judge(f"{method}: one value", tested, error, _VALUE, tell, *rows)


def excess(subject: Subject) -> Check:
    """Check that the declared excess is Phi(v) - |v|^2 / (2 L), and convex by CVXPY's rules."""
    activation, v = subject.activation, subject.wide_v
    name = "excess: potential less its square"
    if activation.lipschitz is None:
        return _failed(name, "no constant L", "it needs a Lipschitz constant.")
    if not activation.excess(cp.Variable(tuple(v.shape))).is_convex():
        failure = "the expression is not convex by CVXPY's rules."
        return _failed(name, "CVXPY's rules (DCP)", failure)
    square = v.square().sum(-1) / (2 * activation.lipschitz)
    right = activation.potential_value(v).detach() - square
    found = _stated(activation.excess, v)
    error = (found - right).abs() / (1 + square)
    tell = "at v = {} it gives {}, Phi(v) - |v|^2 / (2 L) is {}."
    return judge(name, f"{len(v)} samples", error, _VALUE, tell, v, found, right)


def offset(subject: Subject) -> Check:
    """Check that the linear term of the joint divergence keeps it from falling below zero.

    With c = phi(0) it is least at u = 0, v = phi(0); any other c must leave <c, u> + L |u|^2 / 2
    above Phi*(u), which is what the tight divergence has in its place.
    """
    activation, units = subject.activation, subject.units
    c = activation.offset(units).detach()
    name, tested = "offset", "c = phi(0), or <c, u> + L |u|^2 / 2 >= Phi*(u)"
    if c.shape != (units,) or not bool(c.isfinite().all()):
        failure = f"it gives {shown(c)} of shape {tuple(c.shape)} for {units} units."
        return _failed(name, tested, failure)
    zero = torch.zeros(1, subject.u.shape[1], dtype=torch.float64)
    right = activation.forward(zero).detach()[0]
    error = (c - right).abs().max()
    tell = f"it gives c = {shown(c)}, and phi(0) is {shown(right)}"
    if float(error) <= _VALUE or activation.lipschitz is None:
        return judge(name, tested, error[None], _VALUE, f"{tell}.")
    u = torch.cat([zero, subject.wide_u])
    square = activation.lipschitz * u.square().sum(-1) / 2
    below = activation.conjugate_value(u).detach() - u @ c - square
    tell += ", and at u = {} <c, u> + L |u|^2 / 2 is {} below Phi*(u)."
    return judge(name, tested, below.clamp(min=0) / (1 + square), _VALUE, tell, u, below)


# The proximal map and the projection, against CVXPY and against the forward map


def prox_stationary(subject: Subject) -> Check:
    """Check that prox(w, t) is where v = phi((w - v) / t), for w to 1,000 and t from 1e-8 to 1e8.

    It is asked with t as a tensor, and as a number, which solvers give it. Two bounds say how far v
    is off: v - phi((w - v) / t) itself, and the root of 2 t D(v, (w - v) / t), D being the tight
    divergence.
    """
    activation = subject.activation
    points, weights = _crossed(subject)
    t = weights.repeat_interleave(len(points)).unsqueeze(-1)
    w = points.repeat(len(weights), 1)
    v = activation.prox(w, t).detach()
    error, there = _bound(activation, w, t, v)
    by_number = torch.cat([activation.prox(points, float(x)).detach() for x in weights])
    differs = relative(by_number, v)
    v = by_number.where((differs > error).unsqueeze(-1), v)
    error = torch.maximum(error, differs)
    tell = "at w = {} and t = {} prox gives v = {}, but phi((w - v) / t) is {}."
    tested = f"{len(w)} samples, t from {float(t.min()):.0e} to 1e8"
    return judge("prox: v = phi((w - v) / t)", tested, error, _NEAR, tell, w, t, v, there)


def _crossed(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return w (samples, units) and t (weights,), powers of ten and what lies between."""
    every = 1 if subject.activation.per_unit else 4  # the values of others may be CVXPY's
    points = subject.wide_u[::every]
    weights = torch.logspace(-8, 8, 17, dtype=torch.float64)[:: min(every, 2)]
    return points, torch.cat([weights, 10 ** (8 - 16 * subject.uniform(len(weights) // 2))])


def _bound(activation: Activation, w: Tensor, t: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lesser of two bounds on |v - prox(w, t)| / (1 + |v|), and phi((w - v) / t)."""
    x = (w - v) / t
    there = activation.forward(x).detach()
    residual = 2 * (there - v).norm(dim=-1)
    values = activation.potential_value(v).detach() + activation.conjugate_value(x).detach()
    gap = (2 * t[:, 0] * (values - (x * v).sum(-1))).clamp(min=0).sqrt()
    least = torch.minimum(residual.nan_to_num(torch.inf), gap.nan_to_num(torch.inf))
    return least / (1 + v.norm(dim=-1)), there


def projection(subject: Subject) -> Check:
    """Check that project keeps phi(u), and gives the nearest point of the stated domain."""
    activation = subject.activation
    states = subject.wide_v
    points = torch.cat([states, _anywhere(subject)])
    found = activation.project(points).detach()
    if activation.domain(cp.Variable(tuple(points.shape))):
        right = torch.from_numpy(nearest(points.numpy(), activation.domain))
    else:
        right = torch.cat([states, activation.project(found[len(states) :]).detach()])
    tell = "project moves {} to {}; the nearest point of the domain is {}."
    name, tested = "project: nearest in the domain", f"{len(points)} samples"
    return judge(name, tested, relative(found, right), 1e-5, tell, points, found, right)


def _anywhere(subject: Subject) -> Tensor:
    """Return points near and far, (samples, units), most of them outside a bounded domain."""
    sizes = torch.logspace(0, 3, len(subject.v), dtype=torch.float64).unsqueeze(-1)
    return torch.cat([torch.full_like(sizes, 4), sizes]) * subject.normal(
        2 * len(sizes), subject.units
    )


def outside(subject: Subject) -> Check:
    """Check that potential_value is infinite outside the domain."""
    points = _outside(subject)
    values = subject.activation.potential_value(points).detach()
    tell = "v = {} lies outside the domain, potential_value gives {}."
    name, tested = "potential_value: infinite outside", f"{len(points)} samples outside"
    return judge(name, tested, (~values.isposinf()).double(), 0.0, tell, points, values)


def reached(subject: Subject) -> Check:
    """Check that phi comes to the ends of its domain that are finite, or nearer and nearer."""
    activation = subject.activation
    ends = torch.tensor(activation.ends).double()[:, None]
    u = torch.tensor([[-_FAR], [_FAR]], dtype=torch.float64)
    found, near = (activation.forward(x).detach() for x in (u, u * (_WIDE / _FAR)))
    off, before = relative(found, ends), relative(near, ends)
    comes = (off < _NEARER * before) | (before <= _SHORT)
    off = torch.where(ends.isfinite()[:, 0] & ~comes, off, 0.0)
    tell = "phi({}) is {}, and the end of the domain is declared as {}."
    return judge("ends: those of phi", "both ends", off, _SHORT, tell, u, found, ends)


def _outside(subject: Subject) -> Tensor:
    """Return those of the points that are well outside of the domain, (samples, units)."""
    points = _anywhere(subject)
    return points[relative(points, subject.activation.project(points).detach()) > 1e-2]


# float32: every method gives what it gives in float64


def single(subject: Subject) -> Check:
    """Check that every method gives in float32 what it gives in float64, near and far."""
    return _first(_rounded(*each) for each in _methods(subject))


def _methods(subject: Subject) -> Iterator[tuple[str, Tensor, Callable[[Tensor], Tensor]]]:
    activation = subject.activation
    u, v = subject.wide_u, subject.wide_v
    yield "forward", u, activation.forward
    yield "conjugate_value", u, activation.conjugate_value
    yield "project", 3 * u[:, : v.shape[1]], activation.project
    if activation.per_unit:
        yield "slope", u, activation.slope
    if activation.per_unit or activation.declares("prox"):
        for t in (1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e8):
            yield f"prox with t = {t:g}", u, partial(activation.prox, t=t)
    inside = activation.potential_value(v.float().double()).isfinite()  # rounding may leave it
    yield "potential_value", torch.cat([v[inside], _outside(subject)]), activation.potential_value


def _rounded(name: str, exact: Tensor, method: Callable[[Tensor], Tensor]) -> Check:
    points = exact.float()
    found, right = method(points).detach(), method(points.double()).detach()
    equal = found == right.to(found.dtype)  # infinite ones, too
    rounding = _INPUT * points.double().norm(dim=-1).view(-1, *(1,) * (right.ndim - 1))
    error = ((found.double() - right).abs() - rounding).clamp(min=0) / (1 + right.abs())
    error = torch.where(equal, 0.0, error).reshape(len(points), -1).amax(-1)
    tell = f"{name} gives {{}} in float32 and {{}} in float64 at {{}}."
    tested = f"every method, {len(points)} samples"
    return judge("float32: as in float64", tested, error, _SINGLE, tell, found, right, points)
