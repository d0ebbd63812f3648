"""A torch network, read as a lifted one: the same values, the same gradients, and back again."""

import copy
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, TensorDataset

from liftednet import initialize_, lift, to_torch
from liftednet.errors import DataError, DeclarationError, SolverError
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, Huber, SquaredError
from liftednet.models import FullBatch, GaussNewton, Minibatch
from liftednet.models.from_torch import LiftedModule
from liftednet.models.methods.minibatch import BatchSteps
from tests.models.from_torch.torch_networks import CASES, Case, LeNet, Sequences
from tests.models.networks import refuses, trace_of
from tests.models.programs.networks import Called

TYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
FEW = Minibatch(epochs=2, batch_size=10, rate=0.1)
TURNED = Called(lambda x: x.transpose(1, 2))  # the second axis as the last
pytestmark = pytest.mark.filterwarnings("ignore::liftednet.errors.FitWarning")  # of few steps
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def made(
    case: Case, dtype: torch.dtype, generator: torch.Generator, count: int = 2, **options: Any
) -> tuple[nn.Module, LiftedModule, Tensor]:
    """Return a network whose parameters and buffers are no defaults, lifted, and samples."""
    torch.manual_seed(0)
    network = case.make().to(dtype)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.get_buffer("running_mean").uniform_(-0.5, 0.5)
            module.get_buffer("running_var").uniform_(0.5, 1.5)
    x = case.samples(count, generator)
    x = x if case.words else x.to(dtype)
    return network, lift(network, x[:2], loss=CrossEntropy(), show=False, **options), x


@pytest.mark.parametrize("dtype", TYPES)
@cases
def test_a_network_is_read_with_its_values_and_written_back_with_its_bits(case, dtype, generator):
    network, lifted, x = made(case, dtype, generator, 7)
    before = copy.deepcopy(network.state_dict())
    assert lifted.write_() is network
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    wanted = network.eval()(x).softmax(-1)
    lifted.with_weights(lifted._given_weights())
    assert (lifted.forward(x) - wanted).abs().max() < TYPES[dtype]
    assert lifted.predict(x).equal(wanted.argmax(-1))


@cases
def test_a_step_on_a_minibatch_follows_the_gradient_where_lam_is_large(case, generator) -> None:
    """lam (phi(u) - phi(u - g / lam)) is phi'(u) g in the limit, and torch's autograd has that."""
    network, lifted, x = made(case, torch.float64, generator, 6, lam=1e7)
    for module in network.modules():
        if isinstance(module, _DropoutNd | nn.MultiheadAttention | nn.LSTM | nn.RReLU):
            module.eval()
    y = case.labels(6)
    batch = lifted._data(x, y)
    structure, method = lifted.checked()
    weights = [layer.to(x.double()) for layer in lifted._given_weights()]
    steps = BatchSteps(structure, weights, method, generator)  # type: ignore[arg-type]
    with torch.no_grad():
        asked = steps.gradients
        loss, slopes, _ = asked.of(
            batch, steps.weights, asked.counts(batch), float(batch.loss_weights.mean())
        )
    wanted = functional.cross_entropy(network(x).flatten(0, -2), y.flatten())
    wanted.backward()
    torch.testing.assert_close(float(loss), float(wanted.detach()))
    for pair, slope in zip(lifted._pairs, slopes, strict=True):
        matrix = slope.parts[0]
        if slope.rows is not None:
            matrix = slope.rows.T @ matrix.flatten(0, -2)
        assert pair.weight.grad is not None
        found = matrix.T.reshape(pair.weight.shape)
        torch.testing.assert_close(found, pair.weight.grad, rtol=1e-4, atol=1e-6)
        if pair.bias is not None and slope.rows is None:
            torch.testing.assert_close(slope.parts[1], pair.bias.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_follow_the_batches_as_in_torch(momentum, generator) -> None:
    x = torch.randn(30, 4, 6, generator=generator)
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(4, momentum=momentum), nn.Flatten(), nn.Linear(24, 3))
    same = copy.deepcopy(network)
    lifted = lift(network, x[:2], loss=CrossEntropy(), show=False, method=Minibatch(1, 20))
    lifted.fit(x[:20], torch.arange(20) % 3)
    assert torch.equal(network[0].get_buffer("running_mean"), torch.zeros(4))  # not before
    lifted.write_()
    same(x[:20])
    for name, value in same[0].named_buffers():
        torch.testing.assert_close(network[0].get_buffer(name), value)


def test_initialize_draws_matrices_and_kernels_and_nothing_else(generator) -> None:
    x, y = torch.randint(11, (12, 6), generator=generator), torch.randint(11, (12, 6))
    network = CASES["gpt"].make()
    before = copy.deepcopy(network)
    still = Minibatch(epochs=1, batch_size=12, rate=1e-20)
    initialize_(network, x, y, loss=CrossEntropy(), method=still)
    tables = [x.weight for x in before.modules() if isinstance(x, nn.Embedding)]
    for old, new in zip(before.modules(), network.modules(), strict=True):
        tied = isinstance(old, nn.Linear) and any(old.weight is table for table in tables)
        if tied or isinstance(old, nn.LayerNorm | nn.Embedding):
            torch.testing.assert_close(dict(new.named_parameters()), dict(old.named_parameters()))
        elif isinstance(old, nn.Linear):
            assert isinstance(new, nn.Linear)
            assert not torch.allclose(old.weight, new.weight, atol=1e-3)
    kept = copy.deepcopy(before)
    initialize_(kept, x, y, loss=CrossEntropy(), method=still, start=None)
    for name, old in before.state_dict().items():
        torch.testing.assert_close(kept.state_dict()[name], old)


def test_entries_that_few_rows_ask_for_move_as_far_as_others() -> None:
    """An entry of a table sees a small share of the rows; Adam has 1.0 at its best rate."""
    digits, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(digits).long() + 17 * torch.arange(64), torch.tensor(labels)
    torch.manual_seed(0)
    tokens = nn.Embedding(64 * 17, 16), Called(lambda h: h.mean(1))
    network = nn.Sequential(*tokens, nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 10))
    initialize_(network, x, y, loss=CrossEntropy(), epochs=8)
    assert float((network(x).argmax(1) == y).double().mean()) > 0.95


def test_frozen_parts_stay_frozen(generator) -> None:
    network, x = LeNet(), torch.rand(30, 1, 28, 28, generator=generator)
    for parameter in (*network.first.parameters(), network.dense.weight, network.out[0].bias):
        parameter.requires_grad_(False)
    before = copy.deepcopy(network.state_dict())
    lifted = lift(network, x[:2], loss=CrossEntropy(), show=False, method=FEW)
    assert "stands still: first.weight (requires_grad is False)" in lifted.summary()
    lifted.fit(x, torch.arange(30) % 10).write_()
    for name, parameter in network.named_parameters():
        assert torch.equal(parameter, before[name]) is not parameter.requires_grad, name


class Watched(nn.Module):
    """A part that torch does not train, and a buffer that every call changes."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.back, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            h = self.back(x)
        return self.last(h * (h > 0))


def test_reading_changes_no_buffer_and_what_torch_does_not_train_stands_still(generator) -> None:
    network, x = Watched(), torch.randn(20, 3, generator=generator)
    before = copy.deepcopy(network)
    lifted = lift(network, x[:2], loss=CrossEntropy(), show=False, method=FEW)
    assert int(network.calls) == 0 and "stands still: back.weight" in lifted.summary()
    lifted.fit(x, torch.arange(20) % 2).write_()  # a mask is no state whose units may be dead
    assert network.back.weight.equal(before.back.weight)
    assert not network.last.weight.equal(before.last.weight)


def pooled(*window: Any) -> nn.Module:
    layers = nn.Conv2d(1, 2, 3), nn.MaxPool2d(*window), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


FULL: dict[str, tuple[Any, tuple[int, ...]]] = {
    "split": (lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)), (4,)),
    "gates": (lambda: Sequences(nn.GRU), (3, 3)),
    "maxima": (lambda: pooled(2, 2), (1, 6, 6)),
    "maxima of windows that overlap": (lambda: pooled(3, 1), (1, 6, 6)),
}


@pytest.mark.parametrize("name", FULL)
def test_full_batches_descend_where_every_link_is_affine_or_a_maximum(name, generator) -> None:
    torch.manual_seed(0)
    (make, shape), y = FULL[name], torch.arange(6) % 3
    network = make().double().eval()
    x = torch.randn(6, *shape, generator=generator, dtype=torch.float64)
    options = {"method": FullBatch(2, extrapolation=False), "lam": 1.0, "rho": 0.1}
    lifted = lift(network, x[:2], loss=CrossEntropy(), show=False, **options)
    if name.startswith("maxima"):
        assert [line.kind for line in lifted.lines] == ["layer", "states", "states", "layer"]
    before = functional.cross_entropy(network(x), y)
    objectives = trace_of(lifted.fit(x, y)).objectives
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(objectives))
    assert objectives[-1] < 0.95 * objectives[0]
    torch.testing.assert_close(lifted.write_()(x).softmax(-1), lifted.forward(x))
    assert float(functional.cross_entropy(network(x), y)) < 0.9 * float(before)


def test_a_loader_trains_as_arrays_do_and_bytes_as_the_numbers_that_they_are(generator) -> None:
    y = torch.arange(30) % 5
    x = 0.8 * torch.rand(5, 3, 8, 8, generator=generator)[y]
    x = (255 * (x + 0.2 * torch.rand(30, 3, 8, 8, generator=generator))).to(torch.uint8)
    torch.manual_seed(0)
    network = CASES["vgg"].make()
    method = Minibatch(epochs=2, batch_size=30, rate=0.1)  # one batch: no order of samples
    lifted = partial(lift, network, x[:2], loss=CrossEntropy(), show=False, method=method)
    given: Any = (x, y), (x.float(), y), (DataLoader(TensorDataset(x, y), 30),)
    losses = [trace_of(lifted().fit(*arrays)).losses for arrays in given]
    assert losses[0] == losses[1]
    assert losses[0][1] < losses[0][0]
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)  # the order of a batch is another


def test_what_fails_leaves_the_network_as_it_was(generator) -> None:
    network, x = CASES["vgg"].make(), torch.randn(20, 3, 8, 8, generator=generator)
    before, y = copy.deepcopy(network.state_dict()), torch.arange(20) % 5
    lifted = lift(network, x[:2], loss=CrossEntropy(), show=False, method=FEW)
    assert lifted.fit(x, y, on_step=Mock(side_effect=KeyboardInterrupt)).interrupted
    refuses(DataError, "", lifted.fit, x, y[:-1])
    bad = x.clone()
    bad[0] = 1e30
    refuses(SolverError, "", lifted.fit, bad, y)
    refuses(SolverError, "", initialize_, network, bad, y, loss=CrossEntropy(), epochs=2)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    lifted.fit(x, y).write_()  # nothing of the failures is left in the running statistics
    assert all(value.isfinite().all() for value in network.state_dict().values())


def test_the_summary_names_what_became_of_every_module(capsys) -> None:
    lift(CASES["own function"].make(), torch.rand(2, 6), loss=CrossEntropy())
    network = nn.Sequential(nn.Linear(4, 4), nn.SELU(), nn.Dropout(0.3), nn.Linear(4, 2), nn.SiLU())
    lift(network, torch.rand(2, 4), loss=CrossEntropy())
    shown = capsys.readouterr().out
    for part in ("dense (6, 5)", "Sigmoid()", "Rounded", "linearized",
                 "networks.py:", "tight", "dropout is off in lifted training: 2",
                 "from_function(selu)", "from_function(silu(u) + 0.1 u)"):  # fmt: skip
        assert part in shown
    still = lift(network.eval(), torch.rand(2, 4), loss=CrossEntropy(), show=False).summary()
    assert "is off" not in still


PADDED = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten())
REFUSED: list[tuple[Any, tuple[int, ...], Any, str]] = [
    (nn.Linear(4, 3).half(), (4,), {}, "all torch.float32 or all torch.float64"),
    (nn.Linear(4, 3).requires_grad_(False), (4,), {}, "no parameter that is trained"),
    (nn.LazyLinear(3), (4,), {}, "call the network once"),
    ("network", (4,), {}, r"lift reads a torch\.nn\.Module"),
    (torch.jit.script(nn.Linear(4, 3)), (4,), {}, r"before torch\.jit\.script"),
    (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (6,), {},
     r"shape \(2, 6\).*'0', Linear\(in_features=4"),
    (PADDED, (1, 6, 6), {"method": "full"}, r"max_pool2d.*minibatches and Gauss-Newton"),
    (nn.Sequential(Sequences(nn.GRU, steps=True), TURNED), (7, 3), {},
     r"return \(samples, steps, classes\)"),
    (nn.Conv2d(1, 1, 3, padding=1), (1, 4, 4), {},
     r"returns \(1, 4, 4\) .* x\.flatten\(2\)\.transpose\(1, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "shape", "options", "words"), REFUSED)
def test_what_is_no_network_to_train_or_takes_no_such_samples_is_refused(
    network, shape, options, words
) -> None:
    errors, x = (DataError, DeclarationError), torch.rand(2, *shape)
    refuses(errors, words, lift, network, x, loss=CrossEntropy(), **options)


def test_data_that_do_not_fit_the_network_are_refused() -> None:
    lifted = lift(nn.Linear(2, 3), torch.rand(2, 2), loss=CrossEntropy(), show=False)
    loader: Any = DataLoader([{"picture": torch.rand(2), "digit": 0}])  # type: ignore[arg-type]
    words = r"pairs \(X, y\), got dict: make them of .* by collate_fn="
    refuses(DataError, words, lifted.fit, loader)
    table = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.zeros(30, 3, dtype=torch.long), torch.arange(30) % 3
    x[20, 1] = 7  # the example does not show it
    words = r"of 5 entries .* from 0 to 4, got 0 to 7"
    refuses(DataError, words, initialize_, table, x, y, loss=CrossEntropy())


_LAST = {
    "dense": (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), CrossEntropy(), None),
    "convolution": (
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Tanh(),
                      nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 3, 4), nn.Flatten()),
        CrossEntropy(), "a dense layer right below the loss; there is .*Convolution",
    ),
    "Huber": (
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), Huber(),
        "Huber has output states",
    ),
}  # fmt: skip


def at_every_step(recurrent: bool) -> Any:
    """Return a layer over steps, or one that sees each by itself, and a Linear at every step."""
    torch.manual_seed(0)
    first = nn.GRU(4, 8, batch_first=True) if recurrent else nn.Linear(4, 8)
    body = Called(lambda found: found[0]) if recurrent else nn.Tanh()
    return nn.Sequential(nn.Sequential(first, body), nn.Linear(8, 3))


def _at_every_step(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(80, 5, 4, generator=generator)
    return x, (x.cumsum(1)[..., :3] + 0.5).relu().argmax(-1)


_STEP_LOSSES: dict[str, tuple[Any, Any, Any]] = {
    "classes": (CrossEntropy(), lambda y: y, functional.cross_entropy),
    "yes or no": (
        BinaryCrossEntropy(), lambda y: functional.one_hot(y, 3).float(),
        functional.binary_cross_entropy_with_logits,
    ),
    "numbers": (
        SquaredError(), lambda y: functional.one_hot(y, 3).float(),
        lambda u, y, reduction: functional.mse_loss(u, y, reduction=reduction) / 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("recurrent", [True, False], ids=["recurrent", "each by itself"])
@pytest.mark.parametrize("kind", _STEP_LOSSES)
def test_a_last_layer_at_every_step_is_fitted_to_all_steps(kind, recurrent, generator) -> None:
    """The gradient of the loss and the penalty, by torch, is that of a pull to the weights."""
    loss, targets, functional_loss = _STEP_LOSSES[kind]
    x, labels = _at_every_step(generator)
    network, x, y = at_every_step(recurrent).double(), x.double(), targets(labels)
    solver = "auto" if kind == "numbers" else "generalized-linear"  # a ridge
    still: Any = {"method": Minibatch(1, rate=1e-9), "rho": 0.1, "solver": solver, "show": False}
    lift(network, x[:2], loss=loss, **still).fit(x, y).write_()
    before = network[1].weight.detach().clone()
    lift(network, x[:2], loss=loss, refit_output=True, **still).fit(x, y).write_()
    rows = network[0](x).detach().flatten(0, 1)
    last, y = network[1], y.flatten(0, 1)
    y = y if kind == "classes" else y.double()
    total = functional_loss(last(rows), y, reduction="sum") + 0.1 * last.weight.square().sum()
    asked, of_bias = torch.autograd.grad(total, (last.weight, last.bias))
    moved = last.weight.detach() - before
    assert float(moved.norm()) > 0.01
    pull = -float((asked * moved).sum() / (2 * moved.square().sum()))
    torch.testing.assert_close(asked, -2 * pull * moved, atol=1e-4, rtol=1e-4)
    assert float(of_bias.abs().max()) < 1e-4
    shares = pull / float(rows.square().sum() / rows.shape[1])
    assert min(abs(shares / share - 1) for share in (0.1, 1e-2, 1e-3, 1e-4, 1e-5)) < 1e-2


@pytest.mark.parametrize("kind", _STEP_LOSSES)
def test_weights_that_are_drawn_begin_with_the_best_constant(kind, generator) -> None:
    loss, targets, functional_loss = _STEP_LOSSES[kind]
    x, labels = _at_every_step(generator)
    network, y, still = at_every_step(True), targets(labels), Minibatch(1, rate=1e-9)
    initialize_(network, x, y, loss=loss, method=still, refit_output=False)
    own = network[1].bias.detach().clone()
    bias, rows = own.clone().requires_grad_(), y.flatten(0, 1)
    total = functional_loss(bias.expand(len(rows), 3), rows, reduction="mean")
    (slope,) = torch.autograd.grad(total, bias)
    assert float(slope.abs().max()) < 2e-3  # one target of 401 is that of u = 0
    lift(network, x[:2], loss=loss, show=False, method=still).fit(x[:40], y[:40]).write_()
    torch.testing.assert_close(network[1].bias.detach(), own)  # weights that are given stay


@pytest.mark.parametrize("name", _LAST)
def test_a_last_layer_or_a_loss_that_cannot_be_fitted_stays_as_trained(name, generator) -> None:
    network, loss, obstacle = _LAST[name]
    x = torch.randn(60, 6, generator=generator)
    y = x[:, :1] if name == "Huber" else torch.arange(60) % 3
    x[:, 0] += 2 * (torch.arange(60) % 3)
    fitted, plain = copy.deepcopy(network), copy.deepcopy(network)
    initialize_(fitted, x, y, loss=loss)
    initialize_(plain, x, y, loss=loss, refit_output=False)
    same = all(v.equal(plain.state_dict()[key]) for key, v in fitted.state_dict().items())
    assert same is (obstacle is not None)
    if obstacle is None:
        initialize_(network, x, y, loss=loss, refit_output=True)
        return
    with pytest.raises(DeclarationError, match=f"refit_output needs.*{obstacle}"):
        initialize_(network, x, y, loss=loss, refit_output=True)


def test_a_loader_has_no_last_fit_and_says_so_where_it_is_asked_for(generator) -> None:
    x, y = torch.randn(60, 6, generator=generator), torch.arange(60) % 3
    network, loader = _LAST["dense"][0], DataLoader(TensorDataset(x, y), 20)
    initialize_(network, loader, loss=CrossEntropy())
    with pytest.raises(DataError, match="refit_output needs all samples"):
        initialize_(network, loader, loss=CrossEntropy(), refit_output=True)


@pytest.mark.parametrize(("kind", "lam"), [(nn.LSTM, 3.0), (nn.GRU, 1e6)])
def test_gates_of_all_steps_at_once_train_as_step_by_step_ones(kind, lam, generator) -> None:
    x, y = torch.randn(60, 7, 3, generator=generator).double(), torch.arange(60) % 4
    shares = torch.rand(60, generator=generator).double()
    torch.manual_seed(0)
    network = Sequences(kind, num_layers=2, bidirectional=True).double()
    method = Minibatch(epochs=2, rate=0.3, batch_size=20)
    fast, slow = (
        lift(network, x[:2], loss=CrossEntropy(), show=False, lam=lam, method=method)
        for _ in range(2)
    )
    assert all(state.cell is not None for state in fast.network.states)
    for state in slow.network.states:
        state.cell = None
    losses = [trace_of(one.fit(x, y, sample_weight=shares)).losses for one in (fast, slow)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-7)
    torch.testing.assert_close(fast.forward(x), slow.forward(x), rtol=1e-7, atol=0)


_ENDS = {
    "softmax": lambda u: u.softmax(-1),
    "log_softmax": lambda u: functional.log_softmax(u, dim=-1),
    "log of softmax": lambda u: u.softmax(-1).log(),
}


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("end", _ENDS)
def test_the_softmax_of_a_network_is_that_of_the_loss(end, steps, generator) -> None:
    layers = nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)
    plain = nn.Sequential(*copy.deepcopy(layers))
    network = nn.Sequential(*layers, Called(_ENDS[end]))
    x = torch.rand(30, *((6,) if steps else ()), 4, generator=generator)
    y = (torch.arange(30)[:, None] + torch.arange(6)) % 3 if steps else torch.arange(30) % 3
    before = copy.deepcopy(network.state_dict())
    without, lifted = (
        lift(one, x[:2], loss=CrossEntropy(), show=False, method=FEW).fit(x, y)
        for one in (plain, network)
    )
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    refuses(DataError, r"go into that network: write_\(\)", to_torch, lifted)
    with torch.no_grad():
        lifted.write_()
        logits = network[:3](x)
    torch.testing.assert_close(lifted.forward(x), logits.softmax(-1))
    if end != "log of softmax":  # it trains as without one
        torch.testing.assert_close(without.forward(x), lifted.forward(x))


PROBABILITIES = [
    lambda u: u.exp() / u.exp().sum(-1, keepdim=True),
    lambda u: (u.softmax(-1) + (2 * u).softmax(-1)) / 2,
]


@pytest.mark.parametrize("end", PROBABILITIES, ids=["by hand", "mixed"])
def test_probabilities_are_refused_as_logits(end, generator) -> None:
    layers = nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)
    network = nn.Sequential(*layers, Called(end))
    x, y = torch.rand(30, 4, generator=generator), torch.arange(30) % 3
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(DataError, match=r"taken twice.*x\.clamp\(min=1e-12\)\.log\(\)"):
        initialize_(network, x, y, loss=CrossEntropy())
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    logs = nn.Sequential(*layers, Called(lambda u: end(u).clamp(min=1e-12).log()))
    lift(logs, x[:2], loss=CrossEntropy(), show=False)


def test_several_inputs_one_of_them_a_number_for_each_sample(generator) -> None:
    x, numbers = torch.randn(40, 3, generator=generator), torch.arange(40) % 4
    y = torch.stack([x[:, 0] > 0, numbers > 1], 1).float()
    one, table, last = nn.Linear(3, 4), nn.Embedding(4, 4), nn.Linear(4, 2)
    network = Called(lambda x, numbers: last(torch.tanh(one(x)) + table(numbers)).sigmoid())
    network.parts = nn.ModuleList([one, table, last])
    loss, arrays = BinaryCrossEntropy(), (x, numbers)
    lifted = lift(network, (x[:2], numbers[:2]), loss=loss, show=False)
    losses = trace_of(lifted.fit(arrays, y)).losses
    assert losses[-1] < 0.5 * losses[0]
    torch.testing.assert_close(lifted.write_()(x, numbers), lifted.forward(arrays))


@cases
def test_gauss_newton_goes_through_what_is_not_affine(case, generator) -> None:
    method = GaussNewton(steps=2, form="products")
    _, lifted, x = made(case, torch.float64, generator, 12, method=method, rho=1e-3)
    y = case.labels(12)
    trace: Any = lifted.fit(x, y).trace
    assert len(trace.steps) == 2
    assert sorted(trace.objectives, reverse=True) == trace.objectives
    with torch.no_grad():
        outputs = lifted.write_().eval()(x)
    loss = functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="sum")
    pull = sum(layer.matrix.square().sum() for layer in lifted.weights)
    assert trace.objectives[-1] == pytest.approx(float(loss + 1e-3 * pull), rel=1e-8)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_compiled_network_is_read_as_the_one_inside(generator) -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3))
    compiled: Any = torch.compile(network, backend="eager")
    x = torch.rand(30, 4, generator=generator)
    lifted = lift(compiled, x[:2], loss=CrossEntropy(), show=False)
    assert [line.call for line in lifted.lines] == ["linear", "silu", "linear"]
    assert lifted.fit(x, torch.arange(30) % 3).write_() is compiled
    torch.testing.assert_close(network(x).softmax(-1), lifted.forward(x))


def test_targets_may_have_the_shape_of_pictures(generator) -> None:
    x = torch.rand(20, 1, 4, 4, generator=generator)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 1))
    found = []
    for y in (1 - x, (1 - x).flatten(1)):
        lifted = lift(network, x[:2], loss=SquaredError(), show=False, method=FEW)
        found.append(lifted.fit(x, y).forward(x))
    assert torch.equal(*found)
    labels = (2.99 * x).long().flatten(1)
    pixels = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(2), TURNED)
    lifted = lift(pixels, x[:2], loss=CrossEntropy(), show=False, method=FEW).fit(x, labels)
    assert lifted.forward(x).shape == (20, 16, 3)


def test_features_in_several_units_are_worth_what_each_tells(generator):
    x = torch.randn(600, 20, generator=generator)
    y = x @ torch.randn(20, 1, generator=generator)
    units = 10 ** (6 * torch.rand(20, generator=generator) - 3)

    def error(x, **settings):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1))
        initialize_(network, x[:400], y[:400], loss=SquaredError(), epochs=20, **settings)
        with torch.no_grad():
            return float((network(x[400:]) - y[400:]).square().sum() / y[400:].square().sum())

    assert error(units * x) < 1.2 * error(x, standardize=True)
    assert error(units * x, standardize=False) > 3 * error(units * x)
    kept = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1, bias=False))
    lifted = lift(kept, x[:2], loss=SquaredError(), show=False, method=Minibatch(epochs=1))
    assert not lifted.fit(units * x, y).standardization.moments  # nowhere to fold those of y into


def test_inference_mode_is_no_obstacle_unless_the_network_was_made_in_it() -> None:
    network, x, y = nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 0])
    with torch.inference_mode():
        initialize_(network, x, y, loss=CrossEntropy())
        made_inside = nn.Linear(3, 2)
    assert torch.autograd.grad(network(x).sum(), network.weight)[0].equal(torch.ones(2, 3))
    refuses(DataError, "make it outside", lift, made_inside, x, loss=CrossEntropy())


class Packed(nn.Module):
    """The last step of sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.readout = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return self.readout(self.recurrence(packed)[1][0][-1])


def test_packed_sequences_are_refused_with_what_to_write() -> None:
    x, lengths = torch.zeros(4, 5, 3), torch.tensor([5, 2, 3, 1])
    for example in ((x, lengths), x):
        with pytest.raises(DataError, match=r"h\[torch\.arange\(len\(h\)\), lengths - 1\]"):
            lift(Packed(), example, loss=CrossEntropy())
