"""Divergences, losses and forward passes in plain torch, to hold the models against."""

import math
from collections.abc import Callable
from typing import Any

import torch
from scipy.special import spence
from torch import Tensor
from torch.nn import functional

from liftednet.models import Lifted
from tests.models.registry import LABELS, LENGTHS, RHO, STEP_LABELS, Graph


def forward_map(activation: Any, u: Tensor) -> Tensor:
    """Return phi(u), (..., units)."""
    maps: dict[str, Callable[[Tensor], Tensor]] = {
        "Clipped": lambda u: u.clamp(-1, 1),
        "Identity": lambda u: u,
        "ReLU": functional.relu,
        "Sigmoid": torch.sigmoid,
        "SimplexProjection": _on_the_simplex,
        "Softplus": functional.softplus,
        "Tanh": torch.tanh,
    }
    return maps[type(activation).__name__](u)


def _on_the_simplex(u: Tensor) -> Tensor:
    """Return the nearest point with nonnegative entries that sum to one, by bisection."""
    low, high = u.amin(-1, keepdim=True) - 1, u.amax(-1, keepdim=True)
    for _ in range(100):
        middle = (low + high) / 2
        over = (u - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = middle.where(over, low), high.where(over, middle)
    return (u - (low + high) / 2).clamp(min=0)


# Of every activation whose Phi is not |z|^2 / 2 on its domain, Phi and Phi*, entry by entry.
_POTENTIALS: dict[str, Callable[[Tensor], Tensor]] = {
    "Sigmoid": lambda z: torch.xlogy(z, z) + torch.xlogy(1 - z, 1 - z),
    "Tanh": lambda z: (torch.xlogy(1 + z, 1 + z) + torch.xlogy(1 - z, 1 - z)) / 2,
    "Softplus": lambda z: z * z.expm1().log() - _CONJUGATES["Softplus"](z.expm1().log()),
}
_CONJUGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "Sigmoid": functional.softplus,
    "Tanh": lambda u: torch.logaddexp(u, -u) - math.log(2),
    "Softplus": lambda u: -torch.from_numpy(spence(1 + u.exp().numpy())),
}


def potential(activation: Any, z: Tensor) -> Tensor:
    """Return Phi(z), entry by entry."""
    known = _POTENTIALS.get(type(activation).__name__)
    return z.square() / 2 if known is None else known(z)


def conjugate(activation: Any, u: Tensor) -> Tensor:
    """Return Phi*(u), entry by entry; its gradient is phi(u)."""
    known, z = _CONJUGATES.get(type(activation).__name__), forward_map(activation, u)
    return z * u - z.square() / 2 if known is None else known(u)


def divergence(coupling: str, activation: Any, z: Tensor, u: Tensor) -> Tensor:
    """Return D(z, u), entry by entry."""
    if coupling == "tight":
        remainder = conjugate(activation, u)
    else:
        name = type(activation).__name__
        at_zero = forward_map(activation, torch.zeros_like(u))
        if name == "SimplexProjection":  # as in eq. (15)
            at_zero = torch.zeros_like(u)
        remainder = at_zero * u + (0.25 if name == "Sigmoid" else 1.0) * u.square() / 2
    return potential(activation, z) - z * u + remainder


def _counted(graph: Graph, rows: Tensor) -> Tensor:
    """Return which rows count, (samples,) or (steps, samples), as what comes before is known."""
    if rows.ndim == 2:
        return torch.ones(len(rows), dtype=torch.bool)
    lengths = torch.full((rows.shape[1],), 4) if graph.lengths is None else LENGTHS
    return torch.arange(len(rows))[:, None] < lengths + (len(rows) - 4)


def _targets(graph: Graph) -> tuple[Tensor, ...]:
    """Return y as the last pre-activations are: one row for each of theirs."""
    given = graph.y if isinstance(graph.y, tuple) else (graph.y,)
    labels = {id(LABELS): LABELS, id(STEP_LABELS): STEP_LABELS.T}
    return tuple(
        functional.one_hot(labels[id(y)], 3).double() if id(y) in labels else y for y in given
    )


def objective(graph: Graph, model: Lifted, coupling: str) -> float:
    """Return the joint objective at the states and weights of a model."""
    states, total = list(model.states), 0.0
    above = graph.above(graph.x, states, list(model.weights))
    structure = model.structure
    for state, z, u in zip(structure.states, states, above, strict=False):
        value = divergence(coupling, state.activation, z, u).sum(-1)
        total += structure.lam[state] * float(value[_counted(graph, z)].sum())
    return total + _losses(graph, model, states, above) + _penalty(model)


def network_objective(graph: Graph, model: Lifted) -> float:
    """Return losses at the forward pass, and penalties."""
    states, above = passed(graph, model)
    return _losses(graph, model, states, above) + _penalty(model)


def _penalty(model: Lifted) -> float:
    return RHO * sum(float(layer.matrix.square().sum()) for layer in model.weights)


def _losses(graph: Graph, model: Lifted, states: list[Tensor], above: list[Tensor]) -> float:
    total = 0.0
    first = len(above) - len(model.network.terms)
    for term, u, y in zip(model.network.terms, above[first:], _targets(graph), strict=True):
        rows = _LOSSES[type(term.loss).__name__][0](u, y, states[-1]).sum(-1)
        total += term.weight * float(rows[_counted(graph, u)].sum())
    return total


# Of every loss its value, entry by entry, and its answers, by pre-activations, targets and states.
_LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "CrossEntropy": (lambda u, y, z: -u.log_softmax(-1) * y, lambda u, z: u.softmax(-1)),
    "SquaredError": (lambda u, y, z: (u - y).square() / 2, lambda u, z: u),
    "BinaryCrossEntropy": (
        lambda u, y, z: functional.softplus(u) - u * y, lambda u, z: u.sigmoid(),
    ),
    "SimplexCrossEntropy": (lambda u, y, z: -torch.xlogy(y, z), lambda u, z: z),
}  # fmt: skip


def passed(graph: Graph, model: Lifted) -> tuple[list[Tensor], list[Tensor]]:
    """Return the states of a forward pass and all pre-activations, by repetition until rest."""
    structure = model.structure
    states = [torch.zeros_like(z) for z in model.states]
    for _ in range(len(states) * 6):
        above = graph.above(graph.x, states, list(model.weights))
        states = [_state(state, u) for state, u in zip(structure.states, above, strict=False)]
    return states, graph.above(graph.x, states, list(model.weights))


def _state(state: Any, u: Tensor) -> Tensor:
    z = forward_map(state.activation, u)
    return z if state.bounds is None else z.clamp(*state.bounds)


def outputs(graph: Graph, model: Lifted) -> list[Tensor]:
    """Return what the network answers, samples first."""
    states, above = passed(graph, model)
    found = []
    first = len(above) - len(model.network.terms)
    for term, u in zip(model.network.terms, above[first:], strict=True):
        answer = _LOSSES[type(term.loss).__name__][1](u, states[-1])
        found.append(answer.transpose(0, 1) if answer.ndim == 3 else answer)
    return found
