"""What a Gauss-Newton step costs by products and by a matrix, and what conjugate gradients need.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.gauss_newton`, five minutes; with --quick it
takes seconds and writes nothing. Processor time, written to benchmarks/results/gauss_newton.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor

from benchmarks.solvers import machine
from liftednet import starts
from liftednet.activations import ReLU, Tanh
from liftednet.data import echo, running_sum, timer
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.solvers import gauss_newton
from liftednet.solvers.curvature_products import CurvatureProducts
from liftednet.solvers.gauss_newton import Taken, steps
from liftednet.solvers.levenberg_marquardt import LevenbergMarquardt
from liftednet.solvers.normal_equations import normal_equations
from liftednet.solvers.objective import Forward, Target, Tensors, joined

RESULT = Path(__file__).parent / "results" / "gauss_newton.md"
# Seconds of one model by version 0.1's dense sensitivities, measured on the machine of the result.
BEFORE = {"echo 10-20-10": 0.95, "echo 10-60-10": 20.0, "sum 100": 0.28, "timer 100": 0.22}


COSTS = (
    "A model by products is one pass forward and three back; a step takes 15 to 90 products more. "
    "The last column is version 0.1's matrix of dense sensitivities, on the same machine."
)
RACES = (
    "Every step from the same start, by each form; the matrix is left out beyond 2,000 weights. "
    "The last column is accuracy on unseen sequences, or the root mean square error. The matrix is "
    "exact, and no better for it: the model is not."
)
SMALL_RACES = "Here a matrix takes less time than its products' overhead, and ends lower."
STOPPING = (
    "The objective after the same time, by what the last products (window, or a tenth of all) must "
    "lower the model by. Loose is better at first, tight where the last digits count."
)
PRECONDITIONERS = (
    "Products until conjugate gradients have 90, 99 and 99.9 % of the damped decrease, at the "
    "damping of that step. The damped curvature has some large eigenvalues and a crowd at the "
    "damping, which a diagonal or Kronecker-factored metric, even the nearest one to the known "
    "matrix, scatters. Eigenvectors of the step before save products; found from its Krylov space "
    "they saved none of the time in whole trainings."
)
TRAININGS = (
    "As results/lifted-rnn trains them together: 20 steps, for sum and timer on the first half "
    "of the sequences, then 10 on the whole; two starts of the timer. Version 0.1 has echo lag 4 "
    "0.639 ± 0.003 in 31 s, sum 0.992 ± 0.003 in 6 s, timer 0.994 ± 0.006 in 10 s."
)


def recurrent(weights: Tensors, data: Tensors) -> Tensors:
    cell, readout = weights
    units = cell.shape[1]
    square, states = cell[:units], [data[0].new_zeros(len(data[0]), units)]
    for drive in (data[0] @ cell[units:-1] + cell[-1]).unbind(1):
        states.append(ReLU().forward(torch.addmm(drive, states[-1], square)))
    return (torch.stack(states[1:], 1) @ readout[:-1] + readout[-1],)


def feedforward(weights: Tensors, data: Tensors) -> Tensors:
    rows = data[0]
    for weight in weights[:-1]:
        rows = Tanh().forward(rows @ weight[:-1] + weight[-1])
    return ((rows @ weights[-1][:-1] + weights[-1][-1])[:, None],)


@dataclass(frozen=True)
class Case:
    """A network, its start, and how well it does on test data."""

    forward: Forward
    start: Tensor
    test: Callable[[Tensor], float]


def sequences(task: str, samples: int, seed: int, length: int = 100) -> tuple[Tensor, Tensor]:
    if task == "echo":
        return echo(samples, length, 4, 10, seed)
    if task == "sum":
        return running_sum(samples, length, seed)
    x, y = timer(samples, length, 20, seed=seed)
    return torch.cat([x[..., :1] / 20, x[..., 1:]], -1), y


def drawn(kind: str, sizes: tuple[int, int, int], seed: int) -> Tensor:
    inputs, hidden, outputs = sizes
    generator = torch.Generator().manual_seed(seed)
    square = starts.orthogonal(hidden, generator)
    if kind == "gaussian":
        square = starts.gaussian(hidden, 1.0, generator)
    below = torch.randn(inputs, hidden, generator=generator) / (inputs + hidden) ** 0.5
    above = torch.randn(hidden, outputs, generator=generator) / hidden**0.5
    none = torch.zeros(1, hidden), torch.zeros(1, outputs)
    return joined([torch.cat([square, below, none[0]]), torch.cat([above, none[1]])])


def problem(x: Tensor, y: Tensor, hidden: int, classes: int, rho: float) -> Forward:
    pull = (
        torch.full((hidden + x.shape[2] + 1, hidden), 2 * rho),
        torch.full((hidden + 1, classes), 2 * rho),
    )
    for part in pull:
        part[-1] = 0.0
    values = torch.nn.functional.one_hot(y, classes)
    counted = torch.ones(y.shape, dtype=torch.bool)
    return Forward(recurrent, (x,), (Target(CrossEntropy().divergence, values, counted),), pull)


def sequence_case(
    task: str, hidden: int, samples: int, length: int, seed: int = 0, restart: int = 0
) -> Case:
    classes, rho = (10, 3.0) if task == "echo" else (2, 0.1)
    x, y = sequences(task, samples, 2 * seed, length)
    forward = problem(x, y, hidden, classes, rho)
    kind = "gaussian" if task == "timer" else "orthogonal"
    start = drawn(kind, (x.shape[2], hidden, classes), seed + 1000 * restart)
    unseen, answers = sequences(task, 1000, 2 * seed + 1, length)

    def accuracy(point: Tensor) -> float:
        found = recurrent(forward.split(point), (unseen.double(),))[0].argmax(-1)
        return float((found == answers).double().mean())

    return Case(forward, start, accuracy)


def smooth_case(hidden: tuple[int, ...], samples: int, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(2, samples, 2, generator=generator, dtype=torch.float64) - 1
    y = (3 * x[..., 0]).sin() * (2 * x[..., 1]).cos() + x[..., 0] * x[..., 1]
    y = ((y - y[0].mean()) / y[0].std())[..., None]
    sizes = list(pairwise((2, *hidden, 1)))
    drawn = [torch.rand(rows + 1, units, generator=generator) * 2 - 1 for rows, units in sizes]
    start = joined([w / rows**0.5 for w, (rows, _) in zip(drawn, sizes, strict=True)])
    target = Target(SquaredError().divergence, y[0][:, None], torch.ones(samples, 1).bool())
    forward = Forward(feedforward, (x[0],), (target,), tuple(torch.zeros_like(w) for w in drawn))

    def error(point: Tensor) -> float:
        found = feedforward(forward.split(point), (x[1],))[0][:, 0]
        return float((found - y[1]).square().mean().sqrt())

    return Case(forward, start, error)


CASES: dict[str, Callable[[], Case]] = {
    "echo 10-20-10": partial(sequence_case, "echo", 20, 200, 10),
    "echo 10-60-10": partial(sequence_case, "echo", 60, 50, 25),
    "echo 10-200-10": partial(sequence_case, "echo", 200, 50, 25),
    "sum 100": partial(sequence_case, "sum", 10, 200, 100),
    "timer 100": partial(sequence_case, "timer", 10, 200, 100),
    "2-40-40-1": partial(smooth_case, (40, 40), 3000),
}
SMALL: dict[str, Callable[[], Case]] = {
    f"2-{'-'.join(map(str, hidden))}-1, {samples:,} samples": partial(smooth_case, hidden, samples)
    for hidden in ((10, 10), (20, 20), (30, 30))
    for samples in (200, 2000)
}


def seconds(run: Callable[[], object], repeats: int) -> float:
    run()
    started = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - started) / repeats


def path(case: Case, form: str, most: float) -> list[tuple[float, Taken]]:
    """Return the steps of some seconds, and when each was done."""
    started, found = time.process_time(), []
    for taken in steps(case.forward, case.start, 1e-9, form):
        found.append((time.process_time() - started, taken))
        if found[-1][0] > most:
            break
    return found


def costs(most: float) -> Iterator[str]:
    yield "| task | weights | answers | pass forward | model | product | matrix | 0.1's matrix |"
    yield "| --- |" + " ---: |" * 7
    for name, make in CASES.items():
        forward, start = (case := make()).forward, case.start
        model = CurvatureProducts(forward, start)
        times = [
            seconds(partial(forward.objective, start), 5),
            seconds(partial(CurvatureProducts, forward, start), 3),
            seconds(partial(model.curvature.product, start), 10),
        ]
        matrix = "-"
        if len(start) < 2000 and most > 1:
            matrix = f"{1e3 * seconds(partial(normal_equations, forward, start), 1):.0f}"
        before = f"{1e3 * BEFORE[name]:.0f}" if name in BEFORE else "-"
        figures = " | ".join(f"{1e3 * found:.1f}" for found in times)
        answers = forward.targets[0].values.numel()
        yield f"| {name} | {len(start):,} | {answers:,} | {figures} | {matrix} | {before} |"


def races(cases: dict[str, Callable[[], Case]], most: float) -> Iterator[str]:
    marks = [most / 9, most / 3, most]
    head = " | ".join(f"after {mark:.2g} s" for mark in marks)
    yield f"| task | form | steps | ms a step | {head} | test |"
    yield "| --- | --- |" + " ---: |" * 6
    for name, make in cases.items():
        case = make()
        for form in ("products", "normal"):
            if form == "normal" and len(case.start) > 2000:
                continue
            found = path(case, form, most)
            values = (
                [taken.objective for at, taken in found if at <= mark] or [torch.nan]
                for mark in marks
            )
            cells = " | ".join(f"{value[-1]:.4g}" for value in values)
            last, taken = found[-1]
            pace = f"{len(found)} | {1e3 * last / len(found):.0f}"
            yield f"| {name} | {form} | {pace} | {cells} | {case.test(taken.point):.3g} |"


def stopping(most: float) -> Iterator[str]:
    names = ("echo 10-60-10", "2-40-40-1")
    yield "| decrease a product | window |" + "".join(f" {name} |" for name in names)
    yield "| ---: | ---: |" + " ---: |" * len(names)
    for flat, window in ((2e-2, 3), (1e-3, 5), (3e-4, 5), (1e-4, 5), (3e-4, 10), (1e-6, 10)):
        form = partial(CurvatureProducts, flat=flat, window=window)
        gauss_newton.FORMS["tried"] = form
        found = [path(CASES[name](), "tried", most) for name in names]
        cells = " | ".join(f"{run[-1][1].objective:.4g} ({len(run)} steps)" for run in found)
        yield f"| {flat:g} | {window} | {cells} |"
    del gauss_newton.FORMS["tried"]


Apply = Callable[[Tensor], Tensor]


def products_needed(curvature: Tensor, right: Tensor, apply: Apply) -> list[int]:
    """Return after how many products conjugate gradients have most of the damped decrease."""
    exact = torch.linalg.solve(curvature, right)
    wanted = [share * float(right @ exact) / 2 for share in (0.9, 0.99, 0.999)]
    step, left = torch.zeros_like(right), right
    direction = scaled = apply(left)
    counts: list[int] = []
    for count in range(1, 1001):
        image = curvature @ direction
        amount = (left @ scaled) / (direction @ image)
        step, following = step + amount * direction, left - amount * image
        while len(counts) < 3 and float(step @ (right + following)) / 2 >= wanted[len(counts)]:
            counts.append(count)
        again = apply(following)
        direction = again + (following @ again) / (left @ scaled) * direction
        left, scaled = following, again
        if len(counts) == 3:
            return counts
    return counts + [1000] * (3 - len(counts))


def kronecker(curvature: Tensor, shapes: list[tuple[int, int]], damping: float) -> Apply:
    """Return (A (x) B + damping)^-1 of every layer, the nearest A (x) B to its own block."""
    factors, first = [], 0
    for rows, units in shapes:
        part = slice(first, first + rows * units)
        block, first = curvature[part, part].view(rows, units, rows, units), part.stop
        outer = torch.eye(units, dtype=torch.float64)
        for _ in range(20):
            inner = torch.einsum("iajb,ab->ij", block, outer) / outer.square().sum()
            outer = torch.einsum("iajb,ij->ab", block, inner) / inner.square().sum()
        (a, left), (b, right) = torch.linalg.eigh(inner), torch.linalg.eigh(outer)
        scale = (a[:, None] * b).clamp(min=0) + damping
        factors.append((part, rows, left, right, scale))

    def apply(vector: Tensor) -> Tensor:
        found = [
            left @ ((left.T @ vector[part].view(rows, -1) @ right) / scale) @ right.T
            for part, rows, left, right, scale in factors
        ]
        return joined(found)

    return apply


def preconditioners(most: float) -> Iterator[str]:
    yield "| task, step | none | diagonal | Kronecker | 40 eigenvectors of the step before |"
    yield "| --- |" + " ---: |" * 4
    names = ("echo 10-20-10", "sum 100", "2-40-40-1") if most > 1 else ()
    for name in names:
        case, solver, number = CASES[name](), LevenbergMarquardt(), 16
        points = [
            (taken.point, solver._mu)
            for taken in islice(
                steps(case.forward, case.start, 0.0, "products", solver), number + 1
            )
        ]
        (before, damping), (point, _) = points[-2], points[-1]
        model = normal_equations(case.forward, point)
        values, vectors = torch.linalg.eigh(normal_equations(case.forward, before).curvature)
        values, vectors = values[-40:], vectors[:, -40:]
        share = values / (values + damping)
        shapes = [(part.shape[0], part.shape[1]) for part in case.forward.pull]
        diagonal = model.curvature.diagonal() + damping
        tried: list[Apply] = [
            lambda r: r,
            lambda r, d=diagonal: r / d,  # type: ignore[misc]
            kronecker(model.curvature, shapes, damping),
            lambda r, v=vectors, s=share: r - v @ (s * (v.T @ r)),  # type: ignore[misc]
        ]
        damped = model.curvature + damping * torch.eye(len(point), dtype=torch.float64)
        counts = (products_needed(damped, -model.gradient, apply) for apply in tried)
        cells = " | ".join(", ".join(map(str, count)) for count in counts)
        yield f"| {name}, {number} | {cells} |"


def trainings(seeds: int) -> Iterator[str]:
    yield "| task | accuracy | seconds |"
    yield "| --- | ---: | ---: |"
    for task, hidden, length in (("echo", 20, 10), ("sum", 10, 100), ("timer", 10, 100)):
        cases = [sequence_case(task, hidden, 200, length, seed) for seed in range(seeds)]
        started = time.process_time()
        found = [case.test(trained(task, case, length, seed)) for seed, case in enumerate(cases)]
        spread = f" ± {stdev(found):.3f}" if seeds > 1 else ""
        taken = (time.process_time() - started) / max(1, seeds)
        yield f"| {task}, length {length} | {fmean(found):.3f}{spread} | {taken:.1f} |"


def trained(task: str, case: Case, length: int, seed: int) -> Tensor:
    """Return the weights after 20 steps, and 10 more where half the length came first."""
    begin = [case.start]
    if task == "timer":
        begin.append(drawn("gaussian", sizes_of(case.forward), seed + 1000))
    brief = case.forward if length < 100 else shortened(case.forward, length // 2)
    ends = [list(islice(steps(brief, point, 1e-6, "products"), 20))[-1] for point in begin]
    point = min(ends, key=lambda taken: taken.objective).point
    if brief is case.forward:
        return point
    return list(islice(steps(case.forward, point, 1e-6, "products"), 10))[-1].point


def shortened(forward: Forward, length: int) -> Forward:
    target = forward.targets[0]
    part = Target(target.divergence, target.values[:, :length], target.counted[:, :length])
    return Forward(forward.outputs, (forward.data[0][:, :length],), (part,), forward.pull)


def sizes_of(forward: Forward) -> tuple[int, int, int]:
    (rows, hidden), (_, outputs) = (part.shape for part in forward.pull)
    return rows - hidden - 1, hidden, outputs


def sections(quick: bool) -> Iterator[tuple[str, str, Iterator[str]]]:
    long, short, seeds = (0.5, 0.3, 1) if quick else (9.0, 2.0, 3)
    yield "What a step is made of, milliseconds", COSTS, costs(long)
    yield "The objective against seconds", RACES, races(CASES, long)
    yield "Small networks, where the matrix wins", SMALL_RACES, races(SMALL, short)
    yield "When conjugate gradients stop", STOPPING, stopping(long / 2)
    yield "What a preconditioner saves: nothing", PRECONDITIONERS, preconditioners(long)
    yield "The trainings of results/lifted-rnn", TRAININGS, trainings(seeds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a run of seconds, which is not kept")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = ["# Gauss-Newton steps", "", f"{where}. Processor time."]
    for title, text, table in sections(quick):
        lines += ["", f"## {title}", "", text, ""]
        print(f"\n{title}", flush=True)
        for line in table:
            print(line, flush=True)
            lines.append(line)
    if not quick:
        RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
