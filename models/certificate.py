"""What a network is for certain, from its weights alone: monotone, convex, Lipschitz."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from liftednet.activations import Identity
from liftednet.errors import DataError, DeclarationError
from liftednet.export import ExportedGraph, to_torch
from liftednet.layers.expression import Applied
from liftednet.layers.projection import Projection
from liftednet.validation import as_tensor

from .bounds.calls import FUNCTIONS, RULES
from .bounds.programs import Closer
from .bounds.refutation import refute
from .bounds.tensors import Followed, Walk, follow
from .bounds.units import OTHER, Units, chain
from .prediction import Predictor
from .shapes import semidefinite_lipschitz

_NORM = 1 + 1e-10
_WALKS = ((2, 0), (3, 2))  # samples of each, and which of them is followed
_ALIKE = 1e-9  # bounds of both, which differ by rounding alone
_SHOWN = 12


@dataclass(frozen=True, eq=False)
class Certificate:
    """What holds for a network at every input, in exact arithmetic with the weights it has.

    Attributes:
        lowest: of the derivative of each output in each input, (outputs, inputs); outward rounded.
        highest: the same.
        convex: outputs that are convex in all inputs together, (outputs,) booleans.
        concave: outputs that are concave, (outputs,) booleans.
        lipschitz: |f(x) - f(x')|_2 <= lipschitz |x - x'|_2; infinite where nothing is known.
        least: of the values of each output, (outputs,); outward rounded.
        most: the same.
        limits: those of `within=`, such as "0 <= output 1 - output 0"; scores are outputs before
            their last activation.
        unknown: calls of which nothing is known, and that outputs depend on: with their modules
            and lines.
        names: of the inputs, where they have some.
        box: (2, inputs), between which all of this holds; None for every input.

    Example:
        >>> import torch
        >>> from liftednet import certify
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = network[0].weight.copy_(torch.tensor([[0.0, -3.0]]))
        >>> facts = certify(network)
        >>> facts.decreasing, round(facts.lipschitz, 6)
        ((0, 1), 3.0)
    """

    lowest: Tensor
    highest: Tensor
    convex: Tensor
    concave: Tensor
    lipschitz: float
    least: Tensor
    most: Tensor
    limits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    box: Tensor | None = None

    @property
    def increasing(self) -> tuple[int, ...]:
        """Inputs with which no output falls, numbered from 0."""
        return _numbers((self.lowest >= 0).all(0))

    @property
    def decreasing(self) -> tuple[int, ...]:
        """Inputs with which no output rises, numbered from 0."""
        return _numbers((self.highest <= 0).all(0))

    def __str__(self) -> str:
        """Return what is certain, line by line."""
        outputs, inputs = self.lowest.shape
        where = "" if self.box is None else " within the box"
        lines = [
            f"certified of {inputs} inputs and {outputs} outputs, from the weights alone{where}:"
        ]
        monotone = {"nondecreasing": self.lowest >= 0, "nonincreasing": self.highest <= 0}
        for name, of_output in monotone.items():
            for output, row in enumerate(of_output):
                if found := _numbers(row):
                    some = _some([self._called(n) for n in found])
                    lines.append(
                        f"  output {output} is {name} in inputs {some} ({len(found)} of {inputs})"
                    )
        for name, of_outputs in (("convex", self.convex), ("concave", self.concave)):
            if which := ", ".join(map(str, _numbers(of_outputs))):
                lines.append(f"  {name} in the inputs: outputs {which}")
        if self.limits:
            lines.append("  limits that are met:")
            lines += [f"    {limit}" for limit in _first(self.limits)]
        bound = "not bounded" if math.isinf(self.lipschitz) else f"at most {self.lipschitz:.6g}"
        lines.append(f"  Lipschitz constant {bound}")
        if self.box is not None:
            ends = zip(self.least.tolist(), self.most.tolist(), strict=True)
            values = [f"    {a:.6g} <= output {n} <= {b:.6g}" for n, (a, b) in enumerate(ends)]
            lines += ["  values:", *_first(values)]
        if self.unknown:
            lines.append("  unknown, so that nothing is claimed of what depends on it:")
            lines += [f"    {call}" for call in _first(self.unknown)]
        return "\n".join(lines)

    __repr__ = __str__

    def _called(self, number: int) -> str:
        return self.names[number] if self.names else str(number)


@torch.inference_mode(False)
@torch.no_grad()
def certify(
    model: Any,
    example: Any = None,
    *,
    box: Any = None,
    semidefinite: bool = False,
    exact: bool = False,
    seconds: float = 60.0,
) -> Certificate:
    """Return what a fitted model or a torch network is for certain, at every input.

    The network runs once on tensors that hold bounds in place of values, so that nothing is decided
    by an example. Derivatives go through its calls as intervals: those of u = x W + b by
    [l W+ - h W-, h W+ - l W-], of phi(u) by the ends of its slopes; rounded outward in float64. An
    output is convex where it is a nonnegative combination of convex units (and a nonpositive one of
    concave ones) under convex, nondecreasing maps (Amos, Xu, Kolter, 2017). The Lipschitz constant
    is the smallest one of the product of spectral norms, the norm of the largest absolute
    derivatives, and the norm of their middles plus that of their radii. Standardization is part of
    the network. Nothing is claimed of what depends on a call that is not on the list of those with
    known bounds, or on an index, a mask or an `if` that values decide: `unknown` names it. Before
    it is given, a certificate is held against derivatives and differences at some thousand points.

    Args:
        model: a fitted lifted model or estimator, of which the output of `forward` is meant (export
            it with logits=True for the last pre-activation); or a torch.nn.Module, which is taken
            as it runs in eval mode.
        example: some inputs of a torch network, such as X[:2], a tuple of several; not needed where
            the first module with weights is a torch.nn.Linear. Only shapes and types are taken of
            it, and points at which the certificate is tried.
        box: (low, high) of the inputs, each a number or (inputs,); all then holds between them, and
            is closer: slopes are those of the values that units can have, whose ends are found by
            intervals and linear programs (see `Certificate.least`).
        semidefinite: whether a semidefinite problem, too, bounds the Lipschitz constant, often at
            half of the others; for chains of dense layers with up to 120 inputs and hidden units,
            which take half a minute (see `semidefinite_lipschitz`).
        exact: whether the ends of outputs over the box are those that are attained, by branch and
            bound, to a share of 1e-6 of what they span; see `optimize` for what that takes.
        seconds: after which exact ends are left as far as they are proven.

    Raises:
        DataError: it is neither, or the network cannot run.
        DeclarationError: there are sequences, or a layer is too large, or the network is no chain
            that is small enough where the semidefinite bound is asked for.
        LiftedError: a point contradicts what was proven, which is told with the point.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import torch
        >>> from liftednet import certify
        >>> from liftednet.losses import SquaredError
        >>> from liftednet.models import LiftedMLP
        >>> X = torch.rand(200, 2)
        >>> y = (X[:, :1] * X[:, 1:]).sqrt()
        >>> model = LiftedMLP((2, 20, 1), loss=SquaredError(), monotonic_cst=[1, 0]).fit(X, y)
        >>> certify(model).increasing
        (0,)
    """
    subject = _subject(model, example)
    inputs = sum(math.prod(x.shape[1:]) for x in subject.example)
    ends = None if box is None else _box(box, inputs)
    network = _apart(subject.network)
    first, second = (_walked(network, subject, ends, *walk) for walk in _WALKS)
    found = _both(first, second, network, subject)
    if ends is not None and first.outputs is not None and not math.isinf(found.lipschitz):
        first = _walked(network, subject, ends, *_WALKS[0], Closer())
        found = _certificate(first)
    if semidefinite:
        found = replace(found, lipschitz=min(found.lipschitz, _semidefinite(first)))
    if exact:
        found = _exact(model, found, ends, example, seconds)
    found = replace(found, limits=subject.limits, names=subject.names, box=ends)
    refute(network, found, subject.example, subject.data)
    return found


def _exact(
    model: Any, found: Certificate, box: Tensor | None, example: Any, seconds: float
) -> Certificate:
    """Return a certificate whose ends of outputs are those that branch and bound proves."""
    if box is None:
        raise DeclarationError("exact=True needs a box, such as box=(-1, 1).")
    from .programs.inversion import exact_range  # which few certificates need

    ends = (box[0].numpy(), box[1].numpy())
    low, high = exact_range(model, ends, box.shape[1], example, seconds=seconds)
    least = torch.maximum(found.least, torch.from_numpy(low))
    return replace(found, least=least, most=torch.minimum(found.most, torch.from_numpy(high)))


@dataclass(frozen=True)
class _Subject:
    """What is certified.

    Attributes:
        network: as torch runs it.
        example: of each input, (2 or more, ...).
        data: training inputs, or None.
        limits: that a projection holds.
        names: of the inputs, or none.
    """

    network: nn.Module
    example: tuple[Tensor, ...]
    data: tuple[Tensor, ...] | None = None
    limits: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def _subject(model: Any, example: Any) -> _Subject:
    """Return what there is to certify of a model, a network or an estimator."""
    if isinstance(model, ExportedGraph):
        return _of_graph(model, model.structure, not model.logits)
    if isinstance(model, nn.Module):
        if isinstance(model, torch.jit.ScriptModule):
            raise DataError("a scripted module runs no Python: give the one it was made of.")
        module = getattr(model, "_orig_mod", model)  # of torch.compile
        return _Subject(module, _example(module, example))
    if not isinstance(model, Predictor) and hasattr(model, "model_"):
        inside = _subject(model.model_, example)
        names = tuple(map(str, getattr(model, "feature_names_in_", ())))
        inputs = sum(math.prod(x.shape[1:]) for x in inside.example)
        return replace(inside, names=names if len(names) == inputs else ())
    if not isinstance(model, Predictor):
        raise DataError(
            f"certify needs a fitted model or a torch.nn.Module, got {type(model).__name__}."
        )
    like = model.weights[0].matrix
    network = copy.deepcopy(model).write_() if hasattr(model, "write_") else to_torch(model)
    found = _of_graph(network, model.structure, True, like)
    return replace(found, data=_trained_on(model))


def _of_graph(
    network: nn.Module, structure: Any, last: bool, like: Tensor | None = None
) -> _Subject:
    inputs = structure.network.inputs
    if any(variable.sequence for variable in inputs):
        raise DeclarationError("certify is for networks without sequences.")
    like = next(network.parameters()) if like is None else like
    example = tuple(torch.zeros(2, *x.shape, dtype=like.dtype) for x in inputs)
    return _Subject(network, example, limits=tuple(_limits(structure, last)))


def _limits(structure: Any, last: bool) -> Iterator[str]:
    first = 0
    for term in structure.network.terms:
        projected = isinstance(term.argument, Applied) and type(term.argument.layer) is Projection
        if projected:
            kind = type(term.pinned.divergence.activation)
            name = "output" if kind is Identity or not last else "score"
            yield from term.argument.layer.lines(first, name)
        first += term.argument.units


def _trained_on(model: Any) -> tuple[Tensor, ...] | None:
    """Return the raw inputs of the last fit, where they are at hand."""
    fitted = model._known
    if fitted.data is None:
        return None
    found = []
    for variable in model.structure.network.inputs:
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
            raise DataError(
                "certify needs an example of the inputs, such as certify(network, X[:2])."
            )
        return (torch.zeros(2, first.in_features, dtype=first.weight.dtype),)
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    like = next((x for x in module.parameters() if x.is_floating_point()), torch.empty(0))
    found = []
    for x in given:
        tensor = as_tensor("the example of X", x).detach().cpu()
        if tensor.ndim == 0 or len(tensor) == 0:
            raise DataError(
                f"the example must hold samples, such as X[:2]; got shape {tuple(tensor.shape)}."
            )
        found.append(tensor.to(like.dtype) if tensor.is_floating_point() else tensor)
    return tuple(found)


def _box(box: Any, inputs: int) -> Tensor:
    """Return the ends of a box, (2, inputs)."""
    try:
        ends = [np.asarray(end, dtype=np.float64) for end in box]
        low, high = (np.broadcast_to(end.reshape(-1) if end.ndim else end, inputs) for end in ends)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"box must be (low, high), each a number or {inputs} of them; got {box!r}."
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise DataError(f"box must have finite ends, low <= high; got {box!r}.")
    return torch.from_numpy(np.stack([low, high]))


def _apart(network: nn.Module) -> nn.Module:
    """Return a copy in eval mode, on the CPU; what follows batches in train mode stays so."""
    try:
        copied = copy.deepcopy(network).cpu()
    except Exception as error:  # whatever a user's attributes say
        raise DataError(
            f"{type(network).__name__} cannot be copied ({error}), and certify changes nothing of "
            "what it is given."
        ) from error
    following = [x for x in copied.modules() if isinstance(x, _BatchNorm) and x.training]
    copied.eval()
    for module in following:
        module.training = True
    return copied


@dataclass(frozen=True)
class _Found:
    """What one walk has found.

    Attributes:
        units: the table.
        outputs: their units, (outputs,); None where the walk has stopped.
        stop: why.
    """

    units: Units
    outputs: Tensor | None
    stop: str = ""


def _walked(
    network: nn.Module,
    subject: _Subject,
    box: Tensor | None,
    samples: int,
    followed: int,
    closer: Closer | None = None,
) -> _Found:
    """Return what is known of the outputs for one of several samples."""
    sizes = [math.prod(x.shape[1:]) for x in subject.example]
    units = Units(sum(sizes), closer=closer)
    ends = torch.tensor([[-math.inf], [math.inf]], dtype=torch.float64).expand(2, units.inputs)
    variables = units.variables(*(ends if box is None else box))
    like = next((x for x in network.parameters() if x.is_floating_point()), subject.example[0])
    walk = Walk(units, like.dtype, RULES, FUNCTIONS)
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
        return _Found(units, None, walk.stop)
    parts = []
    for x in found if isinstance(found, tuple | list) else [found]:
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != samples:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(
                f"certify needs a network that returns a row for each sample, and {samples} "
                f"samples return {got}."
            )
        own = x.units if isinstance(x, Followed) else units.constants(x)
        parts.append(own[followed].flatten())
    outputs = torch.cat(parts)
    if closer is not None:
        closer(units, outputs)
    return _Found(units, torch.where(outputs == OTHER, _mixing(units), outputs))


def _mixing(units: Units) -> Tensor:
    return torch.tensor(units.unknown("a call that mixes samples"))


def _both(first: _Found, second: _Found, network: nn.Module, subject: _Subject) -> Certificate:
    """Return what both walks say; nothing where they differ by more than rounding."""
    stop = first.stop or second.stop
    if not stop:
        one, other = _certificate(first), _certificate(second)
        if _alike(one, other):
            return one
        stop = "the network computes other things of other samples, or at a second call"
    outputs = _outputs(network, subject)
    none = torch.full((outputs, first.units.inputs), math.inf, dtype=torch.float64)
    no = torch.zeros(outputs, dtype=torch.bool)
    return Certificate(-none, none, no, no, math.inf, -none.new_full((outputs,), math.inf),
                       none.new_full((outputs,), math.inf), unknown=(stop,))  # fmt: skip


def _certificate(found: _Found) -> Certificate:
    units, outputs = found.units, found.outputs
    assert outputs is not None  # it has not stopped
    low, high = units.low[outputs], units.high[outputs]
    reasons = {units.reasons[n] for n in units.reason[outputs].tolist() if n}
    return Certificate(
        low[:, :-1].clone(), high[:, :-1].clone(), units.convex[outputs], units.concave[outputs],
        units.steepest(outputs, units.joint(outputs)), low[:, -1].clone(), high[:, -1].clone(),
        unknown=tuple(sorted(reasons)),
    )  # fmt: skip


def _alike(one: Certificate, other: Certificate) -> bool:
    if one.lowest.shape != other.lowest.shape:
        return False
    names = ("lowest", "highest", "least", "most")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    pairs.append((torch.tensor(one.lipschitz), torch.tensor(other.lipschitz)))
    near = all(torch.allclose(a, b, rtol=_ALIKE, atol=_ALIKE) for a, b in pairs)
    return near and one.convex.equal(other.convex) and one.concave.equal(other.concave)


def _outputs(network: nn.Module, subject: _Subject) -> int:
    """Return how many outputs a sample has."""
    try:
        found = copy.deepcopy(network).eval()(*(torch.cat([x[:1]] * 2) for x in subject.example))
    except Exception as error:  # whatever a network of the user's says
        shapes = ", ".join(str(tuple(x.shape)) for x in subject.example)
        raise DataError(
            f"{type(network).__name__} cannot run on samples of shape {shapes}: {error}"
        ) from error
    parts = found if isinstance(found, tuple | list) else [found]
    if not all(isinstance(x, Tensor) and x.ndim and len(x) == 2 for x in parts):
        raise DataError("certify needs a network that returns a row for each sample.")
    return sum(x[0].numel() for x in parts)


def _semidefinite(found: _Found) -> float:
    """Return the bound of `semidefinite_lipschitz`."""
    outputs = found.outputs
    layers = None if outputs is None else chain(found.units, outputs)
    if layers is None:
        raise DeclarationError(
            "the semidefinite bound is for one chain of dense layers whose slopes are known."
        )
    matrices, slopes = layers
    return semidefinite_lipschitz([x.numpy() for x in matrices], slopes) * _NORM


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _first(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and how many there are more."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _numbers(which: Tensor) -> tuple[int, ...]:
    return tuple(which.nonzero().flatten().tolist())
