"""Gradient methods for torch modules: Frank-Wolfe steps in p-balls, and steps of a cell in parts.

RNN training along locally optimal trajectories via Frank-Wolfe; and the temporal simplex method of
On Recurrent Neural Networks, which descends along the parts of a cell's gradient, one a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from liftednet.errors import DataError, SolverError
from liftednet.validation import is_number, require_positive


@dataclass(frozen=True)
class NormBall:
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
        require_positive("the radius", self.radius)

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
        # Dividing by the largest entry first keeps every power between 0 and 1.
        scaled = [g / largest for g in gradients]
        conjugate = 1 / (1 - 1 / self.p)
        powers = [t.abs() ** (conjugate - 1) for t in scaled]
        total = torch.stack([(w * t.abs()).sum() for w, t in zip(powers, scaled, strict=True)])
        factor = -self.radius / total.sum() ** (1 / self.p)
        return [t.sign() * w * factor for w, t in zip(powers, scaled, strict=True)]

    def _vertex(self, gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
        minimizer = [torch.zeros_like(g) for g in gradients]
        place = next(i for i, g in enumerate(gradients) if g.abs().max() == largest)
        index = gradients[place].abs().argmax()
        sign = gradients[place].flatten()[index].sign()
        minimizer[place].view(-1)[index] = -self.radius * sign
        return minimizer


Closure = Callable[[], Tensor]
OuterOptimizer = Callable[..., Optimizer]


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
    gradients = [g for g in gradients if g.numel()]
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
        defaults = {"lr": lr, "radius": radius, "inner_steps": inner_steps, "p": p, "joint": joint}
        super().__init__(params, defaults)
        self.outer = outer(self.param_groups, lr=lr)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of, which torch's optimizers have a list of."""
        return {**super().__getstate__(), "outer": self.outer}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with settings of its own.

        Raises:
            DataError: settings that cannot be used.
        """
        merged = {**self.defaults, **param_group}
        lr = merged["lr"]
        start_lr = require_positive("lr", lr.item() if isinstance(lr, Tensor) else lr)
        NormBall(merged["p"], merged["radius"])
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
        groups = [[w for w in g["params"] if w.requires_grad] for g in self.param_groups]
        weights = [w for group in groups for w in group]
        start = [w.clone() for w in weights]
        try:
            moved, met = self._inner_steps(closure, groups, start)
        finally:
            if self._inner_count() > 1:
                torch._foreach_copy_(weights, start)
        for weight, move, known in zip(weights, moved, met, strict=True):
            weight.grad = move.neg_() if known else None
        self.outer.step()
        return loss

    def _inner_steps(
        self, closure: Closure, groups: list[list[Tensor]], start: list[Tensor]
    ) -> tuple[list[Tensor], list[bool]]:
        """Return dw_K, and what has had a gradient; those at the start are there already."""
        weights = [w for group in groups for w in group]
        moved, met = self._minimizers(groups), [w.grad is not None for w in weights]
        for k in range(2, self._inner_count() + 1):
            torch._foreach_copy_(weights, torch._foreach_add(start, moved))
            closure()
            met = [known or w.grad is not None for known, w in zip(met, weights, strict=True)]
            # (1 - 1/k) dw + s/k = dw + (s - dw)/k
            torch._foreach_lerp_(moved, self._minimizers(groups), 1 / k)
        return moved, met

    def _minimizers(self, groups: list[list[Tensor]]) -> list[Tensor]:
        """Return s for every weight, in order."""
        minimizers: list[Tensor] = []
        for settings, weights in zip(self.param_groups, groups, strict=True):
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
            check_gradients(gradients)
            ball = NormBall(settings["p"], settings["radius"])
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


Consumer = Callable[[int, list[Tensor]], None]


class TemporalParts:
    """Watches a cell while a model applies it over time, and hands over each part as it comes.

    The part of step k is the gradient with respect to a copy of the parameters that only step k
    uses (On Recurrent Neural Networks, eq. 3.1); the parts sum to the gradient (eq. 3.2). Inside
    the `with` block every call of the cell is one step and runs on aliases of its parameters,
    which share their storage. Backward then delivers the steps from the last to the first, and a
    delivered part is forgotten: memory does not grow with the number of steps.

        with TemporalParts(cell, consume):
            loss(model(x), y).backward()

    The parameters of the cell get no gradient in this way; all others get theirs.

    Args:
        cell: any module, called once a step by whatever model contains it.
        consume: called with the step, from 0, and the part: one tensor for every parameter of
            the cell that needs a gradient, in the order of `cell.parameters()`.

    Raises:
        DataError: the cell has no parameter that needs a gradient.
    """

    def __init__(self, cell: nn.Module, consume: Consumer) -> None:
        """Remember the places of the cell's parameters."""
        self.steps = 0
        self._cell = cell
        self._consume = consume
        self._places = _places(cell)
        if not self._places:
            raise DataError(f"{type(cell).__name__} has no parameter that needs a gradient.")
        self._pending: dict[int, dict[int, Tensor]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._handles = [
            self._cell.register_forward_pre_hook(self._alias),
            self._cell.register_forward_hook(self._restore, always_call=True),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching; deliver steps that did not use all parameters."""
        for handle in self._handles:
            handle.remove()
        if error is None:
            for step in sorted(self._pending, reverse=True):
                self._deliver(step)
        self._pending.clear()

    def _alias(self, cell: nn.Module, inputs: object) -> None:
        for index, (parameter, places) in enumerate(self._places):
            alias = parameter.detach().requires_grad_()
            alias.register_post_accumulate_grad_hook(partial(self._arrive, self.steps, index))
            for owner, name in places:
                # functional_call swaps parameters in this way too; the property setter would refuse
                owner._parameters[name] = alias  # type: ignore[assignment]
        self.steps += 1

    def _restore(self, cell: nn.Module, inputs: object, output: object) -> None:
        for parameter, places in self._places:
            for owner, name in places:
                owner._parameters[name] = parameter

    def _arrive(self, step: int, index: int, alias: Tensor) -> None:
        assert alias.grad is not None
        self._pending.setdefault(step, {})[index] = alias.grad
        alias.grad = None
        if len(self._pending[step]) == len(self._places):
            self._deliver(step)

    def _deliver(self, step: int) -> None:
        arrived = self._pending.pop(step)
        self._consume(
            step,
            [
                arrived[index] if index in arrived else torch.zeros_like(parameter)
                for index, (parameter, _) in enumerate(self._places)
            ],
        )


def _places(cell: nn.Module) -> list[tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Return each parameter that needs a gradient, with the owner and name of all its places."""
    found: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for owner in cell.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                found.setdefault(id(parameter), (parameter, []))[1].append((owner, name))
    return list(found.values())


def part_norm(part: list[Tensor]) -> Tensor:
    """Return the Euclidean norm of all entries of a part together."""
    norms = torch.stack([torch.linalg.vector_norm(t) for t in part])
    return norms.square().sum().sqrt()


class TemporalSimplexDescent(Optimizer):
    """Give every time step the same say in the direction of a recurrent cell.

    On Recurrent Neural Networks, sections 3.3 and 3.4: with g_t the normalized temporal parts and
    beta drawn uniformly from the simplex in each step,

        g = sum_t beta_t g_t,    d = |grad L| g / |g|,
        alpha = lr if |d| <= threshold, else lr / |d|,    w <- w - alpha d.

    Parts of norm 0 stay 0. The norms run over the cell's parameters; parameters outside the cell
    keep their ordinary gradient, as do terms of the loss in the cell's own outside of its calls,
    such as a weight decay, and |d| in the step rule runs over all.

    Args:
        params: parameters, those of the cell among them, in one group.
        cell: the module that the model applies once a time step, such as `nn.RNNCell`; an
            `nn.RNN` takes a sequence in one call, so that its gradient has one part.
        lr: mu, the step length factor.
        threshold: c, the norm of d beyond which the step has length lr.
        generator: of the simplex weights.

    Raises:
        DataError: lr or threshold not positive, no generator, several groups, or parameters of
            the cell that are not among `params`.

    Example:
        >>> import torch
        >>> from liftednet.solvers import TemporalSimplexDescent
        >>> cell, x = torch.nn.RNNCell(1, 3), torch.ones(2, 4, 1)
        >>> settings = {"lr": 0.1, "threshold": 1.0, "generator": torch.Generator()}
        >>> optimizer = TemporalSimplexDescent(cell.parameters(), cell, **settings)
        >>> def closure():
        ...     cell.zero_grad()
        ...     loss = (cell(x[1], cell(x[0])) - 1).square().sum()
        ...     loss.backward()
        ...     return loss
        >>> losses = [optimizer.step(closure) for _ in range(20)]
        >>> bool(losses[-1] < losses[0])
        True
    """

    def __init__(
        self,
        params: ParamsT,
        cell: nn.Module,
        lr: float,
        *,
        threshold: float,
        generator: torch.Generator,
    ) -> None:
        """Check the settings."""
        require_positive("lr", lr)
        require_positive("threshold", threshold)
        if not isinstance(generator, torch.Generator):
            raise DataError(f"generator must be a torch.Generator; it is {generator!r}.")
        super().__init__(params, {"lr": lr, "threshold": threshold})
        if len(self.param_groups) != 1:
            raise DataError("TemporalSimplexDescent takes one group: the step has one norm.")
        self._cell_parameters = [p for p in cell.parameters() if p.requires_grad]
        known = {id(p) for p in self.param_groups[0]["params"]}
        if any(id(p) not in known for p in self._cell_parameters):
            raise DataError("The parameters of the cell must be among the parameters to train.")
        self._cell = cell
        self._generator = generator

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of, which torch's optimizers have a list of."""
        own = {x: vars(self)[x] for x in ("_cell_parameters", "_cell", "_generator")}
        return {**super().__getstate__(), **own}

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """Make one step.

        Args:
            closure: clears the gradients, computes the loss of the model on the next batch, calls
                backward and returns the loss.

        Returns:
            The loss before the step.

        Raises:
            DataError: no closure, a closure that never calls the cell or calls a whole recurrence
                such as `nn.RNN` once, or sparse gradients.
            SolverError: gradients that are NaN or infinite; the weights are as they were.
        """
        closure = torch.enable_grad()(needs_closure("TemporalSimplexDescent", closure))
        total, mixed = ([torch.zeros_like(p) for p in self._cell_parameters] for _ in range(2))

        @cache  # drawn when the number of steps is known
        def shares() -> Tensor:
            return simplex_weights(parts.steps, self._generator)

        def add(step: int, part: list[Tensor]) -> None:
            if step >= len(shares()):
                raise DataError(
                    "The closure called the cell again after a backward pass: steps are mixed at "
                    "once, so call backward once, on the sum of the losses."
                )
            torch._foreach_add_(total, part)
            norm = float(part_norm(part))
            if norm > 0:
                torch._foreach_add_(mixed, part, alpha=float(shares()[step]) / norm)

        with TemporalParts(self._cell, add) as parts:
            loss = closure()
        if parts.steps == 0:
            raise DataError(f"The closure never called the cell {type(self._cell).__name__}.")
        if parts.steps == 1 and isinstance(self._cell, nn.RNNBase):
            raise DataError(
                f"The closure called {type(self._cell).__name__} once, for a whole sequence: its "
                "gradient has no parts in time. Apply a cell such as nn.RNNCell step by step."
            )
        norm = float(part_norm(mixed))
        cell = total if norm == 0 else [m * (float(part_norm(total)) / norm) for m in mixed]
        for parameter, value in zip(self._cell_parameters, cell, strict=True):
            parameter.grad = value if parameter.grad is None else parameter.grad + value
        group = self.param_groups[0]
        moved = [w for w in group["params"] if w.grad is not None]
        direction = [w.grad for w in moved]
        check_gradients(direction)
        length = float(part_norm(direction))
        rate = group["lr"] if length <= group["threshold"] else group["lr"] / length
        torch._foreach_add_(moved, direction, alpha=-rate)
        return loss


def simplex_weights(count: int, generator: torch.Generator) -> Tensor:
    """Draw positive weights that sum to 1, uniformly from the simplex (section 3.3).

    Args:
        count: number of weights.
        generator: of the draw.

    Returns:
        (count,) float32.
    """
    # Independent exponentials, divided by their sum, are uniform on the simplex.
    draws = torch.empty(count).exponential_(generator=generator)
    return draws / draws.sum()
