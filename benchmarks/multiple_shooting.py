"""Gauss-Newton steps whose states are reset by a forward pass, or stay variables.

In the second form the states z stay variables, z_t = phi(u_t) - r_t; each step closes their defects
r along with the loss, and moves z by what the linearized links say, not by a forward pass
(Albersmeyer and Diehl, The Lifted Newton Method, 2010).

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.multiple_shooting`: half an hour, which goes on
where it was interrupted. Finished runs are kept in benchmarks/results/multiple_shooting.jsonl,
the table in multiple_shooting.md; --stored writes it and runs nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from statistics import median

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn.functional import one_hot

from benchmarks.gauss_newton_cases import Case, sequence_case
from benchmarks.harness.runs import Outcome
from benchmarks.stored import Records, records, write
from liftednet.activation import Activation
from liftednet.activations import ReLU, Sigmoid, Tanh
from liftednet.data import digits
from liftednet.losses import CrossEntropy
from liftednet.models.starts import xavier
from liftednet.solvers.gauss_newton.krylov import CurvatureProducts
from liftednet.solvers.gauss_newton.local_model import Damped
from liftednet.solvers.gauss_newton.objective import Forward, Target, Tensors, joined
from liftednet.solvers.gauss_newton.steps import LevenbergMarquardt, steps

RESET, COMPILED = "reset", "reset, compiled"
KEPT = {"kept, nu of closing": 0.0, "kept, nu of multipliers": 2.0}  # times their mean
SHARES = (1.0, 1 / 4, 1 / 16, 1 / 64)  # of a step, of which the best is taken
SAMPLES, UNITS = 400, 50  # digits to train on, and units of every layer
RHO = 1e-3
ACTIVATIONS: dict[str, Activation] = {"sigmoid": Sigmoid(), "tanh": Tanh()}
STARTS = ("tanh", "Xavier"), ("sigmoid", "Xavier"), ("sigmoid", "slope 1")

TEXT = (
    "*Reset* is the library's step: after it a forward pass gives the states; *compiled*, as the "
    "library takes it for recurrent networks, by forward passes and products that are compiled for "
    "states of a forward pass alone, else by those that kept has, too. In *kept* the states "
    "z stay variables with defects r = phi(u) - z, which every step closes along with the loss; z "
    "is moved by what the linearization says (Albersmeyer and Diehl, The Lifted Newton Method, "
    "2010). A step is damped alike in both; kept takes the best of 1, 1/4, 1/16 and 1/64 of it by "
    "the merit loss + nu |r|_1. nu never falls, and is at least twice what makes closing alone a "
    "descent; or that, and twice the mean of the links' absolute multipliers (the largest of them, "
    "or one nu for each link, took more steps on a sum of 100 steps, one seed). Succeeded: the "
    "forward pass of the weights has the aim's "
    "share of unseen answers right, before the seconds of processor time are over and before no "
    "step lowers the merit; steps and seconds are medians until then, of the runs that succeeded. "
    "Best: the largest share on the way, median of all seeds. Echo has 20 units and 200 sequences, "
    "sum and timer 10 units and 100 sequences, one start each (orthogonal; of the timer Gaussian "
    f"with spectral radius 1). Deep networks have layers of {UNITS} and {SAMPLES} of the digits of "
    "scikit-learn, from Xavier's start; slope 1: with four times its weights, and biases that put "
    "every sigmoid around its middle. Both forms have the same starts, the seeds 0, 1 and so on. "
    "Kept is ahead on twenty layers of sigmoids around their middle alone; of two rules for nu "
    "neither is the better one on all tasks. Rows were measured at loads of 2 to 5 (the first "
    "twelve steps of a kept run took 4.0 s and 6.3 s), those within 20 s later than the others, "
    "each kind in turn, and those of compiled steps and the seeds 1 and 2 of 1,000 steps at loads "
    "of 5 to 9."
)


@dataclass(frozen=True)
class Task:
    """What is trained, what share of unseen answers is wanted, and for how long at most."""

    name: str
    aim: float
    seconds: float
    seeds: tuple[int, ...] = (0, 1, 2)


TASKS = (
    Task("echo, 4 back, 10 steps", 0.6, 10),
    *(Task(f"{name}, 100 steps", 0.95, 10) for name in ("sum", "timer")),
    *(Task(f"{name}, 1000 steps", 0.95, 25) for name in ("sum", "timer")),
    *(Task(f"{depth} {kind}, {start}", 0.9, 5) for depth in (10, 20) for kind, start in STARTS),
    Task("20 sigmoid, slope 1", 0.9, 20, (0, 1, 2, 3, 4)),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A training from one seed."""

    task: str
    form: str
    seed: int
    seconds: float


Maps = tuple[Tensor, list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Chain:
    """z_t = phi(c_t + z_{t-1} W_t) - r_t, read from every state or from the last.

    Attributes:
        activation: phi.
        maps: returns z_0 (samples, units) and every c_t and W_t, of weights and data.
        last: whether the last state alone is read.
    """

    activation: Activation
    maps: Callable[[Tensors, Tensor], Maps]
    last: bool

    def states(self, weights: Tensors, data: Tensor, defects: Tensor | None = None) -> Tensor:
        """Return the states of a forward pass with defects, both (samples, steps, units)."""
        state, maps = self.maps(weights, data)
        found = []
        for step, (bias, matrix) in enumerate(maps):
            state = self.activation.forward(torch.addmm(bias, state, matrix))
            state = state if defects is None else state - defects[:, step]
            found.append(state)
        return torch.stack(found, 1)

    def defects(self, weights: Tensors, data: Tensor, states: Tensor) -> Tensor:
        """Return r of given states, both (samples, steps, units)."""
        first, maps = self.maps(weights, data)
        before = first, *states.unbind(1)
        links = [
            self.activation.forward(torch.addmm(bias, state, matrix))
            for (bias, matrix), state in zip(maps, before, strict=False)
        ]
        return torch.stack(links, 1) - states

    def read(self, weights: Tensors, states: Tensor) -> Tensor:
        """Return the outputs of states, (samples, rows, outputs)."""
        read = states[:, -1:] if self.last else states
        return read @ weights[-1][:-1] + weights[-1][-1]

    def outputs(self, weights: Tensors, data: Tensor, defects: Tensor | None = None) -> Tensors:
        """Return the outputs of a forward pass, (samples, rows, outputs)."""
        return (self.read(weights, self.states(weights, data, defects)),)


def over_time(weights: Tensors, data: Tensor) -> Maps:
    cell, _ = weights
    units = cell.shape[1]
    drives = (data @ cell[units:-1] + cell[-1]).unbind(1)
    return data.new_zeros(len(data), units), [(drive, cell[:units]) for drive in drives]


def over_layers(weights: Tensors, data: Tensor) -> Maps:
    return data, [(weight[-1], weight[:-1]) for weight in weights[:-1]]


def deep_case(depth: int, kind: str, start: str, seed: int) -> Case:
    """Return a network on digits; slope 1: four times Xavier's weights, each sigmoid around 0."""
    data, activation = digits(seed=seed), ACTIVATIONS[kind]
    mean = data.x_train.double().mean(0)
    x, unseen = data.x_train[:SAMPLES].double() - mean, data.x_test.double() - mean
    source, weights = torch.Generator().manual_seed(seed), []
    for layer, (inputs, units) in enumerate(pairwise((64, *(UNITS,) * depth, 10))):
        weight = xavier(inputs, units, source) * (4 if start == "slope 1" else 1)
        bias = -weight.sum(0, keepdim=True) / 2 if start == "slope 1" and layer else weight[:1] * 0
        weights.append(torch.cat([weight, bias]))
    pull = tuple(torch.full_like(weight, 2 * RHO) for weight in weights)
    for part in pull:
        part[-1] = 0.0
    answers = one_hot(data.y_train[:SAMPLES], 10)[:, None]
    target = Target(CrossEntropy().divergence, answers, torch.ones(SAMPLES, 1).bool())
    chain = Chain(activation, over_layers, last=True)
    forward = Forward(lambda w, d: chain.outputs(w, d[0]), (x,), (target,), pull)

    def accuracy(point: Tensor) -> float:
        found = chain.outputs(forward.split(point), unseen)[0][:, 0].argmax(-1)
        return float((found == data.y_test).double().mean())

    return Case(forward, joined(weights), accuracy)


def case_of(task: Task, seed: int, compiled: bool) -> tuple[Case, Chain]:
    """Return the network of a task, and its states one after another."""
    kind, words = task.name.split()[0].rstrip(","), task.name.split()
    if kind.isdecimal():
        start = task.name.split(", ")[1]
        kind = words[1].rstrip(",")
        chain = Chain(ACTIVATIONS[kind], over_layers, last=True)
        return deep_case(int(words[0]), kind, start, seed), chain
    hidden, samples = (20, 200) if kind == "echo" else (10, 100)
    case = sequence_case(kind, hidden, samples, int(words[-2]), seed)
    if not compiled:
        plain = replace(case.forward, data=case.forward.data[:1], recurrent=None)
        case = replace(case, forward=plain)
    return case, Chain(ReLU(), over_time, last=False)


def reset(case: Case) -> Iterator[Tensor]:
    """Yield the weights after each of the library's steps."""
    for taken in steps(case.forward, case.start, 0.0, CurvatureProducts):
        yield taken.point


class Around:
    """The model at weights whose states need not be those of a forward pass.

    It is that of the loss with the defects closed, which moves the outputs; what a step is
    expected to lower is the merit, loss + nu |r|_1.

    Attributes:
        price: nu.
    """

    def __init__(
        self, case: Case, chain: Chain, point: Tensor, defects: Tensor, price: float, factor: float
    ) -> None:
        """Linearize the links at weights (parameters,) and r (samples, steps, units).

        nu is at least `price`, and `factor` times the mean of the multipliers.
        """
        self._forward, self._chain, self._point, self._defects = case.forward, chain, point, defects
        self._weights, (inputs,) = case.forward.split(point), case.forward.data
        passed = partial(chain.states, self._weights, inputs)
        self._states, closing = jvp(passed, (defects,), (-defects,))
        before, left = self._loss(point, self._states), float(defects.abs().sum())
        closed = self._loss(point, self._states + closing)
        prices = [price, factor * self._multiplier()]
        self.price = max([*prices, 2 * (closed - before) / left] if left else prices)
        self._merit = before + self.price * left
        self._more = self._merit - closed
        read = partial(chain.read, self._weights)
        added = read(self._states + closing) - read(self._states)

        def outputs(weights: Tensors, data: Tensors) -> Tensors:
            inputs, defects, added = data
            return (chain.outputs(weights, inputs, defects)[0] + added,)

        data = inputs, defects, added
        self._model = CurvatureProducts(replace(case.forward, outputs=outputs, data=data), point)
        self.mean_curvature = self._model.mean_curvature
        self.inside, self.bend = self._model.inside, self._model.bend
        self.corrections = self._model.corrections

    def minimizer(self, damping: float) -> Damped:
        """Return a damped step, and by how much it lowers the merit of the linearized links."""
        found = self._model.minimizer(damping)
        return replace(found, expected=found.expected + self._more)

    def decrease(self, step: Tensor) -> float:
        """Return by how much the best share of a step lowers the merit."""
        return self.taken(step)[0]

    def taken(self, step: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return that with the weights and defects after it."""
        (inputs,) = self._forward.data
        _, moved = jvp(
            lambda weights, defects: self._chain.states(weights, inputs, defects),
            (self._weights, self._defects), (self._forward.split(step), -self._defects),
        )  # fmt: skip
        found = []
        for share in SHARES:
            point, states = self._point + share * step, self._states + share * moved
            defects = self._chain.defects(self._forward.split(point), inputs, states)
            merit = self._loss(point, states) + self.price * float(defects.abs().sum())
            lower = self._merit - merit
            found.append((lower if math.isfinite(lower) else -math.inf, point, defects))
        return max(found, key=itemgetter(0))

    def _multiplier(self) -> float:
        """Return the mean of |derivatives of the loss in the defects|, the links' multipliers."""
        (target,), (inputs,) = self._forward.targets, self._forward.data
        defects = self._defects.clone().requires_grad_()
        states = self._chain.states(self._weights, inputs, defects)
        value = target.value(self._chain.read(self._weights, states))
        return float(torch.autograd.grad(value, defects)[0].abs().mean())

    def _loss(self, point: Tensor, states: Tensor) -> float:
        (target,), weights = self._forward.targets, self._forward.split(point)
        pulled = float((self._forward.pulls * point.square()).sum()) / 2
        return float(target.value(self._chain.read(weights, states))) + pulled


def kept(case: Case, chain: Chain, factor: float) -> Iterator[Tensor]:
    """Yield the weights after each step that lowers loss + nu |r|_1."""
    point, price, solver = case.start, 0.0, LevenbergMarquardt()
    defects = torch.zeros_like(chain.states(case.forward.split(point), case.forward.data[0]))
    while True:
        here = Around(case, chain, point, defects, price, factor)
        found = solver.descend(here, here.decrease)
        if found is None:
            return
        _, point, defects = here.taken(found.step)
        price = here.price
        yield point


def train(run: Run) -> Outcome:
    """Return the steps and seconds until a task's aim, and the best answers on the way."""
    torch.set_num_threads(1)
    task = next(task for task in TASKS if task.name == run.task)
    case, chain = case_of(task, run.seed, run.form == COMPILED)
    if run.form == COMPILED:
        next(reset(case))  # the first one compiles
    started, reading, best = time.process_time(), 0.0, case.test(case.start)
    count, seconds = 0, 0.0
    points = kept(case, chain, KEPT[run.form]) if run.form in KEPT else reset(case)
    for point in points:
        pause = time.process_time()
        count, seconds = count + 1, pause - started - reading
        best = max(best, case.test(point))
        if best >= task.aim or seconds > run.seconds:
            break
        reading += time.process_time() - pause
    return {"best": best, "steps": count, "processor": seconds}


def rows(task: Task, records_of: Records[Run]) -> Iterator[str]:
    forms = (RESET, COMPILED, *KEPT) if task.name.endswith("steps") else (RESET, *KEPT)
    for form in forms:
        runs = [Run(task.name, form, seed, task.seconds) for seed in task.seeds]
        found = [record.outcome for record in records_of(runs)]
        if not found:
            continue
        reached = [one for one in found if one["best"] >= task.aim]
        cells = [
            f"{median(one[key] for one in reached):.{digits_shown}f}" if reached else "-"
            for key, digits_shown in (("steps", 0), ("processor", 1))
        ]
        best = median(one["best"] for one in found)
        yield (
            f"| {task.name} | {task.aim:g} | {task.seconds:g} | {form} | {len(reached)} of "
            f"{len(found)} | {' | '.join(cells)} | {best:.3f} |"
        )


def main() -> None:
    found = records("multiple_shooting", train)
    lines = ["| task, start | aim | seconds | form | succeeded | steps | seconds | best |"]
    lines += ["| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    lines += [line for task in TASKS for line in rows(task, found)]
    write("multiple_shooting", "Gauss-Newton with states that stay variables", TEXT, lines)


if __name__ == "__main__":
    main()
