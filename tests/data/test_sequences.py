"""Batches of sequences against torch's own padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from liftednet.data import Sequences
from liftednet.errors import DataError


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


def test_one_pass_shows_every_sequence_once_in_a_seeded_order() -> None:
    x = torch.arange(10.0).reshape(10, 1, 1).expand(10, 4, 1)
    sequences = Sequences.from_padded(x, torch.arange(10))
    passes = [
        torch.cat([b.y for b in sequences.batches(3, torch.Generator().manual_seed(seed))])
        for seed in (1, 1, 2)
    ]
    assert torch.equal(passes[0].sort().values, torch.arange(10))
    assert torch.equal(passes[0], passes[1]) and not torch.equal(passes[0], passes[2])
    endless = sequences.endless(4, torch.Generator().manual_seed(0))
    assert [len(next(endless).y) for _ in range(4)] == [4, 4, 2, 4]


def test_bad_sequences_are_refused() -> None:
    x = torch.zeros(3, 5, 2)
    with pytest.raises(DataError, match="sequences, time, features"):
        Sequences.from_padded(x[0], torch.zeros(3))
    with pytest.raises(DataError, match="between 1 and the 5"):
        Sequences.from_padded(x, torch.zeros(3), torch.tensor([1, 2, 6]))
    with pytest.raises(DataError, match="same number of rows"):
        Sequences.from_padded(x, torch.zeros(4))
    with pytest.raises(DataError, match="add up"):
        Sequences.next_step(torch.zeros(5, 2), torch.tensor([3, 3]))
    with pytest.raises(DataError, match="target at every step"):
        Sequences.from_padded(x, torch.zeros(3, dtype=torch.int64)).windows(2)
    with pytest.raises(DataError, match="size"):
        Sequences.from_padded(x, torch.zeros(3)).batches(0, torch.Generator())
