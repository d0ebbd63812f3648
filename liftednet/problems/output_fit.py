"""Output states, the data and the last hidden layer given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liftednet.divergences import Divergence, require_divergence
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import OutputLoss
from liftednet.problems.fit import (
    Fit,
    Link,
    Measure,
    Statement,
    constant,
    measured,
)
from liftednet.problems.priors import BoxedStates, in_float64
from liftednet.samples import row_chunks
from liftednet.validation import (
    require_finite,
    require_like,
    require_matrix,
    require_positive,
    require_shape,
)

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression


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
                "an OutputFit needs a loss of output states, SquaredError() or "
                f"SimplexCrossEntropy(); got {self.loss!r}, which holds the outputs at the data."
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

    def prior(self, v: Expression) -> Statement:
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
        for, over the largest of 1 and the entries of Z.
        """
        objective, violation = (value.new_zeros((), dtype=torch.float64) for _ in range(2))
        largest = torch.ones_like(objective)
        for part in row_chunks(len(value), value.shape[1]):
            z = in_float64(self.divergence.activation, value[part])
            u = self.pre_activation[part].double()
            y = self.target[part].double()
            objective += self.loss.output_value(y, z)
            objective += self.lam * self.divergence.state_value(z, u)
            if not self.loss.stated_only:
                activation = self.divergence.activation
                off = (z - self.loss.stationary_point(z, y, u, activation, self.lam)).abs()
                violation = torch.maximum(violation, off.max())
                largest = torch.maximum(largest, z.abs().max())
        if self.loss.stated_only:
            violation = torch.full_like(violation, torch.nan)
        return measured(objective, violation, largest)
