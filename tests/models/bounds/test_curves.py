"""Maps of one unit on intervals: against torch's own values and derivatives on fine grids."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from liftednet import certify
from liftednet.models.bounds import curves
from liftednet.models.programs.composition import composition_of

MAPS: list[Any] = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.Hardtanh(-1.0, 2.0), nn.ReLU6(), nn.Sigmoid(), nn.Tanh(),
    nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.SELU(), nn.ELU(), nn.ELU(2.5),
    nn.ELU(0.3), nn.CELU(2.0), nn.Hardswish(), nn.Softplus(3.0, 40.0), nn.Softsign(),
    nn.LogSigmoid(), nn.Hardsigmoid(), nn.Softshrink(0.3), nn.Tanhshrink(), nn.ELU(-0.5),
]  # fmt: skip

EVERY = [name for name, found in vars(curves).items() if isinstance(found, curves.Curve)]


@pytest.mark.parametrize("module", MAPS, ids=repr)
def test_ends_and_lines_hold_on_intervals_and_touch_the_map(module, draw) -> None:
    network: Any = nn.Sequential(nn.Linear(1, 1, bias=False), module).double()
    curve = composition_of(network, 1).blocks[-1].curves[0]
    spans = np.sort(draw.normal(size=(60, 2)) * 10 ** draw.uniform(-1, 1.3, (60, 1)), axis=1)
    spans = np.concatenate([spans, [[-50.0, 50.0], [-1.0, 2.0], [0.0, 3.0], [-3.0, 0.0]]])
    low, high = torch.from_numpy(np.ascontiguousarray(spans.T))
    u = low + torch.linspace(0, 1, 3001).double()[:, None] * (high - low)
    corners = [torch.full_like(u[:1], x) for k in curve.knots for x in (k - 1e-9, k + 1e-9)]
    u = torch.cat([u, *corners]).clamp(low, high).sort(0).values.requires_grad_()
    phi = module(u)
    (slope,) = torch.autograd.grad(phi.sum(), u)
    phi, inner = phi.detach(), torch.where((low < u) & (u < high), slope, slope[len(slope) // 2])
    rounding = 1e-8 if isinstance(module, nn.Hardsigmoid) else 1e-12  # its 1/6 is in float32
    size = rounding * (1 + inner.abs())
    (least, most), (lowest, highest) = curve.slopes(low, high), curve.values(low, high)
    assert bool((inner >= least - size).all() and (inner <= most + size).all())
    assert bool((phi >= lowest).all() and (phi <= highest).all())
    near = 0.02 * (inner.amax(0) - inner.amin(0)) + (high - low) / 1000 + 1e-6  # of the grid
    assert bool(((inner.amin(0) - least) <= near).all() and ((most - inner.amax(0)) <= near).all())
    span = 2e-3 * (high - low) * inner.abs().amax(0) + 1e-6
    assert bool(((phi.amin(0) - lowest) <= span).all() and ((highest - phi.amax(0)) <= span).all())
    assert bool((inner.std(0)[curve.linear_between(low, high)] <= 1e-7).all())
    slopes, least, most = curve.beside(low, high)
    chord = (phi[-1] - phi[0]) / (high - low)
    torch.testing.assert_close(slopes[:, 1], chord, rtol=1e-6, atol=rounding * 1e4)
    for n in range(slopes.shape[-1]):
        gap = phi - slopes[:, n] * u.detach()
        assert bool((gap >= least[:, n]).all() and (gap <= most[:, n]).all())
        touching = 2e-3 * (high - low) * (1 + inner.abs().amax(0)) + 1e-6
        assert bool((gap.amin(0) - least[:, n] <= touching).all())
        assert bool((most[:, n] - gap.amax(0) <= touching).all())


@pytest.mark.parametrize("module", MAPS, ids=repr)
def test_a_map_is_called_convex_where_its_middles_are(module) -> None:
    network: Any = nn.Sequential(nn.Linear(1, 1, bias=False), module).double()
    with torch.no_grad():
        network[0].weight.fill_(1.0)
        facts, u = certify(network), torch.linspace(-40, 40, 4001, dtype=torch.float64)
        bend = module(u)[2:] - 2 * module(u)[1:-1] + module(u)[:-2]
        # Both sides of kinks: whether a point of the grid is on one, its last digit tells.
        everywhere = torch.cat([u - 1e-9, u, u + 1e-9]).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(module(everywhere).sum(), everywhere)
    assert bool(facts.convex) == bool((bend >= -1e-13).all())
    assert bool(facts.concave) == bool((bend <= 1e-13).all())
    assert facts.lipschitz == pytest.approx(float(slope.abs().max()), rel=1e-3)
    assert float(facts.lowest) <= float(slope.min()) and facts.lipschitz < math.inf


@pytest.mark.parametrize("name", EVERY)
def test_knots_and_signs_tell_how_a_curve_bends(name):
    """By second differences between knots, where the table says convex, concave, or linear."""
    curve = getattr(curves, name)
    low, high = (max(curve.window[0], -6.0), min(curve.window[1], 6.0))
    ends = [low, *(k for k in curve.knots if low < k < high), high]
    first = sum(k <= low for k in curve.knots)
    for sign, begin, end in zip(curve.signs[first:], ends, ends[1:], strict=False):
        room = 1e-3 * (end - begin)
        u = torch.linspace(begin + room, end - room, 41, dtype=torch.float64)
        bends = curve.slope(u).diff()
        step = 1e-12 * (1 + curve.slope(u).abs().max())
        assert bool((sign * bends >= -step).all() if sign else (bends.abs() <= step).all())


@pytest.mark.parametrize("name", EVERY)
def test_slopes_on_intervals_hold_those_of_their_ends_to_the_last_bit(name):
    curve = getattr(curves, name)
    low = torch.linspace(max(curve.window[0], -3.0), 2.5, 200, dtype=torch.float64)
    high = low + 0.4
    least, most = curve.slopes(low, high)
    for u in (torch.nextafter(low, high), (low + high) / 2, torch.nextafter(high, low)):
        assert bool(((least <= curve.slope(u)) & (curve.slope(u) <= most)).all())
