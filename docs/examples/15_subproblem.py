"""
One subproblem, and who solves it
=================================

Everything that training solves is one kind of convex problem. It states itself in CVXPY and
measures its own objective and KKT residual, so that no solver judges itself.
"""

import time

import matplotlib.pyplot as plt

from liftednet import data
from liftednet.models import FullBatch, LiftedMLP
from liftednet.solvers import solve

digits = data.digits()
method = FullBatch(sweeps=2)
model = LiftedMLP((64, 20, 10), lam=1.0, rho=0.1, method=method, standardize=False)
model.fit(digits.x_train[:40].double(), digits.y_train[:40])

# %%
# The states of the hidden layer, at the point that training has reached, are a problem by
# themselves. A solver that cannot serve it would be refused with the reason.
problem = model.subproblem("states 1")
print(type(problem).__name__, "of", tuple(problem.pre_activation.shape))
found = {}
for name in ("auto", "proximal", "reference"):
    began = time.process_time()
    solution = solve(problem, solver=name)
    found[name] = solution, time.process_time() - began
    print(
        f"{name}: {solution.solver}, {solution.status.name}, objective {solution.objective:.8f}, "
        f"residual {solution.residual:.1e}, {found[name][1]:.3f} s"
    )

# %%
# The reference solver is CVXPY. It is slow, and independent: the two should agree.
ours, theirs = (found[name][0].value.flatten() for name in ("auto", "reference"))
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.scatter(theirs, ours, s=6)
left.axline((0, 0), slope=1, color="gray", linewidth=1)
left.set(xlabel="states by CVXPY", ylabel="states by the chosen solver")
right.bar(list(found), [seconds for _, seconds in found.values()])
right.set(ylabel="processor seconds", yscale="log")
plt.show()
