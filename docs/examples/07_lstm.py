"""
An LSTM that is read from torch
===============================

`lift` reads a torch network and states it as a lifted model. The products of an LSTM's gates are
affine in each factor, so that every gate is a state of its own.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import liftednet
from liftednet.losses import SquaredError
from liftednet.models import Minibatch


# %%
# The task: of two features in ten steps, the second marks two values of the first, whose sum is
# asked for after the last step.
def sums(samples, seed):
    source = torch.Generator().manual_seed(seed)
    numbers, scores = torch.rand(2, samples, 10, generator=source)
    marks = torch.zeros(samples, 10).scatter(1, scores.topk(2).indices, 1.0)
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)


x, y = sums(500, seed=0)
fresh, wanted = sums(400, seed=1)
print("inputs", tuple(x.shape), "targets", tuple(y.shape))


class Adder(nn.Module):
    """An LSTM with a readout of every step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, 16, batch_first=True)
        self.readout = nn.Linear(16, 1)

    def forward(self, x):
        return self.readout(self.cell(x)[0][:, -1])


torch.manual_seed(0)
network = Adder()
method = Minibatch(epochs=25, batch_size=50, damping=1.0)
lifted = liftednet.lift(network, x[:2], loss=SquaredError(), method=method)

# %%
# Training is on the lifted model; `write_` puts the weights into the torch network.
lifted.fit(x, y)
lifted.write_()
with torch.no_grad():
    found = network(fresh)
error = float((found.reshape(-1) - wanted.reshape(-1)).square().mean())
print(f"mean squared error {error:.4f}, of the mean alone {float(wanted.var()):.4f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(lifted.trace.losses)
left.set(xlabel="epochs", ylabel="mean loss of a batch", yscale="log")
right.scatter(wanted.reshape(-1), found.reshape(-1), s=6)
right.axline((1, 1), slope=1, color="gray", linewidth=1)
right.set(xlabel="sum", ylabel="answer of the torch network")
plt.show()
