"""A torch network run on tensors that hold no values: only numbers of units with known bounds.

Every view, write and move of entries acts on the numbers as torch does it on values, so that what
is written through a view, `.data` or a hook is seen as it is. Nothing can be decided by a value:
where a network asks for one, in an `if`, as an index or a mask, what comes of it is unknown. What
calls make of units stands in `calls`; a call that has no line there is unknown.

Reading the calls of one run on an example (torch.overrides) was tried before: a mask, a write to a
view and a branch then stay as the example has them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from .intervals import Units

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # of no user
_READS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "allclose")
LIKE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
_APART = (
    "it writes what depends on the inputs into a tensor that does not: make that one by x.new_zeros"
)
# What they make is asked of tensors without values: of zeros they have other shapes, or errors.
_BY_VALUES = ("index", "index_put")
_UNRULED = ("native_layer_norm", "native_group_norm")  # shaped by arguments, though without rules
_ZEROS = (torch.float32, torch.float64, torch.bool)  # of which none divides whole numbers
_EMPTY = ("empty_like", "new_empty", "new_empty_strided")
# What torch.nn.RNN calls writes into buffers of its own: here it is what torch states it by.
_STEP_BY_STEP = {
    name: decomposition_table[getattr(torch.ops.aten, name).input]
    for name in ("rnn_tanh", "rnn_relu")
}


class Stopped(Exception):  # noqa: N818
    """The network cannot be followed any further."""


class Followed(Tensor):
    """A tensor of numbers of units in place of values."""

    units: Tensor
    walk: Walk
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, units: Tensor, dtype: torch.dtype, walk: Walk) -> Followed:  # noqa: D102
        made = Tensor._make_wrapper_subclass(
            cls, units.size(), strides=units.stride(), storage_offset=units.storage_offset(),
            dtype=dtype,
        )  # fmt: skip
        made.units, made.walk = units, walk
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse: the walk that this tensor belongs to is over."""
        raise Stopped("a tensor of an earlier call")

    @property
    def data(self) -> Tensor:
        """The same entries."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        same = isinstance(other, Followed) and (other.shape, other.stride(), other.dtype) == (
            self.shape, self.stride(), self.dtype)  # fmt: skip
        if not same:
            raise self.walk.halt("data", "a tensor of another kind is set")
        self.units = other.units  # type: ignore[attr-defined]


def _asked(name: str) -> Callable[..., Any]:
    def refuse(self: Followed, *_: Any, **__: Any) -> Any:
        self.walk.called, self.walk.line = name, users_line()
        raise self.walk.halt(name, "a value that depends on the inputs is asked for")

    return refuse


for _name in ("numpy", "tolist", "data_ptr", "untyped_storage", "storage", "__array__",
              "__dlpack__", "__deepcopy__", "__reduce_ex__"):  # fmt: skip
    setattr(Followed, _name, _asked(_name))


@dataclass(frozen=True)
class Call:
    """One call of torch on units.

    Attributes:
        name: of the operator.
        args: positional arguments.
        kwargs: arguments by name.
        dtype: of the network.
        function: the operator.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: torch.dtype
    function: Callable[..., Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or its name."""
        found = self.args[position] if position < len(self.args) else self.kwargs.get(name, default)
        return default if found is None else found


@dataclass
class Walk:
    """A network on its way from inputs to outputs.

    Attributes:
        units: what is known.
        dtype: of the network.
        rules: what calls make of units, by their names.
        whole: what has the shape of a function that is read as one call, by their names.
        stop: why the walk has ended before its end; empty where it has not.
    """

    units: Units
    dtype: torch.dtype
    rules: dict[str, Callable[[Walk, Call], Any]]
    whole: dict[str, Callable[..., Tensor]]
    stop: str = ""
    called: str = ""
    line: str = ""
    made: dict[int, Tensor] = field(default_factory=dict)
    stack: list[tuple[str, nn.Module]] = field(default_factory=list)

    def where(self, name: str) -> str:
        """Return a call with its module and line, for people."""
        inside = self.stack[-1][0] if self.stack else ""
        return f"{self.called or name} in {inside or 'the network'} ({self.line or 'torch'})"

    def lost(self, name: str) -> int:
        """Return the unit of a call that is not known."""
        return self.units.unknown(self.where(name))

    def halt(self, name: str, why: str) -> Stopped:
        """End the walk: nothing is known of what comes behind."""
        self.stop = self.stop or f"{self.where(name)}: {why}"
        return Stopped(self.stop)

    def numbers(self, value: Any) -> Tensor:
        """Return the units of a tensor, or of a number."""
        if isinstance(value, Followed):
            return value.units
        return self.units.constants(torch.as_tensor(value))

    def fixed(self, value: Any) -> Any:
        """Return a tensor that does not depend on inputs as it is; None for another."""
        if not isinstance(value, Followed):
            return value
        if not self.units.constant(value.units):
            return None
        return self.units.values(value.units).to(value.dtype)

    def _plain(self, x: Any) -> Any:
        """Return an index or a mask that does not depend on inputs as it is."""
        known = isinstance(x, Followed) and not x.dtype.is_floating_point
        return self.fixed(x) if known and self.units.constant(x.units) else x

    # One call.

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what an operator makes of units."""
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        followed = [x for x in given if isinstance(x, Followed)]
        schema = function._schema
        name = function.overloadpacket.__name__
        random = torch.Tag.nondeterministic_seeded in function.tags
        if schema.is_mutable:
            return self._written(function, name, args, kwargs, given)
        if followed and any(x.alias_info is not None for x in schema.returns):
            return self._view(function, name, args, kwargs, followed[0])
        args, kwargs = tree_map(self._plain, (args, kwargs))
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        followed = [x for x in given if isinstance(x, Followed)]
        if not followed:
            if random:
                with torch.random.fork_rng(devices=[]):
                    found = function(*args, **kwargs)
                return tree_map(lambda x: self._wrapped(self._unknown(x, name), x), found)
            return self._kept(function(*args, **kwargs), given)
        if name in _READS:
            fixed = self.fixed(followed[0]) if len(followed) == 1 else None
            if fixed is None or name != "_local_scalar_dense":
                raise self.halt(name, "a value that depends on the inputs is asked for")
            return fixed.item()
        if name in LIKE:
            real = torch.zeros(followed[0].size(), dtype=followed[0].dtype)
            return self._constant(function(real, *args[1:], **kwargs))
        if not random and name not in _EMPTY and all(
                self.units.constant(x.units) for x in followed):  # fmt: skip
            change = lambda x: self.fixed(x) if isinstance(x, Followed) else x  # noqa: E731
            return tree_map(self._constant, function(*tree_map(change, args), **kwargs))
        return self.computed(function, name, args, kwargs, followed)

    def computed(
        self, function: Any, name: str, args: Any, kwargs: Any, followed: Sequence[Followed]
    ) -> Any:
        """Return what a rule makes of units that depend on inputs, and unknown ones without one."""
        call = Call(name, args, kwargs, self.dtype, function)
        rule = self.rules.get(name)
        found = None
        if rule is not None and all(x.dtype.is_floating_point for x in followed):
            found = rule(self, call)
        # Of tensors without values torch asks its compiler, which takes seconds to load.
        entry_by_entry = name in self.whole or torch.Tag.pointwise in function.tags
        of_zeros = (
            entry_by_entry or name in _UNRULED or (rule is not None and name not in _BY_VALUES)
        )
        of_zeros = of_zeros and all(x.dtype in _ZEROS for x in followed)
        shaped = partial(_shaped, device=torch.device("cpu" if of_zeros else "meta"))
        try:
            shapes = function(*tree_map(shaped, args), **tree_map(shaped, kwargs))
        except Exception as error:
            if isinstance(found, Tensor) and name == "index":  # by a mask of constants
                return Followed(found, followed[0].dtype, self)
            why = "the shape of what it makes depends on values" if "meta" in str(error).lower() \
                else str(error)  # fmt: skip
            raise self.halt(name, why) from error
        flat = shapes if isinstance(shapes, tuple | list) else [shapes]
        if any(not isinstance(x, Tensor) for x in flat if x is not None):
            raise self.halt(name, "a value that depends on the inputs is asked for")
        given = [found] if isinstance(found, Tensor) else list(found or ())
        results: list[Any] = []
        for number, shape in enumerate(flat):
            units = given[number] if number < len(given) else None
            if shape is None:
                results.append(None)
                continue
            if units is None or not self._precise(shape):
                units = self._unknown(shape, name)
            laid = torch.empty_strided(shape.size(), shape.stride(), dtype=torch.int64)
            results.append(self._wrapped(laid.copy_(units.reshape(shape.shape)), shape))
        if isinstance(shapes, Tensor):
            return results[0]
        return type(shapes)(results)

    def _precise(self, x: Tensor) -> bool:
        """Say whether a type holds numbers as finely as the network: others have steps."""
        eps = torch.finfo(self.dtype).eps
        return x.dtype.is_floating_point and torch.finfo(x.dtype).eps <= eps

    def _unknown(self, shape: Tensor, name: str) -> Tensor:
        return torch.full(shape.size(), self.lost(name), dtype=torch.int64)

    def _wrapped(self, units: Tensor, like: Any) -> Any:
        return Followed(units, like.dtype, self) if isinstance(like, Tensor) else like

    def _constant(self, found: Any) -> Any:
        if not isinstance(found, Tensor):
            return found
        units = torch.empty_strided(found.size(), found.stride(), dtype=torch.int64)
        return Followed(units.copy_(self.units.constants(found)), found.dtype, self)

    def _view(self, function: Any, name: str, args: Any, kwargs: Any, first: Followed) -> Any:
        """Return the same entries seen in another way: of the numbers, as of values."""
        if "dtype" in kwargs or any(isinstance(x, torch.dtype) for x in args):
            raise self.halt(name, "bits are read as another type")
        change = lambda x: x.units if isinstance(x, Followed) else x  # noqa: E731
        found = function(*tree_map(change, args), **kwargs)
        return tree_map(lambda x: self._wrapped(x, first), found)

    def _kept(self, found: Any, given: Sequence[Tensor]) -> Any:
        """Remember which storage was made on the way, apart from the network's own."""
        known = {x.untyped_storage().data_ptr() for x in given}
        for x in tree_flatten(found)[0]:
            if isinstance(x, Tensor) and (at := x.untyped_storage().data_ptr()) not in known:
                self.made[at] = x
        return found

    def _written(
        self, function: Any, name: str, args: Any, kwargs: Any, given: Sequence[Tensor]
    ) -> Any:
        """Return a tensor that was changed in place."""
        target = args[0] if args else None
        if not name.endswith("_") or name.startswith("resize") or name in ("set_", "_resize_"):
            raise self.halt(name, "it writes into a tensor that it is given")
        rest = [x for x in given if isinstance(x, Followed) and x is not target]
        if not isinstance(target, Followed):
            random = torch.Tag.nondeterministic_seeded in function.tags
            if rest:
                raise self.halt(name, _APART)
            if random or given[0].untyped_storage().data_ptr() not in self.made:
                raise self.halt(name, "it changes what the network keeps")
            return function(*args, **kwargs)
        plain = name.removesuffix("_")
        units: Any = None
        fixed = all(self.units.constant(x.units) for x in rest)
        if plain in ("fill", "zero") and (fixed or target.dtype.is_floating_point):
            units = self.numbers(0.0 if plain == "zero" else args[1])
        elif self._precise(target) and all(x.dtype.is_floating_point for x in rest):
            rule = self.rules.get(plain)
            apart: Any = getattr(torch.ops.aten, plain, None)
            call = Call(plain, args, kwargs, self.dtype, apart)
            units = None if rule is None else rule(self, call)
        if not isinstance(units, Tensor):
            units = torch.tensor(self.lost(name))
        target.units.copy_(units)
        return target


def _shaped(x: Any, device: torch.device) -> Any:
    """Return zeros in the place of a tensor, or on a device without values its layout."""
    if not isinstance(x, Tensor):
        return device if isinstance(x, torch.device) else x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device).zero_()


class _Operators(TorchDispatchMode):
    """Sends every operator to a walk."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.walk = walk

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to skip the compiler torch would load it, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.walk.stop:
            raise Stopped(self.walk.stop)
        return self.walk.run(func, tuple(args), dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Tells a walk which function of torch was called, and where in the user's code."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()
        self.walk = walk

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        walk, name = self.walk, getattr(func, "__name__", repr(func)).strip("_")
        walk.called, walk.line = name, users_line()
        followed = [x for x in args if isinstance(x, Followed)]
        if name in _STEP_BY_STEP and followed:
            return _STEP_BY_STEP[name](*args, **(kwargs or {}))
        if name in ("lstm", "gru") and followed:
            raise walk.halt(name, "gates multiply values that depend on the inputs")
        if name in walk.whole and not all(walk.units.constant(x.units) for x in followed):
            with _disable_current_modes():
                return walk.computed(walk.whole[name], name, args, kwargs or {}, followed)
        return func(*args, **(kwargs or {}))


def follow(
    walk: Walk, network: nn.Module, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> Any:
    """Return what a network makes of units, a tensor or several; None where the walk has stopped.

    Args:
        walk: what is known.
        network: whose modes stay.
        inputs: numbers of units, in the shapes of what the network takes.
        dtypes: of the inputs.
    """
    given = [Followed(x, dtype, walk) for x, dtype in zip(inputs, dtypes, strict=True)]
    with torch.no_grad(), in_modules(network, walk.stack), _Functions(walk), _Operators(walk):
        try:
            found = network(*given)
        except Exception as error:  # whatever a network says to tensors without values
            if not walk.stop:
                walk.called = ""
                last = [x for x in traceback.extract_tb(error.__traceback__)
                        if not x.filename.startswith(_INSIDE)]  # fmt: skip
                walk.line = f"{Path(last[-1].filename).name}:{last[-1].lineno}" if last else ""
                walk.halt(type(error).__name__, str(error).split("\n")[0])
            return None
    return None if walk.stop else found


@contextmanager
def in_modules(network: nn.Module, stack: list[tuple[str, nn.Module]]) -> Iterator[None]:
    """Keep the modules that a network is in while it runs, each with its path, the last inmost."""

    def leave(*_: Any) -> None:
        stack.pop()

    with ExitStack() as hooks:
        for path, module in network.named_modules():
            enter = module.register_forward_pre_hook(
                lambda module, _, path=path: stack.append((path, module)), prepend=True
            )
            hooks.callback(enter.remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield


def users_line() -> str:
    """Return file and line of the user's code that is running, or "" where there is none."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
