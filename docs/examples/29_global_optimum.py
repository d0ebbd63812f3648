"""
One hidden layer to the global optimum, unit by unit
====================================================

With squared norms on its weights, a ReLU network with one hidden layer is a convex problem over its
units. Residuals say which unit is missing; where no direction asks for one, the network is the best
of any width.
"""

import matplotlib.pyplot as plt
import numpy as np

from liftednet import global_gap
from liftednet.activations import ReLU
from liftednet.losses import SquaredError
from liftednet.models import Global, LiftedMLP, add_unit

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (60, 2))
y = np.sin(3 * X[:, :1]) * X[:, 1:]
rho = 0.03


def network(units, method):
    """Return a network of two inputs on the data as they are."""
    return LiftedMLP(
        (2, units, 1),
        ReLU(),
        SquaredError(),
        rho=rho,
        method=method,
        standardize=False,
        warm_start=True,
    )


# %%
# The dual function: how much residuals :math:`v` ask for a unit of direction :math:`w`,
# :math:`\max_b |\sum_i v_i (\langle x_i, w \rangle + b)_+|`. The sum is linear in :math:`b` between
# the data, so that the largest stands at :math:`b = -\langle x_k, w \rangle`. Whatever is above
# :math:`2 \rho` lowers the objective as it comes in.
angles = np.linspace(-np.pi, np.pi, 541)
along = np.stack([np.cos(angles), np.sin(angles)], 1) @ X.T  # (directions, samples)


def asked(residuals):
    """Return the dual function over the directions."""
    units = np.maximum(along[:, :, None] - along[:, None, :], 0)  # sample i, kink at sample k
    return np.abs(np.einsum("dik,i->dk", units, residuals)).max(1)


best = network(200, Global(gap=1e-4)).fit(X, y)
print(best.trace.steps[-1].block)

figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.semilogy(np.degrees(angles), asked((y - y.mean())[:, 0]), label="no unit")
for rounds in (1, 2, 3):
    early = network(200, Global(rounds=rounds + 1)).fit(X, y)
    left = (y - early.predict(X).numpy())[:, 0]
    units = early.trace.steps[-1].block.split(",")[0]
    axis.semilogy(np.degrees(angles), asked(left), linewidth=1, label=units)
dual = asked((y - best.predict(X).numpy())[:, 0])
axis.semilogy(np.degrees(angles), dual, color="black", label="the optimum")
axis.axhline(2 * rho, color="gray", linestyle=":", label=r"$2 \rho$")
layer = best.weights[0]
w, b = layer.matrix.numpy(), layer.bias.numpy()
kept = np.linalg.norm(w, axis=0) > 0
w, b = w[:, kept], b[kept]
at = np.degrees(np.arctan2(w[1], w[0]))
axis.plot(at, np.full(len(at), 2 * rho), "o", color="black", markersize=4)
axis.set(xlabel="direction of a unit, degrees", ylabel="asked for", xlim=(-180, 180))
figure.legend(loc="outside upper center", ncol=6, fontsize="small")
plt.show()
print(f"largest at the optimum {dual.max():.5f}, 2 rho {2 * rho:.5f}")

# %%
# The optimum touches the line where its units stand (dots). Each unit is a fold of the surface, the
# stronger the thicker.
side = np.linspace(-1, 1, 81)
grid = np.stack(np.meshgrid(side, side), -1)
height = best.predict(grid.reshape(-1, 2)).numpy().reshape(81, 81)
strength = np.square(w).sum(0)
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
shown = axis.contourf(side, side, height, levels=24, cmap="coolwarm")
for (first, second), offset, amount in zip(w.T, b, strength, strict=True):
    fold = first * grid[..., 0] + second * grid[..., 1] + offset
    axis.contour(side, side, fold, [0.0], colors="black", linewidths=3 * amount / strength.max())
axis.plot(*X.T, ".", color="white", markersize=3)
axis.set(title=f"{len(b)} units of at most 200")
figure.colorbar(shown, label="output")
plt.show()

# %%
# Every round has a bound that no network of any width is below.
objective = np.array([step.objective for step in best.trace.steps])
bound = objective * (1 - np.array([step.residual for step in best.trace.steps]))

# %%
# The same unit by unit: `global_gap` finds what is missing in any network with one hidden layer,
# `add_unit` adds it, and Gauss-Newton trains on from there. Once that ends in a local optimum, the
# gap tells by how much.
grown = network(1, "gauss-newton").fit(X, y)
widths, reached = [], []
for _ in range(7):
    found = global_gap(grown, X, y)
    widths.append(found.width)
    reached.append(found.objective)
    print(f"width {found.width}: could fall by {found.relative:.2%} at most")
    if found.unit is None:
        break
    grown = add_unit(grown, found).fit(X, y)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
left.plot(objective, "o-", label="objective")
left.plot(bound, "o-", label="bound, proven")
left.set(xlabel="round", yscale="log", title="method='global'")
left.legend()
right.plot(widths, reached, "o-", label="objective")
right.axhline(found.bound, color="tab:orange", label="bound, proven")
right.set(xlabel="units", title="add_unit, one by one")
right.legend()
plt.show()
