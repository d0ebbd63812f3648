"""What holds for every graph, coupling and method of the registry."""

import math
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from liftednet.errors import DataError, DeclarationError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, Minibatch
from liftednet.models.methods import descent
from liftednet.models.results import Ending
from liftednet.problems import BlockFit, StatesOverTime
from liftednet.solution import Status
from liftednet.solvers import solve
from liftednet.solvers.accelerated import Accelerated
from tests.draws import normal
from tests.models import plain
from tests.models.networks import each, refuses, same_bits, trace_of
from tests.models.registry import BY_NAME, GRAPHS, LABELS, METHODS, REFUSED, ROWS, SERVED, Graph

STARTED = [run for run in SERVED if "tight" in run or "full" in run]
FULL = [run for run in SERVED if run[2] == "full"]
CERTIFIED = [graph for graph in GRAPHS if graph.name not in ("gated", "both directions")]


@cache
def _fitted(graph: Graph, coupling: str, method: str) -> Lifted:
    return _trained(graph, coupling, method)


def _trained(graph: Graph, coupling: str, method: Any, **options: Any) -> Lifted:
    return graph.model(coupling, method, **options).fit(graph.x, graph.y, lengths=graph.lengths)


@pytest.mark.parametrize(("graph", "coupling", "method", "words"), REFUSED, ids=str)
def test_what_does_not_go_together_is_refused_at_the_door(graph, coupling, method, words):
    refuses(DeclarationError, words, graph.model, coupling, method)


@pytest.mark.parametrize(("graph", "coupling", "method"), SERVED, ids=str)
def test_objective_forward_pass_and_predictions_are_those_of_plain_torch(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    assert model.objective() == pytest.approx(plain.objective(graph, model, coupling), rel=1e-9)
    answers = each(model.forward(graph.x, lengths=graph.lengths))
    for one, right in zip(answers, plain.outputs(graph, model), strict=True):
        counted = _real_steps(graph, right)
        torch.testing.assert_close(one[counted], right[counted])
    labels = each(model.predict(graph.x, lengths=graph.lengths))
    for one, y in zip(labels, each(graph.y), strict=True):
        assert one.shape == y.shape and bool(one.double().isfinite().all())
    assert 0 <= model.residual() < math.inf
    assert len(model.gap()) == len(model.states)


def _real_steps(graph: Graph, rows: Tensor) -> Tensor:
    if graph.lengths is None:
        return torch.ones(rows.shape[:-1], dtype=torch.bool)
    return torch.arange(rows.shape[1]) < graph.lengths[:, None]


@pytest.mark.parametrize(("graph", "coupling", "method"), SERVED, ids=str)
def test_the_loss_falls_and_by_full_batches_no_step_raises_the_objective(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    trace = trace_of(model)
    assert trace.losses[-1] < (trace.losses[0] if method == "minibatch" else trace.start)
    if method == "full":
        for before, after in pairwise(trace.objectives):
            assert after <= before + 1e-9 * (1 + abs(before))
        assert all(step.decrease >= 0 for step in trace.steps)
        assert model.objective() == pytest.approx(trace.losses[-1], rel=1e-8)
    elif method == "gauss-newton":
        assert all(after < before for before, after in pairwise(trace.objectives))
        assert trace.losses[-1] == pytest.approx(plain.network_objective(graph, model), rel=1e-9)


@pytest.mark.parametrize(("graph", "coupling", "method"), FULL, ids=str)
def test_in_float32_the_objective_does_not_rise_either(graph, coupling, method):
    model = graph.model(coupling, FullBatch(4, tolerance=1e-12), dtype=torch.float32)
    objectives = trace_of(model.fit(graph.x, graph.y, lengths=graph.lengths)).objectives
    assert model.weights[0].matrix.dtype is torch.float32
    for before, after in pairwise(objectives):
        assert after <= before + 1e-5 * (1 + abs(before))
    assert model.objective() == pytest.approx(objectives[-1], rel=1e-2)


@pytest.mark.parametrize(("graph", "coupling", "method"), STARTED, ids=str)
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
    interrupt, model = Mock(side_effect=[None, KeyboardInterrupt]), graph.model(coupling, method)
    model.fit(graph.x, graph.y, lengths=graph.lengths, on_step=interrupt)
    seen = [call.args[0] for call in interrupt.call_args_list]
    assert trace_of(model).ending is Ending.INTERRUPTED
    assert trace_of(model).steps == seen and len(seen) == 2
    whole = trace_of(_fitted(graph, coupling, method))
    assert [s.objective for s in seen] == [s.objective for s in whole.steps[:2]]
    if method != "minibatch":
        assert model.objective() == pytest.approx(seen[-1].objective, rel=1e-9)
    assert model.predict(graph.x, lengths=graph.lengths) is not None


@pytest.mark.parametrize(("graph", "coupling", "method"), FULL, ids=str)
def test_every_subproblem_is_solved_as_by_cvxpy(graph, coupling, method):
    model = _fitted(graph, coupling, method)
    blocks = ("states", model.states), ("weights", model.weights)
    for name in [f"{kind} {n + 1}" for kind, parts in blocks for n in range(len(parts))]:
        fit = model.subproblem(name)
        if _unstated(fit):
            refuses(DeclarationError, "tight|excess", solve, fit, "reference")
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


@pytest.mark.parametrize("graph", CERTIFIED, ids=str)
def test_exact_fits_lead_to_a_certificate(graph):
    model = _trained(graph, "tight", FullBatch(400, tolerance=1e-2))
    assert trace_of(model).ending is Ending.CONVERGED
    assert model.residual() <= 1e-1


# A sample of weight k is k samples.

WEIGHTS = torch.tensor([0, 1, 2, 3, 1, 0, 2, 5, 1, 1, 2, 1], dtype=torch.float64)
REPEATED = torch.repeat_interleave(torch.arange(12), WEIGHTS.long())
EXACT = FullBatch(3, tolerance=1e-9)
BATCH = Minibatch(7, batch_size=100)  # one batch, whose order does not matter
CASES: list[tuple[str, str, Any]] = [
    *((name, coupling, EXACT) for name in ("chain", "images") for coupling in ("tight", "joint")),
    ("output states", "joint", EXACT),
    ("both directions", "joint", FullBatch(3, tolerance=1e-9, extrapolation=False)),
    *(("chain", "tight", GaussNewton(4, form=form)) for form in ("normal", "products")),
    *((name, "tight", BATCH) for name in ("chain", "output states", "recurrent")),
]


def require_counted(model: Lifted, x: Any, y: Any, lengths: Any = None) -> None:
    found = []
    for kept, weights in ((torch.arange(12), WEIGHTS), (REPEATED, None)):
        own = None if lengths is None else lengths[kept]
        model.fit(x[kept], y[kept], lengths=own, sample_weight=weights)
        found.append((trace_of(model).losses, [layer.matrix for layer in model.weights]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    if isinstance(model.method, Minibatch):
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "coupling", "method"), CASES, ids=str)
def test_a_weight_counts_how_often_a_sample_is_there(name, coupling, method, monkeypatch) -> None:
    monkeypatch.setattr(descent, "_SHARE", 0.0)  # fits that end early end anywhere
    graph = BY_NAME[name]
    model = graph.model(coupling, method, standardize=True)
    require_counted(model, graph.x, graph.y, graph.lengths)


def test_a_weight_counts_in_a_metric_of_a_low_rank() -> None:
    """100 units of 10 samples, whose metric has 16 directions: steps do not follow rounding."""
    require_counted(LiftedMLP((20, 100, 3), method=BATCH), normal(12, 20), LABELS)


BAD_WEIGHTS = [
    (torch.zeros(12), "all zero"),
    (-torch.ones(12), "negative"),
    (torch.ones(11), r"\(12,\).*\(11,\)"),
    (torch.full((12,), torch.nan), "NaN"),
]


@pytest.mark.parametrize(("weights", "words"), BAD_WEIGHTS)
@pytest.mark.parametrize("method", METHODS)
def test_weights_that_cannot_be_are_refused(weights, words, method):
    model = BY_NAME["chain"].model("tight", method)
    refuses(DataError, words, model.fit, ROWS, LABELS, sample_weight=weights.double())
    assert not model.is_fitted
