"""The settings of a lifted model: each with its default and its meaning, in this file alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from itertools import zip_longest
from typing import Any, TypeVar

import torch

from liftednet.activation import Activation
from liftednet.constraints import Constraint
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.layers.expression import Parameter
from liftednet.network import Network, parameters_of
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.samples import Weights
from liftednet.solvers import Solver, solver_names
from liftednet.validation import (
    FLOATS,
    require_count,
    require_device,
    require_flag,
    require_positive,
    require_seed,
    require_share,
)

from .block import Structure
from .choice import choose, plain
from .methods import COUNTED, GaussNewton, Method, Minibatch
from .methods.descent import AnySolver, FullBatch
from .output import output_obstacle
from .shapes import interaction_penalties, refuse_not_input_convex, signed_penalties
from .starts import Start, drawn_weights, given_weights, recurrent_layers
from .uncertainty import Ball, require_uncertainty

Penalties = Penalty | Sequence[Penalty]

COUPLINGS: Mapping[str, Callable[[Activation], Divergence]] = {"tight": tight, "joint": joint}
_RHO, _RECURRENT_RHO = 1.0, 3.0  # where neither rho nor a penalty is given
_SHOWN = ("lam", "rho", "divergence", "penalty", "method", "max_iter", "batch_size", "start",
    "solver", "seed", "monotonic_cst", "interaction_cst", "convex", "lipschitz", "uncertainty",
)  # fmt: skip

Builder = TypeVar("Builder", bound=type)


@dataclass(eq=False, repr=False)
class Settings:
    """What a lifted model has been told, checked before there are data; all of it may be changed.

    Args:
        network: of inputs, states and losses, joined by layers.
        lam: weight of the divergences, one number or one for each layer with states. Gauss-Newton
            keeps them at zero.
        rho: weight of the squared Frobenius norms, one number or one for each layer's weights, or
            of recurrent networks (recurrent, output); None for 1, of recurrent networks 3, times
            the square of the steepest slope that the weights act through where that is below 1
            (1/16 before sigmoids), and where there is a penalty.
        divergence: "tight" (biconvex, zero at the forward pass), or "joint" (jointly convex).
        penalty: in place of rho, any of `liftednet.penalties`, one or one for each layer's weights,
            held by every method at every step.
        method: "minibatch", "full", "gauss-newton", "global" (one hidden layer of ReLU to the
            proven optimum, see `Global`), a `Minibatch`, `FullBatch`, `GaussNewton` or `Global`
            with numbers of its own; "auto" for minibatches, but
            of squared errors, dense layers and data of a size that a matrix serves in seconds for
            Gauss-Newton from what minibatches have reached, with rho by the
            evidence, or with a rho or a penalty that is given. Of recurrent networks "auto" is
            Gauss-Newton, of few short sequences with rho by the evidence, too, but minibatches
            where it would take many minutes or cannot be used, and "full" where the divergence is
            not tight, with fifty sweeps at most and without extrapolation. What was chosen and why
            stands in `trace` and in what the model prints.
        max_iter: the most epochs, sweeps or steps; None for the method's own number.
        batch_size: samples of a minibatch; None for the method's own number.
        early_stopping: whether some samples are held out, whatever the method is: training ends
            where their mean loss no longer falls, and keeps the weights of the least.
        validation_fraction: share of the samples that is held out for it.
        n_iter_no_change: epochs, sweeps or steps without a smaller loss that it waits.
        start: "auto" ("kaiming", but from five layers with states on "orthogonal", scaled by the
            first samples so that each layer lies in the nearly linear range of its activation),
            "kaiming", "orthogonal", or weights. Drawn weights on states whose penalty gives them
            signs begin with the identity and small entries, whatever the name. Of recurrent
            networks "identity", "orthogonal" and "gaussian" are what the weights from one step to
            the next begin with, and "auto" is the best of three after some steps of Gauss-Newton
            (the identity, where none has learned anything), else 0.9 times the identity.
        solver: "auto", a solver's name, or a solver, for every block: where there are states, of
            all names "reference" alone serves them and the weights.
        state_solver: the same for the states of recurrent layers: "auto" (two Newton steps over all
            time a sweep), "newton-over-time" (exact), or such a solver with options of its own.
        seed: of the initial weights and of the order of batches.
        dtype: torch.float32 or torch.float64; None takes that of X, but float64 for recurrent
            networks, where long sequences amplify the rounding of float32.
        device: where the model lives, such as "cpu" or "cuda".
        warm_start: whether another `fit` goes on from the weights and states that are there, on
            the scales of the data of the first.
        refit_output: whether at the end the last layer, which must be dense, is fitted to the
            forward features of all samples by one convex problem, min over W, b of the loss + the
            penalty + pull |W - W_0|_F^2, W_0 from training, to a relative residual of 1e-3 where
            the solver is "auto". The pull is chosen on a fifth of the samples. Where none is better
            there, as after many passes, which have seen that fifth, or there are fewer than ten,
            W_0 stays.
        standardize: whether training sees inputs, and targets of regressions, on a common scale
            (see `standardization_of`); `weights` are those for raw data again, but where
            `standardization` keeps moments. None: where features are in several units.
        monotonic_cst: of every input of a chain of dense layers 1 where outputs must not fall with
            it, -1 where they must not rise, 0 where they may do both; None for 0 (as in
            scikit-learn, see `signed_penalties`). Of two classes, the probability of the second
            is meant.
        interaction_cst: of a chain of dense layers the inputs that may interact: sets of their
            numbers, of each of which the scores are a sum of functions; "no_interactions" or
            "pairwise" (as in scikit-learn's boosting, see `interaction_penalties`); None for all.
        convex: of every input of a chain of dense layers 1 where scores must be convex in it while
            the others stand still, -1 where concave, 0 where neither; activations are ReLU,
            LeakyReLU, ELU, Softplus or Identity (see `signed_penalties`). True, which LiftedMLP
            takes, for convex in all inputs together (see `input_convex`).
        lipschitz: of a chain of dense layers the most by which scores may differ, over the distance
            of their raw inputs, in Euclidean norms; None for no bound. Every layer's spectral norm
            is held below its share at every step, and inputs are standardized by one number
            together; but where "auto" is Gauss-Newton, which holds no norms, what that reaches
            without a bound stays if the product of its norms meets it. That first training shows
            no progress and is in no checkpoint, `on_step` is told of it at its end, and an
            interrupt leaves the model of before.
        uncertainty: `Ball(r)` or `Box(r)` around every row of X, in its units, within which the row
            is known: every step of minibatches is taken on the worst rows that three linearized
            maxima find, and losses that are told are those of these rows.

    Raises:
        DataError: a number cannot be used.
        DeclarationError: the network, its divergence, penalties and method do not fit together.
    """

    network: Network
    lam: float | Sequence[float] = 10.0
    rho: float | Sequence[float] | None = None
    divergence: str = "tight"
    _: KW_ONLY
    penalty: Penalties | None = None
    method: str | Method = "auto"
    max_iter: int | None = None
    batch_size: int | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    start: Start = "auto"
    solver: AnySolver = "auto"
    state_solver: AnySolver = "auto"
    seed: int = 0
    dtype: torch.dtype | None = None
    device: str = "cpu"
    warm_start: bool = False
    refit_output: bool = False
    standardize: bool | None = True
    monotonic_cst: Sequence[int] | None = None
    interaction_cst: str | Sequence[Iterable[int]] | None = None
    convex: bool | Sequence[int] = False
    lipschitz: float | None = None
    uncertainty: Ball | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before there are data."""
        if not isinstance(self.network, Network):
            raise DeclarationError(
                f"{type(self).__name__} takes a liftednet.Network, got "
                f"{type(self.network).__name__}: LiftedMLP takes layers' sizes, and liftednet.lift "
                "a torch network."
            )
        self.network.check()
        self.checked()

    def checked(self) -> tuple[Structure, Method]:
        """Return the training problem and the method that the settings ask for.

        Raises:
            DataError: a number cannot be used.
            DeclarationError: settings do not fit together.
        """
        for name in ("max_iter", "batch_size"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1)
        require_share("validation_fraction", self.validation_fraction)
        require_count("n_iter_no_change", self.n_iter_no_change, 1)
        for name in ("early_stopping", "warm_start", "refit_output"):
            require_flag(name, getattr(self, name))
        if self.standardize is not None:
            require_flag("standardize", self.standardize)
        structure = self._structure()
        method = choose(self, structure, None).method
        method.refuse(structure)
        curved = self.network.curved() if isinstance(method, FullBatch) else None
        if curved is not None:
            raise DeclarationError(
                f"{curved.layer} is not affine in what it takes, and {type(method).__name__} needs "
                "convex subproblems: minibatches and Gauss-Newton go through it by its derivative "
                '(method="minibatch" or "gauss-newton"); a BatchNorm in eval mode is affine.'
            )
        if self.lipschitz is not None:
            self._refuse_lipschitz(method)
        if self.uncertainty is not None:
            require_uncertainty(self.uncertainty, self.network)
            if not isinstance(method, Minibatch) or self.refit_output:
                raise DeclarationError(
                    'uncertainty is for method="minibatch", without refit_output: other fits see '
                    "rows of X as they are."
                )
        if self.dtype is not None and self.dtype not in FLOATS:
            raise DataError(f"dtype must be torch.float32 or torch.float64, got {self.dtype!r}.")
        require_seed(self.seed)
        require_device(self.device)
        for name in ("solver", "state_solver"):
            _refuse_unknown(name, getattr(self, name))
        obstacle = output_obstacle(self.network) if self.refit_output else None
        if obstacle is not None:
            raise DeclarationError(f"refit_output needs {obstacle}.")
        self._first_weights()
        return structure, method

    def _refuse_lipschitz(self, method: Method) -> None:
        assert self.lipschitz is not None  # asked before
        require_positive("lipschitz", self.lipschitz)
        _chain_sizes("lipschitz", self.network)
        for state in self.network.states:
            if state.activation.lipschitz is None:
                raise DeclarationError(
                    "lipschitz needs activations with a Lipschitz constant, and "
                    f"{state.activation!r} has none."
                )
        if isinstance(method, GaussNewton):
            raise DeclarationError(
                "Gauss-Newton holds single entries alone, and lipschitz bounds spectral norms: use "
                'method="minibatch" or "full".'
            )

    # The problem: divergences, penalties.

    def _structure(self) -> Structure:
        if not isinstance(self.divergence, str) or self.divergence not in COUPLINGS:
            names = ", ".join(map(repr, COUPLINGS))
            raise DeclarationError(f"divergence must be one of {names}, got {self.divergence!r}.")
        couple = COUPLINGS[self.divergence]
        states = [state for group in self.network.groups() for state in group]
        parameters = self.network.parameters
        lam = each_layer("lam", self.lam, len(states))
        penalties = self._penalties()
        for parameter, penalty in zip(parameters, penalties, strict=True):
            penalty.refuse_infeasible(parameter.shape)
        return Structure(
            self.network,
            {state: couple(state.activation) for state in states},
            {s: s.lam if s.lam is not None else x for s, x in zip(states, lam, strict=True)},
            dict(zip(parameters, penalties, strict=True)),
        )

    def _penalties(self) -> list[Penalty]:
        """Return the penalty of each layer's weights: its own, or that of the settings."""
        parameters = self.network.parameters
        if self.penalty is None:
            found: list[Penalty] = [SquaredFrobenius(rho) for rho in self._rhos()]
        else:
            found = self._given_penalties(len(parameters))
        shapes = list[Sequence[Penalty | None]]()
        if self.convex is True:
            refuse_not_input_convex(self.network)
        bends = None if isinstance(self.convex, bool) else self.convex
        if self.monotonic_cst is not None or bends is not None:
            sizes = _chain_sizes("monotonic_cst" if bends is None else "convex", self.network, True)
            shapes.append(signed_penalties(self.monotonic_cst, bends, sizes, self.network))
        if self.interaction_cst is not None:
            sizes = _chain_sizes("interaction_cst", self.network, True)
            shapes.append(interaction_penalties(self.interaction_cst, sizes))
        for shape in shapes:
            found = [x if y is None else x + y for x, y in zip_longest(found, shape)]
        return [p.penalty or penalty for p, penalty in zip(parameters, found, strict=True)]

    def _given_penalties(self, layers: int) -> list[Any]:
        given = self.penalty
        if self.rho is not None:
            raise DeclarationError(
                f"penalty takes the place of rho, and rho={self.rho!r} was given, too: say "
                "penalty=... + SquaredFrobenius(...) for both, or rho=None."
            )
        found: tuple[Any, ...] = one_for_each("penalty", given, layers)
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
        return list(found)

    def _rhos(self) -> Sequence[float]:
        """Return rho of each layer's weights, of (recurrent, output) where two are given."""
        rho, layers = self.rho, len(self.network.parameters)
        if rho is None:
            return [self._default_rho * slope**2 for slope in steepest_slopes(self.network)]
        if isinstance(rho, Sequence) and len(rho) == 2 and recurrent_layers(self.network):
            rho = (*(rho[0],) * (layers - 1), rho[1])
        return each_layer("rho", rho, layers)

    @property
    def _default_rho(self) -> float:
        return _RECURRENT_RHO if recurrent_layers(self.network) else _RHO

    # The first weights.

    def _first_weights(self) -> list[Weights]:
        """Return the weights of the start, each where its penalty allows it."""
        if not isinstance(self.start, str):
            return given_weights(self.start, self.network.parameters)
        generator = torch.Generator().manual_seed(require_seed(self.seed))
        return feasible(self._drawn(self.start, generator), self._penalties())

    def _drawn(self, start: str, generator: torch.Generator) -> list[Weights]:
        return drawn_weights(self.network, self._penalties(), start, generator)

    def __repr__(self) -> str:
        """Name the settings."""
        told = {name: getattr(self, name) for name in _SHOWN}
        if not isinstance(self.start, str):
            told["start"] = "given"
        told = {name: x for name, x in told.items() if x is not None and x is not False}
        shown = {**self._declared(), **told}
        text = ", ".join(f"{name}={plain(value)!r}" for name, value in shown.items())
        return f"{type(self).__name__}({text})"

    def _declared(self) -> dict[str, Any]:
        """Return by what the network was declared, where a builder has made it."""
        return {}


def passes_settings(builder: Builder) -> Builder:
    """Let a builder's signature, docstring and refusals show the settings that it passes on."""
    init: Any = builder.__init__  # type: ignore[misc]
    own = inspect.signature(init)
    parameters = [x for x in own.parameters.values() if x.kind is not x.VAR_KEYWORD]
    if len(parameters) < len(own.parameters):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters += [
            inspect.Parameter(x.name, kind, default=x.default, annotation=x.type)
            for x in fields(Settings)
            if x.name != "network"
        ]
    names = [x.name for x in parameters]

    @wraps(init)
    def checked(self: Any, *given: Any, **told: Any) -> None:
        for name in told.keys() - set(names):
            meant = {**dict.fromkeys(COUNTED.values(), "max_iter"), "random_state": "seed"}
            near = [meant[name]] if name in meant else get_close_matches(name, names[1:], 1)
            hint = f", but {near[0]!r}" if near else f"; there are {', '.join(names[1:])}"
            raise TypeError(f"{builder.__name__} has no argument {name!r}{hint}")
        init(self, *given, **told)

    checked.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    builder.__init__ = checked  # type: ignore[misc]
    return told_in(builder, "    **settings: see `Settings`.", Settings)


def told_in(target: Builder, place: str, *sources: type) -> Builder:
    """Put what docstrings tell of their arguments in the place of a line of another."""
    if target.__doc__ is not None:  # where Python keeps docstrings
        told = [inspect.cleandoc(x.__doc__ or "").partition("Args:\n")[2] for x in sources]
        texts = [text.partition("\n\nRaises:")[0].rstrip() for text in told]
        texts = [text[text.index("    lam: ") :] if "    lam: " in text else text for text in texts]
        target.__doc__ = inspect.cleandoc(target.__doc__).replace(place, "\n".join(texts))
    return target


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


def one_for_each(name: str, value: Any, layers: int) -> tuple[Any, ...]:
    """Return a setting of each layer, where it is one for all, or has as many as there are.

    Raises:
        DataError: there are others.
    """
    several = isinstance(value, Sequence) and not isinstance(value, str)
    found = tuple(value) if several else (value,) * layers
    if len(found) != layers:
        raise DataError(f"{name} needs one, or one for each of {layers}; got {value!r}.")
    return found


def each_layer(name: str, value: float | Sequence[float], layers: int) -> tuple[float, ...]:
    """Return a positive number for each layer, of one or of as many as there are.

    Raises:
        DataError: there are others, or one is not positive.
    """
    values = one_for_each(name, value, layers)
    for number in values:
        require_positive(name, number)
    if not layers:
        require_positive(name, 1.0 if isinstance(value, Sequence) else value)
    return tuple(float(number) for number in values)


def _chain_sizes(name: str, network: Network, beside: bool = False) -> list[int]:
    """Return the units of inputs, states and outputs of a chain of dense layers.

    Outputs may have a dense layer on the inputs beside it, where asked.

    Raises:
        DeclarationError: the network is another graph.
    """
    layers = network.chain(beside)
    if layers is None:
        raise DeclarationError(
            f"{name} is for chains of dense layers; this is another graph, as that of GELU, SiLU "
            "and Mish is, which fall somewhere: ELU, LeakyReLU, ReLU and Softplus do not, and are "
            "convex, too."
        )
    return [network.inputs[0].units, *(x.units for x in layers)]


def _refuse_unknown(name: str, solver: object) -> None:
    """Raise `DeclarationError` where there is no such solver."""
    if not isinstance(solver, str | Solver):
        raise DeclarationError(
            f'{name} must be "auto", a name or a Solver of liftednet.solvers, got {solver!r}.'
        )
    if isinstance(solver, str) and solver != "auto" and solver not in solver_names():
        raise DeclarationError(
            f"there is no {name.replace('_', ' ')} {solver!r}; there are 'auto' and "
            f"{', '.join(solver_names())}."
        )
