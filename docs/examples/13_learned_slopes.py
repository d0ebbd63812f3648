"""
Slopes that are learned
=======================

The slope of a leaky ReLU is a variable of the training problem, too: for given states and
pre-activations its best value has a closed form. It is one more block of the descent.
"""

import matplotlib.pyplot as plt
import torch

from liftednet import data
from liftednet.activations import PReLU
from liftednet.models import FullBatch, LiftedMLP

digits = data.digits()
x, y = digits.x_train[:600], digits.y_train[:600]
method = FullBatch(sweeps=10, learn_activations=True)
model = LiftedMLP((64, 8, 10), PReLU([0.5] * 8), lam=0.3, rho=0.1, method=method)
model.fit(x, y)
slopes = model.activations[0].slopes
accuracy = (model.predict(digits.x_test) == digits.y_test).float().mean()
print("slopes", [round(slope, 2) for slope in slopes], f"accuracy {accuracy:.3f}")

# %%
# Every unit has found a map of its own, from a common slope of 0.5.
u = torch.linspace(-2, 2, 101)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for slope in slopes:
    left.plot(u, PReLU(slope).forward(u.unsqueeze(1)).flatten())
left.set(xlabel="u", ylabel="φ(u) of each unit")
right.plot(model.trace.objectives)
right.set(xlabel="block updates", ylabel="joint objective", yscale="log")
plt.show()
