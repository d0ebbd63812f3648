"""Where the columns of many rows lie, against numpy's sums in long doubles."""

import numpy as np
import pytest
import torch

from liftednet.samples import spread
from tests.draws import normal


def drawn(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Return columns far from 0, in order, rare, constant, of no use to float32, and too large."""
    generator = torch.Generator().manual_seed(rows)
    x = normal(rows, 6, seed=generator)
    x[:, 0] += 1e4
    x[:, 1] = torch.linspace(0, 1e3, rows) + x[:, 1]
    x[:, 2] *= torch.rand(rows, generator=generator) < 0.01
    x[:, 3] = 0.1
    x[:, 4] *= 1e-25
    x[:, 5] *= 1e25
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [slice(0, 4), slice(0, 6)])
@pytest.mark.parametrize("rows", [1, 7, 130_000])
@pytest.mark.parametrize("counted", [False, True])
def test_columns_lie_where_numpy_says(dtype, columns, rows, counted) -> None:
    x = drawn(rows, dtype)[:, columns]
    times = torch.arange(rows).remainder(3) if counted and rows > 1 else torch.ones(rows)
    found = spread(x, times.double() if counted else None)
    exact = np.repeat(x.double().numpy(), times.int().numpy(), axis=0).astype(np.longdouble)
    # A column as far from 0 as 1e4 deviations is rounded by as many epsilons, whoever adds it up.
    rounding = 100 * torch.finfo(dtype).eps
    deviation, largest = exact.std(0), np.abs(exact).max(0)
    assert found.mass == len(exact)
    for ours, theirs in ((found.mean, exact.mean(0)), (found.deviation, deviation)):
        assert (np.abs(ours.numpy() - theirs) <= rounding * deviation + 1e-14 * largest).all()
    assert (found.low.numpy() == exact.min(0)).all() and (found.high.numpy() == exact.max(0)).all()


def test_rows_that_count_nothing_may_be_anything() -> None:
    x = torch.tensor([[torch.nan], [1.0], [torch.inf], [3.0]])
    found = spread(x, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert (found.mass, float(found.mean), float(found.squares)) == (2.0, 2.0, 2.0)
    assert spread(x[:0]).mass == 0.0
    rare = torch.zeros(20_000).index_fill_(0, torch.tensor([1, 3]), 1.0)
    far = torch.arange(20_000, dtype=torch.float64)[:, None] + 1e6
    assert float(spread(far, rare).deviation) == pytest.approx(1.0, rel=1e-12)
