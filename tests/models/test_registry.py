"""What holds for every graph, coupling and method of the registry."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet.errors import DeclarationError
from liftednet.models import FullBatch, Lifted
from liftednet.models.results import Ending, Step
from liftednet.problems import BlockFit, StatesOverTime
from liftednet.solution import Status
from liftednet.solvers import solve
from liftednet.solvers.accelerated import Accelerated
from tests.models import plain
from tests.models.networks import same_bits, trace_of
from tests.models.registry import BY_NAME, GRAPHS, REFUSED, SERVED, Graph

FULL = [run for run in SERVED if run[2] == "full"]


@cache
def _fitted(graph: Graph, coupling: str, method: str) -> Lifted:
    return _trained(graph, coupling, method)


def _trained(graph: Graph, coupling: str, method: str, **options: Any) -> Lifted:
    model = graph.model(coupling, method, **options)
    found: Lifted = model.fit(graph.x, graph.y, lengths=graph.lengths)
    return found


@pytest.mark.parametrize(("graph", "coupling", "method", "words"), REFUSED, ids=str)
def test_what_does_not_go_together_is_refused_at_the_door(graph, coupling, method, words):
    with pytest.raises(DeclarationError, match=words):
        graph.model(coupling, method)


@pytest.mark.parametrize(("graph", "coupling", "method"), FULL, ids=str)
def test_the_objective_never_rises(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    before = trace_of(model).start
    for step in trace_of(model).steps:
        assert step.decrease >= 0
        assert step.objective <= before + 1e-9 * (1 + abs(before))
        before = step.objective
    assert min(trace_of(model).losses) < trace_of(model).start
    assert model.objective() == pytest.approx(trace_of(model).losses[-1], rel=1e-8)


@pytest.mark.parametrize(("graph", "coupling", "method"), SERVED, ids=str)
def test_objective_forward_pass_and_predictions_are_those_of_plain_torch(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    wanted = plain.objective(graph, model, coupling)
    assert model.objective() == pytest.approx(wanted, rel=1e-9)
    answers = _each(model.forward(graph.x, lengths=graph.lengths))
    for one, right in zip(answers, plain.outputs(graph, model), strict=True):
        counted = _real_steps(graph, right)
        torch.testing.assert_close(one[counted], right[counted])
    labels = _each(model.predict(graph.x, lengths=graph.lengths))
    for one, y in zip(labels, _each(graph.y), strict=True):
        assert one.shape == y.shape
        assert bool(one.double().isfinite().all())
    assert 0 <= model.residual() < math.inf
    assert len(model.gap()) == len(model.states)


def _each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _real_steps(graph: Graph, rows: Tensor) -> Tensor:
    if graph.lengths is None:
        return torch.ones(rows.shape[:-1], dtype=torch.bool)
    return torch.arange(rows.shape[1]) < graph.lengths[:, None]


@pytest.mark.parametrize(
    ("graph", "coupling", "method"), [run for run in SERVED if run[2] != "full"], ids=str
)
def test_the_loss_falls(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    if method == "minibatch":
        assert trace_of(model).losses[-1] < trace_of(model).losses[0]
        return
    assert all(after < before for before, after in pairwise(trace_of(model).objectives))
    network = plain.network_objective(graph, model)
    assert trace_of(model).losses[-1] == pytest.approx(network, rel=1e-9)


@pytest.mark.parametrize(
    ("graph", "coupling", "method"),
    [run for run in SERVED if "tight" in run or "full" in run],
    ids=str,
)
def test_another_seed_gives_another_model_and_a_warm_start_goes_on(graph, coupling, method):
    found = _fitted(graph, coupling, method)
    model = deepcopy(found)
    model.warm_start = True
    second = trace_of(model.fit(graph.x, graph.y, lengths=graph.lengths))
    assert second.losses != trace_of(found).losses
    if method == "minibatch":  # first weights are drawn before any method
        assert not same_bits(_trained(graph, coupling, method, seed=1).weights, found.weights)
        again = _trained(graph, coupling, method, start=found.weights)
        assert same_bits(again.weights, model.weights)
    else:
        assert second.start == pytest.approx(found.objective(), rel=1e-9)


@pytest.mark.parametrize(("graph", "coupling", "method"), SERVED, ids=str)
def test_an_interrupt_keeps_what_is_done(graph, coupling, method):
    seen: list[Step] = []

    def interrupt(step: Step) -> None:
        seen.append(step)
        if len(seen) == 2:
            raise KeyboardInterrupt

    model = graph.model(coupling, method)
    model.fit(graph.x, graph.y, lengths=graph.lengths, on_step=interrupt)
    assert trace_of(model).ending is Ending.INTERRUPTED
    assert trace_of(model).steps == seen and len(seen) == 2
    whole = trace_of(_fitted(graph, coupling, method))
    assert [s.objective for s in seen] == [s.objective for s in whole.steps[:2]]
    if method != "minibatch":
        assert model.objective() == pytest.approx(seen[-1].objective, rel=1e-9)
    assert model.predict(graph.x, lengths=graph.lengths) is not None


def _names(model: Lifted) -> list[str]:
    states, weights = len(model.states), len(model.weights)
    return [f"states {n + 1}" for n in range(states)] + [f"weights {n + 1}" for n in range(weights)]


@pytest.mark.parametrize(("graph", "coupling", "method"), FULL, ids=str)
def test_every_subproblem_is_solved_as_by_cvxpy(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    for name in _names(model):
        fit = model.subproblem(name)
        if _unstated(fit):
            with pytest.raises(DeclarationError, match=r"tight|excess"):
                solve(fit, "reference")
        else:
            reference = solve(fit, "reference").objective
            assert solve(fit).objective == pytest.approx(reference, rel=1e-5, abs=1e-5), name


def test_blocks_are_solved_where_values_are_rounding() -> None:
    fit: Any = _fitted(BY_NAME["gated"], "tight", "full").subproblem("states 3")
    found = Accelerated(max_iterations=200).solve(fit)  # by values alone thousands are too few
    assert found.status is Status.SOLVED


def _unstated(fit: Any) -> bool:
    """Say whether states follow one another by a divergence that CVXPY cannot state."""
    if isinstance(fit, StatesOverTime):
        fit = fit.as_block
    if not isinstance(fit, BlockFit) or fit.own is None:
        return False
    return not fit.convex or not fit.own.divergence.activation.declares("excess")


@pytest.mark.parametrize(
    "graph", [g for g in GRAPHS if g.name not in ("gated", "both directions")], ids=str
)
def test_exact_fits_lead_to_a_certificate(graph):
    model = graph.model("tight", "full")
    model.method = FullBatch(400, tolerance=1e-2)
    model.fit(graph.x, graph.y, lengths=graph.lengths)
    assert trace_of(model).ending is Ending.CONVERGED
    assert model.residual() <= 1e-1
