"""Which method trains a network, and why: one rule for models, estimators and the command."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.errors import DataError, DeclarationError
from liftednet.losses import Likelihood
from liftednet.validation import as_tensor

from .block import Structure
from .data import of_steps
from .methods import COUNTED, FullBatch, GaussNewton, Method, Minibatch, method_named
from .methods.gauss_newton import (
    FIRST_RHO,
    MOST_WEIGHTS,
    count_weights,
    has_ends,
    of_plain_layers,
    pulled,
)
from .starts import recurrent_layers

if TYPE_CHECKING:
    from .settings import Settings

_SWEEPS = 50  # of recurrent networks, whose states change slowly
_EPOCHS = 30  # of recurrent networks, at least
_TOLERANCE = 1e-4  # of their gradient, from which more steps teach no more (recurrent_defaults.md)
_MANY = 1000  # sequences, enough for minibatches
_MOST_OVER_TIME = 1e8  # answers times weights of a Gauss-Newton step that takes a few seconds
_MOST_BY_EVIDENCE = 1e7  # answers, steps and weights of recurrent networks: a twentieth of a second
_MOST_OF_ONE_ANSWER = 1e8  # likewise with one a sequence: steps at a given rho follow its noise
_STEPS_BY_EVIDENCE = 200  # of these at most
_MOST_BETWEEN_ENDS = 2e9  # multiplications in the matrix of a step: a tenth of a second
_MOST_WORK = 8e10  # multiplications in all steps after minibatches: about five seconds
_MOST_AT_ONCE = 1e8  # samples times weights of one fit: some seconds, and minibatches take longer
_LEAST_STEPS = 5  # by which these gain on minibatches (method_sizes.md)


@dataclass(frozen=True)
class DataShape:
    """What a method is chosen by of the data.

    Attributes:
        samples: of all processes.
        steps: of sequences.
        answers: of a sequence to a loss, at most: one, or one a step.
        unseen: whether entries are missing.
        loader: whether a DataLoader brings them, which tells nothing else.
    """

    samples: int
    steps: int = 0
    answers: int = 1
    unseen: bool = False
    loader: bool = False


@dataclass(frozen=True, eq=False)
class Choice:
    """A method, and why it was chosen.

    Attributes:
        method: with its numbers.
        structure: the training problem that it begins with.
        reason: in words.
        before: what leads drawn weights to where the method begins, None for nothing.
        lipschitz: the bound that weights are held to at every step, None for none.
        otherwise: the choice where the weights that are reached do not meet the settings' bound,
            None where they do by themselves.
    """

    method: Method
    structure: Structure
    reason: str
    before: Minibatch | None = None
    lipschitz: float | None = None
    otherwise: Choice | None = None

    def __str__(self) -> str:
        return f"{plain(self.method)!r}: {self.reason}"


def shape_of(settings: Settings, X: Any, y: Any) -> DataShape | None:
    """Return the shape of arrays or of a DataLoader, None of what is neither."""
    if isinstance(X, DataLoader):
        return DataShape(0, loader=True)
    given = X if isinstance(X, tuple | list) else (X,)
    checked = (as_tensor("X", x) if isinstance(x, torch.Tensor) else x for x in given)
    shapes = [getattr(x, "shape", ()) for x in checked]  # which a nested tensor has none of
    if not shapes or not shapes[0]:
        return None
    inputs = settings.network.inputs
    gaps = any(x.missing for x in inputs)
    holes = gaps and any(bool(torch.as_tensor(x).isnan().any()) for x in given)
    samples, steps = (*shapes[0], 0)[:2]
    targets = y if isinstance(y, tuple | list) else (y,)
    arrays = (x for x in targets if isinstance(x, torch.Tensor | np.ndarray))  # or refused later
    each = (of_steps(as_tensor("y", array)) for array in arrays)
    apart = any(x.sequence for x in inputs) and any(each)
    answers = int(steps) if apart else 1
    return DataShape(int(samples), int(steps), answers, holes)


def shape_of_all(own: DataShape | None) -> DataShape | None:
    """Return the shape of the samples of all processes, None where those of one have none."""
    if processes.size() == 1:
        return own
    rows = processes.gathered([-1.0] * len(fields(DataShape)) if own is None else astuple(own))
    if bool((rows < 0).any()):
        return None
    steps, answers, unseen, loader = rows[:, 1:].amax(0).long().tolist()
    return DataShape(int(rows[:, 0].sum()), steps, answers, bool(unseen), bool(loader))


def choose(settings: Settings, structure: Structure, data: DataShape | None) -> Choice:
    """Return the method that settings and data ask for.

    It is asked for by name, or follows from the network, the loss, the penalties and the size of
    the data; how long and how steps are taken does not matter to it.

    Args:
        settings: of the model.
        structure: its training problem.
        data: None where nothing is known of them.

    Raises:
        DataError: a number is for another method.
        DeclarationError: there is no such method.
    """
    if settings.method == "auto":
        return _with_numbers(_suited(settings, structure, data), settings)
    method = method_named(settings.method)
    if settings.method == "full" and recurrent_layers(settings.network):
        method = FullBatch(_SWEEPS, extrapolation=False)
    if settings.batch_size is not None and not isinstance(method, Minibatch):
        raise DataError(f"batch_size is for method='minibatch', and the method is {method}.")
    return _with_numbers(Choice(method, structure, "asked for"), settings)


def _with_numbers(choice: Choice, settings: Settings) -> Choice:
    """Return a choice with the numbers of the settings, and the bound that it has to hold."""
    method, reason, numbers = choice.method, choice.reason, dict[str, Any]()
    if settings.max_iter is not None:
        numbers[COUNTED[type(method)]] = settings.max_iter
    if settings.batch_size is not None and isinstance(method, Minibatch):
        numbers["batch_size"] = settings.batch_size
    elif settings.batch_size is not None:
        reason += f"; batch_size={settings.batch_size} is for minibatches"
    found = replace(choice, method=replace(method, **numbers), reason=reason)
    if choice.otherwise is None:
        return replace(found, lipschitz=settings.lipschitz)
    return replace(found, otherwise=_with_numbers(choice.otherwise, settings))


def _suited(settings: Settings, structure: Structure, data: DataShape | None) -> Choice:
    """Return the default method."""
    if settings.uncertainty is not None:
        return Choice(Minibatch(), structure, "minibatches, since X is uncertain")
    recurrent = bool(recurrent_layers(settings.network))
    if recurrent and settings.divergence != "tight":
        reason = f"divergence={settings.divergence!r} needs all samples"
        return Choice(FullBatch(_SWEEPS, extrapolation=False), structure, reason)
    if recurrent:
        return _over_time(settings, structure, data)
    obstacle = _obstacle(structure, data)
    if data is not None and obstacle is not None and _is_one_fit(settings, structure, data):
        reason = "one convex fit of all weights, to the minimum of the rho or penalty that is given"
        return Choice(FullBatch(), structure, reason)
    if data is None or obstacle is not None:
        return Choice(Minibatch(), structure, f"minibatches, since {obstacle}")
    answers, weights, _ = sizes(structure, data.samples)
    reason = f"{answers:,} answers and {weights:,} weights are few enough for Gauss-Newton"
    evidence = _rho_is_free(settings, structure)
    if evidence:
        reason += ", rho by their evidence"
        structure = pulled(structure, repeat(FIRST_RHO, len(structure.penalties)))
    else:
        reason += ", to the minimum of the rho or the penalty that is given"
    method, before = GaussNewton(evidence=evidence), None
    if not has_ends(structure):
        steps = min(method.steps, affordable_steps(structure, data.samples))
        method, before = replace(method, steps=steps), Minibatch()
    found = Choice(method, structure, reason, before)
    if settings.lipschitz is None:
        return found
    bound = f"lipschitz={settings.lipschitz:g}"
    held = f"minibatches, since the weights of Gauss-Newton alone do not meet {bound}"
    return replace(
        found, reason=f"{reason}; the weights meet {bound} by themselves",
        otherwise=Choice(Minibatch(), found.structure, held),
    )  # fmt: skip


def _is_one_fit(settings: Settings, structure: Structure, data: DataShape) -> bool:
    """Say whether all weights are one convex fit that is asked for, and soon solved."""
    network = structure.network
    alone = not structure.states and len(structure.parameters) == len(network.terms) == 1
    dense = of_plain_layers(structure) and not any(x.sequence for x in network.inputs)
    plain = settings.batch_size is None and settings.lipschitz is None
    whole = not (settings.early_stopping or data.loader or data.unseen)
    few = data.samples * count_weights(structure) <= _MOST_AT_ONCE
    return alone and dense and plain and whole and few and not _rho_is_free(settings, structure)


def _rho_is_free(settings: Settings, structure: Structure) -> bool:
    """Say whether nobody has given a rho or a penalty."""
    own = (p.penalty for p in structure.parameters if p.penalty is not None)
    given = settings.rho is not None or settings.penalty is not None
    return not given and not any(penalty.curvature for penalty in own)


def _over_time(settings: Settings, structure: Structure, data: DataShape | None) -> Choice:
    """Return the default method of recurrent networks."""
    together = GaussNewton(tolerance=_TOLERANCE)
    try:
        together.refuse(structure)
    except DeclarationError as error:
        return Choice(Minibatch(_EPOCHS), structure, f"minibatches, since {error}".rstrip("."))
    if data is None:
        return Choice(together, structure, "a recurrent network")
    if data.loader:
        return Choice(Minibatch(_EPOCHS), structure, "minibatches, since a DataLoader brings them")
    answers, weights, _ = sizes(structure, data.samples * data.answers)
    size = f"{data.samples:,} sequences of {data.steps:,} steps and {weights:,} weights"
    if data.samples < _MANY or data.samples * data.steps * weights <= _MOST_OVER_TIME:
        reason = f"{size} are few enough for Gauss-Newton"
        work = answers * data.steps * weights
        most = _MOST_BY_EVIDENCE if data.answers > 1 else _MOST_OF_ONE_ANSWER
        if _rho_is_free(settings, structure) and work <= most:
            by_evidence = GaussNewton(_STEPS_BY_EVIDENCE, evidence=True)
            with suppress(DeclarationError):
                by_evidence.refuse(structure)
                return Choice(by_evidence, structure, f"{reason}, rho by their evidence")
        return Choice(together, structure, reason)
    batches = max(1, -(-data.samples // Minibatch().batch_size))
    epochs = max(_EPOCHS, Minibatch().epochs_of(batches))
    return Choice(Minibatch(epochs), structure, f"minibatches, since {size} are many")


def _obstacle(structure: Structure, data: DataShape | None) -> str | None:
    """Say what keeps Gauss-Newton from being the default, None where nothing does."""
    network = structure.network
    for term in network.terms:
        if not isinstance(term.loss, Likelihood):
            return f"{type(term.loss).__name__} is no likelihood of numbers"
    if data is None or data.loader:
        return "there are no arrays whose samples could be counted"
    if data.unseen:
        return "entries of X are missing, and are drawn anew in every epoch"
    if any(x.sequence for x in network.inputs) or not of_plain_layers(structure):
        return "not all weights are those of dense layers"
    answers, weights, _ = sizes(structure, data.samples)
    if affordable_steps(structure, data.samples) < _LEAST_STEPS or weights > MOST_WEIGHTS:
        return f"{answers:,} answers and {weights:,} weights would take long by Gauss-Newton"
    try:
        GaussNewton(evidence=True).refuse(structure)
    except DeclarationError as error:
        return str(error).rstrip(".")
    return None


def sizes(structure: Structure, rows: int) -> tuple[int, int, int]:
    """Return how many answers, how many weights, and multiplications in the matrix of a step."""
    weights = count_weights(structure)
    answers = rows * sum(term.argument.units for term in structure.network.terms)
    return answers, weights, matrix_work(answers, weights)


def matrix_work(answers: int, weights: int) -> int:
    """Return the multiplications in the matrix of a step, of the weights or of fewer answers."""
    fewer = min(answers, weights)
    return fewer * fewer * (answers + weights)


def affordable_steps(structure: Structure, samples: int) -> int:
    """Return how many steps with a matrix take some seconds; none where weights have ends.

    Minibatches of as much time have a larger error where weights lie between ends
    (benchmarks/results/input_convex.md), and mostly elsewhere (benchmarks/results/small_data.md).
    """
    work = sizes(structure, samples)[2]
    if has_ends(structure):
        return GaussNewton().steps if work <= _MOST_BETWEEN_ENDS else 0
    return int(_MOST_WORK // max(1, work))


def plain(value: Any) -> Any:
    """Return a setting with Python's numbers in place of numpy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Method):
        return replace(value, **{x.name: plain(getattr(value, x.name)) for x in fields(value)})
    return value
