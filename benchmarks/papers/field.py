"""Packages of the field on their own examples, with their own settings, beside ours.

- `sinc`: torch-levenberg-marquardt's curve, sinc(10 x) at 20,000 points, 20 tanh; its Levenberg-
  Marquardt and Adam, ten epochs each as in its examples/sinc_curve_fitting.py, pytorch-minimize's
  Newton-CG, and Gauss-Newton of ours without rho to speak of; once more on every 20th point until
  1e-9 is reached, where the default ends at 1e-5 (chosen with seed 0).
- `digits`: the same package's convolutions on MNIST (examples/mnist_classification.py, 746 weights)
  for a budget of seconds, beside Adam and `lift`.
- `layer`: the 80 cases of cooper's tests/pipeline/test_convergence.py that have no surrogate, of 5
  and 10 variables: min |x|^2 with A x <= b or A x = b, 1,500 steps of its Lagrangian and augmented
  Lagrangian; qpth and cvxpylayers solve the same, and our projection of 0.
- `coding`: predictive coding with PCX (its two-moons example, leaky ReLU, cross-entropy energy,
  AdamW for weights) on MNIST, 784 - 128 - 128 - 128 - 10, three epochs of 128 rows; the rates of
  its weights and states are chosen on a sixth of the training rows. Beside it Adam and `lift`.

A package that is missing has no row. `OMP_NUM_THREADS=1 python -m benchmarks.papers.field`, half
an hour; PCX asks for jax below 0.5 and has an environment of its own, then `--stored` writes
the table.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data.mnist import mnist, validation_split
from benchmarks.harness.report import write
from benchmarks.harness.runs import RESULTS, Outcome, Record, finished, matching, records
from liftednet import lift
from liftednet.activations import Tanh
from liftednet.losses import SquaredError
from liftednet.models import GaussNewton, LiftedMLP, Minibatch
from liftednet.sets.polyhedron import nearest_in_polyhedron

SEEDS, BUDGET, BATCH = range(5), 60.0, 128
RATES = [(1e-3, 1e-2), (1e-3, 1e-1), (3e-4, 1e-2), (3e-4, 1e-1)]  # of weights, of states


@dataclass(frozen=True)
class Run:
    """One example by one method; `choice` is a row of RATES, -1 the one that was best."""

    example: str
    method: str
    seed: int
    choice: int = -1


# The packages that a method needs, where it is not of torch or ours.
NEEDS = {
    "torch-levenberg-marquardt": "torch_levenberg_marquardt", "Newton-CG": "torchmin",
    "cooper": "cooper", "cooper, augmented": "cooper", "qpth": "qpth",
    "cvxpylayers": "cvxpylayers", "PCX": "pcx",
}  # fmt: skip
FEWER = "ours, 1,000 rows, tolerance 1e-9"
OURS = {"ours": (1, GaussNewton(200)), FEWER: (20, GaussNewton(1000, tolerance=1e-9))}
METHODS = {
    "sinc": ["ours", FEWER, "torch-levenberg-marquardt", "Newton-CG", "Adam"],
    "digits": ["ours", "torch-levenberg-marquardt", "Adam"],
    "layer": ["ours", "qpth", "cvxpylayers", "cooper", "cooper, augmented"],
    "coding": ["ours", "PCX", "Adam"],
}
MEASURE = {
    "sinc": "root mean square error", "digits": "test error", "layer": "distance from CLARABEL's",
    "coding": "test error",
}  # fmt: skip


def sinc(run: Run) -> float:
    x = torch.linspace(-1, 1, 20_000)[:, None]
    y = torch.sinc(10 * x)
    network = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    if run.method in OURS:
        every, method = OURS[run.method]
        model = LiftedMLP(
            (1, 20, 1), Tanh(), SquaredError(), rho=1e-9, method=method, seed=run.seed
        )
        rows, wanted = x[::every].double(), y[::every].double()
        return rms(model.fit(rows, wanted).forward(x.double()) - y)
    if run.method == "Newton-CG":
        from torch.nn.utils import parameters_to_vector, vector_to_parameters
        from torchmin import minimize

        network, x, y = network.double(), x.double(), y.double()
        names, given = zip(*network.named_parameters(), strict=True)
        sizes, shapes = [p.numel() for p in given], [p.shape for p in given]

        def loss(w: Tensor) -> Tensor:
            parts = [v.view(s) for v, s in zip(w.split(sizes), shapes, strict=True)]
            answer = torch.func.functional_call(network, dict(zip(names, parts, strict=True)), x)
            return (answer - y).square().mean()

        start = parameters_to_vector(given).detach()
        options = {"xtol": 1e-12, "cg_max_iter": 61}
        found = minimize(loss, start, method="newton-cg", max_iter=500, options=options).x
        vector_to_parameters(found, network.parameters())
    else:
        _theirs(run, network, x, y, nn.MSELoss(), 1000, rate=1.0, solver="qr")
    with torch.no_grad():
        return rms(network(x) - y)


def digits(run: Run) -> float:
    data = mnist()
    shape = (-1, 1, 28, 28)
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 4, 2), nn.ELU(), nn.Conv2d(8, 4, 4, 2), nn.ELU()]
    for _ in range(3):
        layers += [nn.Conv2d(4, 4, 2), nn.ELU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10))
    x, y = data.x_train.view(shape), data.y_train
    if run.method == "ours":
        lift(network, x[:2], loss="cross-entropy", method=Minibatch(14), seed=run.seed).fit(
            x, y
        ).write_()
    else:
        _theirs(run, network, x, y, nn.CrossEntropyLoss(), 5000, rate=0.05, solver="cholesky")
    return wrong(network, data.x_test.view(shape), data.y_test)


def _theirs(
    run: Run,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Any,
    batch: int,
    rate: float,
    solver: str,
) -> None:
    """Ten epochs of ten repeats, as the package's examples take them, or until the budget ends."""
    if run.method == "Adam":
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
    else:
        import torch_levenberg_marquardt as tlm

        module = tlm.training.LevenbergMarquardtModule(
            network, getattr(tlm.loss, type(loss).__name__)(), learning_rate=rate,
            attempts_per_step=10, solve_method=solver,
        )  # fmt: skip
    end = time.process_time() + BUDGET
    for _ in range(100):
        for rows in torch.randperm(len(x)).split(batch):
            if time.process_time() > end:
                return
            if run.method == "Adam":
                optimizer.zero_grad()
                loss(network(x[rows]), y[rows]).backward()
                optimizer.step()
            else:
                module.training_step(x[rows], y[rows])


def layer(run: Run) -> float:
    """Return the largest distance from the solution over the cases of a seed."""
    off = []
    for variables in (5, 10):
        generator = torch.Generator().manual_seed(run.seed)
        scale = torch.diag(torch.rand(5, generator=generator) + 1.5)
        U, _ = torch.linalg.qr(torch.randn(5, 5, generator=generator))
        V, _ = torch.linalg.qr(torch.randn(variables, variables, generator=generator))
        A = (U @ scale @ V[:5]).double()
        b = torch.randn(5, generator=generator).double()
        b /= b.norm()
        for equal in (False, True):
            off.append(float((solved(run.method, A, b, equal) - exact(A, b, equal)).abs().max()))
    return max(off)


def exact(A: Tensor, b: Tensor, equal: bool) -> Tensor:
    import cvxpy as cp

    x = cp.Variable(A.shape[1])
    limit = A.numpy() @ x == b.numpy() if equal else A.numpy() @ x <= b.numpy()
    cp.Problem(cp.Minimize(cp.sum_squares(x)), [limit]).solve(solver="CLARABEL")
    return torch.from_numpy(x.value)


def solved(method: str, A: Tensor, b: Tensor, equal: bool) -> Tensor:
    n = A.shape[1]
    zero = torch.zeros(n, dtype=torch.float64)
    if method == "ours":
        lower = b if equal else torch.full_like(b, -math.inf)
        return nearest_in_polyhedron(A, zero[None], lower[None], b[None])[0]
    if method == "qpth":
        from qpth.qp import QPFunction

        none = torch.empty(0, dtype=torch.float64)
        sides = (none, none, A, b) if equal else (A, b, none, none)
        if equal:  # qpth asks for an inequality: one that no solution meets
            sides = (zero[None], torch.ones(1, dtype=torch.float64), A, b)
        return QPFunction(verbose=-1)(2 * torch.eye(n, dtype=torch.float64), zero, *sides)[0]
    if method == "cvxpylayers":
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        v, u = cp.Variable(n), cp.Parameter(n)
        limit = A.numpy() @ v == b.numpy() if equal else A.numpy() @ v <= b.numpy()
        problem = cp.Problem(cp.Minimize(cp.sum_squares(v - u)), [limit])
        return CvxpyLayer(problem, [u], [v])(zero)[0]
    return _cooper(A, b, equal, augmented="augmented" in method)


def _cooper(A: Tensor, b: Tensor, equal: bool, augmented: bool) -> Tensor:
    import cooper

    kind = cooper.ConstraintType.EQUALITY if equal else cooper.ConstraintType.INEQUALITY
    forms = cooper.formulations
    more: dict[str, Any] = {}
    if augmented:
        more["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(
            init=torch.ones(len(b), dtype=torch.float64)
        )

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.limit = cooper.Constraint(
                constraint_type=kind,
                formulation_type=forms.AugmentedLagrangian if augmented else forms.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(
                    num_constraints=len(b), dtype=torch.float64
                ),
                **more,
            )

        def compute_cmp_state(self, x: Tensor) -> Any:
            state = cooper.ConstraintState(violation=A @ x - b)
            return cooper.CMPState(x.square().sum(), {self.limit: state})

    x = nn.Parameter(torch.ones(A.shape[1], dtype=torch.float64))
    problem = Problem()
    optimizer = cooper.optim.SimultaneousOptimizer(
        problem, torch.optim.SGD([x], 3e-2),
        torch.optim.SGD(problem.dual_parameters(), 0.2 / math.sqrt(len(x)), maximize=True),
    )  # fmt: skip
    growth = cooper.penalty_coefficients.MultiplicativePenaltyCoefficientUpdater(
        growth_factor=1 + 2.5e-4, violation_tolerance=1e-4
    )
    for _ in range(1500):
        found = optimizer.roll(compute_cmp_state_kwargs={"x": x})
        if augmented:
            growth.step(found.cmp_state.observed_constraints)
    return x.detach()


def coding(run: Run, epochs: int = 3) -> float:
    data = validation_split(mnist()) if run.choice >= 0 else mnist()
    x, y = data.x_train, data.y_train
    if run.method == "PCX":
        from benchmarks.papers.predictive_coding import train

        best = run.choice if run.choice >= 0 else chosen()
        answer = train(x, y, data.x_test, *RATES[best], epochs=epochs, seed=run.seed)
        return float((answer != data.y_test).float().mean())
    layers: list[nn.Module] = [nn.Linear(784, 128), nn.LeakyReLU()]
    for _ in range(2):
        layers += [nn.Linear(128, 128), nn.LeakyReLU()]
    network = nn.Sequential(*layers, nn.Linear(128, 10))
    if run.method == "ours":
        lift(network, x[:2], loss="cross-entropy", method=Minibatch(epochs), seed=run.seed).fit(
            x, y
        ).write_()
    else:
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
    return wrong(network, data.x_test, data.y_test)


def rms(off: Tensor) -> float:
    return float(off.double().square().mean().sqrt())


def wrong(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((network(x).argmax(1) != y).float().mean())


EXAMPLES: dict[str, Callable[[Run], float]] = {
    "sinc": sinc, "digits": digits, "layer": layer, "coding": coding,
}  # fmt: skip


def measured(run: Run) -> Outcome:
    torch.manual_seed(run.seed)
    np.random.seed(run.seed)
    started = time.process_time()
    value = EXAMPLES[run.example](run)
    return {"value": value, "seconds": time.process_time() - started}


def tries() -> list[Run]:
    return [Run("coding", "PCX", 0, choice) for choice in range(len(RATES))]


def chosen() -> int:
    tried: list[Record[Run]] = finished(RESULTS / "field.jsonl", tries())
    return min(tried, key=lambda record: record.outcome["value"]).settings.choice


def main() -> None:
    torch.set_num_threads(1)
    the_records = records("field", measured)
    if find_spec(NEEDS["PCX"]):
        the_records(tries())
    runs = [
        Run(example, method, seed)
        for example, methods in METHODS.items()
        for method in methods
        if "--stored" in sys.argv or find_spec(NEEDS.get(method, "torch"))
        for seed in SEEDS
    ]
    found = the_records(runs)
    lines = ["| example | method | measured | mean of five | worst | seconds |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: |"]
    for example, methods in METHODS.items():
        for method in methods:
            own = [r.outcome for r in matching(found, example=example, method=method)]
            if own:
                values, seconds = [o["value"] for o in own], median(o["seconds"] for o in own)
                lines.append(
                    f"| {example} | {method} | {MEASURE[example]} | {mean(values):.2g} "
                    f"| {max(values):.2g} | {seconds:.2g} |"
                )
    write("field", "The field's own examples", (__doc__ or "").split("A package")[0].strip(), lines)


if __name__ == "__main__":
    main()
