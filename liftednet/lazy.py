"""Packages that are imported when first used, so that training with torch never pays for them.

A module writes ``from liftednet.lazy import cvxpy as cp``; CVXPY is imported when an attribute of
``cp`` is first asked for, and type checkers see the real package throughout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module until one of its attributes is used, and then imports it."""

    def __init__(self, name: str, install: str) -> None:
        """Remember which module to import, and what to install where it is missing."""
        self._name = name
        self._install = install

    def __getattr__(self, attribute: str) -> Any:
        """Import the module, unless that has been done, and ask it for the attribute.

        Raises:
            ImportError: the package is not installed, or one that it needs is not.
        """
        try:
            module = import_module(self._name)
        except ImportError as error:
            raise ImportError(
                f"{self._name} is needed here and cannot be imported ({error}): "
                f"run `pip install {self._install}`",
                name=self._name,
            ) from error
        return getattr(module, attribute)


if TYPE_CHECKING:
    import cvxpy as cvxpy
    from matplotlib import pyplot as pyplot
    from scipy import optimize as optimize
    from scipy import sparse as sparse
    from scipy import special as special
else:
    cvxpy = LazyModule("cvxpy", install="cvxpy")
    pyplot = LazyModule("matplotlib.pyplot", install="'liftednet[plots]'")
    optimize, sparse, special = (
        LazyModule(f"scipy.{name}", install="scipy") for name in ("optimize", "sparse", "special")
    )
