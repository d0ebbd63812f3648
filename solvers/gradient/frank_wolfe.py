"""Training along locally optimal trajectories: Frank-Wolfe steps in p-balls of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from liftednet.errors import DataError, SolverError
from liftednet.validation import is_number


@dataclass(frozen=True)
class Ball:
    """The vectors whose p-norm is at most the radius.

    Attributes:
        p: of the norm, 1 to infinity.
        radius: positive.

    Raises:
        DataError: p below 1, or a radius that is not positive and finite.
    """

    p: float
    radius: float

    def __post_init__(self) -> None:
        """Refuse what is no ball."""
        if not is_number(self.p) or not self.p >= 1:
            raise DataError(f"p must be at least 1; it is {self.p!r}.")
        positive("The radius", self.radius)

    def minimizer(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the point of the ball where the linear function is least.

        s = argmin { <s, g> : |s|_p <= radius } (RNN training along locally optimal trajectories,
        eqs. 6 and 7). With q = p / (p - 1), Hoelder's inequality is tight at

            s_i = -radius sign(g_i) |g_i|^(q - 1) / |g|_q^(q - 1),

        which is -radius g / |g|_2 for p = 2 and -radius sign(g) for p = infinity; for p = 1 all
        weight goes to the first largest |g_i|. The minimum is -radius |g|_q. Where g is 0, s is 0.

        Args:
            gradients: tensors of any shapes; the norm is of all their entries together.

        Returns:
            s, in the shapes of `gradients`.
        """
        largest = torch.stack([g.abs().max() for g in gradients]).max()
        if largest == 0:
            return [torch.zeros_like(g) for g in gradients]
        if self.p == 1:
            return self._vertex(gradients, largest)
        if self.p == math.inf:
            return [-self.radius * g.sign() for g in gradients]
        return self._smooth(gradients, largest)

    def _vertex(self, gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        minimizer = [torch.zeros_like(g) for g in gradients]
        place = next(i for i, g in enumerate(gradients) if g.abs().max() == largest)
        index = gradients[place].abs().argmax()
        sign = gradients[place].flatten()[index].sign()
        minimizer[place].view(-1)[index] = -self.radius * sign
        return minimizer

    def _smooth(self, gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        # Dividing by the largest entry first keeps every power between 0 and 1.
        scaled = [g / largest for g in gradients]
        if self.p == 2:
            norms = torch.stack([torch.linalg.vector_norm(t) for t in scaled])
            factor = -self.radius / torch.linalg.vector_norm(norms)
            return [t * factor for t in scaled]
        conjugate = self.p / (self.p - 1)
        powers = [t.abs() ** (conjugate - 1) for t in scaled]
        total = torch.stack([(w * t.abs()).sum() for w, t in zip(powers, scaled, strict=True)])
        factor = -self.radius / total.sum() ** (1 / self.p)
        return [t.sign() * w * factor for w, t in zip(powers, scaled, strict=True)]


Closure = Callable[[], Tensor]
OuterOptimizer = Callable[..., Optimizer]


def positive(name: str, value: float | Tensor) -> float:
    """Return `value` as a float if it is a positive finite number, or a tensor of one.

    Raises:
        DataError: it is not.
    """
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not is_number(number):
        raise DataError(f"{name} must be a number; it is {value!r}.")
    if not (math.isfinite(number) and number > 0):
        raise DataError(f"{name} must be positive; it is {value!r}.")
    return float(number)


def needs_closure(method: str, closure: Closure | None) -> Closure:
    """Return the closure if there is one.

    Raises:
        DataError: there is none.
    """
    if closure is None:
        raise DataError(
            f"{method}.step needs a closure that clears the gradients, computes the loss on the "
            "next batch, calls backward, and returns the loss."
        )
    return closure


def check_gradients(gradients: Iterable[Tensor]) -> None:
    """Refuse gradients that no step can be made from.

    Raises:
        DataError: a sparse gradient.
        SolverError: entries that are NaN or infinite.
    """
    gradients = list(gradients)
    if any(g.is_sparse for g in gradients):
        raise DataError("Sparse gradients are not supported: use dense embeddings.")
    # One norm per tensor and one look at the sum: NaN and infinity survive both.
    norms = torch._foreach_norm(gradients, math.inf) if gradients else []
    if norms and not bool(torch.stack(list(norms)).sum().isfinite()):
        shapes = [tuple(g.shape) for g in gradients if not bool(g.isfinite().all())]
        raise SolverError(
            f"Gradients of the parameters with shapes {shapes} are NaN or infinite; the weights "
            "are as they were before this step. A smaller learning rate, a smaller start or "
            "clipping may help."
        )


class FrankWolfe(Optimizer):
    r"""Step towards the minimum within a small ball around the weights.

    Each step makes K stochastic Frank-Wolfe steps in the p-ball of radius delta_t (RNN training
    along locally optimal trajectories, algorithm 1):

        s_k = argmin { <s, grad F(w + dw_{k-1})> : |s|_p <= delta_t },
        dw_k = (1 - 1/k) dw_{k-1} + s_k / k,

    and then w <- w + eta dw_K. The radius decays with the learning rate:
    delta_t = radius * eta_t / eta_0. With K = 1 and p = 2 it is a normalized gradient step.

    The outer step is that of another optimizer, which sees -dw_K as the gradient: SGD gives the
    formula above, `torch.optim.Adam` the paper's variant. It shares the parameter groups, so a
    scheduler on this optimizer drives it too.

    The closure is called K times a step and must clear the gradients, draw the next batch,
    compute its loss, call backward and return the loss.

    Args:
        params: parameters, or groups of them that may set lr, radius, inner_steps, p and joint.
        lr: learning rate eta of the outer step.
        radius: delta_0, in the units of the weights.
        inner_steps: K.
        p: of the norm, 1 to infinity.
        joint: one ball over all parameters of a group, instead of one for each tensor.
        outer: builds the outer optimizer from parameter groups and `lr`.

    Raises:
        DataError: lr or radius not positive, p below 1, or inner_steps not a positive integer.

    Example:
        >>> import torch
        >>> from liftednet.solvers import FrankWolfe
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = FrankWolfe([w], lr=0.1, radius=1.0, inner_steps=1)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = w.square().sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
        >>> w.detach()  # less 0.1 along the normalized gradient
        tensor([2.9400, 3.9200])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        radius: float = 1.0,
        inner_steps: int = 5,
        p: float = 2.0,
        joint: bool = False,
        outer: OuterOptimizer = SGD,
    ) -> None:
        """Check the settings and build the outer optimizer on the same groups."""
        defaults = {
            "lr": lr,
            "radius": radius,
            "inner_steps": inner_steps,
            "p": p,
            "joint": joint,
        }
        super().__init__(params, defaults)
        self.outer = outer(self.param_groups, lr=lr)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with settings of its own.

        Raises:
            DataError: settings that cannot be used.
        """
        merged = {**self.defaults, **param_group}
        start_lr = positive("lr", merged["lr"])
        Ball(merged["p"], merged["radius"])
        steps = merged["inner_steps"]
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise DataError(f"inner_steps must be a positive integer; it is {steps!r}.")
        if self.param_groups and steps != self.param_groups[0]["inner_steps"]:
            raise DataError("inner_steps must be the same in all groups: they share the closure.")
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault("start_lr", start_lr)
        if hasattr(self, "outer"):
            self.outer.add_param_group(self.param_groups[-1])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """Make one outer step of K inner steps.

        Args:
            closure: see the class.

        Returns:
            The loss of the first inner step, at the weights as they were.

        Raises:
            DataError: no closure, or sparse gradients.
            SolverError: gradients that are NaN or infinite; the weights are left as they were.
        """
        closure = torch.enable_grad()(needs_closure("FrankWolfe", closure))
        loss = closure()
        groups = [[w for w in g["params"] if w.grad is not None] for g in self.param_groups]
        weights = [w for group in groups for w in group]
        start = [w.clone() for w in weights]
        try:
            moved = self._inner_steps(closure, groups, start)
        finally:
            if self._inner_count() > 1:
                torch._foreach_copy_(weights, start)
        for weight, move in zip(weights, moved, strict=True):
            weight.grad = move.neg_()
        self.outer.step()
        return loss

    def _inner_steps(
        self, closure: Closure, groups: list[list[Tensor]], start: list[Tensor]
    ) -> list[Tensor]:
        """Return dw_K; gradients at the start are there already."""
        weights = [w for group in groups for w in group]
        moved = self._minimizers(groups)
        for k in range(2, self._inner_count() + 1):
            torch._foreach_copy_(weights, torch._foreach_add(start, moved))
            closure()
            # (1 - 1/k) dw + s/k = dw + (s - dw)/k
            torch._foreach_lerp_(moved, self._minimizers(groups), 1 / k)
        return moved

    def _minimizers(self, groups: list[list[Tensor]]) -> list[Tensor]:
        """Return s for every weight, in order."""
        minimizers: list[Tensor] = []
        for settings, weights in zip(self.param_groups, groups, strict=True):
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
            check_gradients(gradients)
            ball = Ball(settings["p"], settings["radius"])
            blocks = [gradients] if settings["joint"] else [[g] for g in gradients]
            found = [s for block in blocks if block for s in ball.minimizer(block)]
            decay = float(settings["lr"]) / settings["start_lr"]
            minimizers += [s.mul_(decay) for s in found]
        return minimizers

    def _inner_count(self) -> int:
        return int(self.param_groups[0]["inner_steps"])

    def state_dict(self) -> dict[str, Any]:
        """Return the settings and the state of the outer optimizer."""
        return {**super().state_dict(), "outer": self.outer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned."""
        own = {key: value for key, value in state_dict.items() if key != "outer"}
        super().load_state_dict(own)
        self.outer.load_state_dict(state_dict["outer"])
        self.outer.param_groups = self.param_groups
