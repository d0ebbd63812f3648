"""The printed representations of Lifted Neural Networks, section 4 and appendix A: do they hold?

For u from -3 to 3 the argmin over a grid of z of the printed objective is compared with the printed
map, as far as the grid lets it; of the bracket in appendix A it is counted how often it holds the
root. Run it with `python -m benchmarks.papers.printed_forms`, seconds; it prints a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, xlogy

Array = Any
GRID, POINTS, DRAWS = np.linspace(-8, 8, 64_001), np.linspace(-3, 3, 25), 2_000
ALPHA, SPACING = 0.5, 16 / 64_000


def off(*broken: Array) -> Array:
    """Return infinity where a constraint is broken, else 0."""
    return np.where(np.any(broken, axis=0), np.inf, 0.0)


def entropy(z: Array) -> Array:
    """Return z log z, infinite below 0."""
    return xlogy(np.maximum(z, 0), np.maximum(z, 0)) + off(z < 0)


def softplus_potential(z: Array) -> Array:
    """Return the integral of log(e^u - 1) from 0 to z by the trapezoidal rule on the grid."""
    inside = z > 0
    slopes = np.where(inside, np.log(np.expm1(np.where(inside, z, 1.0))), 0.0)
    return np.cumsum(slopes) * SPACING + off(z < 0)


def arcsine(z: Array) -> Array:
    """Return z arcsin z + (1 - z^2)^(1/2), infinite off [-1, 1]."""
    inside = np.clip(z, -1, 1)
    return inside * np.arcsin(inside) + np.sqrt(1 - inside**2) + off(np.abs(z) > 1)


def box(z: Array) -> Array:
    """Return infinity off [-1, 1], else 0."""
    return off(np.abs(z) > 1)


Form = tuple[str, Callable[[Array, float], Array], Callable[[Array], Array]]
FORMS: list[Form] = [
    ("(4) ReLU, |z - u|^2 on z >= 0", lambda z, u: (z - u) ** 2 + off(z < 0), lambda u: u.clip(0)),
    ("ReLU, l1 norm", lambda z, u: np.abs(z - u) + off(z < 0), lambda u: u.clip(0)),
    ("(6), (7) sigmoid", lambda z, u: entropy(z) + entropy(1 - z) - u * z, expit),
    ("(8) leaky ReLU", lambda z, u: np.maximum(np.maximum(-z, 0) ** 2 / ALPHA,
                                               np.maximum(z, 0) ** 2) / 2 - u * z,
     lambda u: np.where(u < 0, ALPHA * u, u)),
    ("arctanh, as printed", lambda z, u: (entropy(1 - z) + entropy(1 + z)) / 2 - u * z,
     lambda u: np.arctanh(np.clip(u, -1 + 1e-12, 1 - 1e-12))),
    ("the same, read as tanh", lambda z, u: (entropy(1 - z) + entropy(1 + z)) / 2 - u * z, np.tanh),
    ("softplus", lambda z, u: softplus_potential(z) - u * z, lambda u: np.logaddexp(0, u)),
    ("piecewise sigmoid on [-1, 1]", lambda z, u: z**2 - 2 * u * z + box(z),
     lambda u: u.clip(-1, 1)),
    ("piecewise sigmoid on [0, 1]", lambda z, u: (z - u) ** 2 + off(z < 0, z > 1),
     lambda u: u.clip(0, 1)),
    ("sign, u not 0", lambda z, u: -z * u + box(z), np.sign),
    ("sine, on [-3, 3]", lambda z, u: arcsine(z) - u * z, np.sin),
    ("sine, clamped to [-pi/2, pi/2]", lambda z, u: arcsine(z) - u * z,
     lambda u: np.sin(u.clip(-np.pi / 2, np.pi / 2))),
    ("max(u / alpha, u) on z >= u / alpha", lambda z, u: (z - u) ** 2 + off(z < u / ALPHA),
     lambda u: np.maximum(u / ALPHA, u)),
    ("the same, read as the leaky ReLU", lambda z, u: (z - u) ** 2 + off(z < u / ALPHA),
     lambda u: np.where(u < 0, ALPHA * u, u)),
    ("(9) max-pooling of (u, -1)", lambda z, u: z + np.maximum(u - z, 0) + np.maximum(-1 - z, 0),
     lambda u: np.maximum(u, -1)),
]  # fmt: skip


def missed(form: Form) -> tuple[float, float]:
    """Return how far the farthest minimizer is from the printed map, and where."""
    _, objective, phi = form
    found = []
    for u in POINTS[POINTS != 0]:
        values = objective(GRID, u)
        least = GRID[values <= values.min() + 1e-12 * (1 + abs(values.min()))]
        wanted = float(phi(np.full(1, u))[0])
        found.append((max(abs(least.min() - wanted), abs(least.max() - wanted)), float(u)))
    return max(found)


def bracket(soft: bool) -> tuple[int, int, int]:
    """Return of how many draws the printed bounds of nu hold, fail, and overflow."""
    draw, counts = np.random.default_rng(0), [0, 0, 0]
    for _ in range(DRAWS):
        p, lam = int(draw.integers(2, 10)), 10 ** draw.uniform(-2, 2)
        x = 3 * draw.normal(size=p)
        y = draw.dirichlet(np.ones(p)) if soft else np.eye(p)[draw.integers(p)]

        def excess(nu: float, x: Array = x, y: Array = y, lam: float = lam) -> float:
            half = (x + nu) / 2
            return float((half + np.sqrt(half**2 + y / (2 * lam))).sum() - 1)

        nu = brentq(excess, -1e6, 1e3, xtol=1e-12)
        inside = y > 0
        start = inside / inside.sum()
        theta = -(y[inside] * np.log(start[inside])).sum() + lam * ((start - x) ** 2).sum()
        if theta > np.log(np.finfo(float).max):
            counts[2] += 1
            continue
        low = (1 - x.sum() - np.exp(theta) / (2 * lam)) / p
        high = 1 - (x + y / (2 * lam)).max()
        counts[0 if low - 1e-9 <= nu <= high + 1e-9 else 1] += 1
    return counts[0], counts[1], counts[2]


def main() -> None:
    """Print the table."""
    print("| form | farthest minimizer from the map | at u | |\n| --- | ---: | ---: | --- |")
    for form in FORMS:
        far, where = missed(form)
        verdict = "holds" if far <= 4 * SPACING else "does not hold as printed"
        print(f"| {form[0]} | {far:.1e} | {where:.2f} | {verdict} |")
    for name, soft in (("one label", False), ("shares of labels", True)):
        _, failed, lost = bracket(soft)
        print(f"| appendix A, bounds of nu, {name} | {failed} of {DRAWS} fail, {lost} overflow | | "
              f"{'holds' if not failed + lost else 'does not hold as printed'} |")  # fmt: skip
    low = [-t for t in (1.0, 1e3, 1e6)]
    pooled = [z + max(u - z, 0) for u, z in zip(low, low, strict=True)]
    print(f"| (9) as a divergence of two variables, at v = u = -1, -1e3, -1e6 | {pooled} | | "
          "no lower bound |")  # fmt: skip


if __name__ == "__main__":
    main()
