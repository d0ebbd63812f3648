"""Exact bounds: beside closed forms and scipy, and broken as seldom as they say."""

import math

import numpy as np
import pytest
from scipy import stats

from liftednet.confidence import _likely, difference_bound, mean_bound, share_bound
from liftednet.errors import DataError
from tests.models.networks import refuses


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (3, 40), (39, 40), (10, 10)])
def test_the_bound_on_a_share_is_that_of_clopper_and_pearson(hits: int, rows: int) -> None:
    known = stats.binomtest(hits, rows, alternative="less").proportion_ci(0.95, "exact").high
    assert share_bound(hits, rows, 0.05) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("share", [1e-3, 0.4, 0.999])
def test_numbers_of_hits_have_the_binomial_law_down_to_none_and_up_to_all(share: float) -> None:
    for rows in (4, 3000):
        hits, found = _likely(rows, np.array([share]))
        np.testing.assert_allclose(found[0], stats.binom.pmf(hits, rows, share), atol=1e-12)
        assert found.sum() == pytest.approx(1.0, abs=1e-9)


def test_the_bound_on_a_mean_solves_its_equation() -> None:
    mu = mean_bound(0.3, 200, 0.01)
    kl = 0.3 * math.log(0.3 / mu) + 0.7 * math.log(0.7 / (1 - mu))
    assert 200 * kl == pytest.approx(math.log(100), rel=1e-9)
    assert mu > stats.binom.ppf(0.99, 200, 0.3) / 200 > 0.3
    assert mean_bound(1.0, 5, 0.05) == 1.0


@pytest.mark.parametrize(("p", "q", "n", "m"), [(0.6, 0.5, 12, 14), (0.3, 0.1, 14, 10)])
def test_the_bound_on_a_difference_is_broken_as_seldom_as_it_says(p, q, n, m) -> None:
    """Summed over outcomes, not drawn: by the bound's monotony, down each row to the first."""
    first = stats.binom.pmf(np.arange(n + 1), n, p)
    second = stats.binom.pmf(np.arange(m + 1), m, q)
    broken = 0.0
    for a in np.flatnonzero(first > 1e-4):
        low, high = -1, m + 1  # the bound falls with b: broken from `high` on
        while high - low > 1:
            b = (low + high) // 2
            if difference_bound((int(a), n), (b, m), 0.1) < p - q:
                high = b
            else:
                low = b
        broken += first[a] * second[high:].sum()
    assert broken <= 0.1


def test_the_bound_on_a_difference_is_near_the_normal_law() -> None:
    found = difference_bound((250, 500), (200, 400), 0.05)
    normal = 1.645 * math.sqrt(0.25 / 500 + 0.25 / 400)
    assert normal < found < 1.1 * normal
    rare = difference_bound((50, 500), (50, 500), 0.05)
    assert 1.0 < rare / (1.645 * math.sqrt(2 * 0.09 / 500)) < 1.06  # 1.14 by raw differences
    refuses(DataError, "hits", share_bound, 3, 2, 0.05)
    refuses(DataError, "delta", share_bound, 1, 2, 1.5)
