"""Full-batch sweeps over data larger than memory, in a process that may take 2 GB of it.

A regression of a smooth function of 200 inputs, 200-50-1, in float32: inputs and targets are
memory-mapped files that this script makes, states stand in a store beside them. RLIMIT_DATA holds
what a process may take beside mapped files to 2 GB, torch itself included; the most of it that was
taken (VmData), and the largest resident part that is no file (RssAnon), are read while it runs. Run
it with `python -m benchmarks.streaming --gigabytes 2`; written to benchmarks/results/streaming.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.solvers import machine
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, LiftedMLP

RESULT = Path(__file__).parent / "results" / "streaming.md"
INPUTS, HIDDEN, LIMIT = 200, 50, 2 * 2**30
CHUNK = 50_000


def make(folder: Path, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Write inputs and targets, some rows at a time, and return them as they lie in files."""
    generator = torch.Generator().manual_seed(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (samples, INPUTS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (samples, 1))
    direction = torch.randn(INPUTS, 3, generator=generator) / INPUTS**0.5
    for first in range(0, samples, CHUNK):
        rows = torch.randn(min(CHUNK, samples - first), INPUTS, generator=generator)
        x[first : first + len(rows)] = rows.numpy()
        parts = rows @ direction
        y[first : first + len(rows), 0] = (parts[:, 0].abs() + parts[:, 1] * parts[:, 2]).numpy()
    x.flush(), y.flush()
    del x, y
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")


def taken() -> dict[str, float]:
    """Return what this process has now, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":") for line in lines)
    return {name: int(value.split()[0]) / 1e3 for name, value in pairs if name in _READ}


_READ = ("VmData", "RssAnon", "RssFile")


def main() -> None:
    """Make the data, train under the limit, and add a line to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--sweeps", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    samples = int(given.gigabytes * 1e9 / (4 * INPUTS))
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        x, y = make(Path(name), samples)
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
        most = {}
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                most.update({key: max(v, most.get(key, 0.0)) for key, v in taken().items()})

        watcher = threading.Thread(target=watch)
        watcher.start()
        method = FullBatch(given.sweeps, store=name)
        model = LiftedMLP(
            (INPUTS, HIDDEN, 1), loss=SquaredError(), divergence="joint", lam=0.1, rho=1.0,
            method=method, standardize=False,
        )  # fmt: skip
        started = time.process_time()
        model.fit(x, y)
        spent = time.process_time() - started
        done.set()
        watcher.join()
        trace = model.trace
        assert trace is not None
    states = samples * HIDDEN * 4 / 1e9
    line = (
        f"| {given.gigabytes:g} | {samples:,} | {states:.2f} | {given.sweeps} | "
        f"{most['VmData']:.0f} | {most['RssAnon']:.0f} | {most['RssFile']:.0f} | {spent:.0f} | "
        f"{trace.start / samples:.5f} | {trace.objectives[-1] / samples:.5f} | "
        f"{machine()['date']} |"
    )
    if not RESULT.exists():
        RESULT.write_text(HEAD, encoding="utf-8")
    with RESULT.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line)


HEAD = f"""# Data larger than memory

`python -m benchmarks.streaming`, whose first lines say what is measured: {INPUTS}-{HIDDEN}-1, block
descent with joint divergences, one thread, RLIMIT_DATA {LIMIT / 2**30:.0f} GiB. Mapped files are
resident as far as the system has room for them, and count to no limit.

| inputs, GB | samples | states, GB | sweeps | most VmData, MB | RssAnon, MB | mapped and resident, MB | processor s | objective a sample, start | end | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""  # noqa: E501


if __name__ == "__main__":
    main()
