"""
Robust losses and quantiles
===========================

The Huber and the quantile loss have no smooth gradient everywhere. A lifted network gives the
output states of its own, so that each is met by a small convex problem in closed form.
"""

import matplotlib.pyplot as plt
import torch

from liftednet.activations import Tanh
from liftednet.losses import Huber, Quantile, SquaredError
from liftednet.models import LiftedMLP, Minibatch

generator = torch.Generator().manual_seed(0)
x = 6 * torch.rand(600, 1, generator=generator, dtype=torch.float64) - 3
spread = 0.1 + 0.2 * x.abs()
noise = spread * torch.randn(x.shape, generator=generator, dtype=torch.float64)
y = torch.sin(x) + noise
y[::12] += 6


def fitted(loss):
    """Return a network of 30 units trained with a loss."""
    model = LiftedMLP((1, 30, 1), Tanh(), loss, rho=1e-3, method=Minibatch(epochs=30))
    return model.fit(x, y)


# %%
# Every twelfth point is off by six. The squared loss follows them; the Huber loss does not.
points = torch.linspace(-3, 3, 200, dtype=torch.float64).unsqueeze(1)
truth = torch.sin(points)
losses = {
    "squared": SquaredError(),
    "Huber, 0.2": Huber(0.2),
    "quantile 0.1": Quantile(0.1),
    "quantile 0.8": Quantile(0.8),
}
curves = {name: fitted(loss).predict(points) for name, loss in losses.items()}
for name, curve in curves.items():
    print(f"{name}: mean distance from the sine {float((curve - truth).abs().mean()):.3f}")

# %%
figure, panel = plt.subplots(figsize=(7, 3.5), layout="constrained")
panel.scatter(x, y, s=4, color="lightgray")
for (name, curve), color in zip(curves.items(), ("C3", "C0", "C2", "C4"), strict=True):
    panel.plot(points, curve, color=color, label=name)
panel.plot(points, truth, color="black", linewidth=1, linestyle=":", label="sine")
panel.set(xlabel="x", ylabel="y")
panel.legend(fontsize="small", ncols=2)
plt.show()
