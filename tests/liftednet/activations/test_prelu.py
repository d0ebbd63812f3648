"""The leaky ReLU with a slope for every channel, against torch, CVXPY and single leaky ReLUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from liftednet import Activation, check_activation, load, save, to_torch
from liftednet.activations import LeakyReLU, PReLU
from liftednet.errors import DataError, DeclarationError
from liftednet.models import LiftedMLP
from tests.models.networks import labeled

SLOPES = (0.5, 0.1, 2.0)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_every_method_is_that_of_a_leaky_relu_unit_by_unit() -> None:
    prelu, u = PReLU(SLOPES[:2]), normal(6, 4)
    units = [LeakyReLU(0.5), LeakyReLU(0.5), LeakyReLU(0.1), LeakyReLU(0.1)]
    for name in ("forward", "slope"):
        alone = [getattr(one, name)(u[:, [i]]) for i, one in enumerate(units)]
        torch.testing.assert_close(getattr(prelu, name)(u), torch.cat(alone, 1))
    alone = [one.prox(u[:, [i]], 0.7) for i, one in enumerate(units)]
    torch.testing.assert_close(prelu.prox(u, 0.7), torch.cat(alone, 1))
    for name in ("potential_value", "conjugate_value"):
        rows = sum(getattr(one, name)(u[:, [i]]) for i, one in enumerate(units))
        torch.testing.assert_close(getattr(prelu, name)(u), rows)
    assert check_activation(PReLU(SLOPES)).passed


def test_the_forward_map_is_torch_s_and_its_module_is_read_and_made() -> None:
    module = nn.PReLU(3, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(SLOPES))
    with pytest.raises(DeclarationError, match=r"PReLU\(module\.weight\)"):
        Activation.from_function(module)
    prelu = PReLU(module.weight)
    torch.testing.assert_close(prelu.forward(normal(5, 3)), module(normal(5, 3)).detach())
    assert prelu.lipschitz == pytest.approx(2.0)


X, Y = labeled(samples=40)


@pytest.mark.parametrize("method", ["minibatch", "full", "gauss-newton"])
def test_networks_are_trained_exported_and_saved(method: str, tmp_path: Any) -> None:
    model = LiftedMLP((4, 6, 3), PReLU(SLOPES), method=method).fit(X, Y)
    network = to_torch(model)
    assert [type(part).__name__ for part in network] == ["Linear", "PReLU", "Linear", "Softmax"]
    assert network[1].weight.tolist() == pytest.approx([0.5, 0.5, 0.1, 0.1, 2.0, 2.0])
    torch.testing.assert_close(network(X).detach(), model.forward(X))
    again = load(save(model, tmp_path / "model"))
    torch.testing.assert_close(again.forward(X), model.forward(X))


@pytest.mark.parametrize("slopes", [0.0, [-0.1, 0.2], [], "a", float("inf")])
def test_slopes_that_are_none_are_refused(slopes: Any) -> None:
    with pytest.raises(DeclarationError, match="PReLU needs"):
        PReLU(slopes)


def test_units_that_are_no_multiple_are_refused() -> None:
    with pytest.raises(DataError, match="no multiple of the 3 slopes"):
        PReLU(SLOPES).forward(normal(2, 4))
