"""Shares of decisions: counted by hand, held as limits, and refused where they are of nothing."""

import math

import numpy as np
import pandas as pd
import pytest

from liftednet.constraints import GroupProbabilities, GroupRates, Rate
from liftednet.errors import DataError
from liftednet.sets.rates import rate_limits, refuse_rates
from tests.models.networks import refuses

GENERATOR = np.random.default_rng(0)
LABELS, DECISIONS = (GENERATOR.integers(0, 3, 90) for _ in range(2))
GROUP = GENERATOR.integers(0, 3, 90)
CHOSEN = GENERATOR.random(90) < 0.5


def apart(rates) -> float:
    return float(max(rates) - min(rates))


@pytest.mark.parametrize("of", ["selection", "true_positive", "false_positive", "error"])
@pytest.mark.parametrize("classes", [2, 3])
def test_rates_are_those_that_are_counted_by_hand(of: str, classes: int) -> None:
    labels, decisions = LABELS % classes, DECISIONS % classes
    positive = range(classes) if classes > 2 and of != "error" else [1]
    gaps = []
    for label in positive:
        rates = []
        for group in range(3):
            rows = group == GROUP
            hit = decisions == label
            if of == "true_positive":
                rows = rows & (labels == label)
            elif of == "false_positive":
                rows = rows & (labels != label)
            elif of == "error":
                hit = decisions != labels
            rates.append(hit[rows].mean())
        gaps.append(apart(rates))
    found = GroupRates(GROUP, within=0.0, of=of).violation(decisions, labels)
    assert found == pytest.approx(max(gaps), abs=1e-9)


def test_limits_on_decisions_are_the_comparisons() -> None:
    constraints = [GroupRates(GROUP, 0.1), Rate(CHOSEN, at_most=0.3, label=2),
                   Rate(of="churn", old=(LABELS + 1) % 3, at_most=0.2)]  # fmt: skip
    found = [x for one in constraints for x in one.comparisons(LABELS, 3)]
    flat = np.eye(3)[DECISIONS]
    limits = rate_limits(found, 90, 3)
    wanted = [one.of(flat) for one in found]
    np.testing.assert_allclose(limits.matrix @ flat.ravel(), wanted, atol=1e-12)
    assert limits.matrix[-2] @ flat.ravel() == pytest.approx((DECISIONS == 2)[CHOSEN].mean())
    assert limits.matrix[-1] @ flat.ravel() == pytest.approx((DECISIONS != (LABELS + 1) % 3).mean())


def test_combinations_of_columns_are_groups_and_names_are_of_any_type() -> None:
    sex = np.where(GROUP > 0, "f", "m")
    both = GroupRates(np.stack([sex, CHOSEN.astype(str)], 1), within=0.0)
    assert both.names == ["f, False", "f, True", "m, False", "m, True"]
    each = [(DECISIONS % 2)[(sex == s) & (t == CHOSEN)].mean() for s in "fm" for t in (0, 1)]
    assert both.violation(DECISIONS % 2, LABELS % 2) == pytest.approx(apart(each), abs=1e-9)
    p = GENERATOR.random(90)
    means = [p[sex == s].mean() for s in "fm"]
    soft = GroupProbabilities(sex, 0.0).violation(np.stack([1 - p, p], 1), LABELS % 2)
    assert soft == pytest.approx(apart(means), abs=1e-9)


def test_labels_of_any_type_become_numbers() -> None:
    known = np.array(["no", "perhaps", "yes"])
    one = Rate(at_most=0.0, label="yes").numbered(known)
    assert one.violation(DECISIONS, LABELS) == pytest.approx((DECISIONS == 2).mean(), abs=1e-9)
    churn = Rate(of="churn", old=known[LABELS], at_most=0.0).numbered(known)
    assert churn.violation(DECISIONS, LABELS) == pytest.approx((DECISIONS != LABELS).mean())
    refuses(DataError, "'maybe'", Rate(at_most=0.1, label="maybe").numbered, known)


def test_what_no_decisions_meet_is_refused_with_numbers() -> None:
    labels = LABELS % 2
    refuse_rates([GroupRates(GROUP, 0.02), Rate(at_least=0.4, at_most=0.5)], labels, 2)
    words, rates = r"contradict.* gives way is .*by 0\.3", [Rate(at_most=0.2), Rate(at_least=0.5)]
    refuses(DataError, words, refuse_rates, rates, labels, 2)
    rates = [Rate(of="churn", old=1 - labels, at_most=0.1), Rate(of="error", at_most=0.1)]
    refuses(DataError, "contradict", refuse_rates, rates, labels, 2)  # the old one is always wrong
    group = np.where(labels == 1, "a", np.where(CHOSEN, "a", "b"))
    words = r"true positive rate of b .*no positive row"
    refuses(DataError, words, refuse_rates, [GroupRates(group, of="true_positive")], labels, 2)


def test_bad_rates_are_refused() -> None:
    refuses(DataError, "two groups", GroupRates, [1, 1, 1])
    refuses(DataError, "share from 0 to 1", GroupRates, [0, 1], within=2.0)
    refuses(DataError, "'selection'", GroupRates, [0, 1], of="parity")
    none = ["a", None], ["a", math.nan, "b"], [*np.array([1, math.nan], np.float32)]
    for missing in (*none, pd.Series(["a", None], dtype="string"), [*np.array(["NaT"], "M8[D]")]):
        refuses(DataError, "missing", GroupRates, missing)
    assert GroupRates(np.array([2, "a", 2], object)).group.tolist() == [0, 1, 0]
    refuses(DataError, "several lengths", GroupRates, [["a"], ["a", "b"]])
    refuses(DataError, "one label", Rate, at_most=0.1, label=[1])
    refuses(DataError, "one axis", Rate, np.ones((2, 2), dtype=bool), at_most=0.1)
    refuses(DataError, "missing", Rate, at_most=0.1, of="churn", old=[1, None])
    mixed = Rate(at_most=0.1, of="churn", old=np.array([0, "a"], object))
    refuses(DataError, "label 'a'", mixed.numbered, np.arange(2))
    refuses(DataError, "at_most", Rate)
    refuses(DataError, "asks nothing", Rate, at_most=1.0)
    refuses(DataError, "lies above", Rate, at_least=0.5, at_most=0.4)
    refuses(DataError, "old decisions", Rate, at_most=0.1, of="churn")
    refuses(DataError, "integers or booleans", Rate, [0.5], at_most=0.1)
    refuses(DataError, "is of 2 samples", GroupRates([0, 1]).violation, [0, 1, 1], [0, 1, 1])
    refuses(DataError, "lie in 0 to 1", Rate([7], at_most=0.1).violation, [0, 1], [0, 1])
    refuses(DataError, "which of 3 classes", Rate(at_most=0.1).violation, [0, 1, 2], [0, 1, 2])
