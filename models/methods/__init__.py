"""The ways through a graph: block descent, minibatches, and Gauss-Newton."""

from __future__ import annotations

from typing import Any

from liftednet.errors import DeclarationError

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
]

Method = FullBatch | GaussNewton | Minibatch
METHODS: dict[str, type[FullBatch] | type[GaussNewton] | type[Minibatch]] = {
    "full": FullBatch,
    "gauss-newton": GaussNewton,
    "minibatch": Minibatch,
}

COUNTED: dict[type[Any], str] = {  # what `max_iter` is of each method
    FullBatch: "sweeps",
    GaussNewton: "steps",
    Minibatch: "epochs",
}


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
