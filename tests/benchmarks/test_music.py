"""Songs side by side: no window is lost, and states go with their songs."""

from __future__ import annotations

import pytest
import torch

from benchmarks import data
from benchmarks.papers.networks import SequenceModel
from benchmarks.papers.temporal import music
from benchmarks.papers.temporal.music import Lanes

LENGTHS = (9, 3, 1, 4, 12, 7, 3, 5)


def songs() -> data.Sequences:
    """Songs of the lengths above, each step with a row of its own."""
    lengths = torch.tensor(LENGTHS) + 1  # the last step of a song is a target only
    rows = torch.rand(int(lengths.sum()), music.NOTES, generator=torch.Generator().manual_seed(0))
    return data.Sequences.next_step((rows < 0.1).float(), lengths)


def lanes_of(count: int, steps: int, seed: int = 0) -> Lanes:
    return Lanes(songs(), count, steps, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("network", music.NETWORKS)
def test_carried_states_are_those_of_the_whole_song(network: str) -> None:
    torch.manual_seed(0)
    model = SequenceModel(music.NETWORKS[network](5), 5, music.NOTES)
    lanes, state = lanes_of(2, 4), None
    with torch.no_grad():
        for _ in range(12):
            drawn, begins = lanes.draw()
            batch = lanes.windows.batch(drawn)
            outputs, state = model(batch.x, music._carried(state, begins))
            for lane, window in enumerate(drawn):
                song = lanes.owners[window]
                whole = model(songs().batch(song[None]).x)[0][0]
                first = int(lanes.windows.starts[window] - songs().starts[song])
                length = int(batch.lengths[lane])
                torch.testing.assert_close(
                    outputs[lane, :length], whole[first : first + length], atol=1e-6, rtol=1e-5
                )


def test_training_brings_the_loss_down_and_looks_at_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolls = data.PianoRolls(songs(), songs(), songs())
    monkeypatch.setattr(music, "ROLLS", {"MuseData": lambda: rolls})
    run = music.MusicRun("MuseData", "tanh", 8, 0.02, 0.1, 31, 0)
    outcome = music.train_music(run)
    assert outcome == music.train_music(run)
    assert outcome["epochs"] == [*range(2, 31, 2), 31]
    assert outcome["valid"][-1][1] < outcome["valid"][0][1] - 1
