"""Networks that have builders: chains of dense layers, and recurrent ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from liftednet.activation import Activation, require_activation
from liftednet.activations import MaxPooling, ReLU
from liftednet.activations.not_monotone import NotMonotone
from liftednet.constraints import Constraint
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Expression, apply, concatenate, delay, dense, reverse
from liftednet.layers.join import Part
from liftednet.layers.time import drop_first, first_step, pad_first
from liftednet.losses import CrossEntropy, FenchelYoungLoss, Loss, OutputLoss
from liftednet.names import activation_of, loss_of
from liftednet.network import Network, State
from liftednet.samples import Weights
from liftednet.sets.constraint import require_constraints
from liftednet.validation import is_integer, require_flag

from .lifted import Lifted
from .settings import one_for_each, passes_settings
from .shapes import input_convex
from .starts import recurrent_layers


@passes_settings
class LiftedMLP(Lifted):
    """A feedforward network whose layers are variables, trained by convex subproblems.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10), by the block-coordinate descent of section 6.

    Args:
        sizes: units of the input, every hidden layer, and the output.
        activations: one for all hidden layers, or one for each, or their names; one more than that
            gives the output states of its own (eq. (14)), which SimplexCrossEntropy has by itself.
        loss: from `liftednet.losses`, its name such as "squared-error", or torch's module.
        bias: whether layers have one, one answer or one for each.
        skip: whether outputs have a linear layer on the inputs, too, the last of the weights, with
            a rho of its own: what is linear in the data needs no units then.
        missing: whether entries of X may be missing, as NaN, see `Network.input`.
        within: `Bounds` and `Linear` of `liftednet.constraints`, which a regression's outputs or a
            classifier's scores meet at every input, see `Network.loss`.
        **settings: see `Settings`.

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activations, loss and divergence do not fit together.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import LiftedMLP
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 50, 10)).fit(digits.x_train, digits.y_train)
        >>> bool((model.predict(digits.x_test) == digits.y_test).float().mean() > 0.95)
        True
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activations: Activation | str | Sequence[Activation | str] | None = None,
        loss: Loss | str | nn.Module | None = None,
        *,
        bias: bool | Sequence[bool] = True,
        skip: bool = False,
        missing: bool = False,
        within: Sequence[Constraint] = (),
        **settings: Any,
    ) -> None:
        """Build the chain, and check what can be checked before there are data."""
        self.sizes = _checked_sizes(sizes)
        self.loss = CrossEntropy() if loss is None else loss_of(loss)
        self.missing, self.within = missing, require_constraints(within, "within")
        require_flag("skip", skip)
        self.skip = skip
        activations = ReLU() if activations is None else activations
        declared = _checked_activations(activations, len(self.sizes) - 2, self.loss)
        self.hidden = declared[: len(self.sizes) - 2]
        if settings.get("convex") is True:
            if (
                skip
                or missing
                or self.within
                or bias is not True
                or len(set(map(repr, declared))) > 1
            ):
                raise DeclarationError(
                    "convex=True builds `input_convex(sizes, activation, loss)`, which has one "
                    "activation and no bias=, skip=, missing= or within=: leave them out."
                )
            activation = declared[0] if declared else None
            network = input_convex(self.sizes, activation, self.loss)  # type: ignore[arg-type]
        else:
            network = feedforward(
                self.sizes, declared, self.loss, bias,
                skip=skip, missing=missing, within=self.within,
            )  # fmt: skip
        super().__init__(network, **settings)

    def _declared(self) -> dict[str, Any]:
        told: dict[str, Any] = {"within": list(self.within)} if self.within else {}
        told |= {"skip": True} if self.skip else {}
        return {"sizes": self.sizes, "activations": list(self.hidden), "loss": self.loss, **told}


def feedforward(
    sizes: Sequence[int],
    activations: Sequence[Activation],
    loss: Loss,
    bias: bool | Sequence[bool] = True,
    *,
    skip: bool = False,
    missing: bool = False,
    within: Sequence[Constraint] = (),
) -> Network:
    """Return a chain of dense layers, Lifted Neural Networks, eq. (1).

    Raises:
        DataError: biases are not as many as layers.
        DeclarationError: activations and loss do not fit together.
    """
    network, layers = Network(), len(sizes) - 1
    biases = one_for_each("bias", bias, layers)
    x: Expression = network.input(sizes[0], missing=missing)
    inputs = x
    for activation, units, biased in zip(activations, sizes[1:-1], biases, strict=False):
        if isinstance(activation, MaxPooling):
            block = activation.block
            u = dense(x, block * units, bias=biased)
            parts = (Part(first, block * units, block) for first in range(block))
            x = network.maximum(*(apply(part, u) for part in parts))
        elif isinstance(activation, NotMonotone):
            u = dense(x, units, bias=biased)
            x = network.state(activation.rising, u) - activation.descent * u
        else:
            x = network.state(activation, dense(x, units, bias=biased))
    last = activations[layers - 1] if len(activations) == layers else None
    scores = dense(x, sizes[-1], bias=biases[-1])
    if skip and layers > 1:  # one layer is linear by itself
        scores = scores + dense(inputs, sizes[-1], bias=False)
    network.loss(loss, scores, activation=last, within=within)
    return network


def _checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    units = tuple(sizes) if isinstance(sizes, Sequence) else ()
    if len(units) < 2 or not all(map(is_integer, units)) or min(units) < 1:
        raise DataError(
            "sizes must be at least two positive integers (inputs, hidden layers, outputs), got "
            f"{sizes!r}."
        )
    return tuple(int(size) for size in units)


def _checked_activations(
    activations: Activation | str | Sequence[Activation | str], hidden: int, loss: Loss
) -> tuple[Activation, ...]:
    if isinstance(activations, Activation | str):
        activations = (activations,) * hidden
    several = activations if isinstance(activations, Sequence) else (activations,)
    given = tuple(map(activation_of, several))
    for activation in given:
        require_activation(activation, "a hidden layer")
    of_outputs = isinstance(loss, OutputLoss) and len(given) == hidden + 1
    if len(given) != hidden and not of_outputs:
        raise DeclarationError(
            f"{hidden} hidden layers with the loss {type(loss).__name__} need {hidden} "
            f"activations, got {len(given)}."
        )
    return given


@dataclass(frozen=True, eq=False)
class CellWeights:
    """One recurrent layer in one direction: H_t = phi(H_{t-1} W + X_t U_0 + b_0).

    Attributes:
        recurrent: W, (units, units).
        inputs: U_0, (features, units).
        bias: b_0, (units,).
        initial: the state before the first step, (units,).
        backward: whether it runs from the last step to the first.
    """

    recurrent: Tensor
    inputs: Tensor
    bias: Tensor
    initial: Tensor
    backward: bool


@passes_settings
class LiftedRNN(Lifted):
    """A recurrent network whose states are variables, trained by convex subproblems.

    min over W, U_0, b_0, U_1, b_1, H of lam sum_t D(H_t, H_{t-1} W + X_t U_0 + b_0)
    + sum_t loss(y_t, H_t U_1 + b_1) + rho_0 |W; U_0|_F^2 + rho_1 |U_1|_F^2;
    Lifted Recurrent Neural Networks, section 4.1, with its lambda_1 = 1 and lambda_0 = lam / 2.

    Args:
        input_size: features of every step.
        hidden_size: units of the recurrent layer, or of each of several layers.
        output_size: units of the output.
        activation: of the recurrent layers, acting unit by unit.
        loss: CrossEntropy, BinaryCrossEntropy, SquaredError or another Fenchel-Young loss.
        bidirectional: whether every layer also runs from the last step to the first.
        learn_initial_state: whether the states before the first step are learned, or 0.
        **settings: see `Settings`.

    Raises:
        DataError: sizes, lam, rho or another number cannot be used.
        DeclarationError: activation, loss, divergence and solvers do not fit together.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import GaussNewton, LiftedRNN
        >>> x, y = data.echo(samples=30, length=20, lag=1, classes=3)
        >>> model = LiftedRNN(3, 4, 3, start="orthogonal", method=GaussNewton(steps=10)).fit(x, y)
        >>> bool((model.predict(x) == y)[:, 1:].float().mean() > 0.9)  # no one knows the first
        True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | Sequence[int],
        output_size: int,
        activation: Activation | str | None = None,
        loss: Loss | str | nn.Module | None = None,
        *,
        bidirectional: bool = False,
        learn_initial_state: bool = False,
        **settings: Any,
    ) -> None:
        """Build the layers, and check what can be checked before there are data."""
        sizes = _checked_units(input_size, hidden_size, output_size)
        self.input_size, self.hidden_size, self.output_size = sizes
        require_flag("bidirectional", bidirectional)
        require_flag("learn_initial_state", learn_initial_state)
        self.loss = _of_pre_activations(CrossEntropy() if loss is None else loss_of(loss))
        self.activation = _by_unit(ReLU() if activation is None else activation_of(activation))
        self.bidirectional, self.learn_initial_state = bidirectional, learn_initial_state
        super().__init__(self._layers(), **settings)

    def _layers(self) -> Network:
        """Return layers of cells and a readout, each cell in its own order of time.

        Lifted Recurrent Neural Networks, section 3. A learned initial state is a step before all,
        driven by a weight of its own.
        """
        network, before = Network(), int(self.learn_initial_state)
        x: Expression = network.input(self.input_size, sequence=True)
        below: Expression = x
        for units in self.hidden_size:
            seen = []
            for backward in (False, True) if self.bidirectional else (False,):
                own = reverse(below) if backward else below
                if before:
                    longer = pad_first(own)
                    own = concatenate(longer, first_step(pad_first(x)))
                h: State = network.state(self.activation, units=units, initial_steps=before)
                h.of(dense(concatenate(delay(h), own), units))
                natural: Expression = drop_first(h) if before else h
                seen.append(reverse(natural) if backward else natural)
            below = concatenate(*seen)
        network.loss(self.loss, dense(below, self.output_size))
        return network

    def _declared(self) -> dict[str, Any]:
        return {
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "output_size": self.output_size,
            "activation": self.activation,
            "loss": self.loss,
            **({"bidirectional": True} if self.bidirectional else {}),
        }

    @property
    def cells(self) -> tuple[CellWeights, ...]:
        """The weights of every cell in parts, layer by layer, forward before backward."""
        found = list[CellWeights]()
        layers = zip(self.weights, recurrent_layers(self.network).values(), strict=False)
        for number, (layer, (units, inputs)) in enumerate(layers):
            assert layer.bias is not None  # every cell has one
            rest, initial = layer.matrix[units:], layer.bias.new_zeros(units)
            if self.learn_initial_state:
                first = rest[inputs:].sum(0) + layer.bias
                initial = self.activation.forward(first.unsqueeze(0))[0]
            backward = self.bidirectional and number % 2 == 1
            own = layer.matrix[:units], rest[:inputs], layer.bias, initial
            found.append(CellWeights(*own, backward))
        return tuple(found)

    @property
    def readout(self) -> Weights:
        """U_1 (states, outputs) and b_1 (outputs,)."""
        return self.weights[-1]


def _checked_units(
    inputs: int, hidden: int | Sequence[int], outputs: int
) -> tuple[int, list[int], int]:
    layers = tuple(hidden) if isinstance(hidden, Sequence) else (hidden,)
    if not layers or not all(is_integer(x) and x > 0 for x in (inputs, *layers, outputs)):
        raise DataError(
            "input_size, hidden_size (or each of several) and output_size must be positive "
            f"integers, got {inputs!r}, {hidden!r} and {outputs!r}."
        )
    return int(inputs), [int(size) for size in layers], int(outputs)


def _of_pre_activations(loss: Loss) -> FenchelYoungLoss:
    if not isinstance(loss, FenchelYoungLoss):
        raise DeclarationError(
            f"a recurrent network needs a loss on its last pre-activation, such as CrossEntropy; "
            f"{type(loss).__name__} has output states of its own."
        )
    return loss


def _by_unit(activation: Activation) -> Activation:
    require_activation(activation, "a recurrent layer")
    if not activation.per_unit or isinstance(activation, NotMonotone):
        raise DeclarationError(
            f"{activation!r} cannot be the activation of a recurrent layer: it must act unit by "
            'unit, and fall nowhere, as "tanh" and "relu" do.'
        )
    return activation
