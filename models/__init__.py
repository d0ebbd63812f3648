"""The training problems: which block of a lifted network is which convex subproblem."""

if __name__ == "models":
    raise ImportError(
        "the folder models is the package liftednet.models: run `make demo` or "
        "`pip install -c constraints.txt -e .`, then import liftednet.models"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .builders import LiftedMLP as LiftedMLP
from .builders import LiftedRNN as LiftedRNN
from .checkpoint import Checkpoint as Checkpoint
from .lifted import Lifted as Lifted
from .methods import FullBatch as FullBatch
from .methods import GaussNewton as GaussNewton
from .methods import Global as Global
from .methods import Minibatch as Minibatch
from .shapes import input_convex as input_convex

if TYPE_CHECKING:
    from .optimality import add_unit as add_unit
    from .optimality import global_path as global_path

_LATER = {"add_unit": "optimality", "global_path": "optimality"}

__all__ = [
    "Checkpoint",
    "FullBatch",
    "GaussNewton",
    "Global",
    "Lifted",
    "LiftedMLP",
    "LiftedRNN",
    "Minibatch",
    "add_unit",
    "global_path",
    "input_convex",
]


def __getattr__(name: str) -> Any:
    """Import what no fit needs on its first use: scipy's optimizers take a second."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
