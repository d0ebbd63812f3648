"""One lifted pass as the start of a torch network, beside other starts and Adam for as long.

LeNet-5 and a residual network of thirty layers of 128, 5,000 digits of MNIST in batches of 100. A
start is torch's own, Kaiming, LSUV, torch's own with an output layer fitted by one convex problem,
or what one pass makes of torch's own: of lifted training (`initialize_`), of the same step with
exact gradients, or of Adam at rate 0.002. Then Adam trains for no, one or two epochs, its rate
falling to zero; it is chosen for every start and number of epochs on 5,000 other digits with one
seed, by factors of 3 until the best is inside. Run it with `OMP_NUM_THREADS=1
LIFTEDNET_DATA=folder python -m benchmarks.starts_of_torch_networks`, half an hour; finished runs
are kept. Written to benchmarks/results/starts_of_torch_networks.md.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lenet import lenet
from benchmarks.solvers import machine
from liftednet import initialize_
from liftednet.data import mnist
from liftednet.losses import CrossEntropy
from liftednet.reproduce.exact import exact_gradients
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.starts import fitted_head
from liftednet.reproduce.tuning import tuned
from liftednet.solvers import GeneralizedLinear

RESULT = Path(__file__).parent / "results" / "starts_of_torch_networks.md"
SAMPLES, HELD, BATCH, SEEDS, EPOCHS = 5_000, 5_000, 100, (1, 2, 3, 4, 5), (0, 1, 2)
HEAD = GeneralizedLinear(tolerance=1e-3, max_iterations=200)


class Residual(nn.Module):
    """h + relu(h W + b), thirty times over."""

    def __init__(self) -> None:
        """Draw the weights as torch does."""
        super().__init__()
        self.first = nn.Linear(784, 128)
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(30))
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, 10) of (samples, 1, 28, 28)."""
        h = torch.relu(self.first(x.flatten(1)))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.last(h)  # type: ignore[no-any-return]


def residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Residual()


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"LeNet-5": lenet, "30 x 128": residual}


@dataclass(frozen=True)
class Run:
    """A start, and Adam after it; a trial is judged on other training digits."""

    network: str
    start: str
    epochs: int
    rate: float
    seed: int = 0
    trial: bool = True


def layers_of(network: nn.Module) -> list[Any]:
    return [part for part in network.modules() if isinstance(part, nn.Linear | nn.Conv2d)]


@torch.no_grad()
def kaiming(network: nn.Module, x: Tensor, y: Tensor) -> None:
    for layer in layers_of(network):
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)


@torch.no_grad()
def unit_variance(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Orthogonal layers, scaled one after another to outputs of variance 1 (LSUV)."""

    def scaled(layer: Any, _: Any, output: Tensor) -> Tensor:
        layer.weight.div_(output.std())
        return output / output.std()

    for layer in layers_of(network):
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    handles = [layer.register_forward_hook(scaled) for layer in layers_of(network)]
    network(x[:1000])
    for handle in handles:
        handle.remove()


@torch.no_grad()
def fitted_output(network: nn.Module, x: Tensor, y: Tensor) -> None:
    last, features = layers_of(network)[-1], list[Tensor]()
    handle = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    for part in x.split(1000):
        network(part)
    handle.remove()
    found = fitted_head(torch.cat(features), y, 10, 1.0, HEAD)
    last.weight.copy_(found.matrix.T)
    last.bias.copy_(found.bias)


def lifted(network: nn.Module, x: Tensor, y: Tensor) -> None:
    initialize_(network, x, y, loss=CrossEntropy(), passes=1)


def exact(network: nn.Module, x: Tensor, y: Tensor) -> None:
    with exact_gradients():
        lifted(network, x, y)


def adam(network: nn.Module, x: Tensor, y: Tensor, rate: float = 2e-3, epochs: int = 1) -> None:
    """Train in an order that torch's seed gives, the rate falling to zero."""
    optimizer = torch.optim.Adam(network.parameters(), rate, fused=True)
    steps = epochs * -(-len(x) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            falling.step()


STARTS: dict[str, Callable[[nn.Module, Tensor, Tensor], None]] = {
    "torch's own": lambda network, x, y: None,
    "Kaiming": kaiming,
    "LSUV": unit_variance,
    "torch's own, fitted output": fitted_output,
    "lifted, one pass": lifted,
    "exact gradients, same step, one pass": exact,
    "Adam, one pass": adam,
}


@cache
def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Return images (samples, 1, 28, 28) and labels: to train on, to choose by, to test on."""
    data = mnist()
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(7))
    images, parts = (
        data.x_train.reshape(-1, 1, 28, 28),
        order[: SAMPLES + HELD].split([SAMPLES, HELD]),
    )
    train, held = ((images[rows], data.y_train[rows]) for rows in parts)
    return {"train": train, "held": held, "test": (data.x_test.view(-1, 1, 28, 28), data.y_test)}


@lru_cache(len(SEEDS) + 1)
def begin(name: str, start: str, seed: int) -> tuple[nn.Module, float]:
    """Return a network at a start, and the seconds that this took."""
    network, began = NETWORKS[name](seed), time.process_time()
    STARTS[start](network, *digits()["train"])
    return network, time.process_time() - began


def train(run: Run) -> Outcome:
    """Train from a start, which is kept for the next run."""
    torch.set_num_threads(1)
    (x, y), (unseen, answers) = digits()["train"], digits()["held" if run.trial else "test"]
    begun, made = begin(run.network, run.start, run.seed)
    network, began = copy.deepcopy(begun), time.process_time()
    torch.manual_seed(run.seed)
    if run.epochs:
        adam(network, x, y, run.rate, run.epochs)
    trained = time.process_time() - began
    with torch.no_grad():
        right = torch.cat([network(part).argmax(1) for part in unseen.split(1000)]) == answers
    return {"accuracy": float(right.double().mean()), "made": made, "trained": trained}


def cell(first: Run, outcomes: Callable[[Sequence[Run]], list[Record[Run]]]) -> list[Outcome]:
    """Return the runs of a start and number of epochs, at the rate that is best for it."""
    best = first
    if first.epochs:
        best, _ = tuned(first, [("rate", 3.0)], lambda run: outcomes([run])[0].outcome["accuracy"])
    runs = [replace(best, seed=seed, trial=False) for seed in SEEDS]
    return [{**record.outcome, "rate": best.rate} for record in outcomes(runs)]


def main() -> None:
    """Run what is missing, and write the table."""
    outcomes = partial(run_all, RESULT.with_suffix(".jsonl"), run=train)
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    heads = [f"{epochs} epochs (rate)" for epochs in EPOCHS]
    about = " ".join((__doc__ or "").split("\n\n")[1].split(" Run it with")[0].split())
    text = [
        f"# A lifted start of torch networks\n\n{measured}\n\n{about} Test accuracy, mean ± "
        "deviation of five seeds; processor seconds of the start and of an epoch after it.\n",
        f"| network | start | {' | '.join(heads)} | seconds |",
        "| --- | --- |" + " --- |" * len(heads) + " --- |",
    ]
    for network in NETWORKS:
        for start in STARTS:
            cells, seconds = [], ""
            for epochs in EPOCHS:
                found = cell(Run(network, start, epochs, 1e-3), outcomes)
                own = [outcome["accuracy"] for outcome in found]
                rate = f" ({found[0]['rate']:g})" if epochs else ""
                cells.append(f"{fmean(own):.4f} ± {stdev(own):.4f}{rate}")
                if epochs == 1:
                    made, trained = (fmean(one[k] for one in found) for k in ("made", "trained"))
                    seconds = f"{made:.1f} + {trained:.1f}"
            text.append(f"| {network} | {start} | {' | '.join(cells)} | {seconds} |")
            print(text[-1], flush=True)
    RESULT.write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
