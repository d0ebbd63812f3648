"""Gauss-Newton's model by products alone: one space of directions for every damping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from .local_model import Damped, LocalModel
from .objective import Forward

_FIRST_ROOM = 32  # directions; the room is doubled when it is full
_MOST_BYTES = 2**31  # of directions
_FEWEST = 10  # directions even where they do not fit into that
_FLAT = 3e-4  # relative decrease of the model per product, below which more do not pay
_WINDOW = 5  # products over which it is measured


@dataclass
class Krylov:
    """The space of -g, -C g, C^2 g, ..., with an orthonormal basis in which C is tridiagonal.

    Conjugate gradients with a damping mu minimize <g, s> + <s, (C + mu) s> / 2 in this space. It
    does not depend on mu: a step that is refused is damped more without a product. Each direction
    is made orthogonal to all before, without which the space would take in the same directions
    again and again where C is ill-conditioned (Lanczos; Golub and Van Loan, section 10.3).

    Attributes:
        product: v -> C v.
        gradient: g, (parameters,), float64.
        flat: the relative decrease per product below which the space is not made larger.
    """

    product: Callable[[Tensor], Tensor]
    gradient: Tensor
    flat: float
    _basis: Tensor = field(init=False, repr=False)
    _diagonal: list[float] = field(default_factory=list, init=False, repr=False)
    _beside: list[float] = field(default_factory=list, init=False, repr=False)
    _complete: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with the steepest descent."""
        self._length = float(self.gradient.norm())
        self._basis = self.gradient.new_empty(_FIRST_ROOM, len(self.gradient))
        self._basis[0] = -self.gradient / self._length
        self._complete = not 0 < self._length < math.inf

    @property
    def size(self) -> int:
        """How many products have been taken."""
        return len(self._diagonal)

    def minimizer(self, damping: float) -> Damped:
        """Return the damped minimizer in a space that is made large enough for it.

        The products end where the last ones, a tenth of all and at least `_WINDOW`, have lowered
        the damped model by less than `flat` each, relative to all: Martens, Deep Learning via
        Hessian-free Optimization, 2010.
        """
        from scipy.linalg import solve_banded

        size = self._size_for(damping)
        basis = self._basis[:size]
        bands = torch.zeros(3, size, dtype=torch.float64)  # of T + damping
        bands[1] = torch.tensor(self._diagonal[:size], dtype=torch.float64) + damping
        beside = torch.tensor(self._beside[: max(0, size - 1)], dtype=torch.float64)
        bands[0, 1:], bands[2, :-1] = beside, beside

        def solve(right: Tensor) -> Tensor:
            seen = (basis @ right).cpu().numpy()
            amounts = solve_banded((1, 1), bands.numpy(), seen, check_finite=False)
            return basis.T @ torch.from_numpy(amounts).to(right)

        step = solve(-self.gradient) if size else torch.zeros_like(self.gradient)
        expected = float(damping * step @ step - self.gradient @ step) / 2
        return Damped(step, expected, solve)

    def _size_for(self, damping: float) -> int:
        """Return how many directions the damped minimizer needs, by the pivots of T + damping."""
        size, pivot, value, lowered = 0, 0.0, self._length, [0.0]
        while not self._enough(lowered) and (size < self.size or self._grow()):
            share = self._beside[size - 1] / pivot if size else 0.0
            pivot = self._diagonal[size] + damping - (share * self._beside[size - 1] if size else 0)
            value *= -share if size else 1.0
            if not pivot > 0:  # rounding of a curvature far larger than the damping
                break
            size += 1
            lowered.append(lowered[-1] + value * value / (2 * pivot))
        return size

    def _enough(self, lowered: list[float]) -> bool:
        """Say whether the last products have lowered the model by next to nothing."""
        products = len(lowered) - 1
        recent = max(_WINDOW, products // 10)
        if products <= recent:
            return False
        return lowered[-1] - lowered[-1 - recent] < recent * self.flat * lowered[-1]

    def _grow(self) -> bool:
        """Take one more product, and say whether there was a direction for it."""
        size = self.size
        most = max(_FEWEST, _MOST_BYTES // (8 * len(self.gradient)))
        if self._complete or size >= most:
            return False
        direction = self._basis[size]
        image = self.product(direction)
        curvature = float(direction @ image)
        if not math.isfinite(curvature):
            self._complete = True
            return False
        self._diagonal.append(curvature)
        self._extend(image)
        return True

    def _extend(self, image: Tensor) -> None:
        """Append what is new in an image of the last direction."""
        size = self.size
        known = self._basis[:size]
        known_part = known[-2:]  # Lanczos's three terms first, then what rounding has left
        image = image - known_part.T @ (known_part @ image)
        image = image - known.T @ (known @ image)
        left = float(image.norm())
        self._beside.append(left)
        self._complete = not left > 1e-14 * self._diagonal[0] or size == len(self.gradient)
        if self._complete:
            return
        if size == len(self._basis):
            self._basis = torch.cat([self._basis, torch.empty_like(self._basis)])
        self._basis[size] = image / left


class CurvatureProducts(LocalModel):
    """A model whose damped steps are found by conjugate gradients, without a preconditioner.

    C + mu has a few large eigenvalues and a crowd near mu, which a metric of units or layers
    scatters (benchmarks/results/gauss_newton.md).
    """

    corrections = 1  # more make no more starts succeed (benchmarks/results/solver_trials.md)

    def __init__(self, forward: Forward, point: Tensor, flat: float = _FLAT) -> None:
        """Pass forward at a point, (parameters,) in float64; `flat` as in Krylov."""
        super().__init__(forward, point)
        # A product of the model itself would keep the passes alive until garbage is collected.
        product, free = self.operator.product, self.free
        among = product if free is None else lambda direction: free * product(free * direction)
        self._space = Krylov(among, self.released(self.gradient), flat)

    @property
    def products(self) -> int:
        """How many products with C the steps have taken."""
        return self._space.size

    @cached_property
    def mean_curvature(self) -> float:
        """The mean of the diagonal of C, estimated as z'C z over signs z (Hutchinson, 1990)."""
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, self.gradient.shape, generator=generator)
        signs = 2.0 * signs.to(self.gradient) - 1.0
        return float(signs @ self.operator.product(signs)) / len(signs)

    def minimizer(self, damping: float) -> Damped:
        """Return a damped step by conjugate gradients, truncated where they no longer pay."""
        found = self._space.minimizer(damping)
        step = self.inside(found.step)
        if torch.equal(step, found.step):
            return found
        curved = self.operator.product(step)
        return replace(found, step=step, expected=-float(self.gradient @ step + step @ curved / 2))
