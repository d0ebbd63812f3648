"""What Lifted Recurrent Neural Networks leaves to later work (section 8), beside AdamW.

- `translation`: answers of another length than the input: eight tokens of six kinds, the first five
  of their mirror image wanted afterwards; cells of a GRU read and another writes. `lift` reads
  networks of cells; nn.GRU has the steps of its input, and the answers must have them, too.
- `text`: the next character at every step of 32, an LSTM of 48 units, on pages of Python's own
  documentation (pydoc_data.topics); other pages are tested, in bits a character. Characters and
  pairs that are counted are what needs no network.
- `count`: an LSTM of 16 units counts odd tokens of fifteen modulo 3.

`lift` trains by minibatches; `initialize_` gives weights from which AdamW goes on; AdamW has the
seconds of `lift`, at 3e-3 in batches of 50. Three seeds. `python -m benchmarks.papers.future_work`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from benchmarks.harness.report import write
from benchmarks.harness.runs import Outcome, matching, records
from liftednet import initialize_, lift
from liftednet.models import Minibatch

SEEDS, BATCH, RATE = range(3), 50, 3e-3
METHODS = ("lift", "initialize_, then AdamW", "AdamW")
TOKENS, ASKED = 6, 5
Data = tuple[Tensor, Tensor]


class Translator(nn.Module):
    """Cells that read all tokens, and others that write as many as are asked for."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.reader, self.writer = nn.GRUCell(TOKENS, 32), nn.GRUCell(TOKENS, 32)
        self.readout = nn.Linear(32, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (samples, asked, tokens) for x (samples, steps, tokens)."""
        state, written = None, []
        for token in x.unbind(1):
            state = self.reader(token, state)
        for _ in range(ASKED):
            state = self.writer(torch.zeros_like(x[:, 0]), state)
            written.append(self.readout(state))
        return torch.stack(written, 1)


class Reader(nn.Module):
    """An LSTM with a readout of every step, or of the last."""

    def __init__(self, inputs: int, units: int, outputs: int, last: bool) -> None:
        """Draw the weights."""
        super().__init__()
        self.cell, self.last = nn.LSTM(inputs, units, batch_first=True), last
        self.readout = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for x (samples, steps, inputs)."""
        states = self.cell(x)[0]
        return self.readout(states[:, -1] if self.last else states)  # type: ignore[no-any-return]


def mirrored(samples: int, seed: int) -> Data:
    tokens = torch.randint(TOKENS, (samples, 8), generator=torch.Generator().manual_seed(seed))
    return one_hot(tokens, TOKENS).float(), tokens.flip(1)[:, :ASKED].contiguous()


def counted(samples: int, seed: int) -> Data:
    tokens = torch.randint(TOKENS, (samples, 15), generator=torch.Generator().manual_seed(seed))
    return one_hot(tokens, TOKENS).float(), (tokens % 2).sum(1) % 3


@cache
def characters() -> tuple[Tensor, Tensor, int]:
    """Return pages to train on and others to test on, as numbers, and how many there are."""
    from pydoc_data.topics import topics

    pages = [topics[name] for name in sorted(topics)]
    known = sorted(set("".join(pages[1::2])))
    places = {c: i for i, c in enumerate(known)}
    train, test = (
        torch.tensor([places[c] for c in "".join(part) if c in places])
        for part in (pages[1::2], pages[::2])
    )
    return train, test, len(known)


def windows(samples: int, seed: int) -> Data:
    """Return windows of 32 characters with the next of each; seed 0 of the pages to test on."""
    train, test, count = characters()
    text = train if seed else test
    starts = torch.randint(
        len(text) - 33, (samples,), generator=torch.Generator().manual_seed(seed)
    )
    rows = text[starts[:, None] + torch.arange(33)]
    return one_hot(rows[:, :-1], count).float(), rows[:, 1:].contiguous()


@dataclass(frozen=True)
class Task:
    """What is learned: data by samples and seed (0 is tested), the network, passes, the measure."""

    draw: Callable[[int, int], Data]
    network: Callable[[], nn.Module]
    samples: int
    epochs: int
    measure: str


TASKS = {
    "translation": Task(mirrored, Translator, 1_000, 30, "tokens right"),
    "text": Task(
        windows, lambda: Reader(characters()[2], 48, characters()[2], False), 3_000, 4,
        "bits a character",
    ),
    "count": Task(counted, lambda: Reader(TOKENS, 16, 3, True), 2_000, 30, "answers right"),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One network by one method."""

    task: str
    method: str
    seed: int
    seconds: float = 0.0


def measured(run: Run) -> Outcome:
    task, started = TASKS[run.task], time.process_time()
    torch.manual_seed(run.seed)
    network = task.network()
    X, y = task.draw(task.samples, run.seed + 1)
    method = Minibatch(task.epochs, batch_size=BATCH)
    if run.method == "lift":
        lift(network, X[:2], loss="cross-entropy", method=method, seed=run.seed).fit(X, y).write_()
    else:
        if run.method != "AdamW":
            initialize_(network, X, y, loss="cross-entropy", seed=run.seed)
        descend(network, X, y, run.seed, started + run.seconds)
    seconds = time.process_time() - started
    X, y = task.draw(1_000, 0)
    with torch.no_grad():
        logits = network(X).flatten(0, -2)
    bits = float(cross_entropy(logits, y.flatten())) / math.log(2)
    right = float((logits.argmax(1) == y.flatten()).double().mean())
    return {"value": bits if run.task == "text" else right, "seconds": seconds}


def descend(network: nn.Module, X: Tensor, y: Tensor, seed: int, end: float) -> None:
    """Take AdamW's steps until the processor's clock says so."""
    optimizer = torch.optim.AdamW(network.parameters(), RATE)
    order = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(X), generator=order).split(BATCH):
            if time.process_time() > end:
                return
            optimizer.zero_grad()
            cross_entropy(network(X[rows]).flatten(0, -2), y[rows].flatten()).backward()
            optimizer.step()


def by_counts() -> str:
    """Return bits a character of single characters and of pairs, each count begun at .1."""
    train, _, count = characters()
    X, y = windows(1_000, 0)
    single = (torch.bincount(train, minlength=count) + 0.1).double()
    pairs = torch.full((count, count), 0.1, dtype=torch.float64)
    pairs.index_put_((train[:-1], train[1:]), torch.ones(()).double(), accumulate=True)
    wanted, before = y.flatten(), X.argmax(2).flatten()
    bits = [-torch.log2(single / single.sum())[wanted].mean(),
            -torch.log2(pairs / pairs.sum(1, keepdim=True))[before, wanted].mean()]  # fmt: skip
    return " and ".join(f"{float(b):.2f}" for b in bits)


def main() -> None:
    torch.set_num_threads(1)
    kept = records("future_work", measured)
    ours = kept([Run(task, "lift", seed) for seed in SEEDS for task in TASKS])
    others = [
        Run(r.settings.task, method, r.settings.seed, round(r.outcome["seconds"], 1))
        for r in ours for method in METHODS[1:]
    ]  # fmt: skip
    found = [*ours, *kept(others)]
    lines = ["| task | method | measured | mean of three | seeds | seconds |"]
    lines += ["| --- | --- | --- | ---: | --- | ---: |"]
    for task in TASKS:
        for method in METHODS:
            own = [r.outcome for r in matching(found, task=task, method=method)]
            values, seconds = [o["value"] for o in own], mean(o["seconds"] for o in own)
            lines.append(
                f"| {task} | {method} | {TASKS[task].measure} | {mean(values):.3f} "
                f"| {', '.join(f'{v:.3f}' for v in values)} | {seconds:.0f} |"
            )
    lines += ["", f"Of text, counted characters and pairs have {by_counts()} bits a character."]
    write("future_work", "Section 8 of Lifted Recurrent Neural Networks", __doc__ or "", lines)


if __name__ == "__main__":
    main()
