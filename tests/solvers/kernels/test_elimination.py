"""The linear system of a Newton step over time by a kernel, under the interpreter."""

from __future__ import annotations

import pytest
import torch

from liftednet import activations
from liftednet.divergences import Divergence, joint
from liftednet.problems.states_over_time import StatesOverTime, TimeLink, forward_states
from liftednet.solvers.kernels.device import eliminated
from liftednet.solvers.over_time import DeviceSystem


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
