"""What a network is for certain, from its weights alone: monotone, convex, Lipschitz."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from liftednet.errors import DataError, DeclarationError
from liftednet.lazy import pyplot
from liftednet.validation import require_positive

from .bounds.intervals import Bent, Largest, steepest
from .bounds.reading import (
    Array,
    Found,
    Subject,
    apart,
    following_batches,
    require_box,
    subject_of,
    walked,
)
from .bounds.refutation import refute
from .programs.composition import read, readable
from .programs.halving import kinked, slopes_over
from .programs.inversion import exact_range
from .programs.lines import ranges

_UNITS = 1_500  # whose ends lines bring closer; beyond, intervals are all there is
_RAISED = 100  # steps in the slopes of these lines
_WALKS = ((2, 0), (3, 2))  # samples of each, and which of them is followed
_ALIKE = 1e-9  # bounds of both, which differ by rounding alone
_KINKED, _SMOOTH = 1e-6, 1e-3  # gaps of derivatives, of the largest
_SHOWN = 12


@dataclass(frozen=True, eq=False)
class Certificate:
    """What holds for a network at every input, in exact arithmetic with the weights it has.

    Attributes:
        lowest: of the derivative of each output in each input, (outputs, inputs); outward rounded.
        highest: the same.
        convex: outputs that are convex in all inputs together, (outputs,) booleans.
        concave: outputs that are concave, (outputs,) booleans.
        convex_in: outputs that are convex in each input while the others stand still, (outputs,
            inputs) booleans.
        concave_in: the same of concave ones.
        lipschitz: |f(x) - f(x')|_2 <= lipschitz |x - x'|_2; infinite where nothing is known.
        least: of the values of each output, (outputs,); outward rounded.
        most: the same.
        limits: those of `within=`, such as "0 <= output 1 - output 0"; scores are outputs before
            their last activation.
        unknown: calls of which nothing is known, and that outputs depend on: with their modules
            and lines.
        names: of the inputs, where they have some; of a category "column=kind" for each kind, of
            two kinds the second one's.
        box: (2, inputs), between which all of this holds; None for every input.
        attained: of exact=True, the least and the largest derivatives that are attained, beside
            lowest and highest, which they meet where the time has sufficed, (2, outputs, inputs).
        attained_at: x at which they are, (2, outputs, inputs, inputs).

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
    convex_in: Tensor
    concave_in: Tensor
    lipschitz: float
    least: Tensor
    most: Tensor
    limits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    box: Tensor | None = None
    attained: Tensor | None = None
    attained_at: Tensor | None = None

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
        names = self.names or tuple(map(str, range(inputs)))
        where = "" if self.box is None else " within the box"
        lines = [f"certified from the weights alone{where} (inputs: {inputs}, outputs: {outputs}):"]
        shapes = {
            "nondecreasing": self.lowest >= 0, "nonincreasing": self.highest <= 0,
            "convex": self.convex_in & ~self.convex[:, None],
            "concave": self.concave_in & ~self.concave[:, None],
        }  # fmt: skip
        for name, of_output in shapes.items():
            for output, row in enumerate(of_output):
                if found := _numbers(row):
                    some = _some([names[n] for n in found])
                    count = f"{len(found)} of {inputs} inputs"
                    lines.append(f"  output {output} is {name} in {count}: {some}")
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
        if self.attained is not None:
            over = torch.maximum(self.attained[0] - self.lowest, self.highest - self.attained[1])
            lines.append(f"  all derivatives to {float(over.max()):.2g} of ones that are attained")
        if self.unknown:
            lines.append("  unknown, so that nothing is claimed of what depends on it:")
            lines += [f"    {call}" for call in _first(self.unknown)]
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, output: int = 0, ax: Any = None) -> Any:
        """Draw the certified range of one output's derivative in each input.

        Args:
            output: of which.
            ax: axes of matplotlib; None for new ones.

        Returns:
            The axes; an input of which nothing is known has no bar.

        Raises:
            DataError: there is no such output.

        Example:
            >>> import torch
            >>> from liftednet import certify
            >>> axes = certify(torch.nn.Linear(2, 1)).plot()
            >>> [text.get_text() for text in axes.get_yticklabels()]
            ['input 0', 'input 1']
        """
        outputs, inputs = self.lowest.shape
        if not 0 <= output < outputs:
            raise DataError(f"output must be one of 0 to {outputs - 1}, got {output}.")
        axes = pyplot.subplots()[1] if ax is None else ax
        low, high = self.lowest[output], self.highest[output]
        known = torch.isfinite(low) & torch.isfinite(high)
        rows = torch.arange(inputs)[known]
        axes.barh(rows.numpy(), (high - low)[known].numpy(), left=low[known].numpy())
        axes.scatter((low + high)[known].numpy() / 2, rows.numpy(), color="black", s=8)
        axes.axvline(0.0, color="gray", linewidth=1)
        names = self.names or [f"input {number}" for number in range(inputs)]
        axes.set_yticks(range(inputs), names)
        axes.set_ylim(inputs - 0.5, -0.5)
        axes.set_xlabel(f"derivative of output {output}")
        return axes


@torch.inference_mode(False)
@torch.no_grad()
def certify(
    model: Any, example: Any = None, *, box: Any = None, exact: bool = False, seconds: float = 60.0
) -> Certificate:
    """Return what a fitted model or a torch network is for certain, at every input.

    The network runs once on tensors that hold bounds in place of values, so that nothing is decided
    by an example. Derivatives go through its calls as intervals: those of u = x W + b by
    [l W+ - h W-, h W+ - l W-], of phi(u) by the ends of its slopes; rounded outward in float64. An
    output is convex where it is a nonnegative combination of convex units (and a nonpositive one of
    concave ones) under convex, nondecreasing maps (Amos, Xu, Kolter, 2017): in all inputs together,
    and in each alone, where what does not move with it is a constant. The Lipschitz constant is the
    smallest one of the product of spectral norms, the norm of the largest absolute derivatives, and
    the norm of their middles plus that of their radii. Standardization is part of the network.
    Nothing is claimed of what depends on a call that is not on the list of those with
    known bounds, or on an index, a mask or an `if` that values decide: `unknown` names it. Before
    it is given, a certificate is held against derivatives and differences at some thousand points.

    Args:
        model: a fitted lifted model or estimator, of which the output of `forward` is meant (export
            it with logits=True for the last pre-activation); or a torch.nn.Module, which is taken
            as it runs in eval mode, but for batch normalizations in train mode, of which nothing
            is certain.
        example: some inputs of a torch network, such as X[:2], a tuple of several; not needed where
            the first module with weights is a torch.nn.Linear. Only shapes and types are taken of
            it, and points at which the certificate is tried.
        box: (low, high) of the inputs, each a number or (inputs,); all then holds between them, and
            is closer: slopes are those of the values that units can have, whose ends are found by
            intervals and lines (see `Certificate.least`).
        exact: whether the ends of outputs and of derivatives over the box are those that are
            attained, by branch and bound: outputs to a share of 1e-6 of what they span,
            derivatives to one of 1e-6 of the largest, or 1e-3 where units are smooth. Kinks come
            apart in boxes of few inputs, up to five or so; of more `attained` tells what is open.
        seconds: after which exact ends are left as far as they are proven, half of it for outputs.

    Raises:
        DataError: it is neither, the network cannot run, or there are sequences and no example.
        DeclarationError: a layer is too large.
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
    require_positive("seconds", seconds)
    subject = subject_of(model, example)
    inputs = sum(math.prod(x.shape[1:]) for x in subject.example)
    ends = None if box is None else require_box(box, inputs)
    network = apart(subject.network)
    first, second = (walked(network, subject, ends, *walk) for walk in _WALKS)
    found = _both(first, second, network, subject)
    if ends is not None and first.outputs is not None and not math.isinf(found.lipschitz):
        first = walked(network, subject, ends, *_WALKS[0], _closer(first, ends))
        found = _certificate(first)
    if exact:
        if following_batches(network):
            raise DeclarationError(
                "a batch normalization is in train mode, where answers depend on other rows, and "
                "nothing is exact: call eval() on the network."
            )
        found = _exact(model, found, ends, example, seconds)
    whole = None if ends is None else torch.from_numpy(np.stack(ends))
    unknown = found.unknown + subject.unknown
    found = replace(found, limits=subject.limits, names=subject.names, unknown=unknown, box=whole)
    refute(network, found, subject.example, subject.data)
    return found


def _closer(found: Found, box: tuple[Array, Array]) -> Tensor:
    """Return ends of the values of units, (2, units), that lines below and above them prove."""
    units = found.units
    assert found.outputs is not None  # it has not stopped
    ends, known = torch.stack([units.low[:, -1], units.high[:, -1]]).clone(), readable(units)
    below = [x.below.flatten() for x in units.steps.values() if isinstance(x, Bent | Largest)]
    wanted = torch.cat([*below, found.outputs]).unique()
    wanted = wanted[known[wanted]]
    if len(wanted) > _UNITS or not bool(ends[:, wanted].isfinite().all()):
        return ends
    composition = kinked(read(units, wanted))
    before = [tuple(ends[:, block.numbers].numpy()) for block in composition.blocks]
    *_, (low, high) = ranges(composition, box, steps=_RAISED, known=before)
    ends[0, wanted] = torch.maximum(ends[0, wanted], torch.from_numpy(low))
    ends[1, wanted] = torch.minimum(ends[1, wanted], torch.from_numpy(high))
    return ends


def _exact(
    model: Any, found: Certificate, box: tuple[Array, Array] | None, example: Any, seconds: float
) -> Certificate:
    """Return a certificate whose ends are those that branch and bound proves."""
    if box is None:
        raise DeclarationError("exact=True needs a box, such as box=(-1, 1).")
    until = time.perf_counter() + seconds
    low, high, network = exact_range(model, box, len(box[0]), example, seconds=seconds / 2)
    smooth = not all(x.piecewise_linear for block in network.blocks for x in block.curves)
    slopes, *reached = slopes_over(
        network, box, _SMOOTH if smooth else _KINKED, until - time.perf_counter()
    )
    least, most, lowest, highest, *attained = map(torch.from_numpy, (low, high, *slopes, *reached))
    lowest, highest = torch.maximum(found.lowest, lowest), torch.minimum(found.highest, highest)
    return replace(
        found, least=torch.maximum(found.least, least), most=torch.minimum(found.most, most),
        lowest=lowest, highest=highest, lipschitz=steepest(lowest, highest, found.lipschitz),
        attained=attained[0], attained_at=attained[1],
    )  # fmt: skip


def _both(first: Found, second: Found, network: nn.Module, subject: Subject) -> Certificate:
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
    each = torch.zeros(none.shape, dtype=torch.bool)
    most = none.new_full((outputs,), math.inf)
    return Certificate(-none, none, no, no, each, each, math.inf, -most, most, unknown=(stop,))


def _certificate(found: Found) -> Certificate:
    units, outputs = found.units, found.outputs
    assert outputs is not None  # it has not stopped
    low, high = units.low[outputs], units.high[outputs]
    convex, concave = units.convex[outputs], units.concave[outputs]
    reasons = {units.reasons[n] for n in units.reason[outputs].tolist() if n}
    return Certificate(
        low[:, :-1].clone(), high[:, :-1].clone(), convex[:, -1], concave[:, -1], convex[:, :-1],
        concave[:, :-1], units.steepest(outputs, units.joint(outputs)), low[:, -1].clone(),
        high[:, -1].clone(), unknown=tuple(sorted(reasons)),
    )  # fmt: skip


def _alike(one: Certificate, other: Certificate) -> bool:
    if one.lowest.shape != other.lowest.shape:
        return False
    names = ("lowest", "highest", "least", "most")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    pairs.append((torch.tensor(one.lipschitz), torch.tensor(other.lipschitz)))
    near = all(torch.allclose(a, b, rtol=_ALIKE, atol=_ALIKE) for a, b in pairs)
    bends = ("convex", "concave", "convex_in", "concave_in")
    return near and all(getattr(one, name).equal(getattr(other, name)) for name in bends)


def _outputs(network: nn.Module, subject: Subject) -> int:
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


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _first(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and how many there are more."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _numbers(which: Tensor) -> tuple[int, ...]:
    return tuple(which.nonzero().flatten().tolist())
