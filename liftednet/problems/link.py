"""lam [R(A v + c) - <A v + c, t>]: the one term of the one subproblem."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednet.divergences import Divergence, require_divergence
from liftednet.errors import DataError
from liftednet.maps import LinearMap, Times
from liftednet.problems.formulation import require_bounded
from liftednet.samples import outlined
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)


@dataclass(frozen=True, eq=False, repr=False)
class Link:
    """lam [R(A v + c) - <A v + c, t>]: what states or data above ask of a variable v.

    With a matrix W for A it is what a dense layer above asks of the states Z: A v = Z W.

    Attributes:
        divergence: gives R.
        weight: W, (units, next units), or any `LinearMap`.
        offset: c, a bias (next units,) or a full (samples, next units) offset.
        target: t, the states or data above, (samples, next states).
        lam: the weight of the divergence, positive.
        weights: (samples,) of the rows of u in a block or weight fit; None for 1. A state fit
            needs none: each of its samples is a problem of its own.

    Example:
        >>> import torch
        >>> from liftednet import Link
        >>> from liftednet.activations import ReLU
        >>> from liftednet.divergences import joint
        >>> link = Link(joint(ReLU()), torch.eye(2), torch.zeros(2), torch.ones(1, 2))
        >>> link.value(torch.ones(1, 2))
        tensor(-1.)
    """

    divergence: Divergence
    weight: Any  # a Tensor or a LinearMap
    offset: Tensor
    target: Tensor
    lam: float = 1.0
    weights: Tensor | None = None
    __repr__ = outlined

    @cached_property
    def map(self) -> LinearMap:
        """A."""
        return Times(self.weight) if isinstance(self.weight, Tensor) else self.weight

    def __post_init__(self) -> None:
        """Keep the matrix of a map that is one."""
        if isinstance(self.weight, Times):
            object.__setattr__(self, "weight", self.weight.weight)

    def pre_activation(self, states: Tensor) -> Tensor:
        """Return A v + c, (samples, next units)."""
        if isinstance(self.weight, Tensor):
            return torch.addmm(self.offset, states, self.weight)
        return self.map.apply(states) + self.offset

    @cached_property
    def smoothness(self) -> float | None:
        """Lam L |A|_2^2, a Lipschitz constant of the gradient in v, or None."""
        if self.divergence.smoothness is None:
            return None
        return self.lam * self.divergence.smoothness * self.map.squared_norm

    def pulled(self) -> Tensor:
        """Return A't, (samples, units), by float32 where A is a matrix: it only sets a scale."""
        if isinstance(self.map, Times):
            return self.target.float() @ self.map.weight.float().T
        return self.map.adjoint(self.target)

    def rows(self, part: slice | Tensor) -> Link:
        """Return the link of some of the samples."""
        offset = self.offset if self.offset.ndim == 1 else self.offset[part]
        weight = self.weight if isinstance(self.weight, Tensor) else self.weight.rows(part)
        return replace(self, weight=weight, offset=offset, target=self.target[part])

    def double(self) -> Link:
        """Return the link in float64."""
        return replace(
            self,
            weight=self.weight.double(),
            offset=self.offset.double(),
            target=self.target.double(),
        )

    def weighed(self, rows: Tensor) -> Tensor:
        """Return rows (samples, units), each times the weight of its sample, and lam."""
        if self.weights is None:
            return self.lam * rows
        return self.lam * self.weights.to(rows).unsqueeze(-1) * rows

    def value(self, v: Tensor) -> Tensor:
        """Return the term at v, a scalar."""
        u = self.pre_activation(v)
        if self.weights is None:
            return self.lam * self.divergence.link_value(u, self.target)
        rows = self.divergence.link_values(u, self.target)
        return self.lam * (self.weights.to(rows) * rows).sum()

    def signature(self) -> Hashable:
        """Return what two links must share to share one formulation."""
        kind = tuple(self.weight.shape) if isinstance(self.weight, Tensor) else self.map.signature()
        weights = None if self.weights is None else self.weights.cpu().numpy().tobytes()
        return kind, tuple(self.target.shape), self.divergence, self.lam, weights

    def require(self, which: str, samples: int, units: int, like: Tensor) -> None:
        """Raise `DataError` or `DeclarationError` where it does not fit states.

        Args:
            which: how messages call it.
            samples: rows of the states.
            units: columns of the states.
            like: a tensor whose type and device all others share.
        """
        require_divergence("a Link", self.divergence)
        require_positive(f"lam {which}", self.lam)
        if isinstance(self.weight, Tensor):
            self._require_matrix(which, samples, units, like)
        require_matrix(f"the target V {which}", self.target)
        shape = (samples, self.target.shape[1])
        require_shape(f"the target V {which}", self.target, shape, f"for {samples} samples")
        require_like(f"the offset {which}", self.offset, "U", like)
        require_like(f"the target {which}", self.target, "U", like)

    def _require_matrix(self, which: str, samples: int, units: int, like: Tensor) -> None:
        weight = require_matrix(f"the weight W {which}", self.weight)
        outputs = weight.shape[1]
        require_shape(f"the weight W {which}", weight, (units, outputs), f"for {units} units")
        if not isinstance(self.offset, Tensor):
            kind = type(self.offset).__name__
            raise DataError(f"the offset C {which} must be a torch tensor, got {kind}.")
        rows = (outputs,) if self.offset.ndim == 1 else (samples, outputs)
        require_shape(f"the offset C {which}", self.offset, rows, "beside its weight")
        require_matrix(f"the target V {which}", self.target)
        if self.divergence.activation.pre_units(self.target.shape[1]) != outputs:
            require_shape(f"the target V {which}", self.target, (samples, outputs), "beside W")
        require_like(f"the weight {which}", weight, "U", like)

    def refuse_bad_values(self, which: str) -> None:
        """Raise `DataError` where data are NaN, infinite, or make the term unbounded."""
        if isinstance(self.weight, Tensor):
            require_finite(f"the weight W {which}", self.weight)
        require_finite(f"the offset C {which}", self.offset)
        require_finite(f"the target V {which}", self.target)
        require_bounded(f"the target V {which}", self.divergence, self.target)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of u."""
        rows, units = self.target.shape
        return rows, self.divergence.activation.pre_units(units)

    def offset_rows(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return c in full, (samples, next units), float64."""
        full: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = (
            self.offset.detach().double().cpu().expand(self.shape).numpy()
        )
        return full
