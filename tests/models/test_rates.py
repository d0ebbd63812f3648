"""Networks whose decisions meet rates, as they are counted; what new rows show of them."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from liftednet import FitWarning, LiftedClassifier, LiftedRegressor, LiftedSequenceClassifier
from liftednet.constraints import Budget, GroupMeans, GroupProbabilities, GroupRates, Rate
from liftednet.errors import DataError, SolverError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.constraint_report import HeldOut
from liftednet.models.rates import HeldRates, counted_fit, likeliest
from liftednet.models.warranty import verdicts
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import ConstrainedFit, Design, WeightFit
from liftednet.samples import Weights
from liftednet.solvers import solve
from tests.draws import normal
from tests.models.networks import refuses, warned

QUICK = Minibatch(epochs=5)


def drawn(rows: int, seed: int = 0, classes: int = 2) -> tuple[Any, Any, Any]:
    """Return inputs of which the first is a group, and labels that go with it."""
    generator = np.random.default_rng(seed)
    group = generator.integers(0, 2, rows)
    x = np.column_stack([group, generator.standard_normal((rows, 4)) + 0.5 * group[:, None]])
    score = x[:, 1] + x[:, 2] * x[:, 3] + group + generator.standard_normal(rows)
    return x, np.digitize(score, [0.5, 1.5][: classes - 1]), group


X, Y, GROUP = drawn(600)


def gap(hit: Any, group: Any) -> float:
    return float(abs(hit[group == 0].mean() - hit[group == 1].mean()))


def aside(model: Lifted) -> HeldOut:
    """Return what the rows that were set aside say of a model."""
    held = model.constraint_report().held_out
    assert held is not None
    return held


@pytest.mark.parametrize("of", ["selection", "true_positive", "false_positive", "error"])
def test_decisions_meet_rates_on_the_training_rows(of: str) -> None:
    rows = {"true_positive": Y == 1, "false_positive": Y == 0}.get(of, np.ones(600, dtype=bool))
    model, apart = LiftedClassifier((10,), max_iter=5, random_state=0), []
    for asked in ([], [GroupRates(GROUP, 0.03, of=of)]):
        found = model.fit(X, Y, constraints=asked).predict(X)
        hit = found != Y if of == "error" else found == 1
        apart.append(gap(hit[rows], GROUP[rows]))
    assert of == "error" or apart[0] > 0.1
    assert apart[1] <= 0.03
    report = model.model_.constraint_report()
    assert report.violations == (0.0,)
    assert report.apart[0] is not None
    assert report.apart[0].decisions == pytest.approx(apart[1])
    assert model.score(X, Y) > 0.6


def test_mean_scores_say_little_of_decisions_and_the_report_shows_it() -> None:
    model = LiftedClassifier((10,), max_iter=5, random_state=0)
    report = model.fit(X, Y, constraints=[GroupMeans(GROUP, 0.0)]).model_.constraint_report()
    odds, chances = model.model_.scores(X).numpy(), model.predict_proba(X)[:, 1]
    assert report.apart[0] is not None
    assert report.apart[0].decisions == pytest.approx(gap(model.predict(X) == 1, GROUP))
    assert report.apart[0].probabilities == pytest.approx(gap(chances, GROUP))
    assert report.apart[0].scores == pytest.approx(gap(odds[:, 1] - odds[:, 0], GROUP), abs=1e-9)
    assert "of new rows this says nothing." in str(report)  # as a confidence would be refused


@pytest.mark.parametrize("kind", [GroupRates, GroupProbabilities])
def test_a_wider_limit_fits_no_worse(kind: Any) -> None:
    """What meets the narrow one meets the wide one, too; the group is what tells most here."""
    draw = np.random.default_rng(1)
    x, losses = draw.standard_normal((300, 4)), []
    y = (x[:, 0] + 0.5 * x[:, 1] ** 2 + draw.standard_normal(300) > 0).astype(int)
    for within in (0.05, 0.3):
        asked = [kind(x[:, 0] > 0, within)]
        model = LiftedClassifier((10,), max_iter=20, random_state=0).fit(x, y, constraints=asked)
        losses.append(-np.log(model.predict_proba(x)[range(300), y]).mean())
    assert losses[1] < losses[0] < np.log(2)


def test_several_constraints_are_held_together_for_several_classes_and_one_output() -> None:
    x, y, group = drawn(200, classes=3)
    names = np.array(["no", "perhaps", "yes"])
    model = LiftedClassifier((10,), max_iter=5, random_state=0)
    old = model.fit(x, names[y]).predict(x)
    asked: list[Any] = [GroupRates(group, 0.1), Rate(of="churn", old=old, at_most=0.3),
             Rate(of="error", at_most=0.45), GroupProbabilities(group, 0.1),
             Budget(5.0)]  # fmt: skip
    found = model.fit(x, names[y], constraints=asked).predict(x)
    assert max(gap(found == name, group) for name in names) <= 0.1
    assert (found != old).mean() <= 0.3
    assert max(gap(model.predict_proba(x)[:, k], group) for k in range(3)) <= 0.1
    assert [len(p) for p in model.model_.constraint_report().prices[:4]] == [3, 1, 1, 3]
    single = LiftedMLP((5, 10, 1), loss=BinaryCrossEntropy(), method=QUICK)
    single.fit(X, Y.astype(float), constraints=[Rate(of="true_positive", at_least=0.9)])
    assert single.predict(X).numpy()[Y == 1].mean() >= 0.9


def test_rows_set_aside_say_whether_rates_hold() -> None:
    x, y, group = drawn(6_000, seed=1)
    model = LiftedClassifier((10,), max_iter=2, random_state=0)
    asked = [GroupRates(group, 0.15), Rate(at_most=0.9)]
    model.fit(x, y, constraints=asked, confidence=0.95, held_out=0.4)
    held = aside(model.model_)
    assert len(held.rows) == pytest.approx(2_400, abs=4)
    assert np.isin(held.rows, np.arange(6_000)).all()
    hit = model.predict(x[held.rows]) == 1
    assert held.apart[0] is not None
    assert held.apart[0].decisions == pytest.approx(gap(hit, group[held.rows]))
    assert all(one.holds for one in held.verdicts)
    assert gap(hit, group[held.rows]) < held.verdicts[0].bound <= 0.15
    fresh = drawn(40_000, seed=2)
    assert gap(model.predict(fresh[0]) == 1, fresh[2]) <= held.verdicts[0].bound
    assert "holds with confidence 0.95" in str(model.model_.constraint_report())
    lot = LiftedClassifier((10,), max_iter=2, random_state=0)
    lot.fit(X, Y, constraints=[GroupRates(GROUP, 0.05)], confidence=0.95)
    told = aside(lot.model_)
    assert not told.verdicts[0].holds
    assert told.verdicts[0].needed is None or told.verdicts[0].needed > 180
    assert "not shown with confidence 0.95" in str(lot.model_.constraint_report())


@pytest.mark.parametrize("kind", [GroupProbabilities, GroupRates])
def test_as_many_rows_as_are_said_to_be_needed_would_do(kind: Any) -> None:
    scores = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    few, group = (scores > 0)[:, 0].numpy(), np.arange(200) % 2
    (told,) = verdicts([kind(group, within=0.1)], few, scores, 0.95)
    assert not told.holds and told.needed is not None
    more = np.tile(np.arange(200), -(-told.needed // 200))  # of the same means
    (again,) = verdicts([kind(group[more], within=0.1)], few[more], scores[more], 0.95)
    assert again.holds


def test_a_warranty_is_of_rows_that_no_training_has_seen() -> None:
    asked: dict[str, Any] = {"constraints": [Rate(of="error", at_most=0.4)], "confidence": 0.9}
    model = LiftedClassifier((10,), max_iter=2, random_state=0, warm_start=True)
    model.fit(X, Y, **asked)  # from the start
    refuses(DataError, "warm_start=True", lambda: model.fit(X, Y, **asked))
    again = LiftedMLP((5, 10, 2), method=QUICK, start=model.model_.weights)
    warned("weights that were given", again.fit, X, Y, **asked)


@pytest.mark.parametrize("steps", [False, True])
def test_copies_among_rows_set_aside_are_told_and_counted(steps: bool, draw) -> None:
    x, y = np.repeat(draw.normal(size=(120, 3)), 2, 0), draw.integers(0, 2, 240)
    asked: dict[str, Any] = {"constraints": [Rate(of="error", at_most=0.9)], "confidence": 0.9}
    model: Any = LiftedClassifier((3,), max_iter=1, random_state=0)
    every = np.column_stack([x, y])
    if steps:
        x, lengths = np.stack([x, 0 * x, 0 * x], 1), draw.integers(1, 4, 240)
        model = LiftedSequenceClassifier((3,), max_iter=1, random_state=0)
        every, asked["lengths"] = np.column_stack([every, lengths]), lengths
    with pytest.warns(FitWarning, match="set aside are equal") as told:
        model.fit(x, y, **asked)
    rows = aside(model.model_).rows
    alike = ((every[rows][:, None] == every).all(2).sum(1) > 1).sum()
    assert 0 < alike < len(rows)
    assert any(f"{alike} of the {len(rows)} rows" in str(one.message) for one in told)
    with warnings.catch_warnings(record=True) as said:  # rows of few values are equal by chance
        model.fit(np.sign(x), y, **asked)
    assert not [one for one in said if "set aside are equal" in str(one.message)]


def test_a_kind_of_which_no_row_is_set_aside_is_refused_before_training() -> None:
    model = LiftedClassifier((10,), random_state=0)
    asked = [GroupRates(np.arange(len(Y)) == 0, 0.1)]
    words = "rows set aside the selection rate of True is of no row"
    refuses(DataError, words, model.fit, X, Y, constraints=asked, confidence=0.95)
    assert not hasattr(model, "model_")


def test_evidence_chooses_the_size_under_a_confidence_on_the_rows_that_train() -> None:
    asked = [GroupRates(GROUP[:300], 0.3)]
    model = LiftedClassifier(random_state=0)
    model.fit(X[:300], Y[:300], constraints=asked, confidence=0.9)
    assert "largest evidence" in repr(model.model_)
    assert model.model_.errors_aside == 1.0
    held = aside(model.model_)
    hit = model.model_.predict(X[held.rows]).numpy() == 1
    assert held.verdicts[0].seen == pytest.approx(gap(hit, GROUP[held.rows]))
    known = model.model_._known.data
    assert known is not None and len(known) == 300 - len(held.rows)


def test_sequences_set_aside_say_whether_rates_hold_and_steps_do_not() -> None:
    generator = np.random.default_rng(3)
    x, group = generator.standard_normal((160, 4, 2)), generator.integers(0, 2, 160)
    lengths = 2 + np.arange(160) % 3  # sums run over the steps there are
    sums = (x[..., 0] * (np.arange(4) < lengths[:, None])).sum(1)
    y, asked = (sums + group > 0.5).astype(int), [GroupRates(group, 0.3)]
    model = LiftedSequenceClassifier((5,), max_iter=3, random_state=0)
    model.fit(x, y, lengths=lengths, constraints=asked)
    assert "ask for confidence=0.95" in str(model.model_.constraint_report())
    model.fit(x, y, lengths=lengths, constraints=asked, confidence=0.9)
    held = aside(model.model_)
    hit = model.predict(x[held.rows], lengths[held.rows]) == 1
    assert held.verdicts[0].seen == pytest.approx(gap(hit, group[held.rows]))
    right = model.predict_proba(x[held.rows], lengths[held.rows])[range(len(hit)), y[held.rows]]
    assert held.loss == pytest.approx(-np.log(right).mean(), rel=1e-5)
    steps = np.repeat(y[:, None], 4, 1)
    rates = [GroupRates(np.repeat(group, lengths), 0.3)]
    model.fit(x, steps, lengths=lengths, constraints=rates)
    assert "confidence" not in str(model.model_.constraint_report())
    words, how = "steps of a sequence are not: 160 sequences have", {"confidence": 0.9}
    refuses(DataError, words, model.fit, x, steps, lengths=lengths, constraints=rates, **how)


def test_asked_strictly_there_is_no_model_without_proof() -> None:
    model = LiftedMLP((5, 10, 2), method=QUICK)
    for rows, within, held_out, error, words in (
        (100, 0.02, 0.1, DataError, "on 4 and 6 rows set aside"),
        (600, 0.05, 0.3, SolverError, "no model is handed out"),
    ):
        how: dict[str, Any] = {"confidence": 0.95, "held_out": held_out, "strict": True}
        how["constraints"] = [GroupRates(GROUP[:rows], within)]
        refuses(error, words, model.fit, X[:rows], Y[:rows], **how)
        assert not model.is_fitted
    proven = LiftedClassifier(random_state=0).fit(  # whose size the evidence chooses
        X, Y, constraints=[GroupRates(GROUP, 0.8)], confidence=0.9, strict=True
    )
    assert "holds with confidence 0.9" in str(proven.model_.constraint_report())


def test_rates_that_have_no_meaning_are_refused_before_training() -> None:
    rates, words = GroupRates(GROUP, 0.05), "SquaredError on 1 outputs decides none"
    refuses(DataError, words, LiftedRegressor((5,)).fit, X, Y.astype(float), constraints=[rates])
    refused: list[tuple[list[Any], dict[str, float], str]] = [
        ([GroupRates(Y, of="true_positive")], {}, "no positive row"),
        ([Rate(at_most=0.1), Rate(at_least=0.2)], {}, "contradict"),
        ([GroupMeans(GROUP)], {"confidence": 0.95}, "speaks of rates"),
        ([rates], {"confidence": 95}, "confidence must lie"),
        ([rates], {"confidence": 0.95, "held_out": 1.0}, "held_out must lie"),
    ]
    for asked, how, words in refused:
        refuses(DataError, words, LiftedClassifier((5,)).fit, X, Y, constraints=asked, **how)
    model = LiftedMLP((5, 4, 1), loss=SquaredError())
    refuses(DataError, "GroupMeans", model.fit, X, Y.astype(float), constraints=[rates])


def test_thresholds_are_as_good_as_any_moved_by_hand(generator) -> None:
    """Though the only feature that tells groups wants weights that the prior hardly allows."""
    y = torch.arange(300) % 2
    group = (torch.arange(300) // 2) % 3 == 0
    seen = 2.0 * (y - 0.5) + group + normal(300, seed=generator)
    x = torch.stack([seen, 1e-2 * group], 1).double()
    fit = WeightFit(
        CrossEntropy().divergence, Design(x), torch.eye(2)[y].double(), SquaredFrobenius(1.0)
    )
    held = HeldRates((GroupRates(group.numpy(), within=0.1),), y.numpy(), 2)
    free = solve(fit).require_solved().value
    found = counted_fit(fit, held, (), free)
    scores = ConstrainedFit(fit, ()).scores
    turn, sign = x.new_zeros(2, 2), x.new_tensor([1.0, -1.0])
    turn[1] = 100 * sign
    moved = [
        Weights(free.matrix + turn * c / 2, free.bias + sign * t / 2)
        for c in np.linspace(0, 4, 41) for t in np.linspace(-2, 2, 41)
    ]  # fmt: skip
    within = [w for w in moved if held.excess(held.counted(scores(w))) <= 0]
    assert found.excess <= 0.05  # the aim is .06 within the limit
    alone = replace(fit, penalty=SquaredFrobenius(1e-12)).measure  # the loss
    assert alone(found.value).objective < 1.05 * min(float(alone(w).objective) for w in within)


def _many_groups(draw: np.random.Generator) -> tuple[Any, ...]:
    group = np.arange(400) % 10
    x = np.column_stack([draw.standard_normal((400, 4)), np.eye(10)[group]])
    x[:, 0] += 0.3 * (group % 2)
    own = x[:, 0] + x[:, 1] + 0.5 * (group % 2)
    return x, (own + 0.5 * draw.standard_normal(400) > 0.2).astype(int), group, 0.2, None


def _few_of_a_label(draw: np.random.Generator) -> tuple[Any, ...]:
    group = draw.integers(0, 2, 400)
    x = np.column_stack([draw.standard_normal((400, 4)) + 0.5 * group[:, None], group])
    own = x[:, 0] + x[:, 1] + 0.7 * group + 0.5 * draw.standard_normal(400)
    return x, (own > np.quantile(own, 0.9)).astype(int), group, 0.1, "balanced"


@pytest.mark.parametrize("drawn", [_many_groups, _few_of_a_label])
@pytest.mark.parametrize("seed", [1, 6])
def test_no_label_for_nearly_all_where_a_share_of_each_group_does_better(drawn, seed) -> None:
    """The same share of each group, those with the largest probabilities of a free fit."""
    x, y, group, limit, weights = drawn(np.random.default_rng(seed))
    model = LiftedClassifier((10,), random_state=0, class_weight=weights)
    chances = model.fit(x, y).predict_proba(x)[:, 1]
    rank = np.empty(len(y))
    for one in np.unique(group):
        rows = np.flatnonzero(group == one)
        rank[rows[np.argsort(-chances[rows])]] = np.arange(len(rows)) / len(rows)
    counts = (
        np.ones(len(y)) if weights is None else np.where(y == 1, 1 / y.mean(), 1 / (1 - y.mean()))
    )
    shares = [np.average((rank < t) == y, weights=counts) for t in np.linspace(0, 1, 101)]
    model.fit(x, y, constraints=[GroupRates(group, limit)])
    assert model.model_.constraint_report().violations[0] <= 1e-9
    right = np.average(model.predict(x) == y, weights=counts)
    constant = max(shares[0], shares[-1])
    assert right >= max(shares) - 0.15 * (max(shares) - constant)


def test_likeliest_decisions_are_those_of_the_best_shares_of_each_group() -> None:
    """Of all pairs of shares, each of the likeliest of a group: no other decisions can be best."""
    u, group = 2 * normal(40, 1, seed=3).double(), np.arange(40) % 4 == 0
    weights = torch.linspace(1, 2, 40).double()
    held = HeldRates((GroupRates(group, 0.1),), np.arange(40) % 2, 2)
    found = likeliest(held, u, weights)
    chances, gain = torch.sigmoid(u[:, 0]).numpy(), np.full((11, 31), -np.inf)
    worth = weights.numpy() * (2 * chances - 1)
    best = [np.append(0, np.cumsum(np.sort(worth[rows])[::-1])) for rows in (group, ~group)]
    shares = np.linspace(0, 1, 11)[:, None] - np.linspace(0, 1, 31)
    inside = (held.lower[0] <= shares) & (shares <= held.upper[0])
    gain[inside] = (best[0][:, None] + best[1])[inside]
    assert np.allclose(found.sum(1), 1) and found.min() >= -1e-12
    apart = found[group, 1].mean() - found[~group, 1].mean()
    assert held.lower[0] - 1e-9 <= apart <= held.upper[0] + 1e-9
    assert ((found > 1e-9) & (found < 1 - 1e-9)).any(1).sum() <= 1  # one limit splits one row
    assert gain.max() - 1e-9 <= worth @ found[:, 1] <= gain.max() + 2 * abs(worth).max()


def test_a_share_of_all_rows_needs_no_directions() -> None:
    with warnings.catch_warnings(action="error"):
        model = LiftedClassifier((10,), random_state=0).fit(X, Y, constraints=[Rate(at_most=0.3)])
    assert 0.2 < model.predict(X).mean() <= 0.3


def test_rates_that_no_network_meets_are_told() -> None:
    x = np.repeat([[0.0], [1.0], [2.0]], 10, axis=0)  # shares are 0, 1/3, 2/3 or 1
    model = LiftedClassifier((5,), max_iter=2, random_state=0)
    asked = [Rate(at_least=0.4, at_most=0.6)]
    warned("do not meet Rate", model.fit, x, np.tile([0, 1], 15), constraints=asked)
    (missed,) = model.model_.constraint_report().violations
    assert missed == pytest.approx(0.4 - 1 / 3) or missed == pytest.approx(0.4)
