"""Networks of a shape by their weights: monotone, additive, convex in the inputs, Lipschitz."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import ELU, Identity, LeakyReLU, ReLU, Softplus
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Expression, dense
from liftednet.layers.expression import Applied, Input, Parameter
from liftednet.layers.join import Sum
from liftednet.losses import FenchelYoungLoss, SquaredError
from liftednet.network import Network
from liftednet.penalties import FixedZeros, Nonnegative, Penalty, Signs, SpectralNorm
from liftednet.validation import is_integer

from .standardization import Standardization

CONVEX = (ELU, Identity, LeakyReLU, ReLU, Softplus)  # and nondecreasing
CONVEX_UNITS = (Softplus(), ReLU())  # of which the evidence chooses
_ROUNDING = 1e-9  # that `certify` may add to a product of norms


def signed_penalties(
    monotonic_cst: Sequence[int] | None,
    convex: Sequence[int] | None,
    sizes: Sequence[int],
    network: Network,
) -> list[Penalty | None]:
    """Return the signs of every layer's weights by which outputs rise, fall and bend as asked.

    Units are increasing (+), decreasing (-) in all inputs with a direction, or do not see them
    (0), as those inputs are + or -, and inputs without a direction 0. A weight between two units
    has the product of their signs; one from + or - to 0 is 0, and one from 0 is free. Along every
    path from an input to an output the product of signs is then that of the direction. Units of
    both signs are needed: with + alone a ReLU network would be convex.

    Of curvature, + are units that see no concave inputs, - those that see no convex ones, 0 those
    that see neither, each convex in what it sees by an activation that is convex and rises. Weights
    from + to + and - to - are not negative, from 0 free, to other units 0; outputs add + and
    subtract -. They are then convex in all inputs with 1 together while the others stand still, and
    concave in those with -1. Of both, a unit has a sign of each kind.

    Args:
        monotonic_cst: of every input 1 (outputs increase), -1 (they decrease), or 0; of two
            classes, the probability of the second is meant. None for 0.
        convex: of every input 1 (outputs are convex in it), -1 (concave), or 0; None for 0.
        sizes: units of the input, every hidden layer, and the output.
        network: the chain of dense layers, with another one from inputs to outputs, or without.

    Raises:
        DataError: they are not one of 1, -1 and 0 for each input, or a hidden layer has fewer units
            than there are kinds.
        DeclarationError: an activation couples units, or is not known to be convex, or there are
            three classes or more.
    """
    given = {"monotonic_cst": monotonic_cst, "convex": convex}
    inputs = torch.tensor([marks_of(*x, sizes[0]) for x in given.items()]).T.float()
    if not bool(inputs.any()):
        return [None] * (len(sizes) - 1)
    outputs = torch.ones(sizes[-1], 2)
    if bool(inputs[:, 0].any()):
        outputs[:, 0] = _outputs(network, sizes[-1])
    if bool(inputs[:, 1].any()):
        refuse_not_convex([state.activation for state in network.states][: len(sizes) - 2])
    kinds = _kinds(inputs)
    if min(sizes[1:-1], default=len(kinds)) < len(kinds):
        names = " and ".join(name for name, value in given.items() if value is not None)
        raise DataError(
            f"{names} needs {len(kinds)} kinds of units, and a hidden layer has "
            f"{min(sizes[1:-1])}: give it {len(kinds)} or more."
        )
    layers = [inputs, *(kinds[torch.arange(n) * len(kinds) // n] for n in sizes[1:-1]), outputs]
    found: list[Penalty | None] = []
    for number, (below, above) in enumerate(pairwise(layers)):
        signs = below[:, None] * above
        unseen = (below != 0)[:, None] & (above != below[:, None])
        unseen[..., 0] &= above[:, 0] == 0
        unseen[..., 1] &= number < len(layers) - 2
        signs[..., 1] *= number > 0  # a unit bends the same way, whatever the signs of its inputs
        none, sign = unseen.any(-1) | (signs.prod(-1) < 0), signs.sum(-1).sign()
        one = Signs(sign)
        found.append(one + FixedZeros(none) if bool(none.any()) else one)
    if len(network.parameters) == len(sizes):  # outputs see the inputs, too, of which it is linear
        found.append(Signs(torch.outer(inputs[:, 0], outputs[:, 0])))
    return found


def marks_of(name: str, given: Sequence[int] | None, inputs: int) -> list[int]:
    """Return 1, -1 or 0 of every input, 0 where nothing is given.

    Raises:
        DataError: there are others, or not as many.
    """
    found: list[int] = np.atleast_1d(
        np.asarray([0] * inputs if given is None else given, dtype=object)
    ).tolist()
    if len(found) != inputs or not all(is_integer(x) and x in (-1, 0, 1) for x in found):
        raise DataError(f"{name} needs 1, -1 or 0 for each of {inputs} inputs, got {given!r}.")
    return found


def _kinds(inputs: Tensor) -> Tensor:
    """Return the kinds of units, (kinds, 2), that see inputs which none of fewer signs does."""
    seen = {}
    for kind in product((1, -1, 0), (1, -1, 0)):
        away = [x != 0 == kind[0] or y not in (0, kind[1]) for x, y in inputs.tolist()]
        if not all(away) and kind[0] * kind[1] >= 0:  # outputs would rise with it, and fall
            seen[kind] = away
    less = {(x, y): [(0, y), (x, 0)] for x, y in seen}
    kept = [k for k in seen if not any(x != k and seen.get(x) == seen[k] for x in less[k])]
    return torch.tensor(kept, dtype=torch.float32)


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
        >>> X = torch.rand(100, 2) * 2 - 1
        >>> model = Lifted(input_convex((2, 5, 5, 1))).fit(X, X.square().sum(1, keepdim=True))
        >>> certify(model).convex
        tensor([True])
    """
    phi, given = activation or ReLU(), loss or SquaredError()
    refuse_not_convex([phi])
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


def refuse_not_convex(activations: Iterable[Activation]) -> None:
    """Raise `DeclarationError` where an activation is not known to be convex and nondecreasing."""
    for phi in activations:
        if type(phi) not in CONVEX:
            names = ", ".join(kind.__name__ for kind in CONVEX)
            raise DeclarationError(f"a convex network needs one of {names}, got {phi!r}.")


def refuse_not_input_convex(network: Network) -> None:
    """Raise `DeclarationError` where scores are not convex in the inputs as in `input_convex`."""

    def kept(x: Applied) -> bool:
        above = x.arguments[0] not in network.inputs
        sign = x.weights is not None and isinstance(x.weights.penalty, Nonnegative)
        return isinstance(x.layer, Sum) or (x.layer.plain and (sign or not above))

    if not all(map(kept, network.layers())):
        raise DeclarationError(
            "convex=True is for LiftedMLP and LiftedRegressor, which build the network; build "
            "it by input_convex(sizes), or say of each input 1, -1 or 0."
        )
    refuse_not_convex(state.activation for state in network.states)


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
