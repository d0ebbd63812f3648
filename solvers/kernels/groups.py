"""The arguments of the state kernels in groups: what a launch brings, what it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Layer(NamedTuple):
    """The layer whose states are solved for.

    Attributes:
        units: how many.
        lam: the weight of Phi.
        a: a number of the activation.
        b: another one.
    """

    units: int
    lam: float
    a: float
    b: float


class TileLink(NamedTuple):
    """One link.

    Attributes:
        weight: W, (units, columns), both rounded up and zero beyond its size.
        half: W over its largest entry, in float16.
        largest: that entry, ().
        offset: C, (samples, columns) where it is full, else (columns,).
        target: V, (samples, columns).
        counted: (samples,) int8, which samples are linked, where not all of them are.
        ahead: how many rows later a sample finds its offset and target.
        columns: of W, not rounded up.
        lam: the weight of the link.
        a: a number of its activation.
        b: another one.
    """

    weight: Any
    half: Any
    largest: Any
    offset: Any
    target: Any
    counted: Any
    ahead: int
    columns: int
    lam: float
    a: float
    b: float


class Goal(NamedTuple):
    """Where the steps of a launch lead.

    Attributes:
        scratch: (programs, 4, rows, padded), for the states of a tile.
        step_size: s, at least the links' smoothness, ().
        violation: the s |Y - Z| at which a tile ends, ().
    """

    scratch: Any
    step_size: Any
    violation: Any


class Tile(NamedTuple):
    """The samples of a program, inside a kernel.

    Attributes:
        scratch: the states, those before them, U, and what pulls at them, (4, ROWS, PADDED).
        rows: which samples, (ROWS,) int64.
        there: whether there is such a sample, (ROWS,).
    """

    scratch: Any
    rows: Any
    there: Any


class Walk(NamedTuple):
    """Where the steps of a tile stand, inside a kernel.

    Attributes:
        here: where Z stands in the scratch.
        step: how many steps were made.
        worst: s |Y - Z+| of the last one.
        momentum: of each sample, (ROWS,).
        beta: how far Y is ahead of Z, (ROWS,).
        seen: Z W for each link, (ROWS, WIDTH).
        moved: (Z - the states before) W for each link.
    """

    here: Any
    step: Any
    worst: Any
    momentum: Any
    beta: Any
    seen: Any
    moved: Any


@dataclass(frozen=True)
class LinkPlan:
    """What a kernel is compiled for in a link.

    Attributes:
        gradient: of R, a Triton function.
        full: whether C has a row for each sample.
        counted: whether not all samples are linked.
        width: columns of W, rounded up to a power of two.
    """

    gradient: Any
    full: bool
    counted: bool
    width: int


@dataclass(frozen=True)
class TilePlan:
    """What a kernel is compiled for.

    Attributes:
        prox: of Phi, a Triton function.
        links: one plan for each link.
        rows: samples of a tile.
        depth: units in one part of an exact product with W.
        columns: units in one part of the other products.
        padded: units, rounded up to a multiple of both.
        drop: by how much the violation falls until products are formed anew.
    """

    prox: Any
    links: tuple[LinkPlan, ...]
    rows: int
    depth: int
    columns: int
    padded: int
    drop: float

    @property
    def cache_key(self) -> str:
        """What Triton keeps compiled kernels by: the functions' sources, which no name tells."""
        functions = (self.prox, *(link.gradient for link in self.links))
        return " ".join([str(self), *(function.cache_key for function in functions)])
