"""Small ridge systems from data to certificate: calls of torch take longer than their numbers."""

from __future__ import annotations

import numpy as np

from .lanes import TOGETHER, WIDE, add_rows, compiled, factor, filled, inner

_ROWS = 64  # of a chunk whose sums stay in a core's own cache
_LOOK = 256  # rows that tell where the columns lie, as in `Design.far`
_FAR = 1.25  # times the squared mean, below which the mean square of a column leaves it far from 0
_FARTHEST = 1e10  # the variance: a squared mean whose products with W round too much to judge
_HIDDEN = 30.0**2  # how far a mean may hide what targets have about it
_CANCELLED = 1e-6  # of the terms of a sum, that are left where it has lost nearly all digits
_ROUNDED = 1e-14  # of terms, by which their sums may be off
_EPS = float(np.finfo(np.float64).eps)


@inner
def _shift(x):
    """Return what columns far from 0 are shifted by, as `Design.centered` is, (inputs,)."""
    samples, inputs = x.shape
    step = max(1, -(-samples // _LOOK))
    shift, square, count = np.zeros(inputs), np.zeros(inputs), 0.0
    for n in range(0, samples, step):
        count += 1
        for j in range(inputs):
            shift[j] += x[n, j]
            square[j] += x[n, j] * x[n, j]
    for j in range(inputs):
        far = _FAR * shift[j] * shift[j] > square[j] * count
        shift[j] = shift[j] / count if far else 0.0
    return shift


@inner
def _sums(x, v, shift):
    """Return [X - shift, 1]'[X - shift, 1] and [X - shift, 1]'V.

    Both are columns of one product, WIDE at a time: BLAS takes twice as long for so few.
    """
    (samples, inputs), units = x.shape, v.shape[1]
    size = inputs + 1
    tall, blocks = filled(size), -(-(size + units) // WIDE)
    left, right = np.zeros((_ROWS, blocks * WIDE)), np.empty((blocks, _ROWS, WIDE))
    total, order = np.zeros((blocks, tall, WIDE)), np.arange(_ROWS)
    for first in range(0, samples, _ROWS):
        count = min(_ROWS, samples - first)
        for n in range(count):
            row, own, pulls = left[n], x[first + n], v[first + n]
            rest = row[size:]  # an index is quicker than a sum of two
            for j in range(inputs):
                row[j] = own[j] - shift[j]
            row[inputs] = 1
            for k in range(units):
                rest[k] = pulls[k]
        for b in range(blocks):
            for n in range(count):
                part, row = right[b, n], left[n, b * WIDE :]
                for j in range(WIDE):
                    part[j] = row[j]
            for i in range(0, min(tall, (b + 1) * WIDE), TOGETHER):
                add_rows(total[b], i, left, blocks * WIDE, order, count, right[b])
    gram, cross = np.empty((size, size)), np.empty((size, units))
    for i in range(size):
        for j in range(i, size):
            gram[i, j] = gram[j, i] = total[j // WIDE, i, j % WIDE]
        for k in range(units):
            cross[i, k] = total[(size + k) // WIDE, i, (size + k) % WIDE]
    return gram, cross


@inner
def _solved(system, right):
    """Put the solution in the place of the right-hand side; say whether there is a factor."""
    size, units = right.shape
    if not factor(system, size, 0.0):
        return False
    for i in range(size):
        for j in range(i):
            for k in range(units):
                right[i, k] -= system[i, j] * right[j, k]
        for k in range(units):
            right[i, k] *= system[i, i]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            for k in range(units):
                right[i, k] -= system[j, i] * right[j, k]
        for k in range(units):
            right[i, k] *= system[i, i]
    return True


@inner
def _measured(value, bias, gram, cross, asked, pulls, curvature, lam, rho, eps, wide):
    """Return what `WeightFit.measure` says of [W; b + shift W], NaN where that takes more to say.

    The bias is b, by whose rounding a gradient may be off: that in b alone where samples are few.
    """
    size, units = value.shape
    samples, curved = gram[-1, -1], np.dot(gram, value)
    link, paid, hidden, lost, most, off, told = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    widest, pull, mass = 0.0, 0.0, 0.0
    for k in range(units):
        pull, mass = max(pull, pulls[k]), mass + pulls[k]
        if pulls[k] - cross[-1, k] ** 2 / samples < pulls[k] / _HIDDEN:
            return 0.0, np.nan
    for i in range(size):
        gains, bent = 0.0, curvature * gram[i, i] + 2 * rho * (i < size - 1)
        widest = max(widest, gram[i, i])
        for k in range(units):
            slope = curvature / lam * curved[i, k]
            violation = lam * (slope - asked[i, k])
            link += 0.5 * value[i, k] * (slope - 2 * asked[i, k])
            if i < size - 1:
                paid += rho * value[i, k] * value[i, k]
                violation += 2 * rho * value[i, k]
            most = max(most, abs(slope + cross[i, k] - asked[i, k]), abs(cross[i, k]))
            hidden += abs(value[i, k] * cross[i, k])
            gains += violation * violation
            unsure = abs(gram[-1, i] * bias[k]) * curvature * eps
            unsure = 0.0 if wide and i < size - 1 else unsure
            off = max(off, abs(violation) - unsure)
            told = max(told, abs(violation))
        gains /= 2 * max(bent, 1e-300)
        lost = max(lost, gains) if i == size - 1 else lost + gains / (size - 1)
    scale = lam * max(most, _CANCELLED * np.sqrt(widest * pull), 1e-300)
    objective = lam * link + paid
    length = lam * samples * min(1.0, mass / samples if mass > 0 else 1.0) + abs(objective)
    residual = told / scale
    if residual > _ROUNDED:
        residual = max(off, 0.0) / scale
    return objective, max(residual, hidden * _EPS * lam / length, lost / length)


@compiled
def ridge(x, v, c, lam, smoothness, rho, eps, found):
    """Put [W; b] down that minimizes lam (L |u|^2 / 2 + <c - v, u>) + rho |W|^2, u = X W + b.

    Args:
        x: (samples, inputs).
        v: what u is pulled to, (samples, units).
        c: phi(0), (units,).
        lam: the weight of the divergence.
        smoothness: L.
        rho: of the penalty.
        eps: the rounding of the type of [W; b].
        found: [W; b], (inputs + 1, units), written.

    Returns:
        The objective and the residual at what is written, and that of it before it was rounded.
    """
    (samples, inputs), units, shift = x.shape, v.shape[1], _shift(x)
    gram, cross = _sums(x, v, shift)
    pulls, asked, curvature = np.zeros(units), cross.copy(), lam * smoothness
    wide = samples < inputs
    for n in range(samples):
        for k in range(units):
            pulls[k] += np.float64(v[n, k]) * v[n, k]
    for i in range(inputs + 1):
        for k in range(units):
            asked[i, k] -= gram[inputs, i] * c[k]
    system, value = curvature * gram, lam * asked
    for i in range(inputs):
        system[i, i] += 2 * rho
        if samples * shift[i] * shift[i] > _FARTHEST * gram[i, i]:
            return np.nan, np.nan, np.nan
    if not _solved(system, value):
        return np.nan, np.nan, np.nan
    none = np.zeros(units)  # of a bias is rounded yet
    exact = _measured(value, none, gram, cross, asked, pulls, curvature, lam, rho, eps, wide)[1]
    for k in range(units):
        moved = 0.0
        for i in range(inputs):
            found[i, k] = value[i, k]
            value[i, k] = found[i, k]
            moved += shift[i] * value[i, k]
        found[inputs, k] = value[inputs, k] - moved
        value[inputs, k] = found[inputs, k] + moved
    objective, residual = _measured(
        value, found[inputs], gram, cross, asked, pulls, curvature, lam, rho, eps, wide
    )
    return objective, residual, exact
