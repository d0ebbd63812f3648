"""Table 1 of Lifted Neural Networks: starts on MNIST, and networks by themselves.

Run it with `LIFTEDNET_DATA=folder python -m benchmarks.papers.table1 [--quick] [--seeds 3]`.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.data import subsample
from benchmarks.data.mnist import mnist, validation_split
from benchmarks.demo import accuracy, epochs_of
from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.report import Table, mean_and_spread, write_report
from benchmarks.harness.runs import Outcome, Record, matching, run_all, shuffled, tuned
from benchmarks.papers import main
from liftednet.activation import Activation
from liftednet.activations import ReLU, Softmax
from liftednet.data import Classification
from liftednet.export import to_torch
from liftednet.losses import CrossEntropy
from liftednet.models import LiftedMLP, Minibatch
from liftednet.models.starts import Draw, kaiming, orthogonal
from liftednet.problems import Weights

REMARKS = (
    "The number of seeds stands in brackets (the paper: 5). One thread; seconds are wall time on a "
    "machine that did other work at the same time, where they are not called otherwise.",
    "Lifted starts: tight divergences, lam = 10, rho = 1e-6, minibatches of 100, labels smoothed "
    "by 0.1; these were chosen on 10,000 held-out training samples.",
)
# Test accuracy as printed: of the network by itself, and by rate from the starts that are normal,
# Xavier, variance scaling, lifted.
PRINTED = {
    "300": 0.898,
    "300-100": 0.875,
    "500-150": 0.865,
    "500-200-100": 0.853,
    "400-200-100-50": 0.770,
}
PRINTED_STARTS = {
    1e-5: {
        "300": (0.915, 0.923, 0.924, 0.962),
        "300-100": (0.919, 0.932, 0.931, 0.969),
        "500-150": (0.927, 0.936, 0.935, 0.970),
        "500-200-100": (0.927, 0.939, 0.935, 0.958),
        "400-200-100-50": (0.919, 0.938, 0.936, 0.919),
    },
    1e-6: {
        "300": (0.800, 0.836, 0.844, 0.875),
        "300-100": (0.792, 0.838, 0.842, 0.899),
        "500-150": (0.824, 0.850, 0.858, 0.890),
        "500-200-100": (0.821, 0.857, 0.848, 0.926),
        "400-200-100-50": (0.751, 0.838, 0.815, 0.959),
    },
}


PAPER_BIAS = 0.1  # of every start but the lifted one
PAPER_RHO = 1e-3
LAM, RHO, RATE, SMOOTHING = 10.0, 1e-6, 0.3, 0.1  # of the lifted start
BATCH = 100
OURS, EXACT = "lifted", "exact gradients, same step"
ADAMW, MUON, LBFGS = "AdamW", "Muon", "L-BFGS"
_MEMORY = 20  # pairs that L-BFGS keeps
_FACTOR = 3.0  # from one rate or decay to the next
_LSUV_SAMPLES = 1_000

Weighted = list[Weights]
Start = Callable[[Classification, tuple[int, ...], int], Weighted]


@dataclass(frozen=True)
class Extent:
    """How much is run.

    Attributes:
        samples: of MNIST to train on.
        test_samples: of MNIST to test on.
        architectures: hidden layers, for the standalone networks and the paper's protocol.
        opponents: those of them that opponents of standalone networks train, too.
        paper_epochs: passes of the paper's protocol.
        lifted_epochs: passes of the standalone network and of the paper's lifted start.
        seeds: runs of every row.
    """

    samples: int = 60_000
    test_samples: int = 10_000
    architectures: tuple[str, ...] = tuple(PRINTED)
    opponents: tuple[str, ...] = ("300", "400-200-100-50")
    paper_epochs: int = 17
    lifted_epochs: int = 10
    seeds: int = 3


FULL = Extent()
QUICK = Extent(6_000, 2_000, ("300", "400-200-100-50"), ("300",), paper_epochs=3, seeds=1)


def loaded(samples: int, test_samples: int, held_out: bool) -> Classification:
    """Return digits of MNIST, or a part of them with a sixth of the training data to test on."""
    data = mnist()
    if samples < len(data.x_train):
        data = subsample(data, samples, min(test_samples, len(data.x_test)), seed=0)
    return validation_split(data) if held_out else data


def sizes_of(data: Classification, architecture: str) -> tuple[int, ...]:
    """Return the units of inputs, hidden layers and outputs."""
    return (data.x_train.shape[1], *map(int, architecture.split("-")), data.classes)


@dataclass(frozen=True)
class Layers:
    """A feedforward network as `to_torch` takes it."""

    weights: Sequence[Weights]
    activations: Sequence[Activation]


def network_from(weights: Weighted) -> nn.Sequential:
    """Return the ReLU network with copies of these weights, ending with logits."""
    hidden = [ReLU()] * (len(weights) - 1)
    return to_torch(Layers(weights, [*hidden, Softmax()]), logits=True)  # type: ignore[no-any-return]


def xavier(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return uniform entries of variance 2 / (inputs + units) (Glorot, Bengio, 2010)."""
    return nn.init.xavier_uniform_(torch.empty(units, inputs), generator=generator).T


def normal(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 0.1."""
    return torch.randn(inputs, units, generator=generator) * math.sqrt(0.1)


def variance_scaling(inputs: int, units: int, generator: torch.Generator) -> Tensor:
    """Return normal entries of variance 1 / inputs, truncated at two deviations.

    The "sigma-scale" start of the table, as TensorFlow's default.
    """
    deviation = math.sqrt(1 / inputs) / 0.87962566103423978  # of a normal cut at two deviations
    weight = torch.empty(inputs, units)
    return nn.init.trunc_normal_(
        weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator
    )


def drawn(draw: Draw, bias: float = 0.0) -> Start:
    """Return the start that draws every layer by itself."""

    def start(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
        generator = torch.Generator().manual_seed(seed)
        return [
            Weights(draw(inputs, units, generator), torch.full((units,), bias))
            for inputs, units in pairwise(sizes)
        ]

    return start


def unit_variance(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
    """Return orthogonal layers scaled to outputs of variance 1 (LSUV; Mishkin, Matas, 2016)."""
    generator = torch.Generator().manual_seed(seed)
    x = data.x_train[torch.randperm(len(data.x_train), generator=generator)[:_LSUV_SAMPLES]]
    layers = []
    for inputs, units in pairwise(sizes):
        matrix = nn.init.orthogonal_(torch.empty(inputs, units), generator=generator)
        layers.append(Weights(matrix / (x @ matrix).std(), torch.zeros(units)))
        x = layers[-1].apply(x).clamp(min=0)
    return layers


def lifted(epochs: int) -> Start:
    """Return the start from a lifted network that makes some passes over the data."""

    def start(data: Classification, sizes: tuple[int, ...], seed: int) -> Weighted:
        model = lifted_network(sizes, epochs, seed)
        model.fit(data.x_train, smoothed(data.y_train, data.classes))
        return list(model.weights)

    return start


def lifted_network(sizes: tuple[int, ...], epochs: int, seed: int) -> LiftedMLP:
    """Return the lifted network of every table here, not yet fitted."""
    method = Minibatch(epochs=epochs, rate=RATE)
    return LiftedMLP(sizes, lam=LAM, rho=RHO, method=method, seed=seed)


def smoothed(labels: Tensor, classes: int) -> Tensor:
    """Return class probabilities that leave 0.1 to all classes alike, (samples, classes)."""
    return nn.functional.one_hot(labels, classes) * (1 - SMOOTHING) + SMOOTHING / classes


STARTS = {"kaiming": drawn(kaiming), "orthogonal": drawn(orthogonal), "LSUV": unit_variance}


def paper_starts(epochs: int) -> dict[str, Start]:
    """Return the four starts of Table 1, the lifted one trained for some epochs."""
    return {
        "normal": drawn(normal, PAPER_BIAS),
        "Xavier": drawn(xavier, PAPER_BIAS),
        "variance scaling": drawn(variance_scaling, PAPER_BIAS),
        "lifted": lifted(epochs),
    }


@dataclass(frozen=True)
class StartRun:
    """A torch network from one start; the fields name it in the store."""

    data: str
    architecture: str
    start: str
    optimizer: str
    rate: float
    epochs: int
    seed: int
    samples: int
    held_out: bool


def from_start(run: StartRun, extent: Extent) -> Outcome:
    """Train a torch network by the paper's descent, tested before and after every epoch."""
    data = loaded(run.samples, extent.test_samples, run.held_out)
    started = time.perf_counter()
    start = paper_starts(extent.lifted_epochs)[run.start]
    network = network_from(start(data, sizes_of(data, run.architecture), run.seed))
    pretraining = time.perf_counter() - started
    found = train_by_sgd(network, data, run.rate, run.epochs, run.seed)
    seconds = time.perf_counter() - started - pretraining
    return {
        "accuracy": found, "pretraining": round(pretraining, 2), "training": round(seconds, 2)
    }  # fmt: skip


def train_by_sgd(
    network: nn.Sequential, data: Classification, rate: float, epochs: int, seed: int
) -> list[float]:
    """Return test accuracies, epochs + 1 numbers, of descent at a constant rate.

    The printed rates fit a loss that is summed over the batch: with the mean, 17 epochs at 1e-5
    would leave every random start where it was.
    """
    steps = torch.optim.SGD(network.parameters(), rate, weight_decay=2 * PAPER_RHO)
    loss = nn.CrossEntropyLoss(reduction="sum")
    passes = itertools.islice(epochs_of(network, data, steps, loss, BATCH, seed), epochs)
    return [accuracy(network, data), *(accuracy(network, data) for _ in passes)]


def paper_table(folder: Path, extent: Extent) -> Table:
    """Run the paper's protocol: SGD at 1e-5 and 1e-6 in batches of 100 from four starts."""
    names = list(paper_starts(extent.lifted_epochs))
    settings = [
        StartRun("mnist", architecture, name, "paper", rate, extent.paper_epochs, seed,
                 extent.samples, False)
        for seed in range(extent.seeds)
        for architecture in extent.architectures
        for name in names
        for rate in PRINTED_STARTS
    ]  # fmt: skip
    store, run = folder / "paper_protocol.jsonl", partial(from_start, extent=extent)
    records = run_all(store, settings, run, "the paper's")
    rows = [
        _paper_row(matching(records, rate=rate, architecture=architecture), rate, architecture)
        for rate in PRINTED_STARTS
        for architecture in extent.architectures
    ]
    columns = ("rate", "hidden layers", *(f"{name} (paper)" for name in names), "first")
    notes = (
        f"Test accuracy after {extent.paper_epochs} epochs, in brackets the paper's; the lifted "
        f"start has {extent.lifted_epochs} passes more, those of its pretraining.",
        "SGD on the loss summed over a batch of 100, constant rate, rho = 1e-3, biases 0.1: with "
        "the mean over a batch the printed rates would leave a random start untrained.",
    )
    return Table("The paper's protocol, test accuracy", columns, rows, notes)


def _by_start(records: Sequence[Record[StartRun]]) -> dict[str, list[Record[StartRun]]]:
    found: dict[str, list[Record[StartRun]]] = {}
    for record in records:
        found.setdefault(record.settings.start, []).append(record)
    return found


def _paper_row(records: Sequence[Record[StartRun]], rate: float, architecture: str) -> list[str]:
    finals = {
        name: [record.outcome["accuracy"][-1] for record in own]
        for name, own in _by_start(records).items()
    }
    printed = PRINTED_STARTS[rate][architecture]
    cells = [
        f"{mean_and_spread(found)} ({paper:.3f})"
        for found, paper in zip(finals.values(), printed, strict=True)
    ]
    first = max(finals, key=lambda name: statistics.fmean(finals[name]))
    return [f"{rate:g}", architecture, *cells, first]


@dataclass(frozen=True)
class AloneRun:
    """One training; the fields after `architecture` are those of a user who gives no options.

    Attributes:
        samples: of MNIST to train on.
        epochs: passes over them; evaluations of L-BFGS on all of them.
        architecture: of the hidden layers.
        method: who trains.
        rate: of the step at its beginning; it falls linearly to zero, but for L-BFGS, whose line
            searches begin there.
        decay: of the weights; rho for the lifted network.
        smoothing: of the labels.
        batch: samples of a step.
        start: of the weights.
        seed: of start and order.
        held_out: whether a sixth of the training data is trained without and tested on.
    """

    samples: int
    epochs: int
    architecture: str
    method: str = OURS
    rate: float = 0.3
    decay: float = 1.0
    smoothing: float = 0.0
    batch: int = 100
    start: str = "auto"
    seed: int = 0
    held_out: bool = False


@dataclass(frozen=True)
class Row:
    """A method as a table shows it.

    Attributes:
        name: of the row.
        first: where the search begins, or the setting itself.
        search: as `tuned` takes it.
    """

    name: str
    first: AloneRun
    search: Sequence[tuple[str, float | tuple[object, ...]]] = ()


def rows_of(samples: int, epochs: int, architecture: str) -> list[Row]:
    """Return the methods that are compared on an architecture."""
    ours = AloneRun(samples, epochs, architecture)
    adamw = replace(ours, method=ADAMW, rate=1e-3, decay=0.1, smoothing=0.1, start="kaiming")
    scales: list[tuple[str, float | tuple[object, ...]]] = [("rate", _FACTOR), ("decay", _FACTOR)]
    again = ("rate", _FACTOR)
    lbfgs = replace(adamw, method=LBFGS, epochs=10 * epochs, rate=1.0, decay=0.0)
    return [
        Row("lifted, no option", ours),
        Row(EXACT, replace(ours, method=EXACT)),
        Row("lifted, labels smoothed", replace(ours, smoothing=0.1)),
        Row(
            "AdamW, tuned",
            adamw,
            [*scales, ("decay", (0.0,)), ("smoothing", (0.0,)), ("batch", (50, 200)),
             ("start", ("orthogonal", "LSUV")), again],
        ),
        Row("Muon, tuned", replace(adamw, method=MUON, rate=3e-3, batch=400), scales),
        Row(
            "L-BFGS, tuned",
            replace(lbfgs, epochs=5 * epochs // 2, decay=1e-5),
            [*scales, ("decay", (0.0,)), ("smoothing", (0.0,)),
             ("start", ("orthogonal", "LSUV")), again],
        ),
        Row("L-BFGS, ten times the passes", lbfgs),
    ]  # fmt: skip


def train(run: AloneRun, test_samples: int = 10_000) -> Outcome:
    """Train a network and read what it is tested on, of MNIST so many samples, once."""
    data = loaded(run.samples, test_samples, run.held_out)
    started = time.process_time()
    if run.method == EXACT:
        with exact_gradients():
            predict = _by_library(run, data)
    else:
        predict = (_by_library if run.method == OURS else _by_torch)(run, data)
    seconds = time.process_time() - started
    with torch.no_grad():
        right = predict(data.x_test) == data.y_test
    return {"accuracy": float(right.double().mean()), "processor": round(seconds, 2)}


def _by_library(run: AloneRun, data: Classification) -> Callable[[Tensor], Tensor]:
    method = Minibatch(epochs=run.epochs, batch_size=run.batch, rate=run.rate)
    model = LiftedMLP(
        sizes_of(data, run.architecture), loss=CrossEntropy(run.smoothing), rho=run.decay,
        method=method, start=run.start, seed=run.seed,
    )  # fmt: skip
    return model.fit(data.x_train, data.y_train).predict


def _by_torch(run: AloneRun, data: Classification) -> Callable[[Tensor], Tensor]:
    mean = data.x_train.mean(0)
    centered = replace(data, x_train=data.x_train - mean)
    network = network_from(STARTS[run.start](centered, sizes_of(data, run.architecture), run.seed))
    if run.method == LBFGS:
        _by_lbfgs(network, centered, run)
    else:
        fall(network, centered, _optimizers(network, run), run)
    return lambda x: network(x - mean).argmax(1)


def _optimizers(network: nn.Sequential, run: AloneRun) -> list[torch.optim.Optimizer]:
    """Return AdamW, or Muon below the output and AdamW for the rest; biases do not decay."""
    *hidden, output = [p for p in network.parameters() if p.ndim == 2]
    biases = [p for p in network.parameters() if p.ndim == 1]
    bound = [output] if run.method == MUON else [*hidden, output]
    groups = [{"params": bound, "weight_decay": run.decay}, {"params": biases, "weight_decay": 0.0}]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, run.rate, fused=True)]
    if run.method == MUON:
        found += [
            torch.optim.Muon(
                hidden, run.rate, weight_decay=run.decay, adjust_lr_fn="match_rms_adamw"
            )
        ]
    return found


def fall(
    network: nn.Module,
    data: Classification,
    optimizers: Sequence[torch.optim.Optimizer],
    run: AloneRun,
) -> None:
    """Train on smoothed cross-entropy, the rate falling linearly to zero."""
    order, done = torch.Generator().manual_seed(run.seed), 0
    loss = nn.CrossEntropyLoss(label_smoothing=run.smoothing)
    total = run.epochs * -(-len(data.x_train) // run.batch)
    for _ in range(run.epochs):
        for rows in shuffled(len(data.x_train), run.batch, order):
            loss(network(data.x_train[rows]), data.y_train[rows]).backward()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = run.rate * (1 - done / total)
                optimizer.step()
                optimizer.zero_grad()
            done += 1


def _by_lbfgs(network: nn.Module, data: Classification, run: AloneRun) -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=run.smoothing)
    matrices = [p for p in network.parameters() if p.ndim == 2]
    optimizer = torch.optim.LBFGS(
        network.parameters(), run.rate, max_iter=run.epochs, max_eval=run.epochs,
        history_size=_MEMORY, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = loss(network(data.x_train), data.y_train)
        value = value + run.decay / 2 * torch.stack([p.square().sum() for p in matrices]).sum()
        value.backward()
        return value

    optimizer.step(closure)


def alone_table(folder: Path, extent: Extent) -> Table:
    """Run what is missing, and return the table.

    Args:
        folder: of the finished runs.
        extent: how much is run.
    """
    run = partial(train, test_samples=extent.test_samples)
    records = partial(run_all, folder / "alone.jsonl", run=run, title="by themselves")
    lines, known = [], dict[str, AloneRun]()
    for architecture in sorted(extent.architectures, key=lambda a: a not in extent.opponents):
        rows = rows_of(extent.samples, extent.lifted_epochs, architecture)
        for row in rows if architecture in extent.opponents else rows[:2]:
            lines.append(_line(row, known, records, extent.seeds))
    columns = (
        "hidden layers", "paper", "training", "test accuracy", "worst", "processor seconds",
        "setting (tried)",
    )  # fmt: skip
    epochs = extent.lifted_epochs
    notes = (
        f"{epochs} passes over {extent.samples} samples, L-BFGS {5 * epochs // 2} evaluations on "
        f"all of them or {10 * epochs}, the latter as it is first tried; the test set is read once "
        "by every run, at the end. Mean ± deviation (seeds).",
        "Tuned: along one field after another, on a sixth of the training data with one seed, a "
        f"rate or decay going on by factors of {_FACTOR:g} until its best is inside, and for the "
        "other networks rate and decay from what is best for the first; AdamW's "
        "choices contain decay 0 (Adam), labels as they are, and batches of 50, 100 and 200. Muon "
        "has the matrices below the output, AdamW the rest; labels and start are those that AdamW "
        "chose first, the batch is the smallest at which it takes about as long as the others. The "
        "rate of L-BFGS is the first step of its line searches (strong Wolfe, "
        f"{_MEMORY} pairs), its decay a squared norm in the loss. All other rates fall linearly to "
        "zero; torch networks get centered inputs.",
        f"Decay is rho for the lifted network. {EXACT[0].upper() + EXACT[1:]}: backpropagation in "
        "place of the lifted targets in the network without options.",
    )
    return Table("Networks by themselves, test accuracy", columns, lines, notes)


def _line(
    row: Row,
    known: dict[str, AloneRun],
    records: Callable[[Sequence[AloneRun]], list[Record[AloneRun]]],
    seeds: int,
) -> list[str]:
    """Return the row; its setting is known to other architectures."""

    def held(setting: AloneRun) -> float:
        value: float = records([replace(setting, held_out=True)])[0].outcome["accuracy"]
        return value

    best, tries = row.first, 0
    if row.search and row.name not in known:
        best, tries = tuned(row.first, row.search, held)
        known[row.name] = best
    elif row.search:
        first = replace(known[row.name], architecture=row.first.architecture)
        best, tries = tuned(first, row.search[:2], held)
    found = [record.outcome for record in records([replace(best, seed=s) for s in range(seeds)])]
    accuracies = [outcome["accuracy"] for outcome in found]
    printed = PRINTED[best.architecture]
    setting = f"rate {best.rate:g}, decay {best.decay:g}, smoothing {best.smoothing:g}, batch "
    setting += f"{best.batch}, {best.start} ({tries})"
    if best.method == LBFGS:
        setting = setting.replace(f"batch {best.batch}, ", "")
    return [
        best.architecture,
        f"{printed:.3f}",
        row.name,
        mean_and_spread(accuracies, 4),
        f"{min(accuracies):.4f}",
        f"{statistics.fmean(outcome['processor'] for outcome in found):.0f}",
        setting if best.method in (ADAMW, MUON, LBFGS) else "the library's own",
    ]


def run(folder: Path, quick: bool = False, seeds: int | None = None) -> Path:
    """Run what is missing, and write the tables and README.md; return its path.

    Args:
        folder: of the results; runs that are stored there are not repeated.
        quick: minutes instead of hours: fewer samples, epochs, networks.
        seeds: runs of every row, or None for three, in the quick form one; the paper has five.

    Raises:
        DataError: MNIST cannot be found.
    """
    extent = QUICK if quick else FULL
    return report(folder, extent if seeds is None else replace(extent, seeds=seeds), quick)


def report(folder: Path, extent: Extent, quick: bool = False) -> Path:
    """Run what is missing to an extent, and write the report; return its path."""
    tables = [
        ("alone", alone_table(folder, extent)),
        ("paper_protocol", paper_table(folder, extent)),
    ]
    title = "Table 1 of Lifted Neural Networks" + (" (quick form)" if quick else "")
    return write_report(folder, title, tables, remarks=REMARKS)


if __name__ == "__main__":
    main("table1", run)
