"""States of one layer, the layer below and everything above given: links, or the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.divergences import Divergence, require_divergence, within
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp
from liftednet.losses import OutputLoss
from liftednet.maps import Times
from liftednet.problems.fit import Fit, Link, Measure, Statement, constant, measured
from liftednet.problems.priors import BoxedStates, in_float64
from liftednet.samples import row_chunks
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)

Bounds = tuple[float, float]


@dataclass(frozen=True, eq=False, repr=False)
class StateFit(Fit[Tensor]):
    """min over Z in dom Phi of lam [Phi(Z) - <Z, U>] + sum over the links.

    Lifted Neural Networks, eq. (13). ReLU and joint links make it nonnegative least squares with
    one shared matrix; two links (next step and output) make the recurrent case.

    Attributes:
        divergence: gives Phi and its domain.
        pre_activation: U, (samples, units), from the layer below.
        links: what the layers above ask of Z.
        lam: the weight of the divergence, positive.
        bounds: (lowest, highest) value of a state, or None.

    Raises:
        DataError: shapes, types, lam or bounds do not fit.
        DeclarationError: no divergence, or links that are no tuple of links.

    Example:
        >>> import torch
        >>> from liftednet.problems import Link, StateFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> from liftednet.solvers import solve
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> solve(StateFit(joint(ReLU()), torch.tensor([[2.0, -2.0]]), (link,))).value
        tensor([[1.5000, 0.0000]])
    """

    divergence: Divergence
    pre_activation: Tensor
    links: tuple[Link, ...] = ()
    lam: float = 1.0
    bounds: Bounds | None = None

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
            if not isinstance(link, Link):
                kind = type(link).__name__
                raise DeclarationError(f"links hold Link(...) objects, got {kind}.")
            link.require(f"of link {number}", self.samples, self.units, self.pre_activation)
        if self.bounds is not None:
            object.__setattr__(self, "divergence", within(self.divergence, self.bounds))

    @property
    def samples(self) -> int:
        """The number of rows of Z."""
        return self.pre_activation.shape[0]

    @property
    def units(self) -> int:
        """The number of columns of Z."""
        return self.pre_activation.shape[1]

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the fit unbounded."""
        require_finite("the pre-activation U", self.pre_activation)
        for number, link in enumerate(self.links):
            link.refuse_bad_values(f"of link {number}")

    @property
    def terms_above(self) -> Sequence[Link]:
        """The links."""
        return self.links

    @cached_property
    def matrices(self) -> bool:
        """Whether every link is a matrix that all samples share."""
        return all(isinstance(link.map, Times) for link in self.links)

    def prior(self, v: cp.Expression) -> Statement:
        """Return lam [Phi(Z) - <Z, U>] and the domain of Phi."""
        domain = self.divergence.activation.domain(v)
        return self.lam * self.divergence.state_term(v, constant(self.pre_activation)), domain

    @cached_property
    def block(self) -> BoxedStates:
        """Lam Phi of Z."""
        shape = self.samples, self.units
        return BoxedStates(self.divergence, self.lam, shape, None, self.pre_activation)

    @cached_property
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of the links in Z, or None."""
        each = [link.smoothness for link in self.links]
        known = [one for one in each if one is not None]
        return sum(known, 0.0) if len(known) == len(each) else None

    def measure(self, value: Tensor) -> Measure:
        """Return the objective and the relative KKT residual at Z, in float64.

        The residual is the prox-gradient mapping s (Z - prox_{lam Phi / s}(Z - g / s)), with g the
        gradient of all but Phi and s = lam + the links' smoothness, the largest entry of a sample
        over the largest entry there of the terms lam U as far as phi follows it (`reach`), grad R
        W' and V W' (and over lam, the unit of lam U): samples are fits of their own, and none is
        judged by how large others are.
        """
        objective, violation = (value.new_zeros((), dtype=torch.float64) for _ in range(2))
        for part in row_chunks(self.samples, self.units, value.device):
            rows, z = self.rows(part), in_float64(self.divergence.activation, value[part])
            piece, gradient, scale = rows._terms(z)
            objective += piece
            if gradient is not None:
                off = rows._stationarity(z, gradient).abs().amax(1) / scale
                violation = torch.maximum(violation, off.max())
        if self.smoothness is None:
            violation = torch.full_like(violation, torch.nan)
        return measured(objective, violation)

    def rows(self, part: slice | Tensor) -> StateFit:
        """Return the fit of some of the samples, in float64."""
        u = self.pre_activation[part].double()
        links = tuple(link.rows(part).double() for link in self.links)
        rows = replace(self, pre_activation=u, links=links, bounds=None)
        rows.__dict__["smoothness"] = self.smoothness  # known already
        return rows

    def _terms(self, z: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the objective, the gradient of all but Phi, and each sample's largest term."""
        objective = self.lam * self.divergence.state_value(z, self.pre_activation)
        gradient = -self.lam * self.pre_activation
        scale = gradient.new_full((len(gradient),), self.lam)
        if self.smoothness is not None:
            u = reach(self.divergence.activation, self.pre_activation)
            scale = torch.maximum(scale, self.lam * u.amax(1))
        for link in self.links:
            above = link.pre_activation(z)
            objective = objective + link.lam * link.divergence.link_value(above, link.target)
            if self.smoothness is None:
                continue
            push = link.divergence.link_gradient(above) - link.target
            pulled = link.lam * link.map.adjoint(link.target)
            pushed = link.lam * link.map.adjoint(push)
            gradient = gradient + pushed
            scale = torch.maximum(scale, pulled.abs().amax(1))
            scale = torch.maximum(scale, (pushed + pulled).abs().amax(1))
        return objective, None if self.smoothness is None else gradient, scale

    def _stationarity(self, z: Tensor, gradient: Tensor) -> Tensor:
        activation = self.divergence.activation
        s = self.lam if self.smoothness is None else self.lam + self.smoothness
        if activation.per_unit or activation.declares("prox"):
            return s * (z - activation.prox(z - gradient / s, self.lam / s))
        return self.lam * (z - activation.forward(-gradient / self.lam))


def reach(activation: Activation, u: Tensor) -> Tensor:
    """Return |u| as far as phi follows it, the smaller one of |u| and |phi(u)|, (samples, units).

    A unit that u drives far into saturation stays where it is, however far that is: errors of other
    units are not to be compared with it.
    """
    found = activation.forward(u).abs()
    return torch.minimum(found, u.abs()) if found.shape == u.shape else found


@dataclass(frozen=True, eq=False, repr=False)
class OutputFit(Fit[Tensor]):
    """min over Z in dom Phi of loss(Y, Z) + lam [Phi(Z) - <Z, U>].

    Lifted Neural Networks, eq. (14), and eq. (15) for the cross-entropy on the simplex; with
    Phi = |z|^2 / 2 the paper's lam |Z - U|^2 is half of this lam.

    Attributes:
        loss: L(Y, Z).
        target: Y, (samples, outputs).
        divergence: gives Phi and its domain.
        pre_activation: U, (samples, outputs).
        lam: the weight of the divergence, positive.

    Raises:
        DataError: shapes, types or lam do not fit.
        DeclarationError: the loss cannot be paired with this activation.

    Example:
        >>> import torch
        >>> from liftednet.problems import OutputFit
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import tight
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.solvers import solve
        >>> y, u = torch.tensor([[1.0, -1.0]]), torch.tensor([[3.0, -1.0]])
        >>> solve(OutputFit(SquaredError(), y, tight(ReLU()), u)).value
        tensor([[2., 0.]])
    """

    loss: OutputLoss
    target: Tensor
    divergence: Divergence
    pre_activation: Tensor
    lam: float = 1.0

    def __post_init__(self) -> None:
        """Refuse data that do not fit together."""
        object.__setattr__(self, "lam", require_positive("lam", self.lam))
        if not isinstance(self.loss, OutputLoss):
            raise DeclarationError(
                "an OutputFit needs a loss of output states, such as SquaredError(); got "
                f"{self.loss!r}, which holds the outputs at the data."
            )
        require_divergence("an OutputFit", self.divergence)
        require_matrix("the pre-activation U", self.pre_activation)
        require_matrix("the target Y", self.target)
        require_shape(
            "the target Y", self.target, tuple(self.pre_activation.shape), "like that of U"
        )
        require_like("the target Y", self.target, "U", self.pre_activation)
        self.loss.require_activation(self.divergence.activation)

    def refuse_bad_values(self) -> None:
        """Raise `DataError` where data are NaN or infinite, or negative where they cannot be."""
        require_finite("the target Y", self.target)
        require_finite("the pre-activation U", self.pre_activation)
        if self.loss.nonnegative_target and bool((self.target < 0).any()):
            raise DataError(
                f"{self.loss!r} needs targets that are not negative, got "
                f"{float(self.target.min())}."
            )

    @property
    def terms_above(self) -> Sequence[Link]:
        """None: nothing stands above an output."""
        return ()

    def prior(self, v: cp.Expression) -> Statement:
        """Return loss(Y, Z) + lam [Phi(Z) - <Z, U>] and the domain of Phi."""
        u, y = constant(self.pre_activation), constant(self.target)
        value = self.loss.expression(y, v) + self.lam * self.divergence.state_term(v, u)
        return value, self.divergence.activation.domain(v)

    @cached_property
    def block(self) -> BoxedStates:
        """Lam Phi of Z."""
        shape = tuple(self.target.shape)
        return BoxedStates(self.divergence, self.lam, shape, None, self.pre_activation)

    def measure(self, value: Tensor) -> Measure:
        """Return the objective and the relative KKT residual at Z, in float64.

        The residual is the distance of Z from the point of the domain that stationarity asks
        for, of a sample over the largest of 1 and its entries of Z.
        """
        objective, violation = (value.new_zeros((), dtype=torch.float64) for _ in range(2))
        for part in row_chunks(len(value), value.shape[1], value.device):
            z = in_float64(self.divergence.activation, value[part])
            u = self.pre_activation[part].double()
            y = self.target[part].double()
            objective += self.loss.output_value(y, z)
            objective += self.lam * self.divergence.state_value(z, u)
            if not self.loss.stated_only:
                activation = self.divergence.activation
                off = (z - self.loss.stationary_point(z, y, u, activation, self.lam)).abs()
                off = off.amax(1) / z.abs().amax(1).clamp(min=1.0)
                violation = torch.maximum(violation, off.max())
        if self.loss.stated_only:
            violation = torch.full_like(violation, torch.nan)
        return measured(objective, violation)
