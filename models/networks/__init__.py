"""Torch networks trained by gradients: what lifted recurrent models are compared with."""

from .echo_state import EchoStateNetwork
from .recurrences import BatchNormRNN, CellRecurrence, IndRNN, PlainRNN
from .sequence_model import SequenceModel

__all__ = [
    "BatchNormRNN",
    "CellRecurrence",
    "EchoStateNetwork",
    "IndRNN",
    "PlainRNN",
    "SequenceModel",
]
