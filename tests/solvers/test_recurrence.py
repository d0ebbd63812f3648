"""A recurrence as one operation against autograd through its steps."""

import pytest
import torch
from torch.func import jvp

from liftednet.activations import LeakyReLU, Tanh
from liftednet.compiled import has_numba
from liftednet.models import GaussNewton, LiftedRNN
from liftednet.models.methods import gauss_newton
from liftednet.solvers.compiled.recurrent import CompiledRecurrence
from liftednet.solvers.linearized import Linearized
from liftednet.solvers.recurrence import LinearRecurrence, recurrence


@pytest.mark.parametrize("activation", [Tanh(), LeakyReLU(0.1)], ids=repr)
def test_products_with_the_jacobian_and_its_transpose_are_those_of_autograd(generator, activation):
    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    points, moves, push = (
        (drawn(5, 3, 4), drawn(4, 4)),
        (drawn(5, 3, 4), drawn(4, 4)),
        drawn(5, 3, 4),
    )

    def states(drive, weight):
        return recurrence(drive, weight, activation.forward)

    drive, weight = (x.clone().requires_grad_() for x in points)
    found = LinearRecurrence.apply(drive, weight, activation.forward)
    plain = states(drive, weight)
    seen = torch.zeros_like(found, requires_grad=True)
    pulled = torch.autograd.grad(found, (drive, weight), seen, create_graph=True)

    assert found.equal(plain)
    pairs = zip(
        torch.autograd.grad(found, (drive, weight), push, retain_graph=True),
        torch.autograd.grad(plain, (drive, weight), push),
        strict=True,
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
    ahead = torch.autograd.grad(pulled, seen, moves)[0]
    torch.testing.assert_close(ahead, jvp(states, points, moves)[1])


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
@pytest.mark.parametrize("samples", [16, 21])
def test_compiled_products_are_those_of_autograd(generator, samples, monkeypatch):
    """Sequences end early, and samples fill no whole number of registers."""
    seen, told = [], gauss_newton._forward

    def kept(blocks):
        seen.append(told(blocks))
        return seen[0]

    monkeypatch.setattr(gauss_newton, "_forward", kept)
    x = torch.randn(samples, 6, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (samples, 6), generator=generator)
    lengths = torch.randint(1, 7, (samples,), generator=generator)
    method = GaussNewton(steps=1)
    LiftedRNN(3, 9, 4, Tanh(), start="orthogonal", method=method).fit(x, y, lengths=lengths)

    (forward,) = seen
    assert CompiledRecurrence.serves(forward)
    point = torch.randn(len(forward.pulls), generator=generator, dtype=torch.float64) / 3
    compiled, plain = CompiledRecurrence(forward, point), Linearized(forward, point)
    counted = forward.targets[0].counted
    moves, push = forward.split(torch.randn_like(point)), torch.randn_like(plain.outputs[0])
    torch.testing.assert_close(compiled.outputs[0][counted], plain.outputs[0][counted])
    torch.testing.assert_close(compiled.ahead(moves)[0][counted], plain.ahead(moves)[0][counted])
    pushes = (push.where(counted[..., None], 0.0),)
    for ours, theirs in zip(compiled.back(pushes), plain.back(pushes), strict=True):
        torch.testing.assert_close(ours, theirs)
