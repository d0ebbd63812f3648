"""Bounds on units: against exact arithmetic, derivatives at their extremes, and closed forms."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from liftednet import certify
from tests.models.programs.networks import Called, slopes_are


def fractions(matrix):
    return np.vectorize(Fraction)(matrix.detach().double().numpy())  # which multiplies exactly


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_linear_networks_enclose_the_exact_ones(dtype):
    """Products and multiples in float64 are off by rounding: the exact ones are rational."""
    for seed in range(4):
        torch.manual_seed(seed)
        layers = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)
        network = nn.Sequential(*layers, Called(lambda u: 0.1 * u - u / 3.0)).to(dtype)
        first, second, third = (fractions(layer.weight) for layer in layers)
        exact = (Fraction(0.1) - Fraction(1, 3)) * (third @ second @ first)
        claim = certify(network)
        assert (fractions(claim.lowest) <= exact).all()
        assert (exact <= fractions(claim.highest)).all()
        assert bool((claim.highest - claim.lowest <= 1e-12).all())


def test_derivatives_of_a_product_in_a_box_enclose_the_exact_ones():
    """(xy)' = a y + b x with x = a v + c, y = b v + d is steepest at the ends of v, exactly."""
    generator, example = torch.Generator().manual_seed(0), torch.zeros(2, 1).double()
    for numbers in (100 * torch.rand(10, 4, generator=generator).double()).tolist():
        p, q, r, s = numbers
        times = Called(lambda v, p=p, q=q, r=r, s=s: (p * v + r) * (q * v + s))
        claim = certify(times, example, box=(-0.75, 1.25))
        a, b, c, d = map(Fraction, numbers)
        for end, low in ((-0.75, True), (1.25, False)):
            exact = 2 * a * b * Fraction(end) + a * d + b * c
            found = Fraction(float(claim.lowest if low else claim.highest))
            assert found <= exact if low else found >= exact
            assert float(found) == pytest.approx(float(exact), rel=1e-9)


def test_a_constant_moves_values_and_nothing_else():
    def moved(x):
        return torch.cat([x.sigmoid() + 3.0, x.sigmoid() - 0.0, 2.0 - x.sigmoid()], 1)

    claim = certify(Called(moved), torch.zeros(2, 1, dtype=torch.float64))
    assert claim.least.flatten().tolist() == pytest.approx([3.0, 0.0, 1.0], abs=1e-9)
    assert claim.most.flatten().tolist() == pytest.approx([4.0, 1.0, 2.0], abs=1e-9)


@pytest.mark.parametrize("slopes", [[0.5, 2.0, 0.0, 1.0], [0.25]], ids=str)
def test_slopes_of_a_prelu_are_those_of_its_channels(slopes):
    network: Any = nn.Sequential(nn.Linear(4, 4, bias=False), nn.PReLU(len(slopes))).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(4))
        network[1].weight.copy_(torch.tensor(slopes))
    claim, a = certify(network), torch.tensor(slopes * (4 // len(slopes)), dtype=torch.float64)
    torch.testing.assert_close(claim.lowest.diagonal(), a.clamp(max=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(claim.highest.diagonal(), a.clamp(min=1), rtol=1e-12, atol=0)
    assert claim.convex.equal(a <= 1) and claim.concave.equal(a >= 1)


def test_convolutions_have_the_norm_of_their_matrix():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Conv2d(3, 2, (1, 2), dilation=(1, 2)),
        nn.AvgPool2d(2, 1),
    ).double()  # fmt: skip
    x = torch.zeros(1, 2, 6, 7, dtype=torch.float64)
    matrix = torch.autograd.functional.jacobian(network, x).reshape(-1, x.numel())
    claim = certify(network, torch.cat([x, x]))
    slopes_are(claim, matrix, rtol=1e-9, atol=1e-12)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    assert norm <= claim.lipschitz <= norm * (1 + 1e-8)


def test_maxima_and_products_are_bounded_by_their_parts():
    def gated(x):
        return torch.stack([x[:, 0].sigmoid() * x[:, 1].tanh(), x.amax(1), x.logsumexp(1)], 1)

    claim = certify(Called(gated), torch.zeros(2, 2, dtype=torch.float64))
    gate = torch.tensor([0.25, 1.0]), torch.tensor([[-0.25, 0.0]])  # s' t and s t'
    torch.testing.assert_close(claim.highest[0].float(), gate[0])
    torch.testing.assert_close(claim.lowest[:1].float(), gate[1])
    assert claim.convex.tolist() == [False, True, True] and claim.increasing == ()
    assert claim.least[0] >= -1.0001 and claim.most[0] <= 1.0001
    assert bool((claim.lowest[1:] >= 0).all() and (claim.highest[1:] <= 1 + 1e-12).all())


def test_a_lipschitz_constant_is_not_below_the_exact_norm():
    for seed in range(10):
        torch.manual_seed(seed)
        network: Any = nn.Linear(5, 1).double()
        exact = sum(Fraction(x) ** 2 for x in network.weight[0].tolist())
        assert exact <= Fraction(certify(network).lipschitz) ** 2 <= exact * Fraction(1 + 1e-8)
