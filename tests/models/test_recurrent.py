"""The lifted recurrent network: descent, lengths, prediction rules."""

from typing import Any

import numpy as np
import pytest
import torch

from liftednet import LiftedSequenceClassifier, Network, activations
from liftednet.errors import DataError, DeclarationError, NotFittedError
from liftednet.layers import concatenate, delay, dense
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SimplexCrossEntropy, SquaredError
from liftednet.models import FullBatch, GaussNewton, Lifted, LiftedRNN, Minibatch
from liftednet.solvers.newton_states import NewtonOverTime
from tests.models.networks import refuses, told, trace_of

PAPER: dict[str, Any] = {"divergence": "joint", "rho": 0.1}
KINDS: list[dict[str, Any]] = [
    {"activation": activations.Tanh(), "divergence": "tight"},
    {"activation": activations.Sigmoid()},
    {"hidden_size": (4, 3), "bidirectional": True, "learn_initial_state": True},
    {"state_solver": NewtonOverTime(1e-4, 10), "learn_initial_state": True},
    {"hidden_size": (3, 4)},
]
STEPS = {"divergence": "tight", "method": GaussNewton(5), "standardize": False}
KINDS += [
    STEPS,
    {**STEPS, "activation": activations.Tanh(), "hidden_size": (3, 2), "bidirectional": True},
    {**STEPS, "activation": activations.Softplus(), "hidden_size": (2, 3),
     "learn_initial_state": True},
    {**STEPS, "loss": SquaredError(), "bidirectional": True, "learn_initial_state": True},
    {"loss": SquaredError()}, {"loss": BinaryCrossEntropy()},
    {"method": Minibatch(5, 3), "divergence": "tight"},
    {"method": Minibatch(5, 3), "divergence": "tight", "hidden_size": (3, 2),
     "learn_initial_state": True},
]  # fmt: skip


def full(sweeps: int) -> FullBatch:
    return FullBatch(sweeps, extrapolation=False)


def small_model(**given: Any) -> LiftedRNN:
    options: dict[str, Any] = {**PAPER, "method": full(3), "hidden_size": 4, "start": "orthogonal"}
    return LiftedRNN(3, output_size=2, **{**options, **given})


def small_task(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)
    return x, (x[..., 0].cumsum(1) > 0).long()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_padding_changes_nothing(generator, kind):
    x, y = small_task(generator)
    if "loss" in kind:
        y = x[..., :2].sin() if isinstance(kind["loss"], SquaredError) else (x[..., :2] > 0).long()
    lengths = torch.tensor([5, 1, 3, 2, 4, 5])
    short = small_model(**kind).fit(x, y, lengths=lengths)
    beyond = torch.arange(9) >= lengths[:, None]
    longer = torch.cat([x, torch.full((6, 4, 3), torch.nan).double()], 1)
    longer = longer.masked_fill(beyond[..., None], torch.nan)
    labels = torch.cat([y, y[:, :4]], 1)
    labels[beyond] = -100
    long = small_model(**kind).fit(longer, labels, lengths=lengths)
    first, *_, last = trace_of(short).steps
    assert last.objective < first.objective
    close = 1e-8 if "method" in kind else 1e-6
    for one, other in zip(short.weights, long.weights, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix, atol=close, rtol=close)
    outputs = long.forward(longer, lengths=lengths)
    expected = long.forward(x, lengths=lengths)
    for sample, length in enumerate(lengths.tolist()):
        alone = long.forward(x[sample : sample + 1, :length])
        torch.testing.assert_close(outputs[sample, :length], alone[0])
        torch.testing.assert_close(expected[sample, :length], alone[0])


@pytest.mark.parametrize("recurrent", [False, True])
def test_steps_beyond_the_ends_ask_nothing_of_relaxed_states(recurrent, generator):
    """Where the divergence of a forward pass is above 0, as the joint one is at kinks."""
    network = Network()
    x = network.input(2, sequence=True)
    below = network.state(activations.LeakyReLU(0.2), dense(concatenate(x, delay(x)), 5))
    last = network.state(activations.ReLU(), units=4)
    last.of(dense(concatenate(below, delay(last)), 4) if recurrent else dense(below, 4))
    network.loss(CrossEntropy(), dense(last, 2))
    given = torch.randn(40, 6, 2, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 7, (40,), generator=generator)
    longer = torch.cat([given, given.new_zeros(40, 5, 2)], 1)
    y, method = (given[:, 0, 0] > 0).long(), Minibatch(3)
    one, other = (
        Lifted(network, divergence="joint", method=method).fit(rows, y, lengths=lengths)
        for rows in (given, longer)
    )
    for layer, another in zip(one.weights, other.weights, strict=True):
        torch.testing.assert_close(layer.stacked(), another.stacked(), rtol=1e-9, atol=1e-9)


def test_noise_of_few_sequences_is_not_followed(generator):
    """Labels are drawn by a known probability, whose own log loss no network can beat by much."""
    x = torch.randn(2100, 10, 2, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(0.7 * x[..., 0].sum(1))
    y = (torch.rand(2100, generator=generator, dtype=torch.float64) < chance).long()
    model = LiftedRNN(2, 10, 2).fit(x[:100], y[:100])
    said = model.predict_proba(x[100:])[:, 1]

    def loss(p):
        return float(torch.nn.functional.binary_cross_entropy(p, y[100:].double()))

    assert loss(said) < loss(chance[100:]) + 0.1
    assert loss(said) < 0.9 * loss(torch.full_like(said, 0.5))


def test_with_weights_keeps_that_a_sequence_has_one_answer(generator):
    x, y = small_task(generator)
    model = small_model().fit(x, y[:, 0])
    wanted = model.forward(x)
    torch.testing.assert_close(model.with_weights(model.weights).forward(x), wanted)
    fresh = small_model().with_weights(model.weights, per_step=False)
    torch.testing.assert_close(fresh.forward(x), wanted)
    assert model.with_weights(model.weights, per_step=True).forward(x).shape[:2] == x.shape[:2]
    refuses(DataError, "shape", lambda: LiftedRNN(3, 5, 2).with_weights(model.weights))


def test_refusals_at_the_door(generator):
    x, y = small_task(generator)
    model = small_model()
    refuses(NotFittedError, "not been fitted", lambda: model.forward(x))
    for bad in (x[0], x[..., :2], np.zeros((6, 5, 3), dtype=int)):
        refuses(DataError, "X", model.fit, bad, y)
    refuses(DataError, "y", lambda: model.fit(x, y[:, :3]))
    refuses(DataError, "length", lambda: model.fit(x, y, lengths=torch.full((6,), 9)))
    refuses(DataError, "start", lambda: small_model(start="zeros"))
    refuses(DeclarationError, "state solver", lambda: small_model(state_solver="magic"))
    refuses(DeclarationError, "pre-activation", lambda: small_model(loss=SimplexCrossEntropy()))
    for size in (6.0, True):
        refuses(DataError, "hidden_size", small_model, hidden_size=size)
    for activation in (activations.MaxPooling(), "gelu", "softmax", 3):
        refuses(DeclarationError, "recurrent layer", small_model, activation=activation)


def test_the_first_of_twenty_symbols_is_remembered_without_options():
    # Of this draw the usual starts learn no more than what noise tells by chance.
    symbols = torch.randint(3, (1100, 20), generator=torch.Generator().manual_seed(2))
    x, first = torch.nn.functional.one_hot(symbols, 3).double(), symbols[:, 0]
    model = LiftedRNN(3, 10, 3).fit(x[:100], first[:100])
    assert (model.predict(x[100:]) == first[100:]).double().mean() > 0.95


def test_labels_that_are_noise_are_told() -> None:
    """By the loss, or by the evidence, which is below that of their frequencies."""
    known = 0
    for seed in range(4):
        source = np.random.default_rng(seed)
        x, y = source.normal(size=(60, 6, 2)), source.integers(0, 2, 60)
        texts = told(LiftedSequenceClassifier((8,), random_state=0).fit, x, y)
        known += any("constant prediction" in x or "frequencies alone" in x for x in texts)
    assert known >= 3


def test_answers_that_do_not_change_over_a_sequence_are_not_all_alike(generator) -> None:
    x = torch.randn(12, 4, 2, generator=generator, dtype=torch.float64)
    each = torch.randn(12, 1, 1, generator=generator, dtype=torch.float64).expand(12, 4, 1)
    for y, often in ((each, 0), (torch.full_like(each, 3.0), 1)):
        texts = told(LiftedRNN(2, 3, 1, loss=SquaredError()).fit, x, y)
        assert sum(text.startswith("y is 3.0 on every row") for text in texts) == often
        assert not any("y is [" in text for text in texts)
