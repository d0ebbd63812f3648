"""Products and sums over rows of tensors on a CPU; on other devices, torch's.

Sums over rows are those of the BLAS of scipy, which has X'X in half the operations of a product,
and adds in place.
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

_FEW = 1 << 20  # operations for which BLAS takes one thread
_LARGE = 512  # columns of a matrix that LAPACK factors in its place, sooner than torch beside it
_BLOCK = 256  # columns of a block to mirror, which caches hold
_LIMITED = Lock()  # by one Python thread: of two, the last would restore the limit of the first


def add_square(total: Tensor, rows: Tensor) -> None:
    """Add X'X on and above the diagonal to a total in float64; below it on some devices, too.

    Args:
        total: (columns, columns), float64, contiguous.
        rows: X, (rows, columns), multiplied in its own type, stored row by row or column by column.
    """
    if total.device.type != "cpu":
        total += rows.T @ rows
        return
    from scipy.linalg import blas

    sums, by_column = total.numpy().T, not rows.is_contiguous()
    stored = rows.numpy() if by_column else rows.numpy().T
    told = {"trans": by_column, "lower": True}
    if rows.dtype is total.dtype:
        blas.dsyrk(1.0, stored, beta=1.0, c=sums, overwrite_c=True, **told)
    else:
        sums += blas.ssyrk(1.0, stored, **told)


def mirrored(matrix: Tensor) -> Tensor:
    """Return a matrix, (n, n), with what is above its diagonal put below it, too, in its place."""
    for first in range(0, len(matrix), _BLOCK):
        last = first + _BLOCK
        block = matrix[first:last, first:last]
        block.triu_().add_(block.triu(1).T)
        matrix[last:, first:last] = matrix[first:last, last:].T
    return matrix


def square_of_rows(rows: Tensor) -> Tensor:
    """Return X X', (rows, rows), of X (rows, columns) in float64."""
    if rows.device.type != "cpu":
        return rows @ rows.T
    found = rows.numpy()
    with threads(rows.numel() * len(rows)):
        return torch.from_numpy(found @ found.T)  # half the operations of any two matrices


def squares_of_columns(rows: Tensor) -> Tensor:
    """Return the sum of squares of every column, (columns,), of rows in float64."""
    if rows.device.type != "cpu":
        return rows.square().sum(0)
    found = rows.numpy()
    return torch.from_numpy(np.einsum("ij,ij->j", found, found))  # squares are not kept


def cholesky(matrix: Tensor) -> tuple[Tensor, int]:
    """Return a Cholesky factor, and the first leading minor that is not positive definite, or 0.

    Above the diagonal of the factor stands what has no meaning.

    Args:
        matrix: symmetric, (n, n), float64, contiguous; overwritten where that takes less time.
    """
    if len(matrix) < _LARGE or matrix.device.type != "cpu":
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return factor, int(failed)
    from scipy.linalg import lapack

    with threads(float(len(matrix)) ** 3):
        return matrix, lapack.dpotrf(matrix.numpy().T, clean=False, overwrite_a=True)[1]


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
