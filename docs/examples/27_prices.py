"""
Prices under a budget, proven
=============================

A town pays vouchers that lower the prices of three ways to heat. People buy little until a price
is low enough, so that a budget split evenly is mostly lost. A network that never sells less at a
lower price learns the sales; `optimize` finds the best prices that the budget allows, and proves
that the network has none better.
"""

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np

from liftednet import LiftedRegressor, certify, optimize, to_cvxpy

rng = np.random.default_rng(0)
full, lowest = np.array([8.0, 6.0, 5.0]), np.array([4.0, 2.0, 1.0])


def sales(price):
    """Return what is sold at prices: each product has one at which most begin to buy."""
    off = full - price - np.array([2.5, 1.8, 1.2])
    return 100 + (np.array([90, 60, 45]) / (1 + np.exp(-3 * off))).sum(1)


prices = rng.uniform(lowest, full, (400, 3))
sold = sales(prices) + rng.normal(scale=5, size=400)
model = LiftedRegressor(
    (12, 12), activation="relu", monotonic_cst=[-1, -1, -1], random_state=0
).fit(prices, sold)
print(certify(model))

# %%
# The budget is a parameter: four of them, one network. What a plan is worth is judged by the true
# sales, which only this page knows.
price, budget = cp.Variable(3), cp.Parameter(nonneg=True)
network = to_cvxpy(model, price, box=(lowest, full))
print(network)
plans, even = [], []
for budget.value in range(2, 9, 2):
    spent = cp.sum(full - price) <= budget
    best = optimize(network, cp.Maximize(network.output[0]), [spent], gap=1e-4)
    assert best.proven
    plans.append(best.x)
    even.append(full - budget.value / 3)
    print(
        f"budget {budget.value}: {best.value:.2f}, no prices reach {best.bound:.2f}; true sales "
        f"{sales(best.x[None])[0]:.1f}, split evenly {sales(even[-1][None])[0]:.1f}"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
budgets, plans = np.arange(2, 9, 2), np.array(plans)
left.plot(budgets, sales(plans), "o-", color="tab:orange", label="proven best of the network")
left.plot(budgets, sales(np.array(even)), "o-", color="tab:blue", label="split evenly")
left.set(xlabel="budget", ylabel="true sales")
left.legend()
right.stackplot(budgets, (full - plans).T, labels=["first", "second", "third"], step="mid")
right.set(xlabel="budget", ylabel="vouchers")
right.legend(loc="upper left")
plt.show()
