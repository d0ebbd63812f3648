"""Layers: pre-activations that are affine in each of their arguments and in their weights."""

from liftednet.layers.convolution import average_pooling, convolution
from liftednet.layers.dense import dense
from liftednet.layers.expression import Expression, Input, Parameter, apply, concatenate
from liftednet.layers.layer import Layer, check_layer
from liftednet.layers.time import delay, reverse

__all__ = [
    "Expression",
    "Input",
    "Layer",
    "Parameter",
    "apply",
    "average_pooling",
    "check_layer",
    "concatenate",
    "convolution",
    "delay",
    "dense",
    "reverse",
]
