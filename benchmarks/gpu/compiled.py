"""Compiles every kernel for compute capability 9.0, on a machine without a GPU.

What a card would refuse shows here: what the compiler cannot read, and tiles that are larger than
shared memory. Registers that spill are shown, and cost less than the tiles that would spill none.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.losses import CrossEntropy
from liftednet.solvers.kernels.state_steps import state_tiles
from liftednet.solvers.kernels.states import Goal, Layer, LinkPlan, TileLink, link_map, state_blocks

_SHARED = 232_448  # bytes that a block may have on an H100 or H200


class _Hopper:
    """Stands for a driver: names the target, and launches nothing."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Compiled:
    """A kernel as the compiler made it.

    Attributes:
        name: with its sizes.
        shared: bytes of shared memory.
        usage: registers and stack, by cuobjdump; empty where Triton carries none.
    """

    name: str
    shared: int
    usage: str


def compile_all() -> int:
    """Compile and print; return 1 where a kernel asks for more shared memory than there is."""
    driver.set_active(_Hopper())
    worst = 0
    for kernel in _kernels():
        worst = max(worst, kernel.shared)
        print(f"{kernel.name}: shared {kernel.shared:,}, {kernel.usage}", flush=True)
    print(f"\nThe largest takes {worst:,} of {_SHARED:,} bytes of shared memory.")
    return int(worst > _SHARED)


def _kernels() -> Iterator[Compiled]:
    relu, leaky = activations.ReLU(), activations.LeakyReLU(0.1)
    softmax, linear = CrossEntropy().divergence, joint(activations.Identity())
    for units, widths, activation, links in (
        (300, (10,), relu, (softmax,)),
        (784, (256, 256), relu, (linear, tight(relu))),
        (20, (200, 5), leaky, (tight(leaky), softmax)),
    ):
        yield _state_kernel(units, widths, activation, links)


def _state_kernel(
    units: int, widths: tuple[int, ...], activation: Activation, links: tuple[Divergence, ...]
) -> Compiled:
    blocks, x, one = state_blocks(widths), torch.empty(64, units), torch.empty(())
    assert blocks is not None  # widths that are served
    plans, sides = [], []
    for link, width in zip(links, widths, strict=True):
        plans.append(LinkPlan(link_map(link, width) == (), False, blocks.width(width)))
        numbers = (1.0, 0.5, 0.1, 0.0, 2.0)
        sides.append(TileLink(x, x.half(), one, torch.empty(width), x, width, 1.0, numbers))
    kernel = state_tiles.warmup(
        x,
        x,
        torch.empty(2, dtype=torch.int32),
        Goal(x, torch.empty(()), torch.empty(64)),
        Layer(units, 0.5, 0.1, 0.0, 2.0),
        tuple(sides),
        64,
        100,
        PLAN=blocks.plan(units, tuple(plans)),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        grid=(1,),
    )
    return _compiled(f"states, {units} below {widths}, {activation!r}, {links}", kernel)


def _compiled(name: str, kernel: Any) -> Compiled:
    return Compiled(name, kernel.metadata.shared, _usage(kernel.asm["cubin"]))


def _usage(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = [word for word in text.split() if word.startswith(("REG:", "STACK:"))]
    return " ".join(found).lower()
