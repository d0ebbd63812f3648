"""Which activation has which functions on the device, and which block sizes serve which shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from liftednet import activations as catalogue
from liftednet.activation import Activation
from liftednet.divergences import Divergence, Joint

from .declared import functions
from .groups import LinkPlan, TilePlan

_WIDEST = 256  # columns of a link whose gradient stays in registers
_MOST_OF_A_THREAD = 32  # classes whose states stay in its registers


@dataclass(frozen=True)
class DeviceMap:
    """A Triton function with the two numbers that it takes.

    Attributes:
        function: its name, so that Triton is not imported before it is needed.
        a: a number of the activation.
        b: another one.
        written: the module of a declared activation, or None for `maps`.
    """

    function: str
    a: float = 0.0
    b: float = 0.0
    written: ModuleType | None = None

    def load(self) -> Any:
        """Return the Triton function."""
        from . import maps

        return getattr(self.written or maps, self.function)


def _numbers(activation: Activation) -> tuple[float, float]:
    match activation:
        case catalogue.LeakyReLU(alpha=alpha):
            return float(alpha), 0.0
        case catalogue.Clipped(lower=lower, upper=upper):
            return float(lower), float(upper)
    return 0.0, 0.0


_PER_UNIT: dict[type[Activation], str] = {
    catalogue.Identity: "identity",
    catalogue.ReLU: "relu",
    catalogue.LeakyReLU: "leaky_relu",
    catalogue.Clipped: "clipped",
    catalogue.Sigmoid: "sigmoid",
    catalogue.Tanh: "tanh",
    catalogue.Softplus: "softplus",
    catalogue.ELU: "elu",
    catalogue.Arctan: "arctan",
    catalogue.Sine: "sine",
}
_PROXIMAL = {kind: f"{name}_prox" for kind, name in _PER_UNIT.items()}
_PROXIMAL[catalogue.Sign] = "sign_prox"


def proximal_map(activation: Activation) -> DeviceMap | None:
    """Return the prox of an activation on the device, or None where there is none."""
    name = _PROXIMAL.get(type(activation))
    return _written("prox", activation) if name is None else _catalogued(name, activation)


def link_map(divergence: Divergence, units: int) -> DeviceMap | None:
    """Return the gradient of R of a link with so many units, or None where there is none."""
    activation = divergence.activation
    if isinstance(divergence, Joint):
        offset = activation.offset(units).numpy()  # made on the CPU: nothing waits for the device
        even = bool((offset == offset[0]).all())
        return DeviceMap("linear", float(divergence.smoothness), float(offset[0])) if even else None
    if type(activation) is catalogue.Softmax:
        return DeviceMap("softmax")
    name = _PER_UNIT.get(type(activation))
    return _written("forward", activation) if name is None else _catalogued(name, activation)


def _catalogued(name: str, activation: Activation) -> DeviceMap:
    return DeviceMap(name, *_numbers(activation))


def _written(name: str, activation: Activation) -> DeviceMap | None:
    """Return a function of a declared activation, which is one of its forward map alone."""
    if not activation.per_unit or type(activation) in _PROXIMAL:
        return None
    module = functions(activation)
    return None if module is None else DeviceMap(name, written=module)


@dataclass(frozen=True)
class StateBlocks:
    """The sizes of a state kernel.

    Attributes:
        rows: samples of a tile.
        depth: units in one part of an exact product with W.
        columns: units in one part of the other products.
        least: columns to which a narrower link is filled up. Above `rows`, the compiler deals out a
            tile by its columns to the warps; with `rows` and `columns` at least as large as all
            links, by its rows, of which each warp needs 16 of its own. A mixture repeats the work.
        warps: of a program.
        stages: of the pipeline that loads W and the states.
        programs: on each multiprocessor.
        drop: by how much a violation falls until products in float16 are formed anew in split TF32.
    """

    rows: int
    depth: int = 32
    columns: int = 64
    least: int = 16
    warps: int = 8
    stages: int = 3
    programs: int = 1
    drop: float = 256.0

    def padded(self, units: int) -> int:
        """Return the units, rounded up to whole parts."""
        part = max(self.columns, self.depth)
        return -(-units // part) * part

    def width(self, columns: int) -> int:
        """Return the columns of a link, rounded up to a power of two."""
        return max(self.least, padded_width(columns))

    def scratch(self, units: int) -> int:
        """Return how many entries the scratch of a program has."""
        return 4 * self.rows * self.padded(units)

    def plan(self, units: int, proximal: DeviceMap, links: tuple[LinkPlan, ...]) -> TilePlan:
        """Return what a kernel is compiled for."""
        sizes = self.rows, self.depth, self.columns, self.padded(units)
        return TilePlan(proximal.load(), links, *sizes, self.drop)


_NARROW = StateBlocks(32, columns=32, warps=2, programs=4)  # for links of at most 32 columns
# By the columns of all links, rounded up; larger ones do not fit the registers and shared memory
# of an H200 (`python -m benchmarks.gpu --compile`). As many programs as its registers hold at once.
_STATE_BLOCKS = {
    64: _NARROW,
    128: StateBlocks(32, least=64),
    512: StateBlocks(16, depth=16, least=32),
}


def padded_width(columns: int) -> int:
    """Return a number of columns, rounded up to a power of two, at least 16."""
    return max(16, 1 << (columns - 1).bit_length())


def width_refusal(columns: Sequence[int]) -> str | None:
    """Return why links with so many columns each cannot be served, or None."""
    if max(columns) > _WIDEST or _blocks(columns) is None:
        return (
            f"it serves links of at most {_WIDEST} columns each and {max(_STATE_BLOCKS)} together, "
            f"not {', '.join(map(str, columns))}"
        )
    return None


def state_blocks(columns: Sequence[int]) -> StateBlocks:
    """Return the sizes for links with so many columns each."""
    blocks = _blocks(columns)
    assert blocks is not None  # asked for by obstacle
    return blocks


def _blocks(columns: Sequence[int]) -> StateBlocks | None:
    for total, blocks in _STATE_BLOCKS.items():
        narrow = blocks is not _NARROW or max(columns) <= blocks.rows
        if narrow and sum(map(blocks.width, columns)) <= total:
            return blocks
    return None


def time_blocks(columns: Sequence[int]) -> StateBlocks:
    """Return the sizes for states over time; the first link is that to the next step."""
    blocks = state_blocks(columns)
    width = blocks.width(columns[0])
    return replace(blocks, depth=min(blocks.depth, width), columns=min(blocks.columns, width))


def simplex_blocks(classes: int) -> tuple[int, int]:
    """Return how many samples a warp takes, and how many classes a part of a tile has.

    Up to 32 classes a sample has a thread; else 8, 16 or 32 with 4 classes of each part, so that
    a thread has at most 32 classes.
    """
    if classes <= _MOST_OF_A_THREAD:
        return 32, 1
    threads = max(8, padded_width(classes) // _MOST_OF_A_THREAD)
    return 32 // threads, 4 * threads
