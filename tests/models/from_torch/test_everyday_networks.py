"""Forward passes as users write them: read, trained, written back; or refused with their line."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional, utils
from torch.nn.utils import parametrizations, prune

from liftednet import certify, data, initialize_, lift
from liftednet.errors import DataError, FitWarning
from liftednet.losses import CrossEntropy, Loss, SquaredError
from liftednet.models import Minibatch
from tests.models.networks import refuses, told

pytestmark = pytest.mark.filterwarnings(
    "ignore::liftednet.errors.FitWarning",  # of few steps
    "ignore::FutureWarning", "ignore::DeprecationWarning",
)  # fmt: skip


class Written(nn.Module):
    """A network of four dense layers, shared where they are called twice, and a forward pass."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], outputs: int = 3) -> None:
        """Take what it computes."""
        super().__init__()
        self.written = forward
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, outputs)
        self.steps, self.picture = nn.Linear(2, 8), nn.Conv2d(1, 8, 2)
        self.narrow, self.single = nn.Linear(4, 8), nn.Linear(8, 1)
        self.scale, self.mix = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        """Return the outputs."""
        return self.written(self, x)


def in_place(s: Any, x: Tensor) -> Any:
    """Compute by operators, methods and a function in place, whose value is not kept."""
    x = s.one(x).relu_()
    x *= s.two(x).sigmoid()
    x -= 0.1
    x /= 2
    x.add_(s.two(x)).mul_(0.5)
    functional.relu(x, inplace=True)
    return s.three(x)


def halves(s: Any, x: Tensor) -> Any:
    """Multiply one half by the other's gate."""
    a, b = s.one(x).chunk(2, dim=-1)
    return s.three(s.narrow(a * torch.sigmoid(b)))


FLAT, STEPS, PICTURES = (6,), (3, 2), (1, 3, 3)
F = functional

# Sample shapes, outputs (0: one number, without an axis of its own), and the forward pass.
NETWORKS: dict[str, tuple[tuple[int, ...], int, Callable[[Any, Tensor], Any]]] = {
    "squeeze(-1)": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).squeeze(-1)),
    "view(-1)": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).view(-1)),
    "sigmoid at the end": (FLAT, 0, lambda s, x: s.single(s.one(x).relu()).sigmoid().squeeze(-1)),
    "dot": (FLAT, 0, lambda s, x: s.one(x).relu() @ s.scale),
    "product and sum": (FLAT, 0, lambda s, x: (s.one(x).relu() * s.two(s.one(x))).sum(dim=1)),
    "clamp": (FLAT, 3, lambda s, x: s.three(s.one(x).clamp(min=0))),
    "in place": (FLAT, 3, in_place),
    "scale": (FLAT, 3, lambda s, x: s.three(s.scale * s.one(x).relu())),
    "a slope for each": (FLAT, 3, lambda s, x: s.three(F.prelu(s.one(x), s.scale))),
    "scalar parameter": (FLAT, 3, lambda s, x: s.three(s.mix * s.one(x).relu())),
    "chunk": (FLAT, 3, halves),
    "unbind": (STEPS, 3, lambda s, x: s.three(s.steps(x.unbind(1)[-1]).relu())),
    "cat": (FLAT, 3, lambda s, x: s.three(s.narrow(torch.cat([x[:, :2], x[:, 4:]], dim=1)).relu())),
    "[arange(n), -1]": (STEPS, 3, lambda s, x: s.three(s.steps(x)[torch.arange(len(x)), -1])),
    "view(len(x), -1)": (PICTURES, 3, lambda s, x: s.three(
        s.two(s.picture(x).relu().view(len(x), 8, -1).mean(-1)))),
    "steps as samples": (STEPS, 3, lambda s, x: s.three(
        s.steps(x.reshape(-1, 2)).relu().reshape(len(x), 3, 8).mean(1))),
    "zeros as a state": (STEPS, 3, lambda s, x: s.three(
        (s.two(torch.zeros(len(x), 8)) + s.steps(x[:, 0])).tanh())),
    "adaptive pooling, squeeze()": (PICTURES, 3, lambda s, x: s.three(
        F.adaptive_avg_pool2d(s.picture(x).relu(), 1).squeeze())),
    "torch.where": (FLAT, 3, lambda s, x: s.three(torch.where(s.one(x) > 0, s.one(x), 0.1))),
    "x @ weight.T": (FLAT, 3, lambda s, x: s.three((x @ s.one.weight.T + s.one.bias).relu())),
    "t()": (FLAT, 3, lambda s, x: s.three((s.two.weight @ s.one(x).t()).t().relu())),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "outputs", "forward"), NETWORKS.values(), ids=NETWORKS)
def test_everyday_idioms_are_read_trained_and_written(shape, outputs, forward, generator, capsys):
    torch.manual_seed(0)
    network = Written(forward, max(1, outputs))
    x = torch.rand(20, *shape, generator=generator)
    y = torch.arange(20) % 3 if outputs > 1 else torch.rand(20, generator=generator)
    loss: Loss = CrossEntropy() if outputs > 1 else SquaredError()
    before, bits = network.eval()(x), copy.deepcopy(network.state_dict())
    assert before.shape == ((20, outputs) if outputs else (20,))
    lifted = lift(network, x[:2], loss=loss, method=Minibatch(epochs=2, batch_size=5, rate=0.1))
    assert "calls read" in capsys.readouterr().out
    lifted.write_()
    assert all(value.equal(bits[key]) for key, value in network.state_dict().items())
    lifted.fit(x, y).write_()
    after = network(x)
    assert after.shape == before.shape
    assert after.isfinite().all()
    assert not after.equal(before)
    wanted = after.softmax(-1) if outputs > 1 else after.reshape(20, -1)
    torch.testing.assert_close(lifted.forward(x), wanted, rtol=1e-4, atol=1e-5)


def branches(s: Any, x: Tensor) -> Any:
    """Take one of two ways by the data."""
    h = s.one(x)
    if h.sum() > -1e9:
        h = h.relu()
    return s.three(h)


def test_a_value_that_python_takes_of_the_data_is_told_with_its_line() -> None:
    with pytest.warns(FitWarning, match=r"bool in the network \(test_everyday.*py:\d+\) takes"):
        lift(Written(branches), torch.rand(2, 6), loss=CrossEntropy(), show=False)


def test_samples_that_meet_are_told_of() -> None:
    def forward(s: Any, x: Tensor) -> Any:
        return s.three(s.one(x) - s.one(x).mean(0))

    with pytest.warns(FitWarning, match=r"mean in the network .* of all samples of a batch"):
        lift(Written(forward), torch.rand(2, 6), loss=CrossEntropy(), show=False)


class Begun(nn.Module):
    """A recurrent layer that begins with a state of its own."""

    def __init__(self, kind: str) -> None:
        """Take where it is from: the data, a layer on them, or a parameter; of zeros, or not."""
        super().__init__()
        self.kind, self.cells, self.last = kind, nn.GRU(2, 8, batch_first=True), nn.Linear(8, 3)
        self.layer, self.state = nn.Linear(8, 8, bias=False), nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, x: Tensor, h: Tensor) -> Any:
        """Return the scores."""
        begin = {"data": h, "layer": self.layer(h), "zeros": torch.zeros_like(h)}.get(self.kind)
        begin = self.state.repeat(1, len(x), 1) if begin is None else begin[None].contiguous()
        return self.last(self.cells(x, begin)[0][:, -1])


@pytest.mark.parametrize("kind", ["data", "layer", "parameter", "zeros"])
def test_a_first_state_of_zeros_in_the_example_is_what_it_is_of_other_samples(kind) -> None:
    torch.manual_seed(0)
    network, x, h = Begun(kind), torch.randn(30, 3, 2), torch.randn(30, 8)
    h[:2] = 0
    options: Any = {"method": Minibatch(epochs=2, batch_size=5, rate=0.1), "show": False}
    lifted = lift(network, (x[:2], h[:2]), loss=CrossEntropy(), **options)
    lifted.fit((x, h), torch.arange(30) % 3)
    torch.testing.assert_close(lifted.scores((x, h)), lifted.write_().eval()(x, h))
    assert bool(network.state.any()) == (kind == "parameter")
    assert any("recurrent layers" in line.text for line in lifted.lines) == (kind == "zeros")


def test_nothing_is_told_of_shapes_and_types() -> None:
    def forward(s: Any, x: Tensor) -> Any:
        assert x.ndim == 2
        return s.three(s.one(x.float()).relu()) if x.shape[1] == 6 else x

    assert not told(lift, Written(forward), torch.rand(2, 6), loss=CrossEntropy(), show=False)


def through_a_view(s: Any, x: Tensor) -> Any:
    """Change a tensor in place by a view of it."""
    x = s.one(x)
    x.view(-1).relu_()
    return s.three(x)


def assigned(s: Any, x: Tensor) -> Any:
    """Assign to a part of a tensor."""
    y = s.one(x)
    y[:, 0] = 0
    return y


def counted(s: Any, x: Tensor) -> Any:
    """Go another way for another number of samples."""
    return s.three(s.one(x).relu() if len(x) % 2 else s.one(x).tanh())


NOT_READ: list[tuple[Any, str]] = [
    (through_a_view, r"first at linear in three \(test_everyday.*\).* changes a view in place"),
    (counted, r"tanh in the network \(test_.*py:\d+\) and relu in .* torch.where"),
    (assigned, r"setitem in the network \(test_everyday.*py:\d+\) assigns"),
    (lambda s, x: (s.one(x), x), "returns one tensor of its inputs, and this returns tuple"),
    (lambda s, x: torch.vmap(s.one)(x), "do without torch.vmap"),
    (lambda s, x: x @ x.T + s.one(x).sum(), r"matmul in the network \(.*\) mixes samples"),
    (lambda s, x: s.one(x) + torch.tensor(x.numpy()[0, 0]), r"off .* at other values than the ex"),
    (lambda s, x: s.one(x) * float(len(x)), r"is off by .* first at mul in the network \(.*\d"),
]


@pytest.mark.parametrize(("forward", "message"), NOT_READ)
def test_what_is_not_read_is_refused_with_its_line(forward, message) -> None:
    refuses(DataError, message, lift, Written(forward), torch.rand(2, 6), loss=CrossEntropy())


def convolutional() -> nn.Module:
    first = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(144, 10))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def pictures() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return pictures between 0 and 1, and their labels, of training and of test."""
    found = data.digits()
    x, y, x_test, y_test = found.x_train, found.y_train, found.x_test, found.y_test
    x, x_test = (v.float().reshape(-1, 1, 8, 8) for v in (x, x_test))
    return x / x.max(), y, x_test / x.max(), y_test


@pytest.mark.parametrize("make", [convolutional, dense])
def test_an_initialization_is_as_good_on_any_scale_of_the_data(make) -> None:
    """A network of x c with matrices W / c is that of x with W."""
    x, y, x_test, y_test = pictures()
    for scale in (1e4, 0.01):
        torch.manual_seed(0)
        network = initialize_(make(), scale * x, y, loss=CrossEntropy(), epochs=5)
        assert (network(scale * x_test).argmax(1) == y_test).float().mean() > 0.94


def test_standardizing_what_no_layer_can_take_in_is_refused_before_work() -> None:
    x, y, *_ = pictures()
    network = convolutional()
    before = copy.deepcopy(network.state_dict())
    words, options = "data meet dense layers with a bias", {"standardize": True}
    refuses(DataError, words, initialize_, network, x, y, loss=CrossEntropy(), **options)
    assert all(value.equal(before[key]) for key, value in network.state_dict().items())


def _pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.l1_unstructured(layer, "bias", 1)
    return layer


MAKERS: dict[str, Callable[[Any], Any]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm by a hook": utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm by a hook": utils.spectral_norm,
    "pruned": _pruned,
}
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def _network(make: Callable[[Any], Any], kind: str) -> nn.Sequential:
    torch.manual_seed(1)
    if kind == "convolution":
        first = nn.Unflatten(1, (1, 5)), make(nn.Conv1d(1, 4, 3)), nn.Flatten()
        return nn.Sequential(*first, nn.ReLU(), make(nn.Linear(12, 3)))
    return nn.Sequential(make(nn.Linear(5, 8)), nn.Tanh(), make(nn.Linear(8, 3)))


@pytest.mark.parametrize("kind", ["dense", "convolution"])
@pytest.mark.parametrize("name", MAKERS)
def test_they_are_lifted_trained_and_written_back(name: str, kind: str) -> None:
    network = _network(MAKERS[name], kind)
    masks = {n: mask.clone() for n, mask in network.named_buffers() if n.endswith("_mask")}
    lifted = lift(network, X[:2], loss=CrossEntropy(), show=False, method=Minibatch(3))
    before = nn.functional.cross_entropy(network.eval()(X), Y)
    scores = lifted.fit(X, Y).scores(X)
    lifted.write_()
    torch.testing.assert_close(network(X), scores)
    assert nn.functional.cross_entropy(scores, Y) < before
    assert bool(masks) == (name == "pruned")
    for path, mask in masks.items():
        made = network.get_submodule(path.rpartition(".")[0])
        part = getattr(made, path.rpartition(".")[2].removesuffix("_mask"))
        assert not part[mask == 0].any() and part[mask == 1].all()


@pytest.mark.parametrize("name", MAKERS)
def test_they_are_certified_as_what_they_are_now(name: str) -> None:
    network = _network(MAKERS[name], "dense").eval()
    network(X)  # where hooks make weights anew, which have a gradient
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for place in (0, 2):
            for name in ("weight", "bias"):
                getattr(plain[place], name).copy_(getattr(network[place], name))
    found, wanted = certify(network), certify(plain)
    assert found.lipschitz == pytest.approx(wanted.lipschitz, rel=1e-5)
    torch.testing.assert_close(found.lowest, wanted.lowest, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.highest, wanted.highest, rtol=1e-5, atol=1e-6)
