"""
Minibatches from a DataLoader
=============================

`Minibatch` is the default method. Data come as tensors, or from a torch DataLoader, so that they
need not fit into memory; with tensors, a held-out share can end the training.
"""

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader, TensorDataset

from liftednet import data
from liftednet.models import LiftedMLP, Minibatch

digits = data.digits()

# %%
# A loader brings its own batch size and order.
loader = DataLoader(
    TensorDataset(digits.x_train, digits.y_train),
    batch_size=50,
    shuffle=True,
    generator=torch.Generator().manual_seed(0),
)
streamed = LiftedMLP((64, 50, 10), method=Minibatch(epochs=5)).fit(loader)
accuracy = (streamed.predict(digits.x_test) == digits.y_test).float().mean()
print(f"from a loader: accuracy {accuracy:.3f}")

# %%
# Tensors, of which 15 % are held out: training stops when they have not improved for five
# epochs, and the best weights are kept.
stopped = LiftedMLP(
    (64, 50, 10), rho=0.01, method=Minibatch(epochs=200, batch_size=50),
    early_stopping=True, validation_fraction=0.15, n_iter_no_change=5,
).fit(digits.x_train, digits.y_train)  # fmt: skip
accuracy = (stopped.predict(digits.x_test) == digits.y_test).float().mean()
print(f"stopped after {stopped.trace.n_iter} epochs: accuracy {accuracy:.3f}")
print(stopped.trace.ending.value)

# %%
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
panel.plot(stopped.trace.losses, label="batches")
panel.plot([step.validation for step in stopped.trace.steps], label="held out")
panel.set(xlabel="epochs", ylabel="mean loss of a sample", yscale="log")
panel.legend()
plt.show()
