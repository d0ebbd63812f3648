"""The ways through a graph: block descent, minibatches, Gauss-Newton, and units one by one."""

from __future__ import annotations

from typing import Any

from liftednet.errors import DeclarationError

from .descent import FullBatch
from .gauss_newton import GaussNewton
from .global_optimum import Global
from .minibatch import Minibatch

__all__ = [
    "COUNTED",
    "METHODS",
    "FullBatch",
    "GaussNewton",
    "Global",
    "Method",
    "Minibatch",
    "method_named",
]

Method = FullBatch | GaussNewton | Global | Minibatch
METHODS: dict[str, type[Method]] = {
    "full": FullBatch,
    "gauss-newton": GaussNewton,
    "global": Global,
    "minibatch": Minibatch,
}

COUNTED: dict[type[Any], str] = {  # what `max_iter` is of each method
    FullBatch: "sweeps",
    GaussNewton: "steps",
    Global: "rounds",
    Minibatch: "epochs",
}


def method_named(method: object) -> Method:
    """Return a method, by its name where that is given.

    Raises:
        DeclarationError: there is no such method.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    names = ", ".join(map(repr, ("auto", *METHODS)))
    raise DeclarationError(
        f"method must be one of {names}, a FullBatch, a GaussNewton, a Global or a Minibatch, got "
        f"{method!r}."
    )
