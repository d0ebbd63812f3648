"""Any torch network as a lifted one, and back: `lift` and `initialize_`."""

from __future__ import annotations

from . import calls, layers
from .model import LiftedModule, initialize_, lift

__all__ = ["LiftedModule", "initialize_", "lift"]

_TABLES = (calls, layers)  # imported for the rows that they register
