"""
The cheapest design, with tolerances
====================================

A stepped beam is clamped at one end and loaded at the other. A network learns how far it bends
from simulations, and is certified to bend less the thicker it is. So the worst of what a workshop
may deliver is the thinnest, and the cheapest design that holds for all of it is one program.
"""

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np

from liftednet import LiftedRegressor, certify, optimize, to_cvxpy

rng = np.random.default_rng(0)


def bend(thickness):
    """Return how far the end moves, in mm: segments far from the load bend it the most."""
    return (np.array([950.0, 350.0, 50.0]) / thickness**3).sum(-1)


samples = rng.uniform(5, 12, (400, 3))
learned, held_out = samples[:300], samples[300:]
model = LiftedRegressor(
    (12, 12), activation="relu", monotonic_cst=[-1, -1, -1], random_state=0
).fit(learned, np.log(bend(learned)))
certificate = certify(model)
print(certificate)
assert certificate.decreasing == (0, 1, 2)  # or the thinnest would not be the worst
margin = float((np.log(bend(held_out)) - model.predict(held_out)).max())
print(f"on held-out simulations it says at most {margin:.3f} too little")

# %%
# At most 2 mm at any thickness that is up to .3 below what is ordered, and at the most the network
# was off by on rows that it has not seen.
ordered = cp.Variable(3, bounds=[5.3, 12])
network = to_cvxpy(model, ordered - 0.3, box=(5, 11.7))
holds = network.output[0] <= np.log(2) - margin
best = optimize(network, cp.Minimize(cp.sum(ordered)), [holds], gap=1e-6)
print(best)
assert best.proven
delivered = ordered.value + rng.uniform(-0.3, 0.3, (1000, 3))
print(f"ordered {ordered.value.round(2)}; the worst of 1000 bends {bend(delivered).max():.2f} mm")

# The simulation of this page is simple enough to be a program by itself.
thick = cp.Variable(3)
bends = cp.sum(cp.multiply([950, 350, 50], cp.power(thick - 0.3, -3)))
truth = cp.Problem(cp.Minimize(cp.sum(thick)), [bends <= 2, thick >= 5.3, thick <= 12])
print(f"material {best.value:.2f}, the least by the simulation itself {truth.solve():.2f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
first = np.linspace(8, 12, 81)
second = np.linspace(6, 12, 81)
plans = np.stack([*np.meshgrid(first, second), np.full((81, 81), ordered.value[2])], -1)
height = np.exp(model.predict(plans.reshape(-1, 3) - 0.3) + margin).reshape(81, 81)
left.contourf(first, second, height, levels=[2, np.inf], colors=["tab:red"], alpha=0.2)
shown = left.contour(first, second, height, levels=10, cmap="Greys")
left.contour(first, second, bend(plans - 0.3), levels=[2], colors="tab:blue", linestyles="--")
left.plot(*ordered.value[:2], "*", markersize=14, color="tab:orange", label="proven cheapest")
left.set(xlabel="first segment", ylabel="second segment", title="worst bend (dashed: truth)")
left.legend(loc="lower left")
right.hist(bend(delivered), bins=30, color="gray")
right.axvline(2, color="tab:red")
right.set(xlabel="bend of delivered beams, mm", ylabel="beams")
plt.show()
