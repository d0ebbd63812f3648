"""Descent along the parts of a recurrent cell's gradient, one for every time step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from liftednet.errors import DataError

from .frank_wolfe import Closure, check_gradients, needs_closure, positive

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
        for index, (owner, name, parameter) in enumerate(self._places):
            alias = parameter.detach().requires_grad_()
            alias.register_post_accumulate_grad_hook(partial(self._arrive, self.steps, index))
            # functional_call swaps parameters in this way too; the property setter would refuse.
            owner._parameters[name] = alias  # type: ignore[assignment]
        self.steps += 1

    def _restore(self, cell: nn.Module, inputs: object, output: object) -> None:
        for owner, name, parameter in self._places:
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
                for index, (_, _, parameter) in enumerate(self._places)
            ],
        )


def _places(cell: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return owner, name and value of each parameter that needs a gradient, each value once."""
    found: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
    for owner in cell.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad:
                found.setdefault(id(parameter), (owner, name, parameter))
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
    keep their ordinary gradient, and |d| in the step rule runs over all.

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
        positive("lr", lr)
        positive("threshold", threshold)
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
        mixture = _Mixture(self._cell_parameters, self._generator)
        with TemporalParts(self._cell, mixture.add) as parts:
            mixture.parts = parts
            loss = closure()
        if parts.steps == 0:
            raise DataError(f"The closure never called the cell {type(self._cell).__name__}.")
        if parts.steps == 1 and isinstance(self._cell, nn.RNNBase):
            raise DataError(
                f"The closure called {type(self._cell).__name__} once, for a whole sequence: its "
                "gradient has no parts in time. Apply a cell such as nn.RNNCell step by step."
            )
        self._set_direction(mixture)
        group = self.param_groups[0]
        moved = [w for w in group["params"] if w.grad is not None]
        direction = [w.grad for w in moved]
        check_gradients(direction)
        length = float(part_norm(direction))
        rate = group["lr"] if length <= group["threshold"] else group["lr"] / length
        torch._foreach_add_(moved, direction, alpha=-rate)
        return loss

    def _set_direction(self, mixture: _Mixture) -> None:
        for parameter, value in zip(self._cell_parameters, mixture.direction(), strict=True):
            parameter.grad = value


class _Mixture:
    """Sums the parts of a gradient, plainly and normalized with random weights."""

    def __init__(self, parameters: list[nn.Parameter], generator: torch.Generator) -> None:
        self.parts: TemporalParts | None = None
        self._generator = generator
        self._total: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        self._mixed: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        self._shares: Tensor | None = None

    def add(self, step: int, part: list[Tensor]) -> None:
        """Take one part; the weights are drawn when the number of steps is known."""
        if self._shares is None:
            assert self.parts is not None
            self._shares = simplex_weights(self.parts.steps, self._generator)
        torch._foreach_add_(self._total, part)
        norm = float(part_norm(part))
        if norm > 0:
            torch._foreach_add_(self._mixed, part, alpha=float(self._shares[step]) / norm)

    def direction(self) -> list[Tensor]:
        """Return d for the cell (eq. 3.5)."""
        norm = float(part_norm(self._mixed))
        if norm == 0:
            return self._total
        scale = float(part_norm(self._total)) / norm
        return [m * scale for m in self._mixed]


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
