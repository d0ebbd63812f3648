"""
Differentiating through a solution
==================================

`solve_differentiable` solves a subproblem and lets gradients flow from its solution back to its
data, by the optimality conditions. Here a penalty is chosen by descent on held-out samples.
"""

import matplotlib.pyplot as plt
import torch

from liftednet.activations import Identity
from liftednet.divergences import joint
from liftednet.penalties import SquaredFrobenius
from liftednet.problems import Design, WeightFit
from liftednet.solvers import solve_differentiable

generator = torch.Generator().manual_seed(0)


def drawn(samples):
    """Return features and noisy targets of one linear map."""
    x = torch.randn(samples, 20, generator=generator, dtype=torch.float64)
    truth = torch.linspace(1, 0, 20, dtype=torch.float64).unsqueeze(1)
    noise = torch.randn(samples, 1, generator=generator, dtype=torch.float64)
    return x, x @ truth + 2 * noise


(x, y), (held_x, held_y) = drawn(30), drawn(200)
fit = WeightFit(joint(Identity()), Design(x, bias=False), y, SquaredFrobenius(1.0))


def held_out(log_rho):
    """Return the mean squared error on held-out samples at a penalty."""
    weights = solve_differentiable(fit, rho=log_rho.exp()).value.matrix
    return (held_x @ weights - held_y).square().mean()


# %%
# Newton's method would do, too; plain steps show that the gradient is right.
log_rho = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
path = []
for _ in range(40):
    loss = held_out(log_rho)
    (slope,) = torch.autograd.grad(loss, log_rho)
    path.append((float(log_rho.detach().exp()), float(loss.detach())))
    with torch.no_grad():
        log_rho -= 2.0 * slope
print(f"rho {path[-1][0]:.3g}, held-out error {path[-1][1]:.4f}")

# %%
# The gradient beside a central difference.
point = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
(exact,) = torch.autograd.grad(held_out(point), point)
with torch.no_grad():
    difference = (held_out(point + 1e-4) - held_out(point - 1e-4)) / 2e-4
print(f"by the optimality conditions {float(exact):.8f}, by differences {float(difference):.8f}")

# %%
grid = torch.linspace(-5, 5, 41, dtype=torch.float64)
with torch.no_grad():
    errors = [float(held_out(log)) for log in grid]
figure, panel = plt.subplots(figsize=(5.5, 3), layout="constrained")
panel.plot(grid.exp(), errors, color="gray", label="held-out error")
panel.scatter(*zip(*path, strict=True), s=16, label="steps")
panel.set(xscale="log", xlabel="rho", ylabel="mean squared error")
panel.legend()
plt.show()
