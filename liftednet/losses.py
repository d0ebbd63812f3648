"""Losses: divergences whose v is data, and losses on output states.

A Fenchel-Young loss is D(y, u) with u the last pre-activation. An output loss L(y, z) compares the
data with output states z that have an activation of their own (Lifted Neural Networks, eq. (14)).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from liftednet.activation import Activation
from liftednet.activations.piecewise_linear import Identity
from liftednet.activations.simplex import SimplexProjection, Softmax
from liftednet.activations.smooth import Exponential, Sigmoid
from liftednet.divergences import Divergence, Tight, tight
from liftednet.errors import DataError, DeclarationError
from liftednet.evaluation import evaluate_all, stating
from liftednet.lazy import cvxpy as cp
from liftednet.noise import Noise
from liftednet.predictions import MOST_LOGARITHM, CountPrediction, Prediction, RobustPrediction
from liftednet.validation import is_number, name_of, require_finite, require_positive

_SUMMED, _OFF = 8, 1e-6  # rows of which a declared loss is the sum, to what CVXPY's solvers tell

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Declared",
    "FenchelYoungLoss",
    "Huber",
    "Likelihood",
    "Loss",
    "OutputLoss",
    "Poisson",
    "Quantile",
    "SimplexCrossEntropy",
    "SquaredError",
]


class Loss(ABC):
    """How targets become numbers, and numbers predictions.

    Attributes:
        probabilistic: whether the outputs are class probabilities.
        equivariant: whether shifted and scaled targets only shift and scale the best outputs, so
            that training may standardize them.
        robust: whether outliers hardly count, and one unit is that of all outputs.

    Example:
        >>> from liftednet.losses import CrossEntropy, Loss, SquaredError
        >>> isinstance(CrossEntropy(), Loss), SquaredError().probabilistic
        (True, False)
    """

    probabilistic: bool = True
    equivariant: bool = False
    robust: bool = False

    @abstractmethod
    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return targets (samples, outputs) in y's floating type, or float64 for labels.

        Raises:
            DataError: y does not fit the loss or the number of outputs.
        """

    @abstractmethod
    def decode(self, output: Tensor) -> Tensor:
        """Return predictions from outputs (samples, outputs): labels, or the outputs."""

    def scaled(self, unit: float) -> Loss:
        """Return the loss of targets in other units, of which one has so many of these."""
        return self

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def _refuse_bad_values(self, y: Tensor) -> None:
        if y.numel() == 0:
            raise DataError(f"the targets of {self.name} are empty: shape {tuple(y.shape)}.")
        require_finite(f"the targets of {self.name}", y)

    def __repr__(self) -> str:
        """Name the class."""
        return f"{self.name}()"


class _Numbers(Loss):
    """A loss of targets that are numbers, (samples, outputs)."""

    probabilistic = False

    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return y as (samples, outputs)."""
        self._refuse_bad_values(y)
        if not y.is_floating_point():
            raise DataError(
                f"{self.name} needs floating point targets, got {y.dtype}: convert numbers with "
                ".float(); classes have CrossEntropy()."
            )
        target = y.unsqueeze(-1) if y.ndim == 1 else y
        if target.ndim != 2 or target.shape[1] != outputs:
            raise DataError(
                f"{self.name} needs targets of shape (samples, {outputs}), got {tuple(y.shape)}."
            )
        return target

    def decode(self, output: Tensor) -> Tensor:
        """Return the outputs."""
        return output


class _Classes(Loss):
    """A loss of labels, or of class probabilities."""

    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return one-hot rows for labels, or the given probabilities, (samples, outputs)."""
        self._refuse_bad_values(y)
        return _class_targets(y, outputs, self.name)

    def decode(self, output: Tensor) -> Tensor:
        """Return the most probable class, (samples,) int64."""
        return output.argmax(-1)


class FenchelYoungLoss(Loss):
    """A divergence D(y, u) = Phi(y) + Phi*(u) - <y, u> of an activation, which is Phi*'.

    Learning with Fenchel-Young Losses (Blondel, Martins, Niculae, 2020), definition 2: Omega = Phi.

    Attributes:
        divergence: D.

    Example:
        >>> import torch
        >>> from liftednet.losses import CrossEntropy, FenchelYoungLoss
        >>> isinstance(CrossEntropy(), FenchelYoungLoss)
        True
        >>> CrossEntropy().divergence.activation.forward(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """

    divergence: Divergence


class OutputLoss(Loss):
    """A loss L(y, z) on output states z.

    Attributes:
        activation: of the output states where none is given.
        nonnegative_target: whether the targets cannot be negative.
        closed: whether `stationary_point` is the minimizer itself, whatever z.
        stated_only: whether the loss is known to CVXPY alone, without a stationary point.

    Example:
        >>> from liftednet.losses import Huber, OutputLoss, Quantile
        >>> isinstance(Huber(), OutputLoss), isinstance(Quantile(), OutputLoss)
        (True, True)
    """

    activation: Activation
    nonnegative_target: bool = False
    closed: bool = False
    stated_only: bool = False

    def require_activation(self, activation: Activation) -> None:
        """Raise `DeclarationError` where the loss cannot be paired with an activation."""
        return

    @abstractmethod
    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Return the point that z equals exactly when it minimizes L(y, .) + lam D(., u)."""

    @abstractmethod
    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return L(y, z), summed over samples, in CVXPY."""

    @abstractmethod
    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return L(y, z) of every sample, (samples,)."""

    def output_value(self, y: Tensor, z: Tensor) -> Tensor:
        """Return L(y, z) summed over the samples, a scalar."""
        return self.output_values(y, z).sum()


class Likelihood(Loss):
    """A loss by which numbers lie around what a network answers, as exp(-loss / s) or nearly.

    Attributes:
        delta: residuals from which it is linear; infinite where it is not Huber's.
        sized: whether the data tell s, the size of the noise; elsewhere it is 1.
        dispersed: whether s is told where answers vary clearly more than by s = 1.

    Example:
        >>> from liftednet.losses import Huber, Likelihood, Quantile
        >>> isinstance(Huber(), Likelihood), isinstance(Quantile(), Likelihood)
        (True, False)
    """

    delta: float = math.inf
    sized: bool = True
    dispersed: bool = False

    @abstractmethod
    def predicted(self, center: Tensor, width: Tensor, noise: Noise, degrees: float) -> Prediction:
        """Return the answers whose pre-activations are N(center, width^2), in units of y.

        Args:
            center: (samples, outputs).
            width: (samples, outputs).
            noise: around them.
            degrees: of freedom by which its size is known.
        """

    def drawn(self, u: Tensor, noise: Noise, generator: torch.Generator) -> Tensor:
        """Return answers drawn around pre-activations, (..., outputs)."""
        return u + noise.draw(u, generator)

    def log_constant(self, y: Tensor) -> Tensor:
        """Return what -log p(y) has beside the loss and s, (samples, outputs)."""
        return torch.zeros_like(y)


class SquaredError(_Numbers, FenchelYoungLoss, OutputLoss, Likelihood):
    """|y - u|^2 / 2, summed over samples and outputs.

    Lifted Neural Networks, eq. (5) and section 6.2, up to the factor 1/2.

    Example:
        >>> import torch
        >>> from liftednet.losses import SquaredError
        >>> y, z = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
        >>> SquaredError().output_value(y, z)
        tensor(0.2500)
    """

    equivariant = True
    closed = True

    def __init__(self) -> None:
        """Make the divergence of the identity."""
        self.activation = Identity()
        self.divergence = tight(self.activation)

    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return |y - z|^2 / 2."""
        return cp.sum_squares(y - z) / 2

    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return |y - z|^2 / 2 of every sample, (samples,)."""
        return (y - z).square().sum(-1) / 2

    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Return prox_{lam Phi}(y + lam u), the closed form of section 6.2 for any prox."""
        return activation.prox(y + lam * u, lam)

    def predicted(self, center: Tensor, width: Tensor, noise: Noise, degrees: float) -> Prediction:
        """Return answers of Student's distribution."""
        return Prediction(center, noise.size.sqrt().expand_as(center), width, degrees)


class CrossEntropy(_Classes, FenchelYoungLoss):
    """log sum exp(u) - <y, u> + sum y log y, from labels or from class probabilities.

    Lifted Neural Networks, eq. (11). Smoothed labels, 0.1 or so, make large networks on large data
    better by some tenths of a percent, and small or unbalanced data sets worse.

    Args:
        smoothing: share of every target that is spread evenly over all classes, in [0, 1).

    Raises:
        DataError: the share is out of its range.

    Example:
        >>> import torch
        >>> from liftednet.losses import CrossEntropy
        >>> loss = CrossEntropy()
        >>> y = loss.encode(torch.tensor([0, 1]), outputs=2)
        >>> loss.divergence.value(y.float(), torch.zeros(2, 2))  # 2 log 2
        tensor(1.3863)
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        """Make the divergence of the softmax."""
        if not is_number(smoothing) or not 0 <= smoothing < 1:
            raise DataError(f"smoothing must be a share in [0, 1), got {smoothing!r}.")
        self.smoothing = float(smoothing)
        self.divergence = Tight(Softmax())

    def __repr__(self) -> str:
        """Name the class, and the smoothing where there is one."""
        return f"{self.name}({f'smoothing={self.smoothing:g}' if self.smoothing else ''})"

    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return one-hot rows for labels, or the given probabilities, smoothed.

        Shape (samples, outputs).
        """
        target = super().encode(y, outputs)
        if not self.smoothing:
            return target
        return target.mul(1 - self.smoothing).add_(self.smoothing / outputs)


class BinaryCrossEntropy(_Numbers, FenchelYoungLoss):
    """log(1 + exp(u)) - y u, plus y log y + (1 - y) log(1 - y) for y strictly inside [0, 1].

    Example:
        >>> import torch
        >>> from liftednet.losses import BinaryCrossEntropy
        >>> BinaryCrossEntropy().decode(torch.tensor([[0.2, 0.7]]))
        tensor([[0, 1]])
    """

    probabilistic = True

    def __init__(self) -> None:
        """Make the divergence of the sigmoid."""
        self.divergence = Tight(Sigmoid())

    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return y in [0, 1] as (samples, outputs)."""
        target = super().encode(y if y.is_floating_point() else y.double(), outputs)
        if bool(((target < 0) | (target > 1)).any()):
            raise DataError(
                "BinaryCrossEntropy needs targets in [0, 1], got values from "
                f"{float(target.min()):.4g} to {float(target.max()):.4g}."
            )
        return target

    def decode(self, output: Tensor) -> Tensor:
        """Return 1 where the probability exceeds 1/2, else 0, int64 (samples, outputs)."""
        return (output > 0.5).to(torch.int64)


class Poisson(_Numbers, FenchelYoungLoss, Likelihood):
    """exp(u) - y u, plus y log y - y: half the deviance of counts y of rate exp(u).

    Nelder and Wedderburn, Generalized Linear Models, Journal of the Royal Statistical Society A 135
    (1972). Its gradient has no Lipschitz constant: Gauss-Newton trains it. Numbers of 0 or more are
    taken, integers or not, as by scikit-learn's PoissonRegressor: of counts over times of several
    lengths give rates y, and the times as weights of samples. Intervals are of counts. By the
    evidence counts may have s times Poisson's variance, see `Evidence`.

    Example:
        >>> import torch
        >>> from liftednet.losses import Poisson
        >>> Poisson().divergence.value(torch.tensor([[3.0]]), torch.zeros(1, 1))  # 3 log 3 - 2
        tensor(1.2958)
    """

    sized = False
    dispersed = True

    def __init__(self) -> None:
        """Make the divergence of the exponential."""
        self.divergence = Tight(Exponential())

    def encode(self, y: Tensor, outputs: int) -> Tensor:
        """Return y >= 0 as (samples, outputs).

        Raises:
            DataError: a count is negative.
        """
        target = super().encode(y if y.is_floating_point() else y.double(), outputs)
        if bool((target < 0).any()):
            raise DataError(f"Poisson needs numbers of 0 or more, got {float(target.min()):.4g}.")
        return target

    def predicted(self, center: Tensor, width: Tensor, noise: Noise, degrees: float) -> Prediction:
        """Return counts, averaged over their rates."""
        return CountPrediction.around(center, width, noise.size)

    def drawn(self, u: Tensor, noise: Noise, generator: torch.Generator) -> Tensor:
        """Return counts of mean exp(u), and s times as much variance, by rates from a gamma."""
        rates, more = u.cpu().clamp(max=MOST_LOGARITHM).exp(), (noise.size.cpu() - 1).expand_as(u)
        varied = more > 0
        shapes = rates[varied] / more[varied]
        rates[varied] = torch._standard_gamma(shapes, generator) * more[varied]
        return torch.poisson(rates, generator).to(u)

    def log_constant(self, y: Tensor) -> Tensor:
        """Return log y! less what half the deviance has of it."""
        return y - torch.xlogy(y, y) + torch.lgamma(y + 1)


class SimplexCrossEntropy(_Classes, OutputLoss):
    """-<y, log z> for output states z on the simplex.

    Lifted Neural Networks, eq. (15) and appendix A.

    Example:
        >>> import torch
        >>> from liftednet.losses import SimplexCrossEntropy
        >>> y, z = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
        >>> SimplexCrossEntropy().output_value(y, z)
        tensor(0.6931)
    """

    nonnegative_target = True

    def __init__(self) -> None:
        """Take the projection on the simplex as the output activation."""
        self.activation = SimplexProjection()

    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return -sum y log z."""
        return -cp.sum(cp.multiply(y, cp.log(z)))

    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return -sum y log z of every sample, (samples,), with 0 log 0 = 0."""
        return -torch.xlogy(y, z.clamp(min=0)).sum(-1)

    def require_activation(self, activation: Activation) -> None:
        """Raise `DeclarationError` unless the outputs are projected on the simplex."""
        if not isinstance(activation, SimplexProjection):
            raise DeclarationError(
                "SimplexCrossEntropy needs output states on the simplex, that is the activation "
                f"SimplexProjection(); got {activation!r}."
            )

    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Return z(nu) of appendix A at the multiplier nu that z itself implies."""
        inside = z.clamp(min=torch.finfo(z.dtype).tiny ** 0.5)
        slope = z - u - y / (lam * inside)
        nu = (z * slope).sum(-1, keepdim=True) / z.sum(-1, keepdim=True)
        states = simplex_states(y / lam, u + nu)
        return states / states.sum(-1, keepdim=True)


class _Robust(_Numbers, OutputLoss):
    """A loss of y - z for each output, whose slope in z lies between two numbers."""

    closed = True

    def __init__(self) -> None:
        """Take the identity as the output activation."""
        self.activation = Identity()

    def require_activation(self, activation: Activation) -> None:
        """Raise `DeclarationError` unless the outputs are mapped unit by unit."""
        if not activation.per_unit:
            raise DeclarationError(
                f"{self!r} needs an activation that maps unit by unit, not {activation!r}."
            )

    def __repr__(self) -> str:
        """Name the class and its parameter."""
        (value,) = (x for name, x in vars(self).items() if name != "activation")
        return f"{self.name}({value})"


class Quantile(_Robust):
    """q max(y - z, 0) + (1 - q) max(z - y, 0), summed: the q-quantile of y given the inputs.

    The pinball loss of Koenker and Bassett, Regression quantiles, Econometrica 46 (1978). It has
    output states of its own: with the identity, the last pre-activations u see its Moreau envelope,
    in which the kink is rounded over 1 / lam: raise lam where that is too much, by minibatches;
    blocks of method="full" then move too little to end at the least loss.

    Raises:
        DataError: the level is not strictly between 0 and 1.

    Example:
        >>> import torch
        >>> from liftednet.losses import Quantile
        >>> y, z = torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [2.0]])
        >>> Quantile(0.9).output_values(y, z)
        tensor([0.9000, 0.1000])
    """

    equivariant = True

    def __init__(self, level: float = 0.5) -> None:
        """Keep q."""
        super().__init__()
        self.level = require_positive("the level of a quantile", level)
        if self.level >= 1:
            raise DataError(f"the level of a quantile must be below 1, got {level}.")

    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return the sum of q max(y - z, 0) + (1 - q) max(z - y, 0)."""
        return cp.sum(self.level * cp.pos(y - z) + (1 - self.level) * cp.pos(z - y))

    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the loss of every sample, (samples,)."""
        short = y - z
        return torch.maximum(self.level * short, (self.level - 1) * short).sum(-1)

    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Return y cut off at phi(u - (1 - q) / lam) and phi(u + q / lam), the minimizer."""
        return _held(y, u, activation, lam, (-self.level, 1 - self.level))


class Huber(_Robust, Likelihood):
    """|y - z|^2 / 2 up to a distance delta and delta |y - z| - delta^2 / 2 beyond, summed.

    Huber, Robust estimation of a location parameter, Annals of Mathematical Statistics 35 (1964).
    It has output states of its own: with the identity, the last pre-activations u see its Moreau
    envelope, which is lam / (1 + lam) times the Huber loss of delta (1 + 1 / lam). Gauss-Newton
    and the global optimum take the loss itself.

    Raises:
        DataError: delta is not positive.

    Example:
        >>> import torch
        >>> from liftednet.losses import Huber
        >>> Huber(1.0).output_values(torch.zeros(2, 1), torch.tensor([[0.5], [3.0]]))
        tensor([0.1250, 2.5000])
    """

    equivariant = True
    robust = True

    def __init__(self, delta: float = 1.0) -> None:
        """Keep delta."""
        super().__init__()
        self.delta = require_positive("delta", delta)

    def scaled(self, unit: float) -> Huber:
        """Return the loss with delta in these units."""
        return Huber(self.delta / unit)

    def predicted(self, center: Tensor, width: Tensor, noise: Noise, degrees: float) -> Prediction:
        """Return answers whose noise is normal up to delta, and has tails."""
        deviation = noise.variance.sqrt().expand_as(center)
        return RobustPrediction(center, deviation, width, law=noise)

    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return half of CVXPY's Huber function of y - z, summed."""
        huber = cp.huber(y - z, self.delta)  # type: ignore[arg-type]  # any positive number
        return cp.sum(huber) / 2

    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the loss of every sample, (samples,)."""
        return functional.huber_loss(z, y, reduction="none", delta=self.delta).sum(-1)

    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Return the minimizer for the squared loss, cut off at phi(u -+ delta / lam)."""
        inner = activation.prox(y + lam * u, lam)
        return _held(inner, u, activation, lam, (-self.delta, self.delta))


class Declared(_Numbers, OutputLoss):
    """A loss that is declared by a CVXPY expression alone, which CVXPY solves and evaluates.

    It has output states of its own, and the reference solver serves it: slow but right.

    Raises:
        DeclarationError: at first use, the expression is not convex in z to CVXPY, is without z, or
            is no sum over the samples.

    Example:
        >>> import cvxpy as cp
        >>> import torch
        >>> from liftednet.losses import Declared
        >>> worst = Declared(lambda y, z: cp.sum(cp.max(cp.abs(y - z), axis=1)))
        >>> worst.output_values(torch.zeros(1, 3), torch.tensor([[1.0, -2.0, 0.5]]))
        tensor([2.])
    """

    stated_only = True

    def __init__(
        self,
        function: Callable[[cp.Expression, cp.Expression], cp.Expression],
        activation: Activation | None = None,
    ) -> None:
        """Keep the declaration.

        Args:
            function: takes y and z (samples, outputs) and returns L(y, z), a scalar that is summed
                over the samples.
            activation: of the output states; None for the identity.
        """
        self.function = function
        self.activation = Identity() if activation is None else activation

    def expression(self, y: cp.Expression, z: cp.Expression) -> cp.Expression:
        """Return the declared L(y, z)."""
        found = self.function(y, z)
        inside = {x.id for x in found.variables()} if hasattr(found, "variables") else set()
        if not {x.id for x in z.variables()} <= inside:
            raise DeclarationError(f"{self!r} is without z, which nothing would be fitted to.")
        return found

    def output_values(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the loss of every sample, (samples,), evaluated by CVXPY."""
        pairs = zip(*(x.detach().double().cpu().numpy()[:, None] for x in (y, z)), strict=True)
        with stating(repr(self)):
            rows = [self.function(*map(cp.Constant, pair)) for pair in pairs]
            values = evaluate_all(rows)
            some = (cp.Constant(x.detach().double().cpu().numpy()[:_SUMMED]) for x in (y, z))
            (together,) = evaluate_all([self.function(*some)])
        total = sum(values[:_SUMMED])
        if abs(together - total) > _OFF * (1 + abs(total)):
            count = len(values[:_SUMMED])
            raise DeclarationError(
                f"{self!r} must be a sum over the samples: of {count} rows together it is "
                f"{together:.6g}, and of one after another {total:.6g}. Write cp.sum(...) of the "
                "losses of all rows, in place of their mean, maximum or norm."
            )
        return z.new_tensor(values)

    def stationary_point(
        self, z: Tensor, y: Tensor, u: Tensor, activation: Activation, lam: float
    ) -> Tensor:
        """Refuse: CVXPY certifies it."""
        raise DeclarationError(f"{self!r} is known to CVXPY alone: use the reference solver.")

    @property
    def name(self) -> str:
        """The class and the function."""
        return f"Declared({name_of(self.function)})"

    def __repr__(self) -> str:
        """Name the class and the function."""
        return self.name


def _held(
    inner: Tensor, u: Tensor, activation: Activation, lam: float, ends: tuple[float, float]
) -> Tensor:
    """Return the minimizer, where a slope held between two ends is inside: `inner`.

    The slope of L + lam D increases with z, and its root is that of the slope without ends, cut
    off at the roots phi(u - end / lam) of the slopes that are constant at either end.
    """
    least, most = (activation.forward(u - end / lam) for end in reversed(ends))
    return torch.minimum(torch.maximum(inner, least), most)


def simplex_states(a: Tensor, s: Tensor) -> Tensor:
    """Return z >= 0 with z - a / z = s: max(s, 0) + 2 a / (|s| + sqrt(s^2 + 4 a)).

    That is (s + sqrt(s^2 + 4 a)) / 2 without cancellation.

    Lifted Neural Networks, appendix A, with a = y / lam and s = u + nu (its lam is half of ours).
    """
    root = torch.addcmul(4 * a, s, s).sqrt() + s.abs()
    return s.clamp(min=0) + 2 * a / root.clamp(min=torch.finfo(s.dtype).tiny)


def _class_targets(y: Tensor, outputs: int, loss: str) -> Tensor:
    if y.ndim == 1 and not y.is_floating_point():
        return _one_hot(y, outputs, loss)
    if y.ndim != 2 or y.shape[1] != outputs or not y.is_floating_point():
        if y.ndim == 1:
            hint = ": make labels integers, or take SquaredError() where the targets are numbers"
        else:
            hint = ": give y[:, 0], or of one-hot labels y.argmax(1)" if y.ndim == 2 else ""
        raise DataError(
            f"{loss} needs integer labels (samples,) or probabilities (samples, {outputs}), "
            f"got {y.dtype} of shape {tuple(y.shape)}{hint}."
        )
    total = y.sum(-1)
    if bool((y < 0).any()) or bool(((total - 1).abs() > 1e-4).any()):
        raise DataError(
            f"{loss} needs class probabilities, nonnegative with sum 1 in each row; the smallest "
            f"entry is {float(y.min()):.4g} and the row sums reach from {float(total.min()):.4g} "
            f"to {float(total.max()):.4g}. Targets that are numbers have SquaredError()."
        )
    return y / total.unsqueeze(-1)


def _one_hot(y: Tensor, outputs: int, loss: str) -> Tensor:
    low, high = int(y.min()), int(y.max())
    if outputs == 1:
        raise DataError(
            f"{loss} needs an output for each class, and the network has one: give it more, or "
            "take BinaryCrossEntropy()."
        )
    if low < 0 or high >= outputs:
        raise DataError(
            f"{loss} with {outputs} outputs needs labels from 0 to {outputs - 1}, got labels "
            f"from {low} to {high}."
        )
    if low == high:
        raise DataError(
            f"{loss} needs at least two classes among the labels; every label is {low}."
        )
    return functional.one_hot(y.to(torch.int64), outputs).to(torch.float64)
