"""Red-black sweeps by kernels, under the interpreter, against the torch sweeps in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.errors import SolverError
from liftednet.losses import CrossEntropy, SquaredError
from liftednet.problems.states_over_time import StatesOverTime, TimeLink, forward_states
from liftednet.solution import Status
from liftednet.solvers import choose, solve
from liftednet.solvers.kernels import FusedRedBlack, StateBlocks, device
from liftednet.solvers.kernels.elimination import eliminated
from liftednet.solvers.over_time import DeviceSystem, RedBlack

SMALL = StateBlocks(16, depth=16, columns=16)
FUSED = FusedRedBlack(1e-4, blocks=SMALL)


def problem(
    generator: torch.Generator,
    divergence: Divergence,
    above: Divergence,
    at_end: bool = False,
    full: bool = False,
    steps: int = 4,
    lengths: tuple[int, ...] = (4, 1, 3),
    units: int = 3,
) -> StatesOverTime:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    samples, ends = len(lengths), torch.tensor(lengths)
    time = torch.arange(steps)[:, None]
    counted = time == ends - 1 if at_end else time < ends
    target = above.activation.forward(draw(steps, samples, 2))
    offset = draw(steps, samples, 2) if full else draw(2)
    link = TimeLink(above, draw(units, 2), offset, target, counted)
    recurrent = 0.3 * draw(units, units) / units**0.5
    return StatesOverTime(divergence, draw(steps, samples, units), recurrent, (link,), ends, 3.0)


@pytest.mark.parametrize(
    ("activation", "coupling", "loss"),
    [
        (activations.ReLU(), joint, CrossEntropy()),
        (activations.Sigmoid(), tight, SquaredError()),
    ],
)
def test_sweeps_are_those_of_torch(
    activation: Activation, coupling, loss, generator: torch.Generator
) -> None:
    fit = problem(generator, coupling(activation), loss.divergence, at_end=coupling is tight)
    solution = solve(fit, FUSED)
    expected = RedBlack().solve(fit.double())
    assert solution.status is Status.SOLVED
    assert 1 < solution.iterations < 200
    torch.testing.assert_close(solution.value.double(), expected.value, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("steps", "lengths"), [(1, (1,)), (6, (3, 6, 1, 2))])
def test_any_number_of_steps(
    steps: int, lengths: tuple[int, ...], generator: torch.Generator
) -> None:
    relu, linear = joint(activations.ReLU()), joint(activations.Identity())
    fit = problem(generator, relu, linear, full=True, steps=steps, lengths=lengths, units=17)
    solution = solve(fit, FUSED)
    expected = RedBlack().solve(fit.double())
    torch.testing.assert_close(solution.value.double(), expected.value, atol=1e-3, rtol=1e-3)
    assert solution.status is Status.SOLVED
    beyond = ~fit.valid
    assert not solution.value[beyond].any()


def test_sweeps_after_the_last_do_nothing(generator: torch.Generator) -> None:
    fit = problem(generator, joint(activations.ReLU()), joint(activations.Identity()))
    first = solve(fit, FUSED)
    again = solve(fit, replace(FUSED, max_iterations=3), first.value)
    assert again.iterations == 1
    torch.testing.assert_close(again.value, first.value, atol=1e-3, rtol=1e-3)


def test_newton_steps_over_time_go_first(generator: torch.Generator) -> None:
    fit = problem(generator, joint(activations.ReLU()), joint(activations.Identity()))
    assert choose(fit).name == "newton-over-time"
    assert FUSED.obstacle(fit) is None
    assert "float32 alone" in (FUSED.obstacle(fit.double()) or "")


@pytest.mark.parametrize("units", [1, 3, 17])
def test_the_block_tridiagonal_system_is_solved_exactly(
    units: int, generator: torch.Generator
) -> None:
    relu, linear = joint(activations.ReLU()), joint(activations.Identity())
    fit = problem(generator, relu, linear, steps=5, lengths=(5, 2, 3), units=units).double()
    states = forward_states(fit)
    free = (torch.rand(states.shape, generator=generator) > 0.3) & fit.valid.unsqueeze(-1)
    slope = free.double()
    system = DeviceSystem(fit, states, slope, free, torch.where(free, 3.0, 1.0).double())
    right = torch.randn(states.shape, generator=generator, dtype=torch.float64) * slope
    found = eliminated(system.blocks(slice(0, 5)), system.coupling, free, right)
    torch.testing.assert_close(found, system.solve(right), atol=1e-10, rtol=1e-10)
    back = system.coupled(found) + system.curvature * found
    torch.testing.assert_close(back.where(free, 0.0), right, atol=1e-10, rtol=1e-10)


def test_states_over_time_that_do_not_fit_are_refused(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = problem(generator, joint(activations.ReLU()), joint(activations.Identity()))
    monkeypatch.setattr(device, "free_bytes", lambda _: 5_000)
    with pytest.raises(SolverError, match=r"3 samples need [\d,]+ bytes on cpu and 5,000 are"):
        solve(fit, FUSED)


def test_sequences_that_are_not_contiguous(generator: torch.Generator) -> None:
    fit = problem(generator, joint(activations.ReLU()), joint(activations.Identity()))
    turned = replace(
        fit,
        drive=fit.drive.transpose(0, 2).contiguous().transpose(0, 2),
        recurrent=fit.recurrent.T.contiguous().T,
    )
    few = replace(FUSED, max_iterations=2)
    torch.testing.assert_close(solve(turned, few).value, solve(fit, few).value)
