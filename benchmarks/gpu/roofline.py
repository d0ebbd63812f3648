"""What the kernels could reach on an H200 at best: a calculation, not a measurement.

Every part of the work takes at least the longest of five times: its bytes from device memory and
from the L2 cache, its operations, its instructions, and its launches, over the rates below.
Instructions are those of a warp, counted in the machine code that Triton 3.7 writes (loops times
the rounds that random data take); half of the slots in which a processor could issue one are taken
to be used. Launches are operations of torch that were counted in a sweep, one for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu.report import Report
from liftednet.solvers.kernels.table import state_blocks

_SAMPLES = 60_000
_FLOAT = 4  # bytes

_IN_THE_WAY = """
## What stands in the way of one graph for the conjugate gradients of a weight fit

Counted on a CPU, 6,000 samples, 300 inputs, 10 classes, 40 steps: 108 operations a step without
views, of which 57 are in the line search (one round; a GPU goes one further, hence 156) and 39 in
the rest of the step; one number is read in the search and one in the loop. Both reads can be late,
and are, on a GPU; none can stand in a graph.

- The search would have to take a fixed number of rounds. One was the rule in all 40 steps, yet a
  bracket that is still open needs up to 40, so that a graph of two rounds wants a plain step where
  its slope has not fallen, and the host would learn of it two steps later.
- Anchors follow and the preconditioner is renewed when the violation says so, and bring new
  tensors: 4 of an anchor (two of samples by classes, float64) and those of the ridge system, which
  would have to be copied to where the graph reads.
- A recording costs five steps (torch asks for three before it), and a fit takes 13. It pays only
  where the graph outlives the fit, from sweep to sweep: with the inputs, a copy of them, and 20 MB
  of states of the loop held between fits, by a solver that keeps nothing today.

Steps on minibatches have none of these, and are recorded.
"""


@dataclass(frozen=True)
class Card:
    """Rates of a card, a second.

    Attributes:
        memory: bytes of a large copy, read and written.
        cache: bytes from the L2 cache.
        operations: of matrix products by type; float16 and TF32 by the instructions of a warp.
        instructions: of a warp.
        launch: seconds of a launch by the host.
    """

    memory: float
    cache: float
    operations: dict[str, float]
    instructions: float
    launch: float


H200 = Card(
    memory=4.2e12,
    cache=5.5e12,
    operations={"float16": 600e12, "tf32": 300e12, "float32": 52e12, "float64": 60e12},
    instructions=0.5 * 132 * 4 * 1.8e9,
    launch=5e-6,
)


@dataclass(frozen=True)
class Work:
    """What a part of the work takes.

    Attributes:
        name: of the part.
        memory: bytes of device memory.
        cache: bytes of the L2 cache.
        operations: of matrix products.
        kind: of their numbers.
        instructions: of a warp.
        launches: how many.
    """

    name: str
    memory: float = 0.0
    cache: float = 0.0
    operations: float = 0.0
    kind: str = "float32"
    instructions: float = 0.0
    launches: int = 1

    def seconds(self, card: Card) -> dict[str, float]:
        """Return the time that each resource needs."""
        return {
            "memory": self.memory / card.memory,
            "L2 cache": self.cache / card.cache,
            self.kind: self.operations / card.operations[self.kind],
            "instructions": self.instructions / card.instructions,
            "launches": self.launches * card.launch,
        }


@dataclass(frozen=True)
class Bound:
    """The least time of a part on the card, calculated.

    Attributes:
        part: of the work.
        milliseconds: at least.
        limit: what takes that long.
        others: the other times, in milliseconds.
    """

    part: str
    milliseconds: float
    limit: str
    others: str


def calculated(card: Card = H200) -> str:
    """Return the tables in Markdown."""
    products = ", ".join(f"{kind} {rate / 1e12:.0f}" for kind, rate in card.operations.items())
    report = Report(
        {
            "card": "an H200 as it would be at best, a calculation and not a measurement",
            "terabytes a second": f"copy {card.memory / 1e12}, L2 cache {card.cache / 1e12}",
            "teraoperations a second": products,
            "warp instructions a second": f"{card.instructions:.2g}",
            "microseconds of a launch": f"{1e6 * card.launch:.0f}",
        }
    )
    report.sections.update(bounds(card))
    return report.text() + _IN_THE_WAY


def bounds(card: Card) -> Iterator[tuple[str, list[Bound]]]:
    """Yield tables, calculated: a title, and its rows."""
    for title, works in (
        ("One step of a state fit of 60,000 samples, calculated", _steps()),
        ("Output fits, calculated", _outputs()),
        ("A full-batch sweep of 784-300-10 at 60,000 samples, calculated", _sweep()),
    ):
        rows = [_bound(work, card) for work in works]
        if "sweep" in title:
            total = sum(row.milliseconds for row in rows)
            rows.append(Bound("all of it", total, "the sum", ""))
        yield title, rows


def _bound(work: Work, card: Card) -> Bound:
    times = {name: 1e3 * time for name, time in work.seconds(card).items() if time > 0}
    limit = max(times, key=lambda name: times[name])
    others = ", ".join(f"{name} {time:.3f}" for name, time in times.items() if name != limit)
    return Bound(work.name, times[limit], limit, others)


def _steps() -> Iterator[Work]:
    """Yield a step of the kernel, the products that are formed anew, and the torch loop's step."""
    for units, columns, instructions in ((300, 100, 24_900), (300, 10, 12_900)):
        name = f"{units} below {columns}"
        yield _step(f"{name}: a step", units, columns, "float16", instructions)
        yield _step(f"{name}: products anew, about every tenth step", units, columns, "tf32", 0)
        states = float(_SAMPLES * units)
        passes = Work(f"{name}: torch loop, 25 passes", 25 * _FLOAT * states, launches=14)
        yield from (passes, Work(f"{name}: torch loop, Z H", operations=2 * states * units))


def _step(name: str, units: int, columns: int, kind: str, instructions: int) -> Work:
    blocks = state_blocks([columns])
    tiles, padded, width = -(-_SAMPLES // blocks.rows), blocks.padded(units), blocks.width(columns)
    times, entry = (1, 2) if kind == "float16" else (3, _FLOAT)
    weight = entry * padded * width * (1 if kind == "float16" else 2)
    states = 4 * _FLOAT * blocks.rows * padded + _FLOAT * blocks.rows * columns
    operations = times * 4.0 * tiles * blocks.rows * padded * width
    return Work(name, 0.0, tiles * (weight + states), operations, kind, tiles * instructions, 0)


def _outputs() -> Iterator[Work]:
    """Yield output fits; instructions for a sample."""
    for samples, classes, what, instructions in (
        (10_000_000, 10, "one-hot", 760 / 32),
        (1_000_000, 100, "one-hot", 290),
        (100_000, 1000, "one-hot", 2_150),
        (1_000_000, 100, "prox of a ReLU", 100 * 11 / 32),
        (1_000_000, 100, "prox of a sigmoid", 100 * 204 / 32),
    ):
        memory = 3.0 * _FLOAT * samples * classes
        yield Work(f"{samples:,} x {classes}, {what}", memory, instructions=samples * instructions)


def _sweep() -> Iterator[Work]:
    """Yield the parts of a sweep with a joint divergence and a cross-entropy; Gram is kept."""
    hidden, inputs = _SAMPLES * 300.0, _SAMPLES * 784.0
    yield Work("pre-activations X W", 4 * (inputs + hidden), operations=2 * inputs * 300)
    step = _step("", 300, 10, "float16", 12_900)
    yield Work(
        "states 1: 16 steps of the kernel",
        4.0 * _FLOAT * hidden,
        16 * step.cache,
        16 * step.operations,
        "float16",
        16 * step.instructions,
    )
    yield Work("states 1: judged twice in float64", 2 * 20.0 * 8 * hidden, launches=220)
    yield Work("weights 1: X in float64", 12 * inputs)
    cross = 2 * inputs * 300
    yield Work("weights 1: X'V in float64", 8 * (inputs + hidden), 0.0, cross, "float64")
    yield Work("weights 1: the rest", 4 * 4 * hidden, launches=105)
    yield Work(
        "weights 2: 13 steps of conjugate gradients",
        13 * 2 * _FLOAT * hidden,
        operations=13 * 4 * hidden * 10,
        launches=13 * 156,
    )
