"""One lifted pass as the start of a torch network, beside other starts and Adam for as long.

Networks of digits train on 5,000 of MNIST, recurrent ones on 1,000 windows of HAR, or on 1,000
windows of 12 steps of the JSB chorales, where they predict the next chord and are judged on whole
songs of unequal lengths, in batches of 100. A start is torch's own, Kaiming (orthogonal in
recurrent layers), LSUV, torch's own with an output layer fitted by one convex problem or with the
bias of the best constant output, or what one pass makes: of lifted training from a start that is
drawn anew, with an output layer fitted at the end or without, of the same step with exact
gradients, or of Adam at rate 0.002 from torch's own. "And the output fitted" is `initialize_`; its
rate of 0.8 and damping of 3 were chosen on held-out samples of the first seven networks with three
other seeds, the same for all; other lifted rows have the rate 0.3 and damping 30 of `Minibatch`.
Then Adam trains for no, one, two, three or five epochs, its rate falling to zero; it is chosen for
every start and number of epochs on as many other samples (the validation songs of JSB) with one
seed, by factors of 3 until the best is inside: no worse than its neighbours, though a rate further
away may be better, as for torch's own LSTM on JSB, which is worse after five epochs at 0.03 than
after three at 0.3. "At the end" an output layer is fitted after these epochs, too, its pull chosen
on a fifth of the samples. Rows were measured at loads of 2 to 8; those of lifted passes over HAR
and the transformer without "output fitted" are older than the steps over all of time at once: their
seconds would be fewer now. Those of digits and HAR are also of before the last bias that
`initialize_` gives weights it draws, the best constant output; those with "output fitted" have it.
Without it they had, by `initialize_` and by exact gradients: LeNet-5 0.9655 and 0.9627, VGG 0.9681
and 0.9672, residual 0.9148 and 0.9147, sigmoids 0.9109 and 0.9108, LSTM 0.6882 and 0.6893, GRU
0.7103 and 0.7110, transformer 0.8966 and 0.8989 (five seeds): alike, as long as it is added to the
bias that centers the outputs of deep networks. In its place it cost the residual network 0.014.

Run it with `OMP_NUM_THREADS=1 LIFTEDNET_DATA=folder python -m benchmarks.starts_of_torch_networks`,
two hours; finished runs are kept, and with --stored only what is there is shown. Written to
benchmarks/results/starts_of_torch_networks.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.exact import exact_gradients
from benchmarks.harness.report import machine
from benchmarks.harness.runs import Outcome, Record, finished, run_all, tuned
from benchmarks.torch_tasks import CLASSES, TASKS, Goal, accuracy, adam
from liftednet import initialize_
from liftednet.errors import SolverError
from liftednet.export import linear
from liftednet.lazy import pyplot
from liftednet.models import Minibatch
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit
from liftednet.samples import Weights
from liftednet.solvers import GeneralizedLinear, solve

RESULT = Path(__file__).parent / "results" / "starts_of_torch_networks.md"
SEEDS, EPOCHS = (1, 2, 3, 4, 5), (0, 1, 2, 3, 5)
PULLS = (10.0, 1.0, 0.1, 0.01, 0.001)  # of a fitted output, chosen on a fifth of the samples
HEAD = GeneralizedLinear(tolerance=1e-3, max_iterations=200)


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
def kaiming(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    for layer in layers_of(network):
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    orthogonal(network)


@torch.no_grad()
def orthogonal(network: nn.Module) -> None:
    """Give every gate of a recurrent layer orthogonal weights."""
    for part in network.modules():
        if isinstance(part, nn.LSTM | nn.GRU):
            for weight in (part.weight_ih_l0, part.weight_hh_l0):
                for gate in weight.split(part.hidden_size):
                    nn.init.orthogonal_(gate)


@torch.no_grad()
def unit_variance(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    """Orthogonal layers, scaled one after another to outputs of variance 1 (LSUV)."""

    def scaled(layer: Any, _: Any, output: Tensor) -> Tensor:
        layer.weight.div_(output.std())
        return output / output.std()

    orthogonal(network)
    for layer in layers_of(network):
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    handles = [layer.register_forward_hook(scaled) for layer in layers_of(network)]
    network(x[:1000])
    for handle in handles:
        handle.remove()


@torch.no_grad()
def best_constant(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    """Give the last layer the bias by which a network without inputs is best."""
    layers_of(network)[-1].bias.copy_(goal.constant(y))


def fitted_output(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    fit_output(network, x, y, goal, (1.0,))


@torch.no_grad()
def fit_output(
    network: nn.Module, x: Tensor, y: Tensor, goal: Goal, pulls: Sequence[float] = PULLS
) -> None:
    last, features = layers_of(network)[-1], list[Tensor]()
    handle = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    for part in x.split(1000):
        network(part)
    handle.remove()
    order = torch.randperm(len(x))
    rows, labels, held = torch.cat(features)[order], y[order], len(x) // 5

    def fitted(unseen: int, pull: float) -> Weights:
        seen, asked = rows[unseen:].flatten(0, -2), labels[unseen:].flatten(0, rows.ndim - 2)
        target = goal.loss.encode(asked, last.out_features).to(seen)
        fit = WeightFit(goal.loss.divergence, Design(seen), target, SquaredFrobenius(pull))
        found: Weights = solve(fit, HEAD).value
        return found

    def merit(pull: float) -> float:
        network = linear(fitted(held, pull))
        if goal is CLASSES:
            return accuracy(network, rows[:held], labels[:held])
        return -float(goal.objective(network(rows[:held]), labels[:held]))

    with suppress(SolverError):  # features of 1e10, of a start that is none: the layer stays
        found = fitted(0, pulls[0] if len(pulls) == 1 else max(pulls, key=merit))
        last.weight.copy_(found.matrix.T)
        last.bias.copy_(found.bias)


def lifted(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    method = Minibatch(epochs=1)
    initialize_(network, x, y, loss=goal.loss, seed=seed, method=method, refit_output=False)


def at_own_rate(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    initialize_(network, x, y, loss=goal.loss, seed=seed, method=Minibatch(epochs=1))


def initialized(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    initialize_(network, x, y, loss=goal.loss, seed=seed)


def at_rate_of_initialize(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    initialize_(network, x, y, loss=goal.loss, seed=seed, refit_output=False)


def exact(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    with exact_gradients():
        lifted(network, x, y, goal, seed)


def exact_at_rate(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    with exact_gradients():
        at_rate_of_initialize(network, x, y, goal, seed)


def exact_initialized(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    with exact_gradients():
        initialized(network, x, y, goal, seed)


def adam_pass(network: nn.Module, x: Tensor, y: Tensor, goal: Goal, seed: int) -> None:
    adam(network, x, y, objective=goal.objective)


STARTS: dict[str, Callable[[nn.Module, Tensor, Tensor, Goal, int], None]] = {
    "torch's own": lambda network, x, y, goal, seed: None,
    "Kaiming": kaiming,
    "LSUV": unit_variance,
    "torch's own, bias of the best constant": best_constant,
    "torch's own, fitted output": fitted_output,
    "lifted, one pass": lifted,
    "exact gradients, same step, one pass": exact,
    "lifted, one pass at initialize_'s rate": at_rate_of_initialize,
    "exact gradients, one pass at initialize_'s rate": exact_at_rate,
    "lifted, one pass at Minibatch's rate and the output fitted": at_own_rate,
    "lifted, one pass and the output fitted": initialized,
    "exact gradients, same step, one pass and the output fitted": exact_initialized,
    "Adam, one pass": adam_pass,
    "Kaiming, output fitted at the end": kaiming,
    "LSUV, output fitted at the end": unit_variance,
    "torch's own, bias of the best constant, output fitted at the end": best_constant,
}
FITTED = [name for name in STARTS if name.endswith("at the end")]  # after Adam


@lru_cache(len(SEEDS) + 1)
def begin(name: str, start: str, seed: int) -> tuple[nn.Module, float]:
    """Return a network at a start, and the seconds that this took."""
    torch.manual_seed(seed)
    task = TASKS[name]
    (x, y), network = task.sets()["train"], task.build()
    began = time.process_time()
    STARTS[start](network, x, y, task.goal, seed)
    return network, time.process_time() - began


def train(run: Run) -> Outcome:
    """Train from a start, which is kept for the next run."""
    torch.set_num_threads(1)
    sets, goal = TASKS[run.network].sets(), TASKS[run.network].goal
    begun, made = begin(run.network, run.start, run.seed)
    network, began = copy.deepcopy(begun), time.process_time()
    torch.manual_seed(run.seed)
    if run.epochs:
        adam(network, *sets["train"], run.rate, run.epochs, goal.objective)
    trained = time.process_time() - began
    if run.start in FITTED:
        fit_output(network, *sets["train"], goal)
        trained = time.process_time() - began
    found = goal.figure(network, *sets["held" if run.trial else "test"])
    return {"figure": found, "made": made, "trained": trained}


def cell(first: Run, outcomes: Callable[[Sequence[Run]], list[Record[Run]]]) -> list[Outcome]:
    """Return the runs of a start and number of epochs, at the rate that is best for it."""
    best, perfect = first, TASKS[first.network].goal.perfect
    if first.epochs:

        def score(run: Run) -> float:
            return -abs(perfect - outcomes([run])[0].outcome["figure"])

        best, _ = tuned(first, [("rate", 3.0)], score)
    runs = [replace(best, seed=seed, trial=False) for seed in SEEDS]
    return [{**record.outcome, "rate": best.rate} for record in outcomes(runs)]


Cells = dict[tuple[str, str, int], list[Outcome]]


def first_rate(start: str) -> float:
    """Return where the search for Adam's rate begins."""
    return 1e-2 if "fitted" in start and "own" not in start else 1e-3


def measured(outcomes: Callable[[Sequence[Run]], list[Record[Run]]]) -> Cells:
    """Return the runs of all cells, or of those that are there."""
    found: Cells = {}
    for key in product(TASKS, STARTS, EPOCHS):
        network, start, epochs = key
        if TASKS[network].goal is CLASSES and "best constant" in start:
            continue  # of classes that are about as frequent
        with suppress(LookupError):
            rate = first_rate(start) if epochs else 1e-3
            found[key] = cell(Run(network, start, epochs, rate), outcomes)
    return found


def stored(runs: Sequence[Run]) -> list[Record[Run]]:
    """Return the records of runs that are all finished.

    Raises:
        LookupError: one is not.
    """
    known = kept()
    return [known[run] for run in runs]


@cache
def kept() -> dict[Run, Record[Run]]:
    """Return the finished runs."""
    lines = RESULT.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    given = [json.loads(line)["settings"] for line in lines]
    runs = [Run(**{k: v for k, v in one.items() if k != "kind"}) for one in given]
    return {record.settings: record for record in finished(RESULT.with_suffix(".jsonl"), runs)}


def row(cells: Cells, network: str, start: str) -> str | None:
    """Return a line of the table, None where nothing was measured."""
    texts, seconds = [], ""
    for epochs in EPOCHS:
        found = cells.get((network, start, epochs))
        if found is None:
            texts.append("")
            continue
        own = [outcome["figure"] for outcome in found]
        rate = f" ({found[0]['rate']:g})" if epochs else ""
        texts.append(f"{fmean(own):.4f} ± {stdev(own):.4f}{rate}")
        if epochs in (0, 1):
            made, trained = (fmean(one[k] for one in found) for k in ("made", "trained"))
            seconds = f"{made:.2f} + {trained:.2f}" if epochs else f"{made + trained:.2f}"
    return f"| {network} | {start} | {' | '.join(texts)} | {seconds} |" if any(texts) else None


def draw(cells: Cells) -> None:
    """Draw test errors against seconds, start and epochs together, a picture for each network."""
    figure, axes = pyplot.subplots(2, 5, figsize=(22, 8))
    for network, axis in zip(TASKS, axes.flat, strict=False):
        goal = TASKS[network].goal
        for number, start in enumerate(STARTS):
            found = [cells[key] for key in product([network], [start], EPOCHS) if key in cells]
            if found:
                spent = [fmean(o["made"] + o["trained"] for o in runs) for runs in found]
                own = [[abs(goal.perfect - o["figure"]) for o in runs] for runs in found]
                axis.errorbar(
                    spent, list(map(fmean, own)), list(map(stdev, own)), label=start, marker="o",
                    capsize=2, color=f"C{number % 10}", linestyle="--" if number > 9 else "-",
                    linewidth=2.5 if "lifted" in start else 1,
                )  # fmt: skip
        axis.set(title=network, xlabel="processor seconds, start and epochs", ylabel=goal.error)
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes.flat[-1].axis("off")
    named = max((axis.get_legend_handles_labels() for axis in axes.flat), key=lambda x: len(x[1]))
    axes.flat[-1].legend(*named, loc="center", fontsize=9)
    figure.tight_layout()
    figure.savefig(RESULT.with_suffix(".png"), dpi=60)


def main() -> None:
    """Run what is missing, and write the table and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", action="store_true", help="run nothing, write what is there")
    run = partial(run_all, RESULT.with_suffix(".jsonl"), run=train)
    cells = measured(stored if parser.parse_args().stored else run)
    here = "; ".join(f"{name} {value}" for name, value in machine().items())
    heads = [f"{epochs} epochs (rate)" for epochs in EPOCHS]
    about = " ".join((__doc__ or "").split("\n\n")[1].split())
    text = [
        f"# A lifted start of torch networks\n\n{here}\n\n{about} Test accuracy, of JSB nats a "
        "step, the fewer the better: mean ± deviation of five seeds; processor seconds of the "
        "start and of an epoch after it. What is empty was not run.\n\n"
        f"![Test errors against seconds]({RESULT.stem}.png)\n",
        f"| network | start | {' | '.join(heads)} | seconds |",
        "| --- | --- |" + " --- |" * len(heads) + " --- |",
    ]
    rows = [row(cells, network, start) for network, start in product(TASKS, STARTS)]
    text += [line for line in rows if line is not None]
    RESULT.write_text("\n".join([*text, ""]), encoding="utf-8")
    draw(cells)


if __name__ == "__main__":
    main()
