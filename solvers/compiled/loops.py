"""What compiled loops take: tensors, activations, and the links of state fits; and their threads.

Numba compiles them for the CPU when they are first called, which takes seconds, and keeps them
beside their sources, or where NUMBA_CACHE_DIR says, so that later processes load them in
milliseconds. Without Numba, or a place to keep them, torch does the same, and `solve` has it do so
until they are there: once torch has had about a second of such problems, another process compiles
them beside the next. A training, which changes no solver on its way, waits for the compiler where
the problem is large, and takes torch where it is small and they are not kept.
"""

from __future__ import annotations

import atexit
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from liftednet import processes
from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import (
    Bounded,
    Clipped,
    Identity,
    LeakyReLU,
    PReLU,
    ReLU,
)
from liftednet.activations.smooth import Sigmoid, Tanh
from liftednet.divergences import Joint
from liftednet.problems import StateFit

_ENTRIES = 1 << 17  # of a part that is worth a thread
WORTH_COMPILING = 1 << 20  # entries: torch takes about a second for a state fit of so many
RAMP, SIGMOID, TANH = range(3)
_CURVED: dict[type[Activation], int] = {Sigmoid: SIGMOID, Tanh: TANH}
Array = np.ndarray[Any, np.dtype[Any]]
Found = TypeVar("Found")
_asked: Counter[Loops] = Counter()  # entries of the problems that loops would have taken
_begun: dict[Loops, subprocess.Popen[bytes] | None] = {}


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@cache
def has_numba() -> bool:
    """Say whether Numba is installed, and has a place to keep what it compiles."""
    return find_spec("numba") is not None and _folder() is not None


def _folder() -> Path | None:
    """Return where Numba keeps what it compiles: in the first folder that it can write to."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    folders = [Path(named)] if named else []
    folders += [Path(__file__).parent / "__pycache__", Path("~/.cache/numba").expanduser()]
    return next(filter(_can_write, folders), None)


def refusal(tensor: Tensor) -> str | None:
    """Return why no compiled loop can take a tensor, or None."""
    if tensor.device.type != "cpu":
        return f"it needs tensors on a CPU, not on {tensor.device}"
    if not has_numba():
        return "it needs Numba, which is not installed: pip install 'liftednet[cpu]'"
    return None


def worth_compiling(*sizes: int) -> bool:
    """Say whether a problem, whose entries are a product of sizes, is worth a compiler's time."""
    return math.prod(sizes) >= WORTH_COMPILING


class Loops(NamedTuple):
    """Compiled loops, and what they take.

    Attributes:
        names: of the loops, each behind that of its module.
        call: a function of `solvers` that calls them, given their kind; "" of those that trainings
            alone take.
        kind: of the numbers of the first, the others have float64.
    """

    names: tuple[str, ...]
    call: str
    kind: torch.dtype = torch.float64

    @property
    def compiled(self) -> bool:
        """Whether nobody has to wait for them, for Numba neither where none are kept."""
        if "numba" not in sys.modules and not all(map(_are_kept, self.names)):
            return False
        from . import lanes

        first, *others = map(found, self.names)
        kind = str(self.kind).removeprefix("torch.")
        return lanes.at_hand(first, kind) and all(lanes.at_hand(loop, "float64") for loop in others)


def found(name: str) -> Any:
    """Return a loop by its name behind that of its module."""
    module, loop = name.split(".")
    return getattr(import_module(f".{module}", __package__), loop)


@cache
def _are_kept(name: str) -> bool:
    """Say whether something is kept of a loop, in the folder or one for each folder of sources."""
    index, folder = f"{name}-*.nbi", _folder()
    return folder is not None and any((*folder.glob(index), *folder.glob(f"*/{index}")))


@cache
def at_hand(loops: Loops) -> bool:
    """Say whether nobody has to wait for loops, as it was when this process first asked."""
    return loops.compiled


def compiled_beside(loops: Loops, entries: int) -> bool:
    """Say whether loops are there, which some problems have compiled beside the next.

    This begins when torch has had about a second of them, and ends with this process, which keeps
    what is compiled by then. A thread would have most of Python's time for as long as it takes.

    Args:
        loops: that a problem would be solved by.
        entries: of a problem, as for `worth_compiling`.
    """
    if loops.compiled:
        return True
    if processes.size() > 1:  # of which each would have them at a time of its own
        return worth_compiling(entries)
    _asked[loops] += entries
    busy = any(other is not None and other.poll() is None for other in _begun.values())
    if loops not in _begun and not busy and worth_compiling(_asked[loops]):
        _begun[loops] = _compiling(loops)
    compiler = _begun.get(loops)
    if compiler is None or compiler.poll() is None:
        return False
    from . import lanes

    _begun[loops] = None  # looked for once
    lanes.kept.cache_clear()
    _are_kept.cache_clear()
    return loops.compiled


def _compiling(loops: Loops) -> subprocess.Popen[bytes] | None:
    """Return a process that compiles loops, None where there can be none."""
    if not Path(sys.executable or "").name.startswith("python"):  # but a program that embeds it
        return None
    call = f"{loops.call}({str(loops.kind)[6:]!r})"
    code = f"import os; getattr(os, 'nice', int)(10); from {__package__} import solvers"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        compiler = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{code}; solvers.{call}"],  # nothing of this folder
            env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere,
        )  # fmt: skip
        atexit.register(_end, compiler)
        return compiler
    return None


def _end(compiler: subprocess.Popen[bytes]) -> None:
    compiler.kill()
    compiler.wait()


def in_threads(work: Callable[[slice], Found], samples: int, columns: int) -> list[Found]:
    """Return what a compiled loop returns for parts of the samples, one for each thread of torch.

    Args:
        work: takes a slice of rows; compiled loops hold no lock of Python's.
        samples: how many rows there are.
        columns: entries of each.
    """
    parts = min(torch.get_num_threads(), max(1, samples * columns // _ENTRIES))
    if parts == 1:
        return [work(slice(0, samples))]
    step = -(-samples // parts)
    slices = [slice(first, first + step) for first in range(0, samples, step)]
    with ThreadPoolExecutor(len(slices)) as pool:
        return list(pool.map(work, slices))


class LoopMap(NamedTuple):
    """phi of a single unit, cut off at low and high.

    Attributes:
        kind: which; a RAMP is max(u, alpha u).
        alpha: of a RAMP.
        low: the least value of phi.
        high: its largest.
    """

    kind: int
    alpha: float = 1.0
    low: float = -math.inf
    high: float = math.inf


def loop_map(activation: Activation) -> LoopMap | None:
    """Return an activation as compiled loops know it, or None where they do not."""
    if isinstance(activation, Bounded):
        whole = loop_map(activation.inner)
        if whole is None:
            return None
        low, high = max(whole.low, activation.lower), min(whole.high, activation.upper)
        return whole._replace(low=low, high=high)
    kind = type(activation)  # what a subclass declares is its own
    if kind in _CURVED:
        return LoopMap(_CURVED[kind])
    if kind is Identity or kind is ReLU:
        return LoopMap(RAMP, 1.0, -math.inf if kind is Identity else 0.0)
    if isinstance(activation, Clipped) and kind is Clipped:
        return LoopMap(RAMP, 1.0, activation.lower, activation.upper)
    if isinstance(activation, LeakyReLU | PReLU) and kind in (LeakyReLU, PReLU):
        first, *others = activation.slopes
        return LoopMap(RAMP, first) if not others and first <= 1 else None
    return None


def ramp(activation: Activation) -> LoopMap | None:
    """Return an activation as a `RAMP`, or None where it is none."""
    found = loop_map(activation)
    return found if found is not None and found.kind == RAMP else None


class LinkRows(NamedTuple):
    """The links lam [R(a) - <a, t>] of a fit with a = Z W + C and R quadratic, side by side.

    In float64, so that loops are compiled for one type, and one number of links.

    Attributes:
        weight: W, (units, columns of all links).
        offset: C, (1 or samples, columns).
        target: t, (samples, columns).
        slope: c of R(a) = <c, a> + L |a|^2 / 2, (columns,).
        curvature: L, (columns,).
        lam: of the link of each column, (columns,).
        ends: the columns after which a link ends, (links,).
    """

    weight: Any
    offset: Any
    target: Any
    slope: Any
    curvature: Any
    lam: Any
    ends: Any


def link_rows(problem: StateFit) -> LinkRows:
    """Return the quadratic links of a fit as compiled loops take them; they are made once."""
    known: LinkRows | None = problem.__dict__.get("_link_rows")
    if known is None:
        known = problem.__dict__["_link_rows"] = _link_rows(problem)
    return known


def _link_rows(problem: StateFit) -> LinkRows:
    links, columns = problem.links, [link.weight.shape[1] for link in problem.links]
    rows = max(link.offset.numel() // n for link, n in zip(links, columns, strict=True))
    slopes, curvatures, offsets = [], [], []
    for link, n in zip(links, columns, strict=True):
        assert isinstance(link.divergence, Joint)  # the quadratic divergence
        slopes.append(link.divergence.activation.offset(n).reshape(1, n))
        curvatures.append(float(link.divergence.smoothness))
        offsets.append(link.offset.reshape(-1, n).expand(rows, n))
    return LinkRows(
        _beside([link.weight for link in links]), _beside(offsets),
        _beside([link.target for link in links]), _beside(slopes)[0],
        np.repeat(curvatures, columns), np.repeat([float(link.lam) for link in links], columns),
        np.cumsum(columns),
    )  # fmt: skip


def _beside(blocks: Sequence[Tensor]) -> Array:
    return array(
        torch.cat([x.double() for x in blocks], 1) if len(blocks) > 1 else blocks[0].double()
    )


def rows_of(links: LinkRows, part: slice) -> LinkRows:
    """Return the links of some samples."""
    offset = links.offset if len(links.offset) == 1 else links.offset[part]
    return links._replace(target=links.target[part], offset=offset)


def array(tensor: Tensor) -> Array:
    """Return a tensor as an array in C order."""
    return tensor.detach().contiguous().numpy()
