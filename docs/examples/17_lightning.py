"""
Inside a Lightning trainer
==========================

A Lightning module holds an ordinary torch network. `initialize_` gives that network its start
before the trainer takes over; the trainer need not know of it.
"""

import itertools
import logging
import warnings

import lightning
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from liftednet import data, initialize_
from liftednet.losses import CrossEntropy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # of loaders without processes

digits = data.digits()


class Digits(lightning.LightningModule):
    """Two hidden layers on the digits."""

    def __init__(self):
        super().__init__()
        sizes = (64, 50, 50, 10)
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.accuracies = []

    def training_step(self, batch):
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def on_train_epoch_start(self):
        """Keep how good the network is at the beginning of each epoch."""
        with torch.no_grad():
            found = self.network(digits.x_test.to(self.device)).argmax(1).cpu()
        self.accuracies.append(float((found == digits.y_test).float().mean()))

    def configure_optimizers(self):
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


# %%
# The same module twice, from the same random weights; one is given two lifted passes first.
modules = {}
for name in ("torch's start", "lifted start"):
    torch.manual_seed(0)
    modules[name] = Digits()
PASSES = 2
network = modules["lifted start"].network
_ = initialize_(network, digits.x_train, digits.y_train, loss=CrossEntropy(), epochs=PASSES)

# %%
# The trainer is Lightning's own, with what it would write to disk or to the screen turned off.
EPOCHS = 6
samples = TensorDataset(digits.x_train, digits.y_train)
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
for name, module in modules.items():
    before = PASSES if name == "lifted start" else 0
    trainer = lightning.Trainer(
        max_epochs=EPOCHS - before,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    order = torch.Generator().manual_seed(1)
    trainer.fit(module, DataLoader(samples, batch_size=100, shuffle=True, generator=order))
    module.on_train_epoch_start()
    panel.plot(range(before, EPOCHS + 1), module.accuracies, marker="o", label=name)
    print(f"{name}: {module.accuracies[0]:.3f} at first, {module.accuracies[-1]:.3f} at last")
panel.set(xlabel="passes over the data", ylabel="test accuracy")
panel.legend()
plt.show()
