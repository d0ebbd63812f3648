"""
Several processes, one fit
==========================

Where torch.distributed has been set up, each process brings rows of its own and all of them get the
model of one process that has them all. States never leave their rows; sums over samples travel
(:doc:`what is promised, and what is sent </distributed>`).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import distributed

from liftednet import load, save
from liftednet.data import shard
from liftednet.models import FullBatch, LiftedMLP

# %%
# What every process runs is what one would run, but for `shard`, which says which rows are whose.
# Without a process group it says: all of them.


def fitted():
    """Return a network that was fitted to this process's rows, and to those of the others."""
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x[:, :10].argmax(1)
    rows = shard(len(x))
    method = FullBatch(sweeps=3, tolerance=1e-6)
    return LiftedMLP((64, 10, 10), lam=1.0, rho=1.0, method=method).fit(x[rows], y[rows])


# %%
# `torchrun --nproc-per-node=2 21_distributed.py FOLDER` runs this file in two processes. Each
# joins the group, and the first keeps what all of them have found.
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    model = fitted()
    if distributed.get_rank() == 0:
        folder = Path(sys.argv[1])
        save(model, folder / "model.safetensors")
        (folder / "objectives.json").write_text(json.dumps(model.trace.objectives))
    distributed.destroy_process_group()
    sys.exit()

# %%
# This page starts them itself, and fits once more alone.
with tempfile.TemporaryDirectory() as folder:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    here = globals().get("__file__", sys.argv[0])  # of a page, the second
    command = [*torchrun, "--nproc-per-node=2", here, folder]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    together = load(Path(folder, "model.safetensors"))
    objectives = json.loads(Path(folder, "objectives.json").read_text())
alone = fitted()
pairs = zip(together.weights, alone.weights, strict=True)
apart = max(float((one.matrix - other.matrix).abs().max()) for one, other in pairs)
print(f"objectives {objectives[-1]:.6f} and {alone.trace.objectives[-1]:.6f}")
print(f"largest difference of two weights: {apart:.1e}")

# %%
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
panel.plot(alone.trace.objectives, color="lightgray", linewidth=6, label="one process")
panel.plot(objectives, color="C1", label="two processes")
panel.set(xlabel="block updates", ylabel="joint objective", yscale="log")
panel.legend()
plt.show()
