"""Missing and noisy entries of inputs, against conditional Gaussians and what they must leave."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednet import Network, load, save, to_torch
from liftednet.activations import ReLU
from liftednet.errors import DataError, DeclarationError, NotFittedError
from liftednet.layers import dense
from liftednet.losses import SquaredError
from liftednet.models import FullBatch, Lifted, LiftedMLP, Minibatch
from liftednet.models.incomplete import Factors, fit_factors
from tests.draws import normal
from tests.models.networks import refuses

FEW = Minibatch(epochs=5)


def drawn(seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    mean, own = torch.randn(5, generator=generator), torch.rand(5, generator=generator) + 0.1
    return Factors(*(x.double() for x in (mean, torch.randn(2, 5, generator=generator), own)))


def conditional(known: Factors, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of x given what is seen, by the whole covariance."""
    loadings, mean = known.loadings.numpy(), known.mean.numpy()
    of_x = loadings.T @ loadings + np.diag(known.own.numpy())
    seen = ~np.isnan(row)
    gain = np.linalg.solve(of_x[np.ix_(seen, seen)], of_x[seen]).T
    return mean + gain @ (row - mean)[seen], of_x - gain @ of_x[seen]


def holes(rows: Tensor, share: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < share, torch.nan)


def related(samples: int = 400) -> tuple[Tensor, Tensor]:
    """Return six features of two causes, and a target of the first cause."""
    generator = torch.Generator().manual_seed(1)
    causes, noise = (normal(samples, n, seed=generator, dtype=torch.float32) for n in (2, 6))
    mixing = torch.tensor([[1.0, 1.0, -1.0, 0.0, 0.0, 0.5], [0.0, 0.3, 0.0, 1.0, -1.0, 0.5]])
    rows = causes @ mixing + 0.3 * noise
    return rows * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 1.0]) + 5, causes[:, :1].abs()


@pytest.fixture(scope="module")
def fitted() -> tuple[LiftedMLP, Tensor]:
    """Return a model of rows with holes, and the rows."""
    rows, target = related(200)
    gaps = holes(rows, 0.3)
    model = LiftedMLP((6, 8, 1), loss=SquaredError(), missing=True, method=FEW)
    return model.fit(gaps, target), gaps


def test_completion_is_the_conditional_mean() -> None:
    known = drawn()
    some = [0.3, torch.nan, 1.0, torch.nan, -1.0]
    rows = torch.tensor([some, [torch.nan] * 5, [0.1] * 5]).double()
    for row, found in zip(rows, known.completed(rows), strict=True):
        np.testing.assert_allclose(found, conditional(known, row.numpy())[0], atol=1e-12)


def test_draws_have_the_conditional_covariance() -> None:
    known, row = drawn(), torch.tensor([0.3, torch.nan, 1.0, torch.nan, -1.0]).double()
    drawn_normal = normal(100_000, known.width, dtype=torch.float32).double()
    draws = known.completed(row.expand(100_000, 5), drawn_normal).numpy()
    mean, covariance = conditional(known, row.numpy())
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.02)
    assert (draws[:, 0] == float(row[0])).all()  # seen as it is


def test_fit_finds_the_covariance_behind_holes() -> None:
    known = drawn()
    drawn_normal = normal(20_000, 7, dtype=torch.float32).double()
    rows = known.completed(torch.full((20_000, 5), torch.nan).double(), drawn_normal)
    found = fit_factors(holes(rows, 0.3), 2, torch.zeros(5))
    wanted = known.loadings.T @ known.loadings + torch.diag(known.own)
    np.testing.assert_allclose(found.mean, known.mean, atol=0.05)
    covariance = found.loadings.T @ found.loadings + torch.diag(found.own)
    # four deviations of a variance of 14,000 rows, the root of 2 / 14,000 of it each
    np.testing.assert_allclose(covariance, wanted, rtol=0.05, atol=0.1)


def test_a_row_counts_as_often_as_its_weight() -> None:
    rows = holes(related(60)[0], 0.3)
    weights = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(0))
    one = fit_factors(rows, 3, torch.zeros(6), weights)
    other = fit_factors(rows.repeat_interleave(weights, 0), 3, torch.zeros(6))
    torch.testing.assert_close(one.loadings.T @ one.loadings, other.loadings.T @ other.loadings)


def test_a_column_that_does_not_vary_is_completed_by_its_value() -> None:
    rows = torch.cat([related(60)[0], torch.full((60, 1), 3.0), torch.zeros(60, 1)], 1)
    found = fit_factors(holes(rows, 0.3), 7, torch.full((8,), 1e-15))
    ends = found.completed(holes(rows, 0.3), normal(60, found.width))[:, 6:]
    torch.testing.assert_close(ends, rows[:, 6:])
    assert not ends[:, 1].any()


def test_the_prior_does_not_depend_on_where_columns_lie() -> None:
    rows = holes(related(300)[0].double(), 0.3)
    near, far = (fit_factors(rows + offset, 3, torch.zeros(6)) for offset in (0.0, 1e8))
    torch.testing.assert_close(far.mean - 1e8, near.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(far.own, near.own, rtol=1e-5, atol=0)
    covariances = [each.loadings.T @ each.loadings for each in (far, near)]
    torch.testing.assert_close(*covariances, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("moves", [0.0, 8.0])  # 8 is the last digit of 1e8 in float32
def test_a_constant_column_with_holes_is_not_heard(moves: float) -> None:
    rows, target = related(200)
    flips = torch.randint(0, 2, (200, 1), generator=torch.Generator().manual_seed(2))
    gaps = torch.cat([holes(rows, 0.2), holes(1e8 + moves * flips, 0.2)], 1)
    model = LiftedMLP((7, 8, 1), loss=SquaredError(), missing=True, method=FEW)
    moved = rows.new_tensor([0.0] * 6 + [5e8])
    answers = model.fit(gaps, target).predict(gaps.nan_to_num(1.0))
    torch.testing.assert_close(model.predict(gaps.nan_to_num(1.0) + moved), answers)
    torch.testing.assert_close(model.completed(gaps)[:, 6], gaps.new_full((200,), 1e8))


def test_only_rows_that_count_are_what_is_seen() -> None:
    rows, target = related(6_000)
    gaps = holes(rows, 0.3)
    weights = torch.zeros(6_000)
    weights[1::3] = 1.0  # of every other row the prior would look at none
    settings: dict[str, Any] = {"loss": SquaredError(), "missing": True, "method": Minibatch(1)}
    model = LiftedMLP((6, 4, 1), **settings).fit(gaps, target, sample_weight=weights)
    other = LiftedMLP((6, 4, 1), **settings).fit(gaps[1::3], target[1::3])
    torch.testing.assert_close(model.completed(gaps), other.completed(gaps))
    gaps[1::3, 2] = torch.nan
    refuses(DataError, "feature 2", lambda: model.fit(gaps, target, sample_weight=weights))


@pytest.mark.parametrize("method", [FEW, FullBatch(2), "gauss-newton"])
def test_every_method_takes_holes_and_answers_by_the_row(method: object) -> None:
    rows, target = related(120)
    gaps = holes(rows, 0.3)
    model = LiftedMLP((6, 8, 1), loss=SquaredError(), missing=True, method=method)
    answers = model.fit(gaps, target).forward(gaps)
    assert answers.isfinite().all()
    torch.testing.assert_close(answers[7:9], model.forward(gaps[7:9]), rtol=1e-4, atol=1e-5)
    assert model.completed(gaps)[~gaps.isnan()].equal(gaps[~gaps.isnan()])


def test_answers_are_those_of_the_completed_rows_of_a_file_too(fitted, tmp_path: Path) -> None:
    model, gaps = fitted
    (prior,) = model._known.completion.priors.values()
    unseen = gaps.new_full((200, 1), torch.nan)  # of the target
    whole = prior.completed(torch.cat([gaps, unseen], 1))[:, :6]
    torch.testing.assert_close(model.completed(gaps), whole)
    torch.testing.assert_close(model.forward(gaps), to_torch(model)(whole), rtol=1e-3, atol=1e-4)
    again = load(save(model, tmp_path / "model.safetensors"))
    torch.testing.assert_close(again.forward(gaps), model.forward(gaps))
    assert again.completed(gaps).equal(model.completed(gaps))


def test_images_and_two_inputs() -> None:
    rows, target = related(100)
    network = Network()
    left, right = network.input(1, 2, 2, missing=True), network.input(2)
    network.loss(SquaredError(), dense(network.state(ReLU(), dense(left, 6) + dense(right, 6)), 1))
    image = holes(rows[:, :4], 0.3).view(-1, 1, 2, 2)
    model = Lifted(network, method=FEW).fit((image, rows[:, 4:]), target)
    assert model.forward((image, rows[:, 4:])).isfinite().all()
    completed, same = model.completed((image, rows[:, 4:]))
    assert completed.shape == image.shape and same.equal(rows[:, 4:])


def test_refusals() -> None:
    rows, target = related(40)
    gaps = holes(rows, 0.3)
    model = LiftedMLP((6, 4, 1), loss=SquaredError(), missing=True, method=FEW)
    refuses(DataError, "infinite", model.fit, gaps.nan_to_num(torch.inf), target)
    fitted = model.fit(gaps, target)
    fitted.with_weights(fitted.weights)
    refuses(NotFittedError, "prior", lambda: fitted.forward(gaps))
    refuses(DeclarationError, "sequences", lambda: Network().input(3, sequence=True, missing=True))
