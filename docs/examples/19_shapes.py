"""
A monotone score and a convex cost surface
==========================================

Some functions have a shape that is known before any data: a price falls with age, a cost is convex.
Signs of the weights give a network that shape, and `certify` proves it of the weights alone.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from liftednet import LiftedRegressor, certify
from liftednet.models import Lifted, input_convex

# %%
# Forty noisy prices of something that loses value with age. Both networks have the same settings
# and follow the noise where they can; one of them must fall. Directions are those of scikit-learn's
# `monotonic_cst`.
draw = np.random.default_rng(0)
age = draw.uniform(0, 10, (40, 1))
price = 20 * np.exp(-age[:, 0] / 4) + 3 * draw.standard_normal(40)
settings = {"hidden_layer_sizes": (12,), "rho": 1e-3, "random_state": 0}
free = LiftedRegressor(**settings).fit(age, price)
falling = LiftedRegressor(**settings, monotonic_cst=[-1]).fit(age, price)
print(certify(falling))

# %%
grid = np.linspace(0, 10, 200)[:, None]
figure, panel = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
panel.scatter(age, price, s=10, color="black", label="data")
panel.plot(grid, free.predict(grid), label="free")
panel.plot(grid, falling.predict(grid), label="must fall")
panel.set(xlabel="age", ylabel="price")
panel.legend()
plt.show()

# %%
# A cost that is measured with noise, and a network that is convex in its inputs: every layer also
# sees the input, and weights on states are nonnegative.
points = 4 * torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) - 2
noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(1))
cost = points.square().sum(1, keepdim=True) + (points[:, :1] - points[:, 1:]).abs() + noise / 2
surface = Lifted(input_convex((2, 20, 20, 1))).fit(points, cost)
print(certify(surface))
axis = torch.linspace(-2, 2, 40)
grid = torch.cartesian_prod(axis, axis)
plt.contour(axis, axis, surface.predict(grid).view(40, 40).T, levels=20)
plt.show()
