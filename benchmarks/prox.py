"""How many entries per second the proximal maps without a closed form solve, and how exactly.

Run it with `python benchmarks/prox.py [rounds] [--json]`; with --json the table is also written to
benchmarks/results/prox.json. One thread, the best of the rounds; the opponents solve the sigmoid:
a plain Newton iteration in torch over the whole array (to the same accuracy), one in Numba entry by
entry, SciPy's vectorized root finder, and CVXPY.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cvxpy as cp
import numpy as np
import torch
from numba import njit
from rich.console import Console
from rich.table import Table
from scipy.optimize import elementwise
from scipy.special import expit
from torch import Tensor

from liftednet import Activation, activations

SAMPLES, UNITS = 10_000, 100
WEIGHTS = (0.01, 0.1, 1.0, 10.0)
ACTIVATIONS: list[Activation] = [
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Softplus(),
    activations.ELU(),
    activations.ReLU(),
    activations.LeakyReLU(0.1),
    activations.Arctan(),
    activations.Sine(),
    activations.Softmax(),
    Activation.from_function(torch.nn.functional.softsign),
]
Prox = Callable[[Tensor, float], Tensor]


def plain_newton(w: Tensor, t: float) -> Tensor:
    x = (w - 0.5) / (t + 0.25)
    for _ in range(60):
        v = x.sigmoid()
        step = (v + t * x - w) / (v * (1 - v) + t)
        x = x - step
        if float((step.abs() / (1 + x.abs())).max()) <= 4 * torch.finfo(w.dtype).eps:
            break
    return x.sigmoid()


@njit(cache=True, fastmath=True)
def _newton(w, t, v):
    for n in range(len(w)):
        x = min(max((w[n] - 0.5) / (t + 0.25), (w[n] - 1) / t), w[n] / t)
        for _ in range(30):
            at = 1 / (1 + math.exp(-x))
            step = (at + t * x - w[n]) / (t + at * (1 - at))
            x = min(max(x - step, (w[n] - 1) / t), w[n] / t)
            if abs(step) < 1e-6 * (1 + abs(x)):
                break
        v[n] = 1 / (1 + math.exp(-x))


def numba_newton(w: Tensor, t: float) -> Tensor:
    v = torch.empty_like(w)
    _newton(w.numpy().ravel(), w.numpy().dtype.type(t), v.numpy().ravel())
    return v


def scipy_roots(w: Tensor, t: float) -> Tensor:
    values = w.double().numpy()
    bounds = (values - 1) / t - 1, values / t + 1
    found = elementwise.find_root(lambda x, a: expit(x) + t * x - a, bounds, args=(values,))
    return torch.from_numpy(expit(found.x)).to(w)


def cvxpy_argmin(w: Tensor, t: float) -> Tensor:
    v, activation = cp.Variable(tuple(w.shape)), activations.Sigmoid()
    distance = cp.sum_squares(v - w.numpy()) / 2
    objective = cp.Minimize(t * activation.potential(v) + distance)
    cp.Problem(objective, activation.domain(v)).solve(solver="CLARABEL")
    return torch.from_numpy(v.value).to(w)


OPPONENTS: dict[str, tuple[Prox, int]] = {
    "sigmoid, plain Newton in torch": (plain_newton, 1),
    "sigmoid, Newton in Numba": (numba_newton, 1),
    "sigmoid, scipy find_root": (scipy_roots, 20),
    "sigmoid, CVXPY with CLARABEL": (cvxpy_argmin, 500),
}


def rate(prox: Prox, w: Tensor, t: float, rounds: int) -> float:
    """Return millions of entries per second, the best of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        prox(w, t)
        best = min(best, time.perf_counter() - started)
    return w.numel() / best / 1e6


def error(activation: Activation, v: Tensor, w: Tensor, t: float) -> float:
    """Return the largest |v - phi((w - v) / t)| t / (t + L), an error in v, in float64."""
    v, w = v.double(), w.double()
    gap = (v - activation.forward((w - v) / t)).abs().max()
    return float(gap) * t / (t + (activation.lipschitz or 1.0))


def measure(rounds: int) -> list[dict[str, object]]:
    source, rows = torch.Generator().manual_seed(0), []
    base = 2 * torch.randn(SAMPLES, UNITS, dtype=torch.float64, generator=source)
    solvers: dict[str, tuple[Activation, Prox, int]] = {
        repr(activation): (activation, activation.prox, 1) for activation in ACTIVATIONS
    }
    for name, (prox, part) in OPPONENTS.items():
        solvers[name] = (ACTIVATIONS[0], prox, part)
    for name, (activation, prox, part) in solvers.items():
        for dtype in (torch.float32, torch.float64):
            w = base[: SAMPLES // part].to(dtype)
            rates = [rate(prox, w, t, rounds if part == 1 else 2) for t in WEIGHTS]
            worst = max(error(activation, prox(w, t), w, t) for t in WEIGHTS)
            figures = dict(zip(map(str, WEIGHTS), rates, strict=True))
            kind = str(dtype).removeprefix("torch.")
            rows.append({"prox": name, "type": kind, "million/s at t": figures, "error": worst})
    return rows


def table(rows: list[dict[str, object]]) -> Table:
    shown = Table(title=f"Million entries per second, {SAMPLES} x {UNITS}, one thread")
    for column in ("prox", "type", *(f"t = {t:g}" for t in WEIGHTS), "error"):
        shown.add_column(column, justify="left" if column in ("prox", "type") else "right")
    for row in rows:
        figures = row["million/s at t"]
        assert isinstance(figures, dict)
        rates = (f"{x:.3g}" for x in figures.values())
        shown.add_row(str(row["prox"]), str(row["type"]), *rates, f"{row['error']:.0e}")
    return shown


def main(rounds: int, write: bool) -> None:
    torch.set_num_threads(1)
    rows = measure(rounds)
    Console(width=110).print(table(rows))
    if write:
        versions = {"torch": torch.__version__, "numpy": np.__version__, "on": platform.machine()}
        path = Path(__file__).parent / "results" / "prox.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(numbers[0] if numbers else 5, "--json" in sys.argv)
