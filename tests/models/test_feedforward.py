"""Prediction, starts, seeds, precision, and every way to declare a layer."""

from pathlib import Path

import pytest
import torch
from torch import nn

from liftednet import activations, load, losses, save, to_torch
from liftednet.models import GaussNewton, LiftedMLP
from tests.draws import normal
from tests.models.networks import full, labeled, trace_of


def test_max_pooling_is_the_maximum_and_descends(tmp_path: Path) -> None:
    x, y = labeled(samples=12)
    pooling = activations.MaxPooling(3)
    model = full((4, 3, 3), pooling, lam=0.5, rho=0.1, sweeps=1).fit(x, y)
    assert model.weights[0].matrix.shape == (4, 9)
    hidden, output = model.weights
    wanted = output.apply(pooling.forward(hidden.apply(x))).softmax(-1)
    torch.testing.assert_close(model.forward(x), wanted)
    assert all(step.decrease >= 0 for step in trace_of(model).steps)
    assert 0 < model.objective() < trace_of(model).start
    torch.testing.assert_close(to_torch(model)(x), model.forward(x))
    loaded = load(save(model, tmp_path / "model"))
    assert repr(loaded.hidden) == repr((pooling,))
    assert torch.equal(loaded.forward(x), model.forward(x))


@pytest.mark.parametrize("module", [nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish()], ids=repr)
def test_a_map_that_falls_is_the_network_of_torch(module: nn.Module, tmp_path: Path) -> None:
    x, y = labeled(samples=30)
    model = LiftedMLP((4, 5, 5, 3), type(module).__name__.lower(), max_iter=2).fit(x, y)
    layers = [nn.Linear(n, q, dtype=x.dtype) for n, q in ((4, 5), (5, 5), (5, 3))]
    for layer, weights in zip(layers, model.weights, strict=True):
        assert weights.bias is not None
        layer.load_state_dict({"weight": weights.matrix.T, "bias": weights.bias})
    network = nn.Sequential(layers[0], module, layers[1], module, layers[2], nn.Softmax(-1))
    torch.testing.assert_close(model.forward(x), network(x).detach())
    torch.testing.assert_close(to_torch(model)(x), network(x))
    loaded = load(save(model, tmp_path / "model"))
    assert repr(loaded.hidden) == repr(model.hidden)
    torch.testing.assert_close(loaded.forward(x), model.forward(x))
    (phi, _), u = model.hidden, torch.linspace(-20, 20, 100_001, dtype=torch.float64)
    assert 0 <= (module(u) + phi.descent * u).diff().min() < 0.01 * u.diff()[0]  # type: ignore


def test_a_skip_is_a_linear_layer_beside_the_chain(tmp_path, generator):
    x = 3 * normal(60, 3, seed=generator) + 2
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.1 * normal(60, seed=generator)
    method = GaussNewton(evidence=True)
    model = LiftedMLP((3, 8, 1), "tanh", losses.SquaredError(), skip=True, method=method).fit(x, y)
    (w, b), (v, c), (q, none) = ((one.matrix, one.bias) for one in model.weights)
    assert b is not None and c is not None and none is None
    data = (x - x.mean(0)) / model.standardization.moments[model.network.inputs[0]].scale
    above = model.standardization.moments[model.network.terms[0].label]
    right = (data @ w + b).tanh() @ v + c + data @ q
    torch.testing.assert_close(model.forward(x), above.undone(right))
    least_squares = torch.linalg.lstsq(torch.cat([x, torch.ones(60, 1)], 1), y[:, None]).solution
    far = 100 * normal(9, 3, seed=generator)  # beyond the data
    wanted = far @ least_squares[:3] + least_squares[3]
    torch.testing.assert_close(model.forward(far), wanted, rtol=0.05, atol=5.0)
    again = load(save(model, tmp_path / "skip.safetensors"))
    assert torch.equal(again.forward(x), model.forward(x))
