"""Torch networks trained by `initialize_` alone, beside exact gradients in its step and AdamW.

Ten passes in batches of 100: LeNet-5 over 60,000 digits of MNIST, other networks of digits over
10,000, recurrent ones over 1,000 windows of HAR. Ours has no option. AdamW begins at torch's own
start, its rate falls to zero; rate, decay and label smoothing are chosen for every network by two
passes over 5,000 digits (or the windows), judged by as many other samples, by factors of 3 until
the best is inside. Run it with `OMP_NUM_THREADS=1 LIFTEDNET_DATA=folder python -m
benchmarks.torch_networks_alone`, an hour; finished runs are kept. Written to
benchmarks/results/torch_networks_alone.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from benchmarks.solvers import machine
from benchmarks.torch_tasks import BATCH, TASKS, accuracy, adam, digits
from liftednet import initialize_
from liftednet.losses import CrossEntropy
from liftednet.reproduce.exact import exact_gradients
from liftednet.reproduce.runs import Outcome, run_all
from liftednet.reproduce.tuning import tuned

RESULT = Path(__file__).parent / "results" / "torch_networks_alone.md"
SEEDS, PASSES, TRIAL_PASSES, LONG = (1, 2, 3, 4, 5), 10, 2, 30
LENET, OURS, EXACT, ADAMW = "LeNet-5", "lifted, without options", "exact gradients", "AdamW"
SEARCH = [("rate", 3.0), ("decay", (0.1,)), ("smoothing", (0.1,)), ("rate", 3.0)]


@dataclass(frozen=True)
class Run:
    """A training; a trial is short, and judged on other samples of the training set."""

    network: str
    training: str
    passes: int = PASSES
    rate: float = 2e-3
    decay: float = 0.0
    smoothing: float = 0.0
    seed: int = 0
    trial: bool = False


def lifted(run: Run, network: nn.Module, x: Tensor, y: Tensor) -> None:
    initialize_(network, x, y, loss=CrossEntropy(), passes=run.passes, seed=run.seed)


def exact(run: Run, network: nn.Module, x: Tensor, y: Tensor) -> None:
    with exact_gradients():
        lifted(run, network, x, y)


def adamw(run: Run, network: nn.Module, x: Tensor, y: Tensor) -> None:
    adam(network, x, y, run.rate, run.passes, run.decay, run.smoothing)


TRAININGS: dict[str, Callable[[Run, nn.Module, Tensor, Tensor], None]] = {
    OURS: lifted, EXACT: exact, ADAMW: adamw,
}  # fmt: skip


def train(run: Run) -> Outcome:
    torch.set_num_threads(1)
    task = TASKS[run.network]
    sets = task.sets()
    if not run.trial and len(sets["train"][0]) == 5_000:
        sets = digits(60_000 if run.network == LENET else 10_000, 0)
    torch.manual_seed(run.seed)
    network, began = task.build(), time.process_time()
    TRAININGS[run.training](run, network, *sets["train"])
    seconds = time.process_time() - began
    steps = run.passes * -(-len(sets["train"][0]) // BATCH)
    found = accuracy(network, *sets["held" if run.trial else "test"])
    return {"accuracy": found, "seconds": seconds, "steps": steps}


def main() -> None:
    """Run what is missing, and write the table."""
    outcomes = partial(run_all, RESULT.with_suffix(".jsonl"), run=train)
    measured = "; ".join(f"{name} {value}" for name, value in machine().items())
    about = " ".join((__doc__ or "").split("\n\n")[1].split(" Run it with")[0].split())
    text = [
        f"# Torch networks, trained alone\n\n{measured}\n\n{about} Test accuracy after the last "
        "step, mean ± deviation of five seeds, and the worst; processor time of a step, whatever "
        "is done before the first included.\n",
        "| network | training | passes | accuracy | worst | ms a step | settings |",
        "| --- | --- | --- | --- | --- | ---: | --- |",
    ]
    rows = [(name, PASSES, SEEDS) for name in TASKS] + [(LENET, LONG, SEEDS[:2])]
    for name, passes, seeds in rows:
        for training in TRAININGS:
            best, settings = Run(name, training), ""
            if training == ADAMW:
                trial = replace(best, passes=TRIAL_PASSES, trial=True)
                best, _ = tuned(trial, SEARCH, lambda run: outcomes([run])[0].outcome["accuracy"])
                settings = f"rate {best.rate:g}, decay {best.decay:g}, smoothing {best.smoothing:g}"
            best = replace(best, passes=passes, trial=False)
            found = [x.outcome for x in outcomes([replace(best, seed=seed) for seed in seeds])]
            own = [one["accuracy"] for one in found]
            step = 1e3 * fmean(one["seconds"] / one["steps"] for one in found)
            text.append(
                f"| {name} | {training} | {passes} | {fmean(own):.4f} ± {stdev(own):.4f} | "
                f"{min(own):.4f} | {step:.1f} | {settings} |"
            )
            print(text[-1], flush=True)
    RESULT.write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
