"""Which solver is chosen for states whose prox is a root, found unit by unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from liftednet import activations
from liftednet.divergences import joint, tight
from liftednet.problems import Link, StateFit
from liftednet.solvers import choose

ROOTS = [
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Arctan(),
    activations.Sine(),
    activations.Softplus(),
    activations.ELU(),
]


def _fit(divergence, bounds=None):
    units = 50
    target = divergence.activation.forward(torch.zeros(100, units))
    link = Link(divergence, torch.eye(units), torch.zeros(units), target)
    return replace(StateFit(divergence, torch.zeros(100, units), (link,)), bounds=bounds)


@pytest.mark.parametrize("bounds", [None, (0.1, 0.6)])
@pytest.mark.parametrize("activation", ROOTS, ids=repr)
def test_steps_that_need_few_roots_are_chosen(activation, bounds):
    assert choose(_fit(joint(activation), bounds)).name == "dual"
    assert choose(_fit(tight(activation), bounds)).name == "newton"


def test_a_closed_prox_is_taken():
    assert choose(_fit(joint(activations.SimplexProjection()))).name == "proximal"
    assert activations.ReLU().closed_prox and activations.LeakyReLU(0.1).closed_prox
