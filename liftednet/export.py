"""Trained weights as a torch network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from liftednet.activation import Activation, FunctionActivation
from liftednet.activations import (
    ELU,
    Clipped,
    Identity,
    LeakyReLU,
    PReLU,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Tanh,
)
from liftednet.activations.smooth import LINEAR
from liftednet.errors import DataError
from liftednet.layers.convolution import Convolution
from liftednet.layers.expression import TIME, value_of
from liftednet.layers.layer import Layer
from liftednet.layers.time import Timeline
from liftednet.network import ends_of
from liftednet.power import Power, power_mean
from liftednet.samples import Weights
from liftednet.validation import model_of

__all__ = ["to_torch"]


class ActivationModule(nn.Module):
    """The forward map of an activation for which torch has no module of its own.

    Attributes:
        activation: the activation.
    """

    def __init__(self, activation: Activation) -> None:
        """Keep the activation; it has no parameters that are trained."""
        super().__init__()
        self.activation = activation

    def forward(self, u: Tensor) -> Tensor:
        """Return phi(u), (samples, units)."""
        return self.activation.forward(u)

    def extra_repr(self) -> str:
        """Name the activation where the network is printed."""
        return repr(self.activation)


def to_torch(model: Any, *, logits: bool = False) -> Any:
    """Return a trained network as a torch module, whose output equals the model's `forward`.

    The parameters are copies in torch's own layout, trainable, on the model's device: those of a
    model in its precision, those of an estimator in float32, as torch has them, where that answers
    the rows of its fit as well (within a ten-thousandth of their spread, and a hundredth of what is
    left of their targets), and in float64 where it does not; its `precision_` says which.

    Args:
        model: a fitted model, such as `LiftedMLP`, `LiftedRNN` or `Lifted`, an estimator, or
            anything with the weights and activations of a chain.
        logits: whether to leave out the last activation, so that the network ends with the last
            pre-activation, as torch.nn.CrossEntropyLoss and BCEWithLogitsLoss want it.

    Returns:
        A torch.nn.Sequential of Linear and activations where layers follow one another
        (x_l = phi_l(x_{l-1} W_l + b_l), Lifted Neural Networks, eq. (1)), an `ExportedRNN` of a
        `LiftedRNN` that torch.nn.RNN can run, or an `ExportedGraph`. `torch.export.export` takes it
        for any number of samples, and for the number of steps of the example.

    Raises:
        DataError: it is no model, or one of `lift`, whose weights `write_` brings into its network.
        NotFittedError: the model has no weights yet.

    Example:
        >>> import torch
        >>> from liftednet import to_torch
        >>> from liftednet.models import LiftedMLP, Minibatch
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 20)
        >>> y = torch.tensor([0, 1] * 20)
        >>> model = LiftedMLP((2, 4, 2), method=Minibatch(5)).fit(x, y)
        >>> [type(part).__name__ for part in to_torch(model)]
        ['Linear', 'ReLU', 'Linear', 'Softmax']
    """
    given, model = model, model_of(model)
    if not {"activations", "weights"} <= set(dir(model)):  # which asks for neither
        raise DataError(
            "a fitted model such as LiftedMLP is needed, with weights and activations; got "
            f"{type(model).__name__}."
        )
    if hasattr(model, "write_"):
        raise DataError("weights of a lifted torch network go into that network: write_().")
    found: nn.Module
    if (recurrence := _recurrence_of(model)) is not None:
        found = ExportedRNN(model, recurrence, logits=logits)
    elif is_chain(model):
        found = _sequential(model, logits)
    else:
        found = ExportedGraph(model, logits=logits)
    return found.float() if getattr(given, "precision_", None) == "float32" else found


class Affine(nn.Module):
    """(x - center) scale + shift, unit by unit: what could not be folded into weights.

    Attributes:
        center: (units,), not trained; taken off first, so that no digits cancel.
        scale: (units,), not trained.
        shift: (units,), not trained.
    """

    center: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, center: Tensor, scale: Tensor, shift: Tensor) -> None:
        """Keep all three as buffers."""
        super().__init__()
        self.register_buffer("center", center)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - center) scale + shift, of the shape of x."""
        return torch.addcmul(self.shift, x - self.center, self.scale)


class PowerMean(nn.Module):
    """The mean of targets whose powers have an answer and noise around it, unit by unit.

    Attributes:
        parts: (6, units), those of a `Power`, not trained.
    """

    parts: Tensor

    def __init__(self, power: Power) -> None:
        """Keep the parts as a buffer."""
        super().__init__()
        parts = [getattr(power, part.name) for part in fields(Power)]
        self.register_buffer("parts", torch.stack(parts))

    def forward(self, t: Tensor) -> Tensor:
        """Return the mean of y, of the shape of t."""
        return power_mean(t, self.parts)


def _scaled(model: Any, variable: Any, *, back: bool = False) -> nn.Module:
    """Return what standardizes an input, or brings an output back to its targets' units."""
    moments = _moments(model).get(variable)
    if moments is None:
        return nn.Identity()
    moments = moments.to(model.weights[0].matrix)
    zeros = torch.zeros_like(moments.center)
    if back:
        found = Affine(zeros, moments.scale, moments.center)
        return found if moments.power is None else nn.Sequential(found, PowerMean(moments.power))
    return Affine(moments.center, 1 / moments.scale, zeros)


def refuse_standardized(model: Any) -> None:
    """Raise `DataError` where the weights alone are not the network on raw data."""
    if _moments(model):
        raise DataError(
            "the weights of this model are for standardized data, and cannot be folded into those "
            "for raw data (see model.standardization): export it by to_torch, which keeps both "
            "maps as layers, or fit it with standardize=False."
        )


def _moments(model: Any) -> Any:
    return model.standardization.moments if hasattr(model, "standardization") else {}


def _sequential(model: Any, logits: bool) -> nn.Sequential:
    standardized, last = bool(_moments(model)), len(model.weights)
    parts = [_scaled(model, model.network.inputs[0])] if standardized else []
    layers = zip(model.weights, model.activations, strict=True)
    for number, (weights, activation) in enumerate(layers, start=1):
        parts.append(linear(weights))
        if not (logits and number == last):
            parts += modules_of(activation, weights)
    if standardized:
        parts.append(_scaled(model, model.network.terms[0].label, back=True))
    return nn.Sequential(*(part for part in parts if type(part) is not nn.Identity))


def is_chain(model: Any) -> bool:
    """Say whether every dense layer stands on the one before, and nothing else is there."""
    network = getattr(model, "network", None)
    if network is None:
        return True
    layers, bounded = network.chain(), any(state.bounds is not None for state in network.states)
    if layers is None or bounded or network.limited or len(network.inputs[0].shape) > 1:
        return False
    return len({layer.weights for layer in layers}) == len(layers)


class ExportedGraph(nn.Module):
    """The forward pass of any network, its weights in torch modules.

    Attributes:
        weights_1, ...: Conv1d or Conv2d of a convolution, torch.nn.Linear of any other layer, or of
            layers of several kinds that share them.
        before: what standardizes each input, where that is not part of its weights.
        behind: the same for what each loss answers.
        structure: the graph, without what training alone needs.
        logits: whether the last activations are left out.
    """

    def __init__(self, model: Any, *, logits: bool = False) -> None:
        """Copy the weights of a fitted model."""
        super().__init__()
        weights, structure = model.weights, model.structure
        self.logits = logits
        self.structure = replace(structure, lam={}, penalties={})  # what training needs alone
        self._last_only = model._known.last_only
        self._names = [f"weights_{number}" for number in range(1, len(weights) + 1)]
        for name, parameter, layer in zip(self._names, structure.parameters, weights, strict=True):
            uses = [applied.layer for applied in structure.layers[parameter]]
            self.add_module(name, _module_of(uses, layer))
        self._standardized = bool(_moments(model))
        if self._standardized:
            network = structure.network
            self.before = nn.ModuleList(_scaled(model, x) for x in network.inputs)
            self.behind = nn.ModuleList(_scaled(model, x.label, back=True) for x in network.terms)

    def forward(self, x: Tensor, *others: Tensor, lengths: Tensor | None = None) -> Any:
        """Return (samples, outputs), or (samples, steps, outputs), as the model's `forward`.

        Args:
            x: (samples, ...), or (samples, steps, ...) of sequences.
            others: the same of the other inputs.
            lengths: (samples,) steps of each sequence; None: all have every step.

        Returns:
            A tensor, or a tuple of them where there are several losses.

        Raises:
            DataError: there are more or fewer inputs than the network has.
        """
        network = self.structure.network
        if len(others) + 1 != len(network.inputs):
            raise DataError(
                f"the network has {len(network.inputs)} inputs, got {len(others) + 1}; lengths are "
                "given by name, net(x, lengths=lengths)."
            )
        rows = [
            given.flatten(2).transpose(0, 1) if variable.sequence else given.flatten(1)
            for variable, given in zip(network.inputs, (x, *others), strict=True)
        ]
        ends = network.ends(dict(zip(network.inputs, rows, strict=True)))
        if self._standardized:
            rows = [before(part) for before, part in zip(self.before, rows, strict=True)]
            for term, behind in zip(network.terms, self.behind, strict=True):
                if (end := ends_of(term.argument)) is not None and isinstance(behind, Affine):
                    ends[end] = end.on(ends[end], behind.shift, behind.scale[:1])
        values: dict[Any, Any] = {**dict(zip(network.inputs, rows, strict=True)), **ends}
        sequences = [values[x] for x in network.inputs if x.sequence]
        if sequences:
            values[TIME] = _timeline(sequences[0], lengths)
        values.update(zip(self.structure.parameters, self.layers, strict=True))
        values = self.structure.passed(values)
        found = tuple(self._output(term, values) for term in network.terms)
        if self._standardized:
            found = tuple(behind(x) for behind, x in zip(self.behind, found, strict=True))
        return found[0] if len(found) == 1 else found

    @property
    def layers(self) -> list[Weights]:
        """The weights that the modules hold now, in the order of the graph's parameters."""
        parts: list[Any] = [getattr(self, name) for name in self._names]
        return [Weights(x.weight.flatten(1).T, x.bias) for x in parts]  # which have outputs first

    def _output(self, term: Any, values: dict[Any, Any]) -> Tensor:
        if self.logits or term.state is None:
            output = value_of(term.argument, values)
        else:
            output = values[term.state]
        if term.state is None and not self.logits:
            output = term.activation.forward(output)
        if not term.argument.sequence:
            return output
        if term.label not in self._last_only:
            return output.transpose(0, 1)
        last = values[TIME].lengths - 1
        return output[last, torch.arange(output.shape[1], device=output.device)]


class ExportedRNN(nn.Module):
    """A recurrent network that torch.nn.RNN can run.

    Attributes:
        before: what standardizes the input, where that is not part of its weights.
        recurrence: torch.nn.RNN, its batches first.
        initial: (cells, units), the states before the first step.
        readout: torch.nn.Linear.
        activation: what makes outputs of logits, nothing where they are left as they are.
        behind: the same as before, for the answers.
    """

    def __init__(self, model: Any, recurrence: nn.RNN, *, logits: bool = False) -> None:
        """Copy the weights of a fitted model that are not in the recurrence."""
        super().__init__()
        (term,) = model.network.terms
        self.before = _scaled(model, model.network.inputs[0])
        self.behind = _scaled(model, term.label, back=True)
        self.recurrence, self.readout = recurrence, linear(model.readout)
        self.initial = nn.Parameter(torch.stack([cell.initial for cell in model.cells]).detach())
        last = [] if logits else modules_of(term.activation, model.readout)
        self.activation = nn.Sequential(*last)
        self._last_only = bool(model._known.last_only)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return (samples, steps, outputs), or (samples, outputs), as the model's `forward`.

        Args:
            x: (samples, steps, features).
            lengths: (samples,) steps of each sequence; None: all have every step.
        """
        samples, steps = x.shape[:2]  # no len(x): to torch.export it is a fixed number
        initial = self.initial.unsqueeze(1).expand(-1, samples, -1).contiguous()
        x = self.before(x)
        if lengths is None:
            states, _ = self.recurrence(x, initial)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            found, _ = self.recurrence(packed, initial)
            states, _ = pad_packed_sequence(found, batch_first=True, total_length=steps)
        if self._last_only:
            last = -1 if lengths is None else lengths.to(x.device) - 1
            states = states[torch.arange(samples, device=x.device), last]
        return self.behind(self.activation(self.readout(states)))


def _recurrence_of(model: Any) -> nn.RNN | None:
    """Return the torch.nn.RNN of a model; None where it is none that torch has."""
    cells = getattr(model, "cells", None)
    name = None if cells is None else RNN_NONLINEARITIES.get(type(model.activation))
    if cells is None or name is None:
        return None
    features, units = cells[0].inputs.shape
    if any(len(cell.recurrent) != units for cell in cells):
        return None
    directions = 1 + any(cell.backward for cell in cells)
    recurrence = _unfilled(
        nn.RNN,
        features,
        units,
        num_layers=len(cells) // directions,
        nonlinearity=name,
        batch_first=True,
        bidirectional=directions == 2,
        dtype=cells[0].inputs.dtype,
    )
    return _assigned(recurrence, rnn_state(cells))


def rnn_state(cells: Sequence[Any]) -> dict[str, Tensor]:
    """Return cells as the parameters of a torch.nn.RNN: of its two biases the second is zero."""
    state: dict[str, Tensor] = {}
    layer = -1
    for cell in cells:
        layer += not cell.backward
        ending = f"l{layer}" + ("_reverse" if cell.backward else "")
        state[f"weight_ih_{ending}"] = cell.inputs.T
        state[f"weight_hh_{ending}"] = cell.recurrent.T
        state[f"bias_ih_{ending}"] = cell.bias
        state[f"bias_hh_{ending}"] = torch.zeros_like(cell.bias)
    return state


def _timeline(x: Tensor, lengths: Tensor | None) -> Timeline:
    """Return the timeline of (steps, samples, units)."""
    steps, samples = x.shape[:2]
    if lengths is not None:
        return Timeline(steps, lengths.cpu(), x.device)
    found = Timeline(steps, torch.full((samples,), steps), x.device)
    found.__dict__["full"] = True  # not looked up, so that torch.export can trace it
    return found


def _module_of(layers: Sequence[Layer], weights: Weights) -> Any:
    """Return torch's module that holds the weights that layers share."""
    first = layers[0]
    if type(first) is Convolution and all(layer == first for layer in layers):
        sizes = (first.below[0], first.channels, first.window, first.stride, first.padding)
        kind = {1: nn.Conv1d, 2: nn.Conv2d}[len(first.window)]
        return _filled(kind, weights, *sizes, first.dilation, first.groups, first.bias)
    return linear(weights)


def _filled(kind: Any, weights: Weights, *options: Any) -> Any:
    """Return a module of torch with weights, whose layouts have outputs first."""
    module = _unfilled(kind, *options, dtype=weights.matrix.dtype)
    state = {"weight": weights.matrix.T.reshape(module.weight.shape)}
    if weights.bias is not None:
        state["bias"] = weights.bias
    return _assigned(module, state)


def _unfilled(kind: Any, *options: Any, **more: Any) -> Any:
    """Return a module of torch whose own start has moved no random generator, without memory."""
    return kind(*options, device="meta", **more)


def _assigned(module: Any, state: Mapping[str, Tensor]) -> Any:
    """Return a module with copies of tensors; `to_empty` would load torch's compiler before."""
    kept = {x: v.detach().clone(memory_format=torch.contiguous_format) for x, v in state.items()}
    module.load_state_dict(kept, assign=True)
    return module


def linear(weights: Weights) -> nn.Linear:
    """Return the torch.nn.Linear of a dense layer, which keeps W transposed."""
    shape = weights.matrix.shape
    return _filled(nn.Linear, weights, *shape, weights.bias is not None)


def modules_of(activation: Activation, weights: Weights) -> list[nn.Module]:
    """Return the modules of an activation above weights: one, or none for the identity."""
    if type(activation) is PReLU:
        return [_parametric(activation, weights.matrix)]
    make = _TORCH_MODULES.get(type(activation))
    return [ActivationModule(activation)] if make is None else make(activation)


@torch.no_grad()
def _parametric(activation: PReLU, matrix: Tensor) -> nn.PReLU:
    """Return the module beside W, whose slopes are one, or as many as units."""
    units = matrix.shape[1]
    slopes = activation.slopes if len(activation.slopes) == 1 else activation.spread(units)
    module = nn.PReLU(len(slopes), dtype=matrix.dtype, device=matrix.device)
    module.weight.copy_(matrix.new_tensor(slopes))
    return module


def _declared(activation: FunctionActivation) -> list[nn.Module]:
    function = activation.function
    if isinstance(function, nn.Module):
        return [copy.deepcopy(function)]
    return [ActivationModule(activation)]


RNN_NONLINEARITIES: dict[type[Activation], str] = {ReLU: "relu", Tanh: "tanh"}
# By the exact type: a subclass may have another forward map.
_TORCH_MODULES: dict[type[Activation], Callable[[Any], list[nn.Module]]] = {
    Identity: lambda _: [],
    ReLU: lambda _: [nn.ReLU()],
    LeakyReLU: lambda leaky: [nn.LeakyReLU(leaky.alpha)],
    Clipped: lambda clipped: [nn.Hardtanh(clipped.lower, clipped.upper)],
    Sigmoid: lambda _: [nn.Sigmoid()],
    Tanh: lambda _: [nn.Tanh()],
    Softplus: lambda _: [nn.Softplus(threshold=LINEAR)],
    ELU: lambda _: [nn.ELU()],
    Softmax: lambda _: [nn.Softmax(dim=-1)],
    FunctionActivation: _declared,
}
