"""The one loop: what never rises, what is kept, and when it ends."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

from liftednet import Network, activations, layers
from liftednet.errors import DataError, FitWarning, SolverError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.models.block import Blocks
from liftednet.models.data import LoaderBatches
from liftednet.models.methods import descent
from liftednet.models.results import Ending, Step
from liftednet.solvers import solve
from liftednet.solvers.generalized_linear import GeneralizedLinear
from tests.draws import normal
from tests.models.networks import full, labeled, refuses, same_bits, trace_of


def test_a_rise_is_an_error_and_the_last_good_state_stays(monkeypatch):
    x, y = labeled()
    model = full((4, 3), solver="generalized-linear", sweeps=1, warm_start=True, rho=0.1).fit(x, y)
    before, weights = model.objective(), model.weights
    solve = GeneralizedLinear.solve

    def spoiled(*given: Any) -> Any:
        solution = solve(*given)
        worse = replace(solution.value, matrix=solution.value.matrix + 1)
        return replace(solution, value=worse, objective=given[1].measure(worse).objective)

    monkeypatch.setattr(GeneralizedLinear, "solve", spoiled)
    caught = refuses(SolverError, "raised the joint objective", model.fit, x, y)
    assert caught.solution.objective > before
    assert model.objective() == before
    assert same_bits(weights, model.weights)


def test_extrapolation_reaches_the_same_point_in_fewer_sweeps():
    x, y = labeled(samples=10)
    options = {"lam": 1.0, "divergence": "joint", "sweeps": 1500, "tolerance": 1e-5}
    plain, ahead = (
        full((4, 3, 3), activations.Sigmoid(), rho=0.3, **options, extrapolation=moved).fit(x, y)
        for moved in (False, True)
    )
    assert ahead.objective() == pytest.approx(plain.objective(), rel=1e-4)
    assert trace_of(ahead).steps[-1].number < trace_of(plain).steps[-1].number
    for layer, same in zip(ahead.weights, plain.weights, strict=True):
        assert torch.allclose(layer.matrix, same.matrix, atol=0.05)


@pytest.mark.parametrize("layer", ["states", "loss", "convolution", "joined"])
def test_the_trace_has_the_objective_of_layers_of_which_a_slice_is_used(layer):
    net, generator = Network(), torch.Generator().manual_seed(0)
    shape = (1, 6) if layer == "convolution" else (6,)
    x = net.input(*shape)
    own = layers.convolution(x, 2, 3)[:4] if layer == "convolution" else layers.dense(x, 4)[:3]
    if layer == "joined":
        own = layers.concatenate(own, layers.dense(x, 2))
    scores = layers.dense(net.state("tanh", own), 3 if layer == "loss" else 1)
    net.loss("mse", scores[1:2] if layer == "loss" else scores)
    method = FullBatch(2, extrapolation=False)
    model = Lifted(net, 1.0, 0.1, method=method, standardize=False)
    told: list[tuple[float, float]] = []
    X = torch.randn(40, 6, generator=generator, dtype=torch.float64)

    def listen(step: Step) -> None:
        told.append((step.objective, model.objective()))

    with warnings.catch_warnings(action="ignore", category=FitWarning):
        model.fit(X.view(40, *shape), X[:, :1].sin(), on_step=listen)
    assert all(one == pytest.approx(other, rel=1e-9) and one > 0 for one, other in told)


@pytest.mark.parametrize("top", [0.8, 0.75])  # float32 has the first above itself
def test_states_at_ends_that_their_type_rounds_are_in_their_domain(top: float) -> None:
    x = normal(50, 2)
    for method in (FullBatch(2), Minibatch(2)):
        one, other = (
            LiftedMLP((2, 5, 2), activations.Clipped(0.0, top), "mse", method=method)
            .fit(rows, rows.cumsum(1))
            .objective()
            for rows in (x.float(), x)
        )
        assert one == pytest.approx(other, rel=0.1)


def test_weights_below_another_linear_layer_are_fitted_in_both_types() -> None:
    network, x = Network(), normal(30, 3)
    states = network.state("relu", layers.dense(layers.dense(network.input(3), 2), 4))
    network.loss("mse", layers.dense(states, 2))
    one, other = (
        Lifted(network, method=FullBatch(2)).fit(rows, rows[:, :2].sin()).objective()
        for rows in (x.float(), x.double())
    )
    assert one == pytest.approx(other, rel=0.05)


@pytest.mark.parametrize("sequence", [False, True])  # of which CVXPY, and a block fit, has states
def test_states_of_samples_with_weights_are_fitted_as_those_of_copies(
    sequence, generator, monkeypatch
):
    monkeypatch.setattr(descent, "_SHARE", 0.0)
    net = Network()
    layer = layers.dense(net.input(2, sequence=sequence), 6)
    net.loss("mse" if sequence else "poisson", layers.dense(net.state("tanh", layer), 1))
    x = torch.randn(30, 3, 2, generator=generator, dtype=torch.float64)
    x = x if sequence else x[:, 0]
    y = torch.poisson((x[..., :1] - x[..., 1:] ** 2 / 2).exp(), generator=generator)
    times = torch.arange(30) % 3 + 1
    model = Lifted(net, rho=0.3, method=FullBatch(3, extrapolation=False), standardize=False)
    again = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    copies = model.fit(*again).objective()
    assert model.fit(x, y, sample_weight=times).objective() == pytest.approx(copies, rel=1e-4)
    states = model.subproblem("states 1")
    assert solve(states, "reference").objective == pytest.approx(solve(states).objective, rel=1e-7)


def test_an_interrupted_extrapolation_leaves_the_point_of_the_sweep(monkeypatch):
    x, y = labeled()
    model = full((4, 5, 3), sweeps=5, tolerance=1e-12)
    extrapolate = Blocks.extrapolate

    def interrupted(self, previous, factor):
        extrapolate(self, previous, factor)
        raise KeyboardInterrupt

    monkeypatch.setattr(Blocks, "extrapolate", interrupted)
    model.fit(x, y)
    assert trace_of(model).ending is Ending.INTERRUPTED
    assert model.objective() == pytest.approx(trace_of(model).steps[-1].objective)


ROWS, LABELS = labeled(samples=60)
SHORT = Minibatch(epochs=3, batch_size=10)


def _model(**options) -> LiftedMLP:
    return LiftedMLP((4, 8, 3), method=SHORT, standardize=False, **options)


SPOILED = ROWS.clone()
SPOILED[15, 2] = torch.nan  # in the second batch


BAD_LOADERS = [
    (SPOILED, "NaN", {"batch_size": 10}),
    (ROWS, "no batches of its 60 samples", {"batch_size": 61, "drop_last": True}),
]


@pytest.mark.parametrize(("rows", "words", "options"), BAD_LOADERS)
def test_a_bad_loader_leaves_a_fitted_model_as_it_was(rows, words, options):
    model = _model().fit(ROWS, LABELS)
    weights, objective = model.weights, model.objective()
    refuses(DataError, words, model.fit, DataLoader(TensorDataset(rows, LABELS), **options))
    assert same_bits(model.weights, weights)
    assert model.objective() == objective


PAIRS = TensorDataset(ROWS, LABELS)
READY: Any = list(zip(ROWS.split(25), LABELS.split(25), strict=True))


@pytest.mark.parametrize("loader", [
    DataLoader(PAIRS, 25), DataLoader(PAIRS, 25, drop_last=True),
    DataLoader(READY, batch_size=None), DataLoader(PAIRS, 25, sampler=range(37)),
    DataLoader(PAIRS, batch_sampler=[[1, 2, 3], [4]]),
    DataLoader(PAIRS, batch_sampler=BatchSampler(range(47), 10, drop_last=True)),
])  # fmt: skip
def test_a_loader_shares_penalties_over_the_samples_that_it_yields(loader):
    """Not over those of its dataset, of which ready batches, samplers and drop_last take others."""
    model = _model()
    batches = LoaderBatches(loader, lambda x, y: model._checked_data(x, y, None, None, True))
    batches.first()
    assert batches.samples == sum(len(y) for _, y in loader)


def test_passes_of_a_loader_that_are_not_as_long_as_it_says_are_told():
    class Stream(IterableDataset):
        def __init__(self, *passes: int) -> None:
            self.passes = list(passes)

        def __len__(self) -> int:
            return 60

        def __iter__(self):
            return zip(ROWS[: self.passes[0]], LABELS[: self.passes.pop(0)], strict=True)

    with pytest.warns(FitWarning, match="has yielded only 3 in pass 2"):
        _model().fit(DataLoader(Stream(60, 30, 60), 10))
    refuses(
        DataError, "no batch in pass 2, and 6 before", _model().fit,
        DataLoader(Stream(60, 0, 60), 10),
    )  # fmt: skip


@pytest.mark.parametrize("method", [SHORT, FullBatch(3), GaussNewton(3)])
@pytest.mark.parametrize("error", [RuntimeError, StopIteration, GeneratorExit])
def test_an_error_of_the_listener_keeps_the_fit_so_far_and_is_raised(method, error):
    seen: list[Any] = []

    def fail(_: object) -> None:
        seen.append(model.weights)
        if len(seen) == 2:
            raise error("full disk")

    model = LiftedMLP((4, 8, 3), method=method)
    refuses(error, "full disk", lambda: model.fit(ROWS, LABELS, on_step=fail))
    assert same_bits(model.weights, seen[-1]) and not same_bits(*seen)
    assert len(trace_of(model).steps) == 2
    assert trace_of(model).ending is Ending.INTERRUPTED


def test_the_type_of_a_loader_is_found_without_a_draw_or_a_load_of_its_own():
    class Counted(TensorDataset):
        loads = 0

        def __getitem__(self, index):
            Counted.loads += 1
            return super().__getitem__(index)

    loaders = [
        DataLoader(Counted(ROWS, LABELS), 10, shuffle=True, generator=torch.Generator())
        for _ in range(2)
    ]
    _model().fit(loaders[0])
    assert Counted.loads == 3 * len(ROWS)
    for _ in range(3):  # the same draws as three plain passes
        list(loaders[1])
    assert torch.equal(*(loader.generator.get_state() for loader in loaders))


TOO_LARGE = [
    (LiftedMLP((4, 8, 3), dtype=torch.float32, standardize=False), ROWS * 1e20),
    # whose variance overflows; the loss does not
    (LiftedRNN(4, 5, 3, activations.Tanh(), standardize=False), ROWS[:, None] * 1e200),
]


@pytest.mark.parametrize(("model", "x"), TOO_LARGE)
def test_an_epoch_to_weights_that_are_not_finite_is_an_error_and_keeps_those_before(model, x):
    model.method = Minibatch(epochs=1, batch_size=60)  # nothing looks at a loss after its step
    refuses(SolverError, r"scale X.*last good epoch", lambda: model.fit(x, LABELS))
    assert same_bits(model.weights, [w.to(model.weights[0].matrix) for w in model._first_weights()])
