"""What there is to read of a model, a network or an estimator, and one walk through it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from liftednet.activations import Identity
from liftednet.errors import DataError
from liftednet.export import ExportedGraph, to_torch
from liftednet.layers.expression import Applied
from liftednet.layers.projection import Projection
from liftednet.validation import as_tensor, finite_numbers, model_of

from ..prediction import Predictor
from .calls import FUNCTIONS, RULES
from .intervals import OTHER, Units
from .tensors import Followed, Walk, follow

Array = np.ndarray[Any, np.dtype[np.float64]]
Ends = tuple[Array, Array]

# What stands in for an entry moves with those that are seen, so that raising one moves others.
_HOLES = "entries of X that are NaN, which the others complete"


@dataclass(frozen=True)
class Subject:
    """What is certified.

    Attributes:
        network: as torch runs it.
        example: of each input, (2 or more, ...).
        data: training inputs, or None.
        limits: that a projection holds.
        names: of the inputs, or none.
        unknown: inputs of which nothing is claimed.
    """

    network: nn.Module
    example: tuple[Tensor, ...]
    data: tuple[Tensor, ...] | None = None
    limits: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def subject_of(model: Any, example: Any, logits: bool = False) -> Subject:
    """Return what there is to read of a model, a network or an estimator.

    Args:
        model: a fitted model or estimator, or a torch.nn.Module.
        example: some inputs of a torch network, or None.
        logits: whether the scores of a model are meant, before its last activation.
    """
    if isinstance(model, ExportedGraph):
        return _of_graph(model, model.structure, not model.logits, example)
    if isinstance(model, nn.Module):
        if isinstance(model, torch.jit.ScriptModule):
            raise DataError("a scripted module runs no Python: give the one it was made of.")
        module = getattr(model, "_orig_mod", model)  # of torch.compile
        return Subject(module, _example(module, example))
    if (fitted := model_of(model)) is not model:
        inside = subject_of(fitted, example, logits)
        kinds = getattr(model, "_kinds", None)
        own = kinds.inputs if kinds else getattr(model, "feature_names_in_", ())
        names = tuple(map(str, own))
        inputs = sum(math.prod(x.shape[1:]) for x in inside.example)
        return replace(inside, names=names if len(names) == inputs else ())
    if not isinstance(model, Predictor):
        raise DataError(
            f"a fitted model, an estimator or a torch.nn.Module is needed, got "
            f"{type(model).__name__}."
        )
    like = model.weights[0].matrix
    if hasattr(model, "write_"):  # of lift
        network = copy.deepcopy(model).write_()
    else:
        network = to_torch(model, logits=logits)
    found = _of_graph(network, model.structure, not logits, example, like)
    holes = (_HOLES,) if model._completion.priors else ()
    return replace(found, data=_trained_on(model), unknown=holes)


def _of_graph(
    network: nn.Module, structure: Any, last: bool, given: Any, like: Tensor | None = None
) -> Subject:
    inputs = structure.network.inputs
    if any(variable.sequence for variable in inputs):
        if given is None:
            raise DataError(
                "a network on sequences is read for a number of steps: give an example of them, "
                "such as example=X[:2]."
            )
        example = _example(network, given)
    else:
        like = next(network.parameters()) if like is None else like
        example = tuple(torch.zeros(2, *x.shape, dtype=like.dtype) for x in inputs)
    return Subject(network, example, limits=tuple(_limits(structure, last)))


def _limits(structure: Any, last: bool) -> Iterator[str]:
    first = 0
    for term in structure.network.terms:
        projected = isinstance(term.argument, Applied) and type(term.argument.layer) is Projection
        if projected:
            kind = type(term.divergence.activation)
            name = "output" if kind is Identity or not last else "score"
            yield from term.argument.layer.lines(first, name)
        first += term.argument.units


def _trained_on(model: Any) -> tuple[Tensor, ...] | None:
    """Return the raw inputs of the last fit, where they are at hand."""
    fitted = model._known
    inputs = model.structure.network.inputs
    if fitted.data is None or any(variable.sequence for variable in inputs):
        return None
    found = []
    for variable in inputs:
        x = fitted.data.values[variable].detach().cpu().double()[:4000]
        moments = fitted.standardization.moments.get(variable)
        if moments is not None and fitted.data.raw is fitted.data:
            x = x * moments.scale.cpu().double() + moments.center.cpu().double()
        found.append(x.reshape(len(x), *variable.shape))
    return tuple(found)


def _example(module: nn.Module, example: Any) -> tuple[Tensor, ...]:
    if example is None:
        weighed = (
            x for x in module.modules() if next(x.parameters(recurse=False), None) is not None
        )
        first = next(weighed, None)
        if not isinstance(first, nn.Linear):
            raise DataError("an example of the inputs is needed, such as example=X[:2].")
        return (torch.zeros(2, first.in_features, dtype=first.weight.dtype),)
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    like = next((x for x in module.parameters() if x.is_floating_point()), torch.empty(0))
    found = []
    for x in given:
        tensor = samples_in(x).detach().cpu()
        found.append(tensor.to(like.dtype) if tensor.is_floating_point() else tensor)
    return tuple(found)


def samples_in(x: Any) -> Tensor:
    """Return a part of an example as a tensor.

    Raises:
        DataError: it holds no samples.
    """
    found = as_tensor("the example of X", x)
    if found.ndim == 0 or len(found) == 0:
        raise DataError(
            f"the example must hold samples, such as X[:2]; got shape {tuple(found.shape)}."
        )
    return found


def require_box(box: Any, inputs: int) -> tuple[Array, Array]:
    """Return the ends of a box, (inputs,) each.

    Raises:
        DataError: it is no pair, has other sizes, is not finite, or empty.
    """
    try:
        ends = [finite_numbers("an end of box", end) for end in box]
        low, high = (
            np.broadcast_to(end.reshape(-1) if end.ndim else end, inputs).copy() for end in ends
        )
    except (TypeError, ValueError) as error:
        raise DataError(
            f"box must be (lowest, highest), each a finite number or {inputs} of them; got {box!r}."
        ) from error
    if not (low <= high).all():
        raise DataError(
            f"box must have lowest <= highest: it is empty, input {int((low > high).argmax())} has "
            "no value in it."
        )
    return low, high


def following_batches(network: nn.Module) -> list[nn.Module]:
    """Return the normalizations in train mode, by which an answer depends on other rows."""
    return [x for x in network.modules() if isinstance(x, _BatchNorm) and x.training]


def apart(network: nn.Module) -> nn.Module:
    """Return a copy in eval mode, on the CPU; what follows batches in train mode stays so."""
    made = [x for own in network.modules() for x in vars(own).values() if isinstance(x, Tensor)]
    try:  # torch copies nothing that hooks have made of parameters, as a pruned weight
        known = {id(x): x.detach().clone() for x in made if not x.is_leaf}
        copied = copy.deepcopy(network, known).cpu()
    except Exception as error:  # whatever a user's attributes say
        raise DataError(
            f"{type(network).__name__} cannot be copied ({error}), and nothing is changed of what "
            "is given."
        ) from error
    following = following_batches(copied)
    copied.eval()
    for module in following:
        module.training = True
    return copied


@dataclass(frozen=True)
class Found:
    """What one walk has found.

    Attributes:
        units: the table.
        outputs: their units, (outputs,); None where the walk has stopped.
        stop: why.
    """

    units: Units
    outputs: Tensor | None
    stop: str = ""


def walked(
    network: nn.Module,
    subject: Subject,
    box: Ends | None,
    samples: int,
    followed: int,
    known: Tensor | None = None,
    values_alone: bool = False,
) -> Found:
    """Return what is known of the outputs for one of several samples.

    Args:
        network: in eval mode.
        subject: that it is of.
        box: the ends of the inputs, or None for all.
        samples: how many.
        followed: which of them.
        known: as in `Units`.
        values_alone: whether no derivatives are asked for. Then what torch adds to a softplus by
            cutting it off, 2e-9 at 20, counts as rounding.
    """
    sizes = [math.prod(x.shape[1:]) for x in subject.example]
    units = Units(sum(sizes), known, derivatives=not values_alone)
    ends = np.full((2, units.inputs), np.inf) * [[-1], [1]] if box is None else np.stack(box)
    variables = units.variables(*torch.from_numpy(ends))
    like = next((x for x in network.parameters() if x.is_floating_point()), subject.example[0])
    walk = Walk(units, torch.float32 if values_alone else like.dtype, RULES, FUNCTIONS)
    inputs = []
    for x, own in zip(subject.example, variables.split(sizes), strict=True):
        rows = torch.full((samples, *x.shape[1:]), OTHER)
        whole = not x.is_floating_point()
        rows[followed] = (
            units.unknown("an input of whole numbers") if whole else own.reshape(x.shape[1:])
        )
        inputs.append(rows)
    found = follow(walk, network, inputs, [x.dtype for x in subject.example])
    if walk.stop:
        return Found(units, None, walk.stop)
    parts = []
    for x in found if isinstance(found, tuple | list) else [found]:
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != samples:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(
                f"a network is needed that returns a row for each sample, and {samples} samples "
                f"return {got}."
            )
        own = x.units if isinstance(x, Followed) else units.constants(x)
        parts.append(own[followed].flatten())
    outputs = torch.cat(parts)
    mixed = units.unknown("a call that mixes samples")
    return Found(units, outputs.masked_fill(outputs == OTHER, mixed))
