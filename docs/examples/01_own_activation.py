"""
An activation by its potential alone
====================================

An activation is the argmax of ⟨u, v⟩ - Φ(v) over v, with a convex potential Φ. Here Φ is written
down and nothing else: no forward map, no derivative, no prox.
"""

import matplotlib.pyplot as plt
import torch

from liftednet import Activation, check_activation, data
from liftednet.models import LiftedMLP, Minibatch

# %%
# The optimality condition of Φ(v) = v²/2 + v⁴/4 is v + v³ = u, so that φ is the inverse of a
# cubic: near 0 the identity, and far out a cube root. `check_activation` tries what the library
# derives from it at thousands of points, and raises an error with the first at which it fails.
soft_root = Activation.from_potential(lambda v: v**2 / 2 + v**4 / 4)
report = check_activation(soft_root)
print(len(report.checks), "properties hold, such as:", report.checks[5].name)

# %%
# The divergence D(v, u) = Φ(v) - uv + Φ*(u) is what ties a layer to the one below. It is convex in
# v, and zero exactly where v = φ(u).
v = torch.linspace(-2, 2, 201, dtype=torch.float64)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
u = torch.linspace(-6, 6, 201, dtype=torch.float64)
left.plot(u, soft_root.forward(u.unsqueeze(1)).flatten())
left.set(xlabel="u", ylabel="φ(u)")
for point in (-2.0, 0.0, 2.0):
    value = v**2 / 2 + v**4 / 4 - point * v
    right.plot(v, value - value.min(), label=f"u = {point:g}")
right.set(xlabel="v", ylabel="D(v, u)", ylim=(0, 4))
right.legend()
plt.show()

# %%
# It is an activation like any other. Every forward pass solves a scalar equation for each unit,
# which is slow but right; `Activation.from_function` makes it fast where there is a forward map.
digits = data.digits()
model = LiftedMLP((64, 20, 10), soft_root, method=Minibatch(epochs=2), seed=0)
model.fit(digits.x_train[:600], digits.y_train[:600])
accuracy = (model.predict(digits.x_test) == digits.y_test).float().mean()
print(f"accuracy after two passes over 600 digits: {accuracy:.3f}")
