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
