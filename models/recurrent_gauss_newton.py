"""Weights and states of a recurrent network in one convex step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor

from liftednet.problems import Weights
from liftednet.solvers.levenberg_marquardt import LevenbergMarquardt

from .descent import Ending, Step, Trace
from .progress import Report
from .recurrent_blocks import RecurrentBlocks
from .recurrent_sensitivities import joint_quadratic


class GaussNewtonTraining:
    """Moves weights and states together, where the blocks move one of them at a time.

    The tight lifted problem, linearized at a forward pass, is one convex quadratic in all weights
    and states. Its states are eliminated, which leaves a damped least-squares problem in the
    weights: the lifted Newton method of Albersmeyer and Diehl (2010), here equal to
    Gauss-Newton on the loss of the feedforward rule. A forward pass with the new weights then
    gives states at which every divergence is zero again, and a step that would raise the joint
    objective is damped more.
    """

    def __init__(self, blocks: RecurrentBlocks, tolerance: float) -> None:
        """Take the blocks of the whole data, whose weights are changed in place.

        Args:
            blocks: with a tight divergence.
            tolerance: stop when no entry of the gradient, relative to its terms, is larger.
        """
        self._blocks, self._tolerance = blocks, tolerance
        self._solver = LevenbergMarquardt()

    def run(self, steps: int, report: Report | None) -> Trace:
        """Take at most `steps` steps, and return the joint objective after each."""
        point = self._blocks.exact()
        trace = Trace(point.objective())
        try:
            for step in self._steps(point, steps, trace):
                trace.steps.append(step)
                if report is not None:
                    report(step)
        except KeyboardInterrupt:
            trace.ending = Ending.INTERRUPTED
        self._blocks.pass_forward()
        return trace

    def _steps(self, point: RecurrentBlocks, steps: int, trace: Trace) -> Iterator[Step]:
        started, objective = time.perf_counter(), trace.start
        for number in range(steps):
            model = joint_quadratic(point)
            if model.residual <= self._tolerance:
                trace.ending = Ending.CONVERGED
                return
            taken = self._solver.descend(model, partial(_decrease, point, objective))
            if taken is None:
                trace.ending = Ending.STALLED
                return
            objective -= taken.decrease
            point = point.at(moved(point.weights, taken.step))
            self._keep(point)
            yield Step(
                number,
                "weights and states",
                objective,
                taken.decrease,
                model.residual,
                taken.attempts,
                self._solver.name,
                time.perf_counter() - started,
            )

    def _keep(self, point: RecurrentBlocks) -> None:
        like = self._blocks.weights[0].matrix
        self._blocks.weights[:] = [layer.to(like) for layer in point.weights]


def _decrease(point: RecurrentBlocks, objective: float, step: Tensor) -> float:
    """Return by how much a step and a forward pass lower the joint objective."""
    return objective - point.at(moved(point.weights, step)).objective()


def moved(weights: Sequence[Weights], step: Tensor) -> list[Weights]:
    """Return the weights plus a step of all of them, (parameters,), row by row."""
    stacked = [layer.stacked() for layer in weights]
    parts = step.split([layer.numel() for layer in stacked])
    new = [layer + part.view_as(layer) for layer, part in zip(stacked, parts, strict=True)]
    return [Weights(layer[:-1], layer[-1]) for layer in new]
