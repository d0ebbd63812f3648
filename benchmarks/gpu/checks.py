"""Every kernel against float64 torch: fresh random inputs, poisoned outputs, awkward sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.problems import exact, state_fit
from benchmarks.gpu.timing import Scale
from liftednet import activations, lift, losses
from liftednet.activation import Activation
from liftednet.divergences import joint, tight
from liftednet.models import Lifted, LiftedMLP, Minibatch
from liftednet.models.methods import minibatch, step_graphs
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, OutputFit, StateFit, WeightFit
from liftednet.solvers import choose, solve

_RESIDUAL = 1e-5
_ERROR = 2e-4  # of the largest entry

LAYERS: tuple[Activation, ...] = (
    activations.Identity(),
    activations.ReLU(),
    activations.LeakyReLU(0.2),
    activations.Clipped(-1.0, 1.0),
)


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        kernel: name of the solver.
        problem: what it solved.
        residual: relative KKT residual, judged in float64.
        error: largest difference to the float64 solution, over the largest of 1 and its entries.
        repeats: whether a second run gave the same bits.
        passed: whether all is within bounds.
        note: what went wrong.
    """

    kernel: str
    problem: str
    residual: float
    error: float
    repeats: bool
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class Case:
    """A problem by name, and the kernel that is to serve it."""

    kernel: str
    name: str
    build: Callable[[], StateFit | OutputFit]


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases, from small to large."""
    linear, softmax = joint(activations.Identity()), tight(activations.Softmax())
    relu, device = activations.ReLU(), scale.device
    many = scale.size(10_007, 33)
    shapes = [(1, 1, 1), (1, 300, 100), (many, 1, 2), (17, 33, 17), (many, 300, 100)]
    for m, p, q in [(1, 1, 1), (3, 9, 4), (many, 20, 5)] if scale.toy else shapes:
        for word, above in (("linear", linear), ("softmax", softmax)):
            name = f"{m:,} x {p} below {q}, ReLU, {word}"
            yield Case("fused-states", name, partial(state_fit, m, p, q, relu, above, device))
    for p, q in () if scale.toy else ((500, 200), (784, 256), (100, 10), (20, 30)):
        name = f"{many:,} x {p} below {q}, ReLU, linear"
        yield Case("fused-states", name, partial(state_fit, many, p, q, relu, linear, device))
    p, q = (6, 3) if scale.toy else (100, 50)
    for layer in LAYERS:
        name = f"{many:,} x {p} below {q}, {layer!r}, tight"
        build = partial(state_fit, many, p, q, layer, tight(layer), device)
        yield Case("fused-states", name, build)


@contextmanager
def poisoned() -> Iterator[None]:
    """Have torch fill every new tensor with NaN until something is written to it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(case: Case) -> Check:
    """Solve a case by its kernel, twice, with memory that nobody has written set to NaN."""
    try:
        problem = case.build()
        solver = choose(problem, case.kernel)
        with poisoned():
            first, second = (solver.solve(problem).value for _ in range(2))
        expected = solve(exact(problem)).value
        residual = float(problem.measure(first).residual)
    except Exception as failure:  # whatever a kernel or a card may do: it is a failed check
        nan = float("nan")
        return Check(case.kernel, case.name, nan, nan, False, False, str(failure)[:200])
    error = float((first - expected).abs().max() / expected.abs().max().clamp(min=1))
    same = bool(first.equal(second))
    good = residual <= _RESIDUAL and error <= _ERROR and same
    return Check(case.kernel, case.name, residual, error, same, good)


def check_jobs(scale: Scale) -> Iterator[Job]:
    """Yield the checks."""
    for case in cases(scale):
        yield Job(f"{case.kernel}: {case.name}", partial(check, case))
    yield Job("more than 2^31 numbers", partial(large_check, scale))
    yield Job("Gram matrix", partial(gram_check, scale))
    for convolution in (False, True):
        yield Job("replayed steps", partial(replayed_check, scale, convolution))


def large_check(scale: Scale) -> Check:
    """Solve a state fit with more than 2^31 numbers; its last rows against torch."""
    m, linear = scale.size(7_200_017, 40), joint(activations.Identity())
    problem = state_fit(m, scale.size(300, 5), 10, activations.ReLU(), linear, scale.device)
    last = slice(m - 1_000 if m > 1_000 else 0, m)
    found = choose(problem, "fused-states").solve(problem)
    wanted = solve(problem.rows(last)).value
    error = float((found.value[last] - wanted).abs().max() / wanted.abs().max())
    good = found.residual <= _RESIDUAL and error <= _ERROR
    return Check("fused-states", f"{m:,} samples", found.residual, error, True, good)


def gram_check(scale: Scale) -> Check:
    """Fit ridge weights to float32 inputs of condition number 1e6, against a float64 solution."""
    m, p, q = scale.size(60_000, 200), scale.size(300, 8), scale.size(100, 3)
    device = scale.device
    left = torch.linalg.qr(torch.randn(m, p, device=device, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(p, p, device=device, dtype=torch.float64)).Q
    spectrum = torch.logspace(0, -6, p, device=device, dtype=torch.float64) * m**0.5
    inputs = ((left * spectrum) @ right.T).float()
    targets = (inputs.double() @ torch.randn(p, q, device=device, dtype=torch.float64)).float()
    linear, penalty = joint(activations.Identity()), SquaredFrobenius(1e-9)
    fit = WeightFit(linear, Design(inputs, False), targets, penalty)
    twin = WeightFit(linear, Design(inputs.double(), False), targets.double(), penalty)
    found, wanted = solve(fit).value.matrix, solve(twin).value.matrix
    error = float((found - wanted).norm() / wanted.norm())
    name = f"{m:,} x {p} to {q}, condition number 1e6, float32 inputs"
    residual = float(fit.measure(solve(fit).value).residual)
    return Check("ridge", name, residual, error, True, error <= 1e-3)


def replayed_check(scale: Scale, convolution: bool) -> Check:
    """Train on minibatches whose steps are replayed from CUDA graphs, and by plain steps.

    Where there is no GPU, both are plain. Convolutions are in float64, as cuDNN's of float32 round
    to TF32, and by kernels that repeat.

    Args:
        scale: sizes and device.
        convolution: whether the network is one of torch with a BatchNorm, or dense.
    """
    generator, samples = torch.Generator().manual_seed(0), scale.size(5_000, 60)
    shape = (1, 8, 8) if convolution or scale.toy else (784,)
    dtype = torch.float64 if convolution else torch.float32
    x = torch.randn(samples, *shape, generator=generator, dtype=dtype)
    y = x.flatten(1)[:, :3].argmax(1)
    method = Minibatch(epochs=6, batch_size=scale.size(100, 10))

    def made() -> Lifted:
        if not convolution:
            sizes, device = (x[0].numel(), scale.size(300, 6), 3), str(scale.device)
            flat = LiftedMLP(sizes, method=method, dtype=dtype, device=device)
            return flat.fit(x.flatten(1), y)
        torch.manual_seed(0)
        parts = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)
        network = nn.Sequential(*parts).to(scale.device, dtype)
        lifted = lift(network, x[:2], loss=losses.CrossEntropy(), method=method, show=False)
        return lifted.fit(x, y)

    def trained() -> list[Tensor]:
        with torch.backends.cudnn.flags(deterministic=True):
            return [layer.stacked() for layer in made().weights]

    with patch.object(step_graphs, "recorded", wraps=step_graphs.recorded) as recorded:
        first, second = trained(), trained()
    with patch.object(minibatch, "serves", lambda rows: False):
        plain = trained()
    error = max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(first, plain, strict=True)
    )
    same = all(a.equal(b) for a, b in zip(first, second, strict=True))
    good = same and error <= _ERROR and (scale.toy or recorded.call_count == 4)
    name = f"{samples:,} x {', '.join(map(str, shape))}"
    note = f"{recorded.call_count} graphs"
    return Check("replayed steps", name, 0.0, error, same, good, note)
