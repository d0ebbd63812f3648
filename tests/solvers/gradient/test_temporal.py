"""Temporal parts against autograd on copies of the weights, and the step against the formulas."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.papers.networks import CellRecurrence, SequenceModel
from benchmarks.papers.through_time import temporal_norms
from liftednet.errors import DataError, SolverError
from liftednet.solvers.gradient import TemporalParts, TemporalSimplexDescent, simplex_weights
from tests.models.networks import refuses


class TwoLayerCell(nn.Module):
    """A cell of two layers, one of whose parameters is used twice and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.RNNCell(3, 5)
        self.upper = nn.RNNCell(5, 5)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        below = self.lower(x, state) * self.scale
        return self.upper(below, state) * self.scale


class TiedCell(nn.Module):
    """A cell one of whose weights stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.own, self.again = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.own.weight

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        above = torch.tanh(self.below(x) + (0.0 if state is None else self.own(state)))
        return torch.tanh(self.again(above))


CELLS: list[Callable[[], nn.Module]] = [
    *(partial(kind, 3, 5) for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)),
    partial(nn.RNNCell, 3, 5, nonlinearity="relu"), TwoLayerCell, TiedCell,
]  # fmt: skip


def problem(make: Callable[[], nn.Module], steps: int) -> tuple[SequenceModel, Tensor, Tensor]:
    torch.manual_seed(0)
    model = SequenceModel(CellRecurrence(make()), 5, 2).double()
    return model, torch.randn(4, steps, 3).double(), torch.randn(4, steps, 2).double()


def cell_of(model: SequenceModel) -> nn.Module:
    assert isinstance(model.recurrence, CellRecurrence)
    return model.recurrence.cell


def closure_of(model: SequenceModel, x, y, per_step, decay=0.0) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        model.zero_grad()
        outputs = model(x)[0] if per_step else model.at_end(x)
        loss = ((outputs - (y if per_step else y[:, -1])) ** 2).mean()
        if decay:
            loss = loss + decay * sum(p.square().sum() for p in cell_of(model).parameters())
        loss.backward()
        return loss

    return closure


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def parts_of(cell: nn.Module, closure: Callable[[], Tensor]) -> list[Tensor]:
    parts: dict[int, Tensor] = {}

    def consume(step: int, part: list[Tensor]) -> None:
        parts[step] = flat([p.clone() for p in part])

    with TemporalParts(cell, consume):
        closure()
    return [parts[step] for step in sorted(parts)]


@pytest.mark.parametrize("make", CELLS)
@pytest.mark.parametrize("per_step", [False, True])
def test_each_part_is_the_gradient_of_one_copy(make, per_step) -> None:
    """Copies of the parameters, one for each step, are passed by hand."""
    model, x, y = problem(make, 4)
    cell = cell_of(model)
    readout: list[Tensor] = list(model.readout.parameters())
    names = [name for name, _ in cell.named_parameters()]
    copies = [[p.detach().clone().requires_grad_() for p in cell.parameters()] for _ in range(4)]
    state, outputs = None, []
    for t in range(4):
        named = dict(zip(names, copies[t], strict=True))
        state = torch.func.functional_call(cell, named, (x[:, t], state))
        outputs.append(model.readout(state[0] if isinstance(state, tuple) else state))
    missed = torch.stack(outputs, 1) - y if per_step else outputs[-1] - y[:, -1]
    loss = missed.square().mean()
    parts = parts_of(cell, closure_of(model, x, y, per_step))
    assert len(parts) == 4 and all(p.grad is None for p in cell.parameters())
    for found, of in ((flat([p.grad for p in readout if p.grad is not None]), readout),
                      *zip(parts, copies, strict=True)):  # fmt: skip
        grads = torch.autograd.grad(
            loss, of, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        assert torch.allclose(found, flat(list(grads)), atol=1e-12)


@given(steps=st.integers(1, 8), seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_step_follows_the_printed_formulas(steps: int, seed: int) -> None:
    for threshold, decay in ((1e-3, 0.0), (1e3, 0.0), (1e3, 0.3)):
        model, x, y = problem(CELLS[0], steps)
        cell, closure = cell_of(model), closure_of(model, x, y, False, decay)
        parts = torch.stack(parts_of(cell, closure))
        beta = simplex_weights(steps, torch.Generator().manual_seed(seed)).double()
        mixed = (beta[:, None] * parts / parts.norm(dim=1, keepdim=True)).sum(0)
        direction = parts.sum(0).norm() * mixed / mixed.norm()
        direction = direction + 2 * decay * flat([p.detach() for p in cell.parameters()])
        closure()
        assert model.readout.weight.grad is not None and model.readout.bias.grad is not None
        readout = flat([model.readout.weight.grad, model.readout.bias.grad])
        length = float(torch.cat([direction, readout]).norm())
        rate = 0.01 if length <= threshold else 0.01 / length
        before = flat([p.detach() for p in cell.parameters()])
        drawn = torch.Generator().manual_seed(seed)
        how: Any = {"lr": 0.01, "threshold": threshold, "generator": drawn}
        TemporalSimplexDescent(model.parameters(), cell, **how).step(closure)
        after = flat([p.detach() for p in cell.parameters()])
        assert torch.allclose(after, before - rate * direction, atol=1e-9)


def test_simplex_weights_are_uniform(generator) -> None:
    """The mean of each is 1/n and its variance (n - 1) / (n^2 (n + 1)) (Dirichlet of ones)."""
    draws = torch.stack([simplex_weights(4, generator) for _ in range(8000)]).double()
    assert torch.allclose(draws.mean(0), torch.full((4,), 0.25, dtype=torch.float64), atol=0.01)
    assert torch.allclose(draws.var(0), torch.full((4,), 3 / 80, dtype=torch.float64), atol=0.002)


def test_bad_input_is_refused_before_any_weight_changes() -> None:
    model, x, y = problem(CELLS[0], 3)
    cell, source = cell_of(model), torch.Generator()
    descent = partial(TemporalSimplexDescent, threshold=1.0, generator=source)
    parameters = list(model.parameters())
    refuses(DataError, "positive", descent, parameters, cell, 0.0)
    refuses(DataError, "positive", descent, parameters, cell, 0.1, threshold=-1.0)
    refuses(DataError, "among the parameters", descent, model.readout.parameters(), cell, 0.1)
    optimizer = descent(parameters, cell, 0.1)
    before = flat([p.detach().clone() for p in parameters])
    refuses(DataError, "closure", optimizer.step)
    refuses(DataError, "never called", optimizer.step, lambda: torch.zeros(()))
    refuses(SolverError, "NaN", optimizer.step, closure_of(model, x * math.nan, y, False))

    def twice() -> torch.Tensor:
        for _ in range(2):
            loss = closure_of(model, x, y, False)()
        return loss

    refuses(DataError, "call backward once", optimizer.step, twice)
    assert torch.equal(before, flat([p.detach() for p in parameters]))
    refuses(DataError, "no parameter", temporal_norms, nn.Identity(), lambda: torch.zeros(()))
    recurrence, rows = nn.RNN(3, 4), torch.ones(6, 2, 3)  # it takes a sequence in one call
    before = flat([p.detach().clone() for p in recurrence.parameters()])
    step = descent(recurrence.parameters(), recurrence, 0.1).step
    refuses(DataError, "RNN once.*RNNCell", step, lambda: recurrence(rows)[0].square().sum())
    assert torch.equal(before, flat([p.detach() for p in recurrence.parameters()]))
