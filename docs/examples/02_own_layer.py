"""
A layer of one's own
====================

A layer is a class with a shape and a value that is affine in each argument and in its weights. The
linear maps that solvers need follow by automatic differentiation.
"""

import matplotlib.pyplot as plt

from liftednet import Network, data
from liftednet.activations import Identity
from liftednet.layers import Layer, apply, check_layer, dense
from liftednet.losses import CrossEntropy
from liftednet.models import FullBatch, Lifted
from liftednet.penalties import L1, Nonnegative

# %%
# This one multiplies every unit by a factor of its own: u = x · w, with one row of weights.


class Scaling(Layer):
    """u = x w, entry by entry."""

    def shape(self, x):
        return x

    def weight_shape(self, x):
        return 1, x[0]

    def value(self, arguments, weights):
        return arguments[0] * weights.matrix[0]


check_layer(Scaling(), (64,))

# %%
# With a penalty on their sum and no negative ones, the factors say which pixels of a digit matter.
# The states between the two layers keep the problem of either convex. The model warns that units
# answer the same to every sample: here that is what the penalty is for.
network = Network()
sparse = L1(1) + Nonnegative()
scaled = network.state(Identity(), apply(Scaling(), network.input(64), penalty=sparse))
network.loss(CrossEntropy(), dense(scaled, 10))
digits = data.digits()
model = Lifted(network, lam=1.0, rho=0.1, method=FullBatch(sweeps=5), standardize=False)
model.fit(digits.x_train[:300], digits.y_train[:300])
accuracy = (model.predict(digits.x_test) == digits.y_test).float().mean()
factors = model.weights[0].matrix[0]
print(f"accuracy {accuracy:.3f}, factors that are zero: {int((factors == 0).sum())} of 64")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
left.imshow(digits.x_train.mean(0).reshape(8, 8), cmap="gray")
left.set(title="mean digit", xticks=[], yticks=[])
shown = right.imshow(factors.reshape(8, 8))
right.set(title="factors", xticks=[], yticks=[])
figure.colorbar(shown, ax=right)
plt.show()
