"""
A residual network
==================

Any graph of layers that are affine in each of their arguments can be lifted. Here the second state
sees the first through a layer, and as it is.
"""

import matplotlib.pyplot as plt

from liftednet import Network, data
from liftednet.activations import ReLU
from liftednet.layers import dense
from liftednet.losses import CrossEntropy
from liftednet.models import FullBatch, Lifted

network = Network()
first = network.state(ReLU(), dense(network.input(64), 30))
second = network.state(ReLU(), dense(first, 30) + first)
network.loss(CrossEntropy(), dense(second, 10))

# %%
# Block after block, each a convex problem that is solved with a certificate: no step may raise the
# objective of the whole network.
digits = data.digits()
model = Lifted(network, lam=0.1, rho=0.1, method=FullBatch(sweeps=6))
model.fit(digits.x_train[:800], digits.y_train[:800])
accuracy = (model.predict(digits.x_test) == digits.y_test).float().mean()
print(f"accuracy {accuracy:.3f}, KKT residual {model.residual():.1e}")

# %%
steps = model.trace.steps
figure, panel = plt.subplots(figsize=(6, 3), layout="constrained")
panel.plot(model.trace.objectives, color="gray", zorder=0)
for name in dict.fromkeys(step.block for step in steps):
    numbers = [number for number, step in enumerate(steps, start=1) if step.block == name]
    panel.scatter(numbers, [steps[number - 1].objective for number in numbers], s=18, label=name)
panel.set(xlabel="block updates", ylabel="joint objective", yscale="log")
panel.legend(fontsize="small")
plt.show()
