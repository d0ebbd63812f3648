"""Any torch network as a lifted one, and back: `lift` and `initialize_`."""

from __future__ import annotations

from . import activations, layers, operations
from .model import LiftedModule, initialize_, lift

__all__ = ["LiftedModule", "initialize_", "lift"]

_TABLES = (activations, layers, operations)  # imported for the rows that they register
