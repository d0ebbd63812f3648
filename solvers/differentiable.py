"""A solution that gradients flow through: implicit differentiation of every fit.

At a solution v = T(v), with T one step of a fixed-point map whose parts are torch functions of v
and of the data; so dv = (I - dT/dv)^-1 dT/d(data) (Bai, Kolter and Koltun, 2019, for such maps). A
gradient g that comes back to v is turned into y = (I - dT/dv)'^-1 g, and goes on into the data
through one more T.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.maps import Given
from liftednet.problems import (
    BlockFit,
    Fit,
    Link,
    OutputFit,
    StateFit,
    StatesOverTime,
    WeightFit,
)
from liftednet.problems.priors import BoxedStates, PenalizedWeights
from liftednet.sets.penalty import Weighted
from liftednet.solution import Solution

from .choice import solve

FixedPoint = Callable[[Tensor], Tensor]

_OFF = 1e-4  # by which a solution may miss its fixed point, relative to its largest entry, or 1
_DENSE = 600  # entries up to which I - dT/dv is formed
_SAMPLE = 200  # units up to which it is formed for every sample
_SPACE = 400  # directions of the Krylov space beyond that
_LONGEST = 1e8  # of the solution of a system that is not as good as singular
_SOLVED = 1e-10  # relative residual of that linear system where it counts as solved
_USABLE = 1e-5  # and where it is of use


def solve_differentiable(
    problem: Fit[Any],
    solver: Any = "auto",
    start: Any = None,
    *,
    lam: Tensor | None = None,
    rho: Tensor | None = None,
) -> Solution[Any]:
    """Solve a fit and return a solution whose value passes gradients back to the fit's tensors.

    Every tensor of the fit that requires a gradient gets it: targets, pre-activations, inputs and
    weights of samples, weights and offsets of links, a drive, a recurrent weight. The derivative is
    that of the optimality conditions, exact where they have one: not at a kink, where a state or
    weight just enters or leaves a bound (one side is taken there), and not where the minimizer is
    not unique. For states over time with a tight divergence, which is not convex, it is that of
    the stationary point that was found. It is as accurate as the solution; use float64 and a tight
    tolerance. Second derivatives are refused by torch.

    Args:
        problem: a `WeightFit`, `StateFit`, `OutputFit`, `StatesOverTime` or `BlockFit`.
        solver: as `solve` takes it.
        start: as `solve` takes it.
        lam: the weight of the divergence as a tensor (), in place of the problem's; of a block of
            states it is that of Phi, with the linear term as it is.
        rho: the weight of the penalty of a weight fit as a tensor (), in place of its own.

    Returns:
        What `solve` returns; `value` has a graph.

    Raises:
        DataError: lam or rho is no positive number, or the fit has none.
        DeclarationError: the solver cannot serve the problem, or its loss is known to CVXPY alone.
        SolverError: nothing usable was reached, or, from the backward pass, the optimality
            conditions do not determine the derivative.

    Example:
        >>> import torch
        >>> from liftednet.problems import Design, WeightFit
        >>> from liftednet.activations import Identity
        >>> from liftednet.divergences import joint
        >>> from liftednet.penalties import SquaredFrobenius
        >>> from liftednet.solvers import solve_differentiable
        >>> x, y = torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
        >>> rho = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        >>> fit = WeightFit(joint(Identity()), Design(x, bias=False), y, SquaredFrobenius(1.0))
        >>> weights = solve_differentiable(fit, rho=rho).value.matrix  # 1 / (1 + 2 rho)
        >>> weights.sum().backward()
        >>> rho.grad.round(decimals=6)
        tensor(-1., dtype=torch.float64)
    """
    if lam is not None:
        problem = _with_lam(problem, lam)
    if rho is not None:
        problem = _with_penalty(problem, rho)
    with torch.no_grad():
        solution = solve(_detached(problem), solver, start)
    with torch.enable_grad():
        value = _through(problem, problem.block.packed(solution.value).double())
    return dataclasses.replace(solution, value=problem.block.unpacked(value))


def _with_lam(problem: Fit[Any], lam: Tensor) -> Fit[Any]:
    """Return a problem with a tensor for lam."""
    _require_positive("lam", lam)
    found: Fit[Any]
    if not isinstance(problem, BlockFit):
        found = _replaced(problem, "lam", lam)
        return found
    if not isinstance(problem.block, BoxedStates) or problem.own is not None:
        raise DataError("lam of a block is that of states that are no target of their own.")
    found = _replaced(problem, "block", _replaced(problem.block, "lam", lam))
    return found


def _with_penalty(problem: Fit[Any], rho: Tensor) -> Fit[Any]:
    _require_positive("rho", rho)
    if not isinstance(problem, WeightFit) or not isinstance(problem.penalty, Weighted):
        raise DataError("rho is for a weight fit whose penalty has one, such as SquaredFrobenius.")
    found: Fit[Any] = _replaced(problem, "penalty", _replaced(problem.penalty, "rho", rho))
    return found


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, Tensor) or value.shape != () or not bool(0 < value < torch.inf):
        raise DataError(f"{name} must be a positive tensor of shape (), got {value!r}.")


def _replaced(part: Any, name: str, value: Any) -> Any:
    """Return a frozen part with one attribute replaced, unchecked, and nothing cached."""
    found = copy.copy(part)
    cached = {*vars(found)} - {field.name for field in dataclasses.fields(part)}
    for other in cached:
        del found.__dict__[other]
    object.__setattr__(found, name, value)
    return found


def _detached(part: Any) -> Any:
    """Return a problem, or a part of one, with tensors and numbers that have no graph."""
    if isinstance(part, Tensor):
        return part.detach()
    if isinstance(part, tuple):
        return tuple(map(_detached, part))
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    found = part
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        plain = _detached(value)
        if field.name in ("lam", "rho") and isinstance(plain, Tensor):
            plain = float(plain)
        if plain is not value:
            found = _replaced(found, field.name, plain)
    return found


def _through(problem: Fit[Any], v: Tensor) -> Tensor:
    """Return v with the graph of a fixed-point map that holds at it.

    Raises:
        DeclarationError: no map is known, or none holds.
    """
    missed = torch.inf
    for step in _maps(problem):
        once = step(v)
        missed = float((once.detach() - v).abs().max())
        if missed <= _OFF * max(1.0, float(v.abs().max())):
            by_sample = isinstance(problem, OutputFit) or (
                isinstance(problem, StateFit) and all(x.map.by_sample for x in problem.links)
            )
            found: Tensor = _Implicit.apply(  # type: ignore[no-untyped-call]
                once, v, step, by_sample
            )
            return found
    raise DeclarationError(
        f"no derivative is known of this {type(problem).__name__}: its optimality conditions are "
        f"missed by {missed:.1e}. Solve it to a tighter tolerance, or use an activation with a "
        "forward map in torch."
    )


def _maps(problem: Fit[Any]) -> list[FixedPoint]:
    """Return maps of which one has the solution of a problem as its fixed point."""
    if getattr(loss := getattr(problem, "loss", None), "stated_only", False):
        raise DeclarationError(f"{loss!r} is known to CVXPY alone, and has no derivative.")
    if isinstance(problem, OutputFit):
        return _output_maps(problem)
    block = _as_block(problem)
    smoothness = _detached(problem).smoothness
    if smoothness is None or block.block.obstacle() is not None:
        raise DeclarationError(
            "a divergence without a Lipschitz constant, or a block without a prox "
            f"({block.block.obstacle()}), has no derivative."
        )
    return _block_maps(block, smoothness)


def _as_block(problem: Fit[Any]) -> BlockFit:
    """Return a fit as that of a block whose maps torch sees through."""
    if isinstance(problem, WeightFit):
        design, targets = problem.design, problem.targets
        x = design.inputs.double()
        x = torch.cat([x, x.new_ones(len(x), 1)], 1) if design.bias else x
        offset = targets.new_zeros(problem.units) if problem.offset is None else problem.offset
        rows = Given(lambda v: x @ v, lambda u: x.T @ u)
        link = Link(problem.divergence, rows, offset, targets, problem.lam, design.weights)
        return BlockFit(problem.block, None, (link,))
    if isinstance(problem, StateFit):
        return BlockFit(problem.block, problem.lam * problem.pre_activation, problem.links)
    if isinstance(problem, StatesOverTime):
        return problem.as_block
    if isinstance(problem, BlockFit):
        return problem
    raise DeclarationError(f"no derivative is known of a {type(problem).__name__}.")


def _output_maps(problem: OutputFit) -> list[FixedPoint]:
    """Return z -> the point that stationarity asks for, by phi where its prox has no graph."""
    activation, lam, loss = problem.divergence.activation, problem.lam, problem.loss
    y, u = problem.target.double(), problem.pre_activation.double()

    def by_slope(z: Tensor) -> Tensor:
        with torch.enable_grad():
            point = z if z.requires_grad else z.detach().requires_grad_()
            value = loss.output_values(y, point).sum()
            (slope,) = torch.autograd.grad(value, point, create_graph=True)
        return activation.forward(u - slope / lam)

    def stationary(z: Tensor) -> Tensor:
        return loss.stationary_point(z, y, u, activation, lam)

    return [by_slope, stationary]


def _block_maps(problem: BlockFit, smoothness: float) -> list[FixedPoint]:
    """Return v -> phi of what pulls at states, and v -> the prox after a gradient step."""
    exact, block = problem.double(), problem.block
    lam = getattr(block, "lam", 0.0)
    s = smoothness + float(torch.as_tensor(lam).detach()) or 1.0

    def push(v: Tensor) -> Tensor:
        terms = exact.terms(v)
        return sum(terms[1:], terms[0])

    def by_prox(v: Tensor) -> Tensor:
        w = v - push(v) / s
        if not isinstance(block, PenalizedWeights):
            return _graphed(block, w, 1 / s)
        rows = len(block.weights.matrix)
        return torch.cat([_graphed(block.penalty, w[:rows], 1 / s), w[rows:]])

    if isinstance(block, PenalizedWeights):
        return [by_prox]
    activation, counted = block.divergence.activation, block.counted

    def by_forward(v: Tensor) -> Tensor:
        u = -push(v) / lam
        flat = activation.forward(u.flatten(0, -2)).view(u.shape)
        return flat if counted is None else flat.where(counted.unsqueeze(-1), 0.0)

    return [by_forward, by_prox]


def _graphed(part: Any, w: Tensor, t: float) -> Tensor:
    """Return the prox of a penalty or block, which torch must see through.

    Raises:
        DeclarationError: it does not.
    """
    found: Tensor = part.prox(w, t)
    if w.requires_grad and not found.requires_grad:
        raise DeclarationError(f"the prox of {part!r} is solved for, and has no derivative.")
    return found


class _Implicit(torch.autograd.Function):
    """v, whose gradient g goes on into T(v; data) as y with (I - dT/dv)' y = g."""

    @staticmethod
    def forward(ctx: Any, once: Tensor, v: Tensor, step: FixedPoint, by_sample: bool) -> Tensor:
        """Return v."""
        ctx.step, ctx.by_sample = step, by_sample
        ctx.save_for_backward(v)
        return v.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, None, None, None]:
        """Return y."""
        (v,) = ctx.saved_tensors
        with torch.enable_grad():
            point = v.detach().requires_grad_()
            once = ctx.step(point)

        def pulled(rows: Tensor) -> Tensor:
            if not once.requires_grad:
                return torch.zeros_like(rows)
            (found,) = torch.autograd.grad(once, point, rows, retain_graph=True, allow_unused=True)
            return torch.zeros_like(rows) if found is None else found

        return _solved(pulled, pushes[0], ctx.by_sample), None, None, None


def _solved(pulled: Callable[..., Tensor], g: Tensor, by_sample: bool) -> Tensor:
    """Return y with y - pulled(y) = g.

    Raises:
        SolverError: there is none, or more than one.
    """
    if by_sample and g.shape[-1] <= _SAMPLE:
        units = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        columns = torch.stack([row - pulled(row.expand_as(g)) for row in units], -1)
        y = _direct(columns, g.unsqueeze(-1)).squeeze(-1)
    elif g.numel() <= _DENSE:
        basis = torch.eye(g.numel(), dtype=g.dtype, device=g.device).view(-1, *g.shape)
        rows = torch.stack([(row - pulled(row)).flatten() for row in basis], -1)
        y = _direct(rows, g.flatten().unsqueeze(-1)).view_as(g)
    else:
        y = _krylov(lambda y: y - pulled(y), g)
    size = float(g.norm())
    if not float((y - pulled(y) - g).norm()) <= _USABLE * size:
        raise SolverError(
            "the optimality conditions do not determine the derivative of the solution: the "
            "minimizer is not unique, or nearly so. A larger penalty or lam helps.",
        )
    return y


def _direct(matrix: Tensor, right: Tensor) -> Tensor:
    """Return the solution of least norm of dense systems, (..., n, 1)."""
    found, failed = torch.linalg.solve_ex(matrix, right)[:2]
    if bool((failed == 0).all()) and float(found.norm()) <= _LONGEST * float(right.norm()):
        solution: Tensor = found
    else:
        solution = torch.linalg.pinv(matrix) @ right
    return solution


def _krylov(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Return y with product(y) = right by GMRES (Saad and Schultz, 1986), without restarts."""
    from scipy.sparse.linalg import LinearOperator, gmres

    def tensor(entries: Any) -> Tensor:
        return torch.from_numpy(entries).to(right).view_as(right)

    def image(entries: Any) -> Any:
        return product(tensor(entries)).flatten().cpu().numpy()

    size, most = right.numel(), min(_SPACE, right.numel())
    operator = LinearOperator((size, size), image, dtype=float)
    entries = right.flatten().cpu().numpy()
    return tensor(gmres(operator, entries, rtol=_SOLVED, restart=most, maxiter=1)[0])
