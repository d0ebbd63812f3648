"""The catalogue: each activation with its potential, domain, forward map, prox and conjugate."""

from liftednet.activations.alternative import LeakyReLUHalfSpace, ReLUAbsolute
from liftednet.activations.growing import ELU, Softplus
from liftednet.activations.piecewise_linear import Clipped, Identity, LeakyReLU, ReLU, Sign
from liftednet.activations.pooling import MaxPooling
from liftednet.activations.saturating import Arctan, Sigmoid, Sine, Tanh
from liftednet.activations.simplex import SimplexProjection, Softmax

__all__ = [
    "ELU",
    "Arctan",
    "Clipped",
    "Identity",
    "LeakyReLU",
    "LeakyReLUHalfSpace",
    "MaxPooling",
    "ReLU",
    "ReLUAbsolute",
    "Sigmoid",
    "Sign",
    "SimplexProjection",
    "Sine",
    "Softmax",
    "Softplus",
    "Tanh",
]
