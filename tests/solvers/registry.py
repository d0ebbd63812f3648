"""Every problem, activation, divergence and precision that the solvers are tested on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softsign

from liftednet import activations, penalties
from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.losses import Huber, OutputLoss, Quantile, SimplexCrossEntropy, SquaredError
from liftednet.penalties import L1, GroupLasso, Nonnegative, Penalty, SquaredFrobenius
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solvers import get_solver, solver_names
from tests.draws import normal
from tests.liftednet.activations.catalogue import QUARTIC, Stated

ACTIVATIONS: tuple[Activation, ...] = (
    activations.Identity(), activations.ReLU(), activations.LeakyReLU(0.2), activations.Clipped(),
    activations.Clipped(-1.0, 1.0), activations.Sigmoid(), activations.Tanh(),
    activations.Softplus(), activations.ELU(), activations.Arctan(), activations.Sine(),
    activations.Sign(), activations.Softmax(), activations.SimplexProjection(),
    Activation.from_function(softsign),
)  # fmt: skip
LOSSES = SquaredError(), Huber(0.7), Quantile(0.3)
SAMPLES, INPUTS, UNITS, ABOVE = 5, 4, 3, 2
RIDGE = SquaredFrobenius(0.1)
SIGNED = penalties.Signs(torch.tensor([[1.0], [-1.0], [0.0], [1.0]]))
PENALTIES: tuple[Penalty, ...] = (
    SquaredFrobenius(0.3), SquaredFrobenius(0.3, torch.ones(4, 3, dtype=torch.float64)), L1(0.4),
    GroupLasso(0.5), Nonnegative(), Nonnegative(0.2), penalties.RowNorm(0.7),
    penalties.SpectralNorm(0.8), L1(0.2) + Nonnegative(0.1), penalties.ColumnNorm(0.5), SIGNED,
    RIDGE + GroupLasso(0.2) + penalties.RowNorm(0.7),
    RIDGE + Nonnegative() + penalties.SpectralNorm(0.4),
    penalties.FixedZeros(torch.tensor([[1.0, 0.0, 0.0]])) + L1(0.2),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One problem, by name, in any precision.

    Attributes:
        name: kind, divergence and activation.
        build: returns the problem in a precision.
    """

    name: str
    build: Callable[[torch.dtype], Any]

    def __str__(self) -> str:
        return self.name


def _states(activation: Activation, generator: torch.Generator, rows: int, units: int) -> Tensor:
    return activation.forward(normal(rows, units, seed=generator))


def weight_fit(
    divergence: Divergence, dtype: torch.dtype, bias: bool = True, penalty: Penalty = RIDGE,
    samples: int = SAMPLES, beside: bool = False,
) -> WeightFit:  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    inputs = normal(samples, INPUTS, seed=generator).to(dtype)
    targets = _states(divergence.activation, generator, samples, UNITS).to(dtype)
    offset = 2 * normal(samples, UNITS, seed=generator).to(dtype) if beside else None
    return WeightFit(divergence, Design(inputs, bias), targets, penalty, 0.7, offset)


def link(divergence: Divergence, generator: Any, dtype: torch.dtype, full: bool = False) -> Link:
    weight = normal(UNITS, ABOVE, seed=generator).to(dtype)
    offset = normal(*((SAMPLES, ABOVE) if full else (ABOVE,)), seed=generator).to(dtype)
    target = _states(divergence.activation, generator, SAMPLES, ABOVE).to(dtype)
    return Link(divergence, weight, offset, target, 0.6)


def state_fit(
    divergence: Divergence, links: tuple[Divergence, ...], dtype: torch.dtype, bounds: Any = None
) -> StateFit:
    generator = torch.Generator().manual_seed(2)
    u = 2 * normal(SAMPLES, UNITS, seed=generator).to(dtype)
    made = tuple(link(above, generator, dtype, full=n > 0) for n, above in enumerate(links))
    return StateFit(divergence, u, made, 0.5, bounds)


def output_fit(loss: OutputLoss, divergence: Divergence, dtype: torch.dtype) -> OutputFit:
    generator = torch.Generator().manual_seed(3)
    u = 2 * normal(SAMPLES, UNITS, seed=generator).to(dtype)
    if isinstance(loss, SimplexCrossEntropy):
        y = normal(SAMPLES, UNITS, seed=generator).softmax(-1)
        y[: SAMPLES // 2] = torch.eye(UNITS, dtype=torch.float64)[torch.arange(SAMPLES // 2) % 3]
    else:
        y = normal(SAMPLES, UNITS, seed=generator)
    return OutputFit(loss, y.to(dtype), divergence, u, 0.7)


def _divergences(activation: Activation) -> Iterator[tuple[str, Divergence]]:
    yield "tight", tight(activation)
    if activation.lipschitz is not None:
        yield "joint", joint(activation)


def _named(activation: Activation) -> str:
    return repr(activation).split(" at 0x")[0].removesuffix("()")


def _cases() -> Iterator[Case]:
    squared, simplex = joint(activations.Identity()), joint(activations.SimplexProjection())
    for activation in ACTIVATIONS:
        for kind, one in _divergences(activation):
            label = f"{kind} {_named(activation)}"
            yield Case(f"weights, {label}", partial(weight_fit, one))
            yield Case(f"states, {label}", partial(state_fit, one, (one,)))
            yield Case(f"states with two links, {label}", partial(state_fit, one, (one, squared)))
        for loss in LOSSES if activation.per_unit else LOSSES[:1]:
            label = f"outputs, {loss!r}, {_named(activation)}"
            yield Case(label, partial(output_fit, loss, tight(activation)))
    outputs = partial(output_fit, SimplexCrossEntropy(), simplex)
    yield Case("outputs, simplex cross-entropy", outputs)
    for activation in (Stated(), QUARTIC):
        for kind, one in _divergences(activation):
            yield Case(f"weights, declared, {kind} {_named(activation)}", partial(weight_fit, one))
            states = partial(state_fit, one, (one,))
            yield Case(f"states, declared, {kind} {_named(activation)}", states)
    for kind, one in _divergences(activations.Sigmoid()):
        for penalty in PENALTIES:
            yield Case(f"weights, {kind} {penalty!r}", partial(weight_fit, one, penalty=penalty))
        for penalty in (RIDGE, L1(0.05)):
            for bias, samples in ((True, 9), (False, 3)):
                fit = partial(weight_fit, one, bias=bias, penalty=penalty, samples=samples)
                name = f"weights beside an offset, {kind} {penalty!r}, {samples} samples"
                yield Case(name, partial(fit, beside=True))
    for activation in (activations.ReLU(), activations.Sigmoid(), activations.Identity()):
        for kind, one in _divergences(activation):
            above = (dict(_divergences(activations.Sigmoid()))[kind],)
            label = f"states between bounds, {kind} {_named(activation)}"
            yield Case(label, partial(state_fit, one, above, bounds=(0.2, 0.6)))


CASES = tuple(_cases())


def solvers_of(case: Case) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the names of the solvers, without the reference, that serve a case, and precisions."""
    for dtype in (torch.float64, torch.float32):
        problem = case.build(dtype)
        names = set(solver_names()) - {"reference"}
        # Interpreted kernels take seconds, and take every turn of two links that they take of one;
        # other activations have tests of their own.
        if case.name != "states with two links, tight ReLU":
            names -= {"fused-states"}
        # It stalls far from the solution, and says so; `auto` has ridge for it.
        if case.name.startswith("weights beside an offset, joint"):
            names -= {"generalized-linear"}
        if "declared" in case.name and dtype is torch.float32:
            names = set()  # all of their maps are found by searches, which take long
        for name in sorted(names):
            if get_solver(name).obstacle(problem) is None:
                yield name, dtype
