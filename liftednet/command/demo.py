"""`liftednet demo`: declare, solve, export, and compare starts on real data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import ReLU
from liftednet.check import check_activation
from liftednet.command.demo_starts import (
    FITTED_OUTPUT,
    LIFTED,
    Curve,
    Samples,
    Schedule,
    Start,
    Task,
    best_on_validation,
    compare,
    drawn_starts,
    fitted_output,
    hits,
    lifted,
)
from liftednet.command.train import IMAGES
from liftednet.data import split
from liftednet.export import to_torch
from liftednet.lazy import cvxpy as cp
from liftednet.models import FullBatch, LiftedMLP, Minibatch

if TYPE_CHECKING:
    from cvxpy.expressions.expression import Expression

_SHOWN = (0.8, 1.0)  # of the accuracy: below it the starts that only draw begin


class SquarePlus(Activation):
    """phi(u) = (u + sqrt(u^2 + 4)) / 2, a smooth ReLU; Phi(v) = v^2 / 2 - log v.

    v = phi(u) solves v - 1 / v = u (Barron, Squareplus, 2021).
    """

    lipschitz = 1.0

    def forward(self, u: Tensor) -> Tensor:
        """Return (u + sqrt(u^2 + 4)) / 2."""
        return (u + (u.square() + 4).sqrt()) / 2

    def potential(self, v: Expression) -> Expression:
        """Return |v|^2 / 2 - sum log v."""
        value: Expression = cp.sum_squares(v) / 2 - cp.sum(cp.log(v))
        return value

    def prox(self, w: Tensor, t: float | Tensor) -> Tensor:
        """Return the positive root of (1 + t) v - t / v = w."""
        return (w + (w.square() + 4 * t * (1 + t)).sqrt()) / (2 * (1 + t))


@dataclass(frozen=True)
class Setting:
    """How a lifted network is trained; chosen on the validation samples.

    Attributes:
        lam: weight of the divergences.
        rho: weight of the squared Frobenius norms.
        method: minibatches, or every block on all samples.
    """

    lam: float
    rho: float
    method: Minibatch | FullBatch

    def fit(self, task: Task, seed: int, progress: bool = False) -> LiftedMLP:
        """Return the network, trained."""
        how: dict[str, Any] = {"lam": self.lam, "rho": self.rho, "method": self.method}
        model = LiftedMLP(task.sizes, task.activation, seed=seed, refit_output=True, **how)
        return model.fit(task.train.x, task.train.y, progress=progress)

    def __str__(self) -> str:
        """Say it in words."""
        if isinstance(self.method, FullBatch):
            passes = f"full method, sweeps {self.method.sweeps}"
        else:
            passes = f"minibatch method, epochs {self.method.epochs}"
        return f"{passes}, lam {self.lam:g}, rho {self.rho:g}"


@dataclass(frozen=True)
class Plan:
    """What the demo runs on a data set.

    Attributes:
        hidden: units of the hidden layer.
        settings: of the lifted network, from which one is chosen.
        rhos: of the fitted output layer, from which one is chosen, as many as settings.
        schedule: how the torch networks are trained.
    """

    hidden: int
    settings: tuple[Setting, ...]
    rhos: tuple[float, ...]
    schedule: Schedule


PLANS = {
    "digits": Plan(
        50,
        (
            Setting(0.1, 0.1, FullBatch(sweeps=3)),
            Setting(0.1, 0.01, Minibatch(epochs=1)),
            Setting(0.1, 0.1, Minibatch(epochs=5)),
            Setting(1.0, 0.1, Minibatch(epochs=5)),
        ),
        (0.01, 0.1, 1.0, 10.0),
        Schedule(rates=(1e-2, 1e-3), epochs=20),
    ),
    "mnist": Plan(
        100,
        (
            Setting(10.0, 0.1, Minibatch(epochs=1)),
            Setting(10.0, 10.0, Minibatch(epochs=1)),
            Setting(10.0, 0.1, Minibatch(epochs=3)),
            Setting(10.0, 10.0, Minibatch(epochs=3)),
        ),
        (0.1, 1.0, 10.0, 100.0),
        Schedule(rates=(3e-3, 3e-4), epochs=12, batch=200),
    ),
}


def run_demo(name: str, seeds: int, folder: Path, plan: Plan | None = None) -> None:
    """Run the demo and print what it finds.

    Args:
        name: of the data set, "digits" or "mnist".
        seeds: how many every start has.
        folder: of the picture.
        plan: what to run; None takes the one of the data set.

    Raises:
        DataError: MNIST is not found.
    """
    torch.set_num_threads(1)  # the matrices are small: a second thread slows them down
    console = Console()
    plan = PLANS[name] if plan is None else plan
    task = task_of(name, plan.hidden)
    console.rule("1. Declare an activation, and check the declaration")
    console.print(check_activation(SquarePlus()))
    console.rule("2. Train a lifted network, and export it")
    train, valid, test = (len(part.y) for part in (task.train, task.valid, task.test))
    console.print(
        f"{' - '.join(map(str, task.sizes))} units, {task.activation!r}; {train} samples to train "
        f"on, {valid} to choose settings on, {test} to test on"
    )
    setting = chosen_setting(task, plan)
    model = setting.fit(task, seed=0, progress=True)
    exported = to_torch(model)
    with torch.no_grad():
        difference = float((exported(task.test.x) - model.forward(task.test.x)).abs().max())
    forward = hits(model.predict(task.test.x), task.test)
    by_states = hits(model.predict_lifted(task.test.x), task.test)
    console.print(f"chosen on the validation samples: {setting}")
    console.print(
        f"test accuracy {forward:.3f} by the feedforward rule, {by_states:.3f} by the lifted rule"
    )
    console.print(f"exported to torch, the largest difference to the model being {difference:.1e}:")
    console.print(repr(exported))
    console.rule("3. Train the torch network from this start and from others")
    curves = curves_of(task, plan, setting, seeds)
    console.print(table(curves))
    console.print(draw_curves(curves, folder / f"demo-{name}.png", name), soft_wrap=True)
    console.print(sentence(curves))


def curves_of(task: Task, plan: Plan, setting: Setting, seeds: int) -> list[Curve]:
    """Return the curves from every start of the plan."""
    starts = {
        LIFTED: lifted(setting.fit),
        **drawn_starts(),
        FITTED_OUTPUT: fitted_output(_chosen_rho(task, plan)),
    }
    return all_curves(task, starts, range(seeds), plan.schedule)


def task_of(name: str, hidden: int) -> Task:
    """Return a data set and the network that is trained on it."""
    found = IMAGES[name]()
    x, y, x_valid, y_valid = split(found.x_train, found.y_train, held_out=0.2, seed=0)
    return Task(
        (x.shape[1], hidden, found.classes),
        ReLU(),
        Samples(x, y),
        Samples(x_valid, y_valid),
        Samples(found.x_test, found.y_test),
    )


def chosen_setting(task: Task, plan: Plan) -> Setting:
    """Return the setting that is best on the validation samples."""
    starts = [lifted(setting.fit) for setting in plan.settings]
    return plan.settings[best_on_validation(task, starts, seed=0)]


def _chosen_rho(task: Task, plan: Plan) -> float:
    starts = [fitted_output(rho) for rho in plan.rhos]
    return plan.rhos[best_on_validation(task, starts, seed=0)]


def all_curves(
    task: Task, starts: dict[str, Start], seeds: Sequence[int], schedule: Schedule
) -> list[Curve]:
    """Return the curves of all seeds, or after an interrupt of those that are finished."""
    each = len(starts) * len(schedule.rates)
    curves: list[Curve] = []
    try:
        with Progress() as bar:
            runs = bar.add_task("training from every start", total=each * len(seeds))
            for curve in compare(task, starts, seeds, schedule):
                curves.append(curve)
                bar.advance(runs)
    except KeyboardInterrupt:
        finished = len(curves) // each
        if finished < 2:  # no spread to tell
            raise
        return curves[: finished * each]
    return curves


# What the curves show: a table, a picture and a sentence.


def table(curves: Sequence[Curve]) -> Table:
    """Return test accuracy before training, after one epoch and at the end: mean and deviation."""
    rates = list(dict.fromkeys(curve.rate for curve in curves))
    last = len(curves[0].accuracy) - 1
    seeds = len({curve.seed for curve in curves})
    epoch = statistics.median(curve.epoch_seconds for curve in curves)
    shown = Table(
        title=f"Test accuracy, mean and standard deviation of {seeds} seeds",
        title_justify="left",
        caption=f"An epoch of Adam takes {epoch:.2g} s.",
        caption_justify="left",
    )
    shown.add_column("start")
    shown.add_column("made in", justify="right")
    shown.add_column("untrained", justify="right")
    for rate in rates:
        for epoch in (1, last):
            shown.add_column(f"rate {rate:g}\n{_epochs(epoch)}", justify="right")
    for start in dict.fromkeys(curve.start for curve in curves):
        cells = [_seconds(curves, start), _cell(_at(curves, start, rates[0], 0))]
        cells += [_cell(_at(curves, start, rate, epoch)) for rate in rates for epoch in (1, last)]
        shown.add_row(start, *cells)
    return shown


def sentence(curves: Sequence[Curve]) -> str:
    """Return one sentence on the lifted start against the best of the others, whoever wins.

    Two starts are level where the mean of their paired differences is within two standard errors.
    """
    last = len(curves[0].accuracy) - 1
    parts = [
        f"at rate {rate:g} it is {_verdict(curves, rate, 1)} after {_epochs(1)} and "
        f"{_verdict(curves, rate, last)} after {_epochs(last)}"
        for rate in dict.fromkeys(curve.rate for curve in curves)
    ]
    return f"The lifted start against the best other start: {'; '.join(parts)}."


def draw_curves(curves: Sequence[Curve], path: Path, name: str) -> str:
    """Draw mean accuracy against epochs, a panel for each rate; say where, or why not."""
    try:
        from matplotlib.figure import Figure  # without pyplot: it needs no display
    except ImportError:
        return "no picture: matplotlib is not installed (pip install 'liftednet[plots]')"
    rates = list(dict.fromkeys(curve.rate for curve in curves))
    figure = Figure(figsize=(5.2 * len(rates), 4.2), layout="constrained")
    for axis, rate in zip(figure.subplots(1, len(rates), squeeze=False)[0], rates, strict=True):
        for start in dict.fromkeys(curve.start for curve in curves):
            axis.plot(_means(curves, start, rate), label=start)
        axis.set(title=f"{name}, learning rate {rate:g}", xlabel="epochs of Adam", ylim=_SHOWN)
        axis.set_ylabel(f"test accuracy above {_SHOWN[0]}, mean over seeds")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"picture: {path}"


def _verdict(curves: Sequence[Curve], rate: float, epoch: int) -> str:
    others = {curve.start for curve in curves} - {LIFTED}
    rivals = {start: _at(curves, start, rate, epoch) for start in sorted(others)}
    best = max(rivals, key=lambda start: statistics.fmean(rivals[start]))
    ours, theirs = _at(curves, LIFTED, rate, epoch), rivals[best]
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    word = "level with" if abs(mean) <= 2 * error else "ahead of" if mean > 0 else "behind"
    return f"{word} {best} ({statistics.fmean(ours):.3f} against {statistics.fmean(theirs):.3f})"


def _at(curves: Sequence[Curve], start: str, rate: float, epoch: int) -> list[float]:
    """Return the accuracy after an epoch, one number for each seed in the order of the seeds."""
    found = [curve for curve in curves if (curve.start, curve.rate) == (start, rate)]
    return [curve.accuracy[epoch] for curve in sorted(found, key=lambda curve: curve.seed)]


def _means(curves: Sequence[Curve], start: str, rate: float) -> list[float]:
    epochs = range(len(curves[0].accuracy))
    return [statistics.fmean(_at(curves, start, rate, epoch)) for epoch in epochs]


def _seconds(curves: Sequence[Curve], start: str) -> str:
    return f"{statistics.fmean(c.seconds for c in curves if c.start == start):.2f} s"


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def _epochs(epoch: int) -> str:
    return "1 epoch" if epoch == 1 else f"{epoch} epochs"
