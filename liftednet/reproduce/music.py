"""MuseData: next-note prediction by a tanh network (On Recurrent Neural Networks, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from liftednet.data import PianoRolls, Sequences, muse_data
from liftednet.models.networks import SequenceModel
from liftednet.reproduce.curves import Curve, Panel, draw
from liftednet.reproduce.runs import Outcome, Record, run_all
from liftednet.reproduce.tables import Table

NOTES, WINDOW, BATCH, CLIP = 88, 100, 32, 3.0
RATE = 2e-3
# Train and validation loss as printed (table 4.1).
PRINTED = {50: (6.44, 6.20), 100: (6.53, 6.10), 200: (6.58, 6.03), 300: (6.82, 6.21)}


@dataclass(frozen=True)
class MusicRun:
    """A network trained on MuseData."""

    hidden: int
    epochs: int
    seed: int
    songs: int | None = None


@dataclass(frozen=True)
class Loss:
    """Negative log-likelihood in nats.

    Attributes:
        per_step: mean over all steps of all songs.
        per_song: mean over songs of the mean over their steps (eq. 4.2).
    """

    per_step: float
    per_song: float


def music_report(
    folder: Path, store: Path, sizes: Sequence[int], epochs: int, songs: int | None
) -> tuple[Table, Path]:
    """Run what is missing; return the table and the picture of the curves.

    Args:
        folder: of the picture.
        store: the file of finished runs.
        sizes: numbers of hidden units.
        epochs: passes over the training songs.
        songs: training songs to use, or None for all.
    """
    rolls = muse_data()
    settings = [MusicRun(hidden, epochs, 0, songs) for hidden in sizes]
    records = run_all(store, settings, lambda run: train_music(run, rolls), "MuseData")
    return _table(records), _picture(folder / "musedata.png", records)


def train_music(run: MusicRun, rolls: PianoRolls) -> Outcome:
    """Train with Adam and clipping; keep the weights of the best epoch on the validation songs."""
    torch.manual_seed(run.seed)
    recurrence = nn.RNN(NOTES, run.hidden, batch_first=True)
    model = SequenceModel(recurrence, run.hidden, NOTES)
    with torch.no_grad():  # start from the notes' mean rates instead of from one half
        rate = rolls.train.rows.double().mean(0).clamp(1e-4, 1)
        model.readout.bias.copy_(torch.logit(rate))
    windows = _some_songs(rolls.train, run.songs).windows(WINDOW)
    steps = run.epochs * (-(-len(windows) // BATCH))
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: max(1e-3, 1 - i / steps))
    source = torch.Generator().manual_seed(run.seed)
    train_losses, valid_losses, best = [], [], (float("inf"), model.state_dict())
    for _ in range(run.epochs):
        train_losses.append(_one_epoch(model, windows, optimizer, schedule, source))
        valid = evaluate(model, rolls.valid)
        valid_losses.append([valid.per_step, valid.per_song])
        if valid.per_song < best[0]:
            best = valid.per_song, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best[1])
    test = evaluate(model, rolls.test)
    return {
        "train": train_losses,
        "valid": valid_losses,
        "test": [test.per_step, test.per_song],
    }


def _one_epoch(
    model: SequenceModel,
    windows: Sequences,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    source: torch.Generator,
) -> float:
    """Return the mean training loss per step."""
    total, count = 0.0, 0
    for batch in windows.batches(BATCH, source):
        steps = int(batch.lengths.sum())
        optimizer.zero_grad()
        loss = _losses(model(batch.x)[0], batch.y)[batch.mask].sum() / steps
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        total, count = total + float(loss.detach()) * steps, count + steps
    return total / count


@torch.no_grad()
def evaluate(model: SequenceModel, songs: Sequences) -> Loss:
    """Return the loss of whole songs, the state carried from their first step to their last."""
    total, means = 0.0, []
    for indices in _by_length(songs, 16):
        batch = songs.batch(indices)
        losses = _losses(model(batch.x)[0], batch.y).masked_fill(~batch.mask, 0).double().sum(1)
        total += float(losses.sum())
        means += (losses / batch.lengths).tolist()
    return Loss(total / int(songs.lengths.sum()), sum(means) / len(means))


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of every step, summed over the notes: (batch, time)."""
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(2)


def _by_length(songs: Sequences, size: int) -> Iterator[Tensor]:
    """Batches of songs of similar length need little padding."""
    yield from songs.lengths.argsort().split(size)


def _some_songs(songs: Sequences, count: int | None) -> Sequences:
    starts, lengths = songs.starts[:count], songs.lengths[:count]
    return Sequences(songs.rows, songs.targets, starts, lengths, songs.per_step)


def _table(records: Sequence[Record[MusicRun]]) -> Table:
    rows = []
    for record in records:
        valid = record.outcome["valid"]
        best = min(range(len(valid)), key=lambda epoch: valid[epoch][1])
        printed = PRINTED[record.settings.hidden]
        rows.append(
            [
                str(record.settings.hidden),
                f"{printed[0]:.2f}",
                f"{record.outcome['train'][best]:.2f}",
                f"{printed[1]:.2f}",
                f"{valid[best][1]:.2f}",
                f"{valid[best][0]:.2f}",
                f"{record.outcome['test'][1]:.2f}",
                f"{record.outcome['test'][0]:.2f}",
                str(best + 1),
                f"{record.seconds:.0f}",
            ]
        )
    columns = (
        "units",
        "paper train",
        "train per step",
        "paper validation",
        "validation per song",
        "validation per step",
        "test per song",
        "test per step",
        "best epoch",
        "seconds",
    )
    notes = (
        "Negative log-likelihood in nats, summed over the 88 notes. Per step: mean over all steps; "
        "per song: mean over songs of the mean over their steps, the average of eq. 4.2.",
        f"Adam, rate {RATE:g} falling linearly to 0, windows of {WINDOW} steps, batches of "
        f"{BATCH}, norm clipped at {CLIP:g}, one seed, {records[0].settings.epochs} epochs; the "
        "epoch is the best on the validation songs, and the test songs are read once.",
        "The paper's plain gradient descent (rate 0.001) is not repeated: its number of epochs is "
        "not printed.",
    )
    return Table("MuseData", columns, rows, notes)


def _picture(path: Path, records: Sequence[Record[MusicRun]]) -> Path:
    curves = []
    for record in records:
        hidden, losses = record.settings.hidden, record.outcome
        epochs = list(range(1, len(losses["train"]) + 1))
        curves.append(Curve(f"{hidden} train", epochs, losses["train"]))
        curves.append(Curve(f"{hidden} validation", epochs, [v[0] for v in losses["valid"]]))
    panel = Panel("MuseData", "epoch", "negative log-likelihood per step (nats)", curves)
    return draw(path, [panel])
