"""
Stopping and going on
=====================

`fit(checkpoint=...)` keeps a training in a file that is whole at any moment. With `resume=True` it
goes on as if nothing had happened, to the same bits.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from liftednet import data
from liftednet.models import Checkpoint, LiftedMLP, Minibatch

digits = data.digits()


def network():
    """Return a new model, always the same."""
    return LiftedMLP((64, 40, 10), method=Minibatch(epochs=12), seed=0)


# %%
# An interrupt after the fifth epoch, as Ctrl-C would bring it. The model keeps what it has.


def interrupt(step):
    """Raise what Ctrl-C raises."""
    if step.number == 4:
        raise KeyboardInterrupt


folder = tempfile.TemporaryDirectory()
checkpoint = Checkpoint(Path(folder.name) / "training.checkpoint", seconds=0)
stopped = network().fit(digits.x_train, digits.y_train, checkpoint=checkpoint, on_step=interrupt)
print("ending:", stopped.trace.ending.value, "- after epoch", stopped.trace.n_iter)

# %%
# Another process could do this on another day.
resumed = network().fit(digits.x_train, digits.y_train, checkpoint=checkpoint, resume=True)
whole = network().fit(digits.x_train, digits.y_train)
pairs = zip(resumed.weights, whole.weights, strict=True)
print("the same bits:", all(torch.equal(a.matrix, b.matrix) for a, b in pairs))
folder.cleanup()

# %%
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
panel.plot(whole.trace.losses, color="lightgray", linewidth=6, label="never interrupted")
panel.plot(resumed.trace.losses, color="C1", label="resumed")
panel.plot(stopped.trace.losses, color="C0", marker="o", label="interrupted")
panel.set(xlabel="epochs", ylabel="mean loss of a batch", yscale="log")
panel.legend()
plt.show()
