"""Constraints on outputs: ours, penalties, Lagrangians, and a last layer fitted afterwards.

One hidden layer of ReLU, one objective (loss summed over samples + squares of the weights), one
start for every method of a seed, float64, all of the data in every step. Opponents take 2,000 steps
of Adam whose rate falls to zero. Their settings are chosen on seed 0, ours has none. It takes a few
hundred passes, behind a projection more, where it begins with three times the units and leaves out
those that do least:

- penalty: mu |excess|^2 / 2 for four mu, each with the best of three rates by its own objective;
- Lagrangian: cooper-optim's augmented Lagrangian (3 rates, 2 penalties), the setting with the
  least violation among those within 2 % of the least objective at a violation below 1e-2, or where
  none is below, that with the least violation;
- last layer: Adam without constraints (best of three rates), or the Lagrangian, and then our exact
  fit of the last layer;
- projection: of every sample's scores onto its own constraints, in training and after it, where no
  constraint ties samples (best of three rates). It is part of the network that is exported. Ours
  beside it is declared with `within=`.

Rows of constraints have norm 1 for all; violations are in units of the scores; seconds are
processor time. `PYTHONPATH=FOLDER_OF_COOPER python -m benchmarks.constrained_outputs TASK SEED`,
seed 0 first, goes on where it was, and ends after some minutes with status 1 while there is more;
without arguments it writes benchmarks/results/constrained_outputs.md.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.datasets import load_diabetes, make_classification
from torch import Tensor
from torch.nn import functional

from benchmarks.data.archives import load
from benchmarks.data.signals import _HAR, har
from benchmarks.harness.report import machine
from liftednet import Network
from liftednet.activations import ReLU
from liftednet.constraints import Bounds, Constraint, GroupMeans, Linear, Order, violations
from liftednet.errors import SolverError
from liftednet.layers import concatenate, dense
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, PinnedLoss, SquaredError
from liftednet.models import Lifted
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import ConstrainedFit, Design, WeightFit, Weights
from liftednet.solvers import solve

RESULT = Path(__file__).parent / "results" / "constrained_outputs.md"
RUNS = RESULT.with_suffix(".jsonl")
SEEDS = (0, 1, 2, 3, 4)
STEPS = 2_000
RATES = (1e-2, 3e-2, 1e-1)
PENALTIES = (1e1, 1e2, 1e3, 1e4)
DUAL_RATE = 1e-1  # over the penalty coefficient
COEFFICIENTS = (1.0, 100.0)
PATIENCE = 180  # seconds after which a run ends, to be called again
Array = np.ndarray[Any, Any]
Row = dict[str, float]


@dataclass(frozen=True)
class Part:
    """Training or test samples: inputs, encoded targets, and the constraints on their scores."""

    x: Tensor
    y: Tensor
    constraints: tuple[Constraint, ...]
    project: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Task:
    """A network and its data.

    Attributes:
        hidden: units.
        skip: whether the last layer sees the inputs, too.
        loss: of the scores.
        train: samples.
        test: samples.
        within: what ours holds at every input, by a projection.
    """

    hidden: int
    skip: bool
    loss: PinnedLoss
    train: Part
    test: Part
    within: tuple[Constraint, ...] = ()

    def start(self, seed: int) -> list[Weights]:
        """Return Kaiming weights with biases of 0."""
        generator = torch.Generator().manual_seed(seed)
        inputs, outputs = self.train.x.shape[1], self.train.y.shape[1]
        shapes = (inputs, self.hidden), (self.hidden + inputs * self.skip, outputs)
        return [
            Weights(
                torch.randn(*s, generator=generator, dtype=torch.float64) * math.sqrt(2 / s[0]),
                torch.zeros(s[1], dtype=torch.float64),
            )
            for s in shapes
        ]

    def features(self, x: Tensor, leaves: list[Tensor]) -> Tensor:
        """Return what the last layer sees."""
        h = torch.relu(torch.addmm(leaves[1], x, leaves[0]))
        return torch.cat([h, x], 1) if self.skip else h

    def scores(self, x: Tensor, leaves: list[Tensor]) -> Tensor:
        """Return the scores of weights W_1, b_1, W_2, b_2."""
        return torch.addmm(leaves[3], self.features(x, leaves), leaves[2])

    def objective(self, u: Tensor, y: Tensor, leaves: list[Tensor]) -> Tensor:
        """Return the loss over samples, and the squares of the weights."""
        squares = leaves[0].square().sum() + leaves[2].square().sum()
        if isinstance(self.loss, SquaredError):
            return (u - y).square().sum() / 2 + squares
        if isinstance(self.loss, BinaryCrossEntropy):
            return functional.binary_cross_entropy_with_logits(u, y, reduction="sum") + squares
        return functional.cross_entropy(u, y, reduction="sum") + squares


def scaled(*parts: Any) -> list[Tensor]:
    """Return float64 tensors with the first one's mean 0 and deviation 1 in every column."""
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    mean, deviation = arrays[0].mean(0), arrays[0].std(0) + 1e-12
    return [torch.from_numpy((array - mean) / deviation) for array in arrays]


def generated() -> Task:
    """Return two classes whose label goes with a group: equal mean score within .02."""
    x, label = make_classification(2_000, 20, n_informative=8, random_state=0)
    generator = np.random.default_rng(0)
    group = (x[:, 0] + label + generator.standard_normal(2_000) > 0.5).astype(int)
    train, test = scaled(x[:500], x[500:])
    y = torch.from_numpy(label[:, None].astype(np.float64))
    return Task(32, False, BinaryCrossEntropy(),
        Part(train, y[:500], (GroupMeans(group[:500], 0.02),)),
        Part(test, y[500:], (GroupMeans(group[500:], 0.02),)))  # fmt: skip


def moments(windows: Tensor) -> Array:
    """Return mean, deviation, least and largest of every channel, (windows, 4 channels)."""
    w = windows.double().numpy()
    return np.concatenate([w.mean(1), w.std(1), w.min(1), w.max(1)], axis=1)


def activity() -> Task:
    """Return HAR windows: mean logits of all persons within .1 of each other's mean."""
    arrays, sets = load(_HAR, None), har()
    every = slice(None, None, 24)
    train, test = scaled(moments(sets.x_train[every]), moments(sets.x_test[every]))
    pairs = (train, sets.y_train, "subject_train"), (test, sets.y_test, "subject_test")
    made = [
        Part(x, functional.one_hot(y[every].long(), 6).double(),
             (GroupMeans(arrays[who][every].astype(int), 0.1),))
        for x, y, who in pairs
    ]  # fmt: skip
    return Task(50, False, CrossEntropy(), *made)


def diabetes() -> Task:
    """Return diabetes: of 300 pairs, who is higher in bmi, bp and s5 is not predicted lower."""
    x, y = load_diabetes(return_X_y=True)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(x))
    rows = order[:331], order[331:]
    features, targets = scaled(*(x[r] for r in rows)), scaled(*(y[r, None] for r in rows))

    def pairs(z: Array) -> Array:
        higher = (z[:, None, [2, 3, 8]] < z[None][:, :, [2, 3, 8]]).all(-1)
        found = np.argwhere(higher)
        return generator.permutation(found)[:300]

    made = [
        Part(f, t, (Order(pairs(x[r])),)) for f, t, r in zip(features, targets, rows, strict=True)
    ]
    return Task(20, False, SquaredError(), *made)


def mass() -> Task:
    """Return three flows, not negative, that sum to a known inflow, from noisy measurements."""
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(2_000, 10))
    total = 2 + 4 * x[:, 3] + 2 * x[:, 4]
    parts = np.stack([10 * np.sin(np.pi * x[:, 0] * x[:, 1]), 20 * (x[:, 2] - 0.5) ** 2,
                      5 * x[:, 5]], axis=1) / 4  # fmt: skip
    shares = np.exp(parts) / np.exp(parts).sum(1, keepdims=True)
    y = torch.from_numpy(total[:, None] * shares + 0.3 * generator.standard_normal((2_000, 3)))
    train, test = scaled(x[:400], x[400:])
    known = torch.from_numpy(total)

    def part(z: Tensor, rows: slice) -> Part:
        held = Linear(np.ones(3), equal=known[rows]), Bounds(lower=0.0)
        return Part(z, y[rows], held, lambda u: on_simplices(u, known[rows]))

    return Task(30, True, SquaredError(), part(train, slice(400)), part(test, slice(400, None)))


def projected() -> Task:
    """Return the same, with the sum as a relation to the inputs, whose mean and deviation count."""
    x = np.random.default_rng(0).uniform(size=(2_000, 10))[:400]
    slopes = np.array([0, 0, 0, 4, 2, 0, 0, 0, 0, 0])
    total = Linear(np.ones(3), equal=2 + slopes @ x.mean(0), inputs=-slopes * (x.std(0) + 1e-12))
    return replace(mass(), within=(total, Bounds(lower=0.0)))


def on_simplices(u: Tensor, totals: Tensor) -> Tensor:
    """Return the nearest points that are not negative and have these sums (Held et al., 1974)."""
    falling = u.detach().sort(1, descending=True).values
    over = (falling.cumsum(1) - totals[:, None]) / torch.arange(1, u.shape[1] + 1)
    counts = (falling > over).sum(1, keepdim=True)
    on = u >= falling.gather(1, counts - 1)
    level = ((u * on).sum(1, keepdim=True) - totals[:, None]) / on.sum(1, keepdim=True)
    return (u - level).clamp(min=0)


TASKS: dict[str, Callable[[], Task]] = {
    "generated": generated, "activity": activity, "diabetes": diabetes, "mass": mass,
    "projected": projected,
}  # fmt: skip


class Rows:
    """The limits of a task, l <= A u <= h, with rows of norm 1."""

    def __init__(self, part: Part) -> None:
        """Take the constraints of a part."""
        found = [one.limits(*part.y.shape) for one in part.constraints]
        matrix = sparse.csr_matrix(sparse.vstack([x.matrix for x in found]))
        norms = sparse.linalg.norm(matrix, axis=1)
        self.matrix = sparse.csr_matrix(sparse.diags(1 / norms) @ matrix)
        self.back = sparse.csr_matrix(self.matrix.T)
        ends = (np.concatenate([getattr(x, e) for x in found]) for e in ("lower", "upper"))
        self.lower, self.upper = (torch.from_numpy(end / norms) for end in ends)
        self.equal = self.lower == self.upper

    def of(self, u: Tensor) -> Tensor:
        """Return A u, through which gradients pass."""
        return _Product.apply(u.reshape(-1), self)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return torch.from_numpy(rows.matrix @ u.detach().numpy())

    @staticmethod
    def backward(ctx: Any, push: Tensor) -> tuple[Tensor, None]:
        return torch.from_numpy(ctx.rows.back @ push.numpy()), None


def judged(
    task: Task,
    leaves: list[Tensor],
    seconds: float,
    projected: bool = False,
    model: Lifted | None = None,
) -> Row:
    """Return objective, largest violations, test loss and seconds; scores are those of a model."""
    with torch.no_grad():
        scored = model.scores if model else lambda x: task.scores(x, leaves)
        u, v = (scored(part.x) for part in (task.train, task.test))
        if projected:
            u, v = task.train.project(u), task.test.project(v)
        none = [torch.zeros(1) for _ in leaves]
        return {
            "objective": float(task.objective(u, task.train.y, leaves)),
            "violation": max(violations(task.train.constraints, u)),
            "test": float(task.objective(v, task.test.y, none)) / len(v),
            "test violation": max(violations(task.test.constraints, v)),
            "seconds": seconds,
        }


def ours(task: Task, seed: int) -> Row:
    """Return what `fit(..., constraints=...)` does without a setting."""
    network = Network()
    x = network.input(task.train.x.shape[1])
    h = network.state(ReLU(), dense(x, task.hidden))
    last = concatenate(h, x) if task.skip else h
    network.loss(task.loss, dense(last, task.train.y.shape[1]), within=task.within)
    model = Lifted(network, start=task.start(seed), standardize=False, seed=seed)
    held = () if task.within else task.train.constraints
    began = time.process_time()
    model.fit(task.train.x, task.train.y, constraints=held)
    seconds = time.process_time() - began
    leaves = [part for w in model.weights for part in (w.matrix, w.bias)]
    row = judged(task, leaves, seconds, model=model)
    assert abs(model.objective() / row["objective"] - 1) < 1e-9
    return {**row, "gap": model.constraint_report().gap} if held else row


def adam(
    task: Task, seed: int, rate: float, penalty: float, rows: Rows | None, projected: bool = False
) -> tuple[list[Tensor], float, float]:
    """Return weights, their penalized objective, and seconds."""
    leaves = [p.clone().requires_grad_() for w in task.start(seed) for p in (w.matrix, w.bias)]
    optimizer = torch.optim.Adam(leaves, rate)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / STEPS)
    began = time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        u = task.scores(task.train.x, leaves)
        u = task.train.project(u) if projected else u
        total = task.objective(u, task.train.y, leaves)
        if rows is not None:
            a = rows.of(u)
            total = total + penalty / 2 * (a - a.clamp(rows.lower, rows.upper)).square().sum()
        total.backward()
        optimizer.step()
        fall.step()
    return [x.detach() for x in leaves], float(total.detach()), time.process_time() - began


def refitted(task: Task, leaves: list[Tensor]) -> list[Tensor] | None:
    """Return the weights with the last layer fitted under the constraints; None where none is."""
    z = task.features(task.train.x, leaves)
    fit = WeightFit(task.loss.divergence, Design(z), task.train.y, SquaredFrobenius(1.0))
    try:
        found = solve(ConstrainedFit(fit, task.train.constraints)).require_solved().value
    except SolverError:
        return None
    return [*leaves[:2], found.matrix, found.bias]


def lagrangian(
    task: Task, seed: int, rate: float, coefficient: float, rows: Rows
) -> tuple[list[Tensor], float]:
    """Return the weights of cooper's augmented Lagrangian, and seconds."""
    import cooper

    leaves = [p.clone().requires_grad_() for w in task.start(seed) for p in (w.matrix, w.bias)]
    kinds = {"equal": cooper.ConstraintType.EQUALITY, "above": cooper.ConstraintType.INEQUALITY,
             "below": cooper.ConstraintType.INEQUALITY}  # fmt: skip
    chosen = {"equal": rows.equal, "above": rows.upper.isfinite() & ~rows.equal,
              "below": rows.lower.isfinite() & ~rows.equal}  # fmt: skip

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            for name, kind in kinds.items():
                if bool(chosen[name].any()):
                    count = int(chosen[name].sum())
                    setattr(self, name, cooper.Constraint(
                        kind, cooper.formulations.AugmentedLagrangian,
                        cooper.multipliers.DenseMultiplier(count, dtype=torch.float64),
                        cooper.penalty_coefficients.DensePenaltyCoefficient(
                            torch.tensor(coefficient, dtype=torch.float64)),
                    ))  # fmt: skip

        def compute_cmp_state(self) -> Any:
            u = task.scores(task.train.x, leaves)
            a = rows.of(u)
            off = {"equal": a - rows.upper, "above": a - rows.upper, "below": rows.lower - a}
            states = {
                one: cooper.ConstraintState(violation=off[name][chosen[name]])
                for name, one in self.named_constraints()
            }
            loss = task.objective(u, task.train.y, leaves)
            return cooper.CMPState(loss=loss, observed_constraints=states)

    problem = Problem()
    primal = torch.optim.Adam(leaves, rate)
    fall = torch.optim.lr_scheduler.LambdaLR(primal, lambda n: 1 - n / STEPS)
    prices = torch.optim.SGD(problem.dual_parameters(), DUAL_RATE * coefficient, maximize=True)
    both = cooper.optim.AlternatingDualPrimalOptimizer(problem, primal, prices)
    began = time.process_time()
    for _ in range(STEPS):
        both.roll()
        fall.step()
    return [x.detach() for x in leaves], time.process_time() - began


Tried = dict[str, Row]


def read(name: str, seed: int) -> Tried:
    """Return what has run, by method and settings."""
    lines = RUNS.read_text(encoding="utf-8").splitlines() if RUNS.exists() else []
    rows = map(json.loads, lines)
    return {x["key"]: x["row"] for x in rows if (x["task"], x["seed"]) == (name, seed)}


def keys(name: str, seed: int) -> Iterator[str]:
    """Yield what is to run: all settings on seed 0, and on others what it has chosen."""
    yield "ours"
    if seed:
        first = read(name, 0)
        best = (chosen(first, label) for label in LABELS[1:] if "last layer" not in label)
        yield from (key for key in best if key is not None)
        return
    projected = name == "projected"
    for label in ("projection",) if projected else (*PENALIZED, "none"):
        yield from (f"{label}|{rate}" for rate in RATES)
    for rate in () if projected else RATES:
        yield from (f"Lagrangian|{rate}|{each}" for each in COEFFICIENTS)


def chosen(tried: Tried, label: str) -> str | None:
    """Return the best setting of a method, or None where it has brought nothing."""
    if "last layer" in label:  # of the setting that is best without it
        before = chosen(tried, "none" if label == "last layer" else "Lagrangian") or ""
        key = "|".join([label, *before.split("|")[1:]])
        return key if key in tried else None
    found = [key for key in tried if key.split("|")[0] == label]
    if label in ("ours", "Lagrangian"):
        near = [key for key in found if tried[key]["violation"] < 1e-2]
        if not near:
            return min(found, key=lambda key: tried[key]["violation"], default=None)
        least = min(tried[key]["objective"] for key in near)
        good = [key for key in near if tried[key]["objective"] <= 1.02 * least]
        return min(good, key=lambda key: tried[key]["violation"])
    return min(found, key=lambda key: tried[key]["aim"], default=None)


def refitted_row(task: Task, leaves: list[Tensor], seconds: float, key: str) -> Tried:
    """Return the row of an exact fit of the last layer, or none where there is no such fit."""
    began = time.process_time()
    after = refitted(task, leaves)
    seconds += time.process_time() - began
    return {} if after is None else {key: judged(task, after, seconds)}


def run(name: str, seed: int) -> bool:
    """Run what has not run of a task on a seed, and return whether that was all."""
    task, tried, began = TASKS[name](), read(name, seed), time.monotonic()
    known = dict(tried)
    rows = Rows(task.train)
    for key in keys(name, seed):
        if key in tried:
            continue
        if time.monotonic() - began > PATIENCE:
            return False
        label, *numbers = key.split("|")
        settings = [float(x) for x in numbers]
        if label == "ours":
            tried[key] = ours(task, seed)
        elif label == "Lagrangian":
            leaves, seconds = lagrangian(task, seed, *settings, rows)
            tried[key] = judged(task, leaves, seconds)
            tried |= refitted_row(task, leaves, seconds, f"{label}, last layer|{'|'.join(numbers)}")
        else:
            penalty = float(label.split()[1]) if label in PENALIZED else 0.0
            held, projected = rows if label in PENALIZED else None, label == "projection"
            leaves, aim, seconds = adam(task, seed, settings[0], penalty, held, projected)
            tried[key] = {**judged(task, leaves, seconds, projected), "aim": aim}
            if label == "none":
                tried |= refitted_row(task, leaves, seconds, f"last layer|{settings[0]}")
        new = {found: row for found, row in tried.items() if found not in known}
        with RUNS.open("a", encoding="utf-8") as file:
            for found, row in new.items():
                line = {"task": name, "seed": seed, "key": found, "row": row}
                file.write(json.dumps(line) + "\n")
        known |= new
    return True


PENALIZED = [f"penalty {penalty:g}" for penalty in PENALTIES]
LABELS = [
    "ours", *PENALIZED, "Lagrangian", "Lagrangian, last layer", "none", "last layer", "projection"
]  # fmt: skip
TITLES = {
    "generated": "Two classes, 500 samples, 20-32-1: group means within .02",
    "activity": "HAR, 307 windows (36 moments), 36-50-6: mean logits of 21 persons within .1",
    "diabetes": "Diabetes, 331 samples, 10-20-1: order of 300 pairs",
    "mass": "Three flows, 400 samples, 10-30-3 with a skip: known sum, not negative",
    "projected": "Three flows again, beside a projection of every sample",
}
NAMES = {"ours": "ours", "Lagrangian": "Lagrangian (cooper-optim)",
         "projection": "Adam through a projection of every sample",
         "last layer": "Adam, then the last layer exactly", "none": "Adam without constraints",
         "Lagrangian, last layer": "Lagrangian, then the last layer exactly"}  # fmt: skip


def table(name: str) -> list[str]:
    """Return the table of a task, over the seeds that have run."""
    pieces = [x for seed in SEEDS if "ours" in (x := read(name, seed))]
    lines = [
        f"## {TITLES[name]}", "",
        "| method | objective, mean (worst) | over ours, mean | violation, mean (worst) | "
        "test loss | test violation | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for label in ("ours", "projection") if name == "projected" else LABELS[:-1]:
        best = [(piece, chosen(piece, label)) for piece in pieces]
        pairs = [(piece[key], piece["ours"]) for piece, key in best if key is not None]
        shown = NAMES.get(label) or f"Adam, {label}"
        if not pairs:
            base = chosen(pieces[0], "none" if label == "last layer" else "Lagrangian")
            why = "no weights meet them" if "last layer" in label and base else "not run"
            lines.append(f"| {shown} | {why} | | | | | |")
            continue
        mean, worst = ({key: f(row[key] for row, _ in pairs) for key in COLUMNS}
                       for f in (lambda x: fmean(list(x)), max))  # fmt: skip
        ratio = fmean(row["objective"] / own["objective"] for row, own in pairs)
        failed = "" if len(pairs) == len(pieces) else f" ({len(pairs)} of {len(pieces)} seeds)"
        lines.append(
            f"| {shown}{failed} | {mean['objective']:.2f} ({worst['objective']:.2f}) | "
            f"{ratio:.3f} | {mean['violation']:.1e} ({worst['violation']:.1e}) | "
            f"{mean['test']:.4f} | {mean['test violation']:.2g} | {mean['seconds']:.1f} |"
        )
    gaps = [piece["ours"]["gap"] for piece in pieces if "gap" in piece["ours"]]
    told = f"; largest duality gap of our last layer {max(gaps):.1e}" if gaps else ""
    return [*lines, "", f"Seeds: {len(pieces)}{told}. {aim(pieces)}", ""]


def aim(pieces: list[Tried]) -> str:
    """Return how ours stands beside the best that any setting of any method met, seed by seed."""
    over, equal = [], []
    for piece in pieces:
        own = piece["ours"]["objective"]
        met = [row["objective"] for row in piece.values() if row["violation"] <= 1e-6]
        over.append(own / min(met) - 1)
        equal += [
            row["violation"] for key, row in piece.items()
            if key.startswith("penalty") and row["objective"] <= 1.05 * own
        ]  # fmt: skip
    told = (
        "Over the best objective that any try of any method has at a violation of at most 1e-6 "
        f"ours is {fmean(over):.1%} above in the mean, {max(over):.1%} at worst"
    )
    if equal:
        told += f"; penalties at no more than 1.05 times ours violate by {min(equal):.1e} or more"
    return f"{told}."


COLUMNS = ("objective", "violation", "test", "test violation", "seconds")


def write() -> None:
    """Write what has run; tasks of which nothing has stay as they were written before."""
    old = RESULT.read_text(encoding="utf-8").split("\n## ")
    text = ["# Constraints on outputs", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    for name in TASKS:
        before = [part for part in old if part.startswith(f"{TITLES[name]}\n")]
        text += table(name) if read(name, 0) else [f"## {part.strip()}\n" for part in before]
    where = ", ".join(f"{key} {value}" for key, value in machine().items())
    RESULT.write_text("\n".join([*text, f"({where}.)", ""]), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 3:
        sys.exit(not run(sys.argv[1], int(sys.argv[2])))
    else:
        write()
