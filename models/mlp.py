"""The feedforward network as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from liftednet.activation import Activation, require_activation
from liftednet.activations import ReLU
from liftednet.constraints import Constraint
from liftednet.errors import DataError, DeclarationError
from liftednet.layers import Expression, dense
from liftednet.losses import CrossEntropy, Loss, OutputLoss, PinnedLoss
from liftednet.network import Network
from liftednet.penalties import Penalty
from liftednet.sets.constraint import require_constraints
from liftednet.validation import is_integer, require_positive

from .block import Structure
from .data import Data
from .lifted import Lifted
from .methods import GaussNewton, Method, Minibatch
from .methods.descent import AnySolver
from .parts import Parts
from .settings import Penalties
from .shapes import bounded, in_proportion, monotone_penalties, refuse_unbounded
from .standardization import Standardization
from .starts import Start


class LiftedMLP(Lifted):
    """A feedforward network whose layers are variables, trained by convex subproblems.

    min over W, b, X_1.. of loss + sum_l lam_l D_l(X_l, X_{l-1} W_l + b_l) + rho_l |W_l|_F^2;
    Lifted Neural Networks, eq. (10), by the block-coordinate descent of section 6.

    Args:
        sizes: units of the input, every hidden layer, and the output.
        activations: one for all hidden layers, or one for each; one more than that gives the
            output states of its own (eq. (14)), which SimplexCrossEntropy has by itself.
        loss: a loss from `liftednet.losses`.
        lam: weight of the divergences, one number or one for each layer with states.
        rho: weight of the squared Frobenius norms, one number or one for each layer; see `Lifted`.
        divergence: "tight", "joint" or "multipliers", as in `Lifted`.
        bias: whether layers have one, one answer or one for each.
        penalty: as in `Lifted`, like all others.
        method: see `Lifted`.
        start: see `Lifted`.
        solver: see `Lifted`.
        proximity: see `Lifted`.
        seed: see `Lifted`.
        dtype: see `Lifted`.
        device: see `Lifted`.
        warm_start: see `Lifted`.
        refit_output: see `Lifted`.
        standardize: see `Lifted`.
        monotonic_cst: of every input 1 where outputs must not fall with it, -1 where they must not
            rise, 0 where they may do both; None for 0 (as in scikit-learn, see
            `monotone_penalties`). Of two classes, the probability of the second is meant.
        missing: whether entries of X may be missing, as NaN, see `Network.input`.
        noise: standard deviation of X around what there is, see `Network.input`.
        within: `Bounds` and `Linear` of `liftednet.constraints`, which a regression's outputs or a
            classifier's scores meet at every input, see `Network.loss`.
        lipschitz: the most by which scores may differ, over the distance of their raw inputs, in
            Euclidean norms; None for no bound. Every layer's spectral norm is held below its share
            at every step, and inputs are standardized by one number together.

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
        activations: Activation | Sequence[Activation] | None = None,
        loss: Loss | None = None,
        lam: float | Sequence[float] = 10.0,
        rho: float | Sequence[float] | None = None,
        divergence: str = "tight",
        *,
        bias: bool | Sequence[bool] = True,
        penalty: Penalties | None = None,
        method: str | Method = "auto",
        start: Start = "auto",
        solver: AnySolver = "auto",
        proximity: float | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        refit_output: bool = False,
        standardize: bool = True,
        monotonic_cst: Sequence[int] | None = None,
        missing: bool = False,
        noise: float | Sequence[float] = 0.0,
        lipschitz: float | None = None,
        within: Sequence[Constraint] = (),
    ) -> None:
        """Check what can be checked before there are data."""
        self.sizes = _checked_sizes(sizes)
        self.loss = CrossEntropy() if loss is None else loss
        given = ReLU() if activations is None else activations
        self.monotonic_cst = monotonic_cst
        self.missing, self.noise, self.within = missing, noise, require_constraints(within)
        self.lipschitz = None if lipschitz is None else require_positive("lipschitz", lipschitz)
        network = feedforward(
            self.sizes, given, self.loss, bias, missing=missing, noise=noise, within=self.within
        )
        if lipschitz is not None:
            refuse_unbounded(network)
        super().__init__(
            network, lam, rho, divergence, penalty=penalty, method=method, start=start,
            solver=solver, proximity=proximity, seed=seed, dtype=dtype, device=device,
            warm_start=warm_start, refit_output=refit_output, standardize=standardize,
        )  # fmt: skip

    def _penalties(self, layers: int) -> Sequence[Penalty]:
        """Return the penalties, with the signs that a monotone network needs."""
        given = super()._penalties(layers)
        if self.monotonic_cst is None:
            return given
        signs = monotone_penalties(self.monotonic_cst, self.sizes, self.network)
        return [x if y is None else x + y for x, y in zip(given, signs, strict=True)]

    def checked(self) -> tuple[Structure, Method]:
        """Return the training problem and the method, see `Settings.checked`.

        Raises:
            DeclarationError: Gauss-Newton's steps are to be Lipschitz, too.
        """
        structure, method = super().checked()
        if self.lipschitz is not None and isinstance(method, GaussNewton):
            raise DeclarationError(
                "Gauss-Newton holds single entries alone, and lipschitz bounds spectral norms: use "
                'method="minibatch" or "full".'
            )
        return structure, method

    def _suited(
        self, method: Method, structure: Structure, X: Any, sample_weight: Any
    ) -> tuple[Method, Structure]:
        if self.lipschitz is not None:
            return method, structure
        return super()._suited(method, structure, X, sample_weight)

    def _first_part(self, structure: Structure, settings: Minibatch, batch: Data) -> Parts:
        if self.lipschitz is not None:
            raise DeclarationError(
                "lipschitz is a bound on raw data, whose scale partial_fit learns on the way: call "
                "fit(X, y)."
            )
        return super()._first_part(structure, settings, batch)

    def _standardization(self, data: Data, goes_on: bool) -> Standardization:
        found = super()._standardization(data, goes_on)
        return found if self.lipschitz is None else in_proportion(found)

    def _structure_on(self, structure: Structure, standardization: Standardization) -> Structure:
        """Return the training problem, with bounds that make the network Lipschitz on raw data."""
        if self.lipschitz is None:
            return structure
        penalties = bounded(structure.penalties, self.network, standardization, self.lipschitz)
        return replace(structure, penalties=penalties)

    def _settings(self) -> dict[str, Any]:
        hidden = self.activations[: len(self.sizes) - 2]
        return {
            "sizes": self.sizes,
            "activations": list(hidden),
            "loss": self.loss,
            **({} if self.monotonic_cst is None else {"monotonic_cst": self.monotonic_cst}),
            **({} if self.lipschitz is None else {"lipschitz": self.lipschitz}),
            **({"within": list(self.within)} if self.within else {}),
            **super()._settings(),
        }


def feedforward(
    sizes: Sequence[int],
    activations: Activation | Sequence[Activation],
    loss: Loss,
    bias: bool | Sequence[bool] = True,
    *,
    missing: bool = False,
    noise: float | Sequence[float] = 0.0,
    within: Sequence[Constraint] = (),
) -> Network:
    """Return a chain of dense layers, Lifted Neural Networks, eq. (1).

    Raises:
        DataError: biases are not as many as layers.
        DeclarationError: activations and loss do not fit together.
    """
    network, layers = Network(), len(sizes) - 1
    biases = tuple(bias) if isinstance(bias, Sequence) else (bias,) * layers
    if len(biases) != layers:
        raise DataError(f"bias needs one answer, or one for each of {layers}; got {bias!r}.")
    declared = _checked_activations(activations, layers - 1, loss)
    x: Expression = network.input(sizes[0], missing=missing, noise=noise)
    for activation, units, biased in zip(declared, sizes[1:-1], biases, strict=False):
        x = network.state(activation, dense(x, activation.pre_units(units), bias=biased))
    last = declared[layers - 1] if len(declared) == layers else None
    outputs = sizes[-1] if last is None else last.pre_units(sizes[-1])
    network.loss(loss, dense(x, outputs, bias=biases[-1]), activation=last, within=within)
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
    activations: Activation | Sequence[Activation], hidden: int, loss: Loss
) -> tuple[Activation, ...]:
    if isinstance(activations, Activation):
        activations = (activations,) * hidden
    if isinstance(activations, str) or not isinstance(activations, Sequence):
        given: tuple[Any, ...] = (activations,)
    else:
        given = tuple(activations)
    for activation in given:
        require_activation(activation, "a hidden layer")
    if isinstance(loss, OutputLoss):
        if len(given) == hidden and not isinstance(loss, PinnedLoss):
            given = (*given, loss.activation)
        if len(given) == hidden + 1:
            return given
    if len(given) != hidden:
        raise DeclarationError(
            f"{hidden} hidden layers with the loss {type(loss).__name__} need {hidden} "
            f"activations, got {len(given)}."
        )
    return given
