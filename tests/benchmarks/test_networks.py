"""What papers print: scans, gradients through time, forms, and tables whose commands exist."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.papers import thesis_forms
from benchmarks.papers.networks import PlainRNN
from benchmarks.papers.printed_forms import FORMS, SPACING, missed
from liftednet.errors import DataError
from tests.models.networks import refuses

ROOT = Path(__file__).parents[2]
BROKEN = ("arctanh", "sine, on", "the same, read as the leaky", "(9)")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_forms_hold_but_for_those_that_are_named(form) -> None:
    assert (missed(form)[0] > 0.1) == form[0].startswith(BROKEN)
    assert form[0].startswith(BROKEN) or missed(form)[0] <= 4 * SPACING


@pytest.mark.parametrize("form", thesis_forms.FORMS, ids=lambda form: form[0])
def test_forms_of_the_thesis_hold_but_for_those_as_printed(form) -> None:
    name, off = form
    broken = name.endswith(("as printed", "whatever beta", "puts out 1/2"))
    assert off() > 0.01 if broken else off() <= thesis_forms.HOLDS


def test_every_command_of_the_table_exists() -> None:
    text = (ROOT / "benchmarks/papers/README.md").read_text(encoding="utf-8")
    paths = re.findall(r"tests/[\w/.]+", text)
    modules = re.findall(r"`papers\.(\w+)`", text)
    named = re.findall(r"-m benchmarks\.([\w.]+)`", text)
    modules += ["../" + name.replace(".", "/") for name in named]
    places = [ROOT / "benchmarks/papers" / name for name in modules]
    assert len(paths) > 20 and len(places) > 20
    assert all((ROOT / path).exists() for path in paths)
    assert all(place.with_suffix(".py").exists() or place.is_dir() for place in places)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_plain_network_is_torchs_with_the_same_weights(nonlinearity: str) -> None:
    torch.manual_seed(0)
    fast, slow = PlainRNN(3, 5, nonlinearity), nn.RNN(3, 5, 1, nonlinearity, batch_first=True)
    slow.load_state_dict(fast.state_dict())
    x, state, mixing = torch.randn(4, 6, 3), torch.rand(1, 4, 5), torch.randn(4, 6, 5)
    gradients = []
    for network in (fast, slow):
        states, last = network(x, state)
        assert torch.equal(states[:, -1], last[0])
        gradients.append(torch.autograd.grad((states * mixing).sum(), list(network.parameters())))
    assert torch.allclose(fast(x, state)[0], slow(x, state)[0], atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))
    refuses(DataError, "nonlinearity", PlainRNN, 3, 5, "sigmoid")
