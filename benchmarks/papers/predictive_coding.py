"""Predictive coding by PCX (Pinchetti et al., ICLR 2025), as its two-moons example writes it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu
import torch
from torch import Tensor

BATCH, INFERENCE = 128, 8  # rows of a step, steps of the states


class Network(pxc.EnergyModule):  # type: ignore[misc]
    """784 - 128 - 128 - 128 - 10 with leaky ReLU, each layer with states of its own."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """Draw the weights as PCX does."""
        super().__init__()
        self.layers = [pxnn.Linear(m, n) for m, n in pairwise(sizes)]
        self.vodes = [pxc.Vode() for _ in sizes[2:]] + [pxc.Vode(pxc.ce_energy)]
        self.vodes[-1].h.frozen = True

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the scores, and hold the last states at y where there is one."""
        for vode, layer in zip(self.vodes[:-1], self.layers[:-1], strict=True):
            x = vode(jax.nn.leaky_relu(layer(x)))
        self.vodes[-1](self.layers[-1](x))
        if y is not None:
            self.vodes[-1].set("h", y)
        return self.vodes[-1].get("u")


STATES = pxc.VodeParam | pxc.VodeParam.Cache


def free() -> Any:
    """Select the states that are not held; made anew, for `to` changes a mask in place."""
    return pxu.M_hasnot(pxc.VodeParam, frozen=True)


@pxf.vmap(pxu.M(STATES).to((None, 0)), in_axes=(0, 0), out_axes=0)
def forward(x: Any, y: Any, *, model: Network) -> Any:
    return model(x, y)


@pxf.vmap(pxu.M(STATES).to((None, 0)), in_axes=(0,), out_axes=(None, 0), axis_name="batch")
def energy(x: Any, *, model: Network) -> Any:
    scores = model(x, None)
    return jax.lax.psum(model.energy(), "batch"), scores


@pxf.jit()
def step(x: Any, y: Any, *, model: Network, weights: Any, states: Any) -> None:
    model.train()
    clear = partial(pxu.step, model, clear_params=pxc.VodeParam.Cache)
    with clear(pxc.STATUS.INIT):
        forward(x, y, model=model)
    states.init(free()(model))
    for _ in range(INFERENCE):
        with clear():
            _, slope = pxf.value_and_grad(free().to([False, True]), has_aux=True)(energy)(
                x, model=model
            )
        states.step(model, slope["model"])
    states.clear()
    with clear():
        of = pxu.M(pxnn.LayerParam).to([False, True])
        _, slope = pxf.value_and_grad(of, has_aux=True)(energy)(x, model=model)
    weights.step(model, slope["model"], scale_by=1.0 / x.shape[0])


def train(
    x: Tensor, y: Tensor, new: Tensor, rate: float, state_rate: float, epochs: int, seed: int
) -> Tensor:
    """Return the classes (rows) that a trained network gives to new inputs (rows, 784)."""
    pcx.RKG.seed(seed)
    model = Network((784, 128, 128, 128, 10))
    weights = pxu.Optim(lambda: optax.adamw(rate), pxu.M(pxnn.LayerParam)(model))
    states = pxu.Optim(lambda: optax.sgd(state_rate, momentum=0.5, nesterov=True))
    X, Y = jnp.asarray(x.numpy()), jax.nn.one_hot(y.numpy(), 10)
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        rows = order.permutation(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH)
        for batch in rows:
            step(X[batch], Y[batch], model=model, weights=weights, states=states)
    model.clear_params(pxc.VodeParam)
    model.eval()
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        scores = forward(jnp.asarray(new.numpy()), None, model=model)
    return torch.from_numpy(np.array(scores.argmax(1)))
