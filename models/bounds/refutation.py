"""A certificate held against the network itself, at points where it would fail if it were wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from liftednet.errors import LiftedError

if TYPE_CHECKING:
    from ..certificate import Certificate

_SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
_OF_EACH = 8  # points
_ROWS = 24  # of the example and of the data
_OUTPUTS = 24  # whose derivatives are taken
_MANY, _NUMBERS = 1000, 4_000_000  # rows of a large batch, and numbers in it, but for kinks
_SEGMENTS, _CUTS, _ROUNDS = 16, 16, 9  # by which kinks are closed in on: to 1e-9 of a segment
# What a network's values and derivatives may be off by in float64, relative to the largest: torch's
# derivative of a hardsigmoid has 1/6 in float32. Of a network with float32 weights parametrizations
# are computed anew, and its softplus jumps by 2e-9.
_OFF = {torch.float64: (1e-10, 1e-7), torch.float32: (1e-6, 1e-5)}
_AGREE = 1e-3  # that differences along a gradient may be off its norm, relative
_SCALE = 1e-3  # of inputs that are 0
_COARSE = (1e-3, 1e-2)  # of a network that cannot run in float64


@torch.no_grad()
def refute(
    network: nn.Module, claim: Certificate, example: Sequence[Tensor], data: Sequence[Tensor] | None
) -> None:
    """Raise `LiftedError` with the first point at which a network contradicts its certificate.

    Derivatives by autograd, differences, middles and values are taken at normal draws of five
    scales (uniform ones in a box), at the example, at training inputs, and on both sides of kinks
    and jumps, which are closed in on along segments between the points. Answers must be the same
    by rows, in a large batch, and where gradients are taken.

    Args:
        network: in eval mode.
        claim: its certificate.
        example: of each input, (samples, ...).
        data: the same of training, or None.
    """
    silent = math.isinf(claim.lipschitz) and not bool(
        claim.lowest.isfinite().any() | claim.highest.isfinite().any()
        | claim.convex.any() | claim.concave.any() | claim.convex_in.any() | claim.concave_in.any()
    )  # fmt: skip
    if silent:
        return
    fine, off = _double(network, example)
    if claim.limits:  # a projection meets its limits to 1e-9
        off = max(off, _OFF[torch.float32])
    trial = _Trial(fine, off, claim, example)
    points = _points(claim, example, data)
    others = points[torch.randperm(len(points), generator=_generator(1))]
    steps = _steps(points, claim)
    trial.one_function(points)
    trial.values_within(points)
    trial.pairs(points, others)
    trial.pairs(points, steps)
    trial.derivatives(points)
    kinks = trial.kinks(points, others)
    if bool(claim.convex_in.any() | claim.concave_in.any()):
        kinks += trial.kinks(points, steps)
    for one, other in kinks:
        trial.pairs(one, other)
        trial.derivatives(torch.cat([one, other]))


def _double(network: nn.Module, example: Sequence[Tensor]) -> tuple[nn.Module, tuple[float, float]]:
    """Return the network in float64, where it runs so, and what it may be off by."""
    like = next((x for x in network.parameters() if x.is_floating_point()), example[0])
    try:
        fine = copy.deepcopy(network).double()
        found = fine(*(x[:2].double() if x.is_floating_point() else x[:2] for x in example))
        if all(x.dtype is torch.float64 for x in _parts(found)):
            return fine, _OFF.get(like.dtype, _OFF[torch.float32])
    except Exception:  # whatever a network says that makes its own float32
        pass
    return network, _COARSE


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _parts(found: Any) -> Sequence[Tensor]:
    return found if isinstance(found, tuple | list) else [found]


def _points(claim: Certificate, example: Sequence[Tensor], data: Sequence[Tensor] | None) -> Tensor:
    """Return points (n, inputs) in float64."""
    inputs = claim.lowest.shape[1]
    draw = _generator(0)
    given = []
    for rows in (example, data or ()):
        if rows:
            some = torch.cat([x.double().flatten(1) for x in rows], 1)
            given.append(some[torch.randperm(len(some), generator=draw)[:_ROWS]])
    known = torch.cat(given)
    shape = (_OF_EACH, inputs)
    if claim.box is None:
        center, scale = torch.zeros(inputs).double(), torch.ones(inputs).double()
        if data:
            center, scale = known.mean(0), known.std(0, correction=0)
        normal = [
            center + s * (scale + (scale == 0)) * torch.randn(shape, generator=draw).double()
            for s in _SCALES
        ]
        plain = [s * torch.randn(shape, generator=draw).double() for s in _SCALES] if data else []
        found = torch.cat([known, torch.zeros(1, inputs).double(), *normal, *plain])
    else:
        low, high = claim.box
        shape = (_OF_EACH * len(_SCALES), inputs)
        uniform = torch.rand(shape, generator=draw).double()
        corners = (torch.rand(shape, generator=draw) < 0.5).double()
        inside = low + torch.cat([uniform, corners]) * (high - low)
        found = torch.cat([inside, known]).clamp(low, high)
    return found[found.isfinite().all(1)]


def _steps(points: Tensor, claim: Certificate) -> Tensor:
    """Return points beside others, along one axis each."""
    draw = _generator(2)
    axis = torch.randint(points.shape[1], (len(points), 1), generator=draw)
    size = points.abs().amax(1, keepdim=True) + 1e-3
    share = torch.rand(len(points), 1, generator=draw).double() * 4 - 3  # 1e-3 to 10
    moved = points.scatter_add(1, axis, size * 10**share)
    return moved if claim.box is None else moved.clamp(claim.box[0], claim.box[1])


@dataclass
class _Trial:
    """A network and what is claimed of it.

    Attributes:
        network: as it runs.
        off: what values and derivatives may be off by, relative.
        claim: the certificate.
        example: for shapes, types, and inputs of whole numbers.
    """

    network: nn.Module
    off: tuple[float, float]
    claim: Certificate
    example: Sequence[Tensor]

    def run(self, points: Tensor) -> Tensor:
        """Return the outputs (n, outputs) at points (n, inputs)."""
        like = next((x for x in self.network.parameters() if x.is_floating_point()), points)
        given = []
        for x, part in zip(
            self.example, points.split([x[0].numel() for x in self.example], 1), strict=True
        ):
            if x.is_floating_point():
                given.append(part.reshape(-1, *x.shape[1:]).to(like.dtype, copy=True))
            else:
                given.append(x[torch.arange(len(points)) % len(x)])
        found = [x.reshape(len(points), -1) for x in _parts(self.network(*given))]
        return torch.cat(found, 1).double()

    def one_function(self, points: Tensor) -> None:
        """Hold answers against those of other batches, and those while gradients are taken."""
        points = points[::4]
        found = self.run(points)
        others = []
        with torch.enable_grad(), suppress(RuntimeError):  # of writes to one of several views
            others = [("where gradients are taken", self.run(points).detach())]
        if all(x.is_floating_point() for x in self.example):  # whole numbers go by the row
            rows = max(_SEGMENTS * _CUTS, min(_MANY, _NUMBERS // points.shape[1]))
            many = points.repeat(rows // len(points) + 1, 1)
            alone = torch.cat([self.run(row[None]) for row in points])
            others += [
                (f"in a batch of {len(many)}", self.run(many)[: len(points)]), ("alone", alone)
            ]  # fmt: skip
        for where, other in others:
            bad = (found - other).abs() > 2 * self._slack(found, other).max()
            for n, output in bad.nonzero()[:1].tolist():
                self._contradict(
                    points[n],
                    f"output {output} is {found[n, output]:.9g} in a batch of {len(points)}, and "
                    f"{other[n, output]:.9g} {where}", "one value",
                )  # fmt: skip

    def values_within(self, points: Tensor) -> None:
        """Hold the ends of values against values."""
        found = self.run(points)
        slack = self._slack(found)
        low, high = self.claim.least, self.claim.most
        bad = ((found < low - slack) | (found > high + slack)) & found.isfinite()
        for n, output in bad.nonzero()[:1].tolist():
            self._contradict(
                points[n], f"the value of output {output} is {found[n, output]:.9g}",
                f"{low[output]:.9g} to {high[output]:.9g}",
            )  # fmt: skip

    def _slack(self, *values: Tensor) -> Tensor:
        whole = torch.cat(values).abs()
        return self.off[0] * (whole.masked_fill(~whole.isfinite(), 0.0).amax(0) + 1e-300)

    def pairs(self, one: Tensor, other: Tensor) -> None:
        """Hold differences between points, and values in the middle, against the claim."""
        a, b, middle = (self.run(x) for x in (one, other, (one + other) / 2))
        slack, step = self._slack(a, b, middle), other - one
        known = (a.isfinite() & b.isfinite() & middle.isfinite()).all(1)
        rise = (b - a).masked_fill(~known[:, None], 0.0)
        ends = [(end * step[:, None]).nan_to_num(0.0, math.inf, -math.inf)
                for end in (self.claim.lowest, self.claim.highest)]  # fmt: skip
        low, high = torch.minimum(*ends).sum(-1), torch.maximum(*ends).sum(-1)
        room = 2 * slack + self.off[1] * torch.maximum(low.abs(), high.abs()).nan_to_num(
            0.0, 0.0, 0.0)  # fmt: skip
        told = (self.claim.lowest.isfinite() | self.claim.highest.isfinite()).any(1)
        bad = ((rise < low - room) | (rise > high + room)) & known[:, None] & told
        for n, output in bad.nonzero()[:1].tolist():
            self._contradict(
                one[n], f"to {_shown(other[n])} output {output} moves by {rise[n, output]:.9g}",
                f"{low[n, output]:.9g} to {high[n, output]:.9g}",
            )  # fmt: skip
        far, length = rise.norm(dim=1), step.norm(dim=1)
        bound = self.claim.lipschitz
        most = bound * length if math.isfinite(bound) else torch.full_like(length, math.inf)
        steep = far > most * (1 + self.off[1]) + 2 * slack.norm()
        for n in steep.nonzero().flatten()[:1].tolist():
            self._contradict(
                one[n], f"to {_shown(other[n])} outputs move by {far[n]:.9g}", f"{most[n]:.9g}"
            )
        bend = ((a + b) / 2 - middle).masked_fill(~known[:, None], 0.0)
        alone, axis = ((step != 0).sum(1, keepdim=True) == 1), step.abs().argmax(1)
        for kind, whole, each, sign in (
            ("convex", self.claim.convex, self.claim.convex_in, 1),
            ("concave", self.claim.concave, self.claim.concave_in, -1),
        ):
            which = whole | (alone & each[:, axis].T)
            for n, output in ((sign * bend < -2 * slack) & which).nonzero()[:1].tolist():
                self._contradict(
                    (one[n] + other[n]) / 2,
                    f"output {output} is off the middle of its values at both sides, towards "
                    f"{_shown(other[n])}, by {bend[n, output]:.9g}", kind,
                )  # fmt: skip

    def derivatives(self, points: Tensor) -> None:
        """Hold derivatives by autograd against the claim."""
        x = points.detach().clone().requires_grad_()
        which = torch.randperm(len(self.claim.lowest), generator=_generator(3))
        which = which[:_OUTPUTS].sort().values
        try:
            with torch.enable_grad():
                found = self.run(x)
                sums = [found[:, n].sum() for n in which]
                rows = [
                    torch.autograd.grad(one, x, retain_graph=True, materialize_grads=True)[0]
                    for one in sums
                ]
        except RuntimeError:  # no autograd here, as behind a write to one of several views
            return
        jacobians = torch.stack(rows, 1).detach()
        jacobians = jacobians.masked_fill(~jacobians.isfinite(), math.nan)
        largest = jacobians.nan_to_num(0.0).abs().amax()
        low, high = self.claim.lowest[which], self.claim.highest[which]
        # of saturated units 1 - phi has lost what is less than values are rounded by
        hidden = self._slack(found.detach()).max() / (float(points.abs().max()) + _SCALE)
        room = self.off[1] * largest + hidden
        bad = (jacobians < low - room) | (jacobians > high + room)
        for n, output, axis in bad.nonzero()[:20].tolist():
            number, value = int(which[output]), float(jacobians[n, output, axis])
            if self._is_gradient(points[n], number, jacobians[n, output]):
                self._contradict(
                    points[n],
                    f"the derivative of output {number} in input {axis} is {value:.9g}",
                    f"{low[output, axis]:.9g} to {high[output, axis]:.9g}",
                )

    def _is_gradient(self, point: Tensor, output: int, gradient: Tensor) -> bool:
        """Say whether differences agree: autograd may be of another function, as behind .data."""
        steepest = float(gradient.norm())
        if steepest == 0:  # differences between points have told what is flat
            return False
        for share in (1e-6, 1e-5, 1e-4, 1e-3):
            size = share * (float(point.abs().max()) + _SCALE)
            beside = torch.stack(
                [point - size * gradient / steepest, point + size * gradient / steepest]
            )
            low, high = self.run(beside)[:, output].tolist()
            if abs((high - low) / (2 * size) - steepest) <= _AGREE * steepest:
                return True
        return False

    def kinks(self, one: Tensor, other: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return points on both sides of what is least straight along segments."""
        apart = ((one - other) != 0).any(1).nonzero().flatten()
        some = apart[torch.randperm(len(apart), generator=_generator(4))[:_SEGMENTS]]
        start, end = one[some], other[some]
        if not len(some):
            return []
        share = torch.linspace(0, 1, _CUTS + 1).double()[:, None, None]
        found = []
        for round_ in range(_ROUNDS):
            grid = start + share * (end - start)
            values = self.run(grid.flatten(0, 1)).reshape(_CUTS + 1, len(some), -1)
            bend = (values[2:] - 2 * values[1:-1] + values[:-2]).nan_to_num(0.0).norm(dim=-1)
            at = bend.argmax(0)
            column = torch.arange(len(some))
            start, end = grid[at, column], grid[at + 2, column]
            if round_ in (0, 3, _ROUNDS - 1):
                found.append((start, end))
        return found

    def _contradict(self, point: Tensor, seen: str, claimed: str) -> None:
        raise LiftedError(
            f"the certificate is refuted at x = {_shown(point)}: {seen}, and {claimed} was derived "
            "from the weights. Nothing is certified of this network; one of its calls does other "
            "things than it is known for."
        )


def _shown(point: Tensor) -> str:
    some = ", ".join(f"{x:.9g}" for x in point[:12].tolist())
    return f"({some}{', ...' if len(point) > 12 else ''})"
