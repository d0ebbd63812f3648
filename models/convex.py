"""The input-convex network as a graph."""

from __future__ import annotations

from collections.abc import Sequence

from liftednet.activation import Activation
from liftednet.activations import ELU, Identity, LeakyReLU, ReLU, Softplus
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Expression, dense
from liftednet.losses import PinnedLoss, SquaredError
from liftednet.network import Network
from liftednet.penalties import Nonnegative

CONVEX = (ELU, Identity, LeakyReLU, ReLU, Softplus)  # and nondecreasing


def input_convex(
    sizes: Sequence[int],
    activation: Activation | None = None,
    loss: PinnedLoss | None = None,
    rho: float = 0.0,
) -> Network:
    """Return a network whose outputs are convex functions of its input, to be given to `Lifted`.

    z_1 = phi(x A_1 + b_1), z_l = phi(x A_l + z_{l-1} W_l + b_l), u = x A + z W + b with W >= 0 and
    phi convex and nondecreasing (Amos, Xu, Kolter, Input Convex Neural Networks, 2017). Train it
    and `certify` says so.

    Args:
        sizes: units of the input, every hidden layer, and the output.
        activation: one of ReLU(), which it is by default, LeakyReLU, ELU, Softplus and Identity.
        loss: on the last pre-activation, which is what is convex; SquaredError() by default.
        rho: weight of |W|_F^2 for the weights W on states; 0 for W >= 0 alone, and for the rho that
            the data choose where they choose that of all weights (see `Lifted`).

    Raises:
        DataError: there is no hidden layer, or a size is no positive integer.
        DeclarationError: the activation is not known to be convex, or the loss has output states.

    Example:
        >>> import torch
        >>> from liftednet import certify
        >>> from liftednet.models import Lifted, input_convex
        >>> X = torch.rand(300, 2) * 2 - 1
        >>> model = Lifted(input_convex((2, 20, 20, 1))).fit(X, X.square().sum(1, keepdim=True))
        >>> certify(model).convex
        tensor([True])
    """
    phi, given = activation or ReLU(), loss or SquaredError()
    if type(phi) not in CONVEX:
        names = ", ".join(kind.__name__ for kind in CONVEX)
        raise DeclarationError(f"an input-convex network needs one of {names}, got {phi!r}.")
    if not isinstance(given, PinnedLoss):
        raise DeclarationError(f"{given!r} has output states; take a loss such as SquaredError().")
    if len(sizes) < 3:
        raise DataError(f"sizes must be of inputs, hidden layers and outputs, got {sizes!r}.")
    network = Network()
    x = network.input(sizes[0])
    z = network.state(phi, dense(x, sizes[1]))
    for units in sizes[2:-1]:
        z = network.state(phi, _above(x, z, units, rho))
    network.loss(given, _above(x, z, sizes[-1], rho))
    return network


def _above(x: Expression, z: Expression, units: int, rho: float) -> Expression:
    return dense(x, units) + dense(z, units, bias=False, penalty=Nonnegative(rho))
