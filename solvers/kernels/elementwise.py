"""Activations on the device: what they declare in torch, written out as Triton functions.

The map, its slope, and a prox in closed form are traced by torch into elementwise operations, each
of which has a line in Triton; any other prox follows from map and slope (`maps.root_prox`). An
activation with any other operation stays with torch.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from liftednet.activation import Activation
from liftednet.activations import Softmax
from liftednet.divergences import Divergence, Joint

_HEADER = '''"""Written from {name} by liftednet.solvers.kernels.elementwise."""

import triton
import triton.language as tl
from liftednet.solvers.kernels.maps import arctan, expm1, log1p, root_prox, sigmoid, sign, tanh
'''

_FUNCTION = """

@triton.jit
def {name}(x, {more}):
    zero = x * 0.0
{body}
    return zero + ({result})
"""

_PROX = """

@triton.jit
def prox(x, t):
    return root_prox(x, t, forward, slope)
"""

# By the name of the ATen operation; {0} and {1} are its arguments.
_LINES = {
    "abs": "tl.abs({0})",
    "add": "({0}) + ({1})",
    "alias": "{0}",
    "atan": "arctan({0})",
    "bitwise_and": "({0}) & ({1})",
    "bitwise_not": "({0}) == 0",
    "bitwise_or": "({0}) | ({1})",
    "clone": "{0}",
    "cos": "tl.cos({0})",
    "detach": "{0}",
    "div": "({0}) / ({1})",
    "eq": "({0}) == ({1})",
    "erf": "tl.erf({0})",
    "exp": "tl.exp({0})",
    "expand": "{0}",
    "expm1": "expm1({0})",
    "full": "zero + ({1})",
    "full_like": "zero + ({1})",
    "ge": "({0}) >= ({1})",
    "gt": "({0}) > ({1})",
    "isnan": "({0}) != ({0})",
    "le": "({0}) <= ({1})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "logical_and": "({0}) & ({1})",
    "logical_and_": "({0}) & ({1})",
    "logical_not": "({0}) == 0",
    "logical_or": "({0}) | ({1})",
    "lt": "({0}) < ({1})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "mul": "({0}) * ({1})",
    "ne": "({0}) != ({1})",
    "neg": "-({0})",
    "reciprocal": "1.0 / ({0})",
    "relu": "tl.maximum({0}, 0.0)",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "scalar_tensor": "{0}",
    "sgn": "sign({0})",
    "sigmoid": "sigmoid({0})",
    "sign": "sign({0})",
    "sin": "tl.sin({0})",
    "sqrt": "tl.sqrt({0})",
    "sub": "({0}) - ({1})",
    "tanh": "tanh({0})",
    "where": "tl.where({0}, {1}, {2})",
    "zeros_like": "zero",
}
_FREE = {"memory_format", "dtype", "device", "layout", "pin_memory", "implicit"}  # of no effect


class _UnknownOperationError(Exception):
    """Tells that a map cannot be written in Triton."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="liftednet-")  # Triton reads sources from files


@cache
def functions(activation: Activation) -> ModuleType | None:
    """Return a module with the Triton functions forward, slope and prox, or None.

    It is kept as long as the process lives.
    """
    try:
        source = _HEADER.format(name=type(activation).__name__)
        if activation.closed_prox:
            source += _written("prox", activation.prox, "t")
        if not activation.closed_prox or activation.lipschitz is not None:
            source += _written("forward", activation.forward, "a, b")
        if not activation.closed_prox:
            source += _written("slope", activation.slope, "a, b") + _PROX
    except Exception:  # whatever a map does that torch cannot trace, or Triton cannot do
        return None
    path = Path(_folder().name, f"declared_{id(activation)}.py")
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it was written here
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class DeviceMap:
    """A Triton function with the two numbers that the map of a link takes.

    Attributes:
        function: its name, so that Triton is not imported before it is needed.
        a: a number of the link.
        b: another one.
        traced: the module of an activation, or None for `maps`.
    """

    function: str
    a: float = 0.0
    b: float = 0.0
    traced: ModuleType | None = None

    def load(self) -> Any:
        """Return the Triton function."""
        from . import maps

        return getattr(self.traced or maps, self.function)


def proximal_map(activation: Activation) -> DeviceMap | None:
    """Return the prox of an activation on the device, or None where there is none."""
    return _traced("prox", activation)


def link_map(divergence: Divergence, units: int) -> DeviceMap | None:
    """Return the gradient of R of a link with so many units, or None where there is none."""
    activation = divergence.activation
    if isinstance(divergence, Joint):
        offset = activation.offset(units).numpy()  # made on the CPU: nothing waits for the device
        even = bool((offset == offset[0]).all())
        return DeviceMap("linear", float(divergence.smoothness), float(offset[0])) if even else None
    return DeviceMap("softmax") if type(activation) is Softmax else _traced("forward", activation)


def _traced(name: str, activation: Activation) -> DeviceMap | None:
    module = functions(activation) if activation.per_unit else None
    return DeviceMap(name, traced=module) if hasattr(module, name) else None


def _written(name: str, map_: Callable[..., Tensor], more: str) -> str:
    """Return an elementwise torch function as a Triton function of that name, of x and more."""
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [torch.linspace(-1, 1, 5).unsqueeze(1)]
    given += [torch.full((5, 1), 0.5)] if more == "t" else []
    traced = make_fx(lambda *x: map_(*x), _decompositions())(*given)
    traced.graph.eliminate_dead_code()
    names: dict[Any, str] = {}
    body, result = [], ""
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = "t" if names else "x"
        elif node.op == "get_attr" and getattr(traced, node.target).numel() == 1:
            names[node] = _number(float(getattr(traced, node.target)))
        elif node.op == "output":
            result = _argument(names, node.args[0])
        elif node.op == "call_function":
            names[node] = f"v{len(names)}"
            body.append(f"    {names[node]} = {_line(names, node)}")
        else:
            raise _UnknownOperationError(node.op)
    return _FUNCTION.format(name=name, more=more, body="\n".join(body), result=result)


def _decompositions() -> Any:
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    more = [aten.elu, aten.hardtanh, aten.leaky_relu]
    more += [aten.elu_backward, aten.hardtanh_backward, aten.leaky_relu_backward]
    return {**core_aten_decompositions(), **get_decompositions(more)}


def _line(names: dict[Any, str], node: Any) -> str:
    operation = node.target.overloadpacket.__name__
    if set(node.kwargs) - _FREE:
        raise _UnknownOperationError(f"{operation} with {node.kwargs}")
    if operation == "pow":
        return _power(_argument(names, node.args[0]), node.args[1])
    if operation in ("clamp", "clamp_min", "clamp_max"):
        return _clamped(operation, names, node.args)
    if operation == "sum" and all("full_like" in str(user.target) for user in node.users):
        return "zero"  # of a slope by autograd, which starts from ones like the sum
    if operation == "_to_copy":
        return f"({_argument(names, node.args[0])}) + zero"
    if operation not in _LINES:
        raise _UnknownOperationError(operation)
    return _LINES[operation].format(*(_argument(names, value) for value in node.args))


def _argument(names: dict[Any, str], value: Any) -> str:
    if isinstance(value, bool | int | float):
        return _number(float(value))
    if isinstance(value, torch.fx.Node):
        return names[value]
    return ""  # a shape, or another argument that no line uses


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _power(base: str, exponent: Any) -> str:
    if exponent == 0.5:
        return f"tl.sqrt({base})"
    if exponent not in (0, 1, 2, 3, 4):
        raise _UnknownOperationError(f"a power of {exponent}")
    return " * ".join([f"({base})"] * int(exponent)) or "zero + 1.0"


def _clamped(operation: str, names: dict[Any, str], arguments: tuple[Any, ...]) -> str:
    value, *ends = arguments
    low, high = (ends[0], None) if operation == "clamp_min" else (None, ends[0])
    if operation == "clamp":
        low, high = (*ends, None)[:2]
    text = _argument(names, value)
    if low is not None:
        text = f"tl.maximum({text}, {_argument(names, low)})"
    return text if high is None else f"tl.minimum({text}, {_argument(names, high)})"
