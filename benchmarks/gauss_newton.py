"""What a Gauss-Newton step costs by products and by a matrix, and what conjugate gradients need.

Run it with `OMP_NUM_THREADS=1 python -m benchmarks.gauss_newton`, five minutes; with --quick it
takes seconds and writes nothing. Processor time, written to benchmarks/results/gauss_newton.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor

from benchmarks.gauss_newton_cases import (
    CASES,
    SMALL,
    Case,
    drawn,
    sequence_case,
    shortened,
    sizes_of,
)
from benchmarks.solvers import machine
from liftednet.solvers.gauss_newton.equations import NormalEquations
from liftednet.solvers.gauss_newton.krylov import CurvatureProducts
from liftednet.solvers.gauss_newton.objective import joined
from liftednet.solvers.gauss_newton.steps import (
    FORMS,
    Form,
    LevenbergMarquardt,
    Taken,
    direct,
    steps,
)

RESULT = Path(__file__).parent / "results" / "gauss_newton.md"
# Seconds of one model by version 0.1's dense sensitivities, measured on the machine of the result.
BEFORE = {"echo 10-20-10": 0.95, "echo 10-60-10": 20.0, "sum 100": 0.28, "timer 100": 0.22}


COSTS = (
    "A model by products is one pass forward and three back; a step takes 15 to 90 products more. "
    "Those of recurrent networks of at most 48 units are compiled. "
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


OTHER_FORM = "With states that stay variables: [multiple shooting](multiple_shooting.md)."


def seconds(run: Callable[[], object], repeats: int) -> float:
    run()
    started = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - started) / repeats


def path(case: Case, form: Form, most: float) -> list[tuple[float, Taken]]:
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
            seconds(partial(model.operator.product, start), 10),
        ]
        matrix = "-"
        if len(start) < 2000 and most > 1:
            matrix = f"{1e3 * seconds(partial(NormalEquations, forward, start), 1):.0f}"
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
        for form, made in FORMS.items():
            if made is direct and len(case.start) > 2000:
                continue
            found = path(case, made, most)
            values = ([taken.objective for at, taken in found if at <= mark] for mark in marks)
            cells = " | ".join(f"{value[-1]:.4g}" if value else "-" for value in values)
            last, taken = found[-1]
            pace = f"{len(found)} | {1e3 * last / len(found):.0f}"
            yield f"| {name} | {form} | {pace} | {cells} | {case.test(taken.point):.3g} |"


def stopping(most: float) -> Iterator[str]:
    names = ("echo 10-60-10", "2-40-40-1")
    yield "| decrease a product | window |" + "".join(f" {name} |" for name in names)
    yield "| ---: | ---: |" + " ---: |" * len(names)
    for flat, window in ((2e-2, 3), (1e-3, 5), (3e-4, 5), (1e-4, 5), (3e-4, 10), (1e-6, 10)):
        form = partial(CurvatureProducts, flat=flat, window=window)
        found = [path(CASES[name](), form, most) for name in names]
        cells = " | ".join(f"{run[-1][1].objective:.4g} ({len(run)} steps)" for run in found)
        yield f"| {flat:g} | {window} | {cells} |"


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
            (taken.point, solver.mu)
            for taken in islice(
                steps(case.forward, case.start, 0.0, CurvatureProducts, solver), number + 1
            )
        ]
        (before, damping), (point, _) = points[-2], points[-1]
        model = NormalEquations(case.forward, point)
        values, vectors = torch.linalg.eigh(NormalEquations(case.forward, before).curvature)
        values, vectors = values[-40:], vectors[:, -40:]
        share = values / (values + damping)
        shapes = [(part.shape[0], part.shape[1]) for part in case.forward.pull]
        diagonal = model.curvature.diagonal() + damping
        tried: list[Apply] = [
            lambda r: r,
            lambda r, d=diagonal: r / d,
            kronecker(model.curvature, shapes, damping),
            lambda r, v=vectors, s=share: r - v @ (s * (v.T @ r)),
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
    ends = [list(islice(steps(brief, point, 1e-6, CurvatureProducts), 20))[-1] for point in begin]
    point = min(ends, key=lambda taken: taken.objective).point
    if brief is case.forward:
        return point
    return list(islice(steps(case.forward, point, 1e-6, CurvatureProducts), 10))[-1].point


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
    lines = ["# Gauss-Newton steps", "", f"{where}. Processor time. {OTHER_FORM}"]
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
