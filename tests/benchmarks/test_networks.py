"""What papers print: scans, gradients through time, forms, and tables whose commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.papers import thesis_forms
from benchmarks.papers.networks import PlainRNN
from benchmarks.papers.printed_forms import FORMS, SPACING, missed
from liftednet import lift
from liftednet.errors import DataError
from liftednet.models import Minibatch

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
    with pytest.raises(DataError, match="nonlinearity"):
        PlainRNN(3, 5, "sigmoid")


class Translator(nn.Module):
    """Cells that read all tokens, and others that write five of as many kinds as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.writer = nn.GRUCell(6, 32), nn.GRUCell(6, 32)
        self.readout = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        state, written = None, []
        for token in x.unbind(1):
            state = self.reader(token, state)
        for _ in range(5):
            state = self.writer(torch.zeros_like(x[:, 0]), state)
            written.append(self.readout(state))
        return torch.stack(written, 1)


def test_lift_reads_cells_whose_answers_have_another_length() -> None:
    """Beside the torch network itself, with weights that its training has written back."""
    tokens = torch.randint(6, (60, 8), generator=torch.Generator().manual_seed(1))
    X, y = nn.functional.one_hot(tokens, 6).float(), tokens.flip(1)[:, :5].contiguous()
    network = Translator()
    lifted = lift(network, X[:2], loss="cross-entropy", method=Minibatch(20, batch_size=20))
    before = nn.functional.cross_entropy(network(X).flatten(0, 1), y.flatten())
    lifted.fit(X, y).write_()
    answers = network(X)
    assert answers.shape == (60, 5, 6)
    assert torch.equal(lifted.predict(X), answers.argmax(2))
    assert nn.functional.cross_entropy(answers.flatten(0, 1), y.flatten()) < before


def test_damped_products_are_those_of_dense_jacobians() -> None:
    torch.manual_seed(0)
    model = SequenceModel(CellRecurrence(nn.RNNCell(2, 3)), 3, 4).double()
    x, lengths = torch.randn(2, 3, 2).double(), torch.tensor([3, 2])
    forward, w = forward_of(model, x, lengths), parameters_to_vector(model.parameters()).detach()
    J, K = torch.autograd.functional.jacobian(forward, w)
    p = forward(w)[0].softmax(1)
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    dense = torch.einsum("nia,nij,njb->ab", J, H, J) + 0.3 * torch.einsum("ntia,ntib->ab", K, K)
    wanted = dense / 2 + 0.1 * torch.eye(len(w)).double()
    d = torch.randn(len(w)).double()
    assert torch.allclose(damped_product(forward, w, 0.1, 0.3)(d), wanted @ d, atol=1e-12)
    # K' K is the second order of the squared distance of states (eq. 2.27).
    h, there, here = 1e-4, forward(w + 1e-4 * d)[1], forward(w)[1]
    back = forward(w - h * d)[1]
    moved = ((there - here).square() + (back - here).square()).sum() / (2 * h**2)
    assert torch.allclose(moved, (K @ d).square().sum(), rtol=1e-5)


def test_conjugate_gradients_solve() -> None:
    A = torch.randn(10, 10, generator=torch.Generator().manual_seed(0)).double()
    A, b = A @ A.T + torch.eye(10), A[0]
    found = conjugate_gradients(lambda v: A @ v, b, A[1])
    # They end at a residual of 1e-5, and no eigenvalue is below 1.
    assert (found - torch.linalg.solve(A, b)).norm() <= 1e-5 * b.norm()


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("segment", [1, 4, 9])
def test_gradient_stops_at_the_segment_and_the_state_does_not(segment: int) -> None:
    """By hand: the same loss on a graph whose state is detached every `segment` steps."""
    torch.manual_seed(1)
    cell = nn.RNNCell(2, 4)
    model = SequenceModel(CellRecurrence(cell), 4, 1)
    x, y = torch.randn(3, 9, 2), torch.randn(3, 9, 1)

    def loss(outputs: Tensor, first: int) -> Tensor:
        return ((outputs - y[:, first : first + outputs.shape[1]]) ** 2).sum()

    truncated_backward(model, x, segment, loss)
    found = gradient(model)
    model.zero_grad()
    state, total = torch.zeros(3, 4), torch.zeros(())
    for t in range(9):
        state = cell(x[:, t], state.detach() if t % segment == 0 else state)
        total = total + ((model.readout(state) - y[:, t]) ** 2).sum()
    total.backward()
    assert torch.allclose(found, gradient(model), atol=1e-5)
