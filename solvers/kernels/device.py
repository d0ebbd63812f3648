"""Whether kernels can serve a tensor, what they prove first, and how many run at once."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from liftednet.activations import ReLU
from liftednet.divergences import joint
from liftednet.errors import FitWarning
from liftednet.problems import Link, StateFit

from ..base import Solver
from ..choice import solved_by

_PRECISIONS = torch.float32, torch.float64
_CLOSE = 1e-3  # of states of size 1, at a residual of 1e-5


@cache
def proven(kernel: Solver[StateFit, Tensor, None], device: torch.device) -> bool:
    """Say whether a kernel finds on a device what torch does; where it does not, warn once."""
    generator = torch.Generator().manual_seed(0)
    u, y = torch.randn(50, 12, generator=generator), torch.eye(12)[torch.arange(50) % 12]
    problem, exact = (_trial(u.to(device, kind), y.to(device, kind)) for kind in _PRECISIONS)
    try:
        found = kernel.solve(problem).value.double()
        expected = solved_by(exact, ("proximal",), None).value
        fault = f"is off by {float((found - expected).abs().max()):.1e}"
        good = torch.allclose(found, expected, rtol=0, atol=_CLOSE)
    except Exception as error:  # of a compiler, a driver, or a card
        good, fault = False, f"fails: {error}"
    if not good:
        warnings.warn(
            f"the kernel {kernel.name} {fault} on a small problem on {device}, and is left aside: "
            "torch serves. Another version of Triton may help.",
            FitWarning,
            stacklevel=2,
        )
    return good


def _trial(u: Tensor, y: Tensor) -> StateFit:
    """Return a small problem below one link."""
    relu, weight = joint(ReLU()), u[: u.shape[1], :5] / u.shape[1] ** 0.5
    return StateFit(relu, u, (Link(relu, weight, weight[0], y[:, :5]),), 0.7)


@cache
def has_triton() -> bool:
    """Say whether Triton is installed."""
    return find_spec("triton") is not None


def interpreting() -> bool:
    """Say whether Triton runs kernels on the CPU (TRITON_INTERPRET=1, set before its import)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def refusal(tensor: Tensor) -> str | None:
    """Return why no kernel can take a tensor, or None."""
    if tensor.dtype is not torch.float32:
        return f"it serves torch.float32 alone, not {tensor.dtype}"
    if not tensor.is_cuda and not interpreting():
        return f"it needs tensors on a GPU, not on {tensor.device}"
    if not has_triton():
        return "it needs Triton, which is not installed: pip install 'liftednet[gpu]'"
    return None


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on the device of a tensor."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def programs(device: torch.device, most: int, scratch_bytes: int) -> int:
    """Return how many programs run at once; 2 under the interpreter.

    Args:
        device: where.
        most: how many on each multiprocessor.
        scratch_bytes: of each, three quarters of which all steps go through. They are to stay in
            the L2 cache.
    """
    if device.type != "cuda":
        return 2
    card = torch.cuda.get_device_properties(device)
    each = 4 * card.L2_cache_size // (3 * card.multi_processor_count * scratch_bytes)
    return card.multi_processor_count * min(most, max(1, each))


def padded_width(columns: int) -> int:
    """Return a number of columns, rounded up to a power of two, at least 16."""
    return max(16, 1 << (columns - 1).bit_length())
