"""Numbers that are read late, or stay on a GPU; taken for a GPU's on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from liftednet.solvers import device_loops
from tests.solvers.kernels.readings import Readings


def test_a_late_number_is_that_of_some_rounds_before(as_on_a_gpu: None) -> None:
    late = device_loops.Late[str](lag=2)
    with Readings() as readings:
        seen = [late.seen(torch.tensor(float(n)), f"round {n}") for n in range(5)]
    nothing = (float("inf"), None)
    assert seen == [nothing, nothing, (0.0, "round 0"), (1.0, "round 1"), (2.0, "round 2")]
    assert readings.names == []


def test_a_loop_ends_that_many_rounds_late(as_on_a_gpu: None) -> None:
    late, left = device_loops.Late[None](lag=3), torch.arange(4)
    rounds = 0
    while late.some(left > rounds):
        rounds += 1
    assert rounds == 3 + 3  # nothing is left after three rounds


def test_on_a_cpu_no_number_is_late() -> None:
    late = device_loops.Late[str]()
    assert late.seen(torch.tensor(2.5), "now") == (2.5, "now")
    assert not late.some(torch.zeros(3, dtype=torch.bool))


@pytest.mark.parametrize("somewhere", [False, True])
def test_the_largest_term_is_the_same_wherever_it_stays(
    somewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        device_loops, "stays_on_device", lambda value: somewhere and isinstance(value, Tensor)
    )
    terms = [torch.tensor([1.0, -3.0]), torch.tensor([2.0], dtype=torch.float64)]
    found = [device_loops.largest(terms, floor) for floor in (1.0, 5.0)]
    assert list(map(float, found)) == [3.0, 5.0]
    assert all(isinstance(number, Tensor) is somewhere for number in found)
