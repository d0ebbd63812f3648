"""LSTM and GRU layers over all their steps, forth and back, without a graph for each step.

A step is a dozen operations on small tensors, whose nodes in a graph of autograd cost more than
they do. Here the steps are two plain loops, and weights are asked for once, of all steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from liftednet.layers.expression import Applied, Expression, Variable, value_of
from liftednet.layers.time import delayed
from liftednet.network import Cell, State
from liftednet.samples import Weights


class Rule(Protocol):
    """How states follow from pre-activations, and what a push on the states asks of these."""

    def forward(self, u: Tensor) -> Tensor:
        """Return the states."""

    def asked(self, u: Tensor, states: Tensor, push: Tensor) -> Tensor:
        """Return what stands for phi'(u) times a gradient on the states."""


Rules = Callable[[State], Any]  # a `Rule`, or where nothing is differentiated an activation


@dataclass(frozen=True, eq=False)
class Gated(Cell):
    """States that follow from W x + b and V h_(t-1) + c, a step after another.

    Attributes:
        given: W x + b.
        kept: V h_(t-1) + c, with weights of its own.
        states: of the layer, in the order that the subclass tells.
    """

    given: Expression
    kept: Applied
    states: tuple[State, ...]

    def run(
        self, values: Mapping[Variable, Any], known: dict[int, Any], rules: Rules
    ) -> dict[State, Tensor]:
        """Return the states of all steps, differentiable in the weights and in what is given.

        Products of a step are in the type of the weights, whatever others are in: what is asked is
        lam (phi(u) - target) with u computed again, and lam times a rounding is no gradient.
        """
        assert self.kept.weights is not None  # a plain layer has some
        weights = values[self.kept.weights]
        given = value_of(self.given, values, known).to(weights.matrix)
        with torch.autocast(given.device.type, enabled=False):
            return self._run(given, weights, known, rules)

    def _run(
        self, given: Tensor, weights: Weights, known: dict[int, Any], rules: Rules
    ) -> dict[State, Tensor]:
        of = [rules(state) for state in self.states]
        with torch.no_grad():
            rows = [torch.stack(x) for x in zip(*self._forth(given, weights, of), strict=True)]
        if not torch.is_grad_enabled():
            return dict(zip(self.states, rows, strict=True))
        before = delayed(self._output(rows))
        known[id(self.kept)] = kept = self.kept.layer.value([before], weights)
        found = _OverTime.apply(  # type: ignore[no-untyped-call]
            self, of, weights.matrix.detach(), given, kept, *rows
        )
        return dict(zip(self.states, found, strict=True))

    @abstractmethod
    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        """Return h of all steps."""

    @abstractmethod
    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        """Yield the states of each step."""

    @abstractmethod
    def back(
        self,
        rules: Sequence[Rule],
        back: Tensor,
        given: Tensor,
        kept: Tensor,
        rows: Sequence[Tensor],
        pushes: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return what pushes on the states of all steps ask of both terms.

        Args:
            rules: of the states.
            back: V transposed.
            given: W x + b.
            kept: V h_(t-1) + c.
            rows: the states.
            pushes: on each of them from outside of the layer.
        """


class _OverTime(torch.autograd.Function):
    """The states of all steps, whose backward pass is a loop over time."""

    @staticmethod
    def forward(
        ctx: Any, cell: Gated, rules: Sequence[Rule], matrix: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the states as they are, (steps, samples, units) each."""
        ctx.cell, ctx.rules, ctx.back = cell, rules, matrix.T.contiguous()
        rows = tuple(x.view_as(x) for x in tensors[2:])
        ctx.save_for_backward(*tensors[:2], *rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *pushes: Tensor) -> tuple[Tensor | None, ...]:
        """Return what is asked of both terms."""
        given, kept, *rows = ctx.saved_tensors
        asked = ctx.cell.back(ctx.rules, ctx.back, given, kept, rows, pushes)
        return None, None, None, *asked, *(None for _ in rows)


class LSTM(Gated):
    """i, f, o = sigmoid(.), g = tanh(.), c_t = f c_(t-1) + i g, h = o tanh(c).

    States: [i, f], g, c, o, tanh(c); pre-activations [i, f, g, o].
    """

    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        return rows[3] * rows[4]

    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        gate, fresh, _, out, bend = rules
        n, matrix = given.shape[2] // 4, weights.matrix
        h = c = given.new_zeros(given.shape[1], n)
        for u in (given if weights.bias is None else given + weights.bias).unbind():
            u = torch.addmm(u, h, matrix)
            gates, g = gate.forward(u[:, : 2 * n]), fresh.forward(u[:, 2 * n : 3 * n])
            o = out.forward(u[:, 3 * n :])
            c = torch.addcmul(gates[:, n:] * c, gates[:, :n], g)
            bent = bend.forward(c)
            h = o * bent
            yield gates, g, c, o, bent

    def back(
        self,
        rules: Sequence[Rule],
        back: Tensor,
        given: Tensor,
        kept: Tensor,
        rows: Sequence[Tensor],
        pushes: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the same for both: they stand in a sum alone."""
        gate, fresh, _, out, bend = rules
        n, u = given.shape[2] // 4, given + kept
        asked = torch.empty_like(u)
        push = torch.empty_like(rows[0][0])  # on [i, f]
        later, after = torch.zeros_like(rows[2][0]), torch.zeros_like(u[0])
        parts = (u, asked, delayed(rows[2]), *rows, *pushes)
        for u_t, asked_t, before, gates, g, c, o, bent, *given_t in reversed(
            list(zip(*(x.unbind() for x in parts), strict=True))
        ):
            on_gates, on_g, on_c, on_o, on_bent = given_t
            h = after @ back
            of_bent = bend.asked(c, bent, torch.addcmul(on_bent, h, o))
            of_c = later + on_c + of_bent
            torch.addcmul(on_gates[:, :n], of_c, g, out=push[:, :n])
            torch.addcmul(on_gates[:, n:], of_c, before, out=push[:, n:])
            of_gates = gate.asked(u_t[:, : 2 * n], gates, push)
            i, f = gates[:, :n], gates[:, n:]
            of_g = fresh.asked(u_t[:, 2 * n : 3 * n], g, torch.addcmul(on_g, of_c, i))
            of_o = out.asked(u_t[:, 3 * n :], o, torch.addcmul(on_o, h, bent))
            after = torch.cat([of_gates, of_g, of_o], 1, out=asked_t)
            later = of_c * f
        return asked, asked


class GRU(Gated):
    """r, z = sigmoid(.), n = tanh(. + r (V h_(t-1) + c)), h_t = z h_(t-1) + (1 - z) n.

    States: [r, z], n, h; pre-activations [r, z, n].
    """

    def _output(self, rows: Sequence[Tensor]) -> Tensor:
        return rows[2]

    def _forth(
        self, given: Tensor, weights: Weights, rules: Sequence[Rule]
    ) -> Iterator[Sequence[Tensor]]:
        gate, fresh, _ = rules
        n = given.shape[2] // 3
        h = given.new_zeros(given.shape[1], n)
        for u in given.unbind():
            kept = weights.apply(h)
            gates = gate.forward(u[:, : 2 * n] + kept[:, : 2 * n])
            new = fresh.forward(torch.addcmul(u[:, 2 * n :], gates[:, :n], kept[:, 2 * n :]))
            h = torch.lerp(new, h, gates[:, n:])
            yield gates, new, h

    def back(
        self,
        rules: Sequence[Rule],
        back: Tensor,
        given: Tensor,
        kept: Tensor,
        rows: Sequence[Tensor],
        pushes: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return what is asked of both: r multiplies a part of the second alone."""
        gate, fresh, _ = rules
        n = given.shape[2] // 3
        gated = given[..., : 2 * n] + kept[..., : 2 * n]
        curved = torch.addcmul(given[..., 2 * n :], rows[0][..., :n], kept[..., 2 * n :])
        apart = delayed(rows[2]) - rows[1]
        asked, asked_kept = torch.empty_like(given), torch.empty_like(kept)
        push = torch.empty_like(rows[0][0])  # on [r, z]
        later, after = torch.zeros_like(rows[2][0]), torch.zeros_like(kept[0])
        parts = (gated, curved, kept[..., 2 * n :], apart, asked, asked_kept, *rows[:2], *pushes)
        for (
            u_gates,
            u_new,
            kept_t,
            apart_t,
            asked_t,
            asked_kept_t,
            gates,
            new,
            *given_t,
        ) in reversed(list(zip(*(x.unbind() for x in parts), strict=True))):
            on_gates, on_new, on_h = given_t
            r, z = gates[:, :n], gates[:, n:]
            of_h = torch.addmm(later + on_h, after, back)
            later = of_h * z
            of_new = fresh.asked(u_new, new, on_new + of_h - later)
            torch.addcmul(on_gates[:, :n], of_new, kept_t, out=push[:, :n])
            torch.addcmul(on_gates[:, n:], of_h, apart_t, out=push[:, n:])
            of_gates = gate.asked(u_gates, gates, push)
            torch.cat([of_gates, of_new], 1, out=asked_t)
            after = torch.cat([of_gates, of_new * r], 1, out=asked_kept_t)
        return asked, asked_kept
