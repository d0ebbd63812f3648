"""The catalogue: each activation with its potential, domain, forward map, prox and conjugate.

phi(u) = argmin_v Phi(v) - <u, v> over dom Phi; equations and sections are those of Lifted Neural
Networks. L is the Lipschitz constant of phi, which the joint divergence needs.

========================  ==============================  ===========  =====================  =====
activation                Phi(v), summed over the units   dom Phi      phi(u)                 L
========================  ==============================  ===========  =====================  =====
`Identity`                v^2 / 2                         reals        u                      1
`ReLU`                    v^2 / 2                         v >= 0       max(u, 0)              1
`LeakyReLU(alpha)`        v^2 / 2, v^2 / (2 alpha)        reals        max(u, alpha u)        1
                          where v < 0
`PReLU(slopes)`           the same with a slope alpha     reals        max(u, alpha u) for     1
                          for every channel                            alpha <= 1
`Clipped(lower, upper)`   v^2 / 2                         the box      u clipped to the box   1
`Sign`                    0                               [-1, 1]      sign(u)                none
`Quantized`               v^2 / 2 at the levels, linear   [lower,      the nearest level      none
                          between them                    upper]
`Sigmoid`                 v log v + (1-v) log(1-v)        [0, 1]       1 / (1 + exp(-u))      1/4
`Tanh`                    ((1-v) log(1-v)                 [-1, 1]      tanh(u)                1
                          + (1+v) log(1+v)) / 2
`Arctan`                  -log cos(v)                     [-pi/2,      arctan(u)              1
                                                          pi/2]
`Sine`                    v arcsin(v) + sqrt(1-v^2) - 1   [-1, 1]      sin(u), u clipped to   1
                                                                       [-pi/2, pi/2]
`Softplus`                integral of log(exp(z) - 1)     v >= 0       log(1 + exp(u))        1
                          from 0 to v
`ELU`                     v^2 / 2, (1+v) log(1+v) - v     v >= -1      u, exp(u) - 1          1
                          where v < 0                                  where u < 0
`Softmax`                 v log v                         simplex      exp(u) / sum exp(u)    1/2
`SimplexProjection`       v^2 / 2                         simplex      nearest point to u     1
========================  ==============================  ===========  =====================  =====

Where they stand in the paper: `Identity` section 3; `ReLU` eq. (4); `LeakyReLU` eq. (8); `Clipped`
and `Sign` section 4, non-strictly monotone examples; `Sigmoid`, `Tanh` (printed as arctanh) and
`Softplus` section 4, strictly monotone; `Arctan` and `ELU` by eq. (6); `Sine` section 4, right on
the monotone range alone; `Softmax` eq. (11); `SimplexProjection` section 4 and eq. (15).

`MaxPooling(block)`, eq. (9), the largest entry of a block, has no such potential: a network states
it by ReLU states of differences (`Network.maximum`). `GELU`, `SiLU`, `Mish` and `Hardswish` fall
somewhere: their states are those of phi(u) + c u, which does not, and layers above take c u off.

Every other one passes `liftednet.check_activation`. A map that is not here takes one line,
`Activation.from_function(torch.nn.functional.softsign)`.
"""

from liftednet.activations import not_monotone, piecewise_linear, simplex, smooth
from liftednet.activations.not_monotone import *  # noqa: F403
from liftednet.activations.piecewise_linear import *  # noqa: F403
from liftednet.activations.simplex import *  # noqa: F403
from liftednet.activations.smooth import *  # noqa: F403

__all__ = not_monotone.__all__ + piecewise_linear.__all__ + simplex.__all__ + smooth.__all__
