"""What a lifted feedforward network is, before it has seen data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import Loss, OutputLoss, PinnedLoss
from liftednet.validation import is_integer, require_positive

MULTIPLIERS = "multipliers"  # joint divergences, and what holds the states at the forward pass
COUPLINGS: dict[str, Callable[[Activation], Divergence]] = {"tight": tight, "joint": joint}


@dataclass(frozen=True, eq=False)
class Architecture:
    """Sizes, divergences, loss and their weights in the joint objective.

    sum over layers l of lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2, plus the loss;
    Lifted Neural Networks, eq. (10).

    Attributes:
        sizes: units of the input, every hidden layer, and the output.
        divergences: one for every layer that has states.
        loss: pinned to the last pre-activation, or on the states of the last layer.
        lam: the weight of every divergence, as many as there are.
        rho: the weight of every layer's squared Frobenius penalty.
        multipliers: whether multipliers hold the states at the forward pass.
    """

    sizes: tuple[int, ...]
    divergences: tuple[Divergence, ...]
    loss: Loss
    lam: tuple[float, ...]
    rho: tuple[float, ...]
    multipliers: bool = False

    @property
    def layers(self) -> int:
        """The number of weight matrices."""
        return len(self.sizes) - 1

    @property
    def has_output_states(self) -> bool:
        """Whether the last layer has states of its own (Lifted Neural Networks, eq. (14))."""
        return len(self.divergences) == self.layers

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of every layer, the loss giving the last where it is pinned."""
        hidden = tuple(divergence.activation for divergence in self.divergences)
        if self.has_output_states:
            return hidden
        assert isinstance(self.loss, PinnedLoss)  # seen to by design_network
        return (*hidden, self.loss.divergence.activation)

    def with_lam(self, lam: tuple[float, ...]) -> Architecture:
        """Return the same network with other weights of its divergences."""
        return replace(self, lam=lam)

    def with_divergence(self, number: int, divergence: Divergence) -> Architecture:
        """Return the same network with another divergence of one layer."""
        divergences = list(self.divergences)
        divergences[number] = divergence
        return replace(self, divergences=tuple(divergences))

    @property
    def weight_shapes(self) -> list[tuple[int, int]]:
        """(inputs, pre-activations) of every layer."""
        return [
            (inputs, activation.pre_units(outputs))
            for (inputs, outputs), activation in zip(
                pairwise(self.sizes), self.activations, strict=True
            )
        ]


def design_network(
    sizes: Sequence[int],
    activations: Activation | Sequence[Activation],
    loss: Loss,
    lam: float | Sequence[float],
    rho: float | Sequence[float],
    divergence: str,
) -> Architecture:
    """Return the architecture, from what a user gives at the door.

    Raises:
        DataError: sizes, lam or rho are not positive, or not as many as there are layers.
        DeclarationError: the divergence is not known, or activations and loss do not fit.
    """
    units = _checked_sizes(sizes)
    if not isinstance(loss, Loss):
        raise DeclarationError(
            f"loss must be a loss object, such as liftednet.losses.CrossEntropy(); got {loss!r}."
        )
    multipliers = divergence == MULTIPLIERS
    if divergence not in tuple(COUPLINGS) and not multipliers:
        names = ", ".join(map(repr, (*COUPLINGS, MULTIPLIERS)))
        raise DeclarationError(f"divergence must be one of {names}, got {divergence!r}.")
    declared = _checked_activations(activations, len(units) - 2, loss)
    couple = joint if multipliers else COUPLINGS[divergence]
    return Architecture(
        units,
        tuple(couple(activation) for activation in declared),
        loss,
        _per_layer("lam", lam, len(declared)),
        _per_layer("rho", rho, len(units) - 1),
        multipliers,
    )


def _checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    units = tuple(sizes) if isinstance(sizes, Sequence) else ()
    if len(units) < 2 or not all(map(is_integer, units)) or min(units) < 1:
        raise DataError(
            "sizes must be at least two positive integers (inputs, hidden layers, outputs), got "
            f"{sizes!r}."
        )
    return tuple(int(size) for size in units)


def _checked_activations(
    activations: Activation | Sequence[Activation], hidden: int, loss: Loss
) -> tuple[Activation, ...]:
    if isinstance(activations, Activation):
        activations = (activations,) * hidden
    if isinstance(activations, str) or not isinstance(activations, Sequence):
        given = (activations,)
    else:
        given = tuple(activations)
    for activation in given:
        if not isinstance(activation, Activation):
            raise DeclarationError(
                "activations must be Activation objects such as liftednet.activations.ReLU(), got "
                f"{activation!r}; a function becomes one by Activation.from_function."
            )
    if isinstance(loss, OutputLoss):
        if len(given) == hidden and not isinstance(loss, PinnedLoss):
            given = (*given, loss.activation)
        if len(given) == hidden + 1:
            loss.require_activation(given[-1])
            return given
    if len(given) != hidden:
        raise DeclarationError(
            f"{hidden} hidden layers with the loss {type(loss).__name__} need {hidden} "
            f"activations, got {len(given)}."
        )
    return given


def _per_layer(name: str, value: float | Sequence[float], layers: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * layers
    if len(values) != layers:
        raise DataError(f"{name} needs one number, or one for each of {layers}; got {value!r}.")
    for number in values:
        require_positive(name, number)
    return tuple(float(number) for number in values)
