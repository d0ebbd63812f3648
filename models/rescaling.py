"""One weight for all divergences, by rescaling (Lifted Neural Networks, section 3)."""

from __future__ import annotations

import torch

from liftednet.activation import Activation
from liftednet.divergences import Raw
from liftednet.errors import DeclarationError
from liftednet.problems import Weights

from .architecture import MULTIPLIERS, Architecture
from .archived import coupling_name
from .mlp import LiftedMLP


def with_one_lam(model: LiftedMLP) -> LiftedMLP:
    """Return the same training problem with one lam, that of the last layer with states.

    X_l -> X_l / a_l with a_l = sqrt(lam / lam_l) and a = 1 for inputs and outputs, so that
    W_l -> (a_{l-1} / a_l) W_l, b_l -> b_l / a_l and rho_l -> (a_l / a_{l-1})^2 rho_l: objective
    and predictions are those of before. Weights in lam that differ from layer to layer are so a
    choice of rho and of the start. A loss weighted by beta is nothing else, either: it is
    lam / beta and rho / beta.

    Args:
        model: with activations for which phi(t u) = t phi(u), t > 0, such as ReLU.

    Returns:
        A network that has the rescaled weights, if the model has any.

    Raises:
        DeclarationError: an activation is not positively homogeneous, or a raw divergence.
    """
    architecture = model.architecture
    for divergence in architecture.divergences[: architecture.layers - 1]:
        if isinstance(divergence, Raw) or not _is_homogeneous(divergence.activation):
            raise DeclarationError(
                "rescaling needs activations with phi(t u) = t phi(u) for t > 0, such as ReLU; "
                f"{divergence.activation!r} is not one."
            )
    scales = _scales(architecture)
    rescaled = _like(model, scales)
    if model.is_fitted:
        rescaled.with_weights(_rescaled(model.weights, scales))
    return rescaled


def _scales(architecture: Architecture) -> list[float]:
    """Return a_0 .. a_L."""
    last = architecture.lam[-1] if architecture.lam else 1.0
    hidden = [(last / lam) ** 0.5 for lam in architecture.lam[: architecture.layers - 1]]
    return [1.0, *hidden, 1.0]


def _like(model: LiftedMLP, scales: list[float]) -> LiftedMLP:
    architecture = model.architecture
    divergences = architecture.divergences
    rho = [
        value * (above / below) ** 2
        for value, below, above in zip(architecture.rho, scales, scales[1:], strict=False)
    ]
    return LiftedMLP(
        architecture.sizes,
        [divergence.activation for divergence in divergences],
        model.loss,
        architecture.lam[-1] if architecture.lam else 1.0,
        rho,
        MULTIPLIERS if architecture.multipliers else coupling_name(divergences),
        start=_rescaled(model.first_weights, scales),
        solver=model.solver,
        seed=model.seed,
        dtype=model.dtype,
        device=model.device,
        warm_start=model.warm_start,
        method=model.method,
        refit_output=model.refit_output,
    )


def _rescaled(weights: tuple[Weights, ...], scales: list[float]) -> list[Weights]:
    found = []
    for layer, below, above in zip(weights, scales, scales[1:], strict=False):
        assert layer.bias is not None  # every layer of a LiftedMLP has one
        found.append(Weights(layer.matrix * (below / above), layer.bias / above))
    return found


def _is_homogeneous(activation: Activation) -> bool:
    if not activation.per_unit:
        return False
    u = torch.linspace(-4, 4, 81, dtype=torch.float64).unsqueeze(0)
    return all(
        torch.allclose(activation.forward(t * u), t * activation.forward(u)) for t in (0.3, 7.0)
    )
