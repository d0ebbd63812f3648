"""Networks of ten, twenty and forty layers: lifted targets, exact gradients, AdamW tuned.

Run it with `OMP_NUM_THREADS=1 LIFTEDNET_DATA=folder python -m benchmarks.depth`, an hour of
one core; with --quick it takes seconds and writes nothing. Runs that stand in
results/depth/runs.jsonl are not repeated. Layers of 50 without normalization, 5,000 digits of
MNIST, labels smoothed by 0.1; AdamW is tuned on 5,000 other digits, ours has its defaults.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.runs import Outcome, run_all
from liftednet import activations
from liftednet.data import mnist
from liftednet.errors import SolverError
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.starts import STARTS

FOLDER = Path(__file__).parents[1] / "results" / "depth"
ACTIVATIONS = {
    "sigmoid": (activations.Sigmoid(), torch.sigmoid),
    "tanh": (activations.Tanh(), torch.tanh),
    "ReLU": (activations.ReLU(), torch.relu),
}
LIFTED, EXACT, ADAM = "lifted targets", "exact gradients, same step", "AdamW"
WIDTH, SMOOTHED, SEEDS, TUNED_AT = 50, 0.1, (1, 2, 3, 4, 5), 0


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        layers: hidden ones.
        activation: its name.
        method: who trains.
        seed: of start and order.
        passes: over the data.
        start: of the weights.
        rate: of AdamW; None for that of the library.
        decay: of AdamW.
    """

    layers: int
    activation: str
    method: str
    seed: int
    passes: int = 10
    start: str = "auto"
    rate: float | None = None
    decay: float = 0.0


@dataclass(frozen=True)
class Digits:
    """Centered images and labels: to train on, to tune by, to test on."""

    train: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(train: int = 5000, held: int = 5000) -> Digits:
    data = mnist()
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(7))
    x, x_test = data.x_train.flatten(1), data.x_test.flatten(1)
    first, second = order[:train], order[train : train + held]
    mean = x[first].mean(0)
    return Digits(
        (x[first] - mean, data.y_train[first]),
        (x[second] - mean, data.y_train[second]),
        (x_test - mean, data.y_test),
    )


def model(run: Run) -> LiftedMLP:
    sizes = (784, *[WIDTH] * run.layers, 10)
    method = Minibatch(epochs=run.passes)
    activation, _ = ACTIVATIONS[run.activation]
    return LiftedMLP(sizes, activation, method=method, start=run.start, seed=run.seed)


def by_library(run: Run, data: Digits) -> Callable[[Tensor], Tensor]:
    x, y = data.train
    smooth = nn.functional.one_hot(y, 10) * (1 - SMOOTHED) + SMOOTHED / 10
    return model(run).fit(x, smooth).predict


def by_exact_gradients(run: Run, data: Digits) -> Callable[[Tensor], Tensor]:
    with exact_gradients():
        return by_library(run, data)


def first_weights(run: Run, data: Digits) -> list[tuple[Tensor, Tensor]]:
    """Return the start that a name stands for; LSUV has pre-activations of variance 1."""
    phi = ACTIVATIONS[run.activation][1]
    generator = torch.Generator().manual_seed(run.seed)
    if run.start == "auto":  # that of the library
        fitted = model(run)
        fitted.method = Minibatch(epochs=1, rate=1e-12)
        found = fitted.fit(*data.train).weights
        return [(w.matrix.clone(), w.bias.clone()) for w in found if w.bias is not None]
    layers, h = [], data.train[0][:1000]
    for inputs, units in pairwise((784, *[WIDTH] * run.layers, 10)):
        draw = STARTS["kaiming" if run.start == "kaiming" else "orthogonal"]
        weight, bias = draw(inputs, units, generator), torch.zeros(units)
        if run.start == "LSUV":
            weight = weight / (h @ weight).std(0).square().mean().sqrt()
            bias = -(h @ weight).mean(0)
        layers.append((weight.clone(), bias))
        h = phi(h @ weight + bias)
    return layers


def by_adam(run: Run, data: Digits) -> Callable[[Tensor], Tensor]:
    phi = ACTIVATIONS[run.activation][1]
    layers = [(w.requires_grad_(), b.requires_grad_()) for w, b in first_weights(run, data)]
    assert run.rate is not None
    groups = [
        {"params": [w for w, _ in layers], "weight_decay": run.decay},
        {"params": [b for _, b in layers], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, run.rate, foreach=True)
    x, y = data.train
    steps = run.passes * -(-len(x) // 100)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: max(0.0, 1 - k / steps))
    generator = torch.Generator().manual_seed(run.seed)

    def forward(h: Tensor) -> Tensor:
        for weight, bias in layers[:-1]:
            h = phi(torch.addmm(bias, h, weight))
        return torch.addmm(layers[-1][1], h, layers[-1][0])

    for _ in range(run.passes):
        for rows in torch.randperm(len(x), generator=generator).split(100):
            loss = nn.functional.cross_entropy(forward(x[rows]), y[rows], label_smoothing=SMOOTHED)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return lambda z: forward(z).argmax(1)


METHODS = {LIFTED: by_library, EXACT: by_exact_gradients, ADAM: by_adam}


Found = Callable[[Run], Outcome]


def train(data: Digits, run: Run) -> Outcome:
    """Return accuracy on held-out and test digits, and processor seconds."""
    started = time.process_time()
    try:
        predict = METHODS[run.method](run, data)
        seconds = time.process_time() - started
        with torch.no_grad():
            held, test = (
                float((predict(x) == y).float().mean()) for x, y in (data.held, data.test)
            )
    except SolverError as error:  # a training that fails is a failed run
        print(error)
        held, test, seconds = 0.1, 0.1, time.process_time() - started
    return {"held": held, "test": test, "seconds": round(seconds, 2)}


def tuned(found: Found, layers: int, activation: str, passes: int, known: Run | None) -> Run:
    """Return AdamW as it is best on held-out digits, among starts, rates and decays.

    Rates go on by a factor of 3 until the best is inside; other depths begin at the best of 20.
    """
    first = Run(layers, activation, ADAM, TUNED_AT, passes, rate=3e-3, decay=0.1)
    if known is None:
        tries = [
            replace(first, start=start, rate=rate)
            for start in ("kaiming", "orthogonal", "LSUV", "auto")
            for rate in (1e-3, 3e-3)
        ]
    else:
        tries = [replace(known, layers=layers)]

    def held(run: Run) -> float:
        value: float = found(run)["held"]
        return value

    best = max(tries, key=held)
    for factor in (3, 1 / 3):
        while (rate := float(f"{(best.rate or 0) * factor:.0e}")) > 0 and held(
            further := replace(best, rate=rate)
        ) > held(best):
            best = further
    decays = (0.0, 0.3, 1.0) if known is None else ()
    return max([best, *(replace(best, decay=decay) for decay in decays)], key=held)


def rows(found: Found, depths: tuple[int, ...], passes: int, *longer: int) -> Iterator[str]:
    """Yield the table: mean and deviation of test accuracy over seeds.

    The opponent has as many passes as take the same time, and at the first depth longer ones, too.
    """
    yield "| layers | activation | training | passes | test accuracy | worst | processor seconds |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    best: dict[str, Run] = {}
    for layers in depths:
        for activation in ACTIVATIONS:
            ours = Run(layers, activation, LIFTED, TUNED_AT, passes)
            opponents = [
                tuned(found, layers, activation, count, best.get(activation))
                for count in (longer if layers == depths[0] else longer[:1])
            ]
            best.setdefault(activation, opponents[0])
            for run in (ours, replace(ours, method=EXACT), *opponents):
                results = [found(replace(run, seed=seed)) for seed in SEEDS]
                test = [result["test"] for result in results]
                seconds = fmean(result["seconds"] for result in results)
                told = run.method
                if run.method == ADAM:
                    told = f"AdamW, {run.start} start, rate {run.rate:g}, decay {run.decay:g}"
                yield (
                    f"| {layers} | {activation} | {told} | {run.passes} | {fmean(test):.4f} ± "
                    f"{stdev(test):.4f} | {min(test):.4f} | {seconds:.1f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a check that it runs")
    torch.set_num_threads(1)
    if parser.parse_args().quick:
        few = digits(500, 500)
        print(*rows(lambda run: train(few, run), (2,), 2, 2), sep="\n")
        return
    run = partial(train, digits())

    def found(setting: Run) -> Outcome:
        return run_all(FOLDER / "runs.jsonl", [setting], run)[0].outcome

    lines = rows(found, (20, 40, 10), 10, 14, 25)
    (FOLDER / "table.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
