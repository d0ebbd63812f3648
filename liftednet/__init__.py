"""Lifted neural networks: training as a sequence of convex problems, solved in torch.

The public names are imported when first used, so that `import liftednet` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:
    raise ImportError(
        "liftednet needs torch, which this Python does not have: run `make demo` in the "
        "repository, or `pip install -c constraints.txt -e .`",
        name="torch",
    )

if TYPE_CHECKING:
    from liftednet import activations as activations
    from liftednet import constraints as constraints
    from liftednet import data as data
    from liftednet import divergences as divergences
    from liftednet import errors as errors
    from liftednet import layers as layers
    from liftednet import losses as losses
    from liftednet import models as models
    from liftednet import penalties as penalties
    from liftednet import problems as problems
    from liftednet import solvers as solvers
    from liftednet.activation import Activation as Activation
    from liftednet.check import check_activation as check_activation
    from liftednet.errors import FitWarning as FitWarning
    from liftednet.errors import LiftedError as LiftedError
    from liftednet.export import to_torch as to_torch
    from liftednet.models.certificate import certify as certify
    from liftednet.models.error_bars import posterior as posterior
    from liftednet.models.estimators import LiftedClassifier as LiftedClassifier
    from liftednet.models.estimators import LiftedRegressor as LiftedRegressor
    from liftednet.models.estimators import LiftedSequenceClassifier as LiftedSequenceClassifier
    from liftednet.models.from_torch import initialize_ as initialize_
    from liftednet.models.from_torch import lift as lift
    from liftednet.models.optimality import global_gap as global_gap
    from liftednet.models.programs import invert as invert
    from liftednet.models.programs import optimize as optimize
    from liftednet.models.programs import robustness_radius as robustness_radius
    from liftednet.models.programs import to_cvxpy as to_cvxpy
    from liftednet.models.storage import load as load
    from liftednet.models.storage import save as save
    from liftednet.network import Network as Network

__version__ = "1.2.19"

_ROOMS = (
    "activations",
    "constraints",
    "data",
    "divergences",
    "errors",
    "layers",
    "losses",
    "models",
    "penalties",
    "problems",
    "solvers",
)
_NAMES = {
    "activation": "Activation",
    "check": "check_activation",
    "errors": "FitWarning LiftedError",
    "export": "to_torch",
    "models.certificate": "certify",
    "models.error_bars": "posterior",
    "models.estimators": "LiftedClassifier LiftedRegressor LiftedSequenceClassifier",
    "models.from_torch": "initialize_ lift",
    "models.optimality": "global_gap",
    "models.programs": "invert optimize robustness_radius to_cvxpy",
    "models.storage": "load save",
    "network": "Network",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted({*_ROOMS, *_HOMES, "__version__"})


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562)."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, whether or not they have been used yet."""
    return list(__all__)
