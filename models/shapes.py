"""Networks of a shape by their weights: monotone, additive, convex in the inputs, Lipschitz."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import ELU, Identity, LeakyReLU, ReLU, Softplus
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Expression, dense
from liftednet.layers.expression import Input, Parameter
from liftednet.losses import FenchelYoungLoss, SquaredError
from liftednet.network import Network
from liftednet.penalties import FixedZeros, Nonnegative, Penalty, Signs, SpectralNorm
from liftednet.validation import is_integer

from .standardization import Standardization

CONVEX = (ELU, Identity, LeakyReLU, ReLU, Softplus)  # and nondecreasing
_ROUNDING = 1e-9  # that `certify` may add to a product of norms


def monotone_penalties(
    monotonic_cst: Sequence[int], sizes: Sequence[int], network: Network
) -> list[Penalty | None]:
    """Return the signs of every layer's weights, or None where no input has a direction.

    Units are increasing (+), decreasing (-) in all inputs with a direction, or do not see them
    (0), as those inputs are + or -, and inputs without a direction 0. A weight between two units
    has the product of their signs; one from + or - to 0 is 0, and one from 0 is free. Along every
    path from an input to an output the product of signs is then that of the direction. Units of
    both signs are needed: with + alone a ReLU network would be convex.

    Args:
        monotonic_cst: of every input 1 (outputs increase), -1 (they decrease), or 0; of two
            classes, the probability of the second is meant.
        sizes: units of the input, every hidden layer, and the output.
        network: the chain of dense layers.

    Raises:
        DataError: they are not one of 1, -1 and 0 for each input.
        DeclarationError: an activation couples units, or there are three classes or more.
    """
    given = np.atleast_1d(np.asarray(monotonic_cst, dtype=object)).tolist()
    if len(given) != sizes[0] or not all(is_integer(x) and x in (-1, 0, 1) for x in given):
        raise DataError(
            f"monotonic_cst needs 1, -1 or 0 for each of {sizes[0]} inputs, got {monotonic_cst!r}."
        )
    inputs = torch.tensor(given, dtype=torch.float32)
    if not bool(inputs.any()):
        return [None] * (len(sizes) - 1)
    output = _outputs(network, sizes[-1])
    kinds = [1.0, -1.0] if bool(inputs.all()) else [1.0, -1.0, 0.0]
    hidden = [torch.tensor(kinds)[torch.arange(n) * len(kinds) // n] for n in sizes[1:-1]]
    found: list[Penalty | None] = []
    for below, above in pairwise([inputs, *hidden, output]):
        signs, unseen = Signs(torch.outer(below, above)), torch.outer(below != 0, above == 0)
        found.append(signs + FixedZeros(unseen) if bool(unseen.any()) else signs)
    return found


def interaction_groups(allowed: str | Sequence[Iterable[int]], inputs: int) -> list[list[int]]:
    """Return the groups of inputs that may interact, as scikit-learn's boosting reads them.

    Args:
        allowed: "no_interactions", "pairwise", or sets of numbers of inputs, which may overlap;
            inputs in none of them are a set together.
        inputs: how many there are.

    Raises:
        DataError: it is none of these, or names an input that there is not.
    """
    if isinstance(allowed, str):
        sizes = {"no_interactions": 1, "pairwise": min(2, inputs)}
        if allowed not in sizes:
            raise DataError(
                "interaction_cst must be 'no_interactions', 'pairwise' or sets of inputs, such as "
                f"[{{0, 1}}, {{2}}]; got {allowed!r}."
            )
        return [list(group) for group in combinations(range(inputs), sizes[allowed])]
    try:
        found = [sorted(set(group)) for group in allowed]
    except TypeError:
        found = []
    known = [x for group in found for x in group]
    if not known or not all(is_integer(x) and 0 <= x < inputs for x in known):
        raise DataError(
            f"interaction_cst needs sets of numbers of inputs, 0 to {inputs - 1}, such as "
            f"[{{0, 1}}, {{2}}]; got {allowed!r}."
        )
    rest = [x for x in range(inputs) if x not in known]
    return [*found, *([rest] if rest else [])]


def interaction_penalties(
    allowed: str | Sequence[Iterable[int]], sizes: Sequence[int]
) -> list[Penalty | None]:
    """Return what keeps each layer's units to one group of inputs, or None where nothing does.

    A unit sees the inputs of its group, or units below of the same group, and the output adds all
    up: f(x) = sum_g f_g(x_g), at every input, whatever the weights.

    Args:
        allowed: see `interaction_groups`.
        sizes: units of the input, every hidden layer, and the output.

    Raises:
        DataError: as there, or a hidden layer has fewer units than there are groups.
    """
    groups = interaction_groups(allowed, sizes[0])
    hidden = sizes[1:-1]
    if hidden and min(hidden) < len(groups):
        raise DataError(
            f"interaction_cst has {len(groups)} groups of inputs, and a hidden layer of "
            f"{min(hidden)} units has none for some of them: give it {len(groups)} or more."
        )
    if not hidden or len(groups) == 1:
        return [None] * (len(sizes) - 1)
    numbers = [torch.arange(units) % len(groups) for units in hidden]
    seen = torch.zeros(sizes[0], len(groups), dtype=torch.bool)
    for number, group in enumerate(groups):
        seen[group, number] = True
    inside = [FixedZeros(b[:, None] != a[None]) for b, a in pairwise(numbers)]
    return [FixedZeros(~seen[:, numbers[0]]), *inside, None]


def _outputs(network: Network, outputs: int) -> Tensor:
    """Return the signs of the outputs."""
    (term,) = network.terms
    for state in network.states:
        if state is not term.state and not state.activation.per_unit:
            raise DeclarationError(
                f"monotonic_cst needs activations that act unit by unit; {state.activation!r} "
                "couples them."
            )
    if term.activation.per_unit:
        return torch.ones(outputs)
    if outputs != 2:
        raise DeclarationError(
            f"monotonic_cst is for numbers or two classes; {type(term.loss).__name__} has "
            f"{outputs} classes here."
        )
    return torch.tensor([-1.0, 1.0])


def input_convex(
    sizes: Sequence[int],
    activation: Activation | None = None,
    loss: FenchelYoungLoss | None = None,
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
    if not isinstance(given, FenchelYoungLoss):
        raise DeclarationError(f"{given!r} has output states; take a loss such as SquaredError().")
    if len(sizes) < 3:
        raise DataError(f"sizes must be of inputs, hidden layers and outputs, got {sizes!r}.")
    network = Network()
    x = network.input(sizes[0])

    def above(z: Expression, units: int) -> Expression:
        return dense(x, units) + dense(z, units, bias=False, penalty=Nonnegative(rho))

    z = network.state(phi, dense(x, sizes[1]))
    for units in sizes[2:-1]:
        z = network.state(phi, above(z, units))
    network.loss(given, above(z, sizes[-1]))
    return network


def refuse_unbounded(network: Network) -> None:
    """Raise `DeclarationError` where an activation has no Lipschitz constant."""
    for state in network.states:
        if state.activation.lipschitz is None:
            raise DeclarationError(
                f"lipschitz needs activations with a Lipschitz constant, and {state.activation!r} "
                "has none."
            )


def in_proportion(standardization: Standardization) -> Standardization:
    """Return the standardization with one scale for all features of an input.

    Distances between raw samples then are those between standardized ones, times that scale.
    """
    moments = {
        variable: found.in_proportion if isinstance(variable, Input) else found
        for variable, found in standardization.moments.items()
    }
    return replace(standardization, moments=moments)


def bounded(
    penalties: Mapping[Parameter, Penalty],
    network: Network,
    standardization: Standardization,
    lipschitz: float,
) -> dict[Parameter, Penalty]:
    """Return penalties with bounds on singular values whose product makes a chain Lipschitz.

    |f(x) - f(x')|_2 <= scale_y (prod_l |W_l|_2 lip(phi_l)) / scale_x |x - x'|_2, and so every
    layer has the same share of the bound, in the units of training.

    Args:
        penalties: of the weights.
        network: a chain of dense layers.
        standardization: of its input and of its targets, in proportion.
        lipschitz: of the scores, in units of the targets over those of the inputs.
    """
    bound = lipschitz * (1 - _ROUNDING)
    for variable, moments in standardization.moments.items():
        scale = float(moments.scale.max())
        bound *= scale if isinstance(variable, Input) else 1 / scale
    steepest = [state.activation.lipschitz or 1.0 for state in network.states]
    each = (bound / math.prod(steepest)) ** (1 / len(penalties))
    return {weights: penalty + SpectralNorm(each) for weights, penalty in penalties.items()}
