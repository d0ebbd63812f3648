"""Next-note prediction by recurrent networks (On Recurrent Neural Networks, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from liftednet.activations import Tanh
from liftednet.data import PianoRolls, Sequences, jsb_chorales, muse_data
from liftednet.export_recurrent import initialize_rnn_
from liftednet.losses import BinaryCrossEntropy
from liftednet.models import LiftedRNN
from liftednet.models.networks import EchoStateNetwork, PlainRNN, SequenceModel
from liftednet.models.recurrent_minibatch import SequenceMinibatch
from liftednet.reproduce.runs import Outcome

NOTES, WINDOW, BATCH, CLIP = 88, 100, 32, 1.0
LIFTED_WINDOWS, LIFTED_BATCH = 500, 25

ROLLS: dict[str, Callable[[], PianoRolls]] = {"MuseData": muse_data, "JSB": jsb_chorales}


@dataclass(frozen=True)
class MusicRun:
    """A network trained on songs.

    Attributes:
        rolls: a key of `ROLLS`.
        network: a key of `NETWORKS`.
        hidden: units.
        rate: of Adam, falling linearly to 0.
        epochs: passes over the training songs.
        seed: of the start and the order of the windows.
        songs: training songs to use, or None for all.
        lifted: whether the network starts from lifted weights.
    """

    rolls: str
    network: str
    hidden: int
    rate: float
    epochs: int
    seed: int
    songs: int | None = None
    lifted: bool = False


@dataclass(frozen=True)
class EchoRun:
    """An echo-state network fitted to songs.

    Attributes:
        rolls: a key of `ROLLS`.
        units: of the reservoir.
        rho: weight of the readout's squared Frobenius penalty.
        seed: of the reservoir.
    """

    rolls: str
    units: int
    rho: float
    seed: int


@dataclass(frozen=True)
class Loss:
    """Negative log-likelihood in nats.

    Attributes:
        per_step: mean over all steps of all songs.
        per_song: mean over songs of the mean over their steps (eq. 4.2).
    """

    per_step: float
    per_song: float


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "tanh": lambda hidden: PlainRNN(NOTES, hidden),
    "GRU": lambda hidden: nn.GRU(NOTES, hidden, batch_first=True),
    "LSTM": lambda hidden: nn.LSTM(NOTES, hidden, batch_first=True),
}


def train_music(run: MusicRun) -> Outcome:
    """Train with Adam and clipping; keep the weights of the best epoch on the validation songs.

    Returns:
        Mean training loss of every epoch, validation losses (per step, per song) of every epoch,
        and the test losses of the kept weights.
    """
    rolls = ROLLS[run.rolls]()
    torch.manual_seed(run.seed)
    model = SequenceModel(NETWORKS[run.network](run.hidden), run.hidden, NOTES)
    windows = _some_songs(rolls.train, run.songs).windows(WINDOW)
    _start_(model, run, windows)
    steps = run.epochs * (-(-len(windows) // BATCH))
    optimizer = torch.optim.Adam(model.parameters(), run.rate)
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


def fit_echo(run: EchoRun) -> Outcome:
    """Fit the readout of an echo-state network; return validation and test losses."""
    rolls = ROLLS[run.rolls]()
    network = EchoStateNetwork(
        NOTES, run.units, NOTES, rho=run.rho, loss=BinaryCrossEntropy(), seed=run.seed
    )
    songs = rolls.train.batch(torch.arange(len(rolls.train)))
    network.fit(songs.x, songs.y, songs.lengths)
    found = {}
    for name, part in (("valid", rolls.valid), ("test", rolls.test)):
        loss = losses_of(network.outputs, part)
        found[name] = [loss.per_step, loss.per_song]
    return found


def evaluate(model: SequenceModel, songs: Sequences) -> Loss:
    """Return the loss of whole songs, the state carried from their first step to their last."""
    return losses_of(lambda x: model(x)[0], songs)


@torch.no_grad()
def losses_of(outputs: Callable[[Tensor], Tensor], songs: Sequences) -> Loss:
    """Return the loss of whole songs.

    Args:
        outputs: returns logits (batch, time, notes) for inputs (batch, time, notes).
        songs: with a target at every step.
    """
    total, means = 0.0, []
    for indices in _by_length(songs, 16):
        batch = songs.batch(indices)
        losses = _losses(outputs(batch.x), batch.y).masked_fill(~batch.mask, 0).double().sum(1)
        total += float(losses.sum())
        means += (losses / batch.lengths).tolist()
    return Loss(total / int(songs.lengths.sum()), sum(means) / len(means))


def _start_(model: SequenceModel, run: MusicRun, windows: Sequences) -> None:
    if run.lifted:
        _lift_(model, run, windows)
        return
    with torch.no_grad():  # from the notes' mean rates instead of from one half
        rate = windows.rows.double().mean(0).clamp(1e-4, 1)
        model.readout.bias.copy_(torch.logit(rate))


def _lift_(model: SequenceModel, run: MusicRun, windows: Sequences) -> None:
    """Fit a lifted network to some windows in one pass, and write its weights into the model."""
    source = torch.Generator().manual_seed(run.seed)
    batch = windows.batch(torch.randperm(len(windows), generator=source)[:LIFTED_WINDOWS])
    lifted = LiftedRNN(
        NOTES,
        run.hidden,
        NOTES,
        activation=Tanh(),
        loss=BinaryCrossEntropy(),
        divergence="tight",
        start="gaussian",
        method=SequenceMinibatch(1, LIFTED_BATCH),
        seed=run.seed,
    ).fit(batch.x.double(), batch.y.double(), lengths=batch.lengths)
    assert isinstance(model.recurrence, nn.RNN)
    initialize_rnn_(model.recurrence, model.readout, lifted)


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


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of every step, summed over the notes: (batch, time)."""
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(2)


def _by_length(songs: Sequences, size: int) -> Iterator[Tensor]:
    """Batches of songs of similar length need little padding."""
    yield from songs.lengths.argsort().split(size)


def _some_songs(songs: Sequences, count: int | None) -> Sequences:
    starts, lengths = songs.starts[:count], songs.lengths[:count]
    return Sequences(songs.rows, songs.targets, starts, lengths, songs.per_step)
