"""
Constraints on the outputs
==========================

Bounds, budgets, orders and equal means of groups can be asked of a network's outputs on the
training samples. They hold to rounding in the trained network, and each has a price.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes

from liftednet.activations import Tanh
from liftednet.constraints import GroupMeans
from liftednet.losses import SquaredError
from liftednet.models import LiftedMLP

x, y = (torch.from_numpy(part) for part in load_diabetes(return_X_y=True))
groups = (x[:, 1] > 0).long()  # the sexes of the patients
means = [float(y[groups == group].mean()) for group in (0, 1)]
print(f"mean progression of the disease: {means[0]:.1f} and {means[1]:.1f}")


def fitted(limit):
    """Return a network whose mean answers for the two groups differ by about a limit at most."""
    constraints = [] if limit is None else [GroupMeans(groups, within=limit / 2)]
    model = LiftedMLP((10, 5, 1), Tanh(), SquaredError(), rho=10.0, seed=0)
    return model.fit(x, y.unsqueeze(1), constraints=constraints)


def distance(model):
    """Return by how much the mean answers for the two groups differ."""
    answers = model.predict(x).flatten()
    return float((answers[groups == 1].mean() - answers[groups == 0].mean()).abs())


# %%
# `within` is how far a group's mean may lie from that of all samples, so that with two groups of
# about one size two means differ by about twice that.
free = fitted(None)
print(f"without a constraint the means differ by {distance(free):.2f}")

# %%
# The price of a constraint is the rate at which the training objective would fall if its limit were
# moved. A limit that costs nothing has the price 0.
limits = [8.0, 4.0, 1.0]
found, prices, errors = [], [], []
for limit in limits:
    model = fitted(limit)
    report = model.constraint_report()
    found.append(distance(model))
    prices.append(float(report.prices[0].abs().max()))
    errors.append(float((model.predict(x).flatten() - y.flatten()).square().mean()))
    print(
        f"limit {limit:g}: means differ by {found[-1]:.2f}, error {errors[-1]:.0f}, "
        f"violation {max(report.violations):.0e}, price {prices[-1]:.3f}"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(limits, found, marker="o")
left.axline((0, 0), slope=1, color="gray", linewidth=1)
left.set(xlabel="limit", ylabel="difference of the means")
right.plot(limits, prices, marker="o")
right.set(xlabel="limit", ylabel="price")
plt.show()
