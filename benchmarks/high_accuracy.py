"""Smooth functions to many digits: Gauss-Newton, L-BFGS and Adam, equal processor time.

Four functions, two of two variables and two of five, chosen before anything was run; 3,000 points
to train on and 3,000 to test, uniform on [-1, 1]; a d-40-40-1 tanh network in float64. Every method
has the same processor seconds, the same targets of variance one, and one setting; none was tuned.
L-BFGS is scipy's and torch's with the strong Wolfe search, Adam has a rate that falls to zero along
a cosine over its seconds. All begin with torch's own weights of the seed. One run a process:
`python -m benchmarks.high_accuracy FUNCTION METHOD SEED` adds a line to
results/high_accuracy.jsonl; without arguments the table is written.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.solvers import machine
from liftednet import Weights
from liftednet.activations import Tanh
from liftednet.losses import SquaredError
from liftednet.models import GaussNewton, LiftedMLP

SECONDS, POINTS, HIDDEN = 18.0, 3000, 40
NOTE = (
    "A d-40-40-1 tanh network; Gauss-Newton has rho 1e-10, L-BFGS a memory of 100, Adam a rate of "
    "3e-3 that falls to zero and batches of 200: one setting each, untuned. The machine did other "
    "work."
)
RESULTS = Path(__file__).parent / "results"
RUNS = RESULTS / "high_accuracy.jsonl"


def waves(x: Tensor) -> Tensor:
    return (3 * x[:, 0]).sin() * (2 * x[:, 1]).cos() + x[:, 0] * x[:, 1]


def franke(x: Tensor) -> Tensor:
    """Franke's function, A Critical Comparison of Some Methods for Interpolation, 1979."""
    a, b = (9 * (x + 1) / 2).T
    return (
        0.75 * torch.exp(-((a - 2) ** 2 + (b - 2) ** 2) / 4)
        + 0.75 * torch.exp(-((a + 1) ** 2) / 49 - (b + 1) / 10)
        + 0.5 * torch.exp(-((a - 7) ** 2 + (b - 3) ** 2) / 4)
        - 0.2 * torch.exp(-((a - 4) ** 2) - (b - 7) ** 2)
    )


def friedman(x: Tensor) -> Tensor:
    z = (x + 1) / 2
    bend = 10 * (math.pi * z[:, 0] * z[:, 1]).sin() + 20 * (z[:, 2] - 0.5) ** 2
    return bend + 10 * z[:, 3] + 5 * z[:, 4]


def peak(x: Tensor) -> Tensor:
    """The Gaussian peak of Genz, A Package for Testing Multiple Integration Subroutines, 1987."""
    return torch.exp(-(x - x.new_tensor([0.2, -0.3, 0.1, 0.4, -0.1])).square().sum(1))


FUNCTIONS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "waves": (2, waves),
    "franke": (2, franke),
    "friedman": (5, friedman),
    "peak": (5, peak),
}


class _Task:
    """A function at points, and a network that does not know it yet."""

    def __init__(self, name: str, seed: int) -> None:
        size, function = FUNCTIONS[name]
        generator = torch.Generator().manual_seed(seed)
        points = 2 * torch.rand(2, POINTS, size, generator=generator) - 1
        self.x, self.unseen = points
        y, z = function(self.x), function(self.unseen)
        self.y, self.answers = ((v - y.mean()) / y.std() for v in (y, z))
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(),
            nn.Linear(HIDDEN, 1),
        )  # fmt: skip
        self.began = time.process_time()

    @property
    def spent(self) -> float:
        return (time.process_time() - self.began) / SECONDS

    def loss(self, some: Tensor | None = None) -> Tensor:
        x, y = (self.x, self.y) if some is None else (self.x[some], self.y[some])
        return (self.network(x)[:, 0] - y).square().mean()


def gauss_newton(task: _Task) -> Callable[[Tensor], Tensor]:
    layers = [part for part in task.network if isinstance(part, nn.Linear)]
    start = [Weights(x.weight.detach().T.clone(), x.bias.detach().clone()) for x in layers]
    sizes = (task.x.shape[1], HIDDEN, HIDDEN, 1)
    method = GaussNewton(steps=10**6, tolerance=1e-12)
    model = LiftedMLP(sizes, Tanh(), SquaredError(), rho=1e-10, method=method, start=start)

    def stop(_: object) -> None:
        if task.spent > 1:
            raise KeyboardInterrupt

    model.fit(task.x, task.y[:, None], on_step=stop)
    return model.forward


def scipy_lbfgs(task: _Task, memory: int) -> Callable[[Tensor], Tensor]:
    last = [parameters_to_vector(task.network.parameters()).detach().numpy()]

    def value(point: np.ndarray) -> tuple[float, np.ndarray]:
        vector_to_parameters(torch.from_numpy(point), task.network.parameters())
        loss = task.loss()
        slopes = torch.autograd.grad(loss, list(task.network.parameters()))
        return float(loss), parameters_to_vector(slopes).numpy()

    def stop(point: np.ndarray) -> None:
        last[0] = point.copy()
        if task.spent > 1:
            raise StopIteration

    options = {"maxcor": memory, "maxiter": 10**7, "maxfun": 10**7, "ftol": 0, "gtol": 0}
    scipy.optimize.minimize(
        value, last[0], jac=True, method="L-BFGS-B", callback=stop, options=options
    )
    vector_to_parameters(torch.from_numpy(last[0]), task.network.parameters())
    return task.network


def torch_lbfgs(task: _Task, memory: int) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.LBFGS(
        task.network.parameters(), max_iter=20, history_size=memory, tolerance_grad=0,
        tolerance_change=0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        return loss

    while task.spent < 1:
        optimizer.step(closure)
    return task.network


def adam(task: _Task, rate: float) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.Adam(task.network.parameters(), lr=rate)
    while task.spent < 1:
        for some in torch.randperm(POINTS).split(200):
            falling = rate * (1 + math.cos(math.pi * min(1.0, task.spent))) / 2
            optimizer.param_groups[0]["lr"] = falling
            optimizer.zero_grad()
            task.loss(some).backward()
            optimizer.step()
    return task.network


METHODS: dict[str, tuple[str, Callable[[_Task], Callable[[Tensor], Tensor]]]] = {
    "ours": ("Gauss-Newton", gauss_newton),
    "scipy-100": ("L-BFGS, scipy", lambda task: scipy_lbfgs(task, 100)),
    "torch-100": ("L-BFGS, torch", lambda task: torch_lbfgs(task, 100)),
    "adam-3e-3": ("Adam", lambda task: adam(task, 3e-3)),
}


def run(name: str, method: str, seed: int) -> None:
    task = _Task(name, seed)
    answer = METHODS[method][1](task)
    with torch.no_grad():
        error = float((answer(task.unseen)[:, 0] - task.answers).square().mean().sqrt())
    line = {"function": name, "method": method, "seed": seed, "error": error, **machine()}
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "spent": round(task.spent * SECONDS, 1)}) + "\n")


def table() -> str:
    """Return medians and worst errors over the seeds that every method has run."""
    runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    found = {(x["function"], x["seed"], x["method"]): x["error"] for x in runs}
    titles = [title for title, _ in METHODS.values()]
    lines = [
        f"| function | seeds | {' | '.join(titles)} | best other / ours, median (least) |",
        "| --- | ---: |" + " ---: |" * (len(titles) + 1),
    ]
    for name in FUNCTIONS:
        seeds = sorted({seed for function, seed, _ in found if function == name})
        seeds = [seed for seed in seeds if all((name, seed, m) in found for m in METHODS)]
        errors = {m: [found[name, seed, m] for seed in seeds] for m in METHODS}
        cells = [f"{median(each):.2e} (worst {max(each):.2e})" for each in errors.values()]
        ours, *others = errors.values()
        ratios = [min(each) / mine for mine, *each in zip(ours, *others, strict=True)]
        lines.append(
            f"| {name} | {len(seeds)} | {' | '.join(cells)} "
            f"| {median(ratios):.1f} ({min(ratios):.1f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if len(sys.argv) > 1:
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    about = f"Test error, root mean square, {SECONDS:g} processor seconds each. {NOTE}"
    text = f"# Smooth functions to many digits\n\n{where}.\n\n{about}\n\n{table()}\n"
    (RESULTS / "high_accuracy.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
