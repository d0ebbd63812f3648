"""What a torch network computes: its calls, recorded while it runs on an example.

Three ways were tried on a convolutional network, a block of a transformer, an LSTM and a network
with an autograd function of its own. torch.fx stops where Python looks at a size (`if steps >
longest`). torch.export takes two seconds for the first network, sees the operators below the calls,
and replaces an autograd function by its
forward pass, its backward pass lost. Recording the calls of one run (torch.overrides) took all
four in milliseconds, with the network's own Parameter objects as arguments, so that ties and frozen
weights show by identity, and with the line of each call. What depends on values by Python's `if`
stays as the example has it, in all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from liftednet.errors import DataError

from ..bounds.tensors import in_modules, users_line

TAKEN = ("bool", "int", "float", "index", "item", "tolist")  # of a tensor, for Python


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a torch function.

    Attributes:
        name: of the function without underscores at its ends.
        function: what was called.
        args: positional arguments.
        kwargs: arguments by name.
        result: what it returned.
        modules: (path, module) of those that it stands in, the innermost last.
        line: file and line in the user's code.
        versions: of the tensors in the result, which torch counts up where they change in place.
        still: whether under torch.no_grad of the user's, where torch trains nothing.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    modules: tuple[tuple[str, nn.Module], ...]
    line: str
    versions: tuple[int, ...]
    still: bool = False

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or its name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def first(self, *names: str) -> list[Any]:
        """Return the first arguments, None for those that are not given."""
        return [self.get(position, name) for position, name in enumerate(names)]

    def again(self, x: Any) -> Any:
        """Return what the function makes of something else than its first argument."""
        options = {k: v for k, v in self.kwargs.items() if k not in ("inplace", "input")}
        return self.function(x.clone() if self.in_place else x, *self.args[1:], **options)

    @property
    def in_place(self) -> bool:
        """Whether the function changes its first argument, as `relu_` and `+=` do."""
        name = getattr(self.function, "__name__", "")
        return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))

    @property
    def place(self) -> str:
        """The path of the innermost module."""
        return self.modules[-1][0] or "the network"

    @property
    def where(self) -> str:
        """Where it stands, for people."""
        return f"{self.name} in {self.place} ({self.line})"


class _Tracer(TorchFunctionMode):
    """Keeps the calls of torch functions, and where they stand: in modules, the innermost last."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.depth = 0  # of torch.no_grad
        self.stack: list[tuple[str, nn.Module]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.keep(getattr(func, "__name__", repr(func)), func, args, kwargs or {}, result)
        return result

    def keep(self, name: str, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Keep a call whose result has tensors, or tells Python of values."""
        kept = name == "__setitem__" or name.strip("_") in TAKEN
        versions = tuple(x._version for x in tensors_in(result))
        if self.stack and (kept or versions):
            args, kwargs = _plain((tuple(args), dict(kwargs)))
            where = tuple(self.stack), users_line()
            self.calls.append(
                Call(
                    name.strip("_"),
                    function,
                    args,
                    kwargs,
                    result,
                    *where,
                    versions,
                    self.depth > 0,
                )
            )


@torch.no_grad()
def trace(network: nn.Module, example: tuple[Any, ...]) -> tuple[list[Call], Any]:
    """Return the calls of a network that runs on an example, in eval mode, and its output.

    Args:
        network: whose modes and buffers are what they were afterwards.
        example: its arguments.

    Raises:
        DataError: the network cannot run on the example, and which of its modules cannot.
    """
    tracer = _Tracer()
    with _evaluated(network), in_modules(network, tracer.stack), _own_functions(tracer):
        try:
            with _counted(tracer), tracer:
                # torch.compile's module would trace the calls, and hide them
                output = getattr(network, "_orig_mod", network)(*example)
        except Exception as error:  # whatever a network of the user's says
            raise _cannot_run(tracer, network, example, error) from error
    return tracer.calls, output


def _cannot_run(
    tracer: _Tracer, network: nn.Module, example: tuple[Any, ...], error: Exception
) -> DataError:
    """Say which module was entered last, and what it is."""
    path, module = tracer.stack[-1] if tracer.stack else ("", network)
    whole = type(module).__name__ if any(True for _ in module.children()) else repr(module)
    shapes = ", ".join(str(tuple(x.shape)) for x in tensors_in(example))
    unfit = isinstance(module, nn.Linear) and "cannot be multiplied" in str(error)
    said = f"reads rows of {module.in_features} numbers." if unfit else f"says: {error}"
    return DataError(
        f"{type(network).__name__} cannot run on samples of shape {shapes}: its "
        f"{f'module {path!r}, ' if path else 'forward, of '}{whole}, {said}"
    )


@contextmanager
def _evaluated(network: nn.Module) -> Iterator[None]:
    """Run a network in eval mode on copies of its buffers, which a forward pass may change."""
    modes = [(module, module.training) for module in network.modules()]
    buffers = [
        (module, name, x)
        for module in network.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for name, x in module.named_buffers(recurse=False)
    ]
    copies = {id(x): x.clone() for _, _, x in buffers}
    try:
        network.eval()
        for module, name, x in buffers:
            module._buffers[name] = copies[id(x)]
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, name, x in buffers:
            module._buffers[name] = x


@contextmanager
def _counted(tracer: _Tracer) -> Iterator[None]:
    """Count in how many blocks of torch.no_grad a network runs."""
    enter, leave = torch.no_grad.__enter__, torch.no_grad.__exit__

    def entered(block: torch.no_grad) -> None:
        tracer.depth += 1
        enter(block)

    def left(block: torch.no_grad, *given: Any) -> None:
        tracer.depth -= 1
        leave(block, *given)

    torch.no_grad.__enter__, torch.no_grad.__exit__ = entered, left  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = enter, leave  # type: ignore[method-assign]


@contextmanager
def _own_functions(tracer: _Tracer) -> Iterator[None]:
    """Keep autograd functions of the user's as calls: what is inside has another backward pass.

    Theirs may hold `apply` as it was; what that calls of its base class is looked up in every call.
    """
    base: Any = torch.autograd.Function.__base__

    def kept(cls: Any, *args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            result = super(base, cls).apply(*args)
        tracer.keep(cls.__name__, cls.apply, args, {}, result)
        return result

    base.apply = classmethod(kept)
    try:
        yield
    finally:
        del base.apply


def _plain(value: Any) -> Any:
    """Return lists, tuples and dictionaries of a user's classes as those that torch looks into."""
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()}
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and dictionaries."""
    return [x for x in tree_leaves(_plain(value)) if isinstance(x, Tensor)]
