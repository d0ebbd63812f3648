"""
Constraints on the weights
==========================

A penalty stands in a weight's own convex problem, so that a constraint holds exactly after every
step of every method. Nothing is clipped afterwards.
"""

import matplotlib.pyplot as plt

from liftednet import data
from liftednet.models import FullBatch, LiftedMLP
from liftednet.penalties import Nonnegative, SquaredFrobenius

digits = data.digits()
x, y = digits.x_train[:200], digits.y_train[:200]


def fitted(penalty):
    """Return a network of 16 units with a penalty on each of its two layers."""
    model = LiftedMLP(
        (64, 16, 10), lam=1.0, penalty=penalty, method=FullBatch(sweeps=3), standardize=False
    )
    return model.fit(x, y)


# %%
# Penalties add up. The first layer of the second network must not subtract.
ridge = SquaredFrobenius(0.1)
models = {"free": fitted([ridge, ridge]), "nonnegative": fitted([ridge + Nonnegative(), ridge])}
for name, model in models.items():
    right = (model.predict(digits.x_test) == digits.y_test).float().mean()
    print(f"{name}: accuracy {right:.3f}, smallest weight {model.weights[0].matrix.min():.3f}")

# %%
# Each picture is what one unit looks at: red adds, blue takes away.
figure, rows = plt.subplots(2, 8, figsize=(9, 2.6), layout="constrained")
for panels, (name, model) in zip(rows, models.items(), strict=True):
    weights = model.weights[0].matrix.T
    for panel, unit in zip(panels, weights[:8], strict=True):
        limit = float(unit.abs().max()) or 1.0
        panel.imshow(unit.reshape(8, 8), cmap="RdBu_r", vmin=-limit, vmax=limit)
        panel.set(xticks=[], yticks=[])
    panels[0].set_ylabel(name)
plt.show()
