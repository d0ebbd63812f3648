"""The ways through a graph: block descent, minibatches, and Gauss-Newton."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftednet.errors import DataError, DeclarationError

from .descent import FullBatch
from .gauss_newton import GaussNewton
from .minibatch import Minibatch

__all__ = [
    "COUNTED",
    "METHODS",
    "FullBatch",
    "GaussNewton",
    "Method",
    "Minibatch",
    "method_named",
    "with_numbers",
]

Method = FullBatch | GaussNewton | Minibatch
METHODS: dict[str, type[FullBatch] | type[GaussNewton] | type[Minibatch]] = {
    "full": FullBatch,
    "gauss-newton": GaussNewton,
    "minibatch": Minibatch,
}

COUNTED: dict[type[Method], str] = {  # what `max_iter` is of each method
    FullBatch: "sweeps",
    GaussNewton: "steps",
    Minibatch: "epochs",
}


def with_numbers(method: Method, max_iter: int | None = None, **numbers: Any) -> Method:
    """Return a method with numbers of one's own.

    Args:
        method: any.
        max_iter: the most sweeps, epochs or steps; None for those that it has.
        numbers: of `Minibatch`.

    Raises:
        DataError: a number cannot be used, or is for minibatches and the method is another.
    """
    if numbers and not isinstance(method, Minibatch):
        raise DataError(
            f"{' and '.join(numbers)} {'are' if len(numbers) > 1 else 'is'} for "
            f"method='minibatch', and the method is {method}."
        )
    if max_iter is not None:
        numbers[COUNTED[type(method)]] = max_iter
    changed: Method = replace(method, **numbers)
    return changed


def method_named(method: object) -> Method:
    """Return a method, by its name where that is given.

    Raises:
        DeclarationError: there is no such method.
    """
    if isinstance(method, FullBatch | GaussNewton | Minibatch):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    names = ", ".join(map(repr, ("auto", *METHODS)))
    raise DeclarationError(
        f"method must be one of {names}, a FullBatch, a GaussNewton or a Minibatch, got {method!r}."
    )
