"""
A learned cost-to-go in control
===============================

A load on a cable swings up in the wind, and the force that may steady it is small. The best plan is
a convex problem of many steps. What it costs is convex in the state: an input-convex network learns
that from sampled states, and stands at the end of a plan of one step. Every step is solved with a
proof, and what any controller must pay at least is known, too.
"""

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.linalg import expm, solve_discrete_are

from liftednet import certify, optimize, to_cvxpy
from liftednet.models import Lifted, input_convex

# Position and speed after .5 s under a force u that is constant over them, |u| <= 1.
flow = expm(0.5 * np.array([[0, 1, 0], [-1, 0.2, 1], [0, 0, 0]]))
A, B = flow[:2, :2], flow[:2, 2:]
Q, R = np.eye(2), 0.1 * np.eye(1)
P = solve_discrete_are(A, B, Q, R)  # without the limit, x P x is the cost of u = -K x
S = R + B.T @ P @ B
K = np.linalg.solve(S, B.T @ P @ A)


def least_extra(starts, steps=25):
    """Return what the limit on the force costs at least, beyond x P x, by one problem of all.

    The sum of (u + K x) S (u + K x) over the steps is that. It is convex in the start and the
    forces together, so its least is convex in the start. After the steps the force is free:
    nothing that keeps the limit costs less.
    """
    x = [starts] + [cp.Variable(starts.shape) for _ in range(steps)]
    u = [cp.Variable((len(starts), 1)) for _ in range(steps)]
    moves = [x[t + 1] == x[t] @ A.T + u[t] @ B.T for t in range(steps)]
    over = cp.hstack([u[t] + x[t] @ K.T for t in range(steps)])
    limits = [cp.abs(force) <= 1 for force in u]
    cp.Problem(cp.Minimize(S[0, 0] * cp.sum_squares(over)), moves + limits).solve(cp.CLARABEL)
    return S[0, 0] * (over.value**2).sum(1)


rng = np.random.default_rng(0)
states = rng.uniform(-2, 2, (300, 2))
extra = least_extra(states)
network = input_convex((2, 20, 20, 1))
model = Lifted(network, seed=0).fit(torch.from_numpy(states), torch.from_numpy(extra)[:, None])
print(certify(model))

# %%
# One step ahead of ten new states at once. They are parameters, so that nothing is compiled again.
starts = rng.uniform(-2, 2, (10, 2))
x, u = cp.Parameter(starts.shape), cp.Variable((len(starts), 1), bounds=[-1, 1])
after = to_cvxpy(model, x @ A.T + u @ B.T)
cost = cp.Minimize(S[0, 0] * cp.sum_squares(u + x @ K.T) + cp.sum(after.output))
gaps = []


def learned(state):
    """Return the forces that are best by the learned cost-to-go."""
    x.value = state
    best = optimize(after, cost, [], gap=1e-4)
    gaps.append(best.gap if best.proven else np.inf)
    return u.value


def clipped(state):
    """Return the forces of the controller without a limit, cut off at it."""
    return np.clip(-state @ K.T, -1, 1)


def closed_loop(law, steps=25):
    """Return the states and what each start costs under a law."""
    path, paid = [starts], np.zeros(len(starts))
    for _ in range(steps):
        force = law(path[-1])
        paid += ((path[-1] @ Q) * path[-1]).sum(1) + ((force @ R) * force).sum(1)
        path.append(path[-1] @ A.T + force @ B.T)
    return np.array(path), paid + ((path[-1] @ P) * path[-1]).sum(1)


least = ((starts @ P) * starts).sum(1) + least_extra(starts)
paths = {}
for law in (learned, clipped):
    paths[law], paid = closed_loop(law)
    above = paid / least - 1
    print(f"{law.__name__}: {above.mean():.1%} above the least cost, at worst {above.max():.1%}")
print(f"the largest gap of {len(gaps)} steps: {max(gaps):.0e}")

# %%
line = np.linspace(-2.4, 2.4, 81)
grid = np.stack(np.meshgrid(line, line), -1)
height = model.predict(torch.from_numpy(grid.reshape(-1, 2))).reshape(81, 81)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
shown = left.contourf(line, line, height, levels=20, cmap="Greys")
left.set(xlabel="position", ylabel="speed", title="learned cost of the limit")
figure.colorbar(shown, ax=left)
worst = int(above.argmax())  # where cutting off costs most
for law, color in ((learned, "tab:orange"), (clipped, "tab:blue")):
    left.plot(*paths[law][:, worst].T, ".-", color=color)
    right.plot(0.5 * np.arange(26), paths[law][:, worst, 0], ".-", color=color, label=law.__name__)
left.set(xlim=(-2.4, 2.4), ylim=(-2.4, 2.4))
right.set(xlabel="seconds", ylabel="position")
right.legend()
plt.show()
