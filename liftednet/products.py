"""Products of float32 matrices on a CPU by oneDNN, which torch has and keeps for other types.

torch's own are those of MKL, which on processors other than Intel's leaves half of their registers
(AVX-512) empty.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_FEW = 1 << 20  # multiplications, for which the way there takes longer


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices of one type, without a gradient of its own."""
    if _served(left, right):
        return _linear(left, right.T, None)
    return left @ right


def linear(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return X W + b of one type, with a gradient in X alone."""
    if not _served(rows, matrix):
        if rows.ndim == 2 and bias is not None:
            return torch.addmm(bias, rows, matrix.detach())
        return torch.nn.functional.linear(rows, matrix.detach().T, bias)
    if not rows.requires_grad:
        return _linear(rows, matrix.detach().T, bias)
    found: Tensor = _Linear.apply(rows, matrix, bias)  # type: ignore[no-untyped-call]
    return found


def added(start: Tensor, left: Tensor, right: Tensor, share: float, out: Tensor | None) -> Tensor:
    """Return share start + left right of one type, in the memory of `out` where it is given."""
    if _served(left, right, 2 * _FEW):  # it adds apart, which MKL does not
        return torch.add(_linear(left, right.T, None), start, alpha=share, out=out)
    return torch.addmm(start, left, right, beta=share, out=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix)
        return _linear(rows, matrix.T, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return product(slopes[0], ctx.saved_tensors[0].T), None, None


def _served(left: Tensor, right: Tensor, few: int = _FEW) -> bool:
    return (
        left.ndim == 2
        and left.numel() * right.shape[1] >= few
        and left.dtype is torch.float32
        and left.device.type == "cpu"
        and _wide()
        and _dense(left)
        and _dense(right)
    )


def _dense(matrix: Tensor) -> bool:
    """Say whether entries stand one behind another: others take oneDNN a thousand times as long."""
    return matrix.is_contiguous() or matrix.T.is_contiguous()


@cache
def _wide() -> bool:
    """Say whether the processor has AVX-512, and this torch the operation."""
    has: bool = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _linear(rows: Tensor, turned: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, turned, bias, "none", [], "")
    return found
