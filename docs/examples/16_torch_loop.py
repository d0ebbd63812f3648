"""
Under torch.compile, in an ordinary loop
========================================

What `initialize_` leaves is the network it was given, with other weights. So `torch.compile` takes
it, and so does any loop, optimizer or schedule.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

from liftednet import data, initialize_
from liftednet.losses import CrossEntropy

digits = data.digits()
x, x_test = (part.reshape(-1, 1, 8, 8) for part in (digits.x_train, digits.x_test))
torch.manual_seed(0)
plain = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(256, 10),
)

# %%
# Two lifted passes over the data, in place.
PASSES = 2
loss = CrossEntropy()
started = initialize_(copy.deepcopy(plain), x, digits.y_train, loss=loss, epochs=PASSES)

# %%
# The backend "aot_eager" traces a network forward and backward, as the default does, and compiles
# nothing, so that this page needs no C++ compiler. Leave the argument away where there is one. A
# network that was lifted is traced as a whole: with `fullgraph` a break would be an error.


def trained(network, epochs):
    """Return the test accuracy before and after every epoch of Adam, its rate falling to 0."""
    compiled = torch.compile(network, backend="aot_eager", dynamic=True, fullgraph=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs)
    order = torch.Generator().manual_seed(1)
    accuracies = [accuracy(network)]
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(compiled(x[rows]), digits.y_train[rows]).backward()
            optimizer.step()
        schedule.step()
        accuracies.append(accuracy(network))
    return accuracies


@torch.no_grad()
def accuracy(network):
    """Return the share of test digits that are recognized."""
    return float((network(x_test).argmax(1) == digits.y_test).float().mean())


# %%
# Both have the same number of passes over the data in the end; those of the lifted start count.
EPOCHS = 6
curves = {
    "torch's start": (range(EPOCHS + 1), trained(plain, EPOCHS)),
    "lifted start": (range(PASSES, EPOCHS + 1), trained(started, EPOCHS - PASSES)),
}
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, (passes, accuracies) in curves.items():
    panel.plot(passes, accuracies, marker="o", label=name)
    print(f"{name}: {accuracies[0]:.3f} before Adam, {accuracies[-1]:.3f} after")
panel.set(xlabel="passes over the data", ylabel="test accuracy")
panel.legend()
plt.show()
