"""Small networks and data that the tests of the models share."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from liftednet.errors import FitWarning
from liftednet.models import FullBatch, Lifted, LiftedMLP
from liftednet.models.data import Data
from liftednet.models.methods.minibatch import BatchSteps
from liftednet.models.results import Trace
from liftednet.problems import Weights


def labeled(samples: int = 30, features: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return (samples, features) normal inputs and labels that depend on them, float64."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    y = (x @ torch.randn(features, classes, generator=generator, dtype=torch.float64)).argmax(1)
    y[:classes] = torch.arange(classes)
    return x, y


def full(sizes: tuple[int, ...], *args: Any, **options: Any) -> LiftedMLP:
    """Return a network to train on all samples, with numbers of `FullBatch` among the options."""
    numbers = {f.name: options.pop(f.name) for f in fields(FullBatch) if f.name in options}
    how = {"standardize": False, "rho": 1e-3, **options}
    return LiftedMLP(sizes, *args, method=FullBatch(**numbers), **how)


def trace_of(model: Lifted) -> Trace:
    """Return the trace of a model that has been fitted."""
    assert model.trace is not None
    return model.trace


def outcome(model: Lifted) -> list[Any]:
    """Return everything that a fit has made, as bytes and numbers."""
    trace = trace_of(model)
    tensors = [part for layer in model.weights for part in (layer.matrix, layer.bias)]
    if model._known.data is not None:
        tensors += model.states
    found = [None if tensor is None else tensor.numpy().tobytes() for tensor in tensors]
    steps = [repr(replace(step, seconds=0.0)) for step in trace.steps]
    return [found, repr(trace.start), steps, trace.ending, repr(model.activations)]


def same_bits(one: Sequence[Weights], other: Sequence[Weights]) -> bool:
    """Return whether weights are the same to the last bit, with their biases."""
    return all(a.stacked().equal(b.stacked()) for a, b in zip(one, other, strict=True))


def bias_of(layer: Weights) -> Tensor:
    """Return the bias of a layer that has one."""
    assert layer.bias is not None
    return layer.bias


def each(found: Any) -> tuple[Any, ...]:
    """Return several arrays as they are, and one by itself."""
    return found if isinstance(found, tuple) else (found,)


def gradients(steps: BatchSteps, batch: Data) -> list[Weights]:
    """Return what the divergences ask of the weights, the mean over a batch, before any look."""
    found = steps.gradients
    mean = float(batch.loss_weights.mean())
    _, slopes, _ = found.of(batch, steps.weights, found.counts(batch), mean)
    parts = zip(slopes, steps._metrics, steps.weights, strict=True)
    return [Weights(*slope.centered(metric, layer, 0.0)) for slope, metric, layer in parts]


def told(call: Callable[..., Any], *given: Any, **named: Any) -> list[str]:
    """Return the texts of all warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*given, **named)
    return [str(one.message) for one in caught]


def refuses(error: Any, words: str | list[str], call: Callable[..., Any], *given, **named) -> Any:
    """Ask whether a call ends in an error of a kind that says all words, and return the error."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    for word in [words] if isinstance(words, str) else words:
        caught.match(word)
    return caught.value


def warned(words: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Return what a call returns that warns of a fit in these words."""
    with pytest.warns(FitWarning, match=words):
        return call(*given, **named)
