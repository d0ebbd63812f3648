"""
A torch network in, and out again
=================================

`initialize_` trains a torch network by lifted minibatches, in place, and leaves it for torch to go
on with. `to_torch` makes a plain module of a lifted model.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

import liftednet
from liftednet import data
from liftednet.losses import CrossEntropy

digits = data.digits()
torch.manual_seed(0)
plain = nn.Sequential(
    nn.Linear(64, 40),
    nn.BatchNorm1d(40),
    nn.GELU(),
    nn.Linear(40, 40),
    nn.Tanh(),
    nn.Linear(40, 10),
)

# %%
# The network is read from its forward pass. GELU is not monotone, and batch normalization has
# running statistics; both are read.
lifted = copy.deepcopy(plain)
liftednet.initialize_(lifted, digits.x_train, digits.y_train, loss=CrossEntropy(), epochs=3)

# %%
# Both go on with Adam, at the same rate and in the same order of samples. The lifted start has had
# three passes over the data that the other has not.


def trained(network, epochs=4):
    """Return the test accuracy before and after every epoch of Adam."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    curve = []
    for epoch in range(epochs + 1):
        network.eval()
        with torch.no_grad():
            found = network(digits.x_test).argmax(1)
        curve.append(float((found == digits.y_test).float().mean()))
        network.train()
        for rows in torch.randperm(len(digits.y_train), generator=generator).split(100):
            if epoch == epochs:
                break
            optimizer.zero_grad()
            outputs = network(digits.x_train[rows])
            nn.functional.cross_entropy(outputs, digits.y_train[rows]).backward()
            optimizer.step()
    return curve


curves = {"torch's start": trained(plain), "after three lifted passes": trained(lifted)}
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, curve in curves.items():
    panel.plot(curve, marker="o", label=name)
panel.set(xlabel="epochs of Adam", ylabel="test accuracy")
panel.legend()
plt.show()

# %%
# The other direction: a lifted model becomes an ordinary module with the same output.
model = liftednet.models.LiftedMLP((64, 30, 10)).fit(digits.x_train[:300], digits.y_train[:300])
module = liftednet.to_torch(model)
print(module)
with torch.no_grad():
    difference = (module(digits.x_test) - model.forward(digits.x_test)).abs().max()
print(f"largest difference {float(difference):.1e}")
