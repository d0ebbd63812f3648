"""What a fit costs besides its steps: whole fits, first calls, imports, threads, and how all grow.

Each figure is of `fit` in a process of its own, from arrays in memory to a network that answers:
statistics of the inputs, the start and the last look included. "fit" is one pass over MNIST
(60,000 digits, 188 MB; 784-300-10, float32), against the same network by fused Adam on batches of
shuffled rows, its inputs centered. "rows" to "steps" vary one number of 10,000 rows of 100 normal
numbers, 100 units, one hidden layer and one pass; the exponent is that of the last two points, and
memory is what the process grows by beyond the data. "threads" are seconds of the wall, "busy" the
same beside as many other processes as there are cores. "first" are first calls in a process,
without what Numba keeps and with it; "import" is the wall beside that of what has to be imported
at least, and the same in processor time.

Run it with `python -m benchmarks.costs [kind ...]`, which goes on where it was interrupted. Medians
of five, interleaved; the picture is results/costs.png.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.opponents import dense_network
from benchmarks.harness.report import write
from benchmarks.harness.runs import RESULTS, Record, finished, matching, run_all

TIMES = 5
IMPORTS = {
    "import torch": ("python", "pass"),
    "import liftednet": ("torch", "import torch"),
    "from liftednet import LiftedClassifier": (
        "torch and sklearn.base", "import torch, sklearn.base"
    ),
    "liftednet show": ("torch", "import torch"),
}  # fmt: skip
GROWN = {
    "rows": (1_000, 10_000, 100_000, 1_000_000),
    "features": (10, 100, 1_000, 10_000),
    "units": (10, 100, 1_000),
    "depth": (1, 2, 4, 8),
    "steps": (1, 4, 16),
}
FIRST = "state fit", "large state fit", "LiftedClassifier", "LiftedRNN", "LiftedRNN, both ways"


@dataclass(frozen=True)
class Run:
    """One kind of cost at one size, by one method, on so many threads; number repeats it."""

    kind: str
    method: str
    size: str
    threads: int = 1
    number: int = 0


def runs(kinds: list[str]) -> list[Run]:
    """Return all runs, repetitions outermost, so that what else a machine does meets all alike."""
    found = []
    for number in range(TIMES):
        found += [
            Run("fit", method, str(batch), 1, number)
            for batch in (100, 500)
            for method in ("liftednet", "fused Adam")
        ]
        found += [
            Run(kind, "liftednet", size, threads, number)
            for kind in ("threads", "busy")
            for size in ("digits", "friedman 5,000", "minibatches 100,000")
            for threads in (1, 2)
        ]
        found += [Run("import", name, "", 1, number) for name in IMPORTS]
        found += [Run("import", IMPORTS[name][0], "", 1, number) for name in IMPORTS]
        found += [
            Run("first", name, kept, 1, number) for name in FIRST for kept in ("none", "kept")
        ]
        if number == 0:
            found += [
                Run(kind, method, str(size))
                for kind, sizes in GROWN.items()
                for size in sizes
                for method in ("liftednet", *["fused Adam"] * (kind == "rows"))
            ]
    return [run for run in dict.fromkeys(found) if run.kind in kinds]


def measured(run: Run) -> dict[str, float]:
    """Return the seconds of a run, in a process of its own."""
    own = {"OMP_NUM_THREADS": str(run.threads), "MKL_NUM_THREADS": str(run.threads)}
    if run.kind == "import":
        return _imported(run.method)
    with tempfile.TemporaryDirectory() as empty:
        if run.size == "none":
            own["NUMBA_CACHE_DIR"] = empty
        command = [sys.executable, "-m", "benchmarks.costs", "--one", json.dumps(asdict(run))]
        busy = (os.cpu_count() or 1) if run.kind == "busy" else 0
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
        finally:
            for other in others:
                other.kill()
                other.wait()
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _imported(name: str) -> dict[str, float]:
    code = dict(IMPORTS.values()).get(name, name)
    command = [sys.executable, "-c", code]
    with tempfile.TemporaryDirectory() as folder:
        if name == "liftednet show":
            path = f"{folder}/model.safetensors"
            made = (
                "import sys, torch, liftednet as l; x = torch.ones(20, 2).cumsum(0); "
                "model = l.LiftedRegressor((3,), max_iter=1).fit(x.numpy(), x[:, 0].numpy()); "
                "l.save(model, sys.argv[1])"
            )
            subprocess.run([sys.executable, "-W", "ignore", "-c", made, path], check=True)
            command = [sys.executable, "-m", "liftednet", "show", path]
        began, before = time.perf_counter(), _children()
        subprocess.run(command, check=True, capture_output=True)
        return {"seconds": time.perf_counter() - began, "processor": _children() - before}


def _children() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def one(run: Run) -> dict[str, float]:
    """Return what this process takes for a run, and by how much it grows."""
    works = {"fit": _pass, "threads": _threads, "busy": _threads, "first": _first}
    work = works.get(run.kind, _grown)(run)
    before = _peak(anew=True)
    walls = "threads", "busy", "first"
    clock = time.perf_counter if run.kind in walls else time.process_time
    began = clock()
    work()
    seconds = clock() - began
    return {"seconds": seconds, "megabytes": _peak() - before}


def _peak(anew: bool = False) -> float:
    """Return the most megabytes that this process has held, from now on if asked."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _pass(run: Run) -> Callable[[], Any]:
    from benchmarks.data.mnist import mnist

    data = mnist()
    return _one_pass(run.method, data.x_train, data.y_train, (300,), int(run.size))


def _one_pass(
    method: str, x: Any, y: Any, hidden: tuple[int, ...], batch: int, passes: int = 1
) -> Callable[[], Any]:
    import torch

    from liftednet.losses import CrossEntropy
    from liftednet.models import LiftedMLP, Minibatch

    sizes, few = (x.shape[1], *hidden, int(y.max()) + 1), slice(0, 500)
    settings = Minibatch(epochs=passes, batch_size=batch)

    def lifted(rows: slice) -> Any:
        return LiftedMLP(sizes, loss=CrossEntropy(), method=settings).fit(x[rows], y[rows])

    def adam(rows: slice) -> Any:
        data, labels, network = x[rows], y[rows], dense_network(*sizes)
        mean = data.mean(0)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
        for _ in range(passes):
            for part in torch.randperm(len(data)).split(batch):
                optimizer.zero_grad()
                found = network(data[part] - mean)
                torch.nn.functional.cross_entropy(found, labels[part]).backward()
                optimizer.step()
        return network

    way = lifted if method == "liftednet" else adam
    way(few)  # what a process loads once is not counted
    return lambda: way(slice(None))


def _grown(run: Run) -> Callable[[], Any]:
    import torch

    shape = {"rows": 10_000, "features": 100, "units": 100, "depth": 1, "steps": 1}
    shape[run.kind] = int(run.size)
    source = torch.Generator().manual_seed(0)
    x = torch.randn(shape["rows"], shape["features"], generator=source)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return _one_pass(run.method, x, y, (shape["units"],) * shape["depth"], 100, shape["steps"])


def _threads(run: Run) -> Callable[[], Any]:
    import numpy as np
    from sklearn.datasets import load_digits, make_friedman1

    from liftednet import LiftedClassifier, LiftedRegressor

    if run.size == "digits":
        x, y = load_digits(return_X_y=True)
        fit: Any = LiftedClassifier(random_state=0).fit
    elif run.size.startswith("friedman"):
        x, y = make_friedman1(5_000, noise=1.0, random_state=0)
        fit = LiftedRegressor(random_state=0).fit
    else:
        x = np.random.default_rng(0).normal(size=(100_000, 100)).astype(np.float32)
        y = x[:, 0] * x[:, 1]
        fit = LiftedRegressor(random_state=0, method="minibatch", max_iter=2).fit
    fit(x[:200], y[:200])
    return lambda: fit(x, y)


def _first(run: Run) -> Callable[[], Any]:
    import torch

    from liftednet import LiftedClassifier
    from liftednet.activations import ReLU
    from liftednet.divergences import joint
    from liftednet.losses import SquaredError
    from liftednet.models import LiftedRNN
    from liftednet.problems import Link, StateFit
    from liftednet.solvers import solve

    x = torch.randn(300, 20, generator=torch.Generator().manual_seed(0))
    if run.method == "state fit":
        link = Link(joint(ReLU()), x[:20], torch.zeros(20), x.relu())
        return lambda: solve(StateFit(joint(ReLU()), x, (link,)))
    if run.method == "large state fit":
        many = torch.randn(60_000, 25, generator=torch.Generator().manual_seed(0))
        link = Link(joint(ReLU()), x[:20, :5], torch.zeros(5), many[:, 20:])
        return lambda: solve(StateFit(joint(ReLU()), many[:, :20], (link,)))
    if run.method == "LiftedClassifier":
        return lambda: LiftedClassifier(random_state=0, max_iter=1).fit(
            x.numpy(), x[:, 0].numpy() > 0
        )
    over_time = x.view(60, 25, 4)
    both = run.method.endswith("both ways")
    network = LiftedRNN(4, 8, 1, loss=SquaredError(), max_iter=1, bidirectional=both)
    return lambda: network.fit(over_time, over_time[..., :1])


def table(found: list[Record[Run]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| kind | what | size | seconds | beside | ratio | MB | exponent | CPU s | ratio |",
        f"|{' --- |' * 10}",
    ]
    told: dict[Run, float] = {}
    spent: dict[Run, float] = {}
    for record in found:
        run = record.settings
        key = Run(run.kind, run.method, run.size, run.threads)
        alike = matching(
            found, kind=run.kind, method=run.method, size=run.size, threads=run.threads
        )
        told[key] = median(one.outcome["seconds"] for one in alike)
        spent[key] = median(one.outcome.get("processor", math.nan) for one in alike)
    for run, seconds in told.items():
        beside, exponent, least = math.nan, math.nan, math.nan
        if run.kind == "import":
            needed = Run("import", IMPORTS.get(run.method, ("",))[0], "")
            beside, least = told.get(needed, math.nan), spent.get(needed, math.nan)
        elif run.threads == 2:
            beside = told.get(Run(run.kind, run.method, run.size), math.nan)
        elif run.kind in ("fit", "rows") and run.method == "liftednet":
            beside = told.get(Run(run.kind, "fused Adam", run.size), math.nan)
        elif run.size == "kept":
            beside = told.get(Run(run.kind, run.method, "none"), math.nan)
        smaller = [other for other in told if (other.kind, other.method) == (run.kind, run.method)]
        if run.kind in GROWN and (number := smaller.index(run)):
            before = smaller[number - 1]
            exponent = math.log(seconds / told[before]) / math.log(int(run.size) / int(before.size))
        alike = matching(found, kind=run.kind, method=run.method, size=run.size)
        memory = max(one.outcome.get("megabytes", math.nan) for one in alike)
        size = f"{run.size}, {run.threads} threads" if run.kind in ("threads", "busy") else run.size
        used = spent[run]
        numbers = (beside, seconds / beside, memory, exponent, used, used / least)
        shown = ["" if math.isnan(x) else f"{x:.3g}" for x in numbers]
        lines.append(
            f"| {run.kind} | {run.method} | {size} | {seconds:.3g} | {' | '.join(shown)} |"
        )
    return lines


def picture(found: list[Record[Run]]) -> None:
    """Draw seconds and memory against each size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, frames = pyplot.subplots(2, len(GROWN), figsize=(15, 6), squeeze=False)
    for column, kind in enumerate(GROWN):
        for row, what in enumerate(("seconds", "megabytes")):
            frame = frames[row][column]
            for method in ("liftednet", "fused Adam"):
                points = matching(found, kind=kind, method=method)
                if points:
                    sizes = [int(point.settings.size) for point in points]
                    frame.loglog(sizes, [p.outcome[what] for p in points], "o-", label=method)
            frame.set(xlabel=kind, ylabel=what)
        frames[0][column].legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "costs.png", dpi=80)
    pyplot.close(figure)


def main() -> None:
    """Run what is missing, and write the table and the picture."""
    kinds = ["fit", "threads", "busy", "first", "import", *GROWN]
    asked = runs([kind for kind in sys.argv[1:] if kind in kinds] or kinds)
    run_all(RESULTS / "costs.jsonl", asked, run=measured)
    found = finished(RESULTS / "costs.jsonl", runs(kinds))  # what was run before, too
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    write("costs", "What a fit costs besides its steps", text, table(found))
    if matching(found, kind="rows"):
        picture(found)
    print("\n".join(table(found)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(Run(**json.loads(sys.argv[2])))))
    else:
        main()
