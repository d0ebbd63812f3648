"""A torch network as a lifted model: read, fitted, and written back in place; its start."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from liftednet import processes
from liftednet.activations.simplex import Grouped
from liftednet.errors import DataError
from liftednet.export import ExportedGraph, refuse_standardized
from liftednet.layers import Expression, Input, apply
from liftednet.layers.convolution import Convolution
from liftednet.layers.dense import Dense, DenseAtPositions
from liftednet.layers.expression import Applied, value_of
from liftednet.layers.time import AllSteps, Steps
from liftednet.losses import CrossEntropy, FenchelYoungLoss, Loss, SquaredError
from liftednet.names import loss_of
from liftednet.network import State
from liftednet.samples import Weights
from liftednet.validation import FLOATS, as_tensor

from ..block import Structure
from ..bounds.reading import samples_in
from ..data import Data, pair_of, prepared
from ..lifted import Lifted
from ..methods import FullBatch, Minibatch
from ..output import output_obstacle, with_constants
from ..standardization import RAW, Standardization
from ..starts import AUTO, START_SAMPLES, needs_fit
from ..trace import Report, Step
from .reader import CURVED, Pair, Reader, Seen
from .tracing import trace

_RHO = 1e-3  # where neither rho nor a penalty is given
_RATE = 0.1  # of minibatches; measured with LeNet-5 on MNIST, and an LSTM on HAR
_DRAWN = (Dense, DenseAtPositions, Convolution)
_USUAL = 0.1, 1.0  # root mean squares of data for which matrices are drawn as they are
_FIRST_RATE, _FIRST_DAMPING = 0.8, 3.0  # of starts_of_torch_networks.md, on held-out data
_LAM = 1e3  # LeNet-5, 20,000 digits, two passes: .9824, at lam 10 .974

_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}  # of a reading, in the largest output


class LiftedModule(Lifted):
    """A lifted model that was read from a torch network, see `lift`.

    Attributes:
        module: the torch network, which only `write_` changes.
        lines: what became of each call.
    """

    def __init__(self, module: nn.Module, reader: Reader, **settings: Any) -> None:
        """Take a network, and what was read of it."""
        self.module, self._reader, self.lines = module, reader, reader.lines
        if settings.get("start") is None:
            settings["start"] = self._own()
        super().__init__(reader.network, **settings)
        self._first_statistics = self._running()

    @property
    def _default_rho(self) -> float:
        return _RHO

    @property
    def _pairs(self) -> list[Pair]:
        return [self._reader.pairs[parameter] for parameter in self._reader.network.parameters]

    def _own(self) -> list[Weights]:
        found: list[Weights] = []
        for pair in self._pairs:
            weight = pair.weight.detach().clone()
            matrix = weight.reshape(len(weight) if weight.ndim else 1, -1).T  # outputs first
            found.append(Weights(matrix, None if pair.bias is None else pair.bias.detach().clone()))
        return found

    def _drawn(self, start: str, generator: torch.Generator) -> list[Weights]:
        """Draw matrices and kernels; scales, embeddings and single parameters stay as they are.

        So do biases of dense layers at positions: positions that hold nothing, such as rows of
        background, would be zeros, which a LayerNorm behind them turns into steep slopes.
        """
        if start == AUTO and not needs_fit(self.network, self._penalties()):
            start = "kaiming"  # data are as they are given, which the gains of "auto" are not for
        drawn, layers = super()._drawn(start, generator), self._structure().layers
        for number, own in enumerate(self._own()):
            kinds = [type(x.layer) for x in layers[self.network.parameters[number]]]
            if not all(issubclass(kind, _DRAWN) for kind in kinds):
                drawn[number] = own
            elif DenseAtPositions in kinds:
                drawn[number] = replace(drawn[number], bias=own.bias)
        return drawn

    def _weights_to_begin_with(
        self, structure: Structure, data: Data, standardization: Standardization, goes_on: bool
    ) -> list[Weights]:
        """Return the same, matrices and kernels that are drawn on data divided by the data's size.

        The steps that follow are in the metric of the inputs: alike in any unit of the data. With
        weights that are drawn goes a last bias by which outputs are right in the mean.
        """
        weights = super()._weights_to_begin_with(structure, data, standardization, goes_on)
        if not isinstance(self.start, str) or (goes_on and self.is_fitted):
            return weights
        fitted = needs_fit(self.network, self._penalties())  # to data already
        weights = with_constants(structure, weights, data, centered=fitted)
        if fitted:
            return weights
        share = processes.share_of(len(data))
        some = data.take(share.own(torch.arange(min(START_SAMPLES, share.samples)))).values
        for number, parameter in enumerate(structure.parameters):
            layer = structure.layers[parameter][0]
            below = [x for x in layer.arguments if isinstance(x, Expression)]
            on_data = all(isinstance(v, Input) for x in below for v in x.variables)
            if on_data and isinstance(layer.layer, _DRAWN):
                x = value_of(below[0], some).double()
                sums = processes.gathered([float(x.square().sum()), x.numel()]).sum(0)
                size = math.sqrt(float(sums[0] / sums[1])) or 1.0  # of zeros, such as first states
                given = weights[number]
                unit = size / min(max(size, _USUAL[0]), _USUAL[1])
                weights[number] = Weights(given.matrix / unit, given.bias)
        return weights

    def _first_standardization(self, data: Data, lipschitz: float | None) -> Standardization:
        found = super()._first_standardization(data, lipschitz)
        if not found.moments:
            return found
        if found.folded(self.network, self._first_weights(), self._structure().penalties) is None:
            if self.standardize is None:
                return RAW
            raise DataError(
                "standardize=True is for a network whose data meet dense layers with a bias, which "
                "take the scales into their weights; another would have to be given standardized "
                "data ever after. Standardize X before, or in the network's own forward, or leave "
                "it: matrices and kernels that are drawn are for the scale of the data."
            )
        return found

    def fit(self, X: Any, y: Any = None, *, on_step: Report | None = None, **options: Any) -> Self:
        """Fit the weights to data; the torch network stays as it is until `write_`.

        Args:
            X: as the network takes it, a tuple where it takes several: (samples, ...), of any type
                of numbers, bytes from 0 to 255; or a torch DataLoader of pairs (X, y).
            y: as the loss takes it.
            on_step: told after every step of the method.
            **options: sample_weight, progress, checkpoint, resume and constraints, as in
                `Lifted.fit`; without lengths every sequence has the steps of the example.

        Raises:
            DataError: X or y cannot be used; nothing has changed.
            SolverError: as in `Lifted.fit`.
        """
        last = self._running()

        def told(step: Step) -> None:
            nonlocal last
            last = self._running()
            if on_step is not None:
                on_step(step)

        try:
            if not self.warm_start:
                self._recall(self._first_statistics)
            return super().fit(X, y, on_step=told, **options)
        except BaseException:  # the weights are those of the last good epoch, or before
            self._recall(last)
            raise

    def _recall(self, running: list[list[Tensor]]) -> None:
        for (_, ours), one in zip(self._reader.statistics, running, strict=True):
            ours.recall(one)

    def _running(self) -> list[list[Tensor]]:
        return [ours.memory() for _, ours in self._reader.statistics]

    def _checked_data(self, X: Any, *args: Any) -> Any:
        return super()._checked_data(self._floats(X), *args)

    def _unlabeled(self, X: Any, lengths: Any) -> Any:
        return super()._unlabeled(self._floats(X), lengths)

    def _floats(self, X: Any) -> Any:
        """Return X in the network's type."""
        change = partial(_as_floats, dtype=self.dtype or torch.float32)
        if isinstance(X, tuple | list):
            return tuple(map(change, X))
        return change(X)

    def write_(self) -> nn.Module:
        """Write weights and running statistics into the torch network, in place, and return it.

        Types, devices, ties, frozen parameters and modes stay as they are; where nothing was
        fitted, every parameter keeps its bits.

        Raises:
            DataError: the network's parameters are no longer those that were read.
        """
        if not self._read <= {id(x) for x in self.module.parameters()}:
            raise DataError("the network has other parameters than those that were read.")
        with torch.no_grad():
            for pair, layer in zip(self._pairs, self._given_weights(), strict=True):
                pair.weight.copy_(layer.matrix.T.reshape(pair.weight.shape))
                if pair.bias is not None and layer.bias is not None:
                    pair.bias.copy_(layer.bias)
        for theirs, ours in self._reader.statistics:
            theirs.recall(ours.memory())
        return self.module

    @property
    def _read(self) -> set[int]:
        """The ids of the parameters that were read."""
        return {id(x) for pair in self._pairs for x in (pair.weight, pair.bias) if x is not None}

    def _given_weights(self) -> Sequence[Weights]:
        """Return the weights on data as they are given: those of a fit, or of the start."""
        if not self.is_fitted:
            return self._first_weights()
        refuse_standardized(self)
        return self.weights

    def summary(self) -> str:
        """Return a table of what became of each call, and of what stands still and why."""
        curved = sum(line.kind == CURVED for line in self.lines)
        name = type(self.module).__name__
        lines = [f"{name}: {len(self.lines)} calls read, {curved} of them linearized"]
        rows = [("module", "call", "", "became")]
        rows += [(x.place, x.call, x.kind, f"{x.text}  ({x.where})") for x in self._reader.lines]
        widths = [max(len(row[n]) for row in rows) for n in range(3)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True))
            lines.append("  ".join((*cells, row[3])).rstrip())
        couple = "tight (biconvex)" if self.divergence == "tight" else self.divergence
        lines.append(f"divergences: {couple}, lam {self.lam}")
        return "\n".join([*lines, *self._still()])

    def _still(self) -> Iterator[str]:
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                yield f"stands still: {name} (requires_grad is False)"
            elif id(parameter) not in self._read:
                yield f"stands still: {name} (no call that was read trains it)"
        drops = (
            name
            for name, module in self.module.named_modules()
            if isinstance(module, _DropoutNd) and module.training and module.p > 0
        )
        if names := ", ".join(drops):
            yield f"dropout is off in lifted training: {names}"


def _as_floats(x: Any, dtype: torch.dtype) -> Any:
    found = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return found.to(dtype) if isinstance(found, Tensor) else x  # refused with words of its own


@torch.inference_mode(False)
def lift(
    network: nn.Module,
    example: Any,
    *,
    loss: Loss | str | nn.Module,
    show: bool = True,
    **settings: Any,
) -> LiftedModule:
    """Return a torch network as a lifted model, which starts from the network's weights.

    min over weights and states of the loss + sum over states of lam D(Z, U), U affine in each
    state and in the weights; Lifted Neural Networks, eq. (10).

    Args:
        network: any torch.nn.Module that returns one tensor, with parameters of one type and
            device; it only changes by `write_`. Dropout is off; batch normalization that is in
            train mode takes the statistics of batches, one in eval mode those that are given.
        example: some samples of what the network takes, such as X[:2]; a tuple of several. An `if`
            on their values stays as it is for them, with a warning.
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()` on logits,
            its name "cross-entropy", or `nn.CrossEntropyLoss()`; a last softmax or log_softmax is
            left to that loss, other probabilities are refused. Of an output (samples, steps, units)
            of a Linear for each step, whose y is (samples, steps) classes or (samples, steps,
            units), and the loss a mean over steps. Of one number a sample, (samples,), `predict`
            and `forward` make (samples, 1), as of any regression.
        show: whether to print the summary.
        settings: of `Lifted`, such as lam. Here the method is `Minibatch(rate=0.1)`, since torch's
            own starts are smaller than ours, lam is 1,000, rho is 1e-3, and data stay as they are
            given, unless features are in several units (the widest has 256 times the range of the
            narrowest) and meet dense layers, whose weights can take the scales. A start by name,
            such as "auto", draws matrices and kernels anew. With method="full" maxima over windows
            are ReLU states, too (`Network.maximum`), where minibatches take torch's own.

    Raises:
        DataError: the network cannot be read, and what stands in the way, with module and line; or
            it returns probabilities that no last softmax makes, and CrossEntropy takes logits.
        DeclarationError: the network, the loss and the settings do not fit together.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet import lift
        >>> from liftednet.losses import CrossEntropy
        >>> from liftednet.models import Minibatch
        >>> X, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> network = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
        >>> lifted = lift(network, X[:2], loss=CrossEntropy(), method=Minibatch(5), show=False)
        >>> lifted.fit(X, y).write_() is network
        True
    """
    like = _require_network(network)
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    given = tuple(_as_samples(x, like) for x in given)
    loss = loss_of(loss)
    every_block = settings.get("method") == "full" or isinstance(settings.get("method"), FullBatch)
    reader = Reader(convex=every_block)
    output = reader.read(network, given)
    term = _declare_loss(reader, output, loss)
    own = {
        "dtype": like.dtype, "device": str(like.device), "method": Minibatch(rate=_RATE),
        "lam": _LAM, "standardize": None,
    }  # fmt: skip
    settings = {**own, **settings}
    model = LiftedModule(network, reader, **settings)
    longer = tuple(torch.cat([x, x[:1]]) for x in given)
    for one in (given, longer):
        _require_equal(model, term, loss, one, trace(network, one)[1])
    _require_equal_elsewhere(model, term, loss, _elsewhere(given))
    if show:
        sys.stdout.write(f"{model.summary()}\n")
    return model


def _require_network(network: object) -> Tensor:
    if not isinstance(network, nn.Module):
        raise DataError(f"lift reads a torch.nn.Module, got {network!r}.")
    if isinstance(network, torch.jit.ScriptModule):
        raise DataError(
            "a scripted module runs no Python that could be read: give the module from before "
            "torch.jit.script."
        )
    exported = (x for x in network.modules() if isinstance(x, ExportedGraph))
    if any(x.structure.network.limited for x in exported):
        raise DataError(
            "the network ends in a projection that holds its outputs within limits, which lift "
            "does not read: declare them anew by within=, as in Network.loss(..., within=[...]), "
            "and start from its weights."
        )
    parameters = list(network.parameters())
    if any(map(is_lazy, parameters)):
        raise DataError("a parameter has no shape yet: call the network once first.")
    if any(x.is_inference() for x in parameters):
        raise DataError(
            "the network was made under torch.inference_mode, which leaves nothing to train: make "
            "it outside."
        )
    trained = [x for x in parameters if x.requires_grad]
    if not trained:
        raise DataError("the network has no parameter that is trained: nothing to lift.")
    kinds = {(x.dtype, x.device) for x in trained}
    if len(kinds) > 1 or trained[0].dtype not in FLOATS:
        shown = ", ".join(sorted({f"{dtype} on {device}" for dtype, device in kinds}))
        raise DataError(
            f"the parameters must be all torch.float32 or all torch.float64, on one device; got "
            f"{shown}."
        )
    return trained[0]


def _as_samples(x: Any, like: Tensor) -> Tensor:
    found = samples_in(x)
    whole = not found.is_floating_point() and found.dtype is not torch.uint8  # places in a table
    found = found.to(like.device, found.dtype if whole else like.dtype)
    return torch.cat([found, found]) if len(found) == 1 else found.clone()


def _elsewhere(example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return other values of real numbers with the same signs and zeros, for zeros those in 0..1.

    What the network computes of the example, and keeps, is not what it computes of these.
    """
    drawn = torch.Generator().manual_seed(0)

    def moved(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        share = torch.rand(x.shape, generator=drawn).to(x)
        return x * (0.8 + 0.4 * share) if bool(x.any()) else share

    return tuple(map(moved, example))


def _declare_loss(reader: Reader, output: Seen, loss: Loss) -> Expression:
    """Give the graph its loss, for each step where the output has steps."""
    shape = output.layout.shape
    if output.layout.axis != 0:
        raise DataError("the samples must stand on the first axis of what the network returns.")
    expression = _without_activation(reader, output, loss)
    if isinstance(loss, CrossEntropy) and len(shape) > 2:
        raise DataError(
            f"CrossEntropy takes (samples, classes) or (samples, steps, classes), and the network "
            f"returns {shape} for each sample: of (samples, classes, height, width) return "
            "x.flatten(2).transpose(1, 2), and flatten the labels likewise."
        )
    at_steps = isinstance(expression, Applied) and isinstance(expression.layer, DenseAtPositions)
    fits = reader.network.steps in (None, shape[0])
    if len(shape) == 2 and (isinstance(loss, CrossEntropy) or (at_steps and fits)):
        if not fits:
            raise DataError(
                f"the network has {reader.network.steps} steps inside and answers at {shape[0]}: "
                "return (samples, steps, classes), or read other lengths by cells (nn.GRUCell)."
            )
        reader.network.steps = shape[0]
        expression = _at_each_step(shape[0], expression)
    return reader.network.loss(loss, expression)


def _at_each_step(steps: int, expression: Expression) -> Expression:
    """Return answers in one row as a sequence: a dense layer of each step, so that rows are known.

    Constraints on scores are held by such a layer alone.
    """
    if not (isinstance(expression, Applied) and isinstance(expression.layer, DenseAtPositions)):
        return apply(Steps(steps), expression)
    layer, (below,) = expression.layer, expression.arguments
    if isinstance(below, Applied) and isinstance(below.layer, AllSteps):
        (below,) = below.arguments
    else:
        below = apply(Steps(steps), below)
    return apply(Dense(layer.units, layer.bias), below, weights=expression.weights)


def _without_activation(reader: Reader, output: Seen, loss: Loss) -> Expression:
    """Return what the loss is on: the last activation, where the loss has it inside, is left out.

    A softmax of log-probabilities gives the probabilities: their logarithm is left out likewise.
    """
    expression = output.expression
    if not isinstance(loss, FenchelYoungLoss):
        return expression
    if isinstance(loss, CrossEntropy) and reader.log_softmax is not None:
        logarithms, logits = reader.log_softmax
        if logarithms is expression:
            return logits
    if isinstance(expression, State):
        last_map, size = expression.activation, output.layout.shape[-1]
        if isinstance(last_map, Grouped) and last_map.size == size:
            last_map = last_map.inner
        if type(last_map) is type(loss.divergence.activation):
            reader.network.states.remove(expression)
            reader.activated = True
            return expression.argument
    return expression


def _refuse_probabilities(loss: Loss, reader: Reader, output: Tensor) -> None:
    """Refuse what has been through a softmax before: the loss would take another of it."""
    if not isinstance(loss, CrossEntropy) or reader.activated or output.shape[-1] < 2:
        return
    off = (output.sum(-1) - 1).abs().max()
    if bool((output >= 0).all()) and float(off) <= _TOLERANCES[output.dtype]:
        raise DataError(
            "the network returns probabilities (each row is nonnegative and sums to 1), and "
            "CrossEntropy takes logits, of which it computes the softmax itself: it would be taken "
            "twice. Return what the softmax takes, or, of several mixed, their logarithm: "
            "x.clamp(min=1e-12).log()."
        )


def _require_equal_elsewhere(
    model: LiftedModule, term: Expression, loss: Loss, others: tuple[Tensor, ...]
) -> None:
    """Refuse a reading that computes what the network does of its example alone."""
    try:
        wanted = trace(model.module, others)[1]
    except DataError:  # the network refuses these values
        return
    if bool(wanted.isfinite().all()):
        _require_equal(model, term, loss, others, wanted, at_example=False)


def _require_equal(
    model: LiftedModule, term: Expression, loss: Loss, example: tuple[Tensor, ...], wanted: Tensor,
    *, at_example: bool = True,
) -> None:  # fmt: skip
    """Refuse a reading that does not compute what the network does."""
    X = tuple(x.to(model.dtype) for x in example)
    data = prepared(model.network, X, None, dtype=model.dtype, device=model.device)
    parameters, reader = model.network.parameters, model._reader
    weights = dict(zip(parameters, model._own(), strict=True))
    structure = model.structure
    with torch.no_grad():
        try:
            values = structure.passed({**data.values, **weights})
            found = value_of(term, values)
        except RuntimeError as error:  # of torch, on a shape
            raise DataError(
                f"a call keeps the number of samples of the example ({error}); the calls are "
                f"{', '.join(line.call for line in model.lines)}."
            ) from error
        _refuse_probabilities(loss, reader, wanted)
        state = model.network.terms[0].activation
        if term.sequence:
            found = found.transpose(0, 1)
        activated = state.forward(found)
        readings = (found, activated, activated.log()) if reader.log_softmax else (found, activated)
        far = min(float((x.reshape(wanted.shape) - wanted).abs().max()) for x in readings)
        scale = float(wanted.abs().max().clamp(min=1.0))
        if not far <= _TOLERANCES[wanted.dtype] * scale:
            first = "at other values than the example's: somewhere"
            if at_example:
                first = f"first {reader.first_off(values, len(X[0]))}. There or before,"
            raise DataError(
                f"the lifted network is off by {far:.3g} from the network's own output of size "
                f"{scale:.3g}, {first} it "
                "makes a Python number of values or of the number of samples (keep it in a "
                "tensor), draws random numbers, or changes a view in place (write x = x.relu())."
            )


def initialize_(
    module: nn.Module,
    X: Any,
    y: Any = None,
    *,
    loss: Loss | str | nn.Module | None = None,
    epochs: int = 1,
    progress: bool = False,
    **settings: Any,
) -> nn.Module:
    """Give a torch network weights of lifted training, in place; the rest of it stays as it is.

    Its matrices and kernels are drawn anew, with a last bias by which outputs are right in the
    mean, and the network is trained on data, as `lift` does it, which goes on from the weights that
    are there; then the last layer, which may be one for every step, is fitted to all samples by one
    convex problem, see `refit_output` of `Lifted`. It stays as trained for a DataLoader, for a loss
    with states of its own, such as Huber, and where the network does not end with one Linear, alone
    with its weights: with a convolution, or two whose outputs are added. Where anything fails, or
    is interrupted, nothing has been written.

    Args:
        module: the network.
        X: what the network takes, on any scale; or a DataLoader of pairs (X, y).
        y: as the loss takes it; None for a DataLoader.
        loss: on what the network returns, such as `liftednet.losses.CrossEntropy()`, its name, or
            torch's module; None for cross-entropy of integers and squared errors of floats, which
            a line says.
        epochs: passes over the data.
        progress: whether to show a progress bar.
        settings: of `lift`, such as lam; `method` in place of `epochs`, start=None for one that
            begins with the weights that are there, refit_output=False for a last layer as trained,
            refit_output=True for an error where it cannot be fitted.

    Returns:
        The module.

    Raises:
        DataError: the network or the data cannot be used.
        SolverError: the loss or the weights are not finite.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from liftednet import initialize_
        >>> from liftednet.losses import CrossEntropy
        >>> X = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 50)
        >>> y = torch.tensor([0, 1] * 50)
        >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> network = initialize_(network, X, y, loss=CrossEntropy(), epochs=100)
        >>> bool((network(X).argmax(-1) == y).all())
        True
    """
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise DataError(f"initialize_(network, X, y) writes into a torch.nn.Module, got {kind}.")
    if any(hasattr(X, x) for x in ("weights", "activations", "__sklearn_is_fitted__")):
        raise DataError(
            f"initialize_ trains on data, and {type(X).__name__} is a model: to_torch(model) makes "
            "a module of its weights, whose state_dict() another network of these layers loads."
        )
    settings = {"start": AUTO, "method": _method(epochs, settings), **settings}
    first = pair_of(next(iter(X), None)) if isinstance(X, DataLoader) else (X, y)
    if loss is None:
        loss = _plain_loss(first[1])
        sys.stdout.write(f"initialize_: {loss!r}, by the type of y; another is given by loss=\n")
    lifted = lift(module, _example(first[0]), loss=loss, show=False, **settings)
    if "refit_output" not in settings and not isinstance(X, DataLoader):
        lifted.refit_output = output_obstacle(lifted.network) is None
    lifted.fit(X, y, progress=progress)
    if lifted.interrupted:
        raise KeyboardInterrupt("training was interrupted: the network is as it was.")
    return lifted.write_()


def _plain_loss(y: Any) -> Loss:
    """Return the loss of what y plainly is: integers are classes, floats are numbers."""
    found = as_tensor("y", y)
    if found.dtype == torch.bool:
        raise DataError(
            "y holds truth values: give loss=BinaryCrossEntropy() with y.float(), or "
            "CrossEntropy() with y.long()."
        )
    return SquaredError() if found.is_floating_point() else CrossEntropy()


def _method(epochs: int, settings: Mapping[str, Any]) -> Minibatch:
    """Return what few epochs train by, unless weights have signs or are those of the network."""
    if settings.get("start", AUTO) is None:
        return Minibatch(epochs=epochs, rate=_RATE)
    if "penalty" in settings:
        return Minibatch(epochs=epochs)
    return Minibatch(epochs=epochs, rate=_FIRST_RATE, damping=_FIRST_DAMPING)


def _example(X: Any) -> Any:
    if not isinstance(X, Tensor | np.ndarray | tuple | list):
        return X  # refused with words of its own
    return tuple(x[:2] for x in X) if isinstance(X, tuple | list) else X[:2]
