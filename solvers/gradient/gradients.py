"""What every gradient method here asks of its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from liftednet.errors import DataError, SolverError
from liftednet.validation import is_number

Closure = Callable[[], Tensor]


def positive(name: str, value: float | Tensor) -> float:
    """Return `value` as a float if it is a positive finite number, or a tensor of one.

    Raises:
        DataError: it is not.
    """
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not is_number(number):
        raise DataError(f"{name} must be a number; it is {value!r}.")
    if not (math.isfinite(number) and number > 0):
        raise DataError(f"{name} must be positive; it is {value!r}.")
    return float(number)


def needs_closure(method: str, closure: Closure | None) -> Closure:
    """Return the closure if there is one.

    Raises:
        DataError: there is none.
    """
    if closure is None:
        raise DataError(
            f"{method}.step needs a closure that clears the gradients, computes the loss on the "
            "next batch, calls backward, and returns the loss."
        )
    return closure


def check_gradients(gradients: Iterable[Tensor]) -> None:
    """Refuse gradients that no step can be made from.

    Raises:
        DataError: a sparse gradient.
        SolverError: entries that are NaN or infinite.
    """
    gradients = list(gradients)
    if any(g.is_sparse for g in gradients):
        raise DataError("Sparse gradients are not supported: use dense embeddings.")
    # One norm per tensor and one look at the sum: NaN and infinity survive both.
    norms = torch._foreach_norm(gradients, math.inf) if gradients else []
    if norms and not bool(torch.stack(list(norms)).sum().isfinite()):
        shapes = [tuple(g.shape) for g in gradients if not bool(g.isfinite().all())]
        raise SolverError(
            f"Gradients of the parameters with shapes {shapes} are NaN or infinite; the weights "
            "are as they were before this step. A smaller learning rate, a smaller start or "
            "clipping may help."
        )
