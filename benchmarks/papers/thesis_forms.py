"""The printed forms of On Recurrent Neural Networks: do they hold?

Each form is compared with what it states, by automatic differentiation, by central differences or
by enumeration, on small networks of float64; of bounds it is the share by which the worst of the
draws exceeds them. `python -m benchmarks.papers.thesis_forms`, seconds; it prints a table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

UNITS, STEPS, DRAWS = 4, 5, 200
HOLDS = 1e-6  # of central differences; all others are exact to rounding


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers of float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def apart(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, relative to the largest entry that is wanted."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def slope(a: Tensor) -> Tensor:
    """Return diag(tanh'(a))."""
    return torch.diag(1 - a.tanh() ** 2)


def run(first: Tensor, weights: Tensor, drives: Tensor) -> list[Tensor]:
    """Return pre-activations: a^1, and a^(i + 1) = W^i tanh(a^i) + drive^i of as many units each.

    A recurrent network has equal W^i (eqs. 1.30 to 1.33), a feedforward one biases for drives (eqs.
    1.7 to 1.10).
    """
    found = [first]
    for W, drive in zip(weights, drives, strict=True):
        found.append(W @ found[-1].tanh() + drive)
    return found


Unrolled = tuple[Tensor, Tensor, Tensor]
LAYERED = (random(UNITS), random(STEPS, UNITS, UNITS, seed=1), random(STEPS, UNITS, seed=2))
RECURRENT = (LAYERED[0], LAYERED[1][:1].expand(STEPS, -1, -1), LAYERED[2])


def exact(network: Unrolled, i: int) -> Tensor:
    """Return the Jacobian of the last pre-activation in the i-th by autograd."""
    _, weights, drives = network
    found: Tensor = jacobian(lambda a: run(a, weights[i:], drives[i:])[-1], run(*network)[i])
    return found


def chain(network: Unrolled, i: int, printed: bool = False) -> Tensor:
    """Return d a^U / d a^i by the factors of eqs. 1.26 and 1.45.

    Printed is diag(sigma'(a^(i + 1))) W^i, or diag(sigma'(a^k)) W over time; what is differentiated
    is W^i diag(sigma'(a^i)).
    """
    found, a, weights = torch.eye(UNITS, dtype=torch.float64), run(*network), network[1]
    shift = int(printed and network is LAYERED)
    for j in reversed(range(i, STEPS)):
        step = slope(a[j + shift])
        found = found @ (step @ weights[j] if printed else weights[j] @ step)
    return found


def weight_gradient(network: Unrolled, shift: int) -> float:
    """Return how far eqs. 1.25 and 1.42 are off with the states that many steps before a^k."""
    first, weights, drives = network
    a, wanted = run(*network), jacobian(lambda W: run(first, W, drives)[-1], weights)
    parts = [torch.einsum("ui,j->uij", chain(network, k), a[k - shift].tanh())
             for k in range(1, STEPS + 1)]  # fmt: skip
    if network is LAYERED:
        return apart(torch.stack(parts, 1), wanted)
    return apart(torch.stack(parts).sum(0), wanted.sum(1))


def bias_gradient() -> float:
    """Return how far eqs. 1.28 and 1.29 are off."""
    first, weights, drives = LAYERED
    wanted = jacobian(lambda b: run(first, weights, b)[-1], drives)
    return apart(torch.stack([chain(LAYERED, k) for k in range(1, STEPS + 1)], 1), wanted)


def outputs_gradient(twice: bool) -> float:
    """Return how far eqs. 1.16 and 1.17 are off: F is a softmax, L a square."""
    a, wanted_y = random(UNITS, seed=4).requires_grad_(), random(UNITS, seed=5)
    J = jacobian(lambda u: u.softmax(0), a).detach()
    loss = (a.softmax(0) - wanted_y).square().sum() / 2
    (wanted,) = torch.autograd.grad(loss, a)
    left = a.softmax(0).detach() - wanted_y
    return apart(left @ J @ J if twice else left @ J, wanted)


def derivatives() -> float:
    """Return how far eqs. 1.53, 1.55 and 1.57 are from central differences, off the kink."""
    x, h = torch.linspace(-3, 3, 61, dtype=torch.float64) + 0.013, 1e-6
    pairs: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (torch.sigmoid, x.sigmoid() * (1 - x.sigmoid())),
        (torch.tanh, 1 - x.tanh() ** 2),
        (torch.relu, (x > 0).double()),
    ]
    return max(apart((f(x + h) - f(x - h)) / (2 * h), wanted) for f, wanted in pairs)


def squashed() -> float:
    """Return how far eq. 1.51 is from a steep sigmoid and tanh, off the threshold."""
    x = torch.linspace(-3, 3, 61, dtype=torch.float64) + 0.013
    steep = 1e4 * x
    step = (x > 0).double()
    return max(
        apart(f(steep), torch.where(x > 0, b * step, a + step))
        for f, a, b in ((torch.sigmoid, 0, 1), (torch.tanh, -1, 1))
    )


def exceeds(spectral: bool, printed: bool) -> float:
    """Return by what share products over t - k steps exceed eqs. 1.68 and 1.72 at most, over draws.

    Args:
        spectral: whether the norm is the spectral one (eq. 1.72), else the largest entry (1.68).
        printed: whether the power is t - k - 1, as is printed, and not t - k; the largest entry of
            a product then has as many factors r.
    """
    worst = 0.0
    for seed in range(DRAWS):
        steps = 1 + seed % 4
        W = random(UNITS, UNITS, seed=seed) * (0.2 + seed % 3)
        slopes = torch.rand(steps, UNITS, generator=torch.Generator().manual_seed(seed)).double()
        found = torch.eye(UNITS, dtype=torch.float64)
        for row in slopes:
            found = found @ W @ torch.diag(row)
        norm, width = (
            torch.linalg.matrix_norm(x, 2) if spectral else x.abs().max() for x in (found, W)
        )
        each, r = slopes.max() * width, 1 if spectral else UNITS
        bound = (r * each) ** (steps - 1) if printed else r ** (steps - 1) * each**steps
        worst = max(worst, float(norm / bound) - 1)
    return worst


def radius_of_diagonalizable() -> float:
    """Return how far the largest |eigenvalue| is from the largest singular value."""
    W = random(UNITS, UNITS, seed=1)
    values, vectors = torch.linalg.eig(W)
    assert torch.linalg.cond(vectors) < 1e6  # diagonalizable
    return apart(values.abs().max()[None], torch.linalg.matrix_norm(W, 2)[None])


def paths(printed: bool) -> float:
    """Return how far the sum over paths, eq. 1.73, is from the derivative.

    Printed, the last slope is that of unit i at step t - 1, not of the unit before it.
    """
    a, W, k = run(*RECURRENT), RECURRENT[1][0], 2
    found = torch.zeros(UNITS, UNITS, dtype=torch.float64)
    for path in product(range(UNITS), repeat=STEPS - k + 1):
        cost = 1.0
        for step, (j, q) in enumerate(pairwise(path), start=k):
            seen = path[-1] if printed and step == STEPS - 1 else j
            cost *= float(W[q, j] * (1 - a[step][seen].tanh() ** 2))
        found[path[-1], path[0]] += cost
    return apart(found, exact(RECURRENT, k))


def all_enabled(power: int) -> float:
    """Return how far W^power is from the derivative over three steps of ReLU that are all on."""
    W = random(UNITS, UNITS, seed=1).abs()

    def ahead(a: Tensor) -> Tensor:
        for _ in range(3):
            a = W @ a.relu()
        return a

    start = torch.ones(UNITS, dtype=torch.float64)
    return apart(torch.linalg.matrix_power(W, power), jacobian(ahead, start))


def momentum(sign: float) -> float:
    """Return by what share of f a step v = sign alpha grad f, theta + v raises a square."""
    theta = random(UNITS)
    after = theta + sign * 0.1 * 2 * theta
    return max(0.0, float(after.square().sum() / theta.square().sum() - 1))


def context(printed: bool) -> float:
    """Return how far one step by the block matrix of eq. 2.14 is from eqs. 2.11 and 2.12."""
    alpha, (A, B, P, R) = 0.7, (random(UNITS, UNITS, seed=s) for s in range(4))
    x, s, h = (random(UNITS, seed=s) for s in (5, 6, 7))
    later = (1 - alpha) * B @ x + alpha * s
    wanted = P @ later + A @ x + R @ h
    by_block = R @ h + (P @ s if printed else alpha * P @ s)
    return apart(by_block + A @ x + (0 if printed else (1 - alpha) * P @ B @ x), wanted)


def curvature() -> float:
    """Return how far eq. 2.22 is from the Hessian, and eq. 2.23 from that of the linearization."""
    theta, target = random(UNITS, seed=1), random(3, seed=2)
    A, B = random(5, UNITS, seed=3), random(3, 5, seed=4)

    def outputs(w: Tensor) -> Tensor:
        return B @ (A @ w).tanh()

    def loss(y: Tensor) -> Tensor:
        return y.logsumexp(0) - target @ y

    J, y = jacobian(outputs, theta), outputs(theta)
    gauss_newton = J.T @ hessian(loss, y) @ J
    slopes = jacobian(loss, y)
    rest = sum(slopes[i] * hessian(lambda w, i=i: outputs(w)[i], theta) for i in range(3))
    linear = hessian(lambda w: loss(y + J @ (w - theta)), theta)
    whole = hessian(lambda w: loss(outputs(w)), theta)
    return max(apart(gauss_newton + rest, whole), apart(gauss_newton, linear))


def newton(printed: bool) -> float:
    """Return how far eq. 2.20 ends from the minimum of a quadratic, which Newton's step finds."""
    H, theta = random(UNITS, UNITS), random(UNITS, seed=1)
    H = H @ H.T + torch.eye(UNITS, dtype=torch.float64)
    best = random(UNITS, seed=2)
    delta = -torch.linalg.solve(H, H @ (theta - best))
    return apart(delta if printed else theta + delta, best)


def reduction_ratio(printed: bool) -> float:
    """Return how far eq. 2.25 is from 1 where the model is exact: f = 5 + |theta|^2."""
    theta, delta = random(UNITS), random(UNITS, seed=1)
    before, after = 5 + theta.square().sum(), 5 + (theta + delta).square().sum()
    model = before + 2 * theta @ delta + delta.square().sum()
    return abs(float((after - before) / (model if printed else model - before)) - 1)


def dropped(activation: Callable[[Tensor], Tensor], first_too: bool) -> float:
    """Return how far weights times p are from the mean over all masks of eqs. 2.33 to 2.38.

    One hidden layer of linear outputs, whose mean over masks is known by enumeration.

    Args:
        activation: sigma; a unit that is dropped puts out sigma(0).
        first_too: whether the weights below the units are multiplied as well, as is printed.
    """
    p, x = 0.6, random(3, seed=1)
    W, b, V, c = random(UNITS, 3), random(UNITS, seed=2), random(2, UNITS, seed=3), random(2)
    mean = torch.zeros(2, dtype=torch.float64)
    for mask in product((0.0, 1.0), repeat=UNITS):
        kept = torch.tensor(mask, dtype=torch.float64)
        share = p ** kept.sum() * (1 - p) ** (UNITS - kept.sum())
        mean += share * (V @ activation((W @ x + b) * kept) + c)
    return apart(p * V @ activation((p if first_too else 1) * W @ x + b) + c, mean)


def sampled(mended: bool, most: float) -> float:
    """Return by what share E |x_j - x*|^2 exceeds Q / j, eqs. 3.24 and 3.25, over draws.

    The process is x - (beta / j) (c x + noise) from x = x* = 0 on f = c x^2 / 2, whose second
    moments are known, and M^2 the largest E |D|^2 on its way.

    Args:
        mended: whether Q has 2 c beta - 1 below its line, where 2 c - 1 is printed.
        most: the largest 2 c beta, which is above 1.
    """
    draw, worst = np.random.default_rng(0), 0.0
    for _ in range(DRAWS):
        c, share = draw.uniform(0.6, 4), draw.uniform(1.01, most)
        beta = share / (2 * c)
        moments = [0.0]
        for j in range(1, 200):
            moments.append((1 - beta * c / j) ** 2 * moments[-1] + (beta / j) ** 2)
        Q = beta**2 * max(c**2 * m + 1 for m in moments) / ((share if mended else 2 * c) - 1)
        worst = max(worst, *(m * j / Q - 1 for j, m in enumerate(moments, start=1)))
    return worst


def halved(half: float) -> float:
    """Return how far A_(j+1) of eq. 3.10 is from A_j + gamma^2 |D|^2 / 2 - gamma (x - x*)' D."""
    x, D, gamma = random(UNITS), random(UNITS, seed=1), 0.3
    A = half * x.square().sum()
    wanted = A + gamma**2 * D.square().sum() / 2 - gamma * x @ D
    return apart((x - gamma * D).square().sum()[None] / 2, wanted[None])


def sufficient() -> float:
    """Return by what share (x - x*)'(grad f - g) exceeds mu L |x - x*|^2, eqs. 3.28 to 3.33."""
    worst = 0.0
    for seed in range(DRAWS):
        H = torch.diag(torch.rand(UNITS, generator=torch.Generator().manual_seed(seed)).double())
        x, other = random(UNITS, seed=seed), random(UNITS, seed=seed + DRAWS)
        gradient = H @ x
        g = gradient + 0.5 * gradient.norm() * other / other.norm()
        alpha = g.norm() / gradient.norm()
        cosine = g @ gradient / (g.norm() * gradient.norm())
        mu = (1 + alpha**2 - 2 * alpha * cosine).sqrt()
        worst = max(worst, float(x @ (gradient - g) / (mu * H.max() * x @ x)) - 1)
    return max(worst, 0.0)


def likelihood(sign: float) -> float:
    """Return how far eq. 4.2 is from the negative log-likelihood of the notes of some steps."""
    u, y = random(6, 3), (random(6, 3, seed=1) > 0).double()
    F = u.sigmoid()
    printed = sign * (y * F.log() + (1 - y) * (1 - F).log()).sum() / 6
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(u, y, reduction="sum") / 6
    return apart(printed[None], wanted[None])


FORMS: list[tuple[str, Callable[[], float]]] = [
    ("(1.16), (1.36), (1.47), (1.48): J(F) beside dy/da, as printed",
     lambda: outputs_gradient(True)),
    ("(1.17), (1.37): J(F) once", lambda: outputs_gradient(False)),
    ("(1.21), (1.26): diag(sigma'(a^(i+1))) W^i, as printed",
     lambda: apart(chain(LAYERED, 1, True), exact(LAYERED, 1))),
    ("the same as W^i diag(sigma'(a^i))", lambda: apart(chain(LAYERED, 1), exact(LAYERED, 1))),
    ("(1.24), (1.25) weights", lambda: weight_gradient(LAYERED, 1)),
    ("(1.28), (1.29) biases", bias_gradient),
    ("(1.41), (1.45), (1.46), (1.63): diag(sigma'(a^k)) W, as printed",
     lambda: apart(chain(RECURRENT, 1, True), exact(RECURRENT, 1))),
    ("the same as W diag(sigma'(a^k))", lambda: apart(chain(RECURRENT, 1), exact(RECURRENT, 1))),
    ("(1.43): phi of step k, as printed", lambda: weight_gradient(RECURRENT, 0)),
    ("(1.42), and (1.43) with phi of step k - 1", lambda: weight_gradient(RECURRENT, 1)),
    ("(1.51) limit of steep squashing functions", squashed),
    ("(1.53), (1.55), (1.57) derivatives", derivatives),
    ("(1.61), (1.62), (2.29) to (2.32): v = gamma v + alpha grad, as printed",
     lambda: momentum(1.0)),
    ("the same with - alpha", lambda: momentum(-1.0)),
    ("(1.64) to (1.68): tau^(t-k-1), as printed", lambda: exceeds(False, True)),
    ("the same as r^(t-k-1) (sigma' |W|)^(t-k)", lambda: exceeds(False, False)),
    ("(1.70) to (1.72): (sigma' mu)^(t-k-1), as printed", lambda: exceeds(True, True)),
    ("the same to the power t - k", lambda: exceeds(True, False)),
    ("section 1.6: |lambda| = mu of diagonalizable weights, as printed", radius_of_diagonalizable),
    ("(1.73): the last slope of unit i, as printed", lambda: paths(True)),
    ("the same with that of the unit before", lambda: paths(False)),
    ("section 1.6: ReLU, all paths on, W^(t-k-1), as printed", lambda: all_enabled(2)),
    ("the same with W^(t-k)", lambda: all_enabled(3)),
    ("(2.14): the block P, as printed", lambda: context(True)),
    ("the same with alpha P, and (1 - alpha) P B beside A", lambda: context(False)),
    ("(2.20): theta = alpha delta, as printed", lambda: newton(True)),
    ("the same with theta + alpha delta", lambda: newton(False)),
    ("(2.21) to (2.23) Gauss-Newton matrix", curvature),
    ("(2.25): over M(delta), as printed", lambda: reduction_ratio(True)),
    ("the same over M(delta) - M(0)", lambda: reduction_ratio(False)),
    ("(2.33) to (2.38): all weights times p, as printed", lambda: dropped(torch.tanh, True)),
    ("the same above dropped units alone, sigma(0) = 0", lambda: dropped(torch.tanh, False)),
    ("the same of a sigmoid, whose dropped unit puts out 1/2",
     lambda: dropped(torch.sigmoid, False)),
    ("(3.10): A without its half, as printed", lambda: halved(1.0)),
    ("the same with A = |x - x*|^2 / 2", lambda: halved(0.5)),
    ("(3.24), (3.25): Q over 2 c - 1, as printed", lambda: sampled(False, 4.0)),
    ("the same over 2 c beta - 1, whatever beta", lambda: sampled(True, 4.0)),
    ("the same where 2 c beta is at most 1.5", lambda: sampled(True, 1.5)),
    ("(3.28) to (3.33) sufficient direction", sufficient),
    ("(4.2): without a minus, as printed", lambda: likelihood(1.0)),
    ("the same with a minus", lambda: likelihood(-1.0)),
]  # fmt: skip


def main() -> None:
    """Print the table."""
    print("| form | off by | |\n| --- | ---: | --- |")
    for name, off in FORMS:
        found = max(off(), 0.0)
        verdict = "holds" if found <= HOLDS else "does not hold"
        print(f"| {name} | {found:.1e} | {verdict} |")


if __name__ == "__main__":
    main()
