"""The loss of a network as a function of all its weights, which asks nothing else of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations import Identity, Softmax
from liftednet.divergences import Divergence, Tight
from liftednet.layers.time import delayed
from liftednet.maps import pulled_back

if TYPE_CHECKING:
    from ..compiled.recurrent import RecurrentRows


Tensors = tuple[Tensor, ...]
Product = Callable[[Tensor], Tensor]


# A network as a function of its weights, stacked matrices [W; b] or tensors of other shapes, and
# of data whose first axis is samples, none of which acts on another: the pre-activations of every
# loss, (samples, rows, outputs) each. Steps of a sequence are taken by `unbind`, and parts of a
# weight are sliced outside the loop: to go back twice through an index fills a whole tensor.
Outputs = Callable[[Tensors, Tensors], Tensors]
# The same, and [x, 1] (samples, rows of W) and u = [x, 1] W (samples, units) for every weight W,
# each of which stands in one dense layer.
Layers = Callable[[Tensors, Tensors], tuple[Tensors, Sequence[tuple[Tensor, Tensor]]]]


@dataclass(frozen=True, eq=False)
class Target:
    """weight sum D(y, u) over the rows that count: what one output of a network is held to.

    Attributes:
        divergence: whose R is smooth.
        values: y, (samples, rows, outputs); float64 from here on.
        counted: which rows count, (samples, rows) booleans; y may be anything elsewhere.
        weight: a factor of the divergence, or one for each sample, (samples, 1, 1).
        precision: of squares alone, a factor for each output, (outputs,); None for 1.
        delta: of Huber's loss, which squares are from there on; infinite of others.
        dispersed: whether answers may vary more than exp(-D) says, as counts do.
    """

    divergence: Divergence
    values: Tensor
    counted: Tensor
    weight: float | Tensor = 1.0
    precision: Tensor | None = None
    delta: float = math.inf
    dispersed: bool = False

    def __post_init__(self) -> None:
        """Keep the targets in double precision, and something finite where none counts."""
        values = torch.where(self.counted[..., None], self.values.double(), 0.0)
        object.__setattr__(self, "values", values)

    @property
    def outputs(self) -> int:
        """How many numbers a row asks for: of probabilities that add up to 1 all but the last."""
        return self.values.shape[-1] - self.divergence.balanced

    def take(self, samples: slice) -> Target:
        """Return the target of some samples."""
        weight = self.weight[samples] if isinstance(self.weight, Tensor) else self.weight
        return replace(
            self, values=self.values[samples], counted=self.counted[samples], weight=weight
        )

    def value(self, outputs: Tensor) -> Tensor:
        """Return weight sum D(y, u), a scalar."""
        rows = self._rows_by_unit if _stored_by_unit(outputs) else self._rows
        targets = self._values_by_unit if _stored_by_unit(outputs) else rows(self.values)
        answered = rows(outputs)
        if self.precision is not None:
            targets, answered = (x * self.precision.sqrt() for x in (targets, answered))
        if isinstance(self.divergence.activation, Identity):  # not y^2 / 2 - y u + u^2 / 2
            away = (answered - targets).abs()
            held = away.clamp(max=self.delta)  # of squares away itself
            each = (held * (away - held / 2)).sum(-1)
        else:
            each = self.divergence.values(targets, answered)
        if not isinstance(self.weight, Tensor):
            return self.weight * each.sum()
        weights = rows(self.weight.expand(*self.counted.shape, 1))[:, 0]
        return (weights * each).sum()

    def residuals(self, outputs: Tensor) -> Tensor:
        """Return how many residuals are within delta, their squares, how many beyond, by what."""
        away = (outputs - self.values).abs()
        if self.precision is not None:
            away = away * self.precision.sqrt()
        near, weight = away <= self.delta, self.weight * self.counted[..., None].double()
        excess = (away - self.delta).clamp(min=0)
        parts = near.double(), near * away.square(), (~near).double(), excess
        return torch.stack([(weight * part).sum() for part in parts])

    def pearson(self, outputs: Tensor) -> Tensor:
        """Return how many answers there are, sum (y - r)^2 / r of rates r, and its variance.

        A weight above 1 is that of copies, one below the time in which a rate was counted.
        """
        rates = self.divergence.link_gradient(outputs)
        weight = (self.weight * self.counted[..., None].double()).expand_as(rates)
        copies = weight.clamp(min=1) * (weight > 0)
        varied = 2 + 1 / (rates * weight.clamp(max=1)).clamp(min=torch.finfo(rates.dtype).tiny)
        away = weight * (self.values - rates).square() / rates
        return torch.stack([copies.sum(), away.sum(), (copies * varied)[weight > 0].sum()])

    def slopes(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight (grad R(u) - y), and weight grad R(u) alone, by which it is judged.

        Both are (samples, rows, outputs), 0 in rows that do not count.
        """
        answered = self._kept(self._gradient(outputs))
        slopes = answered - self._factor * self.values
        if math.isfinite(self.delta):
            slopes = self._kept((outputs - self.values).clamp(-self.delta, self.delta))
        return slopes, answered

    def curved(self, outputs: Tensor) -> Product:
        """Return the product of weight Hess R(u) with directions (samples, rows, outputs)."""
        divergence = self.divergence
        if divergence.per_unit:
            curvature = self._kept(divergence.link_curvature(outputs))
            if math.isfinite(self.delta):
                curvature = curvature * ((outputs - self.values).abs() <= self.delta)
            return lambda direction: curvature * direction
        if isinstance(divergence, Tight) and type(divergence.activation) is Softmax:
            shares = self._gradient(outputs)
            kept = self._kept(shares)
            return lambda direction: kept * (direction - (shares * direction).sum(-1, keepdim=True))
        with torch.enable_grad():
            point = outputs.detach().requires_grad_()
            slope = self._kept(divergence.link_gradient(point))

        def product(direction: Tensor) -> Tensor:  # the Hessian is its own transpose
            return pulled_back([slope], [point], [direction], retain_graph=True)[0]

        return product

    def _gradient(self, outputs: Tensor) -> Tensor:
        """Return grad R(u), stored as u is: torch is slow in sums over a few units side by side."""
        if not _stored_by_unit(outputs):
            return self.divergence.link_gradient(outputs)
        units = outputs.permute(2, 1, 0)
        found = self.divergence.link_gradient(units.flatten(1).T)
        return found.T.reshape(units.shape).permute(2, 1, 0)

    def _kept(self, rows: Tensor) -> Tensor:
        return torch.where(self.counted[..., None], self._factor * rows, 0.0)

    @cached_property
    def _factor(self) -> float | Tensor:
        """The weight, for each output where these differ."""
        return self.weight if self.precision is None else self.weight * self.precision

    def _rows(self, entries: Tensor) -> Tensor:
        """Return what (samples, rows, entries) have in rows that count, (those, entries)."""
        return entries.flatten(0, 1) if self._all_count else entries[self.counted]

    def _rows_by_unit(self, entries: Tensor) -> Tensor:
        """Return the same in another order, one entry of all rows after another."""
        units = entries.permute(2, 1, 0)
        return (units.flatten(1) if self._all_count else units[:, self.counted.T]).T

    @cached_property
    def _all_count(self) -> bool:
        return bool(self.counted.all())

    @cached_property
    def _values_by_unit(self) -> Tensor:
        return self._rows_by_unit(self.values)


def _stored_by_unit(rows: Tensor) -> bool:
    """Say whether (samples, rows, outputs) stand one output of all rows after another."""
    return rows.stride(2) > max(rows.stride()[:2])


@dataclass(frozen=True, eq=False)
class Forward:
    """sum over targets of D(y, u(weights)) + sum (pull / 2) weights^2, in double precision.

    The weights may be held between ends, lowest <= weights <= highest.

    A point is all weights in one vector (parameters,), float64, one matrix after another.

    Attributes:
        outputs: the network.
        data: its tensors, finite, the first axis of each samples; float64 from here on.
        targets: one for each output.
        pull: 2 rho of every weight, shaped as the weights, 0 for biases.
        layers: the network with what its layers see; None where it is not of dense layers alone.
        recurrent: phi, which acts unit by unit, where with weights P, Q and data x, (samples,
            steps, features), and lengths it is h_t = phi([h_(t-1), x_t, 1] P), u_t = [h_t, 1] Q.
        last: whether its rows are those of the last step of each sequence alone.
        ends: lowest and highest, (parameters,) each, infinite where there is none; None where
            weights are free.
        kinked: whether layers are dense or one is recurrent, some linear in pieces, as ReLU's.
        perturbed: whether kinks are crossed with noise on the weights, too, which takes some ten
            thousand passes.
        hidden: numbers of the weights below and above units that nothing else reads, all kinked,
            both with biases, in dense layers.
    """

    outputs: Outputs
    data: Tensors
    targets: tuple[Target, ...]
    pull: Tensors
    layers: Layers | None = None
    recurrent: Activation | None = None
    last: bool = False
    ends: tuple[Tensor, Tensor] | None = None
    kinked: bool = False
    perturbed: bool = False
    hidden: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Bring the data to double precision."""
        data = tuple(part.double() if part.is_floating_point() else part for part in self.data)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "pull", tuple(part.double() for part in self.pull))

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.data[0])

    @property
    def squared(self) -> bool:
        """Whether the losses are squares, whose noise is not known."""
        return all(isinstance(target.divergence.activation, Identity) for target in self.targets)

    @cached_property
    def pulls(self) -> Tensor:
        """2 rho of every weight as one vector, (parameters,)."""
        return joined(self.pull)

    def take(self, samples: slice) -> Forward:
        """Return the same for some samples, penalty included."""
        data = tuple(part[samples] for part in self.data)
        targets = tuple(target.take(samples) for target in self.targets)
        return replace(self, data=data, targets=targets)

    def split(self, point: Tensor) -> Tensors:
        """Return the weights of a point, views of it."""
        parts = point.split_with_sizes([part.numel() for part in self.pull])
        return tuple(part.view_as(like) for part, like in zip(parts, self.pull, strict=True))

    @cached_property
    def rows(self) -> RecurrentRows | None:
        """Compiled loops over a recurrent network, where there are any."""
        from ..compiled.recurrent import RecurrentRows

        return RecurrentRows(self) if RecurrentRows.serves(self) else None

    def at(self, weights: Tensors) -> Tensors:
        """Return the outputs at weights, each (samples, rows, outputs)."""
        return self.outputs(weights, self.data)

    @torch.no_grad()
    def passed(self, point: Tensor) -> Tensors:
        """Return the outputs at a point, which nothing is differentiated through.

        Those of the last point are kept: a step that was judged is corrected by them.
        """
        known, last = self.__dict__.get("_last", (None, ()))
        if known is not None and torch.equal(known, point):
            return tuple(last)
        weights = self.split(point)
        outputs = self.at(weights) if self.rows is None else (self.rows.outputs(weights),)
        self.__dict__["_last"] = point.clone(), outputs
        return outputs

    @torch.no_grad()
    def objective(self, point: Tensor) -> float:
        """Return the value at a point; NaN or infinite where the network overflows."""
        found = zip(self.targets, self.passed(point), strict=True)
        loss = processes.total_of(sum(float(target.value(outputs)) for target, outputs in found))
        return loss + float((self.pulls * point * point).sum()) / 2

    def within(self, point: Tensor) -> Tensor:
        """Return the nearest point between the ends."""
        return point if self.ends is None else point.clamp(*self.ends)

    def held(self, point: Tensor, gradient: Tensor) -> Tensor | None:
        """Return which weights rest on an end that they are pushed against; None where none can."""
        if self.ends is None:
            return None
        lowest, highest = self.ends
        below, above = point <= lowest, point >= highest
        return (below & (gradient > 0)) | (above & (gradient < 0)) | (below & above)

    def decrease(self, point: Tensor, before: float, step: Tensor) -> float:
        """Return by how much a step lowers the objective, which is `before` at the point."""
        return before - self.objective(self.within(point + step))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after another as one vector (parameters,), float64."""
    return torch.cat([part.detach().double().flatten() for part in parts])


def recurrence(drive: Tensor, weight: Tensor, activate: Product) -> Tensor:
    """Return h_t = phi(h_(t-1) W + d_t) of all steps, (steps, samples, units), after h = 0.

    Lifted Recurrent Neural Networks, section 3. It is differentiated step by step, but in a
    `TorchFunctionMode` that takes it as a whole, as `Linearized` does.

    Args:
        drive: d, (steps, samples, pre-activations).
        weight: W, (units, pre-activations).
        activate: phi.
    """
    if has_torch_function((drive, weight)):
        return handle_torch_function(recurrence, (drive, weight), drive, weight, activate)
    row, rows = drive.new_zeros(*drive.shape[1:-1], len(weight)), []
    for driven in drive:
        row = activate(torch.addmm(driven, row, weight))
        rows.append(row)
    return torch.stack(rows)


class LinearRecurrence(torch.autograd.Function):
    """`recurrence` for a phi that acts unit by unit, whose backward pass is one loop.

    That pass is linear in what comes back to the states, and can be differentiated in it: this is
    the product with the Jacobian. It cannot be in the weights.
    """

    @staticmethod
    def forward(ctx: Any, drive: Tensor, weight: Tensor, activate: Product) -> Tensor:
        """Return the states."""
        rows = recurrence(drive, weight, activate)
        before = delayed(rows)
        with torch.enable_grad():
            u = (drive + before @ weight).requires_grad_()
            (slopes,) = torch.autograd.grad(activate(u).sum(), u)
        ctx.save_for_backward(before, slopes, weight)
        return rows

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return what pushes on the states ask of d and W."""
        before, slopes, weight = (saved.detach() for saved in ctx.saved_tensors)
        asked: Tensor = _Asked.apply(pushes[0], slopes, weight)  # type: ignore[no-untyped-call]
        return asked, before.flatten(0, 1).T @ asked.flatten(0, 1), None


class _Asked(torch.autograd.Function):
    """l_t = phi'(u_t) (p_t + l_(t+1) W'), a linear map of the pushes p."""

    @staticmethod
    def forward(ctx: Any, pushes: Tensor, slopes: Tensor, weight: Tensor) -> Tensor:
        """Return l of all steps."""
        ctx.save_for_backward(slopes, weight)
        return torch.stack(
            _chained(reversed(pushes.unbind()), reversed(slopes.unbind()), weight.T)[::-1]
        )

    @staticmethod
    def backward(ctx: Any, *moves: Tensor) -> tuple[Tensor, None, None]:
        """Return the transposed map: how states move with their pre-activations."""
        slopes, weight = ctx.saved_tensors
        return torch.stack(_chained(moves[0], slopes, weight)), None, None


def _chained(terms: Iterable[Tensor], slopes: Iterable[Tensor], weight: Tensor) -> list[Tensor]:
    """Return r_t = s_t (x_t + r_(t-1) W), one step after another."""
    found: list[Tensor] = []
    for term, slope in zip(terms, slopes, strict=True):
        found.append(slope * (torch.addmm(term, found[-1], weight) if found else term))
    return found
