"""Drawn torch modules, and certificates of them held against their derivatives and differences.

The judge knows nothing of how certificates come about: it samples points of its own, and asks for
differences along axes, whole Jacobians by differences, middles, and the points around kinks.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from liftednet import certify
from tests.torture.report import Finding

_MODULES = 3000
_PROMISE = (
    "no derivative, difference, middle or value at some thousand points contradicts what the "
    "certificate claims, and no certificate is refuted by itself"
)
Step = Callable[[Tensor], Tensor]
Draw = random.Random


def findings(share: float) -> list[Finding]:
    """Return what a share of the modules found."""
    most, wrong, known = round(_MODULES * share), [], 0
    for seed in range(most):
        said, reason = verdict(seed)
        known += said
        if reason:
            wrong.append(f"seed {seed}: {reason}")
    what = f"certificates of torch modules, {known:,} with claims"
    return [Finding(what, most, len(wrong), _PROMISE, wrong[0] if wrong else "")]


def verdict(seed: int) -> tuple[bool, str]:
    """Return whether anything was claimed of a drawn module, and what is wrong about it, or ""."""
    network, box = drawn(seed)
    try:
        claim = certify(network, torch.zeros(2, INPUTS, dtype=network.dtype), box=box)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    known = claim.lipschitz < torch.inf or bool(claim.convex.any() | claim.concave.any())
    return known, contradiction(network.eval(), claim, seed, network.dtype)


# Modules.

INPUTS, WIDTH = 4, 6


class Drawn(nn.Module):
    """Steps on (samples, units), one after another."""

    def __init__(self, steps: list[Step], dtype: torch.dtype) -> None:
        super().__init__()
        self.steps, self.dtype = steps, dtype
        self.inside = nn.ModuleList(x for x in steps if isinstance(x, nn.Module))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for step in self.steps:
            h = step(h)
        return h


class _Affine(nn.Module):
    """W h + b, some of which is frozen, shared, or made of other parameters."""

    def __init__(self, draw: Draw, below: int) -> None:
        super().__init__()
        self.layer = nn.Linear(below, WIDTH, bias=draw.random() < 0.8)
        kind = draw.choice(["plain", "plain", "weight", "spectral", "positive", "frozen"])
        if kind == "weight":
            parametrizations.weight_norm(self.layer)
        elif kind == "spectral":
            parametrizations.spectral_norm(self.layer)
        elif kind == "positive":
            with torch.no_grad():
                self.layer.weight.abs_()
        elif kind == "frozen":
            self.layer.requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h)


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU, nn.ReLU6, nn.Softsign, nn.LogSigmoid,
    nn.Softshrink, nn.Tanhshrink, nn.Hardshrink, nn.PReLU, lambda: nn.Softplus(2.0, 40.0),
    lambda: nn.ELU(2.0), lambda: nn.GELU(approximate="tanh"), lambda: nn.Threshold(0.3, 0.0),
    lambda: nn.ReLU(inplace=True), lambda: nn.Softmax(-1), lambda: nn.LogSoftmax(-1),
    lambda: nn.LayerNorm(WIDTH), lambda: nn.BatchNorm1d(WIDTH).eval(), lambda: nn.Dropout(0.5),
]  # fmt: skip


def _written(change: Callable[[Tensor], Any]) -> Step:
    def step(h: Tensor) -> Tensor:
        h = h + 0.0
        change(h)
        return h

    return step


def _put(h: Tensor, columns: Any, value: Any) -> None:
    h[:, columns] = value


CHANGES: list[Callable[[Tensor], Any]] = [
    lambda h: h[:, :1].relu_(), lambda h: h[:, 1:3].abs_(), lambda h: h[:, ::2].mul_(-1.0),
    lambda h: h.data.mul_(-0.5), lambda h: h[:, 0].copy_(h[:, 1].clone()),
    lambda h: h[:, :2].add_(h[:, 2:4]), lambda h: h.t()[0].neg_(), lambda h: h.clamp_(-1.0, 0.5),
    lambda h: _put(h, 0, h[:, 1].tanh()), lambda h: _put(h, [0, 2], 0.0),
    lambda h: h.view(-1, 2, 3)[:, 0].sigmoid_(), lambda h: h.masked_fill_(h < 0.2, 0.0),
    lambda h: h[h > 0].neg_(), lambda h: h.select(1, 0).fill_(2.0), lambda h: h.detach().abs_(),
    lambda h: h.unbind(1)[2].mul_(3.0), lambda h: h.index_put_((torch.tensor([0]),), h[1].clone()),
    lambda h: h.index_fill_(1, torch.tensor([1]), 0.0), lambda h: h[:, 1:].sub_(h[:, :-1].clone()),
]  # fmt: skip
IN_PLACE = [_written(change) for change in CHANGES]


def _attended(h: Tensor) -> Tensor:
    parts: Tensor = h.unflatten(1, (3, 2))
    return (torch.softmax(parts @ parts.mT, -1) @ parts).flatten(1)


VALUED: list[Step] = [
    _attended, lambda h: h[:, torch.tensor([3, 1, 0, 0, 5, 2])], lambda h: h.flip(1),
    lambda h: h.sort(1).values, lambda h: h.cummax(1).values, lambda h: h - h.mean(0),
    lambda h: h.roll(1, 0), lambda h: h * torch.arange(len(h))[:, None], lambda h: h.round(),
    lambda h: h.half().to(h.dtype), lambda h: h.sign() * h, lambda h: h + 0.1 * torch.rand(WIDTH),
    lambda h: h * torch.tensor(h.tolist()).to(h), lambda h: h / (1 + h.abs()), lambda h: h * h,
    lambda h: h.sigmoid() * h.tanh(), lambda h: h * h.flip(1), lambda h: h.square(),
    lambda h: h.amax(1, keepdim=True) - h, lambda h: h.logsumexp(1, keepdim=True) + h,
    lambda h: torch.maximum(h, h.flip(1)), lambda h: torch.minimum(h, 0.5 * h),
    lambda h: torch.cat([h[:, :3], h[:, :3].relu()], 1), lambda h: h + h.relu(),
    lambda h: 0.1 * h - 0.3, lambda h: h.cumsum(1), lambda h: h.exp(), lambda h: h.sin(),
    lambda h: h.remainder(1.0),
    lambda h: torch.einsum("ni,io->no", h, torch.eye(WIDTH).to(h) - 0.2), lambda h: h.erf(),
    lambda h: torch.lerp(h, h.relu(), 0.3), lambda h: h.norm(dim=1, keepdim=True) * h,
    lambda h: h.abs().sqrt(),
]  # fmt: skip


def drawn(seed: int) -> tuple[Drawn, Any]:
    """Return a module, and a box of its inputs or None."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = draw.choice([torch.float32, torch.float64])
    shared = nn.Linear(WIDTH, WIDTH)
    steps: list[Step] = [_Affine(draw, INPUTS)]
    for _ in range(draw.randint(1, 4)):
        steps.append(_step(draw, shared))
    if draw.random() < 0.8:
        steps.append(nn.Linear(WIDTH, draw.choice([1, 2])))
    network = Drawn(steps, dtype)
    if draw.random() < 0.5:
        network.eval()
    box = (-1.0, draw.choice([0.5, 2.0])) if draw.random() < 0.3 else None
    return network, box


def _step(draw: Draw, shared: nn.Module) -> Step:
    kind = draw.random()
    if kind < 0.15:
        return _Affine(draw, WIDTH)
    if kind < 0.2:
        return shared
    if kind < 0.55:
        return draw.choice(ACTIVATIONS)()
    return draw.choice(draw.choice([IN_PLACE, VALUED, VALUED]))


# The judge.


@torch.no_grad()
def contradiction(network: Step, claim: Any, seed: int, dtype: torch.dtype = torch.float64) -> str:
    """Return what points say against a certificate, or ""."""
    generator, inputs = torch.Generator().manual_seed(seed + 10_000), claim.lowest.shape[1]
    scale = 10 ** (4 * torch.rand(300, 1, generator=generator) - 2)
    x = (scale * torch.randn(300, inputs, generator=generator)).double()
    if claim.box is not None:
        low, high = claim.box
        x = low + (high - low) * torch.rand(300, inputs, generator=generator).double()

    def run(points: Tensor) -> Tensor:
        return network(points.to(dtype, copy=True)).reshape(len(points), -1).double()

    def inside(points: Tensor) -> Tensor:
        kept = points if claim.box is None else points.clamp(*claim.box)
        return kept.to(dtype).double()

    x = inside(x)
    length = 10 ** (4 * torch.rand(300, 1, generator=generator).double() - 3)
    others = [inside(x[torch.randperm(300, generator=generator)])]
    for axis in torch.eye(inputs).double():
        others.append(inside(x + length * axis))
    try:
        a = run(x)
    except Exception:
        return "" if claim.unknown else "the network cannot run"
    eps = 1e-10 if dtype is torch.float64 else 3e-5
    for y in others:
        b, middle = run(y), run(inside((x + y) / 2))
        kept = (a.isfinite() & b.isfinite() & middle.isfinite()).all(1) & (x != y).any(1)
        if bool(kept.any()):
            parts = (part[kept] for part in (x, y, a, b, middle))
            if reason := _of_pairs(claim, eps, *parts):
                return reason
    return ""


def _of_pairs(
    claim: Any, eps: float, x: Tensor, y: Tensor, a: Tensor, b: Tensor, middle: Tensor
) -> str:
    """Return what differences between x and y say, of outputs a and b, or ""."""
    steep = min(claim.lipschitz, 1e6)
    size = torch.stack([a, b, middle]).abs().amax() + steep * torch.maximum(x, y).abs().amax()
    room, step, rise = 4 * eps * size + 1e-300, y - x, b - a
    low, high = torch.zeros_like(rise), torch.zeros_like(rise)
    for axis in range(x.shape[1]):
        ends = torch.stack([claim.lowest[:, axis], claim.highest[:, axis]])[:, None]
        both = (ends * step[:, axis, None]).nan_to_num(0.0, torch.inf, -torch.inf)
        low, high = low + both.amin(0), high + both.amax(0)
    known = claim.lowest.isfinite().all(1) & claim.highest.isfinite().all(1)
    told = known | ((claim.lowest >= 0) | (claim.highest <= 0)).any(1)
    if bool(((rise < low - room - eps * low.abs()) & told).any()):
        return "it falls by more than is claimed"
    if bool(((rise > high + room + eps * high.abs()) & told).any()):
        return "it rises by more than is claimed"
    if bool((rise.norm(dim=1) > claim.lipschitz * (1 + eps) * step.norm(dim=1) + 2 * room).any()):
        return "it moves by more than the Lipschitz constant allows"
    bend = (a + b) / 2 - middle
    if bool(((bend < -room) & claim.convex).any()):
        return "it is not convex"
    if bool(((bend > room) & claim.concave).any()):
        return "it is not concave"
    if bool(((b < claim.least - room) | (b > claim.most + room)).any()):
        return "a value is outside of its ends"
    return ""
