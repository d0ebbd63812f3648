"""Sums over rows and Cholesky factors by the BLAS of scipy, where a tensor is on a CPU.

It has X'X in half the operations of a product, and adds in place. On other devices it is torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from liftednet.products import product

_FEW = 1 << 20  # operations that BLAS leaves to one thread
_LIMITED = Lock()  # by one Python thread: of two, the last would restore the limit of the first
_SMALL = 16  # rows of a matrix whose eigenvalues take less than a call of torch


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


def largest_eigenvalue(matrix: Tensor) -> float:
    """Return that of a symmetric matrix (n, n), float64."""
    if matrix.device.type == "cpu" and len(matrix) <= _SMALL:
        from scipy.linalg import lapack

        values, _, failed = lapack.dsyevd(matrix.detach().numpy(), compute_v=False)
        if not failed:
            return float(values[-1])
    return float(torch.linalg.eigvalsh(matrix)[-1])


@contextmanager
def threads(operations: int) -> Iterator[None]:
    """Let BLAS have as many threads as torch has, where it would take more than one."""
    if operations < _FEW or not _LIMITED.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=torch.get_num_threads(), user_api="blas"):
            yield
    finally:
        _LIMITED.release()


@cache
def _controller() -> Any:
    import scipy.linalg.blas  # noqa: F401 (a library that is not there yet is not controlled)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
