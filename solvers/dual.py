"""State fits with quadratic links by conjugate gradients on the dual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Joint
from liftednet.problems import StateFit
from liftednet.samples import row_chunks

from .base import Solver
from .conjugate import Point, advance, moved, starting_point
from .state_links import (
    Unfinished,
    columns_above,
    curvature_of,
    quadratic,
    row_scales,
    scales_of,
    states_refusal,
)

_PATIENCE = {torch.float32: 16, torch.float64: 64}  # steps in which a violation must fall
_NEWTON_STEPS = 150
_RESISTANCE = 30  # Newton steps in which the largest violation must fall
_COARSE = 7e-6  # relative violation that float32 reaches without trouble


@dataclass(frozen=True)
class SharedMap:
    """The links' weights as one map A, in coordinates where its Gram matrix is diagonal.

    Attributes:
        map: A = [sqrt(scale_k) W_k] turned, (units, r).
        adjoint: A', (r, units), contiguous.
        turn: the rotation of the stacked columns, (r, r), which A contains.
        spectrum: the diagonal of A'A, (r,).
        lipschitz: L.
    """

    map: Tensor
    adjoint: Tensor
    turn: Tensor
    spectrum: Tensor
    lipschitz: float

    def to(self, dtype: torch.dtype) -> SharedMap:
        """Return the map in another precision."""
        parts = ((part.name, getattr(self, part.name)) for part in fields(self))
        tensors: dict[str, Any] = {n: x.to(dtype) for n, x in parts if isinstance(x, Tensor)}
        return replace(self, **tensors)


def shared_map(problem: StateFit) -> SharedMap:
    """Return the weights of quadratic links in rotated coordinates."""
    lipschitz = problem.divergence.activation.lipschitz
    assert lipschitz is not None  # asked for by refusal
    pairs = zip(scales_of(problem), problem.links, strict=True)
    stacked = torch.cat([scale**0.5 * link.weight.double() for scale, link in pairs], 1)
    spectrum, turn = torch.linalg.eigh(stacked.T @ stacked)
    turned = stacked @ turn
    return SharedMap(turned, turned.T.contiguous(), turn, spectrum.clamp(min=0), lipschitz)


@dataclass(frozen=True)
class DualRows:
    """min over y of |y + h|^2 / 2 + Phi*(u - y A'), the dual of a state fit, sample by sample.

    Its minimizer y = Z A - h gives the states Z = phi(u - y A').

    Attributes:
        activation: phi.
        shared: A, in the precision of u.
        u: (samples, pre-activations).
        h: (samples, r), the targets of Z A.
        scale: what violations are relative to, (samples,).
    """

    activation: Activation
    shared: SharedMap
    u: Tensor
    h: Tensor
    scale: Tensor

    def rows(self, keep: Tensor) -> DualRows:
        """Return the problem of some of the samples."""
        return replace(self, u=self.u[keep], h=self.h[keep], scale=self.scale[keep])

    def to(self, dtype: torch.dtype) -> DualRows:
        """Return the problem in another precision."""
        u, h, scale = self.u.to(dtype), self.h.to(dtype), self.scale.to(dtype)
        return DualRows(self.activation, self.shared.to(dtype), u, h, scale)

    def multipliers(self, states: Tensor | None) -> Tensor:
        """Return y = Z A - h at given states, or at phi(u)."""
        states = self.forward(self.u) if states is None else states.to(self.u)
        return states @ self.shared.map - self.h

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> per sample, (samples, 1)."""
        return (a * b).sum(-1, keepdim=True)

    def paired(self, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return the same of every pair."""
        return tuple(self.inner(*pair) for pair in pairs)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.activation.forward(u)

    def lift(self, y: Tensor) -> Tensor:
        """Return -y A'."""
        return -y @ self.shared.adjoint

    def pre_activation(self, y: Tensor) -> Tensor:
        """Return u - y A'."""
        return torch.addmm(self.u, y, self.shared.adjoint, alpha=-1)

    def quadratic_gradient(self, y: Tensor) -> Tensor:
        """Return y + h."""
        return y + self.h

    def curved(self, d: Tensor) -> Tensor:
        """Return d."""
        return d

    def pull(self, v: Tensor) -> Tensor:
        """Return -v A."""
        return (v @ self.shared.map).neg_()

    def precondition(self, gradient: Tensor) -> Tensor:
        """Return gradient (I + A'A L / 2)^-1, half the Lipschitz constant as a typical slope."""
        return gradient / (1 + self.shared.lipschitz / 2 * self.shared.spectrum)

    def gradient(self, y: Tensor, u: Tensor) -> Tensor:
        """Return the gradient at y, where u = u - y A'."""
        return self.quadratic_gradient(y) + self.pull(self.forward(u))

    def newton_direction(self, u: Tensor, gradient: Tensor) -> Tensor:
        """Return -(I + A' diag(phi'(u)) A)^-1 gradient, sample by sample, for a per-unit phi."""
        curved = self.activation.slope(u).unsqueeze(-1) * self.shared.map
        hessian = self.shared.adjoint @ curved
        hessian.diagonal(dim1=-2, dim2=-1).add_(1)
        return torch.linalg.solve_ex(hessian, -gradient).result

    def violation(self, gradient: Tensor) -> Tensor:
        """Return |gradient A'| per sample, relative: a bound of how far Z is from stationary."""
        return (gradient.square() @ self.shared.spectrum).sqrt() / self.scale


def dual_rows(problem: StateFit, shared: SharedMap, part: slice) -> DualRows:
    """Return the dual for the samples of a slice."""
    u = problem.pre_activation[part]
    h = torch.cat(list(_wanted(problem, part)), 1)
    turned, scale = h @ shared.turn.to(h), row_scales(problem, part)
    return DualRows(problem.divergence.activation, shared.to(u.dtype), u, turned, scale)


def _wanted(problem: StateFit, part: slice) -> Iterator[Tensor]:
    """Yield what each link asks of Z W sqrt(scale): sqrt(scale) ((V - c) / L - C)."""
    for link, scale in zip(problem.links, scales_of(problem), strict=True):
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        target = link.target[part]
        wanted = (target - link.divergence.offset(target)) / curvature_of(link)
        offset = link.offset if link.offset.ndim == 1 else link.offset[part]
        yield scale**0.5 * (wanted - offset)


@dataclass
class _Place:
    """Where conjugate gradients stand, and the violation by which they are patient."""

    point: Point
    earlier: Tensor

    def rows(self, keep: Tensor) -> _Place:
        return _Place(self.point.rows(keep), self.earlier[keep])


@dataclass(frozen=True)
class Dual(Solver[StateFit, Tensor, None]):
    """Solves a state fit with quadratic links by conjugate gradients on its dual.

    With A = [sqrt(lam_k L_k / lam) W_k] the fit is min Phi(Z) - <Z, U> + |Z A - h|^2 / 2. Its dual
    min |y + h|^2 / 2 + Phi*(U - y A') is smooth for every activation, asks for the forward map
    alone, and has one preconditioner (I + A'A L / 2)^-1 for all samples, diagonal after a
    rotation of y. Samples that are done leave the batch; float32 leads, float64 finishes, and
    the few samples that resist, in very ill-conditioned fits, get Newton steps of their own.

    Attributes:
        tolerance: relative KKT residual to reach; None for 1e-8 in float64, 1e-5 in float32.
        max_iterations: steps in each precision.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import Dual, solve
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> solve(StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,)), Dual()).value
        tensor([[1.5000, 0.0000]])
    """

    tolerance: float | None = None
    max_iterations: int = 1_000
    kind = StateFit
    name: str = field(default="dual", init=False)

    def refusal(self, problem: StateFit) -> str | None:
        """Ask for quadratic links and a Lipschitz constant."""
        refused = states_refusal(problem)
        if refused is None and not quadratic(problem):
            return 'it needs quadratic links (divergence="joint", squared errors above)'
        return refused

    def suits(self, problem: StateFit) -> bool:
        """Say whether the links have few units, or the activation no prox in closed form."""
        columns = columns_above(problem)
        return 3 * columns <= 2 * problem.units or not problem.divergence.activation.closed_prox

    def minimize(
        self, problem: StateFit, start: Tensor | None, cache: None, tolerance: float
    ) -> tuple[Tensor, int]:
        """Return the minimizer to the tolerance."""
        shared = shared_map(problem)
        value = problem.pre_activation.new_empty(problem.samples, problem.units)
        steps = 0
        for part in row_chunks(problem.samples, problem.units, value.device):
            rows = dual_rows(problem, shared, part)
            begin, rough = None if start is None else start[part], max(tolerance, _COARSE)
            value[part], used = self._states(rows, begin, tolerance, rough)
            steps = max(steps, used)
        return value, steps

    def _states(
        self, rows: DualRows, start: Tensor | None, goal: float, rough: float
    ) -> tuple[Tensor, int]:
        """Return the states of these samples, and the steps taken."""
        exact, quick = rows.to(torch.float64), rows.to(torch.float32)
        if start is None:
            y, _, steps = self._descend(quick, quick.multipliers(None), rough)
        else:
            y = exact.multipliers(start)
            u = exact.pre_activation(y)
            late = exact.violation(exact.gradient(y, u)) > goal
            if not bool(late.any()):
                return exact.forward(u).to(rows.u), 0
            near, _, steps = self._descend(quick, y.float(), rough)
            y = torch.where(late.unsqueeze(1), near.double(), y)
        y, u, more = self._descend(exact, y.double(), goal)
        if exact.activation.per_unit:
            u, last = _finished(exact, y, u, goal)
            more += last
        return exact.forward(u).to(rows.u), steps + more

    def _descend(self, rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, Tensor, int]:
        """Return y, u - y A' where violations are within the goal, or no longer fall."""
        begin = starting_point(rows, y)
        place = _Place(begin, torch.full_like(begin.decrease[:, 0], torch.inf))
        batch, steps = Unfinished(rows, place, lambda place: (place.point.y, place.point.u)), 0
        while True:
            place = batch.at
            violation = batch.problem.violation(place.point.gradient)
            going = late = violation > goal
            if steps % _PATIENCE[y.dtype] == 0:
                going = late & (violation < 0.7 * place.earlier)
                place.earlier = violation
            if not batch.release(going, late) or steps == self.max_iterations:
                y, u = batch.results()
                return y, u, steps
            steps += 1
            batch.at.point = advance(batch.problem, batch.at.point, steps)


def _finished(rows: DualRows, y: Tensor, u: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return u - y A' with the samples that conjugate gradients left over solved by Newton."""
    late = (rows.violation(rows.gradient(y, u)) > goal).nonzero()[:, 0]
    most = 0
    for part in row_chunks(len(late), y.shape[1] * max(y.shape[1], u.shape[1]), u.device):
        some = late[part]
        u[some], steps = _newton(rows.rows(some), y[some], goal)
        most = max(most, steps)
    return u, most


def _newton(rows: DualRows, y: Tensor, goal: float) -> tuple[Tensor, int]:
    """Return u - y A' after semismooth Newton steps with an exact line search."""
    at, best, steps = starting_point(rows, y), torch.inf, 0
    while steps < _NEWTON_STEPS:
        worst = float(rows.violation(at.gradient).max() / goal)
        if worst <= 1 or (steps % _RESISTANCE == 0 and worst > 0.9 * best):
            break
        best = worst if steps % _RESISTANCE == 0 else best
        steps += 1
        direction = rows.newton_direction(at.u, at.gradient)
        at = moved(rows, replace(at, direction=direction, step=torch.ones_like(at.step)))
    return at.u, steps
