"""Bad input: refused before any work, with what was given and what is needed."""

import re
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.pipeline import make_pipeline
from torch.utils.data import TensorDataset

from liftednet import Activation, LiftedRegressor, Network, certify, posterior, save, to_torch
from liftednet.activations import GELU, MaxPooling, ReLU, Sigmoid, Sign, Tanh
from liftednet.errors import DataError, DeclarationError, LiftedError, NotFittedError
from liftednet.layers import apply, concatenate, delay, dense, reverse
from liftednet.losses import CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedMLP, LiftedRNN, Minibatch
from liftednet.penalties import L1, Declared, Nonnegative
from liftednet.problems import Weights
from tests.liftednet.layers.test_layers import Own
from tests.models.networks import full, labeled, refuses, same_bits, trace_of

X, Y = labeled()


def _with(tensor: torch.Tensor, value: float) -> torch.Tensor:
    spoiled = tensor.clone()
    spoiled[2, 1] = value
    return spoiled


BAD_DATA = [
    (X[:, :3], Y, [r"\(samples, 4\)", r"\(30, 3\)"]),
    (X, Y[:20], ["30", r"\(20,\)"]),
    (_with(X, float("nan")), Y, ["NaN", r"\(2, 1\)", "Say missing=True where NaN"]),
    (_with(X, float("inf")), Y, ["infinite", r"\(2, 1\)"]),
    (X[:0], Y[:0], ["empty", r"\(0, 4\)"]),
    (X, Y + 1, ["0", "2", "3"]),
    (X, torch.zeros_like(Y), ["two classes", "every label is 0"]),
    (X.half(), Y, ["float16"]),
    (X, Y.numpy().astype(np.uint64) + np.uint64(2**63), r"y has integers beyond"),
    (np.ma.masked_array(X.numpy(), X.numpy() > 1), Y, r"X has \d+ masked"),
    (X, np.ma.masked_array(Y.numpy(), Y.numpy() == 1), r"y has \d+ masked"),
    (X.to("meta"), Y, "X.*meta.*no numbers"),
    (X, Y.to("meta"), "y.*meta.*no numbers"),
    (X.to_sparse(), Y, r"X must be dense.*\.to_dense\(\)"),
    (scipy.sparse.csr_array(X.numpy()), Y, r"X.*csr_array.*\.toarray\(\)"),
    (X, Y.to(torch.complex64), "y must be real.*complex64"),
    (X.numpy().astype(np.longdouble), Y, "X must hold numbers that torch has.*float128"),
    (torch.tensor(1.0), Y, r"X must have shape \(samples, 4\).*got \(\)"),
    (torch.nested.nested_tensor([*X]), Y, "nested tensor: pad it"),
]


@pytest.mark.parametrize(("x", "y", "words"), BAD_DATA)
def test_data_are_refused_before_any_work(x, y, words):
    model = full((4, 5, 3))
    refuses(DataError, words, lambda: model.fit(x, y))
    assert model.trace is None


def _zeros(inputs: int, outputs: int) -> Weights:
    return Weights(torch.zeros(inputs, outputs), torch.zeros(outputs))


NO_SIZES: list[Any] = [5, (4,), (), (4, 0, 3), (4, -1), (4, 2.5, 3), (True, 3)]


INFEASIBLE = Declared(cp.sum_squares, lambda w: [w >= 1, w <= 0])


BAD_OPTIONS = [
    ({"lam": 0.0}, ["lam", "positive", "0.0"]),
    ({"seed": -1}, "seed must be an integer"),
    ({"device": "gpu0"}, "device 'gpu0' cannot be used here"),
    ({"lam": [1.0, 1.0]}, ["lam", "1"]),
    ({"rho": 0.0}, ["rho", "positive"]),
    ({"rho": [0.1]}, ["rho", "2"]),
    ({"sweeps": 0}, ["sweeps", "positive integer"]),
    ({"tolerance": 0.0}, ["tolerance"]),
    ({"start": "zeros"}, ["zeros", "kaiming"]),
    ({"start": [_zeros(4, 5)]}, ["2 layers", "1"]),
    ({"start": [_zeros(4, 6), _zeros(6, 3)]}, [r"\(4, 5\)", r"\(4, 6\)"]),
    ({"activations": [ReLU()] * 3}, ["1", "3"]),
    ({"activations": Sign(), "divergence": "joint"}, ["Lipschitz"]),
    ({"activations": Sign()}, ["Sign.*layer 1", 'method="minibatch"']),
    ({"solver": "simplex"}, ["simplex", "reference"]),
    ({"rho": None, "penalty": [L1(0.1)]}, ["penalty", "2", "1"]),
    ({"rho": None, "penalty": "l1"}, ["penalty", "l1"]),
    ({"rho": None, "penalty": INFEASIBLE}, [r"no W of shape \(4, 5\)", "1.0 <= W, W <= 0.0"]),
    *(({"sizes": sizes}, "sizes") for sizes in NO_SIZES),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_options_are_refused_at_the_door(options, words):
    refuses(LiftedError, words, lambda: full(**{"sizes": (4, 5, 3), **options}))


def test_flags_and_functions_of_fit_are_refused_at_the_door():
    for options in ({"progress": "yes"}, {"resume": 1}, {"on_step": 5}):
        refuses(DataError, next(iter(options)), partial(full((4, 3)).fit, X, Y, **options))


def test_outputs_that_overflow_are_refused():
    model = full((4, 3)).with_weights([Weights(torch.full((4, 3), 1e10), torch.zeros(3)).to(X)])
    refuses(DataError, r"overflows torch\.float64.*Scale the inputs", model.forward, 1e300 * X)


@pytest.mark.parametrize("method", ["gauss-newton", "full", "minibatch"])
@pytest.mark.parametrize("scale", [1e20, 1e160, 1e300])
def test_data_beyond_all_scales_never_end_in_numbers_that_are_none(method, scale):
    """A fit of them says so, or is finite."""
    model = LiftedMLP((4, 5, 3), method=method)
    try:
        model.fit(scale * X, Y)
    except LiftedError as error:
        assert re.search("scale|Scale", str(error))
    else:
        assert np.isfinite(trace_of(model).steps[-1].objective)


REAL = torch.linspace(-1, 1, 30, dtype=torch.float64)
STEPS = torch.zeros(30, 6, 3, dtype=torch.float64)
MISTAKES: dict[str, tuple[Any, ...]] = {
    "numbers under the default loss": (LiftedMLP, (4, 3, 3), X, X[:, :3], r"SquaredError\(\)"),
    "labels as floats": (LiftedMLP, (4, 3, 3), X, Y.double(), "make labels integers"),
    "labels with an axis": (LiftedMLP, (4, 3, 3), X, Y[:, None], r"give y\[:, 0\]"),
    "one-hot integers": (LiftedMLP, (4, 3, 3), X, torch.eye(3).long()[Y], r"y\.argmax\(1\)"),
    "two classes of one output": (LiftedMLP, (4, 3, 1), X, Y % 2, r"BinaryCrossEntropy\(\)"),
    "a dataset": (LiftedMLP, (4, 3, 3), TensorDataset(X, Y), Y, "DataLoader"),
    "names": (LiftedMLP, (4, 3, 3), X, np.array(list("abc") * 10), r"numpy\.unique"),
    "rows in a list": (LiftedMLP, (4, 3, 3), list(X), Y, "one array, got 30 in a list: stack"),
    "a column whose squares overflow": (
        LiftedMLP, (4, 5, 3), X * torch.tensor([1, 1, 1e307, 1], dtype=torch.float64), Y,
        "feature 2 of input 1 reaches .*divide it by its scale",
    ),
    "sequences in a list": (LiftedRNN, (3, 4, 2), list(STEPS), Y % 2, "and give lengths="),
    "steps without an axis of outputs": (
        partial(LiftedRNN, loss=SquaredError()), (3, 4, 1), STEPS, REAL.expand(6, 30).T,
        r"give \(samples, steps, 1\), as y\[\.\.\., None\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "sizes", "x", "y", "words"), MISTAKES.values(), ids=MISTAKES)
def test_an_everyday_mistake_is_told_what_to_write(kind, sizes, x, y, words):
    model = kind(*((sizes,) if kind is LiftedMLP else sizes))
    refuses(DataError, words, lambda: model.fit(x, y))


def test_an_estimator_is_the_network_inside_it():
    estimator = LiftedRegressor((3,), max_iter=1, random_state=0)
    for door in (to_torch, lambda x: save(x, "never"), certify, posterior):
        refuses(NotFittedError, "LiftedRegressor has no network yet", door, estimator)
    estimator.fit(np.column_stack([REAL] * 4), REAL.numpy())
    pipeline = make_pipeline(estimator).fit(np.column_stack([REAL] * 4), REAL.numpy())
    refuses(NotFittedError, r"give the estimator in it, as pipeline\[-1\]", to_torch, pipeline)
    modules = to_torch(estimator).double(), to_torch(estimator.model_).float().double()
    assert torch.equal(*(module(X) for module in modules))


@pytest.mark.filterwarnings("ignore:.*:liftednet.errors.FitWarning")
def test_one_feature_needs_no_axis_of_its_own():
    y = REAL.square()
    found = [
        LiftedMLP((1, 5, 1), loss=SquaredError(), max_iter=3).fit(x, y).predict(x)
        for x in (REAL, REAL[:, None])
    ]
    assert torch.equal(*found)
    assert found[0].shape == (30, 1)


ROWS, LABELS = labeled(samples=60)


def test_numbers_of_numpy_are_numbers():
    counts: dict[str, Any] = {"epochs": np.int64(2), "batch_size": np.int32(20)}
    numbers: dict[str, Any] = {"lam": np.float32(2.0), "rho": np.float64(0.5), "seed": np.int64(0)}
    sizes: Any = 4, np.int64(5), np.int32(3)
    wanted = Minibatch(epochs=2, batch_size=20)
    model = LiftedMLP(sizes, **numbers, method=Minibatch(**counts)).fit(ROWS, LABELS)
    plain = LiftedMLP((4, 5, 3), lam=2.0, rho=0.5, method=wanted).fit(ROWS, LABELS)
    assert model.weights[0].matrix.equal(plain.weights[0].matrix)
    assert repr(model) == repr(plain)
    steps: Any = np.int64(2)
    sequences = LiftedRNN(*sizes, rho=np.float32(0.5), method=GaussNewton(steps))
    sequences.fit(ROWS[:, None], LABELS, lengths=np.ones(60, np.uint16))
    same = LiftedRNN(4, 5, 3, rho=0.5, method=GaussNewton(2)).fit(ROWS[:, None], LABELS)
    assert sequences.weights[0].matrix.equal(same.weights[0].matrix)
    assert repr(sequences) == repr(same)


AT_THE_DOOR = [
    ({"loss": "gumbel"}, "there is no loss 'gumbel'; there are binary-cross-entropy"),
    ({"start": 3}, "Weights.*int"),
    ({"start": [(torch.zeros(4, 3), torch.zeros(3))]}, "Weights.*tuple"),
    ({"solver": 3}, "solver.*3"),
    ({"rho": "1"}, "rho.*'1'"),
    ({"rho": 0.1, "penalty": Nonnegative()}, r"rho=0\.1.*SquaredFrobenius.*rho=None"),
    ({"dtype": "float32"}, "dtype.*float32"),
    ({"divergence": []}, r"divergence.*\[\]"),
    ({"method": []}, r"'auto', 'full', 'gauss-newton', 'global'.*\[\]"),
    ({"penalty": L1(0.1), "method": GaussNewton()}, "gauss-newton.*L1"),
]


@pytest.mark.parametrize(("options", "words"), AT_THE_DOOR)
@pytest.mark.parametrize("build", [partial(LiftedMLP, (4, 3)), partial(LiftedRNN, 4, 5, 3)])
def test_mistakes_are_refused_at_the_door(build, options, words):
    refuses(LiftedError, words, lambda: build(**options))


MISSPELT = [
    ("epochs", "'max_iter'$"), ("divergense", "'divergence'$"), ("random_state", "'seed'$"),
    ("sel", "penalty"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), MISSPELT)
@pytest.mark.parametrize("build", [partial(LiftedMLP, (4, 3)), partial(LiftedRNN, 4, 5, 3)])
def test_an_argument_that_there_is_not_is_told_with_one_that_there_is(build, wrong, right):
    refuses(TypeError, f"^Lifted... has no argument '{wrong}'.*{right}", build, **{wrong: 3})


UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("kind", [*UNSIGNED, ">i8", ">u2"])
def test_labels_of_any_integer_type_are_labels(kind):
    model = LiftedMLP((4, 3), method=Minibatch(epochs=1))
    wanted = model.fit(ROWS, LABELS).weights[0].matrix
    labels = LABELS.to(kind) if isinstance(kind, torch.dtype) else LABELS.numpy().astype(kind)
    assert model.fit(ROWS, labels).weights[0].matrix.equal(wanted)


BAD_LENGTHS = [
    (["a"] * 60, "lengths must be integers.*'a'"),
    ([2**70] * 60, "lengths must be integers.*118"),
    (np.full(60, 1j), "lengths must be real"),
    (np.full(60, 2**64 - 1, np.uint64), "lengths has integers beyond"),
    (torch.ones(60), "lengths must be integers.*float32"),
    (1, "lengths must be a torch tensor"),
]


@pytest.mark.parametrize(("lengths", "words"), BAD_LENGTHS)
def test_lengths_that_are_none_are_refused(lengths, words):
    refuses(DataError, words, LiftedRNN(4, 5, 3).fit, ROWS[:, None], LABELS, lengths=lengths)


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_network_that_was_changed_is_told(warm_start):
    model = LiftedMLP((4, 5, 3), method=Minibatch(epochs=1), warm_start=warm_start)
    model.fit(ROWS, LABELS)
    first, model.network = model.network, LiftedMLP((4, 6, 3)).network
    for ask in (lambda: model.predict(ROWS), model.objective):
        refuses(NotFittedError, "another network", ask)
    if warm_start:
        refuses(NotFittedError, "without warm_start", lambda: model.fit(ROWS, LABELS))
        model.network = first
    assert model.fit(ROWS, LABELS).predict(ROWS).shape == LABELS.shape


@pytest.mark.parametrize("method", [Minibatch(epochs=1), FullBatch(1), GaussNewton(1)], ids=repr)
def test_a_fit_takes_its_gradients_under_inference_mode_too(method):
    softsign = Activation.from_function(torch.nn.functional.softsign)  # its slope is autograd's
    outside = LiftedMLP((4, 5, 3), softsign, method=method).fit(ROWS, LABELS)
    with torch.inference_mode():
        inside = LiftedMLP((4, 5, 3), softsign, method=method).fit(ROWS.clone(), LABELS.clone())
        torch.testing.assert_close(softsign.slope(torch.ones(1)), torch.tensor([0.25]))
    assert same_bits(inside.weights, outside.weights)
    inside.fit(ROWS, LABELS)


def _cycle(network: Network, x: Any) -> None:
    h = network.state(ReLU(), units=3, sequence=False)
    g = network.state(ReLU(), dense(h, 3))
    h.of(dense(concatenate(g, x), 3))
    network.loss(CrossEntropy(), dense(g, 3))


def _both_ways(network: Network, x: Any) -> None:
    steps = network.input(4, sequence=True)
    h = network.state(ReLU(), units=4)
    h.of(dense(concatenate(delay(h), reverse(delay(h)), steps), 4))
    network.loss(CrossEntropy(), dense(h, 3))


def _without_pre_activations(network: Network, x: Any) -> None:
    network.loss(CrossEntropy(), dense(network.state(ReLU(), units=4, sequence=False) + x, 3))


def _foreign(network: Network, x: Any) -> None:
    other = Network()
    network.loss(CrossEntropy(), dense(x + other.state(ReLU(), dense(other.input(4), 4)), 3))


def _output_states_below(network: Network, x: Any) -> None:
    network.loss(SimplexCrossEntropy(), dense(x, 3))
    network.loss(CrossEntropy(), dense(network.states[0], 3))


def _through_weights(network: Network, x: Any) -> None:
    gate = dense(network.state(ReLU(), dense(x, 3)), 3)
    gate * (1 - gate)


def _weights_twice(network: Network, x: Any) -> None:
    first = dense(x, 4)
    network.loss(CrossEntropy(), dense(dense(first, 4, weights=first.weights), 3))


def _not_affine(network: Network, x: Any) -> None:
    h = network.state(Tanh(), dense(x, 3))
    network.loss(CrossEntropy(), dense(network.state(ReLU(), apply(Own("bent"), h)), 3))


BAD_GRAPHS = [
    (_cycle, ["states 1", "states 2", "without a delay"]),
    (_both_ways, ["states 1", "Reverse", "delays"]),
    (lambda network, x: network.state(ReLU(), dense(x, 3)), ["an input and a loss"]),
    (_without_pre_activations, ["states 1", "no pre-activations"]),
    (_foreign, ["another network"]),
    (
        lambda network, x: network.loss(CrossEntropy(), dense(x + Network().input(4), 3)),
        ["input 1", "another network"],
    ),
    (_output_states_below, ["states 1", "loss of its own"]),
    (_through_weights, ["Product", "states 1", "state of its own"]),
    (_weights_twice, ["weights"]),
    (lambda _, x: dense(x, 4, weights=dense(x, 4).weights, penalty=Nonnegative()), ["shared"]),
    (_not_affine, [r"Own.*not affine"]),
]


@pytest.mark.parametrize(("build", "words"), BAD_GRAPHS)
def test_graphs_that_cannot_be_are_refused_at_the_door(build, words):
    network = Network()

    def declared() -> Lifted:
        build(network, network.input(4))
        return Lifted(network)

    refuses(DeclarationError, words, declared)


BAD_DECLARATIONS = [
    (lambda n, x, s: n.state(ReLU(), units=3, sequence=False).of(dense(x, 4)),
     ["states 1", r"\(3,\)", r"\(4,\)"]),
    (lambda n, x, s: n.state(ReLU(), units=3).of(dense(x, 3)), ["states 1", "sequence"]),
    (lambda n, x, s: n.state(MaxPooling(2), dense(x, 3)), ["MaxPooling", "maximum"]),
    (lambda n, x, s: n.state(GELU(), dense(x, 3)), ["GELU", "rising"]),
    (lambda n, x, s: n.maximum(dense(x, 3), dense(x, 4)), [r"\(3,\)", r"\(4,\)"]),
    (lambda n, x, s: n.maximum(), ["maximum needs"]),
    (lambda n, x, s: n.state(ReLU(), dense(x, 3), lam=0.0), ["lam", "positive"]),
    (lambda n, x, s: n.state(ReLU(), dense(x, 3), bounds=(1.0, 0.0)), ["bound"]),
    (lambda n, x, s: n.state(torch.relu, dense(x, 3)), ["Activation"]),
    (lambda n, x, s: n.state(ReLU(), 3), ["pre-activations|expression"]),
    (lambda n, x, s: n.loss("squares", dense(x, 3)), ["loss"]),
    (lambda n, x, s: n.loss(CrossEntropy(), dense(x, 3), weight=-1.0), ["weight"]),
    (lambda n, x, s: n.loss(SimplexCrossEntropy(), dense(x, 3), activation=Sigmoid()),
     ["Sigmoid"]),
    (lambda n, x, s: n.input(0), ["sizes"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "words"), BAD_DECLARATIONS)
def test_declarations_that_do_not_fit_are_refused_on_the_spot(build, words):
    network = Network()
    x, sequence = network.input(4), network.input(4, sequence=True)
    refuses(LiftedError, words, lambda: build(network, x, sequence))
    assert not network.terms


def test_a_setting_that_does_not_fit_is_refused_at_the_next_fit_and_changes_nothing():
    model = LiftedMLP((4, 5, 3), method="full", dtype=torch.float64).fit(X, Y)
    before = model.objective()
    for name, value in (
        ("penalty", [L1(0.1)]), ("method", "all"), ("lam", -1.0), ("divergence", "loose"),
        ("solver", "magic"), ("penalty", INFEASIBLE),
    ):  # fmt: skip
        kept = getattr(model, name)
        setattr(model, name, value)
        refuses(LiftedError, "", model.fit, X, Y)
        setattr(model, name, kept)
        assert model.objective() == before


def test_data_for_several_inputs_are_named():
    network = Network()
    x, z = network.input(4), network.input(2)
    network.loss(CrossEntropy(), dense(concatenate(x, z), 3))
    network.loss(SquaredError(), dense(z, 1))
    model = Lifted(network, method="full")
    both, targets = (X, X[:, :2]), (Y, X[:, :1])
    for given, wanted, words in (
        (X, targets, ["X", "input 1, input 2"]),
        ((X, X[:, :3]), targets, [r"\(samples, 2\)", r"\(30, 3\)"]),
        ((X, X[:5, :2]), targets, ["30", "5"]),
        (both, Y, ["y", "y 1, y 2"]),
        (both, (Y, X[:, :2]), [r"\(30, 2\)"]),
    ):
        refuses(DataError, words, partial(model.fit, given, wanted))
        assert not model.is_fitted


def test_a_warm_start_is_brought_to_a_new_constraint():
    model = LiftedMLP((4, 5, 3), method=FullBatch(1), warm_start=True).fit(X, Y)
    model.penalty = Nonnegative(1e-3)
    assert min(float(layer.matrix.min()) for layer in model.fit(X, Y).weights) >= 0
