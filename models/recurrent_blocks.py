"""Which block of a lifted recurrent network is which convex subproblem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from liftednet.deferred import reported, sent
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit, Weights
from liftednet.problems.design_matrix import sum_of
from liftednet.problems.states_over_time import StatesOverTime, TimeLink
from liftednet.solvers.forward_over_time import forward_states

from .descent import Block
from .recurrent_architecture import Cell, RecurrentArchitecture
from .recurrent_solvers import Solvers
from .sequence_arrays import Task, Timeline, picked


class RecurrentBlocks:
    """Weights and states of a recurrent network on given data, as convex subproblems.

    Lifted Recurrent Neural Networks, section 5: (W, U_0, b_0) of a cell together, (U_1, b_1),
    and the states of a cell over all steps.

    Attributes:
        architecture: cells, divergence, loss.
        weights: [W; U_0] and b_0 of every cell, then U_1 and b_1. Where the initial states are
            learned, a last row of [W; U_0] drives the early step.
        states: of every cell in its own order of time, (steps, samples, units).
    """

    def __init__(
        self,
        architecture: RecurrentArchitecture,
        task: Task,
        weights: Sequence[Weights],
        solvers: Solvers,
        proximity: float | None = None,
        states: Sequence[Tensor] | None = None,
    ) -> None:
        """Take data and weights; states that are not given come from a forward pass.

        Args:
            architecture: what the network is.
            task: the data.
            weights: of every cell, then of the output.
            solvers: for states over time and for weights.
            proximity: weight of |W - previous W|_F^2 in a weight fit, or None.
            states: of every cell.
        """
        self.architecture = architecture
        self.weights = list(weights)
        self._task = task
        self._solvers = solvers
        self._proximity = proximity
        self.states: list[Tensor] = []
        if states is None:
            self.pass_forward()
        else:
            self.states = list(states)

    def pass_forward(self) -> None:
        """Replace the states by those of a forward pass."""
        self.states = []
        for number, cell in enumerate(self.architecture.cells):
            problem = self._over_time(number, self._drive(number, cell), ())
            self.states.append(forward_states(problem))

    def exact(self) -> RecurrentBlocks:
        """Return the blocks in float64, after a forward pass."""
        weights = [layer.to(layer.matrix.double()) for layer in self.weights]
        return RecurrentBlocks(self.architecture, self._task.double(), weights, self._solvers)

    def at(self, weights: Sequence[Weights]) -> RecurrentBlocks:
        """Return the blocks with other weights, after a forward pass."""
        return RecurrentBlocks(self.architecture, self._task, weights, self._solvers)

    def take(self, samples: Tensor) -> RecurrentBlocks:
        """Return the blocks of some samples, (some,) int64 on the CPU, with their states."""
        there = sent(samples, self.timeline.device)
        states = [state[:, there] for state in self.states]
        task = self._task.take(samples)
        return RecurrentBlocks(self.architecture, task, self.weights, self._solvers, states=states)

    @property
    def task(self) -> Task:
        """The data."""
        return self._task

    @property
    def timeline(self) -> Timeline:
        """Which steps the sequences have."""
        return self._task.timeline

    def output(self) -> Tensor:
        """Return the output that the states stand for, (steps, samples, outputs)."""
        return self.architecture.loss.activate(self.features() @ self._readout.matrix + self._bias)

    def sweep(self) -> list[Block]:
        """Return the blocks of one sweep: states from the top down, then all weights."""
        cells = range(len(self.architecture.cells))
        states = [self._state_block(number) for number in reversed(cells)]
        if self._task.target is None:
            return states
        return [*states, *(self._weight_block(number) for number in (*cells, len(cells)))]

    def weight_fits(self) -> list[WeightFit]:
        """Return the weight fit of every cell, and that of the output, at the current states."""
        cells = range(len(self.architecture.cells))
        return [*(self._recurrent_fit(number) for number in cells), self._output_fit()]

    def move_states(self) -> None:
        """Give every cell's states to the state solver once, from the top down."""
        for number in reversed(range(len(self.states))):
            problem = self._state_problem(number)
            self.states[number] = self._solvers.states.solve(problem, self.states[number]).value

    def objective(self) -> float:
        """Return the joint objective in float64."""
        return float(sum_of(self._values()) + self.loss())

    def _values(self) -> Iterator[Tensor]:
        """Yield the parts of the objective without the loss, scalars in float64."""
        for number, cell in enumerate(self.architecture.cells):
            problem = self._over_time(number, self._drive(number, cell), ())
            yield problem.double().values(self.states[number].double()).sum()
        for number, weights in enumerate(self.weights):
            yield self.penalty(number).value(weights.matrix.double())

    def loss(self) -> float:
        """Return the loss at the current states, summed over the steps that have targets.

        On a GPU it stays there.
        """
        target = self._task.target
        if target is None:
            return 0.0
        rows = picked(self.features(), self._task.places).double()
        u = rows @ self._readout.matrix.double() + self._bias.double()
        divergence = self.architecture.loss.divergence
        return reported(divergence.value(picked(target, self._task.places).double(), u))

    @property
    def _readout(self) -> Weights:
        return self.weights[-1]

    @property
    def _bias(self) -> Tensor:
        assert self._readout.bias is not None
        return self._readout.bias

    def penalty(self, number: int) -> SquaredFrobenius:
        """Return rho |W|_F^2 of a layer's weights."""
        return SquaredFrobenius(self.architecture.rho[number == len(self.architecture.cells)])

    def _natural(self, number: int) -> Tensor:
        """Return the states of a cell in the order of the data."""
        backward = self.architecture.cells[number].backward
        return self._task.timeline.natural(self.states[number], backward)

    def features(self) -> Tensor:
        """Return the states that the output sees, (steps, samples, states)."""
        return torch.cat([self._natural(number) for number in self.architecture.top], -1)

    def rows(self, number: int) -> Tensor:
        """Return [H_{t-1}, X_t, start] of a cell in its own order, (steps, samples, inputs)."""
        states = self.states[number]
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        return torch.cat([before, self._inputs(self.architecture.cells[number])], -1)

    def slopes(self, number: int) -> Tensor:
        """Return phi' of a cell in its own order, 0 beyond the lengths; (steps, samples, units)."""
        problem = self._over_time(number, self._drive(number, self.architecture.cells[number]), ())
        slopes = problem.divergence.link_curvature(problem.pre_activation(self.states[number]))
        return slopes.where(problem.valid.unsqueeze(-1), 0.0)

    def _inputs(self, cell: Cell) -> Tensor:
        """Return [X, start] of a cell in its own order, (steps, samples, inputs)."""
        below = self.architecture.below(cell)
        parts = [self._natural(number) for number in below] or [self._task.inputs]
        timeline = self._task.timeline
        inputs = timeline.own(torch.cat(parts, -1), cell.backward)
        if not timeline.early:
            return inputs
        start = torch.zeros_like(inputs[..., :1])
        start[0] = 1.0
        return torch.cat([inputs, start], -1)

    def _drive(self, number: int, cell: Cell) -> Tensor:
        weights = self.weights[number]
        assert weights.bias is not None
        return self._inputs(cell) @ weights.matrix[cell.units :] + weights.bias

    def _over_time(self, number: int, drive: Tensor, links: tuple[TimeLink, ...]) -> StatesOverTime:
        units = self.architecture.cells[number].units
        timeline = self._task.timeline
        return StatesOverTime(
            self.architecture.divergence,
            drive,
            self.weights[number].matrix[:units],
            links,
            timeline.lengths + timeline.early,
            self.architecture.lam,
        )

    def _state_block(self, number: int) -> Block:
        return Block(
            f"states {number + 1}",
            partial(self._state_problem, number),
            partial(self.states.__getitem__, number),
            partial(self.states.__setitem__, number),
            self._solvers.states,
        )

    def _state_problem(self, number: int) -> StatesOverTime:
        cell = self.architecture.cells[number]
        links = [self._link_up(number, cell, above) for above in self.architecture.above(cell)]
        if number in self.architecture.top and self._task.target is not None:
            links.append(self._link_out(number, cell, self._task.target))
        return self._over_time(number, self._drive(number, cell), tuple(links))

    def _link_up(self, number: int, cell: Cell, above: int) -> TimeLink:
        """Return what a cell of the next layer asks of a cell's states."""
        upper, timeline = self.architecture.cells[above], self._task.timeline
        problem = self._over_time(above, self._drive(above, upper), ())
        u = timeline.natural(problem.pre_activation(self.states[above]), upper.backward)
        weight = self.weights[above].matrix[upper.units :][self.architecture.columns(cell)]
        divergence, lam = self.architecture.divergence, self.architecture.lam
        link = TimeLink(divergence, weight, u, self._natural(above), timeline.valid, lam)
        return self._in_order_of(number, link)

    def _link_out(self, number: int, cell: Cell, target: Tensor) -> TimeLink:
        """Return what the targets ask of a cell's states."""
        u = self.features() @ self._readout.matrix + self._bias
        weight = self._readout.matrix[self.architecture.columns(cell)]
        divergence = self.architecture.loss.divergence
        link = TimeLink(divergence, weight, u, target, self._task.counted)
        return self._in_order_of(number, link)

    def _in_order_of(self, number: int, link: TimeLink) -> TimeLink:
        """Turn a link whose offset is the whole pre-activation into the time of a cell."""
        backward, timeline = self.architecture.cells[number].backward, self._task.timeline
        return replace(
            link,
            offset=timeline.own(link.offset - self._natural(number) @ link.weight, backward),
            target=timeline.own(link.target, backward),
            counted=timeline.own(link.counted, backward),
        )

    def _weight_block(self, number: int) -> Block:
        readout = number == len(self.architecture.cells)
        return Block(
            "output weights" if readout else f"recurrent weights {number + 1}",
            self._output_fit if readout else partial(self._recurrent_fit, number),
            partial(self.weights.__getitem__, number),
            partial(self.weights.__setitem__, number),
            self._solvers.readout if readout else self._solvers.recurrent,
        )

    def _recurrent_fit(self, number: int) -> WeightFit:
        places = self.timeline.places
        return WeightFit(
            self.architecture.divergence,
            Design(picked(self.rows(number), places)),
            picked(self.states[number], places),
            self._pulled(number),
            self.architecture.lam,
        )

    def _output_fit(self) -> WeightFit:
        target, places = self._task.target, self._task.places
        assert target is not None  # weights are blocks only where there are targets
        divergence = self.architecture.loss.divergence
        design = Design(picked(self.features(), places))
        return WeightFit(divergence, design, picked(target, places), self._pulled(-1))

    def _pulled(self, number: int) -> SquaredFrobenius:
        """Return rho |W|^2 + proximity |W - previous W|^2, as one square up to a constant."""
        number %= len(self.weights)
        rho, pull = self.penalty(number).rho, self._proximity
        if pull is None:
            return SquaredFrobenius(rho)
        return SquaredFrobenius(rho + pull, self.weights[number].matrix * (pull / (rho + pull)))
