"""Any torch network as a lifted one, and back: `lift` and `initialize_`."""

from __future__ import annotations

from . import activations, layers, operations
from .initialize import initialize_
from .model import LiftedModule, lift

__all__ = ["LiftedModule", "initialize_", "lift"]

_TABLES = (activations, layers, operations)  # imported for the rows that they register
