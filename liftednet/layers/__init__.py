"""Layers: pre-activations that are affine in each of their arguments and in their weights."""

from liftednet.layers.check import check_layer
from liftednet.layers.declare import (
    average_pooling,
    concatenate,
    convolution,
    delay,
    dense,
    early,
    first_step,
    late,
    turn,
)
from liftednet.layers.expression import Expression, Input, Parameter, Variable, apply
from liftednet.layers.layer import Layer

__all__ = [
    "Expression",
    "Input",
    "Layer",
    "Parameter",
    "Variable",
    "apply",
    "average_pooling",
    "check_layer",
    "concatenate",
    "convolution",
    "delay",
    "dense",
    "early",
    "first_step",
    "late",
    "turn",
]
