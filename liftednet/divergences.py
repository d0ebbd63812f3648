"""D(v, u) = Phi(v) - <u, v> + R(u): one activation, three choices of R (design, section 1).

R does not change the argmin over v. Tight takes the conjugate, joint the quadratic that makes D
convex in (v, u) together, and a margin that of a continuous map beside one that jumps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from liftednet.activation import Activation, require_activation
from liftednet.activations.piecewise_linear import Bounded, Identity
from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import cvxpy as cp

__all__ = ["Divergence", "Joint", "Margin", "Tight", "joint", "tight", "within"]


@dataclass(frozen=True)
class Divergence(ABC):
    """A divergence between states v (samples, units) and pre-activations u.

    Attributes:
        activation: the map phi whose argmin the divergence is.
        quadratic: whether R is a quadratic, so that a weight fit is a ridge regression.

    Example:
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import Divergence, tight
        >>> isinstance(tight(ReLU()), Divergence)
        True
    """

    activation: Activation
    quadratic: ClassVar[bool] = False

    @property
    @abstractmethod
    def smoothness(self) -> float | None:
        """A Lipschitz constant of the gradient of R, or None where R is not smooth."""

    @property
    def per_unit(self) -> bool:
        """Whether the Hessian of R is diagonal."""
        return self.quadratic or self.activation.per_unit

    @property
    def balanced(self) -> bool:
        """Whether the gradient of R has one sum over units everywhere, as of a softmax."""
        return self.activation.constant_sum and not self.quadratic

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return Phi(v), summed over samples and units, in CVXPY."""
        return self.activation.potential(v)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi(v) per sample, (samples,)."""
        return self.activation.potential_value(v)

    @abstractmethod
    def remainder(self, u: cp.Expression) -> cp.Expression:
        """Return R(u), summed over samples and units, in CVXPY."""

    @abstractmethod
    def remainder_value(self, u: Tensor) -> Tensor:
        """Return R(u) per sample, (samples,)."""

    @abstractmethod
    def link_gradient(self, u: Tensor) -> Tensor:
        """Return the gradient of R, (samples, units)."""

    @abstractmethod
    def link_curvature(self, u: Tensor) -> Tensor:
        """Return the diagonal of the Hessian of R for a unit-by-unit map, (samples, units)."""

    def state_term(self, v: cp.Expression, u: cp.Expression) -> cp.Expression:
        """Return the part of D that depends on v, Phi(v) - <u, v>, in CVXPY."""
        return self.potential(v) - cp.sum(cp.multiply(u, v))

    def link_term(self, u: cp.Expression, v: cp.Expression) -> cp.Expression:
        """Return the part of D that depends on u, R(u) - <u, v>, in CVXPY."""
        return self.remainder(u) - cp.sum(cp.multiply(v, u))

    def state_value(self, v: Tensor, u: Tensor) -> Tensor:
        """Return Phi(v) - <u, v> summed over the samples, a scalar."""
        return (self.potential_value(v) - (u * v).sum(-1)).sum()

    def link_value(self, u: Tensor, v: Tensor) -> Tensor:
        """Return R(u) - <u, v> summed over the samples, a scalar."""
        return self.link_values(u, v).sum()

    def link_values(self, u: Tensor, v: Tensor) -> Tensor:
        """Return R(u) - <u, v> of every sample, (samples,)."""
        return self.remainder_value(u) - (u * v).sum(-1)

    def value(self, v: Tensor, u: Tensor) -> Tensor:
        """Return D(v, u) summed over the samples, a scalar."""
        return self.values(v, u).sum()

    def values(self, v: Tensor, u: Tensor) -> Tensor:
        """Return D(v, u) of every sample, (samples,)."""
        return self.potential_value(v) - (u * v).sum(-1) + self.remainder_value(u)

    def joint_term(self, v: cp.Expression, u: cp.Expression) -> cp.Expression:
        """Return D(v, u), convex in both together by CVXPY's rules.

        Raises:
            DeclarationError: it is not convex in both, or CVXPY cannot know it.
        """
        raise DeclarationError(
            f"{type(self).__name__.lower()} divergences are convex in the states and in the "
            "pre-activations, not in both: states over time can be stated for joint ones alone."
        )

    def nearest_target(self, v: Tensor) -> Tensor:
        """Return the nearest v for which R(u) - <u, v> is bounded below, (samples, units)."""
        return v

    def minimizer(self, u: Tensor) -> Tensor:
        """Return the argmin of D over v, (samples, units)."""
        return self.activation.forward(u)


@dataclass(frozen=True)
class Tight(Divergence):
    """R = Phi*, the Fenchel-Young divergence: D >= 0, and D = 0 exactly at v = phi(u).

    Biconvex: the BCR condition of Lifted Neural Networks, section 4.

    Example:
        >>> from liftednet.activations import Sigmoid
        >>> from liftednet.divergences import Tight
        >>> Tight(Sigmoid()).smoothness
        0.25
    """

    @property
    def smoothness(self) -> float | None:
        """The Lipschitz constant of phi, the gradient of Phi*."""
        return self.activation.lipschitz

    def remainder(self, u: cp.Expression) -> cp.Expression:
        """Return Phi*(u), summed over samples and units, in CVXPY."""
        return self.activation.conjugate(u)

    def remainder_value(self, u: Tensor) -> Tensor:
        """Return Phi*(u) per sample, (samples,)."""
        return self.activation.conjugate_value(u)

    def link_gradient(self, u: Tensor) -> Tensor:
        """Return phi(u), (samples, units)."""
        return self.activation.forward(u)

    def link_curvature(self, u: Tensor) -> Tensor:
        """Return phi'(u) for a unit-by-unit map, (samples, units)."""
        return self.activation.slope(u)

    def nearest_target(self, v: Tensor) -> Tensor:
        """Return the projection of v on the closed domain of Phi, where that is known."""
        known = self.activation.per_unit or self.activation.declares("project")
        return self.activation.project(v) if known else v


@dataclass(frozen=True)
class Joint(Divergence):
    """R(u) = <c, u> + L |u|^2 / 2 with c = phi(0): D is convex in (v, u) together.

    The JCR condition of Lifted Neural Networks, section 4, for every nondecreasing L-Lipschitz
    map; for the ReLU it is |v - u|^2 / 2 on v >= 0. A weight fit has the target (v - c) / L.

    Raises:
        DeclarationError: the activation has no Lipschitz constant.

    Example:
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import Joint
        >>> Joint(ReLU()).quadratic
        True
    """

    quadratic = True

    def __post_init__(self) -> None:
        """Refuse an activation that has no Lipschitz constant."""
        if self.activation.lipschitz is None:
            raise DeclarationError(
                f"a joint divergence needs a Lipschitz constant, and {self.activation!r} has "
                'none: declare `lipschitz`, or use divergence="tight".'
            )

    @property
    def smoothness(self) -> float:
        """L, the Lipschitz constant of phi."""
        lipschitz = self.activation.lipschitz
        assert lipschitz is not None  # refused above
        return lipschitz

    def offset(self, u: Tensor) -> Tensor:
        """Return c, (units,), in the precision and on the device of u."""
        key = u.shape[-1], u.dtype, u.device
        if key not in self._offsets:  # copied to a device once: every copy is waited for
            with torch.inference_mode(False):  # or no later pass could go backward
                self._offsets[key] = self.activation.offset(u.shape[-1]).to(u)
        return self._offsets[key]

    @cached_property
    def _offsets(self) -> dict[Any, Tensor]:
        return {}

    def joint_term(self, v: cp.Expression, u: cp.Expression) -> cp.Expression:
        """Return Phi(v) - |v|^2 / (2 L) + <c, u> + L |u - v / L|^2 / 2 in CVXPY.

        Raises:
            DeclarationError: the activation does not declare `excess`.
        """
        offset = self.activation.offset(u.shape[-1]).numpy()
        coupled = self.smoothness / 2 * cp.sum_squares(u - v / self.smoothness)
        return self.activation.excess(v) + cp.sum(u @ offset) + coupled

    def remainder(self, u: cp.Expression) -> cp.Expression:
        """Return <c, u> + L |u|^2 / 2, summed over samples, in CVXPY."""
        offset = self.activation.offset(u.shape[-1]).numpy()
        return cp.sum(u @ offset) + self.smoothness / 2 * cp.sum_squares(u)

    def remainder_value(self, u: Tensor) -> Tensor:
        """Return <c, u> + L |u|^2 / 2 per sample, (samples,)."""
        return u @ self.offset(u) + self.smoothness / 2 * u.square().sum(-1)

    def link_gradient(self, u: Tensor) -> Tensor:
        """Return c + L u, (samples, units)."""
        return self.offset(u) + self.smoothness * u

    def link_curvature(self, u: Tensor) -> Tensor:
        """Return L, (samples, units)."""
        return torch.full_like(u, self.smoothness)


@dataclass(frozen=True)
class Margin(Divergence):
    """w Psi(v) - <u, v> + w Psi*(u / w), Psi the potential of a continuous map psi beside phi.

    For a phi that jumps, such as a sign or a step: its own tight divergence is zero, and without
    force, on both sides of the jump, however near. With psi on the same domain, Clipped(-1, 1)
    beside the sign, and w = 1 it is (1 - u v)_+^2 / 2 for v = -1 or 1 and u v >= -1, and linear
    beyond: a squared hinge. That of Tanh is log(1 + exp(-2 u v)). It is convex in u and in v, and
    smooth in u; over the values of phi it is least at v = phi(u), where it is not zero before u is
    far from the jump, by the width w. The states of a forward pass are those of phi.

    Attributes:
        width: w, positive; other than 1 only where phi(c u) = phi(u) for all c > 0.

    Raises:
        DeclarationError: the activation declares no margin.

    Example:
        >>> import torch
        >>> from liftednet.activations import Quantized
        >>> from liftednet.divergences import Margin
        >>> u = torch.tensor([[0.25], [2.0], [-0.5]])
        >>> Margin(Quantized(2, -1.0, 1.0)).values(torch.ones(3, 1), u)  # (1 - u)^2 / 2
        tensor([0.2812, 0.0000, 1.1250])
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an activation without a margin."""
        if self.activation.margin is None:
            raise DeclarationError(
                f"{self.activation!r} declares no `margin`, a continuous activation beside it."
            )

    @property
    def continuous(self) -> Activation:
        """The activation psi."""
        assert self.activation.margin is not None  # refused above
        return self.activation.margin

    @property
    def smoothness(self) -> float | None:
        """The Lipschitz constant of psi(u / w)."""
        steepest = self.continuous.lipschitz
        return None if steepest is None else steepest / self.width

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return w Psi(v), summed over samples and units, in CVXPY."""
        return self.width * self.continuous.potential(v)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return w Psi(v) per sample, (samples,)."""
        return self.width * self.continuous.potential_value(v)

    def remainder(self, u: cp.Expression) -> cp.Expression:
        """Return w Psi*(u / w), summed over samples and units, in CVXPY."""
        return self.width * self.continuous.conjugate(u / self.width)

    def remainder_value(self, u: Tensor) -> Tensor:
        """Return w Psi*(u / w) per sample, (samples,)."""
        return self.width * self.continuous.conjugate_value(u / self.width)

    def link_gradient(self, u: Tensor) -> Tensor:
        """Return psi(u / w), (samples, units)."""
        return self.continuous.forward(u / self.width)

    def link_curvature(self, u: Tensor) -> Tensor:
        """Return psi'(u / w) / w for a unit-by-unit map, (samples, units)."""
        return self.continuous.slope(u / self.width) / self.width

    minimizer = link_gradient


def require_divergence(where: str, value: object) -> None:
    """Raise `DeclarationError` where value is no divergence, such as a bare activation."""
    if not isinstance(value, Divergence):
        raise DeclarationError(
            f"{where} needs a divergence, got {value!r}: wrap the activation, as in tight(ReLU()) "
            "or joint(ReLU()) from liftednet.divergences."
        )


def tight(activation: Activation) -> Divergence:
    """Return the tight divergence; for the identity it is the joint one.

    Raises:
        DeclarationError: it is no activation.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import tight
        >>> u = torch.tensor([[-1.0, 2.0]])
        >>> tight(ReLU()).value(u.relu(), u)  # zero at the forward pass
        tensor(0.)
    """
    require_activation(activation, "a divergence")
    return Joint(activation) if isinstance(activation, Identity) else Tight(activation)


def joint(activation: Activation) -> Divergence:
    """Return the joint divergence.

    Raises:
        DeclarationError: it is no activation, or one without a Lipschitz constant.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> u = torch.tensor([[-1.0, 2.0]])
        >>> joint(ReLU()).value(u.relu(), u)  # |v - u|^2 / 2
        tensor(0.5000)
    """
    require_activation(activation, "a divergence")
    return Joint(activation)


def within(divergence: Divergence, bounds: tuple[float, float]) -> Divergence:
    """Return the divergence with states held between bounds.

    Raises:
        DataError: they are no pair, or nothing lies between them.
        DeclarationError: its map couples units.

    Example:
        >>> import torch
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import tight, within
        >>> held = within(tight(ReLU()), (0.0, 1.0)).activation
        >>> held.forward(torch.tensor([[-1.0, 0.5, 2.0]]))
        tensor([[0.0000, 0.5000, 1.0000]])
    """
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise DataError(f"bounds must be (lowest, highest), got {bounds!r}.")
    return replace(divergence, activation=Bounded(divergence.activation, *bounds))
