"""What papers and benchmarks are run on: generated tasks against their rules, and batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from benchmarks import data
from benchmarks.data import Sequences
from liftednet.errors import DataError

SEEDS = st.integers(0, 10_000)


def real(load):
    """Return a real data set, or skip the test where it is not on this machine."""
    try:
        return load()
    except DataError as error:
        if "was not found" in str(error):
            pytest.skip(str(error))
        raise


def test_recorded_sets_have_their_published_counts() -> None:
    windows = real(data.har2)
    assert windows.y_train.bincount().tolist() == [3586, 3766]
    assert windows.y_test.bincount().tolist() == [1448, 1499]
    assert torch.allclose(windows.x_train.std((0, 1)), torch.ones(9), atol=1e-4)
    noise = data.har2(noise_variance=2.0).x_test - windows.x_test
    assert abs(float(noise.var()) - 2) < 0.01 and abs(float(noise.mean())) < 0.01
    assert len(data.har_subjects().unique()) == 21
    rolls = real(data.jsb_chorales)
    parts = (rolls.train, rolls.valid, rolls.test)
    assert [len(part) for part in parts] == [229, 76, 77]
    assert [int(part.lengths.sum()) + len(part) for part in parts] == [13_807, 4_602, 4_725]


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


@given(lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_next_step_batches_equal_padding_by_hand(lengths: list[int], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    songs = [torch.randint(2, (n, 4), generator=source) for n in lengths]
    sequences = Sequences.next_step(torch.cat(songs), torch.tensor(lengths))
    batch = sequences.batch(torch.arange(len(songs)))
    assert torch.equal(batch.x, pad_sequence([s[:-1].float() for s in songs], batch_first=True))
    assert torch.equal(batch.y, pad_sequence([s[1:].float() for s in songs], batch_first=True))
    assert torch.equal(batch.mask.sum(1), batch.lengths)


@given(steps=st.integers(1, 7))
@settings(max_examples=7, deadline=None)
def test_windows_cover_every_step_once(steps: int) -> None:
    lengths = torch.tensor([9, 2, 5])
    rows = torch.arange(16.0)[:, None]
    whole = Sequences.next_step(rows, lengths)
    cut = whole.windows(steps)
    assert int(cut.lengths.max()) <= steps
    batch = cut.batch(torch.arange(len(cut)))
    wanted = whole.batch(torch.arange(3))
    assert torch.equal(batch.x[batch.mask], wanted.x[wanted.mask])
    assert torch.equal(batch.y[batch.mask], wanted.y[wanted.mask])


def test_padded_labels_are_ignored_by_cross_entropy() -> None:
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(3, 5, dtype=torch.int64)
    batch = Sequences.from_padded(x, y, torch.tensor([5, 3, 1])).batch(torch.arange(3))
    loss = torch.nn.functional.cross_entropy(batch.x.flatten(0, 1), batch.y.flatten())
    real = batch.x[batch.mask]
    wanted = torch.nn.functional.cross_entropy(real, torch.zeros(9, dtype=torch.int64))
    assert torch.isclose(loss, wanted)
    assert not batch.x[~batch.mask].any()
