"""Which block of a lifted network is which convex subproblem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.divergences import Divergence, within
from liftednet.layers.expression import (
    SAMPLE_WEIGHTS,
    TIME,
    Affine,
    Applied,
    Expression,
    Parameter,
    Variable,
    affine_in,
    value_of,
)
from liftednet.layers.time import Timeline
from liftednet.losses import Loss, OutputLoss
from liftednet.maps import Composed, Identity, LinearMap, Moved, Rows, Times, chain
from liftednet.network import Label, Network, State, Term
from liftednet.penalties import Penalty
from liftednet.problems import Fit, Link, OutputFit, StateFit, StatesOverTime, TimeLink, WeightFit
from liftednet.problems.block_fit import BlockFit
from liftednet.problems.priors import BoxedStates, PenalizedWeights, in_float64
from liftednet.problems.states_over_time import picked
from liftednet.samples import Design, Weights, row_chunks

from .data import ENTRIES
from .forward_pass import Values, counted_steps, passed_forward, recurrent_weight
from .trace import Memory, PerSample


@dataclass(frozen=True, eq=False)
class Structure:
    """What a training problem is, before it has seen data.

    sum over states of lam D(Z, U) + the losses + the penalties; Lifted Neural Networks, eq. (10).

    Attributes:
        network: the graph.
        divergences: of the states.
        lam: their weights.
        penalties: of the weights.
        losses: of targets that are standardized.
    """

    network: Network
    divergences: Mapping[State, Divergence]
    lam: Mapping[State, float]
    penalties: Mapping[Parameter, Penalty]
    losses: Mapping[Label, Loss] = field(default_factory=dict)
    _held: Mapping[State, Divergence] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Make what bounds make of divergences: at once, as no tracer of torch follows it."""
        known = {x: within(d, x.bounds) for x, d in self.divergences.items() if x.bounds}
        object.__setattr__(self, "_held", {**self.divergences, **known})

    def loss(self, term: Term) -> Loss:
        """Return a loss of what the network is trained with."""
        return self.losses.get(term.label, term.loss)

    def held(self, state: State) -> Divergence:
        """Return the divergence of states within their bounds."""
        return self._held[state]

    def activated(self, state: State, u: Tensor) -> Tensor:
        """Return phi(u), within the bounds of the states."""
        return self.held(state).activation.forward(u)

    def penalty(self, values: Values) -> float:
        """Return the penalties on the weights, in float64."""
        weights = ((x, values[x].matrix.double()) for x in self.parameters)
        return sum(float(self.penalties[x].value(matrix)) for x, matrix in weights)

    def passed(self, values: Values, known: dict[int, Any] | None = None) -> Values:
        """Return the values with the states of a forward pass; `known` as in `value_of`."""
        rules = None if torch.is_grad_enabled() else lambda state: self.held(state).activation
        return passed_forward(self.groups, values, self.activated, known, rules)

    @cached_property
    def groups(self) -> list[list[State]]:
        """The states in the order of a forward pass, those that run together in groups."""
        return self.network.groups()

    @cached_property
    def states(self) -> list[State]:
        """The states in the order of a forward pass."""
        return [state for group in self.groups for state in group]

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The weights in the order of a forward pass."""
        return self.network.parameters

    @cached_property
    def layers(self) -> dict[Parameter, list[Applied]]:
        """The layers that have weights, by them."""
        found: dict[Parameter, list[Applied]] = {p: [] for p in self.parameters}
        for layer in self.network.layers():
            if layer.weights is not None:
                found[layer.weights].append(layer)
        return found


@dataclass(frozen=True, eq=False)
class Edge:
    """What couples a target to pre-activations: lam [Phi(T) - <T, U> + R(U)].

    Attributes:
        divergence: gives Phi and R.
        target: T, states or a label.
        argument: U.
        lam: its weight.
    """

    divergence: Divergence
    target: State | Label
    argument: Expression
    lam: float


class Blocks:
    """A training problem on given data, as the blocks of one sweep.

    Attributes:
        structure: what the problem is.
        values: of inputs, labels, states and weights, and the timeline.
        last_only: labels of sequences that have one answer, at the last step.
    """

    def __init__(
        self, structure: Structure, values: Values, last_only: frozenset[Label] = frozenset()
    ) -> None:
        """Take data and weights; states that are not among the values come from a forward pass."""
        self.structure, self.last_only = structure, last_only
        self.values = dict(values)
        self._designs: dict[Parameter, Design] = {}
        if any(state not in values for state in structure.states):
            self.pass_forward()

    @property
    def network(self) -> Network:
        """The graph."""
        return self.structure.network

    def pass_forward(self) -> None:
        """Replace the states by those of a forward pass."""
        self.values = self.structure.passed(self.values)

    def edges(self) -> Iterator[Edge]:
        """Yield what couples states, and losses without them; without data it is left out."""
        for state in self.structure.states:
            yield Edge(
                self.structure.divergences[state], state, state.argument, self.structure.lam[state]
            )
        for term in self.network.terms:
            if term.state is None and term.label in self.values:
                divergence = term.divergence
                yield Edge(divergence, term.label, term.argument, term.weight)

    def pre_activation(self, state: State) -> Tensor:
        """Return U of states, of the shape of their argument."""
        return value_of(state.argument, self.values)

    def mask(self, target: State | Label, argument: Expression) -> Tensor | None:
        """Return (steps, samples) booleans, the steps that count; None where all rows do."""
        return counted(self.values, self.last_only, target, argument)

    def of_own_samples(self) -> Blocks:
        """Return the problem without sums over the samples of other processes."""
        own = copy(self)
        own._designs = {}
        return own

    # The objective.

    def objective(self) -> float:
        """Return the joint objective at the current point, in float64."""
        return self.structure.penalty(self.values) + processes.total_of(self.own_sum())

    def own_sum(self) -> float:
        """Return what the samples of this process have in the objective."""
        return sum(map(float, self._values()))

    def _values(self) -> Iterator[Tensor]:
        for values in self._some():
            piece, known = {x: doubled(v) for x, v in values.items()}, dict[int, Any]()
            for state in self.structure.states:
                piece[state] = in_float64(self.structure.held(state).activation, values[state])
            for edge in self.edges():
                yield self._edge_value(edge, piece, known)
            yield from self._output_values(piece)

    def _edge_value(self, edge: Edge, values: Values, known: dict[int, Any]) -> Tensor:
        """Return lam D(T, U) at values, in float64, a scalar."""
        target, u, weights = rows_that_count(
            values, self.last_only, edge.target, edge.argument, values[edge.target].double(),
            value_of(edge.argument, values, known).double(),
        )  # fmt: skip
        if weights is None:
            return edge.lam * edge.divergence.value(target, u)
        total: Tensor = (weights * edge.divergence.values(target, u)).sum()
        return edge.lam * total

    def _output_values(self, values: Values) -> Iterator[Tensor]:
        for term in self.network.terms:
            if term.state is not None and term.label in values:
                loss, y, z = self.structure.loss(term), values[term.label], values[term.state]
                assert isinstance(loss, OutputLoss)  # it has output states
                if SAMPLE_WEIGHTS in values:
                    yield (values[SAMPLE_WEIGHTS] * loss.output_values(y, z)).sum()
                else:
                    yield loss.output_value(y, z)

    def _some(self) -> Iterator[Values]:
        """Yield the values of some samples after others, of all at once where there are steps."""
        weights = {x: self.values[x] for x in self.structure.parameters}
        rest = {x: v for x, v in self.values.items() if x not in weights}
        if TIME in rest:
            yield self.values
            return
        first = next(iter(rest.values()))
        entries = sum(v.shape[1:].numel() for v in rest.values())
        for part in row_chunks(len(first), max(entries, 1), first.device, ENTRIES):
            yield {**weights, **{x: v[part] for x, v in rest.items()}}

    # The point.

    @property
    def states(self) -> list[Tensor]:
        """The states in the order of a forward pass."""
        return [self.values[state] for state in self.structure.states]

    @property
    def weights(self) -> list[Weights]:
        """The weights in the order of a forward pass."""
        return [self.values[parameter] for parameter in self.structure.parameters]

    def snapshot(self) -> Values:
        """Return the current point: states and weights."""
        return {x: self.values[x] for x in (*self.structure.states, *self.structure.parameters)}

    def memory(self) -> Memory:
        """Return what a training goes on from, where its data are known."""
        return {"point": remembered(self.snapshot())}

    def recall(self, memory: Memory) -> None:
        """Go back to what `memory` has returned."""
        self.values.update(recalled(self.snapshot(), memory["point"]))

    def extrapolate(self, previous: Values, factor: float) -> None:
        """Go from the current point x to x + factor (x - previous), inside the domains."""
        for state in self.structure.states:
            ahead = torch.lerp(previous[state], self.values[state], 1 + factor)
            inside = self.structure.held(state).activation.project(ahead.flatten(0, -2))
            self.values[state] = counted_steps(state, inside.view_as(ahead), self.values)
        for parameter in self.structure.parameters:
            stacked = torch.lerp(
                previous[parameter].stacked(), self.values[parameter].stacked(), 1 + factor
            )
            ahead = self.values[parameter].like(stacked)
            matrix = self.structure.penalties[parameter].project(ahead.matrix)
            self.values[parameter] = replace(ahead, matrix=matrix)

    def gap(self) -> tuple[float, ...]:
        """Return |Z - forward pass| / |forward pass| for all states."""
        if not self.structure.states:
            return ()
        squares = torch.zeros(len(self.structure.states), 2, dtype=torch.float64)
        for values in self._some():
            exact = self.structure.passed(values)
            for number, state in enumerate(self.structure.states):
                ends = (values[state] - exact[state]).norm(), exact[state].norm()
                squares[number] += torch.stack(ends).double().square().cpu()
        off, whole = processes.gathered(squares).sum(0).sqrt().T
        least = torch.finfo(self.states[0].dtype).tiny
        return tuple((off / whole.clamp(min=least)).tolist())

    # The blocks.

    def sweep(self) -> list[State | Parameter]:
        """Return the blocks of one sweep: states from the top down, then weights."""
        return [*reversed(self.structure.states), *self.structure.parameters]

    def fit(self, block: State | Parameter) -> Fit[Any]:
        """Return the subproblem of a block, all else fixed."""
        return self.state_fit(block) if isinstance(block, State) else self.weight_fit(block)

    def state_fit(self, state: State) -> Fit[Any]:
        """Return the subproblem of states, all else fixed."""
        for term in self.network.terms:
            if term.state is state and term.label in self.values:
                loss = self.structure.loss(term)
                assert isinstance(loss, OutputLoss)  # it has output states
                return OutputFit(
                    loss, self.values[term.label], self.structure.held(state),
                    self.pre_activation(state), self.structure.lam[state],
                )  # fmt: skip
        above = [
            (edge, affine_in(edge.argument, state, self.values))
            for edge in self.edges()
            if state in edge.argument.variables and edge.target is not state
        ]
        if state in state.argument.variables:
            own = affine_in(state.argument, state, self.values)
            return self._states_over_time(state, own, above) or self._own_fit(state, own, above)
        if not state.sequence and all(part.map.by_sample for _, part in above):
            links = tuple(self._link(edge, part) for edge, part in above)
            return StateFit(
                self.structure.divergences[state],
                self.pre_activation(state),
                links,
                self.structure.lam[state],
                state.bounds,
            )
        return self._own_fit(state, None, above)

    def _link(self, edge: Edge, part: Affine, *, weighed: bool = False) -> Link:
        """Return an edge as a term of a fit, the rows that count in a row.

        Weighed it counts samples by their weights; in a fit of states each is a problem of its own.
        """
        target, map_ = self.values[edge.target], part.map
        offset = _offset(part, edge, target)
        mask = self.mask(edge.target, edge.argument)
        weights = row_weights(self.values, target) if weighed else None
        if edge.argument.sequence:
            mask = target.new_ones(target.shape[:2], dtype=torch.bool) if mask is None else mask
            target, map_ = target[mask], Composed(picked(mask), map_)
            offset = offset if offset.ndim == 1 else offset[mask]
            weights = None if weights is None else weights[mask]
        return Link(edge.divergence, map_, offset, target, edge.lam, weights)

    def _states_over_time(
        self, state: State, own: Affine, above: Sequence[tuple[Edge, Affine]]
    ) -> StatesOverTime | None:
        """Return the fit of a plain recurrent layer, or None where it is another."""
        recurrent = recurrent_weight(chain(own.map))
        links = [self._time_link(edge, part) for edge, part in above]
        if recurrent is None or state.bounds is not None or any(x is None for x in links):
            return None
        states = self.values[state]
        drive = torch.zeros_like(states) if own.offset is None else own.offset.expand_as(states)
        lengths = self.values[TIME].longer(state.initial_steps).lengths
        return StatesOverTime(
            self.structure.divergences[state], drive, recurrent,
            tuple(x for x in links if x is not None), lengths, self.structure.lam[state],
        )  # fmt: skip

    def _time_link(self, edge: Edge, part: Affine) -> TimeLink | None:
        """Return an edge in the order of time of the states that it is asked of, or None."""
        weight, *movers = chain(part.map)
        if not isinstance(weight, Times) or not all(_moves_rows(mover) for mover in movers):
            return None
        target: Tensor = self.values[edge.target]
        mask = self.mask(edge.target, edge.argument)
        beside = partial(_beside_rows, movers, target)
        offset = _offset(part, edge, target)
        offset = offset if offset.ndim == 1 else beside(offset)
        counted = beside(target.new_ones(1) if mask is None else mask.unsqueeze(-1))[..., 0] > 0
        return TimeLink(edge.divergence, weight.weight, offset, beside(target), counted, edge.lam)

    def _own_fit(
        self, state: State, own: Affine | None, above: Sequence[tuple[Edge, Affine]]
    ) -> BlockFit:
        """Return the fit of states whose maps are whatever the layers are."""
        divergence, lam = self.structure.divergences[state], self.structure.lam[state]
        states: Tensor = self.values[state]
        counted = self.mask(state, state.argument)
        if state.sequence and counted is None:
            counted = states.new_ones(states.shape[:2], dtype=torch.bool)
        block = BoxedStates(self.structure.held(state), lam, tuple(states.shape), counted, states)
        links = tuple(self._link(edge, part) for edge, part in above)
        if own is None:
            drive = lam * self.pre_activation(state)
            if counted is not None:
                drive = drive.where(counted.unsqueeze(-1), 0.0)
            return BlockFit(block, drive, links)
        chosen: LinearMap = Identity() if counted is None else picked(counted)
        edge = Edge(divergence, state, state.argument, lam)
        return BlockFit(block, None, links, self._link(edge, own), chosen)

    def weight_fit(self, parameter: Parameter) -> Fit[Any]:
        """Return the subproblem of weights, all else fixed."""
        parts = [
            (edge, affine_in(edge.argument, parameter, self.values))
            for edge in self.edges()
            if parameter in edge.argument.variables
        ]
        penalty = self.structure.penalties[parameter]
        if len(parts) == 1 and (fit := self._rows_fit(parameter, *parts[0], penalty)) is not None:
            return fit
        block = PenalizedWeights(penalty, self.values[parameter])
        links = tuple(self._link(edge, part, weighed=True) for edge, part in parts)
        return BlockFit(block, None, links)

    def _rows_fit(
        self, parameter: Parameter, edge: Edge, part: Affine, penalty: Penalty
    ) -> WeightFit | None:
        """Return the fit of weights that see rows of inputs, or None where they do not."""
        *movers, rows = chain(part.map)
        target = self.values[edge.target]
        if not isinstance(rows, Rows) or not all(mover.moves for mover in movers):
            return None
        if not edge.divergence.activation.per_unit and not _keep_rows(movers, target):
            return None
        mask, weights = self.mask(edge.target, edge.argument), row_weights(self.values, target)
        beside, places = partial(_beside_rows, movers, target), None
        if movers or mask is not None:
            asked = beside(target.new_ones(1) if mask is None else mask.unsqueeze(-1)) > 0
            uneven = asked.all(1) != asked.any(1)  # where of some units nobody asks anything
            if processes.largest([float(uneven.any())]).any():  # of which a process may have none
                return None
            places = None if bool(asked.all()) else asked[:, 0].nonzero()[:, 0]
        weighed = None if weights is None else _at(places, beside(weights.unsqueeze(-1)))[:, 0]
        offset = None if part.offset is None else _at(places, beside(part.offset))
        design = self._design(parameter, edge, rows.design, places, weighed)
        target = _at(places, beside(target))
        return WeightFit(edge.divergence, design, target, penalty, edge.lam, offset)

    def _design(
        self,
        parameter: Parameter,
        edge: Edge,
        design: Design,
        places: Tensor | None,
        weights: Tensor | None,
    ) -> Design:
        """Return the rows that count; those of the data alone are made, and summed, once."""
        fixed = not any(isinstance(x, State) for x in _seen_by(edge.argument, parameter))
        if fixed and parameter in self._designs:
            return self._designs[parameter]
        design = Design(_at(places, design.inputs), design.bias, weights)
        if fixed:
            self._designs[parameter] = design
        return design


def remembered(point: Values) -> list[Any]:
    """Return values of a point as a memory holds them."""
    return [PerSample(v, int(x.sequence)) if isinstance(x, State) else v for x, v in point.items()]


def recalled(variables: Iterable[Any], memory: Sequence[Any]) -> Values:
    """Return the point of variables that `remembered` has returned."""
    values = (x.tensor if isinstance(x, PerSample) else x for x in memory)
    return dict(zip(variables, values, strict=True))


def row_weights(values: Mapping[Variable, Any], like: Tensor) -> Tensor | None:
    """Return how much every row counts, of the shape of like without its units; None for 1."""
    weights: Tensor | None = values.get(SAMPLE_WEIGHTS)
    return None if weights is None else weights.expand(like.shape[:-1])


def counted(
    values: Mapping[Variable, Any],
    last_only: frozenset[Label],
    target: Variable,
    argument: Expression,
) -> Tensor | None:
    """Return (steps, samples) booleans, the steps that count; None where all rows do."""
    if not argument.sequence:
        return None
    timeline: Timeline = values[TIME].longer(argument.initial_steps)
    if target in last_only:
        return timeline.last
    return None if timeline.full else timeline.valid


def rows_that_count(
    values: Mapping[Variable, Any],
    last_only: frozenset[Label],
    target: Variable,
    argument: Expression,
    *beside: Tensor,
) -> tuple[Any, ...]:
    """Return what stands beside a target as rows that count, and what each weighs, None for 1."""
    mask, weights = counted(values, last_only, target, argument), row_weights(values, beside[0])
    if mask is None:
        weights = None if weights is None else weights.flatten()
        return *(x.flatten(0, -2) for x in beside), weights
    return *(x[mask] for x in beside), None if weights is None else weights[mask]


def by_sample(
    rows: Tensor, term: Term, values: Mapping[Variable, Any], last_only: frozenset[Label]
) -> Tensor:
    """Return what is beside a loss as (samples, outputs), of sequences (samples, steps, outputs).

    Where they have one answer it is that of the last step.
    """
    if not term.argument.sequence:
        return rows
    if term.label not in last_only:
        return rows.transpose(0, 1)
    return values[TIME].longer(term.argument.initial_steps).at_end(rows)


def _seen_by(expression: Expression, parameter: Parameter) -> frozenset[Variable]:
    """Return the variables that a layer's weights see."""
    assert isinstance(expression, Applied)  # the weights stand in it
    if expression.weights is parameter:
        return frozenset().union(*(x.variables for x in expression.arguments))
    inside = [
        x for x in expression.arguments if isinstance(x, Expression) and parameter in x.variables
    ]
    return _seen_by(inside[0], parameter)


def _beside_rows(movers: Sequence[LinearMap], like: Tensor, values: Tensor) -> Tensor:
    """Return values beside a target, (..., units), where the rows of inputs have theirs."""
    full = values.to(like).expand_as(like)
    for mover in movers:
        full = mover.adjoint(full)
    return full


def _offset(part: Affine, edge: Edge, like: Tensor) -> Tensor:
    return like.new_zeros(edge.argument.units) if part.offset is None else part.offset


def _at(places: Tensor | None, rows: Tensor) -> Tensor:
    return rows if places is None else rows[places]


def _moves_rows(mover: LinearMap) -> bool:
    return isinstance(mover, Moved) and mover.whole_rows


def _keep_rows(movers: Sequence[LinearMap], like: Tensor) -> bool:
    """Say whether rows go to their places whole, as steps do by way of one row for each sample."""
    if all(map(_moves_rows, movers)):
        return True
    units = torch.arange(like.shape[-1], dtype=torch.float64, device=like.device)
    places = torch.arange(like.numel(), dtype=torch.float64, device=like.device).view(like.shape)
    for mover in movers:
        places = mover.adjoint(places)
    first = places[..., :1]
    return places.shape[-1] == len(units) and bool(
        ((places == first + units) & (first % max(1, len(units)) == 0)).all()
    )


def doubled(value: Any) -> Any:
    """Return real numbers and weights in float64, other values as they are."""
    if isinstance(value, Weights):
        return value.to(value.matrix.double())
    real = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if real else value
