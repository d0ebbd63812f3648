"""Products, sums over rows and Cholesky factors of tensors on a CPU; on other devices, torch's.

Products of float32 are oneDNN's, which torch has and keeps for other types: torch's own are those
of MKL, which on processors other than Intel's leaves half of their registers (AVX-512) empty: 1.1
to 1.5 times as long, though steps on minibatches gain nothing by it. Sums over rows are those of
the BLAS of scipy, which has X'X in half the operations of a product, and adds in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEW = 1 << 20  # operations for which the way to oneDNN takes longer, and BLAS takes one thread
_BLOCK = 256  # columns of a block to mirror, which caches hold
_LIMITED = Lock()  # by one Python thread: of two, the last would restore the limit of the first


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices of one type, without a gradient of its own."""
    if _served(left, right):
        found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.T, None, "none", [], "")
        return found
    return left @ right


def _served(left: Tensor, right: Tensor) -> bool:
    return (
        left.ndim == 2
        and left.numel() * right.shape[1] >= _FEW
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


def add_square(total: Tensor, rows: Tensor) -> None:
    """Add X'X on and above the diagonal to a total in float64; below it on some devices, too.

    Args:
        total: (columns, columns), float64, contiguous.
        rows: X, (rows, columns), multiplied in its own type.
    """
    if total.device.type != "cpu":
        total += rows.T @ rows
        return
    from scipy.linalg import blas

    turned, sums = rows.numpy().T, total.numpy().T
    if rows.dtype is total.dtype:
        blas.dsyrk(1.0, turned, beta=1.0, c=sums, overwrite_c=True, lower=True)
    else:
        sums += blas.ssyrk(1.0, turned, lower=True)


def mirrored(matrix: Tensor) -> Tensor:
    """Return a matrix, (n, n), with what is above its diagonal put below it, too, in its place."""
    for first in range(0, len(matrix), _BLOCK):
        last = first + _BLOCK
        block = matrix[first:last, first:last]
        block.triu_().add_(block.triu(1).T)
        matrix[last:, first:last] = matrix[first:last, last:].T
    return matrix


def add_squares(total: Tensor, rows: Tensor) -> None:
    """Add the sums of squares of the columns of rows to a total in float64, (columns,)."""
    if total.device.type != "cpu":
        total += rows.square().sum(0)
    else:
        found = rows.numpy()
        total += torch.from_numpy(np.einsum("ij,ij->j", found, found))  # with no square kept


def square_of_rows(rows: Tensor) -> Tensor:
    """Return X X', (rows, rows), of X (rows, columns) in float64."""
    if rows.device.type != "cpu":
        return rows @ rows.T
    found = rows.numpy()
    with threads(rows.numel() * len(rows)):
        return torch.from_numpy(found @ found.T)  # half the operations of any two matrices


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left'right, multiplied in their own type, to a total in float64."""
    if total.device.type != "cpu":
        total += left.T @ right
        return
    if left.dtype is torch.float32:
        total += product(left.T, right)
        return
    sums = total.numpy()
    sums += left.numpy().T @ right.numpy()


def factored(matrix: Tensor) -> tuple[Tensor, int]:
    """Return what `solved` takes of a symmetric matrix, and 0, or the minor that is not positive.

    Args:
        matrix: (n, n), float64, contiguous, looked at on and above its diagonal; overwritten.
    """
    if matrix.device.type != "cpu":
        lower, info = torch.linalg.cholesky_ex(matrix)
        return lower, int(info)
    from scipy.linalg import lapack

    with threads(len(matrix) ** 3):
        lower, minor = lapack.dpotrf(matrix.numpy().T, lower=True, clean=False, overwrite_a=True)
    return torch.from_numpy(lower), minor


def solved(factor: Tensor, right: Tensor) -> Tensor:
    """Return the solution of the system of a `factored` matrix, (n, columns), float64."""
    if factor.device.type != "cpu":
        return torch.cholesky_solve(right, factor)
    from scipy.linalg import lapack

    with threads(len(factor) * right.numel()):
        return torch.from_numpy(lapack.dpotrs(factor.numpy(), right.numpy(), lower=True)[0])


@contextmanager
def threads(operations: float, most: int | None = None) -> Iterator[None]:
    """Let BLAS have as many threads as torch has, or fewer, where it would take more than one."""
    most = most or torch.get_num_threads()
    if operations < _FEW or _has(most) or not _LIMITED.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=most, user_api="blas"):
            yield
    finally:
        _LIMITED.release()


def _has(count: int) -> bool:
    """Say whether BLAS has so many threads already, which takes a tenth of a limit's time."""
    found = _controller().lib_controllers
    return all(one.num_threads == count for one in found if one.user_api == "blas")


@cache
def _controller() -> Any:
    import scipy.linalg.blas  # noqa: F401 (a library that is not there yet is not controlled)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
