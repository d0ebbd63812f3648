"""Networks trained to the global optimum, and how far others are from it."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from liftednet import Activation, global_gap, posterior
from liftednet.activations import LeakyReLU, ReLU, Tanh
from liftednet.errors import DataError, DeclarationError, FitWarning
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Huber, Quantile, SquaredError
from liftednet.models import Checkpoint, GaussNewton, Global, LiftedMLP, add_unit, global_path
from liftednet.models.results import Ending
from liftednet.penalties import L1
from tests.models.networks import refuses, same_bits, trace_of


def waves(samples=60, inputs=2):
    generator = torch.Generator().manual_seed(samples)
    X = torch.randn(samples, inputs, generator=generator, dtype=torch.float64) * 3 + 1
    noise = torch.randn(samples, 1, generator=generator, dtype=torch.float64)
    return X, torch.sin(X[:, :1]) * 5 + noise


def hinges(units, rho, method="global", **settings):
    """Return a network of ReLU for squares."""
    return LiftedMLP((2, units, 1), ReLU(), SquaredError(), rho=rho, method=method, **settings)


def of(loss, y):
    if isinstance(loss, CrossEntropy):
        return (y[:, 0] > 0).long() + (y[:, 0] > 2)
    return (y > 0).double() if isinstance(loss, BinaryCrossEntropy) else y


@pytest.mark.parametrize("loss", [SquaredError(), Huber(0.5), CrossEntropy(), BinaryCrossEntropy()])
@pytest.mark.parametrize("activation, skip", [(ReLU(), True), (LeakyReLU(0.2), False)])
def test_the_gap_of_a_fit_is_that_of_its_weights(loss, activation, skip):
    X, y = waves()
    outputs = 3 if isinstance(loss, CrossEntropy) else 1
    model = LiftedMLP(
        (2, 50, outputs), activation, loss, rho=(0.2, 0.5, 0.1)[: 2 + skip], skip=skip,
        method="global",
    ).fit(X, of(loss, y))  # fmt: skip
    found = global_gap(model, X, of(loss, y))
    assert found.relative <= 2e-4
    assert found.objective == pytest.approx(trace_of(model).objectives[-1], rel=1e-9)
    assert model.objective() == pytest.approx(found.objective, rel=1e-6)
    assert found.width == int((model.weights[0].matrix.norm(dim=0) > 0).sum()) < 50


@pytest.mark.parametrize(
    "units, method, said",
    [
        (3, "global", "more units than the 3 that there may be"),
        (50, Global(seconds=1e-9), "its 1e-09 s are over"),
        (50, Global(rounds=2), "its 2 rounds are used up"),
    ],
)
def test_a_gap_that_is_not_proven_is_told(units, method, said, tmp_path):
    X, y = waves(30)
    model = hinges(units, 0.01, method)
    with pytest.warns(FitWarning, match=said):
        model.fit(X, y, checkpoint=tmp_path / "fit")
    assert trace_of(model).ending is Ending.BUDGET
    objective = model.objective()
    with pytest.warns(FitWarning, match=said):  # nothing is left to do, and nothing more is proven
        model.fit(X, y, checkpoint=tmp_path / "fit", resume=True)
    assert trace_of(model).ending is Ending.BUDGET and model.objective() == objective


def test_no_training_falls_below_the_bound():
    X, y = waves(20)
    best = hinges(30, 0.05).fit(X, y)
    bound = global_gap(best, X, y).bound
    for method in (GaussNewton(10), "minibatch"):
        other = hinges(30, 0.05, method).fit(X, y)
        found = global_gap(other, X, y)
        assert bound <= best.objective() <= found.objective * (1 + 1e-4)
        assert found.bound <= best.objective() and found.best <= best.objective() * (1 + 2e-4)


@pytest.mark.parametrize("seed", [0, 17, 34])  # units far above 0 that a bias has to make up for
def test_a_torch_network_has_the_gap_of_the_same_weights(seed):
    torch.manual_seed(seed)
    X, y = waves(30)
    network = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(0.1), nn.Linear(5, 1)).double()
    found = global_gap(network, X, y, loss=SquaredError(), rho=0.3)
    squares = sum(float(x.detach().square().sum()) for x in network.parameters() if x.ndim == 2)
    assert found.objective == pytest.approx(
        float((network(X) - y).square().sum()) / 2 + 0.3 * squares, rel=1e-9
    )
    assert 0 < found.bound <= found.best < found.objective
    wider = add_unit(network, found)
    assert wider[0].weight.shape == (6, 2)
    again = global_gap(wider, X, y, loss=SquaredError(), rho=0.3)
    assert again.bound <= again.objective < found.objective


@pytest.mark.parametrize("weighted", [False, True])
def test_no_constant_is_below_the_bound_of_a_robust_loss(weighted, generator):
    """Nor far below the best that is found: most targets lie beyond delta, where H is linear."""
    network = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    for rows in range(2, 12):
        X = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
        y = X.new_empty(rows, 1).cauchy_(generator=generator) * 10 ** (rows % 3)
        times = (
            X.new_empty(rows).exponential_(generator=generator) if weighted else X.new_ones(rows)
        )
        gap = global_gap(network, X, y, loss=Huber(0.01), rho=10.0, sample_weight=times)
        off = (y - y.T).abs()  # of every target as a constant
        constant = float((times @ torch.where(off < 0.01, off**2 / 2, 0.01 * off - 5e-5)).min())
        assert gap.bound <= constant * (1 + 1e-9)
        assert gap.bound <= gap.best <= min(1.001 * constant, 1.001 * gap.bound)


def test_a_unit_is_added_on_the_scale_of_raw_data():
    X, y = waves(30)
    model = hinges(1, 0.1, "gauss-newton")
    found = global_gap(model.fit(X, y), X, y)
    wider = add_unit(model, found)
    new = global_gap(wider.fit(X, y) if wider.warm_start else wider, X, y)
    assert wider.sizes == (2, 2, 1) and model.sizes == (2, 1, 1)
    assert torch.isfinite(wider.predict(X)).all() and new.width == 2


def test_a_fit_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    X, y = waves(50)
    whole = hinges(40, 0.1).fit(X, y)
    file = Checkpoint(tmp_path / "fit", seconds=0.0)

    def stop(step):
        if step.number == 3:
            raise KeyboardInterrupt

    model = hinges(40, 0.1)
    model.fit(X, y, checkpoint=file, on_step=stop)
    model.fit(X, y, checkpoint=file, resume=True)
    assert same_bits(whole.weights, model.weights)
    rounds = [[replace(x, seconds=0.0) for x in trace_of(one).steps] for one in (whole, model)]
    assert rounds[0] == rounds[1]  # none twice


@pytest.mark.parametrize(
    "sizes, options, said",
    [
        ((2, 5, 5, 1), {}, "one hidden layer"),
        ((2, 5, 1), {"activations": Tanh()}, "phi(c u) = c phi(u)"),
        ((2, 5, 1), {"loss": Quantile(0.5)}, "smooth and convex"),
        ((2, 5, 1), {"rho": None, "penalty": L1(0.1)}, "rho on every layer"),
        ((2, 5, 1), {"bias": False}, "with a bias"),
        ((2, 5, 1), {"divergence": "joint"}, "tight"),
        ((2, 5, 1), {"missing": True}, "whole"),
    ],
)
def test_what_is_not_convex_in_its_units_is_refused(sizes, options, said):
    given = {"activations": ReLU(), "loss": SquaredError(), "rho": 0.1, **options}
    with pytest.raises(DeclarationError, match=re.escape(said)) as found:
        LiftedMLP(sizes, method="global", **given)
    assert any(x in str(found.value) for x in ("gauss-newton", "divergence='tight'"))


def test_bad_numbers_and_missing_answers_are_refused():
    refuses(DataError, "gap", lambda: Global(gap=0.0))
    with pytest.raises(DataError, match="rho must be positive"):
        LiftedMLP((2, 5, 1), ReLU(), SquaredError(), rho=(0.1, 0.0), method="global")
    X, y = waves(20)
    network = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    refuses(DataError, "pass loss", lambda: global_gap(network, X, y))
    refuses(DeclarationError, "torch network", lambda: global_gap(1.0, X, y))
    with pytest.raises(DataError, match="reads rows of 2 numbers"):
        global_gap(network, X[:, :1], y, loss=SquaredError(), rho=0.1)


def test_of_an_absolute_value_it_is_said_what_does_instead():
    class Absolute(nn.Module):
        def forward(self, u):
            return u.abs()

    X, y = waves(20)
    network = nn.Sequential(nn.Linear(2, 5), Absolute(), nn.Linear(5, 1)).double()
    with pytest.raises(DeclarationError, match=re.escape("two units of ReLU()")):
        global_gap(network, X, y, loss=SquaredError(), rho=0.1)
    refuses(DeclarationError, re.escape("two units of ReLU()"), Activation.from_function, torch.abs)


def units(model):
    return int((model.weights[0].matrix.norm(dim=0) > 0).sum())


@pytest.mark.parametrize("skip", [False, True])
def test_a_path_begins_where_a_unit_does_and_each_step_is_the_fit_at_its_rho(skip):
    X, y = waves(30)
    rho = (0.4, 0.1, 0.2)[: 2 + skip]
    model = hinges(40, rho, Global(1e-6), skip=skip, dtype=torch.float64).fit(X, y)
    path = global_path(model, smallest=0.05, number=4, gap=1e-6)
    largest = path[0].rho ** (4 / 3) / path[-1].rho ** (1 / 3)
    assert path[-1].rho == pytest.approx(0.05) and path[0].rho < largest
    assert [step.width for step in path] == sorted(step.width for step in path)
    for pull, width in ((1.001 * largest, 0), (0.99 * largest, 1), (path[1].rho, None)):
        factors = (2 * pull, pull / 2, 0.2)[: 2 + skip]
        alone = hinges(40, factors, Global(1e-6), skip=skip, dtype=torch.float64).fit(X, y)
        assert width is None or width == units(alone)  # of others its objective does not tell it
    assert path[1].width == units(path[1].model)
    assert path[1].objective == pytest.approx(alone.objective(), rel=1e-5)
    bars = posterior(path[1].model)
    # Optima lie on kinks, whose side rounding chooses: the evidence of two fits need not be near.
    assert path[1].evidence == bars.log_evidence
    assert path[1].error == pytest.approx(float(bars.leave_one_out().square().mean()))
    refuses(DataError, "there is no unit", lambda: global_path(model, smallest=2 * largest))


@pytest.mark.parametrize("skip", [False, True])
def test_error_bars_of_an_optimum_are_those_of_its_units_alone(skip):
    X, y = waves(8)
    y = y + 0.1 * torch.randn(8, 1, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    found = []
    for units in (8, 12):
        model = hinges(units, 0.3, Global(2e-9), skip=skip, dtype=torch.float64).fit(X, y)
        # Kinks lie in rows: rounding has no say in which side of them these are on.
        hidden = model.weights[0]
        assert float(hidden.apply(X)[:, hidden.matrix.norm(dim=0) > 0].abs().min()) > 1e-15
        bars = posterior(model)
        found.append((bars.log_evidence, bars.leave_one_out(), bars.predict(X[:5]).std))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
