"""Calls that are followed through views, writes and hooks, and those that are unknown."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from liftednet import certify
from liftednet.errors import DataError
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


UNKNOWN = {
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "gather": lambda h: h.gather(1, h.argsort(1)),
    "embedding": lambda h: functional.embedding(h.argmax(1), torch.eye(4).double()),
    "embedding_bag": lambda h: functional.embedding_bag(
        (h > 0).long(), torch.eye(4).double(), mode="sum"
    ),
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
    "roll": lambda h: h.roll(1, 0),
}
ASIDE = {"roll": "a call that mixes samples"}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_values_decide_is_unknown_and_named_with_its_line(name):
    claim = certify(Step(UNKNOWN[name]))
    assert claim.lipschitz == math.inf and not (claim.convex | claim.concave).any()
    assert not claim.lowest.isfinite().any() and not claim.highest.isfinite().any()
    (call,) = claim.unknown
    expected = ASIDE.get(name, f"{name} in the network (test_calls.py:")
    assert call.startswith(expected) and expected in str(claim)


def test_rows_that_are_treated_apart_are_unknown():
    claim = certify(Step(lambda h: h * torch.arange(len(h))[:, None]))
    assert claim.lipschitz == math.inf and "other samples" in claim.unknown[0]


WRITES = {
    "relu_": (lambda h: h[:, :1].relu_(), [0.0, 1, 1, 1], [1.0, 1, 1, 1]),
    "abs_": (lambda h: h[:, :1].abs_(), [-1.0, 1, 1, 1], [1.0, 1, 1, 1]),
    "mul_": (lambda h: h[:, :1].mul_(-1), [-1.0, 1, 1, 1], [-1.0, 1, 1, 1]),
    "data": (lambda h: h.data.mul_(-2), [-2.0] * 4, [-2.0] * 4),
    "detach": (lambda h: h.detach()[:, 2:].neg_(), [1.0, 1, -1, -1], [1.0, 1, -1, -1]),
    "transposed": (lambda h: h.t()[1].mul_(3), [1.0, 3, 1, 1], [1.0, 3, 1, 1]),
    "view": (lambda h: h.view(-1, 2, 2)[:, 1].clamp_(-1, 1), [1.0, 1, 0, 0], [1.0] * 4),
    "item": (lambda h: h.__setitem__((slice(None), 0), 7.0), [0.0, 1, 1, 1], [0.0, 1, 1, 1]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_a_view_is_seen_without_an_example(name):
    change, low, high = WRITES[name]
    network = Step(changed(change))
    with torch.no_grad():
        network.layer.weight.copy_(torch.eye(4)[:, :3] + 0.5)
    plain, claim = network.layer.weight.detach(), certify(network)
    ends = torch.tensor(low)[:, None] * plain, torch.tensor(high)[:, None] * plain
    torch.testing.assert_close(claim.lowest, ends[0].double())
    torch.testing.assert_close(claim.highest, ends[1].double())
    assert not claim.unknown


def test_a_tensor_set_as_data_is_the_tensor():
    def other(h):
        h.data = -h

    network = Step(changed(other))
    torch.testing.assert_close(certify(network).lowest, -network.layer.weight.detach())


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
        return h.masked_fill(mask, 2.0) * chosen + h.new_zeros(len(h), 4).add_(h[:, [1]])

    network = Step(step)
    w = network.layer.weight.detach()
    exact = torch.stack([w[1], 2 * w[1], w[2] + w[1], w[1]])
    claim = certify(network)
    torch.testing.assert_close(claim.lowest, exact)
    torch.testing.assert_close(claim.highest, exact)


def test_numbers_of_a_table_are_unknown_where_they_are_inputs():
    network = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2))
    for trained in (True, False):
        claim = certify(network.requires_grad_(trained), torch.tensor([[0, 1], [2, 3]]))
        assert claim.increasing == () and "embedding in 0" in claim.unknown[0]


def test_a_network_that_cannot_run_is_refused():
    with pytest.raises(DataError, match="cannot run on samples of shape"):
        certify(nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4)))
    with pytest.raises(DataError, match="a row for each sample"):
        certify(Step(lambda h: h.sum()))


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_no_certificate_of_a_drawn_module_is_false(first):
    said = [verdict(seed) for seed in range(first, first + 50)]
    assert not [(first + n, reason) for n, (_, reason) in enumerate(said) if reason]
    assert sum(known for known, _ in said) >= 10
