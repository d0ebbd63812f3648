"""An activation, declared by a convex potential Phi: phi(u) = argmax_v <u, v> - Phi(v).

CVXPY states, torch computes. What is not declared is derived from the forward map where it can
be (`liftednet.scalar_map`), or from Phi (`liftednet.potential`), and asked for by name elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.evaluation import evaluate, nearest, stating
from liftednet.lazy import cvxpy as cp
from liftednet.piecewise import Vector, broken_line, piecewise_quadratic
from liftednet.scalar_map import Map, ScalarMap, autograd_slope, refuse_bad_map
from liftednet.validation import name_of, require_positive

__all__ = ["Activation"]

_DERIVED = "scalar_map", "ends", "lipschitz", "conjugate_at_zero", "margin"  # kept once computed


class Activation:
    """A nondecreasing map given as an argmin: phi(u) = argmin_v Phi(v) - <u, v> over dom Phi.

    Lifted Neural Networks, section 4, BCR condition. Subclass it and give `forward`; every other
    method is optional for a map that acts unit by unit, and derived from `forward`. A map that
    couples the units of a sample (`per_unit = False`) must give what a solver needs of it.

    Attributes:
        per_unit: whether each unit is mapped by itself.
        ends: of dom Phi, of a map that acts unit by unit.
        lipschitz: a Lipschitz constant of phi, or None where there is none.

    Example:
        >>> import torch
        >>> from liftednet import Activation
        >>> class Cube(Activation):
        ...     def forward(self, u):
        ...         return u**3
        >>> Cube().prox(torch.tensor([[10.0]], dtype=torch.float64), 1.0)  # u^3 at u^3 + u = 10
        tensor([[8.0000]], dtype=torch.float64)
    """

    per_unit: bool = True
    margin: Activation | None = None  # a continuous map on the same domain, where phi jumps
    constant_sum: bool = False  # whether phi(u) sums to the same over the units at every u
    scale_free: bool = False  # phi(c u) = phi(u) for every c > 0, as of a sign

    @staticmethod
    def from_function(forward: Map, lipschitz: float | None = None) -> Activation:
        """Declare an activation by its nondecreasing elementwise forward map alone.

        Everything else follows from it (`liftednet.scalar_map`).

        Args:
            forward: phi, an elementwise torch function or module without random parts.
            lipschitz: a Lipschitz constant of phi; found on a grid where it is not given.

        Raises:
            DeclarationError: phi is not finite, decreases, couples units, or is not torch's.
            DataError: lipschitz is not positive.

        Example:
            >>> import torch
            >>> from liftednet import Activation
            >>> softsign = Activation.from_function(torch.nn.functional.softsign)
            >>> softsign.forward(torch.tensor([[-1.0, 3.0]]))
            tensor([[-0.5000,  0.7500]])
        """
        if isinstance(forward, torch.nn.PReLU):
            raise DeclarationError(
                "a torch.nn.PReLU has slopes of its own, which the catalogue keeps: write "
                "liftednet.activations.PReLU(module.weight)."
            )
        return FunctionActivation(forward, lipschitz)

    @staticmethod
    def from_potential(
        potential: Map,
        lower: float = -math.inf,
        upper: float = math.inf,
        lipschitz: float | None = None,
    ) -> Activation:
        """Declare a unit-by-unit activation by its convex potential Phi alone.

        phi(u) = argmax_v <u, v> - Phi(v) over lower <= v <= upper is found by a scalar root for
        every unit, in float64: slow but right. A forward map makes it fast (`from_function`).

        Args:
            potential: Phi, an elementwise torch function that is finite between lower and upper.
            lower: the lower end of its domain, or -inf.
            upper: the upper end, or inf.
            lipschitz: a Lipschitz constant of phi; found on a grid where it is not given.

        Raises:
            DataError: there is nothing between lower and upper, or lipschitz is not positive.
            DeclarationError: Phi is not convex or finite there, couples units, is not torch's, or
                grows no faster than linearly.

        Example:
            >>> import torch
            >>> from liftednet import Activation
            >>> entropy = Activation.from_potential(
            ...     lambda v: torch.xlogy(v, v) + torch.xlogy(1 - v, 1 - v), 0, 1
            ... )
            >>> entropy.forward(torch.tensor([[0.0, 2.0]], dtype=torch.float64))
            tensor([[0.5000, 0.8808]], dtype=torch.float64)
        """
        from liftednet.potential import PotentialActivation

        return PotentialActivation(potential, lower, upper, lipschitz)

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u); u and the result are (samples, units)."""
        self._missing("forward", "every use")

    def slope(self, u: Tensor) -> Tensor:
        """Return phi'(u) for a unit-by-unit map, (samples, units); by autograd if not declared.

        Raises:
            DeclarationError: units are coupled and it is not declared.
        """
        if not self.per_unit:
            self._missing("slope", "a Newton step")
        return autograd_slope(self.forward, u)

    def potential(self, v: cp.Expression) -> cp.Expression:
        """Return Phi(v), summed over samples and units, as a CVXPY expression in v.

        Derived for a unit-by-unit map: a piecewise quadratic, phi right to 1e-5, of waves 1e-2.

        Raises:
            DeclarationError: units are coupled and it is not declared.
        """
        if not self.per_unit:
            self._missing("potential", "the reference solver")
        u, phi, origin = self._graph
        return piecewise_quadratic(v, phi, u, origin, -self.conjugate_at_zero)

    def excess(self, v: cp.Expression) -> cp.Expression:
        """Return Phi(v) - |v|^2 / (2 L), convex for an L-Lipschitz map, as a CVXPY expression.

        It lets CVXPY see that a joint divergence is convex in states and pre-activations together,
        which states over time need on the reference solver.

        Raises:
            DeclarationError: it is not declared.
        """
        self._missing("excess", "the statement of states over time in CVXPY")

    def domain(self, v: cp.Expression) -> list[cp.Constraint]:
        """Return the constraints that v is in dom Phi, as CVXPY constraints.

        Derived for a unit-by-unit map whose `ends` are declared, or whose potential is not.
        """
        if not self.per_unit or (self.declares("potential") and not self.declares("ends")):
            return []
        return between(v, *self.ends)

    def conjugate(self, u: cp.Expression) -> cp.Expression:
        """Return Phi*(u), summed over samples and units, as a CVXPY expression in u.

        Derived for a unit-by-unit map: a piecewise quadratic, phi right to 1e-5, of waves 1e-2.

        Raises:
            DeclarationError: units are coupled and it is not declared.
        """
        if not self.per_unit:
            self._missing("conjugate", "a tight divergence on the reference solver")
        points, phi, origin = self._graph
        return piecewise_quadratic(u, points, phi, origin, self.conjugate_at_zero)

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return argmin_v t Phi(v) + |v - w|^2 / 2; w and the result are (samples, units).

        Derived for a unit-by-unit map by the scalar root of phi(x) + t x = w, v = phi(x).

        Args:
            w: (samples, units).
            t: positive; a number, or (samples, 1).

        Raises:
            DeclarationError: units are coupled and it is not declared.
        """
        if not self.per_unit:
            self._missing("prox", "the proximal solver")
        return self.scalar_map.prox(w, t)

    def potential_value(self, v: Tensor) -> Tensor:
        """Return Phi(v) per sample, (samples,), in torch; infinite outside the domain.

        Derived for a unit-by-unit map, else evaluated by CVXPY, a sample at a time.

        Raises:
            DeclarationError: units are coupled, and neither it nor `potential` is declared.
        """
        if self.per_unit:
            return (self.scalar_map.legendre(v) - self.conjugate_at_zero).sum(-1)
        if not self.declares("potential"):
            self._missing("potential_value", "an objective")
        rows = (cp.Constant(row[None]) for row in v.detach().double().cpu().numpy())
        walled = (self.potential(row) + cp.transforms.indicator(self.domain(row)) for row in rows)
        with stating(f"the potential of {self!r}"):
            values = [evaluate(x) for x in walled]
        return torch.tensor(values, dtype=torch.float64, device=v.device)

    def conjugate_value(self, u: Tensor) -> Tensor:
        """Return Phi*(u) = max_v <u, v> - Phi(v) per sample, (samples,), in torch."""
        if self.per_unit:
            return (self.scalar_map.integral(u) + self.conjugate_at_zero).sum(-1)
        v = self.forward(u)
        return (u * v).sum(-1) - self.potential_value(v)

    def project(self, v: Tensor) -> Tensor:
        """Return the nearest point of the closed domain; v and the result (samples, units).

        Derived for a unit-by-unit map, else found by CVXPY.
        """
        if self.per_unit:
            return clipped(v, *self.ends)
        return torch.from_numpy(nearest(v.detach().double().cpu().numpy(), self.domain)).to(v)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The ends of dom Phi for a unit-by-unit map: the limits of phi where none are declared."""
        return self.scalar_map.infimum, self.scalar_map.supremum

    @cached_property
    def lipschitz(self) -> float | None:
        """A Lipschitz constant of phi, found on a grid where none is declared."""
        return self.scalar_map.lipschitz if self.per_unit else None

    def offset(self, units: int) -> Tensor:
        """Return c = phi(0), (units,), the linear term of the joint divergence."""
        return self.forward(torch.zeros(1, units, dtype=torch.float64))[0]

    def alone(self) -> Sequence[Activation]:
        """Return the maps of single units that it is made of, where they differ; else itself."""
        return (self,)

    @cached_property
    def scalar_map(self) -> ScalarMap:
        """The tabulated forward map that derived quantities come from."""
        return ScalarMap(self.forward, self.slope)

    @cached_property
    def conjugate_at_zero(self) -> float:
        """Phi*(0) = -min Phi per unit, by the first of both that is declared, else 0.

        It ties derived values to the declared ones.
        """
        zero = torch.zeros(1, 1, dtype=torch.float64)
        if self.declares("conjugate_value"):
            return float(self.conjugate_value(zero))
        if self.declares("potential_value"):
            return -float(self.potential_value(self.forward(zero)))
        if self.declares("conjugate"):
            return evaluate(self.conjugate(cp.Constant(zero.numpy())))
        if self.declares("potential"):
            return -evaluate(self.potential(cp.Constant(self.forward(zero).detach().numpy())))
        return 0.0

    @cached_property
    def _graph(self) -> tuple[Vector, Vector, int]:
        return broken_line(self.forward)

    def declares(self, method: str) -> bool:
        """Say whether the class itself gives `method`."""
        return getattr(type(self), method) is not getattr(Activation, method)

    @property
    def closed_prox(self) -> bool:
        """Whether the prox is a closed form, and no root that is found unit by unit."""
        return self.declares("prox")

    def _missing(self, method: str, need: str) -> NoReturn:
        raise DeclarationError(
            f"{self!r} does not declare `{method}`, which {need} needs and which cannot be "
            "derived for it: add that method to the activation."
        )

    def __repr__(self) -> str:
        """Name the class and its parameters, without what every activation has or derives."""
        own = {k: x for k, x in vars(self).items() if k[0] != "_" and k not in _DERIVED}
        return f"{type(self).__name__}({', '.join(f'{k}={name_of(x)}' for k, x in own.items())})"


def clipped(v: Tensor, lower: float, upper: float) -> Tensor:
    """Return v cut off at the ends that are finite; v itself where none is."""
    if lower == -math.inf:
        return v if upper == math.inf else v.clamp(max=upper)
    return v.clamp(min=lower) if upper == math.inf else v.clamp(lower, upper)


def between(v: cp.Expression, lower: float, upper: float) -> list[cp.Constraint]:
    """Return lower <= v <= upper in CVXPY, the ends that are finite."""
    walls = [v >= lower] if math.isfinite(lower) else []
    return [*walls, v <= upper] if math.isfinite(upper) else walls


def infinite_off(ends: tuple[float, float], v: Tensor, values: Tensor) -> Tensor:
    """Return values of the samples, infinite where an entry of v is off the ends."""
    return values.masked_fill(((v < ends[0]) | (v > ends[1])).any(-1), torch.inf)


def require_activation(value: object, where: str) -> None:
    """Raise `DeclarationError` unless value is an activation, and say what makes one of it.

    Args:
        value: what was given.
        where: what needs it, as the message calls it.
    """
    if isinstance(value, Activation):
        return
    if isinstance(value, type):
        shown = f"the class {value.__module__}.{value.__name__}: write {value.__name__}()"
    elif isinstance(value, torch.nn.Module):
        shown = f"a torch module: where it never falls, write Activation.from_function({value!r})"
    elif callable(value):
        shown = f"a function: write Activation.from_function({name_of(value)})"
    else:
        shown = repr(value)
    raise DeclarationError(
        f"{where} needs an activation, such as liftednet.activations.ReLU() or its name, 'relu'; "
        f"got {shown}."
    )


class FunctionActivation(Activation):
    """An activation that is declared by its forward map alone."""

    def __init__(self, forward: Map, lipschitz: float | None = None) -> None:
        """Check on a grid that phi is elementwise in shape, finite and nondecreasing."""
        self.function = forward
        refuse_bad_map(forward)
        if lipschitz is not None:
            self.lipschitz = require_positive("lipschitz", lipschitz)

    def forward(self, u: Tensor) -> Tensor:
        """Return the declared map of u."""
        return self.function(u)

    def __repr__(self) -> str:
        """Name the door and the map."""
        return f"from_function({name_of(self.function)})"


def require_torch(activation: Activation, units: int) -> None:
    """Raise `DeclarationError` where a user's forward map is not one of torch."""
    module = type(activation).forward.__module__ or ""  # None of what `exec` has made
    if module.split(".")[0] == "liftednet":
        return
    u = torch.zeros(2, units, dtype=torch.float64, requires_grad=True)
    try:
        with torch.enable_grad():
            found: object = activation.forward(u)
    except Exception as error:  # whatever a user's method may raise
        raise DeclarationError(
            f"`forward` of {activation!r} must take tensors, of which torch may ask for gradients, "
            f"and raises {type(error).__name__}: {error} Write it in torch, not in NumPy."
        ) from error
    if not isinstance(found, Tensor):
        raise DeclarationError(
            f"`forward` of {activation!r} must return a tensor, and returns {type(found).__name__}."
        )
