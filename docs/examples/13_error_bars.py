"""
Error bars of a regression
==========================

A network that is fitted by the evidence knows how noisy its targets are, and where it has seen
none. Its interval is narrow among the data and wide beyond them.
"""

import matplotlib.pyplot as plt
import numpy as np

from liftednet import LiftedRegressor, posterior

draw = np.random.default_rng(0)
x = np.concatenate([draw.uniform(-3, -1, 60), draw.uniform(0.5, 2.5, 60)])[:, None]
y = np.sin(2 * x[:, 0]) + 0.2 * draw.normal(size=120)
model = LiftedRegressor(random_state=0).fit(x, y)

# %%
# The interval of 90 % is for a new answer, noise and all. What part of it more data would make
# smaller is the ignorance.
grid = np.linspace(-4, 4, 200)[:, None]
lower, upper = model.predict_interval(grid, level=0.9)
figure, (above, below) = plt.subplots(
    2, 1, figsize=(6.5, 4), height_ratios=(3, 1), sharex=True, layout="constrained"
)
above.fill_between(grid[:, 0], lower, upper, alpha=0.25, label="90 % of new answers")
above.plot(grid[:, 0], model.predict(grid), label="prediction")
above.scatter(x[:, 0], y, s=8, color="black", label="data")
above.set(ylabel="y", ylim=(-3, 3))
above.legend(loc="upper center", ncols=3)
found = posterior(model).predict(grid)
below.plot(grid[:, 0], found.noise[:, 0], label="noise")
below.plot(grid[:, 0], found.ignorance[:, 0], label="ignorance")
below.set(xlabel="x", ylabel="deviation", ylim=(0, 1))
below.legend(loc="upper center", ncols=2)
plt.show()
print(f"deviation of the noise, .2 in truth: {float(found.noise[0, 0]):.3f}")
