"""Next-note prediction by recurrent networks (On Recurrent Neural Networks, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.data import PianoRolls, Sequences, jsb_chorales, muse_data
from benchmarks.harness.report import Table
from benchmarks.harness.runs import Outcome, Record, matching, run_all
from benchmarks.papers.networks import EchoStateNetwork, PlainRNN, SequenceModel
from liftednet.errors import DataError
from liftednet.losses import BinaryCrossEntropy

NOTES, WINDOW, LANES, CLIP = 88, 100, 16, 1.0
CHECKS = 30  # looks at the validation songs, at most

RATE, SEED = 1.5e-2, 0
JSB_RATES, RHOS = (5e-3, 1e-2, 2e-2), (1.0, 10.0, 100.0)
JSB_HIDDEN, RESERVOIR = 100, 300
# Train and validation loss as printed (table 4.1), by hidden units.
PRINTED = {50: (6.44, 6.20), 100: (6.53, 6.10), 200: (6.58, 6.03), 300: (6.82, 6.21)}

State = Any

ROLLS: dict[str, Callable[[], PianoRolls]] = {"MuseData": muse_data, "JSB": jsb_chorales}


@dataclass(frozen=True)
class MusicRun:
    """A network trained on songs.

    Attributes:
        rolls: a key of `ROLLS`.
        network: a key of `NETWORKS`.
        hidden: units.
        rate: of the optimizer in `OPTIMIZERS`, falling linearly to 0.
        decay: of the weights, for a rate of 1.
        epochs: passes over the training songs.
        seed: of the start and the order of the windows.
        songs: training songs to use, or None for all.
    """

    rolls: str
    network: str
    hidden: int
    rate: float
    decay: float
    epochs: int
    seed: int
    songs: int | None = None


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
    """Train with states carried over windows; keep the best weights on the validation songs.

    Returns:
        The epochs at which the validation songs were looked at, the mean training loss per step
        of each of them, the validation losses (per step, per song) after each, and the test
        losses of the kept weights.

    Raises:
        DataError: torch is older than 2.9.
    """
    rolls = ROLLS[run.rolls]()
    torch.manual_seed(run.seed)
    model = SequenceModel(NETWORKS[run.network](run.hidden), run.hidden, NOTES)
    songs = _some_songs(rolls.train, run.songs)
    _start_(model, run, songs)
    training = _Training(model, songs, run)
    epochs, train, valid = [], [], []
    best, every = (float("inf"), model.state_dict()), -(-run.epochs // CHECKS)
    for epoch in range(1, run.epochs + 1):
        loss = training.epoch()
        if epoch % every and epoch < run.epochs:
            continue
        found = evaluate(model, rolls.valid)
        epochs.append(epoch)
        train.append(loss)
        valid.append([found.per_step, found.per_song])
        if found.per_song < best[0]:
            best = found.per_song, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best[1])
    test = evaluate(model, rolls.test)
    return {
        "epochs": epochs,
        "train": train,
        "valid": valid,
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


def _start_(model: SequenceModel, run: MusicRun, songs: Sequences) -> None:
    with torch.no_grad():  # from the notes' mean rates instead of from one half
        rate = songs.rows.double().mean(0).clamp(1e-4, 1)
        model.readout.bias.copy_(torch.logit(rate))
        if isinstance(model.recurrence, PlainRNN):
            source = torch.Generator().manual_seed(run.seed)
            model.recurrence.get_parameter("weight_hh_l0").copy_(
                torch.nn.init.orthogonal_(torch.empty(run.hidden, run.hidden), generator=source)
            )


def _muon(model: SequenceModel, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices, which decay, and Adam for the vectors."""
    if not hasattr(torch.optim, "Muon"):
        raise DataError(f"Training on music needs Muon, of torch 2.9; this is {torch.__version__}.")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, rate, weight_decay=decay, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.Adam(vectors, rate / 3)]


def _adam(model: SequenceModel, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)]


# On the chorales, which are a twentieth of MuseData, Muon fits the training songs alone.
OPTIMIZERS = {"MuseData": _muon, "JSB": _adam}


class Lanes:
    """Reads several songs at once, window by window, without end.

    A lane whose song is over takes the next one, so that no lane waits for another; the songs
    come in random order, all of them before any comes again.

    Attributes:
        windows: of all songs.
        owners: (windows,) int64 the song of each window.

    Args:
        songs: with a target at every step.
        count: lanes.
        steps: of a window; the last of a song may be shorter.
        source: of the orders.
    """

    def __init__(self, songs: Sequences, count: int, steps: int, source: torch.Generator) -> None:
        """Begin before the first window."""
        self.windows = songs.windows(steps)
        pieces = (songs.lengths + steps - 1) // steps
        self.owners = torch.repeat_interleave(torch.arange(len(songs)), pieces)
        self._ends = pieces.cumsum(0)
        self._starts = self._ends - pieces
        self._songs = self._endless(source)
        self._next, self._end = torch.zeros(2, count, dtype=torch.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return the next window of every lane, and the lanes in which a song begins.

        Returns:
            (lanes,) int64 numbers of windows, and (lanes,) booleans.
        """
        begins = self._next >= self._end
        for lane in begins.nonzero().flatten().tolist():
            song = next(self._songs)
            self._next[lane], self._end[lane] = self._starts[song], self._ends[song]
        drawn = self._next.clone()
        self._next += 1
        return drawn, begins

    def _endless(self, source: torch.Generator) -> Iterator[int]:
        while True:
            yield from torch.randperm(len(self._ends), generator=source).tolist()


class _Training:
    """Truncated backpropagation over songs side by side, the states carried along each."""

    def __init__(self, model: SequenceModel, songs: Sequences, run: MusicRun) -> None:
        self._model = model
        self._lanes = Lanes(songs, LANES, WINDOW, torch.Generator().manual_seed(run.seed))
        self._weights = _window_weights(songs, self._lanes)
        self._steps = max(1, len(self._lanes.windows) // LANES)
        self._optimizers = OPTIMIZERS[run.rolls](model, run.rate, run.decay)
        total = run.epochs * self._steps
        self._schedules = [
            torch.optim.lr_scheduler.LambdaLR(o, lambda i: max(1e-3, 1 - i / total))
            for o in self._optimizers
        ]
        self._state: State = None

    def epoch(self) -> float:
        """Read as many windows as there are; return the mean training loss per step."""
        sums = [self._step() for _ in range(self._steps)]
        return sum(loss for loss, _ in sums) / sum(steps for _, steps in sums)

    def _step(self) -> tuple[float, int]:
        """Return the sum of the losses of a batch and its number of steps."""
        drawn, begins = self._lanes.draw()
        batch = self._lanes.windows.batch(drawn)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        outputs, self._state = self._model(batch.x, _carried(self._state, begins))
        losses = _losses(outputs, batch.y).masked_fill(~batch.mask, 0).sum(1)
        steps = int(batch.lengths.sum())
        (losses @ self._weights[drawn] / steps).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        for optimizer, schedule in zip(self._optimizers, self._schedules, strict=True):
            optimizer.step()
            schedule.step()
        return float(losses.detach().sum()), steps


def _window_weights(songs: Sequences, lanes: Lanes) -> Tensor:
    """Return the weight of each window: one over the root of its song's length, 1 on average.

    Steps of equal weight would follow the few long songs, and songs of equal weight (eq. 4.2) the
    many short ones; the root lies between.
    """
    weights = songs.lengths[lanes.owners].double().rsqrt()
    lengths = lanes.windows.lengths
    return (weights * (lengths.sum() / (weights @ lengths.double()))).float()


def _carried(state: State, begins: Tensor) -> State:
    """Return the state cut from its graph, and zero in the lanes in which a song begins."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(_carried(part, begins) for part in state)
    return state.detach().masked_fill(begins[None, :, None], 0)


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of every step, summed over the notes: (batch, time)."""
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(2)


def _by_length(songs: Sequences, size: int) -> Iterator[Tensor]:
    """Batches of songs of similar length need little padding."""
    yield from songs.lengths.argsort().split(size)


def _some_songs(songs: Sequences, count: int | None) -> Sequences:
    starts, lengths = songs.starts[:count], songs.lengths[:count]
    return Sequences(songs.rows, songs.targets, starts, lengths, songs.per_step)


_MEASURES = (
    "Negative log-likelihood in nats, summed over the 88 notes. Per step: mean over all steps; "
    "per song: mean over songs of the mean over their steps, the average of eq. 4.2.",
    f"{LANES} songs side by side in windows of {WINDOW} steps, the states carried along each; "
    f"rates fall linearly to 0; norm clipped at {CLIP:g}; a step weighs one over the root of its "
    "song's length. The epoch is the best on the validation songs, and the test songs decide "
    "nothing.",
)


@dataclass(frozen=True)
class MusicExtent:
    """How much is run.

    Attributes:
        muse: hidden units, decay of the weights and epochs of each row of MuseData.
        jsb_epochs: of the chorales.
        songs: training songs to use, or None for all.
    """

    muse: Sequence[tuple[int, float, int]]
    jsb_epochs: int
    songs: int | None = None


def muse_table(store: Path, extent: MusicExtent) -> Table:
    """Run what is missing on MuseData, and return the table.

    Args:
        store: the file of finished runs.
        extent: how much is run.
    """
    settings = [
        MusicRun("MuseData", "tanh", hidden, RATE, decay, epochs, SEED, extent.songs)
        for hidden, decay, epochs in extent.muse
    ]
    return _muse_table(run_all(store, settings, train_music, "MuseData"))


def jsb_table(store: Path, extent: MusicExtent) -> Table:
    """Run what is missing on the chorales of Bach: `NETWORKS` and an echo-state network.

    Args:
        store: the file of finished runs.
        extent: how much is run.
    """
    settings = [
        MusicRun("JSB", network, JSB_HIDDEN, rate, 0.0, extent.jsb_epochs, SEED)
        for network in NETWORKS
        for rate in JSB_RATES
    ]
    records = run_all(store, settings, train_music, "JSB chorales")
    echo = [EchoRun("JSB", RESERVOIR, rho, SEED) for rho in RHOS]
    fitted = run_all(store, echo, fit_echo, "echo-state networks")
    return _jsb_table(records, fitted, extent.jsb_epochs)


def _best(outcome: Outcome) -> int:
    """Return the position of the best look at the validation songs."""
    valid = outcome["valid"]
    return min(range(len(valid)), key=lambda look: valid[look][1])


def _valid(outcome: Outcome) -> Sequence[float]:
    """Return the best validation losses, per step and per song."""
    losses: Sequence[float] = outcome["valid"][_best(outcome)]
    return losses


def _name(run: MusicRun) -> str:
    return f"{run.network}, {run.hidden} units"


def _muse_table(records: Sequence[Record[MusicRun]]) -> Table:
    rows = [_muse_row(record) for record in records]
    columns = (
        "network",
        "decay",
        "epochs",
        "paper train, taken as per step",
        "train per step, best epoch",
        "last epoch",
        "paper validation, taken as per song",
        "validation per song, best epoch",
        "last epoch",
        "validation per step",
        "test per song",
        "test per step",
        "best epoch",
        "seconds",
    )
    notes = (
        *_MEASURES,
        f"Muon at {RATE:g} for the matrices, which decay, and Adam at a third of it for the "
        "vectors. One seed; the decays and numbers of epochs tried for a size are all shown.",
        "The paper does not say which of the two means it prints; its curves mark the best epoch "
        "on the validation songs. Its training losses lie above its validation losses, which here, "
        "with 50 and 100 units, is so where the first are per step and the second per song: long "
        "songs are the harder ones. So its columns are taken. Its plain gradient descent (rate "
        "0.001) is not repeated: its number of epochs is not printed. Training losses are means "
        "over an epoch under way.",
    )
    return Table("MuseData", columns, rows, notes)


def _muse_row(record: Record[MusicRun]) -> list[str]:
    run, outcome = record.settings, record.outcome
    printed = [f"{loss:.2f}" for loss in PRINTED[run.hidden]]
    best, valid, test = _best(outcome), _valid(outcome), outcome["test"]
    return [
        _name(run),
        f"{run.decay:g}",
        str(run.epochs),
        printed[0],
        *(f"{outcome['train'][epoch]:.2f}" for epoch in (best, -1)),
        printed[1],
        *(f"{loss:.2f}" for loss in (valid[1], outcome["valid"][-1][1], valid[0], *test[::-1])),
        str(outcome["epochs"][best]),
        f"{record.seconds:.0f}",
    ]


def _jsb_table(
    records: Sequence[Record[MusicRun]], fitted: Sequence[Record[EchoRun]], epochs: int
) -> Table:
    rows = []
    for network in dict.fromkeys(record.settings.network for record in records):
        own = matching(records, network=network)
        record = min(own, key=lambda r: _valid(r.outcome)[1])
        epoch = record.outcome["epochs"][_best(record.outcome)]
        chosen = f"rate {record.settings.rate:g}, epoch {epoch}"
        rows.append(_jsb_row(_name(record.settings), chosen, _valid(record.outcome), record))
    echo = min(fitted, key=lambda record: record.outcome["valid"][1])
    rows.append(
        _jsb_row(
            f"echo state, {RESERVOIR} units",
            f"rho {echo.settings.rho:g}",
            echo.outcome["valid"],
            echo,
        )
    )
    columns = ("network", "chosen", "validation per song", "per step", "test per song", "per step")
    notes = (
        *_MEASURES,
        f"Adam. {epochs} epochs, one seed, three settings each, the best on the validation songs. "
        "The readout of the echo-state network is fitted by one convex problem.",
    )
    return Table("JSB chorales", (*columns, "seconds"), rows, notes)


def _jsb_row(
    name: str, chosen: str, valid: Sequence[float], record: Record[MusicRun] | Record[EchoRun]
) -> list[str]:
    test = record.outcome["test"]
    losses = [f"{loss:.2f}" for loss in (valid[1], valid[0], test[1], test[0])]
    return [name, chosen, *losses, f"{record.seconds:.0f}"]
