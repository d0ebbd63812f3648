"""Generated tasks against definitions written out in plain Python, and the papers' figures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liftednet import data
from liftednet.errors import DataError

SEEDS = st.integers(0, 10_000)


@given(seed=SEEDS, lag=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_echo_repeats_the_input_after_the_lag(seed: int, lag: int) -> None:
    x, y = data.echo(7, 12, lag, 4, seed)
    assert torch.equal(x.sum(2), torch.ones(7, 12))
    assert torch.equal(y[:, lag:], x.argmax(2)[:, : 12 - lag])


def test_echo_best_score_is_the_printed_one() -> None:
    """Guessing the unknowable first labels gives the printed 0.91, 0.82, 0.73, 0.64."""
    for lag, printed in ((1, 0.91), (2, 0.82), (3, 0.73), (4, 0.64)):
        x, y = data.echo(4000, 10, lag, 10, seed=lag)
        guess = torch.roll(x.argmax(2), lag, 1)
        assert abs(float((guess == y).double().mean()) - printed) < 0.01


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_running_sum_labels_the_sign_of_the_sum(seed: int) -> None:
    x, y = data.running_sum(5, 30, seed)
    for numbers, labels in zip(x.squeeze(2).tolist(), y.tolist(), strict=True):
        total = 0.0
        for number, label in zip(numbers, labels, strict=True):
            total += number
            assert label == (0 if total > 0 else 1)


@given(seed=SEEDS, dependency=st.integers(1, 12), share=st.floats(0.02, 0.98))
@settings(max_examples=30, deadline=None)
def test_timer_follows_its_rule_step_by_step(seed: int, dependency: int, share: float) -> None:
    x, y = data.timer(4, 25, dependency, share, seed)
    for sequence, labels in zip(x.tolist(), y.tolist(), strict=True):
        running = 0.0
        for (value, on, off), label in zip(sequence, labels, strict=True):
            running = max(running - 1, 0)
            running = max(running, value) if on else running
            assert on + off == 1 and 1 <= value <= dependency
            assert label == (0 if running > 0 else 1)


def test_timer_shares_are_balanced_and_near_the_printed_one() -> None:
    """The paper prints 0.08 for dependency 20 at 60 steps."""
    assert abs(data.balanced_on_fraction(60, 20) - 0.08) < 0.01
    for dependency in (5, 40):
        _, y = data.timer(4000, 60, dependency, seed=dependency)
        assert abs(float(y.double().mean()) - 0.5) < 0.01


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_arjovsky_adding_marks_one_number_in_each_half(seed: int) -> None:
    x, y = data.adding(6, 21, "arjovsky", seed)
    assert torch.equal(x[:, :10, 1].sum(1), torch.ones(6))
    assert torch.equal(x[:, 10:, 1].sum(1), torch.ones(6))
    assert torch.allclose((x[..., 0] * x[..., 1]).sum(1, keepdim=True), y)


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_hochreiter_tasks_hold_their_places_at_every_length(seed: int) -> None:
    lengths = data.hochreiter_lengths(8, 40, seed)
    assert bool(((lengths >= 40) & (lengths <= 44)).all())
    x, y = data.adding(8, 44, "hochreiter", seed, lengths)
    product_x, product = data.multiplication(8, 44, seed, lengths)
    bits_x, differ = data.xor(8, 44, seed, lengths)
    for row, length in enumerate(lengths.tolist()):
        for task in (x, product_x, bits_x):
            first, second = task[row, :, 1].nonzero().squeeze(1).tolist()
            assert first < length // 10 and 4 * length // 10 <= second < 5 * length // 10
            assert not task[row, length:].any()
        marked = [task[row, task[row, :, 1] > 0, 0] for task in (x, product_x, bits_x)]
        assert torch.isclose(marked[0].mean(), y[row, 0], atol=1e-6)
        assert torch.isclose(marked[1].prod(), product[row, 0], atol=1e-6)
        assert int(marked[2].sum()) % 2 == int(differ[row])


@pytest.mark.parametrize("symbols", [2, 3])
def test_temporal_order_label_reads_the_special_symbols(symbols: int) -> None:
    lengths = data.hochreiter_lengths(50, 20, 3)
    x, y = data.temporal_order(50, 22, symbols, 3, lengths)
    for row in range(50):
        shown = x[row, : int(lengths[row])].argmax(1)
        special = (shown[shown >= 4] - 4).tolist()
        assert len(special) == symbols
        assert int("".join(map(str, special)), 2) == int(y[row])
        assert not x[row, int(lengths[row]) :].any()


def test_same_seed_same_data_and_other_seed_other_data() -> None:
    for task in (data.adding, data.multiplication, data.xor, data.temporal_order):
        x, y = task(9, 30, seed=1)
        again_x, again_y = task(9, 30, seed=1)
        assert torch.equal(x, again_x) and torch.equal(y, again_y)
        assert not torch.equal(x, task(9, 30, seed=2)[0])


def test_correct_is_the_success_rule() -> None:
    target = torch.tensor([[0.5], [0.5], [0.5]])
    prediction = torch.tensor([[0.53], [0.55], [0.47]])
    assert data.correct(prediction, target).squeeze(1).tolist() == [True, False, True]
    labels = torch.tensor([1, 0])
    assert data.correct(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), labels).tolist() == [True, False]
    with pytest.raises(DataError, match=r"\(3, 1\)"):
        data.correct(torch.zeros(3), target)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.echo(0, 10), "samples"),
        (lambda: data.echo(5, 10, lag=10), "lag must be below"),
        (lambda: data.running_sum(5, 0), "length"),
        (lambda: data.timer(5, 10, 3, 1.5), "on_fraction"),
        (lambda: data.adding(5, 20, "hochreiterr"), "variant"),
        (lambda: data.adding(5, 9), "at least 10"),
        (lambda: data.xor(5, 20, lengths=torch.full((5,), 21)), "between 1 and the 20"),
        (lambda: data.xor(5, 20, lengths=torch.full((4,), 20)), "one per sequence"),
        (lambda: data.temporal_order(5, 20, symbols=4), "2 or 3"),
        (lambda: data.running_sum(5, 5, seed=1.5), "seed"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(call: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()  # type: ignore[operator]
