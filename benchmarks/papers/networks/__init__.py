"""Torch networks trained by gradients: what lifted recurrent models are compared with."""

from .echo_state import EchoStateNetwork
from .recurrences import BatchNormRNN, CellRecurrence, IndRNN, PlainRNN
from .sequence_model import SequenceModel
from .timescales import ContextRNN, GatedFeedbackRNN

__all__ = [
    "BatchNormRNN",
    "CellRecurrence",
    "ContextRNN",
    "EchoStateNetwork",
    "GatedFeedbackRNN",
    "IndRNN",
    "PlainRNN",
    "SequenceModel",
]
