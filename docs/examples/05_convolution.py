"""
A convolutional network
=======================

A convolution is affine in its kernel and in its input, and a mean over windows is linear: the
subproblems are of the same kind as those of a dense layer.
"""

import matplotlib.pyplot as plt
from torch.nn.functional import conv2d

from liftednet import Network, data
from liftednet.activations import ReLU
from liftednet.layers import average_pooling, convolution, dense
from liftednet.losses import CrossEntropy
from liftednet.models import Lifted, Minibatch

network = Network()
image = network.input(1, 8, 8)
maps = network.state(ReLU(), convolution(image, 8, 3, padding=1))
network.loss(CrossEntropy(), dense(average_pooling(maps, 2), 10))

digits = data.digits()
images = {part: getattr(digits, part).reshape(-1, 1, 8, 8) for part in ("x_train", "x_test")}
model = Lifted(network, rho=0.1, method=Minibatch(epochs=10), standardize=False)
model.fit(images["x_train"], digits.y_train)
accuracy = (model.predict(images["x_test"]) == digits.y_test).float().mean()
print(f"accuracy {accuracy:.3f}")

# %%
# The kernels that it has learned, and beside each what it makes of one digit.
kernels = model.weights[0].matrix.T.reshape(-1, 3, 3)
figure, rows = plt.subplots(2, 8, figsize=(9, 2.6), layout="constrained")
seen = images["x_test"][:1]
convolved = conv2d(seen, kernels.unsqueeze(1), model.weights[0].bias, padding=1).relu()[0]
for above, below, kernel, answer in zip(*rows, kernels, convolved, strict=True):
    above.imshow(kernel, cmap="gray")
    below.imshow(answer, cmap="gray")
    for panel in (above, below):
        panel.set(xticks=[], yticks=[])
rows[0][0].set_ylabel("kernel")
rows[1][0].set_ylabel("states")
plt.show()
