"""
A monotone score and a convex cost surface
==========================================

Some functions have a shape that is known before any data: a price falls with age, a cost is convex.
Signs of the weights give a network that shape, and `certify` proves it of the weights alone.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes

from liftednet import LiftedRegressor, certify
from liftednet.models import Lifted, input_convex

# %%
# The progression of diabetes must not fall with the body mass index (input 2), blood pressure (3)
# and the triglycerides (8): the directions are those of scikit-learn's `monotonic_cst`.
X, y = load_diabetes(return_X_y=True)
free = LiftedRegressor((50, 50), random_state=0).fit(X[:300], y[:300])
directions = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0]
score = LiftedRegressor((50, 50), random_state=0, monotonic_cst=directions).fit(X[:300], y[:300])
print(f"R2 {free.score(X[300:], y[300:]):.2f} free, {score.score(X[300:], y[300:]):.2f} monotone")
print(certify(score.model_))

# %%
# One patient, with another body mass index.
patient = np.repeat(X[310:311], 60, 0)
patient[:, 2] = np.linspace(X[:, 2].min(), X[:, 2].max(), 60)
for name, model in (("free", free), ("monotone", score)):
    plt.plot(patient[:, 2], model.predict(patient), label=name)
plt.gca().set(xlabel="body mass index", ylabel="progression")
plt.legend()
plt.show()

# %%
# A cost that is measured with noise, and a network that is convex in its inputs: every layer also
# sees the input, and weights on states are nonnegative.
points = 4 * torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) - 2
noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(1))
cost = points.square().sum(1, keepdim=True) + (points[:, :1] - points[:, 1:]).abs() + noise / 2
surface = Lifted(input_convex((2, 30, 30, 1))).fit(points, cost)
print(certify(surface))
axis = torch.linspace(-2, 2, 40)
grid = torch.cartesian_prod(axis, axis)
plt.contour(axis, axis, surface.predict(grid).view(40, 40).T, levels=20)
plt.show()
