"""States of one layer, the layer below and everything above given."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednet.deferred import reported
from liftednet.divergences import Divergence, Raw, require_divergence
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.problems.chunks import row_chunks
from liftednet.problems.design_matrix import squared_norm_on
from liftednet.problems.formulation import (
    Formulation,
    Measure,
    exact_target,
    require_bounded,
    to_numpy,
)
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)


@dataclass(frozen=True, eq=False)
class Link:
    """lam [R(Z W + C) - <Z W + C, V>]: what a layer above asks of the states Z.

    Attributes:
        divergence: gives R.
        weight: W, (units, next units).
        offset: C, a bias (next units,) or a full (samples, next units) offset.
        target: V, the states or data above, (samples, next states).
        lam: the weight of the divergence, positive.
    """

    divergence: Divergence
    weight: Tensor
    offset: Tensor
    target: Tensor
    lam: float = 1.0

    def pre_activation(self, states: Tensor) -> Tensor:
        """Return Z W + C, (samples, next units)."""
        return torch.addmm(self.offset, states, self.weight)

    @cached_property
    def smoothness(self) -> float | None:
        """Lam L |W|_2^2, a Lipschitz constant of the gradient in Z, or None."""
        if self.divergence.smoothness is None:
            return None
        return self.lam * self.divergence.smoothness * reported(squared_norm_on(self.weight))

    def rows(self, part: slice | Tensor) -> Link:
        """Return the link of some of the samples."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[part]
        return Link(self.divergence, self.weight, offset, self.target[part], self.lam)

    def double(self) -> Link:
        """Return the link in float64."""
        tensors = (self.weight.double(), self.offset.double(), self.target.double())
        return Link(self.divergence, *tensors, self.lam)


@dataclass(frozen=True, eq=False)
class StateFit:
    """min over Z in dom Phi of lam [Phi(Z) - <Z, U>] + sum over the links.

    Lifted Neural Networks, eq. (13). ReLU and joint links make it nonnegative least squares with
    one shared matrix; two links (next step and output) make the recurrent case.

    Attributes:
        divergence: gives Phi and its domain.
        pre_activation: U, (samples, units), from the layer below.
        links: what the layers above ask of Z.
        lam: the weight of the divergence, positive.

    Raises:
        DataError: shapes, types or lam do not fit.
        DeclarationError: no divergence, or links that are no tuple of links.
    """

    divergence: Divergence
    pre_activation: Tensor
    links: tuple[Link, ...] = ()
    lam: float = 1.0

    def __post_init__(self) -> None:
        """Refuse data that do not fit together."""
        object.__setattr__(self, "lam", require_positive("lam", self.lam))
        require_divergence("a StateFit", self.divergence)
        require_matrix("the pre-activation U", self.pre_activation)
        if not isinstance(self.links, tuple | list):
            raise DeclarationError(
                f"links must be a tuple, as in links=(link,); got {type(self.links).__name__}."
            )
        for number, link in enumerate(self.links):
            self._require_link(f"of link {number}", link)

    def _require_link(self, which: str, link: Link) -> None:
        samples, units = self.samples, self.units
        if not isinstance(link, Link):
            raise DeclarationError(f"links hold Link(...) objects, got {type(link).__name__}.")
        require_divergence("a Link", link.divergence)
        require_positive(f"lam {which}", link.lam)
        require_matrix(f"the weight W {which}", link.weight)
        outputs = link.weight.shape[1]
        require_shape(f"the weight W {which}", link.weight, (units, outputs), f"for {units} units")
        if not isinstance(link.offset, Tensor):
            kind = type(link.offset).__name__
            raise DataError(f"the offset C {which} must be a torch tensor, got {kind}.")
        rows = (outputs,) if link.offset.ndim == 1 else (samples, outputs)
        require_shape(f"the offset C {which}", link.offset, rows, "beside its weight")
        require_matrix(f"the target V {which}", link.target)
        if link.divergence.activation.pre_units(link.target.shape[1]) != outputs:
            require_shape(f"the target V {which}", link.target, (samples, outputs), "beside W")
        shape = (samples, link.target.shape[1])
        require_shape(f"the target V {which}", link.target, shape, f"for {samples} samples")
        for name, tensor in (("weight", link.weight), ("offset", link.offset)):
            require_like(f"the {name} {which}", tensor, "U", self.pre_activation)
        require_like(f"the target {which}", link.target, "U", self.pre_activation)

    @property
    def samples(self) -> int:
        """The number of rows of Z."""
        return self.pre_activation.shape[0]

    @property
    def units(self) -> int:
        """The number of columns of Z."""
        block = self.divergence.activation.pre_units(1)
        return self.pre_activation.shape[1] // block

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the fit unbounded."""
        require_finite("the pre-activation U", self.pre_activation)
        for number, link in enumerate(self.links):
            require_finite(f"the weight W of link {number}", link.weight)
            require_finite(f"the offset C of link {number}", link.offset)
            require_finite(f"the target V of link {number}", link.target)
            require_bounded(f"the target V of link {number}", link.divergence, link.target)

    def refuse_bad_start(self, start: Tensor) -> None:
        """Raise `DataError` where a start is not a finite tensor like Z."""
        require_matrix("the start", start)
        require_shape("the start", start, (self.samples, self.units), "like Z")
        require_like("the start", start, "U", self.pre_activation)
        require_finite("the start", start)

    def formulate(self) -> Formulation:
        """Return the problem in CVXPY, with every Z W + C a variable so that it is DPP."""
        z = cp.Variable((self.samples, self.units))
        u = cp.Parameter(tuple(self.pre_activation.shape))
        parameters = {"pre_activation": u}
        objective = self.lam * self.divergence.state_term(z, u)
        constraints = self.divergence.activation.domain(z)
        for number, link in enumerate(self.links):
            shape = (self.samples, link.weight.shape[1])
            above = cp.Variable(shape)
            weight, offset = cp.Parameter(tuple(link.weight.shape)), cp.Parameter(shape)
            target = cp.Parameter(tuple(link.target.shape))
            constraints.append(above == z @ weight + offset)
            objective += link.lam * link.divergence.link_term(above, target)
            names = (f"weight {number}", f"offset {number}", f"target {number}")
            parameters.update(zip(names, (weight, offset, target), strict=True))
        problem = cp.Problem(cp.Minimize(objective), constraints)
        formulation = Formulation(problem, parameters, {"states": z})
        self.fill(formulation)
        return formulation

    def fill(self, formulation: Formulation) -> None:
        """Put U and the links' W, C, V into a formulation's parameters."""
        parameters = formulation.parameters
        parameters["pre_activation"].value = to_numpy(self.pre_activation)
        for number, link in enumerate(self.links):
            shape = (self.samples, link.weight.shape[1])
            parameters[f"weight {number}"].value = to_numpy(link.weight)
            parameters[f"offset {number}"].value = to_numpy(link.offset.expand(shape))
            parameters[f"target {number}"].value = exact_target(link.divergence, link.target)

    def read(self, formulation: Formulation) -> Tensor:
        """Return Z of a solved formulation, moved into the domain where rounding left it."""
        states = torch.from_numpy(formulation.variables["states"].value)
        return self.divergence.activation.project(states).to(self.pre_activation)

    def signature(self) -> Hashable:
        """Return shapes, divergences and weights lam."""
        links = tuple(
            (tuple(link.weight.shape), tuple(link.target.shape), link.divergence, link.lam)
            for link in self.links
        )
        return StateFit, tuple(self.pre_activation.shape), self.divergence, self.lam, links

    @cached_property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of the links in Z, or None (for a raw D, too)."""
        if isinstance(self.divergence, Raw):
            return None
        total = 0.0
        for link in self.links:
            if link.smoothness is None:
                return None
            total += link.smoothness
        return total

    def measure(self, value: Tensor) -> Measure:
        """Return the objective and the relative KKT residual at Z, in float64.

        The residual is the prox-gradient mapping s (Z - prox_{lam Phi / s}(Z - g / s)), with g the
        gradient of all but Phi and s = lam + the links' smoothness, its largest entry over the
        largest entry of the terms lam U, grad R W' and V W' (and of lam, the unit of lam U).
        """
        objective, violation = (value.new_zeros((), dtype=torch.float64) for _ in range(2))
        scale = torch.full_like(objective, self.lam)
        for part in row_chunks(self.samples, self.units, value.device):
            rows = self.rows(part)
            piece, gradient, largest = rows._terms(value[part].double())
            objective += piece
            scale = torch.maximum(scale, largest)
            if gradient is not None:
                off = rows._stationarity(value[part].double(), gradient)
                violation = torch.maximum(violation, off.abs().max())
        smooth = self.smoothness is not None
        return Measure(reported(objective), reported(violation / scale) if smooth else torch.nan)

    def rows(self, part: slice | Tensor) -> StateFit:
        """Return the fit of some of the samples, in float64."""
        u = self.pre_activation[part].double()
        links = tuple(link.rows(part).double() for link in self.links)
        rows = StateFit(self.divergence, u, links, self.lam)
        rows.__dict__["smoothness"] = self.smoothness  # known already
        return rows

    def _terms(self, z: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the objective, the gradient of all but Phi, and the largest term in it."""
        objective = self.lam * self.divergence.state_value(z, self.pre_activation)
        gradient = -self.lam * self.pre_activation
        scale = gradient.abs().max()
        for link in self.links:
            above = link.pre_activation(z)
            objective = objective + link.lam * link.divergence.link_value(above, link.target)
            if self.smoothness is None:
                continue
            push = link.divergence.link_gradient(above) - link.target
            pulled = link.lam * (link.target.float() @ link.weight.float().T)
            pushed = link.lam * (push @ link.weight.T)
            gradient = gradient + pushed
            scale = torch.maximum(scale, pulled.abs().max())
            scale = torch.maximum(scale, (pushed + pulled).abs().max())
        return objective, None if self.smoothness is None else gradient, scale

    def _stationarity(self, z: Tensor, gradient: Tensor) -> Tensor:
        activation = self.divergence.activation
        s = self.lam if self.smoothness is None else self.lam + self.smoothness
        if activation.per_unit or activation.declares("prox"):
            return s * (z - activation.prox(z - gradient / s, self.lam / s))
        return self.lam * (z - activation.forward(-gradient / self.lam))
