"""What does a fit of one sample and five units cost, whatever its kind?

Run it with `python -m benchmarks.tiny`, which writes benchmarks/results/tiny.md. One thread,
processor time of building a problem and solving it, its certificate included, the best of several
rounds; also for 100 samples and 50 units, where the same calls stand in loops over many nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.solvers import machine
from liftednet import activations
from liftednet.activation import Activation
from liftednet.divergences import Divergence, joint, tight
from liftednet.losses import (
    Huber,
    OutputLoss,
    Quantile,
    SimplexCrossEntropy,
    SquaredError,
)
from liftednet.penalties import (
    L1,
    GroupLasso,
    Nonnegative,
    Penalty,
    SimplexRows,
    SpectralNorm,
    SquaredFrobenius,
)
from liftednet.problems import Design, Link, OutputFit, StateFit, WeightFit
from liftednet.solvers import choose, solve

RESULT = Path(__file__).parent / "results" / "tiny.md"
SIZES = ((1, 5), (100, 50))
AIM = 100  # microseconds
ROUNDS, _LEAST = 7, 0.01  # seconds of each
ACTIVATIONS: tuple[Activation, ...] = (
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.1),
    activations.PReLU(torch.tensor(0.1)),
    activations.Clipped(),
    activations.Sign(),
    activations.Quantized(4, -1.0, 1.0),
    activations.Sigmoid(),
    activations.Tanh(),
    activations.Arctan(),
    activations.Sine(),
    activations.Softplus(),
    activations.ELU(),
    activations.Softmax(),
    activations.SimplexProjection(),
    Activation.from_function(torch.nn.functional.softsign),
)
PENALTIES: tuple[Penalty, ...] = (
    SquaredFrobenius(0.5),
    Nonnegative(),
    L1(0.1),
    GroupLasso(0.1),
    SpectralNorm(1.0),
    SimplexRows(),
    L1(0.1) + SquaredFrobenius(0.5),
)


class Case(NamedTuple):
    """One kind of problem.

    Attributes:
        name: how the table calls it.
        build: returns a problem, of a number of samples and of units, with nothing computed yet.
    """

    name: str
    build: Callable[[int, int], Callable[[], Any]]


def _draws(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=source, dtype=torch.float64) for shape in shapes]


def states(
    below: Divergence, above: Divergence, bounds: Any, samples: int, units: int
) -> Callable[[], StateFit]:
    """Return what builds a state fit below one link."""
    u, w, c, t = _draws(0, (samples, units), (units, units), (units,), (samples, units))
    weight, target = w / units**0.5, above.activation.forward(t)
    link = partial(Link, above, weight, c, target)
    return lambda: StateFit(below, u, (link(),), bounds=bounds)


def weights(
    divergence: Divergence, penalty: Penalty, samples: int, units: int
) -> Callable[[], WeightFit]:
    """Return what builds a weight fit."""
    x, t = _draws(1, (samples, units), (samples, units))
    target = divergence.activation.forward(t)
    return lambda: WeightFit(divergence, Design(x), target, penalty)


def outputs(
    loss: OutputLoss, activation: Activation, samples: int, units: int
) -> Callable[[], OutputFit]:
    """Return what builds an output fit."""
    u, y = _draws(2, (samples, units), (samples, units))
    if loss.nonnegative_target:
        y = torch.eye(units, dtype=u.dtype)[y.argmax(1)]
    return lambda: OutputFit(loss, y, tight(activation), u)


def _name(value: object) -> str:
    return repr(value).split(" at 0x")[0].removesuffix("()")


def _cases() -> Iterator[Case]:
    linear = joint(activations.Identity())
    for one in ACTIVATIONS:
        yield Case(f"states, {_name(one)}, no link", partial(_alone, tight(one)))
    for one in ACTIVATIONS:
        if one.lipschitz is not None:
            yield Case(
                f"states, {_name(one)}, joint link", partial(states, joint(one), joint(one), None)
            )
            yield Case(
                f"states, {_name(one)}, tight link", partial(states, tight(one), tight(one), None)
            )
    bounded = joint(activations.ReLU())
    yield Case("states from 0 to 0.5", partial(states, bounded, bounded, (0.0, 0.5)))
    for penalty in PENALTIES:
        yield Case(f"weights, joint, {_name(penalty)}", partial(weights, linear, penalty))
    for one in ACTIVATIONS[7:]:
        if one.lipschitz is not None:
            yield Case(
                f"weights, tight {_name(one)}", partial(weights, tight(one), SquaredFrobenius(0.5))
            )
    yield Case(
        "weights, tight Sigmoid, L1",
        partial(weights, tight(activations.Sigmoid()), L1(0.1)),
    )
    for one in ACTIVATIONS:
        yield Case(f"outputs, squared error, {_name(one)}", partial(outputs, SquaredError(), one))
    for loss in (Quantile(0.9), Huber()):
        yield Case(
            f"outputs, {_name(loss)}, Identity", partial(outputs, loss, activations.Identity())
        )
        yield Case(
            f"outputs, {_name(loss)}, Sigmoid", partial(outputs, loss, activations.Sigmoid())
        )
    yield Case(
        "outputs, cross-entropy on the simplex",
        partial(outputs, SimplexCrossEntropy(), activations.SimplexProjection()),
    )


def _alone(divergence: Divergence, samples: int, units: int) -> Callable[[], StateFit]:
    (u,) = _draws(0, (samples, units))
    return lambda: StateFit(divergence, u)


def microseconds(work: Callable[[], Any]) -> float:
    """Return the processor time of a call, the best of some rounds."""
    started = time.process_time()
    work()
    times = max(1, int(_LEAST / max(time.process_time() - started, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(times):
            work()
        best = min(best, (time.process_time() - started) / times)
    return 1e6 * best


def parts(build: Callable[[], Any]) -> Iterator[float]:
    """Yield the microseconds of the whole, of building, choosing, refusing, and judging a value."""
    problem, value = build(), solve(build()).value
    yield microseconds(lambda: solve(build()))
    yield microseconds(build)
    yield microseconds(lambda: choose(problem))
    yield microseconds(problem.refuse_bad_values)
    yield microseconds(lambda: build().measure(value)) - microseconds(build)


def row(case: Case) -> str:
    """Return a line of the table."""
    tiny, wide = (case.build(*size) for size in SIZES)
    started = time.process_time()
    solution = solve(tiny())
    first = 1e3 * (time.process_time() - started)
    figures = [f"{x:,.0f}" for x in (*parts(tiny), first, microseconds(lambda: solve(wide())))]
    ends = f"{solution.solver} | {solution.iterations} | {solution.residual:.0e}"
    return f"| {case.name} | {' | '.join(figures)} | {ends} |"


HEAD = """# Tiny fits

{where}.

Microseconds of processor time: of building a fit of one sample and five units in float64 and
solving it, its certificate included; of building it, choosing a solver, refusing bad values, and
judging a value of a fit that was just built; milliseconds of the first call with what this
process has to load, or to compile where no cache is (some seconds, once); microseconds of the
whole for 100 samples and 50 units. The aim is {aim} for the first of them, which {met} of {rows}
meet.

"""
COLUMNS = (
    ("fit", "whole", "build", "choose", "refuse", "judge", "first call, ms", "100 x 50"),
    ("solver", "steps", "residual"),
)


def main(words: list[str]) -> None:
    """Write the table, or print the rows whose names contain all words."""
    torch.set_num_threads(1)
    lines = []
    for case in _cases():
        if all(word in case.name for word in words):
            lines.append(row(case))
            print(lines[-1], flush=True)
    if words:
        return
    met = sum(float(line.split(" | ")[1].replace(",", "")) <= AIM for line in lines)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    head = HEAD.format(where=where, aim=AIM, met=met, rows=len(lines))
    columns = [name for part in COLUMNS for name in part]
    table = [f"| {' | '.join(columns)} |", f"| --- {'| ---: ' * 7}| --- | ---: | ---: |", *lines]
    RESULT.write_text(head + "\n".join([*table, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
