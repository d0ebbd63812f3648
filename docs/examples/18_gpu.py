"""
On a GPU
========

`device="cuda"` moves a model, its data and its subproblems to a GPU; nothing else changes. Where
there is none, this page was made on the CPU, and says so.
"""

import time

import matplotlib.pyplot as plt
import torch

from liftednet import data
from liftednet.models import FullBatch, LiftedMLP

device = "cuda" if torch.cuda.is_available() else "cpu"
print("this page was made on", torch.cuda.get_device_name() if device == "cuda" else "a CPU")

digits = data.digits()
x, y = digits.x_train[:300], digits.y_train[:300]


def fitted(device, dtype):
    """Return a network after some sweeps over all samples."""
    method = FullBatch(sweeps=3)
    model = LiftedMLP((64, 30, 10), lam=1.0, rho=0.1, method=method, device=device, dtype=dtype)
    return model.fit(x, y)


# %%
# Data may stay on the CPU: `fit` takes them along, and predictions are on the model's device.
# In float32 on a CUDA device kernels of the library serve what they can, if Triton is installed.
# Every solution is judged by its problem, whoever has found it.
began = time.perf_counter()
model = fitted(device, torch.float32)
print(f"float32 on {device}: {time.perf_counter() - began:.1f} s, residual {model.residual():.1e}")
found = model.predict(digits.x_test)
print("predictions on", found.device.type)
print(f"accuracy {float((found.cpu() == digits.y_test).float().mean()):.3f}")

# %%
# The same training in float64 on the CPU, to compare with: how far the descents part is what
# rounding makes of them. The objectives meet; the weights need not, in directions in which the
# objective is flat.
exact = fitted("cpu", torch.float64)
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
panel.plot(exact.trace.objectives, color="lightgray", linewidth=6, label="float64 on the CPU")
panel.plot(model.trace.objectives, color="C0", label=f"float32 on {device}")
panel.set(xlabel="block updates", ylabel="joint objective", yscale="log")
panel.legend()
plt.show()
