"""Any torch network as a lifted one, and back: `lift`, `initialize_`, and the table of readers."""

from __future__ import annotations

from . import activations, layers, operations
from .initialize import initialize_
from .model import LiftedModule, lift
from .reader import Reader, Seen, reads

__all__ = ["LiftedModule", "Reader", "Seen", "initialize_", "lift", "reads"]

_TABLES = (activations, layers, operations)  # imported for the rows that they register
