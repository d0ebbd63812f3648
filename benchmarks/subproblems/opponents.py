"""What a few dozen lines of Numba do, sample by sample: the strongest opponents of our solvers."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor


@njit(cache=True)
def simplex_newton(y, u, lam, settled, z):
    """Newton's method for the multiplier of each sample on the simplex, from above."""
    samples, outputs = u.shape
    a, s = np.empty(outputs, u.dtype), np.empty(outputs, u.dtype)
    for n in range(samples):
        top, mass = u[n].max(), y[n].sum()
        at_label = at_center = above = -np.inf
        for i in range(outputs):
            a[i], s[i] = y[n, i] / lam, u[n, i] - top
            label = y[n, i] / mass if mass > 0 else 1 / outputs
            ratio = a[i] / label if label > 0 else 0.0
            at_label = max(at_label, label - ratio - s[i])
            at_center = max(at_center, 1 / outputs - a[i] * outputs - s[i])
            above = max(above, s[i] + a[i])
        nu = min(at_label, at_center, 1 - above)
        for _ in range(50):
            total, slope = 0.0, 0.0
            for i in range(outputs):
                at = s[i] + nu
                root = math.sqrt(at * at + 4 * a[i])
                below = abs(at) + root
                state = max(at, 0.0) + (2 * a[i] / below if below > 0 else 0.0)
                z[n, i] = state
                total += state
                slope += state / root if root > 0 else 0.0
            if abs(total - 1) <= settled:
                break
            nu -= (total - 1) / max(slope, 1e-300)
        for i in range(outputs):
            z[n, i] /= total


@njit(cache=True, fastmath=True)
def block_pivoting(hessian, linear, z):
    """Nonnegative least squares by block principal pivoting (Kim and Park, 2011), row by row."""
    samples, units = linear.shape
    free, chosen = np.zeros(units, np.bool_), np.empty(units, np.int64)
    lower, right, gradient = np.empty((units, units)), np.empty(units), np.empty(units)
    for n in range(samples):
        free[:] = z[n] > 0
        fewest, chances = units + 1, 3
        for _ in range(10 * units):
            count = 0
            for i in range(units):
                gradient[i], z[n, i] = -linear[n, i], 0.0
                if free[i]:
                    chosen[count] = i
                    count += 1
            for i in range(count):
                right[i] = linear[n, chosen[i]]
                for k in range(i + 1):
                    lower[i, k] = hessian[chosen[i], chosen[k]]
            _solve(lower, right, count)
            for i in range(count):
                z[n, chosen[i]] = right[i]
                for k in range(units):
                    gradient[k] += right[i] * hessian[chosen[i], k]
            wrong, last = 0, -1
            for i in range(units):
                if (free[i] and z[n, i] < 0) or (not free[i] and gradient[i] < -1e-12):
                    wrong, last = wrong + 1, i
            if wrong == 0:
                break
            chances = 3 if wrong < fewest else chances - 1
            fewest = min(fewest, wrong)
            for i in range(units):
                bad = (free[i] and z[n, i] < 0) or (not free[i] and gradient[i] < -1e-12)
                if bad and (chances >= 0 or i == last):
                    free[i] = not free[i]
        for i in range(units):
            z[n, i] = max(z[n, i], 0.0)


@njit(cache=True, fastmath=True)
def _solve(lower, right, size):
    """Replace the right-hand side of a positive definite system by its solution."""
    for j in range(size):
        pivot = lower[j, j]
        for k in range(j):
            pivot -= lower[j, k] * lower[j, k]
        lower[j, j] = math.sqrt(pivot)
        for i in range(j + 1, size):
            entry = lower[i, j]
            for k in range(j):
                entry -= lower[i, k] * lower[j, k]
            lower[i, j] = entry / lower[j, j]
    for i in range(size):
        for k in range(i):
            right[i] -= lower[i, k] * right[k]
        right[i] /= lower[i, i]
    for i in range(size - 1, -1, -1):
        right[i] /= lower[i, i]
        for k in range(i):
            right[k] -= lower[i, k] * right[i]


@njit(cache=True, fastmath=True)
def coordinate_descent(hessian, linear, goal, upper, z):
    """Least squares from 0 to upper by coordinate descent, row by row, until no step is left."""
    samples, units = linear.shape
    gradient = np.empty(units, linear.dtype)
    for n in range(samples):
        for k in range(units):
            gradient[k] = -linear[n, k]
        for i in range(units):
            if z[n, i] != 0:
                for k in range(units):
                    gradient[k] += z[n, i] * hessian[i, k]
        for _ in range(5_000):
            worst = 0.0
            for i in range(units):
                to = min(max(z[n, i] - gradient[i] / hessian[i, i], 0), upper)
                change = to - z[n, i]
                if change != 0:
                    z[n, i] = to
                    worst = max(worst, abs(change) * hessian[i, i])
                    for k in range(units):
                        gradient[k] += change * hessian[i, k]
            if worst < goal:
                break


def dual_newton(weight: Tensor, u: Tensor, v: Tensor, goal: float) -> Tensor:
    """Nonnegative least squares by Newton steps on the dual, all samples at once in torch.

    min |y + v|^2 / 2 + |max(u - y W', 0)|^2 / 2: the Hessians of all samples are one product of
    0s and 1s, where u - y W' is positive, with the products of any two columns of W.
    """
    above = weight.shape[1]
    first, second = torch.tril_indices(above, above)
    products = weight[:, first] * weight[:, second]
    z, left = torch.empty_like(u), torch.arange(len(u))
    y = u.clamp(min=0) @ weight - v
    at, wanted = u - y @ weight.T, v
    for _ in range(100):
        gradient = y + wanted - at.clamp(min=0) @ weight
        done = gradient.norm(dim=1) <= goal
        z[left[done]] = at[done].clamp(min=0)
        left, y, at, wanted, gradient = (x[~done] for x in (left, y, at, wanted, gradient))
        if not len(left):
            break
        hessian = y.new_zeros(len(y), above, above)
        hessian[:, first, second] = hessian[:, second, first] = (at > 0).to(y) @ products
        hessian.diagonal(dim1=1, dim2=2).add_(1)
        d = -torch.linalg.solve_ex(hessian, gradient)[0]
        moved, slope, step = -d @ weight.T, (gradient * d).sum(1), torch.ones(len(y), 1).to(y)
        before = (y + wanted).square().sum(1) + at.clamp(min=0).square().sum(1)
        for _ in range(25):
            ahead = (at + step * moved).clamp(min=0).square().sum(1)
            value = (y + step * d + wanted).square().sum(1) + ahead
            bad = value > before * (1 + 1e-13) + 2e-4 * step[:, 0] * slope
            if not bool(bad.any()):
                break
            step[bad] /= 2
        y, at = y + step * d, at + step * moved
    z[left] = at.clamp(min=0)
    return z
