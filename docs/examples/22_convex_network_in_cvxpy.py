"""
A learned cost in a convex problem
==================================

The cost of running two machines at some loads is only known from noisy measurements, and known to
be convex. An input-convex network learns it; `to_cvxpy` hands it to CVXPY as one convex
expression, and the best loads under linear constraints are found with a proof.
"""

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from liftednet import certify, optimize, to_cvxpy
from liftednet.models import Lifted, input_convex

rng = np.random.default_rng(0)
loads = rng.uniform(0, 10, (400, 2))


def cost(x):
    """Return what running costs: each machine has its best load, and both share a cooler."""
    alone = 0.3 * (x[:, 0] - 4) ** 2 + 0.5 * (x[:, 1] - 3) ** 2
    return 20 + alone + np.maximum(0, 2 * (x.sum(1) - 9))


measured = cost(loads) + rng.normal(scale=1.0, size=len(loads))
network = input_convex((2, 20, 20, 1))
model = Lifted(network, seed=0).fit(torch.from_numpy(loads), torch.from_numpy(measured)[:, None])
print(certify(model))

# %%
# The network is a convex expression by CVXPY's own rules, in the units of the data. Demand asks for
# at least 11 together, and the second machine for no more than twice the load of the first.
x = cp.Variable(2, bounds=[0, 10])
learned = to_cvxpy(model, x)
print(learned.output.curvature, learned)
demand = [cp.sum(x) >= 11, x[1] <= 2 * x[0]]
best = optimize(learned, cp.Minimize(learned.output[0]), demand, gap=1e-6)
print(best)
print(f"loads {x.value.round(3)}, the true cost there {cost(x.value[None])[0]:.2f}")
print(f"a unit of demand more would cost {demand[0].dual_value:.2f}")

# %%
grid = np.stack(np.meshgrid(np.linspace(0, 10, 101), np.linspace(0, 10, 101)), -1)
height = model.predict(torch.from_numpy(grid.reshape(-1, 2))).reshape(101, 101)
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
shown = axis.contourf(grid[..., 0], grid[..., 1], height, levels=20, cmap="Greys")
axis.contour(grid[..., 0], grid[..., 1], cost(grid.reshape(-1, 2)).reshape(101, 101), levels=8)
axis.fill_between([0, 10], [11, 1], 0, color="tab:red", alpha=0.2, label="too little")
axis.plot(*x.value, "o", color="tab:orange", label="proven best")
axis.set(xlabel="load of the first", ylabel="load of the second", xlim=(0, 10), ylim=(0, 10))
axis.legend(loc="upper left")
figure.colorbar(shown, label="learned cost (lines: true cost)")
plt.show()
