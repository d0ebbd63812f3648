"""Weights and states of a network in one convex step after another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations import Clipped, Identity, LeakyReLU, PReLU, ReLU
from liftednet.divergences import Tight
from liftednet.errors import DeclarationError
from liftednet.layers.dense import Dense
from liftednet.layers.expression import (
    SAMPLE_WEIGHTS,
    TIME,
    Applied,
    Variable,
    arguments_of,
    value_of,
)
from liftednet.layers.time import Timeline
from liftednet.losses import Likelihood
from liftednet.penalties import Penalty, SquaredFrobenius
from liftednet.validation import require_count, require_flag, require_positive

from ..block import Blocks, Structure, by_sample
from ..diagnosis import judge_copies
from ..forward_pass import Values
from ..starts import recurrent_layers
from ..trace import Ending, Memory, Problem, Step, Steps

# The steps themselves are imported by the first fit that takes them.
if TYPE_CHECKING:
    from liftednet.network import Label, Term
    from liftednet.solvers.gauss_newton.evidence import Place
    from liftednet.solvers.gauss_newton.objective import Forward, Target

MOST_WEIGHTS = 10_000  # whose matrix has 800 MB
_KINKED = (Clipped, LeakyReLU, PReLU, ReLU)
_MOST_WORK = 5e7  # multiplications of a pass, above which noise at kinks takes minutes
_MOST_IN_TIME = 1e6  # the same of a recurrent one, which goes step by step
FIRST_RHO = 0.1  # from which the evidence goes on


@dataclass(frozen=True)
class GaussNewton:
    """Steps of all weights and states together, where the blocks move one of them at a time.

    The tight lifted problem, linearized at a forward pass, is one convex quadratic in all weights
    and states. Its states are eliminated, which leaves a damped least-squares problem in the
    weights: the lifted Newton method of Albersmeyer and Diehl (2010), here equal to
    Levenberg-Marquardt steps on the loss of the feedforward rule. A forward pass with the new
    weights then gives states at which every divergence is zero again. Constraints on single
    entries, `Nonnegative`, `Signs` and `FixedZeros`, hold at every step: projected Newton
    (Bertsekas, 1982), in which weights at zero that are pushed on stand still. Where kinks of ReLU
    and its like make these steps short, in dense networks and in small recurrent ones, L-BFGS goes
    on from there, and then from there with noise on all weights or other units (see
    `across_kinks`).

    Attributes:
        steps: the most of them.
        tolerance: stop when no entry of the gradient, relative to its terms, is larger.
        form: "products" (conjugate gradients), "normal" (a dense matrix of the weights, or of the
            outputs where these are fewer), or None to choose.
        evidence: whether the rho of every layer is chosen by the evidence of the data (see
            `Evidence`), from the given one on: it rises where targets are noisy, and falls where
            they are not. It takes a dense matrix, losses of one kind (squares, or probabilities,
            such as those of CrossEntropy), and no tolerance: it ends at the
            largest evidence, whose rho stand in `model.structure.penalties`. Objectives along the
            way are each of their own rho. Weights without a square begin with rho = 0.1. Units with
            kinks come in for others where they see more than noise in what is left.

    Raises:
        DataError: a number is out of its range.
        DeclarationError: there is no such form.

    Example:
        >>> import torch
        >>> from liftednet.activations import Tanh
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import GaussNewton, LiftedMLP
        >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(1)
        >>> model = LiftedMLP((1, 5, 1), Tanh(), SquaredError(), rho=1e-6, method=GaussNewton())
        >>> float((model.fit(x, x**2).predict(x) - x**2).abs().max()) < 0.01
        True
    """

    steps: int = 50
    tolerance: float = 1e-5
    form: str | None = None
    evidence: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        require_count("steps", self.steps, 1)
        require_positive("tolerance", self.tolerance)
        if self.form is not None:
            from liftednet.solvers.gauss_newton.steps import form_named

            form_named(self.form)
        require_flag("evidence", self.evidence)
        if self.evidence and self.form == "products":
            raise DeclarationError(
                'the evidence needs the determinant of a matrix: form must be "normal" or None.'
            )

    def refuse(self, structure: Structure) -> None:
        """Raise `DeclarationError` where a network cannot be trained like this."""
        for state in structure.states:
            divergence = structure.divergences[state]
            vanishes = isinstance(divergence, Tight) or isinstance(divergence.activation, Identity)
            if not vanishes or divergence.smoothness is None:
                raise DeclarationError(
                    "method 'gauss-newton' starts from forward passes: it needs divergence='tight' "
                    f"and a Lipschitz constant of every activation; got {divergence!r}."
                )
            if state.bounds is not None:
                raise DeclarationError(
                    "method 'gauss-newton' has the states of a forward pass, which no bounds hold: "
                    'use method="full".'
                )
        weights = count_weights(structure)
        if self.evidence and weights > MOST_WEIGHTS:
            raise DeclarationError(
                f"evidence=True takes the determinant of a matrix of all weights, which are at "
                f"most {MOST_WEIGHTS:,}; this network has {weights:,}."
            )
        kinds = {term.loss.equivariant for term in structure.network.terms}
        if self.evidence and len(kinds) > 1:
            raise DeclarationError(
                "evidence=True is for losses of one kind: squares, whose noise it finds, or "
                "probabilities, whose noise is in them; this network has both."
            )
        for term in structure.network.terms:
            smooth = isinstance(term.loss, Likelihood)  # of an output state that is u itself
            if term.state is None:
                smooth = smooth or term.divergence.smoothness is not None
            if not smooth or (term.state and not isinstance(term.activation, Identity)):
                raise DeclarationError(
                    "method 'gauss-newton' needs a smooth loss on the last pre-activation; "
                    f"{term.loss!r} is none here."
                )
        for parameter, penalty in structure.penalties.items():
            if not all(is_square(x) or x.ends(parameter.shape) is not None for x in penalty.parts):
                raise DeclarationError(
                    "method 'gauss-newton' holds SquaredFrobenius and constraints on single "
                    "entries, Nonnegative, Signs and FixedZeros, not "
                    f'{penalty!r}: use method="minibatch" or method="full".'
                )

    def take_steps(self, problem: Problem) -> Steps:
        """Take the steps from a forward pass, and yield the joint objective after each.

        The states are those of a forward pass at the end.
        """
        from liftednet.solvers.gauss_newton.evidence import steps_by_evidence
        from liftednet.solvers.gauss_newton.steps import LevenbergMarquardt, form_named, steps

        blocks, memory = problem.point, problem.memory
        if self.evidence:
            first_rhos = [rho or FIRST_RHO for rho in rhos_of(blocks.structure)]
            blocks.structure = pulled(blocks.structure, first_rhos)
            if "number" not in memory and problem.seen is not None:  # a trial of starts has none
                judge_copies(problem.seen)
        forward, number = forward_of(blocks), memory.get("number", 0)
        first = [layer.stacked().double().flatten() for layer in blocks.weights]
        point, objective = memory.get("point", torch.cat(first)), memory.get("objective")
        solver = LevenbergMarquardt(1.0, *memory.get("damping", ()))
        place = _place(memory, forward, point) if self.evidence else None
        if place is None:
            _keep(blocks, forward.split(point))
            moves = steps(
                forward, point, self.tolerance, form_named(self.form), solver, objective,
                memory.get("matrix", False), memory.get("crossed"),
            )  # fmt: skip
        else:
            moves = steps_by_evidence(forward, place, solver)
        try:
            while number < self.steps:
                taken = next(moves)
                _keep(blocks, forward.split(taken.point))
                step = Step(
                    number, "weights and states", taken.objective, taken.decrease, taken.residual,
                    taken.attempts, solver.name, evidence=taken.evidence,
                )  # fmt: skip
                number += 1
                memory.update(number=number, damping=[solver.mu, solver.floor])
                if place is None:
                    memory.update(
                        point=taken.point, objective=taken.objective, matrix=taken.matrix,
                        crossed=taken.crossed,
                    )  # fmt: skip
                else:
                    memory["place"] = dict(vars(place))
                yield step
        except StopIteration as stop:
            return Ending.CONVERGED if stop.value else Ending.STALLED
        finally:
            if place is not None:
                point, rhos = place.chosen
                _keep(blocks, forward.split(point))
                blocks.structure = pulled(blocks.structure, rhos)
            blocks.pass_forward()
        return Ending.BUDGET


def pulled(structure: Structure, rhos: Iterable[float]) -> Structure:
    """Return a problem with another square for each of its weights, within their constraints."""
    pairs = zip(structure.penalties.items(), rhos, strict=True)
    return replace(structure, penalties={p: squared(x, rho) for (p, x), rho in pairs})


def rhos_of(structure: Structure) -> list[float]:
    """Return the rho of the weights of every layer, 0 where they have none."""
    return [float(penalty.curvature) / 2 for penalty in structure.penalties.values()]


def count_weights(structure: Structure) -> int:
    """Return how many numbers all weights have, biases among them."""
    return sum(math.prod(p.shape) + p.bias * p.shape[1] for p in structure.parameters)


def has_ends(structure: Structure) -> bool:
    """Say whether weights lie between ends, as where outputs are monotone or convex."""
    parts = ((p, part) for p, x in structure.penalties.items() for part in x.parts)
    return any(part.ends(p.shape) is not None for p, part in parts)


def _place(memory: Memory, forward: Forward, point: Tensor) -> Place:
    """Return the place that a memory tells, or where nothing is known the first one."""
    from liftednet.solvers.gauss_newton.evidence import Place

    if "place" in memory:
        return Place(**memory["place"])
    rhos = tuple(float(part.max()) / 2 for part in forward.pull)
    return Place(point, rhos, (point, rhos))


def _keep(blocks: Blocks, stacked: tuple[Tensor, ...]) -> None:
    for parameter, layer in zip(blocks.structure.parameters, stacked, strict=True):
        before = blocks.values[parameter]
        blocks.values[parameter] = before.like(layer.clone().to(before.matrix))


def forward_of(blocks: Blocks) -> Forward:
    """Return the network as a function of its stacked weights, and what it is held to."""
    from liftednet.solvers.gauss_newton.objective import Forward

    structure, pull = blocks.structure, []
    for parameter in structure.parameters:
        penalty, stacked = structure.penalties[parameter], blocks.values[parameter].stacked()
        weight = torch.zeros_like(stacked, dtype=torch.float64)
        weight[: parameter.shape[0]] = penalty.curvature
        pull.append(weight)
    network = _Function(blocks)
    layers = network.layers if network.dense else None
    targets, recurrent = tuple(_targets(blocks)), network.recurrent
    last = bool(blocks.last_only)
    ends = _ends(structure, pull)
    divergences = structure.divergences.values()
    kinked = any(isinstance(x.activation, _KINKED) for x in divergences)
    rows = math.prod(network.data[0].shape[: 1 if recurrent is None else 2])
    work = processes.total_of(rows) * sum(part.numel() for part in pull)
    kinked = kinked and (network.dense or (recurrent is not None and work <= _MOST_IN_TIME))
    # A pass through a projection costs so much that further starts would take a minute.
    perturbed = kinked and work <= _MOST_WORK and not structure.network.limited
    hidden = tuple(_between_layers(structure)) if perturbed and network.dense else ()
    return Forward(
        network, network.data, targets, tuple(pull), layers, recurrent, last, ends, kinked,
        perturbed, hidden,
    )  # fmt: skip


def _between_layers(structure: Structure) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the weights below and above kinked states that one dense layer reads."""
    layers = [one for (one,) in structure.layers.values()]
    for state in structure.states:
        below = [n for n, layer in enumerate(layers) if layer is state.argument]
        above = [n for n, layer in enumerate(layers) if layer.arguments == (state,)]
        plain = len(below) == len(above) == 1 and all(layers[n].layer.bias for n in below + above)
        if plain and isinstance(structure.divergences[state].activation, _KINKED):
            yield below[0], above[0]


def _ends(structure: Structure, likes: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the ends that penalties give to all weights, None where they give none."""
    lowest = [torch.full_like(x, -math.inf) for x in likes]
    highest = [torch.full_like(x, math.inf) for x in likes]
    for parameter, low, high in zip(structure.parameters, lowest, highest, strict=True):
        rows = slice(parameter.shape[0])  # a bias has no ends
        low[rows], high[rows] = ends_of_weights(structure.penalties[parameter], parameter.shape)
    from liftednet.solvers.gauss_newton.objective import joined

    found = joined(lowest), joined(highest)
    return found if bool(torch.cat(found).isfinite().any()) else None


def ends_of_weights(penalty: Penalty, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the ends of weights that a penalty gives, in float64, infinite where it gives none."""
    low = torch.full(shape, -math.inf, dtype=torch.float64)
    high = -low
    for part in penalty.parts:
        if (ends := part.ends(shape)) is not None:
            low, high = low.maximum(ends[0].to(low)), high.minimum(ends[1].to(low))
    return low, high


def squared(penalty: Penalty, rho: float) -> Penalty:
    """Return a penalty with another square."""
    held = [part for part in penalty.parts if not is_square(part)]
    return sum(held, SquaredFrobenius(rho))


def is_square(penalty: Penalty) -> bool:
    """Return whether a penalty is rho |W|^2."""
    return isinstance(penalty, SquaredFrobenius) and penalty.center is None


def _targets(blocks: Blocks) -> list[Target]:
    from liftednet.solvers.gauss_newton.objective import Target

    found = []
    for term in blocks.network.terms:
        if term.label not in blocks.values:
            continue
        mask = blocks.mask(term.label, term.argument)
        y = _rows_by_sample(blocks.values[term.label], term, blocks.values, blocks.last_only)
        if mask is None or term.label in blocks.last_only:
            mask = y.new_ones(y.shape[1::-1], dtype=torch.bool)
        weights = blocks.values.get(SAMPLE_WEIGHTS)
        factor = term.weight if weights is None else term.weight * weights.double().view(-1, 1, 1)
        loss = blocks.structure.loss(term)
        limit = loss.delta if isinstance(loss, Likelihood) else math.inf
        divergence = Tight(Identity()) if term.state is not None else term.divergence
        dispersed = isinstance(loss, Likelihood) and loss.dispersed
        found.append(Target(divergence, y, mask.T, factor, delta=limit, dispersed=dispersed))
    return found


def _rows_by_sample(
    rows: Tensor, term: Term, values: Values, last_only: frozenset[Label]
) -> Tensor:
    """Return what is beside a loss as (samples, rows, outputs), of last steps alone if it is."""
    found = by_sample(rows, term, values, last_only)
    return found.unsqueeze(1) if found.ndim == 2 else found


def of_plain_layers(structure: Structure) -> bool:
    """Return whether every weight stands in one dense layer."""
    return all(len(x) == 1 and x[0].layer.plain for x in structure.layers.values())


class _Function:
    """A network as a function of weights and data, of which the first axis is samples."""

    def __init__(self, blocks: Blocks) -> None:
        self._structure, self.last_only = blocks.structure, blocks.last_only
        self._parameters = blocks.structure.parameters
        self._likes = blocks.weights
        known: list[Any] = [*blocks.network.inputs, *blocks.network.limited]
        self._inputs = [x for x in known if x in blocks.values]
        self._timeline: Timeline | None = blocks.values.get(TIME)
        values = [blocks.values[x] for x in self._inputs]
        self.data = tuple(
            v.transpose(0, 1) if x.sequence else v
            for x, v in zip(self._inputs, values, strict=True)
        )
        if self._timeline is not None:
            self.data = (*self.data, self._timeline.lengths)

    def __call__(self, weights: tuple[Tensor, ...], data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the pre-activations of every loss, (samples, rows, outputs)."""
        return self._outputs(self._structure.passed(self._values(weights, data)), {})

    @cached_property
    def dense(self) -> bool:
        """Whether every weight stands in one dense layer, and a sample is one row."""
        return of_plain_layers(self._structure) and self._timeline is None

    @cached_property
    def recurrent(self) -> Activation | None:
        """The activation of the one layer that is recurrent, in [h_(t-1), x_t], and read; or None.

        It acts unit by unit, and the read-out has the loss.
        """
        network, states = self._structure.network, self._structure.states
        arguments: list[Any] = [x.argument for x in states]
        arguments += [x.argument for x in network.terms]
        if len(recurrent_layers(network)) != 1 or len(arguments) != 2:
            return None
        (state,), (own, readout) = states, arguments
        below = own.arguments[0]  # h_(t-1) and what is beside it
        read = isinstance(readout, Applied) and isinstance(readout.layer, Dense)
        if not read or readout.arguments != (state,) or not state.activation.per_unit:
            return None
        biased = own.layer.bias and readout.layer.bias
        alone = [*below.arguments[1:]] == self._inputs
        alone = alone and [own.weights, readout.weights] == self._parameters
        return self._structure.held(state).activation if biased and alone else None

    def layers(
        self, weights: tuple[Tensor, ...], data: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, Tensor]]]:
        """Return the pre-activations of every loss, and [x, 1] and u of every weight's layer."""
        known: dict[int, Any] = {}
        passed = self._structure.passed(self._values(weights, data), known)
        outputs, found = self._outputs(passed, known), []
        for (layer,) in self._structure.layers.values():
            (x,) = arguments_of(layer, passed, known)
            rows = torch.cat([x, x.new_ones(len(x), 1)], 1) if layer.layer.bias else x
            found.append((rows, known[id(layer)]))
        return outputs, found

    def _values(self, weights: tuple[Tensor, ...], data: tuple[Tensor, ...]) -> dict[Variable, Any]:
        values: dict[Variable, Any] = {
            x: like.like(w)
            for x, like, w in zip(self._parameters, self._likes, weights, strict=True)
        }
        for x, v in zip(self._inputs, data, strict=False):
            values[x] = v.transpose(0, 1) if x.sequence else v
        if self._timeline is not None:
            values[TIME] = self._timeline.of(data[-1])
        return values

    def _outputs(self, passed: Values, known: dict[int, Any]) -> tuple[Tensor, ...]:
        outputs = []
        for term in self._structure.network.terms:
            u = value_of(term.argument, passed, known)
            outputs.append(_rows_by_sample(u, term, passed, self.last_only))
        return tuple(outputs)
