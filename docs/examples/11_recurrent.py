"""
A recurrent network
===================

`LiftedRNN` lifts the states of every time step. Without settings it takes Gauss-Newton steps of all
weights together, which learn from sequences where plain gradients fade.
"""

import matplotlib.pyplot as plt

from liftednet import data
from liftednet.models import GaussNewton, LiftedRNN

# %%
# Numbers from -1 to 1 come in. The label of each step says whether their sum so far is positive.
x, y = data.running_sum(100, 40, seed=0)
fresh, wanted = data.running_sum(200, 40, seed=1)
print("inputs", tuple(x.shape), "labels", tuple(y.shape))

# %%
model = LiftedRNN(1, 10, 2, start="identity", method=GaussNewton(steps=12))
model.fit(x, y)
correct = (model.predict(fresh) == wanted).float()
print(f"accuracy {float(correct.mean()):.3f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(model.trace.objectives, marker="o")
left.set(xlabel="steps", ylabel="objective", yscale="log")
right.plot(correct.mean(0))
right.set(xlabel="time step", ylabel="accuracy on fresh sequences", ylim=(0.5, 1.01))
plt.show()
