"""`liftednet demo`: declare, solve, export, and compare starts on real data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from liftednet.activations import ReLU
from liftednet.check import check_activation
from liftednet.command.demo_activation import SquarePlus
from liftednet.command.demo_report import draw_curves, sentence, table
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
from liftednet.command.named import IMAGES
from liftednet.data import split
from liftednet.export import to_torch
from liftednet.models import FullBatch, LiftedMLP, Minibatch


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

    def model(self, task: Task, seed: int) -> LiftedMLP:
        """Return the network before training."""
        return LiftedMLP(
            task.sizes,
            task.activation,
            lam=self.lam,
            rho=self.rho,
            seed=seed,
            method=self.method,
            refit_output=True,
        )

    def fit(self, task: Task, seed: int) -> LiftedMLP:
        """Return the network, trained."""
        return self.model(task, seed).fit(task.train.x, task.train.y)

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
    console.print(_sizes(task))
    setting = chosen_setting(task, plan)
    model = setting.model(task, seed=0).fit(task.train.x, task.train.y, progress=True)
    for line in _standalone(model, setting, task):
        console.print(line)
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


def _sizes(task: Task) -> str:
    counts = [len(part.y) for part in (task.train, task.valid, task.test)]
    return (
        f"{' - '.join(map(str, task.sizes))} units, {task.activation!r}; {counts[0]} samples to "
        f"train on, {counts[1]} to choose settings on, {counts[2]} to test on"
    )


def chosen_setting(task: Task, plan: Plan) -> Setting:
    """Return the setting that is best on the validation samples."""
    starts = [lifted(setting.fit) for setting in plan.settings]
    return plan.settings[best_on_validation(task, starts, seed=0)]


def _chosen_rho(task: Task, plan: Plan) -> float:
    starts = [fitted_output(rho) for rho in plan.rhos]
    return plan.rhos[best_on_validation(task, starts, seed=0)]


def _standalone(model: LiftedMLP, setting: Setting, task: Task) -> list[str]:
    exported = to_torch(model)
    with torch.no_grad():
        difference = float((exported(task.test.x) - model.forward(task.test.x)).abs().max())
    forward = hits(model.predict(task.test.x), task.test)
    by_states = hits(model.predict_lifted(task.test.x), task.test)
    return [
        f"chosen on the validation samples: {setting}",
        f"test accuracy {forward:.3f} by the feedforward rule, {by_states:.3f} by the lifted rule",
        f"exported to torch, the largest difference to the model being {difference:.1e}:",
        repr(exported),
    ]


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
