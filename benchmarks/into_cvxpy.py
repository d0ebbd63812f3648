"""The largest output of a trained network over a box, proven: ours, OMLT with HiGHS, or SCIP.

Run it with `OMP_NUM_THREADS=1 OMLT_PYTHON=folder/bin/python SCIP_PYTHON=other/bin/python python -m
benchmarks.into_cvxpy`, some tens of minutes of one core; OMLT_PYTHON is a Python that has omlt
1.2.2, pyomo 6.10.1 and highspy 1.15.1, SCIP_PYTHON one with torch, pyscipopt 6.3.0 and pyscipopt-ml
1.4.1. It goes on where it was interrupted: runs that stand in benchmarks/results/into_cvxpy.jsonl
are not repeated.

Networks of ReLU fit y = log(exp(<a, x>) + exp(<b, x>)) + .3 |x|^2 on 600 points of [-2, 2]^p, by
ours without options (`LiftedRegressor`, one seed) and by torch's Adam (1,000 steps at the rate .01
on all points, targets standardized). Each opponent maximizes the output over [-2, 2]^p until a gap
of 1e-4 is proven, for 10 s, and where these are not enough for 60 s from the beginning. OMLT has
its big-M formulation, with bounds by intervals. Gradient ascent is Adam on 100 starts together, 300
steps at the rate .05, clipped to the box: it proves nothing. Seconds are processor time, statement
of the problem included, since the machine did other work; the time limit counts as the solver
counts it, in wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from benchmarks.harness.opponents import dense_network
from benchmarks.harness.runs import RESULTS, Outcome, Record, run_all
from liftednet import (
    LiftedClassifier,
    LiftedRegressor,
    optimize,
    robustness_radius,
    to_cvxpy,
    to_torch,
)
from liftednet.models import Lifted, Minibatch, input_convex

GAP, LIMITS, BOX = 1e-4, (10.0, 60.0), 2.0
SHAPES = (
    (2, (20,)), (2, (50,)), (5, (20,)), (5, (50,)), (10, (20,)),
    (2, (20, 20)), (5, (10, 10)), (5, (10, 10, 10)), (5, (10, 10, 10, 10)), (5, (20, 20)),
    (10, (20, 20)), (20, (50,)), (50, (50,)), (2, (200, 200)), (5, (100, 100, 100, 100)),
    (10, (200, 200)),
)  # fmt: skip
RATES = (0.3, 1.0, 3.0, 10.0)
METHODS = ("ours", "OMLT", "SCIP", "100 gradient starts")


@dataclass(frozen=True)
class Run:
    """One network and one who maximizes it.

    Attributes:
        inputs: of the network.
        hidden: units of its layers, such as "20-20".
        trained: by whom.
        method: who maximizes.
    """

    inputs: int
    hidden: str
    trained: str
    method: str


def drawn(generator: np.random.Generator, rows: int, inputs: int) -> tuple[Any, Any]:
    """Return points of the box and what networks fit there."""
    x = generator.uniform(-BOX, BOX, (rows, inputs))
    a, b = generator.normal(size=(2, inputs))
    return x, np.logaddexp(x @ a, x @ b) + 0.3 * (x**2).sum(1)


def by_adam(
    sizes: tuple[int, ...], rate: float, steps: int, loss: Callable[[nn.Module], Tensor]
) -> nn.Sequential:
    """Return a network of ReLU after full steps of Adam, in float64."""
    torch.manual_seed(0)
    network = dense_network(*sizes).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network).backward()
        optimizer.step()
    return network


def network_of(run: Run) -> nn.Sequential:
    """Return the trained network, in float64."""
    x, y = drawn(np.random.default_rng(0), 600, run.inputs)
    hidden = tuple(map(int, run.hidden.split("-")))
    if run.trained == "ours":
        with warnings.catch_warnings(action="ignore"):
            model = LiftedRegressor(hidden, random_state=0).fit(x, y)
        found: nn.Sequential = to_torch(model.model_).double()
        return found
    rows, wanted = torch.from_numpy(x), torch.from_numpy((y - y.mean()) / y.std())[:, None]
    sizes = (run.inputs, *hidden, 1)
    return by_adam(sizes, 0.01, 1000, lambda network: (network(rows) - wanted).square().mean())


def by_ours(network: nn.Sequential, inputs: int, limit: float = 1.0) -> Outcome:
    started, x = time.process_time(), cp.Variable(inputs)
    stated = to_cvxpy(network, x, box=(-BOX, BOX), mixed_integer=True)
    built, begun = time.process_time() - started, time.perf_counter()
    best = optimize(stated, cp.Maximize(stated.output[0]), gap=GAP, seconds=limit)
    spent, wall = time.process_time() - started, time.perf_counter() - begun
    first = built + best.first[1] * (spent - built) / wall  # told in wall time
    return {
        "seconds": spent, "value": best.value, "bound": best.bound, "first": best.first[0],
        "first_seconds": first, "whole": stated.whole,
    }  # fmt: skip


def by_others(method: str, network: nn.Sequential, limit: float) -> Outcome:
    layers = [x for x in network if isinstance(x, nn.Linear)]
    arrays = {}
    for number, layer in enumerate(layers):
        arrays[f"W{number}"] = layer.weight.detach().numpy().T
        arrays[f"b{number}"] = layer.bias.detach().numpy()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/network.npz", **arrays)
        script = Path(__file__).parent / "into_cvxpy_opponents.py"
        said = subprocess.run(
            [os.environ[f"{method}_PYTHON"], script, method, f"{folder}/network.npz", str(limit)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: Outcome = json.loads(said.stdout.splitlines()[-1])
    return found


def by_gradients(network: nn.Sequential, inputs: int) -> Outcome:
    started = time.process_time()
    generator = torch.Generator().manual_seed(0)
    x = BOX * (2 * torch.rand(100, inputs, generator=generator, dtype=torch.float64) - 1)
    x.requires_grad_()
    steps, best = torch.optim.Adam([x], lr=0.05), -torch.inf
    for _ in range(300):
        steps.zero_grad()
        y = network(x)
        best = max(best, float(y.detach().max()))
        (-y.sum()).backward()
        steps.step()
        with torch.no_grad():
            x.clamp_(-BOX, BOX)
    return {"seconds": time.process_time() - started, "value": best}


def measured(run: Run) -> Outcome:
    network, early = network_of(run), dict[str, float]()
    if run.method == METHODS[-1]:
        return by_gradients(network, run.inputs)
    for limit in LIMITS:
        found = (
            by_ours(network, run.inputs, limit)
            if run.method == "ours"
            else by_others(run.method, network, limit)
        )
        if gap(found) <= 1.01 * GAP:
            break
        early = early or {"early": found["value"], "early_bound": found["bound"]}
    return {**found, **early}


def runs() -> list[Run]:
    return [
        Run(inputs, "-".join(map(str, hidden)), trained, method)
        for inputs, hidden in SHAPES
        for trained in ("ours", "Adam")
        for method in METHODS
    ]


@dataclass(frozen=True)
class Convex:
    """One input-convex network of 100 inputs.

    Attributes:
        units: of each of two layers.
        seed: of points, start and constraints.
    """

    units: int
    seed: int


def by_projected_steps(output: Any, rows: Any, rate: float) -> float:
    """Return the least output on the way of projected subgradient steps from the middle."""
    z, best = np.zeros(rows.shape[1]), np.inf
    prices = np.zeros(len(rows))  # of the dual of a projection, where the last one has ended
    for step in range(1, 301):
        value, slope = output(z)
        if step > 1:
            best = min(best, value)
        aim = z - rate / step**0.5 * slope / np.linalg.norm(slope)

        def dual(y: Any, aim: Any = aim) -> tuple[float, Any]:
            near = np.clip(aim + y @ rows, -BOX, BOX)
            off = rows @ near - 5
            return float(y @ off - 0.5 * ((near - aim) ** 2).sum()), off

        prices = minimize(
            dual, prices, jac=True, bounds=[(0, None)] * len(rows), method="L-BFGS-B"
        ).x
        z = np.clip(aim + prices @ rows, -BOX, BOX)
    return best


def by_convexity(run: Convex) -> Outcome:
    generator, inputs = np.random.default_rng(run.seed), 100
    x, y = drawn(generator, 1000, inputs)
    network = input_convex((inputs, run.units, run.units, 1))
    model = Lifted(network, method=Minibatch(epochs=20), seed=run.seed)
    model.fit(torch.from_numpy(x), torch.from_numpy(y)[:, None])
    rows = generator.normal(size=(10, inputs))
    started, z = time.process_time(), cp.Variable(inputs, bounds=[-BOX, BOX])
    stated = to_cvxpy(model, z)
    best = optimize(stated, cp.Minimize(stated.output[0]), [rows @ z >= 5], gap=1e-8)
    spent, module = time.process_time() - started, to_torch(model).double()

    def output(point: Any) -> tuple[float, Any]:
        given = torch.from_numpy(point).requires_grad_()
        value = module(given[None]).sum()
        value.backward()
        assert given.grad is not None
        return float(value.detach()), given.grad.numpy()

    started = time.process_time()
    limits = {"type": "ineq", "fun": lambda z: rows @ z - 5, "jac": lambda z: rows}
    found = minimize(
        output, np.zeros(inputs), jac=True, bounds=[(-BOX, BOX)] * inputs, constraints=limits,
        method="SLSQP", options={"maxiter": 300},
    )  # fmt: skip
    their_seconds, started = time.process_time() - started, time.process_time()
    projected = min(by_projected_steps(output, rows, rate) for rate in RATES)
    return {
        "projected": projected, "projected_seconds": time.process_time() - started,
        "seconds": spent, "value": best.value, "gap": best.gap, "proven": best.proven,
        "theirs": float(found.fun), "their_seconds": their_seconds,
        "broken": float((5 - rows @ found.x).max()),
    }  # fmt: skip


@dataclass(frozen=True)
class Digit:
    """The robustness radius of one test digit.

    Attributes:
        number: among those that are right.
        hidden: units, such as "50-50".
        trained: by whom.
        norm: "2" or "inf".
    """

    number: int
    hidden: str
    trained: str
    norm: str


@cache
def digits_of(hidden: str, trained: str) -> tuple[nn.Sequential, Any]:
    """Return a network of logits, and the test digits that it has right."""
    x, y = load_digits(return_X_y=True)
    x, new_x, y, new_y = train_test_split(x, y, test_size=500, random_state=0)
    units = tuple(map(int, hidden.split("-")))
    if trained == "ours":
        with warnings.catch_warnings(action="ignore"):
            model = LiftedClassifier(units, activation="relu", random_state=0).fit(x, y)
        network = to_torch(model.model_, logits=True).double()
    else:
        inputs, classes = torch.from_numpy(x / 16), torch.from_numpy(y)
        network = by_adam(
            (64, *units, 10), 0.003, 500,
            lambda network: nn.functional.cross_entropy(network(inputs), classes),
        )  # fmt: skip
        with torch.no_grad():
            next(network.parameters()).div_(16)
    with torch.no_grad():
        answers = network(torch.from_numpy(new_x)).argmax(1).numpy()
    return network, new_x[answers == new_y]


def radius(run: Digit) -> Outcome:
    network, right = digits_of(run.hidden, run.trained)
    started, norm = time.process_time(), float(run.norm)
    found = robustness_radius(network, right[run.number], norm=norm, box=(0, 16), seconds=10)
    spent = time.process_time() - started
    return {"seconds": spent, "least": found.least, "most": found.most}


def more(convex: list[Record[Convex]], digits: list[Record[Digit]]) -> str:
    lines = [
        "", "## The least output of convex networks, proven", "",
        "Of 100 inputs, over a box and ten constraints. SLSQP and projected subgradient steps "
        "(300, the best of four rates) are behind by what is relative to our best value.", "",
        "| units | seed | ours: seconds (gap) | proven | SLSQP: seconds, behind, breaks by "
        "| projected steps: seconds, behind |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for one in convex:
        c, o = one.settings, one.outcome
        slsqp, projected = ((o[x] - o["value"]) / abs(o["value"]) for x in ("theirs", "projected"))
        lines.append(
            f"| 2 x {c.units} | {c.seed} | {o['seconds']:.2f} ({o['gap']:.0e}) "
            f"| {'yes' if o['proven'] else 'no'} "
            f"| {o['their_seconds']:.2f}, {slsqp:.1e}, {max(o['broken'], 0):.0e} "
            f"| {o['projected_seconds']:.2f}, {projected:.1e} |"
        )
    lines += [
        "", "## Robustness radii of digits", "",
        "Pixels from 0 to 16, ten test digits, 10 s each: the radius that is proven over that at "
        "which there is another answer, mean and least; how many are within 1e-3.", "",
        "| hidden | trained by | norm | proven over attained: mean, least | within 1e-3 "
        "| radius, mean | seconds, mean |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    groups = dict.fromkeys((d.settings.hidden, d.settings.trained, d.settings.norm) for d in digits)
    for group in groups:
        own = [d.outcome for d in digits
               if (d.settings.hidden, d.settings.trained, d.settings.norm) == group]  # fmt: skip
        shares = [o["least"] / o["most"] for o in own]
        lines.append(
            f"| {' | '.join(group)} | {fmean(shares):.3f}, {min(shares):.3f} "
            f"| {sum(x >= 0.999 for x in shares)} of {len(own)} "
            f"| {fmean(o['most'] for o in own):.3f} | {fmean(o['seconds'] for o in own):.2f} |"
        )
    return "\n".join(lines) + "\n"


def gap(outcome: Any) -> float:
    return float(abs(outcome["bound"] - outcome["value"]) / abs(outcome["value"]))


def told(outcome: Any) -> str:
    found = f"{gap(outcome):.0e}"
    if "early" in outcome:
        before = gap({"value": outcome["early"], "bound": outcome["early_bound"]})
        found = f"{before:.0e} at {LIMITS[0]:g} s, {found}"
    return f"{outcome['seconds']:.2f} ({found})"


def table(records: list[Record[Run]]) -> str:
    by = {r.settings: r.outcome for r in records}
    lines = [
        "# The largest output of a network over a box, proven", "",
        f"To a gap of {GAP:g}, or for {LIMITS[0]:g} s, then {LIMITS[1]:g} s: of what is "
        "not proven in the first, both gaps. Seconds are processor time of one thread of a machine "
        "that did other work; OMLT 1.2.2 has HiGHS 1.15.1, PySCIPOpt-ML 1.4.1 has SCIP 10. "
        "First "
        "answers are ours before any proof; what they and 100 gradient starts miss is relative to "
        "the best that is known. `python -m benchmarks.into_cvxpy`.", "",
        "| inputs | hidden | trained by | whole numbers | ours: seconds (gap) "
        "| OMLT: seconds (gap) | ratio | SCIP: seconds (gap) | first answer: seconds, misses "
        "| 100 gradient starts: seconds, misses |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    ratios, of_scip, misses, shares, proven = [], [], [], [], [0, 0, 0]
    for run in by:
        each = [by.get(Run(run.inputs, run.hidden, run.trained, m)) for m in METHODS]
        if run.method != "ours" or None in each:
            continue
        ours, omlt, scip, ascent = each
        assert ours is not None and omlt is not None and scip is not None and ascent is not None
        best = max(x["value"] for x in (ours, omlt, scip, ascent))
        off, theirs = ((best - x) / abs(best) for x in (ours["first"], ascent["value"]))
        misses.append(off)
        shares.append(ours["first_seconds"] / ascent["seconds"])
        done = [gap(x) <= 1.01 * GAP for x in (ours, omlt, scip)]
        both, proven = all(done[:2]), [n + x for n, x in zip(proven, done, strict=True)]
        if done[0] and done[2]:
            of_scip.append(scip["seconds"] / ours["seconds"])
        ratio = f"{omlt['seconds'] / ours['seconds']:.2f}" if both else ""
        if both:
            ratios.append(omlt["seconds"] / ours["seconds"])
        lines.append(
            f"| {run.inputs} | {run.hidden} | {run.trained} | {ours['whole']} "
            f"| {told(ours)} | {told(omlt)} "
            f"| {ratio} | {told(scip)} "
            f"| {ours['first_seconds']:.2f}, {max(off, 0):.2%} "
            f"| {ascent['seconds']:.2f}, {max(theirs, 0):.2%} |"
        )
    mean = exp(fmean(map(log, ratios)))
    lines += [
        "", "| what | figure |", "| --- | --- |",
        f"| networks that ours proves, that OMLT, that SCIP proves, of {len(misses)} "
        f"| {', '.join(map(str, proven))} |",
        f"| SCIP's seconds over ours where both do, geometric mean, the least "
        f"| {exp(fmean(map(log, of_scip))):.2f}, {min(of_scip):.2f} |",
        f"| OMLT's seconds over ours where both do, geometric mean | {mean:.2f} |",
        f"| the least | {min(ratios):.2f} |",
        f"| first answers within 1 % of the best known | {sum(x <= 0.01 for x in misses)} of "
        f"{len(misses)} |",
        f"| their seconds over those of 100 gradient starts, mean | {fmean(shares):.2f} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    by_ours(dense_network(2, 2, 1).double(), 2)  # imports
    records = run_all(RESULTS / "into_cvxpy.jsonl", runs(), measured)
    each = [Convex(units, seed) for units in (100, 200) for seed in range(3)]
    convex = run_all(RESULTS / "into_cvxpy_convex.jsonl", each, by_convexity)
    ten = [
        Digit(number, hidden, trained, norm)
        for hidden in ("20", "50-50") for trained in ("ours", "Adam")
        for norm in ("inf", "2") for number in range(10)
    ]  # fmt: skip
    digits = run_all(RESULTS / "into_cvxpy_radii.jsonl", ten, radius)
    (RESULTS / "into_cvxpy.md").write_text(table(records) + more(convex, digits))


if __name__ == "__main__":
    main()
