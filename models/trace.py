"""What a method is given and tells, and one runner for all: history, bar, interrupts, errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from liftednet import processes
from liftednet.errors import DataError, SolverError
from liftednet.lazy import pyplot
from liftednet.samples import Weights

if TYPE_CHECKING:
    from .checkpoint import Keeper


@dataclass(frozen=True)
class Step:
    """What one step of a method did: a block update, an epoch, a step of all weights.

    Attributes:
        number: of its sweep, epoch or step, from 0.
        block: what was moved.
        objective: the joint objective after it; for an epoch the mean loss of a sample, or of a
            step where labels are one a step, met by its batches, each before its step.
        decrease: by how much it lowered that.
        residual: relative KKT residual of the block before it; NaN for an epoch.
        iterations: iterations of the solver.
        solver: name of the solver.
        seconds: since training began, without those between an interrupt and its resumption.
        validation: the same mean of held-out samples after it, or None.
        whole: whether its sweep or epoch is finished with it.
        evidence: log p(y) before it, of y as it is trained on, where rho follow it; None elsewhere.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import FullBatch, LiftedMLP
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 5, 10), method=FullBatch(sweeps=1))
        >>> step = model.fit(digits.x_test, digits.y_test).trace.steps[0]
        >>> step.block, step.solver, step.decrease > 0
        ('states 1', 'newton', True)
    """

    number: int
    block: str
    objective: float
    decrease: float
    residual: float
    iterations: int
    solver: str
    seconds: float = 0.0  # told by the runner
    validation: float | None = None
    whole: bool = True
    evidence: float | None = None


class Ending(Enum):
    """Why a training ended.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import FullBatch, LiftedMLP
        >>> from liftednet.models.results import Ending
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 10), method=FullBatch(sweeps=20))  # one convex problem
        >>> model.fit(digits.x_test, digits.y_test).trace.ending is Ending.CONVERGED
        True
    """

    CONVERGED = "residuals were within the tolerance over a whole sweep, or the gap was proven"
    BUDGET = "the number of sweeps, epochs, steps or units was used up, or the time"
    STOPPED = "the loss of held-out samples no longer fell; the weights of the least are kept"
    STALLED = "no step lowers the objective any further, as far as rounding tells"
    INTERRUPTED = "it was interrupted, or ended by an error; what was done until then is kept"


@dataclass
class Trace:
    """The history of a training.

    Attributes:
        start: the joint objective before the first step; NaN for minibatches.
        steps: one entry for every step.
        ending: why it ended.
        max_iter: the sweeps, epochs or steps that it was given.
        method: by which it was done, with its numbers; None of a batch by itself.
        reason: why this one, in words.

    Example:
        >>> from liftednet import data
        >>> from liftednet.models import FullBatch, LiftedMLP
        >>> digits = data.digits()
        >>> model = LiftedMLP((64, 5, 10), method=FullBatch(sweeps=2))
        >>> trace = model.fit(digits.x_test, digits.y_test).trace
        >>> trace.n_iter, trace.objectives == sorted(trace.objectives, reverse=True)
        (2, True)
    """

    start: float
    steps: list[Step] = field(default_factory=list, repr=False)  # of hundreds
    ending: Ending = Ending.BUDGET
    max_iter: int = 0
    method: Any = None
    reason: str = ""

    @property
    def objectives(self) -> list[float]:
        """The joint objective at the start and after every step."""
        return [self.start, *(step.objective for step in self.steps)]

    @property
    def losses(self) -> list[float]:
        """The objective after every step, as minibatches report it."""
        return [step.objective for step in self.steps]

    @property
    def n_iter(self) -> int:
        """How many sweeps, epochs or steps have been finished."""
        return max((step.number + 1 for step in self.steps if step.whole), default=0)

    def plot(self, ax: Any = None) -> Any:
        """Draw the objective, and the loss of held-out samples, over the seconds of training.

        Args:
            ax: axes of matplotlib; None for new ones.

        Returns:
            The axes.

        Raises:
            DataError: there is no step to draw.

        Example:
            >>> from liftednet import data
            >>> from liftednet.models import FullBatch, LiftedMLP
            >>> digits = data.digits()
            >>> model = LiftedMLP((64, 5, 10), method=FullBatch(sweeps=2))
            >>> axes = model.fit(digits.x_test, digits.y_test).trace.plot()
            >>> axes.get_xlabel(), len(axes.lines[0].get_xdata()) == len(model.trace.steps)
            ('seconds', True)
        """
        if not self.steps:
            raise DataError("the trace has no step to draw: fit with a budget of at least one.")
        axes = pyplot.subplots()[1] if ax is None else ax
        seconds = [step.seconds for step in self.steps]
        axes.plot(seconds, self.losses, label="objective")
        held_out = [(s.seconds, s.validation) for s in self.steps if s.validation is not None]
        if held_out:
            beside = axes.twinx()  # a mean of samples, where the objective may be their sum
            beside.plot(*zip(*held_out, strict=True), color="C1", label="held-out loss")
            beside.set_ylabel("mean loss of held-out samples", color="C1")
        axes.set_xlabel("seconds")
        axes.set_ylabel("objective")
        axes.set_yscale("log" if min(self.losses) > 0 else "linear")
        return axes


@dataclass(frozen=True, eq=False)
class PerSample:
    """A tensor of a memory, of which each of several processes has the rows of its samples.

    Attributes:
        tensor: of this process.
        axis: along which samples stand.
    """

    tensor: Tensor
    axis: int = 0


Memory = dict[str, Any]  # numbers, names, tensors and weights, and lists and dictionaries of them
Steps = Generator[Step | None, None, Ending]
Report = Callable[[Step], None]


@dataclass(eq=False)
class Problem:
    """A training problem, as `Lifted.fit` prepares it and `method.take_steps` solves it.

    Attributes:
        point: `Blocks`, or of minibatches `BatchSteps`: structure and weights, which move.
        solver: of every block.
        state_solver: of states over time.
        batches: of minibatches.
        validate: the loss of weights on what is held out, None for nothing.
        patience: rounds without a smaller one that training waits.
        best: the weights to keep in place of the last, None where these are to stay.
        memory: what the method goes on from, if anything; brought up to date before every yield.
        trace: the history so far.
        data: all of them, on the scale of training; None where a DataLoader brings them.
        seen: those that it trains on, or the first batches of a DataLoader.
        chosen: method and reason, in words.
        limits: on the scores of training, of a method that holds them by itself.
        standardization: between the data and the weights.
        completion: the priors of inputs that are not seen as they are.
    """

    point: Any
    solver: Any = "auto"
    state_solver: Any = "auto"
    batches: Any = None
    validate: Callable[[Sequence[Weights]], float] | None = None
    patience: int = 1
    best: Sequence[Weights] | None = None
    memory: Memory = field(default_factory=dict)
    trace: Trace = field(default_factory=lambda: Trace(math.nan))
    data: Any = None
    seen: Any = None
    standardization: Any = None
    completion: Any = None
    chosen: str = ""
    limits: Any = None


def stopped_early(steps: Steps, problem: Problem) -> Steps:
    """Yield steps with the held-out loss after each round, and stop where it no longer falls.

    The weights of the least are those to keep, whatever the method is; they may be the first.
    """
    assert problem.validate is not None  # there is something held out
    first = list(problem.point.weights)
    start = first, min(math.inf, problem.validate(first)), -1, 0  # infinite where that is NaN
    weights, value, best, since = problem.memory.get("best", start)
    ending = Ending.STOPPED
    while since < problem.patience:
        try:
            step = next(steps)
        except StopIteration as stop:
            ending = stop.value
            break
        if step is not None and step.whole:
            found = problem.validate(problem.point.weights)
            if found < value:
                weights, value, best = list(problem.point.weights), found, step.number
            since = step.number - best  # a sweep may be whole twice, before it is extrapolated
            problem.memory["best"] = [weights, value, best, since]
            step = replace(step, validation=found)
        yield step
    steps.close()
    problem.best = weights
    return ending


def run(
    trace: Trace,
    steps: Steps,
    memory: Memory,
    keep: Callable[[], None],
    *,
    keeper: Keeper,
    max_iter: int,
    progress: bool,
    on_step: Report | None,
) -> None:
    """Take the steps of a method, with its history and what it leaves wherever it ends.

    A method is a generator of steps, and of None where it can rest between two parts of a step.
    It begins from its memory, where that is not empty, and brings it up to date before every
    yield: from there it goes on as if nothing had happened. Tensors that stand in a memory are not
    changed in place.

    Args:
        trace: the history so far, added to.
        steps: of the method.
        memory: of the method.
        keep: makes what the method has reached the model's, after every step and at the end.
        keeper: of checkpoints.
        max_iter: the most sweeps, epochs or steps.
        progress: whether to show a bar; of several processes the first has one.
        on_step: told after every step; where it raises an error, what is done is kept.
    """
    trace.max_iter, begun = max_iter, len(trace.steps)
    *_, last = trace.steps or [Step(0, "", math.nan, 0.0, math.nan, 0, "")]
    started = time.perf_counter() - last.seconds
    with (
        keeper.guarding(),
        _reporting(trace, max_iter, progress, on_step) as report,
        torch.no_grad(),
    ):
        try:
            for step in _ended(trace, steps):
                if step is not None:
                    step = replace(step, seconds=time.perf_counter() - started)
                    trace.steps.append(step)
                keeper.rest(trace, memory)
                if step is not None:
                    keep()
                    try:
                        report(step)
                    except KeyboardInterrupt:
                        keeper.interrupt()
            keep()
        except BaseException as error:
            trace.ending = Ending.INTERRUPTED
            steps.close()
            if len(trace.steps) == begun and (foreign := keeper.foreign(error)):
                raise foreign from error
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted or trace.steps or isinstance(error, SolverError):
                keep()
            if not interrupted:
                raise
        finally:
            keeper.close(trace)


def _ended(trace: Trace, steps: Steps) -> Iterator[Step | None]:
    """Yield the steps, and keep in the history why they end."""
    trace.ending = yield from steps


@contextmanager
def _reporting(
    trace: Trace, max_iter: int, shown: bool, on_step: Report | None
) -> Iterator[Report]:
    """Yield what is told of every step: the caller's function, and a bar where it is shown."""
    tell = on_step or (lambda _: None)
    if not shown or processes.rank() > 0:
        yield tell
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=max_iter, completed=trace.n_iter, said="")

        def report(step: Step) -> None:
            said = f"objective {step.objective:.6g}  {step.block}"
            bar.update(task, completed=step.number + step.whole, said=said)
            tell(step)

        yield report
