"""Hessian-free steps with structural damping (On Recurrent Neural Networks, section 2.2.2).

The model of a step is f + grad' d + d' (J' H J + lambda + mu K' K) d / 2 with J the Jacobian of the
outputs, H the Hessian of the loss in them (eq. 2.23) and K the Jacobian of all states: K' K is the
second order of the squared distance D of eq. 2.27. It is lowered by conjugate gradients that begin
at a part of the step before; lambda follows eqs. 2.25 (less M(0)) and 2.26, the step's length a
line search (eq. 2.20).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.data import correct
from benchmarks.harness.report import Table
from benchmarks.harness.runs import Outcome, matching, run_all
from benchmarks.papers.networks import SequenceModel
from benchmarks.papers.temporal.tasks import HIDDEN, SUCCESS, TASKS, TEST, cell_network, cell_text

PRODUCTS, KEPT, SEQUENCES = 30, 0.95, 500  # of a step, and of the step before that begins it
CUTS = 8  # halvings of a step
MUS = (0.0, 0.1, 1.0)
NAMES = ("temporal order, 2 symbols", "temporal order, 3 symbols")
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DampedRun:
    """A network trained by Hessian-free steps, each on fresh sequences.

    Attributes:
        task: a key of TASKS.
        mu: of structural damping.
        steps: the most of them.
        length: least length of a sequence.
        sequences: of a step.
        seed: of start and sequences.
    """

    task: str
    mu: float
    steps: int
    length: int
    sequences: int
    seed: int


def forward_of(model: SequenceModel, x: Tensor, lengths: Tensor) -> Forward:
    """Return what gives outputs at the end and all states for weights in one vector."""
    names, given = zip(*model.named_parameters(), strict=True)
    real = (torch.arange(x.shape[1]) < lengths[:, None]).unsqueeze(-1)

    def forward(w: Tensor) -> tuple[Tensor, Tensor]:
        parts = w.split([p.numel() for p in given])
        named = {n: v.view(p.shape) for n, v, p in zip(names, parts, given, strict=True)}
        recurrent = {n[11:]: v for n, v in named.items() if n.startswith("recurrence.")}
        states = functional_call(model.recurrence, recurrent, (x,))[0]
        last = states[torch.arange(len(x)), lengths - 1]
        outputs = last @ named["readout.weight"].T + named["readout.bias"]
        return outputs, states.masked_fill(~real, 0)

    return forward


def damped_product(forward: Forward, w: Tensor, lam: float, mu: float) -> Product:
    """Return d -> (J' H J + lam + mu K' K) d for the mean cross-entropy over sequences."""
    at = w.detach().requires_grad_()
    found = forward(at)
    p, count = found[0].detach().softmax(1), len(found[0])
    ahead = [torch.zeros_like(x, requires_grad=True) for x in found]
    (back,) = torch.autograd.grad(found, at, ahead, create_graph=True)  # linear in `ahead`

    def product(d: Tensor) -> Tensor:
        Jd, Kd = torch.autograd.grad(back, ahead, d, retain_graph=True)
        HJd = p * (Jd - (p * Jd).sum(1, keepdim=True))
        given = (HJd / count, mu * Kd / count)
        (curved,) = torch.autograd.grad(found, at, given, retain_graph=True)
        return curved + lam * d

    return product


def conjugate_gradients(product: Product, b: Tensor, start: Tensor) -> Tensor:
    """Return d with product(d) near b after some products, from a start."""
    d, r = start, b - product(start)
    direction, square = r, r @ r
    for _ in range(PRODUCTS):
        if square <= 1e-10 * (b @ b):
            break
        along = product(direction)
        step = square / (direction @ along)
        d, r = d + step * direction, r - step * along
        before, square = square, r @ r
        direction = r + square / before * direction
    return d


def steps(run: DampedRun, model: SequenceModel) -> Iterator[None]:
    """Take one step after another, in place."""
    task, lam = TASKS[run.task], 1.0
    w = parameters_to_vector(model.parameters()).detach()
    d = torch.zeros_like(w)
    for number in range(1, run.steps + 1):
        seed = 1_000_000 * (run.seed + 1) + number
        x, y, lengths = task.batch(run.sequences, run.length, seed)
        forward = forward_of(model, x, lengths)

        def loss(w: Tensor, forward: Forward = forward, y: Tensor = y) -> Tensor:
            return task.loss(forward(w)[0], y)

        at = w.clone().requires_grad_()
        before = loss(at)
        (gradient,) = torch.autograd.grad(before, at)
        product = damped_product(forward, w, lam, run.mu)
        d = conjugate_gradients(product, -gradient, KEPT * d)
        model_change = gradient @ d + d @ product(d) / 2
        ratio = (loss(w + d) - before) / model_change
        lam *= 2 / 3 if ratio > 0.75 else 3 / 2 if ratio < 0.25 else 1
        for cut in range(CUTS):
            if loss(w + d / 2**cut) < before:
                w = w + d / 2**cut
                break
        vector_to_parameters(w, model.parameters())
        yield


def train(run: DampedRun) -> Outcome:
    """Return the steps to success, or None, and the share of right answers after each."""
    task, shares = TASKS[run.task], list[float]()
    model = cell_network(task.features, task.outputs, 1.0, run.seed)
    x, y, lengths = task.batch(TEST, run.length, 1_000_000 * (run.seed + 1))
    for number, _ in enumerate(steps(run, model), start=1):
        with torch.no_grad():
            shares.append(float(correct(model.at_end(x, lengths), y).double().mean()))
        if shares[-1] >= SUCCESS:
            return {"steps": number, "shares": shares}
    return {"steps": None, "shares": shares}


def damping_table(store: Path, length: int, most: int, seeds: int) -> Table:
    """Run what is missing, and return success and steps for each mu."""
    settings = [
        DampedRun(task, mu, most, length, SEQUENCES, seed)
        for seed in range(seeds) for task in NAMES for mu in MUS
    ]  # fmt: skip
    found = run_all(store, settings, train, "structural damping")
    rows = [
        [task, *(cell_text([r.outcome for r in matching(found, task=task, mu=mu)]) for mu in MUS)]
        for task in NAMES
    ]
    notes = (
        f"Tanh, {HIDDEN} units, radius 1, at most {most} steps of {PRODUCTS} products, each on "
        f"{SEQUENCES} fresh sequences and looked at; otherwise as the artificial tasks. D of eq. "
        "2.27 is half the squared distance of the states, the mean over sequences.",
    )
    return Table("Structural damping", ("task", *(f"mu {mu:g}" for mu in MUS)), rows, notes)
