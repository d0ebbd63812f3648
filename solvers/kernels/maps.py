"""Activations on the device: forward map, slope and prox of a block of units, as Triton functions.

Every function takes the block and two numbers of the activation (a slope, the ends of a box); the
proximal maps also take t, a number. Equations are those of the activations in the catalogue.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def identity(x, a, b):
    """Return x."""
    return x


@triton.jit
def relu(x, a, b):
    """Return max(x, 0)."""
    return tl.maximum(x, 0.0)


@triton.jit
def leaky_relu(x, a, b):
    """Return max(x, a x)."""
    return tl.maximum(x, a * x)


@triton.jit
def clipped(x, a, b):
    """Return x clipped to [a, b]."""
    return tl.minimum(tl.maximum(x, a), b)


@triton.jit
def sigmoid(x, a, b):
    """Return 1 / (1 + exp(-x)), without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def sigmoid_slope(x, a, b):
    """Return the slope of the sigmoid, exact in its tails."""
    e = tl.exp(-tl.abs(x))
    return e / ((1.0 + e) * (1.0 + e))


@triton.jit
def tanh(x, a, b):
    """Return the hyperbolic tangent, odd to the last bit."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0, size, -size)


@triton.jit
def softplus(x, a, b):
    """Return log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), exact for small e."""
    e = tl.exp(-tl.abs(x))
    one = 1.0 + e
    rounded = one - 1.0
    logarithm = tl.where(rounded > 0, tl.log(one) * (e / tl.maximum(rounded, 1e-30)), e)
    return tl.maximum(x, 0.0) + logarithm


@triton.jit
def elu(x, a, b):
    """Return x where x > 0, else exp(x) - 1."""
    return tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)


@triton.jit
def elu_slope(x, a, b):
    """Return 1 where x > 0, else exp(x)."""
    return tl.exp(tl.minimum(x, 0.0))


@triton.jit
def arctan(x, a, b):
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
def arctan_slope(x, a, b):
    """Return 1 / (1 + x^2)."""
    return 1.0 / (1.0 + x * x)


@triton.jit
def sine(x, a, b):
    """Return sin(x), x clipped to [-pi/2, pi/2]."""
    return tl.sin(tl.minimum(tl.maximum(x, -1.5707963267948966), 1.5707963267948966))


@triton.jit
def sine_slope(x, a, b):
    """Return cos(x) inside [-pi/2, pi/2], else 0."""
    return tl.where(tl.abs(x) < 1.5707963267948966, tl.cos(x), 0.0)


@triton.jit
def identity_prox(w, t, a, b):
    """Return w / (1 + t)."""
    return w / (1.0 + t)


@triton.jit
def relu_prox(w, t, a, b):
    """Return max(w / (1 + t), 0)."""
    return tl.maximum(w / (1.0 + t), 0.0)


@triton.jit
def leaky_relu_prox(w, t, a, b):
    """Return w / (1 + t) where w > 0, else w / (1 + t / a)."""
    return tl.where(w > 0, w / (1.0 + t), w / (1.0 + t / a))


@triton.jit
def clipped_prox(w, t, a, b):
    """Return w / (1 + t) clipped to [a, b]."""
    return tl.minimum(tl.maximum(w / (1.0 + t), a), b)


@triton.jit
def sign_prox(w, t, a, b):
    """Return w clipped to [-1, 1]."""
    return tl.minimum(tl.maximum(w, -1.0), 1.0)


@triton.jit
def sigmoid_prox(w, t, a, b):
    """Return the prox of the sigmoid's potential."""
    return root_prox(w, t, a, b, sigmoid, sigmoid_slope)


@triton.jit
def tanh_prox(w, t, a, b):
    """Return the prox of the sigmoid's, rescaled: tanh(x) = 2 sigmoid(2 x) - 1."""
    return 2.0 * root_prox((w + 1.0) / 2.0, t / 4.0, a, b, sigmoid, sigmoid_slope) - 1.0


@triton.jit
def softplus_prox(w, t, a, b):
    """Return the prox of the softplus' potential."""
    return root_prox(w, t, a, b, softplus, sigmoid)


@triton.jit
def elu_prox(w, t, a, b):
    """Return the prox of the ELU's potential: w / (1 + t) above 0, a root below."""
    below = root_prox(tl.minimum(w, 0.0), t, a, b, elu, elu_slope)
    return tl.where(w > 0, w / (1.0 + t), below)


@triton.jit
def arctan_prox(w, t, a, b):
    """Return the prox of the arctangent's potential."""
    return root_prox(w, t, a, b, arctan, arctan_slope)


@triton.jit
def sine_prox(w, t, a, b):
    """Return the prox of the sine's potential."""
    return root_prox(w, t, a, b, sine, sine_slope)


@triton.jit
def root_prox(
    w,
    t,
    a,
    b,
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
    center = FORWARD(zero, a, b)
    bound = (w - center) / t
    lower, upper = tl.minimum(bound, zero), tl.maximum(bound, zero)
    x = (w - center) / (SLOPE(zero, a, b) + t)
    v = center
    before = tl.abs(w) * 0.0 + float("inf")
    step, unsettled = 0, 1
    while (unsettled > 0) & (step < STEPS):
        v = FORWARD(x, a, b)
        gap = v + t * x - w
        rise = SLOPE(x, a, b)
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
