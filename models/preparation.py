"""What a fit begins with: arrays on their scales, first weights, states, threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError
from liftednet.layers.expression import SAMPLE_WEIGHTS
from liftednet.layers.modules import Mapped
from liftednet.network import Network
from liftednet.power import Power
from liftednet.samples import Weights
from liftednet.validation import require_seed

from .block import Blocks, Structure
from .choice import Choice
from .data import ArrayBatches, ArrayLike, Data, Lengths, prepared
from .diagnosis import is_useless
from .fingerprint import refuse_shares
from .methods import Method
from .methods.gauss_newton import GaussNewton
from .methods.minibatch import BatchSteps, Minibatch
from .prediction import Predictor
from .settings import feasible
from .shapes import bounded, in_proportion
from .standardization import RAW, Standardization, standardization_of, unpacked_standardization
from .starts import AUTO, START_SAMPLES, fitted_start, recurrent_layers, settled_start
from .trace import Memory, Problem

WORTH = 1 << 26  # multiplications that are worth a thread: milliseconds, where waking one takes .01
_LOCK, _BEFORE = threading.Lock(), dict[int, int]()  # threads of torch before fits, by whose thread
_STORED = 2_000  # numbers of all weights, whose normal equations Gauss-Newton may form
_UNSHARED = 16  # times the multiplications: beside those a step has much that threads do not share


@contextmanager
def few_threads(network: Network, method: Method, X: Any, device: str) -> Iterator[None]:
    """Take threads from torch that a fit on a CPU has no work for, and give them back.

    Where others work, too, a product that two threads share waits until both have had their turn:
    small fits took 6 to 30 times as long with two threads as with one (November 2026).

    Args:
        network: that is fitted. One with maps of torch's own, of unknown work, keeps all threads.
        method: of training.
        X: as `fit` takes it.
        device: of the fit.
    """
    own = threading.get_ident()
    with _LOCK:
        outermost = own not in _BEFORE
        others = list(_BEFORE.values()) if outermost else []  # beside which torch has fewer
        before = others[0] if others else torch.get_num_threads()
        known = not any(isinstance(each.layer, Mapped) for each in network.layers())
        on_cpu = torch.device(device).type == "cpu"
        worth = 1 + _work(network, method, X) // WORTH if known and on_cpu else before
        _BEFORE.setdefault(own, before)
        torch.set_num_threads(min(before, worth))
    try:
        yield
    finally:
        with _LOCK:
            torch.set_num_threads(before)
            if outermost:
                del _BEFORE[own]


def _work(network: Network, method: Method, X: Any) -> int:
    """Return how many multiplications the largest product of a step has, nearly."""
    if isinstance(X, DataLoader):
        rows = X.batch_size or 1
    else:  # what has no shape is refused later
        given = X if isinstance(X, tuple | list) else (X,)
        rows = max((x.shape[0] for x in given if getattr(x, "shape", ())), default=0)
    if isinstance(method, Minibatch):
        rows = min(rows, method.batch_size)
    sizes = [(each, each.weights.shape) for each in network.layers() if each.weights is not None]
    if isinstance(method, GaussNewton):
        numbers = sum(prod(shape) for _, shape in sizes)
        return rows * numbers * numbers // _UNSHARED if numbers <= _STORED else rows * numbers
    products = (prod(of) * max(1, prod(each.shape) // of[1]) for each, of in sizes)
    return rows * max(products, default=0)


def _weighed(data: Data) -> Data:
    """Return data without weights where these are 1 on all processes, which changes no digit.

    Raises:
        DataError: all are 0.
    """
    weights = data.values.get(SAMPLE_WEIGHTS)
    if weights is None:
        return data
    other, some = processes.largest([bool((weights != 1).any()), bool(weights.any())]).bool()
    if not some:
        raise DataError("sample weights must not be all zero, as they are on every process.")
    kept = {x: v for x, v in data.values.items() if other or x is not SAMPLE_WEIGHTS}
    return replace(data, values=kept)


_TRIED, _TRIAL = ("orthogonal", "gaussian", "orthogonal"), 8  # recurrent starts, steps with each
_LONGEST = "identity"  # where none of them learns: it remembers most steps, and learns sums worst


class Prepared(Predictor):
    """Settings that make of arrays what a method begins with."""

    def _data(
        self, X: Any, y: Any, lengths: Lengths = None, sample_weight: ArrayLike | None = None
    ) -> Data:
        if y is None and isinstance(X, DataLoader):
            raise DataError(
                "a DataLoader is for method='minibatch': this method needs all samples."
            )
        if y is None:
            wanted = ", or fit(loader) with a torch.utils.data.DataLoader of pairs"
            hint = "" if hasattr(X, "shape") else f"{wanted}; got a {type(X).__name__} alone"
            raise DataError(f"y is missing: fit(X, y){hint}.")
        several = processes.size() > 1
        with processes.agreed():
            found = self._checked_data(X, y, lengths, sample_weight, several)
        if several:
            refuse_shares(self.network, found)
        elif not len(found):
            raise DataError(f"X is empty: shape {tuple(getattr(X, 'shape', ()))}.")
        return _weighed(found)

    def _checked_data(
        self, X: Any, y: Any, lengths: Lengths, sample_weight: Any, part: bool
    ) -> Data:
        return prepared(
            self.network, X, y, lengths, dtype=self._dtype, device=self.device, part=part,
            sample_weight=sample_weight,
        )  # fmt: skip

    @property
    def _dtype(self) -> torch.dtype | None:
        """The type of all values, None for that of X."""
        return self.dtype or (torch.float64 if recurrent_layers(self.network) else None)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(require_seed(self.seed))

    _power: Power | None = None  # of skewed targets, from who has looked at them

    def _standardization(
        self, data: Data, lipschitz: float | None, memory: Memory
    ) -> Standardization:
        """Return what stands between data and weights, and keep it in the memory of a training.

        It is that of the memory, or where training goes on from a fit that of before, or that of
        the data.
        """
        if "standardization" in memory:  # of a fit before it, or of batches that came first then
            found = unpacked_standardization(memory["standardization"], self.network)
            return standardization_of(self.network, data, before=found.moments)
        found = self._first_standardization(data, lipschitz)
        memory["standardization"] = found.packed(self.network)
        return found

    def _first_standardization(self, data: Data, lipschitz: float | None) -> Standardization:
        goes_on = self.warm_start and self._fit is not None
        if goes_on and self._known.standardization.moments:
            if self.standardize is False:
                raise DataError(
                    "standardize=False, but warm_start=True goes on from weights of data on a "
                    "common scale: leave standardize as it was, or fit without warm_start."
                )
            before = self._known.standardization.moments
            return standardization_of(self.network, data, before=before)
        if self.standardize is False:
            return RAW
        always = self.standardize is not None
        found = standardization_of(self.network, data, self._power, always=always)
        if lipschitz is not None:
            found = in_proportion(found)
        known = self._known.weights if goes_on else self.start
        if isinstance(known, str) or found.unfolded(self.network, known) is not None:
            return found
        return RAW  # weights were given for raw data, and cannot be those for other

    def _bounded(
        self, structure: Structure, standardization: Standardization, lipschitz: float | None
    ) -> Structure:
        """Return the training problem on standardized data, of losses and of weights in bounds."""
        structure = replace(structure, losses=standardization.losses(self.network))
        if lipschitz is None:
            return structure
        penalties = bounded(structure.penalties, self.network, standardization, lipschitz)
        return replace(structure, penalties=penalties)

    def _weights_to_begin_with(
        self, structure: Structure, data: Data, standardization: Standardization, goes_on: bool
    ) -> list[Weights]:
        """Return the weights of before, or of the start, on standardized data."""
        goes_on = goes_on and self.is_fitted
        given: Sequence[Weights] = self._known.weights if goes_on else self._first_weights()
        drawn = not goes_on and isinstance(self.start, str)
        if not drawn and not (goes_on and self._known.standardization.moments):  # for raw data
            given = standardization.unfolded(self.network, given) or given
        weights = [layer.to(data.like) for layer in given]
        if drawn:
            weights = settled_start(structure, weights, standardization.still)
        if drawn and self.start == AUTO:
            share = processes.share_of(len(data))
            some = data.take(share.own(torch.arange(min(START_SAMPLES, share.samples))))
            weights = fitted_start(structure, weights, some.values)
        return feasible(weights, structure.penalties.values())

    def _first_blocks(
        self, structure: Structure, data: Data, standardization: Standardization, choice: Choice
    ) -> Blocks:
        """Return the blocks of a fit: where the last has ended, or at a forward pass."""
        before = self._known if self.warm_start and self.is_fitted else None
        together = choice.method if isinstance(choice.method, GaussNewton) else None
        drawn = self.start == AUTO and before is None
        if drawn and together and recurrent_layers(self.network):
            return self._best_of_starts(structure, data, standardization, together)
        weights = self._weights_to_begin_with(structure, data, standardization, self.warm_start)
        if choice.before is not None and before is None:
            weights = self._after_batches(choice.before, structure, data, weights)
        blocks = self._blocks_at(structure, data, weights, together is not None)
        if before is None or together or before.blocks is None or before.data is None:
            return blocks
        if not processes.largest([not before.data.equal(data)]).any():
            states = {state: before.blocks.values[state] for state in structure.states}
            blocks.values.update(states)
        return blocks

    def _after_batches(
        self, method: Minibatch, structure: Structure, data: Data, weights: Sequence[Weights]
    ) -> list[Weights]:
        """Return what minibatches make of weights, with the penalties of the settings."""
        generator = self._generator()
        own = replace(self._structure(), losses=structure.losses)
        point = BatchSteps(own, weights, method, generator)
        batches = ArrayBatches(data, method.batch_size, generator)
        with torch.no_grad():
            deque(method.take_steps(Problem(point, batches=batches)), maxlen=0)
        return [layer.by_rows() for layer in point.weights]

    def _best_of_starts(
        self,
        structure: Structure,
        data: Data,
        standardization: Standardization,
        method: GaussNewton,
    ) -> Blocks:
        """Return the blocks of a recurrent network after some steps from the best of its starts."""
        generator = self._generator()
        brief = replace(method, steps=min(method.steps, _TRIAL))

        def tried(start: str) -> tuple[bool, float, Blocks]:
            weights = feasible(self._drawn(start, generator), structure.penalties.values())
            weights = [layer.to(data.like) for layer in weights]
            weights = settled_start(structure, weights, standardization.still)
            blocks = self._blocks_at(structure, data, weights, forward=True)
            with torch.no_grad():
                taken = list(brief.take_steps(Problem(blocks)))
            looks = [step.evidence for step in taken if step and step.evidence is not None]
            return not looks, -max(looks) if looks else blocks.objective(), blocks

        *_, best = min(map(tried, _TRIED), key=lambda found: found[:2])
        return tried(_LONGEST)[-1] if is_useless(structure, data, best.values) else best

    def _mean_loss(
        self, structure: Structure, data: Data, numbers: Tensor, forward: bool,
        weights: Sequence[Weights],
    ) -> float:  # fmt: skip
        """Return the loss of some samples at their forward pass, some of them at a time."""
        total, mass = 0.0, 0.0
        with processes.agreed():
            for part in data.parts(numbers, structure.states):
                total += self._blocks_at(structure, part, weights, forward).own_sum()
                mass += float(part.loss_weights.sum())
        return processes.total_of(total) / (processes.total_of(mass) or 1.0)
