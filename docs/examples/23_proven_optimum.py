"""
The proven best input of a ReLU network
=======================================

A surrogate model has learned a yield with several peaks. Gradient ascent ends on whichever peak
it starts under; `optimize` finds the highest one under constraints, and proves that there is no
higher.
"""

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from liftednet import LiftedRegressor, optimize, to_cvxpy, to_torch

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (800, 2))


def hills(x):
    """Return three hills of different heights."""
    tops = [(1.0, (-1.2, -1.0)), (1.15, (1.3, 0.9)), (1.3, (-0.9, 1.3))]
    return sum(h * np.exp(-2 * ((x - np.array(c)) ** 2).sum(1)) for h, c in tops)


model = LiftedRegressor((24,), random_state=0).fit(X, hills(X))
print(f"R2 {model.score(X, hills(X)):.3f}")

# %%
# Only units that can be on both sides of their kink need whole numbers. The highest hill is beyond
# the constraint.
x = cp.Variable(2)
network = to_cvxpy(model, x, box=(-2, 2))
print(network)
limit = [x[1] - x[0] <= 1.2]
best = optimize(network, cp.Maximize(network.output[0]), limit)
print(best)
print(f"first answer {best.first[0]:.4f}, of the model there {model.predict(x.value[None])[0]:.4f}")

# %%
# A hundred starts of gradient ascent, steps that leave the region drawn back.
surrogate = to_torch(model.model_).double()
points = torch.from_numpy(rng.uniform(-2, 2, (100, 2))).requires_grad_()
steps = torch.optim.Adam([points], lr=0.03)
for _ in range(200):
    steps.zero_grad()
    (-surrogate(points).sum()).backward()
    steps.step()
    with torch.no_grad():
        over = (points[:, 1] - points[:, 0] - 1.2).clamp(min=0) / 2
        points += torch.stack([over, -over], 1)
        points.clamp_(-2, 2)
ends = points.detach()
reached = surrogate(ends).detach().flatten()
missed = float((reached < best.value * 0.999).double().mean())
print(f"best of 100 gradient starts {float(reached.max()):.4f}; {missed:.0%} of them end lower")

# %%
line = np.linspace(-2, 2, 161)
grid = np.stack(np.meshgrid(line, line), -1)
height = model.predict(grid.reshape(-1, 2)).reshape(161, 161)
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
shown = axis.contourf(line, line, height, levels=24, cmap="Greys")
axis.fill_between(line, line + 1.2, 2, where=line < 0.8, color="tab:red", alpha=0.2)
axis.plot(*ends.T, ".", color="tab:blue", label="ends of gradient ascent")
axis.plot(*x.value, "*", markersize=14, color="tab:orange", label="proven best")
axis.set(xlim=(-2, 2), ylim=(-2, 2), title=f"gap {best.gap:.0e}")
axis.legend(loc="lower right")
figure.colorbar(shown, label="output")
plt.show()
