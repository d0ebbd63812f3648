"""What traced activations are made of on the device: functions that Triton lacks, and the prox.

The maps of links take a block and two numbers of the link; those that are traced use neither.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, odd to the last bit."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0, size, -size)


@triton.jit
def arctan(x):
    """Return the arctangent: a polynomial on [0, tan(pi / 8)], as atanf of Cephes has it."""
    size = tl.minimum(tl.abs(x), 1e30)
    steep, middle = size > 2.414213562373095, size > 0.4142135623730950
    turned = -1.0 / tl.maximum(size, 1.0)
    shifted = (size - 1.0) / (size + 1.0)
    y = tl.where(steep, turned, tl.where(middle, shifted, size))
    base = tl.where(steep, 1.5707963267948966, tl.where(middle, 0.7853981633974483, 0.0))
    s = y * y
    tail = ((8.05374449538e-2 * s - 1.38776856032e-1) * s + 1.99777106478e-1) * s
    value = base + (tail - 3.33329491539e-1) * s * y + y
    return tl.where(x >= 0, value, -value)


@triton.jit
def log1p(x):
    """Return log(1 + x), exact for small x."""
    one = 1.0 + x
    rounded = one - 1.0
    safe = tl.where(rounded == 0, 1.0, rounded)
    return tl.where(rounded == 0, x, tl.log(one) * (x / safe))


@triton.jit
def expm1(x):
    """Return exp(x) - 1, by its series for small x."""
    series = x * (1.0 + x * (0.5 + x * (0.16666667 + x * 0.041666667)))
    return tl.where(tl.abs(x) < 0.03, series, tl.exp(x) - 1.0)


@triton.jit
def sign(x):
    """Return the sign of x, 0 at 0."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def softmax(x, a, b):
    """Return exp(x) / sum exp(x) per row; entries beyond the classes are -1e30."""
    e = tl.exp(x - tl.max(x, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def linear(x, a, b):
    """Return a x + b, the gradient of a quadratic remainder."""
    return a * x + b


@triton.jit
def root_prox(
    w,
    t,
    FORWARD: tl.constexpr,
    SLOPE: tl.constexpr,
    STEPS: tl.constexpr = 60,
    SETTLED: tl.constexpr = 1e-6,
    ROUNDING: tl.constexpr = 8e-6,
):
    """Return v = phi(x) at phi(x) + t x = w, by Newton steps that are kept in a bracket.

    A step that leaves the bracket, or that fails to halve the gap, is replaced by bisection; the
    last one is made in v. Where phi jumps the root lies on the jump, and v is w - t x. It ends
    when no x of the block moves by more than SETTLED (1 + |x|), or after STEPS, which bisect the
    widest float32 bracket; five are the rule.
    """
    zero = tl.zeros_like(w)
    center = FORWARD(zero, 0.0, 0.0)
    bound = (w - center) / t
    lower, upper = tl.minimum(bound, zero), tl.maximum(bound, zero)
    x = (w - center) / (SLOPE(zero, 0.0, 0.0) + t)
    v = center
    before = tl.abs(w) * 0.0 + float("inf")
    step, unsettled = 0, 1
    while (unsettled > 0) & (step < STEPS):
        v = FORWARD(x, 0.0, 0.0)
        gap = v + t * x - w
        rise = SLOPE(x, 0.0, 0.0)
        lower = tl.where(gap <= 0, x, lower)
        upper = tl.where(gap >= 0, x, upper)
        change = gap / (rise + t)
        to = x - change
        poor = (to <= lower) | (to >= upper) | (tl.abs(gap) > 0.5 * before)
        poor &= tl.abs(change) > SETTLED * (1.0 + tl.abs(x))
        before = tl.abs(gap)
        to = tl.where(poor, 0.5 * (lower + upper), to)
        moved = tl.abs(to - x) > SETTLED * (1.0 + tl.abs(x))
        v -= tl.where(poor, 0.0, rise * change)
        x = to
        unsettled = tl.max(tl.max(moved.to(tl.int32), 1), 0)
        step += 1
    pull = t * x
    off = tl.abs(v + pull - w)
    on_graph = off <= ROUNDING * (tl.abs(w) + tl.abs(pull) + tl.abs(v))
    return tl.where(on_graph, v, w - pull)
