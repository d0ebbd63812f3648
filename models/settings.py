"""The settings of a lifted model: kept as they are given, turned into a problem at `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from liftednet.activation import Activation
from liftednet.constraints import Constraint
from liftednet.divergences import Divergence, Raw, joint, tight
from liftednet.errors import DataError, DeclarationError, telling_of_memory
from liftednet.layers import Parameter
from liftednet.network import Network, parameters_of
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.samples import Weights
from liftednet.solvers import Solver, solver_names
from liftednet.validation import (
    FLOATS,
    require_device,
    require_flag,
    require_positive,
    require_seed,
)

from .block import Structure
from .methods import Method, method_named
from .methods.descent import AnySolver, FullBatch
from .methods.minibatch import Minibatch
from .methods.multipliers import refuse_unfit
from .output import output_obstacle
from .starts import (
    AUTO,
    Start,
    draw_of,
    given_weights,
    input_gain,
    passing,
    spread_bias,
    weights_on_inputs,
)

Penalties = Penalty | Sequence[Penalty]

MULTIPLIERS = "multipliers"  # joint divergences, and what holds the states at the forward pass
COUPLINGS: Mapping[str, Callable[[Activation], Divergence]] = {
    "tight": tight,
    "joint": joint,
    MULTIPLIERS: joint,
}


class Settings:
    """What a lifted model has been told, see `Lifted`; every attribute may be changed."""

    default_rho = 1.0  # where neither rho nor a penalty is given

    def __init__(
        self,
        network: Network,
        lam: float | Sequence[float] = 10.0,
        rho: float | Sequence[float] | None = None,
        divergence: str = "tight",
        *,
        penalty: Penalties | None = None,
        method: str | Method = "auto",
        start: Start = "kaiming",
        solver: AnySolver = "auto",
        state_solver: AnySolver = "auto",
        proximity: float | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        refit_output: bool = False,
        standardize: bool | None = True,
    ) -> None:
        """Check what can be checked before there are data."""
        if not isinstance(network, Network):
            raise DeclarationError(
                f"{type(self).__name__} takes a liftednet.Network, got {type(network).__name__}: "
                "LiftedMLP takes layers' sizes, and liftednet.lift a torch network."
            )
        self.network = network
        self.lam, self.rho, self.divergence, self.penalty = lam, rho, divergence, penalty
        self.method, self.start, self.seed = method, start, seed
        self.solver, self.state_solver, self.proximity = solver, state_solver, proximity
        self.dtype, self.device = dtype, device
        self.warm_start, self.refit_output = warm_start, refit_output
        self.standardize = standardize
        network.check()
        self.checked()

    @telling_of_memory
    def checked(self) -> tuple[Structure, Method]:
        """Return the training problem and the method that the settings ask for.

        Raises:
            DataError: a number cannot be used.
            DeclarationError: settings do not fit together.
        """
        structure, multipliers = self._structure(), self.divergence == MULTIPLIERS
        if multipliers:
            refuse_unfit(structure)
        method = self._method(structure)
        method.refuse(structure, multipliers)
        curved = self.network.curved() if isinstance(method, FullBatch) else None
        if curved is not None:
            raise DeclarationError(
                f"{curved.layer} is not affine in what it takes, and {type(method).__name__} needs "
                "convex subproblems: minibatches and Gauss-Newton go through it by its derivative "
                '(method="minibatch" or "gauss-newton"); a BatchNorm in eval mode is affine.'
            )
        if self.dtype is not None and self.dtype not in FLOATS:
            raise DataError(f"dtype must be torch.float32 or torch.float64, got {self.dtype!r}.")
        if self.proximity is not None:
            require_positive("proximity", self.proximity)
        require_flag("warm_start", self.warm_start)
        require_flag("refit_output", self.refit_output)
        if self.standardize is not None:
            require_flag("standardize", self.standardize)
        require_seed(self.seed)
        require_device(self.device)
        _refuse_unknown("solver", self.solver)
        _refuse_unknown("state_solver", self.state_solver)
        obstacle = output_obstacle(self.network) if self.refit_output else None
        if obstacle is not None:
            raise DeclarationError(f"refit_output needs {obstacle}.")
        self._first_weights()
        return structure, method

    def _structure(self) -> Structure:
        if not isinstance(self.divergence, str) or self.divergence not in COUPLINGS:
            names = ", ".join(map(repr, COUPLINGS))
            raise DeclarationError(f"divergence must be one of {names}, got {self.divergence!r}.")
        couple = COUPLINGS[self.divergence]
        states = [state for group in self.network.groups() for state in group]
        parameters = self.network.parameters
        lam = each_layer("lam", self.lam, len(states))
        penalties = self._all_penalties()
        for parameter, penalty in zip(parameters, penalties, strict=True):
            penalty.refuse_infeasible(parameter.shape)
        return Structure(
            self.network,
            {state: couple(state.activation) for state in states},
            {s: s.lam if s.lam is not None else x for s, x in zip(states, lam, strict=True)},
            dict(zip(parameters, penalties, strict=True)),
        )

    def _penalties(self, layers: int) -> Sequence[Penalty]:
        given = self.penalty
        if given is None:
            return [SquaredFrobenius(rho) for rho in self._rhos(layers)]
        if self.rho is not None:
            raise DeclarationError(
                f"penalty takes the place of rho, and rho={self.rho!r} was given, too: say "
                "penalty=... + SquaredFrobenius(...) for both, or rho=None."
            )
        found: list[Any] = [given] * layers
        if isinstance(given, Sequence) and not isinstance(given, str):
            found = list(given)
        for one in found:
            if not isinstance(one, Penalty):
                hint = ""
                if isinstance(one, Constraint):
                    hint = ", which is on scores: by within= or fit(..., constraints=)"
                elif isinstance(one, Mapping):
                    hint = ": a list has one for each layer, in the order of a forward pass"
                raise DeclarationError(
                    f"a penalty must be one of liftednet.penalties, such as Nonnegative(); got "
                    f"{one!r}{hint}."
                )
        if len(found) != layers:
            raise DataError(f"penalty needs one, or one for each of {layers}; got {len(found)}.")
        return found

    def _rhos(self, layers: int) -> Sequence[float]:
        """Return rho of each layer's weights."""
        if self.rho is None:
            return [self.default_rho * slope**2 for slope in steepest_slopes(self.network)]
        return each_layer("rho", self.rho, layers)

    def _method(self, structure: Structure) -> Method:
        if self.method != "auto":
            return method_named(self.method)
        raw = any(isinstance(divergence, Raw) for divergence in structure.divergences.values())
        return FullBatch() if raw or self.divergence == MULTIPLIERS else Minibatch()

    def _first_weights(self) -> list[Weights]:
        """Return the weights of the start, each where its penalty allows it."""
        parameters = self.network.parameters
        if not isinstance(self.start, str):
            return given_weights(self.start, parameters)
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        return feasible(self._drawn(self.start, generator), self._all_penalties())

    def _all_penalties(self) -> list[Penalty]:
        parameters = self.network.parameters
        given = self._penalties(len(parameters))
        return [p.penalty or penalty for p, penalty in zip(parameters, given, strict=True)]

    def _drawn(self, start: str, generator: torch.Generator) -> list[Weights]:
        parameters, penalties = self.network.parameters, self._all_penalties()
        draw, first = draw_of(start, self.network, penalties), weights_on_inputs(self.network)
        matrices = [
            penalty.begin(passing(*p.shape, generator))
            if penalty.signed and p not in first
            else penalty.project(draw(*p.shape, generator))
            for p, penalty in zip(parameters, penalties, strict=True)
        ]
        if start != AUTO:
            return [
                Weights(matrix, torch.zeros(p.shape[1]) if p.bias else None)
                for matrix, p in zip(matrices, parameters, strict=True)
            ]
        return [
            Weights(
                input_gain(p.shape[0]) * matrix if p in first else matrix,
                spread_bias(*p.shape, generator) if p.bias else None,
            )
            for matrix, p in zip(matrices, parameters, strict=True)
        ]

    def __repr__(self) -> str:
        """Name the settings."""
        settings = self._settings().items()
        shown = ", ".join(f"{name}={_plain(value)!r}" for name, value in settings)
        return f"{type(self).__name__}({shown})"

    def _settings(self) -> dict[str, Any]:
        names = ("lam", "rho", "divergence", "penalty", "method", "start", "solver", "seed")
        found = {name: getattr(self, name) for name in names}
        if not isinstance(self.start, str):
            found["start"] = "given"
        return {name: value for name, value in found.items() if value is not None}


def steepest_slopes(network: Network) -> list[float]:
    """Return for all weights how steep the activations are that they act through, at most 1.

    What a layer passes on is phi'(U) W: a penalty on W alone asks sixteen times as much of
    sigmoids, whose slope is at most 1/4, as of ReLUs, and layers of them end constant.
    """
    outputs = {term.state for term in network.terms}
    found: dict[Parameter, float] = {}
    for state in network.states:
        slope = 1.0 if state in outputs else min(1.0, state.activation.lipschitz or 1.0)
        for parameter in parameters_of(state.argument):
            found[parameter] = max(slope, found.get(parameter, 0.0))
    ending = {x for term in network.terms for x in parameters_of(term.argument)}
    return [1.0 if x in ending else found.get(x, 1.0) for x in network.parameters]


def feasible(weights: Sequence[Weights], penalties: Iterable[Penalty]) -> list[Weights]:
    """Return weights, each where its penalty allows it."""
    return [
        replace(layer, matrix=penalty.project(layer.matrix))
        for layer, penalty in zip(weights, penalties, strict=True)
    ]


def each_layer(name: str, value: float | Sequence[float], layers: int) -> tuple[float, ...]:
    """Return a positive number for each layer, of one or of as many as there are.

    Raises:
        DataError: there are others, or one is not positive.
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,) * layers
    if len(values) != layers:
        raise DataError(f"{name} needs one number, or one for each of {layers}; got {value!r}.")
    for number in values:
        require_positive(name, number)
    if not layers:
        require_positive(name, 1.0 if isinstance(value, Sequence) else value)
    return tuple(float(number) for number in values)


def _plain(value: Any) -> Any:
    """Return a setting with Python's numbers in place of numpy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Method):
        return replace(value, **{x.name: _plain(getattr(value, x.name)) for x in fields(value)})
    return value


def _refuse_unknown(name: str, solver: object) -> None:
    """Raise `DeclarationError` where there is no such solver."""
    if not isinstance(solver, str | Solver):
        raise DeclarationError(
            f'{name} must be "auto", a name or a Solver of liftednet.solvers, got {solver!r}.'
        )
    if isinstance(solver, str) and solver not in ("auto", *solver_names()):
        raise DeclarationError(
            f"there is no {name.replace('_', ' ')} {solver!r}; there are 'auto' and "
            f"{', '.join(solver_names())}."
        )
