"""Which kinds of subproblems a fit spends its time on, and which solvers serve them.

Each fit is what a user calls: from arrays to a network that answers, on one thread. A signal after
every millisecond of processor time looks at where it stands, and the time since the last look is
its. "Certificates" are what problems say of a value, asked for by a solver or between blocks;
"Gauss-Newton" has its linear systems, line searches and evidence; "metric" and "gradients" are the
two halves of a minibatch step. Solvers are named with their shares where these are 1 % or more.
Loops are compiled before; what a process loads at its first fit is not counted.

Run it with `python -m benchmarks.shares`; MNIST and HAR stand in the folder LIFTEDNET_DATA.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
from sklearn.datasets import load_digits

from benchmarks.data.mnist import mnist
from benchmarks.data.signals import har
from benchmarks.harness.report import write
from benchmarks.subproblems.harness import compile_loops
from benchmarks.subproblems.trained import regressions
from liftednet import LiftedClassifier, LiftedRegressor
from liftednet.models import LiftedRNN, Minibatch
from liftednet.solvers import Solver

Fit = Callable[[], Any]
_EVERY = 1e-3  # seconds between two looks
_KINDS = {
    "WeightFit": "weights", "StateFit": "states", "OutputFit": "outputs",
    "StatesOverTime": "states over time", "BlockFit": "blocks", "ConstrainedFit": "constrained",
}  # fmt: skip
_PLACES = (
    ("solvers/gauss_newton", "Gauss-Newton"),
    ("solvers/quasi_newton", "Gauss-Newton"),
    ("solvers/compiled/recurrent", "Gauss-Newton"),
    ("solvers/layer_metric", "metric"),
    ("methods/batch_gradients", "gradients"),
)
COLUMNS = (
    "weights", "states", "outputs", "states over time", "blocks", "certificates", "Gauss-Newton",
    "metric", "gradients", "rest",
)  # fmt: skip


def place_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the column of where a program stands, and the solver that is at work, or none."""
    found, judged = ("rest", ""), False
    while frame is not None:  # from the innermost call outward
        judged = judged or frame.f_code.co_name in ("measure", "measured")
        solver = frame.f_locals.get("self")
        if isinstance(solver, Solver):
            found = _KINDS[solver.kind.__name__], solver.name
        elif found == ("rest", ""):
            path = frame.f_code.co_filename
            found = next((name for part, name in _PLACES if part in path), "rest"), ""
        frame = frame.f_back
    return ("certificates", "") if judged and found[0] in (*_KINDS.values(), "rest") else found


def watched(fit: Fit) -> tuple[float, Counter[tuple[str, str]]]:
    """Return the processor time of a fit, and how much of it every place has."""
    spent, last = Counter[tuple[str, str]](), time.process_time()
    began = last

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.process_time()
        spent[place_of(frame)] += now - last  # type: ignore[assignment]
        last = now

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
    try:
        fit()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return time.process_time() - began, spent


def fits() -> Iterator[tuple[str, str, Fit]]:
    """Yield data, method and fit."""
    digits = load_digits(return_X_y=True)
    tables = {"digits": (LiftedClassifier, (50,), digits)}
    tables |= {name: (LiftedRegressor, (30,), rows) for name, rows in regressions().items()}
    for name, (kind, hidden, (x, y)) in tables.items():
        name = f"{name}, {len(x):,} x {x.shape[1]}"
        yield name, "default", partial(kind(random_state=0).fit, x, y)
        yield name, "full", partial(kind(hidden, method="full", random_state=0).fit, x, y)
    images = mnist()
    pixels, labels = images.x_train.flatten(1).numpy(), images.y_train.numpy()
    passes = LiftedClassifier((300,), method=Minibatch(epochs=2), random_state=0)
    yield "MNIST, 60,000 x 784", "minibatch, 2 passes", partial(passes.fit, pixels, labels)
    for divergence in ("tight", "joint"):
        options = {"divergence": divergence, "method": "full", "max_iter": 5}
        model = LiftedClassifier((100,), random_state=0, **options)
        name, fit = f"full, {divergence}, 5 sweeps", partial(model.fit, pixels[:5_000])
        yield "MNIST, 5,000 x 784", name, partial(fit, labels[:5_000])
    windows = har()
    steps, kinds = windows.x_train[:1_000, ::4], windows.y_train[:1_000]
    for method in ("auto", "full"):
        network = LiftedRNN(9, 20, 6, method=method, max_iter=10)
        name = f"{method}, 10 steps" if method == "auto" else "full, 10 sweeps"
        yield "HAR, 1,000 of 32 steps x 9", name, partial(network.fit, steps, kinds)


def main() -> None:
    """Watch every fit, and write the table."""
    torch.set_num_threads(1)
    compile_loops()
    warnings.simplefilter("ignore")
    lines = [f"| data | method | seconds | {' | '.join(COLUMNS)} | solvers |"]
    lines += [f"|{' --- |' * (len(COLUMNS) + 4)}"]
    for data, method, fit in fits():
        fit()
        seconds, spent = watched(fit)
        whole = sum(spent.values())
        shares = Counter[str]()
        for (column, _), part in spent.items():
            shares[column] += part / whole  # type: ignore[assignment]
        told = [
            f"{solver} {part / whole:.0%}"
            for (_, solver), part in spent.most_common()
            if solver and part >= 0.01 * whole
        ]
        cells = [f"{shares[column]:.0%}" if shares[column] >= 0.005 else "" for column in COLUMNS]
        lines += [
            f"| {data} | {method} | {seconds:.3g} | {' | '.join(cells)} | {', '.join(told)} |"
        ]
        print(lines[-1], flush=True)
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    write("shares", "Which subproblems a fit spends its time on", text, lines)


if __name__ == "__main__":
    main()
