"""Maps that fall somewhere, and so are no argmin: each is a map that rises, less a line."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from liftednet.activation import Activation, FunctionActivation
from liftednet.scalar_map import Map

__all__ = ["GELU", "Hardswish", "Mish", "SiLU"]


class NotMonotone(Activation):
    """phi(u) = psi(u) - c u, where psi does not fall and so has a convex potential.

    A layer has states Z = psi(U), and what is above it takes Z - c U, which is affine in both.

    Attributes:
        descent: c, no less than the steepest descent of phi.
        function: phi.
    """

    descent: float
    function: Map

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u)."""
        return self.function(u)

    @property
    def rising(self) -> Activation:
        """The map psi."""
        return FunctionActivation(self.risen)

    def risen(self, u: Tensor) -> Tensor:
        """Return psi(u) = phi(u) + c u."""
        return self.forward(u) + self.descent * u


class GELU(NotMonotone):
    """phi(u) = u P(N(0, 1) <= u); Hendrycks and Gimpel, Gaussian error linear units, 2016.

    Example:
        >>> import torch
        >>> from liftednet.activations import GELU
        >>> GELU().forward(torch.tensor([[-1.0, 2.0]]))
        tensor([[-0.1587,  1.9545]])
    """

    descent = 0.13  # the steepest is 0.12890, and 0.12899 of the form by tanh
    function = staticmethod(functional.gelu)


class SiLU(NotMonotone):
    """phi(u) = u / (1 + exp(-u)), "swish"; Elfwing, Uchibe and Doya, 2017.

    Example:
        >>> import torch
        >>> from liftednet.activations import SiLU
        >>> SiLU().forward(torch.tensor([[-1.0, 2.0]]))
        tensor([[-0.2689,  1.7616]])
    """

    descent = 0.1  # the steepest is 0.09984
    function = staticmethod(functional.silu)


class Mish(NotMonotone):
    """phi(u) = u tanh(log(1 + exp(u))); Misra, Mish, 2019.

    Example:
        >>> import torch
        >>> from liftednet.activations import Mish
        >>> Mish().forward(torch.tensor([[-1.0, 2.0]]))
        tensor([[-0.3034,  1.9440]])
    """

    descent = 0.113  # the steepest is 0.11253
    function = staticmethod(functional.mish)


class Hardswish(NotMonotone):
    """phi(u) = u min(max(u + 3, 0), 6) / 6; Howard et al., Searching for MobileNetV3, 2019.

    Example:
        >>> import torch
        >>> from liftednet.activations import Hardswish
        >>> Hardswish().forward(torch.tensor([[-1.0, 2.0]]))
        tensor([[-0.3333,  1.6667]])
    """

    descent = 0.5  # just above u = -3
    function = staticmethod(functional.hardswish)
