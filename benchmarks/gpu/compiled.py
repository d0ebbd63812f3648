"""Compiles every kernel for compute capability 9.0, on a machine without a GPU.

What a card would refuse shows here: what the compiler cannot read, registers that spill, tiles
that are larger than shared memory.
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

from liftednet.activation import Activation
from liftednet.solvers.kernels import maps
from liftednet.solvers.kernels.declared import functions
from liftednet.solvers.kernels.entries import closed_form_entries
from liftednet.solvers.kernels.groups import Goal, Layer, LinkPlan, TileLink
from liftednet.solvers.kernels.simplex import simplex_rows
from liftednet.solvers.kernels.state_tiles import state_tiles
from liftednet.solvers.kernels.table import DeviceMap, simplex_blocks, state_blocks, time_blocks
from liftednet.solvers.kernels.time_tiles import colored_tiles
from liftednet.solvers.kernels.tridiagonal import eliminate

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
    x = torch.empty(64, 10)
    for classes in (10, 1000):
        rows, part = simplex_blocks(classes)
        kernel = simplex_rows.warmup(
            x, x, x, 64, 0.7, CLASSES=classes, ROWS=rows, PART=part, num_warps=1, grid=(1,)
        )
        yield _compiled(f"simplex, {classes} classes", kernel)
    for proximal in ("softplus_prox", "sine_prox"):
        kernel = closed_form_entries.warmup(
            x, x, x, 640, 0.7, 0.0, 0.0, getattr(maps, proximal), 1024, num_warps=4, grid=(1,)
        )
        yield _compiled(f"closed form, {proximal}", kernel)
    for units, widths, proximal, links in (
        (300, (10,), "relu_prox", ("softmax",)),
        (500, (200,), "sigmoid_prox", ("sigmoid",)),
        (784, (256, 256), "relu_prox", ("linear", "relu")),
        (20, (20, 5), "tanh_prox", ("tanh", "softmax")),
    ):
        yield _state_kernel(units, widths, proximal, links)
    softsign = functions(Activation.from_function(torch.nn.functional.softsign))
    kernel = closed_form_entries.warmup(
        x, x, x, 640, 0.7, 0.0, 0.0, softsign.prox, 1024, num_warps=4, grid=(1,)
    )
    yield _compiled("closed form, a declared softsign", kernel)
    for units, warps in ((16, 2), (64, 8)):
        y, flags = x.double(), x.char()
        kernel = eliminate.warmup(
            y, y, flags, y, y, 9, 9, units, UNITS=units, num_warps=warps, grid=(1,)
        )
        yield _compiled(f"block-tridiagonal, {units} units", kernel)
    for units, outputs in ((20, 5), (200, 50)):
        yield _time_kernel(units, outputs)


def _state_kernel(
    units: int, widths: tuple[int, ...], proximal: str, links: tuple[str, ...]
) -> Compiled:
    blocks, x = state_blocks(widths), torch.empty(64, units)
    plans = (
        LinkPlan(getattr(maps, link), False, False, blocks.width(width))
        for link, width in zip(links, widths, strict=True)
    )
    kernel = state_tiles.warmup(
        x,
        x,
        torch.empty(2, dtype=torch.int32),
        Goal(x, torch.empty(()), torch.empty(())),
        Layer(units, 0.5, 0.0, 0.0),
        _links(widths, 0),
        64,
        100,
        PLAN=blocks.plan(units, DeviceMap(proximal), tuple(plans)),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        grid=(1,),
    )
    return _compiled(f"states, {units} below {widths}, {proximal}, {links}", kernel)


def _time_kernel(units: int, outputs: int) -> Compiled:
    widths = (units, outputs)
    blocks, x = time_blocks(widths), torch.empty(64, units)
    plans = (
        LinkPlan(maps.tanh, True, True, blocks.width(units)),
        LinkPlan(maps.softmax, False, True, blocks.width(outputs)),
    )
    kernel = colored_tiles.warmup(
        x,
        x,
        x.char(),
        x,
        Goal(x, torch.empty(()), torch.empty(())),
        Layer(units, 0.5, 0.0, 0.0),
        _links(widths, 8),
        8,
        8,
        0,
        0,
        100,
        PLAN=blocks.plan(units, DeviceMap("tanh_prox"), plans),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        grid=(1,),
    )
    return _compiled(f"states over time, {units} units, {outputs} outputs", kernel)


def _links(widths: tuple[int, ...], ahead: int) -> tuple[TileLink, ...]:
    x, one = torch.empty(64, 4), torch.empty(())
    return tuple(
        TileLink(x, x.half(), one, torch.empty(width), x, x.char(), ahead, width, 1.0, 1.0, 0.0)
        for width in widths
    )


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
