"""A recurrence as one operation against autograd through its steps."""

import math
from functools import partial

import pytest
import torch
from torch.func import jvp

from liftednet.activation import Activation
from liftednet.activations import LeakyReLU, ReLU, Tanh
from liftednet.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from liftednet.models import GaussNewton, LiftedRNN
from liftednet.models.methods import gauss_newton
from liftednet.solvers.compiled.loops import has_numba
from liftednet.solvers.compiled.recurrent import CompiledRecurrence
from liftednet.solvers.gauss_newton import objective
from liftednet.solvers.gauss_newton.equations import output_jacobians
from liftednet.solvers.gauss_newton.local_model import Linearized
from liftednet.solvers.gauss_newton.objective import Target, joined
from tests.draws import normal


@pytest.mark.parametrize("activation", [Tanh(), LeakyReLU(0.1)], ids=repr)
def test_products_with_the_jacobian_and_its_transpose_are_those_of_autograd(generator, activation):
    drawn = partial(normal, seed=generator)
    points, moves = ((drawn(5, 3, 4), drawn(4, 4)) for _ in range(2))
    push = drawn(5, 3, 4)

    def states(drive, weight):
        return objective.recurrence(drive, weight, activation.forward)

    drive, weight = (x.clone().requires_grad_() for x in points)
    found = objective.LinearRecurrence.apply(drive, weight, activation.forward)
    plain = states(drive, weight)
    seen = torch.zeros_like(found, requires_grad=True)
    pulled = torch.autograd.grad(found, (drive, weight), seen, create_graph=True)

    assert found.equal(plain)
    ours = torch.autograd.grad(found, (drive, weight), push, retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(plain, (drive, weight), push))
    ahead = torch.autograd.grad(pulled, seen, moves)[0]
    torch.testing.assert_close(ahead, jvp(states, points, moves)[1])


def forward_of(generator, monkeypatch, samples, activation, *, last=False, hidden=9, **options):
    """Return a recurrent network on sequences that end early, as a fit makes it."""
    seen, told = [], gauss_newton.forward_of

    def kept(blocks):
        seen.append(told(blocks))
        return seen[-1]

    monkeypatch.setattr(gauss_newton, "forward_of", kept)
    x = normal(samples, 6, 3, seed=generator)
    y = torch.randint(0, 4, (samples,) if last else (samples, 6), generator=generator)
    lengths = torch.randint(1, 7, (samples,), generator=generator)
    method = GaussNewton(steps=1)
    LiftedRNN(3, hidden, 4, activation, method=method, **options).fit(x, y, lengths=lengths)
    forward = seen[-1]  # others try starts
    assert forward.outputs(forward.split(joined(forward.pull)), forward.data)[0].shape[1:] == (
        1 if last else 6, 4,
    )  # fmt: skip
    return forward


MAPS = [ReLU(), LeakyReLU(0.1), Tanh(), Activation.from_function(torch.nn.functional.softplus)]


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
@pytest.mark.parametrize("activation", MAPS, ids=["relu", "leaky", "tanh", "of one's own"])
@pytest.mark.parametrize("samples", [16, 21])
@pytest.mark.parametrize("last", [False, True])
def test_compiled_products_are_those_of_autograd(generator, samples, activation, last, monkeypatch):
    """Samples fill a whole number of registers, or do not; labels are those of steps, or not."""
    forward = forward_of(generator, monkeypatch, samples, activation, last=last, start="orthogonal")
    assert forward.rows is not None
    point = normal(len(forward.pulls), seed=generator) / 3
    compiled, plain = CompiledRecurrence(forward, point), Linearized(forward, point)
    counted = forward.targets[0].counted
    moves, push = forward.split(torch.randn_like(point)), torch.randn_like(plain.outputs[0])
    for (ours,) in (compiled.outputs, forward.passed(point)):
        torch.testing.assert_close(ours[counted], plain.outputs[0][counted])
    torch.testing.assert_close(compiled.ahead(moves)[0][counted], plain.ahead(moves)[0][counted])
    pushes = (push.where(counted[..., None], 0.0),)
    torch.testing.assert_close(compiled.back(pushes), plain.back(pushes))


LAYERS = [{"hidden": 5}, {"hidden": (4, 3)}, {"hidden": 3, "bidirectional": True}]


@pytest.mark.parametrize("layers", LAYERS, ids=["one", "two", "both ways"])
@pytest.mark.parametrize("activation", MAPS[1:], ids=["leaky", "tanh", "of one's own"])
@pytest.mark.parametrize("last", [False, True])
def test_derivatives_of_outputs_are_autograds(generator, layers, activation, last, monkeypatch):
    forward = forward_of(generator, monkeypatch, 4, activation, last=last, **layers)
    assert (forward.recurrent is None) == (layers != LAYERS[0])
    point = normal(len(forward.pulls), seed=generator) / 3
    (outputs,), (ours,) = output_jacobians(forward, point)
    plain = torch.autograd.functional.jacobian(
        lambda point: forward.outputs(forward.split(point), forward.data)[0], point
    )
    counted = forward.targets[0].counted
    torch.testing.assert_close(ours[counted], plain[counted])
    torch.testing.assert_close(outputs[counted], forward.passed(point)[0][counted])


def test_a_label_of_each_sequence_is_held_against_its_last_step(generator, monkeypatch):
    forward = forward_of(generator, monkeypatch, 7, Tanh(), last=True)
    point = normal(len(forward.pulls), seed=generator) / 3
    (cell, readout), one = forward.split(point), torch.ones(1).double()
    for x, length, found in zip(*forward.data, forward.passed(point)[0], strict=True):
        h = torch.zeros(9).double()
        for step in x[:length]:
            h = (torch.cat([h, step, one]) @ cell).tanh()
        torch.testing.assert_close(found[0], torch.cat([h, one]) @ readout)


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
def test_a_compiled_pass_that_overflows_is_told(generator, monkeypatch):
    """Infinite states of one sign after another become nothing that counts as a number."""
    forward = forward_of(generator, monkeypatch, 3, ReLU())
    assert not math.isfinite(forward.objective(1e200 * normal(len(forward.pulls), seed=generator)))


@pytest.mark.parametrize("loss", [CrossEntropy(), BinaryCrossEntropy(), SquaredError()], ids=repr)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_targets_are_the_same_however_outputs_are_stored(generator, loss, ragged, weighed):
    drawn = partial(normal, seed=generator)
    outputs, values, directions = drawn(5, 4, 3), drawn(5, 4, 3).softmax(-1), drawn(5, 4, 3)
    counted = torch.rand(5, 4, generator=generator) < (0.6 if ragged else 1.1)
    weight = drawn(5, 1, 1).square() if weighed else 0.7
    target = Target(loss.divergence, values, counted, weight)
    by_unit = outputs.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert by_unit.stride() != outputs.stride()
    torch.testing.assert_close(target.value(by_unit), target.value(outputs))
    torch.testing.assert_close(target.slopes(by_unit), target.slopes(outputs))
    curved = target.curved(by_unit)(directions)
    torch.testing.assert_close(curved, target.curved(outputs)(directions))
    gradient = outputs.clone().requires_grad_()
    slope = torch.autograd.grad(target.value(gradient), gradient, create_graph=True)[0]
    torch.testing.assert_close(slope.detach(), target.slopes(outputs)[0])
    exact = torch.autograd.grad(slope, gradient, directions)[0]  # the Hessian is its own transpose
    torch.testing.assert_close(exact, curved)
