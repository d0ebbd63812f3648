"""Calls that are followed through views, writes and hooks, and those that are unknown."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from liftednet import certify
from liftednet.errors import DataError
from tests.models.networks import refuses
from tests.models.programs.networks import slopes_are
from tests.torture.modules import verdict


class Step(nn.Module):
    """One call on what a linear layer makes."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.step = nn.Linear(3, 4).double(), step

    def forward(self, x):
        return self.step(self.layer(x))


def changed(change):
    def step(h):
        change(h)
        return h

    return step


def by_error(h):
    try:
        return h * float(h[0, 0])
    except Exception:  # it takes another way where it is followed
        return h


UNKNOWN: dict[str, Any] = {
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "gather": lambda h: h.gather(1, h.argsort(1)),
    "embedding": lambda h: functional.embedding(h.argmax(1), torch.eye(4).double()),
    "embedding_bag": lambda h: functional.embedding_bag(
        (h > 0).long(), torch.eye(4).double(), mode="sum"),
    "getitem": lambda h: h[torch.arange(len(h)), (h > 0).sum(1) - 1],
    "where": lambda h: torch.where(h > 0, h, -h),
    "mul": lambda h: h * (h > 0),
    "bool": lambda h: h if bool(h.sum() > 0) else -h,
    "tolist": lambda h: h * len(h.tolist()),
    "numpy": lambda h: torch.from_numpy(h.detach().numpy()),
    "float": by_error,
    "rand": lambda h: h + torch.rand(4),
    "round": lambda h: h.round(),
    "to": lambda h: h.to(torch.float32).double(),
    "softplus": lambda h: functional.softplus(h),  # falls by 2e-9 at 20
    "sort": lambda h: h.sort(1).values,
    "a call that mixes samples": lambda h: h.roll(1, 0),
    "the network computes other things": lambda h: h * torch.arange(len(h))[:, None],
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_values_decide_is_unknown_and_named_with_its_line(name):
    claim = certify(Step(UNKNOWN[name]))
    assert claim.lipschitz == math.inf and not (claim.convex | claim.concave).any()
    assert not claim.lowest.isfinite().any() and not claim.highest.isfinite().any()
    (call,) = claim.unknown
    expected = name if " " in name else f"{name} in the network (test_calls.py:"
    assert call.startswith(expected) and expected in str(claim)


WRITES: dict[str, Any] = {
    "relu_": (lambda h: h[:, :1].relu_(), [0.0, 1, 1, 1], [1.0, 1, 1, 1]),
    "abs_": (lambda h: h[:, :1].abs_(), [-1.0, 1, 1, 1], [1.0, 1, 1, 1]),
    "mul_": (lambda h: h[:, :1].mul_(-1), [-1.0, 1, 1, 1], [-1.0, 1, 1, 1]),
    "data": (lambda h: h.data.mul_(-2), [-2.0] * 4, [-2.0] * 4),
    "detach": (lambda h: h.detach()[:, 2:].neg_(), [1.0, 1, -1, -1], [1.0, 1, -1, -1]),
    "transposed": (lambda h: h.t()[1].mul_(3), [1.0, 3, 1, 1], [1.0, 3, 1, 1]),
    "view": (lambda h: h.view(-1, 2, 2)[:, 1].clamp_(-1, 1), [1.0, 1, 0, 0], [1.0] * 4),
    "set": (lambda h: setattr(h, "data", -h), [-1.0] * 4, [-1.0] * 4),
    "item": (lambda h: h.__setitem__((slice(None), 0), 7.0), [0.0, 1, 1, 1], [0.0, 1, 1, 1]),
}


@pytest.mark.parametrize(("change", "low", "high"), WRITES.values(), ids=WRITES)
def test_a_write_through_a_view_is_seen_without_an_example(change, low, high):
    network = Step(changed(change))
    with torch.no_grad():
        network.layer.weight.copy_(torch.eye(4)[:, :3] + 0.5)
    plain, claim = network.layer.weight.detach(), certify(network)
    low, high = (torch.tensor(end).double()[:, None] * plain for end in (low, high))
    slopes_are(claim, low, high)
    assert not claim.unknown


def test_hooks_are_part_of_the_network():
    network: Any = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        network[0].weight.fill_(1.0)
    assert certify(network).increasing == (0, 1)
    handle = network.register_forward_pre_hook(lambda _, given: (given[0].abs(),))
    assert certify(network).increasing == () and certify(network).convex.all()
    handle.remove()
    network[0].register_forward_hook(lambda _, __, found: found.neg_())
    assert certify(network).decreasing == (0, 1)


def test_the_network_is_as_it_was_and_counts_are_told():
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.calls * self.layer(x)

    network = Counting().train()
    claim = certify(network)
    assert network.calls == 0 and network.training and not network._forward_hooks
    assert claim.lipschitz == math.inf and "what the network keeps" in claim.unknown[0]


def test_constants_decide_as_they_are():
    def step(h):
        chosen = torch.ones_like(h, dtype=torch.bool)
        chosen[:, 0] = False
        mask = torch.arange(4) == 3
        kept = 2 * nn.functional.softsign(torch.ones_like(h)) * chosen
        return h.masked_fill(mask, 2.0) * kept + h.new_zeros(len(h), 4).add_(h[:, [1]])

    network = Step(step)
    w = network.layer.weight.detach()
    slopes_are(certify(network), torch.stack([w[1], 2 * w[1], w[2] + w[1], w[1]]))


def test_numbers_of_a_table_are_unknown_where_they_are_inputs():
    network = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2))
    for trained in (True, False):
        claim = certify(network.requires_grad_(trained), torch.tensor([[0, 1], [2, 3]]))
        assert claim.increasing == () and "embedding in 0" in claim.unknown[0]


def test_a_network_that_cannot_run_is_refused():
    with pytest.raises(DataError, match="cannot run on samples of shape"):
        certify(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4)))
    refuses(DataError, "a row for each sample", certify, Step(lambda h: h.sum()))


def test_no_certificate_of_a_drawn_module_is_false():
    said = [verdict(seed) for seed in range(20)]
    assert not [(seed, reason) for seed, (_, reason) in enumerate(said) if reason]
    assert sum(known for known, _ in said) >= 4


def at(shape):
    return lambda h: h.repeat(1, 4).reshape(-1, *shape)


MATRIX = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
LINEAR: dict[str, Any] = {
    "cumsum": lambda h: h.cumsum(1),
    "left": lambda h: (MATRIX @ h.unsqueeze(2)).squeeze(2),
    "addmm": lambda h: torch.addmm(h, h, MATRIX, beta=2, alpha=0.5), "rsub": lambda h: 1 - h / 3,
    "affine": lambda h: torch.addmm(MATRIX[0], h, MATRIX, beta=2, alpha=0.5),
    "baddbmm": lambda h: torch.einsum("nik,ko->nio", h.view(-1, 2, 2), MATRIX[:2, :2]),
    "conv1d": lambda h: functional.conv1d(
        h[:, None], MATRIX[:2, None, :3], MATRIX[0, :2], padding=1),
    "groups": lambda h: functional.conv1d(h.view(-1, 2, 2), MATRIX[:, None, :2], groups=2),
    "conv3d": lambda h: functional.conv3d(at((2, 2, 2, 2))(h), MATRIX.view(1, 2, 2, 2, 2)),
    "transposed": lambda h: functional.conv_transpose2d(
        at((1, 4, 4))(h), MATRIX.view(1, 2, 2, 4)[..., :2], MATRIX[0, :2], stride=2),
    "avg": lambda h: functional.avg_pool2d(at((1, 4, 4))(h), 2, 1, 1),
    "adaptive": lambda h: functional.adaptive_avg_pool2d(at((1, 4, 4))(h), 3),
    "nearest": lambda h: functional.interpolate(h[:, None], scale_factor=2),
    "bilinear": lambda h: functional.interpolate(at((1, 4, 4))(h), (6, 7), mode="bilinear"),
    "reflect": lambda h: functional.pad(h[:, None], (1, 2), mode="reflect"),
    "replicate": lambda h: functional.pad(h[:, None], (1, 2), mode="replicate"),
    "constant": lambda h: functional.pad(h, (1, 2), value=-3.0),
    "shuffle": lambda h: functional.pixel_shuffle(at((4, 2, 2))(h), 2),
    "whole": lambda h: torch.cat([h, torch.arange(7).expand(len(h), 7)], 1),
    "mask": lambda h: h[:, torch.arange(4) != 2],
    "scatter": lambda h: h.scatter(1, torch.zeros(len(h), 1, dtype=torch.long), 5.0),
    "index_put": lambda h: h.index_put((torch.arange(len(h)), torch.ones(len(h)).long()), h[:, 0]),
    "copy": lambda h: torch.ops.aten.copy(h, h[:, :1]), "sub": lambda h: h - 2.0 * h.flip(1),
    "written": changed(lambda h: h[:, 1:].copy_(h[:, :1].clone())),
    "total": lambda h: h.sum(1, keepdim=True),
    "alpha": lambda h: torch.sub(torch.add(h, h.flip(1), alpha=3), h[:, :1], alpha=0.5),
    "mean": lambda h: at((4, 2, 2))(h).mean((1, 3), keepdim=True).flatten(1),
    "where": lambda h: torch.where(torch.arange(4) < 2, h, -h.flip(1)),
    "bmm": lambda h: torch.bmm(h[:, :, None], MATRIX[:1, None].expand(len(h), 1, 4)).flatten(1),
    "padded": lambda h: functional.avg_pool1d(h[:, None], 2, 1, 1, count_include_pad=False),
    "strided": lambda h: functional.conv2d(
        at((1, 4, 4))(h), MATRIX.view(2, 1, 2, 4)[..., :3], MATRIX[0, :2], (2, 1), (1, 2), (1, 2)),
    "addcmul_": lambda h: torch.addcmul(h, MATRIX[0], h.flip(1), value=-2),
    "over": lambda h: h / MATRIX[0] + h.view(-1, 2, 2).sum(2).repeat(1, 2),
    "frozen": lambda h: functional.batch_norm(h, MATRIX[0], MATRIX[3].abs(), MATRIX[1], MATRIX[2]),
}  # fmt: skip
BENT: dict[str, Any] = {
    "addcmul": lambda h: torch.addcmul(h, h.flip(1), MATRIX[0], value=0.5),
    "max_pool2d": lambda h: functional.max_pool2d(at((1, 4, 4))(h), 3, 2, 1),
    "max_pool1d": lambda h: functional.max_pool1d(h[:, None], 2, 1),
    "atan": torch.atan, "erf": torch.erf,
    "slice": lambda h: torch.slice_scatter(h, h[:, :2].relu(), 1, 2),
    "sin": lambda h: h.sin() + h.cos(),
    "amin": lambda h: h.amin(1, keepdim=True), "minimum": lambda h: torch.minimum(h, 0.5 * h),
    "logaddexp": lambda h: torch.logaddexp(h, h.flip(1)), "logsumexp": lambda h: h.logsumexp(1),
    "log_softmax": lambda h: h.log_softmax(1), "gate": lambda h: h.sigmoid() * h.tanh(),
    "max": lambda h: h.max(1).values[:, None], "prod": lambda h: h.tanh() * h.flip(1).sigmoid(),
}  # fmt: skip


@pytest.mark.parametrize("name", BENT)
def test_calls_that_bend_are_known(name):
    claim = certify(Step(BENT[name]))  # which tries it
    assert not claim.unknown and claim.lipschitz < math.inf


@pytest.mark.parametrize("name", LINEAR)
def test_calls_that_are_linear_have_their_own_derivative_and_no_other(name):
    """By differences: both ends, both bends, values in a box, and a norm of at least theirs."""
    network = Step(LINEAR[name]).requires_grad_(False)
    claim, x = certify(network, box=(-0.5, 2.0)), torch.full((1, 3), 0.75, dtype=torch.float64)
    rows = network(torch.cat([torch.eye(3).double(), torch.zeros(1, 3).double()])).flatten(1)
    matrix = (rows[:3] - rows[3]).T
    slopes_are(claim, matrix, rtol=1e-12, atol=1e-12)
    assert claim.convex.all() and claim.concave.all()
    middle, far = network(x).flatten(), 1.25 * matrix.abs().sum(1)
    assert bool((claim.least <= middle - far + 1e-9).all())
    assert bool((claim.most >= middle + far - 1e-9).all())
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    assert norm * (1 - 1e-9) <= claim.lipschitz <= 8 * norm + 1e-9
    zero = (matrix == 0).all(1)
    assert not claim.lowest[zero].any() and not claim.highest[zero].any()


def test_whole_numbers_beside_inputs_are_what_they_are():
    claim = certify(Step(LINEAR["whole"]), box=(-1.0, 1.0))
    torch.testing.assert_close(claim.least[4:], torch.arange(7.0).double())
    assert not claim.lowest[4:].any() and not claim.highest[4:].any()
